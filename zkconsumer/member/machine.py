"""The member as a state machine: `step(state, event) -> (state, commands)`.

This module and the modules that it calls make all decisions: `session`, `assignment`, `rebalance`,
`peers` and `commits`. These modules perform no input or output; the member's thread runs the
commands.

`HANDLERS` and `OUTCOME_HANDLERS` name the handler of each event and of each operation's outcome, by
phase; phase None stands for every phase. A pair without a handler raises `IllegalTransitionError`,
which leaves the state unchanged. The outcome of an operation that a reconnect has made obsolete is
ignored instead. `member.phases` says to which phases a handler may lead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zkconsumer.member import (
    assignment,
    commits,
    events,
    peers,
    phases,
    rebalance,
    session,
    unreadable,
)
from zkconsumer.member.commands import CollectPositions, Notice, NoticeKind, Withdraw
from zkconsumer.member.events import Event, Finished, Interrupted
from zkconsumer.member.phases import Cause, Deadline, Phase
from zkconsumer.member.rebalance import CALLING, failure_notice, late_notice, leave_if_done
from zkconsumer.member.state import State, Step, enter, replace, then
from zkconsumer.protocol.model import Purpose

OVER = frozenset({Phase.LEAVING, Phase.CLOSED})


class IllegalTransitionError(Exception):
    """An event that cannot occur in this phase: a defect of the caller, not of the input."""


def step(state: State, event: Event) -> Step:
    """Return the state after an event, and the commands to run. No other code changes a state.

    Raises:
        IllegalTransitionError: no handler covers this event in this phase.
        IllegalPhaseChangeError: the handler led to a phase that `member.phases` does not allow;
            only while `phases.enforced` is set.
    """
    after, commands = _dispatch(state, event)
    if phases.enforced and after.phase is not state.phase:
        phases.check_change(state.phase, causes(state, event), after.phase)
    return after, commands


def _dispatch(state: State, event: Event) -> Step:
    if state.phase is Phase.CLOSED:
        return state, ()
    if isinstance(event, Finished):
        return _outcome_handler(state, event)(state, event.outcome, event.now)
    return _event_handler(state, event)(state, event)


def handler_of(state: State, event: Event) -> Handler | OutcomeHandler | None:
    """Return the function that handles an event in this state; None if the member has closed.

    Raises:
        IllegalTransitionError: no handler covers this event in this phase.
    """
    if state.phase is Phase.CLOSED:
        return None
    if isinstance(event, Finished):
        return _outcome_handler(state, event)
    return _event_handler(state, event)


def _event_handler(state: State, event: Event) -> Handler:
    handler = HANDLERS.get((state.phase, type(event))) or HANDLERS.get((None, type(event)))
    if handler is None:
        raise IllegalTransitionError(f"{type(event).__name__} in phase {state.phase.value}")
    return handler


def causes(state: State, event: Event) -> tuple[Cause, ...]:
    """Return the causes, in the table of `member.phases`, that this event stands for.

    A `Tick` stands for each deadline that has passed. A `Finished` stands for its outcome.
    """
    if isinstance(event, Finished):
        return (type(event.outcome),)
    if not isinstance(event, events.Tick):
        return (type(event),)
    return _due(state, event.now)


def _due(state: State, now: float) -> tuple[Deadline, ...]:
    return tuple(one for one, at in deadlines(state) if at is not None and at <= now)


def deadlines(state: State) -> tuple[tuple[Deadline, float | None], ...]:
    """Return the deadlines that apply in this phase, in seconds of the lease clock."""
    phase, connected = state.phase, state.connected
    settled = phase is Phase.SETTLED
    resting = connected and phase in rebalance.RESTING
    return (
        (Deadline.RECREATE, state.client.recreate_at),
        (Deadline.LEASE, state.lease.due_at() if connected else None),
        (Deadline.AUTO_COMMIT, state.auto_commit_at),
        (Deadline.COMMITS, state.commits.retry_at),
        (Deadline.LEAVE, state.leave_at),
        (Deadline.GRACE, state.grace_at),
        (Deadline.VERIFY, state.verify_at if resting else None),
        (Deadline.REFRESH, state.refresh_at if connected and settled else None),
        (Deadline.PEERS, state.idle_peers.look_at if settled else None),
        (Deadline.RETRY, state.retry_at if connected else None),
        (
            Deadline.OWNERS,
            state.blocked.ask_at if connected and phase is Phase.WAITING else None,
        ),
        # In a resting phase, the member has read again every znode whose watch has fired.
        (Deadline.REPORT, unreadable.next_report(state) if resting else None),
    )


def next_deadline(state: State) -> float:
    """Return when the next `Tick` is due, in seconds of the lease clock; infinity for never."""
    return min((at for _, at in deadlines(state) if at is not None), default=float("inf"))


def awaits(state: State, op: int) -> bool:
    """Return whether the state awaits this operation; otherwise the operation must not continue.

    ZooKeeper executes the requests that the operation has sent before it executes later ones, so
    the read-back of a recovery sees their effects. The read-back would not see the effects of later
    requests: 1. A claim lists the owners. 2. Another client deletes the member's id znode; the
    member registers again and reads back what it owns. 3. The claim creates its owner znodes,
    because the id znode that it checks exists again. 4. The state machine ignores the claim's
    outcome, so the session has owner znodes that the member does not know of.
    """
    running = {
        state.op,
        state.lease.op,
        state.commits.op,
        0,
    }
    return op in running and state.phase is not Phase.CLOSED


# ---- streams ------------------------------------------------------------------------------------


def _release_ready(state: State, event: events.ReleaseReady) -> Step:
    """Commit the revoked partitions when the user has finished their last messages."""
    if state.phase is not Phase.STOPPING:
        return state, ()  # the grace period is over, and the positions were collected
    # 1. The grace period ends while a user holds a message; the partition is released. 2. This
    # member claims the partition again for another stream, and then must revoke it. 3. The first
    # user finishes its message. The second user may still hold another one.
    done = {tp for tp, mine in event.partitions.items() if state.owned.get(tp) == mine}
    state = replace(state, finished=state.finished | done)
    complete = state.finished >= (state.revoking & state.serving)
    return rebalance.commit_revoked(state, event.now) if complete else (state, ())


def _positions_collected(state: State, event: events.PositionsCollected) -> Step:
    """Commit the positions that the streams have reported."""
    commit = event.commit
    if commit.purpose is Purpose.LOST:
        return rebalance.keep_positions(state, commit.positions), ()
    if commit.retries is None:
        # Other members wait for the partitions of an urgent commit, so Kafka is asked only once (as
        # in the JVM, 0.9 and later).
        is_urgent = commit.purpose in commits.URGENT
        commit = replace(commit, retries=0 if is_urgent else state.settings.commit_retries)
    result = commits.request(state, commit, event.now)
    if commit.purpose not in commits.URGENT and not commits.is_urgent_pending(state):
        # One tick may end the grace period and start an automatic commit. The automatic commit's
        # positions arrive first; the phase must still wait for the positions of the revoked
        # partitions. If these are in the queue, their commit may have started and ended now.
        return result
    return then(result, lambda s: rebalance.after_commit(s, event.now))


def _commit_timed_out(state: State, event: events.CommitTimedOut) -> Step:
    """Give up an explicit commit whose time-out has passed."""
    state = commits.timed_out(state, event.request)
    return leave_if_done(state) if state.phase is Phase.LEAVING else (state, ())


def _position_reset(state: State, event: events.PositionReset) -> Step:
    """Let the next commit of a partition store a lower offset: a user has moved back."""
    mine = state.owned.get(event.partition)
    if mine is None or mine.epoch != event.epoch:
        return state, ()  # a later grant starts at the stored offset, and nobody has moved it
    return commits.rewind(state, event.partition), ()


# ---- time ---------------------------------------------------------------------------------------


def _tick(state: State, event: events.Tick) -> Step:
    """Handle every deadline that has passed, beginning with the lease's deadline."""
    result = session.recreate_due(state, event.now)
    if state.connected and state.lease.due_at() <= event.now:
        result = then(result, lambda s: session.renew(s, event.now))
    result = then(result, lambda s: _auto_commit(s, event.now))
    result = then(result, lambda s: commits.due(s, event.now))
    result = then(result, lambda s: rebalance.after_commit(s, event.now))
    result = then(result, lambda s: _report_unreadable(s, event.now))
    return then(result, lambda s: _phase_tick(s, event.now))


