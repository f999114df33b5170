"""What ZooKeeper holds of groups, topics and brokers: read at once, raw, and decoded on demand.

An image is a reading, not a transaction: its parts are read one after the other, so that a group at
work may be torn. What was read carries its version, which is what a change is later bound to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from zkconsumer.core import paths
from zkconsumer.core.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.records import Broker, decode_broker, decode_offset, decode_owner, decode_topic
from zkconsumer.core.registrations import Registration, decode_registration
from zkconsumer.core.releases import DEFAULT, Profile
from zkconsumer.errors import AccessDeniedError, MalformedZnodeError, UnknownGroupError
from zkconsumer.zk.connection import Connection
from zkconsumer.zk.requests import Node


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """An owner znode: `session` is 0 for one that no session will take away."""

    thread: ThreadId
    session: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class OffsetNode:
    """An offset znode: `value` is None with a `fault`; negative means that there is none."""

    value: int | None
    version: int
    mtime_ms: int
    fault: str = ""


@dataclass(frozen=True)
class GroupImage:
    """What of a group's subtree was read: path -> znode, parents first.

    `listed`: parent -> names of its children, for every parent that was listed.
    """

    name: str
    nodes: Mapping[str, Node]
    listed: Mapping[str, Collection[str]] = field(default_factory=dict)

    @cached_property
    def registrations(self) -> dict[ConsumerId, bytes | None]:
        """Raw payloads of the members' registrations."""
        return {at.name: node.data for at, node in self._of(Kind.MEMBER)}

    @cached_property
    def members(self) -> dict[ConsumerId, Registration | MalformedZnodeError]:
        """Decoded registrations; in place of one that fails the JVM's members stands the error."""
        return {name: _registration(self.name, name, data)
                for name, data in self.registrations.items()}

    @cached_property
    def owners(self) -> dict[TopicPartition, OwnerNode]:
        found = {}
        for at, node in self._of(Kind.OWNER):
            tp = TopicPartition(at.name, at.partition)
            try:
                thread = decode_owner(node.data, where=paths.owner(self.name, tp))
                found[tp] = OwnerNode(thread, node.stat.owner)
            except MalformedZnodeError as error:
                found[tp] = OwnerNode("", node.stat.owner, error.what)
        return dict(sorted(found.items()))

    @cached_property
    def offsets(self) -> dict[TopicPartition, OffsetNode]:
        found = {}
        for at, node in self._of(Kind.OFFSET):
            tp, stat = TopicPartition(at.name, at.partition), node.stat
            try:
                value = decode_offset(node.data, where=paths.offset(self.name, tp))
                found[tp] = OffsetNode(value, stat.version, stat.mtime_ms)
            except MalformedZnodeError as error:
                found[tp] = OffsetNode(None, stat.version, stat.mtime_ms, error.what)
        return dict(sorted(found.items()))

    @cached_property
    def topic_rooms(self) -> dict[str, paths.Located]:
        """The parents of owner and of offset znodes among those that were listed."""
        located = ((path, paths.locate(path)) for path in self.listed)
        return {
            path: at for path, at in located if at.kind in (Kind.OWNERS_OF, Kind.OFFSETS_OF)
        }

    def _of(self, kind: Kind) -> Iterable[tuple[paths.Located, Node]]:
        return self._located.get(kind, ())

    @cached_property
    def _located(self) -> dict[Kind, list[tuple[paths.Located, Node]]]:
        found: dict[Kind, list[tuple[paths.Located, Node]]] = {}
        for path, node in self.nodes.items():
            at = paths.locate(path)
            found.setdefault(at.kind, []).append((at, node))
        return found


def _registration(
    group: str, name: ConsumerId, data: bytes | None
) -> Registration | MalformedZnodeError:
    try:
        return decode_registration(data, where=paths.member(group, name))
    except MalformedZnodeError as error:
        return error


@dataclass(frozen=True)
class TopicImage:
    """A topic's registration: `node` is its znode; `state` partition -> its state's znode."""

    name: str
    node: Node
    state: Mapping[int, Node] = field(default_factory=dict)

    def partitions(self, *, profile: Profile = DEFAULT) -> tuple[int, ...]:
        """Ascending. Raises MalformedZnodeError."""
        return decode_topic(self.node.data, where=paths.topic(self.name), profile=profile)


