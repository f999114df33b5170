"""TCP proxies before ZooKeeper: `Proxy` cuts connections and loses replies, `Trap` chooses which
replies, `Line` is slow or loses requests."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self

# A pump that waits for bytes looks this often, in seconds, whether it is to end.
_LOOK_S = 0.05
# ZooKeeper's number of a watch event where a reply has the number of its request.
_WATCH_EVENT = -1
# ZooKeeper's number for a transaction.
MULTI = 14
# The number of a ping and of its reply, in place of a request's own.
PING = -2
# No frame is as large, in bytes: a four letter word instead of a length.
NO_FRAME = 1 << 26


class Wire(Enum):
    """What happens to the bytes."""

    PASS = "both directions pass"
    LOSE_REPLIES = "requests pass, what the server answers is lost"
    SILENT = "nothing passes, and nobody is told"


class Proxy:
    """Stands before one server; a context manager. `address` is for the client's connect string."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.wire = Wire.PASS
        # What ZooKeeper sent, in its order: "event" for a watch's, "reply" for everything else.
        self.received: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Ends every connection; new ones are accepted as before."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            self._shut(end)

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._shut(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._open):
            end.close()

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.settimeout(_LOOK_S)
            with self._lock:
                self._open |= {client, server}
            self._run(self._requests, client, server)
            self._run(self._replies, client, server)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := self._receive(client):
            if self.wire is not Wire.SILENT:
                self._send(server, chunk)
        self._shut(client)
        self._shut(server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        pending = b""
        is_handshake = True
        while chunk := self._receive(server):
            if self.wire is not Wire.PASS:
                continue
            pending += chunk
            while len(pending) >= 8 and len(pending) >= (size := _length(pending)):
                if not is_handshake:
                    number = int.from_bytes(pending[4:8], "big", signed=True)
                    self.received.append("event" if number == _WATCH_EVENT else "reply")
                is_handshake = False
                pending = pending[size:]
            self._send(client, chunk)
        self._shut(client)
        self._shut(server)

    def _receive(self, source: socket.socket) -> bytes:
        while not self._closed.is_set():
            try:
                return source.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return b""
        return b""

    def _send(self, target: socket.socket, chunk: bytes) -> None:
        try:
            target.sendall(chunk)
        except OSError:
            self._shut(target)

    @staticmethod
    def _shut(end: socket.socket) -> None:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side was first


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


class Line(Trap):
    """`delay_s`: each chunk takes a random part of it. While `deaf` is set requests are lost.

    `asked` counts the requests of all connections, with the one that opens a session.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.delay_s = 0.0
        self.deaf = threading.Event()
        self.asked = 0
        self._servers: set[socket.socket] = set()
        self._random = random.Random(1)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        self._servers.add(server)
        super()._requests(client, server)

    def _send(self, target: socket.socket, chunk: bytes) -> None:
        if self.delay_s:
            self._closed.wait(self._random.uniform(0, self.delay_s))
        self.asked += target in self._servers
        if not (self.deaf.is_set() and target in self._servers):
            super()._send(target, chunk)


def _length(frame: bytes) -> int:
    """The size in bytes of the first frame, with the four that say so."""
    return 4 + int.from_bytes(frame[:4], "big")
