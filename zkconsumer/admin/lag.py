"""How far a group has come: its owners and offsets beside what the brokers' logs hold.

A figure that could not be had is a text that says why, and never a number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.admin.asking import Asked, asked, partitions_in
from zkconsumer.admin.groups import MemberReport, member_reports, read_topic_payloads
from zkconsumer.admin.images import GroupImage, read_brokers, read_groups
from zkconsumer.core.model import OffsetAndMetadata, ThreadId, TopicPartition
from zkconsumer.core.records import Broker
from zkconsumer.kafka.logs import LogRange, committed_in_kafka, log_ends
from zkconsumer.zk.connection import Connection

NOTHING_COMMITTED = "nothing is committed"
NO_SUCH_TOPIC = "the topic does not exist"
NO_SUCH_PARTITION = "the topic has no such partition"
NOT_ASKED = "the brokers were not asked"

Selection = Mapping[str, frozenset[int] | None]
"""Topics, and which of their partitions: None for all."""


class Source(Enum):
    """Where a committed offset is kept."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    BOTH = "both"  # the same in both


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A partition as a group has it.

    Attributes:
        owner: the consumer thread that its owner znode names, None without one.
        session: the session of the owner znode, 0 for one that no session will take away.
        in_zookeeper: the offset there; None: none, a text: why it cannot be read.
        written_ms: when that was written, by the server's clock.
        in_kafka: the offset in Kafka's own storage, likewise.
        log: where the log begins and ends, or why that is not known.
        fault: what is wrong with the owner znode, or "".
    """

    topic: str
    partition: int
    owner: ThreadId | None
    session: int
    in_zookeeper: int | str | None
    written_ms: int
    in_kafka: OffsetAndMetadata | str | None
    log: LogRange | str
    fault: str = ""

    @property
    def committed(self) -> int | str | None:
        """The offset that counts; None where there is none.

        Kafka's if there is one, else ZooKeeper's, as `ConsumerGroupCommand` has it (0.9 to 1.1). It
        is not known where Kafka's is not, unless the group has one in ZooKeeper.
        """
        if isinstance(self.in_kafka, OffsetAndMetadata):
            return self.in_kafka.offset
        return self.in_kafka if self.in_zookeeper is None else self.in_zookeeper

    @property
    def source(self) -> Source | None:
        """Where that offset is from."""
        kafka = self.in_kafka.offset if isinstance(self.in_kafka, OffsetAndMetadata) else None
        if kafka is None:
            return Source.ZOOKEEPER if isinstance(self.in_zookeeper, int) else None
        return Source.BOTH if kafka == self.in_zookeeper else Source.KAFKA

    @property
    def lag(self) -> int | str:
        """Messages between the offset and the log's end, or why that is not known."""
        committed = self.committed
        if isinstance(committed, int):
            return self.log if isinstance(self.log, str) else self.log.end - committed
        return NOTHING_COMMITTED if committed is None else committed


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group, and every partition that it has to do with, sorted."""

    image: GroupImage
    asked: Asked
    partitions: tuple[PartitionLag, ...]

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def members(self) -> list[MemberReport]:
        """The registered members, sorted."""
        return list(member_reports(self.image, self.asked))


AskKafka = Callable[
    [Sequence[Broker], str, Collection[TopicPartition]],
    Mapping[TopicPartition, OffsetAndMetadata | str | None],
]
AskLogs = Callable[
    [Sequence[Broker], Collection[TopicPartition]], Mapping[TopicPartition, LogRange | str]
]


def group_lags(
    connection: Connection,
    names: Iterable[str],
    *,
    limit_s: float,
    only: Selection | None = None,
    logs: AskLogs | None = None,
    kafka: AskKafka | None = None,
) -> dict[str, GroupLag]:
    """These groups, as far as they exist.

    Args:
        limit_s: seconds for each question to the brokers.
        only: topics and partitions to look at, by default all that the group owns, has offsets of,
            or subscribes to.
        logs, kafka: how the brokers are asked, by default as `log_ends` and `committed_in_kafka`.

    Raises as `Connection.read`; what brokers do not say stands in the result.
    """
    images = read_groups(connection, names)
    return lags_of(connection, images, limit_s=limit_s, only=only, logs=logs, kafka=kafka)


def lags_of(
    connection: Connection,
    images: Mapping[str, GroupImage],
    *,
    limit_s: float,
    only: Selection | None = None,
    logs: AskLogs | None = None,
    kafka: AskKafka | None = None,
) -> dict[str, GroupLag]:
    """As `group_lags`, of groups that have been read."""
    topics = read_topic_payloads(connection, images.values())
    brokers = [one for one in read_brokers(connection).values() if isinstance(one, Broker)]
    existing = {topic: frozenset(partitions_in(topic, topics)[0]) for topic in topics}
    wants = {name: asked(image.members, topics) for name, image in images.items()}
    wanted = {
        name: sorted(_selected(_concerned(image, wants[name], existing), only))
        for name, image in images.items()
    }
    there = {
        tp for of_group in wanted.values() for tp in of_group
        if tp.partition in existing.get(tp.topic, ())
    }
    if logs is None:
        ranges: Mapping[TopicPartition, LogRange | str]
        ranges = log_ends(brokers, sorted(there), limit_s=limit_s) if there else {}
    else:
        ranges = logs(brokers, sorted(there))
    found = {}
    for name, image in images.items():
        mine = [tp for tp in wanted[name] if tp in there]
        stored = (
            committed_in_kafka(brokers, name, mine, limit_s=limit_s) if kafka is None
            else kafka(brokers, name, mine)
        )
        lags = tuple(
            _lag(image, tp, stored.get(tp), ranges.get(tp) or _missing(tp, existing))
            for tp in wanted[name]
        )
        found[name] = GroupLag(image, wants[name], lags)
    return found


def unasked_logs(
    brokers: Sequence[Broker], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogRange | str]:
    """For `group_lags`: leave the logs alone."""
    return dict.fromkeys(partitions, NOT_ASKED)


def _concerned(
    image: GroupImage, wanted: Asked, existing: Mapping[str, frozenset[int]]
) -> set[TopicPartition]:
    topics = {*wanted.threads, *(tp.topic for tp in (*image.owners, *image.offsets))}
    found = {TopicPartition(topic, n) for topic in topics for n in existing.get(topic, ())}
    return found | image.owners.keys() | image.offsets.keys()


def _selected(
    partitions: Iterable[TopicPartition], only: Selection | None
) -> Iterator[TopicPartition]:
    for tp in partitions:
        numbers = None if only is None else only.get(tp.topic, frozenset())
        if numbers is None or tp.partition in numbers:
            yield tp


def _missing(tp: TopicPartition, existing: Mapping[str, frozenset[int]]) -> str:
    return NO_SUCH_PARTITION if tp.topic in existing else NO_SUCH_TOPIC


def _lag(
    image: GroupImage,
    tp: TopicPartition,
    in_kafka: OffsetAndMetadata | str | None,
    log: LogRange | str,
) -> PartitionLag:
    owner, offset = image.owners.get(tp), image.offsets.get(tp)
    in_zookeeper: int | str | None = None
    if offset is not None:
        in_zookeeper = offset.fault or offset.value
        if isinstance(in_zookeeper, int) and in_zookeeper < 0:
            in_zookeeper = None  # the JVM's own "none"
    return PartitionLag(
        tp.topic,
        tp.partition,
        owner.thread if owner else None,
        owner.session if owner else 0,
        in_zookeeper,
        offset.mtime_ms if offset else 0,
        in_kafka,
        log,
        owner.fault if owner else "",
    )
