"""A backup restores all znodes that a change has deleted or overwritten."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl, make_digest_acl
from support.scenes import Clients, connect_clients
from support.zk.servers import release_number

from zkconsumer.admin import plan as plan_file
from zkconsumer.admin.apply import apply
from zkconsumer.admin.group_changes import (
    plan_copy_group,
    plan_delete_group,
    plan_offsets,
    plan_rename_group,
    plan_undo,
)
from zkconsumer.admin.plan import Plan
from zkconsumer.errors import (
    AccessDeniedError,
    AppliedInPartError,
    BadFileError,
    ConfigError,
    RefusedError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer

T = [TopicPartition("t", number) for number in range(6)]
RIGHTS: list[list[ACL]] = [
    OPEN_ACL_UNSAFE,
    [make_acl("world", "anyone", all=True), make_digest_acl("u", "p", read=True)],
    [make_acl("ip", "127.0.0.1", all=True)],
]


def random_tree(clients: Clients, group: str, seed: int) -> None:
    """Write a group with random znodes, of any kind that clients may create."""
    chance = random.Random(seed)
    clients.other.ensure_path(paths.group(group))
    known = [paths.group(group)]
    znodes = [
        paths.ids(group),
        paths.offsets(group),
        paths.owners(group),
        paths.edits(group),
        f"{paths.group(group)}/q",
    ]
    for path in chance.sample(znodes, chance.randint(1, 5)):
        known.append(path)
        clients.other.create(path, chance.randbytes(chance.choice([0, 3])))
    # No path is below `ids`, because the tools delete no registrations.
    parents = [path for path in known if path != paths.ids(group)]
    for number in range(chance.randint(0, 20)):
        path = f"{chance.choice(parents)}/{chance.choice('abü-')}{number}"
        known.append(path)
        parents.append(path)
        clients.other.create(path, chance.randbytes(chance.choice([0, 1, 900])))
    for path in known:
        for _ in range(chance.randint(0, 2)):
            clients.other.set(path, chance.randbytes(4))
        clients.other.set_acls(path, chance.choice(RIGHTS))


def run(clients: Clients, plan: Plan, where: Path, **options: Any) -> Plan:
    """Apply a plan, and read its backup file."""
    report = apply(clients.tools, plan, backup_dir=where, **options)
    assert report.backup is not None
    return plan_file.load_plan(report.backup)


@pytest.mark.parametrize("seed", range(12))
def test_an_undo_restores_a_deleted_tree(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path, seed: int
) -> None:
    """A random tree that was deleted and restored has the same znodes, data and access lists."""
    group = unique("random")
    random_tree(clients, group, seed)
    before = clients.tree(group)
    backup = run(clients, plan_delete_group(clients.tools, group), tmp_path, max_writes=3)
    assert clients.tree(group) == {}
    run(clients, plan_undo(clients.tools, backup), tmp_path, max_writes=3)
    after = clients.tree(group)
    assert {path: (data, rights) for path, (data, _, rights) in after.items()} == {
        path: (data, rights) for path, (data, _, rights) in before.items()
    }
    assert plan_undo(clients.tools, backup).is_empty


def test_null_payloads(clients: Clients, unique: Callable[[str], str], tmp_path: Path) -> None:
    """A null payload differs from an empty payload, and is restored as null."""
    group = unique("null")
    clients.offsets(group, {T[0]: b""})
    plan = plan_delete_group(clients.tools, group)
    for number, change in enumerate(plan.changes):
        assert change.before is not None
        if number == 0:
            null = type(change)(change.path, change.before._replace(data=None), None)
            plan = Plan.of(plan.kind, plan.chroot, [null, *plan.changes[1:]])
    apply(clients.tools, plan_delete_group(clients.tools, group), backup_dir=tmp_path)
    run(clients, plan_undo(clients.tools, plan), tmp_path)
    assert clients.tree(group)[paths.offset(group, T[0])][0] is None


def test_an_undo_restores_set_offsets(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """After an undo, changed offsets have their old values, and created offsets are deleted."""
    group = unique("offsets")
    clients.offsets(group, {T[0]: 10, T[1]: b"odd"})
    before = clients.contents(group)
    plan = plan_offsets(clients.tools, "offsets set", {group: dict.fromkeys(T, 7)})
    backup = run(clients, plan, tmp_path)
    run(clients, plan_undo(clients.tools, backup), tmp_path)
    assert clients.contents(group) == before


def test_an_undo_restores_a_renamed_group(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """An undo restores a renamed group, and deletes the new group despite later edits in it."""
    old, new = unique("old"), unique("new")
    clients.offsets(old, dict.fromkeys(T, 5))
    before = clients.contents(old)
    backup = run(clients, plan_rename_group(clients.tools, old, new), tmp_path)
    run(clients, plan_offsets(clients.tools, "offsets set", {new: {T[0]: 6}}), tmp_path)
    undo = plan_undo(clients.tools, backup)
    assert any("t/0 has changed since" in note for note in undo.notes)
    run(clients, undo, tmp_path)
    assert clients.contents(old) == before
    assert clients.tree(new) == {}


def test_an_undo_keeps_znodes_with_children_of_other_clients(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """An undo keeps a created group if another client has created znodes in it."""
    old, new = unique("old"), unique("new")
    clients.offsets(old, dict.fromkeys(T, 5))
    backup = run(clients, plan_copy_group(clients.tools, old, new), tmp_path)
    clients.offsets(new, {TopicPartition("theirs", 0): 1})
    undo = plan_undo(clients.tools, backup)
    assert sum("is kept" in note for note in undo.notes) == 2
    run(clients, undo, tmp_path)
    assert clients.stored(new) == {TopicPartition("theirs", 0): "1"}


def test_an_undo_below_another_chroot(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The backup of another chroot is refused, even if a group has the same name there."""
    name = unique("group")
    clients.offsets(name, {T[0]: 1})
    done = run(clients, plan_offsets(clients.tools, "x", {name: {T[0]: 7}}), tmp_path)
    with pytest.raises(RefusedError, match="/elsewhere"):
        plan_undo(clients.tools, replace(done, chroot="/elsewhere"))


