"""The check of the members' records against the observer's log. Performs no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from zkconsumer.protocol.payloads import OwnerZnode


class ObservedOwner(NamedTuple):
    """The observer's record that a partition got another owner, or none, at a monotonic time."""

    time_s: float
    partition: int
    owner: OwnerZnode | None


@dataclass(slots=True)
class TokenDeliveries:
    """The deliveries of a partition under one fencing token: their members and their times."""

    members: set[str]
    first_s: float
    last_s: float


@dataclass(slots=True)
class Tally:
    """The messages that the members received, per partition."""

    partitions: int
    delivered: int = 0
    duplicates: int = 0
    seen: list[bytearray] = field(default_factory=list)
    unique: list[int] = field(default_factory=list)
    by_token: list[dict[int, TokenDeliveries]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [bytearray() for _ in range(self.partitions)]
        self.unique = [0] * self.partitions
        self.by_token = [{} for _ in range(self.partitions)]

    def add(self, member: str, time_s: float, run: Sequence[int]) -> None:
        """Count a run `[partition, first offset, count, token]` that a member recorded."""
        partition, first, count, token = run
        seen = self.seen[partition]
        end = first + count
        if len(seen) < end:
            seen.extend(bytes(end - len(seen)))
        again = sum(seen[first:end])
        seen[first:end] = b"\x01" * count
        self.duplicates += again
        self.delivered += count - again
        self.unique[partition] += count - again
        deliveries = self.by_token[partition].setdefault(
            token, TokenDeliveries(set(), time_s, time_s)
        )
        deliveries.members.add(member)
        deliveries.first_s = min(deliveries.first_s, time_s)
        deliveries.last_s = max(deliveries.last_s, time_s)

    def lost(self, produced: Sequence[int]) -> int:
        """Return how many of the first `produced[p]` offsets of each partition p no member
        received.
        """
        return sum(
            count - sum(seen[:count]) for seen, count in zip(self.seen, produced, strict=True)
        )


def unowned_partition_seconds(
    log: Iterable[ObservedOwner], partitions: int, *, start_s: float, end_s: float
) -> float:
    """Return the time without an owner znode between start and end, summed over partitions."""
    since: dict[int, float | None] = dict.fromkeys(range(partitions), start_s)
    total = 0.0
    for at_s, partition, owner in log:
        free_since = since[partition]
        if owner is None and free_since is None:
            since[partition] = at_s
        elif owner is not None and free_since is not None:
            total += _overlap(free_since, at_s, start_s, end_s)
            since[partition] = None
    return total + sum(
        _overlap(one, end_s, start_s, end_s) for one in since.values() if one is not None
    )


def _overlap(from_s: float, to_s: float, start_s: float, end_s: float) -> float:
    return max(0.0, min(to_s, end_s) - max(from_s, start_s))


def double_ownership(
    tally: Tally, log: Sequence[ObservedOwner], *, group: str
) -> Iterator[tuple[int, str]]:
    """Yield each (partition, reason) that shows that two members had one partition at once.

    A reason is one of these: deliveries under an older token after the first one under a newer
    token; deliveries by two members under one token; deliveries by a member that is not the owner
    in the znode; deliveries after the znode was deleted. The last reason is certain, because the
    observer sees a deletion late, never early.
    """
    for partition, by_token in enumerate(tally.by_token):
        for (older, before), (newer, after) in pairwise(sorted(by_token.items())):
            if before.last_s > after.first_s:
                yield (
                    partition,
                    f"delivered under token {older} after deliveries under {newer}",
                )
        for token, deliveries in by_token.items():
            if len(deliveries.members) > 1:
                yield partition, f"delivered by {sorted(deliveries.members)} under token {token}"
    for partition, owner, gone_s in _past_owners(log):
        held = tally.by_token[partition].get(owner.czxid)
        if held is None:
            continue
        owning = {one for one in held.members if owner.thread.startswith(f"{group}_{one}-")}
        others = held.members - owning
        if others:
            yield partition, f"delivered by {sorted(others)} while {owner.thread} owned it"
        if held.last_s > gone_s:
            yield (
                partition,
                f"delivered {held.last_s - gone_s:.3f} s after the owner znode was deleted",
            )


def _past_owners(log: Iterable[ObservedOwner]) -> Iterator[tuple[int, OwnerZnode, float]]:
    """Yield (partition, owner, time of deletion or change) of each owner that was replaced."""
    current: dict[int, OwnerZnode | None] = {}
    for at_s, partition, owner in log:
        before = current.get(partition)
        if before is not None:
            yield partition, before, at_s
        current[partition] = owner
