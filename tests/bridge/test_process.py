"""The process of a bridge on fake servers: its settings, its threads, and what it survives."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from bridge.test_hand_over import GROUP, PARTITIONS, TOPIC, Scene, running
from support.internals import session_of
from support.logged import refused_lines
from support.wait import LIMIT_S, wait_for

from zkconsumer.bridge import brokers, machine
from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.bridge.control import Control
from zkconsumer.bridge.process import BridgeProcess, when_brokers_answer
from zkconsumer.bridge.state import Goal
from zkconsumer.bridge.status import CONSUMER_PREFIX
from zkconsumer.consumer.connector import ConsumerConnector
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.errors import AccessDeniedError, RefusedError
from zkconsumer.kafka.columns.connection import AuthenticationError, Connection, connect
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import PartitionFormat
from zkconsumer.protocol.model import Storage, TopicPartition
from zkconsumer.testing import FakeCluster, committed, wait_until_settled
from zkconsumer.zk.client import ZooKeeperClient


class Stage(Scene):
    """A fake cluster with a topic, its old group, and a bridge of the group."""

    def __init__(self, cluster: FakeCluster, stack: ExitStack) -> None:
        super().__init__(cluster.zookeeper_connect, cluster.bootstrap, "range")
        self.cluster, self.stack = cluster, stack

    def connect(self) -> ZooKeeperClient:
        """Return a connection of its own, for a bridge or an operator."""
        return self.stack.enter_context(ZooKeeperClient(self.config))

    def join_old(self, topic: str = TOPIC) -> None:
        """Let an old member join, which reads nothing."""
        member = self.stack.enter_context(ConsumerConnector(self.config))
        member.create_message_streams({topic: 1})

    @contextmanager
    def bridge(
        self, process: BridgeProcess, control: Control | None = None
    ) -> Iterator[Future[str]]:
        """Run a bridge in a thread until the end of the block; yield what it returns."""
        with ThreadPoolExecutor() as threads:
            end = threads.submit(process.run, control=control)
            try:
                yield end
            finally:
                is_over = end.done()
                process.stop()
            assert is_over or end.result(LIMIT_S)


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


def test_topics_that_the_old_round_robin_refuses(stage: Stage) -> None:
    """With a round-robin that requires equal subscriptions, the bridge takes all topics or none."""
    stage.cluster.create_topic("more", partitions=1)
    stage.config = replace(
        stage.config, partition_assignment_strategy="roundrobin", peers_release="0.9.0.1"
    )
    member = stage.stack.enter_context(ConsumerConnector(stage.config))
    member.create_message_streams({TOPIC: 1, "more": 1})
    with pytest.raises(RefusedError, match="different topics"):
        stage.process(stage.connect(), topics=(TOPIC,))
    both = stage.process(stage.connect(), topics=("more", TOPIC)).state.settings.topics
    assert both == stage.process(stage.connect()).state.settings.topics


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


def _in_kafka(stage: Stage) -> int | None:
    found = committed(stage.cluster.zookeeper_connect, GROUP, storage=Storage.KAFKA)
    return found.get(TopicPartition(TOPIC, 0))


def test_the_broker_to_ask_first_fails() -> None:
    """The bridge goes on with the brokers that it has learnt of."""
    with _stage(brokers=2) as stage:
        stage.join_old()
        first, _ = stage.cluster.brokers
        process = stage.process(stage.connect(), bootstrap=first.bootstrap)
        with stage.bridge(process):
            wait_for(lambda: process.state.leads, "the bridge leads")
            first.kill()
            stage.cluster.zookeeper.create(paths.offset(GROUP, TopicPartition(TOPIC, 0)), b"7")
            wait_for(lambda: _in_kafka(stage) == 7, "the offset is copied")


def test_brokers_that_do_not_answer_delay_no_wish(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the old side's offsets cannot be copied, the bridge reads ZooKeeper as before."""
    asks, may_go_on = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> bool:
        asks.set()
        return may_go_on.wait()

    monkeypatch.setattr(GroupAdmin, "raise_offsets", wait)
    stage.join_old()
    stage.cluster.zookeeper.create(paths.offset(GROUP, TopicPartition(TOPIC, 0)), b"7")
    connection, operator = stage.connect(), Control(stage.connect(), GROUP, "")
    control = Control(connection, GROUP, "first")
    control.begin(None)
    process = stage.process(connection)
    with stage.bridge(process, control), ExitStack() as stack:
        stack.callback(may_go_on.set)
        assert asks.wait(LIMIT_S)
        operator.change(lambda wish: replace(wish, goal=Goal.PAUSE))
        wait_for(lambda: process.state.goal is Goal.PAUSE, "the wish is read")


def test_a_standby_waits_for_the_brokers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that has become active tries again until the brokers answer."""
    monkeypatch.setattr("zkconsumer.bridge.process.RECONNECT_S", 0.0)
    stage.join_old()
    connection, said = stage.connect(), list[str]()

    def make() -> BridgeProcess:
        if len(said) == 2:
            stage.cluster.broker.restart()
        return stage.process(connection)

    stage.cluster.broker.kill()
    assert when_brokers_answer(make, connection, said.append).state.settings.topics == (TOPIC,)
    assert len(said) == 2


def test_a_consumer_that_cannot_connect_delays_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a consumer waits for ZooKeeper, the bridge handles everything else."""
    asks, may_go_on, connect = threading.Event(), threading.Event(), GroupMember.connect

    def wait(member: GroupMember) -> None:
        if CONSUMER_PREFIX in member.consumer_id:
            asks.set()
            may_go_on.wait()
        connect(member)

    monkeypatch.setattr(GroupMember, "connect", wait)
    stage.join_old()
    process = stage.process(stage.connect())
    with stage.bridge(process), ExitStack() as stack:
        stack.callback(may_go_on.set)
        wait_for(lambda: process.state.leads, "the bridge leads")
        with running(stage.new):
            assert asks.wait(LIMIT_S)
            process.stop(Goal.PAUSE)
            wait_for(lambda: process.state.goal is Goal.PAUSE, "the goal is known")
            may_go_on.set()
            wait_for(lambda: len(process.state.held) == 2, "a share")


