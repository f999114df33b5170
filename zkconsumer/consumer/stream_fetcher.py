"""What is fetched for a stream; between two messages, on the user's thread and no other.

The user's thread waits for no broker longer than the time it was given. Requests that may take
longer run on other threads: making the fetcher (it reads the brokers from ZooKeeper), asking for
offsets (`Fetcher.resolve`), and asking ZooKeeper whether the brokers have moved. The feed keeps a
future for each of them, and takes its result at a later turn.
"""

from __future__ import annotations

import math
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Message as RawMessage

from zkconsumer.consumer.messages import key_of
from zkconsumer.consumer.stream_partitions import PartitionState, StreamPartitions
from zkconsumer.errors import FetchError
from zkconsumer.kafka.fetcher import LOOKUP_S, Answers, Fault, FaultKind, Fetcher, Reset
from zkconsumer.protocol.model import TopicPartition

T = TypeVar("T")

# Longest stay in a call that cannot be woken (unit: seconds). The user's thread looks at what the
# coordinator wants at least so often; the price is a wake-up, about 0.1 % of a CPU at this rate.
TURN_S: Final = 0.05

# A stream without partitions lets the broker client deliver its events so often (unit: seconds);
# otherwise it sleeps until the coordinator has something for it.
IDLE_S: Final = 10.0


# Shortest time in which brokers may answer the look-up of topics before their first fetch (unit:
# seconds), also if the user waits less: an answer takes 2 to 17 ms, and without it the first
# messages come a second later.
LEAST_LOOKUP_S: Final = 0.03


# Pause before a partition is tried again that failed for a reason which waiting does not mend, in
# seconds: each try ends in an exception for the user, who should get messages in between.
FAILED_S: Final = 5.0


# How often the logs' ends are noted, for the lag, in seconds: a few microseconds a partition.
ENDS_S: Final = 5.0

# librdkafka 2.16 was seen to fetch no more, of all its partitions at once and without a word. So
# often, in seconds, brokers are asked for the logs' ends while nothing comes; when no answer to a
# fetch has told of an end so long after that, and as long as a broker may hold one back, fetching
# begins anew.
SILENT_S: Final = 10.0
# Of how many partitions, at most: what stands still does so in most of them.
_CHECKED: Final = 100

# Of what comes at once so many messages are weighed, and stand for the rest: all of them would cost
# a tenth of the throughput. So few at once are weighed one and all.
SAMPLED: Final = 10


