"""The tools' plain connection: reads ahead, many at once, and survives its server."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkconsumer import ConsumerConfig
from zkconsumer.errors import ZooKeeperUnreachableError
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.connection import Connection
from zkconsumer.zk.requests import Code, Create


def _config(server: ZooKeeperServer) -> ConsumerConfig:
    return ConsumerConfig(
        group_id="g", zookeeper_connect=server.connect, zookeeper_session_timeout_s=0.6,
        zookeeper_connection_timeout_s=20,
    )  # fmt: skip


def test_large_and_small_replies_in_one_batch(zookeeper: ZooKeeperServer, unique: object) -> None:
    """Replies longer than what is read ahead, between short ones, come whole and in order."""
    root = f"/{unique('ahead')}"  # type: ignore[operator]
    data = {f"{root}/{n}": bytes([n % 251]) * (n * 997 % 200_000) for n in range(200)}
    with Connection(_config(zookeeper)) as connection:
        assert connection.write([Create(root)]).code is Code.OK
        for path, payload in data.items():
            assert connection.write([Create(path, payload)]).code is Code.OK
        found = connection.read([*data, f"{root}/none"])
        assert list(found) == list(data)
        assert {path: node.data for path, node in found.items()} == data
        assert connection.children([root])[root] == sorted(map(str, range(200)))


def test_a_server_that_was_away(tmp_path: Path) -> None:
    """Gone for longer than the session: a read says so in its time, and a later one succeeds."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as server:
        config = ConsumerConfig(
            group_id="g", zookeeper_connect=server.connect, zookeeper_session_timeout_s=0.6,
        )  # fmt: skip
        with Connection(config) as connection:
            assert connection.children(["/"])["/"] == ["zookeeper"]
            server.kill()
            with pytest.raises(ZooKeeperUnreachableError):
                connection.children(["/"])
            server.start()
            with Connection(_config(server)):
                pass  # it lets clients in
            for _ in range(50):
                try:
                    assert connection.children(["/"])["/"] == ["zookeeper"]
                    break
                except ZooKeeperUnreachableError:
                    continue
            else:
                pytest.fail("it never came back")
