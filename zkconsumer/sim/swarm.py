"""Swarm runs: each seed draws its own world, faults and order; any run replays from decisions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from zkconsumer.core.model import RebalanceMode
from zkconsumer.core.state import Settings
from zkconsumer.sim import faults
from zkconsumer.sim.monitor import InvariantViolation, Monitor
from zkconsumer.sim.plan import FAULTS, Action, Do, Plan
from zkconsumer.sim.world import World

MAX_ACTIONS = 20_000
"""A healed world that is not at rest after so many actions will never be."""

CONVERGENCE_S = 120.0
"""Virtual seconds from the healing to rest: session timeouts, back-offs and graces included."""

Decide = Callable[[int], int]
"""Gives an index below its argument: the one stream of decisions."""


@dataclass(frozen=True)
class Result:
    """How a run ended: the decisions it took, and what it counted."""

    decisions: tuple[int, ...]
    actions: int
    deliveries: int
    duplicates: int
    rebalances: int
    violation: InvariantViolation | None = None


class Decisions:
    """Records every decision, drawn from a seed or replayed from a list (0 when it runs out)."""

    def __init__(self, source: random.Random | Sequence[int]) -> None:
        self.taken: list[int] = []
        self._random = source if isinstance(source, random.Random) else None
        self._given = iter(()) if isinstance(source, random.Random) else iter(source)

    def __call__(self, below: int) -> int:
        if self._random is not None:
            choice = int(self._random.random() * below)
        else:
            choice = min(next(self._given, 0), below - 1)
        self.taken.append(choice)
        return choice


def draw_plan(decide: Decide) -> tuple[Plan, int, int]:
    """A world, how many actions until it is healed, and how rare faults are."""
    kinds = sorted(FAULTS | {Do.LEAVE, Do.COMMIT}, key=lambda do: do.value)
    possible = {do: decide(3) for do in kinds if decide(3) == 0}
    eager = decide(4) == 0

    def settings(one: Settings) -> Settings:
        return replace(one, mode=RebalanceMode.EAGER) if eager else one

    plan = Plan(
        members=2 + decide(3), partitions=1 + decide(6), messages=1 + decide(4), faults=possible,
        settings=settings,
    )
    return plan, 50 + decide(300), 5 + decide(40)


def run(decide: Decisions, *, make: Callable[[Plan, Monitor], World] = World) -> Result:
    """One run: a phase with faults in which safety is checked, then healing and convergence."""
    plan, length, rarity = draw_plan(decide)
    monitor = Monitor()
    world = make(plan, monitor)
    actions = 0
    violation = None
    try:
        while actions < length and world.enabled():
            world.act(choose(world, decide, rarity))
            actions += 1
        heal(world, decide)
        actions += settle(world, monitor, decide)
    except InvariantViolation as found:
        violation = found
    return Result(
        tuple(decide.taken), actions, monitor.deliveries, monitor.duplicates, monitor.rebalances,
        violation,
    )


def choose(world: World, decide: Decide, rarity: int) -> Action:
    """The next action: rarely a fault, and time passes rarely while something can be done."""
    if rarity and decide(rarity) == 0:
        wrong = faults.possible(world)
        if wrong:
            return wrong[decide(len(wrong))]
    actions = world.enabled()
    if len(actions) > 1 and actions[-1].do is Do.TIME and decide(8):
        actions.pop()
    return actions[decide(len(actions))]


def heal(world: World, decide: Decide) -> None:
    """No more faults; a random part of the members, never all, is gone for ever."""
    world.faults_left = {}
    for who, link in enumerate(world.links):
        if link.frozen and not link.dead:
            world.act(Action(Do.THAW, who))
    alive = [who for who, link in enumerate(world.links) if not link.dead]
    for who in alive[1:]:
        if world.links[who].joined and decide(4) == 0:
            world.act(Action(Do.KILL, who))


def settle(world: World, monitor: Monitor, decide: Decide) -> int:
    """Run to rest; then demand that it stays at rest (I12)."""
    deadline = world.now + CONVERGENCE_S
    actions = 0
    while monitor.converged(world) and world.enabled():
        if actions >= MAX_ACTIONS or world.now > deadline:
            raise InvariantViolation("I12", monitor.converged(world))
        world.act(_busy(world, decide))
        actions += 1
    before = monitor.rebalances
    deadline = world.now + CONVERGENCE_S / 4
    while world.now < deadline and actions < MAX_ACTIONS:
        actions += 1
        available = world.enabled()
        if not available:
            break
        world.act(_busy(world, decide))
    if monitor.rebalances > before:
        raise InvariantViolation("I12", f"{monitor.rebalances - before} rebalances at rest")
    return actions


def _busy(world: World, decide: Decide) -> Action:
    """What can be done before time passes."""
    actions = world.enabled()
    if len(actions) > 1 and actions[-1].do is Do.TIME:
        actions.pop()
    return actions[decide(len(actions))]


def shrink(decisions: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """A shorter list of decisions that still fails: drop pieces, then lower what is left."""
    current = list(decisions)
    size = len(current) // 2
    while size:
        start = 0
        while start < len(current):
            shorter = current[:start] + current[start + size :]
            if fails(shorter):
                current = shorter
            else:
                start += size
        size //= 2
    for index, value in enumerate(current):
        if value and fails([*current[:index], 0, *current[index + 1 :]]):
            current[index] = 0
    return tuple(current)
