"""What one consumer thread id of a query holds: between the coordinator's thread and the query's.

In the library a stream stands here (`consumer.holdings.Outlet`). A ledger has no messages: it says
what may be planned, what is in flight, and what is finished. A position covers finished batches
only: what is in flight is never committed, at a hand-over or at the end either, and is then read
again by the partition's next owner.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from zkconsumer.consumer.holdings import Grant, Which
from zkconsumer.core.model import Position, TopicPartition
from zkconsumer.errors import ZkConsumerError
from zkconsumer.spark.ranges import OffsetRange


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

    def positions(self, which: Which) -> dict[TopicPartition, Position]:
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
            return {
                tp: one.until or one.offset for tp, one in self._held.items() if one.granted
            }

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
