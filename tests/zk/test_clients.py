"""The addresses of clients, asked from real servers that permit it in one way, or in none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.wait import LIMIT_S, eventually
from support.zk.clients import address_of

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.protocol.model import session_text
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.sandbox.ports import free_port
from zkconsumer.zk.clients import ClientAddresses, ConnectedClient, client_addresses


def config(*servers: str) -> ConnectionConfig:
    return ConnectionConfig.from_properties({"zookeeper.connect": ",".join(servers)})


def session_of(client: KazooClient) -> int:
    """Return the number of a client's session, as znodes of the client show it."""
    return int(client.client_id[0])


def test_the_address_of_a_session(zookeeper: ZooKeeperServer) -> None:
    """A server that permits `cons` tells the address of a session, and who has just written."""
    client = KazooClient(zookeeper.connect)
    client.start(LIMIT_S)
    try:
        found = client_addresses(config(zookeeper.connect))
        session = session_of(client)
        assert found.of(session) == address_of(zookeeper, client)
        assert f"{session_text(session)} is a client at 127.0.0.1:" in found.describe(session)
        # A write is found only before the client's next ping.
        for _ in range(100):
            client.create("/write", ephemeral=True)
            zxid = client.delete("/write") and client.last_zxid
            writers = client_addresses(config(zookeeper.connect)).writers([zxid])
            if writers:
                break
        address = address_of(zookeeper, client)
        assert writers == [f"{session_text(session)} is this client, at {address}"]
    finally:
        client.stop()
        client.close()


def test_a_server_that_does_not_answer(zookeeper: ZooKeeperServer) -> None:
    """If one server of several is down, its clients are unknown, and the text names it."""
    down = f"127.0.0.1:{free_port()}"
    found = client_addresses(config(zookeeper.connect, down), admin_port=free_port())
    assert found.of(-1) is None
    assert found.silent.keys() == {down}
    text = found.describe(0x1000)
    assert f"the address of 0x1000 is unknown: {down}: there is no answer to `cons`" in text
    assert "4lw.commands.whitelist" in text


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[tuple[ZooKeeperServer, int]]:
    """A server that permits only its admin server, and the port of this."""
    port = free_port()
    settings = {
        "4lw.commands.whitelist": "srvr",
        "admin.enableServer": "true",
        "admin.serverPort": port,
        "admin.serverAddress": "127.0.0.1",
    }
    with ZooKeeperServer(tmp_path, settings=settings) as server:
        yield server, port


def test_a_server_that_permits_only_its_admin_server(strict: tuple[ZooKeeperServer, int]) -> None:
    """The admin server is asked if `cons` is not permitted; without it, the text says so."""
    server, port = strict
    client = KazooClient(server.connect)
    client.start(LIMIT_S)
    try:
        answers: list[str | None] = []

        def is_known() -> bool:
            found = client_addresses(config(server.connect), admin_port=port)
            answers.append(found.of(session_of(client)))
            return answers[-1] is not None

        eventually(is_known)  # the admin server's first answers may come too late
        assert re.fullmatch(r"127\.0\.0\.1:\d+", answers[-1] or ""), answers
        unknown = client_addresses(config(server.connect), admin_port=free_port())
        assert unknown.of(session_of(client)) is None
        text = unknown.describe(session_of(client))
        assert "`cons` is not permitted, and the admin server does not answer on port" in text
        assert f"`echo cons | nc 127.0.0.1 {server.port}`" in text
    finally:
        client.stop()
        client.close()


def test_a_client_that_may_have_written() -> None:
    """A later write is no proof, and a client whose last request reads is not named."""
    clients = {
        1: ConnectedClient("10.0.0.1:1", "SETD", 50),
        2: ConnectedClient("10.0.0.2:2", "PING", 60),
        3: ConnectedClient("10.0.0.3:3", "MULT", 30),
    }
    (found,) = ClientAddresses(clients).writers([40])
    assert found.startswith("0x1 may be this client, at 10.0.0.1:1")
    assert ClientAddresses(clients).writers([30]) == ["0x3 is this client, at 10.0.0.3:3"]
    assert ClientAddresses(clients).writers([70]) == []
    clients[4] = ConnectedClient("10.0.0.4:4", "CREA")
    (unknown,) = ClientAddresses(clients).writers([70])
    assert unknown.startswith("0x4 may be this client, at 10.0.0.4:4")


def test_a_session_without_a_sign() -> None:
    """Servers print a session without a sign; znodes have it with one."""
    found = ClientAddresses({0xC800_0000_0000_0000: ConnectedClient("10.0.0.1:4242")})
    assert found.of(-0x3800_0000_0000_0000) == "10.0.0.1:4242"


def test_no_server_knows_the_session() -> None:
    """If all servers answer, the text says that none has the session."""
    assert "no server that zookeeper.connect names" in ClientAddresses().describe(1)


def test_the_command_for_a_server_with_an_ipv6_address() -> None:
    """`nc` takes an IPv6 address without brackets."""
    found = ClientAddresses(silent={"[::1]:2181": "unknown host"})
    assert "`echo cons | nc ::1 2181`" in found.why_unknown
