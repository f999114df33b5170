"""The phases of a rebalance: stop, commit, release, claim, load, start, verify; one at a time.

`advance` is the one place that decides which phase comes next, from what is still to be done and
not from what was done last: so a trigger during a rebalance is never lost, and a rebalance that was
cut short by a reconnect goes on from what is true by then.

What makes a member rebalance: each trigger is acted on at once at rest, else when it is next.

The user's rebalance listener: called, waited for, and never for longer than `release.grace.ms`.

JVM: `ConsumerRebalanceListener` (0.9.0.0, KAFKA-1650). Both calls belong to an assignment: before
the release, with what goes, which may be nothing; after the claim and before anything of it is
fetched, with who gets what. What is released for any other reason is told as well. The JVM calls
in every attempt and waits for ever, which makes a joiner give up; we go on without an answer.

Taking up what was claimed: where each partition is read on from, by what is stored of it.

What we hold: taken back when it was read back, lost when somebody else touched it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from zkconsumer.member import commits, events, peers
from zkconsumer.member.commands import (
    AskRelease,
    Callback,
    CallListener,
    Claim,
    CloseSession,
    CollectPositions,
    Command,
    LoadOffsets,
    Notice,
    NoticeKind,
    ReadView,
    RearmTopic,
    Register,
    Release,
    ShutGate,
    StartFetching,
    Verify,
    Withdraw,
)
from zkconsumer.member.events import (
    Claimed,
    ListenerReturned,
    OffsetsLoaded,
    Outcome,
    Released,
    StoreUnavailable,
    Trigger,
    Verified,
)
from zkconsumer.member.offset_ledger import starting_offset
from zkconsumer.member.peers import patience_s
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State, Step, drop_from, enter, replace, start_op, then
from zkconsumer.protocol.group_snapshot import assignment_of_others
from zkconsumer.protocol.model import (
    UNKNOWN_BLOCKER,
    Purpose,
    RebalanceMode,
    Storage,
    TopicPartition,
)

# ---- listening -----------------------------------------------------------------------------------


_PHASE = {Callback.RELEASING: Phase.BEFORE_RELEASE, Callback.STARTING: Phase.BEFORE_START}
CALLING = frozenset(_PHASE.values())


def learn_assignment(state: State) -> State:
    """A group was read and our part computed: another assignment is told from the beginning."""
    settings = state.settings
    if settings.listener_s is None or state.view is None:
        return state
    others = assignment_of_others(
        state.view,
        consumer=settings.consumer,
        strategy=settings.strategy,
        profile=settings.profile,
    )
    assignment = {**others, **state.assigned}
    if assignment == state.assignment:
        return state
    return replace(state, assignment=assignment, last_callback=None)


def due_callback(state: State, *, claiming: bool, resting: bool) -> Callback | None:
    """The call that comes before the claim, before fetching, or before a rest that has all."""
    if state.settings.listener_s is None or state.assignment is None:
        return None
    if state.last_callback is None and (claiming or resting):
        return Callback.RELEASING
    started = state.last_callback is Callback.STARTING
    return Callback.STARTING if resting and not claiming and not started else None


def call_listener(state: State, callback: Callback, now: float) -> Step:
    """Ask for the call; its end, or the grace's, goes on from there."""
    assert state.settings.listener_s is not None
    state, op = start_op(
        enter(
            replace(state, last_callback=callback, grace_at=now + state.settings.listener_s),
            _PHASE[callback],
        )
    )
    going = {tp: state.owned[tp].thread for tp in state.revoking if tp in state.owned}
    partitions = going if callback is Callback.RELEASING else state.assignment or {}
    return state, (CallListener(op, callback, partitions),)


def call_before_release(state: State, now: float) -> Step:
    """Tell of what goes."""
    return call_listener(state, Callback.RELEASING, now)


