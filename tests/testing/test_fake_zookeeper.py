"""The fake ZooKeeper's own features: its life, its faults, its clock, and its view from a test."""

from __future__ import annotations

import logging
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NodeExistsError, UnimplementedError
from kazoo.protocol.serialization import Connect as KazooConnect
from kazoo.protocol.states import KazooState, WatchedEvent
from support.wait import LIMIT_S, eventually
from zk.contract.test_wire import CREATE_CONTAINER, OPEN_CONTAINER, Raw, text

from zkconsumer.protocol import requests as rq
from zkconsumer.testing import (
    Delay,
    FakeServerError,
    FakeZooKeeper,
    Fault,
    Op,
    StoppedClock,
)
from zkconsumer.testing.zookeeper_wire import LACKING

Connect = Callable[..., KazooClient]


@pytest.fixture
def fake() -> Iterator[FakeZooKeeper]:
    """A fake server for one test."""
    with FakeZooKeeper() as server:
        yield server


@pytest.fixture
def connect(fake: FakeZooKeeper) -> Iterator[Connect]:
    """Return new clients of the server."""
    clients: list[KazooClient] = []

    def one(**options: Any) -> KazooClient:
        client = KazooClient(
            fake.connect,
            connection_retry={"max_tries": -1, "delay": 0.01, "max_delay": 0.05},
            **options,
        )
        clients.append(client)
        client.start(LIMIT_S)
        return client

    yield one
    for client in clients:
        client.stop()
        client.close()


def number(client: KazooClient) -> int:
    """Return the number of a client's session; 0 without one."""
    return int(client.client_id[0]) if client.client_id else 0


def fake_servers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "fake ZooKeeper"}


# ---- life ---------------------------------------------------------------------------------------


def test_a_stopped_server_leaves_no_thread_and_no_port() -> None:
    """After `stop` no thread and no socket is left, even if a client is still connected."""
    before = fake_servers()
    with FakeZooKeeper() as server:
        client = KazooClient(server.connect, connection_retry={"max_tries": 0})
        client.start(LIMIT_S)
        assert fake_servers() - before
    assert not fake_servers() - before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
    client.stop()
    client.close()


def test_znodes_written_before_the_start_are_served() -> None:
    """A test can prepare znodes before `start`, and read them after `stop`."""
    server = FakeZooKeeper()
    server.create("/a/b", b"1")
    with server:
        client = KazooClient(server.connect)
        client.start(LIMIT_S)
        assert client.get("/a/b")[0] == b"1"
        client.set("/a/b", b"2")
        client.stop()
        client.close()
    assert server.get("/a/b") == b"2"


@pytest.mark.parametrize("release", ["3.2.9", "newest", ""])
def test_an_unknown_release_is_refused(release: str) -> None:
    """The error says which releases exist."""
    with pytest.raises(FakeServerError, match=r"from 3\.3 on"):
        FakeZooKeeper(release=release)


def test_a_port_in_use_is_an_error_and_leaves_no_thread(fake: FakeZooKeeper) -> None:
    """A second server at the same port does not start."""
    before = fake_servers()
    with pytest.raises(OSError, match="in use"):
        FakeZooKeeper(port=fake.port).start()
    assert not fake_servers() - before


# ---- the server as a test sees it ---------------------------------------------------------------


def test_a_test_reads_and_writes_znodes(fake: FakeZooKeeper, connect: Connect) -> None:
    """The test's own writes fire the watches of clients; refusals name the znode."""
    client = connect()
    fake.create("/a/b", b"1")
    events: list[WatchedEvent] = []
    client.get("/a/b", watch=events.append)
    fake.set("/a/b", b"2")
    eventually(lambda: [one.type for one in events] == ["CHANGED"])
    assert fake.children("/a") == ("b",)
    with pytest.raises(FakeServerError, match=r"NODE_EXISTS \(/a/b\)"):
        fake.create("/a/b")
    fake.delete("/a")
    assert not fake.exists("/a")
    with pytest.raises(FakeServerError, match=r"no such znode \(/a\)"):
        fake.get("/a")


