"""Measure how fast the simulator runs the production core, and whether it finds planted faults.

`swarm`: random schedules of 3 members and 6 partitions, on as many processes as there are cores
(`--processes`), each from a separate seed; no schedule may break a promise. `exhaustive`: a
breadth-first search of a small world, which visits each state once. `mutants`: planted faults, each
of which must be caught within 2,000 schedules. `bridge`: random schedules of groups that a
bridge divides; none may break a promise. `reached`: how many pairs of (phase, event), (phase,
outcome) and (phase, fault) 50,000 schedules reach, and which they never reach.

For a long run: `scripts/bench_sim --case swarm --worlds any --schedules 200000 --first-seed 0
--record`; `--worlds any` draws sizes, too, as the tests do. `--record` writes a file to
docs/records/, from which `scripts/records` writes the tables of docs/verification.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import _records
from _bench import Result, add_json, at_least, at_most, end_with_parent, show
from _explore import WORLDS, Totals, cpu_seconds_of_children, pieces
from _explore import explore as explore_swarm
from support.sim import coordinated_exhaustive as of_coordinator
from support.sim.coverage import possible

from zkconsumer.sim import exhaustive_search as of_zookeeper
from zkconsumer.sim.coordinated.search import PROTOCOLS

ROOT = Path(__file__).resolve().parent.parent
sim_mutants = importlib.import_module("support.sim.mutants")
MUTANTS = sim_mutants.MUTANTS
later_mutants = importlib.import_module("support.sim.later_mutants")

ZOOKEEPER, COORDINATED = "zookeeper", "coordinated"

SCHEDULES_PER_MINUTE = 2_000.0
CATCH_WITHIN = 2_000
PART, EXHAUSTIVE_S = 10_000, 60.0  # number of states, and seconds that they take on one slow core
BRIDGED = 300  # number of schedules of a group that a bridge divides
REACHED_WITHIN = 50_000  # number of schedules that must reach every pair that can occur


def swarm(arguments: argparse.Namespace) -> list[Result]:
    totals, seconds = _explored(arguments, arguments.schedules or 3_000, arguments.worlds)
    seeds = {"first": arguments.first_seed, "last": arguments.first_seed + totals.schedules - 1}
    cpu_ms = cpu_seconds_of_children() / totals.schedules * 1000
    print(
        f"seeds {seeds['first']} to {seeds['last']}, worlds {arguments.worlds}: {seconds:.0f} s, "
        f"{cpu_ms:.1f} ms of a processor for each"
    )
    if arguments.record:
        _records.write(
            "swarm",
            seconds=seconds,
            seeds=seeds,
            counts=totals.counts(),
            violations=totals.violations,
            name=str(seeds["first"]),
        )
    per_minute = totals.schedules / seconds * 60
    return [
        at_least("swarm", "schedules_per_minute", per_minute, "1/min", SCHEDULES_PER_MINUTE),
        at_most("swarm", "violations", len(totals.violations), "", 0),
    ]


def bridge(arguments: argparse.Namespace) -> list[Result]:
    totals, seconds = _explored(arguments, arguments.schedules or BRIDGED, "bridged")
    seeds = {"first": arguments.first_seed, "last": arguments.first_seed + totals.schedules - 1}
    print(f"seeds {seeds['first']} to {seeds['last']}: {seconds:.0f} s")
    if arguments.record:
        _records.write(
            "bridged",
            seconds=seconds,
            seeds=seeds,
            counts=totals.counts(),
            violations=totals.violations,
            name=str(seeds["first"]),
        )
    return [at_most("bridge", "violations", len(totals.violations), "", 0)]


def reached(arguments: argparse.Namespace) -> list[Result]:
    totals, seconds = _explored(
        arguments, arguments.schedules or REACHED_WITHIN, "any", counted=True
    )
    never = totals.never()
    for pair in never:
        print(f"never reached: {pair}")
    pairs = len(possible()) - len(never)
    if arguments.record:
        seeds = {"first": arguments.first_seed, "last": arguments.first_seed + totals.schedules - 1}
        counts = {
            **totals.counts(),
            "pairs": pairs,
            "never": [str(pair) for pair in never],
            "reached": {str(pair): count for pair, count in sorted(totals.pairs.items())},
        }
        _records.write(
            "reached", seconds=seconds, seeds=seeds, counts=counts, violations=totals.violations
        )
    return [
        at_least("reached", "pairs", pairs, "", len(possible())),
        at_most("reached", "never", len(never), "", 0),
    ]


def _explored(
    arguments: argparse.Namespace, schedules: int, worlds: str, *, counted: bool = False
) -> tuple[Totals, float]:
    started = time.monotonic()
    totals = Totals()

    def told(so_far: Totals) -> None:
        if so_far.schedules % 1_000 == 0:
            reached = f", {len(so_far.never())} pairs not reached yet" if counted else ""
            seconds = time.monotonic() - started
            print(f"{so_far.schedules} schedules, {seconds:.0f} s{reached}", flush=True)

    explore_swarm(
        totals,
        pieces(arguments.first_seed, schedules),
        worlds=worlds,
        processes=arguments.processes,
        counted=counted,
        report=told,
    )
    return totals, time.monotonic() - started


def exhaustive(arguments: argparse.Namespace) -> list[Result]:
    if arguments.world == ZOOKEEPER:
        return _exhaustive(arguments, ZOOKEEPER, of_zookeeper, of_zookeeper.Scope)
    return [
        one
        for protocol in _protocols(arguments.world)
        for one in _exhaustive(
            arguments, protocol, of_coordinator, partial(of_coordinator.Scope, protocol)
        )
    ]


def _protocols(world: str) -> list[str]:
    """Return the protocols of a world with a coordinator."""
    return sorted(PROTOCOLS) if world == COORDINATED else [world]


def _exhaustive(
    arguments: argparse.Namespace, world: str, searches: Any, scope_of: Callable[..., Any]
) -> list[Result]:
    """Search a small world; `searches` is the module of its exhaustive search."""
    scope = scope_of(faults=arguments.faults)
    found = searches.explore(scope, max_states=arguments.states)
    print(
        f"{scope}: {found.transitions} transitions, paths of up to {found.depth} moves, "
        f"convergence from {found.rests} states at rest, complete: {found.complete}"
    )
    broken = []
    if found.violation:
        print(found.violation, *found.path, sep="\n  ")
        print(*searches.story_of(scope, found.path), sep="\n")
        broken = [{"invariant": found.violation.invariant, "text": str(found.violation)}]
    if arguments.record:
        keys = ("states", "transitions", "depth", "rests", "complete")
        counts = {"faults": scope.faults, **{key: getattr(found, key) for key in keys}}
        _records.write(
            "exhaustive",
            seconds=found.seconds,
            violations=broken,
            counts={"world": world, **counts},
            name="-".join([*([world] if world != ZOOKEEPER else []), f"{scope.faults}-faults"]),
        )
    states = found.states if found.complete else arguments.states
    limit = EXHAUSTIVE_S * max(1, states / PART)
    return [
        at_least(f"exhaustive {world}", "states", found.states, "", states),
        at_most(f"exhaustive {world}", "violations", len(broken), "", 0),
        at_most(f"exhaustive {world}", "seconds", found.seconds, "s", limit),
    ]


def mutants(arguments: argparse.Namespace) -> list[Result]:
    if arguments.world != ZOOKEEPER:
        return _later_mutants(arguments)
    wanted = arguments.mutant or [one.name for one in MUTANTS]
    chosen = [index for index, one in enumerate(MUTANTS) if one.name in wanted]
    started = time.monotonic()
    with ProcessPoolExecutor(arguments.processes, initializer=end_with_parent) as pool:
        caught = list(pool.map(catch, chosen))
    rows: dict[str, Any] = {}
    for index, found in zip(chosen, caught, strict=True):
        count, number = found or (0, "not caught")
        print(f"{MUTANTS[index].name:<30} {number:<12} {count:>6}", flush=True)
        rows[MUTANTS[index].name] = {"caught_by": number, "schedules": count}
    if arguments.record:
        name = "" if len(chosen) == len(MUTANTS) else "-".join(wanted).replace(" ", "_")[:40]
        _records.write(
            "mutants",
            seconds=time.monotonic() - started,
            name=name,
            counts=rows,
            seeds={"first": 0, "last": CATCH_WITHIN - 1},
        )
    return [at_most("mutants", "not_caught", caught.count(None), "", 0)]


def _later_mutants(arguments: argparse.Namespace) -> list[Result]:
    """Search for the planted faults of the later protocols exhaustively, with few faults first."""
    missed = 0
    protocols = _protocols(arguments.world)
    for one in later_mutants.MUTANTS:
        if one.name not in (arguments.mutant or [one.name]) or one.protocol not in protocols:
            continue
        for faults in range(arguments.faults + 1):
            scope = of_coordinator.Scope(one.protocol, faults=faults)
            with one.planted():
                found = of_coordinator.explore(scope, max_states=arguments.states)
            if found.violation is not None:
                break
        number = "not caught" if found.violation is None else found.violation.invariant
        print(f"{one.name:<40} {number:<12} {found.states:>6} states, {faults} faults", flush=True)
        missed += found.violation is None
    return [at_most("mutants", "not_caught", missed, "", 0)]


def catch(index: int) -> tuple[int, str] | None:
    """Return the number of schedules until a mutant is caught, and the promise that it breaks."""
    found = sim_mutants.schedules_to_catch(MUTANTS[index], limit=CATCH_WITHIN)
    return (found[0], found[1].invariant) if found else None


CASES = {
    "swarm": swarm,
    "bridge": bridge,
    "exhaustive": exhaustive,
    "mutants": mutants,
    "reached": reached,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    add_json(parser)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--schedules",
        type=int,
        help="number of schedules (default 3,000; case bridge: 300; case reached: 50,000)",
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--worlds", choices=sorted(WORLDS), default="3x6")
    parser.add_argument(
        "--states", type=int, default=PART, help="number of states (case exhaustive)"
    )
    parser.add_argument(
        "--faults", type=int, default=2, help="maximum number of faults (case exhaustive)"
    )
    parser.add_argument(
        "--world",
        choices=[ZOOKEEPER, COORDINATED, *sorted(PROTOCOLS)],
        default=ZOOKEEPER,
        help="what the cases exhaustive and mutants search: a group on ZooKeeper, groups with a "
        "coordinator for all later protocols, or a group with a coordinator for one protocol",
    )
    parser.add_argument("--mutant", action="append", help="this mutant only; may be repeated")
    parser.add_argument("--record", action="store_true", help="write a file to docs/records/")
    arguments = parser.parse_args()
    results = [one for case in arguments.case or CASES for one in CASES[case](arguments)]
    return show("sim", results, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())
