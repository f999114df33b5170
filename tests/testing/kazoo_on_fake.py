"""A plugin of pytest: kazoo's own tests use a fake server instead of a cluster of real ones."""

from __future__ import annotations

import os
import sys
import types

from zkconsumer.testing import FakeZooKeeper

# This module of kazoo starts real servers, and imports packages for that.
common = types.ModuleType("kazoo.testing.common")
common.ZookeeperCluster = object  # type: ignore[attr-defined]  # a module made here
sys.modules["kazoo.testing.common"] = common

from kazoo.testing import harness  # noqa: E402  # after its import has been replaced

fake = FakeZooKeeper(release=os.environ["ZOOKEEPER_VERSION"], tick_time_s=0.5)
fake.start()


class Server:
    """One server, as kazoo's harness starts and stops it."""

    running = True
    address = fake.connect

    def run(self) -> None:
        """Start the server again."""
        fake.restart()

    def stop(self) -> None:
        """End the server."""
        fake.kill()


class Cluster(list[Server]):
    """The servers; all tests share them."""

    def start(self) -> None:
        """Do nothing: the servers run."""

    def terminate(self) -> None:
        """Do nothing: other tests need the servers."""


cluster = Cluster([Server()])
harness.get_global_cluster = lambda: cluster
