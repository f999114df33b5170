"""A rebalance, phase by phase: revoke, commit, release, claim, load, verify.

`enter_next_phase` chooses the next phase. The function looks at the steps that are still missing,
not at the last step, so no trigger that arrives during a rebalance is lost. A rebalance that a
reconnect has aborted continues from the state after the reconnect.

The rebalance listener (JVM: `ConsumerRebalanceListener`, 0.9.0.0, KAFKA-1650) is called twice for
each assignment. The first call comes before the release, with the revoked partitions, which may be
none. The second call comes after the claim and before the first fetch, with every member's
partitions. The listener is also called when partitions are released for another reason. The JVM
calls the listener in every attempt and waits without limit, so a joining member may give up
meanwhile. This member waits at most `release.grace.ms` and then continues.

The callbacks are called at the same moments. `State.announced` holds the partitions that were
announced as assigned, so each of them is announced as revoked or lost exactly once: before its
release or before the member leaves (`call_listener`), or when the member finds that it has lost the
partition (`drop_ownership`), or when the member gives up (`close`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from zkconsumer.member import commits, events, peers, unreadable
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
from zkconsumer.member.offset_ledger import Ledger, starting_offset
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import (
    Kept,
    State,
    Step,
    drop_from,
    enter,
    replace,
    share,
    start_op,
    then,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_snapshot import assignment_of_others
from zkconsumer.protocol.model import (
    UNKNOWN_BLOCKER,
    Positions,
    Purpose,
    RebalanceMode,
    Storage,
    TopicPartition,
)

RESTING = frozenset({Phase.SETTLED, Phase.WAITING})
"""The phases in which a trigger starts a rebalance at once."""

RECHECK_S = 0.5
"""The delay, in seconds, after a rebalance until the member reads back the owner znodes it kept.

All members claim at the same time; without the delay, the read-backs would add to this load. The
znodes' watches stay armed meanwhile. If the next rebalance starts earlier, the delay starts again.
"""

MAX_POSTPONED_READS = 10
"""How many reads of the group in a row may postpone a claim because the group has changed again.

After this many reads the member claims and fetches according to the last view, although it may soon
have to release some partitions. Otherwise a group that keeps changing would leave partitions
unread.
"""

REFRESH_SESSIONS, REFRESH_PER_MEMBER_S = 5, 1.0
"""The number of session timeouts after which a settled member reads the group again.

If one second for each member of the group is longer, the member waits that long. So ZooKeeper
serves about one such read per second and group, for any number of members.
"""

REFRESH_SPREAD = 0.2
"""The maximum extra delay of this periodic read, as a share of its interval.

