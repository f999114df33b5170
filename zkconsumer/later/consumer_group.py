"""A group of KIP-848 at its coordinator: `step(group, received, now) -> (group, replies)`.

The coordinator computes the assignment. A change of a subscription, of the members or of the topics
increases the group epoch. At the next heartbeat of any member, the coordinator computes the target
assignment for that epoch. Each member moves to its part of the target through its own heartbeats
(`coordination.reconcile`), so no member waits for all others. A member that does not revoke within
its own rebalance timeout is fenced.

Source: `GroupMetadataManager.consumerGroupHeartbeat` and `ConsumerGroup` of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import NamedTuple, cast

from zkconsumer.frozen import dataclass
from zkconsumer.later.classic_state import (
    HandlerContext,
    TimedGroup,
    Timer,
    TimerPurpose,
    answer,
    cancel,
    schedule,
)
from zkconsumer.later.group_events import Received, Reply
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.coordination import MemberState, ReconcilingMember, reconcile
from zkconsumer.protocol.later.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupAnswer,
    ConsumerGroupHeartbeat,
    Error,
    OffsetCommit,
    OffsetFetch,
)
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import TopicPartition

ASSIGNORS: Mapping[str, Assignor] = {
    "uniform": Assignor.UNIFORM,
    "range": Assignor.SERVER_RANGE,
}
"""The values of `group.consumer.assignors`; the first is the default of a group."""

REFRESH_S = 600.0
"""The maximum time until a heartbeat compares the topics with the cluster's (not a setting).

Without this check, a coordinator that missed a change of the topics would never assign new
partitions.
"""


class ConsumerGroupPhase(Enum):
    """The phase of a group of KIP-848; the value is Kafka's name."""

    EMPTY = "Empty"  # no member
    ASSIGNING = "Assigning"  # the group epoch is ahead of the target assignment
    RECONCILING = "Reconciling"  # members still move to the target assignment
    STABLE = "Stable"  # every member has its part of the target assignment


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a group of KIP-848.

    Attributes:
        member: the member id.
        rebalance_s: the time in which the member must revoke partitions.
        topics: the subscription.
        assignor: the coordinator's assignor that the member prefers.
        current: the member's epoch, the partitions that it may consume, and the partitions that it
            must revoke.
    """

    member: str
    instance: str | None = None
    rack: str | None = None
    rebalance_s: float = 0.0
    topics: frozenset[str] = frozenset()
    assignor: str | None = None
    current: ReconcilingMember = field(default_factory=ReconcilingMember)


class Refresh(NamedTuple):
    """The time of the next comparison of topics, valid from the given group epoch on."""

    at_s: float = 0.0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroup(TimedGroup):
    """A KIP-848 group at its coordinator.

    Attributes:
        epoch: the group epoch.
        target_epoch: the group epoch of the target assignment.
        target: the target assignment by member id.
        members: the members by member id.
        metadata: the subscribed topics at the time of the last assignment.
        refresh: the time of the next comparison of `metadata` with the cluster's topics.
        revoking: the member epoch of each rebalance timeout.
    """

    epoch: int = 0
    target_epoch: int = 0
    target: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    metadata: Mapping[str, Topic] = field(default_factory=dict)
    refresh: Refresh = field(default_factory=Refresh)
    revoking: Mapping[str, int] = field(default_factory=dict)

    @property
    def phase(self) -> ConsumerGroupPhase:
        """The phase, computed from the epochs."""
        if not self.members:
            return ConsumerGroupPhase.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupPhase.ASSIGNING
        if all(_reconciled(one.current, self.target_epoch) for one in self.members.values()):
            return ConsumerGroupPhase.STABLE
        return ConsumerGroupPhase.RECONCILING

    @property
    def generation(self) -> int:
        """The group epoch, which replaces the classic protocol's generation."""
        return self.epoch

    def static_member(self, instance: str | None) -> ConsumerMember | None:
        """Return the static member of an instance; None if the group has none."""
        if instance is None:
            return None
        found = (one for one in self.members.values() if one.instance == instance)
        return next(found, None)

    def subscribes(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic, so that its offsets do not expire."""
        return any(topic in one.topics for one in self.members.values())

    @property
    def held(self) -> set[TopicPartition]:
        """The partitions that a member may still consume."""
        found: set[TopicPartition] = set()
        for one in self.members.values():
            found |= one.current.assigned | one.current.revoking
        return found


class RejectedHeartbeatError(Exception):
    """The coordinator refuses a heartbeat; the group does not change."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.name)
        self.error = error


def _reconciled(current: ReconcilingMember, epoch: int) -> bool:
    return current.state is MemberState.STABLE and current.epoch == epoch


# ---- the heartbeat -------------------------------------------------------------------------------


def step(
    group: ConsumerGroup | None, received: Received, context: HandlerContext
) -> tuple[ConsumerGroup | None, tuple[Reply, ...]]:
    """Return the group after a heartbeat, and the reply; the group is None if there is none."""
    request = cast(ConsumerGroupHeartbeat, received.request)
    try:
        _check(request)
        if request.epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            after, found = _leave(group, request, context)
        else:
            after, found = _heartbeat(group, request, received.fresh, context)
    except RejectedHeartbeatError as refused:
        return group, answer(received.number, ConsumerGroupAnswer(refused.error))
    return after, answer(received.number, found)


def handler_of(request: ConsumerGroupHeartbeat) -> Callable[..., object]:
    """Return the function that handles a heartbeat."""
    return _leave if request.epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH) else _heartbeat


