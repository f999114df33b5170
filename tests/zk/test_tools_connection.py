"""The client of the tools: it reads ahead, pipelines, and survives a server's restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.internals import sender_of, session_of
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig
from zkconsumer.errors import AccessDeniedError, ZooKeeperUnreachableError
from zkconsumer.protocol.requests import Code, Create, Right
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.client import ZooKeeperClient
from zkconsumer.zk.kazoo_transport import MAX_MULTI_READ


def _config(server: ZooKeeperServer) -> ConsumerConfig:
    return ConsumerConfig(
        group_id="g",
        zookeeper_connect=server.connect,
        zookeeper_session_timeout_s=6,
        zookeeper_connection_timeout_s=LIMIT_S,
    )


def test_large_and_small_replies_in_one_batch(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """Replies that exceed the read-ahead buffer arrive whole, and in order with short replies."""
    root = f"/{unique('ahead')}"
    data = {f"{root}/{n}": bytes([n % 251]) * (n * 997 % 200_000) for n in range(200)}
    with ZooKeeperClient(_config(zookeeper)) as connection:
        assert connection.write([Create(root)]).code is Code.OK
        for path, payload in data.items():
            assert connection.write([Create(path, payload)]).code is Code.OK
        found = connection.read([*data, f"{root}/none"])
        assert list(found) == list(data)
        assert {path: node.data for path, node in found.items()} == data
        assert connection.children([root])[root] == sorted(map(str, range(200)))


def test_reads_in_one_request_equal_single_reads(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """Many reads in one request return the same as single reads, even below a chroot."""
    chroot = f"/{unique('together')}"
    nobody = (Right("digest:nobody:x", 31),)
    payloads = {f"/{n}": None if n % 7 == 0 else b"%d" % n * (n % 50) for n in range(200)}
    config = _config(zookeeper)
    with ZooKeeperClient(config) as connection:
        assert connection.write([Create(chroot)]).code is Code.OK
    config = dataclasses.replace(config, zookeeper_connect=f"{zookeeper.connect}{chroot}")
    with ZooKeeperClient(config) as connection:
        for path, data in payloads.items():
            assert connection.write([Create(path, data), Create(f"{path}/ü")]).code is Code.OK
        assert connection.write([Create("/no", b"", rights=nobody)]).code is Code.OK
        wanted = ["/", *payloads, "/none", "/no"]
        many, few = connection.read_allowed(wanted), dict[str, object]()
        for path in wanted:
            few |= connection.read_allowed([path])
        assert str(many.pop("/no")) == str(few.pop("/no"))
        assert many == few
        assert list(many) == ["/", *payloads]
        with pytest.raises(AccessDeniedError, match="/no"):
            connection.read(wanted)
        stats = connection.stats(wanted[:-1])
        assert set(stats) == {"/", *payloads}
        assert stats["/7"] == connection.stats(["/7"])["/7"]
        # Before ZooKeeper 3.8.3 a client that may not read a znode may still read its stat.
        seen = []
        for several in (["/no"], wanted):
            try:
                seen.append(str(connection.stats(several)["/no"]))
            except AccessDeniedError as error:
                seen.append(str(error))
        assert seen[0] == seen[1]
        found = connection.children(wanted[:-1])
        assert set(found) == {"/", *payloads}
        assert found["/"] == sorted([*(path[1:] for path in payloads), "no"])
        assert found["/7"] == ["ü"]


@pytest.mark.parametrize("release", ["3.4.6", "3.5.10"])
def test_a_server_that_takes_single_reads_only(
    zookeeper_of: Callable[[str], ZooKeeperServer], unique: Callable[[str], str], release: str
) -> None:
    """A server before 3.6 gets single reads, even after a reconnect from a newer server."""
    server, root = zookeeper_of(release), f"/{unique('single')}"
    paths = [f"{root}/{n}" for n in range(4 * MAX_MULTI_READ)]
    with ZooKeeperClient(_config(server)) as connection:
        session = session_of(connection)
        sender = sender_of(connection)
        assert session.server_release() == tuple(map(int, release.split(".")))
        assert not sender.has_multi_read
        assert connection.write([Create(root), *map(Create, paths)]).code is Code.OK
        assert list(connection.read([*paths, "/none"])) == paths
        # Pretend that the connection has moved here from a newer server: this server refuses the
        # request, and closes the connection.
        sender.has_multi_read = True
        assert list(connection.read([*paths, "/none"])) == paths
        assert not sender.has_multi_read


def test_a_server_that_was_away(tmp_path: Path) -> None:
    """While the server is down a read fails at its time limit; a later read succeeds."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as server:
        config = ConsumerConfig(
            group_id="g",
            zookeeper_connect=server.connect,
            zookeeper_session_timeout_s=3.0,
            zookeeper_connection_timeout_s=3.0,
        )
        with ZooKeeperClient(config) as connection:
            assert connection.children(["/"])["/"] == ["zookeeper"]
            server.kill()
            with pytest.raises(ZooKeeperUnreachableError):
                connection.children(["/"])
            server.start()
            with ZooKeeperClient(_config(server)):
                pass  # The server accepts clients again.

            def is_read() -> bool:
                with suppress(ZooKeeperUnreachableError):
                    return connection.children(["/"])["/"] == ["zookeeper"]
                return False

            eventually(is_read)
