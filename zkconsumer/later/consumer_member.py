"""A member of KIP-848's protocol as a state machine: `step(state, event) -> (state, commands)`.

The member sends one kind of request, ConsumerGroupHeartbeat. The answers contain the member's epoch
and its target assignment. The member commits, revokes lost partitions, starts new ones, and reports
this to the coordinator in its next heartbeat. The machine models `MembershipManagerImpl` and
`HeartbeatRequestManager` of Kafka 3.9.1.

A real member has two threads. `_background` does the work of the background thread. `_user_thread`
does the work of the user's thread in `poll`, which calls the listener. `ANSWERS` names the handler
of each response.

Differences from Kafka: the user has a listener, so partitions are revoked only while the user
polls; a listener takes no time; a retry has no jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from zkconsumer.frozen import dataclass
from zkconsumer.later import client_state
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import (
    BACKOFF_S,
    COORDINATOR_MOVED,
    NEVER,
    Answer,
    CommonState,
    InFlightRequest,
)
from zkconsumer.later.member_events import Callback, CallListener, Commands, then
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, Error
from zkconsumer.protocol.model import TopicPartition

CLOSE_S = 30.0
"""The time, in seconds, that a closing member waits for its last commit."""

INTERVAL_S = 5.0
"""The interval of heartbeats, in seconds, until the coordinator sends another one."""


class ConsumerPhase(Enum):
    """The phases of a member: `MemberState` of Kafka's client.

    `CLOSED` is Kafka's UNSUBSCRIBED, and `FAILED` is its FATAL. The model passes through
    PREPARE_LEAVING and LEAVING in one step, after the last commit.
    """

    JOINING = "joining"  # sends a heartbeat with epoch 0
    RECONCILING = "reconciling"  # moves to the target assignment
    ACKNOWLEDGING = "acknowledging"  # reports the completed move in a heartbeat at once
    STABLE = "stable"  # has its target assignment
    FENCED = "fenced"  # the coordinator refuses its epoch: it loses all partitions, and joins again
    STALE = "stale"  # the user does not poll: it has left, and joins at the next poll
    FAILED = "failed"  # its `poll` has raised an error
    CLOSED = "closed"


MEMBER = frozenset(
    {
        ConsumerPhase.JOINING,
        ConsumerPhase.RECONCILING,
        ConsumerPhase.ACKNOWLEDGING,
        ConsumerPhase.STABLE,
    }
)
"""The phases in which the member sends heartbeats and takes new targets."""

OVER = frozenset({ConsumerPhase.FAILED, ConsumerPhase.CLOSED})

Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class LocalAssignment:
    """An assignment, with a number by which the member distinguishes equal assignments."""

    number: int = -1
    partitions: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class ConsumerState(CommonState):
    """The state of a member. All times are in seconds.

    Attributes:
        epoch: the member epoch.
        target: the last assignment that the coordinator has sent.
        current: the last assignment that the member has completed.
        resolving: the target to which the member is moving; None: it is not moving.
        committed: whether the commit before the move has ended.
        last_reported: the topics and the assignment that the member's last heartbeat reported.
        interval_s: the interval of heartbeats.
    """

    phase: ConsumerPhase = ConsumerPhase.JOINING
    epoch: int = JOIN_EPOCH
    target: LocalAssignment = LocalAssignment()
    current: LocalAssignment = LocalAssignment()
    resolving: LocalAssignment | None = None
    committed: bool = False
    last_reported: tuple[tuple[str, ...], LocalAssignment] | None = None
    interval_s: float = INTERVAL_S
    heartbeat_at: float = 0.0


Step = tuple[ConsumerState, Commands]


def step(state: ConsumerState, event: ev.Event) -> Step:
    """Return the state after an event, and the commands to run."""
    if state.phase in OVER:
        return state, ()
    result = then(
        HANDLERS[type(event)](state, event),
        lambda s: client_state.drop_overdue(s, event.now, _drop),
    )
    result = then(result, lambda s: _background(s, event.now))
    result = then(result, lambda s: _user_thread(s, event.now))
    # The background thread runs again, for example to acknowledge a completed move at once.
    return then(result, lambda s: _background(s, event.now))


def handlers_of(state: ConsumerState, event: ev.Event) -> tuple[client_state.Handler, ...]:
    """Return the functions that handle an event; for a `Tick`, those of the client's threads."""
    if isinstance(event, ev.Tick):
        return _background, _user_thread
    return (client_state.handler_of(state, event, HANDLERS, ANSWERS),)


