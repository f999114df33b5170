"""Peers that have given up: registered, counted in every assignment, and idle for ever.

A JVM member whose rebalance failed `rebalance.max.retries` times stays registered and waits for a
trigger that may never come; what it should own is read by nobody, and nobody may take it. We name
it once our own share has been settled for retries x back-off; with `peers.nudge` we also register
anew once a minute, which makes every member of the group rebalance again.
"""

from __future__ import annotations

from zkconsumer.core.commands import Command, Diagnose, ListOwners, Notice, NoticeKind, Nudge
from zkconsumer.core.events import OwnersListed
from zkconsumer.core.state import State, Step, own_topics, replace, start_op
from zkconsumer.core.view import assignment_of_others
from zkconsumer.errors import displayed


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
