"""Look-ups of offsets ask for a topic's metadata once, and wait longer for busy brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.wait import eventually

from zkconsumer.kafka.columns.lookups import Lookup
from zkconsumer.kafka.fetcher import AutoOffsetReset
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import Delay, FakeCluster

TP = TopicPartition("t", 0)


@pytest.fixture
def kafka() -> Iterator[FakeCluster]:
    """Two brokers that have a replica of the topic's only partition, which has five messages."""
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=1, replicas=2)
        cluster.produce("t", 5)
        yield cluster


@pytest.fixture
def lookup(kafka: FakeCluster) -> Iterator[Lookup]:
    one = Lookup({"bootstrap.servers": kafka.bootstrap})
    yield one
    one.close()


def test_the_leaders_are_looked_up_once(kafka: FakeCluster, lookup: Lookup) -> None:
    """Later look-ups of a topic send no metadata request, until a leader has moved."""
    metadata = [one.inject(Delay(0.0), "Metadata", times=None) for one in kafka.brokers]

    def next_offset() -> int | str:
        return lookup.ends([TP], AutoOffsetReset.LARGEST)[TP]

    assert [next_offset() for _ in range(3)] == [5, 5, 5]
    assert sum(one.count for one in metadata) == 1
    leader = kafka.leader("t", 0)
    assert leader is not None
    kafka.move_leader("t", 0, 1 - leader)
    assert "not the leader" in str(next_offset())
    assert next_offset() == 5
    assert sum(one.count for one in metadata) == 2


def test_slow_brokers_get_more_time(kafka: FakeCluster, lookup: Lookup) -> None:
    """If no broker sends the metadata in time, the next requests wait longer."""
    for one in kafka.brokers:
        one.inject(Delay(0.6), "Metadata", times=None)

    def is_answered() -> bool:
        return lookup.ends([TP], AutoOffsetReset.LARGEST, timeout_s=0.3)[TP] == 5

    assert not is_answered()
    eventually(is_answered)