def next_deadline(state: ConsumerState, now: float) -> float:
    """Return the next moment after `now` at which a `Tick` is due; infinity for never."""
    if state.phase in OVER:
        return NEVER
    due = [state.client.next_look_up, *(one.until for one in state.client.sent.values())]
    due += [state.heartbeat_at, state.retry_at, state.poll_until, state.auto_commit_at]
    due += [state.closing or NEVER, state.commit_until or NEVER]
    return min((at for at in due if at > now), default=NEVER)


def is_over(state: ConsumerState) -> bool:
    """Return whether the member has ended permanently."""
    return state.phase in OVER


def is_settled(state: ConsumerState) -> bool:
    """Return whether the member is stable and has no pending work."""
    is_stable = state.phase is ConsumerPhase.STABLE and state.target == state.current
    waits = state.loading or state.closing is not None
    return is_stable and not waits and state.client.coordinator is not None


# ---- events --------------------------------------------------------------------------------------


def _poll_returned(state: ConsumerState, event: ev.Event) -> Step:
    """The user works on messages: from now on, `max.poll.interval.ms` counts."""
    return replace(state, polling=False, poll_until=event.now + state.settings.poll_s), ()


def _answered(state: ConsumerState, event: ev.Event) -> Step:
    """Pass a response to the handler of its request."""
    return client_state.take_answer(state, event, ANSWERS)


def _disconnected(state: ConsumerState, event: ev.Event) -> Step:
    """Forget the requests on the broken connection."""
    assert isinstance(event, ev.Disconnected)
    return _drop(state, event.broker, event.now), ()


def _close(state: ConsumerState, event: ev.Event) -> Step:
    """Commit for the last time, then leave; see `_closing`."""
    return replace(
        state,
        closing=event.now + CLOSE_S,
        polling=True,
        commit=None,
        committed=False,
        commit_until=None,
        resolving=None,
    ), ()


HANDLERS: Mapping[type[ev.Event], Callable[[ConsumerState, ev.Event], Step]] = {
    ev.PollStarted: client_state.poll_started,
    ev.PollReturned: _poll_returned,
    ev.Tick: client_state.ticked,
    ev.Answered: _answered,
    ev.Disconnected: _disconnected,
    ev.MetadataChanged: client_state.metadata_changed,
    ev.Consumed: client_state.consumed,
    ev.CloseRequested: _close,
}


def _drop(state: ConsumerState, broker: int, now: float) -> ConsumerState:
    """Forget the requests to a broker; the next heartbeat repeats all fields."""
    is_coordinator = broker == state.client.coordinator
    state = replace(state, client=client_state.dropped(state.client, broker, now))
    if not is_coordinator:
        return state
    return replace(state, last_reported=None, retry_at=now + BACKOFF_S, heartbeat_at=now)


# ---- the background thread -----------------------------------------------------------------------


def _background(state: ConsumerState, now: float) -> Step:
    """Look for the coordinator, send heartbeats and begin moves, without the user."""
    if state.phase in OVER:
        return state, ()
    result: Step = state, ()
    if state.client.coordinator is None:
        client, commands = client_state.look_up(state.client, state.settings.group, now)
        result = replace(state, client=client), commands
    if state.closing is not None:
        return result
    result = then(result, lambda s: _begin_move(s, now))
    result = then(result, lambda s: _commit_before_move(s, now))
    if result[0].client.coordinator is None or now < state.retry_at:
        return result
    result = then(result, lambda s: _heartbeat(s, now))
    result = then(result, lambda s: _load(s, now))
    return then(result, lambda s: _auto_commit(s, now))


