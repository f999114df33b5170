"""TCP proxies before ZooKeeper: `Proxy` cuts connections and loses replies, `Trap` chooses which
replies, `Line` is slow or loses requests."""

from __future__ import annotations

import random
import socket
import threading

from zkconsumer.sandbox import proxy
from zkconsumer.sandbox.proxy import PING, WATCH_EVENT, Wire

# ZooKeeper's number for a transaction.
MULTI = 14

__all__ = ["MULTI", "Line", "Proxy", "RawProxy", "Trap", "Wire"]


class Proxy(proxy.Proxy):
    """The proxy of the sandbox, which also records what ZooKeeper has sent, in order.

    `received` has "event" for a watch event and "reply" for everything else.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.received: list[str] = []

    def _is_heard(self, client: socket.socket, frame: bytes) -> bool:
        is_heard = super()._is_heard(client, frame)
        if is_heard:
            number = int.from_bytes(frame[4:8], "big", signed=True)
            self.received.append("event" if number == WATCH_EVENT else "reply")
        return is_heard


class RawProxy(proxy.Proxy):
    """A proxy for a protocol without ZooKeeper's frames, such as the protocol between servers.

    A connection that has lost bytes ends as soon as bytes may pass again, because no connection of
    TCP continues behind a gap. A follower that misses a transaction in the middle of its leader's
    stream accepts the next ones, and lacks the missing one for ever.
    """

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        self._copy(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        self._copy(server, client)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        has_gap = False
        while chunk := self._receive(source):
            has_gap = has_gap or self.wire is not Wire.PASS
            if not has_gap:
                self._send(target, chunk)
            elif self.wire is Wire.PASS:
                break
        self.end(source, target)


class Trap(Proxy):
    """After `set` has chosen a transaction, holds back its replies; `cut` closes the connection.

    New connections are not affected. `connections` counts all connections, and `unanswered` those
    that began while replies were held back. While `pings_only` is set, all connections receive only
    replies to pings, as from a server that lost its leader.
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
        """Choose the next transaction that contains `bait`, such as a part of a path."""
        self.sprung.clear()
        self._bait = bait

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        self.connections += 1
        for number, frame in enumerate(self._frames(client)):
            if number and self._is_bait(frame):
                self._muted.add(client)
                self.sprung.set()
            if self.wire is not Wire.SILENT:
                self._send(server, frame)
            elif not number:
                self.unanswered += 1
        self.end(client, server)

    def _is_bait(self, frame: bytes) -> bool:
        bait = self._bait
        if bait is None or int.from_bytes(frame[8:12], "big") != MULTI or bait not in frame:
            return False
        self._bait = None
        return True

    def _is_welcome(self) -> bool:
        return True

    def _is_heard(self, client: socket.socket, frame: bytes) -> bool:
        if client in self._muted or not super()._is_heard(client, frame):
            return False
        number = int.from_bytes(frame[4:8], "big", signed=True)
        return number == PING or not self.pings_only.is_set()


class Line(Trap):
    """Delays each chunk by a random part of `delay_s`. While `deaf` is set, requests are lost.

    `asked` counts the requests of all connections, including those that open a session.
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
