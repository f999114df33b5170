"""Frozen values of the group protocol that many other modules use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = Any
"""What `json.loads` returns. A recursive type would need a cast at each level that is read."""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, or keyword arguments that become one."""


ThreadId = str
ConsumerId = str


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RebalanceMode(Enum):
    """Which partitions a rebalance revokes before it claims new ones (`rebalance.mode`)."""

    # Revokes only partitions assigned to other members; claims and serves each free one at once.
    INCREMENTAL = "incremental"
    # Revokes all partitions, and claims all or none, as the JVM does.
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Session:
    """A ZooKeeper session; `timeout_s` is the session timeout that the server granted."""

    id: int
    timeout_s: float


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
"""Stands for an owner that has not been read yet. Most owners release within milliseconds, so the
member reads who the owner is only after the back-off."""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """An offset znode as read; `value` is None if the znode is missing or holds a negative number.

    `version` is None if the znode does not exist. `error` says why its payload is malformed: such a
    partition is never fetched, and the znode is never overwritten.
    """

    value: int | None
    version: int | None
    mzxid: int = 0
    error: str = ""


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, with the committer's note, which only Kafka's storage keeps.

    JVM: `kafka.common.OffsetAndMetadata`.
    """

    offset: int
    metadata: str = ""


class Storage(Enum):
    """Where offsets are stored (`offsets.storage` with `dual.commit.enabled`)."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    DUAL = "both"  # in Kafka and in ZooKeeper; the higher of the two offsets wins


class Position(NamedTuple):
    """The next offset to read from a partition, valid within one ownership of it."""

    epoch: int
    offset: int


Positions = Mapping[TopicPartition, Position]


class Purpose(Enum):
    """Why offsets are committed; it decides which positions count (see `member.offset_ledger`)."""

    AUTO = "auto"  # the timer of auto.commit.interval.ms: finished messages
    RELEASE = "release"  # before partitions are released: finished messages
    EXPLICIT = "explicit"  # the user calls commit: all delivered messages
    GIVEN = "given"  # the user calls commit with offsets: exactly those
    LEAVE = "leave"  # a clean shutdown: all delivered messages
