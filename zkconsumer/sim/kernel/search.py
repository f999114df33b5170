"""Searches for runs that break a promise: random runs, their replay and shrinking, and a
breadth-first search.

One stream of decisions determines a random run. The stream is generated from a seed, or read from a
recorded list; a shortened list gives a shorter run.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.sim.kernel.world import InvariantViolation

# ---- decisions -----------------------------------------------------------------------------------


Decide = Callable[[int], int]
"""Returns an index below its argument: the single source of decisions."""

T = TypeVar("T")


class Decisions:
    """Records every decision.

    The decisions come from a random generator, from a list (after its end, each decision is 0), or
    from a function.
    """

    def __init__(self, source: random.Random | Sequence[int] | Decide) -> None:
        self.taken: list[int] = []
        self._next = source if callable(source) else _chooser(source)

    def __call__(self, below: int) -> int:
        choice = self._next(below)
        self.taken.append(choice)
        return choice


def _chooser(source: random.Random | Sequence[int]) -> Decide:
    if isinstance(source, random.Random):
        draw = source.random
        return lambda below: int(draw() * below)
    given = iter(source)
    return lambda below: min(next(given, 0), below - 1)


def one_of(choices: Sequence[T], decide: Decide) -> T:
    """Return one of the choices; a decision of 0 stands for the first one."""
    return choices[decide(len(choices))]


# ---- random runs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a run ended: its decisions, its counts and its violation."""

    decisions: tuple[int, ...]
    actions: int
    deliveries: int
    duplicates: int
    rebalances: int
    violation: InvariantViolation | None = None


class Counts(Protocol):
    """What a monitor has counted in a run."""

    deliveries: int
    duplicates: int
    rebalances: int


def judged(
    play: Callable[[], None], monitor: Counts, decide: Decisions, actions: Callable[[], int]
) -> Result:
    """Play a run until its end or until it breaks a promise, and return how it ended."""
    violation = None
    try:
        play()
    except InvariantViolation as found:
        violation = found
    return Result(
        tuple(decide.taken),
        actions(),
        monitor.deliveries,
        monitor.duplicates,
        monitor.rebalances,
        violation,
    )


# ---- shrinking -----------------------------------------------------------------------------------


SHRINK_S = 60.0
"""Seconds of the wall clock after which shrinking stops."""


def shrunk(
    run: Callable[[Decisions], Result], decisions: Sequence[int], *, limit_s: float = SHRINK_S
) -> tuple[int, ...]:
    """Return a shorter list of smaller decisions with which `run` breaks the same promise.

    Shrinking stops after `limit_s` seconds and returns the shortest list found by then.
    """
    end = time.monotonic() + limit_s
    wanted = run(Decisions(decisions)).violation
    assert wanted is not None, "this run breaks no promise"

    def fails(shorter: Sequence[int]) -> bool:
        if time.monotonic() > end:
            return False
        found = run(Decisions(shorter)).violation
        return found is not None and found.invariant == wanted.invariant

    return shrink(decisions, fails)


