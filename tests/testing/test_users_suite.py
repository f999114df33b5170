"""Fifty tests as a user of the fixture `legacy_kafka` writes them; they pass on each backend."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPartition
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerConfig, ConsumerConnector, Message, TopicPartition, white_list
from zkconsumer.errors import DecodeError
from zkconsumer.testing import Deliveries, LegacyKafka

Start = Callable[..., ConsumerConnector]


@pytest.fixture
def start(legacy_kafka: LegacyKafka) -> Iterator[Start]:
    """Starts members of the group `billing`, which leave at the end of the test."""
    with ExitStack() as stack:

        def member(**settings: Any) -> ConsumerConnector:
            defaults: dict[str, Any] = {
                "auto_offset_reset": "smallest",
                "consumer_timeout_s": LIMIT_S,
                "rebalance_backoff_s": 0.1,
            }
            config = ConsumerConfig(
                zookeeper_connect=legacy_kafka.zookeeper_connect,
                group_id="billing",
                **{**defaults, **settings},
            )
            return stack.enter_context(ConsumerConnector(config))

        yield member


def read(connector: ConsumerConnector, topic: str, count: int) -> list[Message[bytes, bytes]]:
    """Return the next messages of a new stream."""
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    return [next(stream) for _ in range(count)]


@contextmanager
def reading(connector: ConsumerConnector, topic: str, deliveries: Deliveries) -> Iterator[None]:
    """Record what a member gets in a thread of its own."""
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            for message in stream.poll(timeout_s=0.05):
                deliveries.record(message)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_every_message_is_delivered_once(
    legacy_kafka: LegacyKafka, start: Start, members: int, partitions: int
) -> None:
    """A group of any size gets each message once."""
    legacy_kafka.create_topic("orders", partitions=partitions)
    deliveries = Deliveries()
    with ExitStack() as stack:
        for _ in range(members):
            stack.enter_context(reading(start(), "orders", deliveries))
        legacy_kafka.wait_until_settled("billing", members=members)
        for partition in range(partitions):
            legacy_kafka.produce("orders", 20, partition=partition)
        deliveries.wait_for(20 * partitions)
    legacy_kafka.check_delivered_once("orders", deliveries)


@pytest.mark.parametrize("key", ["ann", "bob", "carol", "dave", "", None])
def test_keys_and_values(legacy_kafka: LegacyKafka, start: Start, key: str | None) -> None:
    """Keys and values arrive as they were produced, in one partition for one key."""
    legacy_kafka.create_topic("orders", partitions=3)
    partition = None if key is not None else 1
    placed = legacy_kafka.produce("orders", ["1", "", "3"], key=key, partition=partition)
    found = read(start(), "orders", 3)
    assert [(one.partition, one.offset) for one in found] == placed
    assert {one.key for one in found} == {None if key is None else key.encode()}
    assert [one.value for one in found] == [b"1", b"", b"3"]


@pytest.mark.parametrize("timestamp_ms", [1, 1_500_000_000_000, 4_000_000_000_000])
def test_timestamps(legacy_kafka: LegacyKafka, start: Start, timestamp_ms: int) -> None:
    """The producer's timestamps arrive."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", 2, partition=0, timestamp_ms=timestamp_ms)
    assert [one.timestamp for one in read(start(), "orders", 2)] == [timestamp_ms] * 2


@pytest.mark.parametrize("size", [0, 1, 1_000, 100_000])
def test_sizes(legacy_kafka: LegacyKafka, start: Start, size: int) -> None:
    """A message of any size arrives."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", [bytes(size), None], partition=0)
    assert [one.value for one in read(start(), "orders", 2)] == [bytes(size), None]


@pytest.mark.parametrize("count", [1, 3, 9, 10])
def test_a_restart_continues_after_the_commit(
    legacy_kafka: LegacyKafka, start: Start, count: int
) -> None:
    """The next member begins after the messages that the last one has committed."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", 10, partition=0)
    first = start(auto_commit_enable=False)
    read(first, "orders", count)
    first.commit_offsets()
    first.shutdown()
    assert legacy_kafka.committed("billing") == {TopicPartition("orders", 0): count}
    legacy_kafka.produce("orders", ["next"], partition=0)
    found = read(start(), "orders", 11 - count)
    assert [one.offset for one in found] == list(range(count, 11))


@pytest.mark.parametrize("count", [1, 4])
def test_without_a_commit_messages_are_redelivered(
    legacy_kafka: LegacyKafka, start: Start, count: int
) -> None:
    """What was not committed comes again."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", 5, partition=0)
    first = start(auto_commit_enable=False)
    read(first, "orders", count)
    first.shutdown()
    assert legacy_kafka.committed("billing") == {}
    assert [one.offset for one in read(start(), "orders", 5)] == list(range(5))


@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_the_first_start(legacy_kafka: LegacyKafka, start: Start, reset: str) -> None:
    """`auto.offset.reset` says where a new group begins."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", ["old"], partition=0)
    connector = start(auto_offset_reset=reset)
    (stream,) = connector.create_message_streams({"orders": 1})["orders"]
    tp = TopicPartition("orders", 0)
    if reset == "largest":
        connector.wait_until_assigned(LIMIT_S)
        eventually(lambda: stream.poll(timeout_s=0.01) or connector.position(tp) == 1)
    legacy_kafka.produce("orders", ["new"], partition=0)
    assert next(stream).value == (b"old" if reset == "smallest" else b"new")


