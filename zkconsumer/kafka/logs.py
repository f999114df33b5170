"""What brokers say of partitions, for tools: where logs begin and end, and a group's offsets there.

Every function opens a client of its own, asks for all partitions at once, and closes it; who asks
again and again keeps a `LogClient`. What could not be had is a sentence in place of the figure, so
that one bad broker does not hide the others.

Nothing here makes anything: partitions are looked up in the metadata of the whole cluster, because
a broker before 0.11 creates a topic that it is asked about by name; and a group's offsets are asked
for only where their topic exists, since looking for the group's coordinator creates it. A consumer
of librdkafka looks for its coordinator as soon as it is made, so logs are asked for without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    admin,
)
from confluent_kafka import TopicPartition as RawPartition

from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import broker_settings
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.payloads import Broker

OFFSETS_TOPIC: Final = "__consumer_offsets"

NO_BROKER: Final = "no broker is registered in ZooKeeper"
NO_TOPIC: Final = "the brokers do not know the partition"
NO_LEADER: Final = "the partition has no leader"

# The version of registrations of brokers that look up messages, not segments, by their time (0.10).
_TIMES_SINCE: Final = 3

# librdkafka wants a group; nothing is ever committed or joined under it.
_NO_GROUP: Final = "zkconsumer"

# What ListOffsets takes in place of a time.
_LATEST: Final = -1
_EARLIEST: Final = -2

# Partitions of one request: librdkafka looks for each answer in the list of all that was asked, so
# that 10,000 at once take it half a second. Of 10,000 partitions, 250 at once cost the least.
_AT_ONCE: Final = 250

# Seconds that a leader has in any case, though the time is up.
_LEAST_S: Final = 0.1


class LogRange(NamedTuple):
    """A partition's log: the first offset there is, and the one after the last."""

    start: int
    end: int


def are_times_exact(brokers: Iterable[Broker]) -> bool:
    """Whether `offsets_at` finds messages; brokers before 0.10 know the times of segments only."""
    return all(broker.version >= _TIMES_SINCE for broker in brokers)


class LogClient:
    """A client that is kept for many questions, of one thread at a time.

    Leaders are looked up by `topics` only: who keeps a client calls it from time to time, and
    whenever an answer was a sentence. Raises FetchError as `broker_settings`, and without brokers.
    """

    def __init__(self, brokers: Sequence[Broker], *, limit_s: float) -> None:
        self._settings = _settings(brokers, limit_s)
        self._client = admin.AdminClient(self._settings)
        self._consumer: Consumer | None = None
        self._limit_s = limit_s
        self._metadata: Any = None

    def topics(self) -> dict[str, tuple[int, ...]]:
        """The partitions of all topics, ascending. Raises FetchError when no broker answers."""
        try:
            asked = self._consumer or self._client
            self._metadata = asked.list_topics(timeout=self._limit_s)
        except KafkaException as error:
            raise FetchError(f"the brokers do not answer: {error.args[0].str()}") from error
        return {name: tuple(sorted(one.partitions)) for name, one in self._metadata.topics.items()}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | str]:
        """As `log_ends`."""
        starts, ends = self._ask(partitions, (_EARLIEST, _LATEST))
        return {tp: _range(start, ends[tp]) for tp, start in starts.items()}

    def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | str]:
        """The first offset of each log, or why it is not known. See `latest`."""
        return self._ask_in_bulk(partitions, _EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | str]:
        """The end of each log, or why it is not known.

        A tenth of the cost of `ends`, which makes several objects for each partition. The price is
        a consumer, which looks for its group's coordinator: for clients that fetch in any case.
        """
        return self._ask_in_bulk(partitions, _LATEST)

    def at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | str | None]:
        """As `offsets_at`."""
        (answers,) = self._ask(partitions, (max(0, timestamp_ms),))
        return {
            tp: None if isinstance(one, int) and one < 0 else one for tp, one in answers.items()
        }

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | str | None]:
        """As `committed_in_kafka`, at a fortieth of its time where there are many groups.

        Of brokers from 0.10 on (`are_times_exact`).
        """
        found: dict[TopicPartition, OffsetAndMetadata | str | None] = dict.fromkeys(partitions)
        try:
            if self._metadata is None:
                self.topics()
            if not partitions or OFFSETS_TOPIC not in self._metadata.topics:
                return found
            asked = ConsumerGroupTopicPartitions(group, [RawPartition(*tp) for tp in partitions])
            (answer,) = self._client.list_consumer_group_offsets(
                [asked], request_timeout=self._limit_s
            ).values()
            return found | _stored(answer.result().topic_partitions)
        except FetchError as error:
            return dict.fromkeys(partitions, str(error))
        except KafkaException as error:
            return dict.fromkeys(partitions, f"Kafka: {error.args[0].str()}")

    def _ask_in_bulk(
        self, partitions: Collection[TopicPartition], at: int
    ) -> dict[TopicPartition, int | str]:
        """ListOffsets for this special time, to one leader after the other.

        A leader that is away uses up the time, and leaves a tenth of a second to each of the next.
        """
        if self._consumer is None:
            own = {"group.id": _NO_GROUP, "enable.auto.commit": False}
            self._consumer = Consumer({**self._settings, **own})
            self._metadata = None  # the consumer knows only what it has asked for itself
        try:
            found, by_leader = self._placed(partitions)
        except FetchError as error:
            return dict.fromkeys(partitions, str(error))
        deadline = monotonic() + self._limit_s
        for theirs in by_leader.values():
            for part in _parts(theirs):
                left_s = max(_LEAST_S, deadline - monotonic())
                asked = [RawPartition(*tp, at) for tp in part]
                try:
                    answers = self._consumer.offsets_for_times(asked, timeout=left_s)
                except KafkaException as error:
                    why = f"the leader does not say: {error.args[0].str()}"
                    found |= dict.fromkeys(theirs, why)
                    break
                for one in answers:
                    found[TopicPartition(one.topic, one.partition)] = (
                        one.offset
                        if one.error is None and one.offset >= 0
                        else f"the leader does not say: {one.error and one.error.str()}"
                    )
        return found

    def _placed(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int | str], dict[int, list[TopicPartition]]]:
        """Each partition's leader, or why it is not known; and the partitions of each leader."""
        if self._metadata is None:
            self.topics()
        places = _leaders(self._metadata, partitions)
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp, place in places.items():
            if isinstance(place, int):
                by_leader.setdefault(place, []).append(tp)
        return places, by_leader

    def _ask(
        self, partitions: Collection[TopicPartition], times: Sequence[int]
    ) -> list[dict[TopicPartition, int | str]]:
        """Ask each leader for the offsets of the times; a dead leader hides no other."""
        deadline = monotonic() + self._limit_s
        try:
            places, by_leader = self._placed(partitions)
        except FetchError as error:
            return [dict.fromkeys(partitions, str(error)) for _ in times]
        answers: list[dict[TopicPartition, int | str]] = [dict(places) for _ in times]
        left_s = max(_LEAST_S, deadline - monotonic())
        running = [
            (answer, _listed(self._client, part, at, left_s))
            for theirs in by_leader.values()
            for part in _parts(theirs)
            for answer, at in zip(answers, times, strict=True)
        ]
        for answer, futures in running:
            for tp, future in futures.items():
                try:
                    answer[tp] = future.result().offset
                except KafkaException as error:
                    answer[tp] = f"the leader does not say: {error.args[0].str()}"
        return answers


