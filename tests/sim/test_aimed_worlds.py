"""Random runs that inject faults in a chosen phase, and pairs that are declared impossible."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from support.sim import coverage
from support.sim.coverage import Coverage, Pair, excluded

from zkconsumer.member.operations import MemberIdentity
from zkconsumer.member.phases import Phase
from zkconsumer.member.read_group import diagnose
from zkconsumer.member.state import Settings, replace
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.kernel.search import Decide, Decisions
from zkconsumer.sim.member import LAST_REPLY
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import FAULTS, Action, Do, Plan
from zkconsumer.sim.random_search import draw_aimed, draw_sharp, run, world_of
from zkconsumer.sim.world import Watchers, World

SEEDS = range(12)
MOST_SEEDS = 300
"""Upper bound of the seeds for a test that stops at the first seed that shows its case."""

SHARP_SEEDS = 1_000
"""The same bound if only a third of the runs prefer the pair, in one of several phases."""

FEWEST = 6
"""Minimum number of kinds of faults that these seeds inject in the chosen phase."""


def run_aimed(seed: int, phase: Phase, reached: Coverage) -> None:
    """Run a world with faults in this phase, and count the pairs that it reaches.

    The run must keep all promises. A pair is a phase and an event or fault in it.
    """

    def make(plan: Plan, monitor: Monitor) -> World:
        return world_of(plan, Watchers(monitor, reached))

    def draw(decide: Decide) -> tuple[Plan, int, int]:
        plan, length, rarity = draw_aimed(decide)
        return dataclasses.replace(plan, aim=phase), length, rarity

    result = run(Decisions(random.Random(seed)), make=make, draw=draw)
    assert result.violation is None, f"seed {seed}: {result.violation}"


@pytest.mark.parametrize("phase", [Phase.OFFLINE, Phase.RELEASING, Phase.LEAVING])
def test_faults_hit_brief_phases(phase: Phase) -> None:
    """A dozen runs inject several faults in a chosen brief phase, and no promise is broken."""
    reached = Coverage()
    for seed in SEEDS:
        run_aimed(seed, phase, reached)
    hit = {pair.what for pair in reached.pairs if pair.phase == phase.value}
    assert len(hit & {do.value for do in FAULTS}) >= FEWEST


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.WAITING])
def test_a_preempted_user_releases_in_a_later_phase(phase: Phase) -> None:
    """In runs aimed at a phase, a preempted thread of a user reports a release in that phase."""
    reached = Coverage()
    for seed in range(MOST_SEEDS):
        run_aimed(seed, phase, reached)
        if Pair(phase.value, "ReleaseReady") in reached.pairs:
            return
    raise AssertionError(f"no user releases in the phase {phase.value}")


@pytest.mark.parametrize(
    "pair",
    [
        Pair(Phase.LEAVING.value, Do.LOSE_TOOL.value),
        Pair(Phase.BEFORE_START.value, "CommitTimedOut"),
    ],
    ids=str,
)
def test_sharp_worlds_reach_rare_pairs(pair: Pair) -> None:
    """Sharp worlds reach pairs that other aimed worlds reach about once in 10,000 runs."""
    reached = Coverage()

    def make(plan: Plan, monitor: Monitor) -> World:
        return world_of(plan, Watchers(monitor, reached))

    for seed in range(SHARP_SEEDS):
        result = run(Decisions(random.Random(seed)), make=make, draw=draw_sharp)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        if pair in reached.pairs:
            return
    raise AssertionError(f"no run reaches {pair}")


def test_the_last_reply_to_a_diagnosis() -> None:
    """`LAST_REPLY` is the number of replies that a diagnosis needs."""
    settings = Settings(group="g", consumer="g_0", subscription={"t": 1})
    diagnosis = diagnose(MemberIdentity.of(settings, 1))
    batch, answered = next(diagnosis), 0
    with pytest.raises(StopIteration):
        while True:
            batch = diagnosis.send([Reply(Code.NO_NODE)] * len(batch))
            answered += 1
    assert answered == LAST_REPLY


def test_a_pair_that_is_said_not_to_occur_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reaches an excluded pair ends with a violation that names pair and reason."""
    pair = Pair(Phase.READING.value, "ViewRead")
    assert not excluded(pair)
    wrong = {(frozenset({pair.phase}), frozenset({pair.what})): "this test says so"}
    monkeypatch.setattr(coverage, "EXCLUDED", wrong)

    def make(plan: Plan, monitor: Monitor) -> World:
        return world_of(plan, Watchers(monitor, Coverage()))

    violation = run(Decisions(random.Random(1)), make=make).violation
    assert str(violation) == "COVERAGE: reading x ViewRead occurs, although this test says so"


def test_a_member_whose_id_is_taken_releases_and_returns() -> None:
    """A member whose id was taken releases its partitions, and reclaims them later."""

    def hasty(one: Settings) -> Settings:
        return replace(one, backoff_s=0.5)

    monitor, reached = Monitor(), Coverage()
    world = World(Plan(members=1, partitions=2, settings=hasty), Watchers(monitor, reached))
    member = world.members[0]

    def until(phase: Phase, owners: int) -> None:
        reach(lambda: member.state.phase is phase and len(world.owners()) == owners)

    def reach(condition: Callable[[], bool]) -> None:
        for _ in range(2_000):
            if condition():
                return
            others = [one for one in world.enabled() if one.do is not Do.TIME]
            world.act(others[0] if others else Action(Do.TIME))
        raise AssertionError(f"not reached: {member.state.phase}, {world.owners()}")

    until(Phase.SETTLED, 2)
    world.act(Action(Do.TAKE_ID, 0))
    until(Phase.REGISTERING, 0)
    world.act(Action(Do.FREE_ID, 0))
    until(Phase.SETTLED, 2)
    assert reached.pairs[Pair("registering", "Released")] == 1
    reach(lambda: not monitor.converged(world))
