"""A real Kafka broker in ZooKeeper mode, of a release from 0.8.2.2 to 3.9.1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from zkconsumer.config.properties_file import properties_text
from zkconsumer.errors import SandboxError
from zkconsumer.protocol import paths
from zkconsumer.sandbox import jars, topics
from zkconsumer.sandbox.ports import HOST
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.server import JavaServer

RELEASES = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.1")

# A killed broker stays registered until its session expires, and a new broker with the same id
# exits at its start during that time. The value is the number of seconds to wait for the expiry
# after the session timeout has passed.
_EXPIRY_SLACK_S = 10.0

# Few threads, small buffers and small internal topics: a sandbox's broker serves one user.
_SETTINGS: dict[str, object] = {
    "num.partitions": 1,
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "log.cleaner.enable": "false",
    "log.segment.bytes": 64 * 1024 * 1024,
    "log.index.size.max.bytes": 1024 * 1024,
    "group.initial.rebalance.delay.ms": 0,
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 10_000,
    "delete.topic.enable": "true",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "true",
    # With the default of 5 s, the stop of a broker that has run for less than a second would take 5
    # s.
    "controlled.shutdown.retry.backoff.ms": 200,
}


class BrokerServer(JavaServer):
    """One broker on the loopback interface."""

    main_class = "kafka.Kafka"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        zookeeper_connect: str,
        broker_id: int = 0,
        port: int | None = None,
        release: str = "3.9.1",
        overrides: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        heap_mb: int = 384,
        progress: jars.Progress = jars.to_stderr,
    ) -> None:
        """
        Args:
            directory: contains configuration, data and log; created if missing.
            zookeeper_connect: as in `zookeeper.connect`, with a chroot if wanted.
            broker_id: 0 to 1000.
            port: by default a free one.
            release: one of `RELEASES`.
            overrides: settings of `server.properties`, with the names of this release.
            properties: system properties of the JVM.
            heap_mb: the JVM's heap in MB.
            progress: receives a line of text for each step that takes long.
        """
        if release not in RELEASES:
            raise SandboxError(
                f"there is no broker of release {release}",
                remedy=f"choose one of {', '.join(RELEASES)}",
            )
        super().__init__(
            directory,
            name=f"broker {broker_id}",
            lock=f"kafka-{release}",
            heap_mb=heap_mb,
            port=port,
            progress=progress,
        )
        if "," in str(self.directory):
            raise SandboxError(
                "a broker's directory must not contain a comma: `log.dirs` is a list",
                where=str(self.directory),
                remedy="use another directory",
            )
        self.zookeeper_connect = zookeeper_connect
        self.broker_id = broker_id
        self.release = release
        self._overrides = dict(overrides or {})
        self._properties = dict(properties or {})

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port`."""
        return self.address

    def _options(self) -> tuple[str, ...]:
        return tuple(f"-D{name}={value}" for name, value in self._properties.items())

    def _settings(self) -> dict[str, object]:
        return (
            {
                "broker.id": self.broker_id,
                "log.dirs": self.directory / "data",
                "zookeeper.connect": self.zookeeper_connect,
            }
            | (
                # Release 0.8 does not have `listeners`.
                {
                    "port": self.port,
                    "host.name": HOST,
                    "advertised.host.name": HOST,
                    "advertised.port": self.port,
                }
                if self.release.startswith("0.8.")
                else {"listeners": f"PLAINTEXT://{HOST}:{self.port}"}
            )
            | _SETTINGS
            | self._overrides
        )

    def _prepare(self) -> Path:
        if (self.directory / "server.json").exists():
            self._await_expiry()
        file = self.directory / "server.properties"
        file.write_text(properties_text(self._settings()))
        return file

    def _is_ready(self) -> bool:
        # The broker logs this line after its registration in ZooKeeper: "[Kafka Server 0], started"
        # in 0.8, "[KafkaServer id=0] started" later.
        text = self._log_text()
        return ("] started" in text or "], started" in text) and self._accepts()

    def _await_expiry(self) -> None:
        session_s = int(str(self._settings()["zookeeper.session.timeout.ms"])) / 1000
        node = paths.broker(self.broker_id)
        with topics.session(self.zookeeper_connect) as client:
            if until(lambda: not client.stats([node]), limit_s=session_s + _EXPIRY_SLACK_S):
                return
        raise SandboxError(
            f"another broker with id {self.broker_id} is registered",
            where=node,
            remedy="choose another broker_id, or stop that broker",
        )
