"""The state of one member of the classic protocol: its settings, phase and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkconsumer.later.client_state import ClientState
from zkconsumer.later.group_events import DEFAULT_SESSION_S
from zkconsumer.protocol.later.messages import NO_GENERATION, UNKNOWN_MEMBER, Error
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import TopicPartition


class Mode(Enum):
    """When a member revokes partitions (`ConsumerPartitionAssignor.RebalanceProtocol`)."""

    EAGER = "eager"  # it revokes all partitions before each join
    # It revokes only partitions that the new assignment removes, and then joins again.
    COOPERATIVE = "cooperative"


COOPERATIVE_ASSIGNORS = frozenset({"cooperative-sticky"})
"""Assignors that support the cooperative mode; all others are eager."""


class Phase(Enum):
    """The phases of a member: `AbstractCoordinator.MemberState`, and two final phases."""

    UNJOINED = "unjoined"  # it is not a member
    PREPARING = "preparing"  # it has sent JoinGroup
    COMPLETING = "completing"  # it has sent SyncGroup
    STABLE = "stable"  # it has its assignment, and sends heartbeats
    FAILED = "failed"  # its `poll` has raised an error
    CLOSED = "closed"


MEMBER = frozenset({Phase.COMPLETING, Phase.STABLE})
"""The phases in which the heartbeat thread runs."""

OVER = frozenset({Phase.FAILED, Phase.CLOSED})


@dataclass(frozen=True, slots=True)
class Settings:
    """The consumer's properties; durations in seconds.

    Attributes:
        assignors: `partition.assignment.strategy`, the preferred one first.
        auto_commit_s: `auto.commit.interval.ms`; None: `enable.auto.commit=false`.
        poll_s: `max.poll.interval.ms`, which is also the member's rebalance timeout.
    """

    group: str
    client: str
    topics: tuple[str, ...]
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    instance: str | None = None
    rack: str | None = None
    session_s: float = DEFAULT_SESSION_S
    heartbeat_s: float = 3.0
    poll_s: float = 300.0
    auto_commit_s: float | None = 5.0

    @property
    def mode(self) -> Mode:
        """The mode that all assignors support; the default of Kafka 3.0 to 3.9 is eager."""
        cooperative = COOPERATIVE_ASSIGNORS.issuperset(self.assignors)
        return Mode.COOPERATIVE if cooperative else Mode.EAGER


@dataclass(frozen=True, slots=True)
class State:
    """The state of a member. All times are in seconds.

    Attributes:
        member: the member id.
        generation: the generation of the membership; -1 without one.
        protocol: the assignor that the group has chosen.
        is_leader: whether the member computed the current assignment.
        planned: the topics on which the leader's assignment is based.
        rejoin: whether the member must join (again).
        prepared: whether the member has committed and revoked partitions for the next join.
        commit: the number of the commit that precedes the join.
        commit_until: when the member stops waiting for that commit.
        retry_at: the earliest time of the next JoinGroup, commit or OffsetFetch.
        received: the assignment that the user's thread has not applied yet.
        owned: the assigned partitions.
        loading: owned partitions whose stored offset is not known yet.
        positions: partition -> offset of the next message; partitions with an unknown position are
            absent.
        sticky: the last assignment and its generation: the user data of the assignor `sticky`.
        polling: whether the user's thread is in `poll`.
        poll_until: the time by which the user must call `poll` again.
        heartbeat_at: the time of the next heartbeat.
        heard_at: the time of the last successful answer to a heartbeat.
        auto_commit_at: the time of the next automatic commit.
        closing: the time limit of a closing member's last commit; None: it is not closing.
        error: why the member has failed.
    """

    settings: Settings
    client: ClientState = field(default_factory=ClientState)
    phase: Phase = Phase.UNJOINED
    member: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol: str | None = None
    is_leader: bool = False
    planned: Mapping[str, Topic] | None = None
    rejoin: bool = True
    prepared: bool = False
    commit: int | None = None
    commit_until: float | None = None
    retry_at: float = 0.0
    received: frozenset[TopicPartition] | None = None
    owned: frozenset[TopicPartition] = frozenset()
    loading: frozenset[TopicPartition] = frozenset()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    sticky: tuple[frozenset[TopicPartition], int] = (frozenset(), NO_GENERATION)
    polling: bool = False
    poll_until: float = float("inf")
    heartbeat_at: float = float("inf")
    heard_at: float = 0.0
    auto_commit_at: float = float("inf")
    closing: float | None = None
    error: Error = Error.NONE

    @property
    def membership(self) -> tuple[object, ...]:
        """The current membership. A response to a request of an earlier membership is ignored."""
        return self.member, self.generation, self.protocol
