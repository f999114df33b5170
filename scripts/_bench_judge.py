"""Run the solutions of docs/examples/judge by many schedules, and measure a judge's run.

`ladder`: the solution in this process, by `--schedules` hidden schedules of each challenge; none
may break a promise. `runs`: `zkconsumer judge` with the solution, and with the naive member, once
for each challenge: seconds of the wall clock, and seconds of a processor, programs included.

`--challenge NAME` chooses challenges. `--record` writes a file to docs/records/, from which
`scripts/records` writes the tables of docs/judge.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _records
from _bench import Result, add_json, at_most, show

from zkconsumer.judge import challenges, classic_court
from zkconsumer.judge.judging import Challenge
from zkconsumer.judge.ladders import court, ladder_of
from zkconsumer.judge.program import LocalProgram
from zkconsumer.sim.kernel.search import Decisions

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples" / "judge"

CHALLENGES = {**challenges.CHALLENGES, **classic_court.CHALLENGES}

RUN_S = 20.0
"""The most seconds that a judge's run of one challenge may take on two cores."""

PIECE = 50
"""Number of schedules of one challenge before those of the next one, so that a run that ends by
`--seconds` has as many schedules of each challenge."""


def _file(kind: str, challenge: Challenge) -> Path:
    """Return the example of this kind (`naive`, `solution`) for the ladder of a challenge."""
    suffix = "_classic" if challenge.name in classic_court.CHALLENGES else ""
    return EXAMPLES / f"{kind}{suffix}.py"


def _solution(challenge: Challenge) -> Any:  # Any: a class of an example
    path = _file("solution", challenge)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Solution


def ladder(arguments: argparse.Namespace) -> list[Result]:
    first, last = arguments.first_seed, arguments.first_seed + arguments.schedules - 1
    tallies = {one.name: SolutionCount() for one in _chosen(arguments.challenge)}
    started = time.monotonic()
    for begin in range(first, last + 1, PIECE):
        for name, tally in tallies.items():
            _add(tally, CHALLENGES[name], range(begin, min(begin + PIECE, last + 1)))
        seconds = time.monotonic() - started
        done = {name: one.schedules for name, one in tallies.items()}
        print(f"{seconds:.0f} s: {min(done.values())} schedules of each challenge", flush=True)
        if seconds > arguments.seconds:
            break
    violations = [
        {"challenge": name, **found} for name, one in tallies.items() for found in one.violations
    ]
    if arguments.record:
        _records.write(
            "ladder",
            seconds=time.monotonic() - started,
            seeds={"first": first, "last": first + max(done.values()) - 1},
            counts={
                name: {"schedules": one.schedules, "cpu_s": round(one.cpu_s, 1)}
                for name, one in tallies.items()
            },
            violations=violations,
            name=str(first),
        )
    return [at_most("ladder", "violations", len(violations), "", 0)]


@dataclass
class SolutionCount:
    """What the schedules of one challenge have shown, and their seconds of a processor."""

    schedules: int = 0
    cpu_s: float = 0.0
    violations: list[dict[str, Any]] = field(default_factory=list)


def _add(tally: SolutionCount, challenge: Challenge, seeds: range) -> None:
    """Run the schedules of these seeds with the solution."""
    kind, vocabulary = _solution(challenge), ladder_of(challenge).vocabulary
    started = time.process_time()
    with court(challenge, lambda name: LocalProgram(name, kind, vocabulary)) as bench:
        for number in seeds:
            found = bench.run(Decisions(random.Random(number)))[0].violation
            if found is not None:
                print(f"{challenge.name}, seed {number}: {found}", flush=True)
                broken = {"seed": number, "invariant": found.invariant, "text": str(found)}
                tally.violations.append(broken)
    tally.schedules += len(seeds)
    tally.cpu_s += time.process_time() - started


def runs(arguments: argparse.Namespace) -> list[Result]:
    results, counts = [], {}
    started = time.monotonic()
    for challenge in _chosen(arguments.challenge):
        for kind in ("solution", "naive"):
            wall_s, cpu_s, code = _run(_file(kind, challenge), challenge.name)
            counts[f"{challenge.name} {kind}"] = {
                "wall_s": round(wall_s, 1),
                "cpu_s": round(cpu_s, 1),
                "passed": code == 0,
            }
            case = f"{challenge.name} {kind}"
            results.append(at_most(case, "seconds", wall_s, "s", RUN_S))
            print(f"{case}: {wall_s:.1f} s, {cpu_s:.1f} s of a processor, exit {code}", flush=True)
    if arguments.record:
        _records.write("judge", seconds=time.monotonic() - started, counts=counts)
    return results


def _run(program: Path, challenge: str) -> tuple[float, float, int]:
    """Judge a program once; return the seconds, the processor's seconds, and the exit code."""
    command = [sys.executable, "-m", "zkconsumer", "judge", str(program), "--challenge", challenge]
    before, began = os.times(), time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False)
    after = os.times()
    cpu_s = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return time.monotonic() - began, cpu_s, done.returncode


def _chosen(names: Sequence[str] | None) -> list[Challenge]:
    return [one for name, one in CHALLENGES.items() if names is None or name in names]


CASES = {"ladder": ladder, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument("--challenge", choices=list(CHALLENGES), action="append")
    parser.add_argument("--schedules", type=int, default=200, help="schedules of each challenge")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="seconds after which no further piece begins"
    )
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write a file to docs/records/")
    add_json(parser)
    arguments = parser.parse_args()
    results = [one for case in arguments.case or CASES for one in CASES[case](arguments)]
    return show("judge", results, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())
