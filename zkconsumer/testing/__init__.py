"""Fake servers in the test's own process, on loopback ports.

    with FakeCluster() as kafka:
        kafka.create_topic("orders", partitions=4)
        kafka.produce("orders", ["first", "second"], key="customer-7")
        print(kafka.zookeeper_connect, kafka.bootstrap)

The simulator's ensemble, logs and group coordinator answer the requests, so a fake server has the
behaviour that the contract suites compare with real servers. `FakeZooKeeper` is ZooKeeper alone.
"""

from zkconsumer.errors import FakeServerError
from zkconsumer.testing.broker import FakeBroker
from zkconsumer.testing.broker_versions import RELEASES
from zkconsumer.testing.clock import Clock, StoppedClock
from zkconsumer.testing.cluster import FakeCluster
from zkconsumer.testing.faults import Delay, Fault, Injection
from zkconsumer.testing.groups import (
    Deliveries,
    OwnerChange,
    Rebalances,
    committed,
    owners,
    wait_until_settled,
)
from zkconsumer.testing.legacy_kafka import Backend, LegacyKafka, open_legacy_kafka
from zkconsumer.testing.zookeeper import FakeZooKeeper, LocalSession, SessionInfo
from zkconsumer.testing.zookeeper_wire import Op

__all__ = [
    "RELEASES",
    "Backend",
    "Clock",
    "Delay",
    "Deliveries",
    "FakeBroker",
    "FakeCluster",
    "FakeServerError",
    "FakeZooKeeper",
    "Fault",
    "Injection",
    "LegacyKafka",
    "LocalSession",
    "Op",
    "OwnerChange",
    "Rebalances",
    "SessionInfo",
    "StoppedClock",
    "committed",
    "open_legacy_kafka",
    "owners",
    "wait_until_settled",
]
