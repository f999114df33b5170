"""The live lab reads a group every few seconds, with the same clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from support.wait import eventually
from support.zk.client import peer_of

from zkconsumer.admin.api import Admin
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.kafka.logs import LogClient
from zkconsumer.lab import live
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.session import ZooKeeperSession


def test_the_live_lab_keeps_its_clients(
    sandbox: Sandbox, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a group again opens neither a ZooKeeper session nor a client of the brokers."""
    group = unique("kept")
    sandbox.create_topic(group, partitions=1)
    with peer_of(sandbox.zookeeper_connect) as zk:
        zk.create(paths.offset(group, TopicPartition(group, 0)), b"0", makepath=True)
    counts = Counter[str]()

    def count(where: object, name: str) -> None:
        call = getattr(where, name)

        def counted(*arguments: object, **options: object) -> object:
            counts[name] += 1
            return call(*arguments, **options)

        monkeypatch.setattr(where, name, counted)

    count(ZooKeeperSession, "start")
    count(LogClient, "__init__")
    count(Admin, "lag")
    count(Admin, "doctor")
    monkeypatch.setattr(live, "POLL_S", 0.05)
    config = ConnectionConfig(zookeeper_connect=sandbox.zookeeper_connect)
    with live.LiveGroup(config, group):
        eventually(lambda: counts["doctor"] >= 3)
    assert counts["start"] == 2  # the observer's session and the reader's
    assert counts["__init__"] == 1