@pytest.mark.parametrize("pattern", ["orders|payments", "(orders|pay.*)"])
def test_a_filter(legacy_kafka: LegacyKafka, start: Start, pattern: str) -> None:
    """A white list subscribes to the topics that it matches."""
    for topic in ("orders", "payments", "others"):
        legacy_kafka.create_topic(topic)
        legacy_kafka.produce(topic, [topic], partition=0)
    (stream,) = start().create_message_streams_by_filter(white_list(pattern))
    assert {next(stream).value for _ in range(2)} == {b"orders", b"payments"}


@pytest.mark.parametrize("partitions", [3, 4])
def test_partitions_are_added(legacy_kafka: LegacyKafka, start: Start, partitions: int) -> None:
    """A running member gets the new partitions of its topic."""
    legacy_kafka.create_topic("orders", partitions=2)
    connector = start()
    (stream,) = connector.create_message_streams({"orders": 1})["orders"]
    legacy_kafka.wait_until_settled("billing")
    legacy_kafka.add_partitions("orders", partitions=partitions)
    eventually(lambda: len(legacy_kafka.owners("billing")) == partitions)
    legacy_kafka.produce("orders", ["here"], partition=partitions - 1)
    assert next(stream).partition == partitions - 1


@pytest.mark.parametrize("joins", [1, 2])
def test_rebalances_are_recorded(legacy_kafka: LegacyKafka, start: Start, joins: int) -> None:
    """The recorder sees every partition that moves when members join."""
    legacy_kafka.create_topic("orders", partitions=4)
    start().create_message_streams({"orders": 1})
    before = legacy_kafka.wait_until_settled("billing", members=1)
    with legacy_kafka.rebalances("billing") as rebalances:
        for _ in range(joins):
            start().create_message_streams({"orders": 1})
        after = legacy_kafka.wait_until_settled("billing", members=1 + joins)
        moved = {tp for tp in after if after[tp] != before[tp]}
        # A partition may have moved twice.
        eventually(lambda: all(rebalances.owners_of(tp)[-1:] == [after[tp]] for tp in moved))
    assert moved


@pytest.mark.parametrize("text", ["1", "[1, 2]", '{"a": null}', "no JSON"])
def test_decoders(legacy_kafka: LegacyKafka, start: Start, text: str) -> None:
    """A value decoder decodes; a value that it refuses is a DecodeError."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", [text], partition=0)
    (stream,) = start().create_message_streams({"orders": 1}, value_decoder=json.loads)["orders"]
    message = next(stream)
    if text == "no JSON":
        with pytest.raises(DecodeError):
            _ = message.value
    else:
        assert message.value == json.loads(text)


@pytest.mark.parametrize("most", [1, 7, 100])
def test_polling(legacy_kafka: LegacyKafka, start: Start, most: int) -> None:
    """`poll` returns at most as many messages as requested, and loses none."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", 20, partition=0)
    (stream,) = start().create_message_streams({"orders": 1})["orders"]
    offsets: list[int] = []

    def is_read() -> bool:
        batch = stream.poll(max_messages=most, timeout_s=1.0)
        assert len(batch) <= most
        offsets.extend(one.offset for one in batch)
        return len(offsets) >= 20

    eventually(is_read)
    assert offsets == list(range(20))


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_where_offsets_are_stored(legacy_kafka: LegacyKafka, start: Start, storage: str) -> None:
    """`offsets.storage` chooses ZooKeeper or Kafka; the next member continues there."""
    legacy_kafka.create_topic("orders")
    legacy_kafka.produce("orders", 4, partition=0)
    first = start(offsets_storage=storage, dual_commit_enabled=False, auto_commit_enable=False)
    read(first, "orders", 3)
    first.commit_offsets()
    first.shutdown()
    is_there = bool(legacy_kafka.committed("billing"))
    assert is_there == (storage == "zookeeper")
    second = start(offsets_storage=storage, dual_commit_enabled=False)
    assert read(second, "orders", 1)[0].offset == 3


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_another_client_reads_the_same(legacy_kafka: LegacyKafka, partitions: int) -> None:
    """confluent-kafka's consumer reads the messages from the address in `bootstrap`."""
    legacy_kafka.create_topic("orders", partitions=partitions)
    for partition in range(partitions):
        legacy_kafka.produce("orders", 3, partition=partition)
    consumer = Consumer({"bootstrap.servers": legacy_kafka.bootstrap, "group.id": "other"})
    consumer.assign([RawPartition("orders", number, 0) for number in range(partitions)])
    found = []

    def is_read() -> bool:
        one = consumer.poll(0.05)
        if one is not None and one.error() is None:
            found.append((one.partition(), one.offset()))
        return len(found) >= 3 * partitions

    eventually(is_read)
    consumer.close()
    assert sorted(found) == [(number, at) for number in range(partitions) for at in range(3)]


def test_a_member_leaves(legacy_kafka: LegacyKafka, start: Start) -> None:
    """When a member leaves, the other one gets all partitions."""
    legacy_kafka.create_topic("orders", partitions=4)
    for _ in range(2):
        last = start()
        last.create_message_streams({"orders": 1})
    assert len(set(legacy_kafka.wait_until_settled("billing", members=2).values())) == 2
    last.shutdown()
    assert len(set(legacy_kafka.wait_until_settled("billing", members=1).values())) == 1


def test_a_topic_is_deleted(legacy_kafka: LegacyKafka, start: Start) -> None:
    """When one of two topics is deleted, a member continues with the other one."""
    for topic in ("orders", "payments"):
        legacy_kafka.create_topic(topic)
    (stream,) = start().create_message_streams_by_filter(white_list("orders|payments"))
    legacy_kafka.wait_until_settled("billing")
    legacy_kafka.delete_topic("orders")
    legacy_kafka.produce("payments", ["still here"], partition=0)
    assert next(stream).value == b"still here"
