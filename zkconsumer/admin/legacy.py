"""ZooKeeper as Kafka's old tools read and write it (`kafka.utils.ZkUtils`, Kafka 0.8.2 to 1.1).

`ZkUtils` reads with the old tools' requests. `ZkUtils` keeps ZooKeeper's order of children, since
the tools print in that order, and raises the JVM's exceptions, since the tools print their texts.
zkconsumer's own tools read groups with `admin.groups`.

`read_export` reads files of ExportZkOffsets. `committed` looks for offsets first in Kafka and then
in ZooKeeper, as the old tools do.

`Writing` makes the old tools' writes, even if the group has members. The old tools write without a
check or a backup. Here each write is a plan that is applied at once, so there is a backup that
`plan_undo` can restore, and each transaction is written as a whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from zkconsumer.admin.apply import Live, apply, read_rights
from zkconsumer.admin.group_changes import state_of
from zkconsumer.admin.groups import read_brokers, registered_brokers
from zkconsumer.admin.offset_files import (
    FileError,
    check_names,
    decoded,
    java_offset,
    path_line,
)
from zkconsumer.admin.plan import Change, Content, Plan
from zkconsumer.errors import (
    ConfigError,
    MalformedZnodeError,
    RefusedError,
)
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import LogClient, committed_in_kafka
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import TopicFilter, matching
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.java.text import java_hash, parse_int64
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import (
    Broker,
    JvmException,
    decode_partition_state,
    decode_topic,
)
from zkconsumer.protocol.registrations import Pattern, Registration, decode_registration
from zkconsumer.protocol.releases import Profile
from zkconsumer.protocol.requests import MAX_MULTI_WRITES, Delete
from zkconsumer.zk.client import ZooKeeperClient

Key = TypeVar("Key", str, int)

# The number that stands for "no leader" in the state of a partition.
NO_LEADER: Final = -1


class NoNodeError(JavaError):
    """`ZkNoNodeException`: a znode that the tool expects does not exist."""

    def __init__(self, path: str) -> None:
        super().__init__(
            JvmException.NO_NODE,
            "org.apache.zookeeper.KeeperException$NoNodeException: "
            f"KeeperErrorCode = NoNode for {path}",
        )


class ZkUtils:
    """Reads ZooKeeper as the tools of one release do, with many znodes per batch of requests."""

    def __init__(self, connection: ZooKeeperClient, profile: Profile) -> None:
        self.connection = connection
        self.profile = profile

    # ---- children and payloads -------------------------------------------------------------------

    def children(self, path: str) -> list[str]:
        """Return the children of a znode in ZooKeeper's order. Raises NoNodeError."""
        found = self.children_or_none(path)
        if found is None:
            raise NoNodeError(path)
        return found

    def children_or_none(self, path: str) -> list[str] | None:
        return self.connection.children_in_server_order([path]).get(path)

    def exists(self, path: str) -> bool:
        return path in self.connection.stats([path])

    def texts(self, asked: Iterable[str]) -> dict[str, str]:
        """Return path -> payload of the znodes that exist; Java prints "null" for no payload."""
        return {
            path: "null" if node.data is None else node.data.decode(errors="replace")
            for path, node in self.connection.read(asked).items()
        }

    # ---- topics and brokers ----------------------------------------------------------------------

    def partitions(self, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return topic -> partitions, ascending; empty for a missing topic.

        Source: `getPartitionsForTopics`. Raises JavaError for a malformed topic znode.
        """
        where = {topic: paths.topic(topic) for topic in topics}
        nodes = self.connection.read(where.values())
        try:
            return {
                topic: decode_topic(nodes[path].data, where=path, profile=self.profile)
                if path in nodes
                else ()
                for topic, path in where.items()
            }
        except MalformedZnodeError as error:
            raise _thrown(error) from error

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return partition -> id of its leader, or NO_LEADER, for partitions with a state znode."""
        where = {paths.partition_state(*tp): tp for tp in partitions}
        return {
            where[path]: _leader(node.data, where=path)
            for path, node in self.connection.read(where).items()
        }

    def cluster(self) -> Brokers:
        """Return the registered brokers that can be read, with the configuration for connections to
        them."""
        return registered_brokers(self.connection)

    def brokers(self) -> dict[int, Broker]:
        """The registered brokers that can be read, by id."""
        return {
            int(number): one
            for number, one in read_brokers(self.connection).items()
            if isinstance(one, Broker) and paths.is_partition(number)
        }

    # ---- a group ---------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return all groups in ZooKeeper's order (`getConsumerGroups`). Raises NoNodeError."""
        return self.children(paths.CONSUMERS)

    def owned_topics(self, group: str) -> list[str]:
        """Return the topics below a group's `owners`, in ZooKeeper's order.

        Source: `getTopicsByConsumerGroup`.
        """
        return self.children_or_none(paths.owners(group)) or []

    def owners(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return partition -> thread id in its owner znode, if that exists."""
        where = {paths.owner(group, tp): tp for tp in partitions}
        return {where[path]: text for path, text in self.texts(where).items()}

    def offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return partition -> offset in its znode, if that exists.

        Raises JavaError for a payload that is not a number.
        """
        where = {paths.offset(group, tp): tp for tp in partitions}
        found = {}
        for path, text in self.texts(where).items():
            try:
                found[where[path]] = parse_int64(text)
            except ValueError:
                shown = text if text == "null" else f'For input string: "{text}"'
                raise JavaError(JvmException.NUMBER, shown) from None
        return found

    def is_active(self, group: str) -> bool:
        """Return whether a member is registered (`isConsumerGroupActive`). Raises NoNodeError."""
        return bool(self.children(paths.ids(group)))

    def subscriptions(
        self, group: str, *, internal: frozenset[str]
    ) -> dict[str, Mapping[str, int]]:
        """Return member -> topic -> streams, in ZooKeeper's order of members.

        `internal` are the topics that no filter matches. Raises JavaError for a registration on
        which the JVM fails, and ConfigError for a filter that cannot be evaluated here.
        """
        names = self.children_or_none(paths.ids(group)) or []
        where = {paths.member(group, name): name for name in names}
        members = {}
        for path, node in self.connection.read(where).items():
            try:
                registration = decode_registration(node.data, where=path)
            except MalformedZnodeError as error:
                raise _thrown(error) from error
            members[where[path]] = registration
        topics: Sequence[str] = ()
        if any(one.pattern is not Pattern.STATIC for one in members.values()):
            topics = self.children_or_none(paths.TOPICS) or []
        return {name: dict(_expanded(one, topics, internal)) for name, one in members.items()}


def _expanded(
    registration: Registration, topics: Sequence[str], internal: frozenset[str]
) -> Iterator[tuple[str, int]]:
    if registration.pattern is Pattern.STATIC:
        yield from registration.subscription.items()
        return
    for regex, streams in registration.subscription.items():
        for topic in matching(TopicFilter(registration.pattern, regex), topics, internal=internal):
            yield topic, streams


def _leader(payload: bytes | None, *, where: str) -> int:
    try:
        return decode_partition_state(payload, where=where).leader
    except MalformedZnodeError:
        return NO_LEADER


def _thrown(error: MalformedZnodeError) -> JavaError:
    return JavaError(error.thrown or JvmException.KAFKA, str(error))


def mutable_map_order(keys: Iterable[Key]) -> list[Key]:
    """Return the iteration order of Scala 2.11's `mutable.HashMap` after these insertions."""
    table: list[list[Key]] = [[] for _ in range(_INITIAL_SIZE)]
    for filled, key in enumerate(dict.fromkeys(keys), start=1):
        table[_bucket(key, len(table))].insert(0, key)
        if filled > len(table) * 3 // 4:
            before, table = table, [[] for _ in range(2 * len(table))]
            for one in (one for chain in reversed(before) for one in chain):
                table[_bucket(one, len(table))].insert(0, one)
    return [key for chain in reversed(table) for key in chain]


_INITIAL_SIZE: Final = 16
_SCRAMBLE: Final = 0x9E3775CD


def _bucket(key: str | int, size: int) -> int:
    """Return `mutable.HashTable.index`: the highest bits of the byte-swapped hash code."""
    code = (java_hash(key) if isinstance(key, str) else key) & 0xFFFFFFFF
    code = code * _SCRAMBLE & 0xFFFFFFFF
    code = int.from_bytes(code.to_bytes(4, "big"), "little") * _SCRAMBLE & 0xFFFFFFFF
    turn = (_INITIAL_SIZE - 1).bit_count()
    code = (code >> turn | code << (32 - turn)) & 0xFFFFFFFF
    return code >> (32 - (size - 1).bit_count()) & (size - 1)


# ---- files of ExportZkOffsets --------------------------------------------------------------------


_LINE = re.compile(r"\r\n|\r|\n")  # the line ends of Java's BufferedReader


@dataclass(frozen=True, slots=True)
class Exported:
    """The offsets of a file: (group, partition) -> offset of its last line.

    The JVM stops reading at the first empty line. `unread` is the number of the first line after
    the empty one; 0 if the whole file was read.
    """

    offsets: Mapping[tuple[str, TopicPartition], int]
    unread: int


def read_export(data: bytes, *, where: str) -> Exported:
    """Read a whole file. Raises ConfigError, which names the line of the first fault.

    A line must be the path of an offset znode, a colon, and a number. The JVM's tool writes any
    text to any path, which can stop every member of a group.
    """
    offsets: dict[tuple[str, TopicPartition], int] = {}
    try:
        lines = _LINE.split(decoded(data))
        for number, line in enumerate(lines, start=1):
            if not line:
                rest = any(lines[number:])
                return Exported(offsets, number if rest else 0)
            group, tp, text = path_line(line, number)
            check_names(number, group, tp.topic)
            offsets[group, tp] = java_offset(text, number)
    except FileError as fault:
        raise ConfigError(
            str(fault),
            where=f"{where}:{fault.line}",
            remedy="correct the file; no offset was imported",
        ) from fault
    return Exported(offsets, 0)


# ---- committed offsets and partitions ------------------------------------------------------------


@dataclass
class CommittedOffsets:
    """Committed offsets of partitions.

    Attributes:
        offsets: partition -> offset.
        missing: partitions without an offset in either store.
        unknown: partition -> why Kafka does not return its offset.
    """

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    missing: list[TopicPartition] = field(default_factory=list)
    unknown: dict[TopicPartition, str] = field(default_factory=dict)


def committed(
    zk: ZkUtils, group: str, partitions: Sequence[TopicPartition], *, limit_s: float
) -> CommittedOffsets:
    """Return committed offsets from Kafka, or else from ZooKeeper.

    `limit_s` is seconds per request to the brokers. Raises JavaError for an offset znode that is
    not a number.
    """
    kept = committed_in_kafka(zk.cluster(), group, partitions, limit_s=limit_s)
    found = CommittedOffsets()
    in_zookeeper = zk.offsets(group, (tp for tp in partitions if kept[tp] is None))
    for tp in partitions:
        at = kept[tp]
        if isinstance(at, str):
            found.unknown[tp] = at
        elif at is not None:
            found.offsets[tp] = at.offset
        elif tp in in_zookeeper:
            found.offsets[tp] = in_zookeeper[tp]
        else:
            found.missing.append(tp)
    return found


def partitions_of(brokers: Brokers, topic: str, *, limit_s: float) -> list[int]:
    """Return a topic's partitions as the brokers know them, ascending; empty if unknown.

    The request asks for the metadata of all topics, so brokers do not create this topic. Raises
    BrokersUnreachableError if no broker answers within `limit_s` seconds.
    """
    return list(LogClient(brokers, limit_s=limit_s).topics().get(topic, ()))


# ---- writes --------------------------------------------------------------------------------------


# Another client, such as a member that commits, may change a znode between the read and the write.
# After 20 attempts the last RefusedError is raised.
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes of one old tool.

    Attributes:
        kind: kind of the plans, which is the tool's name.
        on_backup: called with the path of each backup before the first write.
    """

    connection: ZooKeeperClient
    kind: str
    backup_dir: Path
    on_backup: Callable[[Path], None]

    def put(self, values: Mapping[str, bytes]) -> None:
        """Write payloads, and create missing znodes (`ZkUtils.updatePersistentPath`).

        A parent that is created has a null payload, as in the JVM. Raises what `admin.apply.apply`
        raises, and RefusedError if other clients keep changing the same znodes.
        """
        self._apply(lambda: _puts(self.connection, values), Live.FORCE)

    def delete(self, *roots: str, live: Live) -> None:
        """Delete znodes that exist, and all znodes below them (`ZkClient.deleteRecursive`).

        Raises what `put` raises, and RefusedError if the group has members and `live` is
        Live.REFUSE.
        """
        self._apply(lambda: _deletions(self.connection, roots), live)

    def _apply(self, changes: Callable[[], Iterator[Change]], live: Live) -> None:
        for left in reversed(range(_ATTEMPTS)):
            chroot = self.connection.config.zookeeper_chroot
            plan = Plan.of(self.kind, chroot, changes())
            try:
                apply(
                    self.connection,
                    plan,
                    backup_dir=self.backup_dir,
                    live=live,
                    on_backup=self.on_backup,
                )
            except RefusedError:
                if not left:
                    raise
            else:
                return


def _puts(connection: ZooKeeperClient, values: Mapping[str, bytes]) -> Iterator[Change]:
    above = dict.fromkeys(parent for path in values for parent in _parents(path))
    there = connection.read([*above, *values])
    for path in above:
        if path not in there:
            yield Change(path, None, Content(None))
    for path, data in values.items():
        before = state_of(there[path]) if path in there else None
        yield Change(path, before, Content(data))


def _deletions(connection: ZooKeeperClient, roots: Iterable[str]) -> Iterator[Change]:
    there = connection.tree(*roots)
    rights = read_rights(connection, there)
    for path, node in there.items():
        yield Change(path, state_of(node, rights.get(path)), None)


def _parents(path: str) -> Iterator[str]:
    """Yield the parents of a path, from the group's znode down."""
    parts = path.split("/")
    for end in range(3, len(parts)):
        yield "/".join(parts[:end])


def forget(connection: ZooKeeperClient, group: str) -> None:
    """Delete the group that one run of a tool created for itself (`ZkUtils.maybeDeletePath`).

    There is no backup, since no other client uses the group. As in the JVM, a failed deletion is
    ignored.
    """
    deletions = [Delete(path) for path in reversed(connection.tree(paths.group(group)))]
    for start in range(0, len(deletions), MAX_MULTI_WRITES):
        connection.write(deletions[start : start + MAX_MULTI_WRITES])
