"""Reverted fixes: without its fix, a recorded run of tests/sim/found breaks its promise."""

from __future__ import annotations

from typing import Any

from support.sim.mutants import Mutant, Patch, function
from zkconsumer.member import assignment, commits, machine, operations, rebalance
from zkconsumer.member.events import ReleaseReady
from zkconsumer.member.operations import release
from zkconsumer.member.state import Commits, replace


def _roll_back_forgets() -> list[Patch]:
    def roll_back(work: Any) -> Any:
        yield from release(work.member, work.created)
        work.created.clear()

    return [(operations, "_roll_back", roll_back)]


def _stale_reading_clears() -> list[Patch]:
    def still_unfetched(state: Any, whole: Any) -> Any:
        return {tp: why for tp, why in state.unfetched.items() if tp.topic not in whole.topics}

    return [(assignment, "_still_unfetched", still_unfetched)]


def _retry_in_front_of_a_hand_over() -> list[Patch]:
    real = function(commits, "_again_later")

    def again_later(state: Any, asked: Any, reasons: Any, now: float) -> Any:
        waiting = state.commits.queued
        state, notice = real(state, asked, reasons, now)
        queue = (replace(asked, retries=asked.retries - 1), *waiting)
        retry_at = now + state.settings.channel_backoff_s
        return replace(state, commits=Commits(queued=queue, retry_at=retry_at)), notice

    return [(commits, "_again_later", again_later)]


def _hand_over_cut_short_is_forgotten() -> list[Patch]:
    real = rebalance.revoke

    def stop(state: Any, go: Any, now: float) -> Any:
        if go & state.serving:
            return real(state, go, now)
        return rebalance.before_release(replace(state, revoking=go, finished=frozenset()), now)

    return [
        (rebalance, "revoke", stop),
        (commits, "_first", lambda asked, waiting: (asked, *waiting)),
    ]


def _broker_returns_unnoticed() -> list[Patch]:
    return [(assignment, "_misses_brokers", lambda state, view: False)]


def _late_answer_counts() -> list[Patch]:
    def release_ready(state: Any, event: Any) -> Any:
        now_owned = {tp: state.owned[tp] for tp in event.partitions if tp in state.owned}
        return real(state, replace(event, partitions=now_owned))

    real = machine.HANDLERS[None, ReleaseReady]
    return [(machine.HANDLERS, (None, ReleaseReady), release_ready)]


LATE_ANSWER_COUNTS = Mutant(
    "late answer counts",
    "an answer to the release of an earlier ownership counts for the present ownership",
    _late_answer_counts,
)

REGRESSIONS = {
    "a-broker-returns-before-its-absence-is-known": Mutant(
        "a broker returns before its absence is known",
        "the watch event of a running reading is ignored, because the view before had brokers",
        _broker_returns_unnoticed,
    ),
    "a-broken-connection-cuts-a-hand-over-short": Mutant(
        "a broken connection cuts a hand-over short",
        "the partitions are released while the hand-over's commit waits",
        _hand_over_cut_short_is_forgotten,
    ),
    "a-hand-over-waits-behind-a-commit-that-kafka-refused": Mutant(
        "a hand-over waits behind a commit that Kafka refused",
        "the retry is queued in front of the hand-over's commit",
        _retry_in_front_of_a_hand_over,
    ),
    "a-claim-that-cannot-be-rolled-back": Mutant(
        "a claim that cannot be rolled back",
        "a failed claim forgets owner znodes that it cannot delete",
        _roll_back_forgets,
    ),
    "a-topic-is-deleted-while-the-group-is-read": Mutant(
        "a topic is deleted while the group is read",
        "a reading of the group that is out of date counts as current",
        _stale_reading_clears,
    ),
}
