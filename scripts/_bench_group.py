"""Measure the cost of a query's group membership, and how soon the query takes over partitions.

The costs are those of a commit of 64 partitions, of an idle query, and of planning a batch. Two
take-overs are measured: a query takes over the partitions of a killed member, and a new query takes
over partitions of a running member.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from _bench import Result, at_most, cpu_seconds
from _bench_rebalance import FETCH_WAIT_S, Process
from _pipeline_query import Query
from confluent_kafka import Producer
from pyarrow import parquet
from pyspark.sql.streaming.datasource import ReadAllAvailable

from zkconsumer import ConsumerConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol.registrations import Registration
from zkconsumer.protocol.requests import Create, Node
from zkconsumer.sandbox.real_group import PeriodicProducer
from zkconsumer.sandbox.topics import session
from zkconsumer.spark.batch_member import Membership
from zkconsumer.spark.group_stream import GroupStreamReader
from zkconsumer.spark.offset_ranges import OffsetRange, from_offset
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.process_lifecycle import RUNNER
from zkconsumer.zk.client import ZooKeeperClient

if TYPE_CHECKING:
    from _bench_spark import Bench
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader

PARTITIONS, BATCHES, BATCH_S = 64, 100, 0.05
IDLE_S = 20.0
# The case `take over`: number of killed members, their session timeout, and the query's trigger
# interval.
TAKE_OVERS, SESSION_S, TRIGGER_S = 3, 6.0, 1
# The case `warm join`: number of queries that are started.
WARM_JOINS = 3
# Number of batches that each case `plan` plans.
PLANS = 5
LIMIT_S = 120.0


def commit_case(bench: Bench, case: str) -> list[Result]:
    """Measure how long `latestOffset` takes for a finished batch: it updates the ledger and
    requests the commit.

    The commit itself is written while Spark continues; its duration is printed to standard error.
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
    """Measure the processor time of the source process of an idle query with the default trigger,
    in percent of a core.
    """
    bench.sandbox.create_topic("bench-idle", partitions=8)
    percent = _idle_percent(bench, bench.sandbox.zookeeper_connect, "bench-idle", 8)
    return [at_most(case, "cpu_percent", percent, "%", 5)]


class IdleMany:
    """Measure like `idle_case`, but with many partitions, on a broker that has only these
    partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, bench: Bench, case: str) -> list[Result]:
        topic = f"bench-idle-{self._partitions}"
        with _many(bench, topic, self._partitions) as (zookeeper, _):
            percent = _idle_percent(bench, zookeeper, topic, self._partitions)
        return [at_most(case, "cpu_percent", percent, "%", 10)]


def _group_reader(bench: Bench, zookeeper: str, group: str, topic: str) -> DataStreamReader:
    """Return the reader of a query that is a member of a group."""
    reader = bench.spark.readStream.format("zkconsumer").option("mode", "group")
    return reader.options(**{"zookeeper": zookeeper, "group.id": group, "subscribe": topic})


def _idle_percent(bench: Bench, zookeeper: str, topic: str, partitions: int) -> float:
    query = (
        _group_reader(bench, zookeeper, topic, topic)
        .option("auto.offset.reset", "smallest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(bench.directory / topic))
        .start()
    )
    try:
        _await_others(zookeeper, topic, topic, partitions)
        _await(lambda: query.status["message"].startswith("Waiting for data"))
        gateway: Any = bench.spark.sparkContext._gateway
        (pid,) = _sources(gateway.proc.pid)
        before, started = cpu_seconds(pid), time.monotonic()
        time.sleep(IDLE_S)
        percent = 100 * (cpu_seconds(pid) - before) / (time.monotonic() - started)
    finally:
        query.stop()
    return percent


class PlanMany:
    """Measures the seconds to plan a batch with one message in each of many partitions.

    The case calls the reader as Spark does: `latestOffset` with its JSON, and `partitions` with the
    pickled tasks.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, bench: Bench, case: str) -> list[Result]:
        topic = f"bench-plan-{self._partitions}"
        taken: list[float] = []
        with _many(bench, topic, self._partitions) as (zookeeper, bootstrap):
            options = {
                "mode": "group",
                "zookeeper": zookeeper,
                "group.id": topic,
                "subscribe": topic,
                "auto.offset.reset": "smallest",
            }
            reader = GroupStreamReader(SourceOptions.parse(options).for_stream(), ("value",))
            try:
                self._owns_all(reader, topic)
                start = "{}"
                for _ in range(PLANS):
                    _one_each(bootstrap, topic, self._partitions)
                    start = self._planned(reader, start, taken)
            finally:
                reader.stop()
        print(f"  {case}: {', '.join(f'{one:.2f}' for one in taken)} s", file=sys.stderr)
        return [at_most(case, "seconds", statistics.median(taken), "s", 1)]

    def _owns_all(self, reader: GroupStreamReader, topic: str) -> None:
        def owns_all() -> bool:
            reader.latestOffset({}, ReadAllAvailable())
            found = reader.reportLatestOffset() or {}
            return len(found.get(topic, ())) == self._partitions

        _await(owns_all)

    def _planned(self, reader: GroupStreamReader, start: str, taken: list[float]) -> str:
        """Plan batches until all partitions were read, and return the last end. Only batches with
        all partitions are measured.
        """
        read = 0
        while read < self._partitions:
            began = time.perf_counter()
            end = json.dumps(reader.latestOffset(json.loads(start), ReadAllAvailable()))
            if end == start:
                continue
            tasks = reader.partitions(json.loads(start), json.loads(end))
            assert pickle.dumps(tasks)
            took_s = time.perf_counter() - began
            size = sum(one.end - one.start for one in from_offset(json.loads(end)))
            read, start = read + size, end
            if size == self._partitions:
                taken.append(took_s)
        return start


