"""In-memory topic logs and a fetcher that reads them: the brokers of a simulated world.

`MemoryFetcher` implements `kafka.fetcher.Fetcher` without threads, clocks or sockets. The contract
suite in tests/kafka/test_fetcher.py runs on it, and on `KafkaFetcher` with a real broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import lru_cache
from typing import Final, Protocol

from confluent_kafka import Message

from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    Answers,
    AutoOffsetReset,
    FetchFault,
    FetchFaultKind,
    MessageList,
    drop_faults,
)
from zkconsumer.protocol.model import TopicPartition

ROUND: Final = 50
"""Upper bound of consecutive messages of one partition: a broker client alternates between
partitions.
"""

Wait = Callable[[Callable[[], bool], float], object]
"""Waits until the predicate is true, at most the given number of seconds."""


def no_wait(ready: Callable[[], bool], timeout_s: float) -> None:
    """The wait of a simulated world: no time passes within one action."""


class Log(Protocol):
    """The logs that a fetcher reads: offsets of each partition, and the message at an offset."""

    def start(self, tp: TopicPartition) -> int:
        """Return the first offset that retention has kept."""

    def end(self, tp: TopicPartition) -> int:
        """Return the offset of the next message to be appended."""

    def message(self, tp: TopicPartition, offset: int) -> Message:
        """Return the message at an offset from `start` to `end - 1`."""


@lru_cache(maxsize=4096)
def empty_message(tp: TopicPartition, offset: int) -> Message:
    """Return a message without key and value; equal calls return one object, since no code changes
    it.
    """
    return Message(topic=tp.topic, partition=tp.partition, offset=offset)


class CountedLog:
    """A log without contents: each partition is two offsets, which the world may change.

    A partition that is missing in `first` starts at offset 0.
    """

    def __init__(
        self, ends: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        self._ends, self._first = ends, first

    def start(self, tp: TopicPartition) -> int:
        return self._first.get(tp, 0)

    def end(self, tp: TopicPartition) -> int:
        return self._ends.get(tp, 0)

    def message(self, tp: TopicPartition, offset: int) -> Message:
        return empty_message(tp, offset)


class MemoryFetcher:
    """The `Fetcher` of an in-memory log; `copy` returns a fetcher in the same state.

    `fetch` calls `wait` if it has nothing to return. With `no_wait` it returns at once,
    regardless of its timeout. The fetcher reports no ends of logs: every offset of an in-memory log
    is a message, so such an end would move no position.
    """

    is_instant = True
    wait_s = 0.0
    queued: Final = 0

    def __init__(self, log: Log, wait: Wait = no_wait) -> None:
        self.faults: deque[FetchFault] = deque()
        self.positions: dict[TopicPartition, int] = {}
        self._log, self._wait = log, wait

    def copy(self, log: Log) -> MemoryFetcher:
        twin = MemoryFetcher(log, self._wait)
        twin.faults.extend(self.faults)
        twin.positions.update(self.positions)
        return twin

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = 0.0) -> None:
        assert not offsets.keys() & self.positions.keys(), "assigned already"
        self.positions.update(offsets)

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        gone = set(tps)
        for tp in gone:
            self.positions.pop(tp, None)
        drop_faults(self.faults, gone)

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[MessageList]:
        if timeout_s > 0 and not self._ready():
            self._wait(self._ready, timeout_s)
        found: list[MessageList] = []
        left = max_messages
        for tp, offset in list(self.positions.items()):
            if self._is_out_of_range(tp, offset):
                del self.positions[tp]
                self.faults.append(
                    FetchFault(FetchFaultKind.OUT_OF_RANGE, tp, f"{offset} is out of range")
                )
                continue
            end = min(self._log.end(tp), offset + ROUND, offset + left)
            if end > offset:
                messages = [self._log.message(tp, at) for at in range(offset, end)]
                found.append(MessageList(tp, messages))
                left -= len(messages)
                self.positions[tp] = end
        return found

    def _ready(self) -> bool:
        """Return whether there is a message or a fault to return."""
        return bool(self.faults) or any(
            offset < self._log.end(tp) or self._is_out_of_range(tp, offset)
            for tp, offset in self.positions.items()
        )

    def _is_out_of_range(self, tp: TopicPartition, offset: int) -> bool:
        return not self._log.start(tp) <= offset <= self._log.end(tp)

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        at = self._log.start if reset is AutoOffsetReset.SMALLEST else self._log.end
        answer: Future[Answers] = Future()
        answer.set_result({tp: at(tp) for tp in tps})
        return answer

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._log.end(tp) for tp in tps if tp in self.positions}

    def close(self) -> None:
        self.positions.clear()
