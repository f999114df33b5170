"""The state, the events and the commands of the bridge's state machine. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from zkconsumer.frozen import dataclass
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import ClassicPhase, ClassicState
from zkconsumer.later.client_state import NEVER, ClientSettings, ClientState
from zkconsumer.protocol.group_assignment import GroupInput
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import ConsumerId, TopicPartition
from zkconsumer.protocol.releases import DEFAULT, Profile

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The assignors that the bridge offers to the new members, and so can compute."""

JOIN_VERSION = 5
"""The version of JoinGroup: the first one with static members (Kafka 2.3).

It is the last version without tagged fields. Before version 9, a restarted static leader is told
its old member id as the leader's (see `machine`).
"""


class Goal(Enum):
    """What an operator wants the bridge to do."""

    RUN = "run"  # divide the partitions among both sides
    PAUSE = "pause"  # keep the number of its consumers
    FINISH = "finish"  # leave both groups as soon as the old side is empty
    ROLLBACK = "rollback"  # give everything to the old side; leave when the new side is empty
    STOP = "stop"  # give everything to the old side, and end without leaving the brokers' group


class Stage(Enum):
    """Where a partition that the bridge holds in ZooKeeper is on its way to the new side or back.

    Only a partition in LENT is assigned to new members.
    """

    SEEDING = "seeding"  # Kafka must store an offset that is not below ZooKeeper's
    LENT = "lent"  # the new members may read it
    RETURNING = "returning"  # new members may still own it, or have just committed it
    RETURNED = "returned"  # no new member owns it, and Kafka's last offset has been read


class Stored(Enum):
    """Whether ZooKeeper has the last offset of a partition that has returned."""

    NO = "no"
    SENT = "sent"
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Held:
    """A partition that a consumer of the bridge owns in ZooKeeper.

    Attributes:
        consumer: the number of the bridge's consumer.
        epoch: the fencing token of the grant.
        offset: the highest stored offset that is known of both stores; None: none is stored.
        asked: whether the consumer has been asked to release the partition.
        kafka: in SEEDING, Kafka's offset; None: none is stored, or it is not known yet.
        is_read: in SEEDING, whether Kafka's offset is known.
        stored: in RETURNED, whether ZooKeeper has `offset`.
        release_at: in RETURNED, when the consumer may release the partition; infinity: ZooKeeper
            does not have `offset` yet.
        refusal: why the brokers have neither shown nor stored the offset when they were last asked.
        retry_at: after a refusal, when the brokers are asked again.
        refused_at: when the first of the refusals came that follow each other.
    """

    consumer: int
    epoch: int
    offset: int | None
    stage: Stage = Stage.SEEDING
    asked: bool = False
    kafka: int | None = None
    is_read: bool = False
    stored: Stored = Stored.NO
    release_at: float = NEVER
    refusal: Error = Error.NONE
    retry_at: float = 0.0
    refused_at: float = NEVER


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """The old group's assignment if exactly these consumers of the bridge were registered.

    Attributes:
        view: the group from which the assignment was computed.
        running: the numbers of the consumers.
        owners: partition -> consumer id; None: a member cannot compute the assignment now, because
            a registration or a topic cannot be read.
    """

    view: GroupInput | None
    running: frozenset[int]
    owners: Mapping[TopicPartition, ConsumerId] | None


