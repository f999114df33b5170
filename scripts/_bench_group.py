"""What a query's membership costs: in a batch of 64 partitions, and while there is nothing to read.
And how soon it serves what a member has left behind that died.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from _bench import Result, at_most, cpu_seconds
from confluent_kafka import Producer

from zkconsumer import ConsumerConfig
from zkconsumer.core import paths
from zkconsumer.core.registrations import Registration
from zkconsumer.spark.lifecycle import RUNNER
from zkconsumer.spark.membership import Membership
from zkconsumer.spark.ranges import OffsetRange
from zkconsumer.zk.connection import Connection

if TYPE_CHECKING:
    from _bench_spark import Bench
    from pyspark.sql import DataFrame

PARTITIONS, BATCHES, BATCH_S = 64, 100, 0.05
IDLE_S = 20.0
# The case `take over`: how often a member dies, its session timeout, the query's trigger.
TAKE_OVERS, SESSION_S, TRIGGER_S = 3, 6.0, 1
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
            commit = member.finish(ends)
            taken.append(time.perf_counter() - started)
            assert commit
            commit.result()
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
        before, started = cpu_seconds(pid), time.monotonic()
        time.sleep(IDLE_S)
        percent = 100 * (cpu_seconds(pid) - before) / (time.monotonic() - started)
    finally:
        query.stop()
    return [at_most(case, "cpu_percent", percent, "%", 5)]


def take_over_case(bench: Bench, case: str) -> list[Result]:
    """From a member's SIGKILL to the sink's having messages of all its partitions, less the session
    timeout; the worst of some rounds. The goal has a second, and the trigger's interval."""
    topic, group = "bench-take-over", "bench-take-over"
    bench.sandbox.create_topic(topic, partitions=8)
    seen: dict[int, float] = {}

    def note(batch: DataFrame, _: int) -> None:
        found = [row["partition"] for row in batch.select("partition").distinct().collect()]
        seen.update(dict.fromkeys(found, time.monotonic()))

    query = (
        bench.spark.readStream.format("zkconsumer")
        .option("zookeeper", bench.sandbox.zookeeper_connect)
        .option("mode", "group").option("group.id", group).option("subscribe", topic)
        .option("consumer.id", "query").schema("partition int").load()
        .writeStream.foreachBatch(note).trigger(processingTime=f"{TRIGGER_S} seconds")
        .option("checkpointLocation", str(bench.directory / "take-over")).start()
    )  # fmt: skip
    took = []
    try:
        with _flow(bench.sandbox.bootstrap, topic, 8):
            _await(lambda: len(seen) == 8)
            for _ in range(TAKE_OVERS):
                took.append(_taken_over(bench, group, topic, seen) - SESSION_S)
                print(f"  {case}: {took[-1]:+.2f} s", file=sys.stderr)
    finally:
        query.stop()
    return [at_most(case, "seconds_after_timeout", max(took), "s", 1 + TRIGGER_S)]


def _taken_over(bench: Bench, group: str, topic: str, seen: Mapping[int, float]) -> float:
    """Seconds from a member's death until `seen` has all its partitions."""
    with _member(bench.sandbox.zookeeper_connect, group, topic) as member:
        _await(lambda: len(_others(bench, group, topic)) == 4)
        time.sleep(random.uniform(0, SESSION_S / 3))  # between any two heartbeats
        theirs = _others(bench, group, topic)
        member.kill()
        died = time.monotonic()
        _await(lambda: all(seen.get(one, 0) > died for one in theirs))
        return time.monotonic() - died


def _others(bench: Bench, group: str, topic: str) -> list[int]:
    """The partitions of the topic that another member than the query owns."""
    root = paths.owners_of(group, topic)
    config = ConsumerConfig(group_id=group, zookeeper_connect=bench.sandbox.zookeeper_connect)
    with Connection(config) as zookeeper:
        names = zookeeper.children([root]).get(root, ())
        found = zookeeper.read(f"{root}/{one}" for one in names)
    return [int(path.rpartition("/")[2]) for path, node in found.items()
            if not (node.data or b"").startswith(f"{group}_query".encode())]


@contextmanager
def _member(zookeeper: str, group: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which has joined."""
    command = [sys.executable, str(Path(__file__).with_name("_bench_member.py")), "--members", "1"]
    command += ["--zookeeper", zookeeper, "--topic", topic, "--session-s", str(SESSION_S)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        try:
            for order in (f"warm {group}", "join"):
                print(order, file=process.stdin, flush=True)
                process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextmanager
def _flow(bootstrap: str, topic: str, partitions: int) -> Iterator[None]:
    """Messages for all partitions, a hundred times a second."""
    producer, over = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1}), threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            for number in range(partitions):
                producer.produce(topic, b"x", partition=number)
            producer.poll(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        producer.flush(30)


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


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {LIMIT_S:g} s")
        time.sleep(0.02)
