"""The sticky algorithm for members with equal subscriptions (`ConstrainedAssignmentBuilder`)."""

from __future__ import annotations

from zkconsumer.protocol.java.hash_map import StringMap
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.later.sticky_input import Owned, Ownership, Racks, remove_first
from zkconsumer.protocol.later.subscriptions import ILLEGAL_STATE, JavaError, Topics
from zkconsumer.protocol.model import TopicPartition


class Constrained:
    """Gives each member ⌊P/C⌋ or ⌈P/C⌉ partitions, and keeps what it owned within this quota.

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
        """Return the partitions that a member keeps, and note whether it can get more."""
        owned = []
        for partition in claimed:
            if self._racks.mismatch(member, partition):
                self._maybe_revoked[partition] = member
            else:
                owned.append(partition)
        owned.sort(key=lambda one: (one.partition, utf16_key(one.topic)))
        for partition in self._before.twice:
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
        """Count a member with ⌈P/C⌉ partitions. After the last such member, no other may exceed
        ⌊P/C⌋.
        """
        self._over += 1
        if self._over == self._over_expected:
            self._at_min.clear()

    def _unassigned(self, assigned: list[TopicPartition]) -> list[TopicPartition]:
        """Return the other partitions, by topic and number.

        As in Kafka, an assigned partition that the topic does not have, or that is assigned twice,
        makes the later ones count as unassigned.
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
        """Give partitions to members in a replica's rack; return the rest."""
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
        """Move a member that reaches ⌊P/C⌋; return where the next search starts."""
        count = len(self._assignment[member]) + 1
        if count >= self._min:
            del self._under_min[index]
            if count < self._max and self._over < self._over_expected:
                self._at_min.append(member)
        else:
            index += 1
        return index % len(self._under_min) if self._under_min else 0

    def _assign_rest(self, free: list[TopicPartition]) -> None:
        """Give the partitions in turn to members below ⌊P/C⌋, then to those at ⌊P/C⌋."""
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
        if revoked_from != member or partition in self._before.twice:
            self.transferring[partition] = member

    def _verify(self) -> None:
        if not self._under_min:
            return
        short = any(len(self._assignment[member]) != self._min for member in self._under_min)
        if self._over != self._over_expected or short:
            raise JavaError(ILLEGAL_STATE)
