"""ZooKeeper comes back with less data: each client begins a new session. An outage ends none."""

from __future__ import annotations

import queue
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionDropped
from support.wait import LIMIT_S, eventually, wait_for
from support.zk.client import peer_of
from support.zk.proxies import RawProxy

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.admin.apply import apply
from zkconsumer.admin.group_changes import plan_offsets
from zkconsumer.errors import NotOwnedError, ZooKeeperUnreachableError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import Session, TopicPartition
from zkconsumer.protocol.requests import Children, Code, Reply
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.zookeeper import ZooKeeperEnsemble
from zkconsumer.zk.attempts import Attempts, HandshakeStage
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.observer import ChangeKind, Observer
from zkconsumer.zk.session import ZooKeeperSession

SESSION_S = 2.0
SYNC = 9  # ZooKeeper's number for the request
BROKER = b'{"version":1,"host":"127.0.0.1","port":1,"jmx_port":-1,"timestamp":"1"}'
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0]}}'
OFFSET = paths.offset("g", TopicPartition("t", 0))


def _config(
    connect: str, *, limit_s: float = LIMIT_S, session_s: float = SESSION_S
) -> ConsumerConfig:
    return ConsumerConfig(
        group_id="g",
        zookeeper_connect=connect,
        zookeeper_session_timeout_s=session_s,
        zookeeper_connection_timeout_s=limit_s,
    )


def _restart_empty(server: ZooKeeperServer) -> None:
    server.stop()
    shutil.rmtree(server.directory / "data")
    server.start()


class Requests(RawProxy):
    """A proxy that notes the operation of each request, by connection."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.connections: list[list[int]] = []

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        operations: list[int] = []
        self.connections.append(operations)
        pending = b""
        while chunk := self._receive(client):
            pending += chunk
            while len(pending) >= 4 and len(pending) >= (size := 4 + int.from_bytes(pending[:4])):
                operations.append(int.from_bytes(pending[8:12], signed=True))
                pending = pending[size:]
            self._send(server, chunk)
        self.end(client, server)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server whose last zxid is far from that of an empty server."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as one:
        with peer_of(one.connect) as hand:
            hand.ensure_path(OFFSET)
            for number in range(100):
                hand.set(OFFSET, b"%d" % number)
        yield one


def test_a_session_on_a_server_that_was_emptied(
    server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A new session replaces the old one, its first request is `sync`, and one line says so."""
    states: list[Session | None] = []
    with Requests(server.connect) as proxy:
        session = ZooKeeperSession(
            _config(proxy.address), on_state=states.append, on_watch=lambda kind, path: None
        )
        session.start()
        try:
            (old,) = states
            assert old is not None
            _restart_empty(server)
            eventually(lambda: (last := states[-1]) is not None and last.id != old.id)
            assert session.is_over(old.id)
            answer: queue.SimpleQueue[Sequence[Reply]] = queue.SimpleQueue()
            session.submit([Children("/")], answer.put)
            (reply,) = answer.get(timeout=LIMIT_S)
            assert (reply.code, reply.value) == (Code.OK, ["zookeeper"])
        finally:
            session.stop()
        # The first frame of a connection is the request for the session.
        assert [one[1] for one in proxy.connections if len(one) > 2][-1] == SYNC
    lines = [one.getMessage() for one in caplog.records if "lost data" in one.getMessage()]
    assert len(lines) == 1
    assert f"session 0x{old.id:x} is lost" in lines[0]


def test_tools_and_observers_on_a_server_that_was_emptied(server: ZooKeeperServer) -> None:
    """A tool's client and an observer read the new data."""
    with (
        ZooKeeperClient(_config(server.connect)) as client,
        Observer(server.connect, "g", config=_config(server.connect)) as observer,
    ):
        assert client.children(["/consumers"])["/consumers"] == ["g"]
        changes = observer.changes()
        assert next(changes)[1].after == 99
        _restart_empty(server)
        seen = [next(changes)[1]]
        while seen[-1].what is not ChangeKind.OFFSET:
            seen.append(next(changes)[1])
        assert (seen[-1].before, seen[-1].after) == (99, None)
        assert "lost" in [one.after for one in seen]
        assert client.children(["/", "/consumers"]) == {"/": ["zookeeper"]}


