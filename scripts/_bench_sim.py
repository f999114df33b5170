"""How fast the simulator runs the production core, what it finds, and whether it finds anything.

`swarm`: random schedules of 3 members and 6 partitions, on as many processes as there are cores
(`--processes`), each from a seed of its own; none may break a promise. `exhaustive`: a small world,
breadth-first, each state once. `mutants`: planted faults, each of which must be caught within 2,000
schedules. With `--table` the mutants' case also writes its table into docs/verification.md.

For a long run: `scripts/bench_sim --case swarm --worlds any --schedules 200000 --first-seed 0`;
`--worlds any` draws sizes, too, as the tests do.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from _bench import Result, at_least, at_most, show

from zkconsumer.sim.exhaustive import Scope, explore
from zkconsumer.sim.swarm import Decisions, draw_plan, run, run_plan

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
simmutants = importlib.import_module("simmutants")
MUTANTS = simmutants.MUTANTS

PAGE = ROOT / "docs" / "verification.md"
BEGIN, END = "<!-- mutants: written by scripts/bench_sim -->", "<!-- end of mutants -->"

MEMBERS, PARTITIONS = 3, 6
SCHEDULES_PER_MINUTE = 3_000.0
CHUNK = 50  # seeds that a process takes at once
CATCH_WITHIN = 2_000
PART, EXHAUSTIVE_S = 10_000, 60.0  # states, and seconds for so many on one slow core
WHOLE = {0: 503}  # by faults: how many states the scope has, where it was explored to its end


def one_size(seed: int) -> str:
    """A schedule of 3 members and 6 partitions; what it breaks, or an empty text."""
    decide = Decisions(random.Random(seed))
    plan, length, rarity = draw_plan(decide)
    plan = replace(plan, members=MEMBERS, partitions=PARTITIONS)
    found = run_plan(plan, decide, length=length, rarity=rarity).violation
    return f"seed {seed}: {found}" if found else ""


def any_size(seed: int) -> str:
    """A schedule of any size that a seed draws."""
    found = run(Decisions(random.Random(seed))).violation
    return f"seed {seed}: {found}" if found else ""


WORLDS = {"3x6": one_size, "any": any_size}


def swarm(arguments: argparse.Namespace) -> list[Result]:
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.schedules)
    started = time.monotonic()
    violations = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for done, found in enumerate(
            pool.map(WORLDS[arguments.worlds], seeds, chunksize=CHUNK), start=1
        ):
            if found:
                violations.append(found)
                print(found, flush=True)
            if done % 10_000 == 0:
                print(f"{done} schedules, {time.monotonic() - started:.0f} s", flush=True)
    seconds = time.monotonic() - started
    per_minute = len(seeds) / seconds * 60
    spent = os.times()
    cpu_ms = (spent.children_user + spent.children_system) / len(seeds) * 1000
    print(f"seeds {seeds.start}..{seeds.stop - 1}, worlds {arguments.worlds}: {seconds:.0f} s, "
          f"{cpu_ms:.1f} ms of a processor for each")
    return [
        at_least("swarm", "schedules_per_minute", per_minute, "1/min", SCHEDULES_PER_MINUTE),
        at_most("swarm", "violations", len(violations), "", 0),
    ]


def exhaustive(arguments: argparse.Namespace) -> list[Result]:
    scope = Scope(faults=arguments.faults)
    found = explore(scope, max_states=arguments.states)
    print(f"{scope}: {found.transitions} transitions, paths of up to {found.depth} actions, "
          f"convergence from {found.rests} states at rest, complete: {found.complete}")
    if found.violation:
        print(found.violation, *found.path, sep="\n  ")
    states = min(arguments.states, WHOLE.get(arguments.faults, arguments.states))
    return [
        at_least("exhaustive", "states", found.states, "", states),
        at_most("exhaustive", "violations", int(found.violation is not None), "", 0),
        at_most("exhaustive", "seconds", found.seconds, "s", EXHAUSTIVE_S * max(1, states / PART)),
    ]


def mutants(arguments: argparse.Namespace) -> list[Result]:
    with ProcessPoolExecutor(arguments.processes) as pool:
        caught = list(pool.map(catch, range(len(MUTANTS))))
    rows = []
    for mutant, found in zip(MUTANTS, caught, strict=True):
        count, number = found or (0, "not caught")
        print(f"{mutant.name:<30} {number:<12} {count:>6}", flush=True)
        rows.append(f"| {mutant.name} | {mutant.what} | {mutant.who} | {number} | {count} |")
    if arguments.table:
        write_table(rows)
    return [at_most("mutants", "not_caught", caught.count(None), "", 0)]


def catch(index: int) -> tuple[int, str] | None:
    """How many schedules a mutant takes, and which promise it breaks."""
    found = simmutants.schedules_to_catch(MUTANTS[index], limit=CATCH_WITHIN)
    return (found[0], found[1].invariant) if found else None


def write_table(rows: Sequence[str]) -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    head = "| mutant | what is wrong | who does it | caught by | schedules |\n|---|---|---|---|---|"
    table = "\n".join([head, *rows])
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


CASES = {"swarm": swarm, "exhaustive": exhaustive, "mutants": mutants}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument(
        "--json", action="store_const", const="json", default="table", dest="output"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--schedules", type=int, default=3_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--worlds", choices=sorted(WORLDS), default="3x6")
    parser.add_argument("--states", type=int, default=PART, help="of the exhaustive case")
    parser.add_argument("--faults", type=int, default=2, help="of the exhaustive case, at most")
    parser.add_argument("--table", action="store_true", help="write the mutants' table")
    arguments = parser.parse_args()
    results = [one for case in arguments.case or CASES for one in CASES[case](arguments)]
    return show("sim", results, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())