def complaint(outcome: Outcome) -> tuple[Notice, ...]:
    """What went wrong in a call, whether somebody still waits for its end or not."""
    if not isinstance(outcome, ListenerReturned) or not outcome.error:
        return ()
    return (
        Notice(
            NoticeKind.LISTENER_FAILED,
            outcome.callback.value,
            f"the rebalance listener raised {outcome.error}",
            "the rebalance goes on as if it had not",
        ),
    )


def late_listener(state: State) -> Notice:
    """It has not returned within the grace."""
    callback = Callback.RELEASING if state.phase is Phase.BEFORE_RELEASE else Callback.STARTING
    return Notice(
        NoticeKind.LISTENER_LATE,
        callback.value,
        f"the rebalance listener has not returned within {state.settings.listener_s:g} s; the "
        "rebalance goes on without it",
        "return sooner, or raise release.grace.ms, which must stay well under the time after which "
        "a joiner gives up",
    )


# ---- holding -------------------------------------------------------------------------------------


def apply_read_back(state: State, outcome: Verified) -> Step:
    """What was read back is ours; what is lost is no longer delivered, and is claimed again."""
    # What was lost while it was being read stays lost.
    held = {
        tp: mine
        for tp, mine in outcome.held.items()
        if tp in state.owned or tp in state.unconfirmed_claims
    }
    # A re-created node of ours has another epoch: its fetching starts afresh with the new token.
    changed = frozenset(
        tp for tp, mine in held.items() if tp in state.owned and state.owned[tp] != mine
    )
    notices = tuple(
        Notice(
            NoticeKind.OWNERSHIP_LOST,
            str(tp),
            "our owner znode vanished" if who is None else f"our owner znode is now {who.thread}'s",
        )
        for tp, who in sorted(outcome.lost.items())
        if tp in state.owned and tp in state.assigned
    )
    state, commands = drop_ownership(state, changed.union(outcome.lost))
    state = replace(
        state,
        owned={**state.owned, **held},
        unconfirmed_claims={},
        unverified=state.unverified.difference(outcome.held, outcome.lost),
        unwatched=state.unwatched.difference(outcome.held, outcome.lost),
        claim_due=state.claim_due or bool(outcome.lost),
    )
    return state, commands + notices


def drop_ownership(state: State, lost: frozenset[TopicPartition]) -> Step:
    """These are ours no more: delivery stops now; their positions go with the claim."""
    served = lost & state.serving
    state = replace(
        state,
        owned=drop_from(state.owned, lost),
        serving=state.serving - lost,
        malformed=state.malformed - lost,
        offsets=drop_from(state.offsets, lost),
        last_callback=None if lost else state.last_callback,
    )
    return state, ((Withdraw(served),) if served else ())


# ---- rebalance -----------------------------------------------------------------------------------


RECHECK_S = 0.5
"""When what was kept is read back: after the members' claims, which all come at the same time. Its
watches stand meanwhile. The next rebalance, if it comes before, starts this time anew."""

MAX_POSTPONED_READS = 10
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
    assigned, owned = state.assigned, state.owned
    to_revoke = frozenset(
        tp
        for tp, mine in owned.items()
        if (assigned.get(tp) != mine.thread or tp in state.reassign) and tp not in state.refused
    )
    if to_revoke:
        return revoke(state, to_revoke, now)
    missing = [tp for tp in assigned if tp not in owned and tp not in state.refused]
    unread = state.malformed | state.reassign
    unserved = frozenset(
        tp for tp in owned if tp in assigned and tp not in state.serving and tp not in unread
    )
    claiming = bool(missing) and state.claim_due
    postponed_reads = (
        state.postponed_reads + 1 if state.read_again and (claiming or unserved) else 0
    )
    if state.read_again and postponed_reads <= MAX_POSTPONED_READS:
        # What is claimed or loaded by an old view may have to go at once.
        return read(replace(state, postponed_reads=postponed_reads))
    if not state.read_again:
        state = replace(state, postponed_reads=0)
    call = due_callback(state, claiming=claiming, resting=bool(unserved) or not missing)
    if call is not None:
        return call_listener(state, call, now)
    if claiming:
        return claim(state, missing, now)
    if unserved:
        state, op = start_op(enter(state, Phase.LOADING))
        return state, (LoadOffsets(op, unserved, state.settings.storage),)
    fresh = state.unwatched.intersection(owned)
    return verify(state, fresh) if fresh else settle_or_wait(state, missing, now)


