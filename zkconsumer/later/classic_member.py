"""A member of the classic protocol as a state machine: `step(state, event) -> (state, commands)`.

The member finds its coordinator, commits and revokes, sends JoinGroup and SyncGroup, applies its
assignment, and sends heartbeats. If it leads the group, it computes the assignment with the
assignor that the coordinator names. The machine models `AbstractCoordinator` and
`ConsumerCoordinator` of Kafka 3.9.1.

A real member has two threads. `_user_thread` does the work of the user's thread in `poll`, and
`_heartbeat_thread` the work of the heartbeat thread. After each event both run, but `_user_thread`
only while the user is in `poll`. `ANSWERS` names the handler of each response.

Differences from Kafka: a listener takes no time, a retry has no jitter, and a member asks the first
of several equally loaded brokers for the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zkconsumer.later import client_state
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import MEMBER, OVER, ClassicPhase, ClassicState
from zkconsumer.later.client_state import (
    BACKOFF_S,
    COORDINATOR_MOVED,
    NEVER,
    REQUEST_S,
    Answer,
    InFlightRequest,
    Mode,
)
from zkconsumer.later.member_events import Callback, CallListener, Commands, then
from zkconsumer.protocol.java import JavaError
from zkconsumer.protocol.later import consumer_protocol as wire
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.assignors import Assignor, assign, assign_only
from zkconsumer.protocol.later.messages import NO_GENERATION, UNKNOWN_MEMBER, Error
from zkconsumer.protocol.later.subscriptions import Subscription, Topic

Step = tuple[ClassicState, Commands]

JOIN_LAPSE_S = 5.0
"""The extra time, in seconds, that a member waits for the response to JoinGroup.

This extra time begins after the rebalance timeout (Kafka: `JOIN_GROUP_TIMEOUT_LAPSE`).
"""

CLOSE_S = 30.0
"""The time, in seconds, that a closing member waits for its last commit."""

REJOIN_AT_ONCE = frozenset(
    {
        Error.UNKNOWN_MEMBER_ID,
        Error.ILLEGAL_GENERATION,
        Error.REBALANCE_IN_PROGRESS,
        Error.MEMBER_ID_REQUIRED,
    }
)
"""Errors of a join after which the member joins again without a back-off."""

RETRIABLE = COORDINATOR_MOVED | {Error.COORDINATOR_LOAD_IN_PROGRESS}
"""Errors after which the same request may succeed later."""


class ImpossibleEventError(Exception):
    """An event of an unknown class: a defect of the caller."""


def step(state: ClassicState, event: ev.Event) -> Step:
    """Return the state after an event, and the commands to run."""
    if state.phase in OVER:
        return state, ()
    handler = HANDLERS.get(type(event))
    if handler is None:
        raise ImpossibleEventError(type(event).__name__)
    result = then(handler(state, event), lambda s: client_state.drop_overdue(s, event.now, _drop))
    result = then(result, lambda s: _heartbeat_thread(s, event.now))
    return then(result, lambda s: _user_thread(s, event.now))


def handlers_of(state: ClassicState, event: ev.Event) -> tuple[client_state.Handler, ...]:
    """Return the functions that handle an event; for a `Tick`, those of the client's threads."""
    if isinstance(event, ev.Tick):
        return _heartbeat_thread, _user_thread
    return (client_state.handler_of(state, event, HANDLERS, ANSWERS),)


def next_deadline(state: ClassicState, now: float) -> float:
    """Return the next moment after `now` at which a `Tick` is due; infinity for never."""
    if state.phase in OVER:
        return NEVER
    due = [state.client.next_look_up, *(one.until for one in state.client.sent.values())]
    if state.phase in MEMBER:
        due += [state.heartbeat_at, state.poll_until, state.heard_at + state.settings.session_s]
    if state.polling:
        due += [state.auto_commit_at, state.retry_at]
        due += [state.closing or NEVER, state.commit_until or NEVER]
    return min((at for at in due if at > now), default=NEVER)


def is_over(state: ClassicState) -> bool:
    """Return whether the member has ended permanently."""
    return state.phase in OVER


