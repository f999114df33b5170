"""The group coordinator of one broker: `step(state, event, now_s) -> (state, replies)`.

A broker coordinates the groups of those partitions of `__consumer_offsets` that it leads. For other
groups it answers NOT_COORDINATOR. While it loads a partition, it answers
COORDINATOR_LOAD_IN_PROGRESS. This module does not answer `FindCoordinator`: every broker answers it
from the cluster's metadata.

A member of one protocol cannot join a group of the other protocol unless the group is empty. Kafka
can convert such groups (`group.consumer.migration.policy`), but this model does not.

The offsets of a group are in the same partition of `__consumer_offsets` as the group, so both move
together with the coordinator. Source: `OffsetMetadataManager` of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from zkconsumer.frozen import dataclass
from zkconsumer.later import classic_group, consumer_group
from zkconsumer.later.classic_state import (
    ClassicGroup,
    GroupRecord,
    HandlerContext,
    Timer,
    answer,
    read,
)
from zkconsumer.later.consumer_group import ConsumerGroup, ConsumerGroupPhase
from zkconsumer.later.group_events import (
    BrokerSettings,
    Elected,
    Event,
    Loaded,
    Received,
    Reply,
    Resigned,
    Tick,
    TopicsChanged,
)
from zkconsumer.later.group_phases import GroupPhase
from zkconsumer.protocol.later.messages import (
    CONSUMER,
    ConsumerGroupAnswer,
    ConsumerGroupHeartbeat,
    Error,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFetched,
    Request,
    Response,
    Synced,
    SyncGroup,
)
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition, coordinator_partition

Group = ClassicGroup | ConsumerGroup


class CommittedOffset(NamedTuple):
    """A stored offset, and when it was committed."""

    offset: OffsetAndMetadata
    at_s: float


Offsets = Mapping[TopicPartition, CommittedOffset]


class Expiry(NamedTuple):
    """The conditions under which the offsets of a group expire.

    Attributes:
        since_s: the start of the retention of all offsets, which is when the group became empty;
            None if the retention of each offset starts at its commit.
        subscribed: returns whether the group subscribes to a topic; offsets of such a topic never
            expire.
    """

    since_s: float | None
    subscribed: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of `__consumer_offsets` that the broker leads.

    Attributes:
        loading: whether the broker is still reading the partition.
        groups: the groups by group id.
        offsets: the offsets by group id.
        expiry_s: when the coordinator next searches for expired offsets.
    """

    loading: bool = True
    groups: Mapping[str, Group] = field(default_factory=dict)
    offsets: Mapping[str, Offsets] = field(default_factory=dict)
    expiry_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """The state of a broker's group coordinator."""

    settings: BrokerSettings = field(default_factory=BrokerSettings)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    partitions: Mapping[int, Partition] = field(default_factory=dict)


class StoredGroup(NamedTuple):
    """The data of one group in a partition of `__consumer_offsets`."""

    record: GroupRecord | ConsumerGroup | None
    offsets: Offsets


Step = tuple[GroupCoordinator, tuple[Reply, ...]]


def step(state: GroupCoordinator, event: Event, now_s: float) -> Step:
    """Return the state after an event, and the replies to send, in their order."""
    context = HandlerContext(now_s, state.settings, state.topics)
    match event:
        case Received():
            return _received(state, event, context)
        case Tick():
            return _tick(state, context)
        case Elected(partition):
            return _elected(state, partition), ()
        case Loaded(partition, records):
            return _loaded(state, partition, records, context)
        case Resigned(partition):
            return _resigned(state, partition, context)
        case TopicsChanged(topics):
            return _topics_changed(state, topics), ()
    raise AssertionError(f"unknown event {event}")


def handler_of(state: GroupCoordinator, event: Event) -> Callable[..., object]:
    """Return the function that handles an event; for a request to a group, that of the group."""
    match event:
        case Received(request=OffsetCommit()):
            return _commit
        case Received(request=OffsetFetch()):
            return _fetch
        case Received(request=ConsumerGroupHeartbeat() as heartbeat):
            return consumer_group.handler_of(heartbeat)
        case Received(request=request):
            group = group_of(state, request.group)
            if isinstance(group, ClassicGroup):
                return classic_group.handler_of(group, request)
            return _to_group
    return HANDLERS[type(event)]


