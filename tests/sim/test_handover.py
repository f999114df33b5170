"""Every interleaving of the threads that hand messages over between a stream and its user."""

from __future__ import annotations

import pytest
from support.sim.handover import (
    CASES,
    SHARED,
    Case,
    HandOverViolation,
    InstrumentedModules,
    explore,
)
from support.sim.mutants import HAND_OVER, HandOverMutant

LIMIT_S = 1200.0
"""Time limit of a search in seconds. On an idle machine a search takes a few seconds."""

pytestmark = pytest.mark.timeout(LIMIT_S + 100)


@pytest.fixture(scope="module")
def code() -> InstrumentedModules:
    """The instrumented production modules, compiled once for all cases."""
    return InstrumentedModules()


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_no_interleaving_breaks_a_promise(case: Case, code: InstrumentedModules) -> None:
    """No order of the threads' accesses to shared attributes breaks a promise."""
    found = explore(case, code, max_s=LIMIT_S)
    assert found.violation is None, found.path
    assert found.complete
    assert found.states > 100


TINY = Case("tiny", (("seek", 0, 1),), ((("ask_release", 0),),), granted=(0,))


def test_pruning_visited_states_loses_no_result(code: InstrumentedModules) -> None:
    """With and without pruning a small case ends in the same states; pruning saves schedules."""
    cut, whole = explore(TINY, code), explore(TINY, code, prune=False)
    assert cut.complete
    assert whole.complete
    assert cut.outcomes == whole.outcomes
    assert len(cut.outcomes) > 1
    assert cut.schedules < whole.schedules / 2


@pytest.mark.parametrize("mutant", HAND_OVER, ids=lambda one: one.name)
def test_a_mutant_of_the_hand_over_is_caught(mutant: HandOverMutant) -> None:
    """Within 2,000 schedules the search finds a schedule in which the mutant breaks a promise."""
    found = mutant.caught(LIMIT_S)
    assert isinstance(found.violation, HandOverViolation)
    assert found.schedules <= 2_000


def test_every_shared_attribute_has_a_point() -> None:
    """The search can switch threads at every attribute that the hand-over accesses."""
    assert {"unfinished", "granted", "has_changed", "last", "start", "deadline", "closed"} <= SHARED
    assert {"_wanted", "_paused", "_releases", "_failures", "_token", "failure"} <= SHARED


def test_an_edit_that_fits_nowhere_is_refused() -> None:
    """If the text that a mutant replaces is not in the sources, this is an error."""
    with pytest.raises(ValueError, match="exactly once"):
        InstrumentedModules([("this text stands nowhere", "")])