def is_settled(state: ClassicState) -> bool:
    """Return whether the member is stable and has no pending work."""
    waits = state.rejoin or state.received is not None or state.loading or state.closing
    return state.phase is ClassicPhase.STABLE and not waits and state.client.coordinator is not None


# ---- events --------------------------------------------------------------------------------------


def _poll_returned(state: ClassicState, event: ev.Event) -> Step:
    """The user works on messages: from now on, `max.poll.interval.ms` counts."""
    until = event.now + state.settings.poll_s
    return replace(state, polling=False, poll_until=until), ()


def _answered(state: ClassicState, event: ev.Event) -> Step:
    """Pass a response to the handler of its request."""
    return client_state.take_answer(state, event, ANSWERS)


def _disconnected(state: ClassicState, event: ev.Event) -> Step:
    """Forget the requests on the broken connection."""
    assert isinstance(event, ev.Disconnected)
    return _drop(state, event.broker, event.now), ()


def _close(state: ClassicState, event: ev.Event) -> Step:
    """Commit for the last time, then leave; see `_closing`."""
    return replace(
        state, closing=event.now + CLOSE_S, polling=True, commit=None, commit_until=None
    ), ()


HANDLERS: Mapping[type[ev.Event], Callable[[ClassicState, ev.Event], Step]] = {
    ev.PollStarted: client_state.poll_started,
    ev.PollReturned: _poll_returned,
    ev.Tick: client_state.ticked,
    ev.Answered: _answered,
    ev.Disconnected: _disconnected,
    ev.MetadataChanged: client_state.metadata_changed,
    ev.Consumed: client_state.consumed,
    ev.CloseRequested: _close,
}


def _drop(state: ClassicState, broker: int, now: float) -> ClassicState:
    """Forget the requests to a broker; send again those that the coordinator has not answered."""
    is_coordinator = broker == state.client.coordinator
    state = replace(state, client=client_state.dropped(state.client, broker, now))
    return replace(state, retry_at=now + BACKOFF_S) if is_coordinator else state


# ---- the heartbeat thread ------------------------------------------------------------------------


def _heartbeat_thread(state: ClassicState, now: float) -> Step:
    """Send a heartbeat if it is due; leave if the user has not called `poll` in time."""
    if state.phase not in MEMBER:
        return state, ()
    if state.client.coordinator is None:
        return _look_up(state, now)
    if now >= state.heard_at + state.settings.session_s:
        # After a session timeout without an answer, assume that the broker is not the coordinator.
        return replace(state, client=client_state.forget_coordinator(state.client)), ()
    if now >= state.poll_until:
        return _leave(state, now)
    if now < state.heartbeat_at:
        return state, ()
    state = replace(state, heartbeat_at=now + state.settings.heartbeat_s)
    return _send(
        state,
        msg.Heartbeat(
            state.settings.group, state.member, state.generation, state.settings.instance
        ),
        now,
    )


def _leave(state: ClassicState, now: float) -> Step:
    """Leave the group (`maybeLeaveGroup`); a static member only forgets its membership."""
    commands: Commands = ()
    is_member = state.member != UNKNOWN_MEMBER and state.phase is not ClassicPhase.UNJOINED
    if state.settings.instance is None and is_member and state.client.coordinator is not None:
        leaver = msg.Leaver(state.member)
        state, commands = _send(state, msg.LeaveGroup(state.settings.group, (leaver,)), now)
    return _reset(state, keep_member=False), commands


def _reset(state: ClassicState, *, keep_member: bool) -> ClassicState:
    """Forget the generation and join again (`resetStateAndRejoin`).

    The member keeps its partitions until the user's thread detects the lost generation.
    """
    return replace(
        state,
        phase=ClassicPhase.UNJOINED,
        member=state.member if keep_member else UNKNOWN_MEMBER,
        generation=NO_GENERATION,
        protocol=None,
        rejoin=True,
        prepared=False,
        poll_until=NEVER,
        heartbeat_at=NEVER,
    )


