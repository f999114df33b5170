"""Groups that other clients made: their names, their members, and what plans do to them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from support.scenes import Scene, job, scenes
from typer.testing import CliRunner, Result

from zkconsumer.admin.exporter import MetricNames, ServedGroup, exposition
from zkconsumer.admin.groups import read_groups
from zkconsumer.admin.health import HealthTracker
from zkconsumer.admin.lag import group_lags, unasked_logs
from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer
from zkconsumer.zk.client import ZooKeeperClient

T0 = TopicPartition("t", 0)
ODD = ("a b", "c#1", "d:2")
ONE_GROUP = (("lag",), ("offsets", "get"), ("verify",), ("groups", "show"), ("owners",))
# The broker of a scene does not answer, and no test waits for it for long.
QUICK = ("--timeout", "0.5")


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Scene]:
    """A topic, and a broker that does not answer."""
    with scenes(zookeeper, unique("groups")) as one:
        one.topic("t", 1)
        yield one


def run(scene: Scene, *arguments: str) -> Result:
    """Run a command below the chroot of the scene."""
    return CliRunner().invoke(app, [*arguments, "--zookeeper", scene.connect, *QUICK])


def rows(scene: Scene, *arguments: str) -> list[dict[str, Any]]:
    """Return the rows of a command's JSON."""
    found: list[dict[str, Any]] = json.loads(run(scene, *arguments, "--output", "json").stdout)
    return found


# ---- names, several groups -----------------------------------------------------------------------


@pytest.mark.parametrize("command", [*ONE_GROUP, ("doctor",), ("members",), ("explain", "group")])
def test_a_name_that_kafka_does_not_allow(scene: Scene, command: tuple[str, ...]) -> None:
    """Commands that read accept the name of any group that exists."""
    scene.offset("t", 0, 5, "a b#:")
    result = run(scene, *command, "a b#:")
    assert result.exit_code in (Exit.OK, Exit.FOUND), result.stderr


def test_groups_are_deleted_by_name_and_by_pattern(scene: Scene, tmp_path: Path) -> None:
    """One plan with one backup deletes all named groups, whatever their names, and `undo` all."""
    for name in (*ODD, "console-consumer-1", "console-consumer-2", "kept"):
        scene.offset("t", 0, 5, name)
    options = ("--execute", "--backup-dir", str(tmp_path))
    result = run(scene, "groups", "delete", *ODD, "console-*", *options)
    assert result.exit_code == 0, result.stderr
    assert [one["group"] for one in rows(scene, "groups", "list")] == ["kept"]
    assert len(list(tmp_path.iterdir())) == 1
    assert run(scene, "undo", "--last", *options).exit_code == 0
    assert len(rows(scene, "groups", "list")) == 6


def test_no_group_is_deleted_if_one_has_members(scene: Scene, tmp_path: Path) -> None:
    """A live member in one of several groups refuses the whole plan, and the error names it."""
    scene.settled({"live_a": {"t": 1}}, {"t": 1}, group="live")
    scene.offset("t", 0, 5, "idle")
    options = ("--execute", "--backup-dir", str(tmp_path))
    result = run(scene, "groups", "delete", "*", *options)
    assert (result.exit_code, "live: 'live_a'" in result.stderr) == (Exit.REFUSED, True)
    assert len(rows(scene, "groups", "list")) == 2
    result = run(scene, "groups", "delete", "idle", "idl?x", *options)
    assert (result.exit_code, "idl?x" in result.stderr) == (Exit.FAILED, True)
    assert len(rows(scene, "groups", "list")) == 2


def test_a_new_group_needs_a_legal_name(scene: Scene, tmp_path: Path) -> None:
    """A group can be renamed from a name that Kafka does not allow, and not to one."""
    scene.offset("t", 0, 5, "a b")
    options = ("--execute", "--backup-dir", str(tmp_path))
    assert run(scene, "groups", "rename", "a b", "c d", *options).exit_code == Exit.USAGE
    assert run(scene, "offsets", "set", "c d", "t:0=1", "--new-group").exit_code == Exit.USAGE
    assert run(scene, "groups", "rename", "a b", "c", *options).exit_code == 0
    assert [one["group"] for one in rows(scene, "groups", "list")] == ["c"]


def test_a_plan_is_sorted_by_values_of_different_kinds(scene: Scene) -> None:
    """`--sort` accepts a column with numbers, texts and empty cells: numbers come first."""
    scene.offset("t", 0, 5)
    scene.put(paths.offset("g", T0), b"x")
    scene.offset("t", 1, 3)
    result = run(scene, "groups", "delete", "g", "--sort", "old", "-o", "json")
    assert result.exit_code == 0, result.output
    old = [row["old"] for row in json.loads(result.stdout)]
    assert [one for one in old if one][:2] == [3, "'x'"]


