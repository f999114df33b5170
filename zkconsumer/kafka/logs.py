"""What brokers say of partitions, for tools: where logs begin and end, and a group's offsets there.

Every function opens a client of its own, asks for all partitions at once, and closes it. What could
not be had is a sentence in place of the figure, so that one bad broker does not hide the others.

Nothing here makes anything: partitions are looked up in the metadata of the whole cluster, because
a broker before 0.11 creates a topic that it is asked about by name; and a group's offsets are asked
for only where their topic exists, since looking for the group's coordinator creates it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, admin
from confluent_kafka import TopicPartition as RawPartition

from zkconsumer.core.model import OffsetAndMetadata, TopicPartition
from zkconsumer.core.records import Broker
from zkconsumer.errors import FetchError
from zkconsumer.kafka.brokers import broker_settings

OFFSETS_TOPIC: Final = "__consumer_offsets"

NO_BROKER: Final = "no broker is registered in ZooKeeper"
NO_TOPIC: Final = "the brokers do not know the partition"
NO_LEADER: Final = "the partition has no leader"

# The version of registrations of brokers that look up messages, not segments, by their time (0.10).
_TIMES_SINCE: Final = 3

# The client's own stubs leave this out.
_SPEC: Final[Any] = vars(admin)["OffsetSpec"]


class LogRange(NamedTuple):
    """A partition's log: the first offset there is, and the one after the last."""

    start: int
    end: int


def are_times_exact(brokers: Iterable[Broker]) -> bool:
    """Whether `offsets_at` finds messages; brokers before 0.10 know the times of segments only."""
    return all(broker.version >= _TIMES_SINCE for broker in brokers)


def log_ends(
    brokers: Sequence[Broker], partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, LogRange | str]:
    """Where these logs begin and end now; in place of what cannot be known stands the reason.

    `limit_s`: seconds for all of it. The end is the high watermark, as the JVM's tools have it
    (`kafka.admin.ConsumerGroupCommand`, ListOffsets to the leader).
    """
    specs = {"start": _SPEC.earliest(), "end": _SPEC.latest()}
    found: dict[TopicPartition, LogRange | str] = {}
    answers = _ask(brokers, partitions, specs, limit_s)
    for tp, start in answers["start"].items():
        end = answers["end"][tp]
        if isinstance(start, str) or isinstance(end, str):
            found[tp] = start if isinstance(start, str) else str(end)
        else:
            found[tp] = LogRange(start, end)
    return found


def offsets_at(
    brokers: Sequence[Broker],
    partitions: Collection[TopicPartition],
    timestamp_ms: int,
    *,
    limit_s: float,
) -> dict[TopicPartition, int | str | None]:
    """The first message of that time or later; None where there is none; else why it is not known.

    Where not `are_times_exact`, the answer is the first offset of the last segment that was not
    written to since that time; None where there is no such segment.
    """
    specs = {"at": _SPEC.for_timestamp(timestamp_ms)}
    answers = _ask(brokers, partitions, specs, limit_s)["at"]
    return {tp: None if isinstance(one, int) and one < 0 else one for tp, one in answers.items()}


def _ask(
    brokers: Sequence[Broker],
    partitions: Collection[TopicPartition],
    specs: Mapping[str, Any],
    limit_s: float,
) -> dict[str, dict[TopicPartition, int | str]]:
    """Each of the questions, to each leader at once, so that a dead one answers for itself only."""
    everything = {name: dict.fromkeys(partitions, "") for name in specs}
    deadline = time.monotonic() + limit_s
    try:
        settings = _settings(brokers, limit_s)
        client = admin.AdminClient(settings)
        leaders = _leaders(client.list_topics(timeout=limit_s), partitions)
    except FetchError as error:
        return _all(everything, str(error))
    except KafkaException as error:
        return _all(everything, f"the brokers do not answer: {error.args[0].str()}")
    by_leader: dict[int, list[TopicPartition]] = {}
    answers: dict[str, dict[TopicPartition, int | str]] = {name: {} for name in specs}
    for tp in partitions:
        leader = leaders[tp]
        if isinstance(leader, int):
            by_leader.setdefault(leader, []).append(tp)
        for name in specs:
            answers[name][tp] = "" if isinstance(leader, int) else leader
    left_s = max(0.1, deadline - time.monotonic())
    running = [
        (name, tp, future)
        for theirs in by_leader.values()
        for name, spec in specs.items()
        for tp, future in zip(theirs, _listed(client, theirs, spec, left_s), strict=True)
    ]
    for name, tp, future in running:
        try:
            answers[name][tp] = future.result().offset
        except KafkaException as error:
            answers[name][tp] = f"the leader does not say: {error.args[0].str()}"
    return answers


def _listed(
    client: admin.AdminClient, partitions: Iterable[TopicPartition], spec: Any, limit_s: float
) -> Iterable[Any]:
    asked = {RawPartition(*tp): spec for tp in partitions}
    futures = client.list_offsets(asked, request_timeout=limit_s)
    return [futures[raw] for raw in asked]


def _all(
    answers: Mapping[str, dict[TopicPartition, str]], reason: str
) -> dict[str, dict[TopicPartition, int | str]]:
    return {name: dict.fromkeys(of, reason) for name, of in answers.items()}


def _leaders(
    metadata: Any, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | str]:
    found: dict[TopicPartition, int | str] = {}
    for tp in partitions:
        topic = metadata.topics.get(tp.topic)
        known = topic and topic.partitions.get(tp.partition)
        if known is None:
            found[tp] = NO_TOPIC
        else:
            found[tp] = known.leader if known.leader >= 0 else NO_LEADER
    return found


def committed_in_kafka(
    brokers: Sequence[Broker], group: str, partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, OffsetAndMetadata | str | None]:
    """What the group has committed in Kafka; None where nothing; else why it is not known.

    As `kafka.consumer.ZookeeperConsumerConnector.fetchOffsets`, 0.8.2 to 1.1. `limit_s`: seconds
    for each of the two questions.
    """
    found: dict[TopicPartition, OffsetAndMetadata | str | None] = dict.fromkeys(partitions)
    if not partitions:
        return found
    consumer = None
    try:
        settings = _settings(brokers, limit_s) | {"group.id": group, "enable.auto.commit": False}
        consumer = Consumer(settings)
        if OFFSETS_TOPIC not in consumer.list_topics(timeout=limit_s).topics:
            return found
        asked = [RawPartition(*tp) for tp in partitions]
        for one in consumer.committed(asked, timeout=limit_s):
            tp = TopicPartition(one.topic, one.partition)
            if one.error is None and one.offset >= 0:
                found[tp] = OffsetAndMetadata(one.offset, one.metadata or "")
            elif one.error and one.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                found[tp] = f"Kafka: {one.error.str()}"
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))
    except KafkaException as error:
        return dict.fromkeys(partitions, f"Kafka: {error.args[0].str()}")
    finally:
        if consumer is not None:
            consumer.close()
    return found


def _settings(brokers: Sequence[Broker], limit_s: float) -> dict[str, Any]:
    if not brokers:
        raise FetchError(NO_BROKER)
    limit_ms = max(10, min(round(limit_s * 1000), 300_000))
    # librdkafka's own lines on stderr: only what is critical; errors come as answers.
    return {
        **broker_settings(brokers),
        "socket.timeout.ms": limit_ms,
        "log_level": 2,
        # Connections come and go; what was asked for says itself what became of it.
        "error_cb": lambda error: None,
    }
