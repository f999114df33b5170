"""The assignors by name; range and round-robin, which ignore the previous assignment.

Range and round-robin divide partitions among members. Kafka's old consumer divides them among
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from itertools import groupby

from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.later.server_side import assign_server_range, assign_uniform
from zkconsumer.protocol.later.sticky import assign_cooperative, assign_sticky
from zkconsumer.protocol.later.subscriptions import (
    Assignment,
    Members,
    Subscription,
    Topic,
    Topics,
    members_of,
    racks_decide,
    static_first,
    subscribed,
)
from zkconsumer.protocol.model import TopicPartition

# ---- round-robin ---------------------------------------------------------------------------------


def assign_roundrobin(topics: Topics, members: Members) -> Assignment:
    """Give all partitions, sorted by topic, in turn to the members (`RoundRobinAssignor`).

    The turn continues from one topic to the next, and skips members that do not subscribe.
    """
    assignment: Assignment = {member: [] for member in members}
    circle = static_first(members)
    known = {member: frozenset(members[member].topics) for member in circle}
    place = 0
    for name in sorted(subscribed(topics, members), key=utf16_key):
        for partition in range(topics[name].partitions):
            while name not in known[circle[place]]:
                place = (place + 1) % len(circle)
            assignment[circle[place]].append(TopicPartition(name, partition))
            place = (place + 1) % len(circle)
    return assignment


# ---- range ---------------------------------------------------------------------------------------


def assign_range_3_9(topics: Topics, members: Members) -> Assignment:
    """Divide each topic's partitions into consecutive ranges (`RangeAssignor`).

    Each of m members gets n / m of the n partitions, and the first n % m members get one more. If
    racks are considered (from Kafka 3.5), members in the rack of a replica get partitions first. If
    topics have the same members and the same number of partitions, each partition number goes to
    the same member in all these topics.
    """
    order = static_first(members)
    wanted = {member: frozenset(members[member].topics) for member in order}
    states = [
        _TopicState(name, topic, [one for one in order if name in wanted[one]], members)
        for name, topic in subscribed(topics, members).items()
    ]
    if any(state.racks_decide for state in states):
        _match_racks(states)
    for state in states:
        state.assign_ranges(lambda member, partition: True)
    assignment: Assignment = {member: [] for member in members}
    for state in states:
        for member, numbers in state.assigned.items():
            assignment[member].extend(TopicPartition(state.name, number) for number in numbers)
    return assignment


class _TopicState:
    """The partitions of one topic that are still free, and the quotas of its members."""

    def __init__(self, name: str, topic: Topic, order: list[str], members: Members) -> None:
        self.name, self._topic, self.members = name, topic, order
        self._free = list(range(topic.partitions))
        self._share, self._extras = divmod(topic.partitions, len(order))
        self.assigned: dict[str, list[int]] = {member: [] for member in order}
        self._rack = {member: members[member].rack or None for member in order}
        racks = [topic.racks_of(partition) for partition in self._free]
        known = {rack for rack in self._rack.values() if rack is not None}
        self.racks_decide = racks_decide(known, frozenset().union(*racks), racks)
        # Kafka collects the partitions' racks only if a member of the topic has a rack.
        self.partitions_with_racks = topic.partitions if known else 0

    def matches(self, member: str, partition: int) -> bool:
        """Return whether the member has no rack, or is in the rack of a replica."""
        rack = self._rack[member]
        return rack is None or rack in self._topic.racks_of(partition)

    def room(self, member: str) -> int:
        """Return the number of partitions that the member may still get."""
        return max(0, self._share + (self._extras > 0) - len(self.assigned[member]))

    def assign_ranges(self, may: Callable[[str, int], bool]) -> None:
        """Give each member below its quota the first free partitions that `may` allows."""
        for member in self.members:
            if not self._free:
                return
            room = self.room(member)
            allowed = (one for one in self._free if may(member, one)) if room else iter(())
            chosen = [one for one, _ in zip(allowed, range(room), strict=False)]
            if chosen:
                self.assign(member, chosen)

    def assign(self, member: str, partitions: list[int]) -> None:
        """Give free partitions to a member."""
        self.assigned[member].extend(partitions)
        if len(self.assigned[member]) > self._share:
            self._extras -= 1
        gone = set(partitions)
        self._free = [one for one in self._free if one not in gone]


def _match_racks(states: Iterable[_TopicState]) -> None:
    def key(state: _TopicState) -> tuple[list[str], int]:
        return state.members, state.partitions_with_racks

    for (members, partitions), group in groupby(sorted(states, key=key), key):
        alike = list(group)
        if len(alike) > 1:
            _match_copartitioned(alike, list(members), partitions)
        elif alike[0].racks_decide:
            alike[0].assign_ranges(alike[0].matches)


def _match_copartitioned(states: list[_TopicState], members: list[str], partitions: int) -> None:
    """Give each partition number to the first member with matching racks and room in all topics."""
    for partition in range(partitions):
        for member in members:
            if all(one.matches(member, partition) and one.room(member) for one in states):
                for state in states:
                    state.assign(member, [partition])
                if not any(state.room(member) for state in states):
                    members.remove(member)
                break


# ---- by name -------------------------------------------------------------------------------------


class Assignor(Enum):
    """An assignor of Kafka 3.9; the value is the name in `partition.assignment.strategy`.

    The last two run on the group coordinator (KIP-848). Kafka names them `uniform` and `range` in
    `group.consumer.assignors`.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    STICKY = "sticky"
    COOPERATIVE_STICKY = "cooperative-sticky"
    UNIFORM = "uniform"
    SERVER_RANGE = "server-range"