def _check(request: ConsumerGroupHeartbeat) -> None:
    """Refuse a request whose fields contradict each other."""
    empty = any(text is not None and not text.strip() for text in (request.instance, request.rack))
    joins = request.epoch == JOIN_EPOCH
    incomplete = joins and (
        request.rebalance_timeout_s is None or request.owned != frozenset() or not request.topics
    )
    nameless = not joins and not request.member
    unnamed_static = request.epoch == LEAVE_STATIC_EPOCH and request.instance is None
    if empty or incomplete or nameless or unnamed_static or request.epoch < LEAVE_STATIC_EPOCH:
        raise RejectedHeartbeatError(Error.INVALID_REQUEST)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise RejectedHeartbeatError(Error.UNSUPPORTED_ASSIGNOR)


def _heartbeat(
    group: ConsumerGroup | None,
    request: ConsumerGroupHeartbeat,
    fresh: str,
    context: HandlerContext,
) -> tuple[ConsumerGroup, ConsumerGroupAnswer]:
    """Update the member; compute a new target if anything has changed; let the member reconcile."""
    if group is None and request.epoch != JOIN_EPOCH:
        raise RejectedHeartbeatError(Error.GROUP_ID_NOT_FOUND)
    group = group or ConsumerGroup(request.group)
    if len(group.members) >= context.settings.max_size and request.member not in group.members:
        raise RejectedHeartbeatError(Error.GROUP_MAX_SIZE_REACHED)
    name = request.member or fresh
    group, before = _member(group, request, name)
    member = _updated(before, request)
    held = group.held
    group = _put(group, member)
    group = _assign_if_changed(group, before, member, context)
    target = group.target.get(name, frozenset())
    current = member.current
    if not _reconciled(current, group.target_epoch):
        current = reconcile(
            current,
            target_epoch=group.target_epoch,
            target=target,
            owned=request.owned,
            held=held,
        )
    if current != member.current:
        group = _watch_revocation(group, member, current, context)
    group = _put(group, replace(member, current=current))
    group = schedule(
        group, Timer(TimerPurpose.SESSION, name), context.now_s + context.settings.session_s
    )
    full = request.epoch == JOIN_EPOCH or None not in (
        request.rebalance_timeout_s,
        request.topics,
        request.owned,
    )
    changed = full or current.assigned != before.current.assigned
    return group, ConsumerGroupAnswer(
        Error.NONE,
        name,
        current.epoch,
        context.settings.heartbeat_s,
        current.assigned if changed else None,
    )


def _member(
    group: ConsumerGroup, request: ConsumerGroupHeartbeat, name: str
) -> tuple[ConsumerGroup, ConsumerMember]:
    """Return the sender of the heartbeat in its previous state.

    A static member that returns after `LEAVE_STATIC_EPOCH` replaces its old member id.
    """
    joins = request.epoch == JOIN_EPOCH
    if request.instance is None:
        member = group.members.get(name)
        if member is None and not joins:
            raise RejectedHeartbeatError(Error.UNKNOWN_MEMBER_ID)
        member = member or ConsumerMember(name)
        _check_epoch(member, request)
        return group, member
    existing = group.static_member(request.instance)
    if not joins:
        if existing is None:
            raise RejectedHeartbeatError(Error.UNKNOWN_MEMBER_ID)
        if existing.member != request.member:
            raise RejectedHeartbeatError(Error.FENCED_INSTANCE_ID)
        _check_epoch(existing, request)
        return group, existing
    if existing is None:
        return group, group.members.get(name) or ConsumerMember(name)
    if existing.current.epoch != LEAVE_STATIC_EPOCH:
        raise RejectedHeartbeatError(Error.UNRELEASED_INSTANCE_ID)
    current = replace(existing.current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    member = replace(existing, member=name, current=current)
    target = group.target.get(existing.member, frozenset())
    group = _put(_drop(group, existing.member), member)
    return replace(group, target={**group.target, name: target}), member


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeat) -> None:
    """Refuse a wrong epoch. Accept the previous epoch of a member that may have lost the last
    reply."""
    current = member.current
    if request.epoch == current.epoch:
        return
    lost_reply = (
        request.epoch < current.epoch
        and request.epoch == current.previous_epoch
        and request.owned is not None
        and request.owned <= current.assigned
    )
    if not lost_reply:
        raise RejectedHeartbeatError(Error.FENCED_MEMBER_EPOCH)