def test_idle_groups(scene: Scene) -> None:
    """--idle-for leaves out groups with members and with recent commits, and shows the rest."""
    scene.settled({"live_a": {"t": 1}}, {"t": 1}, group="live")
    scene.offset("t", 0, 5, "old")
    scene.put(paths.group("empty"))
    found = {one["group"]: one for one in rows(scene, "groups", "list", "--idle-for", "0s")}
    assert found.keys() == {"old", "empty"}
    old = found["old"]
    assert (old["members"], old["state"], old["topics"]) == (0, "idle", ["t"])
    assert old["last_commit"].endswith("Z")
    assert (old["lag"], "lag" in old["unknown"]) == (None, True)  # the broker does not answer
    assert found["empty"]["last_commit"] is None
    scene.put(paths.group("old") + "/partition_0", b"{}")
    assert rows(scene, "groups", "list", "--idle-for", "1m") == []
    assert rows(scene, "groups", "list", "--idle-for", "1h") == []
    assert run(scene, "groups", "list", "--idle-for", "soon").exit_code == Exit.USAGE


# ---- groups of which only a part may be read -----------------------------------------------------

NOBODY = [make_digest_acl("somebody", "else", all=True)]


def hide(scene: Scene, *hidden: str) -> str:
    """Take away all rights to these znodes of group g; return how a note names them."""
    for path in hidden:
        scene.session.set_acls(path, NOBODY)
    which = "the znode" if len(hidden) == 1 else f"{len(hidden)} znodes"
    return f"ZooKeeper does not allow this client to read {which} ({', '.join(hidden)}): "


