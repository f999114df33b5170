"""`zkconsumer consume`: write messages to standard output, like `kafka.tools.ConsoleConsumer`, or
to files.

The main thread waits for a reason to stop. One thread per stream polls, writes and flushes. When it
writes to standard output, a thread flushes a batch before its next poll. If standard output is a
pipe, the thread also waits until the pipe's reader has read the batch. The next poll marks the
batch as finished, so that the batch may be committed. A normal exit also commits the last batch.
After an error the in-flight batch is not committed, and neither is a batch that the reader of the
pipe has not read before it ends (`| head -1`). With `--to`, `cli.export` commits when a file is
complete, and at no other time.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self

import typer

from zkconsumer.cli.message_lines import Lines, hex_lines, json_lines, parsed_lines, raw_lines
from zkconsumer.cli.options import Connection, OneGroup, Topics, operator, topics_of, whole_topics
from zkconsumer.cli.output import Progress, say
from zkconsumer.errors import (
    ConfigError,
    MalformedZnodeError,
    RebalanceBlockedError,
    ZkConsumerError,
)

if sys.platform == "linux":
    import fcntl
    import termios

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zkconsumer.cli.export import Export
    from zkconsumer.config.settings import ConsumerConfig
    from zkconsumer.consumer.connector import ConsumerConnector
    from zkconsumer.consumer.listener import RebalanceCallbacks
    from zkconsumer.consumer.messages import Message
    from zkconsumer.consumer.stream import Stream
    from zkconsumer.protocol.filters import TopicFilter
    from zkconsumer.protocol.model import TopicPartition

# The maximum number of messages of one poll. The messages of a poll are written and flushed
# together, so after an error at most one poll's messages are redelivered.
BATCH = 500
# Seconds that a poll waits for messages before the thread checks whether it should stop.
TURN_S = 0.25
# Seconds that the exit waits for a batch that is being written. After that the batch counts as
# unwritten.
LAST_WRITE_S = 2.0
# Seconds that the exit waits for a row group that is being written to a file: a slow disk takes
# longer than a pipe.
LAST_FILE_WRITE_S = 60.0
# The maximum number of messages of one poll for files: the size of a batch of columns.
COLUMNS_BATCH = 20_000
# Shortest and longest time between two checks whether the reader of a pipe has read a batch, in
# seconds.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0001, 0.01
# Seconds between two checks of the progress of an export.
PROGRESS_INTERVAL_S = 0.25

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class MessageFormat(Enum):
    """Output format of a message."""

    RAW = "raw"  # the value's bytes and a newline
    HEX = "hex"  # the value's bytes in hexadecimal
    JSONL = "jsonl"  # one object per line
    JSON = "json"  # one object per line, in which a value that is JSON is not quoted as a string
    PARQUET = "parquet"  # only with --to
    ARROW = "arrow"  # Arrow's IPC files; only with --to


_LINES: Mapping[MessageFormat, Lines] = {
    MessageFormat.RAW: raw_lines,
    MessageFormat.HEX: hex_lines,
    MessageFormat.JSONL: json_lines,
    MessageFormat.JSON: parsed_lines,
}


class Ended(Enum):
    """Why a thread or the whole command stops."""

    DONE = "done"
    INTERRUPTED = "SIGINT"
    TERMINATED = "SIGTERM"


def _regex(meaning: str) -> object:
    return typer.Option(metavar="REGEX", help=f"Consume {meaning}.")


FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        help="Start at the oldest message of a partition for which the group has no offset.",
    ),
]


From = Annotated[
    str | None,
    typer.Option(
        metavar="N|-N|@TIME",
        help="Read --topic from this offset, from the last N messages, or from this time,"
        " without a group.",
    ),
]

To = Annotated[
    Path | None,
    typer.Option(
        metavar="DIRECTORY",
        help="Write files into DIRECTORY, and commit when a file is complete and synced.",
    ),
]

Format = Annotated[
    MessageFormat,
    typer.Option(
        "--output",
        "-o",
        help="raw and hex write the values; jsonl writes one object per message; in json, a"
        " value that is JSON is not quoted as a string; parquet and arrow need --to.",
    ),
]

FileSeconds = Annotated[
    float,
    typer.Option(
        "--file-seconds",
        min=0.1,
        metavar="S",
        help="With --to: complete a file S seconds after its first message.",
    ),
]

FileMb = Annotated[
    int,
    typer.Option("--file-mb", min=1, metavar="MB", help="With --to: the size of a file."),
]

TraceFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the member's trace to FILE (trace.file)."),
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
    offset: From = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of messages.")
    ] = None,
    output: Format = MessageFormat.RAW,
    to: To = None,
    file_mb: FileMb = 256,
    file_seconds: FileSeconds = 60.0,
    idle_timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", help="Stop after S seconds without a message."),
    ] = None,
    trace: TraceFile = None,
) -> None:
    """Write the messages of topics to standard output or to files, as a member of a group.

    With --offset, the command joins no group and commits nothing, whatever group the settings name:
    it reads the partitions of --topic, for example one message of orders-3 with --topic orders:3
    --offset 42 --max-messages 1.

    Example: zkconsumer consume -z zk1:2181/kafka --group billing --topic orders --from-beginning
    """
    if offset is not None:
        _without_group(
            connection,
            topic,
            offset,
            output=output,
            member={
                "--whitelist": whitelist,
                "--blacklist": blacklist,
                "--to": to,
                "--trace": trace,
                "--from-beginning": from_beginning,
                "--threads": threads > 1,
            },
            max_messages=max_messages,
            idle_timeout_s=idle_timeout,
        )
        return
    wanted = _wanted(topic, whitelist, blacklist)
    _check_format(output, to)
    more: dict[str, object] = {}
    if from_beginning:
        more["auto_offset_reset"] = "smallest"
    if trace is not None:
        more["trace_file"] = str(trace)
    if to is not None:
        more["auto_commit_enable"] = False
    settings = connection.settings(connection.group(group), **more)
    topics = len(wanted) if isinstance(wanted, list) else 1
    run = Consumption(
        budget=Budget(max_messages, threads=threads * topics),
        sink=_Lines(_LINES[output])
        if to is None
        else _Files(to, output.value, file_mb << 20, file_seconds),
        idle_limit_s=settings.consumer_timeout_s if idle_timeout is None else idle_timeout,
        suggest=lambda: _suggest_topics(connection, wanted),
    )
    ended = run.run(settings, wanted, threads)
    if ended is Ended.INTERRUPTED:
        raise typer.Exit(128 + signal.SIGINT)


def _suggest_topics(connection: Connection, wanted: list[str] | TopicFilter) -> None:
    """Name the existing topics whose names are similar to those of topics that do not exist."""
    from zkconsumer.admin.groups import read_topic_names
    from zkconsumer.protocol.suggestions import did_you_mean

    if not isinstance(wanted, list):
        return
    with suppress(ZkConsumerError), connection.connect() as zk:
        names = read_topic_names(zk)
        for topic in wanted:
            if topic not in names and (question := did_you_mean(topic, names)):
                say(f"topic {topic} does not exist; {question}")


def _without_group(
    connection: Connection,
    topic: list[str] | None,
    offset: str,
    *,
    output: MessageFormat,
    member: Mapping[str, object],
    max_messages: int | None,
    idle_timeout_s: float | None,
) -> None:
    """Consume from --offset; `member` has the options that need a group. Raises ConfigError."""
    from zkconsumer.cli.consume_from import consume_from, parse_start

    if given := [name for name, value in member.items() if value]:
        raise ConfigError(
            f"--offset excludes {', '.join(given)}",
            where="consume",
            remedy="leave it out, or consume as a member of a group without --offset",
        )
    wanted = topics_of(topic)
    if not wanted:
        raise ConfigError(
            "no topic is named", where="--offset", remedy="give --topic TOPIC:PARTITION"
        )
    _check_format(output, None)
    start = parse_start(offset)
    with connection.connect() as zk:
        consume_from(
            zk,
            wanted,
            start,
            lines=_LINES[output],
            max_messages=max_messages,
            idle_timeout_s=idle_timeout_s,
        )


def _check_format(output: MessageFormat, to: Path | None) -> None:
    """Raises ConfigError for a format that does not fit the destination."""
    if to is None and output in (MessageFormat.PARQUET, MessageFormat.ARROW):
        raise ConfigError(
            f"{output.value} is not written to standard output",
            where="--output",
            remedy="name a directory with --to DIRECTORY, or use --output raw or jsonl",
        )
    if to is not None and output in (MessageFormat.RAW, MessageFormat.HEX, MessageFormat.JSON):
        raise ConfigError(
            f"{output.value} values are not written to files: a reader could not separate them"
            if output is not MessageFormat.JSON
            else "the format json is not written to files",
            where="--to",
            remedy="use --output parquet, arrow or jsonl",
        )


def _wanted(
    topics: list[str] | None, whitelist: str | None, blacklist: str | None
) -> list[str] | TopicFilter:
    """Return the topics or the filter of the options.

    Raises ConfigError unless exactly one kind is given. ConsoleConsumer has the same rule.
    """
    from zkconsumer.protocol.filters import black_list, white_list

    makers: dict[str, Callable[[Any], list[str] | TopicFilter | None]]  # Any: an option's value
    makers = {"--topic": _topics, "--whitelist": white_list, "--blacklist": black_list}
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


def _topics(given: Iterable[str]) -> list[str] | None:
    """Return the topics of --topic. Raises ConfigError if partitions are given."""
    remedy = "the group assigns partitions to its members; give --topic TOPIC"
    return whole_topics(given, remedy=remedy)


class Budget:
    """The number of messages that may still be written (`--max-messages`).

    A thread reserves messages before it polls, so no more messages are fetched than may be written.

    Threads are served in the order of their calls, and each gets a share of what remains. Otherwise
    a thread whose stream is empty could starve the others: it reserves the whole budget, receives
    nothing, returns the budget, and reserves it again before the waiting threads run.
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


