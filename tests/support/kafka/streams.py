"""A topic's log, in memory or on a real broker behind one interface; and streams over it.

The simulator's `MemoryFetcher` replaces `KafkaFetcher` in tests that concern only streams.
tests/kafka/test_fetcher.py runs one contract suite on both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from confluent_kafka import TopicPartition as RawTopicPartition
from confluent_kafka.admin import AdminClient

from support.wait import LIMIT_S
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.stream import StreamReader
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import Codec, CommitScope, Grant, LeaseGate
from zkconsumer.kafka.client_settings import Brokers, Settings, broker_settings, fetch_settings
from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher
from zkconsumer.kafka.columns.fetcher import RecordFetcher
from zkconsumer.kafka.engines import RunFetcher
from zkconsumer.kafka.fetcher import IDLE_S, TURN_S, AutoOffsetReset, Fetcher
from zkconsumer.kafka.librdkafka import KafkaFetcher
from zkconsumer.kafka.pool import FetcherPool, SharedFetcher, WakeSignal
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.sandbox import Sandbox
from zkconsumer.sim.logs import MemoryFetcher

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet


class Log(Protocol):
    topic: str

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def append(self, partition: int, values: Iterable[str | bytes | None]) -> None: ...
    def append_keyed(self, partition: int, key: str | None, value: str | None) -> None: ...
    def cut(self, partition: int, first: int) -> None:
        """Delete the messages before `first`, as retention does."""

    def fetcher(self, *others: Any) -> Fetcher:
        """Return a fetcher for this log and for other logs of the same kind."""
        ...


@dataclass
class MemoryLog(Log):
    """A topic in memory. An appended message wakes the threads that wait for messages."""

    topic: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    partitions: dict[int, list[Message]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)

    def append(self, partition: int, values: Iterable[str | bytes | None]) -> None:
        for value in values:
            self._append(partition, None, value)

    def append_keyed(self, partition: int, key: str | None, value: str | None) -> None:
        self._append(partition, key, value)

    def _append(self, partition: int, key: str | None, value: str | bytes | None) -> None:
        with self.changed:
            log = self.partitions.setdefault(partition, [])
            message = Message(
                topic=self.topic,
                partition=partition,
                offset=len(log),
                key=None if key is None else key.encode(),
                value=value.encode() if isinstance(value, str) else value,
                timestamp=(TIMESTAMP_CREATE_TIME, round(time.time() * 1000)),
            )
            log.append(message)
            self.changed.notify_all()

    def cut(self, partition: int, first: int) -> None:
        self.first[partition] = first

    def fetcher(self, *others: MemoryLog) -> Fetcher:
        return fetcher_of(self, *others)


class MemoryLogs:
    """Several topics in memory, which one fetcher reads like a single log."""

    def __init__(self, *logs: MemoryLog) -> None:
        self._logs = {log.topic: log for log in logs}

    def start(self, tp: TopicPartition) -> int:
        return self._logs[tp.topic].first.get(tp.partition, 0)

    def end(self, tp: TopicPartition) -> int:
        return len(self._logs[tp.topic].partitions.get(tp.partition, ()))

    def message(self, tp: TopicPartition, offset: int) -> Message:
        return self._logs[tp.topic].partitions[tp.partition][offset]


def fetcher_of(*logs: MemoryLog, kind: type[MemoryFetcher] = MemoryFetcher) -> MemoryFetcher:
    """Return a fetcher that waits in real time; the logs must share one `changed`."""

    def wait(ready: Callable[[], bool], timeout_s: float) -> None:
        with logs[0].changed:
            logs[0].changed.wait_for(ready, timeout_s)

    return kind(MemoryLogs(*logs), wait)


def settings_for(bootstrap: str, *, version: int = 4, **properties: Any) -> Settings:
    config = ConsumerConfig(group_id="tests", zookeeper_connect="unused:2181", **properties)
    brokers = []
    for address in bootstrap.split(","):
        host, _, port = address.partition(":")
        endpoints = () if version == 1 else (f"PLAINTEXT://{address}",)
        brokers.append(Broker(host, int(port), version, endpoints))
    return {**fetch_settings(config), **broker_settings(Brokers(brokers))}


@dataclass
class KafkaLog(Log):
    """A log on a real broker.

    `version` is the version of the broker's registration: 1 for 0.8, 2 for 0.9, 4 for later ones.
    """

    topic: str
    sandbox: Sandbox
    version: int = 4

    def append(self, partition: int, values: Iterable[str | bytes | None]) -> None:
        self.sandbox.produce(self.topic, values, partition=partition)

    def append_keyed(self, partition: int, key: str | None, value: str | None) -> None:
        self.sandbox.produce(self.topic, [value], key=key, partition=partition)

    def cut(self, partition: int, first: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.sandbox.bootstrap})
        at = RawTopicPartition(self.topic, partition, first)
        for done in admin.delete_records([at]).values():
            done.result(LIMIT_S)

    def fetcher(self, *others: KafkaLog) -> Fetcher:
        return KafkaFetcher(settings_for(self.sandbox.bootstrap, version=self.version))


@dataclass
class ColumnLog(KafkaLog):
    """A log on a real broker that is read as columns."""

    def fetcher(self, *others: KafkaLog) -> Fetcher:
        return RecordFetcher(settings_for(self.sandbox.bootstrap, version=self.version))

    def columns(self) -> ColumnFetcher:
        return ColumnFetcher(settings_for(self.sandbox.bootstrap, version=self.version))


@dataclass
class SessionLog(KafkaLog):
    """A log on a real broker that is read as columns, in a fetch session even for one partition."""

    def fetcher(self, *others: KafkaLog) -> Fetcher:
        settings = settings_for(self.sandbox.bootstrap, version=self.version)
        return RecordFetcher(settings, session_from=1)


class NoWakeSignal:
    """The wake signal of a fetcher that no stream uses."""

    has_changed = False

    def __init__(self) -> None:
        self.wake = threading.Event()


@dataclass
class SharedLog(KafkaLog):
    """A log on a real broker; its fetchers share their clients."""

    pool: FetcherPool = field(init=False)

    def __post_init__(self) -> None:
        settings = settings_for(self.sandbox.bootstrap, version=self.version)
        self.pool = FetcherPool(
            connect=lambda: KafkaFetcher(settings),
            max_messages=1000,
            max_bytes=1 << 20,
            name=self.topic,
        )

    def fetcher(self, *others: KafkaLog, wake_signal: WakeSignal | None = None) -> SharedFetcher:
        return self.pool.fetcher(wake_signal or NoWakeSignal())


# Fixture parameter -> the class of logs on a real broker; `memory` is the log in memory.
ON_BROKER: dict[str, type[KafkaLog]] = {
    "kafka": KafkaLog,
    "shared": SharedLog,
    "columns": ColumnLog,
    "session": SessionLog,
}


# The parameters of logs on a fake broker begin with this word.
FAKE = "fake-"


def log_cases(*names: str) -> list[ParameterSet]:
    """Return the parameters of a fixture that opens these logs, with the marks of their lanes."""
    return [pytest.param(one, marks=[pytest.mark.server] * (one in ON_BROKER)) for one in names]


def with_fakes(*names: str) -> tuple[str, ...]:
    """Return the names of these logs, and of the same logs on a fake broker."""
    return (*names, *(f"{FAKE}{name}" for name in names))


@contextmanager
def opened(
    request: pytest.FixtureRequest, topic: str, *, partitions: int = 3
) -> Iterator[MemoryLog | KafkaLog]:
    """Open an empty log of the kind that the parameter of the fixture names."""
    if request.param == "memory":
        yield MemoryLog(topic)
        return
    name = request.param.removeprefix(FAKE)
    is_fake = name != request.param
    sandbox: Sandbox = request.getfixturevalue("fake_cluster" if is_fake else "sandbox")
    sandbox.create_topic(topic, partitions=partitions)
    log = ON_BROKER[name](topic, sandbox)
    yield log
    if isinstance(log, SharedLog):
        log.pool.close()
        assert not log.pool.join(LIMIT_S)


@dataclass(frozen=True)
class Fetched:
    """A message that a fetcher has returned."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: tuple[int, int | None]
    headers: list[tuple[str, bytes | None]]
    leader_epoch: int | None


