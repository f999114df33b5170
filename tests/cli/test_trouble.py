"""Errors and notes of the command line when something fails, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli.conftest import Run, Spawn
from support.scenes import scenes
from support.wait import LIMIT_S
from support.zk.client import peer_of

from zkconsumer.protocol import paths
from zkconsumer.sandbox import Sandbox, ZooKeeperServer
from zkconsumer.testing import wait_until_settled

Unique = Callable[[str], str]


def test_a_missing_chroot(sandbox: Sandbox, call: Run) -> None:
    """For a chroot that does not exist, one line names it; exit code 3."""
    connect = f"{sandbox.zookeeper_connect}/nowhere"
    code, out, err = call("consume", "--zookeeper", connect, "--group", "g", "--topic", "t")
    assert (code, out) == (3, "")
    assert err.startswith("zkconsumer: the chroot /nowhere does not exist")
    assert err.count("\n") == 1


def test_blanks_between_servers(sandbox: Sandbox, call: Run) -> None:
    """A connect string may have blanks around its servers, as in Java's properties files."""
    connect = f" {sandbox.zookeeper_connect} , {sandbox.zookeeper_connect} "
    assert call("topics", "list", "--zookeeper", connect)[0] == 0


def test_a_trace_that_cannot_be_written(
    sandbox: Sandbox, call: Run, unique: Unique, tmp_path: Path
) -> None:
    """A trace file that cannot be written is a wrong setting: one line, and exit code 2."""
    path = tmp_path / "absent" / "trace"
    connect = ("--zookeeper", sandbox.zookeeper_connect, "--group", unique("g"), "--topic", "t")
    code, out, err = call("consume", *connect, "--trace", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("zkconsumer: the trace cannot be written: No such file or directory")
    assert str(path) in err
    assert err.count("\n") == 1


def test_an_unknown_topic(sandbox: Sandbox, run: Run, spawn: Spawn, unique: Unique) -> None:
    """If a topic is unknown the command waits, and says so on stderr at once and at its end."""
    topic = unique("unknown")
    connect = ("--zookeeper", sandbox.zookeeper_connect, "--group", topic, "--topic", topic)
    code, out, err = run("consume", *connect, "--idle-timeout", "8")
    assert (code, out) == (0, "")
    assert f"WARNING zkconsumer.consumer.member_thread: {topic}_" in err
    assert err.endswith(f"zkconsumer: 0 messages (topic {topic} does not exist)\n")
    existing = f"{topic}s"
    sandbox.create_topic(existing, partitions=1)
    process = spawn("consume", *connect)
    assert process.stderr is not None
    wanted = f"zkconsumer: topic {topic} does not exist; did you mean '{existing}'"
    assert any(wanted in line.decode() for line in process.stderr)


def test_more_consumers_than_partitions(
    sandbox: Sandbox, spawn: Spawn, run: Run, unique: Unique
) -> None:
    """If a consumer has no partition, it says why it has written nothing."""
    topic = unique("full")
    sandbox.create_topic(topic, partitions=1)
    connect = ("--zookeeper", sandbox.zookeeper_connect, "--group", topic, "--topic", topic)
    # The assignor sorts the consumers by their ids.
    spawn("consume", *connect, "--property", "consumer.id=a")
    wait_until_settled(sandbox.zookeeper_connect, topic, members=1, timeout_s=LIMIT_S)
    code, out, err = run("consume", *connect, "--property", "consumer.id=b", "--idle-timeout", "10")
    assert (code, out) == (0, "")
    reason = "the group has more consumer threads than the topic has partitions"
    assert err.splitlines()[-1] == f"zkconsumer: 0 messages ({reason})"


def test_a_malformed_topic(zookeeper: ZooKeeperServer, run: Run, unique: Unique) -> None:
    """If no member can parse a topic's znode, the command ends with an error that names it."""
    with scenes(zookeeper, unique("malformed")) as scene:
        scene.put(paths.topic("t"), b"[]")
        connect = ("--zookeeper", scene.connect, "--group", "g", "--topic", "t")
        code, out, err = run("consume", *connect, "--idle-timeout", "60")
        assert (code, out) == (1, "")
        assert "t: a topic is not a JSON object" in err.splitlines()[-1]


def test_a_topic_that_becomes_malformed(sandbox: Sandbox, spawn: Spawn, unique: Unique) -> None:
    """A command that owns partitions reports the znode, and continues to write their messages."""
    topic = unique("becomes")
    path = f"/brokers/topics/{topic}"
    sandbox.create_topic(topic, partitions=1)
    connect = ("--zookeeper", sandbox.zookeeper_connect, "--group", topic, "--topic", topic)
    # The second thread owns nothing, so its stream raises the error.
    process = spawn(
        "consume", *connect, "--threads", "2", "--from-beginning", "--max-messages", "20"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with peer_of(sandbox.zookeeper_connect) as client:
        sandbox.produce(topic, 10)
        assert all(process.stdout.readline() for _ in range(10))
        sound = client.get(path)[0]
        client.set(path, b"[]")
        said = iter(process.stderr.readline, b"")
        assert any(line.startswith(f"zkconsumer: {topic}: a topic is".encode()) for line in said)
        client.set(path, sound)
        sandbox.produce(topic, 10)
        assert len(process.stdout.read().splitlines()) == 10
        assert process.wait(timeout=LIMIT_S) == 0
