"""`migrate` copies offsets between ZooKeeper and Kafka; it needs an idle group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.kafka.offsets import Foreign, foreign
from support.members.group import Group, group_on
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig
from zkconsumer.admin.apply import apply
from zkconsumer.admin.broker_offsets import BrokerOffsets
from zkconsumer.admin.migrate import (
    Activity,
    Direction,
    HigherTargetOffset,
    Migration,
    kafka_offsets,
    plan_migration,
    verify_migration,
)
from zkconsumer.admin.plan import load_plan, save
from zkconsumer.errors import RefusedError, UnknownGroupError
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.client import ZooKeeperClient

TO_KAFKA, TO_ZOOKEEPER = Direction


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members, and a topic with three partitions of twenty messages."""
    with group_on(sandbox, unique, partitions=3, messages=20) as one:
        yield one


@pytest.fixture
def kafka(group: Group) -> Iterator[Foreign]:
    """A second client that reads and commits the group's offsets in Kafka."""
    with foreign(group.sandbox.zookeeper_connect, group.name, group.topic) as one:
        yield one


@pytest.fixture
def tools(group: Group) -> Iterator[ZooKeeperClient]:
    """A connection for the tools."""
    connect = group.sandbox.zookeeper_connect
    config = ConsumerConfig(
        group_id=group.name, zookeeper_connect=connect, zookeeper_connection_timeout_s=LIMIT_S
    )
    with ZooKeeperClient(config) as connection:
        yield connection


def store(group: Group, offsets: Mapping[int, object]) -> None:
    """Write offsets to ZooKeeper as a member does."""
    for number, value in offsets.items():
        path = paths.offset(group.name, TopicPartition(group.topic, number))
        group.admin.ensure_path(path)
        group.admin.set(path, str(value).encode())


def stored(client: KazooClient, group: Group) -> dict[int, bytes]:
    """Return the offsets in ZooKeeper."""
    parent = paths.offsets_of(group.name, group.topic)
    if not client.exists(parent):
        return {}
    return {int(name): client.get(f"{parent}/{name}")[0] for name in client.get_children(parent)}


def planned(
    tools: ZooKeeperClient,
    group: Group,
    direction: Direction,
    only: frozenset[int] | None = None,
    **said: Any,
) -> Migration:
    """Return the plan of a migration of the group's topic."""
    return plan_migration(
        tools,
        group.name,
        direction,
        ask_kafka=kafka_offsets(LIMIT_S),
        topics={group.topic: only},
        **said,
    )


def done(tools: ZooKeeperClient, found: Migration, backups: Path) -> None:
    """Apply the migration, and check that all offsets were written."""
    apply(tools, found.plan, backup_dir=backups, kafka=BrokerOffsets.of(tools))
    assert verify_migration(tools, found, ask_kafka=kafka_offsets(LIMIT_S)) == []


def actions(found: Migration) -> dict[int, str]:
    """Return partition -> the planned action."""
    return {one.partition.partition: one.action.value for one in found.transfers}


def test_to_kafka(tools: ZooKeeperClient, group: Group, kafka: Foreign, tmp_path: Path) -> None:
    """Missing and lower offsets are written to Kafka; higher ones are lowered only by force."""
    store(group, {0: 7, 1: 9, 2: 4})
    kafka.commit({1: 2, 2: 11})
    found = planned(tools, group, TO_KAFKA)
    assert found.activity is Activity.IDLE
    assert actions(found) == {0: "create", 1: "advance", 2: "left"}
    assert [one.reason for one in found.left] == [
        "the target's offset is higher, and is not lowered unless forced"
    ]
    assert kafka.offsets(0, 1, 2) == {1: 2, 2: 11}, "making a plan wrote offsets"
    done(tools, found, tmp_path)
    assert kafka.offsets(0, 1, 2) == {0: 7, 1: 9, 2: 11}
    forced = planned(tools, group, TO_KAFKA, lower=HigherTargetOffset.OVERWRITE)
    assert actions(forced) == {0: "same", 1: "same", 2: "back"}
    done(tools, forced, tmp_path)
    assert kafka.offsets(0, 1, 2) == {0: 7, 1: 9, 2: 4}
    assert planned(tools, group, TO_KAFKA).plan.is_empty


@pytest.mark.parametrize("direction", Direction)
def test_a_source_that_moves_after_the_plan(
    tools: ZooKeeperClient, group: Group, kafka: Foreign, tmp_path: Path, direction: Direction
) -> None:
    """A stored plan is refused if an offset that it moves has changed since."""
    ahead, behind = {0: 7, 1: 9}, {0: 2, 1: 2}
    store(group, ahead if direction is TO_KAFKA else behind)
    kafka.commit(behind if direction is TO_KAFKA else ahead)
    plan = load_plan(save(planned(tools, group, direction).plan, tmp_path / "plan.json"))
    assert len(plan) == 2
    later = {0: 8, 1: 9}
    if direction is TO_KAFKA:
        store(group, later)
    else:
        kafka.commit(later)
    before = stored(group.admin, group), kafka.offsets(0, 1)
    with pytest.raises(RefusedError, match=rf"1 offset that the plan moves.*{group.topic}.0 has 8"):
        apply(tools, plan, backup_dir=tmp_path, kafka=BrokerOffsets.of(tools))
    assert (stored(group.admin, group), kafka.offsets(0, 1)) == before


