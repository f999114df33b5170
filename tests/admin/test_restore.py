"""On a real ZooKeeper, offsets are restored from its own logs to what the clients had recorded."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from support.scenes import Scene, scenes
from support.zk.client import peer_of

from zkconsumer.admin.apply import apply
from zkconsumer.admin.group_changes import plan_delete_group, plan_offsets, plan_undo
from zkconsumer.admin.plan import load_plan
from zkconsumer.admin.restore import Restoration, RestoreAction, plan_restore
from zkconsumer.errors import RefusedError
from zkconsumer.history.inputs import find_servers
from zkconsumer.history.offsets import Choice, Point, read_past
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import ZooKeeperEnsemble, ZooKeeperServer
from zkconsumer.zk.client import ZooKeeperClient

GROUPS = ("billing", "audit")
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("log", 0)]
OWN, OPEN = make_digest_acl("owner", "secret", all=True), OPEN_ACL_UNSAFE[0]
LIMIT_S = 5.0

Offsets = dict[tuple[str, TopicPartition], int]


@dataclass
class Past:
    """A group's clients, which record what they commit, and the tools on the same chroot.

    `moments` has the last transaction, the server's time, and the offsets after each act.
    """

    scene: Scene
    tools: ZooKeeperClient
    data_dir: Path
    backups: Path
    now: Offsets = field(default_factory=dict)
    moments: list[tuple[int, int, Offsets]] = field(default_factory=list)

    def commit(self, group: str, tp: TopicPartition, offset: int) -> None:
        """Commit an offset as a member does."""
        self.scene.offset(tp.topic, tp.partition, offset, group)
        self.now[group, tp] = offset

    def record(self) -> None:
        """Record the offsets of this moment; the next act has a later millisecond."""
        stat = self.scene.session.set(self.scene.put("/clock"), b"")
        self.moments.append((stat.mzxid, stat.mtime, dict(self.now)))
        while self.scene.session.set("/clock", b"").mtime == stat.mtime:
            pass

    def plan(self, choice: Choice, value: int = 0, *groups: str) -> Restoration:
        """Plan a restoration from the files of the running server."""
        chroot = self.tools.config.zookeeper_chroot
        past = read_past(
            find_servers([self.data_dir]), Point(choice, value), chroot=chroot, groups=groups
        )
        return plan_restore(self.tools, past, limit_s=LIMIT_S)

    def restore(self, choice: Choice, value: int = 0, *groups: str) -> Path:
        """Carry out a restoration; return its backup."""
        return self.do(self.plan(choice, value, *groups).plan)

    def do(self, plan: Any) -> Path:
        report = apply(self.tools, plan, backup_dir=self.backups)
        assert report.backup is not None
        return report.backup

    def stored(self) -> Offsets:
        """Return the offsets that are in ZooKeeper now, as another client reads them."""
        found = {}
        for group in GROUPS:
            for tp in PARTITIONS:
                path = paths.offset(group, tp)
                if self.scene.session.exists(path):
                    found[group, tp] = int(self.scene.session.get(path)[0])
        return found


@pytest.fixture
def past(scene: Scene, zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Past]:
    scene.session.delete(paths.broker(0))  # no command waits for a broker
    for topic, size in (("orders", 2), ("log", 1)):
        scene.topic(topic, size)
    with ZooKeeperClient(scene.config()) as tools:
        yield Past(scene, tools, zookeeper.directory / "data", tmp_path)


def act(past: Past, dice: random.Random) -> None:
    """Commit, edit, delete or lose offsets, at random."""
    group, tp = dice.choice(GROUPS), dice.choice(PARTITIONS)
    match dice.choice(["commit"] * 6 + ["set", "delete", "delete group", "rmr"]):
        case "commit":
            past.commit(group, tp, past.now.get((group, tp), 0) + dice.randint(1, 9))
        case "set":
            target = {group: {tp: 1_000 + dice.randint(0, 9)}}
            past.do(plan_offsets(past.tools, "offsets set", target))
        case "delete" if (group, tp) in past.now:
            past.scene.session.delete(paths.offset(group, tp))
        case "delete group" if any(key[0] == group for key in past.now):
            past.do(plan_delete_group(past.tools, group))
        case "rmr":
            past.scene.session.delete(paths.CONSUMERS, recursive=True)
    past.now = past.stored()


@pytest.mark.parametrize("count", [8, 40])
def test_each_moment_is_restored(past: Past, count: int) -> None:
    """After random edits and deletions, each restoration gives the offsets recorded then."""
    dice = random.Random(count)
    for _ in range(count):
        for _ in range(3):
            act(past, dice)
        past.record()
    for zxid, time_ms, offsets in dice.sample(past.moments, count):
        choice = dice.choice([(Choice.TIME, time_ms), (Choice.ZXID, zxid)])
        if not offsets:
            continue
        past.scene.session.delete(paths.CONSUMERS, recursive=True)
        past.restore(*choice)
        assert past.stored() == offsets


@pytest.fixture
def committed(past: Past) -> Past:
    """A group with three offsets, with an access control list, that has been recorded."""
    past.commit("billing", PARTITIONS[0], 1)
    for tp in PARTITIONS:
        past.commit("billing", tp, 100 + tp.partition)
    root = paths.group("billing")
    for path in (root, paths.offsets("billing"), paths.offset("billing", PARTITIONS[0])):
        past.scene.session.set_acls(path, [OWN, OPEN])
    past.record()
    return past


def test_a_deleted_group_comes_back(committed: Past) -> None:
    """After `rmr /consumers` the znodes are created with their access control lists; undo works."""
    session = committed.scene.session
    session.delete(paths.CONSUMERS, recursive=True)
    backup = committed.restore(Choice.TIME, committed.moments[-1][1], "billing")
    assert committed.stored() == committed.moments[-1][2]
    for path in (paths.group("billing"), paths.offset("billing", PARTITIONS[0])):
        assert session.get_acls(path)[0] == [OWN, OPEN]
    assert session.get_acls(paths.offset("billing", PARTITIONS[1]))[0] == [OPEN]
    committed.do(plan_undo(committed.tools, load_plan(backup)))
    assert committed.stored() == {}


def test_the_edit_of_a_session_is_undone(committed: Past, zookeeper: ZooKeeperServer) -> None:
    """Sets, deletions and creations of another client's session are undone, and nothing else."""
    tp, other, new = *PARTITIONS[:2], TopicPartition("log", 5)
    with peer_of(f"{zookeeper.connect}{committed.tools.config.zookeeper_chroot}") as client:
        client.set(paths.offset("billing", tp), b"0")
        client.delete(paths.offset("billing", other))
        client.create(paths.offset("billing", new), b"9")
        session = client.client_id[0]
    committed.commit("billing", PARTITIONS[2], 500)
    found = committed.plan(Choice.SESSION, session)
    assert {one.partition: one.action for one in found.partitions} == {
        tp: RestoreAction.SET,
        other: RestoreAction.CREATE,
        new: RestoreAction.DELETE,
    }
    committed.do(found.plan)
    assert committed.stored() == committed.now
    assert not committed.scene.session.exists(paths.offset("billing", new))


