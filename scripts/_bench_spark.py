"""How fast Spark reads through this package, beside raw confluent-kafka and Spark's own source.

Everything runs on a broker of its own on this machine, one task at a time (`local[1]`), into the
sink `noop`. A ratio is the median over interleaved pairs on the same data, after two pairs that are
not counted. The DataFrame is planned beforehand; starting the job counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from _bench import Load, Result, at_least, fill, raw_rate, show
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

from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox import spark as sparks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UPS = 2
FULL = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


SMALL = Load("small", 100, 2_500_000, key_size=8)
LARGE = Load("large", 1000, 800_000, chunk=300, key_size=8)
# For the comparison with Spark's own source: eight tasks, one after the other.
SMALL_IN_8 = Load("small-in-8", 100, 2_000_000, partitions=8, key_size=8)
LARGE_IN_8 = Load("large-in-8", 1000, 800_000, partitions=8, key_size=8)


class Bench:
    """What the cases run on; servers and data are made when a case asks for them first."""

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
        """Have the topic and its messages."""
        if load in self._filled:
            return
        self._filled.add(load)
        print(f"  {load.messages:,} messages of {load.size} bytes ...", file=sys.stderr)
        self.sandbox.create_topic(load.topic, partitions=load.partitions)
        fill(self.sandbox.bootstrap, load)


# ---- readers: messages per second --------------------------------------------------------------


def raw(bench: Bench, load: Load) -> float:
    return raw_rate(bench.sandbox.bootstrap, load)


def kafka_source_rate(bench: Bench, load: Load) -> float:
    """Spark's own Kafka source, which has these columns and cannot leave any out."""
    return load.messages / bench.kafka_source.seconds(load.topic)


class SparkRate:
    """A DataFrame of this schema into the sink `noop`."""

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
    """`ours` to `theirs`, on one load."""

    load: Load
    ours: Callable[[Bench, Load], float]
    goal: float
    theirs: Callable[[Bench, Load], float] = raw
    metric: str = "ratio_to_raw"

    def __call__(self, bench: Bench, case: str) -> list[Result]:
        bench.fill(self.load)
        ratios: list[float] = []
        for number in range(WARM_UPS + bench.pairs):
            theirs, ours = self.theirs(bench, self.load), self.ours(bench, self.load)
            counted = "" if number >= WARM_UPS else " (warm-up)"
            print(
                f"  {case}: {ours / 1e3:,.0f} k/s, beside {theirs / 1e3:,.0f} k/s{counted}",
                file=sys.stderr,
            )
            ratios.append(ours / theirs)
        value = statistics.median(ratios[WARM_UPS:])
        return [at_least(case, self.metric, value, "", self.goal)]


# A case is what makes its results. Those of Spark's own source need another Spark (half a gigabyte,
# kept in the cache) and run when they are asked for.
Case = Callable[[Bench, str], list[Result]]
CASES: Mapping[str, Case] = {
    "full 100B": Race(SMALL, SparkRate(FULL), 0.65),
    "full 1KB": Race(LARGE, SparkRate(FULL), 0.40),
    "value only 100B": Race(SMALL, SparkRate("value binary"), 0.80),
    "value only 1KB": Race(LARGE, SparkRate("value binary"), 0.48),
    "commit 64": commit_case,
    "idle group": idle_case,
    "idle 1000": IdleMany(1000),
    "idle 10000": IdleMany(10_000),
    "plan 1000": PlanMany(1000),
    "plan 10000": PlanMany(10_000),
    "take over": take_over_case,
    "warm join": warm_join_case,
    "tables 10000": tables_case,
}
KAFKA_SOURCE: Mapping[str, Case] = {
    "spark kafka source 100B": Race(SMALL_IN_8, SparkRate(FULL), 2, kafka_source_rate, "ratio"),
    "spark kafka source 1KB": Race(LARGE_IN_8, SparkRate(FULL), 3.5, kafka_source_rate, "ratio"),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_spark", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs that count (default 5)")
    parser.add_argument(
        "--json",
        action="store_const",
        dest="output",
        const="json",
        default="table",
        help="print the results as one JSON object on the last line, too",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="CASE",
        choices=[*CASES, *KAFKA_SOURCE],
        help=f"only these cases; of {', '.join([*CASES, *KAFKA_SOURCE])}",
    )
    parser.add_argument(
        "--kafka-source", action="store_true", help="also the cases of Spark's own Kafka source"
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
