"""The commands `verify`, `doctor` and `explain`: formats, exit codes, texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.security import make_acl
from support.scenes import Scene, scenes
from support.zk.clients import address_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer

TWO = {"g_a": {"orders": 2}, "g_b": {"orders": 1, "logs": 1}}
SIZES = {"orders": 7, "logs": 2}

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Scene]:
    """A group `g` that has settled."""
    with scenes(zookeeper, unique("scene")) as one:
        one.settled(TWO, SIZES)
        yield one


@pytest.fixture
def ask(scene: Scene) -> Ask:
    """Run a command on the scene, in this process."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [command, *arguments, "--zookeeper", scene.connect])
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result.exit_code, result.stdout, result.stderr

    return run


def break_it(scene: Scene) -> None:
    """Delete the owner of one partition, and add an offset of a deleted topic to another group."""
    scene.session.delete(paths.owner("g", TopicPartition("orders", 6)))
    scene.offset("deleted", 0, 7, "h")


def test_verify(ask: Ask, scene: Scene) -> None:
    """`verify` exits with 0 for a settled group, 6 for findings, 1 for an unknown group."""
    assert ask("verify", "--group", "g") == (0, "", "zkconsumer: group g has settled\n")
    assert ask("verify", "--group", "g", "--output", "json")[:2] == (0, "[]\n")
    break_it(scene)
    code, out, err = ask("verify", "--group", "g")
    assert (code, err) == (6, "")
    assert "partition 6 without an owner" in out
    code, out, _ = ask("verify", "--group", "g", "-o", "jsonl")
    row = json.loads(out)
    assert (code, row["code"], row["partitions"]) == (6, "no-owner", [6])
    assert ask("verify", "--group", "nobody")[0] == 1


def test_doctor(ask: Ask, scene: Scene) -> None:
    """`doctor` prints each finding with its reason and remedy, for one group or for all."""
    code, out, err = ask("doctor", "--no-logs")
    assert (code, out, err) == (0, "", "zkconsumer: no problem found\n")
    break_it(scene)
    code, out, err = ask("doctor", "--no-logs", "--patience", "0")
    assert code == 6
    assert "ERROR no-owner  group g: orders" in out
    assert "WARNING offset-of-nothing  group h: deleted" in out
    assert out.count("    why: ") == out.count("    remedy: ") == 2
    assert err == "zkconsumer: 2 problems, of which --fix can fix 1\n"
    code, out, _ = ask("doctor", "--no-logs", "--group", "h", "-o", "json")
    (row,) = json.loads(out)
    assert (code, row["group"], row["fixable"]) == (6, "h", True)
    assert row["why"]


def test_doctor_fixes(ask: Ask, scene: Scene, tmp_path: Path) -> None:
    """A dry run shows the plan; --execute writes a backup, applies the plan, examines again."""
    path = scene.put(paths.owner("g", TopicPartition("logs", 2)), b"g_gone-0")
    asked = ("doctor", "--no-logs", "--group", "g", "--fix", "--backup-dir", str(tmp_path))
    code, out, err = ask(*asked)
    assert code == 0  # as each dry run
    assert "delete" in out
    assert "group g: 1 problem, of which --fix can fix 1" in err
    assert "    remedy: delete it (see the plan below)\n" in out
    assert "dry run, nothing was written: 1 change planned" in err
    assert scene.session.exists(path)
    assert not list(tmp_path.iterdir())
    code, out, err = ask(*asked, "--execute")
    assert code == 0, err
    assert "done: 1 change made" in err
    assert err.endswith("zkconsumer: group g: no problem found\n")
    assert not scene.session.exists(path)
    assert len(list(tmp_path.iterdir())) == 1


def test_doctor_refuses_offsets_of_a_live_group(ask: Ask, scene: Scene, tmp_path: Path) -> None:
    """`doctor --fix --execute` refuses to change a live group's offsets, unless forced."""
    path = scene.offset("orders", 1, "12\n")
    asked = (
        "doctor",
        "--no-logs",
        "--group",
        "g",
        "--fix",
        "--execute",
        "--backup-dir",
        str(tmp_path),
    )
    code, _, err = ask(*asked)
    assert (code, scene.session.get(path)[0]) == (4, b"12\n")
    assert "live members" in err
    assert ask(*asked, "--force-live")[0] == 0
    assert scene.session.get(path)[0] == b"12"


def test_doctor_by_the_members_own_file(ask: Ask, tmp_path: Path) -> None:
    """`doctor` takes the group from a member's properties file, and checks the file's settings."""
    file = tmp_path / "consumer.properties"
    file.write_text("group.id=g\nrebalance.backoff.ms=100\n")
    code, out, err = ask("doctor", "--no-logs", "--config", str(file))
    assert code == 6
    assert "WARNING short-retries  group g" in out
    assert err.splitlines()[0] == f"zkconsumer: group g, from file {file}"
    assert err.splitlines()[-1].startswith("zkconsumer: group g: 1 problem")


