"""A broker without ZooKeeper, which is its own controller and speaks KIP-848's protocol.

The sandbox has no such broker, because the old consumer needs ZooKeeper. The jars of 3.9.1 are the
sandbox's. librdkafka needs version 1 of ConsumerGroupHeartbeat, which 4.0 introduced; the jars of
4.0.1 are listed beside this module.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.wait import LIMIT_S

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox import jars
from zkconsumer.sandbox.ports import HOST, free_port
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.server import FAST_JVM, LOG4J, JavaServer

SESSION_S = 6.0
TRY_S = 5.0
"""Seconds after which an admin request without a reply is sent again. A reply takes 0.1 s."""

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
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
# The contents that `kafka-storage format` of 3.9.1 writes; the ids are arbitrary.
_META = f"version=1\ncluster.id={_CLUSTER}\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAABkQ\n"
# Only at this level does a 4.0.1 broker log the states of members.
_DEBUG = "log4j.logger.org.apache.kafka.coordinator.group.GroupMetadataManager=DEBUG\n"

# The broker's errors after which a request is sent again. librdkafka's own errors have negative
# numbers; one of them reports a request without a reply.
_AGAIN = (KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER)

NEW = "4.0.1"
"""The release whose jars are listed beside this module."""


def _jars_of_new() -> tuple[Path, ...]:
    lines = Path(__file__).with_name(f"kafka-{NEW}.txt").read_text().splitlines()
    words = [line.split() for line in lines if not line.startswith("#")]
    wanted = [jars.Jar(sha256, *coordinate.split(":")) for sha256, coordinate in words]
    return jars.resolve_jars(wanted, title=f"Kafka {NEW}")


class KraftBroker(JavaServer):
    """A broker on the loopback interface, which is its own controller."""

    main_class = "kafka.Kafka"

    def __init__(self, directory: Path, release: str = "3.9.1") -> None:
        super().__init__(directory, name="KRaft broker", lock=f"kafka-{release}", heap_mb=384)
        self._is_new = release == NEW
        self._controller = free_port()

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port`."""
        return self.address

    def _class_path(self) -> tuple[Path, ...]:
        return _jars_of_new() if self._is_new else super()._class_path()

    def _prepare(self) -> Path:
        data = self.directory / "data"
        settings = _SETTINGS | {
            "controller.quorum.voters": f"1@{HOST}:{self._controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": data,
        }
        file = self.directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if self._is_new:
            (self.directory / "log4j.properties").write_text(LOG4J + _DEBUG)
        if not (data / "meta.properties").exists():
            self._format(file)
        return file

    def _format(self, settings: Path) -> None:
        """Write the files that `kafka-storage format` writes.

        From 4.0 on, one of them is a binary file with the features of the cluster, so the tool
        itself must run. Without the feature `group.version`, the broker refuses KIP-848's requests.
        """
        if not self._is_new:
            (self.directory / "data" / "meta.properties").write_text(_META)
            return
        command = (
            *(jars.find_java().executable, "-Xmx128m", *FAST_JVM),
            f"-Dlog4j.configuration=file:{self.directory / 'log4j.properties'}",
            *("-cp", os.pathsep.join(map(str, self._class_path()))),
            *("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", settings),
        )
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)

    def _is_ready(self) -> bool:
        return "Kafka Server started" in self._log_text() and self._accepts()

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic."""
        self._request(
            f"create the topic {name}",
            lambda admin: admin.create_topics(
                [NewTopic(name, partitions, 1)], request_timeout=TRY_S
            )[name],
            KafkaError.TOPIC_ALREADY_EXISTS,
        )

    def add_partitions(self, name: str, *, partitions: int) -> None:
        """Add partitions to a topic; `partitions` is the new number."""
        self._request(
            f"give the topic {name} {partitions} partitions",
            lambda admin: admin.create_partitions(
                [NewPartitions(name, partitions)], request_timeout=TRY_S
            )[name],
            KafkaError.INVALID_PARTITIONS,
        )

    def _request(
        self, what: str, send: Callable[[AdminClient], Future[None]], repeated: int
    ) -> None:
        """Send an admin request, and send it again with a new client after `TRY_S` seconds.

        A broker that has just started may answer a Metadata request without a controller. Then
        librdkafka keeps the admin request until its next Metadata request, which can be minutes
        later. A new client asks at once.

        Args:
            what: what the request does, for the error.
            repeated: the broker's error if an earlier try had an effect, but no reply arrived.

        Raises:
            SandboxError: the broker has not executed the request within `LIMIT_S`.
            KafkaException: the broker refused the request.
        """
        last: list[KafkaException] = []

        def is_done() -> bool:
            # Keep a reference: Python ends an unreferenced client before its request completes.
            admin = AdminClient({"bootstrap.servers": self.bootstrap})
            try:
                send(admin).result(LIMIT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if last and code == repeated:
                    return True
                if code >= 0 and code not in _AGAIN:
                    raise
                last.append(error)
                return False
            return True

        if not until(is_done, limit_s=LIMIT_S):
            raise SandboxError(
                f"{self.name} did not {what} within {LIMIT_S:.0f} s: {last[-1]}",
                where=self._log_tail(),
                remedy=f"see {self.log}",
            )
