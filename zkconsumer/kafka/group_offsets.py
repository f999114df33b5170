"""Reads the offsets that groups have committed to Kafka.

zkconsumer's own connections ask for them, because confluent-kafka (2.16) expects a NUL at the end
of an offset's metadata, and reads past the end of metadata that another client has written. Only
where a property that only librdkafka honours decides the access to the brokers, librdkafka asks:
the offsets are then right, and the metadata of other clients are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from zkconsumer.errors import BrokerAccessError, BrokersUnreachableError, FetchError
from zkconsumer.kafka.client_settings import Settings, without_own_connections
from zkconsumer.kafka.columns.lookups import Lookup, Stored
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

UNREADABLE: Final = "(unknown: librdkafka cannot read the metadata of offsets)"
"""The metadata of an offset that librdkafka has read."""


class GroupOffsets:
    """Reads offsets in Kafka, for one thread at a time; keeps its connections."""

    def __init__(
        self, settings: Settings, has_offsets_topic: Callable[[], bool | None] = lambda: None
    ) -> None:
        """
        Args:
            settings: librdkafka's, from `client_settings.broker_settings`.
            has_offsets_topic: returns whether ZooKeeper has the topic of the groups' offsets; None
                if this is unknown. Without the topic, no group has an offset.
        """
        self._settings, self._has_offsets_topic = settings, has_offsets_topic
        self._lookup = (
            Lookup(settings, has_offsets_topic=has_offsets_topic)
            if without_own_connections(settings) is None
            else None
        )

    def begin_reading(self) -> None:
        """Ask each broker that fails only once until the next call."""
        if self._lookup is not None:
            self._lookup.begin_reading()

    def read(self, group: str, partitions: Collection[TopicPartition], *, limit_s: float) -> Stored:
        """Return the group's offset of each partition; `limit_s` is the time limit in seconds.

        Never creates a topic. JVM: `kafka.consumer.ZookeeperConsumerConnector.fetchOffsets`, 0.8.2
        to 1.1. Raises FetchError if no broker answers, if the brokers refuse the connection, or if
        it is unknown whether the topic of the offsets exists.
        """
        found = self.read_all({group: partitions}, limit_s=limit_s)[group]
        if isinstance(found, FetchError):
            raise found
        return found

    def read_all(
        self, wanted: Mapping[str, Collection[TopicPartition]], *, limit_s: float
    ) -> dict[str, Stored | FetchError]:
        """Return the offsets of many groups as `read` does, with few waits for the brokers.

        An error stands for a group whose coordinator does not answer. Raises FetchError as `read`
        does.
        """
        found: dict[str, Stored | FetchError] = {group: {} for group in wanted}
        asked = {group: partitions for group, partitions in wanted.items() if partitions}
        if asked and self._lookup is not None:
            found |= self._lookup.committed(asked, limit_s)
        elif asked:
            found |= {group: self._committed(group, tps, limit_s) for group, tps in asked.items()}
        return found

    def _committed(
        self, group: str, partitions: Collection[TopicPartition], limit_s: float
    ) -> Stored | FetchError:
        from zkconsumer.kafka.librdkafka import committed  # noqa: PLC0415 - loads librdkafka

        try:
            found = committed(
                self._settings,
                group,
                list(partitions),
                limit_s=limit_s,
                has_offsets_topic=self._has_offsets_topic,
            )
        except (BrokerAccessError, BrokersUnreachableError):
            raise
        except FetchError as error:
            return error
        return {
            tp: OffsetAndMetadata(one.offset, UNREADABLE)
            if isinstance(one, OffsetAndMetadata) and one.metadata
            else one
            for tp, one in found.items()
        }

    def members(self, group: str, *, limit_s: float) -> list[str]:
        """Return the group's members of Kafka's own protocol, each as "CLIENT at HOST".

        Only zkconsumer's own connections ask for them: without these, the list is empty. Raises
        FetchError if the brokers do not answer.
        """
        return [] if self._lookup is None else self._lookup.members(group, limit_s)

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