def test_sessions_are_listed_with_their_ephemerals(fake: FakeZooKeeper, connect: Connect) -> None:
    """A test finds the session of an ephemeral znode, and the znodes of a session."""
    client = connect()
    client.create("/id", ephemeral=True)
    assert fake.owner("/id") == number(client)
    (session,) = fake.sessions
    assert (session.id, session.ephemerals) == (number(client), ("/id",))
    assert session.peer is not None
    fake.kill()
    assert fake.sessions == (session._replace(peer=None),)


def test_a_local_session_registers_and_ends(fake: FakeZooKeeper, connect: Connect) -> None:
    """A session of the test's process owns ephemeral znodes and gets watch events."""
    client, local = connect(), fake.session()
    fake.create("/ids")
    local.request(rq.Create("/ids/0", b"broker", ephemeral=True))
    local.request(rq.Children("/ids", watch=True))
    assert client.exists("/ids/0").ephemeralOwner == local.id
    client.create("/ids/1")
    assert local.take_events() == [("CHILD", "/ids")]
    local.close()
    assert client.get_children("/ids") == ["1"]


def test_a_listener_hears_of_each_change(fake: FakeZooKeeper, connect: Connect) -> None:
    """A listener gets the changes of clients and of the test, in order."""
    heard: list[str] = []
    fake.listen(lambda change: heard.append(change.path))
    connect().create("/a")
    fake.create("/b")
    assert heard == ["/a", "/b"]


def test_an_empty_container_is_deleted(fake: FakeZooKeeper, connect: Connect) -> None:
    """Once a minute the server deletes the containers that have lost their last child."""
    with ExitStack() as stack:
        raw = Raw(fake.connect, stack)
        for path in ("/emptied", "/full", "/unused"):
            assert raw.ask(CREATE_CONTAINER, text(path) + OPEN_CONTAINER)[0] == 0
    client = connect()
    for path in ("/emptied/a", "/full/a"):
        client.create(path)
    client.delete("/emptied/a")
    assert fake.exists("/emptied")
    fake.advance(61)
    assert [path for path in ("/emptied", "/full", "/unused") if fake.exists(path)] == [
        "/full",
        "/unused",
    ]


# ---- what is refused ----------------------------------------------------------------------------


def test_a_lacking_request_is_named(
    fake: FakeZooKeeper, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that the fake lacks gets UNIMPLEMENTED, and the log names it."""
    client = connect()
    with pytest.raises(UnimplementedError), caplog.at_level(logging.ERROR):
        client.reconfig("server.9=x", "", "")
    assert "does not know the request reconfig" in caplog.text
    assert fake.command("ruok") == "imok"


def test_an_old_release_does_not_know_newer_requests(caplog: pytest.LogCaptureFixture) -> None:
    """ZooKeeper 3.3 has no transactions."""
    with FakeZooKeeper(release="3.3.6") as server:
        client = KazooClient(server.connect)
        client.start(LIMIT_S)
        transaction = client.transaction()
        transaction.create("/a")
        with pytest.raises(UnimplementedError):
            transaction.commit()
        client.stop()
        client.close()
    assert "ZooKeeper 3.3.6 does not know the request MULTI" in caplog.text


def test_a_client_of_another_protocol_is_turned_away(
    fake: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """A Kafka client that connects to ZooKeeper's port sees the connection end."""
    with socket.create_connection(("127.0.0.1", fake.port), timeout=LIMIT_S) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))  # ApiVersions
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert "does not speak ZooKeeper's protocol" in caplog.text


