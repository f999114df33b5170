"""Members of a simulated group whose ZooKeeper loses its data, or only seems to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkconsumer.member.phases import Phase
from zkconsumer.protocol import lost_data, paths
from zkconsumer.protocol import requests as rq
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.stream_member import StreamMember
from zkconsumer.sim.stream_world import StreamWorld
from zkconsumer.sim.world import LAG_ENTRIES, World

FAULTS = {Do.LOSE_DATA: 1, Do.LAG: 1, Do.NO_QUORUM: 1, Do.CUT: 1}


def _until(world: World, condition: Callable[[], bool]) -> None:
    """Perform ordinary actions until a condition holds; if there is none, advance the time."""
    for turn in range(5_000):
        if condition():
            return
        actions = [action for action in world.enabled() if action.do is not Do.TIME]
        idle = all(action.do is Do.CONNECT for action in actions)
        if actions:
            world.act(actions[turn % len(actions)])
        if idle and any(action.do is Do.TIME for action in world.enabled()):
            world.act(Action(Do.TIME))
        assert world.now < 60, "the condition was not reached"
    raise AssertionError("the condition was not reached")


def _sessions(world: World) -> list[int]:
    return [link.session for link in world.links]


def test_a_group_joins_again_after_its_data_are_lost() -> None:
    """Each member begins a new session after one session timeout, and the group settles."""
    monitor = Monitor()
    world = World(Plan(members=2, partitions=3, faults=dict(FAULTS)), monitor)
    _until(world, lambda: not monitor.converged(world))
    before, began = _sessions(world), world.now
    world.act(Action(Do.LOSE_DATA))
    assert world.owners() == {}
    _until(world, lambda: not monitor.converged(world))
    assert not {*before} & {*_sessions(world)}
    assert world.now > began + world.plan.session_s
    assert world.now < began + 3 * world.plan.session_s


def _write(world: World, *, until: int) -> None:
    """Let a broker write, up to a zxid."""
    assert world.zookeeper.last_zxid < until
    while world.zookeeper.last_zxid < until:
        world.zookeeper.write(rq.SetData(paths.topic(World.TOPIC), world.topic_data(1), -1))


def _after_an_outage() -> tuple[World, int]:
    """Return a world whose member's servers were behind or away for longer than the session
    timeout, and the member's session, which has not ended."""
    plan = Plan(members=1, partitions=1, replicas=2, faults={**FAULTS, Do.ISOLATE: 1})
    world = World(plan, Monitor())
    _until(world, world.settled)
    (link,) = world.links
    session = link.session
    world.act(Action(Do.LAG, 1 - link.replica))
    _write(world, until=world.zookeeper.last_zxid + 2 * LAG_ENTRIES)
    renewed = world.now + world.plan.session_s / 2
    _until(world, lambda: world.now > renewed and world.settled())  # it has seen the transactions
    world.act(Action(Do.ISOLATE, link.replica))
    world.act(Action(Do.CUT, 0))
    _until(world, lambda: link.refusals is not None)
    world.act(Action(Do.NO_QUORUM))
    world.now += 2 * world.plan.session_s
    world.act(Action(Do.QUORUM))
    return world, session


def test_an_outage_ends_no_session() -> None:
    """A server that grants a second session, and has lost nothing, continues the old one."""
    world, session = _after_an_outage()
    _until(world, lambda: world.links[0].connected)
    assert _sessions(world) == [session]


def test_the_monitor_notices_a_session_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a second session alone counted as a proof, promise I18 would be broken."""
    monkeypatch.setattr(lost_data, "is_lost", lambda refusals, *, seen, last: True)
    world, _ = _after_an_outage()
    with pytest.raises(InvariantViolation, match="I18"):
        _until(world, lambda: world.links[0].connected and not world.members[0].inbox)


def test_a_pause_ends_with_the_session_that_is_lost() -> None:
    """After lost data a paused partition is delivered, even if a new owner has its czxid."""
    plan = Plan(members=1, partitions=1, streams=True, faults=dict(FAULTS))
    world = StreamWorld(plan, Monitor())
    _write(world, until=100)
    _until(world, world.settled)
    ((tp, before),) = world.members[0].state.owned.items()
    world.act(Action(Do.PAUSE, tp=tp))
    world.act(Action(Do.LOSE_DATA))
    _until(world, lambda: world.members[0].state.phase is Phase.CLAIMING)
    _write(world, until=before.epoch - 3)  # the member first creates two parent znodes
    _until(world, lambda: tp in world.members[0].state.serving)
    assert world.members[0].state.owned[tp] == before
    member = world.members[0]
    assert isinstance(member, StreamMember)
    assert not member.feeds[tp].paused
