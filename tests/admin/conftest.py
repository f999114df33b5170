"""A scene for each test, and clients, on the session's ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.scenes import Clients, Scene, connect_clients, scenes

from zkconsumer.sandbox import ZooKeeperServer


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Scene]:
    """A chroot for one test; its session ends with the test."""
    with scenes(zookeeper, unique("scene")) as one:
        yield one


@pytest.fixture
def clients(zookeeper: ZooKeeperServer) -> Iterator[Clients]:
    """Two clients of the session's server: one for the tools, and a kazoo client."""
    with connect_clients(zookeeper.connect) as both:
        yield both
