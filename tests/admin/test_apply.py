"""On a real ZooKeeper plans are applied completely or not at all, and to no live group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl
from support.scenes import Clients, connect_clients

from zkconsumer.admin import apply as apply_module
from zkconsumer.admin import plan as plan_file
from zkconsumer.admin.apply import Live, Report, apply
from zkconsumer.admin.group_changes import (
    plan_copy_group,
    plan_delete_group,
    plan_delete_offsets,
    plan_forget_topics,
    plan_offsets,
    plan_rename_group,
    plan_writes,
)
from zkconsumer.admin.plan import Plan
from zkconsumer.errors import (
    AccessDeniedError,
    Advice,
    AppliedInPartError,
    ConfigError,
    RefusedError,
    RemedyOperation,
    UnknownGroupError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperServer

T = [TopicPartition("t", number) for number in range(12)]


@pytest.fixture
def group(clients: Clients, unique: Callable[[str], str]) -> str:
    """An idle group with twelve offsets, as a JVM member leaves it."""
    name = unique("group")
    clients.other.ensure_path(paths.ids(name))
    clients.other.ensure_path(paths.owners_of(name, "t"))
    clients.offsets(name, {tp: 100 + tp.partition for tp in T})
    return name


def setting(clients: Clients, group: str, offset: int = 7) -> Plan:
    """A plan that sets all offsets of the group."""
    return plan_offsets(clients.tools, "offsets set", {group: dict.fromkeys(T, offset)})


def do(clients: Clients, plan: Plan, where: Path, **options: Any) -> Report:
    return apply(clients.tools, plan, backup_dir=where, **options)


# ---- what a plan changes ------------------------------------------------------------------------


def test_offsets_are_set(clients: Clients, group: str, tmp_path: Path) -> None:
    """All offsets are set, the members' parent is unchanged, and a backup exists."""
    before = clients.tree(group)[paths.ids(group)]
    plan = setting(clients, group)
    report = do(clients, plan, tmp_path)
    assert (report.applied, report.already) == (12, 0)
    assert set(clients.stored(group).values()) == {"7"}
    assert clients.tree(group)[paths.ids(group)] == before
    assert report.backup is not None
    assert plan_file.load_plan(report.backup) == plan
    assert report.backup.stat().st_mode & 0o777 == 0o600


def test_a_mark_is_in_the_transaction(clients: Clients, group: str, tmp_path: Path) -> None:
    """The mark's czxid equals the mzxid of every offset written with it."""
    do(clients, setting(clients, group), tmp_path)
    mark = clients.other.exists(paths.edit(group, 0))
    for tp in T:
        assert clients.other.exists(paths.offset(group, tp)).mzxid == mark.czxid


def test_a_deletion_of_offsets_is_marked(clients: Clients, group: str, tmp_path: Path) -> None:
    """Only the deletion of an offset that members can read is an edit, unless the group goes."""
    unreadable, readable = T[0], T[1]
    clients.other.set(paths.offset(group, unreadable), b"x")
    for partition, marks in ((unreadable, []), (readable, ["0"])):
        plan = plan_offsets(clients.tools, "offsets delete", {group: {partition: None}})
        do(clients, plan, tmp_path)
        clients.other.ensure_path(paths.edits(group))
        assert clients.other.get_children(paths.edits(group)) == marks
    do(clients, plan_delete_group(clients.tools, group), tmp_path)
    assert clients.other.exists(paths.group(group)) is None


def test_another_operators_mark(clients: Clients, group: str, tmp_path: Path) -> None:
    """If another operator creates a mark between two transactions, the change still succeeds."""
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        if not seen:
            clients.other.ensure_path(paths.edit(group, 0))
        seen.append(done)

    do(clients, setting(clients, group), tmp_path, max_writes=6, on_progress=progress)
    assert set(clients.stored(group).values()) == {"7"}
    assert seen == [0, 6, 12]
    assert sorted(clients.other.get_children(paths.edits(group))) == ["0", "1", "2"]


