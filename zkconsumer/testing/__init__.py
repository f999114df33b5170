"""Fake servers in the test's own process, on loopback ports.

    with FakeZooKeeper() as zookeeper:
        client = KazooClient(zookeeper.connect)

The simulator's ensemble answers the requests, so a fake server has the behaviour that the contract
suites compare with real servers.
"""

from zkconsumer.errors import FakeServerError
from zkconsumer.testing.clock import Clock, StoppedClock
from zkconsumer.testing.faults import Delay, Fault, Injection
from zkconsumer.testing.zookeeper import FakeZooKeeper, LocalSession, SessionInfo
from zkconsumer.testing.zookeeper_wire import Op

__all__ = [
    "Clock",
    "Delay",
    "FakeServerError",
    "FakeZooKeeper",
    "Fault",
    "Injection",
    "LocalSession",
    "Op",
    "SessionInfo",
    "StoppedClock",
]
