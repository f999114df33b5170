"""Random runs of coordinated groups, and planted faults that the monitor must detect."""

from __future__ import annotations

import random
import time
from collections import Counter
from enum import Enum

import pytest
from support.sim.later_mutants import MUTANTS, Mutant, run_seed
from support.sim.mutants import function

from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.consumer_member import ConsumerPhase
from zkconsumer.later.group_events import Loaded
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.coordinated.recorder import CoordinatedRecorder
from zkconsumer.sim.coordinated.search import (
    PROTOCOLS,
    Course,
    end_faults,
    random_delay,
    report,
    run,
    run_aimed_faults,
    run_faults,
)
from zkconsumer.sim.coordinated.stories import ASSIGNORS, plan_for
from zkconsumer.sim.coordinated.world import CoordinatedWorld, Entry, GroupLoaded
from zkconsumer.sim.kernel.search import Decisions, shrunk

FIXED = range(5)
FRESH = 15


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_no_promise_is_broken(protocol: str) -> None:
    """The runs of a fixed set of seeds keep every promise and deliver messages."""
    found = [run_seed(seed, protocol) for seed in FIXED]
    assert [one for one in found if one.violation] == []
    assert all(one.deliveries for one in found)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_fresh_seeds(protocol: str) -> None:
    """Runs of new seeds keep every promise; a failure names its seed."""
    first = time.time_ns() % 10**9
    found = {seed: run_seed(seed, protocol) for seed in range(first, first + FRESH)}
    broken = {seed: one.decisions for seed, one in found.items() if one.violation}
    assert not broken, "\n".join(f"seed {n}: {report(one, protocol)}" for n, one in broken.items())


def test_a_broker_that_has_lost_its_election_loads_nothing() -> None:
    """A broker that loses its election, or is elected again, while it loads ignores old records."""
    seed, protocol = 219, "classic-eager"
    genuine, at_broker = (
        function(CoordinatedWorld, "_perform"),
        function(CoordinatedWorld, "_at_broker"),
    )

    def perform(world: CoordinatedWorld, entry: Entry) -> None:
        if isinstance(entry, GroupLoaded):
            at_broker(world, entry.broker, Loaded(world.partition, entry.records))
        else:
            genuine(world, entry)

    overlooked = Mutant(
        "a broker without an election loads",
        protocol,
        "C1",
        lambda: [(CoordinatedWorld, "_perform", perform)],
    )
    broken = overlooked.caught(range(seed, seed + 1))
    assert broken is not None and broken.invariant == "C1"
    assert run_seed(seed, protocol).violation is None


def test_a_seed_determines_its_run() -> None:
    """Two runs of the same seed are equal."""
    assert run_seed(7, "consumer") == run_seed(7, "consumer")


@pytest.mark.parametrize("protocol", ASSIGNORS)
@pytest.mark.parametrize("seed", FIXED[:2])
def test_a_copy_continues_as_its_world(protocol: str, seed: int) -> None:
    """A world and its copy do the same under the same commands, and do not affect each other."""
    script = Decisions(random.Random(seed))
    told: list[JsonObject] = []
    recorder = CoordinatedRecorder(told.append)
    plan = plan_for(protocol, {}, members=4, partitions=6, delay=random_delay(seed))
    world = CoordinatedWorld(plan, recorder)
    run_faults(world, script)
    world.hold(0)
    world.freeze(1)
    world.run(0.005)
    of_copy: list[JsonObject] = []
    twin = world.copy(recorder.copy(of_copy.append))
    before = len(told)
    _continue(twin, seed)
    assert len(told) == before
    _continue(world, seed)
    assert told[before:] == of_copy
    assert twin.now == world.now and twin.settled() and world.settled()


def _continue(world: CoordinatedWorld, seed: int) -> None:
    """Inject more faults, and let the group settle."""
    world.release(0)
    run_faults(world, Decisions(random.Random(f"{seed} goes on")))
    end_faults(world)
    world.run(900.0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: str(one.name))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Within 100 seeds, each planted fault breaks the promise that it is meant to break."""
    found = mutant.caught(range(100))
    assert found is not None and found.invariant == mutant.promise


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_run_is_repeated_from_its_decisions(protocol: str) -> None:
    """The decisions that a run has drawn from its seed repeat the run."""
    first = run_seed(3, protocol)
    assert run(Decisions(first.decisions), protocol) == first


def test_a_failing_run_is_shrunk() -> None:
    """A failing run is shrunk to fewer decisions; the report shows the faults and the promise."""
    mutant = next(one for one in MUTANTS if one.name == "assigns before the release")
    with mutant.planted():
        runs = (run_seed(n, mutant.protocol) for n in range(100))
        found = next(one for one in runs if one.violation)
        fewer = shrunk(lambda decide: run(decide, mutant.protocol), found.decisions, limit_s=5.0)
        assert len(fewer) < len(found.decisions) / 2
        broken = run(Decisions(fewer), mutant.protocol).violation
        assert broken is not None and broken.invariant == "C2"
        text = report(found.decisions, mutant.protocol, limit_s=5.0)
    assert " joins" in text and text.splitlines()[-1].startswith("C2")


@pytest.mark.parametrize(
    ("protocol", "brief"),
    [("classic-cooperative", ClassicPhase.COMPLETING), ("consumer", ConsumerPhase.RECONCILING)],
)
def test_aimed_runs_hit_a_brief_phase(protocol: str, brief: Enum) -> None:
    """Aimed runs keep every promise, and their faults hit a brief phase more often than others."""
    hits = Counter[Course]()
    for course in (run_faults, run_aimed_faults):

        def count(world: CoordinatedWorld, text: str, course: Course = course) -> None:
            hits[course] += any(one.lives and one.state.phase is brief for one in world.members)

        for seed in range(20):
            decide = Decisions(random.Random(seed))
            found = run(decide, protocol, course=course, say=count)
            assert found.violation is None, f"{course.__name__}, seed {seed}: {found.violation}"
    assert hits[run_aimed_faults] > 2 * hits[run_faults]


def test_a_group_that_was_deleted_counts_again() -> None:
    """The monitor accepts that a group that was deleted begins again with generation 1."""
    found = run(Decisions(FORGOTTEN), "classic-eager", course=run_aimed_faults)
    assert found.violation is None


# One member joins and dies; the group is deleted; another member joins.
FORGOTTEN = (
    *(1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 11, 0, 4, 0, 37, 0, 161, 32, 0, 12, 25, 0, 170, 35, 0),
    *(1, 1, 0, 0, 4, 0, 37, 34, 21, 12, 23, 17, 6, 12, 32, 1),
)
