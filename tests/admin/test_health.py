"""Who uses a group, on a real ZooKeeper: what plans do about leftovers and unregistered clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenes import Clients, job
from support.wait import eventually

from zkconsumer.admin import health
from zkconsumer.admin.apply import Live, apply
from zkconsumer.admin.doctor import doctor, live_of, plan_fixes
from zkconsumer.admin.findings import Finding
from zkconsumer.admin.group_changes import plan_delete_group, plan_offsets
from zkconsumer.admin.groups import groups, read_groups
from zkconsumer.admin.health import GroupWatch, HealthTracker, age, read_again, remarks
from zkconsumer.admin.plan import Plan
from zkconsumer.errors import RefusedError, RemedyOperation
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REGISTRATION = encode_registration(Registration({"t": 1}, Pattern.STATIC, 1))

# Far more than a test needs: a watch ends as soon as it has found a writer.
LONG_S = 60.0


@pytest.fixture
def group(clients: Clients, unique: Callable[[str], str]) -> str:
    """A group without members that has just committed two offsets."""
    name = unique("group")
    clients.other.ensure_path(paths.ids(name))
    clients.offsets(name, {T0: 100, T1: 100})
    return name


def leave_over(clients: Clients, group: str) -> str:
    """Write what a copy of ZooKeeper leaves of a member; return the path of its registration."""
    clients.other.create(paths.member(group, "g_old"), REGISTRATION, makepath=True)
    clients.other.create(paths.owner(group, T0), b"g_old-0", makepath=True)
    return paths.member(group, "g_old")


def setting(clients: Clients, group: str, offset: int = 7) -> Plan:
    """A plan that sets the offset of partition 1, which the job does not write."""
    return plan_offsets(clients.tools, "offsets set", {group: {T1: offset}})


# ---- clients that commit without a registration --------------------------------------------------


def test_a_plan_under_an_unregistered_writer_is_refused(
    clients: Clients, group: str, tmp_path: Path
) -> None:
    """A client that commits without a registration stops a plan; the error says which offsets."""
    watch = GroupWatch(clients.tools, [group], patience_s=LONG_S)
    with job(clients.other, paths.offset(group, T0), b"100"), pytest.raises(RefusedError) as caught:
        apply(clients.tools, setting(clients, group), backup_dir=tmp_path, watch=watch)
    assert "a client without a registration" in caught.value.what
    assert caught.value.where == f"{group}: t 0"
    assert caught.value.advice is not None
    assert caught.value.advice.step is RemedyOperation.FORCE_LIVE
    assert clients.stored(group)[T1] == "100"


def test_force_live_changes_the_group_nevertheless(
    clients: Clients, group: str, tmp_path: Path
) -> None:
    """With Live.FORCE the plan is applied without a wait."""
    watch = GroupWatch(clients.tools, [group], patience_s=LONG_S)
    with job(clients.other, paths.offset(group, T0), b"100"):
        plan = setting(clients, group)
        apply(clients.tools, plan, backup_dir=tmp_path, watch=watch, live=Live.FORCE)
    assert clients.stored(group)[T1] == "7"


def test_a_changed_znode_is_explained_by_its_writer(
    clients: Clients, group: str, tmp_path: Path
) -> None:
    """If the plan's own znode was written since, the error names the client and not the znode."""
    watch = GroupWatch(clients.tools, [group], patience_s=LONG_S)
    plan = plan_delete_group(clients.tools, group)
    with (
        job(clients.other, paths.offset(group, T0), b"100"),
        pytest.raises(RefusedError, match="without a registration"),
    ):
        watch.writers([group])
        apply(clients.tools, plan, backup_dir=tmp_path, watch=watch)


def test_a_recent_commit_alone_stops_nothing(clients: Clients, group: str, tmp_path: Path) -> None:
    """A group whose members have just stopped is watched for the given time, and then changed."""
    waited: list[float] = []
    watch = GroupWatch(
        clients.tools,
        [group],
        patience_s=3.0,  # far longer than a slow machine needs to begin the change
        on_wait=lambda suspects, left_s: waited.append(left_s),
    )
    assert [*watch.suspects([group])] == [group]
    apply(clients.tools, setting(clients, group), backup_dir=tmp_path, watch=watch)
    assert waited
    assert max(waited) <= 3.0
    assert clients.stored(group)[T1] == "7"


def test_offsets_of_owned_partitions_are_not_watched(clients: Clients, group: str) -> None:
    """If members own all partitions with an offset, there is nothing to wait for."""
    clients.join(group)
    for tp in (T0, T1):
        clients.other.create(paths.owner(group, tp), b"g_a-0", ephemeral=True, makepath=True)
    watch = GroupWatch(clients.tools, [group], patience_s=LONG_S)
    assert watch.suspects([group]) == {}
    assert watch.writers([group]) == {}


