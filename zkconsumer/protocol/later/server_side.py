"""The assignors of KIP-848, which run on the group coordinator: uniform and range.

These assignors work with topic ids. `Subscription.owned` is the member's part of the previous
target assignment; its generation is not used. Kafka has no such assignor before 3.7. Sources:
`org.apache.kafka.coordinator.group.assignor` of Kafka 3.9.1.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.java.hash_map import HashMap, HashSet, compare_strings
from zkconsumer.protocol.java.text import java_hash, utf16_key
from zkconsumer.protocol.later.subscriptions import (
    NO_SUCH_ELEMENT,
    Assignment,
    Members,
    Movements,
    Topics,
    static_first,
)
from zkconsumer.protocol.model import TopicPartition

ASSIGNOR_ERROR = "org.apache.kafka.coordinator.group.api.assignor.PartitionAssignorException"

TopicId = tuple[int, int]


class _Partition(NamedTuple):
    """A partition of a topic id (`TopicIdPartition`)."""

    topic: TopicId
    number: int


def hash_of_id(topic: TopicId) -> int:
    """Return `Uuid.hashCode`, modulo 2**32."""
    mixed = topic[0] ^ topic[1]
    return ((mixed >> 32) ^ mixed) & 0xFFFFFFFF


def _hash_of_partition(partition: _Partition) -> int:
    return 31 * (31 + hash_of_id(partition.topic)) + partition.number


def _compare_ids(left: TopicId, right: TopicId) -> int:
    return (left > right) - (left < right)


def _id_set(ids: Iterable[TopicId]) -> HashSet[TopicId]:
    """Return `new HashSet<>(ids)`, whose table has room for all of them from the beginning."""
    elements = list(ids)
    return HashSet(hash_of_id, _compare_ids, elements, capacity=_capacity(len(elements)))


def _capacity(size: int) -> int:
    return max(int(size / 0.75) + 1, 16)


class _Group:
    """The group in the form that the coordinator passes to an assignor (`GroupSpecImpl`)."""

    def __init__(self, topics: Topics, members: Members) -> None:
        self.members = list(members)
        self.counts = {topic.id: topic.partitions for topic in topics.values()}
        self.wanted: dict[str, list[TopicId]] = {}
        self.assigned: dict[str, HashMap[TopicId, list[int]]] = {}
        for member, subscription in members.items():
            names = _name_set(subscription.topics)
            self.wanted[member] = [topics[name].id for name in names if name in topics]
            self.assigned[member] = _by_topic(topics, subscription.owned)
        self.taken = {
            _Partition(topic, number)
            for assigned in self.assigned.values()
            for topic, numbers in assigned.items()
            for number in numbers
        }


def _name_set(names: Iterable[str]) -> HashSet[str]:
    elements = list(names)
    return HashSet(java_hash, compare_strings, elements, capacity=_capacity(len(elements)))


def _by_topic(topics: Topics, owned: Iterable[TopicPartition]) -> HashMap[TopicId, list[int]]:
    """Return the partition numbers by topic id, in Java's order; unknown topics are left out."""
    numbers: dict[TopicId, list[int]] = {}
    for partition in owned:
        if partition.topic in topics:
            numbers.setdefault(topics[partition.topic].id, []).append(partition.partition)
    found: HashMap[TopicId, list[int]] = HashMap(hash_of_id, _compare_ids)
    for topic, of_topic in numbers.items():
        found[topic] = list(
            HashSet(int, lambda one, two: one - two, of_topic, capacity=_capacity(len(of_topic)))
        )
    return found


# ---- range ---------------------------------------------------------------------------------------


def assign_server_range(topics: Topics, members: Members) -> Assignment:
    """Divide each topic's partitions into consecutive ranges, without racks (`RangeAssignor`)."""
    assignment: Assignment = {member: [] for member in members}
    order = static_first(members)
    for name, topic in topics.items():
        takers = [member for member in order if name in members[member].topics]
        if not takers:
            continue
        share, extras = divmod(topic.partitions, len(takers))
        start = 0
        for place, member in enumerate(takers):
            end = start + share + (place < extras)
            assignment[member].extend(TopicPartition(name, one) for one in range(start, end))
            start = end
    return assignment


