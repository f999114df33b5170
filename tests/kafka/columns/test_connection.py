"""A connection of the columnar reader: when `select` reports a response."""

from __future__ import annotations

import select
import socket
import sys

import pytest

from zkconsumer.kafka.columns.connection import Connection


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may report each packet")
def test_a_response_arrives_before_the_program_waits_for_it() -> None:
    """`select` reports a few bytes to a program that waits, and not to one that does other work."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(socket.create_connection(server.getsockname()), "tests")
        broker, _ = server.accept()
    connection.set_blocking(False)
    connection.accept_ahead()
    broker.sendall(b"a few bytes")
    assert not select.select([connection], [], [], 0.1)[0]
    connection.await_response()
    assert select.select([connection], [], [], 30)[0]
    connection.close()
    broker.close()
