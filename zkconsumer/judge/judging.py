"""Judge a program: run the hidden schedules of a challenge, and explain the first that fails.

A seed or a list of decisions determines a schedule, as in `sim.random_search`. A failing schedule
is shrunk, and told as a story.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from zkconsumer.judge import exhaustive
from zkconsumer.judge.challenges import Challenge, Drawn, draw
from zkconsumer.judge.program import Program
from zkconsumer.judge.world import JudgedWorld, JudgeMonitor, Score, Scorer
from zkconsumer.protocol.model import JsonObject
from zkconsumer.sim.kernel.aims import Aim
from zkconsumer.sim.kernel.search import Decide, Decisions, Result, judged, one_of, shrunk
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import MEMBER_FAULTS, Action, Do
from zkconsumer.sim.random_search import CONVERGENCE_S, choose, heal, settle
from zkconsumer.sim.recorder import ROOT, Recorder
from zkconsumer.sim.scenarios import names_of
from zkconsumer.sim.world import Watchers, possible
from zkconsumer.trace.story import story

EXHAUSTIVE_S = 3.0
"""Seconds of the wall clock for which the first actions are tried in every order, after the random
schedules."""

SHRINK_S = 6.0
"""Seconds of the wall clock for which a failing schedule is shrunk."""

CHECKED_AGAIN = 5
"""One in CHECKED_AGAIN schedules is repeated from the `reset`, to compare the answers."""

MakeProgram = Callable[[str], Program]
"""Returns the program of the member with this name."""


@dataclass(frozen=True)
class Failure:
    """A schedule that breaks a promise.

    Attributes:
        seed: the schedule's number; None if the exhaustive search has found it.
        violation: the promise that was broken.
        decisions: the shrunk schedule.
        actions: the number of its actions.
        story: what happens in it, as lines.
        entries: the same as the entries of a trace.
    """

    seed: int | None
    violation: InvariantViolation
    decisions: tuple[int, ...]
    actions: int
    story: tuple[str, ...]
    entries: tuple[JsonObject, ...]


@dataclass(frozen=True)
class Verdict:
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
    score: Score
    failure: Failure | None = None
    states: int = 0

    @property
    def passed(self) -> bool:
        return self.failure is None


def _nowhere(entry: JsonObject) -> None:
    """Record nothing."""


class ReplyInTransit(Aim[JudgedWorld, Action]):
    """Aims at members with a reply on the way: ZooKeeper has executed their request."""

    def hit(self, world: JudgedWorld) -> list[int]:
        return [who for who in range(len(world.programs)) if world.members[who].inbox]

    def faults(self, world: JudgedWorld, moves: list[Action], hit: list[int]) -> list[Action]:
        return [one for one in possible(world) if one.do in MEMBER_FAULTS and one.who in hit]

    def churn(self, world: JudgedWorld) -> list[Action]:
        joins = [one for one in world.enabled() if one.do is Do.JOIN]
        return joins + [one for one in possible(world) if one.do in (Do.LEAVE, Do.REVIVE)]


def _next(world: JudgedWorld, available: list[Action], decide: Decide, drawn: Drawn) -> Action:
    """Return the next action of a schedule."""
    if drawn.is_aimed and (found := ReplyInTransit().preferred(world, available, decide)):
        return one_of(found, decide)
    return choose(world, available, decide, drawn.rarity)


class Court:
    """Runs the schedules of one challenge with one program."""

    def __init__(self, challenge: Challenge, programs: Sequence[Program]) -> None:
        self._challenge, self._programs = challenge, programs

    # ---- one schedule ----------------------------------------------------------------------------

    def run(self, decide: Decisions, emit: Emit | None = None) -> tuple[Result, Score]:
        """Run the schedule of these decisions, and record it with `emit`."""
        drawn = draw(self._challenge, decide)
        for one in self._programs:
            one.forget()
        challenge, count = self._challenge, drawn.programs
        jvm = frozenset(range(count, count + challenge.jvm))
        monitor = JudgeMonitor(count, jvm, over=challenge.over, also=challenge.own())
        scorer = Scorer(count)
        recorder = Recorder(emit or _nowhere)
        world = JudgedWorld(
            drawn.plan,
            Watchers(recorder, monitor, scorer) if emit else Watchers(monitor, scorer),
            programs=self._programs[:count],
            jvm=jvm,
        )
        challenge.prepare(world)
        recorder.begin(world)
        if emit is not None:
            world.announce = lambda text: recorder.note(world, text)
        actions = 0

        def play() -> None:
            nonlocal actions
            while actions < drawn.length and (available := world.enabled()):
                world.act(_next(world, available, decide, drawn))
                actions += 1
            if world.announce is not None:
                world.announce(f"all faults end; the group has {CONVERGENCE_S:g} s to settle")
            self._end_faults(world, jvm, decide)
            actions += settle(world, monitor, decide)

        return judged(play, monitor, decide, lambda: actions), scorer.score()

    def _end_faults(self, world: JudgedWorld, jvm: frozenset[int], decide: Decide) -> None:
        heal(world, decide)
        for who in jvm:
            world.links[who].joined = True
            if not world.links[who].dead:
                world.act(Action(Do.KILL, who))

    def differs(self) -> InvariantViolation | None:
        """Repeat the last schedule's conversations; return how an answer differs, if one does."""
        try:
            for one in self._programs:
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
    ) -> Verdict:
        """Run schedules from this seed on, until one fails or the time is over.

        Then try the first actions in every order for `exhaustive_s` seconds.
        """
        started = time.monotonic()
        score = Score()
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

    def _searched(self, verdict: Verdict, limit_s: float) -> Verdict:
        """Search exhaustively after the random schedules, and return the whole verdict."""
        challenge, programs = self._challenge, self._programs
        found = exhaustive.explore(challenge, programs, max_s=limit_s)
        failure = None
        if found.violation is not None:
            entries = exhaustive.entries_of(challenge, programs, found.path)
            failure = self._failure(None, found.violation, (), len(found.path), entries)
        seconds = verdict.seconds + found.seconds
        return replace(verdict, seconds=seconds, failure=failure, states=found.states)

    def _verdict(self, started: float, done: int, score: Score, failure: Failure | None) -> Verdict:
        return Verdict(self._challenge, done, time.monotonic() - started, score, failure)

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

    def told(self, seed: int, decisions: Sequence[int], violation: InvariantViolation) -> Failure:
        """Return the failure of a schedule with its story."""
        entries: list[JsonObject] = []
        result, _ = self.run(Decisions(decisions), entries.append)
        broken = result.violation or violation
        return self._failure(seed, broken, decisions, result.actions, entries)

    def _failure(
        self,
        seed: int | None,
        violation: InvariantViolation,
        decisions: Sequence[int],
        actions: int,
        entries: list[JsonObject],
    ) -> Failure:
        names = names_of(self._challenge.most + self._challenge.jvm + self._challenge.ours)
        lines = tuple(story(entries, names, root=ROOT))
        return Failure(seed, violation, tuple(decisions), actions, lines, tuple(entries))


@contextmanager
def court(challenge: Challenge, make: MakeProgram) -> Iterator[Court]:
    """Return a court whose programs end with the block."""
    with ExitStack() as stack:
        programs = [stack.enter_context(make(name)) for name in names_of(challenge.most)]
        yield Court(challenge, programs)
