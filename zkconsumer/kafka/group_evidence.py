"""What brokers reveal about a group beyond its description: its protocol, and recent commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Raw
from confluent_kafka.admin import AdminClient

from zkconsumer.errors import BrokersUnreachableError, FetchError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.protocol.model import TopicPartition

_POLL_S: Final = 0.2


def has_consumer_protocol(settings: Settings, group: str, *, limit_s: float) -> bool:
    """Return whether the group uses KIP-848's protocol (`group.protocol=consumer`).

    Brokers before 3.8 do not report the protocol, and the result is False.
    """
    quiet: Settings = {**settings, "error_cb": lambda _: None}
    admin = AdminClient(quiet)
    try:
        answer = admin.list_consumer_groups(
            types={ConsumerGroupType.CONSUMER}, request_timeout=limit_s
        )
        found = answer.result(2 * limit_s)
    except KafkaException:
        return False
    kinds = {one.group_id: one.type for one in found.valid}
    return kinds.get(group) is ConsumerGroupType.CONSUMER


def partition_count(settings: Settings, topic: str, *, limit_s: float) -> int:
    """Return the number of a topic's partitions; 0 if it does not exist. Raises FetchError."""
    consumer = _consumer(settings)
    try:
        found = consumer.list_topics(topic, timeout=limit_s).topics[topic]
    except KafkaException as error:
        raise _unanswered(topic, error) from error
    finally:
        consumer.close()
    if found.error is None:
        return len(found.partitions)
    if found.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return 0
    raise _unanswered(topic, KafkaException(found.error))


def records_since(
    settings: Settings, tp: TopicPartition, since_ms: int, *, limit_s: float
) -> Iterator[Message]:
    """Yield the partition's records from a time up to the present end of the log.

    Args:
        settings: librdkafka's, from `client_settings.broker_settings`.
        since_ms: the first time, in ms since 1970 by the brokers' clocks.
        limit_s: seconds for each answer of the brokers.

    Raises FetchError.
    """
    consumer = _consumer(settings)
    try:
        (start,) = consumer.offsets_for_times([Raw(*tp, since_ms)], timeout=limit_s)
        end = consumer.get_watermark_offsets(Raw(*tp), timeout=limit_s)[1]
        if start.error is not None:
            raise KafkaException(start.error)
        if not 0 <= start.offset < end:
            return
        consumer.assign([start])
        yield from _up_to(consumer, end, tp, limit_s)
    except KafkaException as error:
        raise _unanswered(str(tp), error) from error
    finally:
        consumer.close()


def _up_to(consumer: Consumer, end: int, tp: TopicPartition, limit_s: float) -> Iterator[Message]:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return
        if error is not None:
            raise KafkaException(error)
        deadline = time.monotonic() + limit_s
        yield message
        if (message.offset() or 0) + 1 >= end:
            return
    raise BrokersUnreachableError(
        "the partition's leader does not answer",
        where=str(tp),
        remedy="check that all brokers run, and try again",
    )


def _consumer(settings: Settings) -> Consumer:
    return Consumer(
        {
            **settings,
            "group.id": "zkconsumer",  # required; this client never joins a group
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "error_cb": lambda _: None,
        }
    )


def _unanswered(where: str, error: KafkaException) -> FetchError:
    return FetchError(
        f"the records cannot be read: {error.args[0].str()}",
        where=where,
        remedy="check that the brokers run, and permit READ on the topic",
    )
