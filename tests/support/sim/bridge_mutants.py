"""Planted faults in the bridge, which the monitor of its joint world must notice.

Each mutant replaces functions in this process, until its `with` block ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from zkconsumer.bridge import machine
from zkconsumer.bridge.state import (
    Granted,
    GroupSeen,
    Held,
    RemoveMembers,
    RunConsumers,
    Stage,
    State,
    Withdrawn,
)
from zkconsumer.member import rebalance
from zkconsumer.member.commands import Withdraw
from zkconsumer.member.state import State as MemberState
from zkconsumer.member.state import Step
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.bridged.search import Weather, run
from zkconsumer.sim.bridged.world import BridgedWorld
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import NEVER, InvariantViolation

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class BridgeMutant:
    """A planted fault, the weather of the runs that must reveal it, and the promise it breaks.

    `seed` is the seed of a run that reveals it.
    """

    name: str
    weather: Weather
    promise: str
    patches: Callable[[], list[Patch]]
    seed: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault."""
        with ExitStack() as stack:
            for where, name, replacement in self.patches():
                stack.enter_context(patch.object(where, name, replacement))
            yield

    def caught(self, seed: int) -> InvariantViolation | None:
        """Return the violation in the run of a seed."""
        with self.planted():
            return run(Decisions(random.Random(seed)), self.weather).violation


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
        state: State, asked: tuple[TopicPartition, ...], answer: msg.OffsetsFetched
    ) -> State:
        after = genuine(state, asked, answer)
        held = {
            tp: replace(one, offset=state.held[tp].offset) if one.stage is Stage.RETURNED else one
            for tp, one in after.held.items()
        }
        return replace(after, held=held)

    return [(machine, "offsets_read", offsets_read)]


def _ids_before_release() -> list[Patch]:
    def change(state: State) -> machine.Step:
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


def _reconnect_cuts_off_the_wait() -> list[Patch]:
    genuine = rebalance.abort_rebalance

    def abort(state: MemberState) -> Step:
        after, commands = genuine(state)
        asked = state.revoking & after.serving
        withdraw = (Withdraw(asked),) if asked else ()
        return replace(after, serving=after.serving - asked), (*commands, *withdraw)

    return [(rebalance, "abort_rebalance", abort)]


MUTANTS = (
    BridgeMutant(
        "the lease ends before the revocation", Weather.CUT_OFF, "B1", _lease_before_revoke, 27
    ),
    BridgeMutant(
        "a partition is released before it is revoked",
        Weather.CALM,
        "B1",
        _release_before_revoke,
        54,
    ),
    BridgeMutant(
        "a partition is released before its offset is stored",
        Weather.CALM,
        "B7",
        _release_before_commit,
        10,
    ),
    BridgeMutant(
        "the consumers change before partitions return", Weather.CALM, "B4", _ids_before_release, 1
    ),
    BridgeMutant(
        "Kafka's offset is overwritten without a comparison",
        Weather.STORM,
        "B2",
        _commit_without_comparing,
        31,
    ),
    BridgeMutant(
        "partitions are assigned before Kafka has the offset",
        Weather.CALM,
        "B7",
        _assign_before_commit,
        2,
    ),
    BridgeMutant(
        "a restarted bridge joins again without its member id",
        Weather.STORM,
        "B6",
        _rejoin_without_the_member_id,
        0,
    ),
    BridgeMutant("a standby joins early", Weather.STORM, "B5", _standby_joins_early, 1),
    BridgeMutant(
        "what cooperative members own is ignored",
        Weather.CALM,
        "B4",
        _forgets_owned_partitions,
        1,
    ),
    BridgeMutant(
        "Kafka's offset counts although it is lower", Weather.CALM, "B7", _kafka_is_always_right, 10
    ),
    BridgeMutant(
        "a partition that its consumer has lost stays lent",
        Weather.STORM,
        "B6",
        _lends_what_it_has_lost,
        1,
    ),
    BridgeMutant(
        "a partition that the bridge keeps after all is not lent again",
        Weather.CALM,
        "B6",
        _stays_returned,
        138,
    ),
    BridgeMutant(
        "an assignment counts before the coordinator has stored it",
        Weather.STORM,
        "B1",
        _counts_on_what_is_not_stored,
        740000148,
    ),
    BridgeMutant("a new partition is not seen", Weather.CALM, "B6", _topics_do_not_grow, 0),
    BridgeMutant("a bridge that follows goes on following", Weather.STORM, "B6", _follows, 0),
    BridgeMutant(
        "the bridge does not join again at another coordinator",
        Weather.STORM,
        "B6",
        _unknown_to_the_next_coordinator,
        31,
    ),
    BridgeMutant(
        "a reconnect cuts off the wait for new members",
        Weather.CUT_OFF,
        "B1",
        _reconnect_cuts_off_the_wait,
        459,
    ),
)
