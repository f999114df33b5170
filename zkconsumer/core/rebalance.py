"""The phases of a rebalance: stop, commit, release, claim, load, start, verify; one at a time.

`advance` is the one place that decides which phase comes next, from what is still to be done and
not from what was done last: so a trigger during a rebalance is never lost, and a rebalance that was
cut short by a reconnect goes on from what is true by then.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from zkconsumer.core import blocking, committing, holding, listening
from zkconsumer.core.commands import (
    AskRelease,
    Claim,
    CloseSession,
    CollectPositions,
    LoadOffsets,
    Notice,
    NoticeKind,
    ReadView,
    Register,
    Release,
    ShutGate,
    Verify,
    Withdraw,
)
from zkconsumer.core.events import Claimed, Released, Verified
from zkconsumer.core.model import UNNAMED, Purpose, RebalanceMode, TopicPartition
from zkconsumer.core.peers import patience_s
from zkconsumer.core.state import Phase, State, Step, drop_from, replace, start_op, then

RECHECK_S = 0.5
"""When what was kept is read back: after the members' claims, which all come at the same time. Its
watches stand meanwhile. The next rebalance, if it comes before, starts this time anew."""

MAX_PUT_OFF = 10
"""How many readings in a row may put a claim off because the next news is there already. Then what
is missing is claimed and read by the view at hand, though some of it may have to go again at once:
else a group that never rests would leave partitions unread for as long."""


REFRESH_SESSIONS, REFRESH_PER_MEMBER_S = 5, 1.0
REFRESH_SPREAD = 0.2
"""A reading at rest comes after five session timeouts, and one second for each member of the group:
then each member is read about once a second, however many there are. By up to a fifth it is later,
each member's own share, so that a group that came to rest at once does not read at once."""


def advance(state: State, now: float) -> Step:
    """Enter the next phase: what must go before what is missing, and news before rest."""
    wanted, owned = state.wanted, state.owned
    go = frozenset(
        tp
        for tp, mine in owned.items()
        if (wanted.get(tp) != mine.thread or tp in state.restart) and tp not in state.refused
    )
    if go:
        return stop(state, go, now)
    missing = [tp for tp in wanted if tp not in owned and tp not in state.refused]
    unread = state.malformed | state.restart
    unserved = frozenset(
        tp for tp in owned if tp in wanted and tp not in state.serving and tp not in unread
    )
    claiming = bool(missing) and state.claim_due
    put_off = state.put_off + 1 if state.stale and (claiming or unserved) else 0
    if state.stale and put_off <= MAX_PUT_OFF:
        # What is claimed or loaded by an old view may have to go at once.
        return read(replace(state, put_off=put_off))
    if not state.stale:
        state = replace(state, put_off=0)
    call = listening.due(state, claiming=claiming, resting=bool(unserved) or not missing)
    if call is not None:
        return listening.call(state, call, now)
    if claiming:
        return claim(state, missing, now)
    if unserved:
        state, op = start_op(replace(state, phase=Phase.LOADING))
        return state, (LoadOffsets(op, unserved, state.settings.storage),)
    fresh = state.unwatched.intersection(owned)
    return verify(state, fresh) if fresh else rest(state, missing, now)


def rest(state: State, missing: Sequence[TopicPartition], now: float) -> Step:
    """Nothing can be done now: settled, or waiting for a watch with the back-off as upper bound."""
    state = replace(state, verify_at=now + RECHECK_S if state.unverified else None)
    if missing or state.refused or state.waiting_for:
        # A read-back on the way does not put the next look off.
        due = state.retry_at
        retry_at = now + state.settings.backoff_s if due is None else due
        return replace(state, phase=Phase.WAITING, op=None, retry_at=retry_at), ()
    state = replace(state, peers_at=now + patience_s(state), refresh_at=_refresh_at(state, now))
    return replace(state, phase=Phase.SETTLED, op=None, retry_at=None), ()


