"""The ends of logs, offsets by time, and groups' offsets in Kafka, as brokers report them.

Every function opens a client, requests all partitions together, and closes the client. A caller
with many requests should keep a `LogClient` instead. If a value cannot be read, the result contains
a string with the reason instead, so that one failed broker does not hide the other values.

No function creates a topic. Partitions are looked up in the metadata of the whole cluster, because
a broker before 0.11 creates a topic that a client names. A group's offsets are read only if the
topic __consumer_offsets exists, because finding the group's coordinator creates that topic.
librdkafka's consumer looks for its coordinator when it is created, so the ends of logs are read
without a consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    admin,
)
from confluent_kafka import TopicPartition as RawPartition

from zkconsumer.errors import ConfigError, FetchError
from zkconsumer.kafka.access import Refusals, invalid, is_for_columns
from zkconsumer.kafka.client_settings import (
    TRANSACTIONS,
    Brokers,
    Settings,
    broker_settings,
    without_own_connections,
)
from zkconsumer.kafka.group_offsets import GroupOffsets
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.payloads import Broker

Untyped: TypeAlias = Any
"""A value of confluent-kafka whose type the package's stubs do not declare, or declare as one of
several types."""

NO_BROKER: Final = "no broker is registered in ZooKeeper"
NO_TOPIC: Final = "the brokers do not know the partition"
NO_LEADER: Final = "the partition has no leader"

# Seconds for which a leader may report a log end below an offset that was already read. A newly
# elected leader reports fewer messages than it stores until its followers fetch from it again.
STALE_END_S: Final = 5.0

# The lowest registration version of brokers that find messages by time (0.10 and later). Older
# brokers find only segments.
_TIMES_SINCE: Final = 3

# librdkafka requires a group; this client neither commits to it nor joins it.
_NO_GROUP: Final = "zkconsumer"

# The special times of ListOffsets.
_LATEST: Final = -1
_EARLIEST: Final = -2

# Number of partitions in one request. librdkafka searches the list of all requested partitions for
# each result, so one request for 10,000 partitions takes half a second. Requests of 250 partitions
# were the fastest for 10,000.
PARTITIONS_PER_REQUEST: Final = 250

# Minimum time limit, in seconds, for each leader, even if the total time limit has passed.
_LEAST_S: Final = 0.1


class LogRange(NamedTuple):
    """The log of a partition: its first offset, and the offset after its last message."""

    start: int
    end: int


def are_times_exact(brokers: Iterable[Broker]) -> bool:
    """Return whether `offsets_at` finds messages; brokers before 0.10 find only segments."""
    return all(broker.version >= _TIMES_SINCE for broker in brokers)


class LogClient:
    """A client for many requests, used by one thread at a time.

    Only `topics` looks up the leaders: call it periodically, and whenever a result is a string.
    Raises FetchError if there are no brokers and in the cases of `broker_settings`, and ConfigError
    for properties that librdkafka refuses.
    """

    def __init__(self, brokers: Brokers, *, limit_s: float) -> None:
        self._settings = _settings(brokers, limit_s)
        self._isolation = brokers.isolation
        self._client = _new(admin.AdminClient, self._settings)
        self._consumer: Consumer | None = None
        self._limit_s = limit_s
        self._metadata: Untyped = None

    def topics(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions of all topics, ascending.

        Raises BrokerAccessError or BrokersUnreachableError.
        """
        try:
            asked = self._consumer or self._client
            self._metadata = asked.list_topics(timeout=self._limit_s)
        except KafkaException as error:
            raise _refusals(self._settings).explain(asked, error) from error
        return {name: tuple(sorted(one.partitions)) for name, one in self._metadata.topics.items()}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, as `log_ends` does."""
        starts, ends = self._ask(partitions, (_EARLIEST, _LATEST))
        return {tp: _range(start, ends[tp]) for tp, start in starts.items()}

    def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | str]:
        """Return the first offset of each log, or the reason why it is unknown. The call is as fast
        as `latest`."""
        return self._ask_in_bulk(partitions, _EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | str]:
        """Return the end of each log, or the reason why it is unknown.

        The call takes a tenth of the time of `ends`, which creates several objects for each
        partition. It needs a consumer, and librdkafka looks for the coordinator of the consumer's
        group, so call it only on clients that also fetch.
        """
        return self._ask_in_bulk(partitions, _LATEST)

    def at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | str | None]:
        """Return offsets by time, as `offsets_at` does."""
        (answers,) = self._ask(partitions, (max(0, timestamp_ms),))
        return {
            tp: None if isinstance(one, int) and one < 0 else one for tp, one in answers.items()
        }

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
            for part in _parts(theirs):
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
        left_s = max(_LEAST_S, deadline - monotonic())
        running = [
            (answer, _listed(self._client, part, at, left_s, self._isolation))
            for theirs in by_leader.values()
            for part in _parts(theirs)
            for answer, at in zip(answers, times, strict=True)
        ]
        for answer, futures in running:
            for tp, future in futures.items():
                try:
                    answer[tp] = future.result().offset
                except KafkaException as error:
                    answer[tp] = f"the leader returns no offset: {error.args[0].str()}"
        return answers


class KeptLogs:
    """Answers as `log_ends` and `committed_in_kafka`, with one client for all calls.

    It is for a caller that asks every few seconds, on one thread. A change of the registered
    brokers makes a new client.
    """

    def __init__(self, *, limit_s: float) -> None:
        """`limit_s` is the time limit in seconds of each call."""
        self._limit_s = limit_s
        self._client: LogClient | None = None
        self._offsets: GroupOffsets | None = None
        self._brokers: tuple[Broker, ...] = ()

    def ends(
        self, brokers: Brokers, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, as `log_ends` does."""
        if not partitions:
            return {}
        try:
            client = self._client_of(brokers)
            client.topics()  # looks up the leaders
            return client.ends(partitions)
        except ConfigError:
            return log_ends(brokers, partitions, limit_s=self._limit_s)
        except FetchError as error:
            return dict.fromkeys(partitions, str(error))

    def committed(
        self, brokers: Brokers, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | str | None]:
        """Return the offsets in Kafka, as `committed_in_kafka` does."""
        try:
            self._use(brokers)
            self._offsets = self._offsets or group_offsets(brokers, limit_s=self._limit_s)
            return self._offsets.read(group, partitions, limit_s=self._limit_s)
        except FetchError as error:
            return dict.fromkeys(partitions, str(error))

    def _client_of(self, brokers: Brokers) -> LogClient:
        self._use(brokers)
        self._client = self._client or LogClient(brokers, limit_s=self._limit_s)
        return self._client

    def _use(self, brokers: Brokers) -> None:
        """Drop the clients if they are not those of these brokers."""
        if self._brokers != tuple(brokers):
            self._brokers = tuple(brokers)
            self._client = None
            if self._offsets is not None:
                self._offsets.close()
                self._offsets = None