def fetched(fetcher: Fetcher, most: int, timeout_s: float) -> list[Fetched]:
    """Return the messages of one call of `fetch`."""
    return [
        Fetched(
            *run.tp,
            run.offset(one),
            run.key(one),
            run.value(one),
            run.timestamp(one),
            run.headers(one),
            run.leader_epoch(one),
        )
        for run in fetcher.fetch(timeout_s, most)
        for one in range(len(run))
    ]


def rows(fetcher: Fetcher, tp: TopicPartition, first: int, until: int) -> list[Fetched]:
    """Return a partition's messages from `first` up to but excluding `until`."""
    found: list[Fetched] = []
    fetcher.assign({tp: first})
    deadline = time.monotonic() + LIMIT_S
    while not found or found[-1].offset < until - 1:
        assert time.monotonic() < deadline, f"{len(found)} messages of {tp}; {fetcher.faults}"
        found += fetched(fetcher, 1000, 0.05)
    fetcher.close()
    return found


def assert_engines_agree(
    sandbox: Sandbox, tp: TopicPartition, first: int, until: int
) -> list[Fetched]:
    """Check that for one log both engines return equal rows, in the protocol of its broker."""
    version = {"0.8": 1, "0.9": 2}.get(sandbox.broker.release[:3], 4)
    settings = settings_for(sandbox.bootstrap, version=version)
    of_columns = rows(RecordFetcher(settings), tp, first, until)
    assert of_columns == rows(KafkaFetcher(settings), tp, first, until)
    return of_columns


