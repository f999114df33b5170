"""The commands that change offsets and groups, run in this process on real servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from kazoo.security import make_acl
from support.scenes import Clients, connect_clients
from support.zk.client import peer_of
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import MAX_MULTI_WRITES
from zkconsumer.sandbox import ZooKeeperServer

# The text that ExportZkOffsets of 0.8.2.2 wrote.
EXPORTED = "/consumers/toolg/offsets/tool/0:3\n/consumers/toolg/offsets/tool/1:0\n"

Command = Callable[..., Result]


@pytest.fixture
def clients(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Clients]:
    """A chroot for one test, with a topic of three partitions, but without a broker."""
    chroot = unique("commands")
    with peer_of(zookeeper.connect) as above:
        above.create(f"/{chroot}")
    with connect_clients(f"{zookeeper.connect}/{chroot}") as both:
        payload = json.dumps({"version": 1, "partitions": {str(n): [0] for n in range(3)}})
        both.other.create(paths.topic("t"), payload.encode(), makepath=True)
        both.other.ensure_path(paths.ids("g"))
        both.offsets("g", {TopicPartition("t", n): 100 + n for n in range(3)})
        yield both


@pytest.fixture
def command(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `zkconsumer ARGUMENTS` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", clients.connect)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=stdin)

    return run


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def the_backup() -> str:
    (backup,) = Path().glob("zkconsumer/backups/*/zkconsumer-backup-*.json")
    return str(backup.absolute())


# ---- plan, show, apply --------------------------------------------------------------------------


def test_a_dry_run(clients: Clients, command: Command) -> None:
    """Without --execute old and new offsets are shown, but no znode and no file is written."""
    before = clients.tree("g")
    done = command("offsets", "set", "-g", "g", "t:0=7", "t:1=8", "-o", "json")
    assert done.exit_code == 0
    assert [(row["partition"], row["old"], row["new"]) for row in rows(done)] == [
        (0, 100, 7),
        (1, 101, 8),
    ]
    assert "dry run, nothing was written" in done.stderr
    assert clients.tree("g") == before
    assert not list(Path().iterdir())


def test_set_and_undo(clients: Clients, command: Command) -> None:
    """--execute changes offsets, and names backup and author; `undo` restores the old offsets."""
    before = clients.contents("g")
    done = command("offsets", "set", "-g", "g", "t:0=7", "--execute")
    assert (done.exit_code, clients.stored("g")[TopicPartition("t", 0)]) == (0, "7")
    backup = the_backup()
    assert f"backup: {backup} (`zkconsumer undo` restores it)\n" in done.stderr
    assert "audit: " in done.stderr
    assert "kind=offsets-set groups=g done=1/1" in done.stderr
    assert command("undo", backup).exit_code == 0
    assert clients.contents("g") != before
    assert command("undo", backup, "--execute").exit_code == 0
    assert clients.contents("g") == before
    again = command("undo", backup, "--execute")
    assert (again.exit_code, "nothing to change" in again.stderr) == (0, True)


def test_the_last_backup(clients: Clients, command: Command) -> None:
    """`undo --last` undoes the newest change, of a group if given; `backups list` names all."""
    before = clients.contents("g")
    clients.offsets("other", {TopicPartition("t", 0): 1})
    for words in (("g", "t:0=7"), ("other", "t:0=8")):
        assert command("offsets", "set", *words, "--execute").exit_code == 0
    listed = rows(command("backups", "list", "-o", "json"))
    assert [one["groups"] for one in listed] == [["other"], ["g"]]
    assert [one["groups"] for one in rows(command("backups", "list", "g", "-o", "json"))] == [["g"]]
    assert rows(command("undo", "--last", "-o", "json"))[0]["group"] == "other"
    assert command("undo", "--last", "-g", "g", "--execute").exit_code == 0
    assert clients.contents("g") == before
    for wrong in (("undo",), ("undo", "--last", "x"), ("undo", "x", "-g", "g")):
        assert command(*wrong).exit_code == 2
    nothing = command("undo", "--last", "-g", "nobody")
    assert (nothing.exit_code, "no backup of group nobody" in nothing.stderr) == (2, True)


def test_other_znodes_than_offsets(clients: Clients, command: Command) -> None:
    """A znode other than an offset is shown by its path, in JSON without a topic."""
    parent = paths.offsets_of("g", "t")
    others = [
        row
        for row in rows(command("groups", "delete", "g", "-o", "json"))
        if row["path"].startswith(parent) and row["partition"] is None
    ]
    assert [(row["path"], row["topic"]) for row in others] == [(parent, None)]
    assert parent in command("groups", "delete", "g").stdout


def test_a_plan_file(clients: Clients, command: Command) -> None:
    """A plan file that is applied again changes nothing; if a znode has changed, it is refused."""
    command("offsets", "set", "-g", "g", "t=7", "--plan-out", "plan.json")
    command("offsets", "set", "-g", "g", "t=8", "--plan-out", "other.json")
    before = clients.stored("g")
    shown = command("apply", "plan.json", "-o", "json")
    assert [row["new"] for row in rows(shown)] == [7, 7, 7]
    assert clients.stored("g") == before
    assert command("apply", "plan.json", "--execute").exit_code == 0
    assert set(clients.stored("g").values()) == {"7"}
    assert command("apply", "plan.json", "--execute").exit_code == 0
    refused = command("apply", "other.json", "--execute")
    assert (refused.exit_code, set(clients.stored("g").values())) == (4, {"7"})
    assert "3 znodes changed since the plan was made" in refused.stderr


def test_live_members(clients: Clients, command: Command) -> None:
    """A live group is refused with 4; a dry run says so, and what --force-live would do."""
    clients.join("g")
    dry = command("offsets", "set", "-g", "g", "t:0=7")
    assert (dry.exit_code, "--execute will refuse" in dry.stderr) == (0, True)
    for arguments in (
        ("offsets", "set", "-g", "g", "t:0=7"),
        ("offsets", "delete", "-g", "g", "-t", "t"),
        ("groups", "delete", "g"),
        ("topics", "forget", "t", "--all-groups"),
    ):
        refused = command(*arguments, "--execute")
        assert (refused.exit_code, "g_a" in refused.stderr) == (4, True)
        assert ("overwrite them" in refused.stderr) == ("set" in arguments)
        assert ("create deleted offsets again" in refused.stderr) == ("set" not in arguments)
    assert set(clients.stored("g").values()) == {"100", "101", "102"}
    forced = command("offsets", "set", "-g", "g", "t:0=7", "--execute", "--force-live")
    assert (forced.exit_code, clients.stored("g")[TopicPartition("t", 0)]) == (0, "7")
    assert "JVM members overwrite them" in forced.stderr
    assert "auto.commit.interval.ms, 60 s" in forced.stderr


def test_by_time_on_old_brokers(clients: Clients, command: Command) -> None:
    """If brokers are older than 0.10, a reset by time needs --approximate and a broker's answer."""
    clients.other.create(
        paths.broker(1), b'{"version": 1, "host": "127.0.0.1", "port": 1}', makepath=True
    )
    reset = ("offsets", "reset", "-g", "g", "-t", "t", "--by-duration", "PT1H", "--timeout", "2")
    refused = command(*reset)
    assert (refused.exit_code, "--approximate" in refused.stderr) == (4, True)
    unknown = command(*reset, "--approximate")
    assert (unknown.exit_code, "cannot be determined" in unknown.stderr) == (4, True)