def test_a_four_letter_word_names_the_release(fake: FakeZooKeeper, connect: Connect) -> None:
    """kazoo reads the release; an unknown word is answered as a server does that forbids it."""
    assert connect().server_version() == (3, 8, 4)
    assert f"sid={fake.sessions[0].id:#x}" in fake.command("cons")
    assert "zk_znode_count\t3\n" in fake.command("mntr")
    assert "tickTime=100\n" in fake.command("conf")
    assert "not in the whitelist" in fake.command("dump")


def test_the_page_names_what_is_lacking() -> None:
    """docs/testing.md names each request that the fake refuses, and its example runs."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    _, _, alone = page.partition("## ZooKeeper alone")
    _, _, lacking = alone.partition("## What the fakes lack")
    assert [name for name in LACKING.values() if name not in lacking] == []
    exec(alone.partition("```python\n")[2].partition("```")[0], {})


# ---- faults -------------------------------------------------------------------------------------


def test_an_expired_session_loses_its_ephemerals(fake: FakeZooKeeper, connect: Connect) -> None:
    """The znodes are gone at once, and the client gets a new session."""
    client = connect()
    states: list[str] = []
    client.add_listener(states.append)
    client.create("/id", ephemeral=True)
    before = number(client)
    fake.expire(before)
    assert not fake.exists("/id")
    eventually(lambda: number(client) not in (0, before) and client.connected)
    assert KazooState.LOST in states
    with pytest.raises(FakeServerError, match="no session"):
        fake.expire(before)


def test_a_cut_connection_keeps_the_session(fake: FakeZooKeeper, connect: Connect) -> None:
    """The client reconnects with the same number, and its ephemeral znodes stay."""
    client = connect()
    states: list[str] = []
    client.add_listener(states.append)
    client.create("/id", ephemeral=True)
    before = number(client)
    fake.cut(before)
    eventually(lambda: states == [KazooState.SUSPENDED, KazooState.CONNECTED])
    assert number(client) == before == fake.owner("/id")


@pytest.mark.parametrize(
    ("fault", "is_executed"), [(Fault.CUT_BEFORE, False), (Fault.CUT_AFTER, True)]
)
def test_a_request_is_cut_off(
    fake: FakeZooKeeper, connect: Connect, *, fault: Fault, is_executed: bool
) -> None:
    """The connection ends at the chosen request, which was executed or not; then all is well."""
    client = connect()
    with fake.inject(fault, op=Op.CREATE, path="/a") as injection:
        client.create("/b")
        assert injection.count == 0
        with pytest.raises(ConnectionLoss):
            client.create("/a")
        assert injection.wait(LIMIT_S)
    assert fake.exists("/a") is is_executed
    if is_executed:
        with pytest.raises(NodeExistsError):
            client.retry(client.create, "/a")
    else:
        client.retry(client.create, "/a")


def test_a_reply_is_lost_until_the_client_gives_up(fake: FakeZooKeeper, connect: Connect) -> None:
    """After a lost reply the client hears nothing more, and reconnects by itself."""
    client = connect(timeout=0.6)
    with fake.inject(Fault.SILENCE, path="/a"), pytest.raises(ConnectionLoss):
        client.create("/a")
    assert fake.exists("/a")
    assert client.retry(client.exists, "/a") is not None


def test_a_delayed_reply_keeps_the_order(fake: FakeZooKeeper, connect: Connect) -> None:
    """The reply of the next request waits behind the delayed one; another client's does not."""
    client, other = connect(), connect()
    with fake.inject(Delay(4.0), path="/a"):
        slow, next_one = client.create_async("/a"), client.exists_async("/")
        assert other.exists("/") is not None
        assert not slow.ready()
        assert slow.get(timeout=LIMIT_S) == "/a"
        assert next_one.get(timeout=LIMIT_S) is not None


