"""Random runs of coordinated groups: decisions draw the protocol, the delays and the faults.

A run ends all faults after some time. Then the group must settle (C7 of `monitor`). `report`
shrinks a run that breaks a promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.consumer_member import ConsumerPhase
from zkconsumer.sim.coordinated.monitor import CoordinatedMonitor
from zkconsumer.sim.coordinated.world import (
    LATENCY_S,
    CoordinatedPlan,
    CoordinatedWatcher,
    CoordinatedWatchers,
    CoordinatedWorld,
    Delay,
    Move,
)
from zkconsumer.sim.kernel.aims import Aim
from zkconsumer.sim.kernel.search import (
    SHRINK_S,
    Decide,
    Decisions,
    Result,
    judged,
    one_of,
    shrunk,
)

PROTOCOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classic-eager": ("classic", ("range",)),
    "classic-sticky": ("classic", ("sticky",)),
    "classic-cooperative": ("classic", ("cooperative-sticky",)),
    "consumer": ("consumer", ()),
}

SLOWEST = 200
"""Delays of a message in a random run, in multiples of the latency, are less than this number."""

SHARES = 1_000
"""Number of different fractions by which a random run multiplies the time between two faults."""

FAULTS = 8
"""Maximum number of faults in a run."""

REST_S = 900.0
"""Virtual seconds in which a group must settle after the last fault: twice the sum of a rebalance
timeout, a session timeout and the age of the metadata."""

CHECK_INTERVAL_S = 2.0
"""Interval, in virtual seconds, at which a run checks whether the group has settled."""

QUIET_S = 15.0
"""Virtual seconds for which the settled group is observed: several heartbeats and commits."""


def _silent(world: CoordinatedWorld, text: str) -> None:
    """Announce nothing."""


Course = Callable[[CoordinatedWorld, Decide, Callable[[str], None]], None]
"""Lets members join and faults happen; the last argument announces them."""


def run(
    decide: Decisions,
    protocol: str | None = None,
    *,
    course: Course | None = None,
    watcher: CoordinatedWatcher | None = None,
    say: Callable[[CoordinatedWorld, str], None] = _silent,
) -> Result:
    """Run a group with faults, then without; if `protocol` is None, a decision selects it.

    `course` is `run_faults` or `run_aimed_faults`; `say` announces each fault before it happens.
    """
    name = protocol or one_of(sorted(PROTOCOLS), decide)
    monitor = CoordinatedMonitor()
    plan = replace(_plan(decide, name), delay=lambda _: drawn_delay(decide))
    world = CoordinatedWorld(
        plan, monitor if watcher is None else CoordinatedWatchers(monitor, watcher)
    )
    actions = 0

    def announce(text: str) -> None:
        nonlocal actions
        actions += 1
        say(world, text)

    def play() -> None:
        (course or run_faults)(world, decide, announce)
        end_faults(world)
        rest(world)
        monitor.check_rest(world, REST_S)

    return judged(play, monitor, decide, lambda: actions)


def _plan(decide: Decide, name: str) -> CoordinatedPlan:
    messages, assignors = PROTOCOLS[name]
    static, members = decide(5) == 0, 2 + decide(4)
    session_s = one_of((10.0, 45.0), decide)
    poll_s = one_of((20.0, 60.0, 300.0), decide)
    auto = one_of((None, 1.0, 5.0), decide)

    def settings(one: ClientSettings, who: int) -> ClientSettings:
        return replace(
            one,
            assignors=assignors,
            instance=f"i{who}" if static else None,
            session_s=session_s,
            poll_s=poll_s,
            auto_commit_s=auto,
        )

    return CoordinatedPlan(
        protocol=messages,
        members=members,
        partitions=1 + decide(8),
        messages=1,
        settings=settings,
    )


def drawn_delay(decide: Decide) -> float:
    """Draw the delay of a message, in seconds; about half of the messages are late."""
    return LATENCY_S * (1 + (decide(SLOWEST) if decide(2) else 0))


def random_delay(seed: int) -> Delay:
    """Return the random delays of a seed, of the same distribution as in a random run."""

    def delay(number: int) -> float:
        return drawn_delay(Decisions(random.Random(f"{seed}:{number}")))

    return delay


def run_faults(
    world: CoordinatedWorld,
    decide: Decide,
    say: Callable[[str], None] = lambda text: None,
    *,
    kinds: frozenset[str] | None = None,
) -> None:
    """Let members join and faults happen, at random moments; `say` announces them.

    `kinds`: which faults, and ends of faults, may happen; None: all.
    """
    waiting = [who for who, member in enumerate(world.members) if not member.joined]
    faults = 1 + decide(FAULTS)
    while waiting or faults:
        if waiting and (not faults or decide(2) == 0):
            who = waiting.pop(decide(len(waiting)))
            say(f"g_{who} joins")
            world.join(who)
        else:
            faults -= 1
            found = [it for it in _possible(world) if kinds is None or it.do in kinds]
            if found:
                _happen(world, one_of(found, decide), say)
        world.run(one_of((0.01, 0.1, 1.0, 5.0, 15.0, 60.0), decide) * decide(SHARES) / SHARES)
        world.produce()


def _possible(world: CoordinatedWorld) -> list[Move]:
    """Return the faults, and ends of faults, that can happen now.

    No partition is added to the topic of static members: 1. The leader, a static member, is closed.
    2. A partition is added. 3. The leader starts again and keeps the stored assignment
    (`skip_assignment`). The leader stores the new number of partitions as the basis of this
    assignment, so it sees no change, and no member gets the partition until the next rebalance.
    Kafka 3.9.1 does the same.
    """
    is_static = any(member.state.settings.instance for member in world.members)
    found = [Move("move"), Move("no coordinator")]
    found += [] if is_static else [Move("grow")]
    found += [Move("restart broker", n) for n in range(len(world.brokers))]
    for who, member in enumerate(world.members):
        if member.dead:
            found.append(Move("revive", who))
        elif member.joined:
            kinds = ["kill", "leave", "cut", "thaw" if member.frozen else "freeze"]
            kinds += ["hurry" if member.slow else "slow", "unmute" if member.muted else "mute"]
            found += [Move(do, who) for do in kinds]
    return found


def _happen(world: CoordinatedWorld, fault: Move, say: Callable[[str], None]) -> None:
    """Announce a fault, or its end, and let it happen."""
    who = fault.who
    match fault.do:
        case "move":
            say("the coordinator moves")
            alive = [n for n in range(len(world.brokers)) if n not in world.down]
            at = alive.index(world.leader) if world.leader in alive else -1
            world.act(Move("coordinate", alive[(at + 1) % len(alive)]))
        case "no coordinator":
            say("no coordinator")
            world.act(Move("no_coordinator"))
        case "restart broker":
            say(f"restart broker {who}")
            world.act(Move("kill_broker", who))
            world.act(Move("revive_broker", who))
        case "grow":
            say("a partition is added")
            world.act(fault)
        case _:
            say(f"{fault.do} g_{who}")
            world.act(fault)


# ---- aimed runs ----------------------------------------------------------------------------------

AIMS: dict[str, tuple[Enum, ...]] = {
    "classic": (ClassicPhase.UNJOINED, ClassicPhase.PREPARING, ClassicPhase.COMPLETING),
    "consumer": (
        ConsumerPhase.JOINING,
        ConsumerPhase.RECONCILING,
        ConsumerPhase.ACKNOWLEDGING,
        ConsumerPhase.FENCED,
        ConsumerPhase.STALE,
    ),
}
"""For each kind of protocol: the phases at which an aimed run aims, one of them in each run.

