"""The ZooKeeper session: connections, the client's death, the registration, and the lease."""

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
from zkconsumer.member.state import (
    ClientDeaths,
    Lease,
    State,
    Step,
    replace,
    start_op,
    then,
)
from zkconsumer.protocol.model import ThreadId, TopicPartition, session_text

CLIENT_BACKOFF_S, CLIENT_BACKOFF_MAX_S = 0.5, 30.0
"""The back-off, in seconds, before a new ZooKeeper client replaces a dead one.

The back-off doubles with each death until the next connection. The first back-off is short, so that
a new client can connect before the session expires.
"""

MAX_DOUBLINGS = 6
"""Maximum number of doublings: 0.5 s doubled six times exceeds `CLIENT_BACKOFF_MAX_S`."""

MAX_REFUSALS = 5
"""After this many refused logins in a row, the member closes itself.

The member closes about 8 s after the first refusal. A server that restarts may close the connection
during one login, but hardly during five.
"""


# ---- the connection -----------------------------------------------------------------------------


def connected(state: State, event: events.Connected) -> Step:
    """Handle a connection: the first connection, a reconnect, or a connection with a new session.

    A changed session id shows that the old session has expired. ZooKeeper has then deleted the
    owner znodes, or deletes them soon, so the member drops its partitions.
    """
    expired = state.session is not None and state.session.id != event.session.id
    commands: tuple[Command, ...] = ()
    state = commits.interrupted(state)
    if expired:
        state, commands = rebalance.drop_ownership(state, frozenset(state.owned))
        state, more = commits.abandon(state, "the ZooKeeper session expired")
        commands += more
        state = replace(
            state,
            registered=False,
            former=state.former | {state.session.id} if state.session else state.former,
            unconfirmed_claims={},
            blocked=replace(state.blocked, partitions={}, ask_at=None, reason=""),
            lease=Lease(),
        )
    interval = state.settings.auto_commit_s
    state = replace(
        state,
        connected=True,
        client=ClientDeaths(),
        # A leaving member need not read back its owner znodes first: it delivers no more messages,
        # and its last commit is a compare-and-set.
        may_deliver=not expired and state.phase is Phase.LEAVING,
        session=event.session,
        wall_ms=event.wall_ms,
        # A leaving member's operation is a call of `on_revoked`, which continues.
        op=state.op if state.phase is Phase.LEAVING else None,
        lease=replace(state.lease, timeout_s=event.session.timeout_s, op=None),
        auto_commit_at=state.auto_commit_at or (interval and event.now + interval),
    )
    state, ask = renew(state, event.now)
    if state.phase is Phase.LEAVING:
        return state, commands + ask
    following = rebalance.recover if state.registered else rebalance.register
    return then((state, commands + ask), following)


def suspended(state: State, _: events.Suspended) -> Step:
    """Pause delivery at once when the connection is lost; keep all ownership."""
    state = rebalance.count_as_unwatched(state)
    return replace(state, connected=False, may_deliver=False), (ShutGate(),)


def client_died(state: State, event: events.ClientDied) -> Step:
    """Recreate the client after a back-off; close the member if a new client would fail too.

    A new client may succeed: a restarting server may have closed the connection during the login,
    and a Kerberos ticket may be renewed. A refused credential does not change while the member
    runs, so the member gives up after `MAX_REFUSALS`. A leaving member does not wait for a new
    client.
    """
    client = replace(
        state.client,
        reason=event.reason,
        deaths=state.client.deaths + 1,
        refusals=state.client.refusals + event.refused,
    )
    state = replace(state, connected=False, may_deliver=False, client=client)
    if client.refusals >= MAX_REFUSALS or state.phase is Phase.LEAVING:
        state, commands = rebalance.close(state, f"the ZooKeeper client failed: {event.reason}")
        return state, (GiveUp(event.reason, event.refused), *commands)
    doublings = min(client.deaths - 1, MAX_DOUBLINGS)
    wait_s = min(CLIENT_BACKOFF_S * 2**doublings, CLIENT_BACKOFF_MAX_S)
    notice = Notice(
        NoticeKind.CLIENT_DIED,
        "the ZooKeeper client",
        f"it failed: {event.reason}",
        "nothing is delivered until a new client is connected; the next one starts in "
        f"{wait_s:g} s",
    )
    client = replace(client, recreate_at=event.now + wait_s)
    return replace(state, client=client), (ShutGate(), notice)


def recreate_due(state: State, now: float) -> Step:
    """Replace the dead client if the back-off is over."""
    if state.client.recreate_at is None or state.client.recreate_at > now:
        return state, ()
    return replace(state, client=replace(state.client, recreate_at=None)), (RecreateClient(),)


# ---- the lease ----------------------------------------------------------------------------------


def renew(state: State, now: float) -> Step:
    """Ask ZooKeeper's leader to renew the lease."""
    op = state.last_op + 1
    return replace(state, last_op=op, lease=state.lease.asked(op, now)), (Sync(op),)


