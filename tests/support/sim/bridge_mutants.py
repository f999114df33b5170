"""Planted faults in the bridge, which the monitor of its joint world must notice.

Each mutant replaces functions in this process, until its `with` block ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from support.sim import bridge_courses as courses
from support.sim.later_mutants import Patch, Patches, accepts_every_commit
from zkconsumer.bridge import machine, shares
from zkconsumer.bridge.state import (
    CommitEnded,
    Granted,
    GroupSeen,
    Held,
    LockKept,
    RemoveMembers,
    RunConsumers,
    Stage,
    State,
    Withdrawn,
)
from zkconsumer.later import classic_group, classic_member
from zkconsumer.member import operations, rebalance
from zkconsumer.member.commands import Withdraw
from zkconsumer.member.state import State as MemberState
from zkconsumer.member.state import Step
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.later import assignors
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.assignors import Assignor
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.bridged import world as bridged_world
from zkconsumer.sim.bridged.search import Weather, run
from zkconsumer.sim.bridged.world import BridgedWorld
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import NEVER, InvariantViolation

Reveal = Callable[[], InvariantViolation | None]
"""A run that reveals a fault; it returns the broken promise."""

TRIES = 20
"""How many seeds are tried, because a change of the world changes what a seed does."""


def in_weather(weather: Weather, seed: int) -> list[Reveal]:
    """Return the runs of a known seed and of those after it."""
    return [partial(_violation, weather, one) for one in range(seed, seed + TRIES)]


def _violation(weather: Weather, seed: int) -> InvariantViolation | None:
    return run(Decisions(random.Random(seed)), weather).violation


def broken_by(reveal: Reveal) -> InvariantViolation | None:
    """Return the promise that a run breaks."""
    try:
        return reveal()
    except InvariantViolation as violation:
        return violation


@dataclass(frozen=True)
class BridgeMutant(Patches):
    """A planted fault, the promise it breaks, and the runs of which one must reveal it."""

    name: str
    promise: str
    patches: Callable[[], list[Patch]]
    reveals: Sequence[Reveal]

    def caught(self) -> tuple[Reveal, InvariantViolation] | None:
        """Return the first run that breaks the mutant's promise, and the violation."""
        with self.planted():
            for reveal in self.reveals:
                violation = broken_by(reveal)
                if violation is not None and violation.invariant == self.promise:
                    return reveal, violation
        return None


def _lease_before_revoke() -> list[Patch]:
    return [(machine, "lease_end", lambda state, consumer: NEVER)]


def _release_before_revoke() -> list[Patch]:
    genuine = machine.staged_partition

    def staged(one: Held, *, is_leaving: bool) -> Held:
        after = genuine(one, is_leaving=is_leaving)
        is_leaving = after.stage is Stage.RETURNING
        return replace(after, stage=Stage.RETURNED) if is_leaving else after

    return [(machine, "staged_partition", staged)]


def _release_before_commit() -> list[Patch]:
    genuine = machine.offsets_read

    def offsets_read(
        state: State, asked: tuple[TopicPartition, ...], answer: msg.OffsetsFetched, now: float
    ) -> State:
        after = genuine(state, asked, answer, now)
        held = {
            tp: replace(one, offset=state.held[tp].offset) if one.stage is Stage.RETURNED else one
            for tp, one in after.held.items()
        }
        return replace(after, held=held)

    return [(machine, "offsets_read", offsets_read)]


def _ids_before_release() -> list[Patch]:
    def change(state: State, now: float) -> machine.Step:
        if state.change is None:
            return state, ()
        return replace(state, running=state.change, change=None), (RunConsumers(state.change),)

    return [(machine, "change_consumers", change)]


def _commit_without_comparing() -> list[Patch]:
    return [(machine, "needs_no_commit", lambda one: one.offset is None)]


def _assign_before_commit() -> list[Patch]:
    genuine = machine.HANDLERS[Granted]

    def granted(state: State, event: Any) -> State:
        after = genuine(state, event)
        held = {
            tp: replace(one, stage=Stage.LENT) if tp in event.grants else one
            for tp, one in after.held.items()
        }
        return replace(after, held=held)

    return [(machine, "HANDLERS", {**machine.HANDLERS, Granted: granted})]


def _rejoin_without_the_member_id() -> list[Patch]:
    genuine = machine.take_lead

    def take_lead(state: State, now: float) -> machine.Step:
        after, commands = genuine(state, now)
        if after.asked_lead and not state.asked_lead:
            classic = replace(after.classic, member=msg.UNKNOWN_MEMBER)
            return replace(after, classic=classic, asked_lead=False), commands
        return after, commands

    return [(machine, "take_lead", take_lead)]


