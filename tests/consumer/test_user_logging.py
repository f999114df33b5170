"""A log filter or handler of the user's that raises ends no thread of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.logged import refused_lines
from support.members.group import SETTINGS
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.consumer.stuck_streams import StuckStreams
from zkconsumer.kafka.offset_storage import KafkaOffsetStore
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Code, FetchOffsets, Reply
from zkconsumer.testing import FakeCluster


@pytest.fixture(autouse=True)
def refusing() -> Iterator[None]:
    """Every line of this package and of kazoo raises an exception in the thread that logs it."""
    with refused_lines():
        yield


class Failing:
    """A rebalance listener whose methods raise an exception."""

    def __init__(self) -> None:
        self.calls = 0

    def before_releasing_partitions(self, partitions: object) -> None:
        self.calls += 1
        raise ValueError("no")

    def before_starting_fetchers(self, consumer_id: str, partitions: object) -> None:
        self.calls += 1
        raise ValueError("no")


def config(kafka: FakeCluster) -> ConsumerConfig:
    settings = {**SETTINGS, "zookeeper_session_timeout_s": 6.0, "consumer_timeout_s": LIMIT_S}
    return ConsumerConfig(group_id="g", zookeeper_connect=kafka.zookeeper_connect, **settings)


def test_a_member_survives_lost_connections() -> None:
    """The threads of kazoo, the member, the listener and the streams continue after each line."""
    with FakeCluster() as kafka:
        kafka.create_topic("t")
        listener = Failing()
        with ConsumerConnector(config(kafka)) as connector:
            connector.set_consumer_rebalance_listener(listener)
            (stream,) = connector.create_message_streams({"t": 1})["t"]
            for number in range(3):
                kafka.produce("t", [str(number)])
                assert next(stream).value == str(number).encode()
                session = connector.status().session
                kafka.zookeeper.cut()
                eventually(lambda: connector.status().lease_s > 0)
                assert connector.status().session == session
            before = listener.calls
            assert before
            assert session is not None
            kafka.zookeeper.expire(session)
            eventually(lambda: connector.status().session not in (None, session))
            eventually(lambda: listener.calls > before)
            kafka.produce("t", ["last"])
            assert next(one for one in stream if one.value == b"last")


def test_a_look_at_the_streams_that_fails_ends_no_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the search for streams that nobody reads fails, it is counted and switched off."""

    def look(_: StuckStreams) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(StuckStreams, "look", look)
    with FakeCluster() as kafka:
        kafka.create_topic("t")
        with ConsumerConnector(config(kafka)) as connector:
            (stream,) = connector.create_message_streams({"t": 1})["t"]
            kafka.produce("t", ["one"])
            assert next(stream).value == b"one"
            eventually(lambda: connector.metrics().get("stuck_streams_failed"))
            connector.commit()
            assert connector.status().error is None
            assert connector.metrics()["stuck_streams_failed"] == 1


def test_the_offset_store_answers() -> None:
    """A request for offsets in Kafka that fails gets its reply, and so does the next one."""

    def connect() -> None:
        raise ValueError("a bug")

    replies: list[Reply] = []
    store = KafkaOffsetStore("g_a", connect=connect, limit_s=1.0)
    store.start()
    for count in (1, 2):
        store.submit(FetchOffsets((TopicPartition("t", 0),)), replies.extend)
        eventually(lambda count=count: len(replies) == count)  # type: ignore[misc]  # a default
    store.stop()
    assert [one.code for one in replies] == [Code.OTHER, Code.OTHER]
