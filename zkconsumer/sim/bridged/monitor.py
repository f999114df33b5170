"""The promises of a group that a bridge divides, checked after every move of a joint world.

A bridge rules from its first assignment as the leader of the brokers' group until it dies or is
frozen, or until the coordinator removes it. The promises B1, B4, B5 and B8 hold for a bridge that
rules.

Two kinds of members are outside of a bridge's power. A new member that the coordinator has removed
delivers the batch that it holds. A JVM member delivers until it learns that its session has ended,
and its commits are unconditional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zkconsumer.bridge import shares
from zkconsumer.bridge import state as bridge
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import ClassicState
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.sim import world as old_world
from zkconsumer.sim.bridged.world import BridgedWorld
from zkconsumer.sim.coordinated import world as new_world
from zkconsumer.sim.kernel.promises import Promise, Reason, promise
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.plan import Action, Do
from zkconsumer.sim.znodes import ZnodeChange

# ---- promises ------------------------------------------------------------------------------------


@promise("B1")
def new_members_deliver_only_what_the_bridge_owns(
    monitor: BridgeMonitor, world: BridgedWorld, who: int, tp: TopicPartition
) -> Reason:
    """While a bridge rules, a new member delivers a partition only if a consumer of the bridge owns
    it in ZooKeeper. So no old member delivers it at the same time.

    A consumer may lose its session before the new members have revoked: another client has ended
    the session, or the new members did not answer. Cooperative members that the bridge has just
    begun to lead have not revoked, either. Until they have revoked, the promise does not hold. If
    nothing but ZooKeeper fails (`monitor.is_strict`), the bridge revokes before its lease ends, so
    the promise holds always.
    """
    if not monitor.rules(world) or not _is_current(world, who):
        return None
    owner = world.old.owner(tp)
    sessions = {
        world.old.links[one].session
        for number in range(world.plan.bridges)
        for one in world.plan.consumers(number)
    }
    if owner is not None and owner[1] in sessions:
        return None
    if tp in monitor.lost and not (monitor.is_strict or monitor.is_calm):
        return None
    return f"g_{who} delivers {tp}, which {owner[0] if owner else 'nobody'} owns in ZooKeeper"


@promise("B2")
def no_offset_goes_back(where: str, tp: TopicPartition, before: int, after: int) -> Reason:
    """Neither the bridge nor a new member lowers an offset, in ZooKeeper or in Kafka."""
    return f"{where}: {tp} goes back from {before} to {after}" if after < before else None


@promise("B3")
def nothing_is_skipped(tp: TopicPartition, end: int, offset: int) -> Reason:
    """On either side, a member skips no message that nobody has delivered."""
    return f"{tp} skips from {end} to {offset}" if offset > end else None


@promise("B4")
def consumers_change_last(world: BridgedWorld, number: int, change: frozenset[int]) -> Reason:
    """The bridge decides to change its consumers only when no new member delivers what the change
    takes away from them, as far as it has read the old group, and ZooKeeper has the offsets.

    A JVM member reads the offset before it claims, and gives up after four attempts. A bridge whose
    sessions have all ended changes nothing in ZooKeeper.
    """
    if not world.sessions_of(number):
        return None
    state = world.bridge_state(number)
    left = shares.leaving(shares.with_plan(state, change))
    reading = {
        tp
        for who, one in enumerate(world.new.members)
        if who >= world.plan.bridges and one.lives and _is_current(world, who)
        for tp in one.fetching
    }
    if found := sorted(left & reading):
        return f"the consumers become {sorted(change)} while {found[0]} is delivered"
    return None


@promise("B5")
def only_a_dead_bridge_is_replaced(world: BridgedWorld, number: int) -> Reason:
    """The coordinator fences a bridge only if its consumers' sessions have ended."""
    alive = world.sessions_of(number)
    if not alive or number in world.replaced:
        return None  # a bridge that wakes registers again, until it learns that it is replaced
    if not world.bridge_state(number).ended.endswith("FENCED_INSTANCE_ID"):
        return None
    return f"bridge {number} is fenced, while it has {len(alive)} sessions"


@promise("B6")
def both_sides_settle(world: BridgedWorld, seconds: float) -> Reason:
    """After the last fault both sides settle, and all messages are delivered."""
    if world.settled():
        return None
    active = world.active
    state = None if active is None else world.bridge_state(active)
    held = {} if state is None else {str(tp): one.stage.name for tp, one in state.held.items()}
    missing = {
        str(tp): (at, end)
        for tp, end in world.old.log_end.items()
        if (at := world.reading().get(tp)) != end
    }
    return f"after {seconds:g} s: missing {missing}, held {held}, {state and state.phase}"


@promise("B7")
def nothing_is_redelivered(tp: TopicPartition, end: int, offset: int) -> Reason:
    """If no process dies and no member is removed, no message is redelivered.

    In cooperative mode, Kafka's members redeliver what they deliver between the commit before they
    join and the revocation. So the promise holds for eager members. JVM members redeliver what
    other old members have delivered, because they read offsets before they claim. So if the group
    has JVM members, the promise holds for what new members have delivered first.
    """
    return f"{tp} at {offset} is redelivered" if offset < end else None