def _updated(member: ConsumerMember, request: ConsumerGroupHeartbeat) -> ConsumerMember:
    """Return the member with the fields that the request sets."""
    timeout_s = request.rebalance_timeout_s
    return replace(
        member,
        instance=member.instance if request.instance is None else request.instance,
        rack=member.rack if request.rack is None else request.rack,
        rebalance_s=member.rebalance_s if timeout_s is None else timeout_s,
        topics=member.topics if request.topics is None else frozenset(request.topics),
        assignor=member.assignor if request.assignor is None else request.assignor,
    )


# ---- the target assignment -----------------------------------------------------------------------


def _assign_if_changed(
    group: ConsumerGroup,
    before: ConsumerMember,
    member: ConsumerMember,
    context: HandlerContext,
) -> ConsumerGroup:
    """Increase the group epoch if a subscription or a topic has changed; then compute the target
    assignment."""
    changed = member.topics != before.topics
    expired = context.now_s >= group.refresh.at_s or group.epoch < group.refresh.epoch
    if changed or expired:
        metadata = _subscribed(group.members.values(), context.topics)
        epoch = group.epoch + (changed or metadata != group.metadata)
        refresh = Refresh(context.now_s + REFRESH_S, epoch)
        group = replace(group, epoch=epoch, metadata=metadata, refresh=refresh)
    if group.epoch > group.target_epoch:
        group = _assign(group, _preferred(group, before, member))
    return group


def _subscribed(
    members: Iterable[ConsumerMember], topics: Mapping[str, Topic]
) -> Mapping[str, Topic]:
    """Return the topics of the cluster to which at least one of the members subscribes."""
    wanted = {name for one in members for name in one.topics}
    return {name: topic for name, topic in topics.items() if name in wanted}


def _assign(group: ConsumerGroup, assignor: str) -> ConsumerGroup:
    """Compute the target assignment of the group epoch."""
    subscriptions = {
        name: Subscription(
            tuple(one.topics),
            tuple(sorted(group.target.get(name, ()))),
            rack=one.rack,
            instance=one.instance,
        )
        for name, one in group.members.items()
    }
    try:
        found = assign(ASSIGNORS[assignor], group.metadata, subscriptions)
    except JavaError as error:
        raise RejectedHeartbeatError(Error.UNKNOWN_SERVER_ERROR) from error
    target = {name: frozenset(partitions) for name, partitions in found.items()}
    return replace(group, target=target, target_epoch=group.epoch)


def _preferred(group: ConsumerGroup, before: ConsumerMember, member: ConsumerMember) -> str:
    """Return the assignor that most members prefer.

    The order of a bin of Java's hash map decides a tie. An assignor that only the sender of this
    heartbeat prefers comes first; otherwise "uniform" comes before "range".
    """
    others = [one for name, one in group.members.items() if name != member.member]
    votes = {
        name: count
        for name in ASSIGNORS
        if (count := sum(one.assignor == name for one in (*others, before)))
    }
    if before.assignor is not None:
        votes[before.assignor] -= 1
        if not votes[before.assignor]:
            del votes[before.assignor]
    if member.assignor is not None:
        new = {} if member.assignor in votes else {member.assignor: 0}
        votes = {**new, **votes}
        votes[member.assignor] += 1
    return max(votes, key=lambda name: votes[name], default=next(iter(ASSIGNORS)))


# ---- leaving and fencing -------------------------------------------------------------------------


