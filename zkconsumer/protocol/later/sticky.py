"""The assignors sticky and cooperative-sticky, which share two algorithms.

Releases of the classes (`StickyAssignor`, `CooperativeStickyAssignor`, `AbstractStickyAssignor`):

- 0.11: sticky, with the general algorithm.
- 2.4: cooperative-sticky, with the same algorithm.
- 2.5.1: the constrained algorithm, for equal subscriptions.
- 2.8.2: the rules for a partition that two members claim.
- 3.5: racks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import field

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.java.hash_map import StringMap
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.later.subscriptions import (
    ILLEGAL_STATE,
    NO_GENERATION,
    NO_SUCH_ELEMENT,
    NULL_POINTER,
    Assignment,
    Members,
    Movements,
    Subscription,
    Topics,
    hash_of_partition,
    racks_decide,
    subscribed,
)
from zkconsumer.protocol.model import TopicPartition

# ---- the input: previous owners, and the racks of members and partitions -------------------------

Owned = StringMap[list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberData:
    """A member's owned partitions and their generation (`AbstractStickyAssignor.MemberData`)."""

    partitions: tuple[TopicPartition, ...]
    generation: int | None


@dataclass(slots=True)
class Ownership:
    """The partitions that all members owned before.

    Attributes:
        owned: the partitions of each member, in Java's order of the members.
        claimed_twice: the partitions that two members of one generation claim; neither keeps them.
        equal_subscriptions: whether all members subscribe to the same topics.
        generation: the highest generation of a member.
    """

    owned: Owned = field(default_factory=StringMap)
    claimed_twice: set[TopicPartition] = field(default_factory=set)
    equal_subscriptions: bool = True
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
        # Kafka sorts by these numbers whenever a member has a rack, even if the assignor ignores
        # racks.
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
        """Return the partitions; those with the fewest members in their replicas' racks come
        first."""
        if not self._local_members:
            return partitions
        return sorted(partitions, key=lambda one: self._local_members.get(one, 0))

    def next_local(self, partition: TopicPartition, members: list[str], first: int) -> int:
        """Return the first index, from `first` on, of a member in a replica's rack; else -1."""
        racks = self.of_partitions.get(partition)
        if not racks:
            return -1
        for step in range(len(members)):
            index = (first + step) % len(members)
            if self.of_members.get(members[index]) in racks:
                return index
        return -1


