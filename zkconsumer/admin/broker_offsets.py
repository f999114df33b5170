"""Kafka's storage of offsets, as the operators' tools read and write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from queue import Empty, SimpleQueue

from zkconsumer.admin.groups import registered_brokers
from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import (
    Advice,
    FetchError,
    RefusedError,
    RemedyOperation,
    ZkConsumerError,
    first_few,
)
from zkconsumer.kafka.client_settings import Brokers, broker_settings
from zkconsumer.kafka.logs import committed_in_kafka, group_offsets
from zkconsumer.kafka.offset_storage import KafkaOffsetStore, channel_settings
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.requests import Reply, StoreOffsets
from zkconsumer.zk.client import ZooKeeperClient


class BrokerOffsets:
    """Kafka's storage of offsets in a real cluster, for `apply` (`KafkaStore`).

    `limit_s` is the time limit of a request in seconds. Each request opens and closes its own
    client.
    """

    def __init__(self, config: ConnectionConfig, brokers: Brokers, limit_s: float) -> None:
        self._config, self._brokers, self._limit_s = config, brokers, limit_s

    @classmethod
    def of(cls, connection: ZooKeeperClient) -> BrokerOffsets:
        """Return the storage of the brokers that are registered now."""
        limit_s = connection.config.zookeeper_connection_timeout_s
        return cls(connection.config, registered_brokers(connection), limit_s)

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return partition -> stored offset. Raises RefusedError if the brokers do not answer."""
        found = committed_in_kafka(self._brokers, group, partitions, limit_s=self._limit_s)
        faults = [f"{tp}: {why}" for tp, why in found.items() if isinstance(why, str)]
        if faults:
            raise RefusedError(
                f"the offsets of group {group} in Kafka cannot be read",
                where=first_few(faults, 5, separator="; "),
                remedy="check the brokers, or change only the offsets in ZooKeeper",
                advice=Advice(RemedyOperation.ZOOKEEPER_ONLY),
            )
        return {tp: at for tp, at in found.items() if isinstance(at, OffsetAndMetadata)}

    def members(self, group: str) -> list[str]:
        """Return the group's members of Kafka's own protocol. Raises RefusedError if the brokers do
        not answer."""
        try:
            with closing(group_offsets(self._brokers, limit_s=self._limit_s)) as client:
                return client.members(group, limit_s=self._limit_s)
        except FetchError as error:
            raise RefusedError(
                f"it is unknown whether group {group} has members in Kafka: {error.what}",
                where=error.where,
                remedy="check the brokers, or change only the offsets in ZooKeeper",
                advice=Advice(RemedyOperation.ZOOKEEPER_ONLY),
            ) from error

    def store(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, str]:
        """Store offsets without being a member; return partition -> reason for each failure."""
        settings = {
            **channel_settings(self._config.for_group(group)),
            **broker_settings(self._brokers),
        }
        answer: SimpleQueue[Sequence[Reply]] = SimpleQueue()
        store = KafkaOffsetStore("tools", connect=lambda: settings, limit_s=self._limit_s)
        store.start()
        try:
            store.submit(StoreOffsets(offsets), answer.put)
            (reply,) = answer.get(timeout=3 * self._limit_s)
        except Empty:
            raise ZkConsumerError(
                f"Kafka did not answer within {3 * self._limit_s:g} s", where=group
            ) from None
        finally:
            store.stop()
        denied, unavailable = reply.value
        return {**denied, **unavailable}
