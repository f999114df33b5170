"""Random runs of coordinated groups: a seed draws the protocol, the delays and the faults.

A run ends all faults after some time. Then the group must settle (C7 of `monitor`). `report`
shrinks a run that breaks a promise: it repeats the run with fewer of the numbers that were drawn.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from zkconsumer.later.classic_member_state import Settings
from zkconsumer.sim.coordinated.monitor import Monitor
from zkconsumer.sim.coordinated.world import LATENCY_S, Delay, Plan, Watcher, World
from zkconsumer.sim.kernel.world import InvariantViolation, all_of
from zkconsumer.sim.random_search import SHRINK_S, shrink

PROTOCOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classic-eager": ("classic", ("range",)),
    "classic-sticky": ("classic", ("sticky",)),
    "classic-cooperative": ("classic", ("cooperative-sticky",)),
    "consumer": ("consumer", ()),
}

SLOWEST_S = 0.2
"""The longest delay of a message in a random run, in seconds."""

FAULTS = 8
"""Maximum number of faults in a run."""

REST_S = 900.0
"""Virtual seconds in which a group must settle after the last fault: twice the sum of a rebalance
timeout, a session timeout and the age of the metadata."""

CHECK_INTERVAL_S = 2.0
"""Interval, in virtual seconds, at which a run checks whether the group has settled."""

QUIET_S = 15.0
"""Virtual seconds for which the settled group is observed: several heartbeats and commits."""


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    seed: int
    protocol: str
    deliveries: int
    duplicates: int
    refused: int
    rebalances: int
    violation: InvariantViolation | None = None


def run(seed: int, protocol: str | None = None, watcher: Watcher | None = None) -> Result:
    """Run one seed; if `protocol` is None, the seed selects the protocol."""
    draw = random.Random(seed)
    name = protocol or draw.choice(sorted(PROTOCOLS))
    return _run(name, draw, draw, seed=seed, watcher=watcher)


def _run(
    name: str,
    draw: random.Random,
    late: random.Random,
    *,
    seed: int = -1,
    watcher: Watcher | None = None,
    say: Callable[[World, str], None] = lambda world, text: None,
) -> Result:
    """Run a group; `draw` draws the group and the faults, and `late` the delays of messages."""
    monitor = Monitor()
    world = World(replace(_plan(draw, name), delay=RandomDelay(late)), _both(monitor, watcher))
    violation = None
    try:
        run_faults(world, draw, lambda text: say(world, text))
        end_faults(world)
        _rest(world)
        monitor.check_rest(world, REST_S)
    except InvariantViolation as found:
        violation = found
    return Result(
        seed,
        name,
        monitor.deliveries,
        monitor.duplicates,
        monitor.refused,
        monitor.rebalances,
        violation,
    )


def _both(monitor: Monitor, watcher: Watcher | None) -> Watcher:
    return monitor if watcher is None else all_of(monitor, watcher)


def _plan(draw: random.Random, name: str) -> Plan:
    messages, assignors = PROTOCOLS[name]
    static, members = draw.random() < 0.2, draw.randint(2, 5)
    session_s, poll_s = draw.choice((10.0, 45.0)), draw.choice((20.0, 60.0, 300.0))
    auto = draw.choice((None, 1.0, 5.0))

    def settings(one: Settings, who: int) -> Settings:
        return replace(
            one,
            assignors=assignors,
            instance=f"i{who}" if static else None,
            session_s=session_s,
            poll_s=poll_s,
            auto_commit_s=auto,
        )

    return Plan(
        protocol=messages,
        members=members,
        partitions=draw.randint(1, 8),
        messages=1,
        settings=settings,
    )


class RandomDelay(Delay):
    """Draws the delay of each message; about half of the messages are late."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def __call__(self) -> float:
        return self._draw.choice((LATENCY_S, self._draw.uniform(LATENCY_S, SLOWEST_S)))

    def copy(self) -> RandomDelay:
        return RandomDelay(copy.copy(self._draw))


def run_faults(
    world: World, draw: random.Random, say: Callable[[str], None] = lambda text: None
) -> None:
    """Let members join and faults happen, at random moments; `say` announces them."""
    waiting = [who for who, member in enumerate(world.members) if not member.joined]
    draw.shuffle(waiting)
    faults = draw.randint(1, FAULTS)
    while waiting or faults:
        if waiting and (not faults or draw.random() < 0.5):
            who = waiting.pop()
            say(f"g_{who} joins")
            world.join(who)
        else:
            faults -= 1
            kind, who = draw.choice(_possible(world))
            say(_named(kind, who))
            HANDLERS[kind](world, who)
        world.run(draw.choice((0.01, 0.1, 1.0, 5.0, 15.0, 60.0)) * draw.random())
        world.produce()


def _possible(world: World) -> list[tuple[str, int]]:
    """Return the faults, and ends of faults, that can happen now.

    No partition is added to the topic of static members: 1. The leader, a static member, is closed.
    2. A partition is added. 3. The leader starts again and keeps the stored assignment
    (`skip_assignment`). The leader stores the new number of partitions as the basis of this
    assignment, so it sees no change, and no member gets the partition until the next rebalance.
    Kafka 3.9.1 does the same.
    """
    is_static = any(member.state.settings.instance for member in world.members)
    found: list[tuple[str, int]] = [("move", 0), ("no coordinator", 0)]
    found += [] if is_static else [("grow", 0)]
    found += [("restart broker", n) for n in range(len(world.brokers))]
    for who, member in enumerate(world.members):
        if member.dead:
            found.append(("revive", who))
        elif member.joined:
            found += [("kill", who), ("leave", who), ("cut", who)]
            found.append(("thaw" if member.frozen else "freeze", who))
            found.append(("hurry" if member.slow else "slow", who))
            found.append(("unmute" if member.muted else "mute", who))
    return found


