"""The fetcher of a stream's messages; only the user's thread calls it, between two messages.

The user's thread never waits for a broker longer than the timeout of its call. Calls that may take
longer run on other threads: making the fetcher (which reads the brokers from ZooKeeper), resolving
offsets (`Fetcher.resolve`), and reading from ZooKeeper whether the brokers have moved.
`StreamFetcher` keeps a future for each of them and takes the result in a later call.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from copy import copy
from enum import Enum
from itertools import islice
from operator import length_hint
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from zkconsumer.consumer.stream_partitions import GrantedPartition, StreamPartitions
from zkconsumer.errors import FetchError
from zkconsumer.frozen import dataclass
from zkconsumer.kafka.engines import RunFetcher
from zkconsumer.kafka.fetcher import (
    FAILED_S,
    IDLE_S,
    LOOKUP_S,
    TURN_S,
    Answers,
    AutoOffsetReset,
    BrokerClient,
    Fetcher,
    FetchFault,
    FetchFaultKind,
    Run,
)
from zkconsumer.kafka.log_answers import NO_BROKER
from zkconsumer.kafka.progress import ProgressWatch
from zkconsumer.protocol.model import TopicPartition

T = TypeVar("T")

_Client: TypeAlias = Fetcher | RunFetcher
"""A client for messages, or for columns."""

# Minimum time, in seconds, that brokers get to answer the look-up of topics before the first fetch,
# even if the user's timeout is shorter. An answer takes 2 to 17 ms. Without the look-up, the first
# messages would come a second later.
LEAST_LOOKUP_S: Final = 0.03


class ReportKind(Enum):
    POSITION_RESET = "position_reset"  # auto.offset.reset was applied
    SOUGHT = "seeks"  # the user moved a position
    FETCH_TROUBLE = "fetch_trouble"  # will be retried
    FETCH_FAILED = "fetch_failed"  # also raised to the user
    DECODE_FAILED = "decode_failed"  # also raised to the user


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A stream's report to its member; `offset` is set if the stream changed a position."""

    kind: ReportKind
    thread_id: str
    text: str
    tp: TopicPartition | None = None
    epoch: int = 0
    offset: int | None = None


class _NotFetched(NamedTuple):
    """Why a partition is not fetched, and when to retry, in seconds of the stream's clock."""

    reason: str
    due: float = 0.0


_NOT_BEGUN: Final = _NotFetched("fetching has not begun")
_NO_OFFSET: Final = _NotFetched("no stored offset")
_RESTARTED: Final = _NotFetched("fetching restarts after an interruption")
_PAUSED: Final = _NotFetched("paused", math.inf)
_RESUMED: Final = _NotFetched("resumed")


class Background(Protocol):
    """Runs a call that may block, and returns the future of its result at once."""

    def __call__(self, call: Callable[[], T], /) -> Future[T]: ...


def inline(call: Callable[[], T]) -> Future[T]:
    """Run a call on this thread; the call must never block."""
    done: Future[T] = Future()
    done.set_result(call())
    return done


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a rare call, which may block, on a new thread."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001  # `Future.result` raises it
            done.set_exception(error)

    # A daemon thread, so that a server that does not answer does not keep the process alive.
    threading.Thread(target=run, name="stream-background", daemon=True).start()
    return done


