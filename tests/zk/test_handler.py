"""The threads and sockets that replace those of kazoo."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

from kazoo.protocol.states import Callback
from support.wait import LIMIT_S, eventually

from zkconsumer.zk.kazoo_transport import InOrderHandler


def test_watches_and_replies_keep_their_order() -> None:
    """A watch event waits for the callback of an earlier reply, however long this takes."""
    handler = InOrderHandler()
    seen: list[str] = []
    go_on = threading.Event()
    handler.start()
    handler.completion_queue.put(lambda: go_on.wait(10) and seen.append("first reply"))
    handler.dispatch_callback(Callback("watch", seen.append, ("watch",)))
    handler.completion_queue.put(lambda: seen.append("second reply"))
    # A separate callback thread would have made the call when its queue is empty.
    eventually(lambda: not handler.callback_queue.unfinished_tasks)
    go_on.set()
    handler.stop()
    assert seen == ["first reply", "watch", "second reply"]


def test_select_returns_the_ready_sockets() -> None:
    """A socket counts as readable if data has arrived or the other side has closed it."""
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


def test_wakes_are_counted() -> None:
    """Every wake-up is noticed, although not every wake-up sends a byte."""
    handler = InOrderHandler()
    reading, writing = handler.create_socket_pair()
    with closing(reading), closing(writing):
        for _ in range(2):
            assert handler.select([reading], [], [], 0) == ([], [], [])
            threads = [
                threading.Thread(target=writing.send, args=(b"\0",), daemon=True) for _ in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_S)
            assert not any(thread.is_alive() for thread in threads)
            for _ in range(20):
                assert handler.select([reading], [], [], 10) == ([reading], [], [])
                assert reading.recv(1) == b"\0"
        assert reading.recv(1) == b""


def test_a_wake_ends_a_wait() -> None:
    """A wake-up ends the wait for a request."""
    handler = InOrderHandler()
    reading, writing = handler.create_socket_pair()
    with closing(reading), closing(writing):
        later = threading.Timer(0.05, writing.send, (b"\0",))
        later.start()
        assert handler.select([reading], [], [], 10) == ([reading], [], [])
        later.join(LIMIT_S)
