"""The effect on a process when Spark unpickles this package's part of a task."""

from __future__ import annotations

import pickle
import socket
import sys

import pytest

from zkconsumer.spark.pickling import Pickled


class Part(Pickled):
    """The smallest object that Spark can send as part of a task."""

    def __init__(self, word: str) -> None:
        self.word = word


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no TCP_QUICKACK")
def test_a_tasks_connections_acknowledge_at_once() -> None:
    """TCP connections of a task acknowledge at once; other files and sockets are unchanged."""
    packed = pickle.dumps(Part("x"))
    local, remote = socket.socketpair(socket.AF_UNIX)
    with socket.create_server(("127.0.0.1", 0)) as server, local, remote:
        with socket.create_connection(server.getsockname()) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0
            assert pickle.loads(packed).word == "x"
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        local.send(b"x")
        assert remote.recv(1) == b"x"


def test_a_platform_without_tcp_quickack(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without TCP_QUICKACK the sockets are unchanged, and no error is raised."""
    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    assert pickle.loads(pickle.dumps(Part("x"))).word == "x"