def group_of(state: GroupCoordinator, group: str) -> Group | None:
    """Return a group that this broker coordinates; None if there is none."""
    place = coordinator_partition(group, state.settings.offsets_partitions)
    partition = state.partitions.get(place)
    return partition.groups.get(group) if partition is not None else None


def _with(state: GroupCoordinator, place: int, partition: Partition) -> GroupCoordinator:
    return replace(state, partitions={**state.partitions, place: partition})


def _elected(state: GroupCoordinator, place: int) -> GroupCoordinator:
    """Lead a partition whose groups the broker has not read yet."""
    return _with(state, place, Partition())


# ---- requests ------------------------------------------------------------------------------------


def _received(state: GroupCoordinator, received: Received, context: HandlerContext) -> Step:
    request = received.request
    place = coordinator_partition(request.group, state.settings.offsets_partitions)
    partition = state.partitions.get(place)
    error = _early_error(request, context.settings)
    if error is Error.NONE and partition is None:
        error = Error.NOT_COORDINATOR
    if error is Error.NONE and partition is not None and partition.loading:
        error = Error.COORDINATOR_LOAD_IN_PROGRESS
    if error is not Error.NONE or partition is None:
        return state, answer(received.number, refusal(request, error))
    match request:
        case OffsetCommit():
            partition, replies = _commit(partition, received, request, context)
        case OffsetFetch():
            replies = answer(received.number, _fetch(partition, request))
        case ConsumerGroupHeartbeat():
            partition, replies = _to_consumer_group(partition, received, context)
        case _:
            partition, replies = _to_group(partition, received, context)
    return _with(state, place, partition), replies


def _early_error(request: Request, settings: BrokerSettings) -> Error:
    """Return the error of a request that the coordinator refuses for any group."""
    if isinstance(request, ConsumerGroupHeartbeat):
        return Error.NONE if request.group.strip() else Error.INVALID_REQUEST
    if not request.group and not isinstance(request, OffsetCommit | OffsetFetch):
        return Error.INVALID_GROUP_ID
    if isinstance(request, JoinGroup):
        timeout_s = request.session_timeout_s
        if not settings.min_session_s <= timeout_s <= settings.max_session_s:
            return Error.INVALID_SESSION_TIMEOUT
    return Error.NONE


def refusal(request: Request, error: Error) -> Response:
    """Return the response that reports an error."""
    match request:
        case JoinGroup():
            known = error in (Error.INVALID_GROUP_ID, Error.INVALID_SESSION_TIMEOUT)
            return Joined(error, request.member if known else "")
        case SyncGroup():
            return Synced(error)
        case Heartbeat() if error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatAnswer()  # the coordinator does not know the group's state yet
        case Heartbeat():
            return HeartbeatAnswer(error)
        case LeaveGroup() if error is Error.UNKNOWN_MEMBER_ID:
            return Left(leavers=tuple((one, error) for one in request.leavers))
        case LeaveGroup():
            return Left(error)
        case OffsetCommit():
            return OffsetsCommitted(error)
        case OffsetFetch():
            return OffsetsFetched(error)
        case ConsumerGroupHeartbeat():
            return ConsumerGroupAnswer(error)
    raise AssertionError(f"unknown request {request}")


def _to_group(
    partition: Partition, received: Received, context: HandlerContext
) -> tuple[Partition, tuple[Reply, ...]]:
    """Let a group handle a request; the first JoinGroup without member id creates the group."""
    request = received.request
    group = partition.groups.get(request.group)
    if isinstance(group, ConsumerGroup):
        if group.members and isinstance(request, JoinGroup):
            found = Joined(Error.INCONSISTENT_GROUP_PROTOCOL, request.member)
            return partition, answer(received.number, found)
        group = None
    created = group is None and isinstance(request, JoinGroup) and not request.member
    if created:
        group = ClassicGroup(request.group, since_s=context.now_s)
    if group is None:
        error = refusal(request, Error.UNKNOWN_MEMBER_ID)
        if isinstance(request, JoinGroup):
            error = Joined(Error.UNKNOWN_MEMBER_ID, request.member)
        return partition, answer(received.number, error)
    group, replies = classic_group.step(group, received, context)
    if created and group.record is None:
        group = replace(group, record=GroupRecord(0, None, None, None, group.since_s))
    return replace(partition, groups={**partition.groups, request.group: group}), replies


