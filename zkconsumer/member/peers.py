"""Peers that have given up: registered, counted in every assignment, and idle for ever.

A JVM member whose rebalance failed `rebalance.max.retries` times stays registered and waits for a
trigger that may never come; what it should own is read by nobody, and nobody may take it. We name
it once our own share has been settled for retries x back-off; with `peers.nudge` we also register
anew once a minute, which makes every member of the group rebalance again.

What another session holds: told once, after the time in which a JVM member would give up.
"""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.errors import displayed
from zkconsumer.member.commands import Command, Diagnose, ListOwners, Notice, NoticeKind, Nudge
from zkconsumer.member.events import Diagnosed, OwnersListed
from zkconsumer.member.state import State, Step, own_topics, replace, start_op
from zkconsumer.protocol.group_snapshot import assignment_of_others
from zkconsumer.protocol.model import UNKNOWN_BLOCKER, TopicPartition


def look(state: State) -> Step:
    """List the owner znodes of our topics."""
    state, op = start_op(replace(state, peers_at=None))
    return state, (ListOwners(op, frozenset(own_topics(state))),)


def looked(state: State, outcome: OwnersListed, now: float) -> Step:
    """Compare with what the others should own; look again as long as something is missing."""
    state = replace(state, op=None)
    if state.view is None:
        return state, ()
    settings = state.settings
    theirs = assignment_of_others(
        state.view,
        consumer=settings.consumer,
        strategy=settings.strategy,
        profile=settings.profile,
    )
    idle = {tp: thread for tp, thread in theirs.items() if tp not in outcome.present}
    if not idle:
        return replace(state, idle_peers=frozenset()), ()
    notices = tuple(
        Notice(
            NoticeKind.IDLE_PEER,
            str(tp),
            f"assigned to {displayed(thread)}, which is registered but does not claim it",
            "restart that consumer; peers.nudge=true makes the whole group rebalance once a minute",
        )
        for tp, thread in sorted(idle.items())
        if tp not in state.idle_peers
    )
    diagnose: tuple[Command, ...] = (Diagnose(),) if notices else ()
    state = replace(state, idle_peers=frozenset(idle))
    nudge_s = state.settings.nudge_s
    if nudge_s is None:
        return replace(state, peers_at=now + patience_s(state)), notices + diagnose
    if now < state.nudged_at + nudge_s:
        return replace(state, peers_at=state.nudged_at + nudge_s), notices + diagnose
    state, op = start_op(replace(state, nudged_at=now))
    state = replace(state, nudge_op=op)
    return state, (*notices, *diagnose, Nudge(op, state.wall_ms))


def patience_s(state: State) -> float:
    """After so long a JVM member has given up."""
    return state.settings.retries * state.settings.backoff_s


# ---- blocking ------------------------------------------------------------------------------------


MAX_NAMED = 20
"""How many partitions one report names; a log line is read by people, the rest is counted."""


def listed(partitions: Iterable[TopicPartition]) -> str:
    """Name at most `MAX_NAMED` partitions, and count the others."""
    names = [displayed(str(tp)) for tp in sorted(partitions)]
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def report(state: State, now: float) -> Step:
    """After retries x back-off name what is blocked and by whom, in one notice, and go on."""
    patience = state.settings.retries * state.settings.backoff_s
    since = state.blocked_since
    if state.blocked_reported or since is None or now - since < patience:
        return state, ()
    named = {tp: who for tp, who in state.blocked.items() if who != UNKNOWN_BLOCKER}
    if not named:
        return state, ()  # the claim that follows asks
    holders = sorted({(who.thread, who.session) for who in named.values()})
    names = ", ".join(f"{thread} (session {session:#x})" for thread, session in holders[:MAX_NAMED])
    persistent = any(not session for _, session in holders)
    notice = Notice(
        NoticeKind.BLOCKED,
        listed(named),
        f"held by {names} for {now - since:.0f} s",
        "stop that consumer; a persistent owner znode (session 0x0) must be deleted by hand"
        if persistent
        else "stop that consumer, or wait for its session to end",
    )
    return replace(state, blocked_reported=True), (notice, Diagnose())


def drop_cleared_blockers(state: State) -> Step:
    """Forget blockers of what is no longer wanted, and say when the last is gone."""
    blocked = {tp: who for tp, who in state.blocked.items() if tp in state.assigned}
    if blocked:
        return replace(state, blocked=blocked), ()
    said = (
        (Notice(NoticeKind.UNBLOCKED, "", "everything that blocked this member is gone"),)
        if state.blocked_reported
        else ()
    )
    return replace(state, blocked={}, blocked_since=None, blocked_reported=False), said


def diagnosed(state: State, event: Diagnosed) -> Step:
    """Members that will not agree with us however long we wait are named."""
    notices: tuple[Command, ...] = tuple(
        Notice(
            NoticeKind.DISAGREEMENT,
            f"ids/{displayed(consumer)}",
            reason,
            "give all members one partition.assignment.strategy and exclude.internal.topics;"
            " set peers.release to the release of the JVM members; see zkconsumer assign",
        )
        for consumer, reason in sorted(event.quarrels.items())
    )
    return state, notices