def _range(start: int | str, end: int | str) -> LogRange | str:
    if isinstance(start, str):
        return start
    return LogRange(start, end) if isinstance(end, int) else end


def log_ends(
    brokers: Sequence[Broker], partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, LogRange | str]:
    """Where these logs begin and end now; in place of what cannot be known stands the reason.

    `limit_s`: seconds for all of it. The end is the high watermark, as the JVM's tools have it
    (`kafka.admin.ConsumerGroupCommand`, ListOffsets to the leader).
    """
    try:
        return LogClient(brokers, limit_s=limit_s).ends(partitions)
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))


def offsets_at(
    brokers: Sequence[Broker],
    partitions: Collection[TopicPartition],
    timestamp_ms: int,
    *,
    limit_s: float,
) -> dict[TopicPartition, int | str | None]:
    """The first message of that time or later; None where there is none; else why it is not known.

    Where not `are_times_exact`, the answer is the first offset of the last segment that was not
    written to since that time; None where there is no such segment; of a time to come, the end.
    """
    try:
        return LogClient(brokers, limit_s=limit_s).at(partitions, timestamp_ms)
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))


def _spec(at: int) -> Any:
    specs: Any = vars(admin)["OffsetSpec"]  # the client's own stubs leave it out
    named = {_LATEST: specs.latest, _EARLIEST: specs.earliest}
    return named[at]() if at in named else specs.for_timestamp(at)


def _parts(partitions: Collection[TopicPartition]) -> Iterator[list[TopicPartition]]:
    left = iter(partitions)
    while part := list(islice(left, _AT_ONCE)):
        yield part


def _listed(
    client: admin.AdminClient, partitions: Iterable[TopicPartition], at: int, limit_s: float
) -> dict[TopicPartition, Any]:
    spec = _spec(at)
    asked = {RawPartition(*tp): spec for tp in partitions}
    futures = client.list_offsets(asked, request_timeout=limit_s)
    return {TopicPartition(raw.topic, raw.partition): one for raw, one in futures.items()}


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
    for each question.
    """
    found: dict[TopicPartition, OffsetAndMetadata | str | None] = dict.fromkeys(partitions)
    if not partitions:
        return found
    try:
        settings = _settings(brokers, limit_s)
        if OFFSETS_TOPIC not in admin.AdminClient(settings).list_topics(timeout=limit_s).topics:
            return found
        client = Consumer({**settings, "group.id": group, "enable.auto.commit": False})
        try:
            for part in _parts(partitions):
                raw = [RawPartition(*tp) for tp in part]
                found |= _stored(client.committed(raw, timeout=limit_s))
        finally:
            client.close()
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))
    except KafkaException as error:
        return dict.fromkeys(partitions, f"Kafka: {error.args[0].str()}")
    return found


def _stored(
    answers: Iterable[RawPartition],
) -> dict[TopicPartition, OffsetAndMetadata | str | None]:
    found: dict[TopicPartition, OffsetAndMetadata | str | None] = {}
    for one in answers:
        tp = TopicPartition(one.topic, one.partition)
        if one.error is None and one.offset >= 0:
            found[tp] = OffsetAndMetadata(one.offset, one.metadata or "")
        elif one.error and one.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            found[tp] = f"Kafka: {one.error.str()}"
    return found


def _settings(brokers: Sequence[Broker], limit_s: float) -> dict[str, Any]:
    if not brokers:
        raise FetchError(NO_BROKER)
    return {
        **broker_settings(brokers),
        "socket.timeout.ms": max(10, min(round(limit_s * 1000), 300_000)),
        # librdkafka's own lines on stderr: only what is critical; errors come as answers.
        "log_level": 2,
        "error_cb": lambda error: None,
    }