def settle_or_wait(state: State, missing: Sequence[TopicPartition], now: float) -> Step:
    """Nothing can be done now: settled, or waiting for a watch with the back-off as upper bound."""
    state = replace(state, verify_at=now + RECHECK_S if state.unverified else None)
    if missing or state.refused or state.waiting_for:
        # A read-back on the way does not put the next look off.
        due = state.retry_at
        retry_at = now + state.settings.backoff_s if due is None else due
        return enter(replace(state, op=None, retry_at=retry_at), Phase.WAITING), ()
    state = replace(state, peers_at=now + patience_s(state), refresh_at=_refresh_at(state, now))
    return enter(replace(state, op=None, retry_at=None), Phase.SETTLED), ()


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
    state, commands = _abort_rebalance(state)
    state = replace(state, registered=False, fenced=True, retry_at=None, nudge_op=None)
    state, op = start_op(enter(state, Phase.REGISTERING))
    return state, (ShutGate(), *commands, Register(op, state.wall_ms))


def recover(state: State) -> Step:
    """Read back all that may be ours, claims without a reply included."""
    state, commands = _abort_rebalance(state)
    claims = {**state.unconfirmed_claims, **{tp: mine.thread for tp, mine in state.owned.items()}}
    state, op = start_op(enter(replace(state, retry_at=None), Phase.RECOVERING))
    return state, (*commands, Verify(op, claims))


def _abort_rebalance(state: State) -> Step:
    """A rebalance ends half-way: what the streams were asked to finish is taken from them.

    Where it goes is decided anew, and given up it is even if it stays: what is in the user's hands
    comes again, and under one token nothing does. Its positions wait for the commit, so that
    reading on from the stored offset repeats nothing that was finished.
    """
    asked, unfinished = state.revoking & state.serving, state.phase is Phase.STOPPING
    state = replace(
        state,
        revoking=frozenset(),
        reassign=state.reassign | state.revoking,
        grace_at=None,
        read_again=True,
        serving=state.serving - asked,
    )
    if not asked:
        return state, ()
    collects = unfinished and state.settings.auto_commit_s is not None
    collect = (CollectPositions(Purpose.RELEASE, asked),) if collects else ()
    return state, (*collect, Withdraw(asked))


def read(state: State) -> Step:
    """Read the whole group again."""
    state, op = start_op(enter(replace(state, read_again=False, retry_at=None), Phase.READING))
    return state, (ReadView(op),)


# ---- giving up ----------------------------------------------------------------------------------


def revoke(state: State, to_revoke: frozenset[TopicPartition], now: float) -> Step:
    """Let the user finish what is in hand of the partitions that move away."""
    state = replace(state, revoking=to_revoke, finished=frozenset())
    asked = to_revoke & state.serving
    if not asked:
        if commits.pending(state, Purpose.RELEASE):
            # A connection that broke cut the last hand-over short; its positions are not stored.
            return pump(enter(replace(state, op=None, grace_at=None), Phase.COMMITTING), now)
        return before_release(state, now)
    state = enter(replace(state, op=None, grace_at=now + state.settings.grace_s), Phase.STOPPING)
    return state, (AskRelease(asked),)


def commit_revoked(state: State, now: float) -> Step:
    """All is finished, or the grace is over: nothing more is handed out. Commit, then release."""
    if state.settings.auto_commit_s is None:
        return before_release(replace(state, finished=frozenset()), now)
    state = enter(replace(state, grace_at=None), Phase.COMMITTING)
    return state, (CollectPositions(Purpose.RELEASE, state.revoking & state.serving),)


