"""All that can happen in a small world: breadth-first, each state once.

The world is small, and some of what the swarm varies is fixed here (docs/verification.md lists it):
an action takes no time, time passes only when nothing but the users' asking is left to happen, and
a member takes in what it is sent before anything else happens, but for a fault.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

from zkconsumer.core.state import Settings
from zkconsumer.sim import faults
from zkconsumer.sim.canonical import Canon
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, InvariantViolation, Plan
from zkconsumer.sim.swarm import CONVERGENCE_S
from zkconsumer.sim.world import WALL_MS, World

FAR_OFF_S = 1e6
"""Timers that shall not ring: automatic commits (hand-overs commit all the same)."""

KINDS = (
    Do.CUT, Do.EXPIRE, Do.KILL, Do.FREEZE, Do.LEAVE, Do.DELETE_OWNER, Do.DELETE_ID, Do.EDIT,
    Do.ZOMBIE, Do.RESTART,
)  # fmt: skip
"""What may go wrong here; as many of them, in any order, as the scope allows."""

_OF_A_CLIENT = (Do.RECEIVE, Do.OVERTAKE, Do.READ, Do.ASK, Do.NOTICE, Do.CONNECT)

FORGET_EVERY = 20_000
"""States between two emptyings of the cache of forms."""


@dataclass(frozen=True)
class Scope:
    """How small the world is; `settled` members have joined and are at rest when it begins."""

    settled: int = 1
    members: int = 2
    partitions: int = 2
    messages: int = 1
    faults: int = 2


@dataclass(frozen=True)
class Found:
    """What a search has seen.

    Attributes:
        states: distinct ones; `depth` is the length of the longest path of actions to one.
        transitions: actions tried; `rests` are the states from which convergence was demanded.
        complete: nothing of the scope is left.
        violation: the first broken promise, and `path` the actions to it.
    """

    states: int
    transitions: int
    rests: int
    depth: int
    complete: bool
    seconds: float
    violation: InvariantViolation | None = None
    path: tuple[Action, ...] = ()


class SmallWorld(World):
    """A world without a clock of its own, and with few faults altogether."""

    def __init__(self, scope: Scope, watcher: Monitor) -> None:
        plan = Plan(
            members=scope.members, partitions=scope.partitions, messages=scope.messages,
            settings=_quiet,
        )
        super().__init__(plan, watcher)
        self.step_s = 0.0
        self.may_fail(scope.faults)

    def may_fail(self, faults: int) -> None:
        """So many faults may still happen, of whatever kinds."""
        self.faults_left = dict.fromkeys(KINDS, faults)

    def _wall_ms(self) -> int:
        return WALL_MS

    def act(self, action: Action) -> None:
        super().act(action)
        if action.do in KINDS:
            self.may_fail(self.faults_left[action.do])

    def choices(self) -> list[Action]:
        """All that can happen, in a fixed order."""
        actions = self.enabled()
        # What a member was sent it takes in first: what it gets later comes behind it anyhow.
        first = next((action.who for action in actions if action.do is Do.RECEIVE), None)
        if first is not None:
            actions = [one for one in actions if one.who == first and one.do in _OF_A_CLIENT]
        elif any(action.do not in (Do.ASK, Do.TIME) for action in actions):
            actions = [one for one in actions if one.do is not Do.TIME]
        actions += (one for one in faults.mends(self) if one.do is Do.THAW)
        return actions + faults.possible(self)


def _quiet(one: Settings) -> Settings:
    return replace(one, auto_commit_s=FAR_OFF_S)


@dataclass(slots=True)
class _Node:
    world: SmallWorld
    monitor: Monitor
    path: tuple[Action, ...]


def explore(scope: Scope, *, max_states: int = 10**9, max_s: float = float("inf")) -> Found:
    """Breadth-first from where the scope begins; stops at the first violation."""
    started = time.monotonic()
    canon = Canon()
    monitor = Monitor()
    root = SmallWorld(scope, monitor)
    _begin(root, scope)
    seen = {canon.key(root, monitor)}
    queue = deque([_Node(root, monitor, ())])
    transitions = rests = depth = 0

    def found(violation: InvariantViolation | None, path: tuple[Action, ...]) -> Found:
        seconds = time.monotonic() - started
        return Found(
            len(seen), transitions, rests, depth, not queue, seconds, violation, path
        )

    while queue and len(seen) < max_states and time.monotonic() - started < max_s:
        node = queue.popleft()
        for action in node.world.choices():
            transitions += 1
            after = _after(node, action)
            try:
                after.world.act(action)
                key = canon.key(after.world, after.monitor)
                if key in seen:
                    continue
                if action.do is Do.TIME:
                    rests += 1
                    _must_converge(after)
            except InvariantViolation as violation:
                return found(violation, after.path)
            seen.add(key)
            queue.append(after)
            depth = max(depth, len(after.path))
            if len(seen) % FORGET_EVERY == 0:
                canon.forget()
    return found(None, ())


def _begin(world: SmallWorld, scope: Scope) -> None:
    """The first members join, one after the other, and come to rest."""
    world.may_fail(0)
    for who in range(scope.settled):
        world.act(Action(Do.JOIN, who))
        while busy := [one for one in world.choices() if one.do not in (Do.JOIN, Do.TIME)]:
            world.act(busy[0])
        assert world.members[who].settled
    world.may_fail(scope.faults)


def _after(node: _Node, action: Action) -> _Node:
    monitor = node.monitor.copy()
    world = node.world.copy(monitor)
    assert isinstance(world, SmallWorld)
    return _Node(world, monitor, (*node.path, action))


def _must_converge(node: _Node) -> None:
    """Left alone, with everybody awake, the group comes to rest as it should (I12)."""
    copy = _after(node, Action(Do.TIME))
    world, monitor = copy.world, copy.monitor
    world.may_fail(0)
    for mend in faults.mends(world):
        world.act(mend)
    deadline = world.now + CONVERGENCE_S
    turn = 0
    while reason := monitor.converged(world):
        actions = world.choices()
        if not actions or world.now > deadline:
            raise InvariantViolation("I12", reason)
        world.act(actions[turn % len(actions)])
        turn += 1
