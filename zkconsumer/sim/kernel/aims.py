"""Aimed runs: most faults happen while a member is in one phase.

A member passes through most phases in a few moves, so faults at random moments rarely hit them. An
aimed run therefore prefers the faults that hit a member in the phase of its aim, and the moves that
bring members there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from zkconsumer.sim.kernel.search import Decide, one_of
from zkconsumer.sim.kernel.world import World

FAULT_RARITY, CHURN_RARITY = 2, 40
"""In the phase of the aim, one move in FAULT_RARITY is a fault.

In the other phases, one move in CHURN_RARITY is a start, a leave or another move that lets members
change their phase.
"""


class HasKind(Protocol):
    """A move of which several may be of one kind, for example a fault against several members."""

    @property
    def do(self) -> object: ...


W = TypeVar("W", bound=World[Any])  # Any: the class of the world's moves
M = TypeVar("M", bound=HasKind)


class Aim(ABC, Generic[W, M]):
    """What an aimed run prefers."""

    def preferred(self, world: W, moves: list[M], decide: Decide) -> list[M]:
        """Return moves of one kind that the run prefers now; often none.

        `moves`: the ordinary moves that are possible now.
        """
        hit, near = self.hit(world), self.near(world)
        if steps := self.steps(moves, world, hit):
            return steps
        is_urgent = near and self.is_urgent
        if not is_urgent and decide(FAULT_RARITY if hit or near else CHURN_RARITY):
            return []
        if hit:
            found = self.faults(world, moves, hit)
        else:
            found = self.preparations(world, moves, near) if near else self.churn(world)
        kinds = list(dict.fromkeys(one.do for one in found))
        if not kinds:
            return []
        kind = one_of(kinds, decide)
        return [one for one in found if one.do == kind]

    @abstractmethod
    def hit(self, world: W) -> list[int]:
        """Return the members that faults should hit now: those in the phase of the aim."""

    @abstractmethod
    def faults(self, world: W, moves: list[M], hit: list[int]) -> list[M]:
        """Return the faults that may happen while these members are in the phase of the aim."""

    @abstractmethod
    def churn(self, world: W) -> list[M]:
        """Return the moves that let members change their phase."""

    is_urgent = False
    """Whether the preparations are preferred to everything else."""

    def near(self, world: W) -> list[int]:
        """Return the members that should be prepared for the phase of the aim."""
        return []

    def preparations(self, world: W, moves: list[M], near: list[int]) -> list[M]:
        """Return the moves that prepare these members for the phase of the aim."""
        return []

    def steps(self, moves: list[M], world: W, hit: list[int]) -> list[M]:
        """Return the ordinary moves to which nothing is preferred now."""
        return []
