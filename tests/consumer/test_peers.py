"""Registered peers that claim no partition, as JVM members that have given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer import ConsumerConfig, ConsumerConnector, TopicPartition
from zkconsumer.protocol import paths, registrations
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until


@pytest.fixture
def idle_peer(sandbox: Sandbox) -> Iterator[Callable[[str, str], None]]:
    """Register a member that never claims a partition."""
    with peer_of(sandbox.zookeeper_connect) as client:

        def register(group: str, topic: str) -> None:
            registration = registrations.Registration({topic: 1}, timestamp_ms=1400000000000)
            path = paths.member(group, f"{group}_aaa")
            payload = registrations.encode_registration(registration)
            client.create(path, payload, ephemeral=True, makepath=True)

        yield register


def test_idle_peer_is_reported_once_and_leaves_the_status_with_the_peer(
    sandbox: Sandbox, idle_peer: Callable[[str, str], None], unique: Callable[[str], str]
) -> None:
    """A peer that leaves its share unclaimed for retries x back-off is reported once."""
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic, partitions=2)
    idle_peer(group, topic)
    config = ConsumerConfig(
        group_id=group,
        zookeeper_connect=sandbox.zookeeper_connect,
        rebalance_backoff_s=0.1,
        rebalance_max_retries=2,
    )
    with ConsumerConnector(config) as connector:
        connector.create_message_streams({topic: 1})
        expected = frozenset({TopicPartition(topic, 0)})
        assert until(lambda: connector.status().idle_peers == expected, limit_s=LIMIT_S)
        rounds = connector.metrics()["zookeeper_requests"]
        more = rounds + 3
        assert until(lambda: connector.metrics()["zookeeper_requests"] >= more, limit_s=LIMIT_S)
        assert connector.metrics()["idle_peer"] == 1


def test_a_nudge_registers_again_and_keeps_ownership(
    sandbox: Sandbox, idle_peer: Callable[[str, str], None], unique: Callable[[str], str]
) -> None:
    """With `peers.nudge` the id znode is created again, and no ownership is lost."""
    topic, group = unique("topic"), unique("group")
    sandbox.create_topic(topic, partitions=2)
    idle_peer(group, topic)
    config = ConsumerConfig(
        group_id=group,
        zookeeper_connect=sandbox.zookeeper_connect,
        rebalance_backoff_s=0.1,
        rebalance_max_retries=2,
        peers_nudge=True,
    )
    with peer_of(sandbox.zookeeper_connect) as client, ConsumerConnector(config) as connector:
        connector.create_message_streams({topic: 1})
        member = paths.member(group, connector.consumer_id)
        owner = paths.owner(group, TopicPartition(topic, 1))
        assert until(lambda: client.exists(owner) is not None, limit_s=LIMIT_S)
        # The member registers, claims, and registers again. The second registration may be older
        # than this line.
        owned = client.exists(owner).czxid

        def again() -> bool:
            node = client.exists(member)
            return node is not None and node.czxid > owned

        assert until(again, limit_s=LIMIT_S)
        assert until(lambda: connector.status().phase == "settled", limit_s=LIMIT_S)
        assert client.exists(owner).czxid == owned
        # After several renewals of the lease, all watch events of the nudge have been handled.
        later = connector.metrics()["zookeeper_requests"] + 5
        assert until(lambda: connector.metrics()["zookeeper_requests"] >= later, limit_s=LIMIT_S)
        assert connector.metrics().get("ownership_lost", 0) == 0
        # The member may be reading the group again at this moment.
        assert until(lambda: connector.status().phase == "settled", limit_s=LIMIT_S)
        assert client.exists(owner).czxid == owned
