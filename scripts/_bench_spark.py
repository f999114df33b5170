"""Measure Spark's throughput with this package against raw confluent-kafka and Spark's own Kafka
source.

A broker on this machine serves the benchmark. Spark runs one task at a time (`local[1]`) and writes
to the sink `noop`. A ratio is the median over pairs: each pair reads the same data with both
readers. Six earlier pairs warm up and are not counted. The DataFrame is planned before the
measurement, which includes the start of the job.
"""

from __future__ import annotations

import argparse
import os
import socket
import stat
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from _bench import Load, Result, add_json, at_least, at_most, fill, raw_rate, show
from _bench_group import (
    IdleMany,
    PlanMany,
    commit_case,
    idle_case,
    take_over_case,
    warm_join_case,
)
from _bench_tables import tables_case
from _kafka_source import KafkaSource

from zkconsumer import ConsumerConfig
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox import spark as sparks
from zkconsumer.spark.cluster_logs import brokers_of
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.task_reader import ReadSettings, client_settings, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's loops are compiled during the first five or six runs; until then each run is faster.
WARM_UPS = 6
# Offset of `tcpi_bytes_received` in Linux's `struct tcp_info`.
BYTES_RECEIVED = 128
FULL = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


SMALL = Load("small", 100, 2_500_000, key_size=8)
LARGE = Load("large", 1000, 800_000, chunk=300, key_size=8)
# For the comparison with Spark's own source: eight tasks, one after another.
SMALL_IN_8 = Load("small-in-8", 100, 2_000_000, partitions=8, key_size=8)
LARGE_IN_8 = Load("large-in-8", 1000, 800_000, partitions=8, key_size=8)


class Bench:
    """The servers and data of the cases, created when a case first needs them."""

    def __init__(self, stack: ExitStack, *, pairs: int) -> None:
        self._stack, self.pairs = stack, pairs
        self._filled: set[Load] = set()
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))

    @cached_property
    def sandbox(self) -> Sandbox:
        return self._stack.enter_context(Sandbox())

    @cached_property
    def spark(self) -> SparkSession:
        session = sparks.session(self.directory, master="local[1]")
        self._stack.callback(session.stop)
        return session

    @cached_property
    def kafka_source(self) -> KafkaSource:
        source = KafkaSource(self.sandbox.bootstrap, self.directory / "kafka-source")
        return self._stack.enter_context(source)

    def fill(self, load: Load) -> None:
        """Create the topic and its messages unless they exist."""
        if load in self._filled:
            return
        self._filled.add(load)
        print(f"  {load.messages:,} messages of {load.size} bytes ...", file=sys.stderr)
        self.sandbox.create_topic(load.topic, partitions=load.partitions)
        fill(self.sandbox.bootstrap, load)


# ---- Readers, in messages per second -------------------------------------------------------------


def raw(bench: Bench, load: Load) -> float:
    return raw_rate(bench.sandbox.bootstrap, load)


def kafka_source_rate(bench: Bench, load: Load) -> float:
    """Return the rate of Spark's own Kafka source, which always reads all these columns."""
    return load.messages / bench.kafka_source.seconds(load.topic)


class SparkRate:
    """Reads a DataFrame with this schema into the sink `noop`."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._planned: DataFrame | None = None

    def __call__(self, bench: Bench, load: Load) -> float:
        if self._planned is None:
            reader = bench.spark.read.format("zkconsumer").schema(self._schema)
            reader = reader.option("zookeeper", bench.sandbox.zookeeper_connect)
            self._planned = reader.option("subscribe", load.topic).load()
        start = time.perf_counter()
        self._planned.write.format("noop").mode("overwrite").save()
        return load.messages / (time.perf_counter() - start)


@dataclass(frozen=True)
class Race:
    """Measures the ratio of `measured` to `baseline` with one load."""

    load: Load
    measured: Callable[[Bench, Load], float]
    goal: float
    baseline: Callable[[Bench, Load], float] = raw
    metric: str = "ratio_to_raw"

    def __call__(self, bench: Bench, case: str) -> list[Result]:
        bench.fill(self.load)
        ratios: list[float] = []
        for number in range(WARM_UPS + bench.pairs):
            baseline, measured = self.baseline(bench, self.load), self.measured(bench, self.load)
            counted = "" if number >= WARM_UPS else " (warm-up)"
            print(
                f"  {case}: {measured / 1e3:,.0f} k/s of {baseline / 1e3:,.0f} k/s{counted}",
                file=sys.stderr,
            )
            ratios.append(measured / baseline)
        value = statistics.median(ratios[WARM_UPS:])
        return [at_least(case, self.metric, value, "", self.goal)]


# ---- Bytes that a task fetches and discards ------------------------------------------------------

# A query with a backlog, and `maxOffsetsPerTrigger` of this many messages per partition.
LIMITED = Load("limited", 100, 320_000, partitions=4, key_size=8, batch_bytes=16_384)
PER_BATCH = 2000


def amplification_case(bench: Bench, case: str) -> list[Result]:
    """Measure the bytes received from the broker for each byte of delivered keys and values.

    The tasks run in this process, one after another, as in a worker. The first batch is not
    counted, because the process learns the size of messages from it.
    """
    bench.fill(LIMITED)
    config = ConsumerConfig(group_id="bench", zookeeper_connect=bench.sandbox.zookeeper_connect)
    settings = ReadSettings(
        client=client_settings(config, brokers_of(config)), patience_s=60.0, has_backlog=True
    )
    received: dict[int, int] = {}
    before = count = 0
    started = time.perf_counter()
    for start in range(0, LIMITED.messages // LIMITED.partitions - PER_BATCH, PER_BATCH):
        if start == PER_BATCH:
            before, count, started = sum(received.values()), 0, time.perf_counter()
        for partition in range(LIMITED.partitions):
            asked = OffsetRange(LIMITED.topic, partition, start, start + PER_BATCH)
            count += sum(one.num_rows for one in read_ranges([asked], ("value",), settings))
            received |= _bytes_received(bench.sandbox.broker.port)
    fetched = sum(received.values()) - before
    rate = count / (time.perf_counter() - started)
    print(f"  {case}: {fetched:,} bytes for {count:,} messages, {rate:,.0f}/s", file=sys.stderr)
    ratio = fetched / (count * (LIMITED.size + LIMITED.key_size))
    return [at_most(case, "fetched_per_delivered", ratio, "", 1.2)]


def _bytes_received(port: int) -> dict[int, int]:
    """Return the bytes received by each of this process's connections to `port`, by inode."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    is_tcp = one.family == socket.AF_INET and one.type == socket.SOCK_STREAM
                    if is_tcp and one.getpeername()[1] == port:
                        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                        (found[status.st_ino],) = struct.unpack_from("Q", info, BYTES_RECEIVED)
    return found


