"""A classic group at its coordinator: `step(group, received, now) -> (group, replies)`.

`HANDLERS` names the handler of each request by phase. `expire` handles the end of a timer. `unload`
handles the loss of the partition of `__consumer_offsets`. `later.group_phases` lists the phases to
which a handler may lead. The coordinator answers JoinGroup when all members have joined the
rebalance, and SyncGroup when the leader has sent the assignment. Until then the requests are parked
in the state.

Source: `GroupMetadataManager` of Kafka 3.9.1. `group.coordinator.new.enable` switches this
coordinator on in 3.9; from 4.0 on it is the only one. This coordinator handles the classic protocol
like its predecessor (`kafka.coordinator.group.GroupCoordinator`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from zkconsumer.later import group_phases
from zkconsumer.later.classic_state import (
    JOIN,
    SYNC,
    ClassicGroup,
    HandlerContext,
    InitialDelay,
    Member,
    Step,
    Timer,
    TimerPurpose,
    answer,
    cancel,
    enter,
    put_members,
    remove,
    schedule,
    start_session,
    then,
    topics_of,
    write,
)
from zkconsumer.later.group_events import Received, Reply
from zkconsumer.later.group_phases import Cause, GroupPhase
from zkconsumer.protocol.later.messages import (
    UNKNOWN_MEMBER,
    Error,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinGroup,
    LeaveGroup,
    Leaver,
    Left,
    OffsetCommit,
    Request,
    Synced,
    SyncGroup,
)

MEMBER_ID_REQUIRED_SINCE = 4
"""The first version of JoinGroup with which a new dynamic member joins in two steps."""

SKIP_ASSIGNMENT_SINCE = 9
"""The first version of JoinGroup whose response tells a restarted static leader that it leads."""


def step(group: ClassicGroup, received: Received, context: HandlerContext) -> Step:
    """Return the group after a request, and the replies that the request causes.

    Raises:
        IllegalPhaseChangeError: the handler led to a phase that `group_phases` does not allow.
    """
    after, replies = handler_of(group, received.request)(group, received, context)
    return _checked(group, CAUSES.get(type(received.request)), after), replies


def handler_of(group: ClassicGroup, request: Request) -> Handler:
    """Return the function that handles a request in the group's phase."""
    kind = type(request)
    return HANDLERS.get((group.phase, kind)) or HANDLERS[None, kind]


def _checked(before: ClassicGroup, cause: Cause | None, after: ClassicGroup) -> ClassicGroup:
    if after.phase is not before.phase:
        group_phases.check_change(before.phase, () if cause is None else (cause,), after.phase)
    return after


# ---- JoinGroup -----------------------------------------------------------------------------------


def _refuse_join(
    group: ClassicGroup, received: Received, error: Error, member: str = UNKNOWN_MEMBER
) -> Step:
    return group, answer(received.number, Joined(error, member))


def _join(group: ClassicGroup, received: Received, context: HandlerContext) -> Step:
    """Handle JoinGroup from a new member, a restarted static member, or a known member."""
    request = cast(JoinGroup, received.request)
    if not _has_room(group, request.member, context.settings.max_size):
        return _refuse_join(remove(group, request.member), received, Error.GROUP_MAX_SIZE_REACHED)
    if not group.supports(request.protocol_type, request.protocols):
        return _refuse_join(group, received, Error.INCONSISTENT_GROUP_PROTOCOL, request.member)
    if request.member != UNKNOWN_MEMBER:
        return _join_known(group, received, request, context)
    member = f"{request.instance or received.client}-{received.fresh}"
    existing = group.static_member(request.instance)
    if existing is not None:
        return _replace_static(group, received, existing, member, context)
    if request.instance is None and request.version >= MEMBER_ID_REQUIRED_SINCE:
        group = replace(group, pending=group.pending | {member})
        timer = Timer(TimerPurpose.SESSION, member)
        group = schedule(group, timer, context.now_s + request.session_timeout_s)
        return _refuse_join(group, received, Error.MEMBER_ID_REQUIRED, member)
    return _add(group, received, request, member, context)


def _has_room(group: ClassicGroup, member: str, max_size: int) -> bool:
    if group.phase in (GroupPhase.EMPTY, GroupPhase.DEAD):
        return True
    known = group.members.get(member)
    if group.phase is GroupPhase.PREPARING:
        joined = sum(one.join is not None for one in group.members.values())
        return (known is not None and known.join is not None) or joined < max_size
    return known is not None or len(group.members) < max_size