def test_brokers_that_do_not_answer_are_a_note(ask: Ask) -> None:
    """If brokers do not answer, a note says so, and the last line refers to it."""
    code, out, err = ask("doctor", "--timeout", "0.5")
    assert code == 0
    assert "NOTE log-unknown" in out
    assert err == "zkconsumer: no problem found (1 note: something could not be examined)\n"


def test_explain(ask: Ask, scene: Scene) -> None:
    """`explain` prints text and a table, or JSON; exit code 6 means that members would fail."""
    code, out, err = ask("explain", "g")
    assert (code, err) == (0, "")
    assert "7 partitions / 3 threads = 2 each, and 7 mod 3 = 1" in out
    rows = [line.split()[:3] for line in out.splitlines()]
    assert ["1", "g_a-0", "0-2"] in rows
    code, out, _ = ask("explain", "--group", "g", "--topic", "logs", "-o", "json")
    document = json.loads(out)
    assert list(document["topics"]) == ["logs"]
    assert document["threads"][0]["partitions"] == [0, 1]
    assert ask("explain", "g", "--topic", "other")[0] == 1
    scene.hold(paths.member("g", "x"), b"hello")
    code, _, err = ask("explain", "g")
    assert code == 6
    assert err.count("fails if it is a JVM member: kafka.common.KafkaException") == 3
    assert "orders?" in ask("explain", "g", "--topic", "order")[2].replace("'", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify",),
        ("explain",),
        ("doctor", "--group", "a/b"),
        ("doctor", "--patience", "-1"),
        ("doctor", "--execute"),
        ("doctor", "--fix"),
        ("doctor", "--all-groups", "g"),
        ("doctor", "--watch", "--fix", "-g", "g"),
    ],
)
def test_wrong_usage(ask: Ask, arguments: tuple[str, ...]) -> None:
    """A missing group or a wrong value gives exit code 2."""
    assert ask(*arguments)[0] == 2


def test_read_only(ask: Ask, scene: Scene) -> None:
    """None of these commands changes a znode, whatever they find."""
    break_it(scene)
    before = _stats(scene)
    for code, *command in (
        (6, "verify", "--group", "g"),
        (6, "doctor", "--no-logs"),
        (0, "explain", "g"),
        (0, "doctor", "--no-logs", "--fix", "--all-groups"),
    ):
        assert ask(*map(str, command))[0] == code, command
    assert _stats(scene) == before


def test_under_a_list_that_forbids_writing(ask: Ask, scene: Scene) -> None:
    """The commands need no right to write; if members lack a right, that is a finding."""
    for path in (
        paths.owners("g"),
        paths.offsets("g"),
        *map(lambda topic: paths.offsets_of("g", topic), SIZES),
        *map(lambda topic: paths.owners_of("g", topic), SIZES),
    ):
        scene.session.set_acls(path, [make_acl("world", "anyone", read=True)])
    assert ask("verify", "--group", "g")[0] == ask("explain", "g")[0] == 0
    code, out, _ = ask("doctor", "--no-logs", "--group", "g")
    assert code == 6
    assert {line.split()[1] for line in out.splitlines() if line[0] != " "} == {"locked-out"}


def _stats(scene: Scene, path: str = "") -> dict[str, tuple[int, int]]:
    stat = scene.session.get(path or "/")[1]
    found = {path: (stat.mzxid, stat.pzxid)}
    for name in scene.session.get_children(path or "/"):
        found |= _stats(scene, f"{path}/{name}")
    return found


def test_the_client_behind_a_session(ask: Ask, scene: Scene, zookeeper: ZooKeeperServer) -> None:
    """A remedy that names a session, and each row of an owner or a member, has its address."""
    scene.hold(paths.owner("g", TopicPartition("logs", 2)), b"g_gone-0")
    address = address_of(zookeeper, scene.session)
    _, out, _ = ask("doctor", "--no-logs", "--group", "g", "--patience", "0", "-o", "json")
    (remedy,) = {row["remedy"] for row in json.loads(out)}
    assert f"this deletes its znodes (0x{scene.session.client_id[0]:x} is a client at" in remedy
    assert f" {address})" in remedy
    rows = json.loads(ask("members", "g", "-o", "json")[1])
    rows += json.loads(ask("owners", "g", "-o", "json")[1])["partitions"]
    rows += json.loads(ask("lag", "g", "-o", "json", "--timeout", "0.5")[1])
    assert {row["client"] for row in rows if row["session"]} == {address}
    assert address in ask("owners", "g", "-o", "wide")[1]
    assert address in ask("members", "g", "--columns", "member,client")[1]