def _report_unreadable(state: State, now: float) -> Step:
    return unreadable.report(state, now) if Deadline.REPORT in _due(state, now) else (state, ())


def _auto_commit(state: State, now: float) -> Step:
    interval = state.settings.auto_commit_s
    if interval is None or state.auto_commit_at is None or state.auto_commit_at > now:
        return state, ()
    state = replace(state, auto_commit_at=now + interval)
    if not state.serving or state.phase in OVER:
        return state, ()
    return state, (CollectPositions(Purpose.AUTO, state.serving),)


def _phase_tick(state: State, now: float) -> Step:
    due = _due(state, now)
    if Deadline.LEAVE in due:
        return rebalance.close(state)
    if Deadline.GRACE in due and state.phase is Phase.STOPPING:
        return rebalance.commit_revoked(state, now)
    if Deadline.GRACE in due and state.phase in (*CALLING, Phase.LEAVING):
        return rebalance.listened(state, (late_notice(state),), now)
    if Deadline.VERIFY in due:
        return rebalance.recheck(state)
    if Deadline.REFRESH in due:
        return rebalance.read_everything(state)
    if Deadline.PEERS in due:
        if not state.connected:
            return peers.schedule_check(state, None), ()
        return peers.look_for_idle_peers(state)
    if Deadline.OWNERS in due and Deadline.RETRY not in due:
        return rebalance.enter_next_phase(peers.ask_owners(state), now)
    if Deadline.RETRY not in due:
        return state, ()
    again: dict[Phase, Callable[[State], Step]] = {
        Phase.REGISTERING: rebalance.register,
        Phase.RECOVERING: rebalance.recover,
        Phase.WAITING: rebalance.read_everything,
    }
    # If another operation runs, such as a read-back, the member reads the group when it has ended.
    following = again.get(state.phase, lambda s: (replace(s, read_again=True), ()))
    return then(peers.report_blocked(replace(state, retry_at=None), now), following)


