"""A TCP proxy in front of ZooKeeper, which breaks or mutes the connections of one client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Self

_POLL_INTERVAL_S = 0.05
"""Seconds between two checks whether a thread that waits for bytes should end."""

WATCH_EVENT, PING = -1, -2
"""Request numbers (xid) that ZooKeeper uses for a watch event, and for a ping and its reply.
"""

NO_FRAME = 1 << 26
"""Size in bytes that no frame reaches. A four-letter word read as a length exceeds this size."""


class Wire(Enum):
    """What the proxy does with the bytes of its connections."""

    PASS = "both directions pass"
    LOSE_REPLIES = "requests pass, and all replies are lost"
    SILENT = "no bytes pass, and neither side is notified"


class Proxy:
    """A proxy in front of one server, as a context manager. Put `address` into the client's connect
    string.

    Attributes:
        wire: what the proxy does with the bytes of all connections.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._closed = threading.Event()
        self._loses_next = threading.Event()
        self.wire = Wire.PASS

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def open_connections(self) -> int:
        """The number of clients that are connected."""
        with self._lock:
            return len(self._open) // 2

    def cut(self) -> None:
        """Break every connection; the proxy accepts new ones."""
        with self._lock:
            ends = list(self._open)
        self.end(*ends)

    def lose_next_reply(self) -> None:
        """Let the server execute the next request, and break the connection before its reply."""
        self._loses_next.set()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self.end(self._listener)
        self.cut()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        self._listener.close()

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        def run() -> None:
            try:
                work(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, daemon=True)
        with self._lock:
            self._threads.add(thread)
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
                end.settimeout(_POLL_INTERVAL_S)
            with self._lock:
                self._open |= {client, server}
            self._run(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Serve one connection until both of its directions have ended."""
        requests = threading.Thread(target=self._requests, args=(client, server), daemon=True)
        requests.start()
        self._replies(client, server)
        requests.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := self._receive(client):
            if self.wire is not Wire.SILENT:
                self._send(server, chunk)
        self.end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        for number, frame in enumerate(self._frames(server)):
            if self._is_heard(client, frame) if number else self._is_welcome():
                self._send(client, frame)
        self.end(client, server)

    def _frames(self, source: socket.socket) -> Iterator[bytes]:
        """Yield the frames that arrive until the connection ends. The first frame is the handshake
        of the session."""
        pending = b""
        while chunk := self._receive(source):
            pending += chunk
            while len(pending) >= 4:
                size = length(pending)
                if len(pending) < size < NO_FRAME:
                    break
                frame, pending = pending[:size], pending[size:]
                yield frame

    def _is_welcome(self) -> bool:
        """Return whether a client gets the reply that opens or continues its session."""
        return self.wire is Wire.PASS

    def _is_heard(self, client: socket.socket, frame: bytes) -> bool:
        """Return whether the client gets a reply or a watch event."""
        if self._loses_next.is_set() and _number(frame) not in (PING, WATCH_EVENT):
            self._loses_next.clear()
            self.cut()
            return False
        return self.wire is Wire.PASS

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
            self.end(target)

    @staticmethod
    def end(*sockets: socket.socket) -> None:
        """End both directions of connections."""
        for one in sockets:
            with suppress(OSError):  # the other side has already closed the connection
                one.shutdown(socket.SHUT_RDWR)


def length(frame: bytes) -> int:
    """Return the size in bytes of the first frame, with the four bytes that contain it."""
    return 4 + int.from_bytes(frame[:4], "big")


def _number(frame: bytes) -> int:
    return int.from_bytes(frame[4:8], "big", signed=True)
