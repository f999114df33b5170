"""The simulated replicas, quorum and restarts behave like a real ensemble."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from support.wait import LIMIT_S

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code
from zkconsumer.sandbox import ZooKeeperEnsemble
from zkconsumer.sandbox.process import until
from zkconsumer.sim.zookeeper import ReplicaBehind, SimZooKeeper

# Seconds without a reply that count as silence. Any reply takes less time here, and a follower
# abandons its leader and disconnects its clients only after 3 s.
SILENCE_S = 1.0
# Number of attempts: on a busy machine a reply may take longer than `SILENCE_S`.
TRIES = 10


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers for all tests of this module; each test leaves all three running."""
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("replicas")) as running:
        yield running


@contextmanager
def _client(address: str, *, timeout_s: float = 10.0) -> Iterator[KazooClient]:
    client = KazooClient(
        address,
        timeout=timeout_s,
        connection_retry={"max_tries": -1, "delay": 0.02, "max_delay": 0.2},
    )
    client.start(LIMIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _is_silent(result: Any) -> bool:
    """Return whether a request gets no reply within `SILENCE_S`."""
    try:
        result.get(timeout=SILENCE_S)
    except KazooTimeoutError:
        return True
    return False


def _answers_without_leader(servers: ZooKeeperEnsemble) -> tuple[Any, ...] | None:
    """Return the answers to reads, to a sync, and to a read sent after the sync.

    None means that the follower has abandoned its leader; then it follows another leader, and
    answers every request.
    """
    leader, follower = servers.leader(), servers.followers()[0]
    with _client(follower.address) as waiting, _client(follower.address) as reading:
        dropped: list[str] = []
        for client in (waiting, reading):
            client.ensure_path("/a")
            client.sync("/a")
            client.add_listener(dropped.append)
        if servers.leader() is not leader:
            return None
        leader.pause()
        try:
            before = waiting.exists("/a"), reading.exists("/a")
            sync = waiting.sync_async("/a")
            behind = waiting.exists_async("/a")
            found = *before, reading.exists("/a"), _is_silent(sync), behind.ready()
        except KazooException:
            assert until(lambda: bool(dropped), limit_s=LIMIT_S)
        finally:
            leader.resume()
        return None if dropped else found


def test_a_follower_without_its_leader_reads_on_and_syncs_not(servers: ZooKeeperEnsemble) -> None:
    """Without its leader a follower answers reads, but neither a sync nor reads sent after it."""
    tries = (_answers_without_leader(servers) for _ in range(TRIES))
    found = next((one for one in tries if one is not None), None)
    assert found is not None, "the follower abandoned its leader in each attempt"
    *reads, silent, answered = found
    assert reads and all(reads)
    assert silent
    assert not answered

    sim = SimZooKeeper(replicas=2)
    one, two = (sim.connect(now=0.0, timeout_s=10.0, replica=1) for _ in range(2))
    assert one is not None
    assert two is not None
    sim.write(rq.Create("/a", b"1"))
    sim.cut_off(1)
    assert sim.request(one, rq.SyncLeader("/a"), 0.0) is None
    assert sim.request(one, rq.Get("/a"), 0.0) is None
    answer = sim.request(two, rq.Get("/a"), 0.0)
    assert answer is not None
    assert answer.value.data == b"1"


def test_a_session_outlives_a_loss_of_quorum_longer_than_its_timeout(
    servers: ZooKeeperEnsemble,
) -> None:
    """Without a leader no session expires; a new leader gives each its whole timeout again."""
    with _client(servers.connect, timeout_s=4.0) as client:
        client.create("/id", ephemeral=True)
        number = client.client_id[0]
        lost = servers.servers[:2]
        for server in lost:
            server.kill()
        began = time.monotonic()
        assert until(lambda: time.monotonic() - began > 8.0, limit_s=LIMIT_S)
        assert not client.connected
        for server in lost:
            server.launch()
        for server in lost:
            server.await_ready()
        assert until(lambda: client.connected, limit_s=LIMIT_S)
        assert client.client_id[0] == number
        assert client.retry(client.exists, "/id").ephemeralOwner == number

    sim = SimZooKeeper()
    session = sim.connect(now=0.0, timeout_s=2.0)
    assert session is not None
    sim.request(session, rq.Create("/id", ephemeral=True), 0.0)
    sim.lose_quorum()
    assert sim.tick(5.0) == []
    sim.regain_quorum()
    assert sim.tick(5.0) == []
    assert sim.connect(now=6.0, timeout_s=2.0, session=session) == session
    answer = sim.request(session, rq.Exists("/id"), 6.0)
    assert answer is not None
    assert (answer.code, answer.value.owner) == (Code.OK, session)


def test_a_session_moves_between_servers_and_leaves_its_watches(
    servers: ZooKeeperEnsemble,
) -> None:
    """A session that moves to another server keeps its id and its ephemeral znodes."""
    one, two = (server.address for server in servers.servers[:2])
    with _client(one) as first:
        first.create("/id", ephemeral=True)
        number = first.client_id[0]
        with _client(two) as other:
            moved = KazooClient(two, timeout=10.0, client_id=first.client_id)
            moved.start(LIMIT_S)
            other.sync("/id")
            assert other.exists("/id").ephemeralOwner == number == moved.client_id[0]
            moved.stop()
            moved.close()

    sim = SimZooKeeper(replicas=2)
    session = sim.connect(now=0.0, timeout_s=10.0, replica=0)
    assert session is not None
    sim.request(session, rq.Create("/id", ephemeral=True), 0.0)
    assert sim.connect(now=0.0, timeout_s=10.0, replica=1, session=session) == session
    assert sim.nodes["/id"].stat.owner == session


def test_a_server_that_is_behind_refuses_the_client(servers: ZooKeeperEnsemble) -> None:
    """A server refuses a client that has seen a later zxid, but the client's session continues."""
    with _client(servers.servers[0].address) as client:
        number = client.client_id
        ahead = KazooClient(servers.servers[1].address, timeout=10.0, client_id=number)
        ahead.last_zxid = 1 << 60
        with pytest.raises(KazooTimeoutError):
            ahead.start(SILENCE_S)
        ahead.stop()
        ahead.close()
        assert client.exists("/") is not None
        assert client.client_id == number

    sim = SimZooKeeper(replicas=2)
    session = sim.connect(now=0.0, timeout_s=10.0)
    assert session is not None
    sim.set_lag(1, 1)
    sim.request(session, rq.Create("/a"), 0.0)
    with pytest.raises(ReplicaBehind):
        sim.connect(now=0.0, timeout_s=10.0, replica=1, session=session)
    assert sim.request(session, rq.Exists("/a"), 0.0) is not None


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_restart_of_all_servers_keeps_a_session(replicas: int) -> None:
    """As on a real ensemble, a session survives a stop of all servers, however long."""
    sim = SimZooKeeper(replicas=replicas)
    session = sim.connect(now=0.0, timeout_s=2.0)
    assert session is not None
    sim.restart(15.0)
    assert sim.tick(16.9) == []
    assert sim.connect(now=16.9, timeout_s=2.0, session=session) == session
