"""Mixed groups: zkconsumer members keep their promises in a group with JVM members."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from zkconsumer.member import commands as cmd
from zkconsumer.member.phases import Phase
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import JsonObject, TopicPartition
from zkconsumer.protocol.requests import Code
from zkconsumer.sim.jvm_member import JvmMember, MixedMonitor, MixedWorld, run
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Do, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ZooKeeperDirector
from zkconsumer.sim.world import MemberTransition, Watcher, Watchers, World

SEEDS = range(40)


def group(*jvm: int, members: int = 2, backoff_s: float = 2.0) -> ZooKeeperDirector:
    """A mixed group in a simulated world, with the monitor of the world."""
    plan = Plan(
        members=members,
        partitions=4,
        messages=3,
        settings=lambda one: replace(one, backoff_s=backoff_s),
    )
    recorder = Recorder(lambda entry: None)
    monitor = MixedMonitor(frozenset(jvm))
    world = MixedWorld(plan, Watchers(recorder, monitor), jvm=frozenset(jvm))
    return ZooKeeperDirector(world, recorder)


def member(on: ZooKeeperDirector, who: int) -> JvmMember:
    assert isinstance(on.world, MixedWorld)
    return on.world.jvm_member(who)


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_groups(seed: int) -> None:
    """For every seed, zkconsumer members keep their promises in a group with JVM members."""
    result = run(Decisions(random.Random(seed)))
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_a_jvm_peer_joins_and_leaves() -> None:
    """Members of both kinds compute the same assignment and hand over partitions to each other."""
    on = group(1)
    on.join(0)
    on.rest()
    on.join(1)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1)) == (2, 2)
    on.do(Do.LEAVE, 1)
    on.produce(1)
    on.rest()
    assert on.owned_by(0) == 4


def test_a_jvm_peer_gives_up_and_is_woken() -> None:
    """A JVM member gives up after four attempts; the next change of the group restarts it."""
    on = group(1, members=3, backoff_s=0.5)
    on.join(0)
    on.rest()
    on.do(Do.FREEZE, 0)
    on.join(1)
    on.until(lambda: member(on, 1).connector.gave_up, "giving up")
    assert member(on, 1).connector.failed_attempts == 4
    on.do(Do.THAW, 0)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1)) == (2, 0)
    on.join(2)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1), on.owned_by(2)) == (2, 1, 1)


class Nudges(Watcher):
    """Counts a member's nudges, registrations, readings, and reported losses."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def transition(self, world: World, step: MemberTransition) -> None:
        for one in step.commands:
            name = one.kind.name if isinstance(one, cmd.Notice) else type(one).__name__
            self.seen[name] += step.who == 0


@pytest.mark.parametrize("foreign", [False, True])
def test_a_nudge_is_no_loss(foreign: bool) -> None:
    """A nudge wakes an idle JVM member without a reported loss; a deleted id is registered."""
    nudges = Nudges()
    plan = Plan(
        members=2,
        partitions=4,
        messages=3,
        settings=lambda one: replace(one, backoff_s=0.5, nudge_s=5.0),
    )
    recorder, jvm = Recorder(lambda entry: None), frozenset({1})
    world = MixedWorld(plan, Watchers(recorder, MixedMonitor(jvm), nudges), jvm=jvm)
    on = ZooKeeperDirector(world, recorder)
    on.join(0)
    on.rest()
    on.do(Do.FREEZE, 0)
    on.join(1)
    on.until(lambda: member(on, 1).connector.gave_up, "giving up")
    on.do(Do.THAW, 0)
    on.until(lambda: nudges.seen["Nudge"], "a nudge")
    if foreign:
        on.until(lambda: world.members[0].state.phase is Phase.READING, "the nudge's reply")
        on.do(Do.DELETE_ID, 0)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1)) == (2, 2)
    assert nudges.seen["Nudge"] == 1
    assert nudges.seen["Register"] == (2 if foreign else 1)
    if not foreign:
        assert nudges.seen["OWNERSHIP_LOST"] == 0


