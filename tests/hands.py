"""A group's znodes as the operator's tests make them and look at them, on the shared server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.zk.client import ZooKeeperClient

# A znode: payload, version, access control list.
Seen = tuple[bytes | None, int, tuple[Any, ...]]


class Hands:
    """A connection for the tools (`tools`) and one that acts as another client (`other`)."""

    def __init__(self, connect: str, tools: ZooKeeperClient, other: KazooClient) -> None:
        self.connect, self.tools, self.other = connect, tools, other

    def offsets(self, group: str, values: dict[TopicPartition, int | bytes]) -> None:
        """Writes offset znodes."""
        for tp, value in values.items():
            data = value if isinstance(value, bytes) else str(value).encode()
            path = paths.offset(group, tp)
            self.other.ensure_path(path)
            self.other.set(path, data)

    def join(self, group: str, name: str = "g_a", topic: str = "t") -> None:
        """A member that lives as long as the other client."""
        data = encode_registration(Registration({topic: 1}, Pattern.STATIC, 1))
        self.other.create(paths.member(group, name), data, ephemeral=True, makepath=True)

    def leave(self, group: str, name: str = "g_a") -> None:
        """The member goes."""
        self.other.delete(paths.member(group, name))

    def stored(self, group: str) -> dict[TopicPartition, str]:
        """What the offset znodes hold."""
        found = {}
        for path, (data, _, _) in self.tree(group).items():
            at = paths.locate(path)
            if at.kind is paths.Kind.OFFSET:
                found[TopicPartition(at.name, at.partition)] = (data or b"").decode()
        return found

    def tree(self, group: str) -> dict[str, Seen]:
        """Everything below a group, as another client sees it."""
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
        """As `tree`, less versions, and less the marks of edits."""
        room = paths.edits(group)
        return {
            path: (data, rights)
            for path, (data, _, rights) in self.tree(group).items()
            if not path.startswith(room)
        }


@contextmanager
def hands_on(connect: str, **settings: Any) -> Iterator[Hands]:
    """Both clients, until the end of the block."""
    config = ConsumerConfig(
        **{
            "group_id": "none",
            "zookeeper_connect": connect,
            "zookeeper_session_timeout_s": 10.0,
        }
        | settings
    )
    other = KazooClient(connect, timeout=10.0)
    other.start(60)
    try:
        with ZooKeeperClient(config) as tools:
            yield Hands(connect, tools, other)
    finally:
        other.stop()
        other.close()
