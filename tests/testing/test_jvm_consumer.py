"""Kafka's own old consumer, in a real JVM, runs on the fake cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.jvm.member import JvmMember
from support.wait import wait_for

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import FakeCluster, committed, wait_until_settled

GROUP, TOPIC = "billing", "amounts"
PARTITIONS, EACH = 4, 5
ALL = {(number, offset) for number in range(PARTITIONS) for offset in range(EACH)}


@contextmanager
def joined(kafka: FakeCluster, directory: Path, name: str) -> Iterator[JvmMember]:
    """Run a JVM member of the brokers' release during the block."""
    member = JvmMember(
        kafka.release,
        kafka.zookeeper_connect,
        GROUP,
        name=name,
        directory=directory,
        topics=[TOPIC],
    )
    try:
        yield member
    finally:
        member.end()


def places(member: JvmMember) -> set[tuple[int, int]]:
    """Return the partitions and offsets of the messages that a member has delivered."""
    return {(one.partition.partition, one.offset) for one in member.delivered}


@pytest.mark.parametrize(("release", "zookeeper"), [("0.8.2.2", "3.4.14"), ("1.1.1", "3.8.4")])
def test_jvm_members_join_expire_and_leave(tmp_path: Path, release: str, zookeeper: str) -> None:
    """Two JVM members share the partitions after a cut, and after a session has expired."""
    with FakeCluster(release=release, zookeeper_release=zookeeper) as kafka:
        kafka.create_topic(TOPIC, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            kafka.produce(TOPIC, EACH, partition=partition)
        with joined(kafka, tmp_path, "a") as first:
            wait_for(lambda: places(first) == ALL, "all messages")
            kafka.zookeeper.cut()
            with joined(kafka, tmp_path, "b") as second:
                owners = wait_until_settled(kafka.zookeeper_connect, GROUP, members=2)
                assert len(set(owners.values())) == 2
                member = paths.member(GROUP, first.consumer)
                before = kafka.zookeeper.owner(member)
                kafka.zookeeper.expire(before)
                wait_for(
                    lambda: (
                        kafka.zookeeper.exists(member) and kafka.zookeeper.owner(member) != before
                    ),
                    "another registration",
                )
                wait_until_settled(kafka.zookeeper_connect, GROUP, members=2)
                second.leave()
            wait_until_settled(kafka.zookeeper_connect, GROUP, members=1)
            first.leave()
        found = committed(kafka.zookeeper_connect, GROUP)
        assert found == {TopicPartition(TOPIC, number): EACH for number in range(PARTITIONS)}
