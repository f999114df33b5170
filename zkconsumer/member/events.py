"""The events that change a member's state, and the outcomes of its operations.

Every event carries `now`, in seconds of the clock that measures leases. No code of this package
reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from zkconsumer.frozen import dataclass
from zkconsumer.member.commands import Callback
from zkconsumer.member.offset_ledger import Commit
from zkconsumer.protocol.group_snapshot import GroupView
from zkconsumer.protocol.model import (
    Blocker,
    ConsumerId,
    OffsetAndMetadata,
    Ownership,
    Purpose,
    Session,
    StoredOffset,
    ThreadId,
    TopicPartition,
)
from zkconsumer.protocol.requests import ListedChildren


class Trigger(Enum):
    """The reason for a rebalance; each trigger makes the member read the group again."""

    MEMBERS = "children of ids changed"
    REGISTRATION = "a registration that could not be read changed"
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
    """The connection or session ended; it is unknown whether ZooKeeper executed the operation."""


@dataclass(frozen=True, slots=True)
class Denied(Outcome):
    """ZooKeeper refuses the operation, for a reason that only an operator can correct.

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
    """The member's id znode belongs to another session; a watch reports the end of that session."""

    session: int


@dataclass(frozen=True, slots=True)
class ViewRead(Outcome):
    """The group was read; `listing` contains the consumer ids that were listed at the start."""

    view: GroupView
    listing: ListedChildren


@dataclass(frozen=True, slots=True)
class Verified(Outcome):
    """Owner znodes were read back.

    `held` maps the partitions that this session owns to their epochs. `lost` maps each other
    partition to its owner, or to None if it has no owner.
    """

    held: Mapping[TopicPartition, Ownership]
    lost: Mapping[TopicPartition, Blocker | None]


@dataclass(frozen=True, slots=True)
class Released(Outcome):
    """Owner znodes were deleted; `denied` gives the reason for each one that ZooKeeper kept."""

    denied: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class Claimed(Outcome):
    """A claim ended.

    `blocked` maps each partition that another session owns to its owner; the next change of the
    topic's owner znodes causes `OwnersChanged`. `denied` maps each partition whose claim ZooKeeper
    refused to the reason. `watched` contains the claimed partitions whose owner znode is already
    watched. `owners` maps the partitions of the blocked topics to the owners' thread ids; it is
    empty if they were not read.
    """

    claimed: Mapping[TopicPartition, Ownership]
    blocked: Mapping[TopicPartition, Blocker]
    denied: Mapping[TopicPartition, str]
    watched: frozenset[TopicPartition] = frozenset()
    owners: Mapping[TopicPartition, ThreadId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetsLoaded(Outcome):
    """The stored offsets were read: `offsets` from ZooKeeper, and `kafka` if Kafka stores any.

    `edit_czxid` is the czxid of the newest edit mark; 0 if there is none or it was not read.
    """

    offsets: Mapping[TopicPartition, StoredOffset]
    kafka: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    edit_czxid: int = 0


@dataclass(frozen=True, slots=True)
class StoreUnavailable(Outcome):
    """Kafka did not return the stored offsets; another attempt may succeed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Committed(Outcome):
    """A commit ended.

    Attributes:
        versions: the versions of the offset znodes that it wrote.
        foreign: offsets that other clients wrote since the member last read or wrote them.
        marked: those of `foreign` that an operator's tool has written and marked.
        kafka: the partitions whose offsets Kafka has stored.
        unavailable: partition -> why Kafka could not store the offset; a retry may succeed.
        denied: partition -> why ZooKeeper or Kafka refuses the offset; a retry cannot succeed.
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
    """ZooKeeper's leader confirmed the session; `sent_at` is when the member sent the `sync`."""

    sent_at: float


# ---- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(Event):
    """A connection exists, with the old session or a new one; all watches must be armed again."""

    session: Session
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(Event):
    """The connection is lost; the session may survive or expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDied(Event):
    """The ZooKeeper client has ended: no `Connected` follows until a new client replaces it.

    `refused` says that the server refused the login, or may have refused it.
    """

    reason: str
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """A deadline has passed: the time that `machine.next_deadline` returned is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """Operation `op` ended."""

    op: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered(Event):
    trigger: Trigger
    subject: str = ""  # the topic, the consumer or the broker, for the log


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Event):
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNodeChanged(Event):
    """The znode `owners/<topic>/<partition>` was deleted, replaced or written.

    This member owns the znode, or another session owns it and its payload could not be read.
    """

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetNodeChanged(Event):
    """The znode `offsets/<topic>/<partition>`, which could not be read, has changed."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersChanged(Event):
    """The children of `owners/<topic>` changed while the member waits for one of the partitions."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReady(Event):
    """The user has finished all messages of these partitions, and receives no further message of
    them.

    `partitions` maps each partition to the ownership under which its release was requested. The
    answer may come so late that this member has claimed the partition again, for another stream.
    """

    partitions: Mapping[TopicPartition, Ownership]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsCollected(Event):
    """The positions of a commit are known; with the purpose LOST they are only remembered."""

    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimedOut(Event):
    """The caller of explicit commit number `request` no longer waits for its answer."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionReset(Event):
    """`auto.offset.reset` or the user moved a partition; the next commit may lower its offset.

    `epoch` is that of the grant that was moved. The stream's report may come so late that the
    member has claimed the partition again.
    """

    partition: TopicPartition
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """Other members assign by other rules: `disagreements` maps such a member to its rules."""

    disagreements: Mapping[ConsumerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequested(Event):
    """The user closes the member; `purpose` says which positions are committed last.

    The purpose is LEAVE after a clean shutdown. After an error in the user's code it is RELEASE:
    the message that the user was processing counts as unfinished.
    """

    purpose: Purpose = Purpose.LEAVE
