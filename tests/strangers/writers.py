"""What programs that no package registry has write into ZooKeeper, request by request.

Each class or function sends the requests of one program, in its order and with its bytes, as its
source code has them. A real program that can be installed runs in `test_programs.py` instead.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition

REQUEST_S = 30.0


# ---- clients that register, and own partitions under their bare consumer id ----------------------


class Registered:
    """A client that registers, and claims each partition with its bare consumer id."""

    def __init__(self, client: KazooClient, broker: str, group: str, name: str) -> None:
        self.client, self.broker, self.group, self.name = client, broker, group, name

    def register(self, topic: str) -> None:
        raise NotImplementedError

    def commit(self, tp: TopicPartition, offset: int) -> None:
        raise NotImplementedError

    def claim(self, *partitions: TopicPartition) -> None:
        for tp in partitions:
            for parent in _parents(paths.owner(self.group, tp)):
                _ensure(self.client, parent)
            self.client.create(paths.owner(self.group, tp), self.name.encode(), ephemeral=True)

    def leave(self, *partitions: TopicPartition) -> None:
        """Release these partitions, and delete the registration."""
        for tp in partitions:
            self.client.delete(paths.owner(self.group, tp))
        self.client.delete(paths.member(self.group, self.name))


class ConsumerGroup(Registered):
    """The Go library wvanbergen/kafka/consumergroup, on kazoo-go (`consumergroup.go`).

    Its ids have a colon, and its timestamps are in seconds.
    """

    def register(self, topic: str) -> None:
        fields = {
            "pattern": "static",
            "subscription": {topic: 1},
            "timestamp": str(int(time.time())),
            "version": 1,
        }
        path = paths.member(self.group, self.name)
        for parent in _parents(path):
            _ensure(self.client, parent)
        payload = json.dumps(fields, separators=(",", ":")).encode()
        self.client.create(path, payload, ephemeral=True)

    def commit(self, tp: TopicPartition, offset: int) -> None:
        path, data = paths.offset(self.group, tp), str(offset).encode()
        try:
            _, stat = self.client.get(path)
        except NoNodeError:
            for parent in _parents(path):
                _ensure(self.client, parent)
            self.client.create(path, data)
        else:
            self.client.set(path, data, stat.version)


class KafkaNode(Registered):
    """kafka-node 2.6.1 (`lib/zookeeper.js`), which registers with two requests."""

    def register(self, topic: str) -> None:
        self.create_registration()
        self.fill_registration(topic)

    def create_registration(self) -> None:
        """The first request: the znode has no data at all."""
        for parent in (paths.group(self.group), paths.ids(self.group)):
            _ensure(self.client, parent)
        self.client.create(paths.member(self.group, self.name), None, ephemeral=True)

    def fill_registration(self, topic: str) -> None:
        """The second request: a topic's name is called a white list."""
        data = f'{{"version":1,"subscription":{{"{topic}": 1}}' + (
            f',"pattern":"white_list","timestamp":"{int(time.time() * 1000)}"}}'
        )
        self.client.set(paths.member(self.group, self.name), data.encode())

    def commit(self, tp: TopicPartition, offset: int) -> None:
        kafka_python(self.broker, self.group, tp, offset)


# ---- clients that commit and never register ------------------------------------------------------


def kafka_python(broker: str, group: str, tp: TopicPartition, offset: int) -> None:
    """kafka-python up to 0.9.5: version 0 of OffsetCommit, for which the broker writes the znode.

    kafka-node sends the same request.
    """
    topic, client_id = _text(tp.topic), _text("kafka-python")
    commit = struct.pack(">iiq", 1, tp.partition, offset) + _text("")
    request = struct.pack(">hhi", 8, 0, 1) + client_id + _text(group)
    request += struct.pack(">i", 1) + topic + commit
    host, _, port = broker.rpartition(":")
    with socket.create_connection((host, int(port)), REQUEST_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            (error,) = struct.unpack(">h", answer.read(size)[-2:])
    assert error == 0, f"the broker answers {error}"


def spark_direct(client: KazooClient, group: str, tp: TopicPartition, offset: int) -> None:
    """A direct Spark job that calls `ZkUtils.updatePersistentPath` after each batch."""
    path, data = paths.offset(group, tp), str(offset).encode()
    try:
        client.set(path, data)
    except NoNodeError:
        for parent in _parents(path):
            _ensure(client, parent)
        client.create(path, data)


def flink_read(client: KazooClient, group: str, tp: TopicPartition) -> bytes:
    """Flink's `ZookeeperOffsetHandler` reads an offset: Curator first creates an empty znode."""
    path = paths.offset(group, tp)
    for one in (*_parents(path), path):
        if client.exists(one) is None:
            client.create(one, b"")
    return bytes(client.get(path)[0])


def flink_commit(client: KazooClient, group: str, tp: TopicPartition, offset: int) -> None:
    """Flink's `ZookeeperOffsetHandler` commits: Curator ensures the path, then sets the data."""
    flink_read(client, group, tp)
    client.set(paths.offset(group, tp), str(offset).encode())


def secor_create(client: KazooClient, group: str, tp: TopicPartition) -> None:
    """The first half of Secor's commit: Curator creates the znode with its default data.

    Curator's default data is the address of the client's host.
    """
    path = paths.offset(group, tp)
    if client.exists(path) is None:
        for parent in _parents(path):
            _ensure(client, parent, b"")
        client.create(path, b"10.20.30.40")


def secor_commit(client: KazooClient, group: str, tp: TopicPartition, offset: int) -> None:
    """Secor's `ZookeeperConnector.setCommittedOffsetCount`."""
    secor_create(client, group, tp)
    client.set(paths.offset(group, tp), str(offset).encode())


def storm(client: KazooClient, spout: str, tp: TopicPartition, offset: int) -> str:
    """Storm's `PartitionManager.commit`, for a spout whose root is /consumers; return the path."""
    path = f"{paths.group(spout)}/partition_{tp.partition}"
    fields = {
        "topology": {"id": "7f1c3e1e-5d0c-4a64-9ad8-6f4f9b6b1a55", "name": "count"},
        "offset": offset,
        "partition": tp.partition,
        "broker": {"host": "127.0.0.1", "port": 9092},
        "topic": tp.topic,
    }
    data = json.dumps(fields, separators=(",", ":")).encode()
    if client.exists(path):
        client.set(path, data)
    else:
        for parent in _parents(path):
            _ensure(client, parent, b"")
        client.create(path, data)
    return path


# ---- programs that copy ZooKeeper ----------------------------------------------------------------


def persistent_copy(client: KazooClient, source: str, target: str) -> None:
    """Copy a tree of znodes as zkcopy and burry do: every znode becomes persistent."""
    for path in _tree(client, source):
        client.create(target + path.removeprefix(source), client.get(path)[0])


def _tree(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from _tree(client, f"{path}/{name}")


def _parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(2, len(names))]


def _ensure(client: KazooClient, path: str, data: bytes | None = None) -> None:
    with contextlib.suppress(NodeExistsError):
        client.create(path, data)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
