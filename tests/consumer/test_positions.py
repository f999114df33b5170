"""Commits, positions, stored offsets, log ends, lag and seeks, on real servers."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.members.group import SETTINGS, Group
from support.wait import LIMIT_S, eventually

from zkconsumer import (
    BrokersUnreachableError,
    ConfigError,
    ConsumerConfig,
    ConsumerConnector,
    NotOwnedError,
    OffsetAndMetadata,
    OwnedPartition,
    TopicPartition,
    ZooKeeperUnreachableError,
    aio,
)
from zkconsumer.consumer.stream import Stream
from zkconsumer.sandbox import Sandbox


class Polled:
    """A member with one stream, which the test polls itself."""

    def __init__(self, group: Group, **settings: Any) -> None:
        self.connector: ConsumerConnector = group.member(**settings).connector
        self.stream: Stream[bytes, bytes]
        (self.stream,) = self.connector.create_message_streams({group.topic: 1})[group.topic]

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            batch = self.stream.poll(max_messages=count - len(found), timeout_s=LIMIT_S)
            assert batch
            found += batch
        return found


def test_commit_a_message_a_batch_or_all(group: Group) -> None:
    """`commit` stores the offset after each given message, even if a batch was pickled."""
    one = Polled(group, auto_commit_enable=False)
    tps = [group.tp(n) for n in range(4)]
    assert one.connector.committed(tps) == dict.fromkeys(tps)
    first, *_ = messages = one.take(40)
    tp = group.tp(first.partition)
    one.connector.commit(first)
    assert one.connector.committed([tp])[tp] == OffsetAndMetadata(first.offset + 1)
    one.connector.commit(messages[:25])
    assert sum(at.offset for at in one.connector.committed(tps).values() if at) == 25
    one.connector.commit()
    assert one.connector.committed(tps) == dict.fromkeys(tps, OffsetAndMetadata(10))
    group.sandbox.produce(group.topic, 3, partition=2)
    batch = pickle.loads(pickle.dumps(one.stream.poll(timeout_s=LIMIT_S)))
    assert [m.offset for m in batch] == list(range(10, 10 + len(batch)))
    one.connector.commit(batch)
    assert one.connector.committed([group.tp(2)])[group.tp(2)] == OffsetAndMetadata(10 + len(batch))


def test_a_message_of_a_former_ownership_is_not_committed(group: Group) -> None:
    """Committing a message from before a partition was lost and claimed raises NotOwnedError."""
    one = Polled(group)
    (message,) = one.take(1)
    tp = group.tp(message.partition)
    token = one.connector.assignment()[tp].token
    group.admin.delete(group.owner(tp.partition))
    eventually(lambda: getattr(one.connector.assignment().get(tp), "token", token) != token)
    with pytest.raises(NotOwnedError, match=str(tp)):
        one.connector.commit(message)


def test_assignment_position_and_lag(group: Group) -> None:
    """`assignment`, `position` and `lag` describe each owned partition."""
    one = Polled(group)
    one.take(40)
    group.sandbox.produce(group.topic, 5, partition=3)
    found = one.connector.assignment()
    assert list(found) == [group.tp(n) for n in range(4)]
    assert {type(one) for one in found.values()} == {OwnedPartition}
    assert {one.thread for one in found.values()} == {one.stream.thread_id}
    assert one.connector.position(group.tp(0)) == 10
    one.connector.pause([group.tp(3)])
    assert one.connector.position(group.tp(3)) == 10
    assert one.connector.lag().keys() == found.keys()
    eventually(lambda: one.stream.poll(timeout_s=0.1) or one.connector.lag()[group.tp(0)] == 0)
    with pytest.raises(NotOwnedError, match="other-0"):
        one.connector.position(TopicPartition("other", 0))
    one.connector.shutdown()
    assert one.connector.assignment() == one.connector.lag() == {}


def test_the_ends_of_logs_and_offsets_by_time(group: Group) -> None:
    """Log ends, and the first offset at or after a time (None after the last message)."""
    one = group.member().connector
    tps = [group.tp(0), group.tp(1)]
    assert one.beginning_offsets(tps) == dict.fromkeys(tps, 0)
    assert one.end_offsets(tps) == dict.fromkeys(tps, 10)
    later_ms = round(time.time() * 1000) + 3_600_000
    assert one.offsets_for_times({tps[0]: 0, tps[1]: later_ms}) == {tps[0]: 0, tps[1]: None}
    with pytest.raises(BrokersUnreachableError, match="no-such-topic-0") as caught:
        one.end_offsets([TopicPartition("no-such-topic", 0)])
    assert caught.value.retriable
    with pytest.raises(ConfigError, match="'now' is not a time"):
        one.offsets_for_times({tps[0]: "now"})  # type: ignore[dict-item]  # a wrong type
    with pytest.raises(ConfigError, match="is not a time"):
        one.offsets_for_times({tps[0]: 2**70})
    # ZooKeeper's answer may already be there when a stopped thread begins to wait for it.
    with pytest.raises((ZooKeeperUnreachableError, BrokersUnreachableError)):
        one.end_offsets(tps, timeout_s=0.0)


def test_seek_to_the_ends_and_to_a_time(group: Group) -> None:
    """A seek to the beginning, the end or a time sets the position of each partition."""
    one = Polled(group)
    one.take(40)
    tps = [group.tp(n) for n in range(4)]
    one.connector.seek_to_beginning(tps[:1])
    assert [m.offset for m in one.take(10)] == list(range(10))
    one.connector.seek_to_timestamp(tps[:2], 0)
    assert [one.connector.position(tp) for tp in tps] == [0, 0, 10, 10]
    one.connector.seek_to_end(tps)
    assert [one.connector.position(tp) for tp in tps] == [10] * 4
    one.connector.seek_to_timestamp(tps, round(time.time() * 1000) + 3_600_000)
    assert [one.connector.position(tp) for tp in tps] == [10] * 4
    with pytest.raises(NotOwnedError, match="other-0"):
        one.connector.seek_to_end([TopicPartition("other", 0)])


def test_asyncio_has_every_call() -> None:
    """Except to start and create streams, both connectors have equal methods and parameters."""

    def calls(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(one).parameters)
            for name, one in found
            if not name.startswith(("_", "create_")) and name != "start"
        }

    assert calls(aio.ConsumerConnector) == calls(ConsumerConnector)


def test_asyncio(sandbox: Sandbox, unique: Callable[[str], str]) -> None:
    """Positions, stored offsets, log ends and seeks work in an event loop."""
    topic = unique("aio")
    sandbox.create_topic(topic)
    sandbox.produce(topic, 10)
    tp = TopicPartition(topic, 0)
    connect = sandbox.zookeeper_connect
    settings = {**SETTINGS, "zookeeper_connect": connect, "consumer_timeout_s": LIMIT_S}
    config = ConsumerConfig(group_id=topic, **settings)

    async def run() -> None:
        async with aio.ConsumerConnector(config) as connector:
            (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
            message = await anext(stream)
            await connector.commit(message)
            assert await connector.committed([tp]) == {tp: OffsetAndMetadata(1)}
            assert (connector.position(tp), list(connector.assignment())) == (1, [tp])
            assert await connector.end_offsets([tp]) == {tp: 10}
            assert await connector.beginning_offsets([tp]) == {tp: 0}
            assert await connector.offsets_for_times({tp: 0}) == {tp: 0}
            await connector.seek_to_end([tp])
            assert connector.position(tp) == 10
            await connector.seek_to_timestamp([tp], 0)
            await connector.seek_to_beginning([tp])
            assert (await anext(stream)).offset == 0
            assert connector.lag().keys() == {tp}

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
