"""Tests of totals.py with pytest; they run on fake servers unless the command line says otherwise.

pytest -p zkconsumer.testing.plugin test_totals.py
pytest -p zkconsumer.testing.plugin test_totals.py --legacy-kafka sandbox
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread

import pytest
from totals import Totals

from zkconsumer import TopicPartition
from zkconsumer.testing import Fault, LegacyKafka

LIMIT_S = 60.0


@contextmanager
def running(kafka: LegacyKafka, group: str) -> Generator[Totals]:
    """Run the consumer in a thread while the block runs."""
    totals = Totals()
    thread = Thread(target=totals.run, args=(kafka.zookeeper_connect, group, "amounts"))
    thread.start()
    try:
        yield totals
    finally:
        totals.stop()
        thread.join()


def wait_for(totals: Totals, expected: dict[str, int]) -> None:
    """Wait until the consumer has added up these totals."""
    deadline = time.monotonic() + LIMIT_S
    while totals.by_customer != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert totals.by_customer == expected


def wait_for_commit(kafka: LegacyKafka, offset: int) -> None:
    """Wait until the group has committed this offset of partition 0."""
    deadline = time.monotonic() + LIMIT_S
    partition = TopicPartition("amounts", 0)
    while kafka.committed("billing").get(partition) != offset and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kafka.committed("billing")[partition] == offset


def test_amounts_are_added_up(legacy_kafka: LegacyKafka) -> None:
    """The amounts of each customer are added up, whatever partition they are in."""
    legacy_kafka.create_topic("amounts", partitions=4)
    legacy_kafka.produce("amounts", ["3", "4"], key="ann")
    legacy_kafka.produce("amounts", ["5"], key="bob")
    with running(legacy_kafka, "billing") as totals:
        wait_for(totals, {"ann": 7, "bob": 5})


def test_a_restart_counts_no_amount_twice(legacy_kafka: LegacyKafka) -> None:
    """After a restart, the consumer continues after the amounts that it has committed."""
    legacy_kafka.create_topic("amounts")
    legacy_kafka.produce("amounts", ["1", "2"], key="ann")
    with running(legacy_kafka, "billing") as totals:
        wait_for(totals, {"ann": 3})
    assert legacy_kafka.committed("billing") == {TopicPartition("amounts", 0): 2}
    legacy_kafka.produce("amounts", ["10"], key="ann")
    with running(legacy_kafka, "billing") as totals:
        wait_for(totals, {"ann": 10})


def test_two_consumers_share_the_partitions(legacy_kafka: LegacyKafka) -> None:
    """With two consumers, each partition has one owner."""
    legacy_kafka.create_topic("amounts", partitions=4)
    with running(legacy_kafka, "billing"), running(legacy_kafka, "billing"):
        owners = legacy_kafka.wait_until_settled("billing", members=2)
    assert len(owners) == 4
    assert len(set(owners.values())) == 2


@pytest.mark.legacy_kafka(backend="fake", release="1.1.1")
def test_an_expired_session(legacy_kafka: LegacyKafka) -> None:
    """A consumer whose session expires registers again, and counts each amount once."""
    kafka = legacy_kafka.fake
    kafka.create_topic("amounts")
    kafka.produce("amounts", ["1"], key="ann")
    with running(legacy_kafka, "billing") as totals:
        wait_for(totals, {"ann": 1})
        wait_for_commit(legacy_kafka, 1)
        (session,) = [one.id for one in kafka.zookeeper.sessions if one.peer is not None]
        kafka.zookeeper.expire(session)
        legacy_kafka.wait_until_settled("billing", members=1)
        kafka.produce("amounts", ["2"], key="ann")
        wait_for(totals, {"ann": 3})


@pytest.mark.legacy_kafka(backend="fake", brokers=2)
def test_a_moved_leader_and_a_lost_response(legacy_kafka: LegacyKafka) -> None:
    """The consumer follows a partition to another broker, and repeats a fetch that was cut off."""
    kafka = legacy_kafka.fake
    kafka.create_topic("amounts")
    with running(legacy_kafka, "billing") as totals:
        kafka.produce("amounts", ["1"], key="ann")
        wait_for(totals, {"ann": 1})
        leader = kafka.leader("amounts", 0) or 0
        kafka.move_leader("amounts", 0, 1 - leader)
        kafka.brokers[1 - leader].inject(Fault.CUT_AFTER, "Fetch")
        kafka.produce("amounts", ["2"], key="ann")
        wait_for(totals, {"ann": 3})
