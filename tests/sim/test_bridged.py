"""The joint world: old and new members share a group by means of a bridge."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import replace

import pytest
from support.sim.bridge_mutants import MUTANTS, BridgeMutant

from zkconsumer.bridge import machine
from zkconsumer.bridge.state import Goal, GoalChanged, RemoveMembers, Settings, Stage, begin
from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Get
from zkconsumer.sim.bridged.monitor import BridgeMonitor
from zkconsumer.sim.bridged.search import Weather, run
from zkconsumer.sim.bridged.world import BridgedWorld, Plan
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.plan import Action, Do


def _first(moves: list[Action]) -> Action:
    return moves[0]


def _world(plan: Plan) -> BridgedWorld:
    monitor = BridgeMonitor(is_calm=True)
    world = BridgedWorld(plan, monitor.old, monitor.new)
    monitor.watch(world)
    return world


def _settle(world: BridgedWorld, seconds: float = 60.0) -> None:
    world.run(5.0, _first)
    end = world.now + seconds
    while not world.settled() and world.now < end:
        world.run(1.0, _first)
    world.produce()
    world.run(1.0, _first)


def _until(world: BridgedWorld, condition: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if condition():
            return
        world.step(_first)
    pytest.fail("it has not happened")


def _shared(plan: Plan, *, late: Container[int] = ()) -> BridgedWorld:
    """Return a world in which both sides have partitions; the old members in `late` join later."""
    world = _world(plan)
    for who in (one for one in range(plan.old) if one not in late):
        world.act(Action(Do.JOIN, who))
    world.run(10.0, _first)
    world.start(0)
    world.run(5.0, _first)
    for who in range(plan.new):
        world.order("join", plan.bridges + who)
    _settle(world)
    return world


@pytest.mark.parametrize("jvm", [(), (0, 1)], ids=["zkconsumer", "jvm"])
def test_a_group_moves_from_one_protocol_to_the_other_and_back(jvm: tuple[int, ...]) -> None:
    """New members get half of the partitions, then all; when the old ones return, they share."""
    world = _shared(Plan(jvm=frozenset(jvm), partitions=4))
    held = world.bridge_state(0).held
    assert len(held) == 2
    assert world.reading() == world.old.log_end
    for who in range(2):
        world.act(Action(Do.LEAVE, who))
    _settle(world)
    assert len(world.bridge_state(0).held) == 4
    assert world.reading() == world.old.log_end
    world.act(Action(Do.REVIVE, 0))
    _settle(world)
    assert len(world.bridge_state(0).held) < 4
    assert world.reading() == world.old.log_end


def test_a_bridge_without_an_old_side_finishes() -> None:
    """`finish` leaves both groups when no old member is left; the new members then read all."""
    world = _shared(Plan(partitions=4))
    for who in range(2):
        world.act(Action(Do.LEAVE, who))
    world.tell(0, lambda now: GoalChanged(now, Goal.FINISH))
    world.run(60.0, _first)
    assert machine.is_over(world.bridge_state(0))
    reading = {tp for one in world.new.members if one.lives for tp in one.fetching}
    assert reading == set(world.old.log_end)


def test_a_rollback_gives_everything_back() -> None:
    """`rollback` gives all partitions to the old side, and ends when the new members have left."""
    world = _shared(Plan(partitions=4))
    world.tell(0, lambda now: GoalChanged(now, Goal.ROLLBACK))
    world.run(30.0, _first)
    assert not world.bridge_state(0).held
    assert not machine.is_over(world.bridge_state(0))
    assert set(world.reading()) == set(world.old.log_end)
    for who in (1, 2):
        world.order("leave", who)
    world.run(30.0, _first)
    assert machine.is_over(world.bridge_state(0))


def _reads_offset(world: BridgedWorld, who: int) -> bool:
    """Return whether a JVM member's next request reads the offset of a partition that the bridge
    owns."""
    held = {paths.offset(world.old.GROUP, tp) for tp in world.bridge_state(0).held}
    return any(
        isinstance(one, Get) and one.path in held for _, one in world.old.jvm_member(who).wire
    )


def _stored(world: BridgedWorld, tp: TopicPartition) -> int:
    """Return the offset in ZooKeeper."""
    reply = world.old.foreign(Get(paths.offset(world.old.GROUP, tp)))
    return payloads.decode_offset(reply.value.data, where="")


def test_a_member_that_has_read_an_early_offset_cannot_claim() -> None:
    """The claim of a JVM member that read an old offset fails, so no message is redelivered."""
    # The member joins unplanned, reads an offset, and pauses before its claim. The bridge stores a
    # higher offset meanwhile, but releases the partition later.
    world = _shared(Plan(old=2, jvm=frozenset({1}), new=1, partitions=4), late=(1,))
    world.produce(3)
    world.run(1.0, _first)
    world.act(Action(Do.JOIN, 1))
    _until(world, lambda: _reads_offset(world, 1))
    world.act(Action(Do.SERVE, 1))
    world.act(Action(Do.FREEZE, 1))
    (tp,) = (tp for tp, one in world.bridge_state(0).held.items() if one.stage is not Stage.LENT)
    _until(world, lambda: _stored(world, tp) == world.log_end[tp])
    world.run(0.9, _first)  # less than `Settings.claim_s`
    world.act(Action(Do.THAW, 1))
    _settle(world)
    assert tp in world.old.members[1].feeds
    assert world.reading() == world.old.log_end


def test_a_removal_without_a_rebalance_is_repeated() -> None:
    """A bridge that still follows after ten seconds removes the other members again."""
    state = begin(Settings(ClientSettings("g", "c", ("t",)), (), takes_lead=True))
    follower = replace(state.classic, phase=ClassicPhase.STABLE, rejoin=False)
    state, first = machine.take_lead(replace(state, classic=follower, asked_lead=True), 1.0)
    assert first == (RemoveMembers(),)
    assert machine.take_lead(state, 10.0) == (state, ())
    assert machine.take_lead(state, 11.0)[1] == first


@pytest.mark.parametrize("weather", list(Weather), ids=[one.name for one in Weather])
def test_a_random_run_keeps_the_promises(weather: Weather) -> None:
    """Two runs with known seeds break no promise; `test_many_random_runs` draws fresh seeds."""
    for seed in (0, 1):
        result = run(Decisions(random.Random(seed)), weather)
        assert result.violation is None, (seed, weather)


@pytest.mark.parametrize("weather", list(Weather), ids=[one.name for one in Weather])
def test_many_random_runs_keep_the_promises(weather: Weather) -> None:
    """Hundreds of fresh random runs break no promise."""
    first = random.randrange(10**9)
    for seed in range(first, first + 300):
        result = run(Decisions(random.Random(seed)), weather)
        assert result.violation is None, (seed, weather)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_a_planted_fault_breaks_its_promise(mutant: BridgeMutant) -> None:
    """The run of a known seed reveals the fault, and breaks no promise without it."""
    found = mutant.caught(mutant.seed)
    assert found is not None
    assert found.invariant == mutant.promise
    assert run(Decisions(random.Random(mutant.seed)), mutant.weather).violation is None
