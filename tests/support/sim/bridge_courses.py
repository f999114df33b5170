"""Courses of a group that a bridge divides, each written for one rule of the bridge.

Random runs rarely reach these interleavings. A course raises `InvariantViolation` if a promise of
`sim.bridged.monitor` is broken. Mutants of `bridge_mutants` name the course that reveals them.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from zkconsumer.bridge import state as bridge
from zkconsumer.bridge.state import Goal, Stage
from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings, ClientState
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.bridged.monitor import BridgeMonitor, both_sides_settle
from zkconsumer.sim.bridged.world import BridgedPlan, BridgedWorld
from zkconsumer.sim.plan import Action, Do

STEPS = 5_000
"""Maximum number of moves until a condition holds."""

SETTLE_S = 60.0
"""Virtual seconds in which both sides settle."""


def first(moves: list[Action]) -> Action:
    """Choose the first move."""
    return moves[0]


def new_world(plan: BridgedPlan, *, is_calm: bool = True) -> BridgedWorld:
    """Return a world whose monitor checks the promises."""
    monitor = BridgeMonitor(is_calm=is_calm)
    world = BridgedWorld(plan, monitor.old, monitor.new)
    monitor.watch(world)
    return world


def settle(world: BridgedWorld) -> None:
    """Wait until both sides have settled, and deliver another message."""
    world.run(5.0, first)
    end = world.now + SETTLE_S
    while not world.settled() and world.now < end:
        world.run(1.0, first)
    world.produce()
    world.run(1.0, first)


def until(world: BridgedWorld, condition: Callable[[], bool]) -> None:
    """Let moves happen until a condition holds."""
    for _ in range(STEPS):
        if condition():
            return
        world.step(first)
    raise AssertionError(f"not within {STEPS} moves")


def shared(
    plan: BridgedPlan,
    *,
    late: Container[int] = (),
    late_new: Container[int] = (),
    is_calm: bool = True,
) -> BridgedWorld:
    """Return a world in which both sides have partitions.

    The old members in `late`, and the new ones in `late_new`, join later.
    """
    world = new_world(plan, is_calm=is_calm)
    for who in (one for one in range(plan.old) if one not in late):
        world.act(Action(Do.JOIN, who))
    world.run(10.0, first)
    world.start(0)
    world.run(5.0, first)
    for who in range(plan.bridges, plan.bridges + plan.new):
        if who not in late_new:
            world.order("join", who)
    settle(world)
    return world


def stored(world: BridgedWorld, tp: TopicPartition) -> int:
    """Return the offset in ZooKeeper."""
    reply = world.old.foreign(rq.Get(paths.offset(world.old.GROUP, tp)))
    return payloads.decode_offset(reply.value.data, where="")


def returning(world: BridgedWorld) -> TopicPartition:
    """Return the partition that is on its way to the old side."""
    held = world.bridge_state(0).held
    (tp,) = (tp for tp, one in held.items() if one.stage is not Stage.LENT)
    return tp


# ---- courses -------------------------------------------------------------------------------------


def early_offset() -> None:
    """A JVM member joins unplanned, reads an offset, and pauses before its claim. The bridge stores
    a higher offset meanwhile, but releases later, so the claim fails, and no message is
    redelivered."""
    world = shared(BridgedPlan(old=2, jvm=frozenset({1}), new=1), late=(1,))
    world.produce(3)
    world.run(1.0, first)
    world.act(Action(Do.JOIN, 1))
    until(world, lambda: _reads_offset(world, 1))
    world.act(Action(Do.SERVE, 1))
    world.act(Action(Do.FREEZE, 1))
    tp = returning(world)
    until(world, lambda: stored(world, tp) == world.log_end[tp])
    world.run(0.9, first)  # less than `Settings.claim_s`
    world.act(Action(Do.THAW, 1))
    settle(world)
    assert tp in world.old.members[1].feeds


def _reads_offset(world: BridgedWorld, who: int) -> bool:
    """Return whether a JVM member's next request reads the offset of a partition that the bridge
    owns."""
    held = {paths.offset(world.old.GROUP, tp) for tp in world.bridge_state(0).held}
    return any(
        isinstance(one, rq.Get) and one.path in held for _, one in world.old.jvm_member(who).wire
    )


def slow_new_member() -> None:
    """A JVM member joins while a new member does not poll, and gives up after four attempts. When
    the partition has returned, the bridge registers again, and so wakes the JVM member."""
    world = shared(BridgedPlan(old=2, jvm=frozenset({0, 1}), new=1), late=(1,))
    world.order("slow", 1)
    world.act(Action(Do.JOIN, 1))
    until(world, lambda: world.old.jvm_member(1).connector.gave_up)
    world.order("hurry", 1)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def late_commit_of_an_old_member() -> None:
    """A former owner commits a higher offset than the one that the bridge is about to store. The
    bridge compares, and does not lower the offset."""
    world = shared(BridgedPlan())
    tp = min(world.bridge_state(0).held)
    world.produce()
    until(world, lambda: world.bridge_state(0).held[tp].offset == world.log_end[tp])
    assert stored(world, tp) < world.log_end[tp]
    world.produce(2)
    path = paths.offset(world.old.GROUP, tp)
    world.old.foreign(rq.SetData(path, payloads.encode_offset(world.log_end[tp]), -1))
    settle(world)


def higher_offset_of_an_old_member() -> None:
    """An old member without a claim has committed a higher offset, and the bridge's consumer has
    noticed it. When the new side ends, the bridge returns the partition with the higher offset."""
    world = shared(BridgedPlan(new=1), is_calm=False)
    tp = min(world.bridge_state(0).held)
    world.order("freeze", 1)
    world.produce(2)
    data = payloads.encode_offset(world.log_end[tp])
    world.old.foreign(rq.SetData(paths.offset(world.old.GROUP, tp), data, -1))
    world.run(15.0, first)  # an automatic commit compares the stored offset
    until(world, lambda: tp not in world.bridge_state(0).held)
    assert stored(world, tp) == world.log_end[tp]


def late_commit_of_a_new_member() -> None:
    """A new member is frozen, an operator removes it, and another one continues from its offsets.
    When the first one wakes, its commit is refused."""
    world = shared(BridgedPlan(new=2, settings=_brief), is_calm=False)
    world.order("freeze", 1)
    world.order("remove", 1)
    world.run(3.0, first)
    world.produce(2)
    world.run(3.0, first)
    world.order("thaw", 1)
    settle(world)


def _brief(one: ClientSettings) -> ClientSettings:
    return replace(one, auto_commit_s=1.0, assignors=("range",))


def removed_member_returns() -> None:
    """A new member is removed. Before the coordinator has stored the next generation, another
    broker becomes the coordinator: the removed member is a member again, and reads until its next
    heartbeat. The bridge keeps its partitions until then, although an old member waits for them."""
    plan = BridgedPlan(old=2, new=2, partitions=6, settings=_unequal_heartbeats)
    world = shared(plan, late=(1,), is_calm=False)
    until(world, lambda: _waits_for_heartbeat(world.new.members[1].state.client))
    until(world, lambda: not _waits_for_heartbeat(world.new.members[1].state.client))
    coordinator = world.new.leader
    world.order("remove", 1)
    world.act(Action(Do.JOIN, 1))
    until(world, lambda: world.bridge_state(0).phase is ClassicPhase.COMPLETING)
    world.order("coordinate", 1 if coordinator == 0 else 0)
    for _ in range(10):
        world.produce()
        world.run(0.3, first)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def _unequal_heartbeats(one: ClientSettings) -> ClientSettings:
    """Let the second new member learn of a rebalance at once, and the first one later."""
    heartbeat_s = 0.2 if one.client == "new_1" else 3.0
    return replace(one, assignors=("range",), heartbeat_s=heartbeat_s)


def two_steps() -> None:
    """A member of a cooperative group stands still after it has joined. The partition that moves to
    a second member is assigned only after the first one has revoked it."""
    plan = BridgedPlan(old=1, new=2, partitions=6, settings=_cooperative)
    world = shared(plan, late_new=(2,), is_calm=False)
    world.order("join", 2)
    until(world, lambda: world.new.members[1].state.phase is ClassicPhase.PREPARING)
    world.order("freeze", 1)
    world.run(5.0, first)
    world.produce()
    world.run(1.0, first)
    world.order("thaw", 1)
    settle(world)
    assert all(one.fetching for one in world.new.members[1:])


def _cooperative(one: ClientSettings) -> ClientSettings:
    return replace(one, assignors=("cooperative-sticky",))


def return_in_two_steps() -> None:
    """A member of a cooperative group stands still between its join and its assignment. The bridge
    changes its consumers only after the member has revoked what the change takes away."""
    world = shared(BridgedPlan(old=1, new=1, partitions=6, settings=_cooperative), is_calm=False)
    _set_share(world, 0.75)
    settle(world)
    _set_share(world, 0.5)
    until(world, lambda: world.new.members[1].state.phase is ClassicPhase.COMPLETING)
    world.order("freeze", 1)
    world.run(5.0, first)
    world.order("thaw", 1)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def share_changes() -> None:
    """The operator lowers the share again while partitions return for the first change. The bridge
    changes its consumers only after the partitions of the last change have returned."""
    world = shared(BridgedPlan(old=1, new=1, partitions=6, prefix="-b"))
    _set_share(world, 0.8)
    settle(world)
    assert len(world.bridge_state(0).running) == 3
    world.order("slow", 1)
    for share in (0.67, 0.5):
        _set_share(world, share)
        world.run(3.0, first)
        world.produce()
    world.order("hurry", 1)
    settle(world)
    assert len(world.bridge_state(0).running) == 1
    both_sides_settle.check(world, SETTLE_S)


def _set_share(world: BridgedWorld, share: float) -> None:
    world.tell(0, lambda now: bridge.GoalChanged(now, Goal.RUN, share))
    world.run(0.1, first)


def reconnect() -> None:
    """A consumer's connection to ZooKeeper breaks while it waits until a new member has revoked a
    partition for an old one. It keeps the partition until then."""
    world = shared(BridgedPlan(old=2, new=1, settings=_unequal_heartbeats), late=(1,))
    world.act(Action(Do.JOIN, 1))
    until(world, lambda: any(one.asked for one in world.bridge_state(0).held.values()))
    (consumer,) = world.bridge_state(0).running
    world.act(Action(Do.CUT, world.plan.consumers(0)[consumer]))
    for _ in range(10):
        world.produce()
        world.run(0.3, first)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def limited_consumers() -> None:
    """A server of ZooKeeper limits the connections of the bridge's machine, so only one of its
    consumers registers. The bridge lends what this consumer owns."""
    world = shared(BridgedPlan(old=1, new=1, partitions=6, limit=1))
    _set_share(world, 0.75)
    settle(world)
    state = world.bridge_state(0)
    assert len(state.running) > len({one.consumer for one in state.held.values()}) == 1
    both_sides_settle.check(world, SETTLE_S)


def frozen_bridge() -> None:
    """A bridge has joined a rebalance, and is frozen until its sessions in ZooKeeper have ended. It
    is still a member of the brokers' group, and leads it. When it wakes, it assigns nothing that it
    has lost."""
    world = shared(BridgedPlan(), late_new=(2,), is_calm=False)
    world.order("join", 2)
    until(world, lambda: world.bridge_state(0).phase is ClassicPhase.PREPARING)
    world.freeze_bridge(0)
    world.run(15.0, first)
    assert not world.sessions_of(0)
    world.thaw_bridge(0)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def replaced_bridge() -> None:
    """A bridge is frozen until the brokers have removed it. It wakes, sends a heartbeat, and is
    frozen until a standby leads. When it wakes and learns that it was removed, it joins no more
    before it has looked at the lock. Otherwise both would end: the standby is fenced, and the first
    bridge has lost the lock."""
    world = shared(BridgedPlan(bridges=2, setup=takes_lead), is_calm=False)
    world.freeze_bridge(0)
    world.run(25.0, first)
    world.thaw_bridge(0)
    until(world, lambda: _waits_for_heartbeat(world.bridge_state(0).client))
    world.freeze_bridge(0)
    world.run(15.0, first)
    world.start(1)
    until(world, lambda: world.bridge_state(1).leads)
    world.thaw_bridge(0)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def elected_again() -> None:
    """The coordinator resigns, and is elected again between two heartbeats of a bridge that is
    alone in the brokers' group. The group's log names one assignor only. The bridge joins again
    within five minutes; then a new member that offers another assignor can join."""
    world = _alone()
    coordinator = world.new.leader
    assert coordinator is not None
    world.order("no_coordinator")
    world.order("coordinate", coordinator)
    world.run(300.0, first)
    world.order("revive", 1)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def other_coordinator() -> None:
    """Another broker becomes the coordinator while the bridge is alone in the brokers' group. The
    bridge joins again at once; then a new member that offers another assignor can join."""
    world = _alone()
    world.order("coordinate", 1 if world.new.leader == 0 else 0)
    world.run(3.0, first)
    world.order("revive", 1)
    settle(world)
    both_sides_settle.check(world, SETTLE_S)


def _alone() -> BridgedWorld:
    """Return a world in which the bridge is alone in both groups."""
    world = shared(BridgedPlan(old=1, new=1, settings=_sticky))
    world.order("leave", 1)
    world.act(Action(Do.LEAVE, 0))
    world.run(10.0, first)
    return world


def _sticky(one: ClientSettings) -> ClientSettings:
    return replace(one, assignors=("sticky",))


def _waits_for_heartbeat(client: ClientState) -> bool:
    """Return whether the answer to a heartbeat is due."""
    return any(isinstance(one.request, msg.Heartbeat) for one in client.sent.values())


def takes_lead(one: bridge.Settings) -> bridge.Settings:
    """Let a bridge remove the other members, as a standby does."""
    return replace(one, takes_lead=True)


COURSES: tuple[Callable[[], None], ...] = (
    early_offset,
    slow_new_member,
    late_commit_of_an_old_member,
    higher_offset_of_an_old_member,
    late_commit_of_a_new_member,
    removed_member_returns,
    two_steps,
    return_in_two_steps,
    share_changes,
    reconnect,
    limited_consumers,
    frozen_bridge,
    replaced_bridge,
    elected_again,
    other_coordinator,
)
"""All courses."""
