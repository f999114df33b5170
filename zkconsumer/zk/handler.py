"""How kazoo waits and calls back: watches and replies in one order, and cheap waiting."""

from __future__ import annotations

import select
from collections.abc import Sequence
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


class ReadAheadHandler(InOrderHandler):
    """For thousands of requests at once: what has come is taken from the system in one go.

    kazoo takes three reads and as many waits a reply. A TLS socket reads ahead by itself.
    """

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        return _ReadAhead(super().create_connection(*args, **kwargs))


class _ReadAhead:
    """A socket whose `recv` keeps what it was not asked for; `pending` says how much that is."""

    _AT_ONCE = 65_536  # bytes: some 500 replies

    def __init__(self, plain: Any) -> None:
        self._plain, self._held, self._at = plain, b"", 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def pending(self) -> int:
        return len(self._held) - self._at

    def recv(self, count: int) -> bytes:
        if not self.pending():
            self._held, self._at = self._plain.recv(self._AT_ONCE), 0
        taken = self._held[self._at : self._at + count]
        self._at += len(taken)
        return taken