class Reader:
    """A stream over a log; the test plays the part of the member's thread.

    With `others`, the stream belongs to a filter that matches all these logs.
    """

    def __init__(
        self,
        log: Log,
        *others: Log,
        reset: AutoOffsetReset = AutoOffsetReset.SMALLEST,
        timeout_s: float | None = LIMIT_S,
        codec: Codec[object, object] | None = None,
        connect: Callable[[], Fetcher | None] | None = None,
        connect_columns: Callable[[], RunFetcher | None] | None = None,
        report: Callable[[StreamReport], object] | None = None,
    ) -> None:
        self.topic = log.topic
        self.reports: list[StreamReport] = []
        self.gate = LeaseGate()
        self.gate.open(self.gate.clock() + 3600)
        self.epoch, self.session = 100, 1
        turn_s = TURN_S
        if connect is None and isinstance(log, SharedLog):
            # As in a connector, only the wake signal ends a wait.
            connect, turn_s = lambda: log.fetcher(wake_signal=self.stream.wake_signal), IDLE_S
        self.stream: StreamReader[object, object] = StreamReader(
            topic=None if others else log.topic,
            thread_id="tests_member-0",
            number=0,
            gate=self.gate,
            connect=connect or partial(log.fetcher, *others),
            connect_columns=connect_columns,
            reset=reset,
            timeout_s=timeout_s,
            retry_s=0.05,
            codec=codec or Codec(),
            report=report or self.reports.append,
            turn_s=turn_s,
        )

    @property
    def news(self) -> list[StreamReport]:
        """Return the reports except errors that are retried, because on a busy machine a look-up
        may take too long."""
        return [one for one in self.reports if one.kind is not ReportKind.FETCH_TROUBLE]

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def grant(self, partition: int | TopicPartition, offset: int | None) -> int:
        """Grant partitions under a new epoch, and return the epoch."""
        self.epoch += 1
        tp = self.tp(partition) if isinstance(partition, int) else partition
        self.stream.grant([Grant(tp, offset, self.epoch, self.session)])
        return self.epoch

    def withdraw(self, *partitions: int) -> None:
        self.stream.withdraw([self.tp(one) for one in partitions])

    def finished(self, partition: int) -> int | None:
        found = self.stream.positions(CommitScope.FINISHED).get(self.tp(partition))
        return None if found is None else found.offset

    def delivered(self, partition: int) -> int | None:
        found = self.stream.positions(CommitScope.DELIVERED).get(self.tp(partition))
        return None if found is None else found.offset

    def take(self, count: int) -> Iterator[tuple[int, int]]:
        """Return the partition and the offset of each of the next `count` messages."""
        for _ in range(count):
            message = next(self.stream)
            yield message.partition, message.offset