@contextmanager
def _many(bench: Bench, topic: str, partitions: int) -> Iterator[tuple[str, str]]:
    """Yield a ZooKeeper chroot and the address of the broker registered in it, with a topic of many
    partitions.
    """
    command = [sys.executable, str(Path(__file__).with_name("_bench_brokers.py"))]
    with subprocess.Popen(
        [*command, topic, str(partitions)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            bootstrap = process.stdout.readline().strip()
            host, _, port = bootstrap.partition(":")
            broker = {
                "version": 1,
                "host": host,
                "port": int(port),
                "jmx_port": -1,
                "timestamp": "0",
            }
            placed = {"version": 1, "partitions": {str(n): [1] for n in range(partitions)}}
            below = f"/{topic}"
            parents = (below, f"{below}/brokers", below + paths.BROKER_IDS, below + paths.TOPICS)
            with session(bench.sandbox.zookeeper_connect) as client:
                client.write(
                    [
                        *map(Create, parents),
                        Create(below + paths.broker(1), json.dumps(broker).encode()),
                        Create(below + paths.topic(topic), json.dumps(placed).encode()),
                    ]
                )
            yield f"{bench.sandbox.zookeeper_connect}/{topic}", bootstrap
        finally:
            process.kill()


def _one_each(bootstrap: str, topic: str, partitions: int) -> None:
    """Produce one more message to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(partitions):
        producer.produce(topic, b"x", partition=number)
    assert not producer.flush(LIMIT_S)


def take_over_case(bench: Bench, case: str) -> list[Result]:
    """Measure the time from a member's SIGKILL until the sink has messages of all its partitions.

    The result is the maximum of some rounds, less the session timeout. The goal allows one second
    plus the trigger interval.
    """
    topic, group = "bench-take-over", "bench-take-over"
    bench.sandbox.create_topic(topic, partitions=8)
    seen: dict[int, float] = {}

    def note(batch: DataFrame, _: int) -> None:
        found = [row["partition"] for row in batch.select("partition").distinct().collect()]
        seen.update(dict.fromkeys(found, time.monotonic()))

    query = (
        _group_reader(bench, bench.sandbox.zookeeper_connect, group, topic)
        .option("consumer.id", "query")
        .schema("partition int")
        .load()
        .writeStream.foreachBatch(note)
        .trigger(processingTime=f"{TRIGGER_S} seconds")
        .option("checkpointLocation", str(bench.directory / "take-over"))
        .start()
    )
    took = []
    try:
        with _Flow(bench.sandbox.zookeeper_connect, topic, 8):
            _await(lambda: len(seen) == 8)
            for _ in range(TAKE_OVERS):
                took.append(_taken_over(bench, group, topic, seen) - SESSION_S)
                print(f"  {case}: {took[-1]:+.2f} s", file=sys.stderr)
    finally:
        query.stop()
    return [at_most(case, "seconds_after_timeout", max(took), "s", 1 + TRIGGER_S)]


def warm_join_case(bench: Bench, case: str) -> list[Result]:
    """Measure the time from a query's first claim to its first delivered message.

    A newly started driver joins a member that has no lag. The result is the maximum of some rounds.
    The time of the claim is the server's time in the znode. A message is delivered when its Parquet
    file is written, which takes longer than with other sinks.
    """
    gaps = []
    for number in range(WARM_JOINS):
        topic = group = f"bench-warm-{number}"
        bench.sandbox.create_topic(topic, partitions=8)
        query = Query(
            zookeeper=bench.sandbox.zookeeper_connect,
            group=group,
            topic=topic,
            name="query",
            directory=str(bench.directory / topic),
            session_timeout_s=SESSION_S,
            trigger_s=0.5,
        )
        Path(query.directory).mkdir()
        with (
            _Flow(bench.sandbox.zookeeper_connect, topic, 8),
            _member(bench.sandbox.zookeeper_connect, group, topic),
        ):
            _await_others(bench.sandbox.zookeeper_connect, group, topic, 8)
            gaps.append(_gap_s(bench, query))
        print(f"  {case}: {gaps[-1]:.2f} s", file=sys.stderr)
    return [at_most(case, "gap_s", max(gaps), "s", 2)]


def _gap_s(bench: Bench, query: Query) -> float:
    """Start and stop the query. Return the seconds from its first claim to its first Parquet file
    with a row.
    """
    log = Path(query.directory, "query.log")
    with (
        log.open("w") as out,
        subprocess.Popen(
            query.command(), cwd=query.directory, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        try:
            files: dict[Path, float] = {}

            def has_rows() -> bool:
                files.update(
                    (path, path.stat().st_mtime)
                    for path in query.rows.glob("batch=*/*.parquet")
                    if path not in files and parquet.read_metadata(path).num_rows
                )
                assert process.poll() is None, log.read_text()[-2000:]
                return bool(files)

            _await(has_rows)
            return min(files.values()) - _claimed_at(bench, query)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _claimed_at(bench: Bench, query: Query) -> float:
    """Return when the query claimed the first partition that it owns, in seconds since 1970."""
    found = _owner_znodes(query.zookeeper, query.group, query.topic)
    prefix = f"{query.group}_{query.name}-".encode()
    times_ms = [one.stat.mtime_ms for one in found.values() if (one.data or b"").startswith(prefix)]
    return min(times_ms) / 1000


def _taken_over(bench: Bench, group: str, topic: str, seen: Mapping[int, float]) -> float:
    """Return the seconds from a member's death until `seen` contains all its partitions."""
    with _member(bench.sandbox.zookeeper_connect, group, topic) as member:
        _await(lambda: len(_others(bench.sandbox.zookeeper_connect, group, topic)) == 4)
        time.sleep(random.uniform(0, SESSION_S / 3))  # at any time between two heartbeats
        theirs = _others(bench.sandbox.zookeeper_connect, group, topic)
        member.kill()
        died = time.monotonic()
        _await(lambda: all(seen.get(one, 0) > died for one in theirs))
        return time.monotonic() - died


def _others(zookeeper: str, group: str, topic: str) -> list[int]:
    """Return the partitions of the topic whose owner is not the member `query`."""
    prefix = f"{group}_query".encode()
    return [
        partition
        for partition, node in _owner_znodes(zookeeper, group, topic).items()
        if not (node.data or b"").startswith(prefix)
    ]


def _owner_znodes(zookeeper: str, group: str, topic: str) -> dict[int, Node]:
    """Return the owner znode of each partition of the topic that has one."""
    root = paths.owners_of(group, topic)
    config = ConsumerConfig(group_id=group, zookeeper_connect=zookeeper)
    with ZooKeeperClient(config) as connection:
        names = connection.children([root]).get(root, ())
        found = connection.read(f"{root}/{one}" for one in names)
    return {int(path.rpartition("/")[2]): node for path, node in found.items()}


def _await_others(zookeeper: str, group: str, topic: str, count: int) -> None:
    """Wait until the members other than `query` own this number of partitions."""
    _await(lambda: len(_others(zookeeper, group, topic)) == count)


@contextmanager
def _member(zookeeper: str, group: str, topic: str) -> Iterator[Process]:
    """Start a member in its own process and wait until it has joined."""
    process = Process(zookeeper, topic, 1, session_s=SESSION_S, fetch_wait_s=FETCH_WAIT_S)
    try:
        for order in (f"warm {group}", "join"):
            process.tell(order)
            process.answered()
        yield process
    finally:
        process.kill()


class _Flow(PeriodicProducer):
    """Produces to all partitions a hundred times per second; a context manager."""

    EVERY_S = 0.01

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
