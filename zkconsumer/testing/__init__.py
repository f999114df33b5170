"""Fake servers in the test's own process, on loopback ports.

    with FakeCluster() as kafka:
        kafka.create_topic("orders", partitions=4)
        kafka.produce("orders", ["first", "second"], key="customer-7")
        print(kafka.zookeeper_connect, kafka.bootstrap)

The simulator's ensemble, logs and group coordinator answer the requests, so a fake server has the
behaviour that the contract suites compare with real servers. `FakeZooKeeper` is ZooKeeper alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "FakeServerError": "zkconsumer.errors",
    "FakeBroker": "zkconsumer.testing.broker",
    "RELEASES": "zkconsumer.testing.broker_versions",
    "Clock": "zkconsumer.testing.clock",
    "StoppedClock": "zkconsumer.testing.clock",
    "FakeCluster": "zkconsumer.testing.cluster",
    "Delay": "zkconsumer.testing.faults",
    "Fault": "zkconsumer.testing.faults",
    "Injection": "zkconsumer.testing.faults",
    "Deliveries": "zkconsumer.testing.groups",
    "OwnerChange": "zkconsumer.testing.groups",
    "Rebalances": "zkconsumer.testing.groups",
    "committed": "zkconsumer.testing.groups",
    "owners": "zkconsumer.testing.groups",
    "wait_until_settled": "zkconsumer.testing.groups",
    "Backend": "zkconsumer.testing.legacy_kafka",
    "LegacyKafka": "zkconsumer.testing.legacy_kafka",
    "open_legacy_kafka": "zkconsumer.testing.legacy_kafka",
    "FakeZooKeeper": "zkconsumer.testing.zookeeper",
    "LocalSession": "zkconsumer.testing.zookeeper",
    "SessionInfo": "zkconsumer.testing.zookeeper",
    "Op": "zkconsumer.testing.zookeeper_wire",
}


def __getattr__(name: str) -> object:
    # A test imports the modules that it needs, and no other ones: without the real servers, the
    # import takes half the time.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
