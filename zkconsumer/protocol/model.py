"""The words of the group protocol that every other module uses, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

ThreadId = str
ConsumerId = str


class TopicPartition(NamedTuple):
    """A partition of a topic; orders as (topic, number)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RebalanceMode(Enum):
    """How much a rebalance gives up before it claims (`rebalance.mode`)."""

    INCREMENTAL = "incremental"  # only what moves; what is free is claimed and served at once
    EAGER = "eager"  # everything, and the new claim is all or nothing, as the JVM does it


@dataclass(frozen=True, slots=True)
class Session:
    """A ZooKeeper session as the server granted it; `timeout_s` is the negotiated one."""

    id: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Ownership:
    """An owner znode of ours: the claiming thread, and the znode's czxid as the fencing token."""

    thread: ThreadId
    epoch: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """Who stands where we should own: an owner znode that another session holds.

    `session` is 0 for a persistent node, which no session will ever take away.
    """

    thread: ThreadId
    session: int


UNKNOWN_BLOCKER = Blocker("a member that has not been looked up yet", -1)
"""Most blockers go within milliseconds: who it is is asked when the back-off is over."""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """An offset znode as read: `value` None when the node is missing or holds a negative number.

    `version` is None when there is no node; `error` names what is wrong with its payload, and then
    the partition is never fetched and the node never overwritten.
    """

    value: int | None
    version: int | None
    mzxid: int = 0
    error: str = ""


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, and a note of the committer's, which only Kafka's storage keeps.

    JVM: `kafka.common.OffsetAndMetadata`.
    """

    offset: int
    metadata: str = ""


class Storage(Enum):
    """Where offsets are kept (`offsets.storage` with `dual.commit.enabled`)."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    DUAL = "both"  # in Kafka and in ZooKeeper; the larger of both counts


class Position(NamedTuple):
    """The next offset to read of a partition, within one ownership of it."""

    epoch: int
    offset: int


Positions = Mapping[TopicPartition, Position]


class Purpose(Enum):
    """Why offsets are committed; decides which positions count (see `member.offset_ledger`)."""

    AUTO = "auto"  # the timer of auto.commit.interval.ms: finished messages
    RELEASE = "release"  # a hand-over: finished messages
    EXPLICIT = "explicit"  # the user's call: everything handed out
    GIVEN = "given"  # the user's call, with offsets of its own: exactly those
    LEAVE = "leave"  # a clean leave: everything handed out
