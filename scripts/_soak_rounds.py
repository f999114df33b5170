"""Rounds of random faults on real servers, for several groups at a time.

`run` starts the servers and, for each group, a process that runs this file. The groups of a machine
share the servers. Each group has a separate process, so that the traffic, the proxies and the judge
of one group do not delay those of another. The process of a group reads one line per round (seed
and seconds) from standard input, and writes one JSON object per line to standard output: `say` for
each fault, and `ended` for each round.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from support.members.crew import Crew
from support.members.random_faults import Mixture
from support.zk.proxies import Trap

from zkconsumer.sandbox import Sandbox, topics

PARTITIONS = 8
ROUNDS_PER_SANDBOX = 100
"""Number of rounds after which the servers are replaced: each judge reads their whole log."""


# ---- the parent ----------------------------------------------------------------------------------


@dataclass
class Sums:
    """The sums over the rounds that have ended.

    Attributes:
        first, last: the lowest and the highest seed of a round that has begun.
        failed: seed, promise (or an empty text) and text of each round that failed.
    """

    first: int
    last: int
    rounds: int = 0
    delivered: int = 0
    redelivered: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, seed: int, ended: dict[str, Any]) -> None:
        if "failed" in ended:
            self.failed.append({"seed": seed, **ended["failed"]})
            return
        self.rounds += 1
        self.delivered += ended["delivered"]
        self.redelivered += ended["redelivered"]
        self.acts.update(ended["acts"])

    def counts(self) -> dict[str, Any]:
        """Return the sums as a record shows them."""
        broken = [one["invariant"] for one in self.failed]
        return {
            "rounds": self.rounds,
            "faults": sum(self.acts.values()),
            "delivered": self.delivered,
            "redelivered": self.redelivered,
            "lost": broken.count("I5"),
            "owned_twice": broken.count("I1") + broken.count("I2"),
            "moved_back": broken.count("I7"),
            "acts": dict(sorted(self.acts.items())),
        }


class Rounds:
    """The seeds of the rounds: a new seed until the number of rounds or the time is used up."""

    def __init__(self, sums: Sums, *, rounds: int | None, seconds: float | None) -> None:
        self._sums, self._left = sums, rounds
        self._end = None if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self.is_over = False

    def next(self) -> int | None:
        """Return the seed of the next round; None if there is none."""
        with self._lock:
            is_late = self._end is not None and time.monotonic() >= self._end
            if self.is_over or is_late or self._left == 0:
                self.is_over = True
                return None
            self._left = None if self._left is None else self._left - 1
            self._sums.last += 1
            return self._sums.last

    def end(self) -> None:
        self.is_over = True

    def some(self, count: int) -> Iterator[int]:
        """Yield seeds for up to this many rounds; several threads share the source of the seeds."""
        for _ in range(count):
            if (seed := self.next()) is None:
                return
            yield seed


def run(sums: Sums, rounds: Rounds, *, groups: int, round_s: float) -> None:
    """Run rounds until the last one, the first failure, or Ctrl-C; add them to `sums`."""
    while not rounds.is_over:
        with Sandbox(tick_time_s=0.1) as sandbox, ExitStack() as stack:
            part = ROUNDS_PER_SANDBOX // groups
            workers = [
                stack.enter_context(_Group(number, sandbox, sums, rounds, round_s))
                for number in range(groups)
            ]
            with ThreadPoolExecutor(groups) as pool:
                running = [pool.submit(one.run, part) for one in workers]
                try:
                    for one in running:
                        one.result()
                except BaseException:
                    rounds.end()
                    for worker in workers:
                        worker.interrupt()
                    raise


class _Group:
    """The process that runs the rounds of one group at a time."""

    _PRINTING = threading.Lock()

    def __init__(
        self, number: int, sandbox: Sandbox, sums: Sums, rounds: Rounds, round_s: float
    ) -> None:
        self._number, self._sums, self._rounds, self._round_s = number, sums, rounds, round_s
        self._is_interrupted = False
        self._process = subprocess.Popen(
            [sys.executable, __file__, sandbox.zookeeper_connect, sandbox.bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def interrupt(self) -> None:
        """End the process, which first ends its members. The running round gets no verdict."""
        self._is_interrupted = True
        self._process.terminate()

    def run(self, count: int) -> None:
        """Run up to this many rounds, one after the other."""
        assert self._process.stdin is not None
        for seed in self._rounds.some(count):
            self._say(f"round of seed {seed} begins")
            self._process.stdin.write(f"{seed} {self._round_s}\n")
            self._process.stdin.flush()
            self._follow(seed)

    def _follow(self, seed: int) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "say" in told:
                self._say(told["say"])
                continue
            if self._is_interrupted and "failed" in told:
                return  # the interrupt may end a call of librdkafka with any error
            with self._PRINTING:
                self._sums.add(seed, told)
            if "failed" in told:
                self._rounds.end()
                self._say(f"FAILED, --seed {seed}: {told['failed']['text']}")
            else:
                self._say(
                    f"round of seed {seed} ended: {told['delivered']} delivered, "
                    f"{told['redelivered']} redelivered; {self._sums.rounds} rounds so far"
                )
            return
        if not self._rounds.is_over:
            raise RuntimeError(f"the process of group {self._number} died; see its error above")

    def _say(self, text: str) -> None:
        with self._PRINTING:
            print(f"[{self._number}] {text}", flush=True)


# ---- the process of a group ----------------------------------------------------------------------


def one_round(zookeeper: str, bootstrap: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run one round. Return its faults, the number of delivered messages, and the number of
    redelivered ones; or the failure, and the directory of its files.
    """
    topic = f"soak-{seed}"
    topics.ServerTopics(zookeeper).create_topic(topic, partitions=PARTITIONS)
    directory = Path(tempfile.mkdtemp(prefix="zkconsumer-soak-"))
    try:
        with ExitStack() as stack:
            crew = Crew(zookeeper, bootstrap, f"group-{seed}", directory, stack)
            crew.feed(topic, PARTITIONS)
            trap = stack.enter_context(Trap(zookeeper))
            mixture = Mixture(crew, trap, seed, lambda line: _tell(say=line))
            mixture.run(seconds)
            evidence = mixture.judge()
        ended: dict[str, Any] = {
            "acts": dict(mixture.acts),
            "delivered": len(evidence.deliveries),
            "redelivered": evidence.duplicates(),
        }
    except Exception as error:  # noqa: BLE001 - any exception of a round is its verdict
        text = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
        text += f"\nThe files of its members are in {directory}"
        return {"failed": {"invariant": getattr(error, "invariant", ""), "text": text}}
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)
    topics.ServerTopics(zookeeper).delete_topic(topic)
    return ended


def _tell(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def main() -> None:
    zookeeper, bootstrap = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for line in sys.stdin:
            seed, seconds = line.split()
            _tell(**one_round(zookeeper, bootstrap, int(seed), float(seconds)))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