def test_an_undo_after_the_parents_were_deleted(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """An undo creates parents that were deleted after the change, and says so."""
    name = unique("group")
    clients.offsets(name, {T[0]: 1, T[1]: 2})
    done = run(clients, plan_offsets(clients.tools, "x", {name: {T[0]: 7}}), tmp_path)
    clients.other.delete(paths.group(name), recursive=True)
    undo = plan_undo(clients.tools, done)
    assert (
        f"{paths.offsets_of(name, 't')} is created again: it has been deleted since" in undo.notes
    )
    run(clients, undo, tmp_path)
    assert clients.stored(name) == {T[0]: "1"}


def test_undone_in_part(clients: Clients, unique: Callable[[str], str], tmp_path: Path) -> None:
    """If a change was applied in part, its undo reverts only this part."""
    group = unique("part")
    clients.offsets(group, dict.fromkeys(T, 5))
    clients.other.ensure_path(paths.ids(group))
    before = clients.contents(group)
    plan = plan_offsets(clients.tools, "offsets set", {group: dict.fromkeys(T, 7)})

    def progress(done: int, total: int) -> None:
        if done == 4:
            clients.join(group)

    with pytest.raises(AppliedInPartError):
        apply(clients.tools, plan, backup_dir=tmp_path, max_writes=2, on_progress=progress)
    (backup,) = tmp_path.iterdir()
    clients.leave(group)
    undo = plan_undo(clients.tools, plan_file.load_plan(backup))
    assert len(undo) == 4
    run(clients, undo, tmp_path)
    assert clients.contents(group) == before


def test_interrupted(clients: Clients, unique: Callable[[str], str], tmp_path: Path) -> None:
    """If Ctrl-C stops a change between transactions, the backup completes or undoes the change."""
    group = unique("part")
    clients.offsets(group, dict.fromkeys(T, 5))
    plan = plan_offsets(clients.tools, "offsets set", {group: dict.fromkeys(T, 7)})

    def progress(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(clients.tools, plan, backup_dir=tmp_path, max_writes=2, on_progress=progress)
    assert sorted(clients.stored(group).values()) == ["5"] * 4 + ["7"] * 2
    (backup,) = tmp_path.iterdir()
    plan = plan_file.load_plan(backup)
    run(clients, plan, tmp_path)
    assert set(clients.stored(group).values()) == {"7"}
    run(clients, plan_undo(clients.tools, plan), tmp_path)
    assert set(clients.stored(group).values()) == {"5"}


def test_a_secret_access_control_list(
    clients: Clients, unique: Callable[[str], str], zookeeper_release: str
) -> None:
    """A znode is not deleted if ZooKeeper hides its access list: the backup would lack it."""
    group = unique("secret")
    clients.offsets(group, {T[0]: 1})
    rights = [make_acl("world", "anyone", read=True), make_digest_acl("u", "p", all=True)]
    clients.other.set_acls(paths.offset(group, T[0]), rights)
    if release_number(zookeeper_release) < (3, 6):
        # These releases show the hash to every client, so the access list can be restored.
        assert len(plan_delete_group(clients.tools, group)) > 0
        return
    with pytest.raises(AccessDeniedError, match="hides the access control list"):
        plan_delete_group(clients.tools, group)


# ---- files --------------------------------------------------------------------------------------


def a_file(clients: Clients, unique: Callable[[str], str], path: Path) -> dict[str, Any]:
    """Return a plan file as JSON."""
    group = unique("file")
    clients.offsets(group, {T[0]: 1})
    plan_file.save(plan_delete_group(clients.tools, group), path)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_a_plan_file_is_read_back_unchanged(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A plan is the same after writing and reading; a plan file overwrites no other file."""
    path = tmp_path / "plan.json"
    document = a_file(clients, unique, path)
    plan = plan_file.load_plan(path)
    assert (plan.hash, len(plan)) == (document["hash"], 4)
    assert document["made"].keys() == {"by", "at"}
    with pytest.raises(ConfigError, match="cannot be written"):
        plan_file.save(plan, path)
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]


def set_in(document: dict[str, Any], keys: str, value: Any) -> None:
    *way, last = (int(key) if key.isdigit() else key for key in keys.split("."))
    target: Any = document
    for key in way:
        target = target[key]
    target[last] = value


@pytest.mark.parametrize(
    ("keys", "value", "why"),
    [
        ("format", "other", "format"),
        ("version", 2, "version"),
        ("version", True, "version"),
        ("extra", 1, "exactly"),
        ("notes", [1], "not a string"),
        ("changes", {}, "not a list"),
        ("changes.0.path", "/brokers/ids/1", "not below a group"),
        ("changes.0.path", "/consumers", "not below a group"),
        ("changes.0.path", "/consumers/", "not a legal group name"),
        ("changes.0.path", "/consumers/g/", "not below a group"),
        ("changes.0.path", "/consumers/../brokers", "not a legal group name"),
        ("changes.0.path", "/consumers/g/../../brokers", "'..'"),
        ("changes.0.path", "/consumers/g/a\n", "U+000A"),
        ("changes.0.path", "/consumersg/a", "not below a group"),
        ("changes.0.before", None, "changes nothing"),
        ("changes.0.before.version", -1, "number"),
        ("changes.0.before.version", 1.0, "number"),
        ("changes.0.before.data", "%", "base64"),
        ("changes.0.before.data", base64.b64encode(b"x" * 1_000_001).decode(), "longer"),
        ("changes.0.before.acl", [["x", 1]], "access control"),
        ("changes.0.before.acl", [["world:anyone", 32]], "access control"),
        ("changes.1.path", "SAME", "twice"),
        ("changes.0.before.version", 77, "hash"),
        ("kafka", [{"group": "g"}], "object"),
        (
            "kafka",
            [{"group": "g", "topic": "..", "partition": 0, "before": None, "after": [1, ""]}],
            "topic name",
        ),
        (
            "kafka",
            [{"group": "g", "topic": "t", "partition": 0, "before": None, "after": [-1, ""]}],
            "offset",
        ),
    ],
)
def test_a_file_is_not_trusted(
    clients: Clients,
    unique: Callable[[str], str],
    tmp_path: Path,
    *,
    keys: str,
    value: Any,
    why: str,
) -> None:
    """A file that is not exactly a plan, or has paths outside groups, is one clear error."""
    document = a_file(clients, unique, tmp_path / "plan.json")
    set_in(document, keys, document["changes"][0]["path"] if value == "SAME" else value)
    with pytest.raises(BadFileError) as caught:
        plan_file.loads(json.dumps(document), path=tmp_path / "plan.json")
    assert why in str(caught.value)


def test_a_backup_that_cannot_be_written(
    clients: Clients, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """If the backup cannot be written, the error names its file, and nothing is changed."""
    group = unique("g")
    random_tree(clients, group, seed=1)
    before = clients.tree(group)
    plan = plan_delete_group(clients.tools, group)
    with pytest.raises(ConfigError, match=r"the backup cannot be written: .*/nowhere/"):
        run(clients, plan, tmp_path / "nowhere")
    assert clients.tree(group) == before


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A FIFO without a writer, a device and a directory raise an error at once."""
    fifo = tmp_path / "plan.json"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path):
        with pytest.raises(BadFileError) as caught:
            plan_file.load_plan(path)
        assert str(path) in caught.value.where


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "[" * 100_000, '{"a": 1}', "\ufeff{}"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    """Files of other formats are refused."""
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(BadFileError, match="the file is not a plan"):
        plan_file.load_plan(path)
    path.write_bytes(b"\xff")
    with pytest.raises(BadFileError, match="not UTF-8"):
        plan_file.load_plan(path)
    with pytest.raises(BadFileError, match="No such file"):
        plan_file.load_plan(tmp_path / "missing")


def test_znodes_that_belong_to_the_tools_user(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """With `zookeeper.acl=creator`, created and restored znodes belong to the tool's user."""
    group = unique("ours")
    settings = {
        "zookeeper_auth_scheme": "digest",
        "zookeeper_auth_credential": "u:p",
        "zookeeper_acl": "creator",
    }
    with connect_clients(zookeeper.connect, **settings) as clients:
        tools = clients.tools
        run(clients, plan_offsets(tools, "offsets set", {group: dict.fromkeys(T, 5)}), tmp_path)
        nodes = tools.tree(paths.group(group))
        before = {path: node.data for path, node in nodes.items()}, tools.rights(nodes)
        identities = [
            right.identity
            for rights in before[1].values()
            if isinstance(rights, tuple)
            for right in rights
        ]
        assert {one.rpartition(":")[0] for one in identities} == {"digest:u"}
        backup = run(clients, plan_delete_group(tools, group), tmp_path)
        run(clients, plan_undo(tools, backup), tmp_path)
        after = tools.tree(paths.group(group))
        assert ({path: node.data for path, node in after.items()}, tools.rights(after)) == before
    with connect_clients(zookeeper.connect) as others, pytest.raises(AccessDeniedError):
        plan_delete_group(others.tools, group)