def begin_again(state: ClassicState) -> ClassicState:
    """Begin another membership after an error that has ended the member."""
    return replace(_reset(state, keep_member=False), error=Error.NONE)


# ---- the user's thread ---------------------------------------------------------------------------


def _user_thread(state: ClassicState, now: float) -> Step:
    """Do the work of `poll`: join, commit and load offsets, if the user polls."""
    if not state.polling or state.phase in OVER:
        return state, ()
    result: Step = _look_up(state, now) if state.client.coordinator is None else (state, ())
    if state.closing is not None:
        return then(result, lambda s: _closing(s, now))
    result = then(result, lambda s: _take_over(s, now))
    result = then(result, lambda s: _rejoin(s, now))
    result = then(result, lambda s: _load(s, now))
    return then(result, lambda s: _auto_commit(s, now))


def _look_up(state: ClassicState, now: float) -> Step:
    client, commands = client_state.look_up(state.client, state.settings.group, now)
    return replace(state, client=client), commands


def _joining(state: ClassicState) -> bool:
    return state.client.awaits(msg.JoinGroup) or state.client.awaits(msg.SyncGroup)


def _rejoin(state: ClassicState, now: float) -> Step:
    """Join if the state of the membership, or a change of the leader's metadata, requires a join
    (`joinGroupIfNeeded`)."""
    if state.is_leader and state.planned != _subscribed(state):
        state = replace(state, rejoin=True)
    if not state.rejoin or _joining(state) or now < state.retry_at:
        return state, ()
    if state.client.coordinator is None:
        return state, ()
    result = _prepare(state, now)
    return then(result, lambda s: _join(s, now) if s.prepared else (s, ()))


def _join(state: ClassicState, now: float) -> Step:
    settings = state.settings
    request = msg.JoinGroup(
        settings.group,
        state.member,
        tuple(msg.Protocol(name, _metadata_for(state, name)) for name in settings.assignors),
        settings.instance,
        settings.session_s,
        settings.poll_s,
        version=settings.join_version,
    )
    timeout_s = max(REQUEST_S, settings.poll_s + JOIN_LAPSE_S)
    return _send(replace(state, phase=ClassicPhase.PREPARING), request, now, timeout_s=timeout_s)


def _metadata_for(state: ClassicState, assignor: str) -> bytes:
    """Return the member's subscription in the format of one assignor."""
    owned = tuple(sorted(state.owned))
    user_data = None
    if assignor == "sticky" and (state.sticky[0] or state.sticky[1] != NO_GENERATION):
        user_data = wire.encode_sticky_user_data(sorted(state.sticky[0]), state.sticky[1])
    elif assignor == "cooperative-sticky":
        user_data = wire.encode_cooperative_user_data(state.sticky[1])
    return wire.encode_subscription(
        Subscription(state.settings.topics, owned, state.generation, state.settings.rack),
        user_data,
    )


def _subscribed(state: ClassicState) -> dict[str, Topic]:
    """Return the subscribed topics that the member's metadata contains."""
    topics = state.client.topics
    return {name: topics[name] for name in state.settings.topics if name in topics}


# ---- before a join -------------------------------------------------------------------------------


def _prepare(state: ClassicState, now: float) -> Step:
    """Commit, and revoke the partitions that must be revoked in this mode (`onJoinPrepare`)."""
    if state.prepared:
        return state, ()
    result = _commit_before_join(state, now)
    return then(result, lambda s: (s, ()) if s.commit is not None else _revoke_before_join(s))


def _commit_before_join(state: ClassicState, now: float) -> Step:
    """Commit the positions, and wait for the answer up to the rebalance timeout."""
    settings = state.settings
    if not client_state.is_committing(state):
        state = replace(state, commit=None)  # the connection of the commit was lost: commit again
    if state.commit_until is None:
        state = replace(state, commit_until=now + settings.poll_s)
    is_over = state.commit_until is not None and now >= state.commit_until
    if is_over or not _may_commit(state):
        return replace(state, commit=None), ()
    if state.commit is not None:
        return state, ()
    number = state.client.number
    state, commands = _commit(state, now)
    if settings.mode is Mode.EAGER:
        commands = (ev.StopFetching(state.owned), *commands)
    return replace(state, commit=number), commands


