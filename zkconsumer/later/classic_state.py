"""The state of a classic group at its coordinator, and functions that the handlers share.

Source: `ClassicGroup` and `ClassicGroupMember` of Kafka 3.9.1. If several members qualify, the
order of Java's hash map decides, as in Kafka (`ClassicGroup.in_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.later.group_events import BrokerSettings, Reply
from zkconsumer.later.group_phases import GroupPhase
from zkconsumer.protocol.java.hash_map import StringMap
from zkconsumer.protocol.later.consumer_protocol import decode_subscription
from zkconsumer.protocol.later.coordination import vote
from zkconsumer.protocol.later.messages import CONSUMER, Error, JoinedMember, Protocol, Response
from zkconsumer.protocol.later.subscriptions import Topic


class TimerPurpose(Enum):
    """The purposes of a group's timers."""

    JOIN = "join"  # the end of the wait for JoinGroup requests
    SYNC = "sync"  # the end of the wait for SyncGroup requests
    SESSION = "session"  # the end of a member's session
    REVOKE = "revoke"  # the end of the time in which a KIP-848 member must revoke partitions


class Timer(NamedTuple):
    """A timer; `member` is empty for a timer of the whole group."""

    purpose: TimerPurpose
    member: str = ""


JOIN, SYNC = Timer(TimerPurpose.JOIN), Timer(TimerPurpose.SYNC)


class TimerEnd(NamedTuple):
    """The end of a timer; timers with the same end are handled in the order of their start."""

    at_s: float
    serial: int


class InitialDelay(NamedTuple):
    """The initial delay of the first rebalance: the part that is running, and the time by which it
    can still be extended."""

    delay_s: float
    remaining_s: float


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a classic group.

    Attributes:
        member: the member id.
        protocols: the assignors with the member's subscription, the preferred one first.
        assignment: the member's assignment in this generation, from the leader.
        join: the number of the parked JoinGroup request; None if there is none.
        sync: the number of the parked SyncGroup request; None if there is none.
        new: whether the member has never completed a rebalance. If so, it cannot send heartbeats
            yet, so its parked JoinGroup does not prove that it is alive.
    """

    member: str
    instance: str | None
    client: str
    protocols: tuple[Protocol, ...]
    protocol_type: str
    session_s: float
    rebalance_s: float
    assignment: bytes = b""
    join: int | None = None
    sync: int | None = None
    new: bool = False

    def names(self) -> list[str]:
        """Return the names of the member's assignors."""
        return [protocol.name for protocol in self.protocols]

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's subscription for an assignor."""
        return next(one.metadata for one in self.protocols if one.name == protocol)

    @property
    def alive(self) -> bool:
        """Whether a parked request proves that the member is alive; False for a member that has
        never completed a rebalance."""
        return not self.new and (self.join is not None or self.sync is not None)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A classic group's record in `__consumer_offsets`: its last stable generation.

    The coordinator writes it when the leader has sent the assignment, when a static member gets a
    new member id, and when the group becomes empty.
    """

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    since_s: float
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """A group of either protocol; `timers` are the running timers with their ends."""

    group: str
    timers: Mapping[Timer, TimerEnd] = field(default_factory=dict)
    serial: int = 0


G = TypeVar("G", bound=TimedGroup)


def schedule(group: G, timer: Timer, at_s: float) -> G:
    """Set a timer, or restart it."""
    due = TimerEnd(at_s, group.serial)
    return replace(group, timers={**group.timers, timer: due}, serial=group.serial + 1)


def cancel(group: G, timer: Timer) -> G:
    """Remove a timer, if it is set."""
    if timer not in group.timers:
        return group
    return replace(group, timers={one: due for one, due in group.timers.items() if one != timer})


@dataclass(frozen=True, slots=True)
class ClassicGroup(TimedGroup):
    """A classic group as its coordinator knows it.

    Attributes:
        phase: the group's phase, and `previous` the phase before it.
        since_s: when the phase began.
        members: the members by member id, in the order in which they entered the hash map.
        peak: the largest number of members so far, which is the size of the hash map.
        pending: member ids that the coordinator has chosen, and with which no member has joined
            yet.
        unsynced: members that have not sent SyncGroup in this generation.
        subscribed: the topics of all members; None if the coordinator does not know them.
        newcomer: whether a member was added during the initial delay, which may extend the delay.
        initial: the initial delay that runs; None in any other rebalance.
        record: the record in `__consumer_offsets`; None for a group that only stores offsets.
    """

    phase: GroupPhase = GroupPhase.EMPTY
    previous: GroupPhase = GroupPhase.DEAD
    since_s: float = 0.0
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    peak: int = 0
    pending: frozenset[str] = frozenset()
    unsynced: frozenset[str] = frozenset()
    subscribed: frozenset[str] | None = None
    newcomer: bool = False
    initial: InitialDelay | None = None
    record: GroupRecord | None = None

    def in_order(self) -> list[Member]:
        """Return the members in the order of Java's hash map."""
        order: StringMap[Member] = StringMap(capacity=_capacity(self.peak))
        for name, member in self.members.items():
            order[name] = member
        return [member for _, member in order.items()]

    def static_member(self, instance: str | None) -> str | None:
        """Return the member id of the static member with this `group.instance.id`; None if the
        group has no such member."""
        if instance is None:
            return None
        found = (name for name, one in self.members.items() if one.instance == instance)
        return next(found, None)

    @property
    def all_joined(self) -> bool:
        """Whether every member has a parked JoinGroup, and every member id that the coordinator
        chose has been used to join."""
        return not self.pending and all(one.join is not None for one in self.members.values())

    @property
    def rebalance_s(self) -> float:
        """The longest rebalance timeout of the members."""
        return max((one.rebalance_s for one in self.members.values()), default=0.0)

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Return whether a member with these assignors can be in the group."""
        names = [protocol.name for protocol in protocols]
        if self.phase is GroupPhase.EMPTY:
            return bool(protocol_type and names)
        if self.protocol_type != protocol_type:
            return False
        others = [set(one.names()) for one in self.members.values()]
        return any(all(name in other for other in others) for name in names)

    def selected(self) -> str:
        """Return the assignor that the members choose now; there is at least one member."""
        chosen = vote({one.member: one.names() for one in self.members.values()})
        if chosen is None:
            raise AssertionError(f"group {self.group}: the members have no assignor in common")
        return chosen

    def listed(self) -> tuple[JoinedMember, ...]:
        """Return the list of members that the leader receives."""
        return tuple(
            JoinedMember(one.member, one.instance, one.metadata(self.protocol))
            for one in self.in_order()
        )

    def error_of(self, member: str, instance: str | None) -> Error:
        """Return why a request of this member is refused; `Error.NONE` if it is not."""
        if instance is not None:
            existing = self.static_member(instance)
            if existing is None:
                return Error.UNKNOWN_MEMBER_ID
            if existing != member:
                return Error.FENCED_INSTANCE_ID
        return Error.NONE if member in self.members else Error.UNKNOWN_MEMBER_ID

    def subscribes(self, topic: str) -> bool:
        """Return whether a member may subscribe to the topic, so that its offsets do not expire."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed


