"""A group member whose messages are read elsewhere, in batches.

`Membership` runs the library's own member, with the same thread, lease, claims, release grace
and compare-and-set commits. In place of a stream for each consumer thread, `Membership` has
`ThreadPartitions`, which implements `consumer.stream_partitions.PartitionSink` and holds no
messages. `ThreadPartitions` records which partitions may be planned, which offsets are in flight,
and which offsets are finished. The member's thread and the query's thread both use it.

A position covers finished batches only. Offsets in flight are never committed, neither at a release
nor at the end, so the partition's next owner reads them again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import commit_requests
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.consumer.member_thread import MemberThread
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import CommitScope, Grant
from zkconsumer.errors import ZkConsumerError, ZooKeeperUnreachableError
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.member.operations import read_edited
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import Position, Purpose, TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.spark.offset_ranges import OffsetRange

# ---- ThreadPartitions: the partitions of one consumer thread -------------------------------------


@dataclass(frozen=True, slots=True)
class ServedPartition:
    """A partition that may be planned; all its messages before `offset` are finished.

    Attributes:
        offset: None if the group has no stored offset.
        epoch: the ownership to which the offset belongs.
        is_first: this process has neither owned the partition before nor planned any of it.
        is_stored: the offset is the group's stored offset, and no batch was planned from it yet.
    """

    offset: int | None
    epoch: int
    is_first: bool
    is_stored: bool


class _GrantedPartition:
    """A partition under one grant; a new grant creates a new object."""

    __slots__ = ("epoch", "granted", "is_first", "is_stored", "offset", "tp", "until")

    def __init__(self, grant: Grant, *, is_first: bool) -> None:
        self.tp, self.offset, self.epoch = grant.tp, grant.offset, grant.epoch
        self.is_first, self.is_stored = is_first, True
        self.granted = True  # False once its release was requested
        self.until: int | None = None  # the end of the batch in flight


@dataclass(frozen=True, slots=True)
class _PendingRelease:
    of: Collection[_GrantedPartition]
    done: Callable[[], None]

    @property
    def is_due(self) -> bool:
        return all(one.until is None for one in self.of)


class ThreadPartitions:
    """The partitions of one consumer thread.

    The member's thread and the query's thread hold the lock only for a moment, and call no
    other object while they hold it.
    """

    def __init__(self, thread_id: str, seen: set[TopicPartition]) -> None:
        """`seen` contains every partition that the member ever had; all its threads share it."""
        self.thread_id = thread_id
        self.idle_reason = ""
        self.changes = 0  # number of grants, release requests and withdrawals
        self.failures: deque[Exception] = deque()
        self.ended: ZkConsumerError | None = None
        self._seen = seen
        self._lock = threading.Lock()
        self._held: dict[TopicPartition, _GrantedPartition] = {}
        # Withdrawn partitions that the batch in flight still reads.
        self._withdrawn: dict[TopicPartition, _GrantedPartition] = {}
        self._releases: list[_PendingRelease] = []

    # ---- the member's side: see `consumer.stream_partitions.PartitionSink` -----------------------

    def grant(self, grants: Iterable[Grant]) -> None:
        """Serve these partitions from their offsets. A partition that is already served is granted
        again after an operator has edited its offset; it then continues at the edited offset.
        """
        with self._lock:
            self.changes += 1
            for one in grants:
                self._held[one.tp] = _GrantedPartition(one, is_first=one.tp not in self._seen)
                self._seen.add(one.tp)

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        """Drop these partitions. If a batch still reads them, its end does not move their
        positions, and a release still waits for it.
        """
        with self._lock:
            self.changes += 1
            for tp in tps:
                one = self._held.pop(tp, None)
                if one is not None and one.until is not None:
                    self._withdrawn[tp] = one

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Stop planning these partitions. Call `done` as soon as none of them is in flight, which
        may be at once.

        A partition that an operator's edit moved to another offset under the same epoch may still
        be in flight from before the edit.
        """
        with self._lock:
            self.changes += 1
            asked = [self._held[tp] for tp in tps if tp in self._held]
            for one in asked:
                one.granted = False
            former = ((self._withdrawn.get(one.tp), one.epoch) for one in asked)
            asked += [one for one, epoch in former if one is not None and one.epoch == epoch]
            self._releases.append(_PendingRelease(asked, done))
        self.answer_releases()

    def positions(self, which: CommitScope) -> dict[TopicPartition, Position]:
        """Return the positions after finished batches. Only messages before these positions count
        as delivered."""
        with self._lock:
            return {
                tp: Position(one.epoch, one.offset)
                for tp, one in self._held.items()
                if one.offset is not None
            }

    def explain(self, idle_reason: str, shortfall: str) -> None:
        self.idle_reason = idle_reason

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def end(self, error: ZkConsumerError) -> None:
        """Record the error that ended the member. The member cannot continue afterwards."""
        self.ended = error

    def answer_releases(self) -> None:
        """Call `done` of each release whose partitions are no longer in flight."""
        with self._lock:
            due = [one for one in self._releases if one.is_due]
            self._releases = [one for one in self._releases if not one.is_due]
        for one in due:
            one.done()

    # ---- the query's side: one thread ------------------------------------------------------------

    def served(self) -> dict[TopicPartition, ServedPartition]:
        """Return the partitions that may be planned: granted, and without a batch in flight."""
        with self._lock:
            return {
                tp: ServedPartition(one.offset, one.epoch, one.is_first, one.is_stored)
                for tp, one in self._held.items()
                if one.granted and one.until is None
            }

    def reached(self) -> dict[TopicPartition, int | None]:
        """Return the owned partitions and the offset up to which batches were planned, or None if
        none is stored.
        """
        with self._lock:
            return {tp: one.until or one.offset for tp, one in self._held.items() if one.granted}

    def place(self, tp: TopicPartition, known: ServedPartition, offset: int) -> None:
        """Continue at `offset`, unless the partition was granted again since `known` was read."""
        with self._lock:
            one = self._held.get(tp)
            if one is not None and (one.epoch, one.offset) == (known.epoch, known.offset):
                one.offset, one.is_first, one.is_stored = offset, False, False

    def begin(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Mark these ranges as in flight. Return those whose partitions are still served, with
        their fencing tokens; the others are not part of the batch.
        """
        found: list[OffsetRange] = []
        with self._lock:
            for wanted in ranges:
                one = self._held.get(wanted.tp)
                if one is not None and one.granted and one.offset == wanted.start:
                    if wanted.size:
                        one.until = wanted.end
                        one.is_first = one.is_stored = False
                    found.append(wanted._replace(token=one.epoch))
        return found

    def finish(self, ends: Mapping[TopicPartition, int]) -> int:
        """Mark the batch that ends at these offsets as finished. Return the number of partitions it
        finished.

        The caller must then call `answer_releases`, because a release may have waited for this
        batch.
        """
        count = 0
        with self._lock:
            for tp, end in ends.items():
                one = self._held.get(tp)
                if one is not None and one.until is not None and one.until == end:
                    one.offset, one.until = end, None
                    count += 1
            self._end_withdrawn()
        return count

    def cancel(self) -> None:
        """Drop the batch in flight, which was never run."""
        with self._lock:
            for one in self._held.values():
                one.until = None
            self._end_withdrawn()
        self.answer_releases()

    def _end_withdrawn(self) -> None:
        for one in self._withdrawn.values():
            one.until = None
        self._withdrawn.clear()


# ---- Membership: the member and its threads ------------------------------------------------------


LEAVE_S: Final = 2.0
"""Longest wait for a clean end, in seconds. Leaving needs milliseconds unless ZooKeeper is
unreachable. A container that stops gives all its processes ten seconds in total. Znodes that still
exist after this time disappear with the session.
"""


class Membership:
    """A member of a group; one thread uses all methods except `leave`.

    Call `join` first. Always call `leave`, even after a failed `join`.
    """

    def __init__(self, config: ConsumerConfig, wanted: Registration) -> None:
        """Check the consumer id; connect to nothing. Raises InvalidNameError if `consumer.id` is
        invalid.
        """
        self.config = config
        self._member = GroupMember(config)
        self.consumer_id = self._member.consumer_id
        seen: set[TopicPartition] = set()
        threads = paths.thread_ids(self.consumer_id, max(wanted.subscription.values()))
        self._threads = {thread: ThreadPartitions(thread, seen) for thread in threads}
        self._wanted = wanted
        self._leaving = threading.Lock()
        self._left = False

    # ---- joining and leaving ---------------------------------------------------------------------

    def join(self) -> None:
        """Register the member and wait until it is registered.

        Raises:
            ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `zk.session`.
            ConsumerIdTakenError: a live session stays registered under this consumer id.
            AccessDeniedError: ZooKeeper forbids the registration.
        """
        self._member.connect()
        settings = self._member.settings(self._wanted)
        self._member.start(settings, self.sinks)
        self._member.wait_registered()

    @property
    def sinks(self) -> PartitionSinks:
        """The threads' partitions, to which the member's thread grants partitions."""
        return {(None, thread): one for thread, one in self._threads.items()}

    @property
    def _thread(self) -> MemberThread | None:
        return self._member.thread

    def leave(self) -> None:
        """Commit what is finished and end the session. Any thread may call this, even while another
        thread uses the member.
        """
        with self._leaving:
            if self._left:
                return
            self._left = True
            if self._thread is not None and self._thread.is_alive():
                self._thread.leave(Purpose.LEAVE)
                self._thread.join(LEAVE_S)
            else:
                self._member.stop()

    # ---- State -----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state machine's state. Only after `join`."""
        assert self._thread is not None
        return self._thread.state

    @property
    def holds_lease(self) -> bool:
        """Whether the lease is valid, so that no other member can own this member's
        partitions now.
        """
        return self._member.gate.is_open

    @property
    def is_at_rest(self) -> bool:
        """Whether the member owns every partition that it can own now; others may still have to
        release some.
        """
        return self.holds_lease and self.state.phase in (Phase.SETTLED, Phase.WAITING)

    @property
    def is_settled(self) -> bool:
        """Whether the member owns its whole assignment."""
        return self.holds_lease and self.state.phase is Phase.SETTLED

    @property
    def changes(self) -> int:
        """The number of grants, release requests and withdrawals."""
        return sum(one.changes for one in self._threads.values())

    @property
    def idle_reason(self) -> str:
        """Why the member has no partition, or an empty text if that is unknown."""
        return next((one.idle_reason for one in self._threads.values() if one.idle_reason), "")

    def failure(self) -> Exception | None:
        """Return the next error that the member cannot repair; each error is returned once.

        If the member ended by itself, return the error that ended it, at every call.
        """
        for thread in self._threads.values():
            if thread.ended is not None:
                return thread.ended
            if thread.failures:
                return thread.failures.popleft()
        return None

    def brokers(self) -> Brokers:
        """Return the registered brokers, or none if they were not read yet."""
        return self._member.brokers()

    # ---- Batches ---------------------------------------------------------------------------------

    def served(self) -> dict[TopicPartition, ServedPartition]:
        """Return the partitions that may be planned."""
        return {tp: at for one in self._threads.values() for tp, at in one.served().items()}

    def reached(self) -> dict[TopicPartition, int | None]:
        """Return the owned partitions and the offset up to which batches were planned, or None if
        none is stored.
        """
        return {tp: at for one in self._threads.values() for tp, at in one.reached().items()}

    def place(self, tp: TopicPartition, known: ServedPartition, offset: int) -> None:
        """Continue at `offset` instead of the offset that `served` returned."""
        for thread in self._threads.values():
            thread.place(tp, known, offset)

    def reset(self, tp: TopicPartition, known: ServedPartition, offset: int, why: str) -> None:
        """Continue at `offset`, as `auto.offset.reset` requires. The next commit may lower the
        stored offset to it.
        """
        assert self._thread is not None
        # Report the reset before the new position is visible, as `consumer.stream_fetcher` does.
        report = StreamReport(
            ReportKind.POSITION_RESET, self.consumer_id, why, tp, known.epoch, offset
        )
        self._thread.stream_reported(report)
        self.place(tp, known, offset)

    def begin(self, ranges: Collection[OffsetRange]) -> list[OffsetRange]:
        """Start a batch of these ranges. Return those whose partitions are still served."""
        return sorted(one for held in self._threads.values() for one in held.begin(ranges))

    def finish(self, ends: Mapping[TopicPartition, int]) -> Future[None] | None:
        """Finish the batch that ends at these offsets. Return its commit, or None if it was
        finished before.
        """
        threads = self._threads.values()
        # Request the commit before waiting releases are answered, while the partitions are still
        # owned.
        commit = self.commit() if any([one.finish(ends) for one in threads]) else None
        for one in threads:
            one.answer_releases()
        return commit

    def cancel(self) -> None:
        """Drop batches that were planned and not finished: they will not be run."""
        for thread in self._threads.values():
            thread.cancel()

    def commit(self) -> Future[None]:
        """Store the finished positions soon. A failure is also logged."""
        assert self._thread is not None
        storage = self.config.storage
        return self._thread.commit(
            commit_requests.new_commit_request(None, retries=None, storage=storage)
        )

    # ---- operators' edits ------------------------------------------------------------------------

    def marked(self, tps: Collection[TopicPartition]) -> frozenset[TopicPartition] | None:
        """Return the partitions whose stored offset was last written by an operator's tool, or None
        if unknown.

        The tool writes the offset and creates a mark in one transaction, so the offset's mzxid
        equals a mark's czxid.
        """
        try:
            return self._member.session.run(
                read_edited(self.config.group_id, tps),
                limit_s=self.config.zookeeper_session_timeout_s,
            )
        except ZooKeeperUnreachableError:
            return None