_FUNCTIONS: Mapping[Assignor, Callable[[Topics, Members], Assignment]] = {
    Assignor.RANGE: assign_range_3_9,
    Assignor.ROUND_ROBIN: assign_roundrobin,
    Assignor.STICKY: assign_sticky,
    Assignor.COOPERATIVE_STICKY: assign_cooperative,
    Assignor.UNIFORM: assign_uniform,
    Assignor.SERVER_RANGE: assign_server_range,
}


def assign(
    assignor: Assignor, topics: Topics, subscriptions: Mapping[str, Subscription]
) -> Assignment:
    """Return the partitions of every member, as Kafka 3.9.1's class assigns them.

    Args:
        assignor: the assignor, and so Kafka's class.
        topics: the topics of the cluster, by name.
        subscriptions: at least one member, by member id, in the order in which the leader lists
            them. The order matters only for ids with equal hash codes.

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    return _FUNCTIONS[assignor](topics, members_of(subscriptions))


def assign_only(
    assignor: Assignor,
    topics: Topics,
    subscriptions: Mapping[str, Subscription],
    allowed: Mapping[str, Iterable[int]],
) -> Assignment:
    """Return what `assign` returns if the cluster had only the allowed partitions.

    The assignors number a topic's partitions from 0. So the allowed partitions of a topic get
    consecutive numbers for the calculation, in the members' previous assignments too.

    Args:
        assignor, topics, subscriptions: as in `assign`; without members the result is empty.
        allowed: topic -> the partitions that may be assigned; topics that are absent are assigned
            as a whole.

    Raises:
        JavaError: Kafka's class throws this exception.
    """
    if not subscriptions:
        return {}
    real: dict[str, list[int]] = {}
    dense: dict[str, Topic] = {}
    for name, topic in topics.items():
        known = range(topic.partitions)
        real[name] = sorted(set(allowed.get(name, known)).intersection(known))
        racks = tuple(topic.racks[one] for one in real[name]) if topic.racks else ()
        dense[name] = replace(topic, partitions=len(real[name]), racks=racks)
    places = {
        TopicPartition(name, number): TopicPartition(name, place)
        for name, numbers in real.items()
        for place, number in enumerate(numbers)
    }
    mapped = {
        member: replace(one, owned=tuple(places[tp] for tp in one.owned if tp in places))
        for member, one in subscriptions.items()
    }
    found = assign(assignor, dense, mapped)
    return {
        member: [TopicPartition(tp.topic, real[tp.topic][tp.partition]) for tp in given]
        for member, given in found.items()
    }