The extra delay depends on the consumer id, so that members that settled at the same time do not
read at the same time.
"""


# ---- which phase comes next ---------------------------------------------------------------------


def enter_next_phase(state: State, now: float) -> Step:
    """Enter the next phase: revoke before claiming; read a changed group again before settling."""
    assigned, owned = state.assigned, state.owned
    to_revoke = frozenset(
        tp
        for tp, mine in owned.items()
        if (assigned.get(tp) != mine.thread or tp in state.reassign) and tp not in state.refused
    )
    if to_revoke:
        return revoke(state, to_revoke, now)
    missing = [tp for tp in assigned if tp not in owned and tp not in state.refused]
    unserved = frozenset(tp for tp in owned if tp in assigned).difference(
        state.serving, state.unfetched, state.reassign
    )
    claiming = bool(missing) and state.claim_due
    postponed = state.postponed_reads + 1 if state.read_again and (claiming or unserved) else 0
    if state.read_again and postponed <= MAX_POSTPONED_READS:
        # A partition that the member claims according to an outdated view may have to be released
        # at once.
        return read(replace(state, postponed_reads=postponed))
    if not state.read_again:
        state = replace(state, postponed_reads=0)
    complete = bool(unserved) or not missing
    callback = due_callback(state, claiming=claiming, complete=complete)
    if callback is not None:
        return call_listener(state, callback, now)
    if claiming:
        return claim(state, missing, now)
    if unserved:
        state, op = start_op(enter(state, Phase.LOADING))
        kept = unserved.intersection(state.kept)
        return state, (LoadOffsets(op, unserved, state.settings.storage, kept),)
    fresh = state.unwatched.intersection(owned)
    return verify(state, fresh) if fresh else settle_or_wait(state, missing, now)


def settle_or_wait(state: State, missing: Sequence[TopicPartition], now: float) -> Step:
    """Settle, or wait for a watch event, for at most the back-off."""
    state = replace(state, verify_at=now + RECHECK_S if state.unverified else None)
    if missing or state.refused or state.waiting_for:
        # A read-back during the wait must not postpone the next attempt.
        due = state.retry_at
        retry_at = now + state.settings.backoff_s if due is None else due
        return enter(replace(state, op=None, retry_at=retry_at), Phase.WAITING), ()
    state = peers.schedule_check(state, now + peers.patience_s(state))
    state = replace(state, op=None, retry_at=None, refresh_at=_refresh_at(state, now))
    return enter(state, Phase.SETTLED), ()


def _refresh_at(state: State, now: float) -> float | None:
    """Return when a settled member reads the group although no watch has fired.

    A watch can be lost: ZooKeeper (3.8.4 and later) drops the event of a znode that the client may
    not read.
    """
    least_s, session, view = state.settings.refresh_s, state.session, state.view
    if least_s is None or session is None or view is None:
        return None
    of_group_s = REFRESH_PER_MEMBER_S * len(view.members)
    wait_s = max(least_s, REFRESH_SESSIONS * session.timeout_s, of_group_s)
    return now + wait_s * (1 + REFRESH_SPREAD * share(state))


# ---- register, recover, read --------------------------------------------------------------------


def register(state: State) -> Step:
    """Create the id znode. The member delivers nothing until it has read back its owner znodes."""
    state, commands = abort_rebalance(state)
    idle_peers = replace(state.idle_peers, nudge_op=None)
    state = replace(
        state, registered=False, may_deliver=False, retry_at=None, known=None, idle_peers=idle_peers
    )
    state, op = start_op(enter(state, Phase.REGISTERING))
    return state, (ShutGate(), *commands, Register(op, state.wall_ms))


def recover(state: State) -> Step:
    """Read back every owner znode that may be the member's, including unconfirmed claims."""
    state, commands = abort_rebalance(state)
    claims = {**state.unconfirmed_claims, **{tp: mine.thread for tp, mine in state.owned.items()}}
    state, op = start_op(enter(replace(state, retry_at=None, known=None), Phase.RECOVERING))
    return state, (*commands, Verify(op, claims))


def abort_rebalance(state: State) -> Step:
    """Abort a rebalance. The revoked partitions are released later, even if this member gets them
    again: their unfinished messages may be redelivered, which must not happen under the same
    fencing token.

    While the user still finishes its messages (STOPPING), the partitions stay withheld from
    delivery, and `revoke` asks the user again. So a reconnect does not cut off the user's grace
    period: this session still owns the partitions. After STOPPING, the user has finished or is
    late, and the commit of the positions stays queued, so the partitions are withdrawn now.
    """
    waits = state.phase is Phase.STOPPING
    over = frozenset() if waits else state.revoking & state.serving
    state = replace(
        state,
        revoking=frozenset(),
        reassign=state.reassign | state.revoking,
        grace_at=None,
        read_again=True,
        serving=state.serving - over,
    )
    return state, (Withdraw(over),) if over else ()


def read(state: State) -> Step:
    """Read what may have changed in the group since the last read."""
    state = replace(state, read_again=False, retry_at=None, fired=frozenset())
    state, op = start_op(enter(state, Phase.READING))
    return state, (ReadView(op, state.known),)


def read_everything(state: State) -> Step:
    """Read the whole group: a watch may be lost, or another client may have written znodes."""
    return read(replace(state, known=None))


# ---- revoke, commit, release --------------------------------------------------------------------


def revoke(state: State, to_revoke: frozenset[TopicPartition], now: float) -> Step:
    """Ask the user to finish the in-flight messages of the revoked partitions."""
    state = replace(state, revoking=to_revoke, finished=frozenset())
    asked = to_revoke & state.serving
    if not asked:
        if commits.pending(state, Purpose.RELEASE):
            # A lost connection has aborted the last rebalance before its commit ended.
            return start_next_commit(
                enter(replace(state, op=None, grace_at=None), Phase.COMMITTING), now
            )
        return before_release(state, now)
    state = enter(replace(state, op=None, grace_at=now + state.settings.grace_s), Phase.STOPPING)
    return state, (AskRelease(asked),)


