"""A broker that coordinates one KIP-848 group: `step(state, event, now_s) -> (state, replies)`.

It has the interface of `later.group_coordinator`. The coordinator computes a target assignment with
the uniform assignor whenever the group epoch grows. Each member moves to the target alone, in its
heartbeats; `protocol.later.coordination.reconcile` decides how far it may go. It models
`GroupMetadataManager.consumerGroupHeartbeat` of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.later.group_events import (
    Elected,
    Event,
    Loaded,
    Received,
    Reply,
    Resigned,
    Settings,
    TopicsChanged,
)
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.coordination import MemberState, ReconcilingMember, reconcile
from zkconsumer.protocol.later.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Error,
)
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

NEVER = float("inf")
NOBODY: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Member:
    """A member: what it has told, how far it has come, and when it is fenced."""

    topics: tuple[str, ...]
    instance: str | None
    rebalance_s: float
    progress: ReconcilingMember = field(default_factory=ReconcilingMember)
    session_at: float = NEVER
    revoke_by: float = NEVER


@dataclass(frozen=True, slots=True)
class Group:
    """The group: its epoch, its members, and the target assignment of an epoch."""

    epoch: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    target_epoch: int = 0
    target: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    known: Mapping[str, Topic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The state of a broker; `group` is None if it does not coordinate the group, or loads it."""

    settings: Settings = field(default_factory=Settings)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    is_loading: bool = False
    group: Group | None = None


Step = tuple[Coordinator, tuple[Reply, ...]]


def step(state: Coordinator, event: Event, now_s: float) -> Step:
    """Return the state after an event, and the replies to send, in their order."""
    match event:
        case Received(number, request, _, fresh):
            group, response = _answer(state, request, fresh, now_s)
            return replace(state, group=group), (Reply(number, response),)
        case TopicsChanged(topics):
            return replace(state, topics=topics), ()
        case Elected():
            return replace(state, is_loading=True), ()
        case Loaded(_, records):
            read = records.get("", Group())
            assert isinstance(read, Group)
            return replace(state, is_loading=False, group=_revived(state, read, now_s)), ()
        case Resigned():
            return replace(state, group=None), ()
    return replace(state, group=_expired(state.group, now_s)), ()


def stored(state: Coordinator, partition: int) -> Mapping[str, object]:
    """Return what `__consumer_offsets` stores; KIP-848 stores every change of a group."""
    return {} if state.group is None else {"": state.group}


def next_deadline(state: Coordinator) -> float:
    """Return when a member is fenced next, in seconds; infinity for never."""
    members = {} if state.group is None else state.group.members
    return min((min(one.session_at, one.revoke_by) for one in members.values()), default=NEVER)


def is_steady(group: Group) -> bool:
    """Tell whether every member has its part of the newest target."""
    return not group.members or (
        group.epoch == group.target_epoch
        and all(
            one.progress.state is MemberState.STABLE and one.progress.epoch == group.epoch
            for one in group.members.values()
        )
    )


def _revived(state: Coordinator, group: Group, now_s: float) -> Group:
    """Start the members' timers again on a new coordinator."""
    members = {
        name: replace(
            one,
            session_at=now_s + state.settings.session_s,
            revoke_by=NEVER if one.revoke_by == NEVER else now_s + one.rebalance_s,
        )
        for name, one in group.members.items()
    }
    return replace(group, members=members)


def _expired(group: Group | None, now_s: float) -> Group | None:
    """Fence members that have been silent, or have not revoked in time."""
    if group is None:
        return None
    for name, one in group.members.items():
        if min(one.session_at, one.revoke_by) <= now_s:
            group = _without(group, name)
    return group


def _without(group: Group, name: str) -> Group:
    """Remove a member; the group epoch grows."""
    members = {one: member for one, member in group.members.items() if one != name}
    target = {one: partitions for one, partitions in group.target.items() if one != name}
    return replace(group, members=members, target=target, epoch=group.epoch + 1)


# ---- requests ------------------------------------------------------------------------------------


def _answer(
    state: Coordinator, request: msg.Request, fresh: str, now_s: float
) -> tuple[Group | None, msg.Response]:
    group = state.group
    if group is None:
        is_loading = state.is_loading
        error = Error.COORDINATOR_LOAD_IN_PROGRESS if is_loading else Error.NOT_COORDINATOR
        return None, _refusal(request, error)
    match request:
        case msg.OffsetCommit():
            error = _error_of(group, request.member, request.generation)
            if error is Error.NONE:
                group = replace(group, offsets={**group.offsets, **request.offsets})
            return group, msg.OffsetsCommitted(error)
        case msg.OffsetFetch():
            error = _error_of(group, request.member or "", request.epoch)
            wanted = request.partitions or ()
            found = {tp: group.offsets[tp] for tp in wanted if tp in group.offsets}
            return group, msg.OffsetsFetched(error, {} if error else found)
        case msg.ConsumerGroupHeartbeat():
            return _heartbeat(state, group, request, fresh, now_s)
    raise TypeError(type(request).__name__)


def _refusal(request: msg.Request, error: Error) -> msg.Response:
    match request:
        case msg.OffsetCommit():
            return msg.OffsetsCommitted(error)
        case msg.OffsetFetch():
            return msg.OffsetsFetched(error)
    return msg.ConsumerGroupAnswer(error)


