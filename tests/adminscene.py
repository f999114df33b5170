"""A ZooKeeper below a chroot of its own, in which a test plants what is sound and what is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from zkconsumer import ConsumerConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer

# Nobody listens there.
BROKER = b'{"version":4,"host":"127.0.0.1","port":1,"endpoints":["PLAINTEXT://127.0.0.1:1"]}'


@contextmanager
def scenes(server: ZooKeeperServer, chroot: str) -> Iterator[Scene]:
    """A scene below that chroot, which ends with its session."""
    above = KazooClient(server.connect)
    above.start()
    above.create(f"/{chroot}", b"")
    above.stop()
    above.close()
    session = KazooClient(f"{server.connect}/{chroot}")
    session.start()
    try:
        yield Scene(f"{server.connect}/{chroot}", session)
    finally:
        session.stop()
        session.close()


class Scene:
    """What members and tools would have written, by hand; `session` holds what is ephemeral."""

    def __init__(self, connect: str, session: KazooClient) -> None:
        self.connect, self.session = connect, session
        self.put(paths.broker(0), BROKER)

    def config(self, group: str = "g", **settings: Any) -> ConsumerConfig:
        return ConsumerConfig(group_id=group, zookeeper_connect=self.connect, **settings)

    def put(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> str:
        if self.session.exists(path):
            self.session.set(path, data)
        else:
            self.session.create(path, data, ephemeral=ephemeral, makepath=True)
        return path

    def hold(self, path: str, data: bytes) -> str:
        """An ephemeral znode of the scene's session."""
        return self.put(path, data, ephemeral=True)

    def topic(self, name: str, partitions: int) -> str:
        replicas = {str(number): [0] for number in range(partitions)}
        self.put(paths.topic(name), json.dumps({"version": 1, "partitions": replicas}).encode())
        return name

    def member(self, name: str, group: str = "g", **counts: int) -> str:
        payload = encode_registration(Registration(counts, timestamp_ms=1))
        self.hold(paths.member(group, name), payload)
        return name

    def owner(self, topic: str, partition: int, thread: str, group: str = "g") -> str:
        return self.hold(paths.owner(group, TopicPartition(topic, partition)), thread.encode())

    def offset(self, topic: str, partition: int, value: object, group: str = "g") -> str:
        return self.put(paths.offset(group, TopicPartition(topic, partition)), str(value).encode())

    def settled(
        self,
        members: Mapping[str, Mapping[str, int]],
        sizes: Mapping[str, int],
        *,
        strategy: Strategy = Strategy.RANGE,
        group: str = "g",
    ) -> None:
        """A group at rest: topics, registrations, owners, and an offset for each partition."""
        for topic, size in sizes.items():
            self.topic(topic, size)
        for name, counts in members.items():
            self.member(name, group, **counts)
        partitions = {topic: range(size) for topic, size in sizes.items()}
        dealt = assign(strategy, subscriptions=members, partitions=partitions)
        for (topic, partition), thread in dealt.items():
            self.owner(topic, partition, thread, group)
            self.offset(topic, partition, 5, group)