def commit_revoked(state: State, now: float) -> Step:
    """Commit the revoked positions: the user has finished, or the grace period is over."""
    if state.settings.auto_commit_s is None:
        return before_release(replace(state, finished=frozenset()), now)
    state = enter(replace(state, grace_at=None), Phase.COMMITTING)
    return state, (CollectPositions(Purpose.RELEASE, state.revoking & state.serving),)


def before_release(state: State, now: float) -> Step:
    """Call the listener before the release. Until it returns, it may commit offsets."""
    listens = state.settings.listener_s is not None
    return call_listener(state, Callback.RELEASING, now) if listens else release(state)


def release(state: State) -> Step:
    """Delete the revoked partitions' owner znodes, after a running commit that touches them.

    Without this wait: 1. ZooKeeper refuses a commit because another client has written meanwhile.
    2. The member releases the owner znodes. 3. The commit starts again, and overwrites the offset
    of a partition that another member now owns.

    ZooKeeper may refuse to delete an owner znode. If the partition's messages are finished and
    their position is stored, delivery continues under the same fencing token. Otherwise messages
    would be redelivered under the same fencing token, so the member releases the partition and
    claims it again.
    """
    state = enter(replace(state, op=None, grace_at=None), Phase.RELEASING)
    if state.commits.plan.touches(state.revoking):
        return state, ()  # `after_commit` calls this function again
    asked = state.revoking & state.serving
    reassign = (state.reassign - asked) | (asked - state.finished)
    state, op = start_op(replace(state, serving=state.serving - asked, reassign=reassign))
    withdraw = (Withdraw(asked),) if asked else ()
    watched = state.revoking.intersection(state.owned) - state.unwatched
    return state, (*withdraw, Release(op, state.revoking, watched))


def count_as_unwatched(state: State) -> State:
    """Count every owner znode as unwatched, because the connection is lost.

    1. A release deletes the owner znodes. 2. The connection breaks before the reply, and another
    member claims the partitions. 3. The release starts again before the member handles the loss. If
    it did not read the owners first, it would delete the other member's znodes.
    """
    return replace(state, unwatched=frozenset(state.owned))


def forget_revoked(state: State, gone: frozenset[TopicPartition]) -> State:
    """End a release: drop the partitions in `gone`, which this member has released."""
    state = replace(
        state,
        owned=drop_from(state.owned, gone),
        offsets=state.offsets.without(gone),
        unfetched=drop_from(state.unfetched, gone),
        revoking=frozenset(),
        finished=frozenset(),
    )
    return unreadable.forget_offsets(state, gone)


def released(state: State, outcome: Released, now: float) -> Step:
    """Forget the released partitions, and claim the missing ones."""
    gone, refused = state.revoking.difference(outcome.denied), {**state.refused, **outcome.denied}
    reassign = state.reassign.intersection(refused)
    state = forget_revoked(replace(state, reassign=reassign, refused=refused), gone)
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot release: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    advanced = then((state, notices), lambda s: enter_next_phase(s, now))
    return then(advanced, lambda s: start_next_commit(s, now))


def start_next_commit(state: State, now: float) -> Step:
    """Start queued commits, and continue the phase if it waited for a commit that has ended."""
    return then(commits.start_next(state, now), lambda s: after_commit(s, now))


def after_commit(state: State, now: float) -> Step:
    """Continue a phase that waits for a commit, whether the commit succeeded or not."""
    if state.phase is Phase.COMMITTING and not commits.pending(state, Purpose.RELEASE):
        return before_release(state, now)
    if state.phase is Phase.RELEASING and state.op is None and state.connected:
        return release(state)
    return leave_if_done(state) if state.phase is Phase.LEAVING else (state, ())


def leave_if_done(state: State) -> Step:
    """Close a leaving member, unless `on_revoked` runs or a commit may still be stored."""
    awaits_commit = state.leave_at is not None and commits.is_awaited(state)
    return (state, ()) if state.op is not None or awaits_commit else close(state)


def close(state: State, reason: str = "the connector is shut down") -> Step:
    """End the member: fail the waiting commits; the session's end deletes all its znodes."""
    state, answers = commits.abandon(state, reason)
    state, lost = abort(state)
    return state, (*answers, *lost, ShutGate(), CloseSession())