def _error_of(group: Group, member: str, epoch: int) -> Error:
    """Return why an offset request is refused."""
    known = group.members.get(member)
    if known is None:
        return Error.UNKNOWN_MEMBER_ID
    return Error.NONE if known.progress.epoch == epoch else Error.STALE_MEMBER_EPOCH


def _heartbeat(
    state: Coordinator,
    group: Group,
    request: msg.ConsumerGroupHeartbeat,
    fresh: str,
    now_s: float,
) -> tuple[Group, msg.Response]:
    name = request.member or fresh[-22:]  # Kafka prints a UUID with 22 characters
    if request.epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return _leave(group, request)
    if request.epoch == JOIN_EPOCH:
        joined = _join(group, name, request)
        if isinstance(joined, Error):
            return group, msg.ConsumerGroupAnswer(joined)
        group = joined
    error = _epoch_error(group, name, request)
    if error is not Error.NONE:
        return group, msg.ConsumerGroupAnswer(error)
    group = _aimed(state, group)
    before = group.members[name]
    after = _moved(state, group, name, request.owned, now_s)
    group = replace(group, members={**group.members, name: after})
    is_full = request.epoch == JOIN_EPOCH or request.owned is not None
    is_news = is_full or before.progress.assigned != after.progress.assigned
    return group, msg.ConsumerGroupAnswer(
        Error.NONE,
        name,
        after.progress.epoch,
        state.settings.heartbeat_s,
        after.progress.assigned if is_news else None,
    )


def _leave(group: Group, request: msg.ConsumerGroupHeartbeat) -> tuple[Group, msg.Response]:
    """Remove a member; a static member that intends to return keeps its partitions."""
    answer = msg.ConsumerGroupAnswer(Error.NONE, request.member, request.epoch)
    known = group.members.get(request.member)
    if known is None:
        return group, msg.ConsumerGroupAnswer(Error.UNKNOWN_MEMBER_ID)
    if request.epoch == LEAVE_EPOCH:
        return _without(group, request.member), answer
    progress = replace(
        known.progress, epoch=LEAVE_STATIC_EPOCH, previous_epoch=known.progress.epoch
    )
    away = replace(known, progress=progress)
    return replace(group, members={**group.members, request.member: away}), answer


def _join(group: Group, name: str, request: msg.ConsumerGroupHeartbeat) -> Group | Error:
    """Add a member, or let a static member return with another id."""
    members, target = dict(group.members), dict(group.target)
    twin = next(
        (
            one
            for one, member in members.items()
            if request.instance and member.instance == request.instance
        ),
        None,
    )
    old = members.get(twin or name)
    fresh = Member(request.topics or (), request.instance, request.rebalance_timeout_s or 300.0)
    if twin is not None and old is not None and twin != name:
        if old.progress.epoch != LEAVE_STATIC_EPOCH:
            return Error.UNRELEASED_INSTANCE_ID
        target[name] = target.pop(twin, NOBODY)
        del members[twin]
    if old is not None:
        fresh = replace(
            fresh, progress=replace(old.progress, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        )
    members[name] = fresh
    is_new = old is None or old.topics != fresh.topics
    return replace(group, members=members, target=target, epoch=group.epoch + is_new)


def _epoch_error(group: Group, name: str, request: msg.ConsumerGroupHeartbeat) -> Error:
    """Return whether an epoch is fenced; the previous one may follow a lost reply."""
    member = group.members.get(name)
    if member is None:
        return Error.UNKNOWN_MEMBER_ID
    progress = member.progress
    if request.epoch in (JOIN_EPOCH, progress.epoch):
        return Error.NONE
    is_previous = request.epoch == progress.previous_epoch
    repeats = request.owned is not None and request.owned <= progress.assigned
    return Error.NONE if is_previous and repeats else Error.FENCED_MEMBER_EPOCH


# ---- the target ----------------------------------------------------------------------------------


def _aimed(state: Coordinator, group: Group) -> Group:
    """Compute the target assignment, if the group or its topics have changed."""
    if state.topics != group.known:
        epoch = max(group.epoch, group.target_epoch + 1)
        group = replace(group, known=state.topics, epoch=epoch)
    if group.epoch == group.target_epoch:
        return group
    subscriptions = {
        name: Subscription(
            one.topics, tuple(sorted(group.target.get(name, NOBODY))), instance=one.instance
        )
        for name, one in group.members.items()
    }
    found = assign(Assignor.UNIFORM, state.topics, subscriptions)
    target = {name: frozenset(found.get(name, ())) for name in group.members}
    return replace(group, target=target, target_epoch=group.epoch)


def _moved(
    state: Coordinator,
    group: Group,
    name: str,
    owned: frozenset[TopicPartition] | None,
    now_s: float,
) -> Member:
    """Let a member come nearer to its target."""
    member = group.members[name]
    held = [
        tp
        for one, other in group.members.items()
        if one != name
        for tp in other.progress.assigned | other.progress.revoking
    ]
    progress = reconcile(
        member.progress,
        target_epoch=group.target_epoch,
        target=group.target.get(name, NOBODY),
        owned=owned,
        held=held,
    )
    must_revoke = progress.state is MemberState.UNREVOKED_PARTITIONS
    revoke_by = min(member.revoke_by, now_s + member.rebalance_s)
    return replace(
        member,
        progress=progress,
        session_at=now_s + state.settings.session_s,
        revoke_by=revoke_by if must_revoke else NEVER,
    )