def _join_known(
    group: ClassicGroup, received: Received, request: JoinGroup, context: HandlerContext
) -> Step:
    """Handle JoinGroup with a member id."""
    if request.member in group.pending:
        if request.instance is not None:
            return _refuse_join(group, received, Error.UNKNOWN_SERVER_ERROR)
        return _add(group, received, request, request.member, context)
    error = group.error_of(request.member, request.instance)
    if error is not Error.NONE:
        return _refuse_join(group, received, error, request.member)
    member = group.members[request.member]
    unchanged = member.protocols == request.protocols
    leads = group.leader == request.member
    if group.phase is GroupPhase.COMPLETING and unchanged:
        # The member may have lost the reply to its JoinGroup.
        listed = group.listed() if leads else ()
        return group, answer(received.number, replace(_current(group, member), members=listed))
    if group.phase is GroupPhase.STABLE and unchanged and not leads:
        return group, answer(received.number, _current(group, member))
    group = put_members(group, _updated(member, received, request))
    return _prepare_or_complete(group, context)


def _current(group: ClassicGroup, member: Member) -> Joined:
    """Return the reply that tells a member the current generation, without the list of members."""
    return Joined(
        Error.NONE,
        member.member,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
    )


def _updated(member: Member, received: Received, request: JoinGroup) -> Member:
    """Return the member with its JoinGroup parked. An earlier parked request of the member is never
    answered."""
    return replace(
        member,
        protocols=request.protocols,
        rebalance_s=request.rebalance_timeout_s,
        session_s=request.session_timeout_s,
        join=received.number,
    )


def _add(
    group: ClassicGroup, received: Received, request: JoinGroup, name: str, context: HandlerContext
) -> Step:
    """Add a member, and start a rebalance or continue the running one."""
    member = Member(
        name,
        request.instance,
        received.client,
        request.protocols,
        request.protocol_type,
        request.session_timeout_s,
        request.rebalance_timeout_s,
        join=received.number,
        new=True,
    )
    newcomer = group.phase is GroupPhase.PREPARING and group.previous is GroupPhase.EMPTY
    group = replace(
        group,
        newcomer=group.newcomer or newcomer,
        protocol_type=group.protocol_type if group.members else request.protocol_type,
        leader=group.leader or name,
        pending=group.pending - {name},
    )
    group = put_members(group, member)
    group = start_session(group, member, context, context.settings.new_member_join_s)
    return _prepare_or_complete(group, context)


def _replace_static(
    group: ClassicGroup, received: Received, old: str, new: str, context: HandlerContext
) -> Step:
    """Give a restarted static member a new member id; the old member id is fenced.

    In STABLE the member gets its old assignment without a rebalance, unless the vote on the
    assignor has changed. In COMPLETING the leader may already assign to the old member id, so the
    group rebalances again.
    """
    request = cast(JoinGroup, received.request)
    removed, before = group.members[old], group.leader
    fenced = (
        *answer(removed.join, Joined(Error.FENCED_INSTANCE_ID, old)),
        *answer(removed.sync, Synced(Error.FENCED_INSTANCE_ID)),
    )
    member = replace(removed, member=new, join=None, sync=None, new=False)
    group = cancel(group, Timer(TimerPurpose.SESSION, old))
    group = replace(
        group,
        members={name: one for name, one in group.members.items() if name != old},
        leader=new if group.leader == old else group.leader,
    )
    group = start_session(put_members(group, member), member, context)
    member = _updated(member, received, request)
    group = put_members(group, member)
    if group.phase is GroupPhase.STABLE and group.selected() == group.protocol:
        group = write(group, {one.member: one.assignment for one in group.members.values()})
        group = put_members(group, replace(member, join=None))
        found = replace(_current(group, member), leader=before or "")
        if request.version >= SKIP_ASSIGNMENT_SINCE:
            leads = group.leader == new
            listed = group.listed() if leads else ()
            found = replace(found, leader=group.leader or "", members=listed, skip_assignment=leads)
        return group, fenced + answer(received.number, found)
    following = _prepare if group.phase is GroupPhase.COMPLETING else _prepare_or_complete
    return then((group, fenced), lambda one: following(one, context))


# ---- a rebalance ---------------------------------------------------------------------------------