def before_release(state: State, now: float) -> Step:
    """The listener may commit what goes: so its positions are known until it has returned."""
    listens = state.settings.listener_s is not None
    return call_before_release(state, now) if listens else release(state)


def listened(state: State, said: tuple[Notice, ...], now: float) -> Step:
    """The listener has ended, well or not, or its time is over."""
    state = replace(state, op=None, grace_at=None)
    return then((state, said), release if state.revoking else lambda s: advance(s, now))


def release(state: State) -> Step:
    """Delete owner znodes, behind a commit that touches them.

    Else: 1. a commit is sent, and refused, since somebody wrote meanwhile; 2. the owner znodes are
    released; 3. the commit starts over, and writes what is another's by now.

    What is refused may come back. What was finished and stored then goes on under its token; of
    anything else, messages would come again, so that is given up and claimed anew.
    """
    state = enter(replace(state, op=None, grace_at=None), Phase.RELEASING)
    if commits.touches(state, state.revoking):
        return state, ()  # its end comes back to here
    asked = state.revoking & state.serving
    reassign = (state.reassign - asked) | (asked - state.finished)
    state, op = start_op(replace(state, serving=state.serving - asked, reassign=reassign))
    withdraw = (Withdraw(asked),) if asked else ()
    return state, (*withdraw, Release(op, state.revoking))


def released(state: State, outcome: Released, now: float) -> Step:
    gone, refused = state.revoking.difference(outcome.denied), {**state.refused, **outcome.denied}
    state = replace(
        state,
        owned=drop_from(state.owned, gone),
        offsets=drop_from(state.offsets, gone),
        malformed=state.malformed - gone,
        reassign=state.reassign.intersection(refused),
        refused=refused,
        revoking=frozenset(),
        finished=frozenset(),
    )
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot release: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    advanced = then((state, notices), lambda s: advance(s, now))
    return then(advanced, lambda s: pump(s, now))


def pump(state: State, now: float) -> Step:
    """Commits may be written again: start what waits, and go on if a phase waited for it."""
    return then(commits.pump(state, now), lambda s: after_commit(s, now))


def after_commit(state: State, now: float) -> Step:
    """A phase that waits for a commit goes on when it is over, however it ended."""
    if state.phase is Phase.COMMITTING and not commits.pending(state, Purpose.RELEASE):
        return before_release(state, now)
    if state.phase is Phase.RELEASING and state.op is None and state.connected:
        return release(state)
    last = (Purpose.LEAVE, Purpose.RELEASE)
    if state.phase is Phase.LEAVING and not any(commits.pending(state, p) for p in last):
        return close(state)
    return state, ()


def close(state: State, reason: str = "the connector is shut down") -> Step:
    """The end: what still waits for a commit is told, and the session takes our znodes along."""
    state, answers = commits.abandon(state, reason)
    return enter(state, Phase.CLOSED), (*answers, ShutGate(), CloseSession())


# ---- taking -------------------------------------------------------------------------------------


def claim(state: State, missing: list[TopicPartition], now: float) -> Step:
    threads = {tp: state.assigned[tp] for tp in missing}
    # A try that a watch brought looks at what has changed only; any other looks at everything.
    known = state.blocked if state.phase is Phase.WAITING else {}
    known = {tp: who for tp, who in known.items() if who != UNKNOWN_BLOCKER}
    since = state.blocked_since
    overdue = since is not None and now - since >= state.settings.backoff_s
    ask = frozenset(missing).difference(known) if overdue else frozenset()
    state, op = start_op(
        enter(replace(state, unconfirmed_claims=threads, claim_due=False), Phase.CLAIMING)
    )
    eager = state.settings.mode is RebalanceMode.EAGER
    return state, (Claim(op, threads, known, ask, eager),)


