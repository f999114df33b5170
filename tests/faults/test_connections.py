"""Connections that are slow, or that lose all data in one direction."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from support.members.crew import MEASURED, Crew
from support.wait import LIMIT_S, wait_for
from support.zk.proxies import Line, Wire

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("topic")

SLOW_S = 0.2


@pytest.fixture
def line(sandbox: Sandbox, stack: ExitStack) -> Iterator[Line]:
    """A proxy between the second member and ZooKeeper."""
    return stack.enter_context(Line(sandbox.zookeeper_connect))


def test_a_slow_server(crew: Crew, line: Line) -> None:
    """With delays of up to 0.2 s the group settles, and afterwards no partition moves."""
    line.delay_s = SLOW_S
    members = [crew.join(zookeeper=line.address) for _ in range(2)]
    crew.settle(*members)
    crew.flowing(*members)
    owners = crew.observer.snapshot().owners
    crew.flowing(*members)
    assert crew.observer.snapshot().owners == owners
    line.delay_s = 0.0
    assert crew.finish().duplicates() == 0


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_one_direction_is_lost(crew: Crew, line: Line, lost: str) -> None:
    """If requests or replies are lost without an error, the lease ends in time."""
    first, second = crew.join(), crew.join(zookeeper=line.address, **MEASURED)
    crew.settle(first, second)
    crew.flowing(first, second)
    lost_at = boottime()
    if lost == "requests":
        line.deaf.set()
        crew.settle(first)
    else:
        # Each attempt to reconnect reaches the server, so the session continues and no member takes
        # over.
        line.wire = Wire.LOSE_REPLIES
        limit = lost_at + 1.5 * second.session_s
        wait_for(lambda: boottime() > limit, "more than the session timeout to pass")
        crew.flowing(first)
    crew.assert_paused(second, lost_at)
    line.deaf.clear()
    line.wire = Wire.PASS
    line.cut()
    crew.settle(first, second)
    crew.flowing(first, second)
    crew.finish()


def test_a_connection_that_breaks_at_once(crew: Crew, line: Line) -> None:
    """If a connection ends before its first reply, the member connects again."""
    line.pings_only.set()
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(crew.join_here, zookeeper=line.address)
        wait_for(lambda: line.asked >= 2, "a session, and a first request")
        assert not joining.done()
        line.pings_only.clear()
        line.cut()
        member = joining.result(LIMIT_S)
    crew.settle(member)
    crew.flowing(member)
    assert crew.finish().duplicates() == 0
