"""What a fake cluster consists of: its live brokers, its topics, and their partitions with logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.logs import LogSettings, PartitionLog

NO_LEADER: Final = -1
"""The leader of a partition whose replicas are all down."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})


class LiveBroker(NamedTuple):
    """A live broker and its address."""

    id: int
    host: str
    port: int


@dataclass
class Partition:
    """A partition; all replicas share one log, so a change of the leader loses no message.

    Attributes:
        replicas: the broker ids, the preferred leader first.
        leader: the leader's broker id, or `NO_LEADER`.
        epoch: the number of leaders before this one.
        isr: the replicas in sync: the live ones.
    """

    replicas: tuple[int, ...]
    log: PartitionLog
    leader: int = NO_LEADER
    epoch: int = 0
    isr: tuple[int, ...] = ()


@dataclass
class Topic:
    """A topic; `id` is `NO_ID` in releases without topic ids."""

    name: str
    id: bytes
    settings: LogSettings
    partitions: dict[int, Partition] = field(default_factory=dict)


class ClusterMetadata:
    """The state that all brokers of a cluster share. Only the engine's thread uses it.

    Attributes:
        nodes: the live brokers by id.
        topics: the topics by name.
        controller: the broker id of the controller; -1 if no broker is alive.
    """

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.nodes: dict[int, LiveBroker] = {}
        self.topics: dict[str, Topic] = {}
        self.controller = -1
        self._listeners: list[Callable[[], object]] = []

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each change of metadata and after each append to a log."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """Call the listeners."""
        for one in self._listeners:
            one()

    def partition(self, tp: TopicPartition) -> Partition:
        """Return a partition. Raises KafkaFault if it does not exist."""
        topic = self.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            raise KafkaFault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist")
        return topic.partitions[tp.partition]

    def led(self, tp: TopicPartition, broker: int) -> Partition:
        """Return a partition that this broker leads. Raises KafkaFault."""
        found = self.partition(tp)
        if found.leader != broker:
            text = f"broker {found.leader} leads {tp}, not broker {broker}"
            raise KafkaFault(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        return found

    def all_partitions(self) -> Iterator[tuple[TopicPartition, Partition]]:
        """Yield all partitions of all topics."""
        for topic in self.topics.values():
            for number, one in topic.partitions.items():
                yield TopicPartition(topic.name, number), one

    def topic_of_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with an id; None if there is none."""
        return next((one for one in self.topics.values() if one.id == topic_id), None)
