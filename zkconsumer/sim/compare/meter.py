"""Measure the costs of a script: which member delivers which partition, and when no member does.

A partition counts as unowned while it moves between two members, and while its member is dead or
frozen. A partition counts as stopped while a living member has stopped its delivery and delivers it
again later: this is the cost of a stop-the-world protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import TopicPartition

Serving = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of a script on one protocol.

    Attributes:
        protocol: the name of the protocol.
        moved: partitions that another member delivered afterwards.
        without_need: moved partitions beyond the minimum that a balanced assignment requires.
        unowned_s: partition-seconds in which no member delivered the partition, between two owners
            or while its owner was dead or frozen.
        stopped_s: partition-seconds in which a living member had stopped a partition that it then
            delivered again.
        server: which servers coordinate the group.
        requests: requests to these servers, heartbeats and pings included.
        notifications: watch events that these servers sent.
        bytes: the bytes of requests, responses and watch events.
        redelivered: messages that were delivered again.
        pause_s: the longest time for which a living member that had partitions delivered nothing.
        settled_s: the longest time from a step of the script until the group was settled.
        session_s: the session timeout of the members, in seconds.
    """

    protocol: str
    moved: int
    without_need: int
    unowned_s: float
    stopped_s: float
    server: str
    requests: int
    notifications: int
    bytes: int
    redelivered: int
    pause_s: float
    settled_s: float
    session_s: float


class Meter:
    """Measures one run; `observe` is called whenever something may have changed."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, int] = {}  # the last member that delivered a partition
        self.moved = self.redelivered = 0
        self.unowned_s = self.stopped_s = self.pause_s = 0.0
        self.changed_at = 0.0  # when a member last began to deliver a partition
        self._serving: dict[TopicPartition, int] = {}
        self._stopped: dict[TopicPartition, float] = {}
        # Partitions that stopped because their member died or froze.
        self._stopped_by_owner: set[TopicPartition] = set()
        self._idle: dict[int, float] = {}
        self._ends: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """Start to count, from the present members and their partitions."""
        self.moved = self.redelivered = 0
        self.unowned_s = self.stopped_s = self.pause_s = 0.0

    def observe(self, now: float, serving: Serving, away: Collection[int]) -> None:
        """Record which member delivers which partition; `away` are dead or frozen members."""
        if serving == self._serving and not away:
            return
        for tp in self._serving.keys() - serving.keys():
            self._stopped[tp] = now
        for tp, who in serving.items():
            if self._serving.get(tp) != who:
                self._starts(now, tp, who)
        self._stopped_by_owner |= {tp for tp in self._stopped if self.owners.get(tp) in away}
        self._pauses(now, serving, away)
        self._serving = dict(serving)

    def _starts(self, now: float, tp: TopicPartition, who: int) -> None:
        before = self.owners.get(tp)
        gap = now - self._stopped.pop(tp, now)
        if before is not None and before == who and tp not in self._stopped_by_owner:
            self.stopped_s += gap
        else:
            self.unowned_s += gap
        self.moved += before not in (None, who)
        self._stopped_by_owner.discard(tp)
        self.owners[tp] = who
        self.changed_at = now

    def _pauses(self, now: float, serving: Serving, away: Collection[int]) -> None:
        """Measure the pauses in which living members deliver nothing."""
        had, has = set(self._serving.values()), set(serving.values())
        for who in had - has:
            self._idle[who] = now
        for who in has & self._idle.keys():
            self.pause_s = max(self.pause_s, now - self._idle.pop(who))
        for who in away:
            if who in self._idle:
                self._idle[who] = now  # the pause of a frozen member begins when it thaws

    def delivered(self, tp: TopicPartition, offset: int) -> None:
        """Count a message that was delivered before."""
        self.redelivered += offset < self._ends.get(tp, 0)
        self._ends[tp] = max(self._ends.get(tp, 0), offset + 1)


def fewest_moves(
    owners: Mapping[TopicPartition, Hashable], group: Collection[Hashable], partitions: int
) -> int:
    """Return the fewest partitions that must change their owner for a balanced assignment."""
    if not group or not owners:
        return 0
    sizes = Counter(owner for owner in owners.values() if owner in group)
    share, extras = divmod(partitions, len(group))
    kept = 0
    for place, (_, size) in enumerate(sizes.most_common()):
        kept += min(size, share + (place < extras))
    return partitions - kept