def claimed(state: State, outcome: Claimed, now: float) -> Step:
    since = state.blocked_since if state.blocked_since is not None else now
    state = replace(
        state,
        owned={**state.owned, **outcome.claimed},
        unwatched=state.unwatched.union(outcome.claimed),
        unconfirmed_claims={},
        blocked=outcome.blocked,
        blocked_since=since if outcome.blocked else None,
        refused={**state.refused, **outcome.denied},
    )
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot claim: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    state, unblocked = peers.drop_cleared_blockers(state)
    return then((state, notices + unblocked), lambda s: advance(s, now))


def verify(state: State, partitions: frozenset[TopicPartition]) -> Step:
    """Read back owner znodes that we hold, and watch them."""
    state, op = start_op(enter(replace(state, verify_at=None), Phase.VERIFYING))
    return state, (Verify(op, {tp: state.owned[tp].thread for tp in partitions}),)


def recheck(state: State) -> Step:
    """What was kept is read back, as in every rebalance."""
    kept = state.unverified.intersection(state.owned)
    return verify(state, kept) if kept else (replace(state, verify_at=None), ())


def verified(state: State, outcome: Verified, now: float) -> Step:
    return then(apply_read_back(state, outcome), lambda s: advance(s, now))


# ---- triggers ------------------------------------------------------------------------------------


RESTING = frozenset({Phase.SETTLED, Phase.WAITING})


def triggered(state: State, event: events.Triggered) -> Step:
    """The group changed: read it now, or when the phase under way has ended."""
    if event.trigger is Trigger.OWN_MEMBER_NODE and state.nudge_op is not None:
        return _own_nudge(state)
    if event.trigger is Trigger.OWN_MEMBER_NODE and state.phase is not Phase.REGISTERING:
        notice = Notice(
            NoticeKind.OWNERSHIP_LOST,
            "our id znode",
            "somebody deleted or replaced "
            "it; nothing is delivered until this member is registered again",
        )
        return then((state, (notice,)), register)
    if event.trigger is Trigger.OWN_MEMBER_NODE:
        return register(state) if state.op is None else (state, ())
    state = replace(state, read_again=True)
    return read(state) if state.phase in RESTING else (state, ())


def _own_nudge(state: State) -> Step:
    """Attribute one event about the own id znode to this member's nudge.

    1. The nudge deletes and creates the id znode; 2. the watch on the id znode fires; 3. the reply
    to the nudge arrives, and the member reads the group. If the watch event arrives after step 3,
    the member reads the group again now. Each reading arms the watch and compares the znode's
    owner with the session, so another client's deletion that is attributed to the nudge still
    leads to a new registration.
    """
    awaited, state = state.op == state.nudge_op, replace(state, nudge_op=None)
    if awaited:
        return state, ()
    state = replace(state, read_again=True)
    return read(state) if state.phase in RESTING else (state, ())


def owner_node_changed(state: State, event: events.OwnerNodeChanged) -> Step:
    """An owner znode of ours went or changed, and not by our own release: it is ours no more."""
    tp = event.partition
    if tp in state.unconfirmed_claims:
        # 1. A claim creates the node and reads it back; 2. somebody deletes it, the watch fires;
        # 3. the claim ends, as if the node were there. So everything is read again after it.
        return replace(state, read_again=True), ()
    if tp not in state.owned or tp in state.revoking:
        return state, ()
    state, commands = drop_ownership(state, frozenset({tp}))
    notice = Notice(NoticeKind.OWNERSHIP_LOST, str(tp), "somebody touched our owner znode")
    state = replace(state, read_again=True, claim_due=True)
    result: Step = (state, (*commands, notice))
    return then(result, read) if state.phase in RESTING else result