@dataclass(frozen=True, slots=True)
class Division:
    """With how many consumers the bridge gets a share of the partitions.

    Attributes:
        view: the group for which the number was computed.
        share: the new side's share of the partitions, between 0 and 1.
        consumers: the number of consumers.
    """

    view: GroupInput
    share: float
    consumers: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of a bridge; durations in seconds.

    Attributes:
        client: the member of the brokers' group.
        consumers: the consumer ids in ZooKeeper that the bridge may use, by number.
        profile: the rules of the old members' release.
        share: the new side's share of the partitions, between 0 and 1; None: the new members' part
            of all members.
        takes_lead: whether the bridge removes the other members from the brokers' group once if it
            does not lead it. They join again at once, under the bridge's lead.
        mirror_s: how often Kafka's offsets are read, to be committed to ZooKeeper.
        lease_margin_s: how long before the end of a consumer's lease the new members must revoke
            its partitions.
        calm_s: for how long the wanted number of consumers must stay the same before the bridge
            changes it, so that members that start together cause one change.
        claim_s: how long the bridge owns a partition after ZooKeeper has its last offset, if an old
            member may be about to claim the partition. A JVM member reads the offset before it
            claims. If it has read an earlier offset, its claim fails within this time, and it reads
            the offset again. It needs some milliseconds for each of its partitions.
    """

    client: ClientSettings
    consumers: tuple[ConsumerId, ...]
    profile: Profile = DEFAULT
    share: float | None = None
    takes_lead: bool = False
    mirror_s: float = 5.0
    lease_margin_s: float = 5.0
    calm_s: float = 3.0
    claim_s: float = 1.0


@dataclass(frozen=True, slots=True)
class State:
    """The state of the bridge.

    Attributes:
        classic: the membership in the brokers' group.
        held: the partitions that the bridge's consumers own in ZooKeeper.
        leases: consumer -> the end of its lease.
        view: the old group, as last read from ZooKeeper; None: not read yet.
        old: the old members in `view`, each with its number of streams.
        old_topics: every topic to which an old member has subscribed since the bridge started. New
            members read it only as far as the bridge lends its partitions.
        goal: what the operator wants.
        share: as `Settings.share`; the operator can change it.
        kept: the number of consumers that the bridge runs while it is paused.
        running: the numbers of the bridge's consumers that run.
        counted_until: until when each of them counts, even if it has not registered yet.
        change: the consumers to run next, while partitions return for this change; None: no change
            is due.
        plan: the assignment after `change`, or the present one if no change is due.
        division: the number of consumers for the present group and share; None: not computed yet.
        wanted: the number of consumers that was wanted last, and since when.
        occupied: the partitions that new members may own or deliver; None: unknown, because the
            bridge does not lead the group, or its assignment is not stored yet.
        stored: the last member id of which the coordinator has stored a generation.
        joined: what `occupied` becomes when the coordinator has stored the bridge's assignment.
        given: the partitions among which the bridge's last assignment was computed; None: the
            bridge has computed none in this membership.
        given_topics: the topics that this assignment divided by the partitions that were lent.
        members: the new members, by member id, in the last generation that the bridge led.
        owners: partition -> the new member to which the bridge has assigned it.
        has_led: whether the bridge has led the group.
        asked_lead: whether the bridge, as a follower, has joined again with its member id.
        remove_at: when the bridge, as a follower, may remove the other members (again).
        greet_at: when the bridge joins again if it is alone in the brokers' group.
        reading: the number of the request that reads offsets; None: none is in flight.
        final: the partitions that no new member owned when `reading` was sent. Their offsets in
            the answer are the new side's last ones.
        storing: the number of the request that stores offsets; None: none is in flight.
        mirror_at: when Kafka's offsets are read again.
        retry_at: the end of the back-off after a refused commit.
        lock_until: until when no other process can have become the active bridge. A process that
            was frozen does not know this. It then neither begins a new membership, which would
            fence the other process, nor removes members.
        leaving: the number of the request that leaves the brokers' group.
        farewell: why the bridge leaves.
        end_by: by when a bridge that has given all partitions back ends, even if the brokers' group
            still rebalances; infinity: it has not given them back.
        ended: why the bridge has ended; empty while it works.
    """

    setup: Settings
    classic: ClassicState
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)
    leases: Mapping[int, float] = field(default_factory=dict)
    view: GroupInput | None = None
    old: Mapping[ConsumerId, int] = field(default_factory=dict)
    old_topics: frozenset[str] = frozenset()
    goal: Goal = Goal.RUN
    share: float | None = None
    kept: int = 0
    running: frozenset[int] = frozenset()
    counted_until: float = 0.0
    change: frozenset[int] | None = None
    plan: AssignmentPlan | None = None
    division: Division | None = None
    wanted: tuple[int, float] = (0, 0.0)
    occupied: frozenset[TopicPartition] | None = None
    stored: str = ""
    joined: frozenset[TopicPartition] | None = None
    given: frozenset[TopicPartition] | None = None
    given_topics: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    has_led: bool = False
    asked_lead: bool = False
    remove_at: float = 0.0
    greet_at: float = NEVER
    reading: int | None = None
    final: frozenset[TopicPartition] = frozenset()
    storing: int | None = None
    mirror_at: float = NEVER
    retry_at: float = 0.0
    lock_until: float = 0.0
    leaving: int | None = None
    farewell: str = ""
    end_by: float = NEVER
    ended: str = ""

    # The following are read where any member of a coordinated group is expected.

    @property
    def settings(self) -> ClientSettings:
        """The settings of the membership."""
        return self.classic.settings

    @property
    def client(self) -> ClientState:
        """The client of the membership."""
        return self.classic.client

    @property
    def member(self) -> str:
        """The member id in the brokers' group."""
        return self.classic.member

    @property
    def generation(self) -> int:
        """The generation of the membership."""
        return self.classic.generation

    @property
    def phase(self) -> ClassicPhase:
        """The phase of the membership."""
        return self.classic.phase

    @property
    def leads(self) -> bool:
        """Whether the bridge computed the assignment of the current generation."""
        return self.classic.phase is ClassicPhase.STABLE and self.given is not None