def test_a_new_group(clients: Clients, unique: Callable[[str], str], tmp_path: Path) -> None:
    """Setting offsets of a group that never existed creates the group, and nothing else."""
    group = unique("new")
    do(clients, setting(clients, group), tmp_path)
    parents = {paths.group(group), paths.offsets(group), paths.offsets_of(group, "t")}
    assert clients.tree(group).keys() == parents | {paths.offset(group, tp) for tp in T}


def test_a_fresh_zookeeper(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """If no consumer has existed yet, `/consumers` is created, and is open to all clients."""
    chroot = unique("fresh")
    with connect_clients(zookeeper.connect) as above:
        above.other.create(f"/{chroot}")
    with connect_clients(f"{zookeeper.connect}/{chroot}") as both:
        do(both, setting(both, "g"), tmp_path)
        assert set(both.stored("g").values()) == {"7"}
        assert both.other.get_acls("/consumers")[0] == [make_acl("world", "anyone", all=True)]


def test_nothing_to_do(clients: Clients, group: str, tmp_path: Path) -> None:
    """When a plan is applied a second time, neither a backup nor a znode is written."""
    plan = setting(clients, group)
    do(clients, plan, tmp_path)
    before = clients.tree(group)
    assert do(clients, plan, tmp_path) == Report(0, 12, None)
    assert setting(clients, group).is_empty
    assert clients.tree(group) == before


def test_old_marks(
    clients: Clients, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next edit deletes marks that are older than the limit, and keeps newer marks."""
    do(clients, setting(clients, group), tmp_path)
    do(clients, setting(clients, group, 8), tmp_path)
    assert len(clients.other.get_children(paths.edits(group))) == 2
    monkeypatch.setattr(apply_module, "MARKS_KEPT_MS", 0)
    do(clients, setting(clients, group, 9), tmp_path)
    assert clients.other.get_children(paths.edits(group)) == ["2"]


# ---- whole groups -------------------------------------------------------------------------------


def test_a_group_is_deleted(clients: Clients, group: str, tmp_path: Path) -> None:
    """A deleted group leaves no znode, even if the deletion takes many transactions."""
    do(clients, plan_delete_group(clients.tools, group), tmp_path, max_writes=4)
    assert clients.tree(group) == {}


def test_a_group_is_renamed(
    clients: Clients, group: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """After a rename the new group has all offsets, and the old group does not exist."""
    before, other = clients.stored(group), unique("other")
    do(clients, plan_rename_group(clients.tools, group, other), tmp_path, max_writes=4)
    assert clients.stored(other) == before
    assert clients.tree(group) == {}


def test_a_copy_is_its_own_group(
    clients: Clients, group: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A copied group has the offsets but no members or owners; it replaces no existing group."""
    other = unique("other")
    clients.join(group)
    do(clients, plan_copy_group(clients.tools, group, other), tmp_path)
    assert clients.stored(other) == clients.stored(group)
    assert paths.ids(other) not in clients.tree(other)
    with pytest.raises(RefusedError, match="exists"):
        plan_copy_group(clients.tools, group, other)


def test_offsets_are_deleted(clients: Clients, group: str, tmp_path: Path) -> None:
    """Deleting the last partitions of a topic also deletes the topic's znode in the group."""
    do(clients, plan_delete_offsets(clients.tools, group, topics={"t": {0, 1}}), tmp_path)
    assert clients.stored(group).keys() == set(T[2:])
    do(clients, plan_delete_offsets(clients.tools, group, topics={"t": None}), tmp_path)
    assert paths.offsets_of(group, "t") not in clients.tree(group)
    with pytest.raises(ConfigError, match="no such offset"):
        plan_delete_offsets(clients.tools, group, topics={"t": {0}})


def test_a_topic_is_forgotten(clients: Clients, group: str, tmp_path: Path) -> None:
    """A topic's owners and offsets are deleted in every named group; other topics are left."""
    clients.offsets(group, {TopicPartition("u", 0): 5})
    clients.other.create(paths.owner(group, T[0]), b"g_gone-0")
    do(clients, plan_forget_topics(clients.tools, ["t"], groups=[group]), tmp_path)
    assert clients.stored(group) == {TopicPartition("u", 0): "5"}
    assert paths.owners_of(group, "t") not in clients.tree(group)


def test_what_does_not_exist(clients: Clients, group: str) -> None:
    """The error for an unknown group or topic names the group or the topic."""
    for planned in (
        lambda: plan_delete_group(clients.tools, "nobody"),
        lambda: plan_rename_group(clients.tools, "nobody", "x"),
        lambda: plan_forget_topics(clients.tools, ["t"], groups=["nobody"]),
    ):
        with pytest.raises(UnknownGroupError, match="nobody"):
            planned()
    with pytest.raises(ConfigError, match="no group has owners or offsets"):
        plan_forget_topics(clients.tools, ["nothing"], groups=[group])


def test_a_limit_on_deletion(clients: Clients, group: str) -> None:
    """If a plan deletes more znodes than the limit, it is refused with their number."""
    with pytest.raises(RefusedError, match="18 znodes"):
        plan_delete_group(clients.tools, group, max_deleted=17)


# ---- live members -------------------------------------------------------------------------------


def test_a_live_group_is_refused(clients: Clients, group: str, tmp_path: Path) -> None:
    """If a member is live, or joins after the plan was made, not even a backup is written."""
    plan = setting(clients, group)
    clients.join(group)
    before = clients.tree(group)
    for one in (plan, setting(clients, group), plan_delete_group(clients.tools, group)):
        with pytest.raises(RefusedError, match=r"live members.*g_a.*change the group anyway"):
            do(clients, one, tmp_path)
    assert clients.tree(group) == before
    assert not list(tmp_path.iterdir())


def test_a_refusal_counts_the_members_that_it_does_not_name(
    clients: Clients, group: str, tmp_path: Path
) -> None:
    """A refusal names five live members, and says how many more the group has."""
    for number in range(7):
        clients.join(group, f"g_{number}")
    with pytest.raises(RefusedError, match=r"live members.*'g_4' and 2 more"):
        do(clients, setting(clients, group), tmp_path)


@pytest.mark.parametrize("planned", [setting, lambda h, g: plan_delete_group(h.tools, g)])
def test_a_member_that_joins_after_the_last_check(
    clients: Clients, group: str, tmp_path: Path, planned: Callable[[Clients, str], Plan]
) -> None:
    """If a member joins after the last check, the whole transaction fails."""
    plan = planned(clients, group)
    before = clients.stored(group)
    with pytest.raises(RefusedError, match=r"live members.*g_a"):
        do(clients, plan, tmp_path, on_backup=lambda path: clients.join(group))
    assert clients.stored(group) == before
    assert clients.other.exists(paths.member(group, "g_a"))
    assert list(tmp_path.iterdir()) == [], "`undo --last` would undo a change that was never made"


def test_a_first_member_at_the_last_instant(clients: Clients, group: str, tmp_path: Path) -> None:
    """If the first member creates the parent of the members, the whole transaction fails."""
    clients.other.delete(paths.ids(group))
    plan, before = setting(clients, group), clients.stored(group)
    with pytest.raises(RefusedError, match="live members"):
        do(clients, plan, tmp_path, on_backup=lambda path: clients.join(group))
    assert clients.stored(group) == before


def test_a_member_between_two_transactions(clients: Clients, group: str, tmp_path: Path) -> None:
    """A member that joins between transactions is reported; applying again completes the plan."""
    plan = setting(clients, group)

    def progress(done: int, total: int) -> None:
        if done == 4:
            clients.join(group)

    with pytest.raises(AppliedInPartError, match=r"4 of 12.*live members") as caught:
        do(clients, plan, tmp_path, max_writes=4, on_progress=progress)
    assert sorted(clients.stored(group).values()).count("7") == 4
    (backup,) = tmp_path.iterdir()
    assert caught.value.advice == Advice(RemedyOperation.COMPLETE_OR_UNDO, value=str(backup))
    clients.leave(group)
    report = do(clients, plan_file.load_plan(backup), tmp_path)
    assert (report.applied, report.already) == (8, 4)
    assert set(clients.stored(group).values()) == {"7"}


def test_by_force(clients: Clients, group: str, tmp_path: Path) -> None:
    """With Live.FORCE a live group is changed with a mark; its members' znodes are unchanged."""
    clients.join(group)
    do(clients, setting(clients, group), tmp_path, live=Live.FORCE)
    assert set(clients.stored(group).values()) == {"7"}
    assert clients.other.exists(paths.member(group, "g_a"))
    assert clients.other.exists(paths.edit(group, 0))


def test_deleted_by_force(clients: Clients, group: str, tmp_path: Path) -> None:
    """With Live.FORCE a live group is deleted, except its members' znodes, which a note names."""
    clients.join(group)
    plan = plan_delete_group(clients.tools, group)
    assert any(paths.member(group, "g_a") in note for note in plan.notes)
    do(clients, plan, tmp_path, live=Live.FORCE)
    held = {paths.group(group), paths.ids(group), paths.member(group, "g_a")}
    assert clients.tree(group).keys() == held


def test_a_znode_of_a_session(clients: Clients, group: str) -> None:
    """A plan does not change a znode that belongs to a live session."""
    clients.join(group)
    with pytest.raises(RefusedError, match="live session"):
        plan_writes(clients.tools, "x", {paths.member(group, "g_a"): None})


# ---- changes in between -------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["file", "memory"])
def test_a_change_before_the_first_write(
    clients: Clients, group: str, tmp_path: Path, through: str
) -> None:
    """If one of twelve offsets has changed since the plan, it is named, and nothing is written."""
    plan = setting(clients, group)
    if through == "file":
        plan = plan_file.load_plan(plan_file.save(plan, tmp_path / "plan.json"))
    clients.offsets(group, {T[11]: 4711})
    before = clients.tree(group)
    with pytest.raises(RefusedError, match=r"1 znode changed since.*t/11 has '4711'"):
        do(clients, plan, tmp_path, max_writes=4)
    assert clients.tree(group) == before


@pytest.mark.parametrize("way", ["at once", "from a file"])
def test_the_same_value_in_a_new_znode(
    clients: Clients, group: str, tmp_path: Path, way: str
) -> None:
    """A znode that was deleted and re-created with an equal version counts as changed."""
    clients.other.delete(paths.offset(group, T[0]))
    clients.other.create(paths.offset(group, T[0]), b"100")
    plan = setting(clients, group)
    if way == "from a file":
        plan = plan_file.load_plan(plan_file.save(plan, tmp_path / "plan.json"))
    clients.other.delete(paths.offset(group, T[0]))
    clients.other.create(paths.offset(group, T[0]), b"100")
    with pytest.raises(RefusedError, match="1 znode changed"):
        do(clients, plan, tmp_path)


def test_a_change_at_the_last_instant(clients: Clients, group: str, tmp_path: Path) -> None:
    """If another client writes after the last check, the compare-and-set writes nothing."""
    plan = setting(clients, group)
    with pytest.raises(RefusedError, match="1 znode changed while"):
        do(clients, plan, tmp_path, on_backup=lambda path: clients.offsets(group, {T[5]: 1}))
    assert clients.stored(group)[T[0]] == "100"


def test_a_child_created_after_the_last_check(clients: Clients, group: str, tmp_path: Path) -> None:
    """If a znode to be deleted gets a new child, the whole transaction fails."""
    plan = plan_delete_group(clients.tools, group)
    new = TopicPartition("new", 0)
    with pytest.raises(RefusedError, match="created a znode below"):
        do(clients, plan, tmp_path, on_backup=lambda path: clients.offsets(group, {new: 1}))
    assert clients.stored(group)[T[0]] == "100"


def test_another_chroot(clients: Clients, group: str, tmp_path: Path) -> None:
    """A plan that was made for another chroot is refused."""
    plan = Plan.of("x", "/elsewhere", setting(clients, group).changes)
    with pytest.raises(RefusedError, match="/elsewhere"):
        do(clients, plan, tmp_path)


def test_the_lost_cleaning_of_old_marks(clients: Clients, group: str, tmp_path: Path) -> None:
    """A complete change succeeds, even if the connection is lost before old marks are deleted."""
    plan = setting(clients, group)

    def progress(done: int, total: int) -> None:
        if done == total:
            clients.tools.__exit__(None, None, None)

    assert do(clients, plan, tmp_path, on_progress=progress).applied == 12
    assert set(clients.stored(group).values()) == {"7"}


def test_no_backup_no_write(clients: Clients, group: str, tmp_path: Path) -> None:
    """If the backup cannot be written, no znode is changed."""
    before = clients.tree(group)
    with pytest.raises(ConfigError, match="cannot be written"):
        do(clients, setting(clients, group), tmp_path / "missing")
    assert clients.tree(group) == before


# ---- access control -----------------------------------------------------------------------------


def test_forbidden(clients: Clients, group: str, tmp_path: Path) -> None:
    """The error names a change that access control forbids; its transaction writes nothing."""
    clients.other.set_acls(paths.offset(group, T[3]), [make_acl("world", "anyone", read=True)])
    with pytest.raises(AccessDeniedError, match="t/3"):
        do(clients, setting(clients, group), tmp_path)
    assert clients.stored(group)[T[0]] == "100"


def test_the_guard_keeps_the_access_control(clients: Clients, group: str, tmp_path: Path) -> None:
    """After a change the members' parent has the same access list and the same data, even null."""
    rights = [make_acl("world", "anyone", all=True), make_digest_acl("u", "p", read=True)]
    clients.other.set_acls(paths.ids(group), rights)
    before = clients.tree(group)[paths.ids(group)]
    do(clients, setting(clients, group), tmp_path)
    assert clients.tree(group)[paths.ids(group)] == before


# ---- death in between ---------------------------------------------------------------------------

_KILLED = """
import os, signal, sys
from pathlib import Path
from zkconsumer.admin import plan as planfile
from zkconsumer.admin.apply import apply
from zkconsumer.config import ConsumerConfig
from zkconsumer.zk.client import ZooKeeperClient
connect, file, where, at, when = sys.argv[1:]
class Mortal(ZooKeeperClient):
    def write(self, writes):
        if when == "sent" and len(writes) > 4:
            self.left -= 1
            if not self.left:
                self._session.submit([__import__("zkconsumer.protocol.requests").protocol.requests.Multi(
                    tuple(writes))], lambda replies: os.kill(os.getpid(), signal.SIGKILL))
                signal.pause()
        return super().write(writes)
def progress(done, total):
    if when == "between" and done == 4 * int(at):
        os.kill(os.getpid(), signal.SIGKILL)
with Mortal(ConsumerConfig(group_id="none", zookeeper_connect=connect)) as tools:
    tools.left = int(at)
    apply(tools, planfile.load_plan(Path(file)), backup_dir=Path(where), max_writes=4,
          on_progress=progress)
"""


@pytest.mark.parametrize(("at", "when"), [(0, "between"), (1, "between"), (2, "sent")])
def test_killed(clients: Clients, group: str, tmp_path: Path, at: int, when: str) -> None:
    """After a SIGKILL between transactions or before a reply, the backup completes the plan."""
    file = plan_file.save(setting(clients, group), tmp_path / "plan.json")
    where = tmp_path / "backups"
    where.mkdir()
    arguments = [
        sys.executable,
        "-c",
        _KILLED,
        clients.connect,
        str(file),
        str(where),
        str(at),
        when,
    ]
    done = subprocess.run(arguments, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    written = list(clients.stored(group).values()).count("7")
    assert written == 4 * at
    (backup,) = where.iterdir()
    report = do(clients, plan_file.load_plan(backup), tmp_path, max_writes=4)
    assert (report.applied, report.already) == (12 - written, written)
    assert set(clients.stored(group).values()) == {"7"}
    assert os.path.exists(backup)