def _standby_joins_early() -> list[Patch]:
    return [(BridgedWorld, "may_start", lambda world, number: True)]


def _forgets_owned_partitions() -> list[Patch]:
    genuine = machine.learn_members

    def learn(state: State, *rest: Any) -> State:
        after = genuine(state, *rest)
        return after if after.joined is None else replace(after, joined=frozenset(after.owners))

    return [(machine, "learn_members", learn)]


def _counts_on_what_is_not_stored() -> list[Patch]:
    genuine = machine.learn_members

    def learn(state: State, *rest: Any) -> State:
        after = genuine(state, *rest)
        return after if after.joined is None else replace(after, occupied=after.joined)

    return [(machine, "learn_members", learn)]


def _kafka_is_always_right() -> list[Patch]:
    return [(machine, "needs_no_commit", lambda one: one.offset is None or one.kafka is not None)]


def _lends_what_it_has_lost() -> list[Patch]:
    def withdrawn(state: State, event: Any) -> State:
        return state

    return [(machine, "HANDLERS", {**machine.HANDLERS, Withdrawn: withdrawn})]


def _stays_returned() -> list[Patch]:
    genuine = machine.staged_partition

    def staged(one: Held, *, is_leaving: bool) -> Held:
        is_back = one.stage is Stage.RETURNED
        return one if is_back else genuine(one, is_leaving=is_leaving)

    return [(machine, "staged_partition", staged)]


def _topics_do_not_grow() -> list[Patch]:
    genuine = machine.HANDLERS[GroupSeen]

    def seen(state: State, event: Any) -> State:
        view = event.view
        if state.view is not None:
            view = replace(view, topics=state.view.topics)
        return genuine(state, replace(event, view=view))

    return [(machine, "HANDLERS", {**machine.HANDLERS, GroupSeen: seen})]


def _follows() -> list[Patch]:
    genuine = machine.take_lead

    def take_lead(state: State, now: float) -> machine.Step:
        after, commands = genuine(state, now)
        return after, tuple(one for one in commands if not isinstance(one, RemoveMembers))

    return [(machine, "take_lead", take_lead)]


def _unknown_to_the_next_coordinator() -> list[Patch]:
    return [(machine, "greet_coordinator", lambda state: state)]


def _greets_once() -> list[Patch]:
    return [(machine, "GREET_AGAIN_S", NEVER)]


def _reconnect_cuts_off_the_wait() -> list[Patch]:
    genuine = rebalance.abort_rebalance

    def abort(state: MemberState) -> Step:
        after, commands = genuine(state)
        asked = state.revoking & after.serving
        withdraw = (Withdraw(asked),) if asked else ()
        return replace(after, serving=after.serving - asked), (*commands, *withdraw)

    return [(rebalance, "abort_rebalance", abort)]


def _without_steps() -> list[Patch]:
    genuine = assignors.assign_only

    def assign(assignor: Assignor, *rest: Any) -> Any:
        is_cooperative = assignor is Assignor.COOPERATIVE_STICKY
        return genuine(Assignor.STICKY if is_cooperative else assignor, *rest)

    return [(classic_member, "assign_only", assign)]


def _no_nudge() -> list[Patch]:
    return [(bridged_world, "NUDGE_S", None)]


def _sets_without_comparing() -> list[Patch]:
    genuine = operations.transact

    def transact(member: Any, writes: Mapping[TopicPartition, rq.Write]) -> Any:
        plain = {
            tp: replace(one, version=-1) if isinstance(one, rq.SetData) else one
            for tp, one in writes.items()
        }
        return genuine(member, plain)

    return [(operations, "transact", transact)]


def _keeps_the_first_plan() -> list[Patch]:
    def with_plan(state: State, running: frozenset[int]) -> State:
        plan = state.plan
        if plan is not None and plan.view is state.view and plan.running != state.running:
            return state  # a change is planned already
        return shares.with_plan(state, running)

    # The monitor goes on using the genuine function.
    return [(machine, "shares", SimpleNamespace(**{**vars(shares), "with_plan": with_plan}))]


def _counts_absent_consumers() -> list[Patch]:
    def present(state: State, now: float) -> frozenset[int]:
        return state.running

    return [(machine, "shares", SimpleNamespace(**{**vars(shares), "present": present}))]


def _releases_at_once() -> list[Patch]:
    genuine = machine.HANDLERS[CommitEnded]

    def committed(state: State, event: Any) -> State:
        return genuine(replace(state, setup=replace(state.setup, claim_s=0.0)), event)

    return [(machine, "HANDLERS", {**machine.HANDLERS, CommitEnded: committed})]


