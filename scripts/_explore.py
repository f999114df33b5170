"""Run schedules of the simulator on all cores; count their actions, reached pairs and violations.

`scripts/bench_sim` runs a given number of seeds; `scripts/soak --simulated` runs for a given time.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from _bench import end_with_parent
from support.sim import coverage
from support.sim.coverage import Coverage, Pair

from zkconsumer.sim import random_search
from zkconsumer.sim.bridged import search as bridged_search
from zkconsumer.sim.kernel.search import Decisions, Result
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Plan
from zkconsumer.sim.random_search import draw_plan, run, run_plan, world_of
from zkconsumer.sim.world import Watchers, World

CHUNK = 50
"""Number of seeds in one piece of work of a process."""

MEMBERS, PARTITIONS = 3, 6
"""The size of the schedules whose speed is compared between commits."""


@dataclass
class Totals:
    """The sums over a number of schedules.

    Attributes:
        violations: seed, promise and text of each violation.
        pairs: how often each (phase, fault) pair was reached.
    """

    schedules: int = 0
    actions: int = 0
    deliveries: int = 0
    duplicates: int = 0
    violations: list[dict[str, Any]] = field(default_factory=list)
    pairs: Counter[Pair] = field(default_factory=Counter)

    def add(self, seed: int, result: Result) -> None:
        self.schedules += 1
        self.actions += result.actions
        self.deliveries += result.deliveries
        self.duplicates += result.duplicates
        if (found := result.violation) is not None:
            self.violations.append({"seed": seed, "invariant": found.invariant, "text": str(found)})

    def __iadd__(self, other: Totals) -> Totals:
        self.schedules += other.schedules
        self.actions += other.actions
        self.deliveries += other.deliveries
        self.duplicates += other.duplicates
        self.violations += other.violations
        self.pairs += other.pairs
        return self

    def counts(self) -> dict[str, int]:
        return {
            "schedules": self.schedules,
            "actions": self.actions,
            "deliveries": self.deliveries,
            "redeliveries": self.duplicates,
        }

    def never(self) -> list[Pair]:
        """Return the pairs that can occur and were not reached."""
        return [pair for pair in coverage.possible() if not self.pairs[pair]]


def one_size(decide: Decisions, make: Callable[[Plan, Monitor], World]) -> Result:
    """Run a schedule of 3 members with production streams and 6 partitions."""
    plan, length, rarity = draw_plan(decide)
    plan = replace(plan, members=MEMBERS, partitions=PARTITIONS, streams=True)
    return run_plan(plan, decide, length=length, rarity=rarity, make=make)


def any_size(decide: Decisions, make: Callable[[Plan, Monitor], World]) -> Result:
    """Run a schedule whose size the seed determines."""
    return run(decide, make=make)


def bridged(decide: Decisions, make: Callable[[Plan, Monitor], World]) -> Result:
    """Run a group that a bridge divides; the seed determines the weather, too."""
    return bridged_search.run(decide)


WORLDS = {"3x6": one_size, "any": any_size, "bridged": bridged}


def chunk(worlds: str, seeds: range, counted: bool) -> Totals:
    """Run some seeds in this process; with `counted`, also count the pairs that they reach."""
    totals = Totals()
    for seed in seeds:
        reached = Coverage()

        def make(plan: Plan, monitor: Monitor, reached: Coverage = reached) -> World:
            return world_of(plan, Watchers(monitor, reached) if counted else monitor)

        totals.add(seed, WORLDS[worlds](Decisions(random.Random(seed)), make))
        totals.pairs += reached.pairs
    return totals


def explore(
    totals: Totals,
    pieces: Iterable[range],
    *,
    worlds: str,
    processes: int,
    counted: bool = False,
    report: Callable[[Totals], None] = lambda _: None,
) -> None:
    """Run all pieces on several processes, add up their results, and print each violation at once.

    If the caller is interrupted, `totals` contains the results so far. `report` is called after
    each piece.
    """
    with _pool(processes) as pool:
        under_way: set[Future[Totals]] = set()
        for piece in pieces:
            under_way.add(pool.submit(chunk, worlds, piece, counted))
            if len(under_way) >= 2 * processes:
                under_way = _collect(totals, under_way, report)
        while under_way:
            under_way = _collect(totals, under_way, report)


def _collect(
    totals: Totals, under_way: set[Future[Totals]], report: Callable[[Totals], None]
) -> set[Future[Totals]]:
    done, left = wait(under_way, return_when=FIRST_COMPLETED)
    for one in done:
        found = one.result()
        for violation in found.violations:
            print(f"seed {violation['seed']}: {violation['text']}", flush=True)
        totals += found
        report(totals)
    return left


def _begin() -> None:
    """Ignore Ctrl-C in a process of the pool, and the queries' warnings of resets."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.WARNING)


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes that ignore Ctrl-C and end with this process."""
    pool = ProcessPoolExecutor(processes, initializer=_begin)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def pieces(first: int, schedules: int) -> Iterator[range]:
    """Yield this number of seeds in chunks."""
    for start in range(first, first + schedules, CHUNK):
        yield range(start, min(start + CHUNK, first + schedules))


def endless(first: int, seconds: float) -> Iterator[range]:
    """Yield chunks of seeds until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield range(first, first + CHUNK)
        first += CHUNK


def cpu_seconds_of_children() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def story(seed: int, worlds: str) -> str:
    """Shrink the run of a seed that broke a promise. Return its decisions and its story in
    lanes.
    """
    if worlds != "any":
        return f"seed {seed} of worlds {worlds}: run it again with --worlds any to shrink it"
    return random_search.report(run(Decisions(random.Random(seed))).decisions)
