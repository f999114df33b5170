"""Groups on real servers; whatever a test leaves behind ends with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.members.crew import LIMIT_S, Crew
from support.zk.proxies import Trap

from zkconsumer.sandbox import Sandbox


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends everything that was entered into it, in reverse order."""
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def crew(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path, stack: ExitStack) -> Crew:
    """A group of its own on the shared servers, with no member yet."""
    return Crew(sandbox.zookeeper_connect, sandbox.bootstrap, unique("group"), tmp_path, stack)


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str], crew: Crew) -> str:
    """A topic of eight partitions to which is produced all the time."""
    name = unique("topic")
    sandbox.create_topic(name, partitions=8)
    crew.feed(name, 8)
    return name


@pytest.fixture
def trap(sandbox: Sandbox, stack: ExitStack) -> Trap:
    """A proxy before ZooKeeper, for the members that are to have trouble with their connection."""
    return stack.enter_context(Trap(sandbox.zookeeper_connect))


@pytest.fixture
def admin(sandbox: Sandbox, stack: ExitStack) -> KazooClient:
    """A client of ZooKeeper that is no member of anything."""
    client = KazooClient(sandbox.zookeeper_connect)
    client.start(timeout=LIMIT_S)
    stack.callback(client.close)
    stack.callback(client.stop)
    return client