def test_selected_partitions(
    tools: ZooKeeperClient, group: Group, kafka: Foreign, tmp_path: Path
) -> None:
    """Only the selected partitions are migrated; the plan leaves the others out."""
    store(group, {0: 7, 1: 9, 2: 4})
    found = planned(tools, group, TO_KAFKA, frozenset({0, 2}))
    assert actions(found) == {0: "create", 2: "create"}
    done(tools, found, tmp_path)
    assert kafka.offsets(0, 1, 2) == {0: 7, 2: 4}


def test_to_zookeeper(tools: ZooKeeperClient, group: Group, kafka: Foreign, tmp_path: Path) -> None:
    """Offsets are copied from Kafka to ZooKeeper; a group that is unknown there is created."""
    kafka.commit({0: 7, 1: 9})
    found = planned(tools, group, TO_ZOOKEEPER)
    assert actions(found) == {0: "create", 1: "create"}
    done(tools, found, tmp_path)
    assert stored(group.admin, group) == {0: b"7", 1: b"9"}
    store(group, {1: 12})
    kafka.commit({0: 8, 2: 3})
    found = planned(tools, group, TO_ZOOKEEPER)
    assert actions(found) == {0: "advance", 1: "left", 2: "create"}
    done(tools, found, tmp_path)
    assert stored(group.admin, group) == {0: b"8", 1: b"12", 2: b"3"}


def test_malformed_offsets_are_not_migrated(tools: ZooKeeperClient, group: Group) -> None:
    """Malformed offsets and missing partitions are not migrated; -1 is read as no offset."""
    store(group, {0: "x", 1: -1, 7: 5})
    found = planned(tools, group, TO_KAFKA)
    assert actions(found) == {0: "left", 1: "none", 7: "left"}
    assert "is not an offset" in found.left[0].reason
    assert "does not exist" in found.left[1].reason
    assert found.plan.is_empty


def test_outside_the_log(tools: ZooKeeperClient, group: Group) -> None:
    """An offset outside its log, or in an unknown log, is migrated; the plan says why."""
    store(group, {0: 4, 1: 21, 2: 20})
    logs = {group.tp(0): LogRange(5, 20), group.tp(1): LogRange(5, 20), group.tp(2): "no leader"}
    found = planned(tools, group, TO_KAFKA, ask_logs=lambda brokers, asked: logs)
    assert actions(found) == {0: "create", 1: "create", 2: "create"}
    assert [one.reason for one in found.transfers] == [
        "before the start of the log (5): members will apply auto.offset.reset",
        "beyond the end of the log (20): members will apply auto.offset.reset",
        "not compared with the log: no leader",
    ]


def test_a_live_group_is_refused(tools: ZooKeeperClient, group: Group, kafka: Foreign) -> None:
    """If members that commit only to ZooKeeper are live, the plan contains no offset."""
    one = group.join()
    one.read(60)
    one.connector.commit_offsets()
    with pytest.raises(RefusedError, match="do not commit to both stores") as caught:
        planned(tools, group, TO_KAFKA, follow_s=0.0)
    assert "Kafka -" in caught.value.where
    assert kafka.offsets(0, 1, 2) == {}


def test_a_member_that_joins_after_the_plan(
    tools: ZooKeeperClient, group: Group, kafka: Foreign, tmp_path: Path
) -> None:
    """A member that joins after the plan makes the first write fail."""
    store(group, {0: 7})
    found = planned(tools, group, TO_KAFKA)
    group.admin.create(paths.member(group.name, "x"), b"{}", ephemeral=True, makepath=True)
    with pytest.raises(RefusedError, match="live members"):
        apply(tools, found.plan, backup_dir=tmp_path, kafka=BrokerOffsets.of(tools))
    assert kafka.offsets(0, 1, 2) == {}


def test_equal_offsets_need_no_migration(tools: ZooKeeperClient, group: Group) -> None:
    """If all offsets are equal in both stores, even a live group needs no migration."""
    one = group.join(offsets_storage="kafka", auto_commit_enable=False)
    one.read(60)
    one.connector.commit_offsets()
    eventually(lambda: len(stored(group.admin, group)) == 3)
    found = planned(tools, group, TO_KAFKA)
    assert found.activity is Activity.DUAL
    assert actions(found) == {0: "same", 1: "same", 2: "same"}
    assert found.plan.is_empty


def test_a_group_that_does_not_exist(tools: ZooKeeperClient, group: Group) -> None:
    """If neither store knows the group, `migrate` raises an error, and creates nothing."""
    with pytest.raises(UnknownGroupError):
        planned(tools, group, TO_ZOOKEEPER)
    with pytest.raises(UnknownGroupError):
        planned(tools, group, TO_KAFKA)
    assert not group.admin.exists(paths.group(group.name))


def test_unknown_offsets_in_kafka_plan_nothing(tools: ZooKeeperClient, group: Group) -> None:
    """If the offsets in Kafka are unknown, the plan contains no change."""
    store(group, {0: 7})
    with pytest.raises(RefusedError, match="does not return"):
        plan_migration(
            tools,
            group.name,
            TO_KAFKA,
            topics={group.topic: None},
            ask_kafka=lambda brokers, name, asked: kafka_offsets(LIMIT_S)([], name, asked),
        )
