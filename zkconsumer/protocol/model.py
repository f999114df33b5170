"""Frozen values of the group protocol that many other modules use."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java.text import java_abs, java_hash

Json: TypeAlias = Any
"""The result of `json.loads`. A recursive type would need a cast at each level that is read."""

JsonObject: TypeAlias = dict[str, Json]
"""A JSON object, or keyword arguments that become a JSON object."""


ThreadId = str
ConsumerId = str


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RebalanceMode(Enum):
    """Which partitions a rebalance revokes before it claims new partitions (`rebalance.mode`)."""

    # Revokes only partitions assigned to other members; claims and serves free partitions at once.
    INCREMENTAL = "incremental"
    # Revokes all partitions, and claims all or none, as the JVM does.
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Session:
    """A ZooKeeper session.

    Attributes:
        timeout_s: the session timeout that the server granted, in seconds.
        after_loss: whether the servers have lost their data since the client's last session, so
            that zxids of that session cannot be compared with later ones.
    """

    id: int
    timeout_s: float
    after_loss: bool = False


def session_text(session: int) -> str:
    """Return a session id as ZooKeeper's servers print it, in `dump` and `cons`.

    Ids are signed 64-bit numbers. The first byte is the server's number (`myid`), so the ids of
    servers from 128 on are negative.
    """
    return f"0x{session & 0xFFFF_FFFF_FFFF_FFFF:x}"


CONTAINER_OWNER: Final = -(1 << 63)
"""The owner of a container znode (`EphemeralType`)."""

TTL_OWNER: Final = 0xFF << 56
"""The highest byte of the owner of a znode with a TTL; no server has the number 255."""


def is_session(owner: int) -> bool:
    """Return whether the owner of a znode is a session, so that the znode is ephemeral."""
    return owner not in (0, CONTAINER_OWNER) and owner & TTL_OWNER != TTL_OWNER


@dataclass(frozen=True, slots=True)
class Ownership:
    """An owner znode of this member: its thread id, and its czxid as the fencing token."""

    thread: ThreadId
    epoch: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """The owner of a partition that this member should own: another session holds the owner znode.

    `session` is 0 for a persistent znode, which no session expiry deletes.
    """

    thread: ThreadId
    session: int


UNKNOWN_BLOCKER = Blocker("a member that has not been looked up yet", -1)
"""Represents an owner that has not been read yet.

Most owners release within milliseconds, so the member reads the owner only after the back-off.
"""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The contents of an offset znode; `value` is None if the znode is missing or has no offset.

    `version` is None if the znode does not exist. `error` says why its payload is malformed. The
    member never fetches such a partition, and never overwrites the znode.
    """

    value: int | None
    version: int | None
    mzxid: int = 0
    error: str = ""


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, with the committer's metadata, which only Kafka's storage keeps.

    JVM: `kafka.common.OffsetAndMetadata`.
    """

    offset: int
    metadata: str = ""


class Storage(Enum):
    """The storage of offsets (`offsets.storage` with `dual.commit.enabled`)."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    DUAL = "both"  # in Kafka and in ZooKeeper; the higher of the two offsets wins


OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which the brokers store the groups' offsets."""

OFFSETS_PARTITIONS: Final = 50
"""Number of partitions of that topic unless `offsets.topic.num.partitions` is set."""


def coordinator_partition(group: str, partitions: int = OFFSETS_PARTITIONS) -> int:
    """Return the partition of `__consumer_offsets` whose leader coordinates a group.

    Kafka: `GroupMetadataManager.partitionFor`, and in 0.8.2 `OffsetManager.partitionFor`.
    """
    return java_abs(java_hash(group)) % partitions


class Position(NamedTuple):
    """The next offset to read from a partition, valid while this member owns it under one epoch."""

    epoch: int
    offset: int


Positions = Mapping[TopicPartition, Position]


class Purpose(Enum):
    """The reason for a commit, which determines the committed positions.

    `member.offset_ledger` describes the rules.
    """

    AUTO = "auto"  # the timer of auto.commit.interval.ms: finished messages
    RELEASE = "release"  # before partitions are released: finished messages
    EXPLICIT = "explicit"  # the user calls commit: all delivered messages
    GIVEN = "given"  # the user calls commit with offsets: exactly those
    LEAVE = "leave"  # a clean shutdown: all delivered messages
    LOST = "lost"  # partitions are lost: finished messages; they are kept, and not committed
