"""Runs of a group of any size and kind, with faults drawn from a seed, told as they happen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from zkconsumer.core.assignors import Strategy
from zkconsumer.core.state import Settings
from zkconsumer.sim import faults
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import FAULTS, Action, Do, InvariantViolation, Plan
from zkconsumer.sim.recorder import Emit, Recorder
from zkconsumer.sim.scenarios import Scenario
from zkconsumer.sim.stage import ORDINARY, Stage, StoryStuckError, monitor_for, stage
from zkconsumer.sim.swarm import Decisions
from zkconsumer.sim.world import World

DEFAULT_FAULTS = (Do.KILL, Do.FREEZE, Do.EXPIRE, Do.CUT, Do.GROW)
NAMES = {do.value.replace("_", "-"): do for do in sorted(FAULTS, key=lambda do: do.value)}
"""What `--fault` takes."""

ACTIONS = 1000
"""How long faults may happen: every member has joined and rebalanced several times by then."""

RARITY = 40
"""One action of so many is a fault or its end, while there are any left."""

class Peers(Enum):
    """Who is in the group."""

    OURS = "ours"
    JVM = "jvm"
    MIXED = "mixed"  # every second one is a JVM member

    def jvm(self, members: int) -> frozenset[int]:
        """The numbers of the JVM members."""
        match self:
            case Peers.JVM:
                return frozenset(range(members))
            case Peers.MIXED:
                return frozenset(range(1, members, 2))
        return frozenset()


@dataclass(frozen=True)
class Told:
    """How a run ended; `violation` names a promise that was broken, `rest` what kept it from rest.

    A group with JVM members may come to rest with partitions that nobody owns: `unowned`.
    """

    seconds: float
    deliveries: int
    duplicates: int
    unowned: int
    violation: str = ""
    rest: str = ""


def names_of(members: int) -> list[str]:
    """The consumer ids in a simulated world, in the order of their numbers."""
    return [f"g_{number}" for number in range(members)]


def tell_seed(
    seed: int, *, members: int, partitions: int, strategy: Strategy, peers: Peers,
    kinds: Sequence[Do], emit: Emit,
) -> Told:
    """Members join and faults happen as the seed draws them; then all is mended, and they rest."""

    def settings(one: Settings) -> Settings:
        return replace(one, strategy=strategy)

    plan = Plan(
        members=members, partitions=partitions, messages=1, flow=1, replicas=2,
        faults={do: kinds.count(do) for do in kinds}, settings=settings,
    )
    jvm = peers.jvm(members)
    recorder, monitor = Recorder(emit), monitor_for(jvm)
    on = stage(plan, recorder, monitor, jvm=jvm)
    decide = Decisions(random.Random(seed))

    def story() -> None:
        on.scene(*range((members + 1) // 2))
        on.say(f"seed {seed}: {members} members, {partitions} partitions")
        for _ in range(ACTIONS):
            action = _choose(on.world, decide)
            if action.do not in ORDINARY:
                on.say(f"{action.do.value.replace('_', ' ')}{_whom(action.who, action.tp)}")
            on.world.act(action)
        on.say("all is mended, and no more messages come")
        on.world.flow = 0
        while mends := faults.mends(on.world):
            on.world.act(mends[0])
        for who, link in enumerate(on.world.links):
            if not link.joined:
                on.join(who)
        on.rest()

    return _ended(on, monitor, story)


def _choose(world: World, decide: Decisions) -> Action:
    """Now and then a fault or the end of one; time passes rarely while there is work."""
    if decide(RARITY) == 0:
        wrong = [*faults.possible(world), *faults.mends(world)]
        if wrong:
            return wrong[decide(len(wrong))]
    actions = world.enabled()
    if len(actions) > 1 and actions[-1].do is Do.TIME and decide(8):
        actions.pop()
    return actions[decide(len(actions))]


def tell(scenario: Scenario, *, jvm: frozenset[int] | None, emit: Emit) -> Told:
    """A story; with `jvm`, these members of it are JVM members."""
    jvm = scenario.jvm if jvm is None else jvm
    monitor = monitor_for(jvm)
    on = stage(scenario.plan, Recorder(emit), monitor, jvm=jvm)
    return _ended(on, monitor, lambda: scenario.script(on))


def _whom(who: int, tp: object) -> str:
    return f" {tp}" if tp is not None else f" {who}" if who >= 0 else ""


def _ended(on: Stage, monitor: Monitor, story: Callable[[], None]) -> Told:
    violation = rest = ""
    try:
        story()
    except InvariantViolation as found:
        violation = str(found)
    except StoryStuckError as stuck:
        rest = str(stuck)
    world = on.world
    return Told(
        round(world.now, 3), monitor.deliveries, monitor.duplicates,
        len(world.log_end) - len(world.owners()), violation, rest,
    )
