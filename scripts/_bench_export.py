"""Measure how fast `zkconsumer consume --to` writes a topic to Parquet files, on one core.

A broker on this machine serves the benchmark. Each run is a separate process with a separate group,
and may use one core. Its time begins with the first message and ends after the commit of the last
file. The file is synced before its commit. Each pair also runs Kafka's console consumer (release
1.1.1, `--bootstrap-server`) on the same data and one core, with its output to /dev/null. Its time
is that of the process, less that of a run that ends after one message.

The disk may be the limit: `written MB/s` is the rate at which this disk writes and syncs the same
number of bytes from memory.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _bench import Load, Result, add_json, at_least, fill, show

from zkconsumer.sandbox import Sandbox, jars

WARM_UPS = 1
LIMIT_S = 300
CONSOLE = "1.1.1"
SUMMARY = re.compile(r"(\d+) messages in (\d+) files, ([\d.]+) s")

SMALL, LARGE = Load("small", 100, 6_000_000, key_size=8), Load("large", 1000, 1_200_000, key_size=8)
# Case -> its load, and the goal in messages per second.
CASES = {"topic to parquet 100B": (SMALL, 3e6), "topic to parquet 1KB": (LARGE, 0.6e6)}


def one_core() -> None:
    """Let the process run on the last core only."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def run(
    command: list[str], limited: Callable[[], None] = one_core
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=limited,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr}")
    return done


class Bench:
    """The servers, and a directory that each run fills and then empties."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self._sandbox, self._directory = sandbox, directory
        self._runs = 0
        self._started_s: float | None = None
        self._classes = ":".join(map(str, jars.resolve(f"kafka-{CONSOLE}")))
        self.bytes = 0

    def export_rate(self, load: Load) -> float:
        """Return the messages per second of one export."""
        self._runs += 1
        to = self._directory / "out"
        command = [sys.executable, "-m", "zkconsumer", "consume", "--topic", load.topic]
        command += ["--zookeeper", self._sandbox.zookeeper_connect, "--from-beginning"]
        command += ["--group", f"export-{self._runs}", "--max-messages", str(load.messages)]
        done = run([*command, "--output", "parquet", "--to", str(to)])
        found = SUMMARY.search(done.stderr)
        if found is None or int(found[1]) != load.messages:
            raise SystemExit(f"the export did not write {load.messages} messages: {done.stderr}")
        self.bytes = sum(one.stat().st_size for one in to.iterdir())
        shutil.rmtree(to)
        return load.messages / float(found[3])

    def console_rate(self, load: Load) -> float:
        """Return the messages per second of Kafka's console consumer."""
        if self._started_s is None:
            self._started_s = self._console_s(load.topic, 1)
        return load.messages / (self._console_s(load.topic, load.messages) - self._started_s)

    def _console_s(self, topic: str, messages: int) -> float:
        command = [str(jars.find_java().executable), "-Xmx256m", "-cp", self._classes]
        command += ["kafka.tools.ConsoleConsumer", "--bootstrap-server", self._sandbox.bootstrap]
        command += ["--topic", topic, "--partition", "0", "--offset", "earliest"]
        start = time.perf_counter()
        run([*command, "--max-messages", str(messages)])
        return time.perf_counter() - start

    def disk_rate(self) -> float:
        """Return the MB per second at which the disk writes and syncs an export's bytes."""
        data = os.urandom(1 << 20)
        path = self._directory / "plain"
        start = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(max(1, self.bytes >> 20)):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        took_s = time.perf_counter() - start
        path.unlink()
        return max(1, self.bytes >> 20) / took_s

    def results(self, case: str, load: Load, goal: float, pairs: int) -> list[Result]:
        rates: list[float] = []
        ratios: list[float] = []
        for number in range(WARM_UPS + pairs):
            console, export = self.console_rate(load), self.export_rate(load)
            counted = "" if number >= WARM_UPS else " (warm-up)"
            print(
                f"  {case}: {export / 1e3:,.0f} k/s, console consumer {console / 1e3:,.0f} k/s,"
                f" {self.bytes / 1e6:.0f} MB of files{counted}",
                file=sys.stderr,
            )
            rates.append(export)
            ratios.append(export / console)
        print(f"  {case}: written MB/s of the disk alone: {self.disk_rate():.0f}", file=sys.stderr)
        rate, ratio = (statistics.median(one[WARM_UPS:]) for one in (rates, ratios))
        return [
            at_least(case, "messages_per_s", rate, "/s", goal),
            at_least(case, "ratio_to_console_consumer", ratio, "", 1),
        ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_export", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="number of measured pairs (default 5)")
    parser.add_argument("--to", type=Path, help="directory of the files (default: a temporary one)")
    parser.add_argument("--only", nargs="*", choices=CASES, metavar="CASE", help="only these cases")
    add_json(parser)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-export-", dir=options.to) as directory,
        Sandbox() as sandbox,
    ):
        bench = Bench(sandbox, Path(directory))
        for case, (load, goal) in CASES.items():
            if options.only and case not in options.only:
                continue
            print(f"  {load.messages:,} messages of {load.size} bytes ...", file=sys.stderr)
            sandbox.create_topic(load.topic)
            fill(sandbox.bootstrap, load)
            results += bench.results(case, load, goal, options.pairs)
    return show("bench_export", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
