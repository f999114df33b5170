"""What brokers answer about logs, for all clients that ask for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple

from zkconsumer.errors import BrokersUnreachableError, FetchError
from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition

Offsets = dict[TopicPartition, int | str]
"""Partition -> an offset, or the reason why it is unknown."""

NO_BROKER: Final = "no broker is registered in ZooKeeper"
NO_TOPIC: Final = "the brokers do not know the partition"
NO_LEADER: Final = "the partition has no leader"

# The special times of ListOffsets.
LATEST: Final = -1
EARLIEST: Final = -2

# Number of partitions in one request. librdkafka searches the list of all requested partitions for
# each result, so one request for 10,000 partitions takes half a second. Requests of 250 partitions
# were the fastest for 10,000.
PARTITIONS_PER_REQUEST: Final = 250


def unanswered(causes: str, *, servers: str = "") -> BrokersUnreachableError:
    """Return the error of a request that no broker has answered.

    `causes` says why, for each broker. `servers` are the brokers' addresses, if `causes` does not
    name them.
    """
    return BrokersUnreachableError(
        f"the brokers do not answer: {causes}",
        where=servers,
        remedy="check that they are running, and reachable from here under these addresses",
    )


def unknown_offsets_topic() -> FetchError:
    """Return the error of a request for groups' offsets, if no server says whether their topic
    exists.

    Brokers leave a topic out of their metadata if this client may not describe it, and while they
    do not know the cluster's topics yet. So metadata alone do not mean that no group has an offset.
    """
    return FetchError(
        f"it is unknown whether the topic {OFFSETS_TOPIC} exists: the brokers do not show it",
        where=OFFSETS_TOPIC,
        remedy="try again when ZooKeeper answers, or allow this client to describe the topic",
    )


class LogRange(NamedTuple):
    """The log of a partition: its first offset, and the offset after its last message."""

    start: int
    end: int


def range_of(start: int | str, end: int | str) -> LogRange | str:
    if isinstance(start, str):
        return start
    return LogRange(start, end) if isinstance(end, int) else end


def parts_of(partitions: Collection[TopicPartition]) -> Iterator[list[TopicPartition]]:
    left = iter(partitions)
    while part := list(islice(left, PARTITIONS_PER_REQUEST)):
        yield part