def synced(state: State, outcome: events.Synced, now: float) -> Step:
    """Prolong the lease: ZooKeeper's leader knew the session when the `sync` was sent."""
    state = replace(state, lease=state.lease.granted(outcome.sent_at))
    return then(_open(state, now), lambda s: rebalance.start_next_commit(s, now))


def _open(state: State, now: float) -> Step:
    if not state.may_deliver or not state.lease.holds(now):
        return state, ()
    return state, (OpenGate(state.lease.deadline),)


def resume_delivery(state: State, now: float, following: Callable[[State], Step]) -> Step:
    """Resume delivery and queued commits, because the member's owner znodes are known again."""
    result = _open(replace(state, may_deliver=True), now)
    return then(then(result, following), lambda s: rebalance.start_next_commit(s, now))


# ---- the registration ---------------------------------------------------------------------------


def registered(state: State, _: events.Registered, now: float) -> Step:
    """Read the group, or first read back the owner znodes that this session may have."""
    state = replace(state, registered=True, rival=None)
    if state.session is not None and state.session.after_loss:
        state = rebalance.forget_zxids(state)
    if state.owned or state.unconfirmed_claims:
        return rebalance.recover(state)
    return resume_delivery(state, now, rebalance.read)


def id_taken(state: State, outcome: events.IdTaken, now: float) -> Step:
    """Release every partition, because another session is registered under this consumer id.

    1. The member owns partitions. 2. Another client deletes its id znode. 3. A second consumer with
    the same id registers. The group then assigns the partitions to the second consumer, which
    cannot claim them while this member's session has the owner znodes. So this member releases
    them, and waits for the end of the other session.

    JVM (0.9 and later): the connector stops permanently.
    """
    known, state = state.rival, replace(state, rival=outcome.session)
    if outcome.session in state.former:
        wait = replace(state, op=None, retry_at=now + state.settings.backoff_s)
        return wait, () if known == outcome.session else (_former_notice(state),)
    notice = Notice(
        NoticeKind.ID_TAKEN,
        f"ids/{state.settings.consumer}",
        rival_text(outcome.session),
        rival_remedy(outcome.session),
    )
    held = {**state.unconfirmed_claims, **{tp: mine.thread for tp, mine in state.owned.items()}}
    if not held or state.commits.plan.touches(held):
        # The release waits for the running commit, as in every rebalance.
        return replace(state, op=None, retry_at=now + state.settings.backoff_s), (notice,)
    return then((state, (notice,)), lambda s: _release_all(s, held))


def rival_text(session: int) -> str:
    """Return a text that names the session that is registered under this member's consumer id."""
    return f"session {session_text(session)} is registered under this member's consumer id"


def rival_remedy(session: int) -> str:
    """Return what to do about that session."""
    if not session:
        return "run `zkconsumer doctor --fix`: the id znode is persistent and belongs to no session"
    return "wait for that session to end, or give each consumer its own consumer.id"


def _former_notice(state: State) -> Notice:
    """Report that a former session of this member is still registered.

    1. The member gets a new session, although the servers have not ended the old one. 2. It
    registers, and finds its old id znode. ZooKeeper deletes that znode after the session timeout.
    """
    return Notice(
        NoticeKind.WAITING,
        f"ids/{state.settings.consumer}",
        f"this member's former session {session_text(state.rival or 0)} is still registered; the "
        "member registers again when ZooKeeper has ended that session",
    )


def _release_all(state: State, held: Mapping[TopicPartition, ThreadId]) -> Step:
    """Release this session's owner znodes; `unconfirmed_claims` contains them until the reply.

    If the release is denied or interrupted, an owner znode may survive. The member later releases
    the partition and claims it again (`reassign`), because the unfinished messages are redelivered
    and need a new fencing token.
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
    reassign = state.reassign | partitions
    state = replace(state, unconfirmed_claims=held, reassign=reassign, retry_at=None)
    state, op = start_op(state)
    return state, (*notices, *withdraw, *answers, Release(op, partitions))


def released(state: State, outcome: events.Released, now: float) -> Step:
    """Schedule a new registration after the back-off, because all owner znodes are released."""
    left = {tp: thread for tp, thread in state.unconfirmed_claims.items() if tp in outcome.denied}
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot release: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    retry_at = now + state.settings.backoff_s
    reassign = state.reassign.intersection(left)
    state = replace(state, op=None, unconfirmed_claims=left, reassign=reassign, retry_at=retry_at)
    return state, notices


def recovered(state: State, outcome: events.Verified, now: float) -> Step:
    """Resume delivery of the partitions that are still owned, and read the group."""
    result = rebalance.apply_read_back(state, outcome)
    return then(result, lambda s: resume_delivery(s, now, rebalance.read))


def member_node_gone(state: State, _: events.MemberNodeGone, now: float) -> Step:
    """Register again, because an operation found the member's id znode missing."""
    return rebalance.register(state)
