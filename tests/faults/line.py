"""A proxy before ZooKeeper that is slow, or deaf in one direction."""

from __future__ import annotations

import random
import socket
import threading

from trap import Trap


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
