"""Three servers that are upgraded while a group uses them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from support.members.crew import Crew, MemberProcess

from zkconsumer.sandbox import BrokerServer, ZooKeeperServer
from zkconsumer.sandbox.ports import free_port
from zkconsumer.sandbox.topics import ServerTopics
from zkconsumer.sandbox.zookeeper import Peer

UPGRADE = ("3.4.6", "3.5.10", "3.8.4")
# On a busy machine of two cores a server starts within three seconds; then an election follows.
SESSION_S = 10.0


class Upgraded:
    """Three servers that keep their directories and ports when their release changes."""

    def __init__(self, directory: Path, release: str, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._peers = {number: Peer(free_port(), free_port()) for number in (1, 2, 3)}
        self._ports = {number: free_port() for number in self._peers}
        self.servers = {number: self._server(number, release) for number in self._peers}
        for server in self.servers.values():
            server.launch()
        for server in self.servers.values():
            server.await_ready()

    def _server(self, number: int, release: str) -> ZooKeeperServer:
        server = ZooKeeperServer(
            self._directory / f"zookeeper-{number}",
            release=release,
            server_id=number,
            ensemble=self._peers,
            port=self._ports[number],
            tick_time_s=0.1,
            heap_mb=128,
            # A 3.4 server may have written a log but no snapshot yet. 3.5 refuses such data, unless
            # it is told to trust the data during an upgrade (ZOOKEEPER-3056).
            settings={"snapshot.trust.empty": "true"},
        )
        self._stack.callback(server.stop)
        return server

    @property
    def connect(self) -> str:
        return ",".join(server.address for server in self.servers.values())

    def upgrade(self, number: int, release: str) -> None:
        """Stop a server, and start another release of it on the same data."""
        self.servers[number].stop()
        self.servers[number] = self._server(number, release)
        self.servers[number].start()

    def followers_first(self) -> list[int]:
        """Return the order of an upgrade in which each release needs only one election."""
        return sorted(self.servers, key=lambda number: self.servers[number].mode == "leader")


def test_a_rolling_upgrade(unique: Callable[[str], str], tmp_path: Path, stack: ExitStack) -> None:
    """From 3.4 to 3.5 to 3.8, three members lose neither a message nor a session."""
    ensemble = Upgraded(tmp_path, UPGRADE[0], stack)
    broker = stack.enter_context(
        BrokerServer(
            tmp_path / "broker",
            zookeeper_connect=ensemble.connect,
            release="1.1.1",
            overrides={"zookeeper.session.timeout.ms": round(SESSION_S * 1000)},
        )
    )
    topic = unique("topic")
    ServerTopics(ensemble.connect).create_topic(topic, partitions=8)
    crew = Crew(ensemble.connect, broker.bootstrap, unique("group"), tmp_path, stack)
    crew.feed(topic, 8)
    members = [crew.join(zookeeper_session_timeout_s=SESSION_S) for _ in range(3)]
    crew.settle(*members)
    crew.flowing(*members)
    owners = crew.observer.snapshot().owners
    for release in UPGRADE[1:]:
        for number in ensemble.followers_first():
            ensemble.upgrade(number, release)
            crew.flowing(*members)
        crew.settle(*members)
    said = [server.command("srvr") for server in ensemble.servers.values()]
    assert [f"version: {UPGRADE[-1]}-" in one for one in said] == [True] * 3
    assert crew.observer.snapshot().owners == owners
    _quiet(crew, members)
    assert crew.finish().duplicates() == 0


def _quiet(crew: Crew, members: list[MemberProcess]) -> None:
    """Check that no member reads the group again while messages flow."""
    before = [member.rebalances for member in members]
    for _ in range(3):
        crew.flowing(*members)
    assert [member.rebalances for member in members] == before
