"""Both halves of a bridge's group as one table: each partition, its side, its member, its lag."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from zkconsumer.admin.groups import existing_group
from zkconsumer.admin.lag import NOTHING_COMMITTED, PartitionLag, lags_of
from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.errors import ZkConsumerError
from zkconsumer.frozen import dataclass
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.zk.client import ZooKeeperClient

CONSUMER_PREFIX = "-bridge-"
"""How the `consumer.id` of each consumer of a bridge begins.

No other name sorts before it, so that the assignors give the bridge's streams partitions even if
the old members have more streams than there are partitions.
"""

REBALANCES = "the brokers' group rebalances"


class Side(Enum):
    """Where a partition is read."""

    OLD = "old"  # an old member owns it
    NEW = "new"  # the bridge owns it for the new members, or a new member has it without a bridge
    BOTH = "both"  # an old member owns it, and a new member has it: no bridge divides the group
    NONE = "none"  # nobody owns it


@dataclass(frozen=True, slots=True)
class PartitionSide:
    """A partition of a shared group.

    Attributes:
        member: the thread id of the old member, or the client id and the host of the new one, or
            both; None: no member reads the partition now.
        member_fault: why the member is unknown; empty if it is known.
        zookeeper, kafka: the stored offsets; None: none is stored. A text says why the offset is
            unknown.
        offset: the offset of the side that reads the partition, as above; of both, the lower one.
        lag: the messages from `offset` to the end of the log; a text says why it is unknown.
    """

    partition: TopicPartition
    side: Side
    member: str | None
    member_fault: str
    zookeeper: int | str | None
    kafka: int | str | None
    offset: int | str | None
    lag: int | str


def sides(
    connection: ZooKeeperClient, group: str, brokers: Settings, *, limit_s: float
) -> list[PartitionSide]:
    """Return each partition that the group owns, has offsets of, or subscribes to.

    Args:
        brokers: librdkafka's settings for the connection to the brokers' group.
        limit_s: seconds per request to the brokers.

    Raises UnknownGroupError, AccessDeniedError and ZooKeeperUnreachableError. What brokers do not
    answer is unknown in the result.
    """
    image = existing_group(connection, group)
    lags = lags_of(connection, {group: image}, limit_s=limit_s)[group]
    try:
        described = GroupAdmin(brokers, group).describe(limit_s)
    except ZkConsumerError as error:
        members, fault = dict[TopicPartition, str](), str(error)
    else:
        members = described.readers
        fault = REBALANCES if described.is_rebalancing else ""
    return [_side(one, group, members, fault) for one in lags.partitions]


def _side(
    one: PartitionLag, group: str, members: Mapping[TopicPartition, str], fault: str
) -> PartitionSide:
    kafka = one.in_kafka.offset if isinstance(one.in_kafka, OffsetAndMetadata) else one.in_kafka
    if one.owner is None and one.tp in members:  # the bridge has finished
        side, member, offset = Side.NEW, members[one.tp], kafka
    elif one.owner is None:
        side, member, offset = Side.NONE, None, one.committed
    elif one.owner.startswith(f"{group}_{CONSUMER_PREFIX}"):
        side, member, offset = Side.NEW, members.get(one.tp), kafka
    elif one.tp in members:
        both = f"{one.owner} and {members[one.tp]}"
        side, member, offset = Side.BOTH, both, _lower(one.in_zookeeper, kafka)
    else:
        side, member, offset = Side.OLD, one.owner, one.in_zookeeper
    why = one.fault or (fault if side is Side.NEW else "")
    return PartitionSide(
        one.tp, side, member, why, one.in_zookeeper, kafka, offset, _lag(one, offset)
    )


def _lower(one: int | str | None, other: int | str | None) -> int | str | None:
    """Return the lower of two offsets; if one is none or unknown, return that."""
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return other if isinstance(one, int) else one


def _lag(one: PartitionLag, offset: int | str | None) -> int | str:
    if isinstance(offset, int):
        return one.log if isinstance(one.log, str) else one.log.end - offset
    return NOTHING_COMMITTED if offset is None else offset
