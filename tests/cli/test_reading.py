"""Commands that only read need no right to write; the logs are on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions, make_digest_acl
from support.scenes import Scene, scenes
from support.wait import LIMIT_S
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox

READ = [ACL(Permissions.READ, Id("world", "anyone"))]
COMMANDS = (
    ("topics", "list"),
    ("topics", "show"),
    ("groups", "list"),
    ("groups", "list", "--topic", "TOPIC"),
    ("groups", "show", "g"),
    ("members",),
    ("members", "--group", "g"),
    ("owners", "--group", "g"),
    ("offsets", "get", "--group", "g"),
    ("lag", "--group", "g", "--topic", "TOPIC:0,1"),
    ("lag", "--group", "g", "--group", "idle"),
    ("lag", "--group", "g", "--output", "legacy"),
    ("assign", "--group", "g"),
    ("verify", "--group", "g"),
    ("explain", "g"),
    ("offsets", "export", "--group", "g"),
    ("legacy", "ConsumerGroupCommand", "--list"),
    ("legacy", "ConsumerGroupCommand", "--describe", "--group", "g"),
    ("legacy", "ConsumerOffsetChecker", "--group", "g"),
    # Dry runs.
    ("offsets", "set", "--group", "idle", "TOPIC:0=1"),
    ("offsets", "reset", "--group", "idle", "--topic", "TOPIC", "--to-latest"),
    ("offsets", "delete", "--group", "idle", "--topic", "TOPIC"),
    ("offsets", "copy", "--from", "g", "--group", "idle"),
    ("groups", "copy", "g", "new"),
    ("groups", "rename", "idle", "new"),
    ("groups", "delete", "idle"),
    ("topics", "forget", "TOPIC", "--all-groups"),
    ("migrate", "zookeeper-to-kafka", "--group", "idle"),
)


@dataclass
class World:
    """Groups on a topic of a real broker, in a chroot that has the broker's registration."""

    scene: Scene
    topic: str

    def run(self, *arguments: str) -> Any:
        command = [self.topic if one == "TOPIC" else one for one in arguments]
        command = [one.replace("TOPIC:", f"{self.topic}:") for one in command]
        return CliRunner().invoke(app, [*command, "--zookeeper", self.scene.connect])

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == 0, result.stderr
        found: list[dict[str, Any]] = json.loads(result.stdout)
        return found