def _prepare_or_complete(group: ClassicGroup, context: HandlerContext) -> Step:
    """Start a rebalance, or end a running one if all members have joined.

    The first rebalance of a group does not end early.
    """
    if group.phase is not GroupPhase.PREPARING:
        return _prepare(group, context)
    return _complete_if_joined(group, context)


def _complete_if_joined(group: ClassicGroup, context: HandlerContext) -> Step:
    if group.all_joined and group.previous is not GroupPhase.EMPTY:
        return _complete(group, context)
    return group, ()


def _prepare(group: ClassicGroup, context: HandlerContext) -> Step:
    """Start a rebalance: members learn about it from their heartbeats, and join again."""
    replies: tuple[Reply, ...] = ()
    if group.phase is GroupPhase.COMPLETING:
        cleared = (replace(one, assignment=b"") for one in group.members.values())
        group, replies = _propagate(
            put_members(group, *cleared), Error.REBALANCE_IN_PROGRESS, context
        )
    group = cancel(replace(group, unsynced=frozenset()), SYNC)
    if group.phase is GroupPhase.EMPTY:
        delay_s = context.settings.initial_delay_s
        group = _delay(group, delay_s, max(group.rebalance_s - delay_s, 0.0), context)
        return enter(group, GroupPhase.PREPARING, context), replies
    group = enter(group, GroupPhase.PREPARING, context)
    if group.all_joined:
        return then((group, replies), lambda one: _complete(one, context))
    return _wait_for_joins(group, context), replies


def _delay(
    group: ClassicGroup, delay_s: float, remaining_s: float, context: HandlerContext
) -> ClassicGroup:
    """Delay the first rebalance of a group, because more members are likely to start soon."""
    group = schedule(group, JOIN, context.now_s + delay_s)
    return replace(group, initial=InitialDelay(delay_s, remaining_s))


def _wait_for_joins(group: ClassicGroup, context: HandlerContext) -> ClassicGroup:
    return replace(schedule(group, JOIN, context.now_s + group.rebalance_s), initial=None)


def _complete(group: ClassicGroup, context: HandlerContext) -> Step:
    """End the joining: drop dynamic members that have not joined, and begin the next generation."""
    group = replace(cancel(group, JOIN), initial=None)
    for one in list(group.members.values()):
        if one.join is None and one.instance is None:
            group = remove(group, one.member)
    if not group.members:
        return _become_empty(group, context), ()
    leader = group.members[group.leader] if group.leader is not None else None
    if leader is not None and leader.join is None:
        leader = next((one for one in group.in_order() if one.join is not None), None)
    if leader is None:
        return _wait_for_joins(group, context), ()  # only static members remain; none has joined
    group = replace(
        group,
        leader=leader.member,
        generation=group.generation + 1,
        protocol=group.selected(),
        unsynced=frozenset(group.members),
    )
    group = enter(replace(group, subscribed=topics_of(group)), GroupPhase.COMPLETING, context)
    replies: tuple[Reply, ...] = ()
    listed = group.listed()
    for one in group.in_order():
        members = listed if one.member == group.leader else ()
        replies += answer(one.join, replace(_current(group, one), members=members))
        group = start_session(group, one, context)
        group = put_members(group, replace(one, join=None, new=False))
    return schedule(group, SYNC, context.now_s + group.rebalance_s), replies


def _become_empty(group: ClassicGroup, context: HandlerContext) -> ClassicGroup:
    group = replace(group, generation=group.generation + 1, protocol=None, unsynced=frozenset())
    group = enter(replace(group, subscribed=topics_of(group)), GroupPhase.EMPTY, context)
    return write(group, {})


# ---- SyncGroup -----------------------------------------------------------------------------------


def _refuse_sync(group: ClassicGroup, received: Received, error: Error) -> Step:
    return group, answer(received.number, Synced(error))


def _sync(group: ClassicGroup, received: Received, context: HandlerContext) -> Step:
    """Handle SyncGroup: return the assignment, or park the request until the leader sends it."""
    request = cast(SyncGroup, received.request)
    error = _sync_error(group, request)
    if error is not Error.NONE:
        return _refuse_sync(group, received, error)
    if group.phase is GroupPhase.PREPARING:
        return _refuse_sync(group, received, Error.REBALANCE_IN_PROGRESS)
    member = group.members[request.member]
    group = replace(group, unsynced=group.unsynced - {request.member})
    if not group.unsynced:
        group = cancel(group, SYNC)
    if group.phase is GroupPhase.STABLE:
        found = Synced(Error.NONE, member.assignment, group.protocol_type, group.protocol)
        return group, answer(received.number, found)
    group = put_members(group, replace(member, sync=received.number))
    if request.member != group.leader:
        return group, ()
    assigned = (
        replace(one, assignment=request.assignments.get(one.member, b""))
        for one in group.members.values()
    )
    group = write(put_members(group, *assigned), request.assignments)
    group, replies = _propagate(group, Error.NONE, context)
    return enter(group, GroupPhase.STABLE, context), replies


