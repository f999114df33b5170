"""Judge a program: run the hidden schedules of a challenge, and explain the first that fails.

A seed or a list of decisions determines a schedule, as in `sim.random_search`. A failing schedule
is shrunk, and shown as a story. `Court` does this for each kind of program; its subclasses run one
schedule.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, Self, TypeAlias, TypeVar

from zkconsumer.errors import ConfigError, quoted
from zkconsumer.frozen import dataclass
from zkconsumer.judge.program import Program
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.compare.meter import Meter
from zkconsumer.sim.kernel.search import Decisions, Result, SearchResult, shrunk
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.trace.story import ANNOUNCED, story

EXHAUSTIVE_S = 3.0
"""Seconds of the wall clock for which the first actions are tried in every order, after the random
schedules."""

SHRINK_S = 5.0
"""Seconds of the wall clock for which a failing schedule is shrunk."""

LONGEST_TAIL = 40
"""Lines of a story after its last announcement. A group that never settles repeats itself."""

CHECKED_AGAIN = 5
"""One in CHECKED_AGAIN schedules is repeated from the `reset`, to compare the answers."""

DECISIONS, ACTIONS = "decisions", "actions"
"""The two forms of a written schedule: the decisions of a random schedule, and the numbers of the
actions that the exhaustive search has chosen."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """What a program must do.

    Attributes:
        name: its name on the command line.
        title: its lesson in a few words.
        statement: what the program must do.
        lesson: why, and which bug the challenge finds.
    """

    name: str
    title: str
    statement: str
    lesson: str

    @property
    def most(self) -> int:
        """The most processes of the program in one schedule."""
        return 1


@dataclass
class Score:
    """What schedules have cost."""

    def __add__(self, other: Self) -> Self:
        sums = (getattr(self, one.name) + getattr(other, one.name) for one in fields(self))
        return type(self)(*sums)


@dataclass
class GroupScore(Score):
    """What a schedule of a group has cost.

    Attributes:
        unowned_s: partition-seconds without a member, between two members.
        moved: how often another member got a partition.
        requests: requests of the programs.
        redelivered: messages that were delivered again.
    """

    unowned_s: float = 0.0
    moved: int = 0
    requests: int = 0
    redelivered: int = 0

    @classmethod
    def of(cls, meter: Meter, requests: int) -> Self:
        """Return the score of a schedule that a meter has observed."""
        return cls(round(meter.unowned_s, 3), meter.moved, requests, meter.redelivered)


S = TypeVar("S", bound=Score)
C = TypeVar("C", bound=Challenge)


@dataclass(frozen=True)
class Failure:
    """A schedule that breaks a promise.

    Attributes:
        seed: the schedule's number; None if the exhaustive search has found it.
        violation: the promise that was broken.
        schedule: the shrunk schedule in writing; `Court.replay` reads it.
        actions: the number of its actions.
        story: what happens in it, as lines.
        entries: the same as the entries of a trace.
    """

    seed: int | None
    violation: InvariantViolation
    schedule: str
    actions: int
    story: tuple[str, ...]
    entries: tuple[JsonObject, ...]


@dataclass(frozen=True)
class Verdict(Generic[S]):
    """The result of a challenge.

    Attributes:
        schedules: how many schedules were run.
        states: how many states the exhaustive search has visited afterwards.
        seconds: how long this took.
        score: the sum over all schedules.
        failure: the first schedule that breaks a promise; None if the program has passed.
    """

    challenge: Challenge
    schedules: int
    seconds: float
    score: S
    failure: Failure | None = None
    states: int = 0

    @property
    def passed(self) -> bool:
        return self.failure is None


AnyVerdict: TypeAlias = Verdict[Any]
"""A verdict of any kind of program; the kind has its own class of scores."""


def silent(entry: JsonObject) -> None:
    """Record nothing."""


class Court(ABC, Generic[C, S]):
    """Runs the schedules of one challenge with one program.

    Attributes:
        score: makes the score of no schedule.
    """

    score: Callable[[], S]

    def __init__(self, challenge: C, programs: Sequence[Program]) -> None:
        self.challenge, self.programs = challenge, programs

    # ---- what a kind of program defines ----------------------------------------------------------

    @abstractmethod
    def run(self, decide: Decisions, emit: Emit | None = None) -> tuple[Result, S]:
        """Run the schedule of these decisions, and record it with `emit`."""

    def names(self) -> tuple[list[str], str]:
        """Return the names of the members, and the path that a story leaves out."""
        return [one.name for one in self.programs], ""

    def explore(self, limit_s: float) -> SearchResult[Any] | None:  # Any: the kind of the moves
        """Try the first actions in every order; None: this kind of program has no such search."""
        return None

    def numbered(self, path: Sequence[Any]) -> list[int]:  # Any: as above
        """Return the number of each action of a path that `explore` has found."""
        raise NotImplementedError

    def retrace(self, numbers: Sequence[int], emit: Emit) -> InvariantViolation | None:
        """Perform the actions with these numbers, and return the promise that they break."""
        raise ConfigError(
            "this challenge has no schedules of actions",
            where="--schedule",
            remedy=f"give one that begins with {DECISIONS}=",
        )

    # ---- one schedule ----------------------------------------------------------------------------

    def forget(self) -> None:
        """Let the next schedule begin with a `reset` of each program."""
        for one in self.programs:
            one.forget()

    def differs(self) -> InvariantViolation | None:
        """Repeat the last schedule's conversations; return how an answer differs, if one does."""
        try:
            for one in self.programs:
                one.repeat()
        except InvariantViolation as found:
            return found
        return None

    # ---- all schedules ---------------------------------------------------------------------------

    def judge(
        self,
        *,
        seed: int,
        schedules: int,
        limit_s: float,
        shrink_s: float = SHRINK_S,
        exhaustive_s: float = 0.0,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Verdict[S]:
        """Run schedules from this seed on, until one fails or the time is over.

        Then try the first actions in every order for `exhaustive_s` seconds.
        """
        started = time.monotonic()
        score = self.score()
        done = 0
        for number in range(seed, seed + schedules):
            result, cost = self.run(Decisions(random.Random(number)))
            done += 1
            violation = result.violation
            if violation is None and done % CHECKED_AGAIN == 1:
                violation = self.differs()
            if violation is not None:
                failure = self._explained(number, result, violation, shrink_s)
                return self._verdict(started, done, score, failure)
            score = score + cost
            progress(done)
            if time.monotonic() - started > limit_s:
                break
        verdict = self._verdict(started, done, score, None)
        return self._searched(verdict, exhaustive_s) if exhaustive_s else verdict

    def replay(self, written: str) -> Verdict[S]:
        """Run a schedule that a verdict has written. Raises ConfigError."""
        started = time.monotonic()
        form, _, text = written.partition("=")
        try:
            numbers = [int(one) for one in text.split(".")] if text else []
        except ValueError:
            numbers = [-1]
        if form not in (DECISIONS, ACTIONS) or min(numbers, default=0) < 0:
            raise ConfigError(
                f"{quoted(written)} is not a schedule",
                where="--schedule",
                remedy=f"copy it from a verdict; it looks like {ACTIONS}=0.2.1",
            )
        if form == DECISIONS:
            result, score = self.run(Decisions(numbers))
            found = result.violation or self.differs()
            failure = None if found is None else self.told(None, numbers, found)
            return self._verdict(started, 1, score, failure)
        failure = self._retraced(numbers, None)
        return self._verdict(started, 1, self.score(), failure)

    def _searched(self, verdict: Verdict[S], limit_s: float) -> Verdict[S]:
        """Search exhaustively after the random schedules, and return the whole verdict."""
        found = self.explore(limit_s)
        if found is None:
            return verdict
        failure = None
        if found.violation is not None:
            failure = self._retraced(self.numbered(found.path), found.violation)
        seconds = verdict.seconds + found.seconds
        return replace(verdict, seconds=seconds, failure=failure, states=found.states)

    def _retraced(self, numbers: Sequence[int], found: InvariantViolation | None) -> Failure | None:
        entries: list[JsonObject] = []
        violation = self.retrace(numbers, entries.append) or found
        if violation is None:
            return None
        return self._failure(None, violation, _written(ACTIONS, numbers), len(numbers), entries)

    def _verdict(self, started: float, done: int, score: S, failure: Failure | None) -> Verdict[S]:
        return Verdict(self.challenge, done, time.monotonic() - started, score, failure)

    def _explained(
        self, seed: int, result: Result, violation: InvariantViolation, shrink_s: float
    ) -> Failure:
        """Shrink a failing schedule, and tell it."""
        decisions = result.decisions
        if result.violation is not None:
            first = self.run(Decisions(decisions))[0].violation
            if first is not None and first.invariant == violation.invariant:
                decisions = shrunk(lambda one: self.run(one)[0], decisions, limit_s=shrink_s)
        return self.told(seed, decisions, violation)

    def told(
        self, seed: int | None, decisions: Sequence[int], violation: InvariantViolation
    ) -> Failure:
        """Return the failure of a schedule with its story."""
        entries: list[JsonObject] = []
        result, _ = self.run(Decisions(decisions), entries.append)
        broken = result.violation or violation
        return self._failure(seed, broken, _written(DECISIONS, decisions), result.actions, entries)

    def _failure(
        self,
        seed: int | None,
        violation: InvariantViolation,
        schedule: str,
        actions: int,
        entries: list[JsonObject],
    ) -> Failure:
        names, root = self.names()
        lines = tuple(shortened(list(story(entries, names, root=root))))
        return Failure(seed, violation, schedule, actions, lines, tuple(entries))


def _written(form: str, numbers: Sequence[int]) -> str:
    return f"{form}={'.'.join(map(str, numbers))}"


def shortened(lines: list[str]) -> list[str]:
    """Leave out the middle of what happens after a story's last announcement, if it is long."""
    begin = max((at + 1 for at, line in enumerate(lines) if ANNOUNCED in line), default=0)
    left_out = len(lines) - begin - LONGEST_TAIL
    if left_out <= 0:
        return lines
    middle = begin + LONGEST_TAIL // 2
    note = f"… {left_out} lines are left out; --trace writes all of them"
    return [*lines[:middle], note, *lines[middle + left_out :]]