def _heartbeat(state: ConsumerState, now: float) -> Step:
    """Send a heartbeat if it is due, or at once to join and to acknowledge."""
    if state.phase not in MEMBER:
        return state, ()
    if now >= state.poll_until:
        return _leave_stale(state, now)
    at_once = state.phase in (ConsumerPhase.JOINING, ConsumerPhase.ACKNOWLEDGING)
    if state.client.awaits(msg.ConsumerGroupHeartbeat) or (
        not at_once and now < state.heartbeat_at
    ):
        return state, ()
    state, commands = _send_heartbeat(state, now)
    if state.phase is ConsumerPhase.ACKNOWLEDGING:
        is_done = state.current == state.target
        state = replace(state, phase=ConsumerPhase.STABLE if is_done else ConsumerPhase.RECONCILING)
    return state, commands


def _send_heartbeat(state: ConsumerState, now: float) -> Step:
    """Send the fields that the coordinator does not know yet; a joining member sends all fields."""
    settings, last = state.settings, state.last_reported
    everything = state.phase is ConsumerPhase.JOINING or last is None
    to_report = state.settings.topics, state.current
    request = msg.ConsumerGroupHeartbeat(
        settings.group,
        state.member,
        state.epoch,
        settings.instance,
        settings.rack,
        settings.poll_s if everything else None,
        settings.topics if everything or last is None or last[0] != to_report[0] else None,
        None,
        state.current.partitions if everything or last is None or last[1] != to_report[1] else None,
    )
    state = replace(state, last_reported=to_report, heartbeat_at=now + state.interval_s)
    return _send(state, request, now)


def _leave_stale(state: ConsumerState, now: float) -> Step:
    """Leave because the user has not called `poll` in time, and wait for the next `poll`."""
    state, commands = _send_leave(state, now)
    return replace(_without_epoch(state), phase=ConsumerPhase.STALE, poll_until=NEVER), commands


def _send_leave(state: ConsumerState, now: float) -> Step:
    settings = state.settings
    epoch = LEAVE_EPOCH if settings.instance is None else LEAVE_STATIC_EPOCH
    request = msg.ConsumerGroupHeartbeat(settings.group, state.member, epoch, settings.instance)
    return _send(state, request, now)


def _without_epoch(state: ConsumerState) -> ConsumerState:
    """Forget the epoch and the target; keep the partitions until the user's thread runs."""
    return replace(
        state,
        epoch=JOIN_EPOCH,
        target=LocalAssignment(),
        current=LocalAssignment(),
        resolving=None,
        committed=False,
        commit=None,
        commit_until=None,
        last_reported=None,
    )


# ---- moving to the target ------------------------------------------------------------------------


def _begin_move(state: ConsumerState, now: float) -> Step:
    """Start to move to the target, or acknowledge a target that needs no move."""
    if state.phase is not ConsumerPhase.RECONCILING or state.resolving is not None:
        return state, ()
    if state.current.number >= 0 and state.target.partitions == state.current.partitions:
        return replace(state, current=state.target, phase=ConsumerPhase.ACKNOWLEDGING), ()
    until = now + state.settings.poll_s
    return replace(
        state, resolving=state.target, committed=False, commit=None, commit_until=until
    ), ()


def _commit_before_move(state: ConsumerState, now: float) -> Step:
    """Commit all positions before partitions are revoked, and wait for the answer."""
    if state.resolving is None or state.committed:
        return state, ()
    is_late = state.commit_until is not None and now >= state.commit_until
    if is_late or not _may_commit(state):
        return replace(state, committed=True, commit=None), ()
    if client_state.is_committing(state):
        return state, ()
    if state.client.coordinator is None or now < state.retry_at:
        return state, ()
    return _commit(state, now)