def _sync_error(group: ClassicGroup, request: SyncGroup) -> Error:
    error = group.error_of(request.member, request.instance)
    if error is not Error.NONE:
        return error
    if request.generation != group.generation:
        return Error.ILLEGAL_GENERATION
    for theirs, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol, group.protocol),
    ):
        if theirs is not None and ours is not None and theirs != ours:
            return Error.INCONSISTENT_GROUP_PROTOCOL
    return Error.NONE


def _propagate(group: ClassicGroup, error: Error, context: HandlerContext) -> Step:
    """Answer every parked SyncGroup."""
    replies: tuple[Reply, ...] = ()
    kind, name = group.protocol_type, group.protocol
    for one in group.in_order():
        if one.sync is None:
            continue
        found = Synced(Error.NONE, one.assignment, kind, name) if not error else Synced(error)
        replies += answer(one.sync, found)
        group = put_members(start_session(group, one, context), replace(one, sync=None))
    return group, replies


# ---- Heartbeat, LeaveGroup, OffsetCommit ---------------------------------------------------------


def _heartbeat(group: ClassicGroup, received: Received, context: HandlerContext) -> Step:
    """Handle Heartbeat: prolong the session, and report a rebalance."""
    request = cast(Heartbeat, received.request)
    error = group.error_of(request.member, request.instance)
    if error is Error.NONE and request.generation != group.generation:
        error = Error.ILLEGAL_GENERATION
    if error is not Error.NONE:
        return group, answer(received.number, HeartbeatAnswer(error))
    group = start_session(group, group.members[request.member], context)
    if group.phase is GroupPhase.PREPARING:
        error = Error.REBALANCE_IN_PROGRESS
    return group, answer(received.number, HeartbeatAnswer(error))


def _leave(group: ClassicGroup, received: Received, context: HandlerContext) -> Step:
    """Handle LeaveGroup: remove each leaver, and rebalance if a member was removed."""
    request = cast(LeaveGroup, received.request)
    replies: tuple[Reply, ...] = ()
    results: list[tuple[Leaver, Error]] = []
    for leaver in request.leavers:
        name: str | None = leaver.member
        if leaver.member == UNKNOWN_MEMBER:
            name = group.static_member(leaver.instance)
            error = Error.UNKNOWN_MEMBER_ID if name is None else Error.NONE
        elif leaver.member in group.pending:
            error = Error.NONE
        else:
            error = group.error_of(leaver.member, leaver.instance)
        results.append((leaver, error))
        if error is Error.NONE and name is not None:
            if name in group.members:
                replies += _lost_join(group.members[name])
            group = remove(group, name)
    replies += answer(received.number, Left(Error.NONE, tuple(results)))
    left = any(error is Error.NONE for _, error in results)
    if not left or group.phase is GroupPhase.EMPTY:
        return group, replies
    return then((group, replies), lambda one: _prepare_or_complete(one, context))


def _lost_join(member: Member) -> tuple[Reply, ...]:
    """Answer the parked JoinGroup of a removed member, so that it joins again as a new member."""
    return answer(member.join, Joined(Error.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER))


def commit_error(group: ClassicGroup, request: OffsetCommit) -> Error:
    """Return the error for which a commit is refused; `Error.NONE` if the commit is accepted.

    The check of the generation prevents a zombie from overwriting the offsets of its successor.
    """
    if request.generation < 0 and group.phase is GroupPhase.EMPTY:
        return Error.NONE  # a consumer that assigns partitions itself, or an operator
    anonymous = request.member == UNKNOWN_MEMBER and request.instance is None
    if request.generation < 0 and anonymous:
        return Error.UNKNOWN_MEMBER_ID
    error = group.error_of(request.member, request.instance)
    if error is not Error.NONE:
        return error
    if request.generation != group.generation:
        return Error.ILLEGAL_GENERATION
    if group.phase is GroupPhase.COMPLETING:
        return Error.REBALANCE_IN_PROGRESS
    return Error.NONE


