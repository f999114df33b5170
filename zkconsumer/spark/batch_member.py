"""A member of a group whose messages are read elsewhere, batch by batch.

It is the library's own member: the same coordinator, lease, claims, grace and compare-and-set. In
the place of each stream stands a ledger.

What one consumer thread id of a query holds: between the coordinator's thread and the query's.

In the library a stream stands here (`consumer.holdings.Outlet`). A ledger has no messages: it says
what may be planned, what is in flight, and what is finished. A position covers finished batches
only: what is in flight is never committed, at a hand-over or at the end either, and is then read
again by the partition's next owner.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Final

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import commit_requests, group_member
from zkconsumer.consumer.coordinator import Coordinator
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import Coverage, Grant
from zkconsumer.errors import ZkConsumerError
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Position, Purpose, TopicPartition
from zkconsumer.protocol.payloads import Broker, marked
from zkconsumer.protocol.registrations import Registration
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.spark.offset_ranges import OffsetRange

# ---- ledger --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """A partition that may be planned: everything before `offset` is finished.

    Attributes:
        offset: None where nothing is stored.
        epoch: the ownership.
        is_first: this process has not owned it before, nor planned any of it.
        is_stored: the offset is what the group had stored; nothing was planned from it yet.
    """

    offset: int | None
    epoch: int
    is_first: bool
    is_stored: bool


class _Held:
    """A partition under one grant; a new grant is a new object."""

    __slots__ = ("epoch", "granted", "is_first", "is_stored", "offset", "tp", "until")

    def __init__(self, grant: Grant, *, is_first: bool) -> None:
        self.tp, self.offset, self.epoch = grant.tp, grant.offset, grant.epoch
        self.is_first, self.is_stored = is_first, True
        self.granted = True  # False: asked to be released
        self.until: int | None = None  # the end of the batch in flight


@dataclass(frozen=True, slots=True)
class _Release:
    of: Collection[_Held]
    done: Callable[[], None]

    @property
    def is_due(self) -> bool:
        return all(one.until is None for one in self.of)


class Ledger:
    """One thread id's. Either side takes the lock for a moment only; nothing is called under it."""

    def __init__(self, thread_id: str, seen: set[TopicPartition]) -> None:
        """`seen` is shared by the ledgers of a member: all partitions that it ever had."""
        self.thread_id = thread_id
        self.idle_reason = ""
        self.changes = 0  # how often partitions were granted, asked back or withdrawn
        self.failures: deque[Exception] = deque()
        self.ended: ZkConsumerError | None = None
        self._seen = seen
        self._lock = threading.Lock()
        self._held: dict[TopicPartition, _Held] = {}
        self._releases: list[_Release] = []

    # ---- the coordinator's side: see `consumer.holdings.Outlet` ----------------------------------

    def grant(self, grants: Iterable[Grant]) -> None:
        """Serve these from their offsets; one that is held is begun anew, as an edit wants it."""
        with self._lock:
            self.changes += 1
            for one in grants:
                self._held[one.tp] = _Held(one, is_first=one.tp not in self._seen)
                self._seen.add(one.tp)

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        """Forget these; a batch that still reads them finishes nothing."""
        with self._lock:
            self.changes += 1
            for tp in tps:
                one = self._held.pop(tp, None)
                if one is not None:
                    one.until = None
        self.answer()

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Plan these no more; `done` when none of them is in flight, which may be at once."""
        with self._lock:
            self.changes += 1
            asked = [self._held[tp] for tp in tps if tp in self._held]
            for one in asked:
                one.granted = False
            self._releases.append(_Release(asked, done))
        self.answer()

    def positions(self, which: Coverage) -> dict[TopicPartition, Position]:
        """What is finished; nothing else counts as delivered."""
        with self._lock:
            return {
                tp: Position(one.epoch, one.offset)
                for tp, one in self._held.items()
                if one.offset is not None
            }

    def explain(self, idle_reason: str) -> None:
        self.idle_reason = idle_reason

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def end(self, error: ZkConsumerError) -> None:
        """The member has ended by itself: `ended` says why, for good."""
        self.ended = error

    def answer(self) -> None:
        """Tell of the releases that wait for nothing more."""
        with self._lock:
            due = [one for one in self._releases if one.is_due]
            self._releases = [one for one in self._releases if not one.is_due]
        for one in due:
            one.done()

    # ---- the query's side: one thread ------------------------------------------------------------

    def served(self) -> dict[TopicPartition, Served]:
        """What may be planned: granted, and no batch of it in flight."""
        with self._lock:
            return {
                tp: Served(one.offset, one.epoch, one.is_first, one.is_stored)
                for tp, one in self._held.items()
                if one.granted and one.until is None
            }

    def reached(self) -> dict[TopicPartition, int | None]:
        """What is owned, and up to where batches were planned; None: nothing is stored."""
        with self._lock:
            return {tp: one.until or one.offset for tp, one in self._held.items() if one.granted}

    def place(self, tp: TopicPartition, known: Served, offset: int) -> None:
        """Go on from there instead, unless it was granted anew since it was looked at."""
        with self._lock:
            one = self._held.get(tp)
            if one is not None and (one.epoch, one.offset) == (known.epoch, known.offset):
                one.offset, one.is_first, one.is_stored = offset, False, False

    def begin(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """These are a batch; those among them that are served no more are not, and left out."""
        found: list[OffsetRange] = []
        with self._lock:
            for wanted in ranges:
                one = self._held.get(wanted.tp)
                if one is not None and one.granted and one.offset == wanted.start:
                    if wanted.size:
                        one.until = wanted.end
                        one.is_first = one.is_stored = False
                    found.append(wanted)
        return found

    def finish(self, ends: Mapping[TopicPartition, int]) -> int:
        """The batch that ends there is finished; of how many partitions that is news.

        To be followed by `answer`: a release may have waited for it.
        """
        count = 0
        with self._lock:
            for tp, end in ends.items():
                one = self._held.get(tp)
                if one is not None and one.until is not None and one.until == end:
                    one.offset, one.until = end, None
                    count += 1
        return count

    def cancel(self) -> None:
        """What is still in flight was never run."""
        with self._lock:
            for one in self._held.values():
                one.until = None
        self.answer()


# ---- membership ----------------------------------------------------------------------------------


LEAVE_S: Final = 2.0
"""Longest wait for a clean end, in seconds. It takes milliseconds, or ZooKeeper is away; a
container that stops gives ten seconds to all its processes together. What is not gone by then goes
with the session."""


class Membership:
    """One member; all methods but `leave` belong to one thread.

    `join` it, and `leave` it whatever happens.
    """

    def __init__(self, config: ConsumerConfig, wanted: Registration) -> None:
        """Nothing happens yet. Raises InvalidNameError for an impossible `consumer.id`."""
        self.config = config
        self._member = GroupMember(config)
        self.consumer_id = self._member.consumer_id
        seen: set[TopicPartition] = set()
        threads = paths.thread_ids(self.consumer_id, max(wanted.subscription.values()))
        self._ledgers = {thread: Ledger(thread, seen) for thread in threads}
        self._wanted = wanted
        self._ending = threading.Lock()
        self._left = False

    # ---- joining and leaving ---------------------------------------------------------------------

    def join(self) -> None:
        """Register, and wait until that is done.

        Raises:
            ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `zk.session`.
            ConsumerIdTakenError: a live session stayed registered under our consumer id.
            AccessDeniedError: ZooKeeper forbids the registration.
        """
        self._member.connect()
        settings = self._member.settings(self._wanted)
        outlets: PartitionSinks = {(None, thread): one for thread, one in self._ledgers.items()}
        self._member.start(settings, outlets)
        self._member.wait_registered()

    @property
    def _coordinator(self) -> Coordinator | None:
        return self._member.coordinator

    def leave(self) -> None:
        """Commit what is finished and end the session; any thread, also while another is in it."""
        with self._ending:
            if self._left:
                return
            self._left = True
            if self._coordinator is not None and self._coordinator.is_alive():
                self._coordinator.leave(Purpose.LEAVE)
                self._coordinator.join(LEAVE_S)
            else:
                self._member.stop()

    # ---- what it may do --------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The machine's. Only after `join`."""
        assert self._coordinator is not None
        return self._coordinator.state

    @property
    def holds_lease(self) -> bool:
        """Is it sure that nobody else owns what this member does?"""
        return self._member.gate.is_open

    @property
    def is_at_rest(self) -> bool:
        """Does it own all that it can have at present, or wait for others to let it go?"""
        return self.holds_lease and self.state.phase in (Phase.SETTLED, Phase.WAITING)

    @property
    def is_settled(self) -> bool:
        """Does it own all that it is due?"""
        return self.holds_lease and self.state.phase is Phase.SETTLED

    @property
    def changes(self) -> int:
        """How often partitions were granted, asked back or withdrawn."""
        return sum(one.changes for one in self._ledgers.values())

    @property
    def idle_reason(self) -> str:
        """Why it has no partition, as far as that is known."""
        return next((one.idle_reason for one in self._ledgers.values() if one.idle_reason), "")

    def failure(self) -> Exception | None:
        """Return what the member was told of and cannot mend, each once.

        If the member has ended by itself, return the error that ended it, at every call.
        """
        for ledger in self._ledgers.values():
            if ledger.ended is not None:
                return ledger.ended
            if ledger.failures:
                return ledger.failures.popleft()
        return None

    def brokers(self) -> Sequence[Broker]:
        """Return the registered brokers; empty before the member has read the group."""
        return self._member.brokers()

    # ---- batches ---------------------------------------------------------------------------------

    def served(self) -> dict[TopicPartition, Served]:
        """What may be planned."""
        return {tp: at for one in self._ledgers.values() for tp, at in one.served().items()}

    def reached(self) -> dict[TopicPartition, int | None]:
        """What is owned, and up to where batches were planned; None: nothing is stored."""
        return {tp: at for one in self._ledgers.values() for tp, at in one.reached().items()}

    def place(self, tp: TopicPartition, known: Served, offset: int) -> None:
        """Go on from there, instead of where `served` said."""
        for ledger in self._ledgers.values():
            ledger.place(tp, known, offset)

    def reset(self, tp: TopicPartition, known: Served, offset: int, why: str) -> None:
        """`auto.offset.reset` leads there: the next commit may go back to it."""
        assert self._coordinator is not None
        # Told before it can be seen, as `consumer.stream_fetcher` does it.
        report = StreamReport(
            ReportKind.POSITION_RESET, self.consumer_id, why, tp, known.epoch, offset
        )
        self._coordinator.stream_reported(report)
        self.place(tp, known, offset)

    def begin(self, ranges: Collection[OffsetRange]) -> list[OffsetRange]:
        """A batch of these is planned; less those that are served no more by now."""
        return sorted(one for held in self._ledgers.values() for one in held.begin(ranges))

    def finish(self, ends: Mapping[TopicPartition, int]) -> Future[None] | None:
        """The batch that ends there is done: its commit; None where that was known already."""
        ledgers = self._ledgers.values()
        # Asked for before what has waited for the batch is let go, while it is still owned.
        commit = self.commit() if any([one.finish(ends) for one in ledgers]) else None
        for one in ledgers:
            one.answer()
        return commit

    def cancel(self) -> None:
        """What is planned and not finished is not going to be run."""
        for ledger in self._ledgers.values():
            ledger.cancel()

    def commit(self) -> Future[None]:
        """Store what is finished, soon; what goes wrong is also logged."""
        assert self._coordinator is not None
        storage = group_member.storage(self.config)
        return self._coordinator.commit(commit_requests.asked(None, retries=None, storage=storage))

    # ---- operators' edits ------------------------------------------------------------------------

    def marked(self, tps: Collection[TopicPartition]) -> frozenset[TopicPartition] | None:
        """Whose stored offset was written last by an operator's tool; None: cannot be told now."""
        group = self.config.group_id
        room = paths.edits(group)
        offsets = [rq.Exists(paths.offset(group, tp)) for tp in tps]
        replies = self._ask([rq.Children(room), *offsets])
        if replies is None:
            return None
        names = replies[0].value if replies[0].code is Code.OK else ()
        marks = self._ask([rq.Exists(f"{room}/{name}") for name in names])
        if marks is None:
            return None
        written = {tp: one.value for tp, one in zip(tps, replies[1:], strict=True)}
        mzxids = {tp: stat.mzxid for tp, stat in written.items() if stat}
        return marked(mzxids, [one.value for one in marks])

    def _ask(self, batch: Sequence[rq.Request]) -> Sequence[Reply] | None:
        answer: Future[Sequence[Reply]] = Future()
        self._member.session.submit(batch, answer.set_result)
        try:
            replies = answer.result(self.config.zookeeper_session_timeout_s)
        except FutureTimeoutError:
            return None
        return None if any(one.code is Code.BROKEN for one in replies) else replies