def _trusts_the_lock() -> list[Patch]:
    def kept(state: State, event: Any) -> State:
        return replace(state, lock_until=NEVER)

    return [(machine, "HANDLERS", {**machine.HANDLERS, LockKept: kept})]


MUTANTS = (
    BridgeMutant(
        "the lease ends before the revocation",
        "B1",
        _lease_before_revoke,
        in_weather(Weather.CUT_OFF, 9),
    ),
    BridgeMutant(
        "a partition is released before it is revoked",
        "B1",
        _release_before_revoke,
        in_weather(Weather.CALM, 68),
    ),
    BridgeMutant(
        "a partition is released before its offset is stored",
        "B7",
        _release_before_commit,
        in_weather(Weather.CALM, 8),
    ),
    BridgeMutant(
        "the consumers change before partitions return",
        "B4",
        _ids_before_release,
        in_weather(Weather.CALM, 1),
    ),
    BridgeMutant(
        "Kafka's offset is overwritten without a comparison",
        "B2",
        _commit_without_comparing,
        in_weather(Weather.STORM, 41),
    ),
    BridgeMutant(
        "partitions are assigned before Kafka has the offset",
        "B7",
        _assign_before_commit,
        in_weather(Weather.CALM, 2),
    ),
    BridgeMutant(
        "a restarted bridge joins again without its member id",
        "B6",
        _rejoin_without_the_member_id,
        in_weather(Weather.STORM, 0),
    ),
    BridgeMutant("a standby joins early", "B5", _standby_joins_early, in_weather(Weather.STORM, 1)),
    BridgeMutant(
        "what cooperative members own is ignored",
        "B4",
        _forgets_owned_partitions,
        [courses.return_in_two_steps],
    ),
    BridgeMutant(
        "Kafka's offset counts although it is lower",
        "B7",
        _kafka_is_always_right,
        in_weather(Weather.CALM, 8),
    ),
    BridgeMutant(
        "a partition that its consumer has lost stays lent",
        "B6",
        _lends_what_it_has_lost,
        in_weather(Weather.STORM, 1),
    ),
    BridgeMutant(
        "a partition that the bridge keeps after all is not lent again",
        "B6",
        _stays_returned,
        in_weather(Weather.CALM, 42),
    ),
    BridgeMutant(
        "an assignment counts before the coordinator has stored it",
        "B1",
        _counts_on_what_is_not_stored,
        [courses.removed_member_returns],
    ),
    BridgeMutant(
        "a new partition is not seen", "B6", _topics_do_not_grow, in_weather(Weather.CALM, 0)
    ),
    BridgeMutant(
        "a bridge that follows goes on following", "B6", _follows, in_weather(Weather.STORM, 0)
    ),
    BridgeMutant(
        "the bridge does not join again at another coordinator",
        "B6",
        _unknown_to_the_next_coordinator,
        [courses.other_coordinator],
    ),
    BridgeMutant(
        "the bridge does not join again at a coordinator that is elected again",
        "B6",
        _greets_once,
        [courses.elected_again],
    ),
    BridgeMutant(
        "a reconnect cuts off the wait for new members",
        "B7",
        _reconnect_cuts_off_the_wait,
        [courses.reconnect],
    ),
    BridgeMutant(
        "the lease of a frozen bridge never ends",
        "B9",
        _lease_before_revoke,
        [courses.frozen_bridge],
    ),
    BridgeMutant(
        "a bridge that wakes trusts its lock", "B6", _trusts_the_lock, [courses.replaced_bridge]
    ),
    BridgeMutant(
        "a cooperative partition is assigned before it is revoked",
        "B8",
        _without_steps,
        [courses.two_steps],
    ),
    BridgeMutant(
        "the bridge never wakes an idle JVM member", "B6", _no_nudge, [courses.slow_new_member]
    ),
    BridgeMutant(
        "an offset in ZooKeeper is overwritten without a comparison",
        "B2",
        _sets_without_comparing,
        [courses.late_commit_of_an_old_member],
    ),
    BridgeMutant(
        "the coordinator accepts a removed member's commit",
        "B2",
        partial(accepts_every_commit, classic_group),
        [courses.late_commit_of_a_new_member],
    ),
    BridgeMutant(
        "a hand-over ignores that the share changes",
        "B4",
        _keeps_the_first_plan,
        [courses.share_changes],
    ),
    BridgeMutant(
        "a consumer that cannot register counts",
        "B6",
        _counts_absent_consumers,
        [courses.limited_consumers],
    ),
    BridgeMutant(
        "a partition is released as soon as its offset is stored",
        "B7",
        _releases_at_once,
        [courses.early_offset],
    ),
)
