"""Tests of totals.py with faults: in the test's own time, and with a ZooKeeper that loses data.

pytest test_totals_faults.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread

from totals import Totals

from zkconsumer import TopicPartition
from zkconsumer.testing import FakeCluster, StoppedClock, committed, owners, wait_until_settled

LIMIT_S = 60.0


@contextmanager
def running(kafka: FakeCluster) -> Generator[Totals]:
    """Run the consumer in a thread while the block runs."""
    totals = Totals()
    thread = Thread(target=totals.run, args=(kafka.zookeeper_connect, "billing", "amounts"))
    thread.start()
    try:
        yield totals
    finally:
        totals.stop()
        thread.join()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_consumer_that_is_cut_off() -> None:
    """When the session of a consumer that is cut off expires, the other one gets its partition."""
    with FakeCluster(clock=StoppedClock()) as kafka:
        kafka.create_topic("amounts", partitions=2)
        with running(kafka), running(kafka):
            before = wait_until_settled(kafka.zookeeper_connect, "billing", members=2)
            partition = TopicPartition("amounts", 0)
            path = "/consumers/billing/owners/amounts/0"
            kafka.zookeeper.isolate(kafka.zookeeper.owner(path))
            kafka.advance(5.9)
            assert owners(kafka.zookeeper_connect, "billing") == before
            kafka.advance(0.2)  # now the session timeout of 6 s has passed
            after = wait_until_settled(kafka.zookeeper_connect, "billing", members=1)
            assert after[partition] == before[TopicPartition("amounts", 1)]
            kafka.zookeeper.heal()
            wait_until_settled(kafka.zookeeper_connect, "billing", members=2)


def test_zookeeper_loses_its_data() -> None:
    """A consumer registers again in a ZooKeeper that was restored from a backup, and continues."""
    with FakeCluster() as kafka:
        kafka.create_topic("amounts")
        kafka.zookeeper.back_up()
        with running(kafka) as totals:
            kafka.produce("amounts", ["1", "2"], key="ann", partition=0)
            partition = TopicPartition("amounts", 0)
            connect = kafka.zookeeper_connect
            wait_until(lambda: committed(connect, "billing").get(partition) == 2)
            kafka.zookeeper.lose_data()
            wait_until_settled(connect, "billing", members=1)
            kafka.produce("amounts", ["4"], key="ann", partition=0)
            wait_until(lambda: committed(connect, "billing").get(partition) == 3)
        assert totals.by_customer["ann"] >= 7
