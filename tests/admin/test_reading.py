"""What the tools read about topics, groups, members and lag; an unknown value is a reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl
from support.scenes import Scene

from zkconsumer.admin import Admin
from zkconsumer.admin.groups import groups, idle_by_design, members, partitions, topics
from zkconsumer.admin.lag import (
    NO_SUCH_PARTITION,
    NO_SUCH_TOPIC,
    NOTHING_COMMITTED,
    CommitWindow,
    GroupLag,
    PartitionLag,
    Source,
    StoreWatch,
    group_lags,
)
from zkconsumer.admin.offset_plans import plan_import
from zkconsumer.errors import AccessDeniedError
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.zk.client import ZooKeeperClient

NOBODY = [make_digest_acl("other", "secret", all=True)]
Kafka = dict[TopicPartition, OffsetAndMetadata | str | None]
Logs = dict[TopicPartition, LogRange | str]


def _lag(
    scene: Scene,
    *,
    logs: Logs | None = None,
    kafka: Kafka | None = None,
    stores: StoreWatch | None = None,
) -> GroupLag:
    """Return the lag of group g if the brokers report these logs and these offsets."""

    def said(brokers: Sequence[Broker], asked: Collection[TopicPartition]) -> Logs:
        assert brokers
        return {tp: (logs or {}).get(tp, LogRange(0, 100)) for tp in asked}

    with ZooKeeperClient(scene.config()) as connection:
        return group_lags(
            connection,
            ["g"],
            limit_s=1,
            logs=said,
            kafka=lambda brokers, asked: {"g": kafka or {}},
            stores=stores,
        )["g"]


def test_lag(scene: Scene) -> None:
    """Every partition shows its owner and offset in ZooKeeper, and its log on the brokers."""
    scene.settled({"g_a": {"t": 1}, "g_b": {"t": 1}}, {"t": 3})
    found = _lag(scene, logs={TopicPartition("t", 1): "the partition has no leader"})
    assert [(one.partition, one.owner, one.committed, one.lag) for one in found.partitions] == [
        (0, "g_a-0", 5, 95),
        (1, "g_a-0", 5, "the partition has no leader"),
        (2, "g_b-0", 5, 95),
    ]
    assert {one.source for one in found.partitions} == {Source.ZOOKEEPER}
    assert all(one.session == scene.session.client_id[0] for one in found.partitions)


def test_a_group_that_may_not_be_read(scene: Scene) -> None:
    """`Admin.lag` returns such a group with its unreadable znodes, beside the others."""
    scene.settled({"g_a": {"t": 1}}, {"t": 1})
    scene.offset("t", 0, 7, group="secret")
    hidden = paths.group("secret"), paths.offsets("secret")
    for path in hidden:
        scene.session.set_acls(path, NOBODY)
    with Admin(scene.config()) as admin:
        found = admin.lag(["g", "secret", "missing"])
    assert {name: sorted(one.unreadable) for name, one in found.items()} == {
        "g": [],
        "secret": sorted(hidden),
    }
    assert "authenticate as a user who may read it" in str(found["secret"].unreadable[hidden[0]])
    assert [one.committed for one in found["g"].partitions] == [5]


def test_an_export_is_importable(scene: Scene, tmp_path: Path) -> None:
    """`Admin.export_offsets` leaves out offsets that no import accepts, with a note on each."""
    scene.offset("t", 0, 7)
    scene.offset("t", -1, 8)
    with Admin(scene.config()) as admin:
        notes = admin.export_offsets(["g"], tmp_path / "offsets")
        assert admin.read_offsets(tmp_path / "offsets") == {"g": {TopicPartition("t", 0): 7}}
    assert notes == ["g t--1 is left out: Kafka allows no such partition"]


def test_members_of_a_group_that_may_not_be_read(scene: Scene) -> None:
    """`Admin.members` names such a group to `on_denied` beside the others, or raises the error."""
    scene.settled({"g_a": {"t": 1}}, {"t": 1})
    scene.member("s_a", group="secret", t=1)
    hidden, told = paths.ids("secret"), dict[str, AccessDeniedError]()
    scene.session.set_acls(hidden, NOBODY)
    with Admin(scene.config()) as admin:
        found = admin.members(["g", "secret"], on_denied=told.__setitem__)
        with pytest.raises(AccessDeniedError, match=hidden):
            admin.members(["g", "secret"])
    assert [one.consumer for one in found.pop("g")] == ["g_a"]
    assert not found
    assert {name: error.where for name, error in told.items()} == {"secret": hidden}


def test_a_topic_that_may_not_be_read(scene: Scene) -> None:
    """Reports say why such a topic's partitions are unknown; a plan that needs them is refused."""
    scene.settled({"g_a": {"t": 1, "u": 1}}, {"t": 1, "u": 1})
    scene.session.set_acls(paths.topic("u"), NOBODY)
    with Admin(scene.config()) as admin:
        listed = {one.name: (one.partitions, one.fault) for one in admin.topics()}
        assert listed["t"] == (1, "")
        assert listed["u"][0] is None
        assert "does not allow this client to read" in listed["u"][1]
        lag = {one.topic: one.log for one in admin.lag(["g"])["g"].partitions}
        assert "does not allow this client to read" in str(lag["u"])
        (fault,) = admin.verify("g")
        assert (fault.code, fault.subject) == ("access-denied", "u")
        assert f"permit this client to read {paths.topic('u')}" in fault.remedy
        assert fault in admin.doctor(["g"])
        with pytest.raises(AccessDeniedError, match=paths.topic("u")):
            admin.explain("g")
        with pytest.raises(AccessDeniedError, match=paths.topic("u")):
            admin.what_if("g", ["-g_a"])
        with pytest.raises(AccessDeniedError, match=paths.topic("u")):
            plan_import(admin.connection, {"g": {TopicPartition("u", 0): 1}})


