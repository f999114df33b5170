"""The promises of a coordinated group, checked after every event of a simulated world.

- C1: in one generation, or under the members' current epochs, a partition is assigned to at most
  one member.
- C2: of the members that deliver one partition at the same time, the coordinator knows at most one.
  The others are zombies: a fenced member may deliver until it learns that it is fenced.
- C3: the coordinator stores offsets only for a member that it knows, in the member's generation or
  epoch.
- C4: a member delivers a partition from its stored offset without a gap.
- C5: only delivered messages are committed.
- C6: a stored offset is never lowered.
- C7: after the last fault the group settles: each partition is delivered by one member, and all
  messages are delivered.

A zombie can still do harm: it delivers messages that another member delivers, too. But the
coordinator refuses the zombie's commits (C3). ZooKeeper could not refuse a zombie's commits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

from zkconsumer.later import member_events as ev
from zkconsumer.later.consumer_member import State as ConsumerState
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.coordinated.world import AnyState, Watcher, World
from zkconsumer.sim.kernel.world import Delivered, InvariantViolation


class Monitor(Watcher):
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

    def copy(self) -> Monitor:
        """Return a monitor that continues where this one is."""
        twin = copy.copy(self)
        twin.ends, twin.stored = self.ends.copy(), self.stored.copy()
        twin.assigned = self.assigned.copy()
        return twin

    def transition(
        self,
        world: World,
        who: int,
        before: AnyState,
        event: ev.Event,
        commands: Iterable[ev.Command],
    ) -> None:
        for command in commands:
            match command:
                case ev.StartFetching(positions):
                    self._starts(positions)
                case ev.Call(ev.Callback.ASSIGNED):
                    self.rebalances += 1

    def _starts(self, positions: Mapping[TopicPartition, int | None]) -> None:
        for tp, offset in positions.items():
            if (offset or 0) > self.ends.get(tp, 0):
                raise InvariantViolation("C4", f"{tp} starts at {offset}: messages are skipped")

    def delivered(self, world: World, message: Delivered) -> None:
        end = self.ends.get(message.tp, 0)
        if message.offset > end:
            raise InvariantViolation("C4", f"{message.tp} skips from {end} to {message.offset}")
        self.deliveries += 1
        self.duplicates += message.offset < end
        self.ends[message.tp] = max(end, message.offset + 1)

    def answered(
        self, world: World, who: int, request: msg.Request, response: msg.Response
    ) -> None:
        match request, response:
            case msg.OffsetCommit(), msg.OffsetsCommitted():
                self._committed(world, request, response.error)
            case msg.SyncGroup(), msg.Synced(error=Error.NONE):
                partitions, _ = decode_assignment(response.assignment)
                who_has = request.instance or request.member
                self._give(request.generation, who_has, frozenset(partitions))

    def _give(self, generation: int, member: str, partitions: frozenset[TopicPartition]) -> None:
        """C1: record the assignment of a member in a generation.

        A static member gets another member id when it restarts, so its instance id identifies it.
        """
        if generation != self.generation:
            self.generation, self.assigned = generation, {}
        for tp in partitions:
            other = self.assigned.setdefault(tp, member)
            if other != member:
                raise InvariantViolation("C1", f"{tp} is assigned to {other} and to {member}")

    def _committed(self, world: World, request: msg.OffsetCommit, error: Error) -> None:
        if error is not Error.NONE:
            self.refused += 1
            return
        known = world.known() or {}
        if known.get(request.member) != request.generation:
            text = f"{request.member or 'a stranger'} commits in {request.generation}: {known}"
            raise InvariantViolation("C3", text)
        for tp, stored in request.offsets.items():
            if stored.offset > self.ends.get(tp, 0):
                raise InvariantViolation("C5", f"{tp} at {stored.offset} is committed too early")
            if stored.offset < self.stored.get(tp, 0):
                raise InvariantViolation("C6", f"{tp} goes back to {stored.offset}")
            self.stored[tp] = stored.offset

    def moved(self, world: World, broker: int | None) -> None:
        """Record that a new coordinator has started.

        It continues from the stored state, which may have an earlier generation.
        """
        self.generation, self.assigned = -1, {}

    def acted(self, world: World) -> None:
        """C2: look for partitions that two members deliver."""
        known = world.known()
        if known is None:
            return
        if not known:  # no assignment is in force; a group that was deleted counts again from 1
            self.generation, self.assigned = -1, {}
        for tp, members in world.serving().items():
            if len(members) < 2:
                continue
            current = [who for who in members if _is_current(world, who, known)]
            if len(current) > 1:
                names = [world.members[who].name for who in current]
                raise InvariantViolation("C2", f"{tp} is delivered by {' and '.join(names)}")

    def check_rest(self, world: World, seconds: float) -> None:
        """C7: check that the group has settled within the time allowed for it."""
        if not world.settled():
            states = [f"{one.name} {one.state.phase.value}" for one in world.members if one.lives]
            text = f"after {seconds:g} s: {', '.join(states)}; coordinator {world.known()}"
            raise InvariantViolation("C7", text)


def _is_current(world: World, who: int, known: dict[str, int]) -> bool:
    """Return whether the coordinator knows a member under its present member id.

    A static member that did not join in time stays in the group, but its generation is fenced.
    """
    state = world.members[who].state
    if isinstance(state, ConsumerState):
        return state.member in known and state.epoch > 0
    if state.settings.instance is not None:
        return bool(known.get(state.member) == state.generation)
    return state.member in known and state.generation >= 0