def _user_thread(state: ConsumerState, now: float) -> Step:
    """Do the work of `poll`, such as calling the listener; do nothing if the user does not poll."""
    if not state.polling or state.phase in OVER:
        return state, ()
    if state.closing is not None:
        return _closing(state, now)
    if (
        state.phase is ConsumerPhase.FENCED
        and state.loading
        and state.client.awaits(msg.OffsetFetch)
    ):
        return state, ()  # `poll` waits for the offsets, and only a later `poll` calls the listener
    if state.phase in (ConsumerPhase.FENCED, ConsumerPhase.STALE):
        result = (
            client_state.revoke(state, state.owned, Callback.LOST) if state.owned else (state, ())
        )
        return then(
            result, lambda s: (replace(s, phase=ConsumerPhase.JOINING, heartbeat_at=now), ())
        )
    if state.resolving is None or not state.committed:
        return state, ()
    return _move(state, state.resolving, now)


def _move(state: ConsumerState, goal: LocalAssignment, now: float) -> Step:
    """Revoke the partitions that are not in the target, and deliver the new ones."""
    gone, added = state.owned - goal.partitions, goal.partitions - state.owned
    state = replace(state, resolving=None, committed=False, commit=None, commit_until=None)
    if state.phase is not ConsumerPhase.RECONCILING:
        return state, ()  # the member was fenced meanwhile
    commands: Commands = ()
    if gone:
        state, commands = client_state.revoke(state, gone, Callback.REVOKED)
    interval = state.settings.auto_commit_s
    state = replace(
        state,
        owned=goal.partitions,
        loading=state.loading | added,
        current=goal,
        phase=ConsumerPhase.ACKNOWLEDGING,
        auto_commit_at=NEVER if interval is None else now + interval,
    )
    return state, (*commands, CallListener(Callback.ASSIGNED, added))


# ---- answers -------------------------------------------------------------------------------------


def _heartbeat_answered(
    state: ConsumerState, sent: InFlightRequest, response: msg.Response, now: float
) -> Step:
    """Take over the epoch and the target from the coordinator."""
    assert isinstance(response, msg.ConsumerGroupAnswer)
    assert isinstance(sent.request, msg.ConsumerGroupHeartbeat)
    is_leaving = sent.request.epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)
    if is_leaving or state.phase not in MEMBER:
        return state, ()
    if response.error is not Error.NONE:
        return _refused(state, response.error, now)
    state = replace(
        state,
        member=response.member or state.member,
        epoch=response.epoch,
        interval_s=response.heartbeat_interval_s or state.interval_s,
        retry_at=0.0,
    )
    state = replace(state, heartbeat_at=min(state.heartbeat_at, now + state.interval_s))
    return (state, ()) if response.assignment is None else _set_target(state, response.assignment)


def _set_target(state: ConsumerState, partitions: Partitions) -> Step:
    """Set a new target assignment."""
    if state.target.number < 0 or state.target.partitions != partitions:
        state = replace(state, target=LocalAssignment(state.target.number + 1, partitions))
    if state.target != state.current:
        return replace(state, phase=ConsumerPhase.RECONCILING), ()
    if state.phase in (ConsumerPhase.RECONCILING, ConsumerPhase.JOINING):
        state = replace(state, phase=ConsumerPhase.STABLE)
    return state, ()


def _refused(state: ConsumerState, error: Error, now: float) -> Step:
    state = replace(state, last_reported=None, heartbeat_at=now)
    if error in (Error.FENCED_MEMBER_EPOCH, Error.UNKNOWN_MEMBER_ID):
        return replace(_without_epoch(state), phase=ConsumerPhase.FENCED), ()
    if error in COORDINATOR_MOVED or error is Error.COORDINATOR_LOAD_IN_PROGRESS:
        return _retry(state, error, now), ()
    return _fail(state, error)


def _fail(state: ConsumerState, error: Error) -> Step:
    result = client_state.revoke(state, state.owned, Callback.LOST) if state.owned else (state, ())
    return then(
        result, lambda s: (replace(s, phase=ConsumerPhase.FAILED, error=error), (ev.Fail(error),))
    )


def _retry(state: ConsumerState, error: Error, now: float) -> ConsumerState:
    """Wait before the next request; a heartbeat to another coordinator has all fields."""
    if error in COORDINATOR_MOVED:
        state = replace(state, last_reported=None, heartbeat_at=now)
    return client_state.retry(state, error, now)