def test_a_login_that_is_refused_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A running bridge logs in again, until a ticket or a password is renewed."""
    monkeypatch.setattr(brokers, "LOGIN_AGAIN_S", 0.05)
    asked: list[object] = []

    def refuse(*given: object) -> Connection:
        asked.append(given)
        raise AuthenticationError("the ticket has expired")

    stage.join_old()
    process = stage.process(stage.connect())
    with stage.bridge(process) as end:
        wait_for(lambda: process.state.leads, "the bridge leads")
        with monkeypatch.context() as patch:
            patch.setattr(brokers, "connect", refuse)
            stage.cluster.broker.cut()
            wait_for(lambda: len(asked) > 2, "more than one login")
        wait_for(lambda: process.state.client.coordinator is not None, "a login")
        assert not end.done()
    assert caplog.text.count("the ticket has expired") == 1


def test_a_goal_that_nobody_can_read(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A running bridge logs a malformed goal once, keeps the last one, and reads the next one."""
    stage.join_old()
    connection, path = stage.connect(), f"{paths.group(GROUP)}/bridge"
    control = Control(connection, GROUP, "first")
    control.begin(None)
    process = stage.process(connection)
    with stage.bridge(process, control):
        wait_for(lambda: process.state.leads, "the bridge leads")
        stage.cluster.zookeeper.set(path, b"[]")
        wait_for(lambda: "not a goal of a bridge" in caplog.text, "a warning")
        assert process.state.goal is Goal.RUN
        stage.cluster.zookeeper.set(path, b'{"goal": "pause"}')
        wait_for(lambda: process.state.goal is Goal.PAUSE, "the next goal")
    assert caplog.text.count("not a goal of a bridge") == 1


def test_an_error_that_ends_a_bridge(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new members revoke before the error ends the bridge."""
    stage.join_old()
    connection = stage.connect()
    control = Control(connection, GROUP, "first")
    control.begin(None)
    process, denied = stage.process(connection), AccessDeniedError("denied")

    def deny(_: Control) -> None:
        raise denied

    with stage.bridge(process, control) as end:
        wait_for(lambda: process.state.leads, "the bridge leads")
        with running(stage.new):
            wait_for(lambda: len(process.state.owners) == 2, "a share")
            monkeypatch.setattr(Control, "keep_lock", deny)
            with pytest.raises(AccessDeniedError) as found:
                end.result(LIMIT_S)
    assert found.value is denied
    assert process.state.ended == "it has given all partitions back"


def test_the_zookeeper_client_fails_for_good(stage: Stage) -> None:
    """The bridge replaces the client, takes the lock again, and reads the old group as before."""
    stage.join_old()
    connection, operator = stage.connect(), Control(stage.connect(), GROUP, "")
    control = Control(connection, GROUP, "first")
    control.begin(None)
    process = stage.process(connection)
    with stage.bridge(process, control):
        wait_for(lambda: len(process.state.old) == 1, "the old group is read")
        session_of(connection).client.stop()
        wait_for(lambda: operator.holder() == "first", "the lock is taken again")
        stage.join_old()
        wait_for(lambda: len(process.state.old) == 2, "the old group is read again")


def test_no_connection_is_idle_between_rebalances(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the connection of the heartbeats stays open, and the system watches it."""
    made: list[Connection] = []

    def record(*given: Any) -> Connection:
        made.append(connect(*given))
        return made[-1]

    stage.join_old()
    process = stage.process(stage.connect())
    monkeypatch.setattr(brokers, "connect", record)
    with stage.bridge(process):
        wait_for(lambda: process.state.leads, "the bridge leads")
        wait_for(lambda: sum(one.fileno() >= 0 for one in made) == 1, "one open connection")
        (left,) = (one.fileno() for one in made if one.fileno() >= 0)
        with socket.socket(fileno=os.dup(left)) as same:
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_an_old_member_subscribes_to_another_topic(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the topic once; the topics that old members read before are no news."""
    for topic in ("before", "later"):
        stage.cluster.create_topic(topic)
    stage.join_old()
    process = stage.process(stage.connect())
    stage.join_old("before")
    with stage.bridge(process):
        wait_for(lambda: len(process.state.old) == 2, "the old group is read")
        stage.join_old("later")
        stage.join_old("later")
        wait_for(lambda: len(process.state.old) == 4, "the old group is read again")
    words = "is read by the old members only, until the bridge is started again"
    assert caplog.text.count(f"topic later {words}") == caplog.text.count(words) == 1


def test_a_users_log_filter_ends_no_thread(stage: Stage) -> None:
    """If a filter raises at a warning of the thread that reads the old group, it reads again."""
    stage.cluster.create_topic("later")
    stage.join_old()
    process = stage.process(stage.connect())
    with refused_lines(), stage.bridge(process):
        wait_for(lambda: len(process.state.old) == 1, "the old group is read")
        for count in (2, 3):
            stage.join_old("later")
            wait_for(lambda count=count: len(process.state.old) == count, "it is read again")  # type: ignore[misc]  # a default
