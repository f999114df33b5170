"""The process of a bridge on fake servers: its settings, its threads, and what it survives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from bridge.test_hand_over import GROUP, PARTITIONS, TOPIC, Scene, running
from support.wait import LIMIT_S, wait_for

from zkconsumer.bridge import machine
from zkconsumer.bridge.control import Control
from zkconsumer.bridge.process import BridgeProcess
from zkconsumer.consumer.connector import ConsumerConnector
from zkconsumer.errors import RefusedError
from zkconsumer.protocol.assignors import PartitionFormat
from zkconsumer.testing import FakeCluster, wait_until_settled
from zkconsumer.zk.client import ZooKeeperClient


class Stage(Scene):
    """A fake cluster with a topic, its old group, and a bridge of the group."""

    def __init__(self, cluster: FakeCluster, stack: ExitStack) -> None:
        super().__init__(cluster.zookeeper_connect, cluster.bootstrap, "range")
        self.cluster, self.stack = cluster, stack

    def connect(self) -> ZooKeeperClient:
        """Return a connection of its own, for a bridge or an operator."""
        return self.stack.enter_context(ZooKeeperClient(self.config))

    @contextmanager
    def bridge(self, process: BridgeProcess, control: Control | None = None) -> Iterator[None]:
        """Run a bridge in a thread until the end of the block."""
        thread = threading.Thread(target=lambda: process.run(control=control))
        thread.start()
        try:
            yield
        finally:
            process.stop()
            thread.join()


@contextmanager
def _stage(*, brokers: int = 1, partitions: int = PARTITIONS) -> Iterator[Stage]:
    with FakeCluster(brokers=brokers) as cluster, ExitStack() as stack:
        cluster.create_topic(TOPIC, partitions=partitions)
        yield Stage(cluster, stack)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A cluster of one broker."""
    with _stage() as found:
        yield found


@pytest.fixture
def of_1_1() -> Iterator[Stage]:
    """A group with the round-robin of Kafka 1.1, which differs from 0.11 from 11 partitions on."""
    with _stage(partitions=11) as found:
        found.config = replace(
            found.config, partition_assignment_strategy="roundrobin", peers_release="1.1.1"
        )
        yield found


def test_the_bridge_assigns_by_the_rules_of_peers_release(of_1_1: Stage) -> None:
    """The plan follows the same release as the members, so every partition settles on one side."""
    of_1_1.stack.enter_context(running(of_1_1.old))
    wait_until_settled(of_1_1.cluster.zookeeper_connect, GROUP, timeout_s=LIMIT_S)
    process = of_1_1.process(of_1_1.connect())
    of_1_1.stack.enter_context(of_1_1.bridge(process))
    wait_for(lambda: process.state.leads, "the bridge leads")
    of_1_1.stack.enter_context(running(of_1_1.new))
    wait_for(lambda: len(process.state.running) == 1, "a consumer of the bridge")
    wait_for(lambda: machine.is_settled(process.state), lambda: str(process.state.held))


def test_the_bridge_detects_the_release_of_the_old_members(of_1_1: Stage) -> None:
    """With `peers.release=auto`, the plan has the rules that the owner znodes show."""
    for number in range(2):
        config = replace(of_1_1.config, consumer_id=f"old-{number}")
        member = of_1_1.stack.enter_context(ConsumerConnector(config))
        member.create_message_streams({TOPIC: 1})
    wait_until_settled(of_1_1.cluster.zookeeper_connect, GROUP, members=2, timeout_s=LIMIT_S)
    of_1_1.config = replace(of_1_1.config, peers_release="auto")
    setup = of_1_1.process(of_1_1.connect()).state.setup
    assert setup.profile.key_form is PartitionFormat.DASH


def test_a_bridge_takes_over_when_no_old_member_is_left(stage: Stage) -> None:
    """A process that replaces another one shares the topics which that one has stored."""
    connection, operator = stage.connect(), Control(stage.connect(), GROUP, "")
    with ConsumerConnector(stage.config) as member:
        member.create_message_streams({TOPIC: 1})
        control = Control(connection, GROUP, "first")
        control.begin(None)
        process = stage.process(connection)
        with stage.bridge(process, control):
            wait_for(lambda: operator.wish().topics == (TOPIC,), "the topics are stored")
    with pytest.raises(RefusedError, match="no old member is registered"):
        stage.process(connection)
    process = stage.process(connection, stored=(*control.wish().topics, "deleted"))
    assert process.state.settings.topics == (TOPIC,)
