"""Reads the offsets that groups have committed to Kafka.

zkconsumer's own connections ask for them, because confluent-kafka (2.16) expects a NUL at the end
of an offset's metadata, and reads past the end of metadata that another client has written. Only
where a property that only librdkafka honours decides the access to the brokers, librdkafka asks:
the offsets are then right, and the metadata of other clients are not shown.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from zkconsumer.kafka.client_settings import Settings, without_own_connections
from zkconsumer.kafka.columns.lookups import Lookup
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

    def begin_reading(self) -> None:
        """Ask each broker that fails only once until the next call."""
        if self._lookup is not None:
            self._lookup.begin_reading()

    def read(self, group: str, partitions: Collection[TopicPartition], *, limit_s: float) -> Found:
        """Return the group's offset of each partition; `limit_s` is the time limit in seconds.

        Never creates a topic. JVM: `kafka.consumer.ZookeeperConsumerConnector.fetchOffsets`, 0.8.2
        to 1.1. Raises FetchError if no broker answers, or if the brokers refuse the connection.
        """
        if not partitions:
            return {}
        if self._lookup is not None:
            return self._lookup.committed(group, partitions, limit_s)
        from zkconsumer.kafka.librdkafka import committed  # noqa: PLC0415 - loads librdkafka

        found = committed(self._settings, group, list(partitions), limit_s=limit_s)
        return {
            tp: OffsetAndMetadata(one.offset, UNREADABLE)
            if isinstance(one, OffsetAndMetadata) and one.metadata
            else one
            for tp, one in found.items()
        }

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