def _may_commit(state: ClassicState) -> bool:
    """Return whether automatic commits are on and the member could commit now."""
    return client_state.has_uncommitted(state) and state.phase is ClassicPhase.STABLE


def _revoke_before_join(state: ClassicState) -> Step:
    """Call the listener, and stop the delivery of the partitions to revoke.

    In eager mode, and after a lost generation, these are all partitions.
    """
    is_lost = state.generation == NO_GENERATION or state.member == UNKNOWN_MEMBER
    state = replace(state, prepared=True, commit=None, commit_until=None, is_leader=False)
    if not is_lost and state.settings.mode is Mode.COOPERATIVE:
        return state, ()
    if not state.owned and is_lost:
        return state, ()
    return client_state.revoke(state, state.owned, Callback.LOST if is_lost else Callback.REVOKED)


# ---- joining -------------------------------------------------------------------------------------


def _joined(state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float) -> Step:
    """Enter the generation; the leader computes the assignment."""
    assert isinstance(response, msg.Joined)
    if state.closing is not None:
        return state, ()
    if response.error is not Error.NONE:
        return _join_refused(state, sent, response, now)
    if state.phase is not ClassicPhase.PREPARING:
        return replace(state, rejoin=True), ()  # the member has left the group meanwhile
    state = replace(
        state,
        phase=ClassicPhase.COMPLETING,
        member=response.member,
        generation=response.generation,
        protocol=response.protocol,
        heartbeat_at=now + state.settings.heartbeat_s,
        heard_at=now,
        poll_until=NEVER if state.polling else now + state.settings.poll_s,
    )
    assignments: dict[str, bytes] = {}
    if response.leader == response.member:
        state = replace(state, is_leader=True, planned=_subscribed(state))
        if not response.skip_assignment:
            topics = state.client.topics
            try:
                assignments = compute_assignments(response, topics, state.settings.lends)
            except JavaError:
                # `onLeaderElected` throws, for instance if a member owns a partition that the
                # leader's older metadata lacks. Kafka's consumer throws the exception in `poll`.
                return _failed(state, Error.UNKNOWN_SERVER_ERROR)
    request = msg.SyncGroup(
        state.settings.group,
        state.member,
        state.generation,
        assignments,
        state.settings.instance,
        protocol=state.protocol,
    )
    return _send(state, request, now)


def compute_assignments(
    joined: msg.Joined,
    topics: Mapping[str, Topic],
    lends: Mapping[str, frozenset[int]] | None = None,
) -> dict[str, bytes]:
    """Return the assignments that the leader sends: the result of the group's assignor.

    `lends` limits them as `ClientSettings.lends` describes.
    """
    name = joined.protocol or ""
    subscriptions = {}
    for one in joined.members:
        if lends is not None and one.member == joined.member:
            continue
        subscription, user_data = wire.decode_subscription(one.metadata)
        if name == "sticky":
            owned, generation = wire.decode_sticky_user_data(user_data) if user_data else ((), -1)
            subscription = replace(subscription, owned=owned, generation=generation)
        subscriptions[one.member] = replace(subscription, instance=one.instance)
    wanted = {topic for one in subscriptions.values() for topic in one.topics}
    known = {topic: topics[topic] for topic in topics if topic in wanted}
    if lends is None:
        found = assign(Assignor(name), known, subscriptions)
    else:
        found = assign_only(Assignor(name), known, subscriptions, lends)
    return {member: wire.encode_assignment(partitions) for member, partitions in found.items()}


def _join_refused(
    state: ClassicState, sent: InFlightRequest, response: msg.Joined, now: float
) -> Step:
    error = response.error
    if error is Error.MEMBER_ID_REQUIRED:
        state = replace(state, member=response.member, generation=NO_GENERATION, protocol=None)
    elif error is Error.UNKNOWN_MEMBER_ID and sent.membership == state.membership:
        state = _reset(state, keep_member=False)
    return _rebalance_failed(state, error, now)


