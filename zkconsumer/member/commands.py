"""The commands that `machine.step` returns and the member's thread runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from zkconsumer.frozen import dataclass
from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.protocol.group_snapshot import Known
from zkconsumer.protocol.model import Blocker, Ownership, Purpose, Storage, ThreadId, TopicPartition


@dataclass(frozen=True, slots=True)
class Command:
    """An action that the member's thread performs for the state machine."""


@dataclass(frozen=True, slots=True)
class Register(Command):
    op: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class ReadView(Command):
    """Read the group; `known` is what the read can reuse, or None to read everything."""

    op: int
    known: Known | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Verify(Command):
    op: int
    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class Release(Command):
    """Delete owner znodes. The watches of the partitions in `watched` have not fired."""

    op: int
    partitions: frozenset[TopicPartition]
    watched: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Claim(Command):
    """Claim owner znodes.

    Attributes:
        partitions: partition -> the thread that claims it.
        known: partition -> its owner, if an earlier claim has found it.
        ask: the partitions whose owners the claim reads.
        mode_all_or_nothing: keep no claim unless all claims succeed (`rebalance.mode=eager`).
    """

    op: int
    partitions: Mapping[TopicPartition, ThreadId]
    known: Mapping[TopicPartition, Blocker]
    ask: frozenset[TopicPartition]
    mode_all_or_nothing: bool


@dataclass(frozen=True, slots=True)
class LoadOffsets(Command):
    """Read stored offsets; if one of `kept` has no offset, also find the newest edit mark."""

    op: int
    partitions: frozenset[TopicPartition]
    storage: Storage = Storage.ZOOKEEPER
    kept: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class CommitOffsets(Command):
    op: int
    plan: CommitPlan


@dataclass(frozen=True, slots=True)
class Sync(Command):
    op: int


@dataclass(frozen=True, slots=True)
class ListOwners(Command):
    """List all owner znodes of these topics."""

    op: int
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Nudge(Command):
    """Delete and re-create the member's id znode to make every member rebalance (`peers.nudge`)."""

    op: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class RearmTopic(Command):
    """Watch for a deleted topic to be created again."""

    topic: str


@dataclass(frozen=True, slots=True)
class Diagnose(Command):
    """Find the members that never agree with this member, because their assignment rules differ."""


@dataclass(frozen=True, slots=True)
class StartFetching(Command):
    """Let streams fetch partitions from these offsets; for None, `auto.offset.reset` decides."""

    grants: Mapping[TopicPartition, tuple[Ownership, int | None]]


@dataclass(frozen=True, slots=True)
class AskRelease(Command):
    """Ask the streams to finish the in-flight messages of these partitions."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Withdraw(Command):
    """Stop the delivery of these partitions now."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CollectPositions(Command):
    purpose: Purpose
    partitions: frozenset[TopicPartition]


class Callback(Enum):
    """The user's functions for rebalances; each value is the name of the function.

    The first two are those of a rebalance listener (JVM: `ConsumerRebalanceListener`, 0.9.0.0). The
    other three are the callbacks, which get each partition in turn: first ASSIGNED, and then either
    REVOKED or LOST.
    """

    RELEASING = "before_releasing_partitions"
    STARTING = "before_starting_fetchers"
    ASSIGNED = "on_assigned"
    REVOKED = "on_revoked"
    LOST = "on_lost"


@dataclass(frozen=True, slots=True)
class CallListener(Command):
    """Call one of the user's functions for rebalances.

    Attributes:
        op: the number of the call, for which the phase waits; 0: no phase waits for it.
        callback: the function.
        partitions: partition -> thread. For RELEASING the revoked partitions, for STARTING the
            partitions of every member, for the callbacks the affected partitions of this member.
    """

    op: int
    callback: Callback
    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class OpenGate(Command):
    """Allow the delivery of messages until `deadline`."""

    deadline: float


@dataclass(frozen=True, slots=True)
class ShutGate(Command):
    """Forbid the delivery of messages."""


@dataclass(frozen=True, slots=True)
class AnswerCommit(Command):
    """Answer an explicit commit; `failures` is empty if every position was stored."""

    request: int
    failures: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class RecreateClient(Command):
    """Replace the dead ZooKeeper client with a new client, which continues the session."""


@dataclass(frozen=True, slots=True)
class GiveUp(Command):
    """Fail every stream and every waiting call, because no ZooKeeper client can connect."""

    reason: str
    refused: bool


class NoticeKind(Enum):
    """The kinds of notices; the values are the counters' names."""

    BLOCKED = "rebalance_blocked"
    UNBLOCKED = "rebalance_unblocked"
    ID_TAKEN = "consumer_id_taken"
    DENIED = "denied"
    OWNERSHIP_LOST = "ownership_lost"
    MALFORMED_PEER = "malformed_peer"
    MALFORMED_TOPIC = "malformed_topic"
    MALFORMED_BROKER = "malformed_broker"
    UNSUPPORTED_PEER = "unsupported_peer"
    WAITING = "waiting"
    TOPIC_DELETED = "topic_deleted"
    TOPIC_RECREATED = "topic_recreated"
    OFFSET_MALFORMED = "offset_malformed"
    OFFSET_OVERWRITTEN = "foreign_offset_overwritten"
    OFFSET_LEFT = "foreign_offset_left"
    OFFSET_EDITED = "operator_edit_honoured"
    POSITION_KEPT = "own_position_continued"
    OFFSETS_MIGRATED = "offset_migrated"
    OFFSETS_UNAVAILABLE = "offsets_unavailable"
    COMMIT_RETRIED = "commit_retried"
    COMMIT_FAILED = "commit_failed"
    IDLE_PEER = "idle_peer"
    DISAGREEMENT = "disagreement"
    LISTENER_FAILED = "listener_failed"
    LISTENER_LATE = "listener_late"
    CLIENT_DIED = "client_died"


@dataclass(frozen=True, slots=True)
class Notice(Command):
    """Report an event to the user: log it, count it under `kind`, and show it in the status."""

    kind: NoticeKind
    where: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CloseSession(Command):
    """End the ZooKeeper session, which deletes the id znode and all owner znodes of the member."""
