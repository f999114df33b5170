"""What an operator has asked of a bridge outlives the bridge's process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.internals import session_of
from support.wait import LIMIT_S, wait_for

from zkconsumer.bridge.control import Control, Wish
from zkconsumer.bridge.state import Goal
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.testing import FakeCluster, Fault
from zkconsumer.zk.client import ZooKeeperClient

GROUP = "billing"
WISH = f"{paths.group(GROUP)}/bridge"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as found:
        yield found


@pytest.fixture
def config(cluster: FakeCluster) -> ConsumerConfig:
    """Settings of a cluster in which the group exists."""
    config = ConsumerConfig(
        zookeeper_connect=cluster.zookeeper_connect,
        group_id=GROUP,
        zookeeper_connection_timeout_s=LIMIT_S,
        zookeeper_session_timeout_s=LIMIT_S,
    )
    with ZooKeeperClient(config) as connection:
        for path in (paths.CONSUMERS, paths.group(GROUP)):
            connection.write([rq.Create(path)])
    return config


@pytest.mark.parametrize("goal", [Goal.PAUSE, Goal.ROLLBACK, Goal.FINISH])
def test_a_bridge_continues_with_the_goal_of_a_dead_one(goal: Goal, config: ConsumerConfig) -> None:
    """A bridge started after a crash pursues the stored goal; a reached goal is forgotten."""
    with ZooKeeperClient(config) as connection:
        first = Control(connection, GROUP, "first")
        assert first.begin(0.25) == Wish(Goal.RUN, 0.25)
        first.change(lambda wish: replace(wish, goal=goal, consumers=3))
    with ZooKeeperClient(config) as connection:
        second = Control(connection, GROUP, "second")
        assert second.begin(None) == Wish(goal, None, 3) == second.wish()
        second.reached()
        assert second.begin(0.5) == Wish(Goal.RUN, 0.5)


def test_a_goal_of_an_earlier_release(config: ConsumerConfig) -> None:
    """A goal that was stored without the topics can be read."""
    with ZooKeeperClient(config) as connection:
        connection.write([rq.Create(WISH, b'{"goal": "pause", "share": null, "consumers": 2}')])
        assert Control(connection, GROUP, "").wish() == Wish(Goal.PAUSE, None, 2, ())


def test_the_operator_and_the_bridge_write_at_the_same_time(config: ConsumerConfig) -> None:
    """The second one to write keeps what the first one has changed."""
    with ZooKeeperClient(config) as connection:
        bridge, operator = Control(connection, GROUP, "bridge"), Control(connection, GROUP, "")

        def count(stored: Wish) -> Wish:
            if stored.goal is Goal.RUN:  # the operator is faster
                operator.change(lambda wish: replace(wish, goal=Goal.PAUSE))
            return replace(stored, consumers=2)

        assert bridge.change(count) == Wish(Goal.PAUSE, None, 2) == operator.wish()


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b'{"goal": "fly"}',
        b'{"goal": "run", "share": 7}',
        b'{"goal": "run", "consumers": -1}',
        b'{"goal": "run", "topics": "pay"}',
    ],
)
def test_a_malformed_goal(data: bytes, config: ConsumerConfig) -> None:
    """A goal that nobody can read is an error that names the znode."""
    with ZooKeeperClient(config) as connection:
        connection.write([rq.Create(WISH, data)])
        with pytest.raises(MalformedZnodeError, match=f"not a goal of a bridge.*{WISH}"):
            Control(connection, GROUP, "first").begin(None)


def test_a_standby_waits_while_zookeeper_is_away(
    cluster: FakeCluster, config: ConsumerConfig
) -> None:
    """A lost connection does not end a standby, which takes over when the active process ends."""
    said: list[str] = []
    with ZooKeeperClient(config) as waiting, ThreadPoolExecutor() as threads:
        with ZooKeeperClient(config) as connection:
            first = Control(connection, GROUP, "first")
            first.begin(None)
            assert first.take()
            standby = threads.submit(Control(waiting, GROUP, "second").wait, said.append)
            wait_for(lambda: said == ["standby: first is active"], "the standby")
            with cluster.zookeeper.inject(Fault.CUT_BEFORE, path=f"{WISH}/active"):
                wait_for(lambda: len(said) == 3, "the standby to be connected again")
            assert "the connection was lost" in said[1]
            assert said[2] == said[0]
            assert not standby.done()
        assert standby.result(LIMIT_S)


def test_the_client_of_a_standby_fails_for_good(config: ConsumerConfig) -> None:
    """A standby replaces its client, and takes over when the active process ends."""
    said: list[str] = []
    with ZooKeeperClient(config) as waiting, ThreadPoolExecutor() as threads:
        with ZooKeeperClient(config) as connection:
            first = Control(connection, GROUP, "first")
            first.begin(None)
            assert first.take()
            standby = threads.submit(Control(waiting, GROUP, "second").wait, said.append)
            wait_for(lambda: said == ["standby: first is active"], "the standby")
            session_of(waiting).client.stop()
            wait_for(lambda: len(said) == 3, "the standby to be connected again")
        assert standby.result(LIMIT_S)


def test_a_lock_whose_answer_is_lost(cluster: FakeCluster, config: ConsumerConfig) -> None:
    """A process whose request for the lock was executed does not wait for itself."""
    said: list[str] = []
    with ZooKeeperClient(config) as connection:
        first = Control(connection, GROUP, "first")
        first.begin(None)
        with cluster.zookeeper.inject(Fault.CUT_AFTER, path=f"{WISH}/active"):
            assert not first.wait(said.append)
        assert not Control(connection, GROUP, "second").take()
    assert len(said) == 1
