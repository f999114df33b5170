"""Reads the offsets that groups have committed to Kafka.

zkconsumer's own connections ask for them, because confluent-kafka (2.16) expects a NUL at the end
of an offset's metadata, and reads past the end of metadata that another client has written. Only
where a property that only librdkafka honours decides the access to the brokers, librdkafka asks:
the offsets are then right, and the metadata of other clients are not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient

from zkconsumer.kafka.access import Refusals, invalid
from zkconsumer.kafka.client_settings import Settings, without_own_connections
from zkconsumer.kafka.columns.lookups import OFFSETS_TOPIC, Lookup
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

Found = dict[TopicPartition, OffsetAndMetadata | str | None]
"""Partition -> its offset; None: none is stored; a string: why it is unknown."""

UNREADABLE: Final = "(unknown: librdkafka cannot read the metadata of offsets)"
"""The metadata of an offset that librdkafka has read."""


class GroupOffsets:
    """Reads offsets in Kafka, for one thread at a time; keeps its connections."""

    def __init__(self, settings: Settings) -> None:
        """`settings` are librdkafka's, from `client_settings.broker_settings`."""
        self._settings = settings
        self._lookup = Lookup(settings) if without_own_connections(settings) is None else None

    def read(self, group: str, partitions: Collection[TopicPartition], *, limit_s: float) -> Found:
        """Return the group's offset of each partition; `limit_s` is the time limit in seconds.

        Never creates a topic. JVM: `kafka.consumer.ZookeeperConsumerConnector.fetchOffsets`, 0.8.2
        to 1.1. Raises FetchError if no broker answers, or if the brokers refuse the connection.
        """
        if not partitions:
            return {}
        if self._lookup is not None:
            return self._lookup.committed(group, partitions, limit_s)
        return _through_librdkafka(self._settings, group, list(partitions), limit_s)

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.close()


def _through_librdkafka(
    settings: Settings, group: str, partitions: Sequence[TopicPartition], limit_s: float
) -> Found:
    refusals = Refusals(settings)
    try:
        reporting: Settings = {**settings, "error_cb": refusals}
        asked = AdminClient(reporting)
        try:
            if OFFSETS_TOPIC not in asked.list_topics(timeout=limit_s).topics:
                return dict.fromkeys(partitions)
        except KafkaException as error:
            raise refusals.explain(asked, error) from error
        client = Consumer({**reporting, "group.id": group, "enable.auto.commit": False})
    except KafkaException as error:
        raise invalid(error) from error
    try:
        answers = client.committed([RawPartition(*tp) for tp in partitions], timeout=limit_s)
    except KafkaException as error:
        return dict.fromkeys(partitions, f"Kafka: {error.args[0].str()}")
    finally:
        client.close()
    return {TopicPartition(one.topic, one.partition): _stored(one) for one in answers}


def _stored(answer: RawPartition) -> OffsetAndMetadata | str | None:
    if answer.error is not None:
        is_unknown = answer.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return None if is_unknown else f"Kafka: {answer.error.str()}"
    if answer.offset < 0:
        return None
    try:
        has_metadata = bool(answer.metadata)
    except UnicodeDecodeError:
        has_metadata = True
    return OffsetAndMetadata(answer.offset, UNREADABLE if has_metadata else "")