def committed(group: ClassicGroup, request: OffsetCommit, context: HandlerContext) -> ClassicGroup:
    """Return the group after an accepted commit, which prolongs the member's session."""
    member = group.members.get(request.member)
    if member is None or group.phase not in (GroupPhase.STABLE, GroupPhase.PREPARING):
        return group
    return start_session(group, member, context)


# ---- time, and the end ---------------------------------------------------------------------------


def expire(group: ClassicGroup, timer: Timer, context: HandlerContext) -> Step:
    """Handle the end of a timer."""
    before = group
    group = cancel(group, timer)
    match timer.purpose:
        case TimerPurpose.JOIN:
            cause, (after, replies) = Cause.JOIN_DEADLINE, _join_expired(group, context)
        case TimerPurpose.SYNC:
            cause, (after, replies) = Cause.SYNC_DEADLINE, _sync_expired(group, context)
        case TimerPurpose.SESSION:
            found = _session_expired(group, timer.member, context)
            cause, (after, replies) = Cause.SESSION_DEADLINE, found
    return _checked(before, cause, after), replies


def _join_expired(group: ClassicGroup, context: HandlerContext) -> Step:
    if group.initial is None or not group.newcomer or not group.initial.remaining_s:
        return _complete(group, context)
    # A member has joined during this part of the delay, so more members may follow: wait for
    # another part.
    delay_s, remaining_s = group.initial
    group = replace(group, newcomer=False)
    next_s = min(context.settings.initial_delay_s, remaining_s)
    return _delay(group, next_s, max(remaining_s - delay_s, 0.0), context), ()


def _sync_expired(group: ClassicGroup, context: HandlerContext) -> Step:
    """Remove the members that have not sent SyncGroup, and rebalance."""
    if group.phase not in (GroupPhase.COMPLETING, GroupPhase.STABLE) or not group.unsynced:
        return group, ()
    for member in sorted(group.unsynced):
        group = remove(group, member)
    return _prepare(group, context)


def _session_expired(group: ClassicGroup, name: str, context: HandlerContext) -> Step:
    """Remove a member that has sent nothing for its session timeout."""
    member = group.members.get(name)
    if member is not None and member.alive:
        return group, ()
    if member is None and name not in group.pending:
        return group, ()
    group = remove(group, name)
    replies = _lost_join(member) if member is not None else ()
    if group.phase is GroupPhase.PREPARING:
        return then(
            (group, replies), lambda one: _complete(one, context) if one.all_joined else (one, ())
        )
    if member is None:
        return group, replies
    return then((group, replies), lambda one: _prepare(one, context))


def unload(group: ClassicGroup, context: HandlerContext) -> Step:
    """End the group at this broker, because another broker now coordinates it."""
    replies: tuple[Reply, ...] = ()
    for one in group.in_order():
        if group.phase is GroupPhase.PREPARING:
            replies += answer(one.join, Joined(Error.NOT_COORDINATOR, one.member))
        else:
            replies += answer(one.sync, Synced(Error.NOT_COORDINATOR))
    return _checked(group, Cause.RESIGNED, enter(group, GroupPhase.DEAD, context)), replies


def loaded(group: ClassicGroup, context: HandlerContext) -> Step:
    """Continue with a group that was read from the log; rebalance if the group has more members
    than permitted."""
    if len(group.members) > context.settings.max_size:
        return _prepare(group, context)
    return group, ()


# ---- the table -----------------------------------------------------------------------------------


def _unknown_sync(group: ClassicGroup, received: Received, _: HandlerContext) -> Step:
    """Refuse a SyncGroup, because an empty group has no members."""
    return _refuse_sync(group, received, Error.UNKNOWN_MEMBER_ID)


Handler = Callable[[ClassicGroup, Received, HandlerContext], Step]
HANDLERS: Mapping[tuple[GroupPhase | None, type[Request]], Handler] = {
    (None, JoinGroup): _join,
    (None, SyncGroup): _sync,
    (None, Heartbeat): _heartbeat,
    (None, LeaveGroup): _leave,
    (GroupPhase.EMPTY, SyncGroup): _unknown_sync,
}
CAUSES: Mapping[type[Request], Cause] = {
    JoinGroup: Cause.JOIN,
    SyncGroup: Cause.SYNC,
    LeaveGroup: Cause.LEAVE,
}