def test_an_outage_ends_no_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server without a quorum closes connections for a session timeout; the session survives."""
    states: list[Session | None] = []
    with ZooKeeperEnsemble(tmp_path, size=2, tick_time_s=0.1) as ensemble:
        first, second = ensemble.servers
        # After the outage, a busy client must find the server before its session ends.
        session = ZooKeeperSession(
            _config(first.connect, session_s=6.0),
            on_state=states.append,
            on_watch=lambda kind, path: None,
        )
        session.start()
        try:
            second.kill()
            wait_for(
                lambda: any("has closed each connection" in one.message for one in caplog.records),
                "a warning about the closed connections",
            )
            with pytest.raises(ZooKeeperUnreachableError, match="has no quorum"):
                ZooKeeperClient(_config(first.connect, limit_s=5.0)).__enter__()
            assert states[-1] is None
            second.start()
            eventually(lambda: states[-1] is not None)
            assert len({one.id for one in states if one is not None}) == 1
        finally:
            session.stop()


def test_a_second_session_alone_is_no_proof(server: ZooKeeperServer) -> None:
    """Two grants of a second session are a proof, one is none if the server has newer data."""
    host, _, port = server.connect.partition(":")
    attempts = Attempts(
        open_socket=lambda address: socket.create_connection(address, 60),
        timeout_s=lambda: SESSION_S,
        unresolved=lambda: None,
    )

    def refused() -> bool:
        attempts.begin(host, (host, int(port)))
        attempts.stage = HandshakeStage.GREETING
        attempts.failed(ConnectionDropped("socket connection broken"))
        return attempts.has_lost_data(seen=1, session_id=1)

    assert not refused()
    begin = time.monotonic()
    eventually(refused)
    assert time.monotonic() > begin + 2 * SESSION_S


def test_a_member_of_a_server_that_was_emptied(server: ZooKeeperServer) -> None:
    """The status says why there is no connection; then the member joins again."""

    def plant() -> None:
        with peer_of(server.connect) as hand:
            hand.create(paths.broker(0), BROKER, makepath=True)
            hand.create(paths.topic("t"), TOPIC, makepath=True)

    plant()
    connector = ConsumerConnector(_config(server.connect))
    try:
        connector.create_message_streams({"t": 1})
        eventually(lambda: len(connector.assignment()) == 2)
        first = connector.status()
        assert first.waiting_for == ""
        server.stop()
        refused = f"a connection to ZooKeeper: {server.connect}: Connection refused"
        eventually(lambda: connector.status().waiting_for == refused)
        shutil.rmtree(server.directory / "data")
        server.start()
        plant()
        eventually(lambda: connector.status().session not in (first.session, None))
        eventually(lambda: len(connector.assignment()) == 2)
        assert connector.status().waiting_for == ""
        with peer_of(server.connect) as hand:
            assert len(hand.get_children(paths.ids("g"))) == 1
            _, stat = hand.get(paths.owner("g", TopicPartition("t", 0)))
            assert stat.ephemeralOwner == connector.status().session
    finally:
        connector.shutdown()


def _position(connector: ConsumerConnector, partition: TopicPartition) -> int | None:
    """Wait until the member serves the partition; return its position."""
    found: list[int | None] = []

    def is_served() -> bool:
        with suppress(NotOwnedError):
            found.append(connector.position(partition))
        return bool(found)

    eventually(is_served)
    return found[0]


def test_an_edit_in_data_that_were_restored(server: ZooKeeperServer, tmp_path: Path) -> None:
    """A member obeys an operator who deletes an offset in restored data, and not its position."""
    data, backup = server.directory / "data", tmp_path / "backup"
    partition = TopicPartition("t", 0)
    with peer_of(server.connect) as hand:
        hand.create(paths.broker(0), BROKER, makepath=True)
        hand.create(paths.topic("t"), TOPIC, makepath=True)
    server.stop()
    shutil.copytree(data, backup / "data")
    server.start()
    connector = ConsumerConnector(_config(server.connect))
    try:
        connector.create_message_streams({"t": 1})
        assert _position(connector, partition) == 99
        session = connector.status().session
        server.stop()
        with (
            ZooKeeperServer(backup, tick_time_s=0.1) as restored,
            ZooKeeperClient(_config(restored.connect)) as client,
        ):
            plan = plan_offsets(client, "offsets delete", {"g": {partition: None}})
            apply(client, plan, backup_dir=tmp_path)
        shutil.rmtree(data)
        shutil.copytree(backup / "data", data)
        server.start()
        eventually(lambda: connector.status().session not in (session, None))
        assert _position(connector, partition) is None
    finally:
        connector.shutdown()
