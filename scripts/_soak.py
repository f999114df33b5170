"""Random trouble for hours: round after round of `tests/mixture.py`, each with a group of its own.

Prints each act, a line per round, and a verdict; exits with 1 at the first round that fails, whose
seed repeats its acts. Servers, members and files are gone afterwards, whatever happens.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration"), str(ROOT)]

from crew import Crew  # noqa: E402
from mixture import Mixture  # noqa: E402
from trap import Trap  # noqa: E402

from zkconsumer.sandbox import Sandbox  # noqa: E402

# Seconds of trouble per round: what a group has delivered is held in memory until it is judged.
ROUND_S = 120.0
PARTITIONS = 8


def one_round(sandbox: Sandbox, seed: int, seconds: float) -> tuple[Counter[str], int, int]:
    """What was done, the messages delivered, and how many of those again."""
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


def soak(seconds: float, seed: int) -> int:
    """Rounds until the time is over; the exit code."""
    end = time.monotonic() + seconds
    acts, rounds, delivered, again = Counter[str](), 0, 0, 0
    with Sandbox(tick_time_s=0.1) as sandbox:
        while (left := end - time.monotonic()) > 0:
            print(f"round {rounds + 1}: --seed {seed}, {left / 60:.1f} minutes to go", flush=True)
            try:
                did, count, twice = one_round(sandbox, seed, min(ROUND_S, left))
            except AssertionError as error:
                print(f"FAILED in round {rounds + 1}, --seed {seed}: {error}", flush=True)
                return 1
            rounds, delivered, again, seed = rounds + 1, delivered + count, again + twice, seed + 1
            acts += did
            print(f"round {rounds}: {count} delivered, {twice} of them again", flush=True)
    told = ", ".join(f"{count} x {act}" for act, count in sorted(acts.items()))
    print(f"PASSED: {rounds} rounds; {told}")
    print(f"{delivered} messages delivered, {again} of them again, 0 lost, 0 violations")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="how long to go on")
    length.add_argument("--minutes", type=float, help="the same, for a short run")
    parser.add_argument("--seed", type=int, help="of the first round; the next have the next ones")
    given = parser.parse_args()
    seconds = given.minutes * 60 if given.hours is None else given.hours * 3600
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    # A SIGTERM ends it as Ctrl-C does, so that everything is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return soak(seconds, seed)
    except KeyboardInterrupt:
        print("interrupted: no verdict", flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