def _named(kind: str, number: int) -> str:
    """Return a fault as a story announces it."""
    if kind in ("grow", "move", "no coordinator"):
        return {"grow": "a partition is added", "move": "the coordinator moves"}.get(kind, kind)
    return f"{kind} {number}" if kind == "restart broker" else f"{kind} g_{number}"


def _move(world: World, _: int) -> None:
    alive = [n for n in range(len(world.brokers)) if n not in world.down]
    at = alive.index(world.leader) if world.leader in alive else -1
    world.move_coordinator(alive[(at + 1) % len(alive)])


def _restart(world: World, broker: int) -> None:
    world.kill_broker(broker)
    world.revive_broker(broker)


HANDLERS: dict[str, Callable[[World, int], None]] = {
    "grow": lambda world, _: world.grow(),
    "move": _move,
    "no coordinator": lambda world, _: world.move_coordinator(None),
    "restart broker": _restart,
    "revive": World.revive,
    "kill": World.kill,
    "leave": World.leave,
    "cut": World.cut,
    "freeze": World.freeze,
    "thaw": World.thaw,
    "slow": World.slow,
    "hurry": World.hurry,
    "mute": World.mute,
    "unmute": World.unmute,
}


def _rest(world: World) -> None:
    """Wait until the group has settled, and observe it for some heartbeats."""
    deadline = world.now + REST_S
    while not world.settled() and world.now < deadline:
        world.run(CHECK_INTERVAL_S)
    world.produce()
    world.run(QUIET_S)


def end_faults(world: World) -> None:
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


# ---- shrinking -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnNumbers:
    """The numbers that a run drew: for the group and its faults, and for the delays of messages."""

    script: tuple[int, ...]
    late: tuple[int, ...]


_BITS = 53
"""Number of bits of a random fraction, which is stored as an integer."""


class _RecordingRandom(random.Random):
    """Draws from a source, and records the numbers."""

    def __init__(self, source: random.Random) -> None:
        super().__init__(0)
        self._source, self.numbers = source, list[int]()

    def random(self) -> float:
        value = self._source.random()
        self.numbers.append(int(value * (1 << _BITS)))
        return value

    def getrandbits(self, k: int) -> int:
        self.numbers.append(self._source.getrandbits(k))
        return self.numbers[-1]


class _ReplayingRandom(random.Random):
    """Draws the given numbers, and then zeros."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__(0)
        self._left = iter(numbers)

    def random(self) -> float:
        return next(self._left, 0) % (1 << _BITS) / (1 << _BITS)

    def getrandbits(self, k: int) -> int:
        return next(self._left, 0) % (1 << k)


def run_recorded(seed: int, protocol: str) -> tuple[DrawnNumbers, Result]:
    """Run one seed; also return the numbers that the run drew."""
    source = random.Random(seed)
    draw, late = _RecordingRandom(source), _RecordingRandom(source)
    result = _run(protocol, draw, late, seed=seed)
    return DrawnNumbers(tuple(draw.numbers), tuple(late.numbers)), result


def replay(protocol: str, numbers: DrawnNumbers, watcher: Watcher | None = None) -> Result:
    """Run with these numbers; every further number is 0, which stands for the shortest delay."""
    return _run(
        protocol, _ReplayingRandom(numbers.script), _ReplayingRandom(numbers.late), watcher=watcher
    )


def shrunk(protocol: str, numbers: DrawnNumbers, *, limit_s: float = SHRINK_S) -> DrawnNumbers:
    """Return a shorter list of smaller numbers, whose run breaks the same promise.

    Shrinking stops after `limit_s` seconds and returns the shortest run found by then.
    """
    end = time.monotonic() + limit_s
    wanted = replay(protocol, numbers).violation
    assert wanted is not None, "this run breaks no promise"

    def fails(script: Sequence[int], late: Sequence[int]) -> bool:
        if time.monotonic() > end:
            return False
        found = replay(protocol, DrawnNumbers(tuple(script), tuple(late))).violation
        return found is not None and found.invariant == wanted.invariant

    late = () if fails(numbers.script, ()) else numbers.late
    script = shrink(numbers.script, lambda shorter: fails(shorter, late))
    return DrawnNumbers(script, shrink(late, lambda shorter: fails(script, shorter)))


def report(seed: int, protocol: str, *, limit_s: float = SHRINK_S) -> str:
    """Shrink the run of a seed that breaks a promise, and return what happens in it."""
    numbers = shrunk(protocol, run_recorded(seed, protocol)[0], limit_s=limit_s)
    lines: list[str] = []
    result = _run(
        protocol,
        _ReplayingRandom(numbers.script),
        _ReplayingRandom(numbers.late),
        say=lambda world, text: lines.append(f"{world.now:9.3f}  {text}"),
    )
    return "\n".join([f"{protocol}, seed {seed}, shrunk:", *lines, str(result.violation)])
