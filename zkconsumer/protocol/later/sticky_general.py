"""The sticky algorithm for members with different subscriptions (`GeneralAssignmentBuilder`)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping

from zkconsumer.protocol.java.hash_map import StringMap
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.later.sticky_input import (
    MemberData,
    Owned,
    Ownership,
    Racks,
    remove_first,
)
from zkconsumer.protocol.later.subscriptions import (
    NO_GENERATION,
    NO_SUCH_ELEMENT,
    NULL_POINTER,
    JavaError,
    Members,
    Movements,
    Topics,
    hash_of_partition,
)
from zkconsumer.protocol.model import TopicPartition


class _Ranking:
    """Members in the order of their number of partitions, then of their id (a Java `TreeSet`)."""

    def __init__(self, assignment: Owned) -> None:
        self._assignment = assignment
        self._sorted: list[tuple[int, bytes, str]] = []
        self._entries: dict[str, tuple[int, bytes, str]] = {}

    def __iter__(self) -> Iterator[str]:
        return (member for _, _, member in self._sorted)

    def add(self, member: str) -> None:
        if member not in self._entries:
            entry = len(self._assignment[member]), utf16_key(member), member
            self._entries[member] = entry
            insort(self._sorted, entry)

    def remove(self, member: str | None) -> None:
        """Remove a member. Java throws for a member that has no partitions to compare."""
        if self._sorted and (member is None or member not in self._assignment):
            raise JavaError(NULL_POINTER)
        if member in self._entries:
            self._sorted.remove(self._entries.pop(member))

    def first(self) -> str:
        return self._at(0)

    def last(self) -> str:
        return self._at(-1)

    def _at(self, index: int) -> str:
        if not self._sorted:
            raise JavaError(NO_SUCH_ELEMENT)
        return self._sorted[index][2]


class General:
    """Keeps valid ownership, gives the rest to the least loaded members, and then balances."""

    def __init__(
        self,
        topics: Topics,
        racks: Racks,
        before: Ownership,
        members: Members,
        data: Mapping[str, MemberData],
    ) -> None:
        self._topics, self._racks, self._members = topics, racks, members
        self._total = sum(topic.partitions for topic in topics.values())
        self._topics_of: StringMap[list[str]] = StringMap(capacity=len(members))
        self._members_of: dict[str, list[str]] = {name: [] for name in topics}
        for member, subscription in members.items():
            self._topics_of[member] = known = [one for one in subscription.topics if one in topics]
            for name in known:
                self._members_of[name].append(member)
        self._assignment = before.owned
        self._owner: dict[TopicPartition, str] = {
            partition: member for member, owned in before.owned.items() for partition in owned
        }
        names = sorted(topics, key=self._topic_key)
        self._partitions = [
            TopicPartition(name, number)
            for name in names
            for number in range(topics[name].partitions)
        ]
        self._previous = _previous_owners(members, data, before.generation)
        self._ranking = _Ranking(self._assignment)
        self._movements = Movements(hash_of_partition)
        self._must_revoke = False

    def build(self) -> Owned:
        """Return the assignment.

        Raises:
            JavaError: Kafka's class throws an exception.
        """
        free = self._unassigned(self._keep_valid())
        for member in self._assignment:
            self._ranking.add(member)
        initial = not self._assignment[self._ranking.last()]
        self._assign_free(free)
        movable = [one for one in self._partitions if self._may_move(one.topic)]
        free = [one for one in free if self._may_move(one.topic)]
        fixed = self._set_fixed_aside()
        saved: Owned = StringMap()
        _copy(self._assignment, saved)
        if not self._must_revoke:
            self._reassign(free)
        changed = self._reassign(movable)
        if not initial and changed and _score(self._assignment) >= _score(saved):
            self._assignment.clear()
            _copy(saved, self._assignment)
        for member, partitions in fixed.items():
            self._assignment[member] = partitions
        return self._assignment

    def _topic_key(self, name: str) -> tuple[int, bytes]:
        return len(self._members_of[name]), utf16_key(name)

    # ---- what is kept, and what is free ----------------------------------------------------------

    def _keep_valid(self) -> list[TopicPartition]:
        """Remove ownership that a subscription or a rack forbids; return what is kept."""
        kept = []
        for member, owned in self._assignment.items():
            wanted = self._members[member].topics
            valid = [
                one
                for one in owned
                if one.topic in wanted and not self._racks.mismatch(member, one)
            ]
            self._must_revoke = self._must_revoke or len(valid) < len(owned)
            owned[:] = valid
            kept += valid
        return kept

    def _unassigned(self, kept: list[TopicPartition]) -> list[TopicPartition]:
        """Return the other partitions, in the order of all partitions.

        As in Kafka, a kept partition that the topic does not have, or that two members keep, makes
        the later ones count as unassigned.
        """
        held = iter(sorted(kept, key=lambda one: (*self._topic_key(one.topic), one.partition)))
        expected = next(held, None)
        free = []
        for partition in self._partitions:
            if partition == expected:
                expected = next(held, None)
            else:
                free.append(partition)
        return free

    def _assign_free(self, free: list[TopicPartition]) -> None:
        """Give each partition to the least loaded member; first to members in a replica's rack."""
        if self._racks.of_members:
            free = [one for one in free if not self._assign_one(one, self._racks)]
        for partition in free:
            self._assign_one(partition, None)

    def _assign_one(self, partition: TopicPartition, racks: Racks | None) -> bool:
        for member in self._ranking:
            if partition.topic not in self._topics_of[member]:
                continue
            if racks is not None and racks.mismatch(member, partition):
                continue
            self._ranking.remove(member)
            self._assignment[member].append(partition)
            self._owner[partition] = member
            self._ranking.add(member)
            return True
        return False

    # ---- what can move ---------------------------------------------------------------------------

    def _may_move(self, topic: str) -> bool:
        return len(self._members_of[topic]) >= 2

    def _most(self, topics: list[str]) -> int:
        """Return the number of partitions that a member with these topics can get."""
        if len(topics) == len(self._topics):
            return self._total
        return sum(self._topics[name].partitions for name in topics)

    def _set_fixed_aside(self) -> StringMap[list[TopicPartition]]:
        """Remove and return the members that have all partitions that they can get, if none can
        move.
        """
        fixed: StringMap[list[TopicPartition]] = StringMap()
        for member, topics in self._topics_of.items():
            owned = self._assignment[member]
            if len(owned) >= self._most(topics) and not any(
                self._may_move(one.topic) for one in owned
            ):
                self._ranking.remove(member)
                del self._assignment[member]
                fixed[member] = owned
        return fixed

    def _size(self, member: str | None) -> int:
        """Return how many partitions a member has. Java throws for a fixed or a missing member."""
        found = None if member is None else self._assignment.get(member)
        if found is None:
            raise JavaError(NULL_POINTER)
        return len(found)

    def _balanced(self) -> bool:
        """Return whether no partition can move to a member that has at least two fewer."""
        low, high = self._size(self._ranking.first()), self._size(self._ranking.last())
        if low >= high - 1:
            return True
        owner = {
            partition: member
            for member, partitions in self._assignment.items()
            for partition in partitions
        }
        for member in self._ranking:
            topics, count = self._topics_of[member], self._size(member)
            if count == self._most(topics):
                continue
            own = set(self._assignment[member])
            for name in topics:
                for number in range(self._topics[name].partitions):
                    partition = TopicPartition(name, number)
                    if partition not in own and count + 1 < self._size(owner.get(partition)):
                        return False
        return True

    # ---- moves -----------------------------------------------------------------------------------

    def _reassign(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions until nothing changes; return whether anything moved."""
        changed = False
        modified = True
        while modified:
            modified = False
            for partition in partitions:
                if self._balanced():
                    break
                modified = self._improve(partition) or modified
            changed = changed or modified
        return changed

    def _improve(self, partition: TopicPartition) -> bool:
        """Move the partition if its member has at least two more than another that may have it.

        A member that owned the partition in an earlier generation comes first.
        """
        member = self._owner.get(partition)
        previous = self._previous.get(partition)
        if previous is not None and self._size(member) > self._size(previous) + 1:
            self._move(partition, previous)
            return True
        others = self._members_of[partition.topic]
        if self._is_local(partition, member) and self._finds_smaller(
            member, [one for one in others if self._is_local(partition, one)]
        ):
            self._move(partition, self._least_loaded(partition))
            return True
        if self._finds_smaller(member, others):
            self._move(partition, self._least_loaded(partition))
            return True
        return False

    def _is_local(self, partition: TopicPartition, member: str | None) -> bool:
        rack = None if member is None else self._racks.of_members.get(member)
        return rack is not None and rack in self._racks.of_partitions[partition]

    def _finds_smaller(self, member: str | None, others: list[str]) -> bool:
        return any(self._size(member) > self._size(other) + 1 for other in others)

    def _least_loaded(self, partition: TopicPartition) -> str:
        for member in self._ranking:
            if partition.topic in self._topics_of[member]:
                return member
        raise JavaError(NULL_POINTER)

    def _move(self, partition: TopicPartition, new: str) -> None:
        owner = self._owner.get(partition)
        if owner is None:
            raise JavaError(NULL_POINTER)
        moved = self._movements.substitute(partition, owner, new)
        old = self._owner.get(moved)
        self._ranking.remove(old)
        self._ranking.remove(new)
        if old is None:
            raise JavaError(NULL_POINTER)
        self._movements.record(moved, old, new)
        remove_first(self._assignment[old], moved)
        self._assignment[new].append(moved)
        self._owner[moved] = new
        self._ranking.add(new)
        self._ranking.add(old)


def _previous_owners(
    members: Members, data: Mapping[str, MemberData], newest: int
) -> dict[TopicPartition, str]:
    """Return the owners of the highest generation below the newest one."""
    found: dict[TopicPartition, tuple[int, str]] = {}
    for member in members:
        generation = data[member].generation
        generation = NO_GENERATION if generation is None else generation
        if generation >= newest:
            continue
        for partition in data[member].partitions:
            if partition not in found or generation > found[partition][0]:
                found[partition] = generation, member
    return {partition: member for partition, (_, member) in found.items()}


def _copy(source: Owned, target: Owned) -> None:
    for member, partitions in source.items():
        target[member] = list(partitions)


def _score(assignment: Owned) -> int:
    """Return the sum of the differences in size over all pairs of members; 0 is the best."""
    sizes = sorted(len(partitions) for _, partitions in assignment.items())
    return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))
