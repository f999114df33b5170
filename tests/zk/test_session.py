"""A member's ZooKeeper session on a fake server: lost clients, and silent servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from support.internals import client_of
from support.logged import logged
from support.wait import LIMIT_S, eventually
from support.zk.proxies import Proxy

from zkconsumer import ConsumerConfig
from zkconsumer.testing import FakeZooKeeper, zookeeper_service
from zkconsumer.zk.session import ZooKeeperSession


class Spoiler(Proxy):
    """Falsifies the number of one reply (`spoil`), which ends kazoo's connection loop for good."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.spoil = threading.Event()

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := self._receive(server):
            number = int.from_bytes(chunk[4:8], "big", signed=True)
            if number > 0 and self.spoil.is_set():
                chunk = chunk[:4] + (number + 1000).to_bytes(4, "big") + chunk[8:]
            self._send(client, chunk)
        self.end(client, server)


def _session(
    connect: str, on_death: Callable[[object], None] = print, *, timeout_s: float = 2.0
) -> ZooKeeperSession:
    config = ConsumerConfig(
        group_id="g",
        zookeeper_connect=connect,
        zookeeper_session_timeout_s=timeout_s,
        zookeeper_connection_timeout_s=LIMIT_S,
    )
    return ZooKeeperSession(
        config, on_state=print, on_watch=lambda kind, path: None, on_death=on_death
    )


def test_a_new_client_knows_the_last_zxid() -> None:
    """After a client has failed for good, the next ones know the last transaction that it saw."""
    died = threading.Event()
    with FakeZooKeeper() as zookeeper, Spoiler(zookeeper.connect) as spoiler:
        session = _session(spoiler.address, lambda death: died.set())
        session.start()
        zookeeper.create("/new")
        client = client_of(session)
        client.exists("/new")
        last = client.last_zxid
        assert last > 0

        spoiler.spoil.set()
        client.exists_async("/new")
        assert died.wait(LIMIT_S)
        zookeeper.kill()
        for _ in range(2):
            session.recreate()
            assert client_of(session).last_zxid == last
        session.stop()


def test_an_attempt_ends_within_the_granted_session_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit of an attempt to connect follows the session timeout that the server grants."""
    monkeypatch.setattr(zookeeper_service, "MAX_SESSION_TIMEOUT_S", 2.0)
    with FakeZooKeeper() as zookeeper:
        session = _session(zookeeper.connect, timeout_s=30 * LIMIT_S)
        session.start()
        assert session.timeout_s == 2.0
        zookeeper.pause()
        zookeeper.cut()
        eventually(
            lambda: any("Connection time-out" in one for one in logged(caplog, "kazoo.client"))
        )
        session.stop()
