"""The user's rebalance listener: called, waited for, and never for longer than `release.grace.ms`.

JVM: `ConsumerRebalanceListener` (0.9.0.0, KAFKA-1650). Both calls belong to an assignment: before
the release, with what goes, which may be nothing; after the claim and before anything of it is
fetched, with who gets what. What is released for any other reason is told as well. The JVM calls
in every attempt and waits for ever, which makes a joiner give up; we go on without an answer.
"""

from __future__ import annotations

from zkconsumer.core.commands import Callback, CallListener, Notice, NoticeKind
from zkconsumer.core.events import ListenerReturned, Outcome
from zkconsumer.core.state import Phase, State, Step, replace, start_op
from zkconsumer.core.view import assignment_of_others

_PHASE = {Callback.RELEASING: Phase.BEFORE_RELEASE, Callback.STARTING: Phase.BEFORE_START}
CALLING = frozenset(_PHASE.values())


def learn(state: State) -> State:
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
    assignment = {**others, **state.wanted}
    if assignment == state.assignment:
        return state
    return replace(state, assignment=assignment, heard=None)


def due(state: State, *, claiming: bool, resting: bool) -> Callback | None:
    """The call that comes before the claim, before fetching, or before a rest that has all."""
    if state.settings.listener_s is None or state.assignment is None:
        return None
    if state.heard is None and (claiming or resting):
        return Callback.RELEASING
    started = state.heard is Callback.STARTING
    return Callback.STARTING if resting and not claiming and not started else None


def call(state: State, callback: Callback, now: float) -> Step:
    """Ask for the call; its end, or the grace's, goes on from there."""
    assert state.settings.listener_s is not None
    state, op = start_op(
        replace(
            state,
            phase=_PHASE[callback],
            heard=callback,
            grace_at=now + state.settings.listener_s,
        )
    )
    going = {tp: state.owned[tp].thread for tp in state.moving if tp in state.owned}
    partitions = going if callback is Callback.RELEASING else state.assignment or {}
    return state, (CallListener(op, callback, partitions),)


def before_release(state: State, now: float) -> Step:
    """Tell of what goes."""
    return call(state, Callback.RELEASING, now)


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


def late(state: State) -> Notice:
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