def _range(start: int | str, end: int | str) -> LogRange | str:
    if isinstance(start, str):
        return start
    return LogRange(start, end) if isinstance(end, int) else end


def log_ends(
    brokers: Brokers, partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, LogRange | str]:
    """Return the first and the next offset of each log, or the reason why they are not known.

    `limit_s` is the time limit in seconds for all partitions together. The next offset is the high
    watermark, as in the JVM's tools (`kafka.admin.ConsumerGroupCommand`, ListOffsets to the
    leader), or with `isolation.level=read_committed` the last stable offset. If librdkafka lacks
    Kerberos, the columnar reader asks; then `limit_s` limits each of its requests.
    """
    try:
        try:
            return LogClient(brokers, limit_s=limit_s).ends(partitions)
        except ConfigError as error:
            if not is_for_columns(error, brokers.config):
                raise
            return _ends_without_librdkafka(brokers, sorted(partitions), limit_s)
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))


def _ends_without_librdkafka(
    brokers: Brokers, partitions: Sequence[TopicPartition], limit_s: float
) -> dict[TopicPartition, LogRange | str]:
    from zkconsumer.kafka.columns.lookups import Lookup  # noqa: PLC0415 - needs the extra `fast`
    from zkconsumer.kafka.fetcher import AutoOffsetReset  # noqa: PLC0415 - only this call needs it

    lookup = Lookup({**broker_settings(brokers), "isolation.level": brokers.isolation})
    try:
        starts = lookup.ends(partitions, AutoOffsetReset.SMALLEST, limit_s)
        ends = lookup.ends(partitions, AutoOffsetReset.LARGEST, limit_s)
    finally:
        lookup.close()
    return {tp: _range(starts[tp], ends[tp]) for tp in partitions}