def _refresh_at(state: State, now: float) -> float | None:
    """A watch can be lost: where its client may not read, ZooKeeper from 3.8.4 on drops it."""
    least_s, session, view = state.settings.refresh_s, state.session, state.view
    if least_s is None or session is None or view is None:
        return None
    of_group_s = REFRESH_PER_MEMBER_S * len(view.members)
    wait_s = max(least_s, REFRESH_SESSIONS * session.timeout_s, of_group_s)
    share = zlib.crc32(state.settings.consumer.encode()) / 2**32
    return now + wait_s * (1 + REFRESH_SPREAD * share)


def register(state: State) -> Step:
    """Create our id znode; nothing is delivered until what we own was read back after it."""
    state, commands = _cut_short(state)
    state = replace(
        state, registered=False, fenced=True, phase=Phase.REGISTERING, retry_at=None, nudge_op=None
    )
    state, op = start_op(state)
    return state, (ShutGate(), *commands, Register(op, state.wall_ms))


def recover(state: State) -> Step:
    """Read back all that may be ours, claims without a reply included."""
    state, commands = _cut_short(state)
    claims = {**state.doubtful, **{tp: mine.thread for tp, mine in state.owned.items()}}
    state, op = start_op(replace(state, phase=Phase.RECOVERING, retry_at=None))
    return state, (*commands, Verify(op, claims))


def _cut_short(state: State) -> Step:
    """A rebalance ends half-way: what the streams were asked to finish is taken from them.

    Where it goes is decided anew, and given up it is even if it stays: what is in the user's hands
    comes again, and under one token nothing does. Its positions wait for the commit, so that
    reading on from the stored offset repeats nothing that was finished.
    """
    asked, unfinished = state.moving & state.serving, state.phase is Phase.STOPPING
    state = replace(
        state, moving=frozenset(), restart=state.restart | state.moving, grace_at=None, stale=True,
        serving=state.serving - asked,
    )
    if not asked:
        return state, ()
    collects = unfinished and state.settings.auto_commit_s is not None
    collect = (CollectPositions(Purpose.RELEASE, asked),) if collects else ()
    return state, (*collect, Withdraw(asked))


def read(state: State) -> Step:
    """Read the whole group again."""
    state, op = start_op(replace(state, phase=Phase.READING, stale=False, retry_at=None))
    return state, (ReadView(op),)


# ---- giving up ----------------------------------------------------------------------------------


def stop(state: State, go: frozenset[TopicPartition], now: float) -> Step:
    """Let the user finish what is in hand of the partitions that move away."""
    state = replace(state, moving=go, ready=frozenset())
    asked = go & state.serving
    if not asked:
        if committing.pending(state, Purpose.RELEASE):
            # A connection that broke cut the last hand-over short; its positions are not stored.
            return pump(replace(state, phase=Phase.COMMITTING, op=None, grace_at=None), now)
        return before_release(state, now)
    state = replace(
        state, phase=Phase.STOPPING, op=None, grace_at=now + state.settings.grace_s
    )
    return state, (AskRelease(asked),)


def stopped(state: State, now: float) -> Step:
    """All is finished, or the grace is over: nothing more is handed out. Commit, then release."""
    if state.settings.auto_commit_s is None:
        return before_release(replace(state, ready=frozenset()), now)
    state = replace(state, phase=Phase.COMMITTING, grace_at=None)
    return state, (CollectPositions(Purpose.RELEASE, state.moving & state.serving),)


def before_release(state: State, now: float) -> Step:
    """The listener may commit what goes: so its positions are known until it has returned."""
    listens = state.settings.listener_s is not None
    return listening.before_release(state, now) if listens else release(state)


def listened(state: State, said: tuple[Notice, ...], now: float) -> Step:
    """The listener has ended, well or not, or its time is over."""
    state = replace(state, op=None, grace_at=None)
    return then((state, said), release if state.moving else lambda s: advance(s, now))