class Unread:
    """A run with messages that have not been handed out yet.

    Attributes:
        numbers: the numbers of these messages. A thread that hands out messages takes the numbers
            from this iterator, so no message is handed out twice.
        is_iterated: whether an iteration uses `numbers`; it may be suspended.
    """

    __slots__ = ("is_iterated", "numbers", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.numbers: Iterator[int] = iter(range(len(run)))
        self.is_iterated = False

    def __len__(self) -> int:
        return length_hint(self.numbers)

    def take(self, most: int) -> range:
        """Return the numbers of the next messages, at most `most`."""
        first = len(self.run) - len(self)
        until = first + min(most, len(self))
        if self.is_iterated:
            deque(islice(self.numbers, until - first), maxlen=0)
        else:  # skipping the numbers one by one would cost a tenth of the throughput of columns
            self.numbers = iter(range(until, len(self.run)))
        return range(first, until)

    def give_back(self, number: int) -> None:
        """Hand out message `number` and all later messages again."""
        self.numbers = iter(range(number, len(self.run)))

    def drop(self) -> None:
        """Hand out no further message, not even in an iteration that was suspended."""
        self.take(len(self))


class StreamFetcher:
    """The broker client of one stream, its buffer of messages, and its partitions' states.

    Attributes:
        states: the partitions that the stream serves.
        not_fetched: the partitions of `states` that are not being fetched, each with the reason.
        unread: the fetched runs that were not handed out completely.
        is_columns: whether the client fetches columns.
        ends: the known ends of the logs.
        fetched_bytes: topic -> bytes of keys and values fetched, partly estimated.
    """

    def __init__(
        self,
        *,
        topic: str | None,
        thread_id: str,
        partitions: StreamPartitions,
        connect: Callable[[], Fetcher | None],
        connect_columns: Callable[[], RunFetcher | None] | None,
        brokers_moved: Callable[[], bool],
        reset: AutoOffsetReset,
        retry_s: float,
        report: Callable[[StreamReport], None],
        clock: Callable[[], float],
        background: Background = inline,
        turn_s: float = TURN_S,
    ) -> None:
        self.states: dict[TopicPartition, GrantedPartition] = {}
        self.not_fetched: dict[TopicPartition, _NotFetched] = {}
        self.unread: list[Unread] = []
        self._topic = topic
        self._thread_id = thread_id
        self._partitions = partitions
        self._connect, self._connect_columns, self._brokers_moved = (
            connect,
            connect_columns,
            brokers_moved,
        )
        self.is_columns = False
        self._reset = reset
        self._retry_s = max(retry_s, 0.01)
        self._report = report
        self._clock = clock
        self._background, self._turn_s = background, turn_s
        self._client: _Client | None = None
        # Running calls: making the client; reading whether the brokers have moved; resolving first
        # offsets, with the states that wait for them.
        self._connecting: Future[_Client | None] | None = None
        self._moving: Future[bool] | None = None
        self._resolving: list[tuple[Future[Answers], dict[TopicPartition, GrantedPartition]]] = []
        self._watch = ProgressWatch()
        self.ends: dict[TopicPartition, int] = {}
        # topic -> bytes.
        self.fetched_bytes: dict[str, float] = defaultdict(float)
        # The offsets at which logs end after the messages in the buffer. The position moves there
        # when all these messages were handed out.
        self._ends_after_buffer: dict[TopicPartition, int] = {}

    @property
    def queued(self) -> int:
        """The number of fetched messages that were not handed out, if the client counts its own.

        Any thread may read it.
        """
        client = self._client
        return sum(map(len, self.unread)) + (0 if client is None else client.queued)

    def first(self) -> Unread | None:
        """Return the first run that was not handed out completely, if any."""
        while self.unread:
            if len(self.unread[0]):
                return self.unread[0]
            self.unread.pop(0)
        return None

    @property
    def has_columns(self) -> bool:
        """Whether a client for columns can be made."""
        return self._connect_columns is not None

    def use_columns(self, wanted: bool) -> None:
        """Fetch columns from now on if `wanted`, otherwise messages.

        A change discards the client; messages that were not handed out are fetched again.
        """
        if wanted is not self.is_columns:
            self.restart()
            self.is_columns = wanted

    def apply_grants(self) -> None:
        """Serve exactly the partitions that are granted now."""
        wanted = self._partitions.take_requests()
        gone = {tp for tp, state in self.states.items() if wanted.get(tp) is not state}
        if gone:
            self._stop_fetching(gone)
        for tp in gone:
            del self.states[tp]
            self.not_fetched.pop(tp, None)
        for tp, state in wanted.items():
            if tp not in self.states:
                self.states[tp] = state
                self.not_fetched[tp] = _NOT_BEGUN if state.delivered is not None else _NO_OFFSET
            is_paused = self._partitions.is_paused(state)
            was_paused = self.not_fetched.get(tp) is _PAUSED
            if is_paused and not was_paused:
                self._stop_fetching([tp])
                self.not_fetched[tp] = _PAUSED
            elif was_paused and not is_paused:
                self.not_fetched[tp] = _RESUMED

    def _stop_fetching(self, tps: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions, and discard their messages that were not handed out."""
        self._watch.forget()
        for tp in tps:
            self._ends_after_buffer.pop(tp, None)
        for one in self.unread:
            if one.run.tp in tps:
                one.drop()
        if self._client is not None:
            self._client.unassign(tps)

    def fetch(self, left: float | None, max_messages: int) -> None:
        """Fill the empty buffer or wait, for at most `left` seconds (None: no limit).

        Raises FetchError for a permanent error, and the errors that `connect` raises.
        """
        now = self._clock()
        limit = math.inf if left is None else now + left
        self._move_to_ends()
        self._take_answers(now)
        due = [tp for tp, one in self.not_fetched.items() if one.due <= now]
        if due:
            self._start_fetching(due, now, limit - now)
        if self._client is None or len(self.not_fetched) == len(self.states):
            dues = (
                [one.due for one in self.not_fetched.values()] if self._connecting is None else []
            )
            wake_at = min([now + IDLE_S, limit, *dues])
            self._partitions.sleep(max(0.0, wake_at - self._clock()))
            limit = now
        if (client := self._client) is not None:
            now = self._clock()
            due_in_s = min((one.due for one in self.not_fetched.values()), default=math.inf) - now
            turn_s = max(0.0, min(limit - now, due_in_s, self._turn_s))
            faults = client.faults
            # `take_arrived` leaves faults. Messages that come after a fault of their partition
            # must not be handed out: a commit would skip what could not be read.
            failed = {one.tp for one in faults if one.kind is FetchFaultKind.PERMANENT}
            count = self._fill(client, now, max_messages, turn_s)
            for one in self.unread:
                if one.run.tp in failed:
                    one.drop()
            while faults:
                self._on_fault(faults.popleft())
            if not count:
                self._move_to_ends()
            if self._client is client:
                self._check_progress(client, now, count)

    def take_arrived(self, max_messages: int) -> bool:
        """Fill the empty buffer with messages that have arrived; never wait, and raise no fault.

        Return whether there are such messages. A fault, a partition that is not fetched, and a
        position at the end of a log are left to `fetch`.
        """
        client = self._client
        if client is None or client.faults or self.not_fetched or self._ends_after_buffer:
            return False
        if not client.is_instant:
            return False
        now = self._clock()
        if not (count := self._fill(client, now, max_messages, 0.0)):
            return False
        self._check_progress(client, now, count)
        return True

    def _fill(self, client: _Client, now: float, max_messages: int, turn_s: float) -> int:
        """Fetch messages, and count their bytes; return the number of messages."""
        if self.is_columns:
            # The member's requests do not end a wait of this client, so the wait is short.
            turn_s = min(turn_s, TURN_S)
        runs = client.fetch(turn_s, max_messages)
        self.unread = [Unread(run) for run in runs]
        for run in runs:
            self.fetched_bytes[run.tp.topic] += run.estimated_size
        count = sum(map(len, runs))
        # Read the log ends also with the first messages, because the user may process one of them
        # for a long time.
        if self._watch.are_ends_due(now) or (count and not self.ends):
            self.ends = client.ends(self.states)
        return count

    def _move_to_ends(self) -> None:
        """Move positions over transaction markers and compacted messages at the ends of logs.

        The user has finished all messages before them, unless the partition is being revoked: 1.
        The member's thread revokes the partition (REVOKE). 2. CONFIRM drops the last message of the
        buffer. 3. The user asks for the next message before the member's thread sets `has_changed`.
        If the position moved now, the release would commit it, and the message would be lost.
        """
        for tp, end in self._ends_after_buffer.items():
            at = self.states[tp].delivered
            if at is not None and at < end and self.states[tp].granted:
                self.states[tp].start_at(end)
        self._ends_after_buffer.clear()

    def _take_answers(self, now: float) -> None:
        """Take the results of the calls that have ended on other threads."""
        for one in [one for one in self._resolving if one[0].done()]:
            self._resolving.remove(one)
            future, asked = one
            if (error := future.exception()) is not None:
                reason = _NotFetched(str(error), now + FAILED_S)
                self.not_fetched.update(dict.fromkeys(self._still_waiting(asked), reason))
                raise error
            self._take_offsets(future.result(), asked, now)
        if self._moving is not None and self._moving.done():
            moving, self._moving = self._moving, None
            if moving.result():
                self.restart()

    def _in_background(self, call: Callable[[], T]) -> Future[T]:
        """Run a call on another thread; when it ends, it wakes the user's thread."""
        # A columnar client is never shared, so its calls may always block.
        background = in_thread if self.is_columns else self._background
        future = background(call)
        self._notify_at_end(future)
        return future

    def _notify_at_end(self, future: Future[T]) -> None:
        if not future.done():
            future.add_done_callback(lambda _: self._partitions.notify())

    def _check_progress(self, client: BrokerClient, now: float, count: int) -> None:
        """Restart if the client fetches nothing although messages exist."""
        placed = {
            tp: one.delivered
            for tp, one in self.states.items()
            if tp not in self.not_fetched and one.delivered is not None
        }
        stall = self._watch.check(client, placed, now, messages=count)
        if stall is not None:
            text = (
                f"nothing is fetched although the log ends at offset {stall.end}; fetching restarts"
            )
            self._send_report(ReportKind.FETCH_TROUBLE, stall.tp, text)
            self.restart()

    def _start_fetching(self, due: list[TopicPartition], now: float, left: float) -> None:
        """Fetch these partitions from their positions, or as `auto.offset.reset` says."""
        if self._client is None:
            self._client = self._connected(due, now)
        if self._client is None:
            return
        client = self._client
        unknown = {tp: self.states[tp] for tp in due if self.states[tp].delivered is None}
        if unknown:
            for tp in unknown:
                self.not_fetched[tp] = self.not_fetched[tp]._replace(due=math.inf)
            future = client.resolve(unknown, self._reset)
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
        self._watch.forget()
        client.assign(offsets, min(LOOKUP_S, max(left, LEAST_LOOKUP_S)))
        # Unassign the partitions that were revoked meanwhile: with a shared client, another stream
        # of this member may already have their grants. `kafka.pool` relies on this.
        client.unassign([tp for tp in offsets if not self.states[tp].granted])

    def _connected(self, due: list[TopicPartition], now: float) -> _Client | None:
        """Return the client; None while it is being made or no broker is registered."""
        if self._connecting is None:
            self._connecting = self._begin_connecting()
        if not self._connecting.done():
            return None
        connecting, self._connecting = self._connecting, None
        try:
            client = connecting.result()
        except Exception as error:
            # With `on_error` the stream goes on at once, so the next attempt must wait.
            failed = _NotFetched(str(error), now + FAILED_S)
            self.not_fetched.update(dict.fromkeys(due, failed))
            self._send_report(ReportKind.FETCH_FAILED, None, str(error))
            raise
        if client is None:
            waiting = _NotFetched(NO_BROKER, now + self._retry_s)
            self.not_fetched.update(dict.fromkeys(due, waiting))
        else:
            self._watch.begin(client, now)
        return client

    def _begin_connecting(self) -> Future[_Client | None]:
        if not self.is_columns:
            return self._in_background(self._connect)
        assert self._connect_columns is not None
        return self._in_background(self._connect_columns)

    def _take_offsets(
        self, found: Answers, asked: dict[TopicPartition, GrantedPartition], now: float
    ) -> None:
        """Start partitions at the resolved offsets."""
        troubles: dict[str, list[TopicPartition]] = {}
        for tp in self._still_waiting(asked):
            answer = found[tp]
            before = self.not_fetched[tp].reason
            if isinstance(answer, int):
                # Report the new position before a commit can read it: a commit must not find a
                # lower position before the machine knows of the reset.
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

    def _still_waiting(self, asked: dict[TopicPartition, GrantedPartition]) -> list[TopicPartition]:
        """Return the partitions that still need the offset that was requested.

        Since the request, a partition may have been withdrawn, granted again or paused, or a seek
        may have changed its position. A new grant and a seek make a new `GrantedPartition`.
        """
        return [
            tp
            for tp, state in asked.items()
            if self.states.get(tp) is state and self.not_fetched.get(tp, _PAUSED) is not _PAUSED
        ]

    def _on_fault(self, fault: FetchFault) -> None:
        tp = fault.tp
        if fault.error is not None:
            self._send_report(ReportKind.FETCH_FAILED, None, fault.text)
            raise copy(fault.error)  # several streams may raise this error
        if fault.kind in (FetchFaultKind.RETRIED, FetchFaultKind.LOST):
            self._send_report(ReportKind.FETCH_TROUBLE, tp, fault.text)
            if fault.kind is FetchFaultKind.LOST:
                self.restart()
            elif tp is None and self._moving is None:
                self._moving = self._in_background(self._brokers_moved)
            return
        where = self._topic or ""
        if tp is not None:
            if tp not in self.states or tp in self.not_fetched:
                return  # the partition was withdrawn, or is already not fetched
            if fault.kind is FetchFaultKind.END:
                self._ends_after_buffer[tp] = self.ends[tp] = fault.offset
                return
            where = f"{tp}, next offset {self.states[tp].delivered}"
            self._set_aside(tp, fault)
        if fault.kind is FetchFaultKind.PERMANENT:
            self._send_report(ReportKind.FETCH_FAILED, tp, fault.text)
            raise FetchError(
                fault.text,
                where=where,
                remedy=f"the fetch is retried every {FAILED_S:g} s, and the other partitions are "
                "still delivered; no message is skipped: to continue, seek to another offset or "
                "repair the log",
            )

    def _set_aside(self, tp: TopicPartition, fault: FetchFault) -> None:
        """Stop fetching a failed partition, and plan the next attempt.

        `auto.offset.reset` replaces an offset that the log does not contain. After a permanent
        error the partition is fetched again from its position after `FAILED_S` seconds.
        """
        assert self._client is not None
        self._client.unassign([tp])
        self._ends_after_buffer.pop(tp, None)
        if fault.kind is FetchFaultKind.OUT_OF_RANGE:
            self.states[tp].start_at(None)
        pause_s = FAILED_S if fault.kind is FetchFaultKind.PERMANENT else 0.0
        self.not_fetched[tp] = _NotFetched(fault.text, self._clock() + pause_s)

    def redeliver(self) -> None:
        """Hand out again the messages that did not reach the user.

        `unfinished` stays set until the user asks for the next message, so until then no commit
        stores a higher offset.
        """
        for state in self.states.values():
            if state.unfinished is not None:
                state.start_at(state.unfinished.offset)

    def restart(self) -> None:
        """Discard the client; fetch again every message that was not handed out."""
        client = self._forget()
        if client is not None:
            self._background(client.close)  # closing may wait for brokers that do not answer
        paused = [tp for tp, one in self.not_fetched.items() if one is _PAUSED]
        self.not_fetched = dict.fromkeys(self.states, _RESTARTED) | dict.fromkeys(paused, _PAUSED)

    def close(self) -> None:
        """Close the client and discard the buffer."""
        client = self._forget()
        if client is not None:
            client.close()

    def _forget(self) -> BrokerClient | None:
        """Discard the buffer, all running calls and the client; return the client, still open."""
        for one in self.unread:
            one.drop()
        self.unread = []
        self._watch.forget()
        self._resolving, self._moving = [], None
        self._ends_after_buffer.clear()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.add_done_callback(_close_unused)
        client, self._client = self._client, None
        return client

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


def _close_unused(connecting: Future[_Client | None]) -> None:
    """Close a client that is no longer needed when it has been made."""
    if connecting.exception() is None and (client := connecting.result()) is not None:
        client.close()