def begin(setup: Settings) -> State:
    """Return the state of a bridge that has just started."""
    return State(setup, ClassicState(setup.client), share=setup.share)


# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event(ev.Event):
    """An event that no ordinary member has."""


@dataclass(frozen=True, slots=True)
class Granted(Event):
    """A consumer has claimed partitions: partition -> its fencing token and ZooKeeper's offset."""

    consumer: int
    grants: Mapping[TopicPartition, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class ReleaseAsked(Event):
    """A consumer must release partitions, and waits until the new side has finished."""

    consumer: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Withdrawn(Event):
    """A consumer has lost these partitions, or has released them to the old side."""

    consumer: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CommitEnded(Event):
    """The consumer's answer to `CommitToZooKeeper`: the offsets are stored or refused."""

    consumer: int


@dataclass(frozen=True, slots=True)
class LeaseChanged(Event):
    """A consumer's lease ends at `deadline`; minus infinity: it has none."""

    consumer: int
    deadline: float


@dataclass(frozen=True, slots=True)
class GroupSeen(Event):
    """The old group has been read from ZooKeeper."""

    view: GroupInput


@dataclass(frozen=True, slots=True)
class LockKept(Event):
    """This process is the active bridge, at least until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class GoalChanged(Event):
    """The operator wants something else.

    Attributes:
        consumers: how many consumers the process before this one ran; None: nobody has stored it,
            or this is not the first goal that this process gets.
    """

    goal: Goal
    share: float | None = None
    consumers: int | None = None


# ---- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Return(ev.Command):
    """A consumer may release these partitions, which it was asked to release."""

    consumer: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CommitToZooKeeper(ev.Command):
    """Let a consumer commit these offsets to ZooKeeper now; `CommitEnded` follows."""

    consumer: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RunConsumers(ev.Command):
    """Exactly these consumers must run: start the missing ones, and close the others."""

    consumers: frozenset[int]


@dataclass(frozen=True, slots=True)
class RemoveMembers(ev.Command):
    """Remove all other members from the brokers' group, so that the bridge leads it."""


@dataclass(frozen=True, slots=True)
class BridgeEnded(ev.Command):
    """The bridge has ended; `reason` says why."""

    reason: str