def owners_changed(state: State, event: events.OwnersChanged) -> Step:
    """What blocks us may have gone: try again now, or when the claim under way has ended.

    While we claim, `blocked` does not yet hold what the claim finds: 1. it lists the owners and
    arms the watch; 2. the blocker goes, the watch fires; 3. the claim ends.
    """
    claiming = state.phase is Phase.CLAIMING
    if not claiming and not any(tp.topic == event.topic for tp in state.blocked):
        return state, ()
    state = replace(state, claim_due=True)
    if state.phase is Phase.WAITING:
        return advance(state, event.now)
    return state, ()


def topic_deleted(state: State, event: events.TopicDeleted) -> Step:
    """Fetching stops; the owner znodes stay until the next rebalance, as in the JVM."""
    gone = frozenset(tp for tp in state.serving if tp.topic == event.topic)
    notice = Notice(NoticeKind.TOPIC_DELETED, event.topic, "the topic was deleted")
    # Not served and not to be served again before the next view: as with a malformed offset. What
    # is being claimed or loaded will be served by a view that may be older than this.
    stale = state.read_again or state.phase not in RESTING
    serving, malformed = state.serving - gone, state.malformed | gone
    state = replace(state, serving=serving, malformed=malformed, read_again=stale)
    return state, (Withdraw(gone), RearmTopic(event.topic), notice)


# ---- loading -------------------------------------------------------------------------------------


def offsets_loaded(state: State, outcome: OffsetsLoaded, now: float) -> Step:
    """Offsets are read after the claim, so nothing the old owner stored is missed."""
    offsets, grants, bad = dict(state.offsets), {}, {}
    told: set[TopicPartition] = set()
    for tp, stored in outcome.offsets.items():
        mine = state.owned.get(tp)
        if mine is None:
            continue
        known, kafka = offsets.get(tp), outcome.kafka.get(tp)
        offsets[tp], start = starting_offset(state.settings.storage, stored, kafka, mine.epoch)
        if error := offsets[tp].error:
            bad[tp] = error
            told |= {tp} if known is not None and known.error == error else set()
        else:
            grants[tp] = (mine, start)
    state = replace(
        state,
        offsets=offsets,
        serving=state.serving.union(grants),
        malformed=state.malformed.union(bad),
    )
    commands: tuple[Command, ...] = (StartFetching(grants),) if grants else ()
    commands += tuple(
        Notice(
            NoticeKind.OFFSET_MALFORMED,
            str(tp),
            f"claimed but not fetched: {reason}",
            "mend or delete the offset znode",
        )
        for tp, reason in bad.items()
        if tp not in told
    )
    starts = {tp: at for tp, (_, at) in grants.items() if at is not None}
    commands += _migrated(state, starts, outcome)
    return then((state, commands), lambda s: advance(s, now))


def _migrated(
    state: State, starts: Mapping[TopicPartition, int], outcome: OffsetsLoaded
) -> tuple[Command, ...]:
    """The group has moved to Kafka's storage, and these partitions have no offset there yet."""
    fresh = sorted(starts.keys() - outcome.kafka.keys())
    if state.settings.storage is Storage.ZOOKEEPER or not fresh:
        return ()
    more = f" and {len(fresh) - 1} more" if fresh[1:] else ""
    text = f"Kafka has no offset; going on from ZooKeeper's {starts[fresh[0]]}"
    return (Notice(NoticeKind.OFFSETS_MIGRATED, f"{fresh[0]}{more}", text),)


def not_loaded(state: State, outcome: StoreUnavailable, now: float) -> Step:
    """Kafka does not tell where to begin: what is claimed waits, and the group is still heeded."""
    reason = f"Kafka does not tell the group's offsets: {outcome.reason}"
    notice = Notice(NoticeKind.OFFSETS_UNAVAILABLE, "offsets.storage=kafka", reason)
    waiting_for = state.waiting_for or reason
    state = enter(replace(state, op=None, waiting_for=waiting_for), Phase.WAITING)
    return replace(state, retry_at=now + state.settings.channel_backoff_s), (notice,)
