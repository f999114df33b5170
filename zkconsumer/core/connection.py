"""Connecting, registering and the lease: who we are to ZooKeeper, and for how long that is sure."""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.core import committing, events, holding, rebalance
from zkconsumer.core.commands import Command, Notice, NoticeKind, OpenGate, ShutGate, Sync
from zkconsumer.core.lease import Lease
from zkconsumer.core.state import Phase, State, Step, replace, then


def connected(state: State, event: events.Connected) -> Step:
    """A consumer connects, reconnects, or expires: the session's identity tells which."""
    expired = state.session is not None and state.session.id != event.session.id
    commands: tuple[Command, ...] = ()
    state = committing.interrupted(state)
    if expired:
        # Nothing of the old session is ours: the znodes are gone, and so are the positions.
        state, commands = holding.lose(state, frozenset(state.owned))
        state, more = committing.abandon(state, "the ZooKeeper session expired")
        commands += more
        state = replace(state, registered=False, doubtful={}, blocked={}, lease=Lease())
    interval = state.settings.auto_commit_s
    state = replace(
        state,
        connected=True,
        # A leaver delivers nothing any more, and its last commit is a compare-and-set.
        fenced=expired or state.phase is not Phase.LEAVING,
        session=event.session,
        wall_ms=event.wall_ms,
        op=None,
        lease=replace(state.lease, timeout_s=event.session.timeout_s, op=None),
        auto_commit_at=state.auto_commit_at or (interval and event.now + interval),
    )
    state, ask = renew(state, event.now)
    if state.phase is Phase.LEAVING:
        return state, commands + ask
    following = rebalance.recover if state.registered else rebalance.register
    return then((state, commands + ask), following)


def suspended(state: State, _: events.Suspended) -> Step:
    """The connection is gone: pause at once, and keep what is in hand until more is known."""
    return replace(state, connected=False, fenced=True), (ShutGate(),)


def renew(state: State, now: float) -> Step:
    """Ask the leader for the lease."""
    op = state.last_op + 1
    return replace(state, last_op=op, lease=state.lease.asked(op, now)), (Sync(op),)


def synced(state: State, outcome: events.Synced, now: float) -> Step:
    state = replace(state, lease=state.lease.granted(outcome.sent_at))
    return then(_open(state, now), lambda s: rebalance.pump(s, now))


def _open(state: State, now: float) -> Step:
    if state.fenced or not state.lease.holds(now):
        return state, ()
    return state, (OpenGate(state.lease.deadline),)


def unfence(state: State, now: float, following: Callable[[State], Step]) -> Step:
    """What we hold is known again: deliver, commit what waited, go on."""
    result = _open(replace(state, fenced=False), now)
    return then(then(result, following), lambda s: rebalance.pump(s, now))


def registered(state: State, _: events.Registered, now: float) -> Step:
    state = replace(state, registered=True)
    if state.owned or state.doubtful:
        return rebalance.recover(state)
    return unfence(state, now, rebalance.read)


def id_taken(state: State, outcome: events.IdTaken, now: float) -> Step:
    """Another session stands under our id: wait for its end (the JVM 0.9+ gives up for good)."""
    notice = Notice(
        NoticeKind.ID_TAKEN,
        f"ids/{state.settings.consumer}",
        f"session {outcome.session:#x} is registered under our consumer id",
        "it goes when that session ends; or give each consumer its own consumer.id"
        if outcome.session
        else "it is a persistent znode, which must be deleted by hand",
    )
    return replace(state, op=None, retry_at=now + state.settings.backoff_s), (notice,)


def recovered(state: State, outcome: events.Verified, now: float) -> Step:
    """What we own was read back: deliver what is left of it, then read the group."""
    result = holding.take_back(state, outcome)
    return then(result, lambda s: unfence(s, now, rebalance.read))


def member_node_gone(state: State, _: events.MemberNodeGone, now: float) -> Step:
    return rebalance.register(state)