# ---- uniform -------------------------------------------------------------------------------------


def assign_uniform(topics: Topics, members: Members) -> Assignment:
    """Balance all partitions over the members, and keep the previous assignment where possible.

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    group = _Group(topics, members)
    wanted = [frozenset(subscription.topics) for _, subscription in members.items()]
    if all(one == wanted[0] for one in wanted):
        found = _assign_homogeneous(group)
    else:
        found = _Heterogeneous(group).build()
    names = {topic.id: name for name, topic in topics.items()}
    return {
        member: [TopicPartition(names[one.topic], one.number) for one in found.get(member, ())]
        for member in members
    }


def _assign_homogeneous(group: _Group) -> dict[str, list[_Partition]]:
    """Assign for members with equal subscriptions (`UniformHomogeneousAssignmentBuilder`).

    Each member gets P / C partitions; the first P % C members, in the order of the hash map, get
    one more. A member keeps its partitions up to this quota. Members below the quota get the
    remaining partitions in order.
    """
    subscribed = _id_set(group.wanted[group.members[0]])
    if not subscribed:
        return {}
    every = [_Partition(one, number) for one in subscribed for number in range(group.counts[one])]
    free = [one for one in every if one not in group.taken]
    quota, extras = divmod(len(every), len(group.members))
    target: dict[str, list[_Partition]] = {}
    room: dict[str, int] = {}
    for place, member in enumerate(group.members):
        had = [
            _Partition(topic, number)
            for topic, numbers in group.assigned[member].items()
            if topic in subscribed
            for number in numbers
        ]
        left = quota + (place < extras)
        kept, cut = had[:left], had[left:]
        target[member] = kept
        free += cut
        if len(kept) < left:
            room[member] = left - len(kept)
    rest = iter(free)
    for member, count in room.items():
        target[member] += [one for _, one in zip(range(count), rest, strict=False)]
    if next(rest, None) is not None:
        raise JavaError(ASSIGNOR_ERROR)
    return target


class _Movements(Movements[_Partition]):
    """The moves of partitions; raises an error if a partition would move back or move on.

    Kafka 3.9.1 throws this error, which is a defect of its class.
    """

    def substitute(self, partition: _Partition, old: str, new: str) -> _Partition:
        """Extend the base class: raise JavaError if the next move starts at another member."""
        if partition in self.pairs and self.pairs[partition][1] != old:
            raise JavaError(ASSIGNOR_ERROR)
        return super().substitute(partition, old, new)

    def record(self, partition: _Partition, old: str, new: str) -> None:
        """Extend the base class: raise JavaError if the partition moved to `old` before."""
        if partition in self.pairs and self.pairs[partition][1] == old:
            raise JavaError(ASSIGNOR_ERROR)
        super().record(partition, old, new)


class _Heterogeneous:
    """Assigns for different subscriptions (`UniformHeterogeneousAssignmentBuilder`)."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._subscribed = _id_set(())
        self._members_of: dict[TopicId, list[str]] = {}
        self._wanted = {member: frozenset(ids) for member, ids in group.wanted.items()}
        for member in group.members:
            for topic in group.wanted[member]:
                self._subscribed.add(topic)
                self._members_of.setdefault(topic, []).append(member)
        self._target: dict[str, dict[_Partition, None]] = {one: {} for one in group.members}
        self._size = dict.fromkeys(group.members, 0)
        self._most = {
            member: sum(group.counts[topic] for topic in ids)
            for member, ids in group.wanted.items()
        }
        self._owner: dict[_Partition, str] = {}
        self._free = self._every()
        self._ranking: list[tuple[int, bytes, str]] = []
        for member in group.members:
            self._rank(member)
        self._movements = _Movements(_hash_of_partition)

    def build(self) -> dict[str, list[_Partition]]:
        """Return the assignment.

        Raises:
            JavaError: Kafka's class throws an exception.
        """
        if not self._subscribed:
            return {}
        self._keep()
        for partition in self._sorted(self._free):
            self._assign(partition)
        if self._free:
            raise JavaError(ASSIGNOR_ERROR)
        self._balance()
        return {member: list(target) for member, target in self._target.items()}

    def _every(self) -> HashSet[_Partition]:
        numbers = self._group.counts
        every = (
            _Partition(one, number) for one in self._subscribed for number in range(numbers[one])
        )
        return HashSet(_hash_of_partition, elements=every)

    def _sorted(self, partitions: Iterable[_Partition]) -> list[_Partition]:
        """Return the partitions, beginning with the topics that have the most partitions per
        member."""

        def key(partition: _Partition) -> tuple[float, int, int]:
            members = len(self._members_of[partition.topic])
            return -self._group.counts[partition.topic] / members, members, partition.number

        return sorted(partitions, key=key)

    # ---- the members by load ---------------------------------------------------------------------

    def _rank(self, member: str) -> None:
        """Insert a member by its load, unless it already has all partitions that it can get."""
        if self._size[member] < self._most[member]:
            entry = self._size[member], utf16_key(member), member
            if entry not in self._ranking:
                insort(self._ranking, entry)

    def _unrank(self, member: str | None) -> None:
        self._ranking = [entry for entry in self._ranking if entry[2] != member]

    def _add(self, partition: _Partition, member: str) -> None:
        self._target[member][partition] = None
        self._owner[partition] = member
        self._unrank(member)
        self._size[member] += 1
        self._rank(member)
        self._free.discard(partition)

    def _remove(self, partition: _Partition, member: str) -> None:
        self._target[member].pop(partition, None)
        del self._owner[partition]
        self._unrank(member)
        self._size[member] = max(0, self._size[member] - 1)
        self._rank(member)

    # ---- the steps -------------------------------------------------------------------------------

    def _keep(self) -> None:
        for member in self._group.members:
            for topic, numbers in self._group.assigned[member].items():
                if topic in self._wanted[member]:
                    for number in numbers:
                        self._add(_Partition(topic, number), member)

    def _assign(self, partition: _Partition) -> None:
        able = [
            member
            for member in self._members_of[partition.topic]
            if self._size[member] < self._most[member]
        ]
        if able:
            self._add(partition, min(able, key=lambda one: (self._size[one], utf16_key(one))))

    def _may_move(self, topic: TopicId) -> bool:
        return len(self._members_of[topic]) >= 2

    def _balance(self) -> None:
        # Kafka adds all partitions to the emptied set, so they have the order of the added set.
        for partition in self._every():
            self._free.add(partition)
        for partition in list(self._free):
            if not self._may_move(partition.topic):
                self._free.discard(partition)
        for member in self._group.members:
            if self._size[member] >= self._most[member] and not any(
                self._may_move(partition.topic) for partition in self._target[member]
            ):
                self._unrank(member)
        while self._free and self._reassign():
            pass

    def _reassign(self) -> bool:
        """Process all partitions once; return whether to process them again."""
        modified = moved = False
        for partition in self._sorted(self._free):
            if moved and self._balanced():
                return False
            owner = self._owner.get(partition)
            if owner is None:
                raise JavaError(ASSIGNOR_ERROR)
            others = self._members_of[partition.topic]
            moved = any(self._size[owner] > self._size[other] + 1 for other in others)
            if moved:
                self._move(partition)
                modified = True
        return modified

    def _move(self, partition: _Partition) -> None:
        takers = (one for _, _, one in self._ranking if partition.topic in self._wanted[one])
        new = next(takers, None)
        if new is None:
            raise JavaError(ASSIGNOR_ERROR)
        moved = self._movements.substitute(partition, self._owner[partition], new)
        old = self._owner[moved]
        self._movements.record(moved, old, new)
        self._remove(moved, old)
        self._add(moved, new)

    def _balanced(self) -> bool:
        if not self._ranking:
            raise JavaError(NO_SUCH_ELEMENT)
        if self._ranking[0][0] >= self._ranking[-1][0] - 1:
            return True
        return not any(self._can_get_more(member) for _, _, member in self._ranking)

    def _can_get_more(self, member: str) -> bool:
        for topic in self._group.wanted[member]:
            for number in range(self._group.counts[topic]):
                partition = _Partition(topic, number)
                owner = self._owner.get(partition)
                if (
                    partition not in self._target[member]
                    and owner is not None
                    and self._size[member] + 1 < self._size[owner]
                ):
                    return True
        return False
