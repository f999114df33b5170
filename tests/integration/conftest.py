"""Groups on real servers; the members and proxies of a test end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.members.crew import Crew
from support.zk.client import peer_of
from support.zk.proxies import Trap

from zkconsumer.sandbox import Sandbox


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends every context that was entered, in reverse order."""
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def crew(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path, stack: ExitStack) -> Crew:
    """A group for one test on the shared servers; it has no member yet."""
    return Crew(sandbox.zookeeper_connect, sandbox.bootstrap, unique("group"), tmp_path, stack)


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str], crew: Crew) -> str:
    """A topic of eight partitions, to which a producer writes all the time."""
    name = unique("topic")
    sandbox.create_topic(name, partitions=8)
    crew.feed(name, 8)
    return name


@pytest.fixture
def trap(sandbox: Sandbox, stack: ExitStack) -> Trap:
    """A proxy in front of ZooKeeper, for members whose connections get faults."""
    return stack.enter_context(Trap(sandbox.zookeeper_connect))


@pytest.fixture
def admin(sandbox: Sandbox, stack: ExitStack) -> KazooClient:
    """A ZooKeeper client that is not a member."""
    return stack.enter_context(peer_of(sandbox.zookeeper_connect))
