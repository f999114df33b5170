"""A simulated world as a transition system, and those that watch it.

A world changes only by moves. `enabled` lists the ordinary moves that are possible now, in a fixed
order, and `act` performs a move. Faults are moves too, but no `enabled` lists them. The world of
ZooKeeper calls its moves actions (`sim.plan.Action`). A world tells its watcher what happens in
each move. The watcher's class belongs to the world, because the worlds have different parts; its
methods return nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import TopicPartition

NEVER = float("inf")

Move = TypeVar("Move")
State = TypeVar("State")
Event = TypeVar("Event")
Command = TypeVar("Command")
Watcher = TypeVar("Watcher")
P = ParamSpec("P")


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


class Transition(NamedTuple, Generic[State, Event, Command]):
    """A step of a member's state machine, for a watcher; the member has the state after it."""

    who: int
    before: State
    event: Event
    commands: Sequence[Command]


class Relay(Generic[Watcher]):
    """Passes each call of a watcher's class to several watchers, in their order.

    A subclass inherits from `Relay` first, then from the class of its watchers.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def __init_subclass__(cls) -> None:
        """Replace the methods of the watchers' class, so that none can be forgotten."""
        if Relay in cls.__bases__:
            for name in vars(cls.__bases__[1]):
                if not name.startswith("_"):
                    setattr(cls, name, _relayed(name))

    def tell(self, call: Callable[P, None], *given: P.args, **named: P.kwargs) -> None:
        """Pass one call to one watcher."""
        call(*given, **named)


def _relayed(name: str) -> Callable[..., None]:
    def call(relay: Relay[object], *given: object, **named: object) -> None:
        for one in relay._watchers:
            relay.tell(getattr(one, name), *given, **named)

    return call


class InvariantViolation(AssertionError):
    """A promise was broken.

    Attributes:
        invariant: the number of the promise.
        promise: the name of the predicate that noticed it; "" if the run itself has failed.
    """

    def __init__(self, invariant: str, text: str, *, promise: str = "") -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant, self.promise = invariant, promise
