"""A scene for each test, on the session's ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.scenes import Scene, scenes

from zkconsumer.sandbox import ZooKeeperServer


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Scene]:
    """A chroot for one test; its session ends with the test."""
    with scenes(zookeeper, unique("scene")) as one:
        yield one
