"""What can happen to a member: events, and the outcomes of its operations.

Every event carries `now`, in seconds of the clock that measures leases. No code of this package
reads a clock itself.
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
from zkconsumer.protocol.requests import Names


class Trigger(Enum):
    """Why the member rebalances; each trigger makes it read the whole group again."""

    MEMBERS = "children of ids changed"
    TOPIC = "data of a topic changed"
    TOPICS = "the list of topics changed"
    BROKERS = "the list of brokers changed"
    OWN_MEMBER_NODE = "own id znode was deleted or replaced"


# ---- outcomes: how an operation on ZooKeeper ended ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended."""


@dataclass(frozen=True, slots=True)
class Interrupted(Outcome):
    """The connection or the session ended; ZooKeeper may have executed the operation or not."""


@dataclass(frozen=True, slots=True)
class Denied(Outcome):
    """ZooKeeper refuses, for a reason that only people can correct.

    Such reasons are missing rights, a znode that is too large, and a deleted chroot.
    """

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberNodeGone(Outcome):
    """The member's id znode is missing, so nothing was written; the session must register first."""


@dataclass(frozen=True, slots=True)
class Registered(Outcome):
    """The member's id znode exists and belongs to this session."""

    czxid: int


@dataclass(frozen=True, slots=True)
class IdTaken(Outcome):
    """The member's id znode belongs to another session; a watch reports its end."""

    session: int


@dataclass(frozen=True, slots=True)
class ViewRead(Outcome):
    """The group was read; `listing` holds the consumers that were listed first."""

    view: GroupView
    listing: Names


@dataclass(frozen=True, slots=True)
class Verified(Outcome):
    """Owner znodes were read back.

    `held` are those of this session, with their epochs; `lost` maps the others to their holders, or
    to None for no holder.
    """

    held: Mapping[TopicPartition, Ownership]
    lost: Mapping[TopicPartition, Blocker | None]


@dataclass(frozen=True, slots=True)
class Released(Outcome):
    """Owner znodes were deleted, except those in `denied`, which gives the reasons."""

    denied: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class Claimed(Outcome):
    """A claim ended.

    `blocked` maps the partitions that other sessions hold to their holders. The next change of a
    topic's owner znodes causes `OwnersChanged`. `denied` gives ZooKeeper's reasons. `watched` are
    the claimed partitions whose owner znode is watched already.
    """

    claimed: Mapping[TopicPartition, Ownership]
    blocked: Mapping[TopicPartition, Blocker]
    denied: Mapping[TopicPartition, str]
    watched: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class OffsetsLoaded(Outcome):
    """The stored offsets: `offsets` in ZooKeeper, and `kafka` if Kafka stores offsets, too."""

    offsets: Mapping[TopicPartition, StoredOffset]
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreUnavailable(Outcome):
    """Kafka did not return the stored offsets; another attempt may succeed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Committed(Outcome):
    """A commit ended.

    Attributes:
        versions: the versions of the offset znodes that it wrote.
        foreign: offsets that other clients wrote meanwhile; `marked` are those of an operator's
            tool.
        kafka: the partitions whose offsets Kafka has stored.
        unavailable: the partitions for which Kafka may be asked again, with the reasons.
        denied: the partitions that ZooKeeper or Kafka refuses for good, with the reasons.
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
    """The user's listener has returned; `error` is what it raised, or empty."""

    callback: Callback
    error: str = ""


@dataclass(frozen=True, slots=True)
class Synced(Outcome):
    """ZooKeeper's leader confirmed the session; `sent_at` is when the member asked."""

    sent_at: float


# ---- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(Event):
    """There is a connection, with the old session or a new one; all watches must be armed again."""

    session: Session
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(Event):
    """The connection is lost; the session may survive or expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDied(Event):
    """The ZooKeeper client has ended for good: no `Connected` follows until it is recreated.

    `refused` says that the server refused the credential, or may have done so.
    """

    reason: str
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """The time of `machine.next_deadline` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """Operation `op` ended."""

    op: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered(Event):
    trigger: Trigger
    subject: str = ""  # the topic or the partition, for the log


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Event):
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNodeChanged(Event):
    """The znode `owners/<topic>/<partition>`, which this member owns, was deleted or replaced."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersChanged(Event):
    """The children of `owners/<topic>` changed while the member waits for one of them."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReady(Event):
    """The user has finished all messages of these partitions, and gets no more."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsCollected(Event):
    """Positions to commit; `retries` is the caller's, or None for `offsets.commit.max.retries`."""

    purpose: Purpose
    positions: Positions
    request: int = 0
    metadata: Mapping[TopicPartition, str] = field(default_factory=dict)
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimedOut(Event):
    """The caller of explicit commit number `request` no longer waits for its answer."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionReset(Event):
    """`auto.offset.reset` or the user moved a partition; the next commit may lower its offset."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """Members whose owner znodes show other rules: `disagreements` maps each to its rules."""

    disagreements: Mapping[ConsumerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequested(Event):
    """The user closes the member; `purpose` says which positions are committed last.

    LEAVE follows a clean end. RELEASE follows an error in the user's code: the message in hand
    counts as unfinished.
    """

    purpose: Purpose = Purpose.LEAVE