def release(state: State) -> Step:
    """Delete owner znodes, behind a commit that touches them.

    Else: 1. a commit is sent, and refused, since somebody wrote meanwhile; 2. the owner znodes are
    released; 3. the commit starts over, and writes what is another's by now.

    What is refused may come back. What was finished and stored then goes on under its token; of
    anything else, messages would come again, so that is given up and claimed anew.
    """
    state = replace(state, phase=Phase.RELEASING, op=None, grace_at=None)
    if committing.touches(state, state.moving):
        return state, ()  # its end comes back to here
    asked = state.moving & state.serving
    restart = (state.restart - asked) | (asked - state.ready)
    state, op = start_op(replace(state, serving=state.serving - asked, restart=restart))
    withdraw = (Withdraw(asked),) if asked else ()
    return state, (*withdraw, Release(op, state.moving))


def released(state: State, outcome: Released, now: float) -> Step:
    gone, refused = state.moving.difference(outcome.denied), {**state.refused, **outcome.denied}
    state = replace(
        state,
        owned=drop_from(state.owned, gone),
        ledger=drop_from(state.ledger, gone),
        malformed=state.malformed - gone,
        restart=state.restart.intersection(refused),
        refused=refused,
        moving=frozenset(),
        ready=frozenset(),
    )
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot release: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    advanced = then((state, notices), lambda s: advance(s, now))
    return then(advanced, lambda s: pump(s, now))


def pump(state: State, now: float) -> Step:
    """Commits may be written again: start what waits, and go on if a phase waited for it."""
    return then(committing.pump(state, now), lambda s: after_commit(s, now))


def after_commit(state: State, now: float) -> Step:
    """A phase that waits for a commit goes on when it is over, however it ended."""
    if state.phase is Phase.COMMITTING and not committing.pending(state, Purpose.RELEASE):
        return before_release(state, now)
    if state.phase is Phase.RELEASING and state.op is None and state.connected:
        return release(state)
    last = (Purpose.LEAVE, Purpose.RELEASE)
    if state.phase is Phase.LEAVING and not any(committing.pending(state, p) for p in last):
        return close(state)
    return state, ()


def close(state: State, reason: str = "the connector is shut down") -> Step:
    """The end: what still waits for a commit is told, and the session takes our znodes along."""
    state, answers = committing.abandon(state, reason)
    return replace(state, phase=Phase.CLOSED), (*answers, ShutGate(), CloseSession())


# ---- taking -------------------------------------------------------------------------------------


def claim(state: State, missing: list[TopicPartition], now: float) -> Step:
    threads = {tp: state.wanted[tp] for tp in missing}
    # A try that a watch brought looks at what has changed only; any other looks at everything.
    known = state.blocked if state.phase is Phase.WAITING else {}
    known = {tp: who for tp, who in known.items() if who != UNNAMED}
    since = state.blocked_since
    overdue = since is not None and now - since >= state.settings.backoff_s
    ask = frozenset(missing).difference(known) if overdue else frozenset()
    state, op = start_op(
        replace(state, phase=Phase.CLAIMING, doubtful=threads, claim_due=False)
    )
    eager = state.settings.mode is RebalanceMode.EAGER
    return state, (Claim(op, threads, known, ask, eager),)


def claimed(state: State, outcome: Claimed, now: float) -> Step:
    since = state.blocked_since if state.blocked_since is not None else now
    state = replace(
        state,
        owned={**state.owned, **outcome.claimed},
        unwatched=state.unwatched.union(outcome.claimed),
        doubtful={},
        blocked=outcome.blocked,
        blocked_since=since if outcome.blocked else None,
        refused={**state.refused, **outcome.denied},
    )
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot claim: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    state, unblocked = blocking.keep(state)
    return then((state, notices + unblocked), lambda s: advance(s, now))


def verify(state: State, partitions: frozenset[TopicPartition]) -> Step:
    """Read back owner znodes that we hold, and watch them."""
    state, op = start_op(replace(state, phase=Phase.VERIFYING, verify_at=None))
    return state, (Verify(op, {tp: state.owned[tp].thread for tp in partitions}),)


def recheck(state: State) -> Step:
    """What was kept is read back, as in every rebalance."""
    kept = state.unverified.intersection(state.owned)
    return verify(state, kept) if kept else (replace(state, verify_at=None), ())


def verified(state: State, outcome: Verified, now: float) -> Step:
    return then(holding.take_back(state, outcome), lambda s: advance(s, now))
