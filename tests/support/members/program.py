"""A member of a group as a program, which consumes and prints its events.

    python program.py '{"zookeeper": "127.0.0.1:2181", "group": "g", "topics": {"t": 2}}'

Each line of standard output is one JSON object with `event` and `t`, in seconds of the lease's
clock, which is the same in all processes of a machine:

- `joined` (consumer), `session` (id, password), `status` (phase, owned, blocked, waiting_for):
  when they change;
- `delivered` (runs: [topic, partition, fencing token, offsets]), and `finished` (ends: [topic,
  partition, next offset]), written before the member requests the next message;
- `error` (kind, text): an error that a stream or a commit raised; `committed`; `metrics` (values);
  `jumped`; `left`.

Each line of standard input is a command: `commit`, `metrics`, `jump SECONDS` (sets the wall clock
forward or back), `leave`. The end of the input is also `leave`. SIGUSR1 writes the stacks of all
threads to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from support.internals import client_of
from zkconsumer import ConsumerConfig, ConsumerConnector, white_list
from zkconsumer.consumer.stream import Stream
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.errors import ConnectorClosedError, ZkConsumerError

Emit = Callable[[dict[str, Any]], None]

# Seconds between two checks of the status; tests wait for much longer than this.
LOOK_S = 0.05
# Time limit of a `commit`, in seconds.
COMMIT_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """The configuration of a member; `settings` are keyword arguments of ConsumerConfig.

    `work_s` is how long the user processes a message (iterate) or a batch (poll). A `white_list` is
    a regex in place of topics, with one stream.
    """

    zookeeper: str
    group: str
    topics: Mapping[str, int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    take: Literal["iterate", "poll"] = "iterate"
    work_s: float = 0.0
    white_list: str = ""

    def config(self) -> ConsumerConfig:
        return ConsumerConfig(
            group_id=self.group, zookeeper_connect=self.zookeeper, **self.settings
        )


class Member:
    """A connector with a thread for each stream; `emit` gets all events."""

    def __init__(self, request: Request, emit: Emit) -> None:
        self.request = request
        self._tell, self._lock = emit, threading.Lock()
        self.connector = ConsumerConnector(request.config())
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def consumer(self) -> str:
        return self.connector.consumer_id

    def start(self) -> None:
        """Register the member, and begin to consume."""
        self._run(self._look)
        streams = self._streams()
        self._emit("joined", consumer=self.consumer)
        for stream in streams:
            self._run(self._consume, stream)

    def obey(self, word: str) -> None:
        if word == "commit":
            try:
                self.connector.commit_offsets(timeout_s=COMMIT_LIMIT_S)
            except ZkConsumerError as error:
                self._error(error)
            else:
                self._emit("committed")
        elif word == "metrics":
            self._emit("metrics", values=self.connector.metrics())
        elif word.startswith("jump "):
            _jump(float(word.removeprefix("jump ")))
            self._emit("jumped")
        else:
            self._emit("error", kind="Command", text=f"no command {word!r}")

    def leave(self) -> None:
        """Leave the group cleanly; a second call does nothing."""
        self.connector.shutdown()
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._emit("left", metrics=self.connector.metrics())

    def _streams(self) -> list[Stream[bytes, bytes]]:
        if regex := self.request.white_list:
            return self.connector.create_message_streams_by_filter(white_list(regex))
        streams = self.connector.create_message_streams(self.request.topics)
        return [stream for listed in streams.values() for stream in listed]

    # ---- threads ---------------------------------------------------------------------------------

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _consume(self, stream: Stream[bytes, bytes]) -> None:
        take = self._iterate if self.request.take == "iterate" else self._poll
        while True:
            try:
                take(stream)
            except ConnectorClosedError:
                return
            except ZkConsumerError as error:
                self._error(error)
            else:
                return

    def _iterate(self, stream: Stream[bytes, bytes]) -> None:
        for one in stream:
            self._delivered([[one.topic, one.partition, one.token, [one.offset]]])

    def _poll(self, stream: Stream[bytes, bytes]) -> None:
        while True:
            runs: dict[tuple[str, int, int], list[int]] = {}
            for one in stream.poll(timeout_s=0.5):
                runs.setdefault((one.topic, one.partition, one.token), []).append(one.offset)
            if runs:
                self._delivered([[*key, offsets] for key, offsets in runs.items()])

    def _delivered(self, runs: list[Any]) -> None:
        self._emit("delivered", runs=runs)
        if self.request.work_s:
            time.sleep(self.request.work_s)
        ends = [[topic, number, offsets[-1] + 1] for topic, number, _, offsets in runs]
        self._emit("finished", ends=ends)

    def _look(self) -> None:
        """Emit the session and the status whenever they have changed."""
        session: Any = None
        said: dict[str, Any] = {}
        while True:
            over = self._over.is_set()
            identity = client_of(self.connector).client_id
            if identity != session and identity is not None and identity[0]:
                session = identity
                self._emit("session", id=identity[0], password=identity[1].hex())
            now = self.connector.status()
            status = {
                "phase": now.phase,
                "owned": {thread: [list(tp) for tp in held] for thread, held in now.owned.items()},
                "blocked": sorted(map(str, now.blocked)),
                "waiting_for": now.waiting_for,
            }
            if status != said:
                self._emit("status", **status)
                said = status
            if over:
                return
            self._over.wait(LOOK_S)

    def _error(self, error: ZkConsumerError) -> None:
        self._emit("error", kind=type(error).__name__, text=str(error))

    def _emit(self, event: str, **more: Any) -> None:
        with self._lock:
            self._tell({"event": event, "t": boottime(), **more})


def _jump(by_s: float) -> None:
    """Change the wall clock that all Python code of this process reads."""
    real = time.time
    time.time = lambda: real() + by_s


def _write(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("zkconsumer").setLevel(logging.DEBUG)
    try:
        member = Member(Request(**json.loads(sys.argv[1])), _write)
        member.start()
    except ZkConsumerError as error:
        kind, text = type(error).__name__, str(error)
        _write({"event": "error", "t": boottime(), "kind": kind, "text": text})
        sys.exit(1)
    for line in sys.stdin:
        if line.strip() == "leave":
            break
        member.obey(line.strip())
    member.leave()


if __name__ == "__main__":
    main()
