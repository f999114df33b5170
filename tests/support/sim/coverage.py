"""Coverage: which rows of the machine's tables, and which faults, the simulated runs reach.

A pair is (phase, event), (phase, outcome of an operation) or (phase, fault). `possible()` lists all
pairs that can occur; `EXCLUDED` gives the reason for each pair that cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from zkconsumer.member import events, machine
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import State
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import FAULTS, MEMBER_FAULTS, Action, Do
from zkconsumer.sim.world import MemberTransition, Watcher, World


class Pair(NamedTuple):
    """A phase's value, and the name of an event, an outcome or a fault."""

    phase: str
    what: str

    def __str__(self) -> str:
        return f"{self.phase} x {self.what}"


class Coverage(Watcher):
    """Counts the pairs that a run reaches; a pair that `EXCLUDED` names ends the run."""

    def __init__(self) -> None:
        self.pairs: Counter[Pair] = Counter()
        self._left: dict[int, Phase] = {}  # member -> its phase before this action's first step

    def transition(self, world: World, step: MemberTransition) -> None:
        who, before, event, _ = step
        self._left.setdefault(who, before.phase)
        what = _named(before, event)
        if what:
            self._count(before.phase, what)

    def acted(self, world: World, action: Action) -> None:
        """Count a fault for the phases of the members that it concerns."""
        if action.do in FAULTS:
            is_of_one = action.do in MEMBER_FAULTS
            hit = (action.who,) if is_of_one else _live(world, but=action)
            phases = {self._left.get(who, world.members[who].state.phase) for who in hit}
            for phase in phases:
                self._count(phase, action.do.value)
        self._left.clear()

    def _count(self, phase: Phase, what: str) -> None:
        pair = Pair(phase.value, what)
        self.pairs[pair] += 1
        if self.pairs[pair] == 1 and (reason := excluded(pair)):
            raise InvariantViolation("COVERAGE", f"{pair} occurs, although {reason}")


def _live(world: World, *, but: Action) -> list[int]:
    """Return the live members, except members that start again in this action."""
    started = but.who if but.do is Do.REVIVE else -1
    return [
        who
        for who, link in enumerate(world.links)
        if link.joined and not link.dead and who != started
    ]


def _named(before: State, event: events.Event) -> str:
    """Return the name of the row that handles an event; empty for a stale result."""
    if not isinstance(event, events.Finished):
        return type(event).__name__
    name = type(event.outcome).__name__
    if event.op == before.lease.op:
        return f"lease: {name}"
    if event.op == before.commits.op:
        return f"commit: {name}"
    return name if event.op == before.op else ""


# ---- pairs that can occur ------------------------------------------------------------------------

LIVE = tuple(phase for phase in Phase if phase is not Phase.CLOSED)


def _rows() -> Iterator[Pair]:
    """Yield every row of the machine's tables; for a row of all phases, a pair for each phase."""
    for table in (machine.HANDLERS, machine.OUTCOME_HANDLERS):
        for phase, kind in table:
            for one in LIVE if phase is None else (phase,):
                yield Pair(one.value, kind.__name__)


def _faults() -> Iterator[Pair]:
    for phase in LIVE:
        for do in sorted(FAULTS, key=lambda one: one.value):
            yield Pair(phase.value, do.value)


_OFFLINE = frozenset({Phase.OFFLINE.value})


def _all_but(*phases: Phase) -> frozenset[str]:
    return frozenset(one.value for one in LIVE if one not in phases)


EXCLUDED: dict[tuple[frozenset[str], frozenset[str]], str] = {
    (
        _OFFLINE,
        frozenset(
            {
                *("Triggered", "OwnerNodeChanged", "OwnersChanged", "TopicDeleted", "Diagnosed"),
                *("OffsetNodeChanged", "Denied"),
            }
        ),
    ): "before its first connection a member has sent no request and set no watch",
    (
        _OFFLINE,
        frozenset({"ReleaseReady", "PositionsCollected", "CommitTimedOut", "PositionReset"}),
    ): "before its first connection a member has no partition and no user",
    (
        _OFFLINE,
        frozenset({Do.EXPIRE.value}),
    ): "while a session exists in this phase, the event Connected of this session is in the inbox; "
    "the simulator expires only sessions whose expiry the member can handle at once",
    (
        _all_but(Phase.REGISTERING, Phase.READING, Phase.SETTLED),
        frozenset({"Denied"}),
    ): "only a registration, a reading and a nudge can be refused as a whole; the refusal of a "
    "commit counts as `commit: Denied`, and other outcomes name the refused partitions",
    (
        _all_but(Phase.REGISTERING, Phase.READING),
        frozenset({"MemberNodeGone"}),
    ): "a commit that misses the id znode counts as `commit: MemberNodeGone`; after a reading, the "
    "watch on the id znode fires before the reply of a release, a claim or a nudge, and the member "
    "registers again",
}
"""(phases, names) that cannot occur together -> the reason."""


def excluded(pair: Pair) -> str:
    """Return why a pair cannot occur; empty if it can."""
    for (phases, names), reason in EXCLUDED.items():
        if pair.phase in phases and pair.what in names:
            return reason
    return ""


def possible() -> list[Pair]:
    """Return all pairs that can occur, in a fixed order."""
    return [pair for pair in dict.fromkeys((*_rows(), *_faults())) if not excluded(pair)]