def sticky_data(subscription: Subscription) -> MemberData:
    """Return the partitions that a member of `sticky` reports in its user data.

    A member sends no user data before its first assignment. The topics are in the order of a hash
    map.
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
    """Return the report of a member of `cooperative-sticky`: its owned partitions, sorted."""
    owned = sorted(subscription.owned, key=lambda one: (utf16_key(one.topic), one.partition))
    return MemberData(tuple(owned), max(subscription.generation, NO_GENERATION))


def ownership(topics: Topics, members: Members, data: dict[str, MemberData]) -> Ownership:
    """Return which member owned which partition of the topics (`allSubscriptionsEqual`).

    If two members claim a partition, the one with the higher generation keeps it. If both have the
    same generation, neither keeps it. Kafka reads the first claimant's generation from its
    subscription, and the second claimant's generation from its member data.
    """
    found = Ownership()
    claims: dict[TopicPartition, str] = {}
    wanted: set[str] = set()
    for member, subscription in members.items():
        if not wanted:
            wanted.update(subscription.topics)
        elif len(subscription.topics) != len(wanted) or not wanted.issuperset(subscription.topics):
            found.equal_subscriptions = False
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
                    found.claimed_twice.add(partition)
            if other is None or generation > others:
                own.append(partition)
            claims[partition] = member
    return found


def remove_first(partitions: list[TopicPartition], partition: TopicPartition) -> None:
    """Remove the first occurrence of a partition, if there is one (`List.remove`)."""
    if partition in partitions:
        partitions.remove(partition)


# ---- equal subscriptions: `ConstrainedAssignmentBuilder` -----------------------------------------


class Constrained:
    """Gives each member ⌊P/C⌋ or ⌈P/C⌉ partitions; members keep partitions within this quota.

    After `build`, `transferring` contains the partitions that another member owned or that two
    members claimed, with their new member.
    """

    def __init__(self, topics: Topics, racks: Racks, before: Ownership) -> None:
        self._topics, self._racks, self._before = topics, racks, before
        total = sum(topic.partitions for topic in topics.values())
        self._min, self._over_expected = divmod(total, len(before.owned))
        self._max = self._min + (self._over_expected > 0)
        self._over = 0
        self._under_min: list[str] = []
        self._at_min: list[str] = []
        self._assignment: Owned = StringMap()
        for member in before.owned:
            self._assignment[member] = []
        self._maybe_revoked: dict[TopicPartition, str] = {}
        self.transferring: dict[TopicPartition, str] = {}

    def build(self) -> Owned:
        """Return the assignment.

        Raises:
            JavaError: Kafka's class throws IllegalStateException.
        """
        assigned: list[TopicPartition] = []
        for member, owned in self._before.owned.items():
            kept = self._keep(member, owned)
            self._assignment[member].extend(kept)
            assigned.extend(kept)
        free = self._racks.fewest_local_first(self._unassigned(assigned))
        self._under_min.sort(key=utf16_key)
        self._at_min.sort(key=utf16_key)
        if self._racks.of_members:
            free = self._assign_local(free)
        self._assign_rest(free)
        self._verify()
        return self._assignment

    # ---- what members keep -----------------------------------------------------------------------

    def _keep(self, member: str, claimed: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that a member keeps, and record whether it can get more."""
        owned = []
        for partition in claimed:
            if self._racks.mismatch(member, partition):
                self._maybe_revoked[partition] = member
            else:
                owned.append(partition)
        owned.sort(key=lambda one: (one.partition, utf16_key(one.topic)))
        for partition in self._before.claimed_twice:
            remove_first(owned, partition)
        if len(owned) < self._min:
            self._under_min.append(member)
            return owned
        quota = self._min
        if len(owned) >= self._max and self._over < self._over_expected:
            quota = self._max
            self._count_full_member()
        elif self._over < self._over_expected:
            self._at_min.append(member)
        self._maybe_revoked.update((one, member) for one in owned[quota:])
        return owned[:quota]

    def _count_full_member(self) -> None:
        """Count a member with ⌈P/C⌉ partitions.

        After the last such member, no other member may exceed ⌊P/C⌋.
        """
        self._over += 1
        if self._over == self._over_expected:
            self._at_min.clear()

    def _unassigned(self, assigned: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that are not assigned, by topic and number.

        If an assigned partition does not exist, or is assigned twice, all partitions that come
        after it count as unassigned, as in Kafka.
        """
        held = iter(sorted(assigned, key=lambda one: (utf16_key(one.topic), one.partition)))
        expected = next(held, None)
        free = []
        for name in sorted(self._topics, key=utf16_key):
            for number in range(self._topics[name].partitions):
                partition = TopicPartition(name, number)
                if partition == expected:
                    expected = next(held, None)
                else:
                    free.append(partition)
        return free

    # ---- what members get ------------------------------------------------------------------------

    def _assign_local(self, free: list[TopicPartition]) -> list[TopicPartition]:
        """Give partitions to members in a replica's rack; return the other partitions."""
        rest, turn = [], 0
        for partition in free:
            index = self._racks.next_local(partition, self._under_min, turn)
            if index >= 0:
                member = self._under_min[index]
                turn = self._after_local(member, index)
            else:
                index = self._racks.next_local(partition, self._at_min, 0)
                if index < 0:
                    rest.append(partition)
                    continue
                member = self._at_min[index]
                if len(self._assignment[member]) + 1 == self._max:
                    del self._at_min[index]
                    self._count_full_member()
            self._give(partition, member)
        return rest

    def _after_local(self, member: str, index: int) -> int:
        """Update the lists when a member reaches ⌊P/C⌋; return where the next search starts."""
        count = len(self._assignment[member]) + 1
        if count >= self._min:
            del self._under_min[index]
            if count < self._max and self._over < self._over_expected:
                self._at_min.append(member)
        else:
            index += 1
        return index % len(self._under_min) if self._under_min else 0

    def _assign_rest(self, free: list[TopicPartition]) -> None:
        """Give the partitions in turn to members below ⌊P/C⌋, then to members at ⌊P/C⌋."""
        turn = 0
        for partition in free:
            if turn >= len(self._under_min):
                turn = 0
            from_under_min = bool(self._under_min)
            if from_under_min:
                member = self._under_min[turn]
            elif self._at_min:
                member = self._at_min.pop(0)
            else:
                raise JavaError(ILLEGAL_STATE)
            self._give(partition, member)
            count = len(self._assignment[member])
            if count == self._min:
                if not from_under_min:
                    raise JavaError(ILLEGAL_STATE)
                del self._under_min[turn]
                self._at_min.append(member)
                continue
            if count == self._max:
                self._over += 1
            turn += from_under_min

    def _give(self, partition: TopicPartition, member: str) -> None:
        self._assignment[member].append(partition)
        revoked_from = self._maybe_revoked.get(partition, member)
        if revoked_from != member or partition in self._before.claimed_twice:
            self.transferring[partition] = member

    def _verify(self) -> None:
        if not self._under_min:
            return
        short = any(len(self._assignment[member]) != self._min for member in self._under_min)
        if self._over != self._over_expected or short:
            raise JavaError(ILLEGAL_STATE)


# ---- different subscriptions: `GeneralAssignmentBuilder` -----------------------------------------


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
    """Keeps valid ownership, gives free partitions to the least loaded members, then balances."""

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
        """Remove ownership that a subscription or a rack forbids; return the kept ownership."""
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
        """Return the partitions that are not kept, in the order of all partitions.

        If a kept partition does not exist, or if two members keep it, all partitions that come
        after it count as unassigned, as in Kafka.
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
        """Give each partition to the least loaded member, preferably in a replica's rack."""
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
        """Return the maximum number of partitions of a member with these topics."""
        if len(topics) == len(self._topics):
            return self._total
        return sum(self._topics[name].partitions for name in topics)

    def _set_fixed_aside(self) -> StringMap[list[TopicPartition]]:
        """Remove and return full members, if none of their partitions can move."""
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
        """Move partitions until no more can move; return whether any partition moved."""
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
        """Move the partition to a member that has at least two partitions fewer than its owner.

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
    """Return each partition's owner of the highest generation below the newest one."""
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


# ---- the assignors -------------------------------------------------------------------------------


def assign_sticky(topics: Topics, members: Members) -> Assignment:
    """Return a balanced assignment that moves few partitions (`StickyAssignor`).

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    data = {member: sticky_data(subscription) for member, subscription in members.items()}
    return dict(_assign_sticky(topics, members, data)[0].items())


def assign_cooperative(topics: Topics, members: Members) -> Assignment:
    """Return the sticky assignment without the partitions that another member must revoke first.

    The members revoke them and join again; the next round assigns them
    (`CooperativeStickyAssignor`).

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    data = {member: cooperative_data(subscription) for member, subscription in members.items()}
    assignment, transferring = _assign_sticky(topics, members, data)
    if transferring is None:
        transferring = _added_and_revoked(assignment, data)
    for partition, member in transferring.items():
        remove_first(assignment[member], partition)
    return dict(assignment.items())


def _assign_sticky(
    topics: Topics, members: Members, data: dict[str, MemberData]
) -> tuple[Owned, dict[TopicPartition, str] | None]:
    topics = subscribed(topics, members)
    racks = Racks(topics, members)
    before = ownership(topics, members, data)
    if before.equal_subscriptions:
        constrained = Constrained(topics, racks, before)
        return constrained.build(), constrained.transferring
    return General(topics, racks, before, members, data).build(), None


def _added_and_revoked(assignment: Owned, data: dict[str, MemberData]) -> dict[TopicPartition, str]:
    added: dict[TopicPartition, str] = {}
    revoked: set[TopicPartition] = set()
    for member, partitions in assignment.items():
        owned, assigned = set(data[member].partitions), set(partitions)
        added.update((one, member) for one in partitions if one not in owned)
        revoked.update(owned - assigned)
    return {partition: member for partition, member in added.items() if partition in revoked}
