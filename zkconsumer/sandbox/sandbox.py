"""A ZooKeeper server and its brokers, managed together."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from zkconsumer.sandbox import guard, jars
from zkconsumer.sandbox.broker import BrokerServer
from zkconsumer.sandbox.process import Startable
from zkconsumer.sandbox.topics import ServerTopics
from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER, ZooKeeperServer


class Sandbox(Startable, ServerTopics):
    """One ZooKeeper server and one or more brokers; `with` starts and stops them.

    Attributes:
        zookeeper: the ZooKeeper server.
        brokers: the brokers, with ids 0, 1, ...
        directory: contains their configuration, data and logs.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        brokers: int = 1,
        release: str = "3.9.1",
        zookeeper_release: str = DEFAULT_ZOOKEEPER,
        tick_time_s: float = 0.5,
        zookeeper_port: int | None = None,
        broker_port: int | None = None,
        overrides: Mapping[str, object] | None = None,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        """Args:
        directory: for configuration, data and logs; kept. None: a temporary one, removed at the
            end.
        brokers: the number of brokers.
        release: the brokers' release, one of `RELEASES`.
        zookeeper_release: ZooKeeper's release, one of `ZOOKEEPER_RELEASES`.
        tick_time_s: ZooKeeper's tick; the shortest session timeout is two ticks.
        zookeeper_port: by default a free port.
        broker_port: the first broker's port; by default a free one.
        overrides: settings of `server.properties`, for all brokers.
        progress: receives a line of text for each step that takes long.
        """
        self._temporary = directory is None
        if directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="zkconsumer-sandbox-"))
            guard.watch_directory(self.directory)
        else:
            self.directory = Path(directory).absolute()
        self.zookeeper = ZooKeeperServer(
            self.directory / "zookeeper",
            release=zookeeper_release,
            port=zookeeper_port,
            tick_time_s=tick_time_s,
            progress=progress,
        )
        self.brokers = tuple(
            BrokerServer(
                self.directory / f"broker-{number}",
                zookeeper_connect=self.zookeeper_connect,
                broker_id=number,
                port=None if number else broker_port,
                release=release,
                overrides=overrides,
                progress=progress,
            )
            for number in range(brokers)
        )

    @property
    def zookeeper_connect(self) -> str:
        """ZooKeeper's `host:port`."""
        return self.zookeeper.connect

    @property
    def broker(self) -> BrokerServer:
        """The first broker."""
        return self.brokers[0]

    @property
    def bootstrap(self) -> str:
        """The brokers' `host:port`, separated by commas."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start all servers in order.

        Raises:
            SandboxError: see `JavaServer.start`; no server is left running.
        """
        try:
            self.zookeeper.start()
            # Launch all brokers, then wait for each.
            for broker in self.brokers:
                broker.zookeeper_connect = self.zookeeper_connect
                broker.launch()
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the brokers, then ZooKeeper; remove a temporary directory."""
        servers = [*reversed(self.brokers), self.zookeeper]
        try:
            for server in servers:
                # The data of a temporary sandbox are removed, so its servers need no orderly end.
                server.kill() if self._temporary else server.stop()
        finally:
            for server in servers:
                server.kill()
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)
                guard.release_directory(self.directory)

    def attach(self) -> bool:
        """Take over the servers that an earlier command left running in the directory (see
        `detach`).

        Returns:
            Whether ZooKeeper and all brokers run. If only some do, these are attached, and `start`
            starts the others.
        """
        return all([server.attach() for server in (self.zookeeper, *self.brokers)])

    def attach_surplus(self) -> list[BrokerServer]:
        """Take over the brokers of an earlier command that this sandbox does not have, because it
        has fewer; return those that run, in descending order of their ids."""
        numbers = [
            int(number)
            for path in self.directory.glob("broker-*")
            if (number := path.name.removeprefix("broker-")).isdecimal()
        ]
        surplus = [
            BrokerServer(
                self.directory / f"broker-{number}",
                zookeeper_connect=self.zookeeper_connect,
                broker_id=number,
            )
            for number in sorted(numbers, reverse=True)
            if number >= len(self.brokers)
        ]
        return [broker for broker in surplus if broker.attach()]

    def detach(self) -> None:
        """Let the servers outlive this Python process."""
        for server in (self.zookeeper, *self.brokers):
            server.detach()
