"""The search for a run that breaks a promise, in slices, so that the page stays responsive.

Random schedules of the simulator continue from the moment at which the group has settled, as a run
of the lab does. Some parts of the members may be weakened. The first run that the question asks for
is shortened: moves are left out as long as the run still breaks the same promise. The remaining
moves open as a run of the lab.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from zkconsumer.errors import ConfigError
from zkconsumer.lab.questions import ANY, Question, parse_question, settles_within_s
from zkconsumer.lab.runs import Run, open_world
from zkconsumer.lab.worlds import EXCLUDED_FAULTS, ZOOKEEPER, LabMove, WorldSpec
from zkconsumer.lab.zookeeper import ZooKeeperStage
from zkconsumer.protocol.model import RebalanceMode
from zkconsumer.sim import promises
from zkconsumer.sim.aims import PhaseAim
from zkconsumer.sim.kernel.search import Decisions, one_of, shortening
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import Action, Do
from zkconsumer.sim.random_search import AIMS, choose, draw_faults
from zkconsumer.sim.stage import ORDINARY, ZooKeeperDirector
from zkconsumer.sim.weakened import JVM_RULES, SWITCHES, planted, weakness
from zkconsumer.sim.world import World, possible, repairs

MAX_SCHEDULES: Final = 2_000
"""Upper bound of the schedules of one search; it takes about a minute in a browser."""

MAX_SEARCHED_MEMBERS, MAX_SEARCHED_PARTITIONS, MAX_SEARCHED_SESSION_S = 8, 12, 12.0
"""Upper bounds of the worlds of a search. Larger worlds need far more schedules, and their runs are
too long to be read."""

SHRINK_S: Final = 10.0
"""Seconds after which the shortest run found so far is shown."""

AIMED: Final = 3
"""One in AIMED schedules is aimed: most of its faults happen in one phase of the members."""

_OF_A_CLIENT = (Do.CRASH_CLIENT, Do.LOCK_OUT)
"""Faults that the model of a JVM member lacks."""


@dataclass
class Search:
    """A search in progress.

    Attributes:
        seed: the seed of the first schedule; the next schedules have the next numbers.
        schedules, states: the numbers of schedules and of moves so far; each move leads to a state.
        others: promise -> number of schedules that broke it first, although it was not asked for.
        seconds: the seconds of computing so far.
        found: the moves of a run that breaks the promise; None: no such run is known yet.
        violation: the promise that the run breaks.
        before, chosen: numbers of chosen moves before and after the run was shortened; the other
            moves follow from the rule of the lab.
        is_over: whether the search has ended.
    """

    spec: WorldSpec
    question: Question
    seed: int = 0
    schedules: int = 0
    states: int = 0
    others: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    found: list[Action] | None = None
    violation: InvariantViolation | None = None
    before: int = 0
    chosen: int = 0
    is_over: bool = False

    def __post_init__(self) -> None:
        with planted(self.spec.weak):
            stage = open_world(0, self.spec).stage
            if self.spec.members and not stage.rests():
                # The group never settles, so the run shows how its members join.
                self.spec = replace(self.spec, members=0, spare=self.spec.slots)
                stage = open_world(0, self.spec).stage
        assert isinstance(stage, ZooKeeperStage)
        self._base = stage
        self._work = self._slices()

    def advance(self, limit_s: float) -> None:
        """Continue the search for about `limit_s` seconds of the wall clock."""
        started, computed = time.monotonic(), time.process_time()
        with planted(self.spec.weak):
            while not self.is_over and time.monotonic() - started < limit_s:
                self.is_over = next(self._work, None) is None
        self.seconds += time.process_time() - computed

    def open(self, number: int) -> Run:
        """Return the run that was found. The caller has planted the world's weakened parts."""
        run = open_world(number, self.spec)
        for action in self.found or ():
            run.stage.perform(LabMove.of(action))
        return run

    def sentence(self) -> str:
        """Return how far the search is, as a sentence."""
        visited = f"{self.schedules} schedules and {self.states} states"
        if self.violation is None:
            others = ", ".join(f"{one} in {count}" for one, count in sorted(self.others.items()))
            also = f" Other promises were broken: {others} schedules." if others else ""
            ending = f" {self.question.text} was never broken." if self.is_over else ""
            return f"The search has visited {visited}.{ending}{also}"
        rest = len(self.found or ()) - self.chosen
        follow = f", and {rest} that follow from the lab's rule" if rest else ""
        if not self.is_over:
            return f"Found after {visited}. The run has {self.chosen} chosen moves{follow} so far."
        return (
            f"Broken: {self.violation}. Found after {visited}; {self.before} chosen moves were "
            f"shortened to {self.chosen}{follow}."
        )

    # ---- schedules -------------------------------------------------------------------------------

    def _slices(self) -> Generator[bool]:
        """Run schedules and shorten the found run; yield after each one."""
        while self.schedules < MAX_SCHEDULES:
            probe = self._schedule(self.seed + self.schedules)
            self.schedules += 1
            violation = probe.violation
            if violation is not None and self.question.is_answered_by(violation):
                self._keep(probe)
                self.before = len(probe.chosen)
                yield True
                yield from self._shortened(probe.chosen)
                return
            if violation is not None:
                self.others[violation.invariant] = self.others.get(violation.invariant, 0) + 1
            yield True

    def _keep(self, probe: _Probe) -> None:
        self.found, self.violation = probe.done, probe.violation
        self.chosen = len(probe.chosen)

    def _schedule(self, seed: int) -> _Probe:
        """Return the schedule of this seed, after its end."""
        decide = Decisions(random.Random(seed))
        probe = _Probe(self._base)
        world = probe.stage.world
        world.faults_left = self._faults(decide)
        length, rarity = 40 + decide(160), 4 + decide(20)
        is_aimed = not self.spec.jvm and decide(AIMED) == 0
        aim = PhaseAim(world.plan, one_of(AIMS, decide)) if is_aimed else None

        def actions() -> Generator[Action]:
            while len(probe.done) < length and (available := world.enabled()):
                preferred = aim.preferred(world, available, decide) if aim else []
                if preferred:
                    yield one_of(preferred, decide)
                else:
                    yield choose(world, available, decide, rarity)

        probe.play(actions())
        self.states += len(probe.done)
        return probe

    def _faults(self, decide: Decisions) -> dict[Do, int]:
        """Draw how often each fault may happen: any faults, or those that concern what is weak."""
        left_out = {*EXCLUDED_FAULTS, *(_OF_A_CLIENT if self.spec.jvm else ())}
        revealing = [do for name in self.spec.weak for do in weakness(name).faults]
        if revealing and decide(2):
            return dict.fromkeys(revealing, 1 + decide(3))
        return {do: count for do, count in draw_faults(decide).items() if do not in left_out}

    # ---- shortening ------------------------------------------------------------------------------

    def _shortened(self, actions: list[Action]) -> Generator[bool]:
        """Leave out actions as long as the same promise is broken; yield after each attempt."""
        end = time.process_time() + SHRINK_S
        before = len(actions) + 1
        while len(actions) < before and time.process_time() < end:
            before = len(actions)
            shorter = shortening(actions)
            accepted: list[Action] | None = None
            with suppress(StopIteration):
                candidate = next(shorter)
                while time.process_time() < end:
                    accepted = self._replayed(candidate)
                    actions = accepted or actions
                    yield True
                    candidate = shorter.send(accepted)

    def _replayed(self, actions: Sequence[Action]) -> list[Action] | None:
        """Return these actions without the impossible ones and those after the violation; None if
        they break another promise or none."""
        assert self.violation is not None
        probe = _Probe(self._base)
        world = probe.stage.world
        world.faults_left = dict.fromkeys(
            (one.do for one in actions if one.do in world.plan.faults), len(actions)
        )
        probe.play(action for action in actions if _is_possible(world, action))
        self.states += len(probe.done)
        if probe.violation is None or probe.violation.invariant != self.violation.invariant:
            return None
        self._keep(probe)
        return probe.chosen


