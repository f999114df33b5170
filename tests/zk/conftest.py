"""A member's session on a real ZooKeeper, and a second client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from support.zk.client import Client, peer_of

from zkconsumer.sandbox import ZooKeeperServer


@pytest.fixture
def peer(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """Another client of the server."""
    with peer_of(zookeeper.connect) as client:
        yield client


@pytest.fixture
def client(
    zookeeper: ZooKeeperServer, peer: KazooClient, unique: Callable[[str], str]
) -> Iterator[Client]:
    """A registered member of its own group."""
    one = Client(zookeeper.connect, unique("ops"), peer, "g_m")
    try:
        one.register()
        yield one
    finally:
        one.session.stop()
