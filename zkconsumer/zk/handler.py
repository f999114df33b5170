"""How kazoo waits and calls back: watches and replies in one order, and cheap waiting."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback


class InOrderHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, but that watches and replies arrive in the order the server sent them.

    kazoo has a queue and a thread for each of the two. So the watch that tells of a znode's end
    could come after the reply to a create of the same znode, sent later: a member that has just
    claimed a partition would hear that it had lost it. Whoever is called back must not wait for a
    reply; this package only enqueues.
    """

    def create_socket_pair(self) -> tuple[Any, Any]:
        """What wakes kazoo's thread for each request: its reading end, and the writing end."""
        wake = _Wake(*super().create_socket_pair())
        return wake, wake.other

    def dispatch_callback(self, callback: Callback) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """One system call; kazoo's makes and closes an epoll object for each of five waits a
        request, which is half of what a request costs. No socket may be in two lists.

        A TLS socket is ready, too, when it holds bytes that it has decrypted already; kazoo asks
        the system alone, and leaves the second of two replies in one record until the next ping.
        Where there are requests to send, replies wait for these: batches have an end.
        """
        held = [one for one in rlist if getattr(one, "pending", int)()]
        if held:
            return held, [], []
        if not hasattr(select, "poll"):  # Windows
            ready: tuple[list[Any], list[Any], list[Any]]
            ready = super().select(rlist, wlist, xlist, timeout)
            return ready
        poll = select.poll()
        for one in rlist:
            poll.register(one, select.POLLIN | select.POLLPRI)
        for one in wlist:
            poll.register(one, select.POLLOUT)
        # An error or a hang-up makes ready, too: the read or write that follows reports it.
        found = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [one for one in rlist if one.fileno() in found],
            [one for one in wlist if one.fileno() in found],
            [],
        )


class _Wake:
    """The reading end of a pair of sockets; a byte is on its way only while there are any at all.

    kazoo writes one for each request and reads one for each that it sends: two system calls, and
    a third to find out that there is more to send, which `pending` tells as well.
    """

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self._ours, self._theirs = ours, theirs
        self._count, self._lock = 0, threading.Lock()
        self.other = _Waker(self, theirs)

    def fileno(self) -> int:
        return self._ours.fileno()

    def pending(self) -> int:
        return self._count

    def add(self, count: int) -> None:
        with self._lock:
            if not self._count:
                self._theirs.send(b"\0")
            self._count += count

    def recv(self, count: int) -> bytes:
        with self._lock:
            taken = min(count, self._count)
            self._count -= taken
            if taken and not self._count:
                self._ours.recv(1)
        return bytes(taken)

    def close(self) -> None:
        self._ours.close()


class _Waker:
    """The writing end."""

    def __init__(self, wake: _Wake, plain: socket.socket) -> None:
        self._wake, self._plain = wake, plain

    def send(self, data: bytes) -> int:
        self._wake.add(len(data))
        return len(data)

    def close(self) -> None:
        self._plain.close()


class BulkHandler(InOrderHandler):
    """For thousands of requests at once: few system calls for many requests and replies.

    kazoo takes a write and a wait a request, three reads and as many waits a reply. A TLS socket,
    which another function opens, is left as it is.
    """

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        return _Bulk(super().create_connection(*args, **kwargs))

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What waits to be sent goes when there is nothing more to add, and before any wait."""
        if wlist and all(isinstance(one, _Bulk) and one.has_room() for one in wlist):
            return [], list(wlist), []
        held = [one for one in rlist if getattr(one, "pending", int)()]
        if held:
            return held, [], []
        full = [one for one in (*rlist, *wlist) if isinstance(one, _Bulk) and one.waits]
        if full:
            others = [one for one in rlist if one not in full]
            ready = super().select(others, [], xlist, 0)
            if any(ready):
                return ready
            for one in full:
                one.flush()
        return super().select(rlist, wlist, xlist, timeout)


class _Bulk:
    """A socket that reads ahead and sends later; `pending` says how much was read ahead."""

    _AT_ONCE = 65_536  # bytes: some 500 replies, or 1,000 requests

    def __init__(self, plain: Any) -> None:
        self._plain, self._held, self._at, self.waits = plain, b"", 0, bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def pending(self) -> int:
        return len(self._held) - self._at

    def has_room(self) -> bool:
        return len(self.waits) < self._AT_ONCE

    def recv(self, count: int) -> bytes:
        if not self.pending():
            self._held, self._at = self._plain.recv(self._AT_ONCE), 0
        taken = self._held[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def send(self, data: bytes) -> int:
        self.waits += data
        return len(data)

    def flush(self) -> None:
        """All of it, also where that takes the other side a while to take."""
        waits, self.waits = self.waits, bytearray()
        try:
            before = self._plain.gettimeout()
            self._plain.settimeout(_FLUSH_LIMIT_S)
            try:
                self._plain.sendall(waits)
            finally:
                self._plain.settimeout(before)
        except OSError:
            # Half a request may be out: the connection is of no more use, and the read that
            # follows finds it shut.
            with suppress(OSError):
                self._plain.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self.waits:
            self.flush()
        self._plain.close()


# Seconds that a server may take to read what fills the system's own buffers; then it is given up.
_FLUSH_LIMIT_S = 5.0