def abort(state: State) -> Step:
    """End the member, and announce the partitions that it still has as lost."""
    state, lost = announce(state, Callback.LOST, state.announced)
    return enter(state, Phase.CLOSED), lost


# ---- the listener and the callbacks -------------------------------------------------------------

_PHASE = {Callback.RELEASING: Phase.BEFORE_RELEASE, Callback.STARTING: Phase.BEFORE_START}

CALLING = frozenset(_PHASE.values())
"""The phases in which the listener runs."""


def learn_assignment(state: State) -> State:
    """Compute every member's partitions for the listener; if they changed, a new call is due."""
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


def due_callback(state: State, *, claiming: bool, complete: bool) -> Callback | None:
    """Return the listener call that is due before the next phase; None if no call is due.

    Args:
        claiming: the next phase is a claim.
        complete: nothing more can be claimed before fetching starts.
    """
    if state.settings.listener_s is None or state.assignment is None:
        return None
    if state.last_callback is None and (claiming or complete):
        return Callback.RELEASING
    started = state.last_callback is Callback.STARTING
    return Callback.STARTING if complete and not claiming and not started else None


def call_listener(state: State, callback: Callback, now: float) -> Step:
    """Call the listener; the rebalance continues when it returns or the grace period is over.

    The callbacks for the same partitions run before the listener, so the phase waits for both.
    """
    assert state.settings.listener_s is not None
    grace_at = now + state.settings.listener_s
    state = replace(state, last_callback=callback, grace_at=grace_at)
    state, op = start_op(enter(state, _PHASE[callback]))
    if callback is Callback.RELEASING:
        partitions = {tp: state.owned[tp].thread for tp in state.revoking if tp in state.owned}
        state, announced = announce(state, Callback.REVOKED, state.revoking)
    else:
        partitions = {**(state.assignment or {})}
        claimed = frozenset(tp for tp in state.owned if tp in state.assigned)
        state, announced = announce(state, Callback.ASSIGNED, claimed)
    return state, (*announced, CallListener(op, callback, partitions))


def announce(
    state: State, callback: Callback, partitions: frozenset[TopicPartition], op: int = 0
) -> Step:
    """Call a callback with those of `partitions` that it has to announce; `op` as in the command.

    `on_assigned` announces partitions that are not announced, the other callbacks those that are.
    """
    known = state.announced
    affected = partitions - known if callback is Callback.ASSIGNED else partitions & known
    if not state.settings.announces or not affected:
        return state, ()
    threads = {tp: state.owned[tp].thread for tp in affected}
    return replace(state, announced=known ^ affected), (CallListener(op, callback, threads),)


def call_before_leaving(state: State, now: float) -> Step:
    """Call `on_revoked` with every announced partition; the member leaves when it has returned.

    Delivery stops, and the positions stay known, so that the callback can commit.
    """
    if not state.announced:
        return state, ()
    assert state.settings.listener_s is not None
    state, op = start_op(replace(state, grace_at=now + state.settings.listener_s))
    asked = (AskRelease(state.serving),) if state.serving else ()
    state, called = announce(state, Callback.REVOKED, state.announced, op)
    return state, (*asked, *called)


def listened(state: State, notices: tuple[Notice, ...], now: float) -> Step:
    """Continue: the user's function has returned or raised, or the grace period is over."""
    state = replace(state, op=None, grace_at=None)
    if state.phase is Phase.LEAVING:
        return then((state, notices), leave_if_done)
    return then((state, notices), release if state.revoking else lambda s: enter_next_phase(s, now))


def failure_notice(outcome: Outcome) -> tuple[Notice, ...]:
    """Report the error that a listener has raised, even if the rebalance no longer waits for it."""
    if not isinstance(outcome, ListenerReturned) or not outcome.error:
        return ()
    return (
        Notice(
            NoticeKind.LISTENER_FAILED,
            outcome.callback.value,
            f"the rebalance listener raised {outcome.error}",
            "correct the listener; the rebalance continues as if it had returned",
        ),
    )


def late_notice(state: State) -> Notice:
    """Report that the user's function has not returned within the grace period."""
    late = {Phase.BEFORE_RELEASE: Callback.RELEASING, Phase.LEAVING: Callback.REVOKED}
    callback = late.get(state.phase, Callback.STARTING)
    leaves = state.phase is Phase.LEAVING
    return Notice(
        NoticeKind.LISTENER_LATE,
        callback.value,
        f"the rebalance listener has not returned within {state.settings.listener_s:g} s; the "
        + ("member leaves" if leaves else "rebalance continues")
        + " without it",
        "return sooner, or raise release.grace.ms, which must stay well under the time after which "
        "a member that joins gives up",
    )


