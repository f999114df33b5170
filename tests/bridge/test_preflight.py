"""What a bridge finds out before it starts, from brokers that deny access or are not ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from support.wait import LIMIT_S

from zkconsumer.bridge import preflight, wire
from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer.connector import ConsumerConnector
from zkconsumer.errors import BrokerAccessError, FetchError
from zkconsumer.kafka import group_evidence
from zkconsumer.kafka.columns import requests
from zkconsumer.protocol.kafka_fields import FieldReader
from zkconsumer.protocol.model import OFFSETS_TOPIC
from zkconsumer.testing import FakeCluster, wait_until_settled
from zkconsumer.zk.client import ZooKeeperClient

GROUP, TOPIC = "billing", "pay"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster in which an old member owns the partitions of a topic."""
    with FakeCluster() as found, ExitStack() as stack:
        found.create_topic(TOPIC, partitions=2)
        config = ConsumerConfig(zookeeper_connect=found.zookeeper_connect, group_id=GROUP)
        member = stack.enter_context(ConsumerConnector(config))
        member.create_message_streams({TOPIC: 1})
        wait_until_settled(found.zookeeper_connect, GROUP, timeout_s=LIMIT_S)
        yield found


def _settings(cluster: FakeCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap, "client.id": "test"}


def _notices(cluster: FakeCluster) -> list[str]:
    config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id=GROUP)
    with ZooKeeperClient(config) as connection:
        return preflight.check_offsets(
            connection, GROUP, _settings(cluster), has_members=False, limit_s=LIMIT_S
        )


def test_a_topic_that_may_not_be_described(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the brokers deny access to the topic of the offsets, the operator must check it."""
    assert _notices(cluster) == []
    denied = SimpleNamespace(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), partitions={})
    answer = SimpleNamespace(topics={OFFSETS_TOPIC: denied})
    consumer = SimpleNamespace(list_topics=lambda *_, **__: answer, close=lambda: None)
    monkeypatch.setattr(group_evidence, "Consumer", lambda _: consumer)
    (notice,) = _notices(cluster)
    assert "offsets.storage=kafka, which is unknown" in notice


def test_offsets_that_may_not_be_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the brokers deny access to the group's offsets, the operator must check it."""
    GroupAdmin(_settings(cluster), GROUP).describe()  # creates the topic of the offsets
    monkeypatch.setattr(requests, "coordinator", lambda *_: (30, ("", 0)))
    (notice,) = _notices(cluster)
    assert "which is unknown: Kafka: access to the group is denied" in notice


def test_a_group_that_may_not_be_described(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A denied group is an error at once, and not an empty group."""
    admin = GroupAdmin(_settings(cluster), GROUP)
    asked = _answers(monkeypatch, 30)
    with pytest.raises(BrokerAccessError, match="access to the group is denied") as found:
        admin.describe()
    assert len(asked) == 1
    assert "permit READ" in (found.value.remedy or "")
    monkeypatch.setattr(requests, "coordinator", lambda *_: (30, ("", 0)))
    with pytest.raises(BrokerAccessError, match="access to the group is denied"):
        admin.describe()


def test_a_coordinator_that_is_not_ready(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that still loads the group is asked again until the time limit."""
    admin = GroupAdmin(_settings(cluster), GROUP)
    asked = _answers(monkeypatch, 14, 16, 0)
    assert admin.describe().error == 0
    assert len(asked) == 3
    _answers(monkeypatch, 15)
    with pytest.raises(FetchError, match="no broker stores the group's offsets"):
        admin.describe(0.1)


def _answers(monkeypatch: pytest.MonkeyPatch, *codes: int) -> list[int]:
    """Let descriptions of a group have these errors, and the last one for ever."""
    given, real = list[int](), wire.GroupDescription

    def describe(response: FieldReader) -> wire.GroupDescription:
        found = real(response)
        given.append(codes[min(len(given), len(codes) - 1)])
        found.error = given[-1]
        return found

    monkeypatch.setattr(wire, "GroupDescription", describe)
    return given
