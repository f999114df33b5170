"""Mixed groups: what JVM members do is theirs, and ours keep what is promised."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from zkconsumer.core.model import TopicPartition
from zkconsumer.sim.jvm import JvmMember
from zkconsumer.sim.mixed import MixedMonitor, MixedWorld, run
from zkconsumer.sim.plan import Do, Plan
from zkconsumer.sim.recorder import Recorder, Watchers
from zkconsumer.sim.stage import Stage
from zkconsumer.sim.swarm import Decisions

SEEDS = range(40)


def group(*jvm: int, members: int = 2, backoff_s: float = 2.0) -> Stage:
    """A mixed group on a stage, watched by its monitor."""
    plan = Plan(
        members=members, partitions=4, messages=3,
        settings=lambda one: replace(one, backoff_s=backoff_s),
    )
    recorder = Recorder(lambda entry: None)
    monitor = MixedMonitor(frozenset(jvm))
    world = MixedWorld(plan, Watchers(recorder, monitor), jvm=frozenset(jvm))
    return Stage(world, recorder)


def member(on: Stage, who: int) -> JvmMember:
    assert isinstance(on.world, MixedWorld)
    return on.world.jvm_member(who)


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_groups(seed: int) -> None:
    """Whatever a seed draws, our members keep their promises, and serve all when the others go."""
    result = run(Decisions(random.Random(seed)))
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_a_jvm_peer_joins_and_leaves() -> None:
    """Both kinds of member share by the same rule, and hand over to each other."""
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
    """After four attempts it is idle with its share unowned; the next change has it try again."""
    on = group(1, members=3, backoff_s=0.5)
    on.join(0)
    on.rest()
    on.do(Do.FREEZE, 0)
    on.join(1)
    connector = member(on, 1).connector
    on.until(lambda: connector.gave_up, "giving up")
    assert connector.failed_attempts == 4
    on.do(Do.THAW, 0)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1)) == (2, 0)
    on.join(2)
    on.rest()
    assert (on.owned_by(0), on.owned_by(1), on.owned_by(2)) == (2, 1, 1)


def test_a_jvm_zombie() -> None:
    """One that sleeps through its session's end still hands out what others own by then."""
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
