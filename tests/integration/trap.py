"""A proxy before ZooKeeper that loses chosen replies."""

from __future__ import annotations

import socket
import threading

from proxy import Proxy, Wire

# ZooKeeper's number for a transaction.
MULTI = 14
# The number of a ping and of its reply, in place of a request's own.
PING = -2
# No frame is as large, in bytes: a four letter word instead of a length.
NO_FRAME = 1 << 26


class Trap(Proxy):
    """Once `set` for a transaction, its connection hears nothing any more; `cut` ends it.

    New connections are not affected. `connections` counts them all, `unanswered` those that began
    while the wire was silent. While `pings_only` is set, all connections hear nothing but replies
    to pings, as from a server that lost its leader.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.sprung = threading.Event()
        self.connections = 0
        self.unanswered = 0
        self.pings_only = threading.Event()
        self._bait: bytes | None = None
        self._muted: set[socket.socket] = set()

    def set(self, bait: bytes) -> None:
        """Wait for a transaction whose bytes hold `bait`, such as part of a path."""
        self.sprung.clear()
        self._bait = bait

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        self.connections += 1
        pending, is_handshake = b"", True
        while chunk := self._receive(client):
            pending += chunk
            while len(pending) >= 4:
                size = _length(pending)
                if len(pending) < size < NO_FRAME:
                    break
                frame, pending = pending[:size], pending[size:]
                if not is_handshake and self._is_bait(frame):
                    self._muted.add(client)
                    self.sprung.set()
                if self.wire is not Wire.SILENT:
                    self._send(server, frame)
                elif is_handshake:
                    self.unanswered += 1
                is_handshake = False
        self._shut(client)
        self._shut(server)

    def _is_bait(self, frame: bytes) -> bool:
        bait = self._bait
        if bait is None or int.from_bytes(frame[8:12], "big") != MULTI or bait not in frame:
            return False
        self._bait = None
        return True

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        pending, is_handshake = b"", True
        while chunk := self._receive(server):
            pending += chunk
            while len(pending) >= 4:
                size = _length(pending)
                if len(pending) < size < NO_FRAME:
                    break
                frame, pending = pending[:size], pending[size:]
                if is_handshake or self._is_heard(client, frame):
                    self._send(client, frame)
                is_handshake = False
        self._shut(client)
        self._shut(server)

    def _is_heard(self, client: socket.socket, frame: bytes) -> bool:
        if client in self._muted or self.wire is not Wire.PASS:
            return False
        number = int.from_bytes(frame[4:8], "big", signed=True)
        return number == PING or not self.pings_only.is_set()


def _length(frame: bytes) -> int:
    """The size in bytes of the first frame, with the four that say so."""
    return 4 + int.from_bytes(frame[:4], "big")
