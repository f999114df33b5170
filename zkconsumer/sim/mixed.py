"""Groups of our members and JVM members, and what is promised in them.

The JVM members' own behaviour is theirs. What their zombies may do, and so is not checked of them:

- I2, I3: one that has not heard of its session's end goes on delivering what others own by then;
- I7: its commits are unconditional, so that it moves offsets back, and over an operator's edit;
- I8: and over what an owner has stored; and it deletes owner znodes that are others' by then;
- I12: after four attempts it is idle, with its share of the partitions, until the next change.

What is checked of them: claims are ephemeral and their own (I1), nothing is skipped (I5), nothing
is committed that was not handed out (I6), and delivery stops before a release (I9). Of our members
everything is, but for partitions whose owner znode a JVM member has deleted under them (they stop
when they are told), and for duplicates, since a JVM member reads offsets before it claims. And
whatever the JVM members have done: when they are gone, ours serve everything again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from zkconsumer.core.model import TopicPartition
from zkconsumer.core.registrations import Pattern
from zkconsumer.sim.jvm import JvmMember
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.monitor import Monitor, Scene
from zkconsumer.sim.plan import Action, Delivered, Do, InvariantViolation, Plan
from zkconsumer.sim.swarm import Decisions, Result, choose, draw_plan, heal, settle
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import Change
from zkconsumer.zk import requests as rq

SLOWNESS = 6
"""A JVM member takes so many times the requests of ours for a rebalance, one after the other: runs
are longer, and faults rarer, by as much."""


class MixedWorld(World):
    """A world in which some members are JVM members; it cannot be copied."""

    def __init__(self, plan: Plan, watcher: Watcher | None = None, *, jvm: frozenset[int]) -> None:
        super().__init__(plan, watcher)
        self.jvm = jvm
        for who in jvm:
            settings = self.members[who].settings
            # The model of the JVM member knows topics by their names.
            streams = max(settings.subscription.values())
            static = replace(
                settings, subscription={self.TOPIC: streams}, pattern=Pattern.STATIC
            )
            member = JvmMember(static, self._entered)
            # To a world the two are the same; what only ours have, only our monitors look at.
            self.members[who] = cast(SimMember, member)

    def _entered(self, member: JvmMember, phase: str, text: str) -> None:
        who = int(member.name.rpartition("_")[2])
        self.watcher.entered(self, who, phase, text)

    def jvm_member(self, who: int) -> JvmMember:
        return cast(JvmMember, self.members[who])

    def copy(self, watcher: Watcher) -> World:
        raise TypeError("a JVM member's programs cannot be copied")


class MixedMonitor(Monitor):
    """Checks what is promised in a mixed group; see the module."""

    JUDGES_COMMITS = False
    """A JVM member releases a partition without a commit when its session has ended."""

    def __init__(self, jvm: frozenset[int]) -> None:
        super().__init__(harmed=True)
        self._jvm = jvm

    def delivered(self, world: Scene, message: Delivered) -> None:
        if message.who not in self._jvm:
            super().delivered(world, message)
            return
        tp, prefix = message.tp, self.prefix.get(message.tp, 0)
        if message.offset > prefix:
            raise InvariantViolation("I5", f"{tp} skips from {prefix} to {message.offset}: lost")
        self.deliveries += 1
        self.duplicates += message.offset < prefix
        self.prefix[tp] = max(prefix, message.offset + 1)
        self.edited.pop(tp, None)  # it may read on from an edit, and may not: nobody promises

    def served(self, world: World, who: int, request: rq.Request, reply: rq.Reply | None) -> None:
        if who not in self._jvm:
            super().served(world, who, request, reply)

    def _is_on_time(self, world: World, who: int) -> None:
        if who not in self._jvm:
            super()._is_on_time(world, who)

    def _too_late(self, world: Scene, who: int, tp: TopicPartition) -> bool:
        return who not in self._jvm and super()._too_late(world, who, tp)

    def _released(self, world: Scene, who: int, tp: TopicPartition, entry: Change) -> None:
        foreign = entry.old is not None and entry.old.stat.owner != entry.session
        if who in self._jvm and foreign:
            self.by_hand.add(tp)
        else:
            super()._released(world, who, tp, entry)

    def _offset_written(
        self, world: Scene, who: int, tp: TopicPartition, data: bytes | None
    ) -> None:
        if who not in self._jvm:
            super()._offset_written(world, who, tp, data)
            return
        if int(data or 0) > self.prefix.get(tp, 0):
            raise InvariantViolation("I6", f"{tp} committed {data!r}, not all handed out")
        self.edited.pop(tp, None)  # its next commit writes over an operator's edit
        super()._offset_written(world, -1, tp, data)


def run(decide: Decisions) -> Result:
    """A swarm run of a mixed group: safety; then the JVM members go, and ours must converge."""
    plan, length, rarity = draw_plan(decide)
    length, rarity = length * SLOWNESS, rarity * SLOWNESS
    ours = 1 + decide(plan.members)
    jvm = frozenset(range(ours, plan.members))
    monitor = MixedMonitor(jvm)
    world = MixedWorld(plan, monitor, jvm=jvm)
    actions = 0
    violation = None
    try:
        while actions < length and (available := world.enabled()):
            world.act(choose(world, available, decide, rarity))
            actions += 1
        heal(world, decide)
        for who in jvm:
            world.links[who].joined = True
            if not world.links[who].dead:
                world.act(Action(Do.KILL, who))
        actions += settle(world, monitor, decide)
    except InvariantViolation as found:
        violation = found
    return Result(
        tuple(decide.taken), actions, monitor.deliveries, monitor.duplicates, monitor.rebalances,
        violation,
    )