def test_an_isolated_client_loses_its_session(fake: FakeZooKeeper, connect: Connect) -> None:
    """The session expires without its client; after `heal` the client gets a new session."""
    client, other = connect(timeout=0.5), connect()
    client.create("/id", ephemeral=True)
    states: list[str] = []
    client.add_listener(states.append)
    before = number(client)
    fake.isolate(before)
    eventually(lambda: other.exists("/id") is None)
    assert KazooState.LOST not in states
    fake.heal()
    eventually(lambda: client.connected and number(client) not in (0, before))


def connection_of(fake: FakeZooKeeper, stack: ExitStack, session: int = 0) -> socket.socket:
    """Return a connection that opens a session or continues it; the reply is not read."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", fake.port), LIMIT_S))
    hello = bytes(KazooConnect(0, 0, 10_000, session, bytes(16), False).serialize())
    connection.sendall(struct.pack(">i", len(hello)) + hello)
    return connection


def test_an_isolated_client_hears_nothing(fake: FakeZooKeeper) -> None:
    """The end of the session does not end its client's connections; `heal` ends each of them."""
    with ExitStack() as stack:
        first = connection_of(fake, stack)
        (session,) = struct.unpack_from(">q", first.recv(1000), 12)
        fake.isolate(session)
        second = connection_of(fake, stack, session)
        assert connection_of(fake, stack).recv(1000)  # so the server has read the one before
        fake.expire(session)
        assert connection_of(fake, stack).recv(1000)
        assert select.select([first, second], [], [], 0)[0] == []
        fake.heal()
        for one in (first, second):
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""


def test_a_paused_server_answers_after_its_pause(fake: FakeZooKeeper, connect: Connect) -> None:
    """No request is answered during the pause, and each one after it."""
    client = connect()
    fake.pause()
    reply = client.create_async("/a")
    assert fake.exists("/a") is False
    assert not reply.ready()
    fake.resume()
    assert reply.get(timeout=LIMIT_S) == "/a"


def test_a_restart_keeps_sessions_and_data(fake: FakeZooKeeper, connect: Connect) -> None:
    """Clients cannot connect between `kill` and `restart`; then they continue their sessions."""
    client = connect()
    client.create("/id", ephemeral=True)
    before = number(client)
    fake.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", fake.port), timeout=LIMIT_S)
    fake.restart()
    # The client may not have noticed the kill yet: then its first request has a lost connection.
    assert client.retry(client.exists, "/id") is not None
    assert number(client) == before


def test_a_server_that_lost_its_data_refuses_who_saw_more(
    fake: FakeZooKeeper, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Data and zxids go back to the backup; a client that has seen later zxids stays outside."""
    client = connect()
    client.create("/old", b"1")
    fake.back_up()
    client.create("/new")
    last_zxid = client.exists("/new").czxid
    fake.lose_data()
    assert (fake.exists("/old"), fake.exists("/new")) == (True, False)
    eventually(lambda: "its client has seen the zxid" in caplog.text)
    assert not client.connected
    fresh = connect()
    fresh.create("/again")
    assert fresh.exists("/again").czxid == last_zxid


# ---- time ---------------------------------------------------------------------------------------


def test_a_session_expires_in_the_tests_own_time() -> None:
    """With a stopped clock only `advance` lets a session expire, and writes have its time."""
    clock = StoppedClock(start=1000.0)
    with FakeZooKeeper(clock=clock) as server:
        gone, alive = KazooClient(server.connect), KazooClient(server.connect)
        for client, path in ((gone, "/gone"), (alive, "/alive")):
            client.start(LIMIT_S)
            client.create(path, ephemeral=True)
        assert alive.exists("/gone").ctime == 1_000_000
        server.isolate(number(gone))
        server.advance(9.9)
        assert server.exists("/gone")
        server.advance(0.2)
        assert (server.exists("/gone"), server.exists("/alive")) == (False, True)
        for client in (gone, alive):
            client.stop()
            client.close()


def test_a_clock_does_not_go_back() -> None:
    """`advance` refuses a negative time."""
    with pytest.raises(ValueError, match="cannot go back"):
        StoppedClock().advance(-1.0)