def test_applied_in_part(clients: Clients, command: Command) -> None:
    """Exit code 5 means that only some changes were made; the backup completes the rest."""
    last = TopicPartition("u", MAX_MULTI_WRITES)
    clients.offsets("g", {last: 1})
    free = clients.other.get_acls(paths.offset("g", last))[0]
    closed = [make_acl("world", "anyone", read=True, admin=True)]
    clients.other.set_acls(paths.offset("g", last), closed)
    rows_ = [f"u,{number},7\n" for number in range(MAX_MULTI_WRITES)]
    Path("f.csv").write_text(f"{''.join(rows_)}u,{last.partition},7\n")
    done = command("offsets", "import", "f.csv", "-g", "g", "--execute")
    assert done.exit_code == Exit.IN_PART, done.stderr
    assert f"{MAX_MULTI_WRITES} of {MAX_MULTI_WRITES + 1} changes are made; then: " in done.stderr
    assert clients.stored("g")[last] == "1"
    assert (
        f"complete the change, or undo it: `zkconsumer apply {the_backup()} --execute` or"
        in done.stderr
    )
    clients.other.set_acls(paths.offset("g", last), free)
    assert command("apply", the_backup(), "--execute").exit_code == Exit.OK
    assert clients.stored("g")[last] == "7"


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["json", "csv", "kafka-utils", "legacy"])
def test_export_and_import(clients: Clients, command: Command, format_: str) -> None:
    """What was exported in any format can be imported after the group was deleted."""
    before = clients.stored("g")
    assert command("offsets", "export", "g", "--file", "f", "--format", format_).exit_code == 0
    assert command("groups", "delete", "g", "--execute").exit_code == 0
    assert clients.tree("g") == {}
    done = command("offsets", "import", "f", "-g", "g", "--execute")
    assert (done.exit_code, clients.stored("g")) == (0, before)