# ---- The first query after an installation -------------------------------------------------------

# The process of a user: prints the seconds from `load` to the result.
JOB = """
import sys, time
from pathlib import Path
from zkconsumer.sandbox import spark as sparks
spark = sparks.session(Path(sys.argv[1]))
began_s = time.perf_counter()
reader = spark.read.format("zkconsumer").option("zookeeper", sys.argv[2])
reader.option("subscribe", sys.argv[3]).load().count()
print(time.perf_counter() - began_s)
spark.stop()
"""
# Seconds after which the compiling process has failed.
COMPILE_LIMIT_S = 1800.0


def first_query_case(bench: Bench, case: str) -> list[Result]:
    """Compare the first query of a machine, without compiled code, with one after compiling."""
    topic = "first-query"
    bench.sandbox.create_topic(topic, partitions=2)
    for partition in range(2):
        bench.sandbox.produce(topic, 5000, partition=partition)
    ratios = []
    for number in range(3):
        compiled = bench.directory / f"numba-{number}"
        first_s = _query_s(bench, topic, compiled)
        deadline_s = time.monotonic() + COMPILE_LIMIT_S
        while any(compiled.rglob("zkconsumer-compiling.*")) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        second_s = _query_s(bench, topic, compiled)
        print(f"  {case}: {first_s:.1f} s, then {second_s:.1f} s", file=sys.stderr)
        ratios.append(first_s / second_s)
    return [at_most(case, "first to second", statistics.median(ratios), "ratio", 1.5)]


def _query_s(bench: Bench, topic: str, compiled: Path) -> float:
    """Run the job in a process that keeps numba's compiled code in `compiled`."""
    arguments = [str(bench.directory / "job"), bench.sandbox.zookeeper_connect, topic]
    done = subprocess.run(
        [sys.executable, "-c", JOB, *arguments],
        env={**os.environ, "NUMBA_CACHE_DIR": str(compiled)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


# A case is a function that returns its results. The cases with Spark's own source need another
# Spark (half a gigabyte, kept in the cache) and run only on request.
Case = Callable[[Bench, str], list[Result]]
CASES: Mapping[str, Case] = {
    "full 100B": Race(SMALL, SparkRate(FULL), 1.3),
    "full 1KB": Race(LARGE, SparkRate(FULL), 0.55),
    "value only 100B": Race(SMALL, SparkRate("value binary"), 1.5),
    "value only 1KB": Race(LARGE, SparkRate("value binary"), 0.60),
    "amplification": amplification_case,
    "commit 64": commit_case,
    "idle group": idle_case,
    "idle 1000": IdleMany(1000),
    "idle 10000": IdleMany(10_000),
    "plan 1000": PlanMany(1000),
    "plan 10000": PlanMany(10_000),
    "take over": take_over_case,
    "warm join": warm_join_case,
    "first query": first_query_case,
    "tables 10000": tables_case,
}
KAFKA_SOURCE: Mapping[str, Case] = {
    "spark kafka source 100B": Race(SMALL_IN_8, SparkRate(FULL), 5, kafka_source_rate, "ratio"),
    "spark kafka source 1KB": Race(LARGE_IN_8, SparkRate(FULL), 4, kafka_source_rate, "ratio"),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_spark", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="number of measured pairs (default 5)")
    add_json(parser)
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="CASE",
        choices=[*CASES, *KAFKA_SOURCE],
        help=f"run only these cases: {', '.join([*CASES, *KAFKA_SOURCE])}",
    )
    parser.add_argument(
        "--kafka-source",
        action="store_true",
        help="also run the cases with Spark's own Kafka source",
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    results: list[Result] = []
    with ExitStack() as stack:
        bench = Bench(stack, pairs=options.pairs)
        wanted = options.only or [*CASES, *(KAFKA_SOURCE if options.kafka_source else ())]
        for name, case in {**CASES, **KAFKA_SOURCE}.items():
            if name in wanted:
                results += case(bench, name)
    return show("bench_spark", results, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
