"""Ends a ZooKeeper session for real, by a second connection."""

from __future__ import annotations

import socket
import struct

from kazoo.protocol.serialization import Close, Connect

from support.wait import LIMIT_S

# The session's own client reconnects at once, and sometimes wins the race.
TAKE_OVERS = 20
SESSION_TIMEOUT_MS = 10_000
_CLOSE_XID = 1


def expire(server: str, identity: tuple[int, bytes]) -> None:
    """End the session with this number and password, as a timeout would.

    A second connection takes the session over and closes it. Both requests are sent in one write.
    If the second connection waited for the first answer, the session's own client could take the
    session back in between.

    Args:
        server: The server's `host:port`; further servers and a chroot are ignored.
        identity: The session's number and password, as kazoo's `client_id`.

    Raises:
        AssertionError: In every attempt, the server served the session's own client first.
    """
    for _ in range(TAKE_OVERS):
        if _is_closed(server, identity):
            return
    raise AssertionError(f"session {identity[0]:#x} does not end")


def _is_closed(server: str, identity: tuple[int, bytes]) -> bool:
    number, password = identity
    connect = Connect(0, 0, SESSION_TIMEOUT_MS, number, password, False).serialize()
    close = struct.pack(">ii", _CLOSE_XID, Close.type)
    host, _, port = server.partition("/")[0].partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(_frame(connect) + _frame(close))
        granted = _receive(connection)
        if granted is None:
            return False
        # If the session has ended, the server answers with session 0 and closes the connection.
        if struct.unpack_from(">q", granted, 8)[0] != number:
            return True
        return _receive(connection) is not None


def _frame(body: bytes | bytearray) -> bytes:
    return struct.pack(">i", len(body)) + bytes(body)


def _receive(connection: socket.socket) -> bytes | None:
    """Return the next frame; empty if the server has closed the connection."""
    try:
        head = _exactly(connection, 4)
        return _exactly(connection, struct.unpack(">i", head)[0])
    except (EOFError, ConnectionError):
        return None


def _exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = connection.recv(size - len(got))
        if not part:
            raise EOFError
        got += part
    return got