def _leave(
    group: ConsumerGroup | None, request: ConsumerGroupHeartbeat, context: HandlerContext
) -> tuple[ConsumerGroup, ConsumerGroupAnswer]:
    """Remove a member; a static member that intends to return keeps its partitions."""
    if group is None:
        raise RejectedHeartbeatError(Error.GROUP_ID_NOT_FOUND)
    member = group.members.get(request.member)
    if request.instance is not None:
        member = group.static_member(request.instance)
    if member is None:
        raise RejectedHeartbeatError(Error.UNKNOWN_MEMBER_ID)
    if member.member != request.member:
        raise RejectedHeartbeatError(Error.FENCED_INSTANCE_ID)
    left = ConsumerGroupAnswer(Error.NONE, request.member, request.epoch)
    if request.instance is not None and request.epoch == LEAVE_STATIC_EPOCH:
        current = replace(member.current, epoch=LEAVE_STATIC_EPOCH, revoking=frozenset())
        return _put(group, replace(member, current=current)), left
    return _fence(group, member.member, context), left


def _fence(group: ConsumerGroup, member: str, context: HandlerContext) -> ConsumerGroup:
    """Remove a member; its partitions are free at once, and the next heartbeat assigns them."""
    group = _drop(group, member)
    metadata = _subscribed(group.members.values(), context.topics)
    return replace(group, epoch=group.epoch + 1, metadata=metadata)


def expire(group: ConsumerGroup, timer: Timer, context: HandlerContext) -> ConsumerGroup:
    """Handle the end of a session, or of the time in which a member must revoke partitions."""
    group = cancel(group, timer)
    member = group.members.get(timer.member)
    if member is None:
        return group
    if timer.purpose is TimerPurpose.REVOKE and member.current.epoch != group.revoking.get(
        member.member
    ):
        return group
    return _fence(group, member.member, context)


def _watch_revocation(
    group: ConsumerGroup,
    member: ConsumerMember,
    current: ReconcilingMember,
    context: HandlerContext,
) -> ConsumerGroup:
    """Start or stop the rebalance timeout of a member."""
    timer = Timer(TimerPurpose.REVOKE, member.member)
    if current.state is not MemberState.UNREVOKED_PARTITIONS:
        return cancel(group, timer)
    group = replace(group, revoking={**group.revoking, member.member: current.epoch})
    return schedule(group, timer, context.now_s + member.rebalance_s)


# ---- offsets -------------------------------------------------------------------------------------


def commit_error(group: ConsumerGroup, request: OffsetCommit) -> Error:
    """Return the error for which a commit is refused; `Error.NONE` if the commit is accepted."""
    if request.generation < 0 and not group.members:
        return Error.NONE
    return _epoch_error(group, request.member, request.generation)


def fetch_error(group: ConsumerGroup, request: OffsetFetch) -> Error:
    """Return the error for which a read of offsets is refused; `Error.NONE` if it is accepted."""
    if request.member is None and request.epoch < 0:
        return Error.NONE
    return _epoch_error(group, request.member or "", request.epoch)


def _epoch_error(group: ConsumerGroup, name: str, epoch: int) -> Error:
    member = group.members.get(name)
    if member is None:
        return Error.UNKNOWN_MEMBER_ID
    return Error.NONE if member.current.epoch == epoch else Error.STALE_MEMBER_EPOCH


# ---- small changes, and the stored form ----------------------------------------------------------


def _put(group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroup:
    return replace(group, members={**group.members, member.member: member})


def _drop(group: ConsumerGroup, member: str) -> ConsumerGroup:
    for alarm in (TimerPurpose.SESSION, TimerPurpose.REVOKE):
        group = cancel(group, Timer(alarm, member))
    return replace(
        group,
        members={name: one for name, one in group.members.items() if name != member},
        target={name: one for name, one in group.target.items() if name != member},
        revoking={name: one for name, one in group.revoking.items() if name != member},
    )


def topics_changed(
    group: ConsumerGroup, old: Mapping[str, Topic], new: Mapping[str, Topic]
) -> ConsumerGroup:
    """Make the next heartbeat compare the topics if a subscribed topic has changed."""
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    if any(group.subscribes(name) for name in changed):
        return replace(group, refresh=Refresh())
    return group


def write(group: ConsumerGroup) -> ConsumerGroup:
    """Return the group's record for `__consumer_offsets`: all fields except the timers."""
    return replace(group, refresh=Refresh(), timers={}, revoking={}, serial=0)


def read(group: ConsumerGroup, context: HandlerContext) -> ConsumerGroup:
    """Return the group that a new coordinator reads, with all sessions restarted."""
    for name, one in group.members.items():
        at_s = context.now_s + context.settings.session_s
        group = schedule(group, Timer(TimerPurpose.SESSION, name), at_s)
        if one.current.state is MemberState.UNREVOKED_PARTITIONS:
            group = _watch_revocation(group, one, one.current, context)
    return group
