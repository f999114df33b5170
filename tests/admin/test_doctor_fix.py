"""`doctor --fix` repairs what it can and changes nothing else; then `doctor` finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenes import Scene

from zkconsumer.admin.apply import apply
from zkconsumer.admin.doctor import doctor, live_of, plan_fixes
from zkconsumer.admin.findings import Finding
from zkconsumer.admin.plan import Plan
from zkconsumer.errors import RefusedError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.zk.client import ZooKeeperClient

TWO = {"g_a": {"orders": 2}, "g_b": {"orders": 1, "logs": 1}}
SIZES = {"orders": 7, "logs": 2}


def examined(scene: Scene) -> list[Finding]:
    """Return the findings of group g."""
    with ZooKeeperClient(scene.config()) as connection:
        return doctor(connection, ["g"], patience_s=0.0)


def fixed(scene: Scene, backups: Path) -> Plan:
    """Examine the group, plan the fixes, and apply them."""
    with ZooKeeperClient(scene.config()) as connection:
        plan = plan_fixes(connection, doctor(connection, ["g"], patience_s=0.0))
        apply(connection, plan, backup_dir=backups, live=live_of(plan))
        return plan


BESIDE_MEMBERS: dict[str, Callable[[Scene], object]] = {
    "persistent owner": lambda scene: scene.put(paths.owner("g", _tp("more", 0)), b"g_gone-0"),
    "owners of a deleted topic": lambda scene: [
        scene.put(paths.owner("g", _tp("deleted", number)), b"g_a-0") for number in range(3)
    ],
    "malformed persistent registration": lambda scene: scene.put(
        paths.member("g", "old"), b"hello"
    ),
    "persistent registration": lambda scene: scene.put(
        paths.member("g", "old"), b'{"version":1,"subscription":{"x":1},"pattern":"static"}'
    ),
    "pykafka's nodes": lambda scene: [
        scene.put(f"{paths.owners_of('g', topic)}/0-{number}", b"host:1-0")
        for topic in ("orders", "b'orders'")
        for number in range(2)
    ],
}


@pytest.mark.parametrize("plant", BESIDE_MEMBERS.values(), ids=BESIDE_MEMBERS.keys())
def test_blocking_znodes_are_deleted_while_members_run(
    scene: Scene, tmp_path: Path, plant: Callable[[Scene], object]
) -> None:
    """While members are live, blocking znodes are deleted, and the members' znodes are kept."""
    scene.settled(TWO, SIZES)
    scene.topic("more", 1)
    before = _nodes(scene)
    plant(scene)
    assert examined(scene)
    assert _nodes(scene) != before
    assert len(fixed(scene, tmp_path)) >= 1
    assert examined(scene) == []
    after = _nodes(scene)
    assert {path: stat for path, stat in before.items() if after.get(path) != stat} == {}


OFFSETS: dict[str, Callable[[Scene], object]] = {
    "malformed": lambda scene: scene.offset("orders", 1, "?"),
    "with a line feed": lambda scene: scene.offset("orders", 1, " 12\n"),
    "of a deleted topic": lambda scene: scene.offset("deleted", 1, 7),
    "of a partition there is not": lambda scene: scene.offset("orders", 7, 7),
    "foreign": lambda scene: scene.put(f"{paths.offsets_of('g', 'orders')}/0-1", b"7"),
    "of no topic": lambda scene: scene.put(f"{paths.offsets_of('g', 'b' + chr(39))}/1", b"7"),
}


@pytest.mark.parametrize("plant", OFFSETS.values(), ids=OFFSETS.keys())
def test_offsets_are_repaired_while_no_member_is_live(
    scene: Scene, tmp_path: Path, plant: Callable[[Scene], object]
) -> None:
    """Offsets are repaired only while no member is live."""
    scene.settled(TWO, SIZES)
    plant(scene)
    before = _nodes(scene)
    with pytest.raises(RefusedError, match="live members"):
        fixed(scene, tmp_path)
    assert _nodes(scene) == before
    scene.session.delete(paths.ids("g"), recursive=True)
    scene.session.delete(paths.owners("g"), recursive=True)
    fixed(scene, tmp_path)
    assert examined(scene) == []
    value = scene.session.retry(scene.session.get, paths.offset("g", _tp("orders", 0)))[0]
    assert value == b"5"


def test_an_offset_with_a_line_feed_is_repaired(scene: Scene, tmp_path: Path) -> None:
    """An offset that `echo 12 >` wrote becomes 12; an offset that is not a number is deleted."""
    scene.topic("orders", 3)
    for partition, text in enumerate((" 12\n", "?")):
        scene.offset("orders", partition, text)
    fixed(scene, tmp_path)
    assert scene.session.get(paths.offset("g", _tp("orders", 0)))[0] == b"12"
    assert not scene.session.exists(paths.offset("g", _tp("orders", 1)))


def test_a_znode_that_has_changed_is_left_alone(scene: Scene) -> None:
    """A znode that has changed since, or that a session holds, is not repaired."""
    scene.settled(TWO, SIZES)
    scene.topic("more", 1)
    path = scene.put(paths.owner("g", _tp("more", 0)), b"g_gone-0")
    with ZooKeeperClient(scene.config()) as connection:
        found = doctor(connection, ["g"], patience_s=0.0)
        scene.session.set(path, b"g_a-0")
        with pytest.raises(RefusedError, match="changed"):
            plan_fixes(connection, found)
        scene.session.delete(path)
        scene.hold(path, b"g_a-0")
        with pytest.raises(RefusedError, match="session"):
            plan_fixes(connection, found)


def test_owner_znodes_of_sessions_are_not_deleted(scene: Scene) -> None:
    """For a deleted topic, only owner znodes that no session holds are deleted."""
    scene.settled(TWO, SIZES)
    scene.put(paths.owner("g", _tp("deleted", 0)), b"g_a-0")
    held = scene.owner("deleted", 1, "g_a-0")
    (one,) = examined(scene)
    assert held not in {fix.path for fix in one.fixes}
    with ZooKeeperClient(scene.config()) as connection:
        plan = plan_fixes(connection, [one])
    assert [change.path for change in plan.changes] == [paths.owner("g", _tp("deleted", 0))]


def _tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)


def _nodes(scene: Scene) -> dict[str, tuple[bytes, int]]:
    """Return path -> payload and mzxid, for every znode below the group's directories."""
    found, todo = {}, [paths.ids("g"), paths.owners("g"), paths.offsets("g")]
    while todo:
        path = todo.pop()
        if scene.session.exists(path):
            data, stat = scene.session.get(path)
            found[path] = data, stat.mzxid
            todo += [f"{path}/{name}" for name in scene.session.get_children(path)]
    return found