def without_messages(
    brokers: Brokers, tails: Mapping[TopicPartition, tuple[int, int]], *, limit_s: float
) -> dict[TopicPartition, bool]:
    """Return for each partition whether its log has no message from the first offset up to the
    second.

    Such offsets belong to transaction markers, or to messages that compaction has removed. The
    JVM's old consumer never moves over them. The columnar reader's connection reads a few kilobytes
    of each partition, since librdkafka's consumer would create the topic __consumer_offsets.
    Partitions whose leader does not answer are left out, and all partitions if zkconsumer's own
    connections do not support the security of the brokers. `limit_s` is the time limit in seconds
    of each request.
    """
    if not tails or all(one.version < TRANSACTIONS for one in brokers):
        return {}
    from zkconsumer.kafka.columns.connection import AuthenticationError  # noqa: PLC0415 - rare
    from zkconsumer.kafka.columns.lookups import LOST, Lookup  # noqa: PLC0415 - rarely needed

    found: dict[TopicPartition, bool] = {}
    try:
        settings = broker_settings(brokers)
        if without_own_connections(settings) is not None:
            return {}
        with closing(Lookup(settings)) as lookup:
            for part in _parts(tails):
                found |= lookup.without_messages({tp: tails[tp] for tp in part}, limit_s)
    except (FetchError, ConfigError, AuthenticationError, *LOST):
        pass  # the lag is shown without a reason
    return found


def offsets_at(
    brokers: Brokers,
    partitions: Collection[TopicPartition],
    timestamp_ms: int,
    *,
    limit_s: float,
) -> dict[TopicPartition, int | str | None]:
    """Return the offset of the first message at or after a time; None if there is none.

    If an offset is unknown, the value is a string with the reason. If `are_times_exact` is False,
    the result is the first offset of the last segment that was not modified since that time, or
    None if there is no such segment. For a time in the future, such brokers return the end of the
    log.
    """
    try:
        return LogClient(brokers, limit_s=limit_s).at(partitions, timestamp_ms)
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))


def _spec(at: int) -> Untyped:
    specs: Untyped = vars(admin)["OffsetSpec"]  # missing in confluent-kafka's type stubs
    named = {_LATEST: specs.latest, _EARLIEST: specs.earliest}
    return named[at]() if at in named else specs.for_timestamp(at)


def _parts(partitions: Collection[TopicPartition]) -> Iterator[list[TopicPartition]]:
    left = iter(partitions)
    while part := list(islice(left, PARTITIONS_PER_REQUEST)):
        yield part


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


def group_offsets(brokers: Brokers, *, limit_s: float) -> GroupOffsets:
    """Return a client for the offsets of many groups. Raises FetchError if there are no brokers and
    in the cases of `broker_settings`."""
    return GroupOffsets(_settings(brokers, limit_s))


def committed_in_kafka(
    brokers: Brokers,
    group: str,
    partitions: Collection[TopicPartition],
    *,
    limit_s: float,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[TopicPartition, OffsetAndMetadata | str | None]:
    """Return a group's offset in Kafka for each partition: None if none is stored, or a string that
    says why it is unknown.

    JVM: `kafka.consumer.ZookeeperConsumerConnector.fetchOffsets`, 0.8.2 to 1.1. `limit_s` is the
    time limit of each request in seconds. `on_progress(done, total)` is called after each request
    with the number of partitions read so far and the total number of partitions.
    """
    found: dict[TopicPartition, OffsetAndMetadata | str | None] = dict.fromkeys(partitions)
    try:
        with closing(group_offsets(brokers, limit_s=limit_s)) as client:
            done = 0
            for part in _parts(partitions):
                found |= client.read(group, part, limit_s=limit_s)
                done += len(part)
                on_progress(done, len(partitions))
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))
    return found


def _settings(brokers: Brokers, limit_s: float) -> Settings:
    if not brokers:
        raise FetchError(NO_BROKER)
    settings = {
        **broker_settings(brokers),
        "socket.timeout.ms": max(10, min(round(limit_s * 1000), 300_000)),
    }
    return {**settings, "error_cb": Refusals(settings)}


def _refusals(settings: Settings) -> Refusals:
    found: Refusals = settings["error_cb"]
    return found


def _new(kind: Untyped, settings: Settings) -> Untyped:
    """Make a client, or raise ConfigError for properties that librdkafka refuses."""
    try:
        return kind(settings)
    except KafkaException as error:
        raise invalid(error) from error
