"""What is fetched for a stream; between two messages, on the user's thread and no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from confluent_kafka import Message as RawMessage

from zkconsumer.consumer.holdings import Holdings, PartitionState
from zkconsumer.core.model import TopicPartition
from zkconsumer.errors import FetchError
from zkconsumer.kafka.fetcher import Fault, FaultKind, Fetcher, Reset

# Longest stay in a call that cannot be woken (unit: seconds). The user's thread looks at what the
# coordinator wants at least so often; the price is a wake-up, about 0.1 % of a CPU at this rate.
TURN_S: Final = 0.05

# A stream without partitions lets the broker client deliver its events so often (unit: seconds);
# otherwise it sleeps until the coordinator has something for it.
IDLE_S: Final = 10.0


_NOT_BEGUN: Final = "its fetching has not begun"
_NO_OFFSET: Final = "no stored offset"


class ReportKind(Enum):
    POSITION_RESET = "position_reset"  # auto.offset.reset was applied
    FETCH_TROUBLE = "fetch_trouble"  # retried; rate-limited
    FETCH_FAILED = "fetch_failed"  # also raised to the user
    DECODE_FAILED = "decode_failed"  # also raised to the user


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Something the member should know; `offset` is set for POSITION_RESET."""

    kind: ReportKind
    thread_id: str
    text: str
    tp: TopicPartition | None = None
    epoch: int = 0
    offset: int | None = None


class Feed:
    """The fetcher of one stream, the buffer behind it, and what is wrong with either.

    `states` is what is fetched or waits to be; those of `unplaced` wait, for the reason given.
    `rest` are the messages taken from the broker client and not yet handed out: an iterator over
    a list, so that they can be counted.
    """

    def __init__(
        self,
        *,
        topic: str,
        thread_id: str,
        holdings: Holdings,
        connect: Callable[[], Fetcher | None],
        reset: Reset,
        retry_s: float,
        report: Callable[[StreamReport], None],
    ) -> None:
        self.states: dict[int, PartitionState] = {}
        self.unplaced: dict[int, str] = {}
        self.rest: Iterator[RawMessage] = iter([])
        self._topic = topic
        self._thread_id = thread_id
        self._holdings = holdings
        self._connect = connect
        self._reset = reset
        self._retry_s = max(retry_s, 0.01)
        self._report = report
        self._fetcher: Fetcher | None = None
        self._retry_at = 0.0

    def settle(self) -> None:
        """Hold what the coordinator wants to be held."""
        wanted = self._holdings.attend()
        gone = {number for number, state in self.states.items() if wanted.get(number) is not state}
        for number in gone:
            del self.states[number]
            self.unplaced.pop(number, None)
        if gone:
            self.rest = iter([raw for raw in self.rest if raw.partition() not in gone])
            if self._fetcher is not None:
                self._fetcher.unassign(gone)
        for number, state in wanted.items():
            if number not in self.states:
                self.states[number] = state
                self.unplaced[number] = _NOT_BEGUN if state.delivered is not None else _NO_OFFSET
                self._retry_at = 0.0

    def fetch(self, left: float | None, max_messages: int) -> None:
        """Fill the empty buffer, or wait a while; at most `left` seconds (None: no limit).

        Raises FetchError for what waiting does not mend, or what `connect` raises.
        """
        now = time.monotonic()
        if self.unplaced and now >= self._retry_at:
            self._place(now)
        if self._fetcher is None or len(self.unplaced) == len(self.states):
            pause_s = self._retry_at - now if self.unplaced else IDLE_S
            self._holdings.sleep(pause_s if left is None else min(left, pause_s))
            left = 0.0
        if self._fetcher is not None:
            turn_s = TURN_S if left is None else min(left, TURN_S)
            self.rest = iter(self._fetcher.consume(max_messages, turn_s))
            while self._fetcher.faults:
                self._on_fault(self._fetcher.faults.popleft())

    def _place(self, now: float) -> None:
        """Begin to fetch what waits for it, each partition from its position or by the policy."""
        if self._fetcher is None:
            self._fetcher = self._connect()
        self._retry_at = now + self._retry_s
        if self._fetcher is None:
            self.unplaced.update(dict.fromkeys(self.unplaced, "no broker is registered"))
            return
        unknown = [one for one in self.unplaced if self.states[one].delivered is None]
        found = self._fetcher.resolve(unknown, self._reset) if unknown else {}
        for number, answer in found.items():
            if isinstance(answer, int):
                # Told before it can be seen: no commit meets a position that went back unexplained.
                text = f"{self._reset.value}: {answer}; {self.unplaced[number]}"
                self._tell(ReportKind.POSITION_RESET, number, text, answer)
                self.states[number].delivered = answer
            elif self.unplaced[number] != answer:
                self.unplaced[number] = answer
                self._tell(ReportKind.FETCH_TROUBLE, number, answer)
        offsets = {
            number: offset
            for number in self.unplaced
            if (offset := self.states[number].delivered) is not None
        }
        for number in offsets:
            del self.unplaced[number]
        self._fetcher.assign(offsets)

    def _on_fault(self, fault: Fault) -> None:
        number = fault.partition
        if fault.kind in (FaultKind.OUT_OF_RANGE, FaultKind.TRUNCATED):
            assert self._fetcher is not None
            if number is None or number not in self.states:
                return
            self._fetcher.unassign([number])
            self.unplaced[number] = fault.text
            if fault.kind is FaultKind.OUT_OF_RANGE:
                self.states[number].delivered = None
                self._retry_at = 0.0
        elif fault.kind is FaultKind.PASSING:
            self._tell(ReportKind.FETCH_TROUBLE, number, fault.text)
        else:
            self._tell(ReportKind.FETCH_FAILED, number, fault.text)
            where = self._topic if number is None else f"{self._topic}-{number}"
            raise FetchError(
                fault.text, where=where, remedy="the other partitions go on when you ask again"
            )

    def take_back(self) -> None:
        """What is in the user's hands did not reach them: hand it out again.

        `in_hand_from` stays until the next ask, so that a commit in between covers no more.
        """
        for state in self.states.values():
            if state.in_hand_from is not None:
                state.delivered = state.in_hand_from

    def start_over(self) -> None:
        """Forget what was fetched, and fetch from what was handed out."""
        self.drop()
        self.unplaced = dict.fromkeys(self.states, "fetching begins anew after an interruption")
        self._retry_at = 0.0

    def drop(self) -> None:
        """Let the fetcher and the buffer go."""
        self.rest = iter([])
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close()

    def _tell(
        self, kind: ReportKind, number: int | None, text: str, offset: int | None = None
    ) -> None:
        state = None if number is None else self.states.get(number)
        self._report(
            StreamReport(
                kind,
                self._thread_id,
                text,
                None if number is None else TopicPartition(self._topic, number),
                0 if state is None else state.epoch,
                offset,
            )
        )