def test_the_doctor_finds_an_unregistered_writer(clients: Clients, group: str) -> None:
    """The finding names the partitions that the client commits, and no others."""
    found: list[Finding] = []

    def is_found() -> bool:
        # On a busy machine, the client does not always commit within half a second.
        every = doctor(clients.tools, [group], patience_s=0.5)
        found[:] = [one for one in every if one.code == "unregistered-writer"]
        return bool(found)

    with job(clients.other, paths.offset(group, T0), b"100"):
        eventually(is_found)
    assert [(one.subject, one.partitions) for one in found] == [("t", (0,))]


def test_a_writer_is_remembered_between_its_commits(clients: Clients, group: str) -> None:
    """A tool that reads repeatedly remembers a writer for its patience, and then forgets it."""
    memory = HealthTracker(patience_s=60.0)

    def state(at_s: float) -> str:
        (image,) = read_groups(clients.tools, [group]).values()
        return memory.observe(image, at_s).state.value

    assert state(0.0) == "idle"
    clients.offsets(group, {T0: 101})
    assert [state(1.0), state(50.0), state(62.0)] == ["unregistered", "unregistered", "idle"]
    clients.other.create(f"{paths.group(group)}/spout/partition_0", b"{}", makepath=True)
    assert [state(63.0), state(120.0), state(124.0)] == ["unregistered", "unregistered", "idle"]
    clients.offsets(group, {T0: 102})
    memory.keep([])
    assert state(125.0) == "idle"


# ---- znodes without a session --------------------------------------------------------------------


def test_leftovers_are_no_members(clients: Clients, group: str) -> None:
    """A registration without a session makes no group live, and is named."""
    path = leave_over(clients, group)
    (one,) = [one for one in groups(clients.tools) if one.name == group]
    assert (one.members, one.leftovers, one.state and one.state.value) == (0, 1, "leftover")
    (image,) = read_groups(clients.tools, [group]).values()
    words = "\n".join(remarks(image.health, 0.0))
    assert "no member is registered" in words
    assert path.rpartition("/")[2] in words
    assert "t 0" in words


def test_a_plan_beside_leftovers_is_applied(clients: Clients, group: str, tmp_path: Path) -> None:
    """Offsets are set although registrations without a session remain, which stay as they are."""
    path = leave_over(clients, group)
    before = clients.other.get(path)[0], clients.other.get_acls(path)[0]
    for value in (7, 8):
        apply(clients.tools, setting(clients, group, value), backup_dir=tmp_path, max_writes=1)
    assert clients.stored(group)[T1] == "8"
    assert (clients.other.get(path)[0], clients.other.get_acls(path)[0]) == before


def test_a_member_beside_leftovers_stops_a_plan(
    clients: Clients, group: str, tmp_path: Path
) -> None:
    """The guard of a group with leftovers fails if a member joins after the last check."""
    path = leave_over(clients, group)
    with pytest.raises(RefusedError, match="live members") as caught:
        apply(
            clients.tools,
            setting(clients, group),
            backup_dir=tmp_path,
            on_backup=lambda _: clients.join(group),
        )
    assert "g_a" in caught.value.where
    assert "g_old" not in caught.value.where
    assert clients.other.exists(path)
    assert clients.stored(group)[T1] == "100"


def test_the_doctor_repairs_a_copied_group(clients: Clients, group: str, tmp_path: Path) -> None:
    """One plan deletes the leftovers and repairs an offset; nothing is left to repair."""
    path = leave_over(clients, group)
    clients.other.ensure_path(paths.BROKER_IDS)
    clients.other.ensure_path(paths.TOPICS)
    clients.offsets(group, {T1: b"7\n"})
    found = [
        one
        for one in doctor(clients.tools, [group], patience_s=0.0)
        if one.code in ("persistent-registration", "malformed-offset")
    ]
    plan = plan_fixes(clients.tools, found)
    assert live_of(plan) is Live.REFUSE
    apply(clients.tools, plan, backup_dir=tmp_path, live=live_of(plan))
    assert not clients.other.exists(path)
    assert clients.stored(group)[T1] == "7"


def test_a_group_of_leftovers_is_deleted(clients: Clients, group: str, tmp_path: Path) -> None:
    """A group that only a copy of ZooKeeper has left is deleted as a whole."""
    leave_over(clients, group)
    plan = plan_delete_group(clients.tools, group)
    apply(clients.tools, plan, backup_dir=tmp_path)
    assert not clients.other.exists(paths.group(group))


def test_ages_have_one_unit() -> None:
    """An age is given in the largest unit of which there are at least two."""
    assert [age(one) for one in (3, 119, 120, 7_199, 86_400, 172_800)] == [
        "3 s",
        "119 s",
        "2 min",
        "120 min",
        "24 h",
        "2 d",
    ]


def test_a_group_with_many_offsets(
    clients: Clients, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a group has many offsets, a second reading compares only those written last."""
    monkeypatch.setattr(health, "NEWEST", 1)
    clients.offsets(group, {T0: 101})
    first = read_groups(clients.tools, [group])[group].reading
    clients.offsets(group, {T0: 102, T1: 102})
    assert [*read_again(clients.tools, {group: first})[group].writers] == [T0]
    assert read_again(clients.tools, {"gone": first}) == {}
