"""The ends of logs and offsets by time, asked through librdkafka."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from time import monotonic
from typing import Any, Final, TypeAlias

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    admin,
)
from confluent_kafka import TopicPartition as RawPartition

from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.log_answers import (
    EARLIEST,
    LATEST,
    NO_LEADER,
    NO_TOPIC,
    LogRange,
    Offsets,
    parts_of,
    range_of,
)
from zkconsumer.kafka.refusals import TRANSPORT, Refusals, invalid
from zkconsumer.protocol.model import TopicPartition

Untyped: TypeAlias = Any
"""A value of confluent-kafka whose type the package's stubs do not declare, or declare as one of
several types."""

# librdkafka requires a group; this client neither commits to it nor joins it.
_NO_GROUP: Final = "zkconsumer"

# Minimum time limit, in seconds, for each leader, even if the total time limit has passed.
_LEAST_S: Final = 0.1


class LibrdkafkaLogs:
    """The `LogBackend` of librdkafka; see `kafka.logs.LogClient` for the methods."""

    def __init__(self, settings: Settings, *, limit_s: float, isolation: str) -> None:
        self._refusals = Refusals(settings)
        self._settings: Settings = {**settings, "error_cb": self._refusals}
        self._client = _new(admin.AdminClient, self._settings)
        self._consumer: Consumer | None = None
        self._isolation = isolation
        self._limit_s = limit_s
        self._metadata: Untyped = None
        # Leader -> why it has not answered in this reading; None: each leader is asked again.
        self._silent: dict[int, str] | None = None

    def begin_reading(self) -> None:
        """Ask each leader that does not answer only once until the next call."""
        self._silent = {}

    def topics(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions of all topics, ascending.

        Raises BrokerAccessError or BrokersUnreachableError.
        """
        try:
            asked = self._consumer or self._client
            self._metadata = asked.list_topics(timeout=self._limit_s)
        except KafkaException as error:
            raise self._refusals.explain(asked, error) from error
        return {name: tuple(sorted(one.partitions)) for name, one in self._metadata.topics.items()}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, as `log_ends` does."""
        starts, ends = self._ask(partitions, (EARLIEST, LATEST))
        return {tp: range_of(start, ends[tp]) for tp, start in starts.items()}

    def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | str]:
        """Return the first offset of each log, or the reason why it is unknown. The call is as fast
        as `latest`."""
        return self._ask_in_bulk(partitions, EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | str]:
        """Return the end of each log, or the reason why it is unknown.

        The call takes a tenth of the time of `ends`, which creates several objects for each
        partition. It needs a consumer, and librdkafka looks for the coordinator of the consumer's
        group, so call it only on clients that also fetch.
        """
        return self._ask_in_bulk(partitions, LATEST)

    def at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets:
        (answers,) = self._ask(partitions, (timestamp_ms,))
        return answers

    def _ask_in_bulk(
        self, partitions: Collection[TopicPartition], at: int
    ) -> dict[TopicPartition, int | str]:
        """Request the offsets of a special time from one leader after the other.

        A leader that is down may use up the time limit; each of the other leaders then still gets
        0.1 s.
        """
        if self._consumer is None:
            own = {
                "group.id": _NO_GROUP,
                "enable.auto.commit": False,
                "isolation.level": self._isolation,
            }
            self._consumer = Consumer({**self._settings, **own})
            self._metadata = None  # the consumer has no metadata yet
        try:
            found, by_leader = self._by_leader(partitions)
        except FetchError as error:
            return dict.fromkeys(partitions, str(error))
        deadline = monotonic() + self._limit_s
        for theirs in by_leader.values():
            for part in parts_of(theirs):
                left_s = max(_LEAST_S, deadline - monotonic())
                asked = [RawPartition(*tp, at) for tp in part]
                try:
                    answers = self._consumer.offsets_for_times(asked, timeout=left_s)
                except KafkaException as error:
                    why = f"the leader returns no offset: {error.args[0].str()}"
                    found |= dict.fromkeys(theirs, why)
                    break
                for one in answers:
                    found[TopicPartition(one.topic, one.partition)] = (
                        one.offset
                        if one.error is None and one.offset >= 0
                        else f"the leader returns no offset: {one.error and one.error.str()}"
                    )
        return found

    def _by_leader(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int | str], dict[int, list[TopicPartition]]]:
        """Return each partition's leader or fault, and the partitions of each leader."""
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
        """Request the offsets of the given times; a failed leader does not affect the others."""
        deadline = monotonic() + self._limit_s
        try:
            places, by_leader = self._by_leader(partitions)
        except FetchError as error:
            return [dict.fromkeys(partitions, str(error)) for _ in times]
        answers: list[dict[TopicPartition, int | str]] = [dict(places) for _ in times]
        for known, why in (self._silent or {}).items():
            silent = dict.fromkeys(by_leader.pop(known, ()), why)
            for answer in answers:
                answer.update(silent)
        left_s = max(_LEAST_S, deadline - monotonic())
        running = [
            (answer, _listed(self._client, part, at, left_s, self._isolation))
            for theirs in by_leader.values()
            for part in parts_of(theirs)
            for answer, at in zip(answers, times, strict=True)
        ]
        for answer, futures in running:
            for tp, future in futures.items():
                answer[tp] = self._result(future, places[tp])
        return answers

    def _result(self, future: Untyped, leader: int | str) -> int | str:
        """Return the offset that a leader has returned, or why it has returned none."""
        try:
            offset = int(future.result().offset)
        except KafkaException as error:
            code, text = error.args[0].code(), error.args[0].str()
        else:
            if offset != OFFSET_INVALID:
                return offset
            # librdkafka reports a leader that is silent beside one that answers as a result.
            code, text = KafkaError._TIMED_OUT, "no answer in time"
        broker = self._metadata.brokers.get(leader)
        if code not in TRANSPORT or broker is None:
            return f"the leader returns no offset: {text}"
        server = f"{broker.host}:{broker.port}"
        cause = self._refusals.at(self._client, server)
        why = f"the leader {server} does not answer: {cause or text}"
        if self._silent is not None:
            self._silent[broker.id] = why
        return why


def _spec(at: int) -> Untyped:
    specs: Untyped = vars(admin)["OffsetSpec"]  # missing in confluent-kafka's type stubs
    named = {LATEST: specs.latest, EARLIEST: specs.earliest}
    return named[at]() if at in named else specs.for_timestamp(at)


def _listed(
    client: admin.AdminClient,
    partitions: Iterable[TopicPartition],
    at: int,
    limit_s: float,
    isolation: str,
) -> dict[TopicPartition, Untyped]:
    spec = _spec(at)
    asked = {RawPartition(*tp): spec for tp in partitions}
    futures = client.list_offsets(
        asked, isolation_level=IsolationLevel[isolation.upper()], request_timeout=limit_s
    )
    return {TopicPartition(raw.topic, raw.partition): one for raw, one in futures.items()}


def _leaders(
    metadata: Untyped, partitions: Iterable[TopicPartition]
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


def _new(kind: Untyped, settings: Settings) -> Untyped:
    """Make a client, or raise ConfigError for properties that librdkafka refuses."""
    try:
        return kind(settings)
    except KafkaException as error:
        raise invalid(error) from error