# ---- leaving ------------------------------------------------------------------------------------


def _close_requested(state: State, event: events.CloseRequested) -> Step:
    """Leave: stop delivery, call `on_revoked`, store the last positions, end the session."""
    if state.phase is Phase.RELEASING and state.op is not None:
        # 1. The release is executed. 2. Another member claims the partitions. 3. A commit that
        # waited for the release would overwrite the offsets of the new owner.
        state = rebalance.forget_revoked(state, state.revoking)
    served, awaited = state.serving, commits.is_awaited(state)
    state = enter(replace(state, op=None, grace_at=None, retry_at=None), Phase.LEAVING)
    state, calls = rebalance.call_before_leaving(state, event.now)
    stops = calls or (Withdraw(served),)
    is_due = bool(served) or commits.is_urgent_pending(state)
    collects = state.settings.auto_commit_s is not None and is_due
    if not (state.connected and state.registered) or state.session is None:
        notice = Notice(
            NoticeKind.COMMIT_FAILED,
            "every partition",
            "this member left while ZooKeeper was unreachable; messages delivered since the last "
            "commit are redelivered to the next owner",
        )
        return then((state, (*stops, *((notice,) if collects else ()))), leave_if_done)
    if not (collects or awaited or calls):
        return then((state, stops), leave_if_done)
    # A leaving member delivers nothing, and its last commit is a compare-and-set that checks the
    # member's id znode. So the commit is safe before the owner znodes are read back.
    leave_at = max(event.now + state.session.timeout_s, state.grace_at or 0.0)
    state = replace(state, may_deliver=True, leave_at=leave_at)
    if collects:
        return state, (CollectPositions(event.purpose, served), *stops)
    # A waiting commit may start now: the owner znodes need not be read back.
    return then((state, stops), lambda s: rebalance.start_next_commit(s, event.now))


