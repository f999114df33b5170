"""Random faults for hours: on real servers, or with --simulated in the simulator.

On real servers: rounds of `tests/support/members/random_faults.py`, each with its own group;
--groups of them run at a time. The command prints each fault with the number of its group, a line
per round, and a verdict. After the first failed round it starts no further round, and exits with 1.
The seed of that round repeats its faults, and the files of its members are kept. Ctrl-C ends the
run early and prints the results so far. At the end, servers and members are always removed.

Simulated: schedules from new seeds on all cores. Each violation is printed at once. At the end it
is shrunk and printed as decisions and as a story. Ctrl-C ends the run early and prints the results
so far.

The lab (--lab): the page of a live group stays open in Chromium while members join, leave and
commit. Once the lab keeps its maximum number of events, its memory must not grow.

A bridge (--bridge RELEASE): on brokers of this release, a group moves to the brokers' protocol and
back, four times each. Its members are JVM members and zkconsumer on the old side, and Java's
consumer of 3.9.1 and librdkafka on the new side; every 20 s one of each side is killed.

`--record` writes a file to docs/records/, from which `scripts/records` generates the tables of
docs/verification.md and docs/migrating.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import _records
import _soak_bridge
import _soak_lab
from _explore import Totals, endless, explore, story
from _soak_rounds import Rounds, Sums, run
from support.sim.coverage import possible

ROUND_S = 15.0
"""Seconds of faults per round. Its deliveries are kept in memory until they are judged."""

GROUPS = 2
"""Number of groups at a time, for two cores. Each group has up to five members."""


def soak(given: argparse.Namespace, seconds: float | None, seed: int) -> int:
    """Run rounds on real servers, and print the verdict; return the exit code."""
    started = time.monotonic()
    sums = Sums(seed, seed - 1)
    rounds = Rounds(sums, rounds=given.rounds, seconds=seconds)
    is_interrupted = False
    try:
        run(sums, rounds, groups=given.groups, round_s=given.round_s)
    except KeyboardInterrupt:
        is_interrupted = True
        print("interrupted: the verdict covers the rounds that had ended", flush=True)
    if given.record and (sums.rounds or sums.failed):
        _records.write(
            "soak",
            seconds=time.monotonic() - started,
            seeds={"first": sums.first, "last": sums.last},
            counts={**sums.counts(), "groups": given.groups, "round_s": given.round_s},
            violations=sums.failed,
            name=str(seed),
        )
    summary = ", ".join(f"{count} x {act}" for act, count in sorted(sums.acts.items()))
    verdict = "FAILED" if sums.failed else "PASSED"
    print(f"{verdict}: {sums.rounds} rounds; {summary}")
    print(
        f"{sums.delivered} messages delivered, {sums.redelivered} redelivered, "
        f"{len(sums.failed)} violations"
    )
    return 1 if sums.failed else 130 if is_interrupted else 0


PROGRESS_S = 30.0


def simulated(seconds: float, seed: int, *, processes: int, is_recorded: bool) -> int:
    """Run schedules of the simulator until the time is over or Ctrl-C; return the exit code."""
    started = shown = time.monotonic()
    totals = Totals()

    def report(so_far: Totals) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= PROGRESS_S:
            shown = now
            print(
                f"{so_far.schedules} schedules, {len(so_far.violations)} violations, "
                f"{now - started:.0f} s",
                flush=True,
            )

    print(f"seeds from {seed}, {processes} processes", flush=True)
    try:
        explore(
            totals,
            endless(seed, seconds),
            worlds="any",
            processes=processes,
            counted=True,
            report=report,
        )
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    seconds = time.monotonic() - started
    pairs, never = len(possible()), totals.never()
    print(
        f"{totals.schedules} schedules from seed {seed} in {seconds:.0f} s, "
        f"{totals.actions} actions, {totals.deliveries} deliveries, {totals.duplicates} "
        f"redeliveries; {pairs - len(never)} of {pairs} pairs reached; "
        f"{len(totals.violations)} violations"
    )
    for pair in never:
        print(f"never reached: {pair}")
    if is_recorded and totals.schedules:
        last = seed + totals.schedules - 1
        _records.write(
            "swarm",
            seconds=seconds,
            seeds={"first": seed, "last": last},
            counts=totals.counts(),
            violations=totals.violations,
            name=str(seed),
        )
    for violation in totals.violations[:MOST_STORIES]:
        print(story(violation["seed"], "any"), flush=True)
    return int(bool(totals.violations))


MOST_STORIES = 5
"""Maximum number of violations that are shrunk and printed; the seeds of all others are printed."""


def lab(seconds: float, seed: int, *, is_recorded: bool) -> int:
    """Follow a live group in the lab, and print the verdict; return the exit code."""
    started = time.monotonic()

    def report(one: _soak_lab.Sample) -> None:
        sizes = (one.page_heap, one.browser_resident, one.server_resident)
        heap, browser, server = (f"{size / 1e6:.1f} MB" for size in sizes)
        print(
            f"{one.seconds:.0f} s, {one.events} events: heap of the page {heap}, "
            f"{one.page_nodes} nodes, browser {browser}, server {server}; "
            f"the last commit was drawn after {one.drawn_s:.2f} s",
            flush=True,
        )

    samples = _soak_lab.run(seconds, seed, report)
    grown = _soak_lab.growths(samples)
    if is_recorded:
        _records.write(
            "lab",
            seconds=time.monotonic() - started,
            seeds={"first": seed, "last": seed},
            counts=_soak_lab.summary(samples),
            violations=grown,
            name=str(seed),
        )
    print("\n".join(["FAILED" if grown else "PASSED", *grown]))
    return int(bool(grown))


def bridge(seconds: float, seed: int, given: argparse.Namespace) -> int:
    """Run a group that a bridge divides, and print the verdict; return the exit code."""
    started = time.monotonic()
    verdict, done = _soak_bridge.run(seconds, seed, release=given.bridge, assignor=given.assignor)
    wrong = verdict.violations
    if given.record:
        _records.write(
            "bridge",
            seconds=time.monotonic() - started,
            seeds={"first": seed, "last": seed},
            counts={
                **done.acts,
                "release": given.bridge,
                "assignor": given.assignor,
                "messages": verdict.produced,
                "redelivered": dict(verdict.explained),
            },
            violations=wrong,
            name=f"{given.bridge}-{given.assignor}",
        )
    acts = ", ".join(f"{count} x {act}" for act, count in sorted(done.acts.items()))
    print("\n".join([f"{'FAILED' if wrong else 'PASSED'}: {acts}", str(verdict), *wrong]))
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="duration of the run in hours")
    length.add_argument("--minutes", type=float, help="duration of the run in minutes")
    length.add_argument("--rounds", type=int, help="number of rounds on real servers")
    parser.add_argument(
        "--seed", type=int, help="seed of the first round; each further round adds 1"
    )
    parser.add_argument(
        "--groups",
        type=int,
        default=GROUPS,
        help=f"number of real groups at a time (default: {GROUPS})",
    )
    parser.add_argument(
        "--round-s",
        type=float,
        default=ROUND_S,
        help=f"seconds of faults in a round on real servers (default: {ROUND_S:g})",
    )
    parser.add_argument(
        "--simulated", action="store_true", help="run in the simulator, on all cores"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="number of processes of a simulated run (default: all cores)",
    )
    parser.add_argument(
        "--lab", action="store_true", help="follow a live group in the lab, and measure its memory"
    )
    parser.add_argument(
        "--bridge", metavar="RELEASE", help="run a group that a bridge divides, on these brokers"
    )
    parser.add_argument(
        "--assignor", default="range", help="the new members' assignor (default: range)"
    )
    parser.add_argument("--record", action="store_true", help="write a record to docs/records/")
    given = parser.parse_args()
    if given.simulated and given.rounds is not None:
        parser.error("--rounds counts rounds on real servers; with --simulated give a duration")
    if given.lab and (given.rounds is not None or given.simulated):
        parser.error("--lab needs a duration, and excludes --simulated")
    if given.bridge and (given.rounds is not None or given.simulated or given.lab):
        parser.error("--bridge needs a duration, and excludes --simulated and --lab")
    if given.groups < 1:
        parser.error("--groups must be at least 1")
    hours = given.minutes / 60 if given.minutes is not None else given.hours
    seconds = None if hours is None else hours * 3600
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    # SIGTERM ends the run as Ctrl-C does, so that all servers are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if seconds is not None and given.lab:
        return lab(seconds, seed, is_recorded=given.record)
    if seconds is not None and given.bridge:
        return bridge(seconds, seed, given)
    if seconds is not None and given.simulated:
        return simulated(seconds, seed, processes=given.processes, is_recorded=given.record)
    return soak(given, seconds, seed)


if __name__ == "__main__":
    sys.exit(main())
