"""The tables of simulated groups, compared with what the simulator knows of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.sim.history import LogOfWorld, Truth, simulated

from zkconsumer.history.describe import Described, Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.protocol.paths import Kind, locate

SEEDS = range(60)


def described(log: LogOfWorld, directory: Path) -> Described:
    log.log.write(directory)
    description = Description(find_servers([directory]))
    description.read()
    return description.result()


def compare(seed: int, directory: Path) -> None:
    """Compare all tables of one seed with the truth."""
    log, result = simulated(seed)
    assert result.violation is None
    found, truth = described(log, directory), Truth(log)
    tables = found.tables
    assert found.problems == []
    intervals = [
        [one.topic, one.partition, one.thread, one.session, one.time_ms, one.ended_ms]
        for one in tables.ownership
    ]
    assert sorted(intervals, key=str) == sorted(truth.intervals, key=str)
    gone = {"left", "expired", "removed"}
    events = Counter("gone" if one.event in gone else one.event for one in tables.members)
    assert events == truth.members
    commits: Counter[tuple[str, int]] = Counter()
    for run in tables.commits:
        commits[run.topic, run.partition] += run.count
    assert commits == truth.commits
    kinds = Counter(one.kind for one in tables.incidents)
    assert sum(run.count for run in tables.commits if run.late) == truth.late
    edits = [run for run in tables.commits if run.begins == "edit" and run.before is not None]
    back = [run for run in edits if run.before is not None and run.first < run.before]
    assert kinds["offset moved back"] + len(back) == len(truth.moved_back)
    assert kinds["offset deleted"] == truth.deleted
    compare_rebalances(log, found)


def compare_rebalances(log: LogOfWorld, found: Described) -> None:
    """At the end each group has settled: its last rebalance says so, with the owners of then."""
    last = found.tables.rebalances[-1] if found.tables.rebalances else None
    members = {c.path for c in log.history if locate(c.path).kind is Kind.MEMBER}
    assert bool(last) == bool(members)
    if last is not None:
        assert last.settled_ms is not None, last


@pytest.mark.parametrize("first", SEEDS[::20])
def test_tables_of_random_groups(first: int, tmp_path: Path) -> None:
    """For each seed, every table says what the simulator's history says: no more, no less."""
    for seed in range(first, first + 20):
        compare(seed, tmp_path / str(seed))