def _is_possible(world: World, action: Action) -> bool:
    if action in world.enabled():
        return True
    return action.do not in ORDINARY and action in [*possible(world), *repairs(world)]


class _Probe:
    """One schedule: a world that continues from a settled group.

    Attributes:
        done: the actions so far.
        settling: number of actions before the faults were ended.
        violation: the promise that the last action broke.
    """

    def __init__(self, base: ZooKeeperStage) -> None:
        assert base.witness is not None
        self.stage: ZooKeeperDirector = base.probe(base.witness.judge())
        self.done: list[Action] = []
        self.settling: int | None = None
        self.violation: InvariantViolation | None = None

    @property
    def chosen(self) -> list[Action]:
        """The actions of the schedule; those after them follow from the stage's rule."""
        return self.done[: self.settling]

    def play(self, actions: Iterable[Action]) -> None:
        """Perform actions, then end all faults and let the group settle; stop at a violation."""
        try:
            for action in actions:
                self._perform(action)
            self.settling = len(self.done)
            self._settle()
        except InvariantViolation as violation:
            self.violation = violation

    def _perform(self, action: Action) -> None:
        self.done.append(action)
        perform = self.stage.take_turn if action.do in ORDINARY else self.stage.act
        try:
            perform(action)
        except InvariantViolation:
            raise
        except Exception as error:  # a weakened member may raise anything, which is the finding
            why = promises.every_event_is_handled.reason(error) or ""
            raise promises.every_event_is_handled.broken(why) from error

    def _settle(self) -> None:
        """End all faults, and continue by the stage's rule until the group has settled.

        If it does not settle, the question's watcher sees it. A group of JVM members that has given
        up stays without owners, so it continues, too, until the time is over.
        """
        stage, world = self.stage, self.stage.world
        while due := repairs(world):
            self._perform(due[0])
        end = world.now + settles_within_s(world) + 1.0
        while world.now < end and (action := stage.next()):
            self._perform(action)
            if stage.rests() and len(world.owners()) == len(world.log_end):
                return


