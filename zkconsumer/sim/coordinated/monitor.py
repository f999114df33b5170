"""The promises of a coordinated group, checked after every event of a simulated world.

docs/later.md explains the promises by number. A fenced member may deliver until it learns that it
is fenced; until then it is a zombie. A zombie can still do harm: it delivers messages that another
member delivers, too. But the coordinator refuses the zombie's commits (C3). ZooKeeper could not
refuse a zombie's commits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Final

from zkconsumer.later import member_events as ev
from zkconsumer.later.consumer_member import ConsumerState
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.coordinated.world import CoordinatedWatcher, CoordinatedWorld, MemberTransition
from zkconsumer.sim.kernel.promises import Promise, Reason, promise
from zkconsumer.sim.kernel.world import Delivered

# ---- promises ------------------------------------------------------------------------------------


@promise("C1")
def assigned_to_one_member(
    monitor: CoordinatedMonitor, member: str, partitions: Iterable[TopicPartition]
) -> Reason:
    """In one generation, a partition is assigned to at most one member."""
    for tp in partitions:
        other = monitor.assigned.get(tp, member)
        if other != member:
            return f"{tp} is assigned to {other} and to {member}"
    return None


@promise("C2")
def only_zombies_deliver_too(world: CoordinatedWorld) -> Reason:
    """Of the members that deliver one partition at a time, the coordinator knows at most one."""
    known = world.known()
    if known is None:
        return None
    for tp, members in world.serving().items():
        if len(members) < 2:
            continue
        current = [who for who in members if _is_current(world, who, known)]
        if len(current) > 1:
            names = [world.members[who].name for who in current]
            return f"{tp} is delivered by {' and '.join(names)}"
    return None


@promise("C3")
def only_known_members_commit(world: CoordinatedWorld, request: msg.OffsetCommit) -> Reason:
    """The coordinator stores offsets only for a known member, in its generation or epoch."""
    known = world.known() or {}
    if known.get(request.member) == request.generation:
        return None
    return f"{request.member or 'a stranger'} commits in {request.generation}: {known}"


@promise("C4")
def starts_without_a_gap(monitor: CoordinatedMonitor, tp: TopicPartition, offset: int) -> Reason:
    """A member starts at the stored offset or below it."""
    if offset <= monitor.ends.get(tp, 0):
        return None
    return f"{tp} starts at {offset}: messages are skipped"


@promise("C4")
def delivers_without_a_gap(monitor: CoordinatedMonitor, message: Delivered) -> Reason:
    """A member skips no message."""
    end = monitor.ends.get(message.tp, 0)
    return f"{message.tp} skips from {end} to {message.offset}" if message.offset > end else None


@promise("C5")
def commits_only_what_is_delivered(
    monitor: CoordinatedMonitor, tp: TopicPartition, offset: int
) -> Reason:
    """Only delivered messages are committed."""
    if offset <= monitor.ends.get(tp, 0):
        return None
    return f"{tp} at {offset} is committed too early"


@promise("C6")
def never_lowers_an_offset(monitor: CoordinatedMonitor, tp: TopicPartition, offset: int) -> Reason:
    """A stored offset is never lowered."""
    return f"{tp} goes back to {offset}" if offset < monitor.stored.get(tp, 0) else None


@promise("C7")
def group_settles(world: CoordinatedWorld, seconds: float) -> Reason:
    """After the last fault the group settles, and all messages are delivered."""
    if world.settled():
        return None
    states = [f"{one.name} {one.state.phase.value}" for one in world.members if one.lives]
    return f"after {seconds:g} s: {', '.join(states)}; coordinator {world.known()}"


PROMISES: Final[tuple[Promise[...], ...]] = (
    assigned_to_one_member,
    only_zombies_deliver_too,
    only_known_members_commit,
    starts_without_a_gap,
    delivers_without_a_gap,
    commits_only_what_is_delivered,
    never_lowers_an_offset,
    group_settles,
)


def _is_current(world: CoordinatedWorld, who: int, known: dict[str, int]) -> bool:
    """Return whether the coordinator knows a member under its present member id.

    A static member that did not join in time stays in the group, but its generation is fenced.
    """
    state = world.members[who].state
    if isinstance(state, ConsumerState):
        return state.member in known and state.epoch > 0
    if state.settings.instance is not None:
        return bool(known.get(state.member) == state.generation)
    return state.member in known and state.generation >= 0


# ---- the judge -----------------------------------------------------------------------------------


class CoordinatedMonitor(CoordinatedWatcher):
    """Raises `InvariantViolation` when a promise is broken.

    Attributes:
        deliveries: number of messages that users got; `duplicates`: of these, messages delivered
            again.
        refused: commits that the coordinator refused.
        rebalances: assignments that members have applied.
        ends: partition -> the offset after the last message that a user got.
        stored: partition -> the last stored offset.
        assigned: partition -> the member that it is assigned to in `generation`.
    """

    def __init__(self) -> None:
        self.deliveries = self.duplicates = self.refused = self.rebalances = 0
        self.ends: dict[TopicPartition, int] = {}
        self.stored: dict[TopicPartition, int] = {}
        self.assigned: dict[TopicPartition, str] = {}
        self.generation = -1

    def copy(self) -> CoordinatedMonitor:
        """Return a monitor that continues where this one is."""
        twin = copy.copy(self)
        twin.ends, twin.stored = self.ends.copy(), self.stored.copy()
        twin.assigned = self.assigned.copy()
        return twin

    def transition(self, world: CoordinatedWorld, step: MemberTransition) -> None:
        for command in step.commands:
            match command:
                case ev.StartFetching(positions):
                    for tp, offset in positions.items():
                        starts_without_a_gap.check(self, tp, offset or 0)
                case ev.CallListener(ev.Callback.ASSIGNED):
                    self.rebalances += 1

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        delivers_without_a_gap.check(self, message)
        end = self.ends.get(message.tp, 0)
        self.deliveries += 1
        self.duplicates += message.offset < end
        self.ends[message.tp] = max(end, message.offset + 1)

    def answered(
        self, world: CoordinatedWorld, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        match request, response:
            case msg.OffsetCommit(), msg.OffsetsCommitted():
                self._committed(world, request, response.error)
            case msg.SyncGroup(), msg.Synced(error=Error.NONE):
                partitions, _ = decode_assignment(response.assignment)
                who_has = request.instance or request.member
                self._give(request.generation, who_has, frozenset(partitions))

    def _give(self, generation: int, member: str, partitions: frozenset[TopicPartition]) -> None:
        """Record the assignment of a member in a generation.

        A static member gets another member id when it restarts, so its instance id identifies it.
        """
        if generation != self.generation:
            self.generation, self.assigned = generation, {}
        assigned_to_one_member.check(self, member, partitions)
        self.assigned.update(dict.fromkeys(partitions, member))

    def _committed(self, world: CoordinatedWorld, request: msg.OffsetCommit, error: Error) -> None:
        if error is not Error.NONE:
            self.refused += 1
            return
        only_known_members_commit.check(world, request)
        for tp, stored in request.offsets.items():
            commits_only_what_is_delivered.check(self, tp, stored.offset)
            never_lowers_an_offset.check(self, tp, stored.offset)
            self.stored[tp] = stored.offset

    def moved(self, world: CoordinatedWorld, broker: int | None) -> None:
        """Record that a new coordinator has started.

        It continues from the stored state, which may have an earlier generation.
        """
        self.generation, self.assigned = -1, {}

    def acted(self, world: CoordinatedWorld) -> None:
        if world.known() == {}:
            # No assignment is in force; a group that was deleted counts again from 1.
            self.generation, self.assigned = -1, {}
        only_zombies_deliver_too.check(world)

    def check_rest(self, world: CoordinatedWorld, seconds: float) -> None:
        """Check that the group has settled within the time allowed for it."""
        group_settles.check(world, seconds)
