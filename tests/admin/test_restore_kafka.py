"""On real servers, offsets of both stores are restored from ZooKeeper's and the broker's logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.kafka.offsets import foreign, new_style_member
from support.members.group import Group, group_on
from support.wait import LIMIT_S

from zkconsumer.admin import Admin, Choice, PastSources, Point
from zkconsumer.admin.apply import Live, apply
from zkconsumer.admin.broker_offsets import BrokerOffsets
from zkconsumer.admin.group_changes import plan_undo
from zkconsumer.admin.lag import Source
from zkconsumer.admin.plan import load_plan
from zkconsumer.admin.restore import Restoration, RestoreAction, plan_restore
from zkconsumer.errors import RefusedError
from zkconsumer.history.kafka_offsets import read_past_in_kafka
from zkconsumer.history.offset_logs import find_replicas
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.client import ZooKeeperClient

pytestmark = pytest.mark.server

Stored = tuple[str | None, dict[int, int]]
"""A group's offset of partition 0 in ZooKeeper, and its offsets in Kafka."""


@dataclass
class Stage:
    """A group, and the tools' connection."""

    group: Group
    admin: Admin
    backups: Path

    @property
    def tools(self) -> ZooKeeperClient:
        return self.admin.connection

    def commit(self, zookeeper: int | None, kafka: Mapping[int, int]) -> int:
        """Commit to ZooKeeper and to Kafka; return a time after that, in ms."""
        if zookeeper is not None:
            self.group.write(0, str(zookeeper).encode())
        if kafka:
            with foreign(*self._place) as one:
                one.commit(kafka)
        at_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= at_ms:
            pass
        return at_ms

    @property
    def _place(self) -> tuple[str, str, str]:
        return self.group.sandbox.zookeeper_connect, self.group.name, self.group.topic

    @property
    def stored(self) -> Stored:
        with foreign(*self._place) as one:
            return self.group.stored(0), one.offsets(0, 1)

    def plan(self, at_ms: int, sources: PastSources | None = None) -> Restoration:
        """Plan to restore both stores, or what the sources contain."""
        point = Point(Choice.TIME, at_ms)
        return self.admin.plan_restore(sources or self.files, point, [self.group.name])

    @property
    def files(self) -> PastSources:
        sandbox = self.group.sandbox
        return PastSources(
            data_dirs=[sandbox.zookeeper.directory / "data"],
            offsets_logs=[sandbox.broker.directory / "data"],
        )

    def carry_out(self, found: Restoration, live: Live = Live.REFUSE) -> Path:
        store = BrokerOffsets.of(self.tools)
        report = apply(self.tools, found.plan, backup_dir=self.backups, kafka=store, live=live)
        assert report.backup is not None
        return report.backup


@pytest.fixture
def stage(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Stage]:
    with (
        group_on(sandbox, unique, partitions=2, messages=30) as group,
        Admin(sandbox.zookeeper_connect, broker_limit_s=LIMIT_S) as admin,
    ):
        yield Stage(group, admin, tmp_path)


@pytest.mark.parametrize(
    ("zookeeper", "kafka"), [(3, {0: 3, 1: 4}), (None, {0: 3, 1: 4})], ids=["dual", "kafka"]
)
def test_each_store_is_restored(stage: Stage, zookeeper: int | None, kafka: dict[int, int]) -> None:
    """Each store gets back its offsets, from files or from the topic; the backup undoes that."""
    at_ms = stage.commit(zookeeper, kafka)
    stage.commit(zookeeper and 9, {0: 9, 1: 2})
    before = stage.stored
    found = stage.plan(at_ms, PastSources(offsets_topic=True) if zookeeper is None else None)
    assert {
        (row.store, row.partition.partition, row.now, row.then) for row in found.partitions
    } == {
        *([(Source.ZOOKEEPER, 0, 9, 3)] if zookeeper else []),
        (Source.KAFKA, 0, 9, 3),
        (Source.KAFKA, 1, 2, 4),
    }
    backup = stage.carry_out(found)
    assert stage.stored == (zookeeper and str(zookeeper), kafka)
    undo = plan_undo(stage.tools, load_plan(backup), kafka=BrokerOffsets.of(stage.tools))
    apply(stage.tools, undo, backup_dir=stage.backups, kafka=BrokerOffsets.of(stage.tools))
    assert stage.stored == before


def test_members_of_the_brokers_group(stage: Stage) -> None:
    """Nothing is written while a consumer of Kafka's own protocol is in the group."""
    at_ms = stage.commit(3, {0: 3})
    stage.commit(9, {0: 9})
    found = stage.plan(at_ms)
    with new_style_member(
        stage.group.sandbox.zookeeper_connect, stage.group.name, stage.group.topic
    ):
        for live in Live:
            with pytest.raises(RefusedError, match="only from the members of a group"):
                stage.carry_out(found, live)
        assert stage.group.stored(0) == "9"
    stage.carry_out(stage.plan(at_ms))  # the member may have committed when it left
    zookeeper, kafka = stage.stored
    assert (zookeeper, kafka[0]) == ("3", 3)


def test_later_commits(stage: Stage) -> None:
    """An offset that has changed since the end of the log is unknown, and is kept."""
    at_ms = stage.commit(None, {0: 3})
    brokers = [stage.group.sandbox.broker.directory / "data"]
    kafka = read_past_in_kafka(find_replicas(brokers), at_ms + 3_600_000, groups=[stage.group.name])
    stage.commit(None, {0: 5})
    (row,) = plan_restore(stage.tools, None, kafka=kafka, limit_s=LIMIT_S).partitions
    assert (row.is_unknown, row.action, row.now) == (True, RestoreAction.LEFT, 5)
    assert "has changed since" in row.reason