def _found(state: ConsumerState, sent: InFlightRequest, response: msg.Response, now: float) -> Step:
    """Remember the coordinator, or look for it again after the back-off."""
    assert isinstance(response, msg.FoundCoordinator)
    return replace(state, client=client_state.found(state.client, response, now)), ()


# ---- offsets -------------------------------------------------------------------------------------


def _may_commit(state: ConsumerState) -> bool:
    return client_state.has_uncommitted(state) and state.epoch > 0


def _auto_commit(state: ConsumerState, now: float) -> Step:
    interval = state.settings.auto_commit_s
    if interval is None or now < state.auto_commit_at:
        return state, ()
    state = replace(state, auto_commit_at=now + interval)
    is_busy = client_state.is_committing(state)
    return (state, ()) if is_busy or not _may_commit(state) else _commit(state, now)


def _commit(state: ConsumerState, now: float) -> Step:
    """Commit the positions of all owned partitions."""
    request = client_state.commit_request(state, state.epoch)
    return _send(replace(state, commit=state.client.number), request, now)


def _committed(
    state: ConsumerState, sent: InFlightRequest, response: msg.Response, now: float
) -> Step:
    """End the commit; repeat it if the error permits a retry."""
    error = response.error
    if state.commit is None or state.commit in state.client.sent:
        return state, ()
    state = replace(state, commit=None)
    again = COORDINATOR_MOVED | {Error.COORDINATOR_LOAD_IN_PROGRESS, Error.STALE_MEMBER_EPOCH}
    if error in again:
        return _retry(state, error, now), ()
    is_awaited = state.resolving is not None or state.closing is not None
    return replace(state, committed=is_awaited), ()


def _load(state: ConsumerState, now: float) -> Step:
    """Read the stored offsets of new partitions."""
    if state.phase not in MEMBER or not state.loading or state.client.awaits(msg.OffsetFetch):
        return state, ()
    wanted = tuple(sorted(state.loading))
    request = msg.OffsetFetch(state.settings.group, wanted, state.member, state.epoch)
    return _send(state, request, now)


def _loaded(
    state: ConsumerState, sent: InFlightRequest, response: msg.Response, now: float
) -> Step:
    """Deliver the new partitions from their stored offsets."""
    assert isinstance(response, msg.OffsetsFetched)
    if response.error is not Error.NONE:
        # The session ended before the offsets of new partitions were read.
        is_raised = response.error is Error.UNKNOWN_MEMBER_ID and state.loading and state.polling
        commands = (ev.Raise(response.error),) if is_raised else ()
        is_fenced = state.phase is ConsumerPhase.FENCED
        return (state if is_fenced else _retry(state, response.error, now)), commands
    return client_state.start_loaded(state, sent.request, response)


# ---- closing -------------------------------------------------------------------------------------


def _closing(state: ConsumerState, now: float) -> Step:
    """Commit, revoke and leave (`AsyncKafkaConsumer.close`)."""
    is_late = state.closing is not None and now >= state.closing
    if not is_late and client_state.is_committing(state):
        return state, ()
    if not is_late and not state.committed and _may_commit(state):
        is_possible = state.client.coordinator is not None and now >= state.retry_at
        return _commit(state, now) if is_possible else (state, ())
    callback = Callback.REVOKED if state.epoch > 0 else Callback.LOST
    result = client_state.revoke(state, state.owned, callback) if state.owned else (state, ())
    if state.client.coordinator is not None and state.phase in MEMBER and state.member:
        result = then(result, lambda s: _send_leave(s, now))
    return then(result, lambda s: (replace(s, phase=ConsumerPhase.CLOSED), ()))


def _send(state: ConsumerState, request: msg.Request, now: float) -> Step:
    client, commands = client_state.send(state.client, request, now)
    return replace(state, client=client), commands


ANSWERS: Mapping[type[msg.Request], Answer[ConsumerState]] = {
    msg.FindCoordinator: _found,
    msg.ConsumerGroupHeartbeat: _heartbeat_answered,
    msg.OffsetCommit: _committed,
    msg.OffsetFetch: _loaded,
}