# ---- claim --------------------------------------------------------------------------------------


def claim(state: State, missing: list[TopicPartition], now: float) -> Step:
    """Claim the missing partitions.

    After partitions have been blocked for `peers.ASK_S` seconds, the claim also reads their owners.
    A claim that a watch triggered does not read known owners again.
    """
    threads = {tp: state.assigned[tp] for tp in missing}
    known = state.blocked.partitions if state.phase is Phase.WAITING else {}
    known = {tp: who for tp, who in known.items() if who != UNKNOWN_BLOCKER}
    since = state.blocked.since
    overdue = since is not None and now - since >= peers.ask_after_s(state)
    ask = frozenset(missing).difference(known) if overdue else frozenset()
    blocked = replace(state.blocked, ask_at=None) if overdue else state.blocked
    state = replace(state, unconfirmed_claims=threads, claim_due=False, blocked=blocked)
    state, op = start_op(enter(state, Phase.CLAIMING))
    eager = state.settings.mode is RebalanceMode.EAGER
    return state, (Claim(op, threads, known, ask, eager),)


def claimed(state: State, outcome: Claimed, now: float) -> Step:
    """Load the offsets of the claimed partitions; remember the owners of the refused ones."""
    blocked = peers.blocked_by(state, outcome, now)
    state = replace(
        state,
        owned={**state.owned, **outcome.claimed},
        unwatched=state.unwatched.union(outcome.claimed) - _still_watched(state, outcome),
        unconfirmed_claims={},
        blocked=blocked,
        refused={**state.refused, **outcome.denied},
    )
    notices = tuple(
        Notice(NoticeKind.DENIED, str(tp), f"cannot claim: {reason}")
        for tp, reason in sorted(outcome.denied.items())
    )
    state, unblocked = peers.drop_cleared_blockers(state)
    return then((state, notices + unblocked), lambda s: enter_next_phase(s, now))


def _still_watched(state: State, outcome: Claimed) -> frozenset[TopicPartition]:
    """Return the claimed partitions whose watch did not fire before the end of the claim."""
    group = state.settings.group
    return frozenset(tp for tp in outcome.watched if paths.owner(group, tp) not in state.fired)


# ---- load ---------------------------------------------------------------------------------------


def offsets_loaded(state: State, outcome: OffsetsLoaded, now: float) -> Step:
    """Start fetching the claimed partitions at their stored offsets.

    The offsets are read after the claim, so the last commit of the previous owner is included.
    """
    if any(
        state.owned[tp].epoch < one.epoch for tp, one in state.kept.items() if tp in state.owned
    ):
        state = forget_zxids(state)
    entries, grants, malformed = dict(state.offsets.entries), {}, {}
    gone: list[TopicPartition] = []
    for tp, stored in outcome.offsets.items():
        mine = state.owned.get(tp)
        if mine is None:
            continue
        kafka = outcome.kafka.get(tp)
        entries[tp], start = starting_offset(state.settings.storage, stored, kafka, mine.epoch)
        if error := entries[tp].error:
            malformed[tp] = error
            continue
        if start is None and (kept := _kept_position(state, tp, outcome)) is not None:
            start = kept
            gone.append(tp)
        grants[tp] = (mine, start)
    # A watch reports the repair of an offset, but not that of an access control list.
    refused = {tp: why for tp, why in malformed.items() if outcome.offsets[tp].version is None}
    state = replace(
        state,
        offsets=Ledger(entries),
        serving=state.serving.union(grants),
        unfetched={**state.unfetched, **malformed},
        refused={**state.refused, **refused},
        kept=drop_from(state.kept, frozenset(grants)),
    )
    state = _note_malformed(state, outcome, malformed, now)
    # Partitions that another member has released late are not announced yet.
    state, commands = announce(state, Callback.ASSIGNED, frozenset(grants))
    commands += (StartFetching(grants),) if grants else ()
    if gone:
        commands += (_continued(gone),)
    starts = {tp: at for tp, (_, at) in grants.items() if at is not None and tp not in gone}
    commands += _migrated(state, starts, outcome)
    return then((state, commands), lambda s: enter_next_phase(s, now))


