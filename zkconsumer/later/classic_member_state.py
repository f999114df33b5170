"""The state of one member of the classic protocol: its phase and its membership."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from zkconsumer.frozen import dataclass
from zkconsumer.later.client_state import CommonState
from zkconsumer.protocol.later.messages import NO_GENERATION, UNKNOWN_MEMBER
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import TopicPartition


class ClassicPhase(Enum):
    """The phases of a member: `AbstractCoordinator.MemberState`, and two final phases."""

    UNJOINED = "unjoined"  # it is not a member
    PREPARING = "preparing"  # it has sent JoinGroup
    COMPLETING = "completing"  # it has sent SyncGroup
    STABLE = "stable"  # it has its assignment, and sends heartbeats
    FAILED = "failed"  # its `poll` has raised an error
    CLOSED = "closed"


MEMBER = frozenset({ClassicPhase.COMPLETING, ClassicPhase.STABLE})
"""The phases in which the heartbeat thread runs."""

OVER = frozenset({ClassicPhase.FAILED, ClassicPhase.CLOSED})


@dataclass(frozen=True, slots=True)
class ClassicState(CommonState):
    """The state of a member. All times are in seconds.

    Attributes:
        generation: the generation of the membership; -1 without one.
        protocol: the assignor that the group has chosen.
        is_leader: whether the member computed the current assignment.
        planned: the topics on which the leader's assignment is based.
        rejoin: whether the member must join (again).
        prepared: whether the member has committed and revoked partitions for the next join.
        received: the assignment that the user's thread has not applied yet.
        sticky: the last assignment and its generation: the user data of the assignor `sticky`.
        heard_at: the time of the last successful answer to a heartbeat.
    """

    phase: ClassicPhase = ClassicPhase.UNJOINED
    member: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol: str | None = None
    is_leader: bool = False
    planned: Mapping[str, Topic] | None = None
    rejoin: bool = True
    prepared: bool = False
    received: frozenset[TopicPartition] | None = None
    sticky: tuple[frozenset[TopicPartition], int] = (frozenset(), NO_GENERATION)
    heard_at: float = 0.0

    @property
    def membership(self) -> tuple[object, ...]:
        """The current membership. A response to a request of an earlier membership is ignored."""
        return self.member, self.generation, self.protocol
