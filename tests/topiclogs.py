"""A topic's log, in memory and on a real broker, behind one face; and streams that read it.

`MemoryFetcher` stands for `KafkaFetcher` where a test is about streams alone. What it may be
trusted with is what `tests/kafka/test_fetcher.py` asks of both.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from confluent_kafka import TopicPartition as RawTopicPartition
from confluent_kafka.admin import AdminClient

from zkconsumer.config import ConsumerConfig
from zkconsumer.consumer.codec import Codec
from zkconsumer.consumer.feed import ReportKind
from zkconsumer.consumer.gate import LeaseGate
from zkconsumer.consumer.stream import Grant, Stream, StreamReport, Which
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.records import Broker
from zkconsumer.kafka.brokers import broker_settings
from zkconsumer.kafka.fetcher import Fault, FaultKind, Fetcher, KafkaFetcher, Reset
from zkconsumer.kafka.settings import Settings, fetch_settings
from zkconsumer.sandbox import Sandbox

# Seconds within which what must happen has happened, also on a busy machine.
PATIENCE_S = 60.0


def eventually(what: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Wait until `what()` is true; fail when it is not in time."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.002)


class Log(Protocol):
    topic: str

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def append(self, partition: int, values: Iterable[str | bytes | None]) -> None: ...
    def append_keyed(self, partition: int, key: str | None, value: str | None) -> None: ...
    def cut(self, partition: int, first: int) -> None:
        """Let the log begin at `first`, as retention does."""

    def fetcher(self, *others: Any) -> Fetcher:
        """A fetcher of this log and of others of its kind."""
        ...


@dataclass
class MemoryLog(Log):
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
        return MemoryFetcher(self, *others)


class MemoryFetcher:
    """Reads `MemoryLog`s in small rounds over their partitions, as a broker client would.

    Logs of several topics must share their `changed`.
    """

    ROUND = 50
    wait_s = 0.0

    def __init__(self, *logs: MemoryLog) -> None:
        self.faults: deque[Fault] = deque()
        self._logs = {log.topic: log for log in logs}
        self._changed = logs[0].changed
        self._next: dict[TopicPartition, int] = {}

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert not set(offsets) & set(self._next), "assigned already"
        self._next.update(offsets)

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        for one in tps:
            self._next.pop(one, None)

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
        found: list[Message] = []
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not found and not self.faults:
                self._read(found, max_messages)
                left = deadline - time.monotonic()
                if found or self.faults or left <= 0:
                    break
                self._changed.wait(left)
        return found

    def _read(self, found: list[Message], max_messages: int) -> None:
        for tp, offset in list(self._next.items()):
            source = self._logs[tp.topic]
            log, first = source.partitions.get(tp.partition, []), source.first.get(tp.partition, 0)
            if not first <= offset <= len(log):
                del self._next[tp]
                self.faults.append(Fault(FaultKind.OUT_OF_RANGE, tp, f"{offset} out of range"))
                continue
            some = log[offset : offset + min(self.ROUND, max_messages - len(found))]
            found += some
            self._next[tp] = offset + len(some)

    def resolve(
        self, tps: Iterable[TopicPartition], reset: Reset
    ) -> dict[TopicPartition, int | str]:
        return {
            tp: self._logs[tp.topic].first.get(tp.partition, 0)
            if reset is Reset.SMALLEST
            else len(self._logs[tp.topic].partitions.get(tp.partition, []))
            for tp in tps
        }

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self.resolve(tps, Reset.LARGEST)  # type: ignore[return-value]

    def close(self) -> None:
        self._next.clear()


def settings_for(bootstrap: str, *, version: int = 4, **properties: object) -> Settings:
    config = ConsumerConfig(group_id="tests", zookeeper_connect="unused:2181", **properties)  # type: ignore[arg-type]
    brokers = []
    for address in bootstrap.split(","):
        host, _, port = address.partition(":")
        endpoints = () if version == 1 else (f"PLAINTEXT://{address}",)
        brokers.append(Broker(host, int(port), version, endpoints))
    return {**fetch_settings(config), **broker_settings(brokers)}


@dataclass
class KafkaLog(Log):
    """`version` is that of the broker's registration: 1 for 0.8, 2 for 0.9, 4 for later ones."""

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
            done.result(PATIENCE_S)

    def fetcher(self, *others: KafkaLog) -> Fetcher:
        return KafkaFetcher(settings_for(self.sandbox.bootstrap, version=self.version))


class Reader:
    """A stream over a log, with the coordinator's side in the test's hands.

    With `others`, the stream is that of a filter, over all these logs.
    """

    def __init__(
        self,
        log: Log,
        *others: Log,
        reset: Reset = Reset.SMALLEST,
        timeout_s: float | None = PATIENCE_S,
        codec: Codec[object, object] | None = None,
        connect: Callable[[], Fetcher | None] | None = None,
    ) -> None:
        self.topic = log.topic
        self.reports: list[StreamReport] = []
        self.gate = LeaseGate()
        self.gate.open(self.gate.clock() + 3600)
        self.epoch = 100
        self.stream: Stream[object, object] = Stream(
            topic=None if others else log.topic,
            thread_id="tests_member-0",
            number=0,
            gate=self.gate,
            connect=connect or partial(log.fetcher, *others),
            reset=reset,
            timeout_s=timeout_s,
            retry_s=0.05,
            codec=codec or Codec(),
            report=self.reports.append,
        )

    @property
    def news(self) -> list[StreamReport]:
        """The reports, but for what is retried: on a busy machine a look-up may take too long."""
        return [one for one in self.reports if one.kind is not ReportKind.FETCH_TROUBLE]

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def grant(self, partition: int | TopicPartition, offset: int | None) -> int:
        """Grant under a new epoch, which is returned."""
        self.epoch += 1
        tp = self.tp(partition) if isinstance(partition, int) else partition
        self.stream.grant([Grant(tp, offset, self.epoch)])
        return self.epoch

    def withdraw(self, *partitions: int) -> None:
        self.stream.withdraw([self.tp(one) for one in partitions])

    def finished(self, partition: int) -> int | None:
        found = self.stream.positions(Which.FINISHED).get(self.tp(partition))
        return None if found is None else found.offset

    def delivered(self, partition: int) -> int | None:
        found = self.stream.positions(Which.DELIVERED).get(self.tp(partition))
        return None if found is None else found.offset

    def take(self, count: int) -> Iterator[tuple[int, int]]:
        """The next `count` messages' partition and offset."""
        for _ in range(count):
            message = next(self.stream)
            yield message.partition, message.offset
