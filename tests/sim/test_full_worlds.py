"""Random runs with production streams and Spark queries keep the promises."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.sim.coverage import EXCLUDED, Coverage, excluded, possible

from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import USER_ACTIONS, Action, Do, Plan
from zkconsumer.sim.query_member import QueryMember
from zkconsumer.sim.random_search import draw_full, run, world_of
from zkconsumer.sim.stream_world import StreamWorld
from zkconsumer.sim.world import Watcher, Watchers, World

SEEDS = range(100)


class Acts(Watcher):
    """Counts the actions of a run, and the actions of its queries."""

    def __init__(self) -> None:
        self.acts: Counter[Do] = Counter()
        self.of_queries: Counter[Do] = Counter()

    def acted(self, world: World, action: Action) -> None:
        self.acts[action.do] += 1
        if 0 <= action.who < world.plan.queries:
            self.of_queries[action.do] += 1


@pytest.fixture(scope="module")
def runs() -> tuple[Acts, Coverage]:
    """Run several seeds; none of the runs breaks a promise."""
    acts, coverage = Acts(), Coverage()

    def make(plan: Plan, monitor: Monitor) -> World:
        return world_of(plan, Watchers(monitor, acts, coverage))

    for seed in SEEDS:
        result = run(Decisions(random.Random(seed)), make=make, draw=draw_full)
        assert result.violation is None, f"seed {seed}: {result.violation}"
    return acts, coverage


def test_users_and_faults_do_everything(runs: tuple[Acts, Coverage]) -> None:
    """Users poll, pause, seek and commit; clients die; retention deletes; queries restart."""
    acts, _ = runs
    wanted = {
        *USER_ACTIONS,
        Do.POLL,
        Do.RESUME,
        Do.APPLY_RETENTION,
        Do.CRASH_CLIENT,
        Do.LOCK_OUT,
        Do.ADMIT,
    }
    assert wanted <= acts.acts.keys()
    assert acts.of_queries.keys() >= {Do.NEXT_MESSAGE, Do.KILL, Do.REVIVE}


def test_no_excluded_pair_is_reached(runs: tuple[Acts, Coverage]) -> None:
    """Excluded pairs do not occur, and each exclusion states its reason."""
    _, coverage = runs
    assert [pair for pair in coverage.pairs if excluded(pair)] == []
    assert len(coverage.pairs) > len(possible()) / 2
    assert all(reason for reason in EXCLUDED.values())


def test_a_query_that_was_killed_runs_its_batch_again() -> None:
    """A restarted query repeats the batch of its checkpoint, and then reads on with its group."""
    monitor = Monitor()
    plan = Plan(members=1, partitions=1, messages=6, streams=True, queries=1)
    world = StreamWorld(plan, monitor)
    tp = TopicPartition(world.TOPIC, 0)

    def until_planned() -> QueryMember:
        for _ in range(500):
            query = world.members[0]
            assert isinstance(query, QueryMember)
            if not query.checkpoint.is_done:
                return query
            world.act(next(iter(world.enabled())))
        raise AssertionError("no batch was planned")

    first = until_planned()
    assert [one.end for one in first.checkpoint.batch] == [4]
    world.act(Action(Do.KILL, 0))
    world.act(Action(Do.REVIVE, 0))
    assert monitor.finished_below[tp] == 4
    second = until_planned()
    assert second is not first
    assert [(one.start, one.end) for one in second.checkpoint.batch] == [(4, 6)]