def test_partitions_that_are_released_late_are_found() -> None:
    """A JVM member gives up behind a frozen one, which releases after the first look: a nudge."""
    jvm = frozenset({1, 2})
    plan = Plan(
        members=3,
        partitions=4,
        messages=3,
        session_s=60.0,
        settings=lambda one: replace(one, backoff_s=0.5, nudge_s=5.0),
    )
    recorder = Recorder(lambda entry: None)
    world = MixedWorld(plan, Watchers(recorder, MixedMonitor(jvm)), jvm=jvm)
    on = ZooKeeperDirector(world, recorder)
    on.join(0, 2)
    on.rest()
    on.do(Do.FREEZE, 2)
    on.join(1)
    on.until(lambda: member(on, 1).connector.gave_up, "giving up")
    on.wait(10.0)
    on.do(Do.THAW, 2)
    on.until(lambda: on.owned_by(2) == 1, "a late release")
    assert (on.owned_by(0), on.owned_by(1)) == (2, 0)
    on.until(lambda: on.owned_by(1) == 1, "a nudge")


def test_a_jvm_zombie() -> None:
    """A JVM member that is frozen beyond its session still delivers another owner's partitions."""
    on = group(1)
    on.join(0, 1)
    on.rest()
    on.do(Do.FREEZE, 1)
    on.until(lambda: on.owned_by(0) == 4, "a take-over")
    on.wait(0.5)
    on.produce(1)
    zombie = member(on, 1)
    partition = TopicPartition("t", 3)
    assert partition in zombie.feeds and on.owner(3) == 0
    assert zombie.deliverable(partition, on.world.log_end[partition], on.world.now)
    on.do(Do.THAW, 1)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1)) == (2, 2)


def test_an_id_that_another_session_takes_leaves_no_partition_unread() -> None:
    """If another session takes a member's id, its peer takes over and reads all partitions."""
    nudges = Nudges()
    recorder = Recorder(lambda entry: None)
    plan = Plan(members=2, partitions=4, messages=3)
    on = ZooKeeperDirector(World(plan, Watchers(recorder, Monitor(), nudges)), recorder)
    on.join(0, 1)
    on.rest()
    id_znode = paths.member(on.world.GROUP, on.world.members[0].name)
    on.do(Do.DELETE_ID, 0)
    assert on.world.foreign(rq.Create(id_znode, b"{}", ephemeral=True)).code is Code.OK
    on.until(lambda: on.owned_by(1) == 4, "the release and the take-over of the partitions")
    assert nudges.seen["ID_TAKEN"]
    on.produce(2)
    on.wait(5.0)
    assert on.world.foreign(rq.Multi((rq.Delete(id_znode),))).code is Code.OK
    on.rest()
    assert (on.owned_by(0), on.owned_by(1)) == (2, 2)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_copy_continues_as_its_world(seed: int) -> None:
    """A mixed world and its copy, made at any moment, do the same, and do not affect each other."""
    jvm = frozenset({1, 2})
    told: list[JsonObject] = []
    world = MixedWorld(Plan(members=3, partitions=4, messages=2), Recorder(told.append), jvm=jvm)
    draw = random.Random(seed)
    for _ in range(150 * (seed + 1)):
        moves = world.enabled()
        world.act(draw.choice(moves))
    of_copy: list[JsonObject] = []
    recorder = Recorder(of_copy.append)
    recorder.begin(world)
    twin = world.copy(recorder)
    before = len(told)
    state = draw.getstate()
    for one in (twin, world):
        draw.setstate(state)
        for _ in range(300):
            one.act(draw.choice(one.enabled()))
        if one is twin:
            assert len(told) == before
    assert [twin.jvm_member(who).connector for who in jvm] == [
        world.jvm_member(who).connector for who in jvm
    ]
    assert twin.zookeeper.nodes.keys() == world.zookeeper.nodes.keys()
    assert twin.now == world.now
