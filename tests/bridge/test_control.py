"""What an operator has asked of a bridge outlives the bridge's process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.wait import LIMIT_S

from zkconsumer.bridge.control import Control, Wish
from zkconsumer.bridge.state import Goal
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.testing import FakeCluster
from zkconsumer.zk.client import ZooKeeperClient

GROUP = "billing"
WISH = f"{paths.group(GROUP)}/bridge"


@pytest.fixture
def config() -> Iterator[ConsumerConfig]:
    """Settings of a cluster in which the group exists."""
    with FakeCluster() as cluster:
        config = ConsumerConfig(
            zookeeper_connect=cluster.zookeeper_connect,
            group_id=GROUP,
            zookeeper_connection_timeout_s=LIMIT_S,
            zookeeper_session_timeout_s=LIMIT_S,
        )
        with ZooKeeperClient(config) as connection:
            for path in (paths.CONSUMERS, paths.group(GROUP)):
                connection.write([rq.Create(path)])
        yield config


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
    ],
)
def test_a_malformed_goal(data: bytes, config: ConsumerConfig) -> None:
    """A goal that nobody can read is an error that names the znode."""
    with ZooKeeperClient(config) as connection:
        connection.write([rq.Create(WISH, data)])
        with pytest.raises(MalformedZnodeError, match=f"not a goal of a bridge.*{WISH}"):
            Control(connection, GROUP, "first").begin(None)
