"""What can happen to a member: events, and the outcomes of operations that some of them carry.

Every event carries `now`, in seconds of the one clock that leases are measured with; nothing in the
core asks for the time itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkconsumer.member.commands import Callback
from zkconsumer.protocol.group_snapshot import GroupView
from zkconsumer.protocol.model import (
    Blocker,
    ConsumerId,
    OffsetAndMetadata,
    Ownership,
    Positions,
    Purpose,
    Session,
    StoredOffset,
    TopicPartition,
)


class Trigger(Enum):
    """Why a rebalance is wanted; any of them makes the member read the whole group again."""

    MEMBERS = "children of ids changed"
    TOPIC = "data of a topic changed"
    TOPICS = "the list of topics changed"
    BROKERS = "the list of brokers changed"
    OWN_MEMBER_NODE = "our id znode vanished or was replaced"


# ---- outcomes: how an operation on ZooKeeper ended ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended."""


@dataclass(frozen=True, slots=True)
class Interrupted(Outcome):
    """The connection or the session broke; what was asked for may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Denied(Outcome):
    """ZooKeeper refuses and waiting alone does not mend it (no right, too large, no chroot)."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberNodeGone(Outcome):
    """Our id znode is absent, so nothing was written: this session must register first."""


@dataclass(frozen=True, slots=True)
class Registered(Outcome):
    """Our id znode exists and is ours."""

    czxid: int


@dataclass(frozen=True, slots=True)
class IdTaken(Outcome):
    """Our id znode exists and is another session's; its vanishing is watched."""

    session: int


@dataclass(frozen=True, slots=True)
class ViewRead(Outcome):
    view: GroupView


@dataclass(frozen=True, slots=True)
class Verified(Outcome):
    """`held` are the owner znodes that are ours, with their epochs; `lost` names the others."""

    held: Mapping[TopicPartition, Ownership]
    lost: Mapping[TopicPartition, Blocker | None]


@dataclass(frozen=True, slots=True)
class Released(Outcome):
    """`denied` are those that could not be deleted, with the reason; the rest is no longer ours."""

    denied: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class Claimed(Outcome):
    """`blocked` are watched: the next change among a topic's owner nodes brings `OwnersChanged`."""

    claimed: Mapping[TopicPartition, Ownership]
    blocked: Mapping[TopicPartition, Blocker]
    denied: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class OffsetsLoaded(Outcome):
    """`offsets` of ZooKeeper, and what Kafka has where it keeps offsets, too."""

    offsets: Mapping[TopicPartition, StoredOffset]
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreUnavailable(Outcome):
    """Kafka did not tell the offsets it keeps; another try may succeed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Committed(Outcome):
    """`versions` after our writes; `foreign` were written by somebody else meanwhile.

    `marked` names those of `foreign` that an operator's tool wrote and marked. `kafka` are those
    that Kafka has stored, `unavailable` those for which it may be asked again. `denied` are refused
    for good, by either.
    """

    versions: Mapping[TopicPartition, int]
    foreign: Mapping[TopicPartition, StoredOffset]
    marked: frozenset[TopicPartition]
    denied: Mapping[TopicPartition, str]
    kafka: frozenset[TopicPartition] = frozenset()
    unavailable: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnersListed(Outcome):
    present: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ListenerReturned(Outcome):
    """The user's listener has ended; `error` is what it raised, empty when it did not."""

    callback: Callback
    error: str = ""


@dataclass(frozen=True, slots=True)
class Synced(Outcome):
    """The leader answered for our session; `sent_at` is when it was asked."""

    sent_at: float


# ---- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(Event):
    """A connection stands, with an old session or a new one: read everything again, arm again."""

    session: Session
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(Event):
    """The connection is gone; the session may or may not outlive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDied(Event):
    """The ZooKeeper client has ended for good: no `Connected` follows unless it is recreated.

    `refused` says that the server refused the credential, or may have; `reason` is for people.
    """

    reason: str
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed; sent when `machine.next_deadline` is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """Operation `op` ended."""

    op: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered(Event):
    trigger: Trigger
    subject: str = ""  # the topic, or the partition, for the log


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Event):
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNodeChanged(Event):
    """The znode `owners/<topic>/<partition>`, watched because it is ours, vanished or changed."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersChanged(Event):
    """The children of `owners/<topic>` changed while we wait for one of them."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReady(Event):
    """No message of these partitions is in the user's hands, and none will be given out."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsCollected(Event):
    """For a commit; `retries` of the user's own, None for `offsets.commit.max.retries`."""

    purpose: Purpose
    positions: Positions
    request: int = 0
    metadata: Mapping[TopicPartition, str] = field(default_factory=dict)
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimedOut(Event):
    """Nothing waits any more for the answer to explicit commit number `request`."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionReset(Event):
    """`auto.offset.reset` or the user moved a partition; the next commit may go back to there."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """`quarrels`: member -> by which other rules it goes, as its owner znodes show."""

    quarrels: Mapping[ConsumerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequested(Event):
    """The user leaves; `purpose` says which positions are stored a last time.

    LEAVE after a clean end; RELEASE after an error of the user's, whose message in hand then counts
    as not finished.
    """

    purpose: Purpose = Purpose.LEAVE
