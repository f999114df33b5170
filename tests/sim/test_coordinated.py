"""Random runs of coordinated groups, and planted faults that the monitor must detect."""

from __future__ import annotations

import random
import time

import pytest
from support.sim.later_mutants import MUTANTS, Mutant

from zkconsumer.later import group_phases
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.coordinated.recorder import Recorder
from zkconsumer.sim.coordinated.search import (
    PROTOCOLS,
    RandomDelay,
    end_faults,
    replay,
    report,
    run,
    run_faults,
    run_recorded,
    shrunk,
)
from zkconsumer.sim.coordinated.stories import ASSIGNORS, plan_for
from zkconsumer.sim.coordinated.world import World

FIXED = range(5)
FRESH = 15


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator checks each change of a group's phase."""
    monkeypatch.setattr(group_phases, "enforced", True)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_no_promise_is_broken(protocol: str) -> None:
    """The runs of a fixed set of seeds keep every promise and deliver messages."""
    found = [run(seed, protocol) for seed in FIXED]
    assert [one for one in found if one.violation] == []
    assert all(one.deliveries for one in found)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_fresh_seeds(protocol: str) -> None:
    """Runs of new seeds keep every promise; a failure names its seed."""
    first = time.time_ns() % 10**9
    found = [run(seed, protocol) for seed in range(first, first + FRESH)]
    broken = [one.seed for one in found if one.violation]
    assert not broken, report(broken[0], protocol)


def test_a_broker_that_restarts_while_it_loads() -> None:
    """A broker that loses its election while it loads does not answer as the coordinator."""
    assert run(886602149, "classic-eager").violation is None


@pytest.mark.parametrize("seed", [410001322, 410004875])
def test_a_coordinator_that_returns_within_its_loading_time(seed: int) -> None:
    """A broker that is elected twice within its loading time loads only the latest records."""
    assert run(seed, "classic-sticky").violation is None


def test_a_seed_determines_its_run() -> None:
    """Two runs of the same seed are equal."""
    assert run(7) == run(7)


@pytest.mark.parametrize("protocol", ASSIGNORS)
@pytest.mark.parametrize("seed", FIXED[:2])
def test_a_copy_continues_as_its_world(protocol: str, seed: int) -> None:
    """A world and its copy do the same under the same commands, and do not affect each other."""
    delay, script = RandomDelay(random.Random(seed)), random.Random(seed)
    told: list[JsonObject] = []
    recorder = Recorder(told.append)
    world = World(plan_for(protocol, {}, members=4, partitions=6, delay=delay), recorder)
    run_faults(world, script)
    world.hold(0)
    world.freeze(1)
    world.run(0.005)
    of_copy: list[JsonObject] = []
    twin, same = world.copy(recorder.copy(of_copy.append)), random.Random()
    same.setstate(script.getstate())
    before = len(told)
    _continue(twin, same)
    assert len(told) == before
    _continue(world, script)
    assert told[before:] == of_copy
    assert twin.now == world.now and twin.settled() and world.settled()


def _continue(world: World, script: random.Random) -> None:
    """Inject more faults, and let the group settle."""
    world.release(0)
    run_faults(world, script)
    end_faults(world)
    world.run(900.0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: str(one.name))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Within 40 seeds, each planted fault breaks the promise that it is meant to break."""
    found = mutant.caught(range(40))
    assert found is not None and found.invariant == mutant.promise


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_run_is_repeated_from_its_numbers(protocol: str) -> None:
    """The numbers that a run has drawn from its seed repeat the run."""
    numbers, result = run_recorded(3, protocol)
    assert result == run(3, protocol)
    again = replay(protocol, numbers)
    assert (again.deliveries, again.rebalances) == (result.deliveries, result.rebalances)


def test_a_failing_seed_is_shrunk() -> None:
    """A failing run is shrunk to fewer numbers; the report shows the actions and the promise."""
    mutant = next(one for one in MUTANTS if one.name == "assigns before the release")
    with mutant.planted():
        seed = next(n for n in range(40) if run(n, mutant.protocol).violation)
        numbers, _ = run_recorded(seed, mutant.protocol)
        found = shrunk(mutant.protocol, numbers, limit_s=5.0)
        assert len(found.script) < len(numbers.script) / 2
        assert len(found.late) < len(numbers.late) / 2
        broken = replay(mutant.protocol, found).violation
        assert broken is not None and broken.invariant == "C2"
        text = report(seed, mutant.protocol, limit_s=5.0)
    assert " joins" in text and text.splitlines()[-1].startswith("C2")