def _kept_position(state: State, tp: TopicPartition, outcome: OffsetsLoaded) -> int | None:
    """Return where this member continues a partition whose stored offset is gone.

    Returns None if `auto.offset.reset` must decide: this member has not owned the partition, an
    operator has edited the group's offsets since, or the topic was created again.
    """
    kept = state.kept.get(tp)
    if kept is None or outcome.edit_czxid > kept.epoch or state.topics[tp.topic] != kept.czxid:
        return None
    return kept.offset


def _continued(partitions: list[TopicPartition]) -> Notice:
    return Notice(
        NoticeKind.POSITION_KEPT,
        peers.listed(partitions),
        "no offset is stored (another client may have deleted it), and no edit mark is newer than "
        "this member's position, so this member continues there",
        "to change the offsets of a live group, use zkconsumer offsets",
    )


def _note_malformed(
    state: State, outcome: OffsetsLoaded, malformed: Mapping[TopicPartition, str], now: float
) -> State:
    """Record the partitions that are owned but not fetched, because their offset is malformed."""
    notices = [
        Notice(
            NoticeKind.OFFSET_MALFORMED,
            str(tp),
            f"claimed but not fetched: {reason}",
            "correct or delete the offset znode",
        )
        for tp, reason in malformed.items()
    ]
    among = {str(tp) for tp in outcome.offsets}
    kinds = {NoticeKind.OFFSET_MALFORMED}
    return unreadable.found(state, kinds, notices, now, among=among)


def _migrated(
    state: State, starts: Mapping[TopicPartition, int], outcome: OffsetsLoaded
) -> tuple[Command, ...]:
    """Report partitions without an offset in Kafka after the group moved to Kafka's storage."""
    fresh = sorted(starts.keys() - outcome.kafka.keys())
    if state.settings.storage is Storage.ZOOKEEPER or not fresh:
        return ()
    more = f" and {len(fresh) - 1} more" if fresh[1:] else ""
    text = f"Kafka has no offset; this member starts at ZooKeeper's {starts[fresh[0]]}"
    return (Notice(NoticeKind.OFFSETS_MIGRATED, f"{fresh[0]}{more}", text),)


def not_loaded(state: State, outcome: StoreUnavailable, now: float) -> Step:
    """Wait for a watch or the end of the back-off, because Kafka does not return the offsets."""
    reason = f"Kafka does not return the group's offsets: {outcome.reason}"
    notice = Notice(NoticeKind.OFFSETS_UNAVAILABLE, "offsets.storage=kafka", reason)
    waiting_for = state.waiting_for or reason
    retry_at = now + state.settings.channel_backoff_s
    state = replace(state, op=None, waiting_for=waiting_for, retry_at=retry_at)
    return enter(state, Phase.WAITING), (notice,)


# ---- verify -------------------------------------------------------------------------------------


def verify(state: State, partitions: frozenset[TopicPartition]) -> Step:
    """Read back owner znodes of this member, and watch them."""
    state, op = start_op(enter(replace(state, verify_at=None), Phase.VERIFYING))
    return state, (Verify(op, {tp: state.owned[tp].thread for tp in partitions}),)


def recheck(state: State) -> Step:
    """Read back the owner znodes that the member kept in the last rebalance."""
    kept = state.unverified.intersection(state.owned)
    return verify(state, kept) if kept else (replace(state, verify_at=None), ())


def verified(state: State, outcome: Verified, now: float) -> Step:
    """Drop the partitions whose owner znodes are lost, and enter the next phase."""
    return then(apply_read_back(state, outcome), lambda s: enter_next_phase(s, now))


