"""A broker of 3.9.1 without ZooKeeper, which is its own controller and speaks KIP-848's protocol.

The sandbox has no such broker, because the old consumer needs ZooKeeper. The jars are the same.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.server import JavaServer

LIMIT_S = 60.0
SESSION_S = 6.0

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": int(SESSION_S * 1000),
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
    "unstable.api.versions.enable": "true",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "log.cleaner.enable": "false",
    "log.segment.bytes": 64 * 1024 * 1024,
    "log.index.size.max.bytes": 1024 * 1024,
}
# The contents that `kafka-storage format` writes; the ids are arbitrary.
_META = (
    "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAABkQ\n"
)


class KraftBroker(JavaServer):
    """A broker on the loopback interface that is also its controller."""

    main_class = "kafka.Kafka"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, name="KRaft broker", lock="kafka-3.9.1", heap_mb=384)
        self._controller = free_port()

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port`."""
        return self.address

    def _prepare(self) -> Path:
        data = self.directory / "data"
        if not (data / "meta.properties").exists():
            (data / "meta.properties").write_text(_META)
        settings = _SETTINGS | {
            "controller.quorum.voters": f"1@{HOST}:{self._controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": data,
        }
        file = self.directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file

    def _is_ready(self) -> bool:
        return "Kafka Server started" in self._log_text() and self._accepts()

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics([NewTopic(name, partitions, 1)])
        made[name].result(LIMIT_S)

    def add_partitions(self, name: str, *, partitions: int) -> None:
        """Give a topic more partitions; `partitions` is the new number."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_partitions([NewPartitions(name, partitions)])
        made[name].result(LIMIT_S)