def shrink(decisions: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """Return a shorter list for which `fails` is true; drop decisions, then set some to 0."""
    dropping = shortening(decisions)
    candidate = next(dropping)
    while True:
        try:
            candidate = dropping.send(candidate if fails(candidate) else None)
        except StopIteration as end:
            current = list(end.value)
            break
    for index, value in enumerate(current):
        if value and fails([*current[:index], 0, *current[index + 1 :]]):
            current[index] = 0
    return tuple(current)


def shortening(items: Sequence[T]) -> Generator[list[T], list[T] | None, list[T]]:
    """Shorten a list: yield shorter lists, and receive the list to go on with if one is accepted.

    The caller may send the yielded list or a still shorter one; None: the yielded list is refused.
    Returns the last accepted list. A list of one chunk after the other is left out, and the chunks
    become smaller.
    """
    current = list(items)
    size = len(current) // 2
    while size:
        start = 0
        while start < len(current):
            accepted = yield current[:start] + current[start + size :]
            if accepted is None:
                start += size
            else:
                current = accepted
        size //= 2
    return current


# ---- breadth-first -------------------------------------------------------------------------------

Move = TypeVar("Move")


class SearchedWorld(Protocol[Move]):
    """A world as an exhaustive search needs it: small, and with few faults."""

    def choices(self) -> list[Move]:
        """Return all moves to try, faults included, in a fixed order."""

    def act(self, move: Move, /) -> None:
        """Perform a move. Raises InvariantViolation."""

    def copy(self, watcher: Any, /) -> Self:  # Any: the watcher's class belongs to the world
        """Return a second world that continues independently from here."""


class Copied(Protocol):
    """A monitor that can be copied."""

    def copy(self) -> Self: ...


W = TypeVar("W", bound=SearchedWorld[Any])  # Any: the class of the world's moves
M = TypeVar("M", bound=Copied)


class StateNode(ABC, Generic[W, M, Move]):
    """A world with its monitor, at one state of an exhaustive search."""

    __slots__ = ("_key", "monitor", "world")

    def __init__(self, world: W, monitor: M, key: Callable[[W, M], int]) -> None:
        self.world, self.monitor, self._key = world, monitor, key

    def copy(self) -> Self:
        """Return a node that continues independently from here."""
        monitor = self.monitor.copy()
        return type(self)(self.world.copy(monitor), monitor, self._key)

    def after(self, move: Move) -> Self:
        """Return a copy of this node after a move. Raises InvariantViolation."""
        twin = self.copy()
        twin.world.act(move)
        return twin

    def key(self) -> int:
        """Return the hash of the state; nodes that will behave in the same way have equal keys."""
        return self._key(self.world, self.monitor)

    @abstractmethod
    def rests(self, move: Move) -> bool:
        """Return whether this node, which the move has reached, is at rest: if nothing more
        happens, it must settle correctly."""

    @abstractmethod
    def settle(self) -> None:
        """End all faults, and let the group settle. Raises InvariantViolation if it does not."""

    def retrace(self, path: Sequence[Move]) -> None:
        """Perform the moves of a path that a search has found, and let the group settle. Raises
        InvariantViolation."""
        for move in path:
            self.world.act(move)
        self.settle()


@dataclass(frozen=True)
class SearchResult(Generic[Move]):
    """The result of an exhaustive search.

    Attributes:
        states: number of distinct states.
        transitions: number of moves tried.
        rests: number of states from which convergence was checked.
        depth: length of the longest path of moves to a state.
        complete: whether every state was visited.
        violation: the first broken promise; `path` has the moves that lead to it.
    """

    states: int
    transitions: int
    rests: int
    depth: int
    complete: bool
    seconds: float
    violation: InvariantViolation | None = None
    path: tuple[Move, ...] = ()


def explore(
    begin: Callable[[], StateNode[W, M, Move]],
    *,
    max_states: int = 10**9,
    max_s: float = float("inf"),
) -> SearchResult[Move]:
    """Search breadth-first from a state, visiting each state once; stop at the first violation.

    `begin` returns the first state; a violation before it has an empty path.
    """
    started = time.monotonic()
    end = started + max_s
    seen: set[int] = set()
    queue: deque[tuple[StateNode[W, M, Move], tuple[Move, ...]]] = deque()
    transitions = rests = depth = 0

    def found(
        violation: InvariantViolation | None, path: tuple[Move, ...], *, is_complete: bool = False
    ) -> SearchResult[Move]:
        seconds = time.monotonic() - started
        return SearchResult(
            len(seen), transitions, rests, depth, is_complete, seconds, violation, path
        )

    try:
        root = begin()
    except InvariantViolation as violation:
        return found(violation, ())
    seen.add(root.key())
    queue.append((root, ()))
    while queue and len(seen) < max_states:
        node, path = queue.popleft()
        for move in node.world.choices():
            if time.monotonic() > end:
                return found(None, ())
            transitions += 1
            taken = (*path, move)
            try:
                after = node.after(move)
                key = after.key()
                if key in seen:
                    continue
                if after.rests(move):
                    rests += 1
                    after.copy().settle()
            except InvariantViolation as violation:
                return found(violation, taken)
            seen.add(key)
            queue.append((after, taken))
            depth = max(depth, len(taken))
    return found(None, (), is_complete=not queue)