def _capacity(peak: int) -> int:
    """Return the capacity of a hash map that has contained `peak` members; the capacity never
    shrinks."""
    capacity = 16
    while peak > capacity * 3 // 4:
        capacity *= 2
    return capacity


class HandlerContext(NamedTuple):
    """A handler's input besides the group: the time, the broker's settings, and the topics."""

    now_s: float
    settings: BrokerSettings
    topics: Mapping[str, Topic]


Step = tuple[ClassicGroup, tuple[Reply, ...]]


def then(step: Step, following: Callable[[ClassicGroup], Step]) -> Step:
    """Call another handler on the result so far, and return the replies of both."""
    group, replies = step
    group, more = following(group)
    return group, replies + more


def answer(number: int | None, response: Response) -> tuple[Reply, ...]:
    """Return the reply to a request as a tuple; empty if there is no request."""
    return () if number is None else (Reply(number, response),)


# ---- small changes -------------------------------------------------------------------------------


def enter(group: ClassicGroup, phase: GroupPhase, context: HandlerContext) -> ClassicGroup:
    """Change the phase."""
    return replace(group, phase=phase, previous=group.phase, since_s=context.now_s)


def put_members(group: ClassicGroup, *members: Member) -> ClassicGroup:
    """Add or replace members."""
    found = {**group.members, **{one.member: one for one in members}}
    return replace(group, members=found, peak=max(group.peak, len(found)))


def start_session(
    group: ClassicGroup, member: Member, context: HandlerContext, timeout_s: float | None = None
) -> ClassicGroup:
    """Start a member's session timeout, within which it must send a request."""
    at_s = context.now_s + (member.session_s if timeout_s is None else timeout_s)
    return schedule(group, Timer(TimerPurpose.SESSION, member.member), at_s)


def remove(group: ClassicGroup, member: str) -> ClassicGroup:
    """Remove a member, or a member id whose member has not joined; choose a new leader."""
    group = cancel(group, Timer(TimerPurpose.SESSION, member))
    group = replace(
        group,
        members={name: one for name, one in group.members.items() if name != member},
        pending=group.pending - {member},
        unsynced=group.unsynced - {member},
    )
    if group.leader == member:
        successor = next(iter(group.in_order()), None) if group.members else None
        group = replace(group, leader=successor.member if successor else None)
    return group


def topics_of(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics to which all members subscribe, by their metadata for the chosen assignor;
    None if these cannot be decoded."""
    if group.protocol_type != CONSUMER:
        return None
    if not group.members:
        return frozenset()
    if group.protocol is None:
        return None
    topics: set[str] = set()
    for one in group.members.values():
        try:
            topics.update(decode_subscription(one.metadata(group.protocol))[0].topics)
        except ValueError:
            return None
    return frozenset(topics)


# ---- the stored form -----------------------------------------------------------------------------


def write(group: ClassicGroup, assignments: Mapping[str, bytes]) -> ClassicGroup:
    """Store the generation with its assignment in `__consumer_offsets`."""
    members = tuple(
        replace(
            one,
            protocols=(Protocol(group.protocol or "", one.metadata(group.protocol)),),
            assignment=assignments.get(one.member, b""),
            join=None,
            sync=None,
            new=False,
        )
        for one in group.in_order()
    )
    record = GroupRecord(
        group.generation, group.protocol_type, group.protocol, group.leader, group.since_s, members
    )
    return replace(group, record=record)


def read(name: str, record: GroupRecord, context: HandlerContext) -> ClassicGroup:
    """Return the group that a new coordinator reads, with all sessions restarted."""
    group = ClassicGroup(
        name,
        phase=GroupPhase.STABLE if record.members else GroupPhase.EMPTY,
        previous=GroupPhase.DEAD,
        since_s=record.since_s,
        generation=record.generation,
        protocol_type=record.protocol_type,
        protocol=record.protocol,
        leader=record.leader,
        record=record,
    )
    group = put_members(group, *record.members)
    group = replace(group, subscribed=topics_of(group))
    for member in group.in_order():
        group = start_session(group, member, context)
    return group