def test_a_file_of_the_old_tool(clients: Clients, command: Command) -> None:
    """A file of ExportZkOffsets is imported unchanged; a note names missing topics."""
    Path("export.txt").write_text(EXPORTED)
    done = command("offsets", "import", "export.txt", "--execute")
    assert done.exit_code == 0
    assert "topic tool does not exist" in done.stderr
    assert command("offsets", "export", "-g", "toolg", "-f", "legacy").stdout == EXPORTED


def test_a_bad_file(clients: Clients, command: Command) -> None:
    """If the last line is malformed, nothing is written; exit code 2 and the line's number."""
    bad = EXPORTED + "/consumers/g/offsets/../0:1\n"
    done = command("offsets", "import", "-", "--execute", stdin=bad)
    assert (done.exit_code, "-:3" in done.stderr, clients.tree("toolg")) == (2, True, {})


def test_nothing_to_export(command: Command) -> None:
    """Exporting nothing is an error, creates no file, and overwrites none."""
    assert command("offsets", "export", "g", "--file", "f", "-t", "t:2", "-t", "t:0").exit_code == 0
    assert command("offsets", "export", "g", "--file", "f").exit_code == 2
    assert command("offsets", "export", "--file", "x", "-g", "nobody").exit_code == 1
    twice = command("offsets", "export", "g", "--file", "x", "-g", "g")
    assert (twice.exit_code, "named twice" in twice.stderr) == (2, True)
    assert not Path("x").exists()
    assert len(json.loads(Path("f").read_text())["groups"]["g"]["t"]) == 2


# ---- whole groups, and topics -------------------------------------------------------------------


def test_groups(clients: Clients, command: Command) -> None:
    """A group is copied, renamed, and deleted, and a topic is removed from it."""
    before = clients.stored("g")
    copied = command("groups", "copy", "g", "h", "--execute")
    assert copied.exit_code == 0
    assert "it is unknown whether Kafka has offsets of group g, too: no broker" in copied.stderr
    assert command("groups", "rename", "h", "i", "--execute").exit_code == 0
    assert (clients.stored("i"), clients.tree("h")) == (before, {})
    assert (
        command("offsets", "copy", "--from", "g", "-g", "k", "-t", "t:1", "--execute").exit_code
        == 0
    )
    assert clients.stored("k") == {TopicPartition("t", 1): "101"}
    assert command("topics", "forget", "t", "--execute").exit_code == 2
    assert clients.stored("g") == before
    assert command("topics", "forget", "t", "--all-groups", "--execute").exit_code == 0
    assert (clients.stored("g"), clients.stored("i"), clients.stored("k")) == ({}, {}, {})
    assert command("groups", "delete", "i", "-g", "k", "--execute").exit_code == 0
    assert (clients.tree("i"), clients.tree("k")) == ({}, {})


def test_offsets_that_cannot_be_read(clients: Clients, command: Command) -> None:
    """An unreadable offset is named; an export leaves it out (code 1), a copy includes it."""
    clients.other.set(paths.offset("g", TopicPartition("t", 1)), b"x ")
    exported = command("offsets", "export", "-g", "g", "-f", "csv")
    assert (exported.exit_code, exported.stdout) == (1, "t,0,100\nt,2,102\n")
    dashed = command("offsets", "export", "--file", "-", "-g", "g", "-f", "csv")
    assert (dashed.stdout, Path("-").exists()) == (exported.stdout, False)
    assert "g t-1 is left out: " in exported.stderr
    copied = command("groups", "copy", "g", "h", "--execute")
    assert (copied.exit_code, clients.stored("h")) == (0, clients.stored("g"))
    assert "t-1 is copied as it is: " in copied.stderr


