"""What another session holds: told once, after the time in which a JVM member would give up."""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.core.commands import Command, Diagnose, Notice, NoticeKind
from zkconsumer.core.events import Diagnosed
from zkconsumer.core.model import UNNAMED, TopicPartition
from zkconsumer.core.state import State, Step, replace
from zkconsumer.errors import displayed

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
    named = {tp: who for tp, who in state.blocked.items() if who != UNNAMED}
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


def keep(state: State) -> Step:
    """Forget blockers of what is no longer wanted, and say when the last is gone."""
    blocked = {tp: who for tp, who in state.blocked.items() if tp in state.wanted}
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