def _synced(state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float) -> Step:
    """Take over the assignment, or join again."""
    assert isinstance(response, msg.Synced)
    error = response.error
    if state.closing is not None:
        return state, ()
    if error is Error.NONE:
        if state.phase is not ClassicPhase.COMPLETING:
            return _rebalance_failed(state, Error.ILLEGAL_GENERATION, now)
        partitions, _ = wire.decode_assignment(response.assignment)
        return replace(
            state, phase=ClassicPhase.STABLE, rejoin=False, received=frozenset(partitions)
        ), ()
    if (
        error in (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION)
        and sent.membership == state.membership
    ):
        state = _reset(state, keep_member=error is Error.ILLEGAL_GENERATION)
    return _rebalance_failed(state, error, now)


def _rebalance_failed(state: ClassicState, error: Error, now: float) -> Step:
    """Join again, at once or after a back-off, if the error permits a retry; all other errors end
    the member."""
    state = replace(state, rejoin=True)
    if error in COORDINATOR_MOVED:
        state = replace(state, client=client_state.forget_coordinator(state.client))
    if error in REJOIN_AT_ONCE:
        return state, ()
    if error in RETRIABLE:
        return replace(state, retry_at=now + BACKOFF_S), ()
    return _failed(state, error)


def _failed(state: ClassicState, error: Error) -> Step:
    """End the member with an error that it does not retry."""
    return replace(state, phase=ClassicPhase.FAILED, error=error), (
        *((ev.StopFetching(state.owned),) if state.owned else ()),
        ev.Fail(error),
    )


# ---- after a join --------------------------------------------------------------------------------


def _take_over(state: ClassicState, now: float) -> Step:
    """Revoke lost partitions and deliver new ones (`onJoinComplete`)."""
    assigned = state.received
    if assigned is None:
        return state, ()
    state = replace(state, received=None, prepared=False)
    if state.phase is not ClassicPhase.STABLE:
        # The heartbeat thread lost the generation before the user's thread applied the assignment.
        return _reset(state, keep_member=False), ()
    result: Step = state, ()
    gone, added = state.owned - assigned, assigned - state.owned
    if gone:
        again = replace(state, rejoin=True)
        result = client_state.revoke(again, gone, Callback.REVOKED)
    after = result[0]
    interval = after.settings.auto_commit_s
    after = replace(
        after,
        owned=assigned,
        loading=after.loading | added,
        sticky=(assigned, after.generation),
        auto_commit_at=NEVER if interval is None else now + interval,
    )
    return after, (*result[1], CallListener(Callback.ASSIGNED, added))


def _load(state: ClassicState, now: float) -> Step:
    """Read the stored offsets of new partitions."""
    is_possible = state.client.coordinator is not None and now >= state.retry_at
    if not state.loading or not is_possible or state.client.awaits(msg.OffsetFetch):
        return state, ()
    wanted = tuple(sorted(state.loading))
    return _send(state, msg.OffsetFetch(state.settings.group, wanted), now)


def _loaded(state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float) -> Step:
    """Deliver the new partitions from their stored offsets."""
    assert isinstance(response, msg.OffsetsFetched)
    if response.error is not Error.NONE:
        return client_state.retry(state, response.error, now), ()
    return client_state.start_loaded(state, sent.request, response)


# ---- heartbeats and commits ----------------------------------------------------------------------


def _heartbeat_answered(
    state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float
) -> Step:
    """Prolong the membership, or join again because the coordinator says so."""
    error = response.error
    if error in (Error.NONE, Error.COORDINATOR_LOAD_IN_PROGRESS):
        return replace(state, heard_at=now), ()
    if error is Error.REBALANCE_IN_PROGRESS:
        return replace(state, heard_at=now, rejoin=state.rejoin or _is_stable(state)), ()
    if error in COORDINATOR_MOVED:
        client = client_state.forget_coordinator(state.client)
        return replace(state, client=client, heartbeat_at=now + BACKOFF_S), ()
    if sent.membership != state.membership:
        return state, ()  # the answer belongs to an earlier membership
    state = _reset(state, keep_member=error is Error.ILLEGAL_GENERATION)
    if error is Error.FENCED_INSTANCE_ID:
        return _rebalance_failed(state, error, now)
    return state, ()


