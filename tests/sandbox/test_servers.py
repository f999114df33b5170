"""Real servers start, die, restart on the same port, and leave no process behind."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.wait import LIMIT_S

from zkconsumer.protocol.paths import partition_state
from zkconsumer.sandbox import (
    BrokerServer,
    Sandbox,
    SandboxError,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    ports,
)
from zkconsumer.sandbox import server as server_module
from zkconsumer.sandbox.jars import find_java
from zkconsumer.sandbox.ports import free_port
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.topics import ServerTopics, session


def _session(connect: str) -> KazooClient:
    client = KazooClient(
        connect, timeout=30.0, connection_retry={"max_tries": -1, "max_delay": 0.5}
    )
    client.start(timeout=LIMIT_S)
    return client


def _leader(connect: str, topic: str, partition: int) -> int:
    path = partition_state(topic, partition)
    with session(connect) as client:
        state: dict[str, int] = json.loads(client.read([path])[path].data or b"")
    return state["leader"]


def test_zookeeper_killed_comes_back(tmp_path: Path) -> None:
    """If a ZooKeeper was killed, it starts again on the same port with the same data."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as server:
        client = _session(server.connect)
        try:
            client.create("/kept", b"value")
            port, pid = server.port, server.pid
            server.kill()
            assert not server.alive
            server.start()
            assert (server.port, server.pid != pid) == (port, True)
            assert client.retry(client.get, "/kept")[0] == b"value"
        finally:
            client.stop()
            client.close()


def test_a_server_starts_with_the_classes_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start of a server uses the class archive, unless the runtime cannot write one."""
    known = tmp_path / "classes" / "known.jsa"
    monkeypatch.setattr(server_module, "archive", lambda *_: known)
    server = ZooKeeperServer(tmp_path / "server")
    server.record_classes()
    assert not server.alive
    runtime = find_java().executable.resolve().parent.parent / "lib" / "server"
    assert known.exists() == any(runtime.glob("classes*.jsa"))
    assert [one for one in known.parent.iterdir() if one != known] == []
    with server:
        assert (str(known) in Path(f"/proc/{server.pid}/maps").read_text()) == known.exists()
    server.record_classes()  # The archive exists already, so no recording starts.
    assert not server.alive


def test_paused_zookeeper_answers_nothing(tmp_path: Path) -> None:
    """A paused ZooKeeper accepts connections, but answers nothing until it is resumed."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as server:
        server.pause()
        assert server.alive
        assert server.mode == ""
        server.resume()
        assert until(lambda: server.mode == "standalone", limit_s=LIMIT_S)


def test_paused_server_stops(tmp_path: Path) -> None:
    """A paused server can be stopped like a running one."""
    with ZooKeeperServer(tmp_path) as server:
        server.pause()
    assert not server.alive


def test_tick_decides_shortest_session(zookeeper: ZooKeeperServer) -> None:
    """With a tick of 0.1 s, the shortest session timeout of a server is 0.2 s."""
    client = KazooClient(zookeeper.connect, timeout=0.1)
    client.start(timeout=LIMIT_S)
    try:
        assert "minSessionTimeout=200" in zookeeper.command("conf")
    finally:
        client.stop()
        client.close()


def test_port_in_use(tmp_path: Path) -> None:
    """If another process listens on a given port, the error names it, and nothing starts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ZooKeeperServer(tmp_path, port=port)
        with pytest.raises(SandboxError, match=rf"port {port} for ZooKeeper is in use.*another"):
            server.start()
    assert not server.alive


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other sandbox gets a reserved port; its holder may bind the port several times."""
    port = free_port()
    monkeypatch.setattr(ports, "RANGE", range(port, port + 1))
    with pytest.raises(SandboxError, match="no free port"):
        free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_port_taken_while_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a chosen port is taken before the server binds it, another port is chosen."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "server.json").write_text(f'{{"pid": 0, "born": "", "port": {port}}}')
        monkeypatch.setattr("zkconsumer.sandbox.server.is_free", lambda port: True)
        with ZooKeeperServer(tmp_path) as server:
            assert server.port != port
            assert server.mode == "standalone"


def test_directory_in_use(tmp_path: Path) -> None:
    """A second server refuses the directory of a running server, which keeps running."""
    with ZooKeeperServer(tmp_path, tick_time_s=0.1) as first:
        with pytest.raises(
            SandboxError, match=f"already running in this directory, pid {first.pid}"
        ):
            ZooKeeperServer(tmp_path).start()
        assert first.alive


def test_foreign_process_is_left_alone(tmp_path: Path) -> None:
    """If the pid in a state file now belongs to another program, that process is left alone."""
    (tmp_path / "server.json").write_text(
        f'{{"pid": {os.getpid()}, "born": "another boot:1", "port": 2181}}'
    )
    server = ZooKeeperServer(tmp_path)
    assert not server.attach()
    server.stop()


def test_unreadable_state_file(tmp_path: Path) -> None:
    """If the state file is damaged, the server counts as not running."""
    (tmp_path / "server.json").write_text('{"pid": ')
    assert not ZooKeeperServer(tmp_path).attach()


