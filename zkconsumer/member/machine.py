"""The member as a machine: `step(state, event) -> (state, commands)`.

Two rules: everything that decides is in here and in the modules it names (`rebalance`,
`committing`, `lease`, `offsets`); nothing in here does anything.

The transition table is data. A row is (phase, event or outcome) -> handler; phase None stands for
every phase. What has no row is not possible, and raises `IllegalTransitionError` without changing
anything, with one exception: a result that a reconnect has made stale is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zkconsumer.member import assignment, commits, events, peers, phases, rebalance, session
from zkconsumer.member.commands import CollectPositions, Notice, NoticeKind, Withdraw
from zkconsumer.member.events import Event, Finished, Interrupted
from zkconsumer.member.phases import Cause, Deadline, Phase
from zkconsumer.member.rebalance import CALLING, complaint, late_listener
from zkconsumer.member.state import CommitRequest, State, Step, enter, replace, then
from zkconsumer.protocol.model import Purpose

OVER = frozenset({Phase.LEAVING, Phase.CLOSED})


class IllegalTransitionError(Exception):
    """An event that cannot happen in this phase: a bug of the caller, never of the input."""


def step(state: State, event: Event) -> Step:
    """The one function that changes a member's state.

    Raises:
        IllegalTransitionError: no row of the table covers this event; the state is unchanged.
    """
    after, commands = _dispatch(state, event)
    if after.phase is not state.phase:
        phases.check_change(state.phase, causes(state, event), after.phase)
    return after, commands


def _dispatch(state: State, event: Event) -> Step:
    if state.phase is Phase.CLOSED:
        return state, ()
    if isinstance(event, Finished):
        return _finished(state, event)
    handler = TABLE.get((state.phase, type(event))) or TABLE.get((None, type(event)))
    if handler is None:
        raise IllegalTransitionError(f"{type(event).__name__} in phase {state.phase.value}")
    return handler(state, event)


def causes(state: State, event: Event) -> tuple[Cause, ...]:
    """Return what `event` stands for in the table of phase changes.

    A `Tick` stands for every deadline that it meets, an operation's end for its outcome.
    """
    if isinstance(event, Finished):
        return (type(event.outcome),)
    if not isinstance(event, events.Tick):
        return (type(event),)
    times = deadlines(state)
    return tuple(one for one, at in times.items() if at is not None and at <= event.now)


def deadlines(state: State) -> dict[Deadline, float | None]:
    """Return when a `Tick` is due and what for, in seconds of the lease clock."""
    phase, connected = state.phase, state.connected
    settled = phase is Phase.SETTLED
    resting = connected and phase in rebalance.RESTING
    return {
        Deadline.RECREATE: state.recreate_at,
        Deadline.LEASE: state.lease.due_at() if connected else None,
        Deadline.AUTO_COMMIT: state.auto_commit_at,
        Deadline.COMMITS: state.commits_at,
        Deadline.LEAVE: state.leave_at,
        Deadline.GRACE: state.grace_at,
        Deadline.VERIFY: state.verify_at if resting else None,
        Deadline.REFRESH: state.refresh_at if connected and settled else None,
        Deadline.PEERS: state.peers_at if settled else None,
        Deadline.RETRY: state.retry_at if connected else None,
    }


def next_deadline(state: State) -> float:
    """When the next `Tick` is due, in seconds of the lease clock; infinity for never."""
    return min((at for at in deadlines(state).values() if at is not None), default=float("inf"))


def awaits(state: State, op: int) -> bool:
    """Is this operation still of use? One that is not must not send anything more.

    What it has sent is executed before anything that is sent from now on, so the read-back of a
    recovery sees it. Sent later, it would escape: 1. a claim lists the owners; 2. our id znode is
    deleted, we register again and read back what we own; 3. the claim creates its znodes, bound to
    an id znode that is there again; 4. its end is stale: owner znodes that nobody knows to be ours.
    """
    running = {
        state.op,
        state.lease.op,
        state.running_commit.op if state.running_commit else None,
        0,
    }
    return op in running and state.phase is not Phase.CLOSED


# ---- streams ------------------------------------------------------------------------------------


def _release_ready(state: State, event: events.ReleaseReady) -> Step:
    if state.phase is not Phase.STOPPING:
        return state, ()  # too late: the positions were taken with the message in hand
    state = replace(state, finished=state.finished | event.partitions)
    stopped = state.finished >= (state.revoking & state.serving)
    return rebalance.commit_revoked(state, event.now) if stopped else (state, ())


def _positions_collected(state: State, event: events.PositionsCollected) -> Step:
    retries = event.retries
    if retries is None:
        # A hand-over and a leave are awaited by others: one try (JVM 0.9 and later: likewise).
        retries = 0 if event.purpose in commits.URGENT else state.settings.commit_retries
    asked = CommitRequest(event.purpose, event.positions, event.request, event.metadata, retries)
    result = commits.request(state, asked, event.now)
    if event.purpose not in commits.URGENT:
        # One tick may end the grace and start an automatic commit. That commit's positions come
        # first, and the phase must still wait for those of the hand-over.
        return result
    return then(result, lambda s: rebalance.after_commit(s, event.now))


def _commit_timed_out(state: State, event: events.CommitTimedOut) -> Step:
    return commits.timed_out(state, event.request), ()


def _position_reset(state: State, event: events.PositionReset) -> Step:
    return commits.rewind(state, event.partition), ()


# ---- time ---------------------------------------------------------------------------------------


def _tick(state: State, event: events.Tick) -> Step:
    """Whatever is due is done, the lease first."""
    result = session.recreate_due(state, event.now)
    if state.connected and state.lease.due_at() <= event.now:
        result = then(result, lambda s: session.renew(s, event.now))
    result = then(result, lambda s: _auto_commit(s, event.now))
    result = then(result, lambda s: commits.due(s, event.now))
    result = then(result, lambda s: rebalance.after_commit(s, event.now))
    return then(result, lambda s: _phase_tick(s, event.now))


def _auto_commit(state: State, now: float) -> Step:
    interval = state.settings.auto_commit_s
    if interval is None or state.auto_commit_at is None or state.auto_commit_at > now:
        return state, ()
    state = replace(state, auto_commit_at=now + interval)
    if not state.serving or state.phase in OVER:
        return state, ()
    return state, (CollectPositions(Purpose.AUTO, state.serving),)


def _phase_tick(state: State, now: float) -> Step:
    if state.leave_at is not None and state.leave_at <= now:
        return rebalance.close(state)
    if state.grace_at is not None and state.grace_at <= now:
        if state.phase is Phase.STOPPING:
            return rebalance.commit_revoked(state, now)
        if state.phase in CALLING:
            return rebalance.listened(state, (late_listener(state),), now)
    resting = state.connected and state.phase in rebalance.RESTING
    if resting and state.verify_at is not None and state.verify_at <= now:
        return rebalance.recheck(state)
    settled = state.connected and state.phase is Phase.SETTLED
    if settled and state.refresh_at is not None and state.refresh_at <= now:
        return rebalance.read(state)
    if state.phase is Phase.SETTLED and state.peers_at is not None and state.peers_at <= now:
        return peers.look(state) if state.connected else (replace(state, peers_at=None), ())
    if not state.connected or state.retry_at is None or state.retry_at > now:
        return state, ()
    again: dict[Phase, Callable[[State], Step]] = {
        Phase.REGISTERING: rebalance.register,
        Phase.RECOVERING: rebalance.recover,
        Phase.WAITING: rebalance.read,
    }
    # Due while something else is under way, such as a read-back: then it is next.
    following = again.get(state.phase, lambda s: (replace(s, read_again=True), ()))
    return then(peers.report(replace(state, retry_at=None), now), following)


# ---- leaving ------------------------------------------------------------------------------------


def _close_requested(state: State, event: events.CloseRequested) -> Step:
    """A clean leave: delivery stops, the last positions are stored, the session ends."""
    served, committing = state.serving, state.phase is Phase.COMMITTING
    state = enter(replace(state, op=None, grace_at=None, retry_at=None), Phase.LEAVING)
    if state.settings.auto_commit_s is None or not (served or committing):
        return then((state, (Withdraw(served),)), rebalance.close)
    if not (state.connected and state.registered) or state.session is None:
        notice = Notice(
            NoticeKind.COMMIT_FAILED,
            "every partition",
            "left while ZooKeeper was away; what was "
            "handed out since the last commit is delivered again, to the next owner",
        )
        return then((state, (Withdraw(served), notice)), rebalance.close)
    # Not fenced any more: nothing is delivered, and the commit is a compare-and-set that is bound
    # to our id znode, as safe before the read-back of what we own as after it.
    state = replace(state, fenced=False, leave_at=event.now + state.session.timeout_s)
    return state, (CollectPositions(event.purpose, served), Withdraw(served))


# ---- results of operations ----------------------------------------------------------------------


def _finished(state: State, event: Finished) -> Step:
    """Send a result to whoever waits for it; one that nobody waits for any more is stale."""
    outcome, now = event.outcome, event.now
    if event.op == state.lease.op:
        if isinstance(outcome, events.Synced):
            return session.synced(state, outcome, now)
        return replace(state, lease=replace(state.lease, op=None)), ()
    if state.running_commit is not None and event.op == state.running_commit.op:
        ended = _commit_ended(state, outcome, now)
        return then(ended, lambda s: rebalance.after_commit(s, now))
    if event.op != state.op:
        return state, complaint(outcome)
    if isinstance(outcome, Interrupted):
        return replace(state, op=None), ()
    row = OUTCOMES.get((state.phase, type(outcome))) or OUTCOMES.get((None, type(outcome)))
    if row is None:
        raise IllegalTransitionError(f"{type(outcome).__name__} in phase {state.phase.value}")
    return row(state, outcome, now)


def _commit_ended(state: State, outcome: events.Outcome, now: float) -> Step:
    if isinstance(outcome, events.Committed):
        return commits.committed(state, outcome, now)
    if isinstance(outcome, events.Denied):
        return commits.denied(state, outcome, now)
    state = commits.interrupted(state)
    if not isinstance(outcome, events.MemberNodeGone):
        return state, ()
    if state.phase in OVER:
        return commits.abandon(state, "our id znode is gone")
    return rebalance.register(state)


def _connected(state: State, event: events.Connected) -> Step:
    """A leaver has nothing to wait for in a new session."""
    connected = session.connected(state, event)
    return then(connected, lambda s: rebalance.after_commit(s, event.now))


def _listened(state: State, outcome: events.ListenerReturned, now: float) -> Step:
    return rebalance.listened(state, complaint(outcome), now)


def _denied(state: State, outcome: events.Denied, now: float) -> Step:
    """ZooKeeper refuses: say so and try again after the back-off, since rights can be mended."""
    notice = Notice(NoticeKind.DENIED, outcome.where, outcome.reason)
    fenced = state.phase in (Phase.REGISTERING, Phase.RECOVERING)
    phase = state.phase if fenced else Phase.WAITING
    return enter(replace(state, op=None, retry_at=now + state.settings.backoff_s), phase), (notice,)


Handler = Callable[[State, Any], Step]
TABLE: dict[tuple[Phase | None, type[Event]], Handler] = {
    (None, events.Connected): _connected,
    (None, events.Suspended): session.suspended,
    (None, events.ClientDied): session.client_died,
    (None, events.Tick): _tick,
    (None, events.Triggered): rebalance.triggered,
    (None, events.OwnerNodeChanged): rebalance.owner_node_changed,
    (None, events.OwnersChanged): rebalance.owners_changed,
    (None, events.TopicDeleted): rebalance.topic_deleted,
    (None, events.ReleaseReady): _release_ready,
    (None, events.PositionsCollected): _positions_collected,
    (None, events.CommitTimedOut): _commit_timed_out,
    (None, events.PositionReset): _position_reset,
    (None, events.Diagnosed): peers.diagnosed,
    (None, events.CloseRequested): _close_requested,
    (Phase.LEAVING, events.Triggered): lambda s, _: (s, ()),
    (Phase.LEAVING, events.OwnerNodeChanged): lambda s, _: (s, ()),
    (Phase.LEAVING, events.OwnersChanged): lambda s, _: (s, ()),
    (Phase.LEAVING, events.CloseRequested): lambda s, _: (s, ()),
    (Phase.OFFLINE, events.Triggered): lambda s, _: (s, ()),
}
OutcomeHandler = Callable[[State, Any, float], Step]
OUTCOMES: dict[tuple[Phase | None, type[events.Outcome]], OutcomeHandler] = {
    (Phase.REGISTERING, events.Registered): session.registered,
    (Phase.REGISTERING, events.IdTaken): session.id_taken,
    (Phase.REGISTERING, events.Released): session.released,
    (Phase.RECOVERING, events.Verified): session.recovered,
    (Phase.READING, events.ViewRead): assignment.view_read,
    (Phase.BEFORE_RELEASE, events.ListenerReturned): _listened,
    (Phase.BEFORE_START, events.ListenerReturned): _listened,
    (Phase.RELEASING, events.Released): rebalance.released,
    (Phase.CLAIMING, events.Claimed): rebalance.claimed,
    (Phase.LOADING, events.OffsetsLoaded): rebalance.offsets_loaded,
    (Phase.LOADING, events.StoreUnavailable): rebalance.not_loaded,
    (Phase.VERIFYING, events.Verified): rebalance.verified,
    (Phase.SETTLED, events.OwnersListed): peers.looked,
    # After a nudge: reading the group arms the watch on the new id znode.
    (Phase.SETTLED, events.Registered): lambda s, _, __: rebalance.read(s),
    (None, events.MemberNodeGone): session.member_node_gone,
    (None, events.Denied): _denied,
}

# ---- Non-obvious --------------------------------------------------------------------------------
#
# Each of these has bitten somebody; the test that guards it stands behind it (tests/core).
#
# - LOST and CONNECTED can be 5 ms apart, and kazoo may never report LOST: only the session's id
#   tells. test_machine: the_identity_of_the_session_tells_not_its_state
# - `OwnersChanged` may come while the claim that armed the watch is still under way.
#   test_machine_races: a_blocker_that_goes_while_we_claim_is_not_overlooked
# - An operation that was given up must not send its next request: it would escape the read-back.
#   test_machine_races: an_operation_that_was_given_up_sends_nothing_more
# - A commit can end without a request (nothing to write) when the lease comes back, and a phase may
#   be waiting for it. test_machine_races:
#   a_hand_over_with_nothing_to_commit_goes_on_when_the_lease_is_back
# - An explicit commit covers the message in hand, the automatic one after it does not: a commit
#   only ever raises what is stored. test_offsets: our_own_commits_never_go_back
# - Our own release fires the watch on our own owner znode.
#   test_machine_rebalance: our_own_release_is_no_loss
# - At rest a member trusts its watches, but not for ever: ZooKeeper (from 3.8.4 on) drops a watch
#   whose event its client may not read, and says nothing. So a settled member reads the group again
#   from time to time; what has not changed moves nothing. test_machine_rebalance:
#   at_rest_the_group_is_read_again_from_time_to_time
# - Without brokers nothing is released: a ZooKeeper that has lost its brokers' sessions must not
#   stop a group that can still read. test_machine_rebalance: no_brokers_is_a_waiting_state
