"""Random runs keep the promises, whether a rebalance listener returns in time or too late."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from zkconsumer.member.state import Settings
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Plan
from zkconsumer.sim.random_search import listening, run
from zkconsumer.sim.world import World

SEEDS = range(60)


@pytest.mark.parametrize("grace_s", [1.0, 0.0])
def test_no_invariant_is_broken(grace_s: float) -> None:
    """Promises hold whether members wait up to a second for a listener or do not wait at all."""

    def heard(plan: Plan, monitor: Monitor) -> World:
        drawn = plan.settings

        def settings(one: Settings) -> Settings:
            return replace(drawn(one), **listening(grace_s))

        return World(replace(plan, settings=settings), monitor)

    for seed in SEEDS:
        result = run(Decisions(random.Random(seed)), make=heard)
        assert result.violation is None, f"seed {seed}: {result.violation}"
