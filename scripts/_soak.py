"""Random faults for hours: on real servers, or with --simulated in the simulator.

On real servers: one round after another of `tests/support/members/random_faults.py`, each with its
own group. The command prints each fault, a line per round, and a verdict. It exits with 1 at the
first round that fails; the seed of that round repeats its faults. At the end, servers, members and
files are removed in every case.

Simulated: schedules from new seeds on all cores. Each violation is printed at once. At the end it
is shrunk and printed as decisions and as a story. Ctrl-C ends the run early and prints the results
so far.

`--record` writes a file to docs/records/, from which `scripts/records` generates the tables of
docs/verification.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import _records  # noqa: E402
from _explore import Totals, endless, explore, story  # noqa: E402
from support.members.crew import Crew  # noqa: E402
from support.members.random_faults import Mixture  # noqa: E402
from support.zk.proxies import Trap  # noqa: E402

from zkconsumer.sandbox import Sandbox  # noqa: E402
from zkconsumer.sim.coverage import possible  # noqa: E402

# Seconds of faults per round. A round is limited, because its deliveries are kept in memory until
# they are judged.
ROUND_S = 120.0
PARTITIONS = 8


def one_round(sandbox: Sandbox, seed: int, seconds: float) -> tuple[Counter[str], int, int]:
    """Run one round. Return the faults, the number of delivered messages, and the number of
    redelivered ones.
    """
    topic = f"soak-{seed}"
    sandbox.create_topic(topic, partitions=PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="zkconsumer-soak-") as directory, ExitStack() as stack:
        crew = Crew(
            sandbox.zookeeper_connect, sandbox.bootstrap, f"group-{seed}", Path(directory), stack
        )
        crew.feed(topic, PARTITIONS)
        trap = stack.enter_context(Trap(sandbox.zookeeper_connect))
        mixture = Mixture(crew, trap, seed, lambda line: print(line, flush=True))
        mixture.run(seconds)
        evidence = mixture.judge()
        return mixture.acts, len(evidence.deliveries), evidence.duplicates()


def soak(seconds: float, seed: int, *, is_recorded: bool) -> int:
    """Run rounds until the time is over; return the exit code."""
    started = time.monotonic()
    first, end = seed, started + seconds
    acts, rounds, delivered, again = Counter[str](), 0, 0, 0
    failed: list[dict[str, object]] = []
    with Sandbox(tick_time_s=0.1) as sandbox:
        while (left := end - time.monotonic()) > 0:
            print(f"round {rounds + 1}: --seed {seed}, {left / 60:.1f} minutes to go", flush=True)
            try:
                did, count, twice = one_round(sandbox, seed, min(ROUND_S, left))
            except AssertionError as error:
                print(f"FAILED in round {rounds + 1}, --seed {seed}: {error}", flush=True)
                failed.append({"seed": seed, "invariant": _promise(error), "text": str(error)})
                break
            rounds, delivered, again, seed = rounds + 1, delivered + count, again + twice, seed + 1
            acts += did
            print(f"round {rounds}: {count} delivered, {twice} redelivered", flush=True)
    summary = ", ".join(f"{count} x {act}" for act, count in sorted(acts.items()))
    if is_recorded:
        _record(
            first,
            seconds=time.monotonic() - started,
            failed=failed,
            counts={
                "rounds": rounds,
                "faults": sum(acts.values()),
                "delivered": delivered,
                "redelivered": again,
                "acts": dict(sorted(acts.items())),
            },
        )
    if failed:
        return 1
    print(f"PASSED: {rounds} rounds; {summary}")
    print(f"{delivered} messages delivered, {again} redelivered, 0 lost, 0 violations")
    return 0


def _promise(error: AssertionError) -> str:
    """Return the number of the broken promise, or an empty text if a group did not settle."""
    return str(getattr(error, "invariant", ""))


def _record(
    seed: int, *, seconds: float, failed: list[dict[str, object]], counts: dict[str, object]
) -> None:
    """Write the record. A broken promise ends the run, so each is counted once at most."""
    broken = [one["invariant"] for one in failed]
    counts |= {
        "lost": broken.count("I5"),
        "owned_twice": broken.count("I1") + broken.count("I2"),
        "moved_back": broken.count("I7"),
    }
    rounds = counts["rounds"]
    assert isinstance(rounds, int)
    _records.write(
        "soak",
        seconds=seconds,
        seeds={"first": seed, "last": seed + rounds - 1},
        counts=counts,
        violations=failed,
        name=str(seed),
    )


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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="duration of the run in hours")
    length.add_argument("--minutes", type=float, help="duration of the run in minutes")
    parser.add_argument(
        "--seed", type=int, help="seed of the first round; each further round adds 1"
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
    parser.add_argument("--record", action="store_true", help="write a record to docs/records/")
    given = parser.parse_args()
    seconds = given.minutes * 60 if given.hours is None else given.hours * 3600
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    # SIGTERM ends the run as Ctrl-C does, so that all servers are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given.simulated:
            return simulated(seconds, seed, processes=given.processes, is_recorded=given.record)
        return soak(seconds, seed, is_recorded=given.record)
    except KeyboardInterrupt:
        print("interrupted: no verdict", flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
