"""A ZooKeeper and its brokers as one thing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from zkconsumer.sandbox import guard, jars, topics
from zkconsumer.sandbox.broker import BrokerServer
from zkconsumer.sandbox.process import Startable
from zkconsumer.sandbox.topics import PartitionPlacement, Placed
from zkconsumer.sandbox.zookeeper import DEFAULT_ZOOKEEPER, ZooKeeperServer


class Sandbox(Startable):
    """One ZooKeeper server and one broker, or more; `with` starts and stops them.

    Attributes:
        zookeeper: the ZooKeeper server.
        brokers: the brokers, ids 0, 1, ...
        directory: where they live.
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
        """
        Args:
            directory: for configuration, data and logs; kept. None: a temporary one, removed.
            brokers: how many.
            release: the brokers' release, one of `RELEASES`.
            zookeeper_release: ZooKeeper's release, one of `ZOOKEEPER_RELEASES`.
            tick_time_s: ZooKeeper's tick; no session is shorter than two.
            zookeeper_port: a free one if not given.
            broker_port: the first broker's; a free one if not given.
            overrides: settings of `server.properties`, for all brokers.
            progress: is told, line by line, what takes long.
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
        """Starts everything, in order.

        Raises:
            SandboxError: as `JavaServer.start`; nothing is left running then.
        """
        try:
            self.zookeeper.start()
            # All at once; then each is waited for.
            for broker in self.brokers:
                broker.zookeeper_connect = self.zookeeper_connect
                broker.launch()
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the brokers, then ZooKeeper; a temporary directory is removed."""
        servers = [*reversed(self.brokers), self.zookeeper]
        try:
            for server in servers:
                # What nobody can look at afterwards needs no orderly end.
                server.kill() if self._temporary else server.stop()
        finally:
            for server in servers:
                server.kill()
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)
                guard.release_directory(self.directory)

    def attach(self) -> bool:
        """Takes over what an earlier command left running in the directory (see `detach`).

        Returns:
            Whether ZooKeeper and all brokers run. If only some do, those are attached, and `start`
            starts the others.
        """
        return all([server.attach() for server in (self.zookeeper, *self.brokers)])

    def detach(self) -> None:
        """From now on the servers outlive this Python process."""
        for server in (self.zookeeper, *self.brokers):
            server.detach()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> tuple[PartitionPlacement, ...]:
        """Creates a topic and waits for its leaders: `topics.create_topic`."""
        return topics.create_topic(
            self.zookeeper_connect, name, partitions=partitions, replicas=replicas, config=config
        )

    def add_partitions(self, name: str, *, partitions: int) -> tuple[PartitionPlacement, ...]:
        """Raises a topic's partition count: `topics.add_partitions`."""
        return topics.add_partitions(self.zookeeper_connect, name, partitions=partitions)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic: `topics.delete_topic`."""
        topics.delete_topic(self.zookeeper_connect, name)

    def produce(
        self,
        name: str,
        messages: int | Iterable[str | bytes | None],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
    ) -> list[Placed]:
        """Produces messages and waits until all are in the log: `topics.produce`."""
        return topics.produce(self.zookeeper_connect, name, messages, key=key, partition=partition)
