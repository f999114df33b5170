"""The joint world: old and new members share a group by means of a bridge."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.sim.bridge_courses import COURSES, first, settle, shared
from support.sim.bridge_mutants import MUTANTS, BridgeMutant, broken_by

from zkconsumer.bridge import machine
from zkconsumer.bridge.state import Goal, GoalChanged, LockKept, RemoveMembers, Settings, begin
from zkconsumer.later import client_state
from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.member_events import Answered, Commands, Send
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.sim.bridged.search import Weather, run
from zkconsumer.sim.bridged.world import Plan
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import Action, Do


@pytest.mark.parametrize("jvm", [(), (0, 1)], ids=["zkconsumer", "jvm"])
def test_a_group_moves_from_one_protocol_to_the_other_and_back(jvm: tuple[int, ...]) -> None:
    """New members get half of the partitions, then all; when the old ones return, they share."""
    world = shared(Plan(jvm=frozenset(jvm), partitions=4))
    held = world.bridge_state(0).held
    assert len(held) == 2
    assert world.reading() == world.old.log_end
    for who in range(2):
        world.act(Action(Do.LEAVE, who))
    settle(world)
    assert len(world.bridge_state(0).held) == 4
    assert world.reading() == world.old.log_end
    world.act(Action(Do.REVIVE, 0))
    settle(world)
    assert len(world.bridge_state(0).held) < 4
    assert world.reading() == world.old.log_end


def test_a_bridge_without_an_old_side_finishes() -> None:
    """`finish` leaves both groups when no old member is left; the new members then read all."""
    world = shared(Plan(partitions=4))
    for who in range(2):
        world.act(Action(Do.LEAVE, who))
    world.tell(0, lambda now: GoalChanged(now, Goal.FINISH))
    world.run(60.0, first)
    assert machine.is_over(world.bridge_state(0))
    reading = {tp for one in world.new.members if one.lives for tp in one.fetching}
    assert reading == set(world.old.log_end)


def test_a_rollback_gives_everything_back() -> None:
    """`rollback` gives all partitions to the old side, and ends when the new members have left."""
    world = shared(Plan(partitions=4))
    world.tell(0, lambda now: GoalChanged(now, Goal.ROLLBACK))
    world.run(30.0, first)
    assert not world.bridge_state(0).held
    assert not machine.is_over(world.bridge_state(0))
    assert set(world.reading()) == set(world.old.log_end)
    for who in (1, 2):
        world.order("leave", who)
    world.run(30.0, first)
    assert machine.is_over(world.bridge_state(0))


@pytest.mark.parametrize("course", COURSES, ids=[one.__name__ for one in COURSES])
def test_a_course_keeps_the_promises(course: Callable[[], None]) -> None:
    """The bridge keeps its promises in each course of `bridge_courses`."""
    course()


def test_a_removal_without_a_rebalance_is_repeated() -> None:
    """A bridge that still follows after ten seconds removes the other members again."""
    state = begin(Settings(ClientSettings("g", "c", ("t",)), (), takes_lead=True))
    follower = replace(state.classic, phase=ClassicPhase.STABLE, rejoin=False)
    state, first = machine.take_lead(
        replace(state, classic=follower, asked_lead=True, lock_until=12.0), 1.0
    )
    assert first == (RemoveMembers(),)
    assert machine.take_lead(state, 10.0) == (state, ())
    assert machine.take_lead(state, 11.0)[1] == first
    assert machine.take_lead(state, 12.0) == (state, ())  # another process may be active


def test_a_bridge_that_was_frozen_joins_anew_only_with_the_lock() -> None:
    """If the brokers take the member id away, a bridge joins when it knows that it is active."""
    state = begin(Settings(ClientSettings("g", "c", ("t",), instance="bridge"), ()))
    member = replace(
        state.classic,
        phase=ClassicPhase.STABLE,
        member="bridge-1",
        generation=1,
        rejoin=False,
        client=replace(state.client, coordinator=0),
    )
    heartbeat = msg.Heartbeat("g", "bridge-1", 1, "bridge")
    client, (sent,) = client_state.send(member.client, heartbeat, 0.0, membership=member.membership)
    assert isinstance(sent, Send)
    state = replace(state, classic=replace(member, client=client), lock_until=12.0)
    refused = Answered(20.0, sent.number, msg.HeartbeatAnswer(Error.UNKNOWN_MEMBER_ID))
    state, commands = machine.step(state, refused)
    assert state.member == msg.UNKNOWN_MEMBER
    assert not _joins(commands)
    assert _joins(machine.step(state, LockKept(21.0, 29.0))[1])


def _joins(commands: Commands) -> bool:
    return any(isinstance(one, Send) and isinstance(one.request, msg.JoinGroup) for one in commands)


@pytest.mark.parametrize("weather", list(Weather), ids=[one.name for one in Weather])
def test_a_random_run_keeps_the_promises(weather: Weather) -> None:
    """Two runs with known seeds break no promise; `test_many_random_runs` draws fresh seeds."""
    for seed in (0, 1):
        assert _violation(seed, weather) is None, (seed, weather)


@pytest.mark.parametrize("weather", list(Weather), ids=[one.name for one in Weather])
def test_many_random_runs_keep_the_promises(weather: Weather) -> None:
    """Hundreds of fresh random runs break no promise."""
    first = random.randrange(10**9)
    for seed in range(first, first + 300):
        assert _violation(seed, weather) is None, (seed, weather)


def _violation(seed: int, weather: Weather) -> InvariantViolation | None:
    """Return which promise a run breaks. If the run ends in an error, the error names the seed."""
    try:
        return run(Decisions(random.Random(seed)), weather).violation
    except Exception as error:
        error.add_note(f"seed {seed}, {weather.name}")
        raise


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_a_planted_fault_breaks_its_promise(mutant: BridgeMutant) -> None:
    """A run near a known seed, or a course, breaks the promise only with the planted fault."""
    found = mutant.caught()
    assert found is not None
    reveal, violation = found
    assert violation.invariant == mutant.promise
    assert broken_by(reveal) is None
