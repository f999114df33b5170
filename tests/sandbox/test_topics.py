"""Topics and messages on the sandbox's 3.9 broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.protocol.connection import ConnectionHandler
from support.members.group import register_broker
from support.zk.client import peer_of

from zkconsumer.sandbox import Sandbox, SandboxError, topics


def test_key_decides_partition(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """Messages with the same key go, in order, to the partition that the Java producer chooses."""
    name = unique("keys")
    sandbox.create_topic(name, partitions=12)
    placed = sandbox.produce(name, ["a", b"b", None], key="foobar")
    # org.apache.kafka.common.utils.UtilsTest: murmur2("foobar") is -790332482.
    partition = (-790332482 & 0x7FFFFFFF) % 12
    assert placed == [(partition, 0), (partition, 1), (partition, 2)]


def test_a_count_of_messages(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """A count produces this number of messages, and each has a partition and an offset."""
    name = unique("count")
    sandbox.create_topic(name, partitions=3)
    placed = sandbox.produce(name, 1000)
    assert len(set(placed)) == 1000
    assert {place.partition for place in placed} <= {0, 1, 2}


def test_topic_exists(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """If a topic exists, it is not created again."""
    name = unique("twice")
    sandbox.create_topic(name)
    with pytest.raises(SandboxError, match="exists"):
        sandbox.create_topic(name)


def test_ctrl_c_while_connecting(
    sandbox: Sandbox, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during the connection reaches the caller, instead of an error of kazoo."""

    def interrupted(_: ConnectionHandler) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ConnectionHandler, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sandbox.create_topic(unique("interrupted"))


def test_topic_grows(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """Partitions can be added but not removed; new partitions have leaders at once."""
    name = unique("grows")
    sandbox.create_topic(name, partitions=2, config={"retention.ms": 3_600_000})
    assert [p.leader for p in sandbox.add_partitions(name, partitions=4)] == [0, 0, 0, 0]
    assert sandbox.produce(name, 1, partition=3) == [(3, 0)]
    with pytest.raises(SandboxError, match="has 4 partitions: a topic can only grow"):
        sandbox.add_partitions(name, partitions=4)


def test_partitions_that_cannot_exist(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """A topic without partitions is refused, and so are messages of a missing partition."""
    name = unique("partitions")
    with pytest.raises(SandboxError, match="a topic has at least one partition"):
        sandbox.create_topic(name, partitions=0)
    sandbox.create_topic(name)
    with pytest.raises(SandboxError, match="has no partition 7: it has 1 partitions"):
        sandbox.messages(name, partition=7)


def test_a_broker_that_does_nothing_is_not_awaited_for_ever(
    sandbox: Sandbox, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for leaders reports progress, and ends if no more partitions become ready."""
    seen: list[tuple[int, int]] = []
    sandbox.create_topic(
        unique("ready"), partitions=3, on_progress=lambda *ready: seen.append(ready)
    )
    assert seen[-1] == (3, 3)
    monkeypatch.setattr(topics, "LEADERS_LIMIT_S", 0.2)
    chroot = unique("/idle")
    with peer_of(sandbox.zookeeper_connect) as client:
        client.ensure_path(chroot)
        client.chroot = chroot
        register_broker(client, 0, "127.0.0.1:1")
        with pytest.raises(SandboxError, match=r"2 of 2 partitions of .* have no leader"):
            idle = topics.ServerTopics(f"{sandbox.zookeeper_connect}{chroot}")
            idle.create_topic("stuck", partitions=2)


def test_topic_deleted(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """When the call returns, the deleted topic no longer exists."""
    name = unique("gone")
    sandbox.create_topic(name)
    assert name in sandbox.list_topics()
    sandbox.delete_topic(name)
    assert name not in sandbox.list_topics()
    with pytest.raises(SandboxError, match="does not exist"):
        sandbox.delete_topic(name)


def test_more_replicas_than_brokers(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """If there are more replicas than brokers, there is an error and nothing is created."""
    name = unique("replicas")
    with pytest.raises(SandboxError, match=r"2 replicas .*there is one broker"):
        sandbox.create_topic(name, replicas=2)
    assert name not in sandbox.list_topics()


def test_unknown_topic(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """Producing to an unknown topic or partition raises an error at once."""
    with pytest.raises(SandboxError, match=r"does not exist .*: create it first"):
        sandbox.produce(unique("unknown"), ["x"])
    name = unique("one")
    sandbox.create_topic(name)
    with pytest.raises(SandboxError, match="has no partition 1: it has 1 partitions"):
        sandbox.produce(name, ["x"], partition=1)


def test_no_zookeeper() -> None:
    """If there is no ZooKeeper, the error names the address and the remedy."""
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:1\b.*check that the sandbox runs"):
        topics.ServerTopics("127.0.0.1:1").list_topics()
