"""Measure how long Spark takes for the lag of 10,000 partitions.

20 groups own and have committed 500 partitions each, on a real ZooKeeper and broker. Spark runs two
tasks at a time (`local[2]`) and writes to the sink `noop`. The time is from the call of
`tables.lag` to the end of the job, without the start of Spark: the median of the rounds, after one
round that starts the workers. A process has only one Spark session, and that of `bench_spark` has
one task, so this measurement runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _bench import Result, at_most
from _bench_cli import OVERRIDES, make, nodes
from kazoo.client import KazooClient

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox import spark as sparks
from zkconsumer.spark import tables

GROUPS, PARTITIONS, MEMBERS = 20, 500, 10
LIMIT_S = 900
GOAL_S = 4.0


def tables_case(_: object, case: str) -> list[Result]:
    """Run the measurement for `bench_spark`."""
    command = [sys.executable, __file__]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return [at_most(case, "seconds", seconds, "s", GOAL_S)]


@contextmanager
def scene() -> Iterator[Sandbox]:
    with Sandbox(overrides=OVERRIDES) as sandbox:
        print(f"  {GROUPS} topics of {PARTITIONS} partitions ...", file=sys.stderr)
        client = KazooClient(sandbox.zookeeper_connect, timeout=30)
        client.start()
        try:
            client.ensure_path(paths.CONSUMERS)
            for number in range(GROUPS):
                topic = f"topic.{number}"
                sandbox.create_topic(topic, partitions=PARTITIONS)
                owned = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
                make(client, nodes(f"group.{number}", MEMBERS, owned))
            yield sandbox
        finally:
            client.stop()
            client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: list[float] = []
    with scene() as sandbox, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        spark = sparks.session(Path(directory), master="local[2]")
        try:
            for _ in range(rounds + 1):
                start = time.perf_counter()
                frame = tables.lag(spark, zookeeper=sandbox.zookeeper_connect)
                frame.write.format("noop").mode("overwrite").save()
                taken.append(time.perf_counter() - start)
                print(f"  {taken[-1]:.2f} s", file=sys.stderr)
            count = frame.count()
            if count != GROUPS * PARTITIONS:
                raise SystemExit(f"the table has {count} rows, not {GROUPS * PARTITIONS}")
        finally:
            spark.stop()
    print(json.dumps({"seconds": statistics.median(taken[1:])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