def unread_in_pipe() -> int | None:
    """Return the number of bytes in the pipe that is standard output; None if it is no pipe.

    Raises BrokenPipeError if nobody can read them any more. Only Linux tells a writer what its pipe
    contains.
    """
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # the tests' standard output
        return None
    if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        watched = select.poll()
        watched.register(descriptor, 0)  # POLLERR is always reported: the reader has left
        if watched.poll(0):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        return int(unread)
    return None


class Sink(Protocol):
    """The destination of the messages: a context manager that ends inside the connector's block."""

    most: int  # messages of one poll
    last_write_s: float  # seconds that the exit waits for a thread that is writing
    callbacks: RebalanceCallbacks | None

    def prepare(self, config: ConsumerConfig) -> None:
        """Do slow preparations before the member claims partitions and the idle time begins."""

    def attach(self, connector: ConsumerConnector) -> None: ...
    def turn(self, stream: Stream[bytes, bytes], most: int) -> int:
        """Poll once, write the messages, and return their number."""

    def progress(self) -> None: ...
    def summary(self, count: int) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class _Lines:
    """Writes the messages of each poll to standard output, and flushes them."""

    most = BATCH
    last_write_s = LAST_WRITE_S

    def __init__(self, lines: Callable[[Iterable[Message[bytes, bytes]]], bytes]) -> None:
        self._lines = lines
        self._out = threading.Lock()
        self._written = 0  # bytes
        self.callbacks: RebalanceCallbacks | None = None

    def prepare(self, config: ConsumerConfig) -> None:
        """Do nothing: librdkafka is ready at once."""

    def attach(self, connector: ConsumerConnector) -> None:
        """Do nothing: this sink does not need the connector."""

    def turn(self, stream: Stream[bytes, bytes], most: int) -> int:
        batch = stream.poll(max_messages=most, timeout_s=TURN_S)
        if count := len(batch):
            text = memoryview(self._lines(batch))
            with self._out:
                self._written += len(text)
                mark = self._written
                # With PYTHONUNBUFFERED `buffer` is the raw file, whose write() may be partial.
                while text:
                    text = text[sys.stdout.buffer.write(text) :]
                sys.stdout.buffer.flush()
            self._wait_for_reader(mark)
        return count

    def _wait_for_reader(self, mark: int) -> None:
        """Wait until the pipe's reader has read the output up to the byte `mark`.

        Raises BrokenPipeError if the reader has left. Returns at once if standard output is no
        pipe, or if the system does not tell what a pipe contains.
        """
        pause_s = SHORTEST_PAUSE_S
        while True:
            with self._out:
                unread = unread_in_pipe()
                if unread is None or self._written - unread >= mark:
                    return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def progress(self) -> None:
        """Show no progress: the messages themselves appear on standard output."""

    def summary(self, count: int) -> str:
        return f"{count} messages"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the connector commits."""


class _Files:
    """Writes files into a directory, and commits the offsets of complete files."""

    most = COLUMNS_BATCH
    last_write_s = LAST_FILE_WRITE_S

    def __init__(self, directory: Path, kind: str, file_bytes: int, file_s: float) -> None:
        """Raises ConfigError if pyarrow is missing or the directory cannot be used."""
        from zkconsumer.consumer.stream import to_arrow

        to_arrow()
        from zkconsumer.cli.export import Directory, Export, Limits

        self._directory = Directory(directory)
        limits = Limits(file_bytes=file_bytes, file_s=file_s)
        self._export: Export = Export(self._directory, kind, limits, group=self, say=say)
        self.callbacks: RebalanceCallbacks | None = self._export
        self._connector: ConsumerConnector | None = None
        self._progress = Progress("messages")
        self._began_s = self._ended_s = 0.0

    def prepare(self, config: ConsumerConfig) -> None:
        """Compile the columnar reader; the first time on a machine, this takes some seconds."""
        from zkconsumer.kafka.engines import engines

        if engines(config).columns is not None:
            from zkconsumer.cli.compile import announced
            from zkconsumer.kafka.columns.compilation import fastest_engine
            from zkconsumer.loops import Loops

            with announced(Loops.READER):
                fastest_engine()

    def attach(self, connector: ConsumerConnector) -> None:
        self._connector = connector
        for path in self._directory.remove_incomplete():
            say(f"removed {path}: its export was killed, and its messages were not committed")

    def owns(self, tp: TopicPartition, token: int) -> bool:
        assert self._connector is not None
        owned = self._connector.assignment().get(tp)
        return owned is not None and owned.token == token

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert self._connector is not None
        self._connector.commit_offsets(offsets)

    def turn(self, stream: Stream[bytes, bytes], most: int) -> int:
        from zkconsumer.consumer.stream import CommitScope, reader_of

        batch = stream.poll_arrow(max_messages=most, timeout_s=TURN_S)
        if batch.num_rows:
            self._began_s = self._began_s or time.monotonic()
            self._export.write(batch)
        else:
            self._export.passed(reader_of(stream).positions(CommitScope.FINISHED))
        self._export.complete_due()
        return int(batch.num_rows)

    def progress(self) -> None:
        assert self._connector is not None
        count = self._export.count
        left = sum(one or 0 for one in self._connector.lag().values())
        self._progress.advanced(count, count + left)

    def summary(self, count: int) -> str:
        took_s = self._ended_s - self._began_s if self._began_s else 0.0
        return f"{self._export.count} messages in {self._export.files} files, {took_s:.2f} s"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._progress.end()
        try:
            if kind is None:
                self._export.complete()
        finally:
            self._export.discard()
            self._ended_s = time.monotonic()


class Consumption:
    """One run of the command: the threads of the streams and their shared state."""

    def __init__(
        self,
        *,
        budget: Budget,
        sink: Sink,
        idle_limit_s: float | None,
        suggest: Callable[[], None],
    ) -> None:
        """`suggest` is called once if a topic of a stream does not exist."""
        self._suggest: Callable[[], None] | None = suggest
        self._budget = budget
        self._sink = sink
        self._idle_limit_s = idle_limit_s
        self._last_message_s = time.monotonic()
        self._stopping = False
        self._written = 0
        self._counting = threading.Lock()
        # SimpleQueue.put() may be called from a signal handler. Event.set() may not: the handler
        # runs in the main thread, which may hold the event's lock at that moment.
        self._inbox: SimpleQueue[Ended | BaseException] = SimpleQueue()

    def run(self, config: ConsumerConfig, wanted: list[str] | TopicFilter, threads: int) -> Ended:
        """Consume until there is a reason to stop, and return it. Raises the error of a thread."""
        from zkconsumer import ConsumerConnector

        sink = self._sink
        sink.prepare(config)
        with (
            ConsumerConnector(config, callbacks=sink.callbacks) as connector,
            self._signals(),
            sink,
        ):
            sink.attach(connector)
            if isinstance(wanted, list):
                made = connector.create_message_streams(dict.fromkeys(wanted, threads))
                streams = [stream for topic in wanted for stream in made[topic]]
            else:
                streams = connector.create_message_streams_by_filter(wanted, threads)
            self._last_message_s = time.monotonic()
            workers = [
                threading.Thread(target=self._work, args=(stream, connector), daemon=True)
                for stream in streams
            ]
            try:
                for worker in workers:
                    worker.start()
                ended = self._wait(len(workers), streams)
            except BrokenPipeError:
                say(
                    f"{self._written} messages; the reader of standard output has ended, and what"
                    " it has not read is not committed"
                )
                raise
            else:
                reasons = {stream.waiting_for for stream in streams}
            finally:
                self._stopping = True
                self._budget.close()
                for worker in workers:
                    worker.join(sink.last_write_s)
            if any(worker.is_alive() for worker in workers):
                # The process that reads from the pipe has stalled. If the block ends with an
                # exception, no unwritten batch is committed.
                raise KeyboardInterrupt
        # If no message was written, report what the member was waiting for.
        why = "" if self._written or "" in reasons else f" ({'; '.join(sorted(reasons))})"
        typer.echo(f"zkconsumer: {sink.summary(self._written)}{why}", err=True)
        return ended

    def _wait(self, workers: int, streams: Sequence[Stream[bytes, bytes]]) -> Ended:
        while workers:
            try:
                ended = self._inbox.get(timeout=PROGRESS_INTERVAL_S)
            except Empty:
                self._sink.progress()
                if self._suggest and any("does not exist" in one.waiting_for for one in streams):
                    self._suggest()
                    self._suggest = None
                continue
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

    def _work(self, stream: Stream[bytes, bytes], connector: ConsumerConnector) -> None:
        try:
            while not self._stopping and self._turn(stream, connector):
                pass
            self._inbox.put(Ended.DONE)
        except BaseException as error:  # noqa: BLE001 - a thread boundary: the main thread raises it
            self._inbox.put(error)

    def _turn(self, stream: Stream[bytes, bytes], connector: ConsumerConnector) -> bool:
        """Poll, write and flush once; return False when the thread should end.

        Raises MalformedZnodeError if the command has no partition, because a topic's znode cannot
        be read.
        """
        taken = self._budget.take(self._sink.most)
        if not taken:
            return False
        used = 0
        try:
            used = self._sink.turn(stream, taken)
        except (RebalanceBlockedError, MalformedZnodeError) as error:
            if isinstance(error, MalformedZnodeError) and not connector.assignment():
                raise
            # The member tries again by itself, and the other partitions are delivered.
            typer.echo(f"zkconsumer: {error}", err=True)
        finally:
            self._budget.settle(taken, used)
        if used:
            with self._counting:
                self._written += used
                self._last_message_s = time.monotonic()
        return not self._idle()

    def _idle(self) -> bool:
        limit_s = self._idle_limit_s
        return limit_s is not None and time.monotonic() - self._last_message_s >= limit_s
