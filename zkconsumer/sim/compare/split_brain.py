"""Split brain: deliveries and commits of cut-off members, and what each protocol refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.compare.zookeeper_group import ZOOKEEPER_GROUPS
from zkconsumer.sim.coordinated.stories import plan_for
from zkconsumer.sim.coordinated.world import CoordinatedWatcher, CoordinatedWorld
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.lessons import split_brain as on_zookeeper

MEMBERS, PARTITIONS = 4, 12
SPLIT_S = 90.0
"""Seconds for which two members' messages do not reach their coordinator: two session timeouts."""

FENCES = {
    "zookeeper-jvm": "ZooKeeper refuses a second claim, but nothing checks deliveries and commits",
    "zookeeper": "the lease ends deliveries before the session expires; commits check the owner",
    "classic-eager": "the coordinator refuses an old generation; deliveries end with its answer",
    "classic-cooperative": (
        "the coordinator refuses an old generation; deliveries end with its answer"
    ),
    "consumer": "the coordinator refuses an old member epoch; deliveries end with its answer",
}
"""Protocol -> the part of it that limits the harm by a member that has lost its partitions."""


@dataclass(frozen=True, slots=True)
class SplitBrainResult:
    """The result for one protocol: two of four members were cut off from their server.

    Attributes:
        refused: claims or commits that the servers refused.
        late: messages that a member delivered after another member had taken over the partition.
        moved_back: stored offsets that were lowered.
        redelivered: messages that were delivered again.
        fence: the part of the protocol that limits the harm.
    """

    protocol: str
    refused: int
    late: int
    moved_back: int
    redelivered: int
    fence: str


def split_brain(protocols: Sequence[str]) -> Iterator[SplitBrainResult]:
    """Cut off two members in a group of each protocol; yield the results."""
    rows = {}
    if set(protocols) & set(ZOOKEEPER_GROUPS):
        *_, lesson = on_zookeeper()
        rows = {str(row[0]): dict(zip(lesson.head, row, strict=True)) for row in lesson.rows}
    for protocol in protocols:
        if protocol in ZOOKEEPER_GROUPS:
            kind = "JVM" if protocol == "zookeeper-jvm" else "zkconsumer"
            row = rows[f"{kind}, cut-off server"]
            names = ("claims refused", "delivered after losing ownership")
            refused, late, back, again = (
                int(str(row[one])) for one in (*names, "offsets moved back", "redelivered")
            )
            yield SplitBrainResult(protocol, refused, late, back, again, FENCES[protocol])
        else:
            yield _coordinated(protocol)


class _SplitBrainCounter(CoordinatedWatcher):
    """Counts the deliveries and commits of the cut-off members."""

    def __init__(self) -> None:
        self.refused = self.late = self.moved_back = self.redelivered = 0
        self._ends: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        self.redelivered += message.offset < self._ends.get(message.tp, 0)
        self._ends[message.tp] = max(self._ends.get(message.tp, 0), message.offset + 1)
        known = world.known() or {}
        self.late += world.members[message.who].state.member not in known

    def answered(
        self, world: CoordinatedWorld, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        if not isinstance(request, msg.OffsetCommit):
            return
        self.refused += response.error is not Error.NONE
        if response.error is Error.NONE:
            for tp, stored in request.offsets.items():
                self.moved_back += stored.offset < self._stored.get(tp, 0)
                self._stored[tp] = stored.offset


def _coordinated(protocol: str) -> SplitBrainResult:
    counter = _SplitBrainCounter()
    plan = plan_for(protocol, {}, members=MEMBERS, partitions=PARTITIONS, messages=1)
    world = CoordinatedWorld(plan, counter)
    world.join(*range(MEMBERS))
    world.run(30.0)
    cut_off = range(MEMBERS // 2)
    for who in cut_off:
        world.hold(who)
    for _ in range(round(SPLIT_S)):
        world.produce()
        world.run(1.0)
    for who in cut_off:
        world.release(who)
    world.run(30.0)
    counts = counter.refused, counter.late, counter.moved_back, counter.redelivered
    return SplitBrainResult(protocol, *counts, FENCES[protocol])
