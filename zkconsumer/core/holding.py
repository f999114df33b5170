"""What we hold: taken back when it was read back, lost when somebody else touched it."""

from __future__ import annotations

from zkconsumer.core.commands import Notice, NoticeKind, Withdraw
from zkconsumer.core.events import Verified
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.state import State, Step, drop_from, replace


def take_back(state: State, outcome: Verified) -> Step:
    """What was read back is ours; what is lost is no longer delivered, and is claimed again."""
    # What was lost while it was being read stays lost.
    held = {
        tp: mine
        for tp, mine in outcome.held.items()
        if tp in state.owned or tp in state.doubtful
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
        if tp in state.owned and tp in state.wanted
    )
    state, commands = lose(state, changed.union(outcome.lost))
    state = replace(
        state,
        owned={**state.owned, **held},
        doubtful={},
        unverified=state.unverified.difference(outcome.held, outcome.lost),
        unwatched=state.unwatched.difference(outcome.held, outcome.lost),
        claim_due=state.claim_due or bool(outcome.lost),
    )
    return state, commands + notices


def lose(state: State, lost: frozenset[TopicPartition]) -> Step:
    """These are ours no more: delivery stops now; their positions go with the claim."""
    served = lost & state.serving
    state = replace(
        state,
        owned=drop_from(state.owned, lost),
        serving=state.serving - lost,
        malformed=state.malformed - lost,
        ledger=drop_from(state.ledger, lost),
        heard=None if lost else state.heard,
    )
    return state, ((Withdraw(served),) if served else ())
