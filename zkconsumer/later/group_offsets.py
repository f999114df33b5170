"""The offsets of groups at their coordinator: commit, fetch, and expiry.

The coordinator stores offsets in the same partition of `__consumer_offsets` as the group, so both
move together with the coordinator. Source: `OffsetMetadataManager` of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from zkconsumer.protocol.later.messages import OffsetCommit, OffsetFetch, OffsetsFetched
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition


class Committed(NamedTuple):
    """A stored offset, and when it was committed."""

    offset: OffsetAndMetadata
    at_s: float


Offsets = Mapping[TopicPartition, Committed]


def commit(offsets: Offsets, request: OffsetCommit, now_s: float) -> Offsets:
    """Return the offsets after an accepted commit."""
    return {**offsets, **{one: Committed(new, now_s) for one, new in request.offsets.items()}}


def fetch(offsets: Offsets, request: OffsetFetch) -> OffsetsFetched:
    """Return the answer to OffsetFetch."""
    wanted = offsets if request.partitions is None else request.partitions
    return OffsetsFetched(offsets={one: offsets[one].offset for one in wanted if one in offsets})


class Expiry(NamedTuple):
    """The conditions under which the offsets of a group expire.

    Attributes:
        since_s: the start of the retention of all offsets, which is when the group became empty;
            None if the retention of each offset starts at its commit.
        subscribed: returns whether the group subscribes to a topic; offsets of such a topic never
            expire.
    """

    since_s: float | None
    subscribed: Callable[[str], bool]


def unexpired(offsets: Offsets, expiry: Expiry, retention_s: float, now_s: float) -> Offsets:
    """Return the offsets that have not expired."""

    def stays(partition: TopicPartition, found: Committed) -> bool:
        since_s = found.at_s if expiry.since_s is None else expiry.since_s
        return expiry.subscribed(partition.topic) or now_s - since_s < retention_s

    return {one: found for one, found in offsets.items() if stays(one, found)}
