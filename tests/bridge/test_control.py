"""What an operator has asked of a bridge outlives the bridge's process."""

from __future__ import annotations

import pytest

from zkconsumer.bridge.control import Control, Wish
from zkconsumer.bridge.state import Goal
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.testing import FakeCluster
from zkconsumer.zk.client import ZooKeeperClient


@pytest.mark.parametrize("goal", [Goal.PAUSE, Goal.ROLLBACK, Goal.FINISH])
def test_a_bridge_continues_with_the_goal_of_a_dead_one(goal: Goal) -> None:
    """A bridge started after a crash pursues the stored goal; a reached goal is forgotten."""
    with FakeCluster() as cluster:
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="billing")
        with ZooKeeperClient(config) as connection:
            for path in (paths.CONSUMERS, paths.group("billing")):
                connection.write([rq.Create(path)])
            first = Control(connection, "billing", "first")
            assert first.begin(0.25) == Wish(Goal.RUN, 0.25)
            first.set_wish(Wish(goal, 0.25))
        with ZooKeeperClient(config) as connection:
            second = Control(connection, "billing", "second")
            assert second.begin(None) == Wish(goal, None) == second.wish()
            second.reached()
            assert second.begin(0.5) == Wish(Goal.RUN, 0.5)
