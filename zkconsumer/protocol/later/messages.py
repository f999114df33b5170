"""Requests to a group's coordinator and its responses, as values: the classic protocol and KIP-848.

The fields are those of Kafka 3.9.1's messages that the group protocols use. Durations are in
seconds. Members send `metadata` and `assignment` as bytes, which the coordinator does not
interpret; `protocol.later.consumer_protocol` encodes and decodes them. KIP-848's messages name
topics where Kafka sends topic ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

UNKNOWN_MEMBER = ""
"""The member id in the requests of a member that has no member id yet."""

NO_GENERATION = -1
"""The generation of a member that has not joined, and of a commit by a consumer without a group."""

JOIN_EPOCH = 0
"""The member epoch of a heartbeat that joins the group (KIP-848)."""

LEAVE_EPOCH = -1
"""The member epoch of a heartbeat that leaves the group (KIP-848)."""

LEAVE_STATIC_EPOCH = -2
"""The member epoch of a static member that leaves and intends to return (KIP-848)."""

CONSUMER = "consumer"
"""The protocol type of consumers; Kafka Connect's workers use another protocol type."""


class Error(IntEnum):
    """The error codes that Kafka's group coordinator returns."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `group` is the group id."""

    group: str


@dataclass(frozen=True, slots=True)
class Response:
    """A response; `error` is `Error.NONE` for success."""

    error: Error = Error.NONE


# ---- finding the coordinator ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindCoordinator(Request):
    """Ask any broker which broker coordinates the group."""


@dataclass(frozen=True, slots=True)
class FoundCoordinator(Response):
    """The broker id of the coordinator; -1 with an error."""

    broker: int = -1


# ---- classic protocol ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Protocol:
    """An assignor that a member supports, and the subscription that the member sends for it."""

    name: str
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroup(Request):
    """Join the group, or join it again.

    Attributes:
        member: the member id; empty for a member that has none yet.
        protocols: the member's assignors, the preferred one first.
        instance: `group.instance.id` of a static member.
        session_timeout_s: `session.timeout.ms`.
        rebalance_timeout_s: `max.poll.interval.ms`; a rebalance waits this long for the member.
        version: the version of the message. From 4 on a new dynamic member gets
            MEMBER_ID_REQUIRED and joins a second time; from 9 on `Joined.skip_assignment` exists.
    """

    member: str
    protocols: tuple[Protocol, ...]
    instance: str | None = None
    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 300.0
    protocol_type: str = CONSUMER
    version: int = 9


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member in the list that the leader receives."""

    member: str
    instance: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined(Response):
    """The response to JoinGroup.

    Attributes:
        member: the member id, which the coordinator chose if the member had none.
        generation: the new generation; -1 with an error.
        protocol: the assignor that the group chose; None with an error.
        leader: the member id of the leader.
        members: all members for the leader, in the order of the coordinator's hash map; empty for
            other members.
        skip_assignment: the leader is a static member that has restarted; it keeps the stored
            assignment and sends none.
    """

    member: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncGroup(Request):
    """Ask for the member's assignment; the leader also sends the assignments of all members.

    `protocol_type` and `protocol` are None in versions before 5. The coordinator compares them only
    if they are set.
    """

    member: str
    generation: int
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    instance: str | None = None
    protocol_type: str | None = CONSUMER
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Synced(Response):
    """The response to SyncGroup; `assignment` is empty for a member without an assignment."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat(Request):
    """Tell the coordinator that the member is alive, and ask whether the group rebalances."""

    member: str
    generation: int
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer(Response):
    """The response to Heartbeat; it has only the error code."""


@dataclass(frozen=True, slots=True)
class Leaver:
    """A leaving member: its member id, or `group.instance.id` with an empty member id."""

    member: str
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup(Request):
    """Remove members from the group; a consumer removes itself, and an operator static members."""

    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class Left(Response):
    """The response to LeaveGroup: each leaver with its own error code."""

    leavers: tuple[tuple[Leaver, Error], ...] = ()


# ---- offsets -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetCommit(Request):
    """Store offsets.

    `generation` is a classic member's generation, or the member epoch of a KIP-848 member. With a
    negative generation and an empty member id, a consumer commits without being a member.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetsCommitted(Response):
    """The response to OffsetCommit; `error` applies to all partitions.

    Attributes:
        refused: the partitions that alone were not stored, each with its error.
    """

    refused: Mapping[TopicPartition, Error] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetFetch(Request):
    """Read stored offsets; `partitions` None asks for all.

    Only members of KIP-848 set `member` and `epoch`. The coordinator then compares the epoch.
    """

    partitions: tuple[TopicPartition, ...] | None = None
    member: str | None = None
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetsFetched(Response):
    """The stored offsets, without partitions that have none (for these, Kafka returns -1).

    Attributes:
        refused: the partitions whose offset is not shown, each with its error.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    refused: Mapping[TopicPartition, Error] = field(default_factory=dict)


# ---- KIP-848 -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeat(Request):
    """The only request of KIP-848's membership: join, reconcile, and leave.

    A field that is None has not changed since the member's last heartbeat. The heartbeat that joins
    sets `topics`, `rebalance_timeout_s` and an empty `owned`.

    Attributes:
        member: the member id; empty if the coordinator must choose one (version 0).
        epoch: the member epoch; `JOIN_EPOCH`, `LEAVE_EPOCH` or `LEAVE_STATIC_EPOCH`.
        assignor: the coordinator's assignor that the member prefers: "uniform" or "range".
        owned: the partitions that the member owns.
    """

    member: str
    epoch: int
    instance: str | None = None
    rack: str | None = None
    rebalance_timeout_s: float | None = None
    topics: tuple[str, ...] | None = None
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupAnswer(Response):
    """The response to ConsumerGroupHeartbeat; `assignment` None means that it has not changed."""

    member: str | None = None
    epoch: int = 0
    heartbeat_interval_s: float = 0.0
    assignment: frozenset[TopicPartition] | None = None