def test_brokers_that_cannot_be_reached(clients: Clients, command: Command) -> None:
    """Without brokers a copy still works; one note says that Kafka's offsets are unknown."""
    clients.other.create(
        paths.broker(1), b'{"version": 1, "host": "127.0.0.1", "port": 1}', makepath=True
    )
    clients.offsets("h", {TopicPartition("t", 0): 1})
    done = command("offsets", "copy", "--from", "g", "-g", "h", "--execute", "--timeout", "2")
    assert (done.exit_code, clients.stored("h")) == (0, clients.stored("g"))
    assert done.stderr.count("it is unknown whether") == 1
    assert "it is unknown whether Kafka has offsets of group g and 1 other, too: " in done.stderr


def test_offsets_deleted(clients: Clients, command: Command) -> None:
    """`offsets delete` deletes only the offsets of the named partitions."""
    assert command("offsets", "delete", "-g", "g", "-t", "t:0,2", "--execute").exit_code == 0
    assert clients.stored("g") == {TopicPartition("t", 1): "101"}


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["offsets", "set", "-g", "nobody", "t:0=1"], 1, "does not exist"),
        (["offsets", "set", "-g", "g", "x:0=1"], 2, "topic x does not exist"),
        (["offsets", "set", "-g", "g", "t:7=1"], 2, "has no partition 7"),
        (["offsets", "set", "-g", "g", "t:0"], 2, "TOPIC:P=OFFSET"),
        (["offsets", "set", "-g", "g", "t:0=-1"], 2, "is not an offset"),
        (["offsets", "set", "-g", "g", "t:0=1", "t=2"], 2, "two different offsets"),
        (["offsets", "set", "-g", "..", "t:0=1"], 2, "not a legal group"),
        (["offsets", "set", "-g", "a/b", "t:0=1"], 2, "not a legal group"),
        (["offsets", "set", "-g", "g\n", "t:0=1"], 2, "not a legal group"),
        (["offsets", "set", "t:0=1"], 2, "no group is named"),
        (["offsets", "reset", "-g", "g", "--to-latest"], 2, "exactly one option must select"),
        (["offsets", "reset", "-g", "g", "--all-topics"], 2, "exactly one"),
        (["offsets", "reset", "-g", "g", "-t", "t", "--to-latest", "--to-current"], 2, "exactly"),
        (["offsets", "reset", "-g", "g", "--topic-regex", "x.*", "--to-latest"], 2, "matches"),
        (["offsets", "reset", "-g", "g", "--topic-regex", "(", "--to-latest"], 2, "regex"),
        (["offsets", "reset", "-g", "g", "-t", "t", "--to-latest"], 4, "cannot be determined"),
        (["offsets", "reset", "-g", "g", "-t", "t", "--by-duration", "1x"], 2, "not a duration"),
        (["offsets", "delete", "-g", "g"], 2, "no topic is named"),
        (["offsets", "delete", "-g", "g", "-t", "u"], 2, "no such offset"),
        (["offsets", "copy", "--from", "g", "-g", "g"], 2, "onto itself"),
        (["offsets", "copy", "--from", "nobody", "-g", "g"], 1, "does not exist"),
        (["offsets", "import", "missing"], 2, "No such file"),
        (["groups", "delete", "nobody"], 1, "does not exist"),
        (
            ["groups", "copy", "g", "g"],
            4,
            "exists (/consumers/g): name a group that does not exist\n",
        ),
        (["groups", "rename", "g", "../x"], 2, "not a legal group"),
        (["groups", "delete", "g", "--max-znodes", "2"], 4, "more than 2"),
        (["topics", "forget", "x", "--all-groups"], 2, "no group has owners or offsets of x"),
        (["topics", "forget", "a/b", "-g", "g"], 2, "not a legal topic"),
        (["apply", "missing"], 2, "No such file"),
        (["undo", "missing"], 2, "No such file"),
    ],
)
def test_clear_errors(
    clients: Clients, command: Command, arguments: list[str], code: int, why: str
) -> None:
    """Each wrong request gives a reason and its exit code, and changes nothing."""
    before = clients.tree("g")
    done = command(*arguments, "--execute", "--timeout", "2")
    assert (done.exit_code, done.stdout) == (code, "")
    assert why in done.stderr
    assert clients.tree("g") == before
