"""Planted faults in the machines of the later protocols, which the monitor must notice.

Each mutant replaces functions or table entries in this process, until its `with` block ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

from zkconsumer.later import classic_group, classic_member, consumer_group, consumer_member
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import ClassicState
from zkconsumer.later.client_state import InFlightRequest
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.assignors import Assignor, assign
from zkconsumer.protocol.later.coordination import ReconcilingMember, reconcile
from zkconsumer.protocol.later.messages import Error
from zkconsumer.sim.coordinated.search import run
from zkconsumer.sim.kernel.search import Decisions, Result
from zkconsumer.sim.kernel.world import InvariantViolation

Patch = tuple[Any, Any, Any]
Step = tuple[ClassicState, ev.Commands]


def run_seed(seed: int, protocol: str) -> Result:
    """Run one seed of a protocol."""
    return run(Decisions(random.Random(seed)), protocol)


class Patches:
    """A planted fault: the functions and entries of tables that it replaces."""

    patches: Callable[[], list[Patch]]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault."""
        with ExitStack() as stack:
            for where, name, replacement in self.patches():
                change = (
                    patch.dict(where, {name: replacement})
                    if isinstance(where, dict)
                    else patch.object(where, name, replacement)
                )
                stack.enter_context(change)
            yield


@dataclass(frozen=True)
class Mutant(Patches):
    """A planted fault, and the protocol whose runs must reveal it."""

    name: str
    protocol: str
    promise: str
    patches: Callable[[], list[Patch]]

    def caught(self, seeds: range) -> InvariantViolation | None:
        """Return the first violation in the runs of these seeds."""
        with self.planted():
            found = (run_seed(seed, self.protocol).violation for seed in seeds)
            return next((one for one in found if one is not None), None)


def _keeps_delivering(member: ModuleType) -> list[Patch]:
    genuine = member.step

    def step(state: Any, event: ev.Event) -> Any:
        after, commands = genuine(state, event)
        return after, tuple(one for one in commands if not isinstance(one, ev.StopFetching))

    return [(member, "step", step)]


def _is_deaf() -> list[Patch]:
    def heard(
        state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float
    ) -> Step:
        return replace(state, heard_at=now), ()

    return [(classic_member.ANSWERS, msg.Heartbeat, heard)]


def accepts_every_commit(group: ModuleType) -> list[Patch]:
    """Let the coordinator accept commits of any member and generation."""
    return [(group, "commit_error", lambda group, request: Error.NONE)]


def _starts_late() -> list[Patch]:
    genuine = classic_member.ANSWERS[msg.OffsetFetch]

    def loaded(
        state: ClassicState, sent: InFlightRequest, response: msg.Response, now: float
    ) -> Step:
        after, commands = genuine(state, sent, response, now)
        late = tuple(
            ev.StartFetching({tp: (offset or 0) + 1 for tp, offset in one.positions.items()})
            if isinstance(one, ev.StartFetching)
            else one
            for one in commands
        )
        return after, late

    return [(classic_member.ANSWERS, msg.OffsetFetch, loaded)]


def _hands_over_at_once() -> list[Patch]:
    def impatient(assignor: Assignor, topics: Any, subscriptions: Any) -> Any:
        return assign(Assignor.STICKY, topics, subscriptions)

    return [(classic_member, "assign", impatient)]


def _commits_early() -> list[Patch]:
    genuine = classic_member.HANDLERS[ev.Consumed]

    def consumed(state: ClassicState, event: ev.Event) -> Step:
        assert isinstance(event, ev.Consumed)
        return genuine(state, replace(event, position=event.position + 1))

    return [(classic_member.HANDLERS, ev.Consumed, consumed)]


def _does_not_wait() -> list[Patch]:
    def impatient(member: ReconcilingMember, **fields: Any) -> ReconcilingMember:
        return reconcile(member, **{**fields, "held": ()})

    return [(consumer_group, "reconcile", impatient)]


MUTANTS = (
    Mutant(
        "delivers while it joins", "classic-eager", "C2", partial(_keeps_delivering, classic_member)
    ),
    Mutant("ignores the answers to heartbeats", "classic-eager", "C7", _is_deaf),
    Mutant(
        "commits of any generation are stored",
        "classic-eager",
        "C3",
        partial(accepts_every_commit, classic_group),
    ),
    Mutant("starts after the stored offset", "classic-eager", "C4", _starts_late),
    Mutant("assigns what others still own", "classic-cooperative", "C2", _hands_over_at_once),
    Mutant("commits the message after", "classic-eager", "C5", _commits_early),
    Mutant(
        "delivers what it has revoked",
        "consumer",
        "C2",
        partial(_keeps_delivering, consumer_member),
    ),
    Mutant("assigns before the release", "consumer", "C2", _does_not_wait),
    Mutant(
        "commits of any epoch are stored",
        "consumer",
        "C3",
        partial(accepts_every_commit, consumer_group),
    ),
)
