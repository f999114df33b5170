"""Planted faults that the monitor must detect: without them, its silence proves nothing."""

from __future__ import annotations

import lanes
import pytest
from support.sim import mutants
from support.sim.mutants import MUTANTS, Mutant, schedules_to_catch

from zkconsumer.sim.exhaustive_search import Scope, explore

LIMIT = 2_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Within 2,000 schedules the monitor reports the promise that the mutant breaks."""
    # Start at the seed of the recorded run, which is counted from seed 0.
    assert schedules_to_catch(mutant, limit=LIMIT, first=mutant.near) is not None


def test_there_are_enough_mutants() -> None:
    """There are at least 16 mutants, and their names differ."""
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 16


def test_the_normal_lane_has_a_mutant_for_each_promise() -> None:
    """For each promise, the normal lane runs at least one mutant that breaks it."""
    where = f"tests/sim/test_mutants.py::{test_a_mutant_is_caught.__name__}"
    later = [rule for rule in lanes.RULES if rule.lane is lanes.Lane.ALL]
    broken = {one: mutants.recorded(one)["caught_by"] for one in MUTANTS}
    normal = {
        promise
        for one, promise in broken.items()
        if not any(rule.fits(f"{where}[{one.name}]") for rule in later)
    }
    assert normal == set(broken.values())


@pytest.mark.parametrize("name", ["release before stop", "deaf to members"])
def test_the_exhaustive_search_finds_a_mutant(name: str) -> None:
    """The exhaustive search of the small world finds the violation and a path to it."""
    mutant = next(one for one in mutants.MUTANTS if one.name == name)
    with mutant.planted():
        found = explore(Scope(faults=0), max_states=20_000)
    assert found.violation is not None
    assert found.path
