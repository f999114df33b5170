"""How kazoo waits and calls back."""

from __future__ import annotations

import socket
import threading

from kazoo.protocol.states import Callback

from zkconsumer.zk.handler import InOrderHandler


def test_watches_and_replies_keep_their_order() -> None:
    """A watch is not called before the reply that came first, however long that one takes."""
    handler = InOrderHandler()
    seen: list[str] = []
    go_on = threading.Event()
    handler.start()
    handler.completion_queue.put(lambda: go_on.wait(10) and seen.append("first reply"))
    handler.dispatch_callback(Callback("watch", seen.append, ("watch",)))
    handler.completion_queue.put(lambda: seen.append("second reply"))
    handler.callback_queue.join()  # whatever another thread could call is called by now
    go_on.set()
    handler.stop()
    assert seen == ["first reply", "watch", "second reply"]


def test_waiting_tells_what_is_ready() -> None:
    """A socket is ready to be read when something has come or the other side has gone."""
    handler = InOrderHandler()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            assert handler.select([ours], [], [], 0) == ([], [], [])
            assert handler.select([ours], [theirs], [], None) == ([], [theirs], [])
            theirs.send(b"x")
            assert handler.select([ours, theirs], [], [], 10) == ([ours], [], [])
            ours.recv(1)
        assert handler.select([ours], [], [], 10) == ([ours], [], [])
