"""ZooKeeper and a Kafka broker in ZooKeeper mode as containers, by testcontainers' conventions.

    with ZooKeeperContainer() as zookeeper, LegacyKafkaContainer(zookeeper) as kafka:
        print(zookeeper.get_connection_string(), kafka.get_bootstrap_server())

The images are the official ones, pinned by digest, as in docker/compose.yaml. 3.9 is the last
release with ZooKeeper. Older releases have no official image, and run in the sandbox. Where another
registry serves the images, `ZKCONSUMER_ZOOKEEPER_IMAGE` and `ZKCONSUMER_KAFKA_IMAGE` name them.
"""

from __future__ import annotations

import os
from typing import Final, Self

from docker.errors import DockerException
from testcontainers.core.config import ConnectionMode
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from zkconsumer.errors import SandboxError
from zkconsumer.sandbox.ports import free_port

RELEASE: Final = "3.9.1"
"""The release of the broker."""

ZOOKEEPER_IMAGE: Final = (
    "zookeeper:3.9.5@sha256:f258365d4882440a55dbedf8ee379152ed0be8006cc3641b81e6c1c1745c976b"
)
KAFKA_IMAGE: Final = (
    "apache/kafka:3.9.1@sha256:4ceccc577f03f51f6af8dbfda55194d0d892f4fa7913ffbded567ce3895622ed"
)

START_LIMIT_S: Final = 120
"""How long a server may take to start, in seconds."""

START_ERRORS: Final = (DockerException, TimeoutError, RuntimeError)
"""What testcontainers raises if a container does not start."""

_CLIENT_PORT: Final = 2181
_ALIAS: Final = "zookeeper"  # the host name of ZooKeeper for the broker


class ZooKeeperContainer(DockerContainer):
    """A ZooKeeper server in a container, in a network of its own for its brokers.

    Attributes:
        network: the network, which exists while the container runs.
    """

    def __init__(self, image: str | None = None) -> None:
        """`image` is another image with the same settings as the official one.

        None stands for the image that `ZKCONSUMER_ZOOKEEPER_IMAGE` names, or the official one.

        Raises:
            docker.errors.DockerException: no Docker engine answers.
        """
        super().__init__(image or os.environ.get("ZKCONSUMER_ZOOKEEPER_IMAGE", ZOOKEEPER_IMAGE))
        self.network = Network()
        self._has_network = False
        self.with_exposed_ports(_CLIENT_PORT)
        # The tick permits session timeouts from 1 s on, so that dead members are noticed quickly.
        self.with_env("ZOO_TICK_TIME", "500")
        self.with_env("ZOO_MAX_CLIENT_CNXNS", "0")
        self.with_env("ZOO_ADMINSERVER_ENABLED", "false")
        self.with_env("ZOO_4LW_COMMANDS_WHITELIST", "srvr,ruok,mntr,cons")
        started = LogMessageWaitStrategy("PrepRequestProcessor.*started")
        self.waiting_for(started.with_startup_timeout(START_LIMIT_S))

    def get_connection_string(self) -> str:
        """Return the value of `zookeeper.connect` for clients on this machine."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(_CLIENT_PORT)}"

    def start(self) -> Self:
        """Create the network, and start the server in it; after a failure, remove both."""
        try:
            self.network.create()
            self._has_network = True
            self.with_network(self.network).with_network_aliases(_ALIAS)
            super().start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the server, and remove the network; a second call does nothing."""
        super().stop(force, delete_volume)
        self._container = None
        if self._has_network:
            self.network.remove()
            self._has_network = False


class LegacyKafkaContainer(DockerContainer):
    """A broker in ZooKeeper mode in a container; its ZooKeeper is already running."""

    def __init__(self, zookeeper: ZooKeeperContainer, image: str | None = None) -> None:
        """`image` is another image with Kafka in /opt/kafka.

        None stands for the image that `ZKCONSUMER_KAFKA_IMAGE` names, or the official one.

        Raises:
            docker.errors.DockerException: no Docker engine answers.
            SandboxError: testcontainers reaches containers by addresses of their own, which the
                broker cannot register before it has started.
        """
        # The image's own entry point formats the storage of KRaft mode.
        start = ["/opt/kafka/bin/kafka-server-start.sh", "/opt/kafka/config/server.properties"]
        super().__init__(
            image or os.environ.get("ZKCONSUMER_KAFKA_IMAGE", KAFKA_IMAGE), entrypoint=start
        )
        if self.get_docker_client().get_connection_mode() is ConnectionMode.bridge_ip:
            raise SandboxError(
                "a broker in a container cannot register the address of its container",
                where="testcontainers",
                remedy="set TESTCONTAINERS_CONNECTION_MODE=gateway_ip",
            )
        # Members connect to the address that the broker registers, so the port is the same inside
        # and outside.
        self._port = free_port()
        self.with_bind_ports(self._port, self._port)
        self.with_network(zookeeper.network)
        settings = {
            "zookeeper.connect": f"{_ALIAS}:{_CLIENT_PORT}",
            "listeners": f"PLAINTEXT://0.0.0.0:{self._port}",
            "advertised.listeners": f"PLAINTEXT://{zookeeper.get_container_host_ip()}:{self._port}",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "4",
        }
        words = [
            word for name, value in settings.items() for word in ("--override", f"{name}={value}")
        ]
        self.with_command(words)
        started = LogMessageWaitStrategy(r"\[KafkaServer id=\d+\] started")
        self.waiting_for(started.with_startup_timeout(START_LIMIT_S))

    def get_bootstrap_server(self) -> str:
        """Return the value of `bootstrap.servers` for clients on this machine."""
        return f"{self.get_container_host_ip()}:{self._port}"
