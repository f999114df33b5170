"""A user's code, which mypy and basedpyright check in their strict modes; it is never run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from typing import assert_type

from zkconsumer import (
    Batch,
    CommitError,
    ConfigError,
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeoutError,
    Message,
    OffsetAndMetadata,
    OwnedPartition,
    RebalanceCallbacks,
    Status,
    Stream,
    TimestampType,
    TopicPartition,
    ZkConsumerError,
    aio,
    black_list,
    white_list,
)


class Flushing:
    """An object with the three callbacks."""

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        sys.stdout.write(f"claimed {partitions}\n")

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        sys.stdout.write(f"released {partitions}\n")

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        sys.stdout.write(f"lost {partitions}\n")


def configurations() -> list[ConsumerConfig]:
    properties: Mapping[str, object] = {"group.id": "billing", "consumer.timeout.ms": 500}
    kafka = {"ssl.ca.location": "/etc/ca.pem", "log.connection.close": False}
    return [
        ConsumerConfig(properties, zookeeper_connect="zk1:2181/kafka"),
        ConsumerConfig(group_id="billing", zookeeper_connect="zk1:2181", kafka=kafka),
        ConsumerConfig.from_properties("consumer.properties", consumer_timeout_s=None),
    ]


def typed_streams(connector: ConsumerConnector) -> None:
    plain = connector.create_message_streams({"orders": 1})
    assert_type(plain, dict[str, list[Stream[bytes, bytes]]])
    decoded = connector.create_message_streams({"orders": 1}, value_decoder=int)
    assert_type(decoded["orders"][0], Stream[bytes, int])
    both = connector.create_message_streams_by_filter(
        white_list("orders.*"), key_decoder=bytes.decode, value_decoder=int
    )
    assert_type(both, list[Stream[str, int]])
    black_list("internal.*")
    for message in decoded["orders"][0]:
        assert_type(message, Message[bytes, int])
        assert_type(message.key, bytes | None)
        assert_type(message.value, int | None)
        assert_type(message.headers, list[tuple[str, bytes | None]])
        assert_type(message.timestamp_type, TimestampType | None)
        assert_type(message.leader_epoch, int | None)
        connector.commit(message)


def positions(connector: ConsumerConnector, batch: Batch[bytes, bytes]) -> None:
    tp = TopicPartition("orders", 0)
    connector.commit(batch)
    connector.commit_offsets({tp: 7}, timeout_s=5.0)
    assert_type(connector.commit(batch, wait=False), Future[None])
    assert_type(connector.commit_offsets({tp: 7}, wait=False), Future[None])
    connector.pause(tp)
    connector.resume([tp])
    assert_type(connector.assignment(), dict[TopicPartition, OwnedPartition])
    assert_type(connector.position(tp), int | None)
    assert_type(connector.lag(), dict[TopicPartition, int | None])
    assert_type(connector.committed([tp]), dict[TopicPartition, OffsetAndMetadata | None])
    assert_type(connector.end_offsets([tp]), dict[TopicPartition, int])
    assert_type(connector.end_offsets(tp, timeout_s=None), dict[TopicPartition, int])
    assert_type(connector.offsets_for_times({tp: 0}), dict[TopicPartition, int | None])
    connector.seek(tp, 0)
    connector.seek_to_beginning([tp])
    connector.seek_to_end([tp])
    connector.seek_to_timestamp([tp], 0)
    assert_type(connector.status(), Status)


def first_offset(stream: Stream[bytes, int]) -> int:
    return next(stream).offset


def in_threads(config: ConsumerConfig) -> None:
    def report(error: ZkConsumerError) -> None:
        sys.stdout.write(f"{error}\n")

    with ConsumerConnector(config, on_error=report) as connector:
        streams = connector.create_message_streams({"orders": 2}, value_decoder=int)["orders"]
        assigned = connector.wait_until_assigned(timeout_s=10.0)
        assert_type(assigned, dict[TopicPartition, OwnedPartition])
        assert_type(connector.run(first_offset, streams), list[int])
        connector.close()


def reacts(connector: ConsumerConnector) -> bool:
    try:
        connector.commit_offsets()
    except (CommitError, ConsumerTimeoutError, ConfigError) as error:
        assert_type(error.remedy, str)
        return error.retriable
    except ZkConsumerError as error:
        return not error.fatal
    return True


def with_callbacks(config: ConsumerConfig) -> list[ConsumerConnector]:
    callbacks: RebalanceCallbacks = Flushing()
    return [
        ConsumerConnector(config, callbacks=callbacks),
        ConsumerConnector(config, on_assigned=print, on_lost=lambda lost: lost.clear()),
        ConsumerConnector({"group.id": "billing", "zookeeper.connect": "zk1:2181"}),
    ]


async def first_value(stream: aio.Stream[bytes, int]) -> int | None:
    return (await anext(stream)).value


async def in_a_loop(config: ConsumerConfig) -> None:
    async def revoked(partitions: list[TopicPartition]) -> None:
        await connector.commit_offsets()

    async with aio.ConsumerConnector(config, on_revoked=revoked) as connector:
        made = await connector.create_message_streams({"orders": 1}, value_decoder=int)
        assert_type(made, dict[str, list[aio.Stream[bytes, int]]])
        async for message in made["orders"][0]:
            assert_type(message, Message[bytes, int])
            await connector.commit(message)
            assert_type(await connector.commit(message, wait=False), asyncio.Future[None])
            break
        assert_type(await connector.run(first_value, made["orders"]), list[int | None])
        ends = await connector.end_offsets(connector.assignment())
        assert_type(ends, dict[TopicPartition, int])
