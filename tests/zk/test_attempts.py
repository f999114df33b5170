"""Errors about an unreachable ZooKeeper name each server and the reason."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionDropped
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer import ConsumerConfig
from zkconsumer.errors import ZooKeeperUnreachableError
from zkconsumer.sandbox import Sandbox, ZooKeeperServer
from zkconsumer.zk.attempts import AttemptFault, Attempts
from zkconsumer.zk.client import ZooKeeperClient

UNKNOWN = "zookeeper.invalid:2181"
"""RFC 6761 reserves the top-level domain."""


def _config(connect: str, *, limit_s: float = 5.0) -> ConsumerConfig:
    return ConsumerConfig(
        group_id="g", zookeeper_connect=connect, zookeeper_connection_timeout_s=limit_s
    )


def _error(connect: str, *, limit_s: float = 5.0) -> str:
    with pytest.raises(ZooKeeperUnreachableError) as caught:
        ZooKeeperClient(_config(connect, limit_s=limit_s)).__enter__()
    return str(caught.value)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as one:
        yield one


def _listener(stack: ExitStack) -> tuple[socket.socket, str]:
    """Return a listening socket and its address."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"


def _answering(stack: ExitStack, answer: bytes) -> str:
    """Return the address of a server that sends `answer` and closes the connection."""
    listener, address = _listener(stack)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    stack.callback(listener.shutdown, socket.SHUT_RDWR)
    return address


def test_the_error_names_the_reason_of_each_server(stack: ExitStack) -> None:
    """An error names each server with its own reason."""
    _, silent = _listener(stack)
    closing = _answering(stack, b"")
    other = _answering(stack, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    text = _error(f"127.0.0.1:1,{silent},{closing},{other},{UNKNOWN}", limit_s=12.0)
    assert "127.0.0.1:1: Connection refused" in text
    assert f"{silent}: accepts the connection, and does not answer" in text
    assert f"{closing}: accepts the connection, and closes it: is maxClientCnxns reached" in text
    assert f"{other}: answers, but not as ZooKeeper: is this a broker?" in text
    assert f"{UNKNOWN}: unknown host (" in text


def test_an_ipv6_server_is_named_in_brackets() -> None:
    """The error names an IPv6 server as `zookeeper.connect` does."""
    assert "no ZooKeeper session within 1 s: [::1]:1: " in _error("[::1]:1", limit_s=1.0)


@pytest.mark.parametrize("host", [UNKNOWN, f"{'a' * 70}.invalid:2181"])
def test_an_unknown_host_alone_fails_at_once(host: str) -> None:
    """If no host is known, the error does not wait for the limit."""
    text = _error(host, limit_s=600.0)
    assert f"no ZooKeeper session: {host}: unknown host (" in text


def test_a_dead_name_among_other_servers(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A session with another server begins, and one line names the unknown host."""
    with ZooKeeperClient(_config(f"{UNKNOWN},{zookeeper.connect}", limit_s=LIMIT_S)) as client:
        assert "zookeeper" in client.children(["/"])["/"]
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("zkconsumer")]
    (line,) = [one for one in lines if UNKNOWN in one]
    assert line.startswith(f"ZooKeeper: connected to {zookeeper.connect}, but not to {UNKNOWN}")


def test_the_port_of_a_broker(sandbox: Sandbox) -> None:
    """A connect string that names a Kafka broker gives an error that says so."""
    text = _error(sandbox.bootstrap)
    assert f"{sandbox.bootstrap}: answers, but not as ZooKeeper: this is a Kafka broker" in text


def test_a_server_with_too_many_connections(tmp_path: Path) -> None:
    """At `maxClientCnxns`, the error names this setting."""
    limited = ZooKeeperServer(tmp_path, settings={"maxClientCnxns": 1})
    with limited as server, peer_of(server.connect):
        assert "closes it: is maxClientCnxns reached" in _error(server.connect)


def test_a_connection_that_breaks_before_the_request_is_closed_by_the_server() -> None:
    """A server that closes the connection at once may break it before the request is sent."""
    attempts = Attempts(
        open_socket=lambda address: socket.socket(), timeout_s=lambda: 6.0, unresolved=lambda: None
    )
    attempts.begin("zk1", ("127.0.0.1", 2181))
    with pytest.raises(ConnectionDropped) as caught:
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except OSError:
            raise ConnectionDropped("socket connection error")  # noqa: B904 - as kazoo raises it
    attempts.failed(caught.value)
    assert [one.fault for one in attempts.faults().values()] == [AttemptFault.CLOSES]