def _is_stable(state: ClassicState) -> bool:
    return state.phase is ClassicPhase.STABLE


def _auto_commit(state: ClassicState, now: float) -> Step:
    """Commit when the interval has passed, but not during a rebalance, in which the coordinator
    would refuse the commit."""
    interval = state.settings.auto_commit_s
    if interval is None or now < state.auto_commit_at:
        return state, ()
    state = replace(state, auto_commit_at=now + interval)
    if not _may_commit(state) or state.client.coordinator is None or state.commit is not None:
        return state, ()
    return _commit(state, now)


def _commit(state: ClassicState, now: float) -> Step:
    return _send(state, client_state.commit_request(state, state.generation), now)


def _committed(
    state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float
) -> Step:
    """End the commit; repeat it if the error permits a retry."""
    error = response.error
    if state.commit is not None and state.commit not in state.client.sent:
        if error in RETRIABLE:
            return client_state.retry(replace(state, commit=None), error, now), ()
        # The commit was stored, or refused permanently. In both cases the member joins next.
        state = replace(state, commit=None, commit_until=now)
    if error is Error.REBALANCE_IN_PROGRESS:
        return replace(state, rejoin=True), ()
    if error in (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION):
        if sent.membership == state.membership or state.phase is not ClassicPhase.PREPARING:
            state = _reset(state, keep_member=error is Error.ILLEGAL_GENERATION)
        return state, ()
    if error is Error.FENCED_INSTANCE_ID:
        return _rebalance_failed(state, error, now)
    return client_state.retry(state, error, now) if error in RETRIABLE else state, ()


# ---- closing -------------------------------------------------------------------------------------


def _closing(state: ClassicState, now: float) -> Step:
    """Commit, revoke and leave (`ConsumerCoordinator.close`)."""
    is_late = state.closing is not None and now >= state.closing
    if not client_state.is_committing(state):
        state = replace(state, commit=None)  # the connection of the commit was lost: commit again
    if not is_late and state.commit is not None:
        return state, ()
    if not is_late and state.commit_until is None and _may_commit(state):
        if state.client.coordinator is None or now < state.retry_at:
            return state, ()
        number = state.client.number
        state, commands = _commit(state, now)
        return replace(state, commit=number), commands
    is_lost = state.generation == NO_GENERATION or state.phase is not ClassicPhase.STABLE
    result: Step = state, ()
    if state.owned:
        callback = Callback.LOST if is_lost else Callback.REVOKED
        result = client_state.revoke(state, state.owned, callback)
    result = then(result, lambda s: _leave(s, now))
    return then(result, lambda s: (replace(s, phase=ClassicPhase.CLOSED), ()))


# ---- requests ------------------------------------------------------------------------------------


def _send(
    state: ClassicState, request: msg.Request, now: float, *, timeout_s: float = REQUEST_S
) -> Step:
    client, commands = client_state.send(
        state.client, request, now, timeout_s=timeout_s, membership=state.membership
    )
    return replace(state, client=client), commands


def _found(state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float) -> Step:
    """Remember the coordinator, or look for it again after the back-off."""
    assert isinstance(response, msg.FoundCoordinator)
    return replace(state, client=client_state.found(state.client, response, now), heard_at=now), ()


def _left(state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float) -> Step:
    """Do nothing: the member has left already."""
    return state, ()


ANSWERS: Mapping[type[msg.Request], Answer[ClassicState]] = {
    msg.FindCoordinator: _found,
    msg.JoinGroup: _joined,
    msg.SyncGroup: _synced,
    msg.Heartbeat: _heartbeat_answered,
    msg.OffsetCommit: _committed,
    msg.OffsetFetch: _loaded,
    msg.LeaveGroup: _left,
}
