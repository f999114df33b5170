"""The input of the sticky assignors: previous owners, and the racks of members and partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from zkconsumer.protocol.java.hash_map import StringMap
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.later.subscriptions import (
    NO_GENERATION,
    Members,
    Subscription,
    Topics,
    racks_decide,
)
from zkconsumer.protocol.model import TopicPartition

Owned = StringMap[list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberData:
    """What a member owned, and in which generation (`AbstractStickyAssignor.MemberData`)."""

    partitions: tuple[TopicPartition, ...]
    generation: int | None


@dataclass(slots=True)
class Ownership:
    """What all members owned before.

    Attributes:
        owned: the partitions of each member, in Java's order of the members.
        twice: the partitions that two members of one generation claim; nobody keeps them.
        equal: whether all members subscribe to the same topics.
        generation: the highest generation of a member.
    """

    owned: Owned = field(default_factory=StringMap)
    twice: set[TopicPartition] = field(default_factory=set)
    equal: bool = True
    generation: int = NO_GENERATION


class Racks:
    """The racks of members and partitions (`AbstractStickyAssignor.RackInfo`)."""

    def __init__(self, topics: Topics, members: Members) -> None:
        racks = {member: one.rack for member, one in members.items() if one.rack}
        in_rack: dict[str, int] = {}
        for rack in racks.values():
            in_rack[rack] = in_rack.get(rack, 0) + 1
        of_partitions = {
            TopicPartition(name, number): topic.racks_of(number)
            for name, topic in topics.items()
            for number in range(topic.partitions if racks else 0)
        }
        replicas = frozenset().union(*of_partitions.values())
        # Kafka sorts by these numbers whenever a member has a rack, even if racks do not decide.
        self._local_members = {
            partition: sum(in_rack.get(rack, 0) for rack in found)
            for partition, found in of_partitions.items()
        }
        decide = racks_decide(in_rack, replicas, of_partitions.values())
        self.of_members: dict[str, str] = racks if decide else {}
        self.of_partitions = of_partitions if decide else {}

    def mismatch(self, member: str, partition: TopicPartition) -> bool:
        """Return whether the member has a rack in which the partition has no replica."""
        rack = self.of_members.get(member)
        return rack is not None and rack not in self.of_partitions.get(partition, ())

    def fewest_local_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with the fewest members in their replicas' racks first."""
        if not self._local_members:
            return partitions
        return sorted(partitions, key=lambda one: self._local_members.get(one, 0))

    def next_local(self, partition: TopicPartition, members: list[str], first: int) -> int:
        """Return the index of a member in a replica's rack, searching from `first`; else -1."""
        racks = self.of_partitions.get(partition)
        if not racks:
            return -1
        for step in range(len(members)):
            index = (first + step) % len(members)
            if self.of_members.get(members[index]) in racks:
                return index
        return -1


def sticky_data(subscription: Subscription) -> MemberData:
    """Return what a member of `sticky` reports in its user data.

    There is no user data before the first assignment. Its topics are in the order of a hash map.
    """
    if not subscription.owned and subscription.generation == NO_GENERATION:
        return MemberData((), None)
    by_topic: StringMap[list[TopicPartition]] = StringMap()
    for partition in subscription.owned:
        if partition.topic not in by_topic:
            by_topic[partition.topic] = []
        by_topic[partition.topic].append(partition)
    owned = tuple(partition for _, found in by_topic.items() for partition in found)
    return MemberData(owned, subscription.generation)


def cooperative_data(subscription: Subscription) -> MemberData:
    """Return what a member of `cooperative-sticky` reports: its owned partitions, sorted."""
    owned = sorted(subscription.owned, key=lambda one: (utf16_key(one.topic), one.partition))
    return MemberData(tuple(owned), max(subscription.generation, NO_GENERATION))


def ownership(topics: Topics, members: Members, data: dict[str, MemberData]) -> Ownership:
    """Decide who owned which partition of the topics (`allSubscriptionsEqual`).

    If two members claim a partition, the one with the higher generation keeps it. In one
    generation, nobody keeps it. Kafka reads the generation of the first claimant from its
    subscription and that of the second from its member data.
    """
    found = Ownership()
    claims: dict[TopicPartition, str] = {}
    wanted: set[str] = set()
    for member, subscription in members.items():
        if not wanted:
            wanted.update(subscription.topics)
        elif len(subscription.topics) != len(wanted) or not wanted.issuperset(subscription.topics):
            found.equal = False
        generation = data[member].generation
        generation = NO_GENERATION if generation is None else generation
        found.generation = max(found.generation, generation)
        found.owned[member] = own = []
        for partition in data[member].partitions:
            if partition.topic not in topics:
                continue
            other = claims.get(partition)
            if other is not None:
                others = max(members[other].generation, NO_GENERATION)
                if generation < others:
                    continue
                remove_first(found.owned[other], partition)
                if generation == others:
                    found.twice.add(partition)
            if other is None or generation > others:
                own.append(partition)
            claims[partition] = member
    return found


def remove_first(partitions: list[TopicPartition], partition: TopicPartition) -> None:
    """Remove the first occurrence of a partition, if there is one (`List.remove`)."""
    if partition in partitions:
        partitions.remove(partition)