def test_a_failed_start_shows_the_last_lines_of_the_log(tmp_path: Path) -> None:
    """If a server ends while it starts, the error contains the reason from the log."""
    server = ZooKeeperServer(tmp_path, settings={"tickTime": "nonsense"})
    with pytest.raises(SandboxError, match=r"ended at its start.*nonsense.*see ") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert not server.alive


def test_unwritable_directory() -> None:
    """If a directory cannot be created, the error names the reason and the remedy."""
    with pytest.raises(SandboxError, match=r"cannot be started.*use another directory"):
        ZooKeeperServer("/proc/no-such-place").start()


def test_full_disk(tmp_path: Path) -> None:
    """If the disk is full when a server starts, the error says so."""
    (tmp_path / "server.log").symlink_to("/dev/full")
    (tmp_path / "log4j.properties").symlink_to("/dev/full")
    with pytest.raises(SandboxError, match=r"No space left on device.*free some space"):
        ZooKeeperServer(tmp_path).start()


def test_ensemble_survives_its_leader(ensemble: ZooKeeperEnsemble) -> None:
    """If the leader is killed, another server leads; the killed one returns as a follower."""
    old = ensemble.leader()
    assert len(ensemble.followers()) == 2
    client = _session(ensemble.connect)
    try:
        client.create("/e", b"", ephemeral=True)
        session = client.client_id
        old.kill()
        assert ensemble.leader() is not old
        client.retry(client.set, "/e", b"1")
        assert client.client_id == session
        old.start()
        assert until(lambda: old.mode == "follower", limit_s=LIMIT_S)
    finally:
        client.stop()
        client.close()


def test_a_directory_with_other_letters(tmp_path: Path) -> None:
    """A server keeps its data in its directory, whose name is not ASCII."""
    directory = tmp_path / "Größe"
    with ZooKeeperServer(directory, tick_time_s=0.1) as server:
        assert server.mode == "standalone"
    assert list((directory / "data" / "version-2").glob("snapshot.*"))


def test_a_broker_s_directory_with_a_comma(tmp_path: Path) -> None:
    """A broker refuses a directory whose name its list of directories would split."""
    with pytest.raises(SandboxError, match=r"must not contain a comma.*use another directory"):
        BrokerServer(tmp_path / "a,b", zookeeper_connect="127.0.0.1:1")


def test_unknown_release(tmp_path: Path) -> None:
    """The error for an unknown broker release lists the known releases."""
    with pytest.raises(SandboxError, match=r"0\.7\.2: choose one of 0\.8\.2\.2, .*3\.9\.1"):
        BrokerServer(tmp_path, zookeeper_connect="127.0.0.1:1", release="0.7.2")


def test_unknown_zookeeper_release(tmp_path: Path) -> None:
    """The error for an unknown ZooKeeper release lists the known releases."""
    with pytest.raises(SandboxError, match=r"3\.3\.6: choose one of 3\.4\.6, .*3\.8\.4"):
        ZooKeeperServer(tmp_path, release="3.3.6")


def test_zookeeper_3_4_has_no_tls(tmp_path: Path) -> None:
    """A TLS port is refused for ZooKeeper 3.4, which would start but ignore the setting."""
    with pytest.raises(SandboxError, match=r"3\.4\.14 has no TLS.*3\.5\.10 or later"):
        ZooKeeperServer(tmp_path, release="3.4.14", settings={"secureClientPort": 2281})


def test_old_broker(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """A 0.8.2.2 broker below a chroot handles topics, partitions and messages as a new one does."""
    client = _session(zookeeper.connect)
    client.ensure_path("/old")
    client.stop()
    client.close()
    connect = f"{zookeeper.connect}/old"
    with BrokerServer(tmp_path, zookeeper_connect=connect, release="0.8.2.2"):
        topics = ServerTopics(connect)
        assert topics.create_topic("t", partitions=2) == ((0, (0,), 0), (1, (0,), 0))
        placed = topics.produce("t", 3, partition=1)
        assert placed == [(1, 0), (1, 1), (1, 2)]
        assert len(topics.add_partitions("t", partitions=3)) == 3
        topics.delete_topic("t")
        assert topics.list_topics() == ()


def test_sandbox_leaves_nothing() -> None:
    """A sandbox leaves neither a process nor a directory; two brokers share replicas."""
    # A shorter time does not suffice: on a busy machine the other broker's session would expire,
    # and no replica would be in sync.
    fast = {"zookeeper.session.timeout.ms": 5000}
    with Sandbox(brokers=2, tick_time_s=0.3, overrides=fast) as sandbox:
        placement = sandbox.create_topic("t", partitions=3, replicas=2)
        assert [p.replicas for p in placement] == [(0, 1), (1, 0), (0, 1)]
        sandbox.broker.kill()
        assert until(
            lambda: _leader(sandbox.zookeeper_connect, "t", 0) == 1,
            limit_s=LIMIT_S,
        )
        sandbox.broker.start()
        servers = [sandbox.zookeeper, *sandbox.brokers]
    assert not any(server.alive for server in servers)
    assert not sandbox.directory.exists()
