"""The court of members of a group in ZooKeeper: it runs one schedule, and the exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence

from zkconsumer.judge import exhaustive, rules
from zkconsumer.judge.challenges import Drawn, MemberChallenge, draw
from zkconsumer.judge.judging import Court, GroupScore, silent
from zkconsumer.judge.program import Program
from zkconsumer.judge.world import JudgedWorld, JudgeMonitor, MemberScorer
from zkconsumer.sim import promises
from zkconsumer.sim.jvm_member import end_faults
from zkconsumer.sim.kernel.aims import Aim
from zkconsumer.sim.kernel.search import Decide, Decisions, Result, SearchResult, judged, one_of
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import MEMBER_FAULTS, Action, Do
from zkconsumer.sim.random_search import CONVERGENCE_S, choose, settle
from zkconsumer.sim.recorder import ROOT, Recorder
from zkconsumer.sim.scenarios import names_of
from zkconsumer.sim.world import Watchers, possible


class _AtPrograms(Aim[JudgedWorld, Action]):
    """Aims the faults of single members at some of the programs."""

    def faults(self, world: JudgedWorld, moves: list[Action], hit: list[int]) -> list[Action]:
        return [one for one in possible(world) if one.do in MEMBER_FAULTS and one.who in hit]

    def churn(self, world: JudgedWorld) -> list[Action]:
        joins = [one for one in world.enabled() if one.do is Do.JOIN]
        return joins + [one for one in possible(world) if one.do in (Do.LEAVE, Do.REVIVE)]


class ReplyInTransit(_AtPrograms):
    """Aims at members with a reply on the way: ZooKeeper has executed their request."""

    def hit(self, world: JudgedWorld) -> list[int]:
        return [who for who in range(len(world.programs)) if world.members[who].inbox]


class Uncommitted(_AtPrograms):
    """Aims at members that have delivered messages and have not committed them."""

    def hit(self, world: JudgedWorld) -> list[int]:
        committed = world.committed()
        behind = {
            session
            for tp, (_, session, _) in world.owners().items()
            if world.handed_out.get(tp, 0) > committed.get(tp, 0)
        }
        links = enumerate(world.links[: len(world.programs)])
        return [who for who, link in links if link.session in behind and not link.frozen]


def _next(world: JudgedWorld, available: list[Action], decide: Decide, drawn: Drawn) -> Action:
    """Return the next action of a schedule."""
    aim = Uncommitted() if drawn.oversleeps else ReplyInTransit() if drawn.is_aimed else None
    if aim is not None and (found := aim.preferred(world, available, decide)):
        return one_of(found, decide)
    ordinary = available.copy()
    action = choose(world, available, decide, drawn.rarity)
    if drawn.oversleeps and _is_untimely(world, action):
        return ordinary[-1]  # the time advances, if it can
    return action


def _is_untimely(world: JudgedWorld, action: Action) -> bool:
    """Return whether a freeze begins at no interesting moment, or ends before its session."""
    if action.do is Do.FREEZE:
        return True
    return action.do is Do.THAW and world.links[action.who].session in world.zookeeper.sessions


def _close(world: JudgedWorld, decide: Decide) -> int:
    """Let the users close the programs, and run until all have left; return how many actions."""
    programs = range(len(world.programs))
    for who in programs:
        world.act(Action(Do.LEAVE, who))
    actions, deadline = len(programs), world.now + CONVERGENCE_S
    while staying := [world.members[who].name for who in programs if not world.members[who].closed]:
        available = world.enabled()
        if not available or world.now > deadline:
            why = "has not answered `done` with `closed`"
            raise promises.group_settles.broken(f"{staying[0]} {why}")
        busy = [one for one in available if one.do is not Do.TIME]
        world.act(one_of(busy or available, decide))
        actions += 1
    return actions


class MemberCourt(Court[MemberChallenge, GroupScore]):
    """Runs the schedules of one challenge in a simulated ZooKeeper."""

    score = GroupScore

    def __init__(self, challenge: MemberChallenge, programs: Sequence[Program]) -> None:
        super().__init__(challenge, programs)
        self._names: list[str] = []  # the members of the last schedule

    def names(self) -> tuple[list[str], str]:
        return self._names, ROOT

    def run(self, decide: Decisions, emit: Emit | None = None) -> tuple[Result, GroupScore]:
        """Run the schedule of these decisions, and record it with `emit`."""
        self.forget()
        challenge, drawn = self.challenge, draw(self.challenge, decide)
        count = drawn.programs
        jvm = frozenset(range(count, count + challenge.jvm))
        monitor = JudgeMonitor(count, jvm, over=challenge.over, also=challenge.own())
        scorer = MemberScorer(count)
        recorder = Recorder(emit or silent)
        world = JudgedWorld(
            drawn.plan,
            Watchers(recorder, monitor, scorer) if emit else Watchers(monitor, scorer),
            programs=self.programs[:count],
            jvm=jvm,
        )
        self._names = [one.name for one in world.members]
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
            end_faults(world, jvm, decide)
            actions += settle(world, monitor, decide)
            if challenge.commits:
                actions += _close(world, decide)
                rules.stores_what_it_has_delivered.check(monitor)

        return judged(play, monitor, decide, lambda: actions), scorer.score()

    # ---- the exhaustive search -------------------------------------------------------------------

    def explore(self, limit_s: float) -> SearchResult[Action]:
        return exhaustive.explore(self.challenge, self.programs, max_s=limit_s)

    def numbered(self, path: Sequence[Action]) -> list[int]:
        return exhaustive.numbered(self.challenge, self.programs, path)

    def retrace(self, numbers: Sequence[int], emit: Emit) -> InvariantViolation | None:
        self._names = names_of(self.challenge.programs[0])
        return exhaustive.retrace(self.challenge, self.programs, numbers, emit)