def apply_read_back(state: State, outcome: Verified) -> Step:
    """Confirm the owner znodes that were read back; withdraw lost partitions, to claim them again.

    An owner znode that was lost during the read-back stays lost. An owner znode that was created
    again has another epoch, so its partition is fetched again with the new fencing token.
    """
    held = {
        tp: mine
        for tp, mine in outcome.held.items()
        if tp in state.owned or tp in state.unconfirmed_claims
    }
    changed = frozenset(
        tp for tp, mine in held.items() if tp in state.owned and state.owned[tp] != mine
    )
    notices = tuple(
        Notice(
            NoticeKind.OWNERSHIP_LOST,
            str(tp),
            "this member's owner znode vanished"
            if who is None
            else f"the owner znode now belongs to {who.thread}",
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
    """Drop lost partitions, and stop their delivery now; keep their positions.

    The kept position is the one that the next automatic commit would have stored. Without automatic
    commits it is the last committed offset, because messages that the user has not committed must
    be redelivered.
    """
    served = lost & state.serving
    collects = bool(served) and state.settings.auto_commit_s is not None
    state, announced = announce(state, Callback.LOST, lost)
    state = replace(
        unreadable.forget_offsets(state, lost),
        owned=drop_from(state.owned, lost),
        serving=state.serving - lost,
        unfetched=drop_from(state.unfetched, lost),
        offsets=state.offsets.without(lost),
        kept={**state.kept, **_last_committed(state, lost)},
        last_callback=None if lost else state.last_callback,
    )
    collect = (CollectPositions(Purpose.LOST, served),) if collects else ()
    withdraw = (*collect, Withdraw(served)) if served else ()
    return state, (*withdraw, *announced)


def _last_committed(state: State, lost: frozenset[TopicPartition]) -> dict[TopicPartition, Kept]:
    """Return the last known stored offset of each lost partition that has one."""
    kept = {}
    for tp in lost:
        mine, known = state.owned.get(tp), state.offsets.entries.get(tp)
        if mine is None or known is None or known.error or tp.topic not in state.topics:
            continue
        stored = [at for at in (known.value, known.kafka and known.kafka.offset) if at is not None]
        if stored:
            kept[tp] = Kept(mine.epoch, max(stored), state.topics[tp.topic])
    return kept


def keep_positions(state: State, positions: Positions) -> State:
    """Keep the positions that the streams had when their partitions were lost."""
    kept = {
        tp: Kept(at.epoch, at.offset, state.topics[tp.topic])
        for tp, at in positions.items()
        if tp.topic in state.topics
    }
    return replace(state, kept={**state.kept, **kept})


def forget_zxids(state: State) -> State:
    """Give the kept positions the epoch 0, because ZooKeeper has come back with older data.

    zxids only grow, except in this case:
    1. This member owns a partition since zxid 100. 2. The servers are restored from a backup, whose
    last zxid is 50. 3. An operator deletes the partition's offset at zxid 60. 4. This member claims
    the partition again at zxid 70. The edit of step 3 is newer than the ownership of step 1.
    Each edit mark in the restored data is newer than the epoch 0.
    """
    session = state.session and replace(state.session, after_loss=False)
    kept = {tp: replace(one, epoch=0) for tp, one in state.kept.items()}
    return replace(state, session=session, kept=kept)


# ---- triggers -----------------------------------------------------------------------------------


def triggered(state: State, event: events.Triggered) -> Step:
    """Read the changed group now, or after the current phase."""
    if event.trigger is Trigger.OWN_MEMBER_NODE:
        return _id_znode_changed(state)
    if event.trigger is Trigger.TOPIC:
        state = forget(state, paths.topic(event.subject))
    elif event.trigger is Trigger.BROKERS:
        state = forget(state, paths.BROKER_IDS)
        state = unreadable.forget(state, NoticeKind.MALFORMED_BROKER)
        if state.view is not None and state.view.brokers:
            return state, ()  # as in the JVM, the death of a broker causes no rebalance
    state = replace(state, read_again=True)
    return read(state) if state.phase in RESTING else (state, ())


def forget(state: State, path: str) -> State:
    """Make the next read of the group read this znode again, because its watch has fired."""
    known = state.known
    if known is not None and path in known.watched:
        known = dataclasses.replace(known, watched=known.watched - {path})
    return replace(state, known=known, fired=state.fired | {path})


def _id_znode_changed(state: State) -> Step:
    if state.idle_peers.nudge_op is not None:
        return _own_nudge(state)
    if state.phase is Phase.REGISTERING:
        return register(state) if state.op is None else (state, ())
    notice = Notice(
        NoticeKind.OWNERSHIP_LOST,
        f"ids/{state.settings.consumer}",
        "another client deleted or replaced this member's id znode; nothing is delivered until "
        "this member has registered again",
    )
    return then((state, (notice,)), register)


def _own_nudge(state: State) -> Step:
    """Attribute one watch event about the member's id znode to its own nudge.

    1. The nudge deletes and creates the id znode; 2. the watch on the id znode fires; 3. the reply
    to the nudge arrives, and the member reads the group. If the watch event arrives after step 3,
    or while a read runs that another event has started, the member reads the group again now. Each
    read arms the watch and compares the znode's owner with the session. So even if the member
    attributes another client's deletion to its nudge, it registers again before it releases or
    claims partitions.
    """
    awaited = state.op == state.idle_peers.nudge_op
    state = replace(state, known=None, idle_peers=replace(state.idle_peers, nudge_op=None))
    if awaited:
        return state, ()
    if state.phase in RESTING or state.phase is Phase.READING:
        return read(state)
    return replace(state, read_again=True), ()


def owner_node_changed(state: State, event: events.OwnerNodeChanged) -> Step:
    """Drop a partition whose owner znode was deleted or replaced, unless this member released it.

    An event can overtake the reply to a claim: 1. The claim creates the znode and reads it back. 2.
    Another client deletes the znode, and the watch fires. 3. The claim's reply arrives, as if the
    znode existed. So the member reads the znode back after the claim.
    """
    tp = event.partition
    if tp in state.unconfirmed_claims:
        fired = state.fired | {paths.owner(state.settings.group, tp)}
        return replace(state, read_again=True, fired=fired), ()
    if tp not in state.owned:
        return _blocker_changed(state, event)
    if tp in state.revoking:  # A release that starts after this event reads the owner first.
        return replace(state, unwatched=state.unwatched | {tp}), ()
    state, commands = drop_ownership(state, frozenset({tp}))
    notice = Notice(
        NoticeKind.OWNERSHIP_LOST,
        str(tp),
        "another client deleted or replaced this member's owner znode",
    )
    state = replace(state, read_again=True, claim_due=True)
    result: Step = (state, (*commands, notice))
    return then(result, read) if state.phase in RESTING else result


def _blocker_changed(state: State, event: events.OwnerNodeChanged) -> Step:
    """Claim again, which reads the owner, because an owner that could not be read has changed."""
    tp = event.partition
    if tp not in state.blocked.partitions:
        return state, ()
    partitions = {**state.blocked.partitions, tp: UNKNOWN_BLOCKER}
    state = replace(state, blocked=replace(state.blocked, partitions=partitions), claim_due=True)
    return enter_next_phase(state, event.now) if state.phase is Phase.WAITING else (state, ())


def offset_node_changed(state: State, event: events.OffsetNodeChanged) -> Step:
    """Read an offset again that could not be read, now or after the current phase.

    The next read of the group reads the malformed offsets again.
    """
    tp = event.partition
    if tp not in state.owned or tp in state.serving:
        return state, ()
    state = replace(state, read_again=True)
    return read(state) if state.phase in RESTING else (state, ())


def owners_changed(state: State, event: events.OwnersChanged) -> Step:
    """Claim again now, or after the running claim, because a blocked partition may be free.

    During a claim, `blocked` does not yet contain the partitions that the claim finds blocked: 1.
    The claim lists the owners and arms the watch. 2. The other session releases the partition, and
    the watch fires. 3. The claim ends.
    """
    claiming = state.phase is Phase.CLAIMING
    if not claiming and not any(tp.topic == event.topic for tp in state.blocked.partitions):
        return state, ()
    state = replace(state, claim_due=True)
    if state.phase is Phase.WAITING:
        return enter_next_phase(state, event.now)
    return state, ()


def topic_deleted(state: State, event: events.TopicDeleted) -> Step:
    """Stop fetching a deleted topic; its owner znodes stay until the next rebalance.

    The JVM does the same.

    A running rebalance may have an older view, so the member reads the group again after the
    rebalance.
    """
    gone = frozenset(tp for tp in state.serving if tp.topic == event.topic)
    notice = Notice(NoticeKind.TOPIC_DELETED, event.topic, "the topic was deleted")
    read_again = state.read_again or state.phase not in RESTING
    unfetched = {**state.unfetched, **dict.fromkeys(gone, "the topic was deleted")}
    serving = state.serving - gone
    state = replace(state, serving=serving, unfetched=unfetched, read_again=read_again)
    state = forget(state, paths.topic(event.topic))
    return state, (Withdraw(gone), RearmTopic(event.topic), notice)
