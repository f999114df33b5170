"""`zkconsumer consume`: write messages to standard output, like `kafka.tools.ConsoleConsumer`.

The main thread waits for a reason to stop. One thread per stream polls, writes and flushes. The
next poll, which follows the flush, marks a batch as finished, so it may be committed. A normal exit
commits the last batch, too. After an error the in-flight batch is not committed.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.cli.options import Connection, OneGroup, Topics, operator, whole_topics
from zkconsumer.errors import ConfigError, RebalanceBlockedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zkconsumer.config.settings import ConsumerConfig
    from zkconsumer.protocol.filters import TopicFilter

# The maximum number of messages of one poll. They are written and flushed together, so an error
# redelivers at most one poll's messages.
BATCH = 500
# Seconds that a poll waits for messages before the thread checks whether it should stop.
TURN_S = 0.25
# Seconds that the exit waits for a batch that is being written. After that it counts as unwritten.
LAST_WRITE_S = 2.0

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Output(Enum):
    """Output format of a message."""

    RAW = "raw"  # the value's bytes and a newline
    JSONL = "jsonl"  # one object per line


class Ended(Enum):
    """Why a thread or the whole command stops."""

    DONE = "done"
    INTERRUPTED = "SIGINT"
    TERMINATED = "SIGTERM"


def _regex(meaning: str) -> Any:
    return typer.Option(metavar="REGEX", help=f"Consume {meaning}.")


FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        help="Start at the oldest message of a partition for which the group has no offset.",
    ),
]


@app.command()
@operator()
def consume(
    connection: Connection,
    *,
    group: OneGroup = None,
    topic: Topics = None,
    whitelist: Annotated[
        str | None, _regex("every topic that matches, including topics created later")
    ] = None,
    blacklist: Annotated[str | None, _regex("every topic that does not match")] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Number of streams; each has its own thread.")
    ] = 1,
    from_beginning: FromBeginning = False,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of messages.")
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", help="raw writes the values; jsonl writes one object per message."
        ),
    ] = Output.RAW,
    idle_timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", help="Stop after S seconds without a message."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the member's trace to FILE (trace.file)."),
    ] = None,
) -> None:
    """Write the messages of topics to standard output, as a member of a group.

    Example: zkconsumer consume -z zk1:2181/kafka --group billing --topic orders --from-beginning
    """
    wanted = _wanted(topic, whitelist, blacklist)
    more = {
        "auto_offset_reset": "smallest" if from_beginning else None,
        "trace_file": None if trace is None else str(trace),
    }
    settings = connection.settings(
        connection.group(group), **{name: value for name, value in more.items() if value}
    )
    topics = len(wanted) if isinstance(wanted, list) else 1
    run = Run(
        budget=Budget(max_messages, threads=threads * topics),
        write=_write_raw if output is Output.RAW else _write_json,
        idle_limit_s=settings.consumer_timeout_s if idle_timeout is None else idle_timeout,
    )
    ended = run.run(settings, wanted, threads)
    if ended is Ended.INTERRUPTED:
        raise typer.Exit(128 + signal.SIGINT)


def _wanted(
    topics: list[str] | None, whitelist: str | None, blacklist: str | None
) -> list[str] | TopicFilter:
    """Return the topics or the filter of the options.

    Raises ConfigError unless there is exactly one kind, which ConsoleConsumer demands as well.
    """
    from zkconsumer.protocol.filters import black_list, white_list

    makers: dict[str, Callable[[Any], list[str] | TopicFilter | None]]
    makers = {"--topic": whole_topics, "--whitelist": white_list, "--blacklist": black_list}
    given = dict(zip(makers, (topics or None, whitelist, blacklist), strict=True))
    named = [(option, text) for option, text in given.items() if text is not None]
    if len(named) != 1:
        both = " and ".join(option for option, _ in named)
        raise ConfigError(
            f"{both} exclude each other" if named else "no topic is named",
            where="consume",
            remedy=f"give exactly one of {', '.join(makers)}",
        )
    ((option, text),) = named
    return makers[option](text) or []


class Budget:
    """The number of messages that may still be written (`--max-messages`).

    A thread reserves its messages before it polls, so no more are fetched than may be written.

    Threads are served in the order of their calls, and each gets a share of what remains.
    Otherwise a thread whose stream is empty could starve the others: it reserves the whole budget,
    polls in vain, returns the budget, and reserves it again before the threads that it woke run.
    """

    def __init__(self, total: int | None, *, threads: int) -> None:
        self._left = total
        self._lent = 0
        self._closed = False
        self._threads = threads
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    def take(self, most: int) -> int:
        """Reserve up to `most` messages, and return their number; 0 means the budget is used up.

        Waits while other threads hold the rest of the budget.
        """
        turn = object()
        with self._changed:
            self._queue.append(turn)
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or (self._queue[0] is turn and (self._left != 0 or self._lent == 0))
                )
            )
            self._queue.remove(turn)
            self._changed.notify_all()
            if self._closed:
                return 0
            if self._left is None:
                return most
            taken = min(most, self._left, max(1, self._left // self._threads))
            self._lent += taken
            self._left -= taken
            return taken

    def settle(self, taken: int, used: int) -> None:
        """Return the unused part of a reservation."""
        with self._changed:
            if self._left is not None:
                self._lent -= taken
                self._left += taken - used
            self._changed.notify_all()

    def close(self) -> None:
        """Make every present and later `take` return 0."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Run:
    """One run of the command: the threads of the streams and their shared state."""

    def __init__(
        self,
        *,
        budget: Budget,
        write: Callable[[Iterable[Any]], bytes],
        idle_limit_s: float | None,
    ) -> None:
        self._budget = budget
        self._format = write
        self._idle_limit_s = idle_limit_s
        self._last_message_s = time.monotonic()
        self._stopping = False
        self._written = 0
        self._out = threading.Lock()
        # SimpleQueue.put() may be called from a signal handler. Event.set() may not: the handler
        # runs in the main thread, which may hold the event's lock at that moment.
        self._inbox: SimpleQueue[Ended | BaseException] = SimpleQueue()

    def run(self, config: ConsumerConfig, wanted: list[str] | TopicFilter, threads: int) -> Ended:
        """Consume until there is a reason to stop, and return it. Raises the error of a thread."""
        from zkconsumer import ConsumerConnector

        with ConsumerConnector(config) as connector, self._signals():
            if isinstance(wanted, list):
                made = connector.create_message_streams(dict.fromkeys(wanted, threads))
                streams = [stream for topic in wanted for stream in made[topic]]
            else:
                streams = connector.create_message_streams_by_filter(wanted, threads)
            workers = [
                threading.Thread(target=self._work, args=(stream,), daemon=True)
                for stream in streams
            ]
            try:
                for worker in workers:
                    worker.start()
                ended = self._wait(len(workers))
                reasons = {stream.waiting_for for stream in streams}
            finally:
                self._stopping = True
                self._budget.close()
                for worker in workers:
                    worker.join(LAST_WRITE_S)
            if any(worker.is_alive() for worker in workers):
                # The pipe's reader has stalled. Leaving by an exception commits no unwritten batch.
                raise KeyboardInterrupt
        # If nothing was written, say what the member was waiting for.
        why = "" if self._written or "" in reasons else f" ({'; '.join(sorted(reasons))})"
        typer.echo(f"zkconsumer: {self._written} messages{why}", err=True)
        return ended

    def _wait(self, workers: int) -> Ended:
        while workers:
            ended = self._inbox.get()
            if isinstance(ended, BaseException):
                raise ended
            if ended is not Ended.DONE:
                return ended
            workers -= 1
        return Ended.DONE

    @contextmanager
    def _signals(self) -> Iterator[None]:
        wanted = {signal.SIGINT: Ended.INTERRUPTED, signal.SIGTERM: Ended.TERMINATED}
        before = {
            number: signal.signal(number, lambda *_, ended=ended: self._inbox.put(ended))
            for number, ended in wanted.items()
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _work(self, stream: Any) -> None:
        try:
            while not self._stopping and self._turn(stream):
                pass
            self._inbox.put(Ended.DONE)
        except BaseException as error:  # noqa: BLE001 - a thread boundary: the main thread raises it
            self._inbox.put(error)

    def _turn(self, stream: Any) -> bool:
        """Poll, write and flush once; return False when the thread should end."""
        taken = self._budget.take(BATCH)
        if not taken:
            return False
        used = 0
        try:
            batch = stream.poll(max_messages=taken, timeout_s=TURN_S)
            used = len(batch)
            if used:
                self._write(batch, used)
        except RebalanceBlockedError as error:
            typer.echo(f"zkconsumer: {error}", err=True)  # the member keeps trying
        finally:
            self._budget.settle(taken, used)
        return not self._idle()

    def _write(self, batch: Iterable[Any], count: int) -> None:
        text = memoryview(self._format(batch))
        with self._out:
            # With PYTHONUNBUFFERED `buffer` is the raw file, whose write() may be partial.
            while text:
                text = text[sys.stdout.buffer.write(text) :]
            sys.stdout.buffer.flush()
            self._written += count
            self._last_message_s = time.monotonic()

    def _idle(self) -> bool:
        limit_s = self._idle_limit_s
        return limit_s is not None and time.monotonic() - self._last_message_s >= limit_s


def _write_raw(batch: Iterable[Any]) -> bytes:
    # The JVM's DefaultMessageFormatter writes "null" for a message without a value, too.
    return b"".join(
        (b"null" if message.value is None else message.value) + b"\n" for message in batch
    )


def _write_json(batch: Iterable[Any]) -> bytes:
    return b"".join(_json_line(message) for message in batch)


def _json_line(message: Any) -> bytes:
    document = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **_text("key", message.key),
        **_text("value", message.value),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as `name`: text if they are UTF-8, and else as base64 under `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
