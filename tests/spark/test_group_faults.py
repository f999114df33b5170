"""`mode=group` on a real Spark: no message is lost if members join, leave, freeze or die."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kazoo.exceptions import NoNodeError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from spark.queries import LIMIT_S, Place, Query, QueryGroup, wait
from support.jvm.member import JvmMember
from support.kafka.traffic import Traffic
from support.members.crew import environment

from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings

SESSION_S = 3.0
log = logging.getLogger(__name__)


class FlowingGroup(QueryGroup):
    """A group with its queries, and a producer that produces all the time."""

    def __init__(self, *where: Any, **more: Any) -> None:
        super().__init__(*where, **more)
        self.flow = self.traffic()
        self.queries: list[Query] = []
        self.others: list[Counter[Place]] = []

    def traffic(self) -> Traffic:
        made = Traffic(client_settings(self.sandbox.zookeeper_connect))
        made.partitions = [self.tp(number) for number in range(4)]
        return made

    def options(self, **options: str) -> dict[str, str]:
        return super().options(**{"revoke__grace__ms": "30000", **options})

    def query(self, name: str, **options: str) -> Query:
        """Return a query that is not started yet; the query is stopped when the test ends."""
        made = Query(self.spark, self.directory / name, self.options(**options))
        self.queries.append(made)
        self.stack.callback(lambda: made.stop() if hasattr(made, "query") else None)
        return made

    @property
    def produced(self) -> set[Place]:
        return {(tp.topic, tp.partition, n) for tp, all in self.flow.produced.items() for n in all}

    @property
    def read(self) -> Counter[Place]:
        return sum([*(one.read for one in self.queries), *self.others], Counter())

    def all_read(self) -> None:
        """Wait until every message that was produced has been read."""
        wait(lambda: self.produced <= self.read.keys(), "every produced message to be read")

    @property
    def repeated(self) -> set[Place]:
        return {place for place, count in self.read.items() if count > 1}

    def parts(self) -> dict[str, int]:
        """Return the number of partitions that each member owns."""
        return dict(Counter(owner.rpartition("-")[0] for owner in self.owners()))

    @property
    def members(self) -> list[str]:
        try:
            return self.admin.get_children(paths.ids(self.name))
        except NoNodeError:
            return []


@pytest.fixture
def scene(
    spark: SparkSession, sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[FlowingGroup]:
    """A topic of four partitions, and an empty group."""
    topic = unique("flow")
    sandbox.create_topic(topic, partitions=4)
    with ExitStack() as stack:
        made = FlowingGroup(sandbox, unique("group"), topic, stack, spark=spark, directory=tmp_path)
        stack.callback(made.flow.stop)
        yield made


class Watcher(threading.Thread):
    """Records every offset in ZooKeeper that becomes lower."""

    def __init__(self, scene: FlowingGroup) -> None:
        super().__init__(daemon=True)
        self._scene, self._over = scene, threading.Event()
        self.last: dict[int, int] = {}
        self.back: list[tuple[int, int, int]] = []

    def run(self) -> None:
        while not self._over.wait(0.02):
            for partition in range(4):
                now = int(self._scene.stored(partition) or 0)
                if now < self.last.get(partition, 0):
                    self.back.append((partition, self.last[partition], now))
                self.last[partition] = now

    def stop(self) -> None:
        """End the thread, which must have watched until now."""
        assert self.is_alive()
        self._over.set()
        self.join(LIMIT_S)
        assert not self.is_alive()


class DriverProcess:
    """A query in its own driver process, with its files."""

    def __init__(self, scene: FlowingGroup, name: str, **options: str) -> None:
        self.directory = scene.directory / name
        self.directory.mkdir()
        self.hold = self.directory / "hold"
        self.errors = self.directory / "errors.txt"
        self._lines: list[dict[str, Any]] = []
        program = Path(__file__).with_name("queries.py")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, program, self.directory, json.dumps(scene.options(**options))],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                text=True,
                start_new_session=True,
            )
        scene.stack.callback(self.end)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.append(json.loads(line))

    def told(self, event: str) -> dict[str, Any]:
        """Wait until the driver reports this event, and return the event."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [one for one in self._lines if one["event"] == event]
            assert found or self.process.poll() is None, self.errors.read_text()[-4000:]
            return bool(found)

        wait(look, f"the driver to tell of {event!r}")
        return found[-1]

    def kill(self) -> None:
        """Send SIGKILL to Python and the JVM at once, but no signal to the source's process."""
        os.kill(int(self.told("started")["jvm"]), signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    @property
    def read(self) -> Counter[Place]:
        path = self.directory / "read.json"
        places = json.loads(path.read_text()) if path.exists() else []
        return Counter((topic, partition, offset) for topic, partition, offset in places)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_queries_join_and_leave(scene: FlowingGroup) -> None:
    """While queries join and leave, no message is lost and none is redelivered."""
    one = scene.query("a", consumer__id="a").start()
    scene.flow.start()
    wait(lambda: len(one.read) > 50)
    # This is longer than a member needs to leave, so no session expires before that.
    other = scene.query("b", consumer__id="b", zookeeper__session__timeout__ms="200000").start()
    wait(lambda: sorted(scene.parts().values()) == [2, 2] and len(other.read) > 50)
    scene.flow.stop()
    scene.all_read()
    wait(
        lambda: (
            [scene.stored(n) for n in range(4)]
            == [str(len(scene.flow.produced[scene.tp(n)])) for n in range(4)]
        ),
        "the commits of all messages",
    )
    started = time.monotonic()
    other.stop()
    wait(lambda: len(scene.members) == 1)
    took_s = time.monotonic() - started
    log.info("znodes gone %.3f s after stop()", took_s)
    assert took_s < 100.0
    wait(lambda: scene.parts() == {f"{scene.name}_a": 4})
    for partition in range(4):
        placed = scene.sandbox.produce(scene.topic, 5, partition=partition)
        scene.flow.produced[scene.tp(partition)] |= {at.offset for at in placed}
    scene.all_read()
    assert scene.repeated == set()


def test_beside_jvm_and_python_members(scene: FlowingGroup) -> None:
    """A query, a JVM consumer and a connector each get a share, and no message is lost."""
    query = scene.query("a", consumer__id="a", revoke__grace__ms="4000").start()
    scene.flow.start()
    wait(lambda: len(query.read) > 20)
    jvm = JvmMember(
        "1.1.1",
        scene.sandbox.zookeeper_connect,
        scene.name,
        name="j",
        directory=scene.directory,
        topics=[scene.topic],
    )
    scene.stack.callback(jvm.end)
    one = scene.join("p", zookeeper_session_timeout_s=SESSION_S)
    wait(lambda: len(scene.parts()) == 3 and sum(scene.parts().values()) == 4, "three shares")
    wait(
        lambda: jvm.delivered and one.readers[0].messages, "messages for each of the three members"
    )
    jvm.leave()
    one.close()
    wait(lambda: scene.parts() == {f"{scene.name}_a": 4}, "the query to own all partitions again")
    scene.flow.stop()
    scene.others = [
        Counter((scene.topic, d.partition.partition, d.offset) for d in jvm.delivered),
        Counter((m.topic, m.partition, m.offset) for m in one.readers[0].messages),
    ]
    scene.all_read()


def test_a_driver_is_killed_within_its_first_batch(scene: FlowingGroup) -> None:
    """Another query continues; the restarted query redelivers only the batch in flight."""
    for partition in range(4):
        placed = scene.sandbox.produce(scene.topic, 50, partition=partition)
        scene.flow.produced[scene.tp(partition)] |= {at.offset for at in placed}
    driver = DriverProcess(scene, "d", consumer__id="d", maxOffsetsPerTrigger="100")
    driver.hold.touch()
    open_batch = driver.told("batch")["number"]
    surplus = scene.query("p", consumer__id="p")
    driver.kill()
    started = time.monotonic()
    wait(lambda: scene.members == [])
    log.info("znodes gone %.3f s after the driver was killed", time.monotonic() - started)
    surplus.start()
    scene.all_read()
    restarted = Query(scene.spark, driver.directory / "checkpoint", scene.options(consumer__id="d"))
    scene.queries.append(restarted)
    scene.stack.callback(restarted.stop)
    restarted.start()
    wait(lambda: len(restarted.read) >= 100)
    wait(lambda: sorted(scene.parts().values()) == [2, 2])
    batch = {place for place, number in restarted.places if number == open_batch}
    assert scene.repeated == batch and len(batch) == 100
    told = driver.errors.read_text()
    assert f"group {scene.name}: batch of 100 messages of 4 partitions" in told
    assert f"group {scene.name}: owns 4 partitions" in told


def test_a_source_process_freezes(scene: FlowingGroup) -> None:
    """Another query takes over, the resumed one rejoins; no message is lost, no offset lowered."""
    brief = {"zookeeper__session__timeout__ms": "3000"}
    query = scene.query("a", consumer__id="a", **brief).start()
    scene.flow.start()
    watcher = Watcher(scene)
    watcher.start()
    wait(lambda: len(query.read) > 50)
    peer = scene.query("b", consumer__id="b").start()
    wait(lambda: sorted(scene.parts().values()) == [2, 2])
    os.kill(query.pid, signal.SIGSTOP)
    started = time.monotonic()
    wait(lambda: scene.parts() == {f"{scene.name}_b": 4})
    taken_s = time.monotonic() - started
    count = len(peer.read)
    wait(lambda: len(peer.read) > count)
    log.info(
        "freeze: taken over after %.1f s, served after %.1f s", taken_s, time.monotonic() - started
    )
    os.kill(query.pid, signal.SIGCONT)
    wait(lambda: sorted(scene.parts().values()) == [2, 2])
    count = len(query.read)
    wait(lambda: len(query.read) > count)
    scene.flow.stop()
    scene.all_read()
    watcher.stop()
    assert watcher.back == []
    assert min(watcher.last.values()) > 0, "the watcher has seen an offset of each partition"
    assert query.query.isActive and query.query.exception() is None
    log.info("freeze: %d of %d messages were redelivered", len(scene.repeated), len(scene.produced))


def test_zookeeper_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """While ZooKeeper restarts a query waits; then it continues, and loses no message."""
    with Sandbox(tick_time_s=0.1) as own, ExitStack() as stack:
        own.create_topic("flow", partitions=4)
        scene = FlowingGroup(own, "group", "flow", stack, spark=spark, directory=tmp_path)
        stack.callback(scene.flow.stop)
        query = scene.query("a", zookeeper__session__timeout__ms="30000").start()
        scene.flow.start()
        wait(lambda: len(query.read) > 20)
        own.zookeeper.restart()
        count = len(query.read)
        wait(lambda: len(query.read) > count + 20)
        scene.flow.stop()
        scene.all_read()


def test_leaders_move(spark: SparkSession, tmp_path: Path) -> None:
    """If a leading broker is killed and restarted and another one stops, no message is lost."""
    fast = {"zookeeper.session.timeout.ms": 1500, "unclean.leader.election.enable": "false"}
    with Sandbox(brokers=2, tick_time_s=0.1, overrides=fast) as own, ExitStack() as stack:
        placed = own.create_topic("flow", partitions=4, replicas=2)
        scene = FlowingGroup(own, "group", "flow", stack, spark=spark, directory=tmp_path)
        stack.callback(scene.flow.stop)
        query = scene.query("a").start()
        scene.flow.start()
        wait(lambda: len(query.read) > 20)
        first = own.brokers[placed[0].leader or 0]
        (other,) = (one for one in own.brokers if one is not first)
        first.kill()
        assert_goes_on(scene, query)
        first.start()
        wait(lambda: in_sync(own, "flow") == [2] * 4)
        other.stop()
        assert_goes_on(scene, query)
        scene.flow.stop()
        scene.all_read()
        assert query.query.isActive and query.query.exception() is None
        log.info(
            "leader change: %d of %d messages were redelivered",
            len(scene.repeated),
            len(scene.produced),
        )
        assert scene.repeated == set()


def in_sync(servers: Sandbox, topic: str) -> list[int]:
    """Return the number of brokers that have all messages of each partition."""
    client = AdminClient({"bootstrap.servers": servers.bootstrap, "log_level": 0})
    partitions = client.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions
    return [len(one.isrs) for one in partitions.values()]


def assert_goes_on(scene: FlowingGroup, query: Query) -> None:
    """Assert that all partitions deliver the messages that are produced from now on."""
    before = {tp: max(all, default=-1) for tp, all in scene.flow.produced.items()}
    wait(
        lambda: all(
            any(at > before.get(scene.tp(n), -1) for _, number, at in [*query.read] if number == n)
            for n in range(4)
        ),
        "the query to read new messages in every partition",
    )


def test_an_operator_rewinds_a_stopped_query(scene: FlowingGroup) -> None:
    """A stopped query restarts at the offsets that `zkconsumer offsets reset` has set."""
    scene.flow.produced = {
        scene.tp(n): {at.offset for at in scene.sandbox.produce(scene.topic, 10, partition=n)}
        for n in range(4)
    }
    query = scene.query("a").start()
    scene.all_read()
    wait(lambda: [scene.stored(n) for n in range(4)] == ["10"] * 4)
    query.stop()
    wait(lambda: scene.members == [])
    command = [sys.executable, "-m", "zkconsumer", "offsets", "reset", "--to-earliest", "--execute"]
    command += ["-z", scene.sandbox.zookeeper_connect, "-g", scene.name, "-t", scene.topic]
    subprocess.run([*command, "--backup-dir", scene.directory], check=True, capture_output=True)
    query.start()
    wait(lambda: set(query.read.values()) == {2} and len(query.read) == 40)


def test_errors_are_one_sentence(scene: FlowingGroup) -> None:
    """If an error ends a query, the user sees its text, without Python's traceback."""
    scene.sandbox.produce(scene.topic, 5, partition=0)
    query = scene.query("a").start()
    wait(lambda: len(query.read) == 5)
    scene.sandbox.delete_topic(scene.topic)
    with pytest.raises(StreamingQueryException) as raised:
        query.query.awaitTermination(LIMIT_S)
    assert f"SparkSourceError: topic {scene.topic} was deleted (group {scene.name}):" in str(
        raised.value
    )
    assert "Traceback" not in str(raised.value)