@promise("B8")
def one_new_member_delivers(world: BridgedWorld, who: int, tp: TopicPartition) -> Reason:
    """While a bridge rules, a partition has one deliverer among the members of the brokers' group.

    In cooperative mode, the bridge assigns a partition to another member only after the member that
    has it has revoked it and joined again.
    """
    known = world.new.known() or {}
    if world.new.members[who].state.member not in known:
        return None
    for other, one in enumerate(world.new.members):
        if other != who and one.lives and one.state.member in known and tp in one.fetching:
            return f"g_{who} delivers {tp}, which g_{other} has not revoked"
    return None


@promise("B9")
def a_bridge_assigns_what_it_owns(
    monitor: BridgeMonitor, world: BridgedWorld, number: int, tp: TopicPartition
) -> Reason:
    """A bridge assigns only partitions that its consumers own in ZooKeeper, also after it was
    frozen for longer than its sessions.

    If another client has taken a partition away, the promise does not hold until the bridge knows
    it (see `monitor.taken`).
    """
    owner = world.old.owner(tp)
    if owner is not None and owner[1] in world.sessions_of(number):
        return None
    if tp in monitor.taken and tp in world.bridge_state(number).held:
        return None
    return f"bridge {number} assigns {tp}, which {owner[0] if owner else 'nobody'} owns"


PROMISES: Final[tuple[Promise[...], ...]] = (
    new_members_deliver_only_what_the_bridge_owns,
    no_offset_goes_back,
    nothing_is_skipped,
    consumers_change_last,
    only_a_dead_bridge_is_replaced,
    both_sides_settle,
    nothing_is_redelivered,
    one_new_member_delivers,
    a_bridge_assigns_what_it_owns,
)


def _is_current(world: BridgedWorld, who: int) -> bool:
    """Return whether the coordinator knows a new member in its generation."""
    known = world.new.known() or {}
    state = world.new.members[who].state
    assert isinstance(state, ClassicState)
    return known.get(state.member) is not None and state.generation == known[state.member]


# ---- the monitor ---------------------------------------------------------------------------------


