"""Every order of the first actions of a small group of programs, breadth-first.

The search copies worlds. A program cannot be copied, so a copy continues from its place in the tree
of conversations (`judge.program`): the judge repeats the messages from the `reset`, unless the tree
knows the answer already. Two worlds count as equal only if their programs have had the same
conversations, so the search ends by its time limit rather than by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from zkconsumer.errors import ConfigError
from zkconsumer.judge.challenges import MemberChallenge
from zkconsumer.judge.program import Program
from zkconsumer.judge.world import JudgedWorld, JudgeMonitor
from zkconsumer.sim.exhaustive_search import SearchNode, TimelessWorld
from zkconsumer.sim.kernel import search
from zkconsumer.sim.kernel.search import SearchResult
from zkconsumer.sim.kernel.stories import Emit
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.world import Watchers, World

PARTITIONS, MESSAGES, FAULTS = 2, 1, 1
"""The size of the world: the search is breadth-first, so larger worlds get less deep."""


class SmallJudgedWorld(TimelessWorld, JudgedWorld):
    """A world of programs in which actions take no time and few faults happen."""


def first_node(
    challenge: MemberChallenge, programs: Sequence[Program], emit: Emit | None = None
) -> SearchNode:
    """Return the state before the first member starts; `emit` gets what happens until a copy."""
    for one in programs:
        one.forget()
    used = programs[: challenge.programs[0]]
    plan = Plan(
        members=len(used),
        partitions=PARTITIONS,
        messages=MESSAGES,
        replicas=challenge.replicas,
    )
    monitor = JudgeMonitor(len(used), frozenset(), over=challenge.over, also=challenge.own())
    recorder = Recorder(emit) if emit is not None else None
    watcher = Watchers(recorder, monitor) if recorder is not None else monitor
    world = SmallJudgedWorld(plan, watcher, programs=used)
    world.kinds = [do for do, _ in challenge.faults]
    world.may_fail(FAULTS)
    challenge.prepare(world)
    if recorder is not None:
        recorder.begin(world)
        world.announce = lambda text: recorder.note(world, text)
    return SearchNode(world, monitor, _key)


def _key(world: World, monitor: Monitor) -> int:
    """Return the hash of everything that can affect what happens next."""
    assert isinstance(world, JudgedWorld) and isinstance(monitor, JudgeMonitor)
    members = [world.program_member(who).key() for who in range(len(world.programs))]
    rest = world.links, world.active_faults, world.faults_left, world.log_end, monitor.key()
    return hash((world.now, world.zookeeper.key(world.now), repr((members, rest))))


def explore(
    challenge: MemberChallenge, programs: Sequence[Program], *, max_s: float
) -> SearchResult[Action]:
    """Search breadth-first for `max_s` seconds; stop at the first violation."""
    return search.explore(lambda: first_node(challenge, programs), max_s=max_s)


def numbered(
    challenge: MemberChallenge, programs: Sequence[Program], path: Sequence[Action]
) -> list[int]:
    """Return the number of each action of a path among those that were possible."""
    world = first_node(challenge, programs).world
    numbers = []
    for action in path:
        numbers.append(world.choices().index(action))
        with suppress(InvariantViolation):  # at most the last action breaks a promise
            world.act(action)
    return numbers


def retrace(
    challenge: MemberChallenge, programs: Sequence[Program], numbers: Sequence[int], emit: Emit
) -> InvariantViolation | None:
    """Perform the actions with these numbers, and let the group settle; return what breaks.

    Raises ConfigError: there is no action with such a number.
    """
    try:
        node = first_node(challenge, programs, emit)
        for number in numbers:
            choices = node.world.choices()
            if number >= len(choices):
                raise ConfigError(
                    f"there is no action {number}: only {len(choices)} are possible at this point",
                    where="--schedule",
                    remedy="judge the program again: a changed program has other schedules",
                )
            node.world.act(choices[number])
        node.settle()
    except InvariantViolation as found:
        return found
    return None
