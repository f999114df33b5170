"""A process that is forked while fake servers run neither uses nor stops them."""

from __future__ import annotations

import os
import select
import socket

import pytest
from support.processes import in_child
from support.wait import LIMIT_S

from zkconsumer.errors import FakeServerError
from zkconsumer.testing import FakeCluster, FakeZooKeeper
from zkconsumer.testing.server import HOST


def test_a_fork_leaves_the_servers_alone() -> None:
    """In the fork calls are refused, and the end of the block stops nothing; own fakes run."""
    with FakeCluster() as kafka:
        kafka.create_topic("t")

        def act() -> None:
            with kafka:
                for call in (lambda: kafka.produce("t", ["x"]), kafka.brokers[0].restart):
                    with pytest.raises(FakeServerError, match="this is a fork"):
                        call()
            with pytest.raises(FakeServerError, match="this is a fork"):
                kafka.zookeeper.restart()
            with FakeZooKeeper() as own:
                own.create("/own")
                assert own.exists("/own")

        assert in_child(act) == 0
        kafka.produce("t", ["one"])
        assert len(kafka.messages("t")) == 1


def test_a_fork_keeps_no_connection_and_no_port_open() -> None:
    """While a fork lives, clients notice that the parent's server ends, and it can restart."""
    with FakeZooKeeper() as zookeeper:
        client = socket.create_connection((HOST, zookeeper.port), LIMIT_S)
        mine, other = socket.socketpair()
        child = os.fork()
        if not child:
            mine.close()
            client.close()
            other.send(b"!")
            other.recv(1)  # until the parent closes its end
            os._exit(0)
        other.close()
        try:
            assert mine.recv(1) == b"!"
            zookeeper.kill()
            assert select.select([client], [], [], LIMIT_S)[0]
            zookeeper.restart()
            assert zookeeper.exists("/")
        finally:
            mine.close()
            os.waitpid(child, 0)
            client.close()
