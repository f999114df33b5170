"""ZooKeeper as Kafka's old tools read it (`kafka.utils.ZkUtils`, 0.8.2 to 1.1).

In ZooKeeper's own order of children, which their output has, and with the exceptions of the JVM as
values: their texts are output, too. A tool of ours has `images` instead, which says more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from zkconsumer.core import paths
from zkconsumer.core.filters import TopicFilter, matching
from zkconsumer.core.javatext import java_hash, parse_int64
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.payloads import Thrown
from zkconsumer.core.records import Broker, decode_broker, decode_partition_state, decode_topic
from zkconsumer.core.registrations import Pattern, Registration, decode_registration
from zkconsumer.core.releases import Profile
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.zk.connection import Connection

Key = TypeVar("Key", str, int)

# What a partition's state says of one that has none.
NO_LEADER: Final = -1


class JavaError(Exception):
    """What the JVM would throw here: its class, and what `getMessage` says."""

    def __init__(self, kind: str, text: str | None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = "null" if text is None else text


class NoNodeError(JavaError):
    """`ZkNoNodeException`: a znode is not there that the tool takes for granted."""

    def __init__(self, path: str) -> None:
        super().__init__(
            Thrown.NO_NODE,
            "org.apache.zookeeper.KeeperException$NoNodeException: "
            f"KeeperErrorCode = NoNode for {path}",
        )


class ZkUtils:
    """Reads as the tools of one release did, but many at once."""

    def __init__(self, connection: Connection, profile: Profile) -> None:
        self.connection = connection
        self.profile = profile

    # ---- children and payloads -------------------------------------------------------------------

    def children(self, path: str) -> list[str]:
        """In ZooKeeper's order. Raises NoNodeError."""
        found = self.children_or_none(path)
        if found is None:
            raise NoNodeError(path)
        return found

    def children_or_none(self, path: str) -> list[str] | None:
        return self.connection.listed([path]).get(path)

    def exists(self, path: str) -> bool:
        return path in self.connection.stats([path])

    def texts(self, asked: Iterable[str]) -> dict[str, str]:
        """The payloads of those that exist; a znode without one says "null", as Java prints it."""
        return {
            path: "null" if node.data is None else node.data.decode(errors="replace")
            for path, node in self.connection.read(asked).items()
        }

    # ---- topics and brokers ----------------------------------------------------------------------

    def partitions(self, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Ascending; none for a topic that does not exist (`getPartitionsForTopics`)."""
        where = {topic: paths.topic(topic) for topic in topics}
        nodes = self.connection.read(where.values())
        try:
            return {
                topic: decode_topic(nodes[path].data, where=path, profile=self.profile)
                if path in nodes else ()
                for topic, path in where.items()
            }
        except MalformedZnodeError as error:
            raise _thrown(error) from error

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The leader's id, or NO_LEADER; absent where there is no state."""
        where = {paths.partition_state(*tp): tp for tp in partitions}
        return {
            where[path]: _leader(node.data, where=path)
            for path, node in self.connection.read(where).items()
        }

    def brokers(self) -> dict[int, Broker]:
        """The registered brokers that can be read, by id."""
        ids = self.children_or_none(paths.BROKER_IDS) or []
        found = {}
        for path, node in self.connection.read(paths.broker(one) for one in ids).items():
            try:
                found[int(paths.locate(path).name)] = decode_broker(node.data, where=path)
            except (MalformedZnodeError, ValueError):
                continue
        return found

    # ---- a group ---------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """In ZooKeeper's order (`getConsumerGroups`). Raises NoNodeError."""
        return self.children(paths.CONSUMERS)

    def owned_topics(self, group: str) -> list[str]:
        """Topics with a parent of owners, in ZooKeeper's order (`getTopicsByConsumerGroup`)."""
        return self.children_or_none(paths.owners(group)) or []

    def owners(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, str]:
        """The thread ids in the owner znodes that exist."""
        where = {paths.owner(group, tp): tp for tp in partitions}
        return {where[path]: text for path, text in self.texts(where).items()}

    def offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """What stands in the offset znodes that exist. Raises JavaError for what is no number."""
        where = {paths.offset(group, tp): tp for tp in partitions}
        found = {}
        for path, text in self.texts(where).items():
            try:
                found[where[path]] = parse_int64(text)
            except ValueError:
                shown = text if text == "null" else f'For input string: "{text}"'
                raise JavaError(Thrown.NUMBER, shown) from None
        return found

    def is_active(self, group: str) -> bool:
        """Whether anybody is registered (`isConsumerGroupActive`). Raises NoNodeError."""
        return bool(self.children(paths.ids(group)))

    def subscriptions(
        self, group: str, *, internal: frozenset[str]
    ) -> dict[str, Mapping[str, int]]:
        """Member -> its topics with their streams, in ZooKeeper's order of members.

        `internal` are the topics that no pattern matches. Raises JavaError for a registration that
        fails the JVM, and ConfigError for a pattern that cannot be evaluated here.
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
    return JavaError(error.thrown or Thrown.KAFKA, str(error))


def mutable_map_order(keys: Iterable[Key]) -> list[Key]:
    """The order in which Scala 2.11's `mutable.HashMap`, filled in this order, iterates."""
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
    """`mutable.HashTable.index`: the uppermost bits of the code, whose bytes were swapped."""
    code = (java_hash(key) if isinstance(key, str) else key) & 0xFFFFFFFF
    code = code * _SCRAMBLE & 0xFFFFFFFF
    code = int.from_bytes(code.to_bytes(4, "big"), "little") * _SCRAMBLE & 0xFFFFFFFF
    turn = (_INITIAL_SIZE - 1).bit_count()
    code = (code >> turn | code << (32 - turn)) & 0xFFFFFFFF
    return code >> (32 - (size - 1).bit_count()) & (size - 1)
