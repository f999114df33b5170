"""What members wrote down, and whether a group may behave so."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zkconsumer.core.model import TopicPartition


class Delivery(NamedTuple):
    """One message in the hands of a member's user, at the second `t` of the lease's clock."""

    t: float
    member: str
    partition: TopicPartition
    token: int
    offset: int


@dataclass(frozen=True)
class Evidence:
    """All deliveries to a group, what was produced for it, and how its offsets went."""

    deliveries: tuple[Delivery, ...]
    produced: Mapping[TopicPartition, frozenset[int]]
    moved_back: tuple[str, ...]

    def undelivered(self) -> dict[TopicPartition, list[int]]:
        seen: dict[TopicPartition, set[int]] = defaultdict(set)
        for one in self.deliveries:
            seen[one.partition].add(one.offset)
        missing = {tp: sorted(offsets - seen[tp]) for tp, offsets in self.produced.items()}
        return {tp: offsets for tp, offsets in missing.items() if offsets}

    def duplicates(self) -> int:
        return len(self.deliveries) - len({(d.partition, d.offset) for d in self.deliveries})

    def disorder(self) -> list[str]:
        """Where offsets do not grow within one ownership, or two members have one ownership."""
        found = []
        for (tp, token), ones in self._by(lambda d: (d.partition, d.token)).items():
            if len({d.member for d in ones}) > 1:
                found.append(f"{tp}: token {token} was two members'")
            offsets = [d.offset for d in ones]
            if any(b <= a for a, b in itertools.pairwise(offsets)):
                found.append(f"{tp}: offsets under token {token} do not grow")
        return found

    def late(self) -> dict[str, list[Delivery]]:
        """By member: deliveries under an older token after the first one under a newer token."""
        late: dict[str, list[Delivery]] = defaultdict(list)
        for ones in self._by(lambda d: d.partition).values():
            newest = 0
            for one in sorted(ones):
                if one.token < newest:
                    late[one.member].append(one)
                newest = max(newest, one.token)
        return late

    def violations(self, *, in_hand: Mapping[str, int]) -> list[str]:
        """What must not be; `in_hand` is how many messages a frozen member may finish late."""
        found = [f"never delivered: {tp} {offsets}" for tp, offsets in self.undelivered().items()]
        found += self.disorder()
        for member, ones in self.late().items():
            if len(ones) > in_hand.get(member, 0):
                found.append(f"{member} was given messages of a later owner: {ones}")
        return [*found, *self.moved_back]

    def _by(self, key: Any) -> dict[Any, list[Delivery]]:
        groups: dict[Any, list[Delivery]] = defaultdict(list)
        for one in self.deliveries:
            groups[key(one)].append(one)
        return groups


def deliveries(member: str, events: Iterable[Mapping[str, Any]]) -> list[Delivery]:
    """The deliveries among a member's events, in its order."""
    return [
        Delivery(event["t"], member, TopicPartition(topic, number), token, offset)
        for event in events
        if event["event"] == "delivered"
        for topic, number, token, offsets in event["runs"]
        for offset in offsets
    ]
