"""A lag that consists of transaction markers, which the JVM's old consumer cannot move over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from support.kafka.logs import ABORTED, COMMITTED, transact
from support.members.group import SETTINGS, Group, group_on
from support.wait import LIMIT_S
from typer.testing import CliRunner

from zkconsumer import ConsumerConfig
from zkconsumer.admin import lag as module
from zkconsumer.admin.doctor import doctor, kafka_logs
from zkconsumer.admin.groups import registered_brokers
from zkconsumer.admin.lag import CommitWindow, Status, TailCheck, group_lags
from zkconsumer.cli import app
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import without_messages
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.zk.client import ZooKeeperClient

pytestmark = pytest.mark.server


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group without members. In partition 0 it is before a marker, in partition 1 at the end."""
    with group_on(sandbox, unique, partitions=2, messages=0) as one:
        transact(sandbox, one.topic, ABORTED)
        one.write(0, b"5")
        one.write(1, b"0")
        yield one


@pytest.fixture
def connection(group: Group) -> Iterator[ZooKeeperClient]:
    connect = group.sandbox.zookeeper_connect
    config = ConsumerConfig(group_id=group.name, **{**SETTINGS, "zookeeper_connect": connect})
    with ZooKeeperClient(config) as one:
        yield one


def test_markers_are_told_from_messages(group: Group, connection: ZooKeeperClient) -> None:
    """Only offsets of markers count as read, and only up to the end of the log."""
    transact(group.sandbox, group.topic, COMMITTED)
    tp, unknown = group.tp(0), group.tp(7)
    for tail, is_read in (((5, 6), True), ((4, 6), False), ((5, 12), False), ((11, 12), True)):
        asked = {tp: tail, unknown: (0, 1)}
        found = without_messages(registered_brokers(connection), asked, limit_s=LIMIT_S)
        assert found == {tp: is_read}


def test_the_reason_is_shown_and_nothing_is_stalled(
    group: Group, connection: ZooKeeperClient
) -> None:
    """The lag is shown with its reason; status, --fail-above and the doctor find no problem."""
    (one, other) = group_lags(connection, [group.name], limit_s=LIMIT_S)[group.name].partitions
    assert (one.lag, one.is_read, other.lag, other.is_read) == (1, True, 0, False)
    window = CommitWindow()
    window.observe(one, 0.0)
    assert window.status(10_000.0) is Status.OK
    arguments = ["lag", group.name, "-z", group.sandbox.zookeeper_connect]
    arguments += ["--timeout", str(LIMIT_S)]
    result = CliRunner().invoke(app, [*arguments, "--fail-above", "0"])
    assert result.exit_code == 0, result.output
    assert f"no message is left of {group.topic}-0: only transaction markers" in result.stderr
    assert not doctor(connection, [group.name], ask_logs=kafka_logs(LIMIT_S))
    group.write(0, b"4")
    assert [one.code for one in doctor(connection, [group.name], ask_logs=kafka_logs(LIMIT_S))]
    assert CliRunner().invoke(app, [*arguments, "--fail-above", "0"]).exit_code == 6


def test_the_brokers_are_asked_about_what_does_not_move(
    group: Group, connection: ZooKeeperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lag is asked about once; a lag that has moved is asked about when it has stopped."""
    asked: list[Mapping[TopicPartition, tuple[int, int]]] = []

    def noted(
        brokers: Brokers, tails: Mapping[TopicPartition, tuple[int, int]], **limits: Any
    ) -> dict[TopicPartition, bool]:
        asked.append(tails)
        return without_messages(brokers, tails, **limits)

    monkeypatch.setattr(module, "without_messages", noted)
    tails = TailCheck()

    def is_read() -> bool:
        found = group_lags(connection, [group.name], limit_s=LIMIT_S, tails=tails)
        return found[group.name].partitions[0].is_read

    assert [is_read() for _ in range(3)] == [True] * 3
    assert asked == [{group.tp(0): (5, 6)}, {}, {}]
    transact(group.sandbox, group.topic, COMMITTED)
    assert [is_read() for _ in range(2)] == [False] * 2
    group.write(0, b"11")
    asked.clear()
    assert [is_read() for _ in range(3)] == [False, True, True]
    assert asked == [{}, {group.tp(0): (11, 12)}, {}]
