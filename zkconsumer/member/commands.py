"""What a member can want done; `machine.step` returns commands, the coordinator has them done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.protocol.model import Blocker, Ownership, Purpose, Storage, ThreadId, TopicPartition


@dataclass(frozen=True, slots=True)
class Command:
    """Something to be done outside the core."""


@dataclass(frozen=True, slots=True)
class Register(Command):
    op: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class ReadView(Command):
    op: int


@dataclass(frozen=True, slots=True)
class Verify(Command):
    op: int
    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class Release(Command):
    op: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Claim(Command):
    """Claim `partitions`; `known` says who holds some of them, `ask` of which to find it out."""

    op: int
    partitions: Mapping[TopicPartition, ThreadId]
    known: Mapping[TopicPartition, Blocker]
    ask: frozenset[TopicPartition]
    mode_all_or_nothing: bool


@dataclass(frozen=True, slots=True)
class LoadOffsets(Command):
    op: int
    partitions: frozenset[TopicPartition]
    storage: Storage = Storage.ZOOKEEPER


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
    """Delete our id znode and create it again at once, so that every member rebalances."""

    op: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class RearmTopic(Command):
    """Watch for a deleted topic's return."""

    topic: str


@dataclass(frozen=True, slots=True)
class Diagnose(Command):
    """Find out whether members go by other rules than ours, which would never agree with us."""


@dataclass(frozen=True, slots=True)
class StartFetching(Command):
    """Give partitions to their threads' streams, from the stored offset or by the reset policy."""

    grants: Mapping[TopicPartition, tuple[Ownership, int | None]]


@dataclass(frozen=True, slots=True)
class AskRelease(Command):
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Withdraw(Command):
    """Delivery of these stops now."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CollectPositions(Command):
    purpose: Purpose
    partitions: frozenset[TopicPartition]


class Callback(Enum):
    """The calls of a rebalance listener (JVM: `ConsumerRebalanceListener`, 0.9.0.0)."""

    RELEASING = "before_releasing_partitions"
    STARTING = "before_starting_fetchers"


@dataclass(frozen=True, slots=True)
class CallListener(Command):
    """Call the user's listener: with what goes, or with who gets what of the topics we know."""

    op: int
    callback: Callback
    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class OpenGate(Command):
    """Messages may be delivered until `deadline`."""

    deadline: float


@dataclass(frozen=True, slots=True)
class ShutGate(Command):
    """Messages may not be delivered."""


@dataclass(frozen=True, slots=True)
class AnswerCommit(Command):
    """An explicit commit ended; `failures` is empty when every position was stored."""

    request: int
    failures: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class RecreateClient(Command):
    """Replace the ZooKeeper client, which has died, by a new one that continues its session."""


@dataclass(frozen=True, slots=True)
class GiveUp(Command):
    """Fail every stream and every waiting call: the ZooKeeper client cannot be brought back."""

    reason: str
    refused: bool


class NoticeKind(Enum):
    """The kinds of notice; the values are the names of the counters."""

    BLOCKED = "rebalance_blocked"
    UNBLOCKED = "rebalance_unblocked"
    ID_TAKEN = "consumer_id_taken"
    DENIED = "denied"
    OWNERSHIP_LOST = "ownership_lost"
    MALFORMED_PEER = "malformed_peer"
    MALFORMED_TOPIC = "malformed_topic"
    UNSUPPORTED_PEER = "unsupported_peer"
    WAITING = "waiting"
    TOPIC_DELETED = "topic_deleted"
    TOPIC_RECREATED = "topic_recreated"
    OFFSET_MALFORMED = "offset_malformed"
    OFFSET_OVERWRITTEN = "foreign_offset_overwritten"
    OFFSET_LEFT = "foreign_offset_left"
    OFFSET_EDITED = "operator_edit_honoured"
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
    """Something the user should know: logged, counted under `kind`, shown in the status."""

    kind: NoticeKind
    where: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CloseSession(Command):
    """End the ZooKeeper session: every znode of ours vanishes at once."""