def search(spec: WorldSpec, *, seed: int = 0) -> Search:
    """Return a search for a run that answers the question `spec.asks`. Raises ConfigError.

    A weakened part may need eager or JVM members. Without a question, the search asks for
    what the first weakened part usually breaks, and otherwise for any promise.
    """
    switches = [one for one in SWITCHES if one.name in spec.weak]
    asks = spec.asks or next((one.breaks for one in switches if one.breaks), ANY)
    if any(one.mode is RebalanceMode.EAGER for one in switches):
        spec = replace(spec, mode=RebalanceMode.EAGER.value)
    if JVM_RULES in switches:
        spec = replace(spec, jvm=tuple(range(spec.slots)))
    if spec.protocol != ZOOKEEPER:
        raise ConfigError(
            f"a search needs a group with ZooKeeper, not {spec.protocol}",
            where="protocol",
            remedy=f"choose {ZOOKEEPER}",
        )
    for name, value, most in (
        ("members", spec.slots, MAX_SEARCHED_MEMBERS),
        ("partitions", spec.partitions + 2 * len(spec.topics), MAX_SEARCHED_PARTITIONS),
        ("session_s", spec.session_s, MAX_SEARCHED_SESSION_S),
    ):
        if value > most:
            raise ConfigError(
                f"a search has at most {most:g} for {name}, not {value:g}",
                where="world",
                remedy="choose a smaller world; most faults need two members and two partitions",
            )
    question = parse_question(asks)
    return Search(replace(spec, asks=question.text), question, seed)