@pytest.fixture
def world(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[World]:
    """A group `g` with a member, a group `idle` without members; five messages per partition."""
    topic = unique("topic")
    sandbox.create_topic(topic, partitions=3)
    for number in range(3):  # without a number, the producer chooses
        sandbox.produce(topic, 5, partition=number)
    with peer_of(sandbox.zookeeper_connect) as above:
        broker = above.get(paths.broker(0))[0]
        states = [above.get(paths.partition_state(topic, n))[0] for n in range(3)]
        placed = above.get(paths.topic(topic))[0]
    with scenes(sandbox.zookeeper, unique("world")) as scene:
        scene.put(paths.broker(0), broker)
        scene.settled({"g_a": {topic: 2}, "g_b": {topic: 2}}, {topic: 3})
        scene.put(paths.topic(topic), placed)
        for number, state in enumerate(states):
            scene.put(paths.partition_state(topic, number), state)
        for number in range(3):
            scene.offset(topic, number, 1)
        scene.offset(topic, 0, 4, group="idle")
        yield World(scene, topic)


def _everything(client: KazooClient, root: str = "/") -> Iterator[str]:
    yield root
    for name in client.get_children(root):
        yield from _everything(client, f"{root.rstrip('/')}/{name}")


def _stats(client: KazooClient) -> dict[str, Any]:
    return {path: client.exists(path) for path in _everything(client)}


def test_reading_never_writes(world: World) -> None:
    """Commands that read, and dry runs, need only the right to read, and change no znode."""
    client = world.scene.session
    for path in _everything(client):
        client.set_acls(path, READ)
    before = _stats(client)
    for command in COMMANDS:
        result = world.run(*command)
        assert result.exit_code == 0, (command, result.stderr)
        assert result.output
        assert "Traceback" not in result.stderr
    assert _stats(client) == before


def test_a_group_that_may_not_be_read(world: World) -> None:
    """Commands name the znode and what to permit, show all else, and exit with 1."""
    nobody = [make_digest_acl("somebody", "else", all=True)]
    hidden = paths.offsets("idle")
    world.scene.session.set_acls(hidden, nobody)
    both = ("--group", "g", "--group", "idle")
    note = f"group idle: ZooKeeper does not allow this client to read the znode ({hidden}):"
    for command in (("lag",), ("lag", *both), ("offsets", "get"), ("offsets", "get", *both)):
        result = world.run(*command, "--output", "json")
        assert result.exit_code == 1, command
        assert {row["group"] for row in json.loads(result.stdout)} == {"g"}
        assert f"{note} authenticate as a user who may read it" in result.stderr
    for output in ("table", "legacy", "prometheus"):
        result = world.run("lag", "idle", "--output", output)
        assert (result.exit_code, result.stderr.count(note)) == (1, 1)
        assert "no offset is committed" not in result.stderr
        assert "messages behind" not in result.stderr
    dead = world.run("groups", "list", "--idle-for", "0s")
    assert (dead.exit_code, "group idle is skipped" in dead.stderr) == (Exit.FAILED, True)
    exported = world.run("offsets", "export")
    assert exported.exit_code == 1
    assert "idle is left out: ZooKeeper does not allow this client" in exported.stderr
    assert set(json.loads(exported.stdout)["groups"]) == {"g"}


def test_a_znode_that_may_not_be_read(world: World) -> None:
    """The rest of the group is shown, such a znode as unknown, and what to permit."""
    nobody = [make_digest_acl("somebody", "else", all=True)]
    of_offset = paths.offset("g", TopicPartition(world.topic, 0))
    of_owner = paths.owner("g", TopicPartition(world.topic, 1))
    for path in (of_offset, of_owner, paths.member("g", "g_b")):
        world.scene.session.set_acls(path, nobody)
    shown = world.run("groups", "show", "g", "--output", "json")
    assert shown.exit_code == Exit.FAILED
    hidden = f"3 znodes ({paths.member('g', 'g_b')}, {of_owner}, {of_offset})"
    assert f"to read {hidden}: authenticate as a user who may read it" in shown.stderr
    found = json.loads(shown.stdout)
    assert [one["member"] for one in found["members"]] == ["g_a"]
    rows = found["partitions"]
    assert [one["zookeeper"] for one in rows] == [None, 1, 1]
    assert [one["owner"] for one in rows] == ["g_a-0", None, "g_b-0"]
    assert of_offset in rows[0]["unknown"]["zookeeper"]
    assert of_owner in rows[1]["unknown"]["owner"]
    for command in (("lag", "g"), ("offsets", "get", "g")):
        partly = world.run(*command, "--output", "json")
        assert (partly.exit_code, f"to read {hidden}:" in partly.stderr) == (Exit.FAILED, True)
        found = json.loads(partly.stdout)
        assert [one["zookeeper"] for one in found] == [None, 1, 1]
        assert of_offset in found[0]["unknown"]["zookeeper"]
    world.scene.session.set_acls(paths.offsets("g"), nobody)
    shown = world.run("groups", "show", "g", "--output", "json")
    assert [one["zookeeper"] for one in json.loads(shown.stdout)["partitions"]] == [None] * 3
    assert "no offset is committed" not in shown.stderr


def test_lag(world: World) -> None:
    """`lag` prints the offset, the log's end, the lag, the owner, and the store."""
    rows = world.rows("lag", "--group", "g")
    assert [(row["partition"], row["owner"]) for row in rows] == [
        (0, "g_a-0"),
        (1, "g_a-1"),
        (2, "g_b-0"),
    ]
    assert sum(row["log_end"] for row in rows) == 15
    assert all(row["lag"] == row["log_end"] - 1 for row in rows)
    assert {row["source"] for row in rows} == {"zookeeper"}
    partial = world.run("lag", "--group", "idle").stderr
    assert "messages behind; lag of 2 partitions unknown" in partial
    nothing = world.run("lag", "--group", "idle", "--topic", "TOPIC:1").stderr
    assert "group idle: lag of 1 partition unknown" in nothing


def test_fail_above(world: World) -> None:
    """With --fail-above, a higher or unknown lag gives exit code 6."""
    assert world.run("lag", "--group", "g", "--fail-above", "15").exit_code == Exit.OK
    result = world.run("lag", "--group", "g", "--fail-above", "0")
    assert result.exit_code == Exit.FOUND
    assert "more than 0 messages behind" in result.stderr
    unknown = world.run("lag", "--group", "idle", "--fail-above", "1000")
    assert (unknown.exit_code, "no offset is committed" in unknown.stderr) == (Exit.FOUND, True)
    world.scene.offset(world.topic, 0, 100, group="beyond")  # the log ends at 5
    assert world.run("lag", "-g", "beyond", "--fail-above", "1000").exit_code == Exit.FOUND


def test_groups_show(world: World) -> None:
    """`groups show` prints members and partitions; standard error explains idle threads."""
    result = world.run("groups", "show", "g", "-o", "json")
    shown = json.loads(result.stdout)
    assert [one["member"] for one in shown["members"]] == ["g_a", "g_b"]
    assert [one["idle"] for one in shown["members"]] == [0, 1]
    assert len(shown["partitions"]) == 3
    assert "4 threads, 3 partitions: 1 idle by design" in result.stderr


def test_a_registration_that_cannot_be_read(world: World) -> None:
    """The number of threads is unknown, and not 0."""
    world.scene.put(paths.member("idle", "idle_a"), b"[]")
    (row,) = world.rows("members", "--group", "idle")
    assert (row["threads"], row["idle"], row["subscription"], row["owned"]) == (None, None, None, 0)
    assert row["unknown"]["threads"] == "a registration is not a JSON object"


def test_offsets_get(world: World) -> None:
    """`offsets get` prints the offset in each store, and when ZooKeeper's was written."""
    rows = world.rows("offsets", "get", "--group", "idle", "--topic", f"{world.topic}:0")
    (row,) = rows
    assert (row["zookeeper"], row["kafka"], row["written"][-1]) == (4, None, "Z")


def test_a_malformed_topic(world: World) -> None:
    """A malformed topic is named, and all other topics are still printed."""
    world.scene.put(paths.topic("bad"), b'{"version":1,"partitions":{"x":[1]}}')
    result = world.run("topics", "show", "-o", "jsonl")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)
    assert "topic bad: " in result.stderr