class BridgeMonitor:
    """Raises `InvariantViolation` when a promise is broken.

    Attributes:
        old, new: the watchers of both sides.
        is_strict: whether only the bridge's connection to ZooKeeper fails in this run.
        is_calm: whether no process dies and no member is removed in this run.
        ends: partition -> the offset after the last message that a user got.
        lost: partitions whose consumer has lost them, or which new members had before the bridge
            led them, until the new members have revoked them.
        taken: partitions that another client has taken away from a bridge's consumer, until the
            consumer of a bridge claims them again: the client has deleted the owner znode, or ended
            the consumer's session.
        deliveries, duplicates, rebalances: the counts of the run.
        handed_over: partitions that have become the bridge's, and partitions that were its.
    """

    def __init__(self, *, is_strict: bool = False, is_calm: bool = False) -> None:
        self.is_strict, self.is_calm = is_strict, is_calm
        self.world: BridgedWorld | None = None
        self.old, self.new = _OldWatcher(self), _NewWatcher(self)
        self.ends: dict[TopicPartition, int] = {}
        self._new_first: dict[TopicPartition, set[int]] = {}
        self.lost: set[TopicPartition] = set()
        self.taken: set[TopicPartition] = set()
        self.deliveries = self.duplicates = self.rebalances = 0
        self.handed_over = [0, 0]
        self._kafka: dict[TopicPartition, int] = {}
        self._seen = 0

    def watch(self, world: BridgedWorld) -> None:
        """Check this world's bridges and members from now on."""
        self.world = world

    def rules(self, world: BridgedWorld) -> bool:
        """Return whether the active bridge rules the brokers' group."""
        if world.active is None or not world.new.members[world.active].acts:
            return False
        state = world.bridge_state(world.active)
        known = world.new.known()
        return state.occupied is not None and known is not None and state.member in known

    def delivered(self, message: Delivered) -> None:
        """Check a message that a user of either side has got."""
        assert self.world is not None
        tp, end = message.tp, self.ends.get(message.tp, 0)
        nothing_is_skipped.check(tp, end, message.offset)
        self.deliveries += 1
        self.duplicates += message.offset < end
        has_jvm, new_first = bool(self.world.plan.jvm), self._new_first.get(tp, ())
        if self.is_calm and (not has_jvm or message.offset in new_first):
            nothing_is_redelivered.check(tp, end, message.offset)
        self.ends[tp] = max(end, message.offset + 1)

    def decided(self, number: int, commands: Sequence[ev.Command]) -> None:
        """Check the commands that a bridge has just decided, with what it knows now."""
        if self.world is None or number >= self.world.plan.bridges:
            return
        for command in commands:
            self._decided(self.world, number, command)

    def _decided(self, world: BridgedWorld, number: int, command: ev.Command) -> None:
        if isinstance(command, bridge.RunConsumers) and self.rules(world):
            consumers_change_last.check(world, number, command.consumers)
        if isinstance(command, bridge.BridgeEnded):
            only_a_dead_bridge_is_replaced.check(world, number)
        if isinstance(command, ev.Send) and isinstance(command.request, msg.SyncGroup):
            self._begins_to_lead(world, number)
            for assignment in command.request.assignments.values():
                for tp in decode_assignment(assignment)[0]:
                    a_bridge_assigns_what_it_owns.check(self, world, number, tp)

    def _begins_to_lead(self, world: BridgedWorld, number: int) -> None:
        """Note what cooperative members continue to deliver until they learn their assignment."""
        state = world.bridge_state(number)
        if state.occupied is None and state.joined is not None:
            sessions = set(world.sessions_of(number))
            for tp in state.joined:
                owner = world.old.owner(tp)
                if owner is None or owner[1] not in sessions:
                    self.lost.add(tp)

    def new_delivered(self, message: Delivered) -> None:
        """Check a message that a new member has delivered."""
        assert self.world is not None
        tp = message.tp
        new_members_deliver_only_what_the_bridge_owns.check(self, self.world, message.who, tp)
        if self.rules(self.world):
            one_new_member_delivers.check(self.world, message.who, tp)
        if message.offset == self.ends.get(tp, 0):
            self._new_first.setdefault(tp, set()).add(message.offset)
        self.delivered(message)

    def stored_in_kafka(self, request: msg.OffsetCommit) -> None:
        """Check a commit that the coordinator has stored."""
        for tp, one in request.offsets.items():
            no_offset_goes_back.check("Kafka", tp, self._kafka.get(tp, 0), one.offset)
            self._kafka[tp] = one.offset

    def old_acted(self, action: Action) -> None:
        """Check what has been written to ZooKeeper since the last call; `action` was the last."""
        world = self.world
        if world is None:
            return
        history = world.old.zookeeper.history
        first, self._seen = self._seen, len(history)
        for entry in history[first:]:
            self._written(world, entry, is_ended=action.do is Do.EXPIRE)
        if self.lost and world.active is not None:
            occupied = world.bridge_state(world.active).occupied
            if occupied is not None:
                self.lost &= occupied

    def _written(self, world: BridgedWorld, entry: ZnodeChange, *, is_ended: bool) -> None:
        at = paths.locate(entry.path)
        who = _member_of(world, entry.session)
        if at.kind is ZnodeKind.OFFSET and who is not None and who >= world.plan.old:
            before, after = _offset(entry.old), _offset(entry.new)
            tp = TopicPartition(at.name, at.partition)
            no_offset_goes_back.check("ZooKeeper", tp, before, after)
        if at.kind is ZnodeKind.OWNER:
            tp = TopicPartition(at.name, at.partition)
            if entry.new is not None:
                if _is_of_bridge(world, entry.session):
                    self.handed_over[0] += 1
                    self.taken.discard(tp)
            elif entry.old is not None and _is_of_bridge(world, entry.old.stat.owner):
                self.handed_over[1] += 1
                if is_ended or entry.session != entry.old.stat.owner:
                    self.taken.add(tp)
                if not _is_returned(world, tp):
                    self.lost.add(tp)


def _is_returned(world: BridgedWorld, tp: TopicPartition) -> bool:
    """Return whether the active bridge knows that no new member reads a partition any more."""
    if world.active is None:
        return False
    held = world.bridge_state(world.active).held.get(tp)
    return held is not None and held.stage is bridge.Stage.RETURNED


def _offset(node: rq.Node | None) -> int:
    return 0 if node is None else payloads.decode_offset(node.data, where="")


def _member_of(world: BridgedWorld, session: int) -> int | None:
    return next((who for who, one in enumerate(world.old.links) if one.session == session), None)


def _is_of_bridge(world: BridgedWorld, session: int) -> bool:
    who = _member_of(world, session)
    return who is not None and who >= world.plan.old


class _OldWatcher(old_world.Watcher):
    def __init__(self, monitor: BridgeMonitor) -> None:
        self._monitor = monitor

    def delivered(self, world: old_world.World, message: Delivered) -> None:
        self._monitor.delivered(message)

    def acted(self, world: old_world.World, action: Action) -> None:
        self._monitor.old_acted(action)


class _NewWatcher(new_world.CoordinatedWatcher):
    def __init__(self, monitor: BridgeMonitor) -> None:
        self._monitor = monitor

    def delivered(self, world: new_world.CoordinatedWorld, message: Delivered) -> None:
        self._monitor.new_delivered(message)

    def transition(
        self, world: new_world.CoordinatedWorld, step: new_world.MemberTransition
    ) -> None:
        self._monitor.decided(step.who, step.commands)

    def answered(
        self,
        world: new_world.CoordinatedWorld,
        who: int,
        request: msg.Request,
        response: msg.Response,
    ) -> None:
        if isinstance(request, msg.OffsetCommit) and response.error is Error.NONE:
            self._monitor.stored_in_kafka(request)
        if isinstance(request, msg.SyncGroup) and response.error is Error.NONE:
            self._monitor.rebalances += 1
