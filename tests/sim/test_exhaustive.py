"""All that can happen in a small world: a part of it in each run, and what a state's key means."""

from __future__ import annotations

import pytest

from zkconsumer.sim.canonical import Canon
from zkconsumer.sim.exhaustive import Scope, SmallWorld, explore
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do


@pytest.mark.parametrize(("faults", "states"), [(1, 2_500), (2, 2_500)])
def test_no_promise_is_broken(faults: int, states: int) -> None:
    """As far as this run goes, no order of operations and faults breaks a promise."""
    found = explore(Scope(faults=faults), max_states=states, max_s=20.0)
    assert found.violation is None, [*map(str, found.path)]
    assert found.complete or found.states > states / 10


def test_a_join_without_faults_is_explored_to_the_end() -> None:
    """One joins a settled member: nothing of the scope is left, and every rest converges."""
    found = explore(Scope(faults=0))
    assert found.violation is None
    assert found.complete
    assert found.rests


def played(*actions: Action) -> tuple[SmallWorld, Monitor]:
    monitor = Monitor()
    world = SmallWorld(Scope(settled=0), monitor)
    for action in actions:
        world.act(action)
    return world, monitor


def test_what_commutes_leads_to_one_state() -> None:
    """Two reads of two members in either order are one state; a write before another is not."""
    canon = Canon()
    both = Action(Do.JOIN, 0), Action(Do.JOIN, 1)
    one = played(*both, Action(Do.SERVE, 0), Action(Do.SERVE, 1))
    other = played(*both, Action(Do.SERVE, 1), Action(Do.SERVE, 0))
    assert canon.key(*one) == canon.key(*other)
    assert canon.key(*one) != canon.key(*played(*both, Action(Do.SERVE, 0)))


def test_a_copy_is_the_same_state() -> None:
    """A copied world has its original's key, and goes its own way."""
    canon = Canon()
    world, monitor = played(Action(Do.JOIN, 0))
    twin = monitor.copy()
    copy = world.copy(twin)
    assert canon.key(copy, twin) == canon.key(world, monitor)
    copy.act(Action(Do.SERVE, 0))
    assert canon.key(copy, twin) != canon.key(world, monitor)