# ---- results of operations ----------------------------------------------------------------------


def _outcome_handler(state: State, event: Finished) -> OutcomeHandler:
    """Return the handler of the outcome of a `sync`, of a commit or of the phase's operation."""
    outcome = event.outcome
    if event.op == state.lease.op:
        return session.synced if isinstance(outcome, events.Synced) else _not_renewed
    if event.op == state.commits.op:
        return _commit_ended
    if event.op != state.op:
        return _obsolete
    if isinstance(outcome, Interrupted):
        return _interrupted
    row = OUTCOME_HANDLERS.get((state.phase, type(outcome))) or OUTCOME_HANDLERS.get(
        (None, type(outcome))
    )
    if row is None:
        raise IllegalTransitionError(f"{type(outcome).__name__} in phase {state.phase.value}")
    return row


def _not_renewed(state: State, outcome: events.Outcome, now: float) -> Step:
    """Keep the old end of the lease, because ZooKeeper's leader has not confirmed the session."""
    return replace(state, lease=replace(state.lease, op=None)), ()


def _obsolete(state: State, outcome: events.Outcome, now: float) -> Step:
    """Ignore the outcome of an operation that the member no longer awaits."""
    return state, failure_notice(outcome)


def _interrupted(state: State, outcome: events.Outcome, now: float) -> Step:
    """Forget the operation that the lost connection has ended; a reconnect reads everything."""
    return rebalance.count_as_unwatched(replace(state, op=None)), ()


def _commit_ended(state: State, outcome: events.Outcome, now: float) -> Step:
    """Handle the end of a commit, and continue the phase if it has waited for the commit."""
    return then(_commit_result(state, outcome, now), lambda s: rebalance.after_commit(s, now))


def _commit_result(state: State, outcome: events.Outcome, now: float) -> Step:
    if isinstance(outcome, events.Committed):
        return commits.committed(state, outcome, now)
    if isinstance(outcome, events.Denied):
        return commits.denied(state, outcome, now)
    state = commits.interrupted(state)
    if not isinstance(outcome, events.MemberNodeGone):
        return state, ()
    if state.phase in OVER:
        return commits.abandon(state, "this member's id znode is gone")
    return rebalance.register(state)


def _connected(state: State, event: events.Connected) -> Step:
    """Handle `Connected`; close a leaving member if the session expiry has dropped its commits."""
    connected = session.connected(state, event)
    return then(connected, lambda s: rebalance.after_commit(s, event.now))


def _listened(state: State, outcome: events.ListenerReturned, now: float) -> Step:
    """Continue the rebalance, because the user's listener has returned."""
    return rebalance.listened(state, failure_notice(outcome), now)


def _denied(state: State, outcome: events.Denied, now: float) -> Step:
    """Report what ZooKeeper has refused; try again after the back-off, as the ACL may change."""
    notice = Notice(NoticeKind.DENIED, outcome.where, outcome.reason)
    is_recovering = state.phase in (Phase.REGISTERING, Phase.RECOVERING)
    phase = state.phase if is_recovering else Phase.WAITING
    retry_at = now + state.settings.backoff_s
    return enter(replace(state, op=None, known=None, retry_at=retry_at), phase), (notice,)


def _nudged(state: State, outcome: events.Registered, now: float) -> Step:
    """Watch the id znode that the member has created again to wake idle peers (`peers.nudge`)."""
    return rebalance.read_everything(state)


def _ignored(state: State, event: Event) -> Step:
    """Ignore an event that changes nothing in this phase."""
    return state, ()


