"""The image of zkconsumer: a ZooKeeper and a broker run in it, and so does the command."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from uuid import uuid4

import docker
import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from support.zk.servers import CONTAINER_LIMIT_S
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

JAVA = "/opt/jre/bin/java"
DELIVERY_LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server(image: str, network: Network, name: str, command: list[str]) -> DockerContainer:
    """A container with the name `name` in the network."""
    container = DockerContainer(image, entrypoint=JAVA).with_command(command)
    return container.with_network(network).with_network_aliases(name)


@pytest.fixture(scope="module")
def network(image: str) -> Iterator[Network]:
    """A network of containers with a ZooKeeper named `zookeeper`."""
    with (
        Network() as network,
        server(image, network, "zookeeper", ["@/conf/zookeeper.args"]).waiting_for(
            _log("PrepRequestProcessor.*started")
        ),
    ):
        yield network


@pytest.fixture(scope="module")
def bootstrap(image: str, network: Network) -> Iterator[str]:
    """The address of a broker in a container, which is registered in that ZooKeeper."""
    # The port is the same inside and outside: the broker connects to itself at the advertised
    # address.
    port = free_port()
    settings = (
        "zookeeper.connect=zookeeper:2181",
        f"listeners=PLAINTEXT://:{port}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
    )
    command = ["@/conf/kafka.args"]
    for setting in settings:
        command += ["--override", setting]
    broker = server(image, network, "kafka", command).with_bind_ports(port, port)
    with broker.waiting_for(_log(r"\[KafkaServer id=0\] started")):
        yield f"127.0.0.1:{port}"


def _log(message: str) -> LogMessageWaitStrategy:
    return LogMessageWaitStrategy(message).with_startup_timeout(CONTAINER_LIMIT_S)


def command_line(image: str, *arguments: str, network: str = "none") -> str:
    """Return the standard output of the image's command; fail with its standard error."""
    client = docker.from_env()
    try:
        return bytes(
            client.containers.run(image, list(arguments), network=network, remove=True)
        ).decode()
    finally:
        client.close()


def test_a_broker_of_the_image_delivers(bootstrap: str) -> None:
    """Messages produced to the container's broker are read on the host."""
    topic = f"topic-{uuid4()}"
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"message")
    assert producer.flush(DELIVERY_LIMIT_S) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(1, DELIVERY_LIMIT_S)
    finally:
        consumer.close()
    assert [message.value() for message in messages] == [b"message"]


def test_the_command_line_of_the_image_names_its_commands(image: str) -> None:
    """The entry point of the image is `zkconsumer`, run by the image's Python."""
    assert "consume" in command_line(image, "--help")


def test_the_command_line_reads_a_group_of_the_sandbox(
    image: str, sandbox: Sandbox, unique: Callable[[str], str]
) -> None:
    """`lag` in a container, on the network of this machine, reads a group's offsets and logs."""
    topic, group = unique("orders"), unique("billing")
    sandbox.create_topic(topic, partitions=2)
    sandbox.produce(topic, 5, partition=0)
    client = KazooClient(sandbox.zookeeper_connect)
    client.start(60)
    for partition, offset in enumerate((b"2", b"0")):
        path = paths.offset(group, TopicPartition(topic, partition))
        client.create(path, offset, makepath=True)
    client.stop()
    client.close()
    arguments = ("lag", "-z", sandbox.zookeeper_connect, "-g", group, "-o", "json")
    rows = json.loads(command_line(image, *arguments, network="host"))
    assert [(row["offset"], row["log_end"], row["lag"]) for row in rows] == [(2, 5, 3), (0, 0, 0)]


def test_no_process_runs_as_root(image: str) -> None:
    """None of the image's processes runs as root."""
    client = docker.from_env()
    try:
        assert client.images.get(image).attrs["Config"]["User"] == "65534:65534"
    finally:
        client.close()


def test_a_session_reaches_the_container_from_the_host(container_zookeeper: str) -> None:
    """The server in the container of the contract tests is a real one of the pinned release."""
    client = KazooClient(container_zookeeper)
    client.start(60)
    try:
        assert client.server_version()[:2] == (3, 8)
    finally:
        client.stop()
        client.close()