def test_both_stores(scene: Scene) -> None:
    """If the stores have different offsets, the lag follows the larger one, and both are shown."""
    scene.settled({"g_a": {"t": 1}}, {"t": 5})
    scene.put(paths.offset("g", TopicPartition("t", 3)), b"-1")
    kafka: Kafka = {
        TopicPartition("t", 0): OffsetAndMetadata(5),
        TopicPartition("t", 1): OffsetAndMetadata(9),
        TopicPartition("t", 2): "Kafka: timed out",
        TopicPartition("t", 3): "Kafka: timed out",
        TopicPartition("t", 4): OffsetAndMetadata(3),
    }
    found = _lag(scene, kafka=kafka).partitions
    assert [(one.committed, one.source) for one in found] == [
        (5, Source.BOTH),
        (9, Source.KAFKA),
        (5, Source.ZOOKEEPER),
        ("Kafka: timed out", None),
        (5, Source.ZOOKEEPER),
    ]
    assert [one.in_zookeeper for one in found] == [5, 5, 5, None, 5]
    assert [one.rule for one in found] == ["", "larger", "", "", "larger"]
    assert [one.committed_ms is None for one in found] == [False, True, False, True, False]
    assert found[3].lag == "Kafka: timed out"


@pytest.mark.parametrize("dead", [Source.ZOOKEEPER, Source.KAFKA])
def test_the_lag_follows_the_store_that_moves(scene: Scene, dead: Source) -> None:
    """After a second reading the lag follows the store that has moved, even to a lower offset."""
    scene.topic("t", 1)
    tp, stores = TopicPartition("t", 0), StoreWatch()

    def read(zookeeper: int, kafka: int) -> PartitionLag:
        scene.offset("t", 0, zookeeper)
        found = _lag(scene, kafka={tp: OffsetAndMetadata(kafka)}, stores=stores)
        return found.partitions[0]

    live = Source.KAFKA if dead is Source.ZOOKEEPER else Source.ZOOKEEPER
    window = CommitWindow()
    for moving, rule in ((10, "larger"), (20, "moved"), (20, "moved"), (30, "moved")):
        offsets = (90, moving) if dead is Source.ZOOKEEPER else (moving, 90)
        one = read(*offsets)
        assert one.source is (dead if rule == "larger" else live)
        assert (one.rule, one.lag) == (rule, 10 if rule == "larger" else 100 - moving)
        window.observe(one, 0.0)
    assert {commit.offset for commit in window.commits} == {20, 30}


def test_an_unknown_value_is_a_reason(scene: Scene) -> None:
    """If an offset, partition or topic is missing or unreadable, a reason replaces the number."""
    scene.topic("t", 2)
    scene.offset("t", 1, "x")
    scene.offset("t", 7, 3)
    scene.offset("gone", 0, 3)
    found = {(one.topic, one.partition): one for one in _lag(scene).partitions}
    assert found["gone", 0].lag == NO_SUCH_TOPIC
    assert found["t", 0].lag == NOTHING_COMMITTED
    assert "is not an offset" in str(found["t", 1].lag)
    assert found["t", 7].lag == NO_SUCH_PARTITION
    assert [one.owner for one in found.values()] == [None] * 4


def test_a_group_without_offsets_and_one_without_members(scene: Scene) -> None:
    """A group's lag covers the partitions that it subscribes to and those that it committed."""
    scene.topic("t", 2)
    scene.member("g_a", t=1)
    assert [one.lag for one in _lag(scene).partitions] == [NOTHING_COMMITTED] * 2
    scene.session.delete(paths.member("g", "g_a"))
    scene.offset("t", 1, 40)
    found = _lag(scene)
    assert found.members == []
    assert [one.lag for one in found.partitions] == [NOTHING_COMMITTED, 60]