def read_group_names(connection: Connection) -> list[str]:
    """All groups that have a znode, sorted (`ConsumerGroupCommand --list`)."""
    return connection.children([paths.CONSUMERS]).get(paths.CONSUMERS, [])


MEMBERS, OWNERS, OFFSETS = "ids", "owners", "offsets"


def read_groups(
    connection: Connection, names: Iterable[str], *, rooms: Collection[str] = (
        MEMBERS, OWNERS, OFFSETS,
    ),
    topics: Collection[str] | None = None,
) -> dict[str, GroupImage]:
    """These groups, as far as they exist, all at once.

    `rooms` are those that are looked into; `topics`: whose owners and offsets, None for all.
    """
    roots = {paths.group(name): name for name in names}
    nodes = connection.read(roots)
    tops = [f"{root}/{room}" for root in nodes for room in rooms]
    listed: dict[str, Collection[str]] = {**connection.children(tops)}
    flat = f"/{MEMBERS}"
    deeper = [
        f"{top}/{name}" for top, below in listed.items() if not top.endswith(flat)
        for name in below if topics is None or name in topics
    ]
    listed |= connection.children(deeper)
    leaves = [
        f"{top}/{name}" for top in tops if top.endswith(flat) for name in listed.get(top, ())
    ]
    leaves += (
        f"{path}/{name}" for path in deeper for name in listed.get(path, ())
        if paths.is_partition(name)
    )
    found: dict[str, dict[str, Node]] = {roots[root]: {root: node} for root, node in nodes.items()}
    for path, node in connection.read(leaves).items():
        found[path.split("/", 3)[2]][path] = node
    listings: dict[str, dict[str, Collection[str]]] = {name: {} for name in found}
    for path, below in listed.items():
        listings[path.split("/", 3)[2]][path] = below
    return {name: GroupImage(name, found[name], listings[name]) for name in found}


def read_allowed_groups(
    connection: Connection, names: Sequence[str], *, rooms: Collection[str] = (
        MEMBERS, OWNERS, OFFSETS,
    ),
) -> tuple[dict[str, GroupImage], dict[str, AccessDeniedError]]:
    """As `read_groups`; beside it, for each group that may not be read, the error."""
    try:
        return read_groups(connection, names, rooms=rooms), {}
    except AccessDeniedError as error:
        if len(names) == 1:
            return {}, {names[0]: error}
    half = len(names) // 2
    images, denied = read_allowed_groups(connection, names[:half], rooms=rooms)
    more = read_allowed_groups(connection, names[half:], rooms=rooms)
    return images | more[0], denied | more[1]


def unknown_group(group: str, connection: Connection | None = None) -> UnknownGroupError:
    """The error for a group that has no znode; with a connection it says on which servers."""
    return UnknownGroupError(
        f"group {group} does not exist",
        where=connection.config.zookeeper_connect if connection else paths.group(group),
        remedy="check the name and the chroot; `zkconsumer groups list` shows what there is",
    )


def read_group_tree(connection: Connection, name: str) -> GroupImage | None:
    """Everything below a group's znode, whatever it is; None where the group does not exist."""
    nodes = connection.tree(paths.group(name))
    return GroupImage(name, nodes) if nodes else None


def read_topics(connection: Connection, names: Iterable[str]) -> dict[str, TopicImage]:
    """These topics, as far as they exist, without the state of their partitions."""
    found = connection.read([paths.topic(name) for name in names])
    return {
        name: TopicImage(name, node)
        for path, node in found.items() for name in (paths.locate(path).name,)
    }


def read_topic_names(connection: Connection) -> list[str]:
    """All topics, sorted."""
    return connection.children([paths.TOPICS]).get(paths.TOPICS, [])


def read_brokers(connection: Connection) -> dict[str, Broker | MalformedZnodeError]:
    """The registered brokers by id; in place of what cannot be read stands the error."""
    ids = connection.children([paths.BROKER_IDS]).get(paths.BROKER_IDS, [])
    found: dict[str, Broker | MalformedZnodeError] = {}
    for path, node in connection.read(paths.broker(number) for number in ids).items():
        try:
            found[paths.locate(path).name] = decode_broker(node.data, where=path)
        except MalformedZnodeError as error:
            found[paths.locate(path).name] = error
    return found