def test_the_last_edit_by_a_tool_is_undone(committed: Past) -> None:
    """The last plan of a group is undone without its backup; the marks identify it."""
    for offset in (3, 4):
        targets = {"billing": dict.fromkeys(PARTITIONS[:2], offset)}
        committed.do(plan_offsets(committed.tools, "offsets set", targets))
    found = committed.plan(Choice.TOOL, 0, "billing")
    assert [(one.then, one.now, one.again, one.skipped) for one in found.partitions] == [
        (3, 4, 1, 0),
        (3, 4, 1, 0),
    ]
    committed.do(found.plan)
    assert {committed.stored()["billing", tp] for tp in PARTITIONS[:2]} == {3}


def test_another_ensemble(
    committed: Past, zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """The offsets can be restored below another chroot, as into another ensemble."""
    with scenes(zookeeper, unique("other")) as other:
        for topic, size in (("orders", 2), ("log", 1)):
            other.topic(topic, size)
        other.session.delete(paths.broker(0))
        with ZooKeeperClient(other.config()) as tools:
            committed.tools, chroot = tools, committed.tools.config.zookeeper_chroot
            past = read_past(
                find_servers([committed.data_dir]),
                Point(Choice.TIME, committed.moments[-1][1]),
                chroot=chroot,
            )
            found = plan_restore(tools, past, limit_s=LIMIT_S)
            assert "the logs are those of another ensemble than the one that is changed" in (
                found.plan.notes
            )
            committed.do(found.plan)
        assert other.session.get(paths.offset("billing", PARTITIONS[0]))[0] == b"100"


def test_a_topic_that_was_created_again(committed: Past) -> None:
    """Offsets of a topic that was deleted and created again are those of other messages."""
    committed.scene.session.delete(paths.topic("orders"))
    committed.scene.topic("orders", 2)
    committed.commit("billing", PARTITIONS[0], 0)
    found = committed.plan(Choice.TIME, committed.moments[-1][1])
    assert [(one.action, "created again" in one.reason) for one in found.partitions] == [
        (RestoreAction.SAME, False),
        (RestoreAction.LEFT, True),
        (RestoreAction.LEFT, True),
    ]


def test_a_moment_after_the_end_of_the_logs(committed: Past, tmp_path: Path) -> None:
    """A copy of the logs does not show later writes, so a later moment is refused with the end."""
    copy = tmp_path / "copy"
    shutil.copytree(committed.data_dir, copy)
    committed.commit("billing", PARTITIONS[0], 777)
    committed.record()
    committed.data_dir = copy
    with pytest.raises(RefusedError, match="the logs end at"):
        committed.plan(Choice.TIME, committed.moments[-1][1])


def test_faults_of_an_ensemble(scene: Scene, tmp_path: Path) -> None:
    """Although leaders are killed and a log is missing, 40 restorations give what was recorded."""
    dice = random.Random(37)
    scene.session.delete(paths.broker(0))
    recorded: list[tuple[int, dict[TopicPartition, int]]] = []
    now: dict[TopicPartition, int] = {}
    settings = {"autopurge.purgeInterval": 0, "snapCount": 60, "preAllocSize": 64}
    with ZooKeeperEnsemble(tmp_path / "zk", settings=settings) as ensemble:
        with peer_of(ensemble.connect) as client:
            for round_ in range(40):
                for _ in range(20):
                    tp = dice.choice(PARTITIONS)
                    offset = dice.randint(0, 1_000)
                    client.retry(write, client, paths.offset("billing", tp), offset)
                    now[tp] = offset
                if dice.random() < 0.1:
                    client.retry(client.delete, paths.CONSUMERS, recursive=True)
                    now.clear()
                client.retry(client.ensure_path, "/clock")
                recorded.append((client.retry(client.set, "/clock", b"").mzxid, dict(now)))
                if round_ in (12, 28):
                    leader = ensemble.leader()
                    leader.kill()
                    leader.start()
                    ensemble.leader()
        directories = [one.directory / "data" / "version-2" for one in ensemble.servers]
    oldest = min(directories[0].glob("log.*"), key=lambda one: int(one.suffix[1:], 16))
    oldest.unlink()  # the other servers have its transactions
    with ZooKeeperClient(scene.config()) as tools:
        for zxid, offsets in recorded:
            point = Point(Choice.ZXID, zxid + 1)
            scene.session.delete(paths.CONSUMERS, recursive=True)
            if offsets:
                past = read_past(find_servers(directories), point)
                found = plan_restore(tools, past, limit_s=LIMIT_S)
                apply(tools, found.plan, backup_dir=tmp_path)
            stored = {
                tp: int(scene.session.get(paths.offset("billing", tp))[0])
                for tp in PARTITIONS
                if scene.session.exists(paths.offset("billing", tp))
            }
            assert stored == offsets


def write(client: KazooClient, path: str, offset: int) -> None:
    """Commit an offset; a lost connection may repeat the request, which changes nothing more."""
    client.ensure_path(path)
    client.set(path, b"%d" % offset)
