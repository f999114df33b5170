"""Compare the tables of random groups with what really happened, and record the sums.

A simulated run is a seed of the random search of scripts/bench_sim. The simulator writes its
transactions as a log, and its own history and its members tell what happened. A real run is a group
of up to five members on a sandbox for `--seconds` of random faults: joins, leaves, kills, frozen
processes, ended sessions, and broken, silent and lossy connections. A second reader of ZooKeeper's
log and the members' traces tell what happened. `missed` counts rows that the tables lack or have
with a wrong value, and `invented` counts rows that never happened.

Runs of different seeds add up: with `--record`, each command writes one record, and
docs/history.md has the sum of all.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import _records
from _bench import Result, at_least, at_most, end_with_parent
from support.history import real, simulated
from support.history.truth import Differences, differences

from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import find_servers
from zkconsumer.sandbox import Sandbox

SHOWN = 20
"""Differences that are printed."""


def simulate(seed: int) -> Differences:
    """Compare the tables of a simulated run."""
    log, _ = simulated.simulated(seed)
    with tempfile.TemporaryDirectory() as folder:
        log.log.write(Path(folder))
        description = Description(find_servers([folder]))
        description.read()
        return differences(log.truth()[0], description.result(), log.truth()[1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def all_runs(arguments: argparse.Namespace) -> Iterator[tuple[str, Differences]]:
    """Yield the name and the differences of each run."""
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.runs)
    with ProcessPoolExecutor(arguments.processes, initializer=end_with_parent) as pool:
        for number, found in enumerate(pool.map(simulate, seeds, chunksize=10)):
            if number % 100 == 99:
                say(f"{number + 1} of {len(seeds)} simulated runs")
            yield f"simulated run {seeds[number]}", found
    if not arguments.real:
        return
    with Sandbox(tick_time_s=0.1) as sandbox:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.real):
            one = partial(real.run, sandbox, f"run-{seed}", seed, seconds=arguments.seconds)
            found = one(say=lambda _: None)
            say(f"real run {seed}: {dict(found.compared)}")
            yield f"real run {seed}", found


def measure(arguments: argparse.Namespace) -> list[Result]:
    """Run all, print the first differences, and record the sums if asked to."""
    began = time.monotonic()
    compared: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    missed, invented = [], []
    for name, found in all_runs(arguments):
        runs[name.split()[0]] += 1
        compared += found.compared
        missed += [f"{name}: {one}" for one in found.missed]
        invented += [f"{name}: {one}" for one in found.invented]
    for what, lines in (("missed", missed), ("invented", invented)):
        for line in lines[:SHOWN]:
            say(f"{what} in {line}")
    if arguments.record:
        _records.write(
            "history",
            seconds=time.monotonic() - began,
            seeds={"first": arguments.first_seed, "runs": arguments.runs, "real": arguments.real},
            counts={
                "simulated": runs["simulated"],
                "real": runs["real"],
                "rows": dict(sorted(compared.items())),
                "missed": len(missed),
                "invented": len(invented),
            },
            violations=[*missed, *invented][:SHOWN],
            name=f"{arguments.first_seed}-{arguments.runs}-{arguments.real}",
        )
    return [
        at_most("incidents", "missed", len(missed), "rows", 0),
        at_most("incidents", "invented", len(invented), "rows", 0),
        at_least("incidents", "rows", compared.total(), "rows", 1),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the case `incidents`."""
    group = parser.add_argument_group("incidents")
    group.add_argument("--runs", type=int, default=1000, help="number of simulated runs")
    group.add_argument("--real", type=int, default=50, help="number of real runs")
    group.add_argument("--first-seed", type=int, default=0, help="the first seed; each run adds 1")
    group.add_argument("--seconds", type=float, default=8.0, help="seconds of faults in a real run")
    group.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="processes of the simulated runs"
    )
