"""Random runs keep the promises with offsets in Kafka, which has no compare-and-set."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from zkconsumer.member.state import Settings
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, TopicPartition
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Do, Plan
from zkconsumer.sim.random_search import draw_plan, run_plan
from zkconsumer.sim.world import World

SEEDS = range(60)


def stored_in(
    storage: Storage, drawn: Callable[[Settings], Settings]
) -> Callable[[Settings], Settings]:
    """Return random settings, with the given storage of offsets."""
    return lambda one: replace(drawn(one), storage=storage)


@pytest.mark.parametrize("storage", [Storage.DUAL, Storage.KAFKA])
def test_no_invariant_is_broken_with_offsets_in_kafka(storage: Storage) -> None:
    """Without edits of offsets no message is skipped, and no unfinished message is committed."""
    kept: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    def make(plan: Plan, monitor: Monitor) -> World:
        kept.append((world := World(plan, monitor)).kafka)
        return world

    for seed in SEEDS:
        decide = Decisions(random.Random(seed))
        plan, length, rarity = draw_plan(decide)
        faults = {do: count for do, count in plan.faults.items() if do is not Do.EDIT}
        plan = replace(plan, settings=stored_in(storage, plan.settings), faults=faults)
        result = run_plan(plan, decide, length=length, rarity=rarity, make=make)
        assert result.violation is None, f"seed {seed}: {result.violation}"
    assert sum(map(bool, kept)) > len(SEEDS) / 2, "the runs stored too few offsets in Kafka"
