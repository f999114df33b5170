"""Groups that a test writes into ZooKeeper znode by znode.

`Scene` writes below a chroot of its own. `Clients` acts on the server that all tests share, with
one client for the tools and one that plays other clients.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from kazoo.client import KazooClient

from support.zk.client import peer_of
from zkconsumer import ConsumerConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.client import ZooKeeperClient

S = TypeVar("S", bound="Scene")

# A znode: payload, version, access control list.
Seen = tuple[bytes | None, int, tuple[Any, ...]]

# No server listens on this port.
BROKER = b'{"version":4,"host":"127.0.0.1","port":1,"endpoints":["PLAINTEXT://127.0.0.1:1"]}'


class Scene:
    """Writes what members and tools would write; `session` has the ephemeral znodes."""

    def __init__(self, connect: str, session: KazooClient) -> None:
        self.connect, self.session = connect, session
        self.put(paths.broker(0), BROKER)

    def config(self, group: str = "g", **settings: Any) -> ConsumerConfig:
        return ConsumerConfig(group_id=group, zookeeper_connect=self.connect, **settings)

    def put(self, path: str, data: bytes | None = b"", *, ephemeral: bool = False) -> str:
        if self.session.exists(path):
            self.session.set(path, data)
        else:
            self.session.create(path, data, ephemeral=ephemeral, makepath=True)
        return path

    def hold(self, path: str, data: bytes | None) -> str:
        """Create an ephemeral znode in the session of the scene."""
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
        """Create a settled group: topics, registrations, owners, and an offset per partition."""
        for topic, size in sizes.items():
            self.topic(topic, size)
        for name, counts in members.items():
            self.member(name, group, **counts)
        partitions = {topic: range(size) for topic, size in sizes.items()}
        dealt = assign(strategy, subscriptions=members, partitions=partitions)
        for (topic, partition), thread in dealt.items():
            self.owner(topic, partition, thread, group)
            self.offset(topic, partition, 5, group)


@contextmanager
def scenes(
    server: ZooKeeperServer,
    chroot: str,
    kind: Callable[[str, KazooClient], S] = Scene,  # type: ignore[assignment]  # S's default
) -> Iterator[S]:
    """Yield a scene of this class below the chroot, and close its session at the end."""
    with peer_of(server.connect) as above:
        above.create(f"/{chroot}", b"")
    with peer_of(f"{server.connect}/{chroot}") as session:
        yield kind(f"{server.connect}/{chroot}", session)


@contextmanager
def repeated(act: Callable[[], object]) -> Iterator[None]:
    """Call this in a thread, again and again, until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def job(session: KazooClient, path: str, data: bytes) -> Iterator[None]:
    """A client that commits this offset all the time, and does not register."""
    with repeated(lambda: session.set(path, data)):
        yield


class Clients:
    """A connection for the tools (`tools`), and one that plays another client (`other`)."""

    def __init__(self, connect: str, tools: ZooKeeperClient, other: KazooClient) -> None:
        self.connect, self.tools, self.other = connect, tools, other

    def offsets(self, group: str, values: dict[TopicPartition, int | bytes]) -> None:
        """Write offset znodes."""
        for tp, value in values.items():
            data = value if isinstance(value, bytes) else str(value).encode()
            path = paths.offset(group, tp)
            self.other.ensure_path(path)
            self.other.set(path, data)

    def join(self, group: str, name: str = "g_a", topic: str = "t") -> None:
        """Register a member, which exists as long as the session of the other client."""
        data = encode_registration(Registration({topic: 1}, Pattern.STATIC, 1))
        self.other.create(paths.member(group, name), data, ephemeral=True, makepath=True)

    def leave(self, group: str, name: str = "g_a") -> None:
        """Delete the member's registration."""
        self.other.delete(paths.member(group, name))

    def stored(self, group: str) -> dict[TopicPartition, str]:
        """Return the payloads of the offset znodes."""
        found = {}
        for path, (data, _, _) in self.tree(group).items():
            at = paths.locate(path)
            if at.kind is paths.ZnodeKind.OFFSET:
                found[TopicPartition(at.name, at.partition)] = (data or b"").decode()
        return found

    def tree(self, group: str) -> dict[str, Seen]:
        """Return all znodes below a group, as another client reads them."""
        found: dict[str, Seen] = {}
        todo = [paths.group(group)]
        while todo:
            path = todo.pop()
            if self.other.exists(path):
                data, stat = self.other.get(path)
                rights = tuple(sorted(self.other.get_acls(path)[0]))
                found[path] = data, stat.version, rights
                todo += [f"{path}/{name}" for name in self.other.get_children(path)]
        return found

    def contents(self, group: str) -> dict[str, tuple[bytes | None, tuple[Any, ...]]]:
        """Return the result of `tree` without versions and without edit marks."""
        parent = paths.edits(group)
        return {
            path: (data, rights)
            for path, (data, _, rights) in self.tree(group).items()
            if not path.startswith(parent)
        }


@contextmanager
def connect_clients(connect: str, **settings: Any) -> Iterator[Clients]:
    """Yield both clients; close them at the end of the block."""
    config = ConsumerConfig(
        **{
            "group_id": "none",
            "zookeeper_connect": connect,
            "zookeeper_session_timeout_s": 10.0,
        }
        | settings
    )
    with peer_of(connect) as other, ZooKeeperClient(config) as tools:
        yield Clients(connect, tools, other)
