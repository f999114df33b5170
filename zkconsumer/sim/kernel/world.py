"""A simulated world as a transition system, and those that watch it.

A world changes only by moves. `enabled` lists the ordinary moves that are possible now, in a fixed
order, and `act` performs a move. Faults are moves too, but no `enabled` lists them. The world of
ZooKeeper calls its moves actions (`sim.plan.Action`). A world tells its watcher what happens in
each move. The watcher's class belongs to the world, because the worlds have different parts; its
methods return nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from zkconsumer.protocol.model import TopicPartition

NEVER = float("inf")

Move = TypeVar("Move")


class World(Protocol[Move]):
    """A simulated world; times are in virtual seconds."""

    @property
    def now(self) -> float: ...

    @property
    def log_end(self) -> dict[TopicPartition, int]:
        """Partition -> the offset after its last message."""

    def enabled(self) -> list[Move]:
        """Return the ordinary moves that are possible now; empty only if the world is at rest."""

    def act(self, move: Move, /) -> None:
        """Perform a move."""

    def next_moment(self) -> float:
        """Return the next time at which something is due; infinity if nothing is."""

    def settled(self) -> bool:
        """Return whether every live member is settled and nothing is in progress."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message that a user got.

    `epoch` is the fencing token; it is 0 in a group with a coordinator, which has no tokens.
    """

    now: float
    who: int
    tp: TopicPartition
    offset: int
    epoch: int = 0


class InvariantViolation(AssertionError):
    """A promise was broken.

    Attributes:
        invariant: the number of the promise.
        promise: the name of the predicate that noticed it; "" if the run itself has failed.
    """

    def __init__(self, invariant: str, text: str, *, promise: str = "") -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant, self.promise = invariant, promise