Handler = Callable[[State, Any], Step]  # Any: the class of event that the table names
HANDLERS: dict[tuple[Phase | None, type[Event]], Handler] = {
    (None, events.Connected): _connected,
    (None, events.Suspended): session.suspended,
    (None, events.ClientDied): session.client_died,
    (None, events.Tick): _tick,
    (None, events.Triggered): rebalance.triggered,
    (None, events.OwnerNodeChanged): rebalance.owner_node_changed,
    (None, events.OffsetNodeChanged): rebalance.offset_node_changed,
    (None, events.OwnersChanged): rebalance.owners_changed,
    (None, events.TopicDeleted): rebalance.topic_deleted,
    (None, events.ReleaseReady): _release_ready,
    (None, events.PositionsCollected): _positions_collected,
    (None, events.CommitTimedOut): _commit_timed_out,
    (None, events.PositionReset): _position_reset,
    (None, events.Diagnosed): peers.diagnosed,
    (None, events.CloseRequested): _close_requested,
    (Phase.LEAVING, events.Triggered): _ignored,
    (Phase.LEAVING, events.OwnerNodeChanged): _ignored,
    (Phase.LEAVING, events.OffsetNodeChanged): _ignored,
    (Phase.LEAVING, events.OwnersChanged): _ignored,
    (Phase.LEAVING, events.CloseRequested): _ignored,
    (Phase.OFFLINE, events.Triggered): _ignored,
}
OutcomeHandler = Callable[[State, Any, float], Step]  # Any: the class of outcome
OUTCOME_HANDLERS: dict[tuple[Phase | None, type[events.Outcome]], OutcomeHandler] = {
    (Phase.REGISTERING, events.Registered): session.registered,
    (Phase.REGISTERING, events.IdTaken): session.id_taken,
    (Phase.REGISTERING, events.Released): session.released,
    (Phase.RECOVERING, events.Verified): session.recovered,
    (Phase.READING, events.ViewRead): assignment.view_read,
    (Phase.BEFORE_RELEASE, events.ListenerReturned): _listened,
    (Phase.BEFORE_START, events.ListenerReturned): _listened,
    (Phase.LEAVING, events.ListenerReturned): _listened,
    (Phase.RELEASING, events.Released): rebalance.released,
    (Phase.CLAIMING, events.Claimed): rebalance.claimed,
    (Phase.LOADING, events.OffsetsLoaded): rebalance.offsets_loaded,
    (Phase.LOADING, events.StoreUnavailable): rebalance.not_loaded,
    (Phase.VERIFYING, events.Verified): rebalance.verified,
    (Phase.SETTLED, events.OwnersListed): peers.owners_listed,
    (Phase.SETTLED, events.Registered): _nudged,
    (None, events.MemberNodeGone): session.member_node_gone,
    (None, events.Denied): _denied,
}

# ---- Non-obvious --------------------------------------------------------------------------------
#
# Facts that have caused defects; a test (in tests/) guards each of them:
#
# - The session can be lost and replaced within 5 ms, and kazoo may never report LOST. Only a
#   changed session id shows that the session has expired.
#   member/test_machine: the_session_id_decides_not_the_connection_state
# - `OwnersChanged` may arrive while the claim that armed the watch still runs.
#   member/test_machine_races: a_watch_that_fires_during_a_claim_causes_another_claim
# - An obsolete operation must not send its next request, which the read-back would miss.
#   member/test_machine_races: an_abandoned_operation_sends_nothing_more
# - When the lease is granted again, a commit that has nothing to write ends without a request. A
#   phase may wait for that commit. member/test_machine_races:
#   a_hand_over_without_a_commit_continues_when_the_lease_is_renewed
# - An explicit commit covers the message that the user is processing; the automatic commit after it
#   does not. So a commit must never lower the stored offset. member/test_offset_ledger:
#   the_members_own_commits_never_go_back
# - When this member deletes its owner znode, its own watch on the znode fires.
#   member/test_machine_rebalance: the_members_own_release_is_no_loss
# - A watch can be lost without notice: ZooKeeper (3.8.4 and later) drops the event of a znode that
#   the client may not read. So a settled member reads the group periodically; if the group has not
#   changed, nothing is revoked. member/test_machine_rebalance:
#   at_rest_the_group_is_read_again_from_time_to_time
# - While no brokers are registered, the member releases nothing. If only the brokers' sessions
#   expire, members can still fetch messages and must not stop. member/test_machine_rebalance:
#   no_brokers_is_a_waiting_state
