"""Swarm runs of the production core: no promise is broken, and any run can be had again."""

from __future__ import annotations

import random

import pytest

from zkconsumer.sim.swarm import Decisions, run

# Drawn once and kept, so that a failure names the seed and everybody has the same one.
SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_invariant_is_broken(seed: int) -> None:
    """Whatever a seed draws, every promise holds after every action, and the group settles."""
    result = run(Decisions(random.Random(seed)))
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_a_run_is_its_decisions() -> None:
    """The decisions that a seed took replay the same run."""
    first = run(Decisions(random.Random(7)))
    assert run(Decisions(first.decisions)) == first


def test_two_runs_of_a_seed_are_equal() -> None:
    """Nothing but the seed decides."""
    assert run(Decisions(random.Random(11))) == run(Decisions(random.Random(11)))
