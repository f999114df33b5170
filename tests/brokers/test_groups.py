"""On brokers of every release, groups deliver each message once while members change."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from support.kafka.traffic import Traffic
from support.members.crew import Crew
from support.members.group import Group
from support.wait import eventually

from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.topics import client_settings


def test_two_members_share_and_hand_over(crew: Crew) -> None:
    """While messages flow, joins and clean leaves lose and redeliver none of them."""
    first = crew.join()
    crew.settle(first)
    crew.flowing(first)
    second = crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    assert len(first.owned) == len(second.owned) == 2
    first.leave()
    crew.settle(second)
    crew.flowing(second)
    assert crew.finish().duplicates() == 0


def test_partitions_are_added(crew: Crew, cluster: Sandbox, topic: str) -> None:
    """New partitions of a topic are assigned and read from their first message."""
    first, second = crew.join(), crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    cluster.add_partitions(topic, partitions=6)
    crew.feed(topic, 6)
    crew.settle(first, second)
    crew.flowing(first, second)
    assert crew.finish().duplicates() == 0


def test_the_broker_restarts(crew: Crew, cluster: Sandbox, stack: ExitStack) -> None:
    """When the only broker restarts, both members continue without a gap."""
    first, second = crew.join(), crew.join()
    crew.settle(first, second)
    crew.flowing(first, second)
    # A librdkafka producer may never reconnect to an old broker that restarts, so use a new one.
    before = crew.traffic
    before.stop()
    cluster.broker.restart()
    crew.traffic = Traffic(client_settings(cluster.zookeeper_connect))
    crew.traffic.produced, crew.traffic.partitions = before.produced, before.partitions
    stack.callback(crew.traffic.stop)
    crew.traffic.start()
    crew.flowing(first, second)
    assert crew.finish().duplicates() == 0


def test_the_next_member_starts_at_the_committed_offsets(group: Group, cluster: Sandbox) -> None:
    """The next member starts exactly at the committed offsets."""
    for partition in range(4):
        cluster.produce(group.topic, 10, partition=partition)
    first = group.join("one", auto_commit_enable=False)
    first.read(40)
    first.connector.commit_offsets()
    cluster.produce(group.topic, 5, partition=2)
    first.read(45)
    first.close()
    group.write(2, b"12")
    second = group.join("two")
    second.read(3)
    cluster.produce(group.topic, 1, partition=0)
    second.read(4)
    assert second.readers[0].offsets(2) == [12, 13, 14]
    assert second.readers[0].offsets(0) == [10]
    assert [group.stored(partition) for partition in (0, 1, 3)] == ["10", "10", "10"]


@pytest.mark.parametrize(
    ("policy", "stored", "expected"),
    [
        ("smallest", b"10000", list(range(10))),
        ("smallest", b"-1", list(range(10))),
        ("largest", b"10000", []),
        ("largest", b"-1", []),
    ],
)
def test_a_reset_follows_the_policy(
    group: Group, cluster: Sandbox, policy: str, stored: bytes, expected: list[int]
) -> None:
    """AutoOffsetResetTest: an offset beyond the end, or a negative one, is reset to either end."""
    cluster.produce(group.topic, 10, partition=0)
    group.write(0, stored)
    one = group.join(auto_offset_reset=policy)
    # Every partition is reset, because the other partitions have no stored offset.
    eventually(lambda: one.counted.get("position_reset") == 4)
    cluster.produce(group.topic, 1, partition=0)
    eventually(lambda: one.readers[0].offsets(0)[-1:] == [10])
    assert one.readers[0].offsets(0) == [*expected, 10]
    one.connector.commit_offsets()
    assert group.stored(0) == "11"
