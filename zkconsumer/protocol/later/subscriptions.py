"""The input of an assignor: topics, members, and the rules that several assignors share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java.hash_map import HashSet, StringMap
from zkconsumer.protocol.java.text import java_hash, utf16_key
from zkconsumer.protocol.model import TopicPartition

NO_GENERATION = -1
"""The generation of a member that has not joined yet (`DEFAULT_GENERATION`)."""

NULL_POINTER = "java.lang.NullPointerException"
ILLEGAL_STATE = "java.lang.IllegalStateException"
NO_SUCH_ELEMENT = "java.util.NoSuchElementException"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the cluster.

    `racks` contains the racks of each partition's replicas; it is empty if no broker has a rack.
    `id` is the topic id as two signed numbers of 64 bits; only the assignors of KIP-848 use it.
    """

    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    id: tuple[int, int] = (0, 0)

    def racks_of(self, partition: int) -> frozenset[str]:
        """Return the racks of the replicas of one partition."""
        return self.racks[partition] if self.racks else frozenset()


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's subscription that the leader receives (`ConsumerPartitionAssignor.Subscription`).

    `owned` is the member's previous assignment. `generation` is the generation of that assignment;
    `NO_GENERATION` if there is none.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance: str | None = None


Topics = Mapping[str, Topic]
Members = StringMap[Subscription]
Assignment = dict[str, list[TopicPartition]]


def members_of(subscriptions: Mapping[str, Subscription]) -> Members:
    """Return the members as the `HashMap` that Kafka's leader fills in the given order."""
    members: Members = StringMap()
    for member, subscription in subscriptions.items():
        members[member] = subscription
    return members


def subscribed(topics: Topics, members: Members) -> Topics:
    """Return the topics that have partitions and that at least one member subscribes to."""
    wanted = {topic for _, subscription in members.items() for topic in subscription.topics}
    return {name: topic for name, topic in topics.items() if name in wanted and topic.partitions}


def static_first(members: Members) -> list[str]:
    """Return the members in the order of range and round-robin (`MemberInfo.compareTo`).

    Members with `group.instance.id` come first, ordered by it. The other members follow, ordered by
    member id. Two members with one `group.instance.id` keep the order of the hash map.
    """

    def key(member: str) -> tuple[bool, bytes]:
        instance = members[member].instance
        return instance is None, utf16_key(member if instance is None else instance)

    return sorted(members, key=key)


def hash_of_partition(partition: TopicPartition) -> int:
    """Return `TopicPartition.hashCode`, modulo 2**32."""
    return 31 * (31 + partition.partition) + java_hash(partition.topic)


def racks_decide(
    member_racks: Collection[str],
    replica_racks: Collection[str],
    of_partitions: Iterable[Collection[str]],
) -> bool:
    """Return whether an assignor considers racks (`useRackAwareAssignment`; from Kafka 3.5).

    Racks are considered if a member is in the rack of a replica, and a partition has no replica in
    one of the racks.
    """
    racks = set(replica_racks)
    if racks.isdisjoint(member_racks):
        return False
    return any(set(of_partition) != racks for of_partition in of_partitions)


class _HasTopic(Hashable, Protocol):
    """A partition, whose topic is a name or an id."""

    @property
    def topic(self) -> Hashable: ...


P = TypeVar("P", bound=_HasTopic)


class Movements(Generic[P]):
    """The partitions that moved in one run of the assignor, by topic and by old and new member.

    If a partition of a topic moved from member A to member B, and a second partition would move
    from B to A, the first partition moves back instead (`PartitionMovements`).
    """

    def __init__(self, hash_of: Callable[[P], int]) -> None:
        self._hash_of = hash_of
        self.pairs: dict[P, tuple[str, str]] = {}
        self._moved: dict[Hashable, dict[tuple[str, str], HashSet[P]]] = {}

    def substitute(self, partition: P, old: str, new: str) -> P:
        """Return the partition to move in place of `partition`; it may be `partition` itself."""
        if partition in self.pairs:
            old = self.pairs[partition][0]
        opposite = self._moved.get(partition.topic, {}).get((new, old))
        return partition if opposite is None else next(iter(opposite))

    def record(self, partition: P, old: str, new: str) -> None:
        """Record that a partition moves; two consecutive moves count as one."""
        if partition in self.pairs:
            old = self._forget(partition)
            if old == new:
                return
        self.pairs[partition] = old, new
        of_topic = self._moved.setdefault(partition.topic, {})
        of_topic.setdefault((old, new), HashSet(self._hash_of)).add(partition)

    def _forget(self, partition: P) -> str:
        pair = self.pairs.pop(partition)
        of_topic = self._moved[partition.topic]
        of_topic[pair].discard(partition)
        if not of_topic[pair]:
            del of_topic[pair]
        if not of_topic:
            del self._moved[partition.topic]
        return pair[0]