class ReportKind(Enum):
    POSITION_RESET = "position_reset"  # auto.offset.reset was applied
    SOUGHT = "seeks"  # the user moved a position
    FETCH_TROUBLE = "fetch_trouble"  # retried; rate-limited
    FETCH_FAILED = "fetch_failed"  # also raised to the user
    DECODE_FAILED = "decode_failed"  # also raised to the user


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Something the member should know; `offset` is set where a position was moved."""

    kind: ReportKind
    thread_id: str
    text: str
    tp: TopicPartition | None = None
    epoch: int = 0
    offset: int | None = None


class _NotFetched(NamedTuple):
    """Why a partition is not fetched, and when (seconds of the stream's clock) to try again."""

    reason: str
    due: float = 0.0


_NOT_BEGUN: Final = _NotFetched("its fetching has not begun")
_NO_OFFSET: Final = _NotFetched("no stored offset")
_RESTARTED: Final = _NotFetched("fetching begins anew after an interruption")
_PAUSED: Final = _NotFetched("paused", math.inf)
_RESUMED: Final = _NotFetched("resumed")


Background = Callable[[Callable[[], Any]], "Future[Any]"]
"""Runs a call that may block, and returns the future of its result at once."""


def inline(call: Callable[[], T]) -> Future[T]:
    """Run a call here and now: for what never blocks, as in tests and in the simulator."""
    done: Future[T] = Future()
    done.set_result(call())
    return done


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a call on a thread of its own: for what is rare and may block."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001  # raised by whoever takes the result
            done.set_exception(error)

    # A daemon: a server that does not answer must not keep the process from ending.
    threading.Thread(target=run, name="stream-background", daemon=True).start()
    return done


class Feed:
    """The fetcher of one stream, the buffer behind it, and what is wrong with either.

    `states` is what is fetched or waits to be; those of `not_fetched` wait, for the reason given.
    `rest` are the messages taken from the broker client and not yet handed out: an iterator over
    a list, so that they can be counted. `index` finds their states: `index[key_of(message)]`.
    `clock` returns seconds; the simulator gives a virtual one.
    """

    def __init__(
        self,
        *,
        topic: str | None,
        thread_id: str,
        partitions: StreamPartitions,
        connect: Callable[[], Fetcher | None],
        moved: Callable[[], bool],
        reset: Reset,
        retry_s: float,
        report: Callable[[StreamReport], None],
        clock: Callable[[], float],
        background: Background = inline,
        turn_s: float = TURN_S,
    ) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.not_fetched: dict[TopicPartition, _NotFetched] = {}
        self.index: dict[Hashable, PartitionState] = {}
        self.key_of = key_of(topic)
        self.buffer: Iterator[RawMessage] = iter([])
        self._topic = topic
        self._thread_id = thread_id
        self._partitions = partitions
        self._connect, self._moved = connect, moved
        self._reset = reset
        self._retry_s = max(retry_s, 0.01)
        self._report = report
        self._clock = clock
        self._background, self._turn_s = background, turn_s
        self._fetcher: Fetcher | None = None
        # Calls under way: the fetcher to be, whether the brokers have moved, first offsets (with
        # the states that wait for them), and the logs' ends (with the partitions that seemed to
        # stand still when they were asked for).
        self._connecting: Future[Fetcher | None] | None = None
        self._moving: Future[bool] | None = None
        self._resolving: list[tuple[Future[Answers], dict[TopicPartition, PartitionState]]] = []
        self._checking: tuple[Future[Answers], list[TopicPartition]] | None = None
        self.ends: dict[TopicPartition, int] = {}
        # By topic: keys and values, as far as they were weighed.
        self.fetched_bytes: dict[str, float] = defaultdict(float)
        self._ends_due = 0.0
        # Ends as the brokers told them when they were last asked, and when to ask again.
        self._log_ends: dict[TopicPartition, int] = {}
        self._check_due = self._clock() + SILENT_S

    @property
    def queued(self) -> int:
        """Messages that wait in the fetcher, as far as it counts them; any thread."""
        return getattr(self._fetcher, "queued", 0)

    def apply_grants(self) -> None:
        """Hold what the coordinator wants to be held."""
        wanted = self._partitions.take_requests()
        gone = {tp for tp, state in self.states.items() if wanted.get(tp) is not state}
        if gone:
            self._stop_fetching(gone)
        for tp in gone:
            del self.states[tp], self.index[self._key(tp)]
            self.not_fetched.pop(tp, None)
        for tp, state in wanted.items():
            if tp not in self.states:
                self.index[self._key(tp)] = self.states[tp] = state
                self.not_fetched[tp] = _NOT_BEGUN if state.delivered is not None else _NO_OFFSET
            stands, paused = self.not_fetched.get(tp) is _PAUSED, self._partitions.is_paused(state)
            if paused and not stands:
                self._stop_fetching([tp])
                self.not_fetched[tp] = _PAUSED
            elif stands and not paused:
                self.not_fetched[tp] = _RESUMED

    def _key(self, tp: TopicPartition) -> Hashable:
        return tp if self._topic is None else tp.partition

    def _stop_fetching(self, tps: Iterable[TopicPartition]) -> None:
        """Fetch no more of these, and forget what was fetched and not handed out."""
        keys = {self._key(tp) for tp in tps}
        self._log_ends, self._checking = {}, None
        self.buffer = iter([raw for raw in self.buffer if self.key_of(raw) not in keys])
        if self._fetcher is not None:
            self._fetcher.unassign(tps)

    def fetch(self, left: float | None, max_messages: int) -> None:
        """Fill the empty buffer, or wait a while; at most `left` seconds (None: no limit).

        Raises FetchError for what waiting does not mend, or what `connect` raises.
        """
        now = self._clock()
        limit = math.inf if left is None else now + left
        self._take_answers(now)
        due = [tp for tp, one in self.not_fetched.items() if one.due <= now]
        if due:
            self._start_fetching(due, now, limit - now)
        if self._fetcher is None or len(self.not_fetched) == len(self.states):
            dues = (
                [one.due for one in self.not_fetched.values()] if self._connecting is None else []
            )
            wake_at = min([now + IDLE_S, limit, *dues])
            self._partitions.sleep(max(0.0, wake_at - self._clock()))
            limit = now
        if self._fetcher is not None:
            now = self._clock()
            due_in_s = min((one.due for one in self.not_fetched.values()), default=math.inf) - now
            turn_s = max(0.0, min(limit - now, due_in_s, self._turn_s))
            messages = self._fetcher.consume(max_messages, turn_s)
            self.buffer = iter(messages)
            self._count_bytes(messages)
            # The first messages bring the first ends: a user may hold one of them for long.
            if now >= self._ends_due or (messages and not self.ends):
                self._ends_due = now + ENDS_S
                self.ends = self._fetcher.ends(self.states)
            faults = self._fetcher.faults
            while faults:
                self._on_fault(faults.popleft())
            if not messages and now >= self._check_due and self._fetcher is not None:
                self._check_due = now + SILENT_S + self._fetcher.wait_s
                self._check_progress(self._fetcher)

    def _take_answers(self, now: float) -> None:
        """Take the results of calls that other threads have ended meanwhile."""
        for one in [one for one in self._resolving if one[0].done()]:
            self._resolving.remove(one)
            future, asked = one
            if (error := future.exception()) is not None:
                reason = _NotFetched(str(error), now + FAILED_S)
                self.not_fetched.update(dict.fromkeys(self._still_waiting(asked), reason))
                raise error
            self._take_offsets(future.result(), asked, now)
        if self._checking is not None and self._checking[0].done():
            (future, behind), self._checking = self._checking, None
            self._take_log_ends(future.result(), behind)
        if self._moving is not None and self._moving.done():
            moving, self._moving = self._moving, None
            if moving.result():
                self.restart()

    def _in_background(self, call: Callable[[], T]) -> Future[T]:
        """Run a call on another thread, whose end ends the sleep of the user's thread."""
        future: Future[T] = self._background(call)
        self._notify_at_end(future)
        return future

    def _notify_at_end(self, future: Future[Any]) -> None:
        if not future.done():
            future.add_done_callback(lambda _: self._partitions.notify())

    def _check_progress(self, fetcher: Fetcher) -> None:
        """Start over if brokers have had more for a long time, and nothing of it was fetched."""
        placed = [tp for tp in self.states if tp not in self.not_fetched]
        asked, reached = self._log_ends, fetcher.ends(placed)
        behind = [tp for tp in placed if reached.get(tp, -1) < asked.get(tp, -1)]
        # Asked again, since brokers that do not answer will not answer another fetcher either.
        some = behind or random.sample(placed, min(_CHECKED, len(placed)))
        if some:
            self._checking = fetcher.resolve(some, Reset.LARGEST), behind
            if self._checking[0].done():
                self._take_answers(self._clock())

    def _take_log_ends(self, found: Answers, behind: list[TopicPartition]) -> None:
        """Remember how far the logs reach; start over if some were `behind` that already before."""
        self._log_ends = {tp: end for tp, end in found.items() if isinstance(end, int)}
        if behind and self._log_ends:
            tp, end = next(iter(self._log_ends.items()))
            text = f"nothing is fetched, though the log goes up to {end}; fetching begins anew"
            self._send_report(ReportKind.FETCH_TROUBLE, tp, text)
            self.restart()

    def _count_bytes(self, messages: list[RawMessage]) -> None:
        """Each message is as likely as any other to be taken, and counts for those that are not."""
        few = len(messages) <= SAMPLED
        share = 1.0 if few else len(messages) / SAMPLED
        for raw in messages if few else random.choices(messages, k=SAMPLED):
            self.fetched_bytes[raw.topic() or ""] += share * (len(raw) + len(raw.key() or b""))

    def _start_fetching(self, due: list[TopicPartition], now: float, left: float) -> None:
        """Begin to fetch these, each from its position, or by the policy where it has none."""
        if self._fetcher is None:
            self._fetcher = self._connected(due, now)
        if self._fetcher is None:
            return
        unknown = {tp: self.states[tp] for tp in due if self.states[tp].delivered is None}
        if unknown:
            for tp in unknown:
                self.not_fetched[tp] = self.not_fetched[tp]._replace(due=math.inf)
            future = self._fetcher.resolve(unknown, self._reset)
            self._notify_at_end(future)
            self._resolving.append((future, unknown))
            self._take_answers(now)
        offsets = {
            tp: at
            for tp, one in self.not_fetched.items()
            if one.due <= now and (at := self.states[tp].delivered) is not None
        }
        for tp in offsets:
            del self.not_fetched[tp]
        self._log_ends, self._checking = {}, None
        self._fetcher.assign(offsets, min(LOOKUP_S, max(left, LEAST_LOOKUP_S)))
        # Streams that share a client must not take a partition back that was withdrawn meanwhile
        # and granted to another stream of this member: `pool` relies on it.
        self._fetcher.unassign([tp for tp in offsets if not self.states[tp].granted])

    def _connected(self, due: list[TopicPartition], now: float) -> Fetcher | None:
        """Return the fetcher once it is made; None before, and while no broker is registered."""
        if self._connecting is None:
            self._connecting = self._in_background(self._connect)
        if not self._connecting.done():
            return None
        connecting, self._connecting = self._connecting, None
        fetcher = connecting.result()
        if fetcher is None:
            waiting = _NotFetched("no broker is registered", now + self._retry_s)
            self.not_fetched.update(dict.fromkeys(due, waiting))
        else:
            self._check_due = now + SILENT_S + fetcher.wait_s
        return fetcher

    def _take_offsets(
        self, found: Answers, asked: dict[TopicPartition, PartitionState], now: float
    ) -> None:
        """Let partitions start at the offsets found."""
        troubles: dict[str, list[TopicPartition]] = {}
        for tp in self._still_waiting(asked):
            answer = found[tp]
            before = self.not_fetched[tp].reason
            if isinstance(answer, int):
                # Told before it can be seen: no commit meets a position that went back unexplained.
                text = f"{self._reset.value}: {answer}; {before}"
                self._send_report(ReportKind.POSITION_RESET, tp, text, answer)
                self.states[tp].start_at(answer)
                self.not_fetched[tp] = _NotFetched(before)
            else:
                self.not_fetched[tp] = _NotFetched(answer, now + self._retry_s)
                if before != answer:
                    troubles.setdefault(answer, []).append(tp)
        for answer, (first, *others) in troubles.items():
            more = f" (and {len(others)} more partitions)" if others else ""
            self._send_report(ReportKind.FETCH_TROUBLE, first, f"{answer}{more}")

    def _still_waiting(self, asked: dict[TopicPartition, PartitionState]) -> list[TopicPartition]:
        """Return the partitions that still need the offset that was asked for.

        Meanwhile a partition may have been withdrawn, granted anew, sought (its state is another
        one then), or paused.
        """
        return [
            tp
            for tp, state in asked.items()
            if self.states.get(tp) is state and self.not_fetched.get(tp, _PAUSED) is not _PAUSED
        ]

    def _on_fault(self, fault: Fault) -> None:
        tp = fault.tp
        if fault.kind in (FaultKind.PASSING, FaultKind.LOST):
            self._send_report(ReportKind.FETCH_TROUBLE, tp, fault.text)
            if fault.kind is FaultKind.LOST:
                self.restart()
            elif tp is None and self._moving is None:
                self._moving = self._in_background(self._moved)
            return
        where = self._topic or ""
        if tp is not None:
            if tp not in self.states or tp in self.not_fetched:
                return  # withdrawn, or set aside already
            where = f"{tp}, next offset {self.states[tp].delivered}"
            self._set_aside(tp, fault)
        if fault.kind is FaultKind.PERMANENT:
            self._send_report(ReportKind.FETCH_FAILED, tp, fault.text)
            raise FetchError(
                fault.text,
                where=where,
                remedy=f"tried again from there every {FAILED_S:g} s, while the other partitions "
                "go on; nothing is skipped: that takes another offset, or a mended log",
            )

    def _set_aside(self, tp: TopicPartition, fault: Fault) -> None:
        """Stop fetching a partition, to begin anew: now by the policy, or later where it was."""
        assert self._fetcher is not None
        self._fetcher.unassign([tp])
        if fault.kind is FaultKind.OUT_OF_RANGE:
            self.states[tp].start_at(None)
        pause_s = FAILED_S if fault.kind is FaultKind.PERMANENT else 0.0
        self.not_fetched[tp] = _NotFetched(fault.text, self._clock() + pause_s)

    def redeliver(self) -> None:
        """What is in the user's hands did not reach them: hand it out again.

        `unfinished` stays until the next ask, so that a commit in between covers no more.
        """
        for state in self.states.values():
            if state.unfinished is not None:
                state.start_at(state.unfinished.offset())

    def restart(self) -> None:
        """Forget what was fetched, and fetch from what was handed out."""
        fetcher = self._forget()
        if fetcher is not None:
            self._background(fetcher.close)  # it may wait for brokers that are silent
        self.not_fetched = dict.fromkeys(self.states, _RESTARTED)

    def close(self) -> None:
        """Let the fetcher and the buffer go."""
        fetcher = self._forget()
        if fetcher is not None:
            fetcher.close()

    def _forget(self) -> Fetcher | None:
        """Forget the fetcher, which is returned, what it fetched, and all calls under way."""
        self.buffer, self._log_ends = iter([]), {}
        self._resolving, self._checking, self._moving = [], None, None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.add_done_callback(_close_unused)
        fetcher, self._fetcher = self._fetcher, None
        return fetcher

    def _send_report(
        self, kind: ReportKind, tp: TopicPartition | None, text: str, offset: int | None = None
    ) -> None:
        state = None if tp is None else self.states.get(tp)
        self._report(
            StreamReport(
                kind,
                self._thread_id,
                text,
                tp,
                0 if state is None else state.epoch,
                offset,
            )
        )


def _close_unused(connecting: Future[Fetcher | None]) -> None:
    """Close a fetcher that was made too late."""
    if connecting.exception() is None and (fetcher := connecting.result()) is not None:
        fetcher.close()
