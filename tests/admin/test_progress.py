"""Reading all groups: the progress is reported often, and the brokers are asked once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from zkconsumer.admin.doctor import doctor, kafka_logs
from zkconsumer.admin.inventory import inventory
from zkconsumer.admin.lag import idle_groups
from zkconsumer.config import ConnectionConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import Delay, FakeCluster
from zkconsumer.zk.client import ZooKeeperClient

GROUPS = 40
LIMIT_S = 60.0

OnProgress = Callable[[int, int], None]
READINGS: dict[str, Callable[[ZooKeeperClient, OnProgress], object]] = {
    "doctor": lambda zk, report: doctor(
        zk, ask_logs=kafka_logs(LIMIT_S), patience_s=0, on_progress=report
    ),
    "inventory": lambda zk, report: inventory(
        zk, limit_s=LIMIT_S, patience_s=0, on_progress=report
    ),
    "idle groups": lambda zk, report: idle_groups(
        zk, idle_s=0, limit_s=LIMIT_S, on_progress=report
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    """Fake servers with groups that have stored an offset."""
    with FakeCluster(release="1.1.1") as servers:
        servers.create_topic("orders")
        servers.produce("orders", 3)
        for number in range(GROUPS):
            place = paths.offset(f"g{number:02d}", TopicPartition("orders", 0))
            servers.zookeeper.create(place, b"1")
        yield servers


@pytest.mark.parametrize("reading", READINGS)
def test_all_groups(cluster: FakeCluster, reading: str) -> None:
    """A reading of many groups reports its progress before the end, and asks the brokers once."""
    asked = cluster.broker.inject(Delay(0.0), "ListOffsets", times=None)
    reports: list[tuple[int, int]] = []
    with ZooKeeperClient(ConnectionConfig(zookeeper_connect=cluster.zookeeper_connect)) as zk:
        READINGS[reading](zk, lambda done, total: reports.append((done, total)))
    asked.cancel()
    assert reports[-1] == (GROUPS, GROUPS)
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert len(reports) > 1
    assert 0 < asked.count <= 2  # the first and the last offset of the log