def test_members_of_a_partly_readable_group(scene: Scene) -> None:
    """The readable members are shown, what others may own as unknown, and the znodes are named."""
    scene.settled({"g_a": {"t": 1}, "g_b": {"u": 1}, "g_c": {"u": 1}}, {"t": 2, "u": 2})
    note = hide(scene, paths.member("g", "g_c"), paths.owner("g", T0))
    for names in ([], ["g"]):
        result = run(scene, "members", *names, "--output", "json")
        assert (result.exit_code, f"group g: {note}" in result.stderr) == (Exit.FAILED, True)
        first, second = json.loads(result.stdout)
        assert (first["member"], first["owned"], first["idle"]) == ("g_a", None, None)
        assert paths.owner("g", T0) in first["unknown"]["owned"]
        assert (second["member"], second["owned"], second["idle"]) == ("g_b", 1, 0)
    note = hide(scene, paths.ids("g"))
    result = run(scene, "members", "g", "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (Exit.FAILED, [])
    assert paths.ids("g") in result.stderr
    assert "no member is registered" not in result.stderr


def test_idle_groups_that_are_partly_readable(scene: Scene) -> None:
    """Such a group is named, unless its readable part shows that it is in use."""
    for number in (0, 1):
        scene.offset("t", number, 5)
    note = hide(scene, scene.put(paths.ids("g")), paths.offset("g", T0))
    for age, code in (("0s", Exit.FAILED), ("1h", Exit.OK)):
        result = run(scene, "groups", "list", "--idle-for", age, "--output", "json")
        assert (result.exit_code, json.loads(result.stdout)) == (code, [])
        assert (f"group g is skipped: {note}" in result.stderr) == (code is Exit.FAILED)


@pytest.mark.parametrize("hidden", [paths.member("g", "g_old"), paths.offset("g", T0)])
def test_plans_for_a_partly_readable_group(scene: Scene, tmp_path: Path, hidden: str) -> None:
    """Every change is refused, and the error names the unreadable znode."""
    scene.put(paths.member("g", "g_old"), b"{}")
    scene.put(paths.owner("g", T0), b"g_old-0")
    scene.offset("t", 0, 5)
    hide(scene, hidden)
    options = ("--execute", "--backup-dir", str(tmp_path), "--patience", "0")
    for command in (
        ("offsets", "set", "g", "t:0=1"),
        ("offsets", "reset", "g", "--topic", "t", "--to-offset", "1"),
        ("offsets", "delete", "g", "--topic", "t"),
        ("offsets", "copy", "--from", "g", "--group", "new"),
        ("groups", "copy", "g", "new"),
        ("groups", "rename", "g", "new"),
        ("groups", "delete", "g"),
        ("topics", "forget", "t", "--all-groups"),
    ):
        result = run(scene, *command, *options)
        assert (result.exit_code, hidden in result.stderr) == (Exit.FAILED, True), command
    assert [one["group"] for one in rows(scene, "groups", "list")] == ["g"]


def test_a_member_whose_registration_cannot_be_decoded(scene: Scene) -> None:
    """Its owner znodes show what it owns; its threads are unknown."""
    scene.hold(paths.member("g", "g_a"), b"{")
    scene.owner("t", 0, "g_a-0")
    (row,) = rows(scene, "members", "g")
    assert (row["owned"], row["threads"], row["idle"]) == (1, None, None)


# ---- who uses a group ----------------------------------------------------------------------------


def test_a_dry_run_warns_of_a_recent_commit(scene: Scene) -> None:
    """A dry run does not wait: it says how old the last commit is, and what --execute will do."""
    scene.offset("t", 0, 5)
    result = run(scene, "groups", "delete", "g", "--patience", "60")
    assert result.exit_code == 0
    assert "the last write was" in result.stderr
    assert "--execute reads the group again after 60 s" in result.stderr


def test_a_plan_under_an_unregistered_client(scene: Scene, tmp_path: Path) -> None:
    """A client that commits without a registration refuses a plan, unless --force-live is given."""
    scene.offset("t", 0, 5)
    options = ("--backup-dir", str(tmp_path), "--patience", "60")
    with job(scene.session, paths.offset("g", T0), b"5"):
        refused = run(scene, "groups", "delete", "g", "--execute", *options)
        dry = run(scene, "offsets", "copy", "--from", "g", "-g", "new", *options)
    assert refused.exit_code == Exit.REFUSED
    assert "without a registration" in refused.stderr
    assert "--force-live" in refused.stderr
    assert "the copy has the offsets of this moment" in dry.stderr
    result = run(scene, "groups", "delete", "g", "--execute", "--force-live", *options)
    assert result.exit_code == 0


def test_the_exporter_counts_clients_by_kind(scene: Scene) -> None:
    """A leftover is no client, and a client that commits without a registration is one."""
    scene.offset("t", 0, 5)
    scene.put(paths.member("g", "g_old"), b"{}")
    memory = HealthTracker(patience_s=60.0)

    def members(at_s: float) -> dict[str, float]:
        with ZooKeeperClient(scene.config()) as connection:
            (image,) = read_groups(connection, ["g"]).values()
            found = group_lags(connection, ["g"], limit_s=0.5, logs=unasked_logs, kafka=_nothing)
        health = memory.observe(image, at_s)
        served = [ServedGroup(one, health, {}, {}) for one in found.values()]
        page = exposition(served, names=MetricNames.ZKCONSUMER, cluster="")
        counts = re.findall(r'group_members{.*kind="(\w+)"} (\S+)', page)
        return {kind: float(count) for kind, count in counts}

    assert members(0.0) == {"registered": 0, "unregistered": 0}
    scene.offset("t", 0, 6)
    assert members(1.0) == {"registered": 0, "unregistered": 1}


def _nothing(*_: object) -> dict[TopicPartition, None]:
    return {}


# ---- what is unknown -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*ONE_GROUP, ("members",)])
def test_formats_for_programs_name_the_group(scene: Scene, command: tuple[str, ...]) -> None:
    """Each row that a program reads has the column `group`, even if only one group is shown."""
    scene.member("g_a", t=1)
    scene.owner("t", 0, "g_a-9")
    result = run(scene, *command, "g", "--output", "json")
    document = json.loads(result.stdout)
    found = document if isinstance(document, list) else document["partitions"]
    assert [one["group"] for one in found] == ["g"]
    if command != ("groups", "show"):
        table = list(csv.reader(io.StringIO(run(scene, *command, "g", "--output", "csv").stdout)))
        assert "group" in table[0]


def test_an_offset_that_is_plainly_a_number(scene: Scene) -> None:
    """The number is shown with a note; an unreadable offset is not called missing."""
    scene.offset("t", 0, '"12"')
    (one,) = rows(scene, "offsets", "get", "g")
    assert one["zookeeper"] == 12
    notes = run(scene, "offsets", "get", "g").stderr
    assert "plainly 12" in notes
    assert "no offset is committed" not in notes
    scene.offset("t", 0, "?")
    result = run(scene, "offsets", "get", "g")
    assert "unknown" in result.stdout
    assert "cannot be read" in result.stderr
    assert "no offset is committed" not in result.stderr


def test_a_topic_that_cannot_be_read(scene: Scene) -> None:
    """Its partitions are unknown and not none, and its offsets are not offsets of nothing."""
    scene.put(paths.topic("odd"), b'{"version":1,"partitions":{"0":[0')
    scene.offset("odd", 0, 5)
    found = {one["topic"]: one for one in rows(scene, "topics", "list")}
    assert found["odd"]["partitions"] is None
    assert found["t"]["partitions"] == 1
    assert "not the expected JSON" in run(scene, "topics", "show", "odd").stderr
    result = run(scene, "doctor", "g", "--no-logs")
    assert "offset-of-nothing" not in result.stdout
