"""A bridge between real members: partitions move from old to new consumers and back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from support.wait import LIMIT_S, wait_for

from zkconsumer.bridge.process import BridgeProcess, new_process, settings_of_brokers
from zkconsumer.bridge.state import Goal
from zkconsumer.bridge.status import Side, sides
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.connector import ConsumerConnector
from zkconsumer.errors import RefusedError
from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import FakeCluster
from zkconsumer.zk.client import ZooKeeperClient

GROUP, TOPIC, PARTITIONS = "billing", "pay", 4


class Readings:
    """Which side has read each message, and how often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: dict[int, int] = {}
        self.sides: dict[str, set[int]] = {"old": set(), "new": set()}

    def add(self, side: str, partition: int, message: int) -> None:
        """Record a message and its partition."""
        with self._lock:
            self.counts[message] = self.counts.get(message, 0) + 1
            self.sides[side].add(partition)

    def forget_sides(self) -> None:
        """Forget which side has read which partition."""
        with self._lock:
            self.sides = {"old": set(), "new": set()}

    def read_by(self, side: str) -> set[int]:
        """Return the partitions that a side has read since the last `forget_sides`."""
        with self._lock:
            return set(self.sides[side])


@contextmanager
def running(target: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread; the event tells it to end."""
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Scene:
    """A cluster, a producer, and members of both kinds."""

    def __init__(self, zookeeper: str, bootstrap: str, assignor: str) -> None:
        self.readings, self.sent = Readings(), 0
        self.config = ConsumerConfig(
            zookeeper_connect=zookeeper,
            group_id=GROUP,
            auto_offset_reset="smallest",
            auto_commit_interval_s=0.5,
            zookeeper_session_timeout_s=20.0,
        )
        self._bootstrap, self._assignor = bootstrap, assignor

    def produce(self, stop: threading.Event) -> None:
        """Send numbered messages to all partitions in turn."""
        producer = Producer({"bootstrap.servers": self._bootstrap})
        while not stop.wait(0.02):
            number = str(self.sent).encode()
            producer.produce(TOPIC, number, partition=self.sent % PARTITIONS)
            self.sent += 1
            producer.poll(0)
        producer.flush()

    def old(self, stop: threading.Event) -> None:
        """Read as an old member."""
        with ConsumerConnector(self.config) as connector:
            (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
            while not stop.is_set():
                for message in stream.poll(timeout_s=0.1):
                    self.readings.add("old", message.partition, int(message.value or b""))

    def new(self, stop: threading.Event) -> None:
        """Read as a new member."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": self._assignor,
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 20_000,
                "auto.commit.interval.ms": 500,
            }
        )
        consumer.subscribe([TOPIC])
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                number = int(message.value() or b"")
                self.readings.add("new", message.partition() or 0, number)
        consumer.close()

    def process(
        self,
        connection: ZooKeeperClient,
        *,
        bootstrap: str | None = None,
        topics: tuple[str, ...] = (),
        stored: tuple[str, ...] = (),
    ) -> BridgeProcess:
        """Return the group's bridge."""
        return new_process(
            self.config,
            connection,
            bootstrap=bootstrap,
            topics=topics,
            share=None,
            takes_lead=False,
            session_s=30.0,
            consumers=4,
            stored=stored,
        )


@contextmanager
def _scene(backend: str, assignor: str) -> Iterator[Scene]:
    overrides = {"group.initial.rebalance.delay.ms": 0}
    if backend == "fake":
        with FakeCluster() as cluster:
            cluster.create_topic(TOPIC, partitions=PARTITIONS)
            yield Scene(cluster.zookeeper_connect, cluster.bootstrap, assignor)
        return
    with Sandbox(release=backend, overrides=overrides) as sandbox:
        sandbox.create_topic(TOPIC, partitions=PARTITIONS)
        yield Scene(sandbox.zookeeper.connect, sandbox.brokers[0].address, assignor)


@pytest.mark.parametrize(
    ("backend", "assignor"),
    [
        ("fake", "range"),
        ("0.11.0.3", "range"),
        ("3.9.1", "range"),
        ("3.9.1", "cooperative-sticky"),
    ],
)
def test_partitions_move_to_new_consumers_and_back(backend: str, assignor: str) -> None:
    """Partitions change sides as members leave and return; no message is lost or read twice."""
    every = set(range(PARTITIONS))
    with _scene(backend, assignor) as scene, ExitStack() as stack:
        readings = scene.readings
        stack.enter_context(running(scene.produce))
        old = stack.enter_context(ExitStack())
        old.enter_context(running(scene.old))
        wait_for(lambda: readings.read_by("old") == every, "the old member reads everything")
        connection = stack.enter_context(ZooKeeperClient(scene.config))
        process = scene.process(connection)
        ended: list[str] = []
        thread = threading.Thread(target=lambda: ended.append(process.run()))
        thread.start()
        stack.callback(thread.join)
        stack.callback(process.stop)
        wait_for(lambda: process.state.leads, "the bridge leads")
        new = stack.enter_context(ExitStack())
        new.enter_context(running(scene.new))
        wait_for(lambda: len(readings.read_by("new")) == 2, "both sides share")
        brokers = settings_of_brokers(scene.config, connection, None)
        shown = sides(connection, GROUP, brokers, limit_s=LIMIT_S)
        assert Counter(one.side for one in shown) == {Side.NEW: 2, Side.OLD: 2}
        assert all(one.member and isinstance(one.lag, int) for one in shown), shown
        old.close()
        wait_for(lambda: readings.read_by("new") == every, "the new member reads everything")
        readings.forget_sides()
        old.enter_context(running(scene.old))
        wait_for(lambda: len(readings.read_by("old")) == 2, "the old member gets its share")
        process.stop(Goal.ROLLBACK)
        wait_for(lambda: readings.read_by("old") == every, "the old member reads everything")
        new.close()
        thread.join(LIMIT_S)
        assert ended == ["it has left the brokers' group"]
        last = scene.sent
        wait_for(lambda: len(readings.counts) >= last, "every message is read")
    assert {number for number, count in readings.counts.items() if count > 1} == set()


def test_a_bridge_does_not_follow() -> None:
    """If new members came first, the bridge refuses to start, and both sides read everything."""
    with _scene("fake", "range") as scene, ExitStack() as stack:
        stack.enter_context(running(scene.produce))
        stack.enter_context(running(scene.old))
        stack.enter_context(running(scene.new))
        every = set(range(PARTITIONS))
        wait_for(
            lambda: all(scene.readings.read_by(side) == every for side in ("old", "new")),
            "both sides read everything",
        )
        connection = stack.enter_context(ZooKeeperClient(scene.config))
        with pytest.raises(RefusedError, match="already has 1 member, and") as found:
            scene.process(connection)
        assert "--take-lead" in (found.value.remedy or "")
        brokers = settings_of_brokers(scene.config, connection, None)
        shown = sides(connection, GROUP, brokers, limit_s=LIMIT_S)
        assert Counter(one.side for one in shown) == {Side.BOTH: PARTITIONS}
        assert all(" and " in (one.member or "") for one in shown), shown
