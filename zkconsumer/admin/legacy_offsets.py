"""Committed offsets as the old tools looked for them: in Kafka, and else in ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from zkconsumer.admin.legacy import ZkUtils
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.records import Broker
from zkconsumer.errors import FetchError
from zkconsumer.kafka.brokers import broker_settings, servers
from zkconsumer.kafka.logs import committed_in_kafka


@dataclass
class Committed:
    """The offsets that there are; `missing` are in neither place, `unknown` says Kafka's reason."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    missing: list[TopicPartition] = field(default_factory=list)
    unknown: dict[TopicPartition, str] = field(default_factory=dict)


def committed(
    zk: ZkUtils, group: str, partitions: Sequence[TopicPartition], *, limit_s: float
) -> Committed:
    """Ask for all of them. Raises JavaError for an offset znode that is no number.

    `limit_s`: seconds for the brokers to answer in.
    """
    brokers = list(zk.brokers().values())
    kept = committed_in_kafka(brokers, group, partitions, limit_s=limit_s)
    found = Committed()
    in_zookeeper = zk.offsets(group, (tp for tp in partitions if kept[tp] is None))
    for tp in partitions:
        at = kept[tp]
        if isinstance(at, str):
            found.unknown[tp] = at
        elif at is not None:
            found.offsets[tp] = at.offset
        elif tp in in_zookeeper:
            found.offsets[tp] = in_zookeeper[tp]
        else:
            found.missing.append(tp)
    return found


def partitions_of(brokers: Sequence[Broker], topic: str, *, limit_s: float) -> list[int]:
    """A topic's partitions as the brokers say, ascending; none if they do not know it.

    Raises FetchError when no broker answers within `limit_s` seconds. Nothing is created by asking:
    the topic is looked up in the metadata of all.
    """
    settings: dict[str, Any] = {**broker_settings(brokers), "log_level": 2, "error_cb": _passing}
    client = AdminClient(settings)
    try:
        topics = client.list_topics(timeout=limit_s).topics
    except KafkaException as error:
        raise FetchError(
            f"the brokers do not answer: {error.args[0].str()}",
            where=", ".join(servers(brokers)), remedy="check the list, and that they are up",
        ) from error
    return sorted(topics[topic].partitions) if topic in topics else []


def _passing(error: object) -> None:
    """Connections come and go; the question that fails for it says so itself."""