def _commit(
    partition: Partition, received: Received, request: OffsetCommit, context: HandlerContext
) -> tuple[Partition, tuple[Reply, ...]]:
    """Store offsets; a commit without a generation creates the group."""
    group = partition.groups.get(request.group)
    if group is None and request.generation >= 0:
        return partition, answer(received.number, OffsetsCommitted(Error.GROUP_ID_NOT_FOUND))
    if group is None:
        group = ClassicGroup(request.group, since_s=context.now_s)
    if isinstance(group, ConsumerGroup):
        error = consumer_group.commit_error(group, request)
    else:
        error = classic_group.commit_error(group, request)
    if error is Error.NONE:
        if isinstance(group, ClassicGroup):
            group = classic_group.committed(group, request, context)
        stored = partition.offsets.get(request.group, {})
        new = {
            one: CommittedOffset(offset, context.now_s) for one, offset in request.offsets.items()
        }
        partition = replace(
            partition,
            groups={**partition.groups, request.group: group},
            offsets={**partition.offsets, request.group: {**stored, **new}},
        )
    return partition, answer(received.number, OffsetsCommitted(error))


def _fetch(partition: Partition, request: OffsetFetch) -> OffsetsFetched:
    """Return stored offsets; a member of KIP-848 gets none after it was fenced."""
    group = partition.groups.get(request.group)
    if isinstance(group, ConsumerGroup):
        error = consumer_group.fetch_error(group, request)
        if error is not Error.NONE:
            return OffsetsFetched(error)
    stored = partition.offsets.get(request.group, {})
    wanted = stored if request.partitions is None else request.partitions
    return OffsetsFetched(offsets={one: stored[one].offset for one in wanted if one in stored})


def _to_consumer_group(
    partition: Partition, received: Received, context: HandlerContext
) -> tuple[Partition, tuple[Reply, ...]]:
    """Let a group of KIP-848 handle a heartbeat; it replaces an empty classic group."""
    name = received.request.group
    group = partition.groups.get(name)
    if isinstance(group, ClassicGroup) and group.phase is not GroupPhase.EMPTY:
        found = ConsumerGroupAnswer(Error.GROUP_ID_NOT_FOUND)
        return partition, answer(received.number, found)
    before = group if isinstance(group, ConsumerGroup) else None
    after, replies = consumer_group.step(before, received, context)
    if after is None:
        return partition, replies
    return replace(partition, groups={**partition.groups, name: after}), replies


def _topics_changed(state: GroupCoordinator, topics: Mapping[str, Topic]) -> GroupCoordinator:
    """Store the cluster's topics; subscribed groups get a new target at their next heartbeat."""
    partitions = {}
    for place, partition in state.partitions.items():
        groups = {
            name: consumer_group.topics_changed(group, state.topics, topics)
            if isinstance(group, ConsumerGroup)
            else group
            for name, group in partition.groups.items()
        }
        partitions[place] = replace(partition, groups=groups)
    return replace(state, topics=topics, partitions=partitions)


# ---- time ----------------------------------------------------------------------------------------


class _Deadline(NamedTuple):
    """A deadline; an empty `group` stands for the search for expired offsets."""

    at_s: float
    serial: int
    partition: int
    group: str
    timer: Timer | None


def _deadlines(state: GroupCoordinator) -> Iterator[_Deadline]:
    for place, partition in state.partitions.items():
        yield _Deadline(partition.expiry_s, -1, place, "", None)
        for name, group in partition.groups.items():
            for timer, due in group.timers.items():
                yield _Deadline(due.at_s, due.serial, place, name, timer)


def next_deadline(state: GroupCoordinator) -> float:
    """Return when the next `Tick` is due, in the seconds of `now_s`; infinity for never."""
    return min((one.at_s for one in _deadlines(state)), default=float("inf"))


def _tick(state: GroupCoordinator, context: HandlerContext) -> Step:
    """Handle all deadlines that have passed, in their order."""
    replies: tuple[Reply, ...] = ()
    while True:
        due = min((one for one in _deadlines(state) if one.at_s <= context.now_s), default=None)
        if due is None:
            return state, replies
        partition = state.partitions[due.partition]
        if due.timer is None:
            partition = _expire_offsets(partition, context)
        else:
            group, more = _expire(partition.groups[due.group], due.timer, context)
            partition = replace(partition, groups={**partition.groups, due.group: group})
            replies += more
        state = _with(state, due.partition, partition)