def test_only_selected_partitions_are_read(scene: Scene) -> None:
    """The brokers are asked only for the logs and offsets of the selected partitions."""
    scene.settled({"g_a": {"t": 1, "u": 1}}, {"t": 3, "u": 1})
    asked: list[list[TopicPartition]] = []

    def logs(brokers: Sequence[Broker], which: Collection[TopicPartition]) -> Logs:
        asked.append(list(which))
        return {}

    def kafka(
        brokers: Sequence[Broker], which: Mapping[str, Collection[TopicPartition]]
    ) -> dict[str, Kafka]:
        asked.extend(map(list, which.values()))
        return {}

    with ZooKeeperClient(scene.config()) as connection:
        only = {"t": frozenset({0, 2})}
        found = group_lags(connection, ["g"], limit_s=1, only=only, logs=logs, kafka=kafka)["g"]
    selected = [TopicPartition("t", 0), TopicPartition("t", 2)]
    assert asked == [selected, selected]
    assert [TopicPartition(one.topic, one.partition) for one in found.partitions] == selected


def test_brokers_that_do_not_answer(scene: Scene) -> None:
    """If no broker listens at its registered address, each number is shown as unknown."""
    scene.settled({"g_a": {"t": 1}}, {"t": 2})
    with ZooKeeperClient(scene.config()) as connection:
        found = group_lags(connection, ["g"], limit_s=0.3)["g"]
    assert all(isinstance(one.lag, str) and "broker" in one.lag for one in found.partitions)
    assert all(isinstance(one.in_kafka, str) for one in found.partitions)
    assert [one.committed for one in found.partitions] == [5, 5]


def test_idle_threads_are_explained(scene: Scene) -> None:
    """Threads in excess of the partitions are idle; the notes of their members name them."""
    scene.settled({"g_a": {"t": 8}}, {"t": 3})
    with ZooKeeperClient(scene.config()) as connection:
        asked, (member,) = members(connection, ["g"])["g"]
    assert list(idle_by_design(asked)) == ["t: 8 threads, 3 partitions: 5 idle by design"]
    assert member.idle == tuple(f"g_a-{n}" for n in range(3, 8))
    assert sum(member.owned.values()) == 3


def test_members_with_patterns_and_malformed_ones(scene: Scene) -> None:
    """A pattern is expanded to topics; an unreadable registration is listed with its fault."""
    scene.topic("orders", 2)
    payload = b'{"version":1,"subscription":{"ord.*":3},"pattern":"white_list","timestamp":"1"}'
    scene.hold(paths.member("g", "g_pattern"), payload)
    scene.hold(paths.member("g", "g_bad"), b"{")
    scene.put(paths.member("g", "g_stays"), payload)
    with ZooKeeperClient(scene.config()) as connection:
        asked, reports = members(connection, ["g"])["g"]
    bad, pattern, stays = reports
    assert "is not the expected JSON" in bad.fault
    assert (pattern.subscription, len(pattern.threads)) == ({"ord.*": 3}, 3)
    assert stays.session == 0
    assert list(idle_by_design(asked)) == ["orders: 6 threads, 2 partitions: 4 idle by design"]


def test_groups(scene: Scene) -> None:
    """All groups, or only the groups of one topic, are listed with their numbers of members."""
    scene.member("g_a")
    scene.offset("t", 0, 1, group="idle")
    scene.put(paths.ids("left"))
    with ZooKeeperClient(scene.config()) as connection:
        every = {one.name: one.members for one in groups(connection)}
        assert every == {"g": 1, "idle": None, "left": 0}
        assert [one.name for one in groups(connection, topics={"t": None})] == ["idle"]
        assert [one.name for one in groups(connection, topics={"t": frozenset({0, 4})})] == ["idle"]
        assert groups(connection, topics={"t": frozenset({1})}) == []


def test_no_group_at_all(scene: Scene) -> None:
    """If there is no group at all, the result is empty, even for a group by name."""
    with ZooKeeperClient(scene.config()) as connection:
        assert groups(connection) == []
        assert group_lags(connection, ["g"], limit_s=1) == {}


def test_topics(scene: Scene) -> None:
    """Each topic is listed with partitions, replicas, leaders and ISR, or with its fault."""
    scene.put(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[1,2]}}')
    scene.put(paths.topic("bad"), b'{"version":1,"partitions":{"x":[1]}}')
    state = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
    scene.put(paths.partition_state("t", 0), state)
    scene.put(paths.partition_state("t", 1), state.replace(b'"leader":1', b'"leader":-1'))
    with ZooKeeperClient(scene.config()) as connection:
        bad, good = topics(connection)
        found = partitions(connection, ["t", "nowhere"])
    assert "int32" in bad.fault
    assert (good.name, good.partitions, good.replicas) == ("t", 3, (2, 2))
    assert [(one.leader, one.isr, one.out_of_sync) for one in found] == [
        (1, (1,), (2,)),
        (None, (1,), (2,)),
        ("the partition has no state znode yet", (), (1, 2)),
    ]
