"""The messages of a real run: those that a group received, lost, or received again.

The simulator's monitor decides whether this behaviour is allowed (`replay`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.members.replay import Late
from zkconsumer.protocol.model import TopicPartition


class Delivery(NamedTuple):
    """A message that a member's user received at `t`, in seconds of the lease's clock."""

    t: float
    member: str
    partition: TopicPartition
    token: int
    offset: int


@dataclass(frozen=True)
class Evidence:
    """All deliveries to a group, the messages produced for it, and the late deliveries."""

    deliveries: tuple[Delivery, ...]
    produced: Mapping[TopicPartition, frozenset[int]]
    late: Sequence[Late] = ()

    def undelivered(self) -> dict[TopicPartition, list[int]]:
        return missing(self.deliveries, self.produced)

    def duplicates(self) -> int:
        return len(self.deliveries) - len({(d.partition, d.offset) for d in self.deliveries})


def deliveries(member: str, events: Iterable[Mapping[str, Any]]) -> list[Delivery]:
    """Return the deliveries among a member's events, in their order."""
    return [
        Delivery(event["t"], member, TopicPartition(topic, number), token, offset)
        for event in events
        if event["event"] == "delivered"
        for topic, number, token, offsets in event["runs"]
        for offset in offsets
    ]


def missing(
    given: Iterable[Delivery], produced: Mapping[TopicPartition, AbstractSet[int]]
) -> dict[TopicPartition, list[int]]:
    """Return the offsets that were produced and not delivered, by partition."""
    seen: dict[TopicPartition, set[int]] = defaultdict(set)
    for one in given:
        seen[one.partition].add(one.offset)
    found = {tp: sorted(offsets - seen[tp]) for tp, offsets in produced.items()}
    return {tp: offsets for tp, offsets in found.items() if offsets}


def without_taken(
    missed: Mapping[TopicPartition, Sequence[int]], of_killed: Iterable[Delivery]
) -> dict[TopicPartition, list[int]]:
    """Leave out of `missed` what a killed JVM member may have taken without reporting it.

    The JVM's `ConsumerIterator.next` counts a message as consumed before the user has it, so a
    commit at this moment includes the message. That is at most one message of each stream (a member
    has one stream for each topic here): the next one after the member's last of a partition.
    """
    last: dict[TopicPartition, int] = {}
    for one in of_killed:
        last[one.partition] = max(one.offset, last.get(one.partition, -1))
    found: dict[TopicPartition, list[int]] = {}
    streams: set[str] = set()
    for tp, offsets in missed.items():
        left, taken = list(offsets), last.get(tp, -2) + 1
        if taken in left and tp.topic not in streams:
            streams.add(tp.topic)
            left.remove(taken)
        if left:
            found[tp] = left
    return found
