"""What a query's membership costs: in a batch of 64 partitions, and while there is nothing to read.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from _bench import Result, at_most

from zkconsumer import ConsumerConfig
from zkconsumer.core.registrations import Registration
from zkconsumer.spark.lifecycle import RUNNER
from zkconsumer.spark.membership import Membership
from zkconsumer.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from _bench_spark import Bench

PARTITIONS, BATCHES, BATCH_S = 64, 100, 0.05
IDLE_S = 20.0
LIMIT_S = 120.0


def commit_case(bench: Bench, case: str) -> list[Result]:
    """What `latestOffset` does about a finished batch: tell the ledger and ask for the commit.

    The commit itself is written while Spark goes on; how long it takes is told on standard error.
    """
    topic, connect = "bench-commit", bench.sandbox.zookeeper_connect
    bench.sandbox.create_topic(topic, partitions=PARTITIONS)
    config = ConsumerConfig(group_id="bench-commit", zookeeper_connect=connect)
    member = Membership(config, Registration({topic: 1}))
    taken: list[float] = []
    stored: list[float] = []
    try:
        member.join()
        _await(lambda: len(member.served()) == PARTITIONS)
        for tp, at in member.served().items():
            member.reset(tp, at, 0, "bench")
        for _ in range(BATCHES):
            places = {tp: one.offset or 0 for tp, one in member.served().items()}
            batch = member.begin([OffsetRange(*tp, at, at + 10) for tp, at in places.items()])
            ends = {one.tp: one.end for one in batch}
            started = time.perf_counter()
            member.finish(ends)
            asked = member.commit()
            taken.append(time.perf_counter() - started)
            asked.result()
            stored.append(time.perf_counter() - started)
            time.sleep(BATCH_S)
    finally:
        member.leave()
    print(f"  {case}: stored after {statistics.median(stored) * 1e3:.1f} ms", file=sys.stderr)
    return [at_most(case, "ms", statistics.median(taken) * 1e3, "ms", 5)]


def idle_case(bench: Bench, case: str) -> list[Result]:
    """Of one core: the source process of a query whose group has nothing new, default trigger."""
    topic = "bench-idle"
    bench.sandbox.create_topic(topic, partitions=8)
    query = (
        bench.spark.readStream.format("zkconsumer")
        .option("zookeeper", bench.sandbox.zookeeper_connect)
        .option("mode", "group").option("group.id", "bench-idle").option("subscribe", topic).load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(bench.directory / "idle")).start()
    )  # fmt: skip
    try:
        _await(lambda: query.status["message"].startswith("Waiting for data"))
        (pid,) = _sources(bench.spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        before, started = _cpu_s(pid), time.monotonic()
        time.sleep(IDLE_S)
        percent = 100 * (_cpu_s(pid) - before) / (time.monotonic() - started)
    finally:
        query.stop()
    return [at_most(case, "cpu_percent", percent, "%", 5)]


def _sources(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if RUNNER in path.read_text() and _stat(pid)[1] == str(parent):
                found.append(pid)
        except OSError:
            continue
    return found


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / 100


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {LIMIT_S:g} s")
        time.sleep(0.02)
