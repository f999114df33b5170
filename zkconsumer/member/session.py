"""Connecting, registering and the lease: who we are to ZooKeeper, and for how long that is sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zkconsumer.member import commits, events, rebalance
from zkconsumer.member.commands import (
    Command,
    GiveUp,
    Notice,
    NoticeKind,
    OpenGate,
    RecreateClient,
    Release,
    ShutGate,
    Sync,
)
from zkconsumer.member.peers import listed
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Lease, State, Step, replace, start_op, then
from zkconsumer.protocol.model import ThreadId, TopicPartition

CLIENT_BACKOFF_S, CLIENT_BACKOFF_MAX_S = 0.5, 30.0
"""Seconds before a dead ZooKeeper client is replaced; doubled after each death without a
connection in between. The first is short, since the session ends after its timeout."""

MAX_DOUBLINGS = 6
"""0.5 s doubled six times is above `CLIENT_BACKOFF_MAX_S`; more would only make large numbers."""

MAX_REFUSALS = 5
"""Refused logins without a connection in between, after which the member is closed: about 8 s after
the first. A server that restarts may hang up during one login, but hardly during five."""


def connected(state: State, event: events.Connected) -> Step:
    """A consumer connects, reconnects, or expires: the session's identity tells which."""
    expired = state.session is not None and state.session.id != event.session.id
    commands: tuple[Command, ...] = ()
    state = commits.interrupted(state)
    if expired:
        # Nothing of the old session is ours: the znodes are gone, and so are the positions.
        state, commands = rebalance.drop_ownership(state, frozenset(state.owned))
        state, more = commits.abandon(state, "the ZooKeeper session expired")
        commands += more
        state = replace(state, registered=False, unconfirmed_claims={}, blocked={}, lease=Lease())
    interval = state.settings.auto_commit_s
    state = replace(
        state,
        connected=True,
        client_fault="",
        client_deaths=0,
        client_refusals=0,
        recreate_at=None,
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


def client_died(state: State, event: events.ClientDied) -> Step:
    """Recreate the client after a back-off; close the member where that cannot help.

    A server that restarts may hang up during the login, and a Kerberos ticket may be renewed, so a
    new client is tried. A refused credential does not change while the member runs: after
    `MAX_REFUSALS` the member gives up. A member that is leaving does not wait for a new client.
    """
    state = replace(
        state,
        connected=False,
        fenced=True,
        client_fault=event.reason,
        client_deaths=state.client_deaths + 1,
        client_refusals=state.client_refusals + event.refused,
    )
    if state.client_refusals >= MAX_REFUSALS or state.phase is Phase.LEAVING:
        state, commands = rebalance.close(state, f"the ZooKeeper client failed: {event.reason}")
        return state, (GiveUp(event.reason, event.refused), *commands)
    doublings = min(state.client_deaths - 1, MAX_DOUBLINGS)
    wait_s = min(CLIENT_BACKOFF_S * 2**doublings, CLIENT_BACKOFF_MAX_S)
    notice = Notice(
        NoticeKind.CLIENT_DIED,
        "the ZooKeeper client",
        f"it failed: {event.reason}",
        "nothing is delivered until a new client is connected; the next one starts in "
        f"{wait_s:g} s",
    )
    return replace(state, recreate_at=event.now + wait_s), (ShutGate(), notice)


def recreate_due(state: State, now: float) -> Step:
    """The back-off after the client's death is over."""
    if state.recreate_at is None or state.recreate_at > now:
        return state, ()
    return replace(state, recreate_at=None), (RecreateClient(),)


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
    if state.owned or state.unconfirmed_claims:
        return rebalance.recover(state)
    return unfence(state, now, rebalance.read)


def id_taken(state: State, outcome: events.IdTaken, now: float) -> Step:
    """Another session is registered under this member's consumer id: release all, wait for its end.

    1. The member owns partitions; 2. another client deletes its id znode; 3. a second consumer with
    the same id registers. From then on the group assigns the partitions to the second consumer,
    which cannot claim them while this member's session holds the owner znodes. JVM (0.9 and later):
    the connector stops for good.
    """
    notice = Notice(
        NoticeKind.ID_TAKEN,
        f"ids/{state.settings.consumer}",
        f"session {outcome.session:#x} is registered under our consumer id",
        "it goes when that session ends; or give each consumer its own consumer.id"
        if outcome.session
        else "it is a persistent znode, which must be deleted by hand",
    )
    held = {**state.unconfirmed_claims, **{tp: mine.thread for tp, mine in state.owned.items()}}
    if not held or commits.touches(state, held):
        # A commit under way ends before the release, as in every rebalance.
        return replace(state, op=None, retry_at=now + state.settings.backoff_s), (notice,)
    return then((state, (notice,)), lambda s: _release_all(s, held))


def _release_all(state: State, held: Mapping[TopicPartition, ThreadId]) -> Step:
    """Release this session's owner znodes; `unconfirmed_claims` keeps them until the reply.

    Whatever survives, because the release is denied or interrupted, is claimed anew later
    (`reassign`): its unfinished messages are redelivered, which needs a new fencing token.
    """
    partitions = frozenset(held)
    lost = Notice(
        NoticeKind.OWNERSHIP_LOST,
        listed(state.owned),
        "the member releases its owner znodes, because another session is registered under its "
        "consumer id",
        "give each consumer its own consumer.id",
    )
    notices = (lost,) if state.owned else ()
    state, withdraw = rebalance.drop_ownership(state, frozenset(state.owned))
    reason = "another session is registered under the consumer id"
    state, answers = commits.abandon(state, reason)
    state, op = start_op(
        replace(state, unconfirmed_claims=held, reassign=state.reassign | partitions, retry_at=None)
    )
    return state, (*notices, *withdraw, *answers, Release(op, partitions))


def released(state: State, outcome: events.Released, now: float) -> Step:
    """The owner znodes are released while another session holds the consumer id: try it again."""
    left = {tp: thread for tp, thread in state.unconfirmed_claims.items() if tp in outcome.denied}
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot release: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    retry_at = now + state.settings.backoff_s
    reassign = state.reassign.intersection(left)
    return replace(
        state, op=None, unconfirmed_claims=left, reassign=reassign, retry_at=retry_at
    ), notices


def recovered(state: State, outcome: events.Verified, now: float) -> Step:
    """What we own was read back: deliver what is left of it, then read the group."""
    result = rebalance.apply_read_back(state, outcome)
    return then(result, lambda s: unfence(s, now, rebalance.read))


def member_node_gone(state: State, _: events.MemberNodeGone, now: float) -> Step:
    return rebalance.register(state)