def test_unknown_names(world: World) -> None:
    """For an unknown group or topic, the error names it; exit code 1."""
    for command in (("groups", "show"), ("lag", "-g"), ("offsets", "get", "-g"), ("members", "-g")):
        result = world.run(*command, "nobody")
        assert (result.exit_code, "nobody does not exist" in result.stderr) == (1, True)
    assert "nobody does not exist" in world.run("groups", "show", "--group", "nobody").stderr
    for misspelled in (("owners", "idel"), ("lag", "idel"), ("groups", "delete", "idel")):
        assert "did you mean 'idle'?" in world.run(*misspelled).stderr
    for command in (("topics", "show"), ("lag", "g", "--topic"), ("consume", "--topic")):
        more = ("--offset", "0") if command[0] == "consume" else ()
        result = world.run(*command, f"{world.topic}x", *more)
        assert f"did you mean '{world.topic}'?" in result.stderr, command
    for option in ((), ("--topic",)):
        result = world.run("topics", "show", *option, "nowhere")
        assert (result.exit_code, "no such topic: nowhere" in result.stderr) == (1, True)


def test_a_selection_without_rows(world: World) -> None:
    """If no group uses a topic or partition of `--topic`, it is named, and the exit code is 1."""
    for command in (("lag", "-g", "idle"), ("lag", "--all-groups"), ("offsets", "get", "idle")):
        for text, name in (("nowhere", "nowhere"), (f"{world.topic}:0,77", f"{world.topic}-77")):
            result = world.run(*command, "--topic", text)
            assert (result.exit_code, f"{name}: no group that was" in result.stderr) == (1, True)
            assert "no offset is committed" not in result.stderr
            # A sum of no partitions is not 0 messages behind.
            assert name != "nowhere" or "messages behind" not in result.stderr
    watched = world.run("lag", "-g", "idle", "-t", f"{world.topic}:0", "--fail-above", "1000000")
    assert watched.exit_code == 0
    typo = world.run("lag", "-g", "idle", "-t", "nowhere", "--fail-above", "1000000")
    assert typo.exit_code == 1


def test_a_closed_pipe(world: World, tmp_path: Path) -> None:
    """If `head` closes the pipe, standard error stays empty, even at exit."""
    command = [
        sys.executable,
        "-m",
        "zkconsumer",
        "topics",
        "show",
        "-z",
        world.scene.connect,
        "-o",
        "jsonl",
    ]
    assert _with_a_closed_pipe(command, tmp_path) == (0, b"")


@pytest.mark.parametrize("execute", [False, True])
def test_a_closed_pipe_before_a_change(world: World, tmp_path: Path, execute: bool) -> None:
    """A change whose plan nobody could read is not made, and the command says so and fails."""
    command = [sys.executable, "-m", "zkconsumer", "groups", "delete", "idle"]
    command += ["-z", world.scene.connect, "--backup-dir", str(tmp_path)]
    code, words = _with_a_closed_pipe([*command, *["--execute"] * execute], tmp_path)
    assert code == (Exit.FAILED if execute else Exit.OK)
    assert (b"nothing was changed" in words) is execute
    assert world.run("groups", "show", "idle").exit_code == Exit.OK


def _with_a_closed_pipe(command: list[str], tmp_path: Path) -> tuple[int, bytes]:
    """Return the exit code and standard error of a command whose standard output nobody reads."""
    with (tmp_path / "err").open("wb") as words:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words)
        try:
            assert process.stdout is not None
            process.stdout.close()
            code = process.wait(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
    return code, (tmp_path / "err").read_bytes()


def test_a_full_disk(world: World) -> None:
    """If standard output cannot be written, one line says so."""
    command = [sys.executable, "-m", "zkconsumer", "topics", "show", "-z", world.scene.connect]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr == "zkconsumer: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("topics", "show"), 1),
        (("--help",), 1),
        (("verify", "g"), 0),  # it writes nothing to standard output
        (("groups", "delete", "idle", "--execute"), 1),
    ],
)
def test_closed_streams(world: World, command: tuple[str, ...], code: int) -> None:
    """With `>&-`, a command that writes fails before a change; `2>&-` only drops messages."""
    connect = ("-z", world.scene.connect) if command[0] != "--help" else ()

    def run(closed: str) -> subprocess.CompletedProcess[str]:
        text = f'exec "{sys.executable}" -m zkconsumer "$@" {closed}'
        words = ["sh", "-c", text, "sh", *command, *connect]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)

    done = run(">&-")
    assert done.returncode == code
    if code:
        assert done.stderr == "zkconsumer: standard output cannot be written: it is closed\n"
    assert world.scene.session.exists(paths.group("idle"))
    assert run("2>&-").returncode == 0
