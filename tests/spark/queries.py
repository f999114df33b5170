"""Queries of a group on a real Spark, which record every message that they receive.

In this process: `Query(spark, ...)`. In a separate process, which a test may kill:
    python queries.py DIRECTORY OPTIONS    (JSON)
Its lines on standard output are events. Its query holds batches back while the file DIRECTORY/hold
exists.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from support.internals import driver_of
from support.members.group import Group
from support.processes import children, command
from support.wait import wait_for

from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox import spark as sparks
from zkconsumer.spark.process_lifecycle import RUNNER

LIMIT_S = 150.0

Place = tuple[str, int, int]


class QueryGroup(Group):
    """A group on the sandbox whose members are queries of Spark; they end with the test."""

    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        topic: str,
        stack: ExitStack,
        *,
        spark: SparkSession,
        directory: Path,
    ) -> None:
        super().__init__(sandbox, name, topic, stack)
        self.stack, self.spark, self.directory = stack, spark, directory

    def options(self, **options: str) -> dict[str, str]:
        """Return the source's options; `__` in a name stands for a dot."""
        return {
            "mode": "group",
            "zookeeper": self.sandbox.zookeeper_connect,
            "group.id": self.name,
            "subscribe": self.topic,
            "auto.offset.reset": "smallest",
            "rebalance.backoff.ms": "200",
            "zookeeper.session.timeout.ms": "30000",
            **{name.replace("__", "."): text for name, text in options.items()},
        }


class Query:
    """A query in group mode; its batches wait unless `free` is set."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        options: Mapping[str, str],
        trigger_s: float = 0.0,
    ) -> None:
        self._spark, self._directory, self._options = spark, directory, dict(options)
        self._trigger_s = trigger_s
        self.places: list[tuple[Place, int]] = []
        self.free = threading.Event()
        self.free.set()
        self.begun: list[int] = []
        self.pid = 0

    def start(self) -> Query:
        """Wait until the query's source process runs and has received a request for a batch."""
        before = sources(self._spark)
        stream = self._spark.readStream.format("zkconsumer").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(self._take)
        if self._trigger_s:
            writer = writer.trigger(processingTime=f"{self._trigger_s} seconds")
        self.query = writer.option("checkpointLocation", str(self._directory)).start()
        wait(lambda: self._is_up(before), "the query to start")
        return self

    def _is_up(self, before: set[int]) -> bool:
        error = self.query.exception() if not self.query.isActive else None
        if error is not None:
            raise error
        found = sources(self._spark) - before
        self.pid = max(found, default=0)
        words = self.query.status["message"]
        return bool(found) and not words.startswith("Initializing")

    def _take(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("topic", "partition", "offset").collect()
        if not rows:
            return  # This is Spark's first batch, which ran before the group had settled.
        self.begun.append(number)
        self.free.wait(LIMIT_S)
        self.places += [((row.topic, row.partition, row.offset), number) for row in rows]

    @property
    def read(self) -> Counter[Place]:
        return Counter(place for place, _ in list(self.places))

    def holds(self) -> None:
        """Wait until the query processes a batch; `free` must be cleared before."""
        count = len(self.begun)
        wait(lambda: len(self.begun) > count, "a batch")

    def stop(self) -> None:
        self.free.set()
        self.query.stop()


def sources(spark: SparkSession) -> set[int]:
    """Return the source processes of this session's queries."""
    return {pid for pid in children(driver_of(spark)) if RUNNER in command(pid)}


def wait(condition: Callable[[], object], what: str = "the condition on this line") -> None:
    """Wait as long as a query may take on a very busy machine."""
    wait_for(condition, what, LIMIT_S)


def main() -> None:
    """Run a driver in its own process, which lives while its query runs."""
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark = sparks.session(directory / "own", master="local[1]")
    query = Query(spark, directory / "checkpoint", options)
    hold = directory / "hold"

    def heed() -> None:
        while True:
            query.free.clear() if hold.exists() else query.free.set()
            time.sleep(0.02)

    threading.Thread(target=heed, daemon=True).start()
    query.start()
    say(event="started", source=query.pid, jvm=driver_of(spark))
    told = 0
    while query.query.isActive:
        while told < len(query.begun):
            say(event="batch", number=query.begun[told])
            told += 1
        done = [list(place) for place, _ in list(query.places)]
        (directory / "read.json.new").write_text(json.dumps(done))
        (directory / "read.json.new").rename(directory / "read.json")
        time.sleep(0.05)
    say(event="ended", error=str(query.query.exception()))


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
