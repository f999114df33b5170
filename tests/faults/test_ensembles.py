"""An ensemble of three servers that lose their connections to each other, or restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from support.members.crew import MEASURED, Crew
from support.wait import wait_for
from support.zk.proxies import RawProxy, Wire

from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.sandbox import BrokerServer, ZooKeeperServer
from zkconsumer.sandbox.ports import free_port
from zkconsumer.sandbox.topics import ServerTopics
from zkconsumer.sandbox.zookeeper import Peer


class Trio(NamedTuple):
    """Three servers, and a proxy between the first server and the third, which is the leader."""

    servers: tuple[ZooKeeperServer, ...]
    line: RawProxy
    crew: Crew


@pytest.fixture
def trio(
    unique: Callable[[str], str], tmp_path: Path, stack: ExitStack, zookeeper_release: str
) -> Iterator[Trio]:
    """A group on three servers, of which the first reaches the third through a proxy."""
    peers = {number: Peer(free_port(), free_port()) for number in (1, 2, 3)}
    line = stack.enter_context(RawProxy(f"127.0.0.1:{peers[3].quorum_port}"))
    behind = Peer(int(line.address.rpartition(":")[2]), peers[3].election_port)
    servers = tuple(
        ZooKeeperServer(
            tmp_path / f"zookeeper-{number}",
            server_id=number,
            tick_time_s=0.1,
            heap_mb=128,
            release=zookeeper_release,
            ensemble={**peers, 3: behind} if number == 1 else peers,
        )
        for number in peers
    )
    # The first server starts after the others. If two servers vote, the third leads, never the
    # second.
    for voters in (servers[1:], servers[:1]):
        for server in voters:
            stack.callback(server.stop)
            server.launch()
        for server in voters:
            server.await_ready()
    assert [server.mode for server in servers] == ["follower", "follower", "leader"]
    others = ",".join(server.address for server in servers[1:])
    broker = stack.enter_context(BrokerServer(tmp_path / "broker", zookeeper_connect=others))
    ServerTopics(others).create_topic("orders", partitions=8)
    crew = Crew(others, broker.bootstrap, unique("group"), tmp_path, stack)
    crew.feed("orders", 8)
    yield Trio(servers, line, crew)


def test_a_follower_is_cut_from_its_leader(trio: Trio) -> None:
    """If a follower loses its leader, its client's partitions move, and none has two owners."""
    crew = trio.crew
    first, second = crew.join(), crew.join(zookeeper=trio.servers[0].address, **MEASURED)
    crew.settle(first, second)
    crew.flowing(first, second)
    cut_at = boottime()
    trio.line.wire = Wire.SILENT
    crew.settle(first)
    crew.assert_paused(second, cut_at)
    trio.line.wire = Wire.PASS
    trio.line.cut()
    wait_for(lambda: trio.servers[0].mode == "follower", "the follower to follow a leader again")
    crew.settle(first, second)
    crew.flowing(first, second)
    crew.finish()


def test_all_servers_restart(trio: Trio) -> None:
    """Servers restart one by one, then all at once: no message is lost, and the group continues."""
    crew = trio.crew
    members = [crew.join() for _ in range(2)]
    crew.settle(*members)
    crew.flowing(*members)
    for server in trio.servers:
        server.stop()
        server.start()
        crew.flowing(*members)
    for server in trio.servers:
        server.kill()
    for server in trio.servers:
        server.launch()
    for server in trio.servers:
        server.await_ready()
    crew.flowing(*members)
    crew.settle(*members)
    crew.finish()