Members rest in the stable phase, so faults at random moments hit that phase anyway."""

MOST_MOVES = 3_000
"""Number of moves after which an aimed run ends its faults, although some have not happened."""

CHURN = frozenset({"leave", "revive", "slow", "hurry"})
"""Moves that let members change their phase."""


class CoordinatedAim(Aim[CoordinatedWorld, Move]):
    """Aims at a phase of members."""

    def __init__(self, phase: Enum) -> None:
        self._phase = phase

    def hit(self, world: CoordinatedWorld) -> list[int]:
        members = enumerate(world.members)
        return [who for who, one in members if one.lives and one.state.phase is self._phase]

    def faults(self, world: CoordinatedWorld, moves: list[Move], hit: list[int]) -> list[Move]:
        of_members = {who for who, one in enumerate(world.members) if who not in hit}
        found = _possible(world)
        return [one for one in found if one.do in OF_THE_GROUP or one.who not in of_members]

    def churn(self, world: CoordinatedWorld) -> list[Move]:
        waiting = [Move("join", who) for who, one in enumerate(world.members) if not one.joined]
        return [*waiting, *(one for one in _possible(world) if one.do in CHURN)]


OF_THE_GROUP = frozenset({"move", "no coordinator", "grow", "restart broker"})
"""Faults that do not hit a single member."""


def run_aimed_faults(world: CoordinatedWorld, decide: Decide, say: Callable[[str], None]) -> None:
    """Let members join and faults happen, most of them while a member is in one phase."""
    aim = CoordinatedAim(one_of(AIMS[world.plan.protocol], decide))
    first = decide(len(world.members))
    say(f"g_{first} joins")
    world.join(first)
    faults = len(world.members) + decide(2 * FAULTS)
    for _ in range(MOST_MOVES):
        if not faults:
            break
        if found := aim.preferred(world, world.enabled(), decide):
            faults -= 1
            _happen(world, one_of(found, decide), say)
            world.produce()
        elif not world.step():
            break
    world.join(*[who for who, one in enumerate(world.members) if not one.joined])


def rest(world: CoordinatedWorld) -> None:
    """Wait until the group has settled and stays settled for some heartbeats, but not forever.

    A group may seem settled while a member waits for the reply to a request that the network has
    lost. The coordinator then removes the member when its session times out.
    """
    deadline = world.now + REST_S
    while True:
        while not world.settled() and world.now < deadline:
            world.run(CHECK_INTERVAL_S)
        world.produce()
        world.run(QUIET_S)
        if world.settled() or world.now >= deadline:
            return


def end_faults(world: CoordinatedWorld) -> None:
    """End all faults, and make sure that at least one member lives."""
    for who, member in enumerate(world.members):
        if member.muted:
            world.unmute(who)
        if member.frozen:
            world.thaw(who)
        if member.slow:
            world.hurry(who)
    if world.leader is None:
        world.move_coordinator(0)
    if not any(member.lives for member in world.members):
        world.revive(0)


def report(decisions: Sequence[int], protocol: str, *, limit_s: float = SHRINK_S) -> str:
    """Shrink a run that breaks a promise, and return what happens in it."""
    fewer = shrunk(lambda decide: run(decide, protocol), decisions, limit_s=limit_s)
    lines: list[str] = []
    result = run(
        Decisions(fewer),
        protocol,
        say=lambda world, text: lines.append(f"{world.now:9.3f}  {text}"),
    )
    numbers = " ".join(map(str, fewer))
    return "\n".join([f"{protocol}, decisions {numbers}:", *lines, str(result.violation)])