def _expire(group: Group, timer: Timer, context: HandlerContext) -> tuple[Group, tuple[Reply, ...]]:
    if isinstance(group, ConsumerGroup):
        return consumer_group.expire(group, timer, context), ()
    return classic_group.expire(group, timer, context)


def _expire_offsets(partition: Partition, context: HandlerContext) -> Partition:
    """Delete expired offsets, and empty groups without offsets."""
    groups, offsets = dict(partition.groups), dict(partition.offsets)
    for name, group in partition.groups.items():
        stored = offsets.pop(name, {})
        expiry = _expiry(group)
        if stored and expiry is not None:
            stored = _unexpired(stored, expiry, context)
        if stored:
            offsets[name] = stored
        elif group.phase in (GroupPhase.EMPTY, ConsumerGroupPhase.EMPTY):
            del groups[name]
    expiry_s = context.now_s + context.settings.retention_check_s
    return replace(partition, groups=groups, offsets=offsets, expiry_s=expiry_s)


def _unexpired(offsets: Offsets, expiry: Expiry, context: HandlerContext) -> Offsets:
    """Return the offsets that have not expired."""

    def stays(partition: TopicPartition, found: CommittedOffset) -> bool:
        since_s = found.at_s if expiry.since_s is None else expiry.since_s
        is_young = context.now_s - since_s < context.settings.retention_s
        return expiry.subscribed(partition.topic) or is_young

    return {one: found for one, found in offsets.items() if stays(one, found)}


def _expiry(group: Group) -> Expiry | None:
    """Return when the offsets of a group expire; None while a classic group rebalances."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return Expiry(None, group.subscribes)
    if group.phase is GroupPhase.EMPTY:
        return Expiry(group.since_s, group.subscribes)
    known = group.protocol_type == CONSUMER and group.subscribed is not None
    return Expiry(None, group.subscribes) if known and group.phase is GroupPhase.STABLE else None


# ---- the coordinator moves -----------------------------------------------------------------------


def stored(state: GroupCoordinator, partition: int) -> Mapping[str, StoredGroup]:
    """Return the data of a partition of `__consumer_offsets`, for the `Loaded` of another broker.

    A rebalancing group is stored in its state before the rebalance; a group that has never been
    stable is stored without members.
    """
    found = state.partitions[partition]
    records = {name: _record(group) for name, group in found.groups.items()}
    return {
        name: StoredGroup(record, found.offsets.get(name, {}))
        for name, record in records.items()
        if record is not None or name in found.offsets
    }


def _record(group: Group) -> GroupRecord | ConsumerGroup | None:
    return consumer_group.write(group) if isinstance(group, ConsumerGroup) else group.record


def _loaded(
    state: GroupCoordinator,
    place: int,
    records: Mapping[str, Any],  # Any: a StoredGroup
    context: HandlerContext,
) -> Step:
    """Continue with the groups that the broker has read."""
    replies: tuple[Reply, ...] = ()
    groups: dict[str, Group] = {}
    for name, (record, _) in records.items():
        if isinstance(record, ConsumerGroup):
            groups[name] = consumer_group.read(record, context)
            continue
        group = ClassicGroup(name, since_s=context.now_s)
        if record is not None:
            group = read(name, record, context)
        groups[name], more = classic_group.loaded(group, context)
        replies += more
    offsets = {name: record.offsets for name, record in records.items() if record.offsets}
    expiry_s = context.now_s + context.settings.retention_check_s
    return _with(state, place, Partition(False, groups, offsets, expiry_s)), replies


def _resigned(state: GroupCoordinator, place: int, context: HandlerContext) -> Step:
    """Forget the partition's groups; parked requests make their members look for the new broker."""
    replies: tuple[Reply, ...] = ()
    found = state.partitions.get(place, Partition())
    for group in found.groups.values():
        if isinstance(group, ClassicGroup):
            replies += classic_group.unload(group, context)[1]
    partitions = {one: partition for one, partition in state.partitions.items() if one != place}
    return replace(state, partitions=partitions), replies


HANDLERS: Mapping[type[Event], Callable[..., object]] = {
    Tick: _tick,
    Elected: _elected,
    Loaded: _loaded,
    Resigned: _resigned,
    TopicsChanged: _topics_changed,
}
"""The functions that `step` calls for the events that are no requests."""
