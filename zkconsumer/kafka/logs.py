"""The ends of logs, offsets by time, and groups' offsets in Kafka, as brokers report them.

Every function opens a client, requests all partitions together, and closes the client. A caller
with many requests should keep a `LogClient` instead. If a value cannot be read, the result contains
a string with the reason instead, so that one failed broker does not hide the other values.

No function creates a topic. Partitions are looked up in the metadata of the whole cluster, because
a broker before 0.11 creates a topic that a client names. A group's offsets are read only if the
topic __consumer_offsets exists, because finding the group's coordinator creates that topic. If the
brokers do not show it, `Brokers.has_offsets_topic` decides. Where
librdkafka asks, the ends of logs are read without a consumer, because librdkafka's consumer looks
for its coordinator when it is created.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import Final, Protocol

from zkconsumer.errors import ConfigError, FetchError
from zkconsumer.kafka.client_settings import (
    TRANSACTIONS,
    Brokers,
    Settings,
    broker_settings,
    mechanism_of,
    without_own_connections,
)
from zkconsumer.kafka.columns.connection import AuthenticationError
from zkconsumer.kafka.columns.lookups import LOST, Lookup, Stored
from zkconsumer.kafka.columns.requests import Metadata
from zkconsumer.kafka.group_offsets import GroupOffsets
from zkconsumer.kafka.log_answers import (
    EARLIEST,
    LATEST,
    NO_BROKER,
    NO_LEADER,
    NO_TOPIC,
    LogRange,
    Offsets,
    parts_of,
    range_of,
)
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.payloads import Broker

__all__ = [
    "NO_BROKER",
    "NO_LEADER",
    "NO_TOPIC",
    "STALE_END_S",
    "KeptLogs",
    "LogClient",
    "LogRange",
    "are_times_exact",
    "committed_in_kafka",
    "group_offsets",
    "log_ends",
    "offsets_at",
    "without_messages",
]

# Seconds for which a leader may report a log end below an offset that was already read. A newly
# elected leader reports fewer messages than it stores until its followers fetch from it again.
STALE_END_S: Final = 5.0

# The lowest registration version of brokers that find messages by time (0.10 and later). Older
# brokers find only segments.
_TIMES_SINCE: Final = 3


def are_times_exact(brokers: Iterable[Broker]) -> bool:
    """Return whether `offsets_at` finds messages; brokers before 0.10 find only segments."""
    return all(broker.version >= _TIMES_SINCE for broker in brokers)


class LogBackend(Protocol):
    """What a `LogClient` needs from the connections that it uses."""

    def begin_reading(self) -> None: ...
    def topics(self) -> dict[str, tuple[int, ...]]: ...
    def ends(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogRange | str]: ...
    def starts(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def latest(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets: ...


class LogClient:
    """A client for many requests, used by one thread at a time.

    Only `topics` looks up the leaders: call it periodically, and whenever a result is a string.
    Raises FetchError if there are no brokers and in the cases of `broker_settings`, and ConfigError
    for properties that librdkafka refuses.

    zkconsumer's own connections ask the brokers: a process that fetches no messages need not load
    librdkafka, which costs as much time as the requests. librdkafka asks only where it alone
    supports the security of the brokers.
    """

    def __init__(self, brokers: Brokers, *, limit_s: float) -> None:
        settings = _settings(brokers, limit_s)
        self._backend: LogBackend
        if without_own_connections(settings) is None:
            _check_properties(brokers, settings)
            self._backend = _OwnLogs(
                {**settings, "isolation.level": brokers.isolation}, limit_s=limit_s
            )
        else:
            from zkconsumer.kafka.librdkafka_logs import LibrdkafkaLogs  # noqa: PLC0415 - librdkafka

            self._backend = LibrdkafkaLogs(settings, limit_s=limit_s, isolation=brokers.isolation)

    def begin_reading(self) -> None:
        """Ask each broker that does not answer only once until the next call.

        Without this call, each request asks it again.
        """
        self._backend.begin_reading()

    def topics(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions of all topics, ascending.

        Raises BrokerAccessError or BrokersUnreachableError.
        """
        return self._backend.topics()

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, as `log_ends` does."""
        return self._backend.ends(partitions)

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the first offset of each log, or the reason why it is unknown. The call is as fast
        as `latest`."""
        return self._backend.starts(partitions)

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the end of each log, or the reason why it is unknown.

        With librdkafka, the call takes a tenth of the time of `ends`, which creates several objects
        for each partition. It then needs a consumer, and librdkafka looks for the coordinator of
        the consumer's group, so call it only on clients that also fetch.
        """
        return self._backend.latest(partitions)

    def at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | str | None]:
        """Return offsets by time, as `offsets_at` does."""
        answers = self._backend.at(partitions, max(0, timestamp_ms))
        return {
            tp: None if isinstance(one, int) and one < 0 else one for tp, one in answers.items()
        }


def _check_properties(brokers: Brokers, settings: Settings) -> None:
    """Let librdkafka check the user's `kafka.` properties, because zkconsumer's own connections
    ignore those that they do not know. Raises ConfigError.

    The wheels of confluent-kafka lack Kerberos, and refuse its properties.
    """
    given = brokers.config is not None and brokers.config.kafka
    if given and mechanism_of(settings) != "GSSAPI" and find_spec("confluent_kafka"):
        from zkconsumer.kafka.refusals import check  # noqa: PLC0415 - loads librdkafka

        # Without a broker, librdkafka looks for no coordinator, which would create a topic.
        check({**settings, "bootstrap.servers": ""})


class _OwnLogs:
    """The `LogBackend` of zkconsumer's own connections."""

    def __init__(self, settings: Settings, *, limit_s: float) -> None:
        self._lookup = Lookup(settings)
        self._limit_s = limit_s
        self._metadata: Metadata | None = None
        self._is_reading = False

    def begin_reading(self) -> None:
        self._is_reading = True
        self._lookup.begin_reading()

    def topics(self) -> dict[str, tuple[int, ...]]:
        if not self._is_reading:
            self._lookup.begin_reading()  # each leader that fails is asked once
        self._metadata = self._lookup.all_topics(self._limit_s)
        return self._metadata.topics

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | str]:
        starts, ends = self._at(partitions, (EARLIEST, LATEST))
        return {tp: range_of(start, ends[tp]) for tp, start in starts.items()}

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self.at(partitions, EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self.at(partitions, LATEST)

    def at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets:
        (found,) = self._at(partitions, (timestamp_ms,))
        return found

    def _at(self, partitions: Collection[TopicPartition], times_ms: Sequence[int]) -> list[Offsets]:
        """Return the offsets at each of the times."""
        try:
            if self._metadata is None:
                self.topics()
        except FetchError as error:
            return [dict.fromkeys(partitions, str(error)) for _ in times_ms]
        assert self._metadata is not None
        known = self._metadata
        found: dict[TopicPartition, str] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            if tp.partition not in known.topics.get(tp.topic, ()):
                found[tp] = NO_TOPIC
            elif tp not in known.leaders:
                found[tp] = NO_LEADER
            else:
                by_leader.setdefault(known.leaders[tp], []).append(tp)
        asked = {known.addresses[leader]: theirs for leader, theirs in by_leader.items()}
        answers = self._lookup.offsets_at(asked, times_ms, self._limit_s)
        return [{tp: found.get(tp) or one[tp] for tp in partitions} for one in answers]


class KeptLogs:
    """Answers as `log_ends` and `committed_in_kafka`, with one client for all calls.

    It is for a caller that asks every few seconds, on one thread. A change of the registered
    brokers makes a new client. A caller that reads many groups takes a `BrokerReading` for each
    reading.
    """

    def __init__(self, *, limit_s: float) -> None:
        """`limit_s` is the time limit in seconds of each call."""
        self._limit_s = limit_s
        self._client: LogClient | None = None
        self._offsets: GroupOffsets | None = None
        self._brokers: tuple[tuple[Broker, ...], bool | None] = ((), None)

    def ends(
        self, brokers: Brokers, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, as `log_ends` does."""
        return self.reading().ends(brokers, partitions)

    def committed(
        self, brokers: Brokers, wanted: Mapping[str, Collection[TopicPartition]]
    ) -> dict[str, Stored]:
        """Return the offsets of groups in Kafka, as `committed_in_kafka` does."""
        return self.reading().committed(brokers, wanted)

    def reading(self) -> BrokerReading:
        """Return the object that asks the brokers for one reading of groups."""
        return BrokerReading(self)

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._use(Brokers())

    def ask_ends(
        self, brokers: Brokers, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, by the leaders that `begin_ends` has looked up.

        Raises FetchError if no broker answers.
        """
        return self._client_of(brokers).ends(partitions)

    def ask_committed(
        self, brokers: Brokers, wanted: Mapping[str, Collection[TopicPartition]]
    ) -> dict[str, Stored | FetchError]:
        """Return the offsets of groups in Kafka, as `GroupOffsets.read_all` does."""
        return self._offsets_of(brokers).read_all(wanted, limit_s=self._limit_s)

    def begin_ends(self, brokers: Brokers) -> None:
        """Look up the leaders, and until the next call ask each leader that fails only once.

        Raises FetchError.
        """
        client = self._client_of(brokers)
        client.begin_reading()
        client.topics()

    def begin_committed(self, brokers: Brokers) -> None:
        """Ask each broker that fails for groups' offsets only once until the next call.

        Raises FetchError.
        """
        self._offsets_of(brokers).begin_reading()

    def _offsets_of(self, brokers: Brokers) -> GroupOffsets:
        self._use(brokers)
        self._offsets = self._offsets or group_offsets(brokers, limit_s=self._limit_s)
        return self._offsets

    def _client_of(self, brokers: Brokers) -> LogClient:
        self._use(brokers)
        self._client = self._client or LogClient(brokers, limit_s=self._limit_s)
        return self._client

    def _use(self, brokers: Brokers) -> None:
        """Drop the clients if they are not those of these brokers."""
        if self._brokers != (known := (tuple(brokers), brokers.has_offsets_topic)):
            self._brokers = known
            self._client = None
            if self._offsets is not None:
                self._offsets.close()
                self._offsets = None


class BrokerReading:
    """Asks the brokers for one reading of many groups, with the clients of `KeptLogs`.

    Brokers that have not answered one request of the reading are not asked again, so a reading
    waits for silent brokers once, and not once for each group.
    """

    def __init__(self, kept: KeptLogs) -> None:
        self._kept = kept
        self._fault: str | None = None
        self._asks_ends = self._asks_committed = False

    def ends(
        self, brokers: Brokers, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogRange | str]:
        """Return the ends of the logs, as `log_ends` does."""
        if not partitions:
            return {}
        if self._fault is not None:
            return dict.fromkeys(partitions, self._fault)
        try:
            if not self._asks_ends:
                self._kept.begin_ends(brokers)
                self._asks_ends = True
            return self._kept.ask_ends(brokers, partitions)
        except FetchError as error:
            self._fault = str(error)
            return dict.fromkeys(partitions, self._fault)

    def committed(
        self, brokers: Brokers, wanted: Mapping[str, Collection[TopicPartition]]
    ) -> dict[str, Stored]:
        """Return the offsets of groups in Kafka, as `committed_in_kafka` does."""
        asked = {group: tps for group, tps in wanted.items() if tps}
        found: Mapping[str, Stored | FetchError] = {}
        if asked and self._fault is None:
            try:
                if not self._asks_committed:
                    self._kept.begin_committed(brokers)
                    self._asks_committed = True
                found = self._kept.ask_committed(brokers, asked)
            except FetchError as error:
                self._fault = str(error)
        return {
            group: dict.fromkeys(tps, str(one)) if isinstance(one, FetchError) else one
            for group, tps in wanted.items()
            for one in (found.get(group) or dict.fromkeys(tps, self._fault),)
        }


def log_ends(
    brokers: Brokers, partitions: Collection[TopicPartition], *, limit_s: float
) -> dict[TopicPartition, LogRange | str]:
    """Return the first and the next offset of each log, or the reason why they are not known.

    `limit_s` is the time limit in seconds for all partitions together. The next offset is the high
    watermark, as in the JVM's tools (`kafka.admin.ConsumerGroupCommand`, ListOffsets to the
    leader), or with `isolation.level=read_committed` the last stable offset.
    """
    try:
        return LogClient(brokers, limit_s=limit_s).ends(partitions)
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))


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
    found: dict[TopicPartition, bool] = {}
    try:
        settings = broker_settings(brokers)
        if without_own_connections(settings) is not None:
            return {}
        with closing(Lookup(settings)) as lookup:
            for part in parts_of(tails):
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


def group_offsets(brokers: Brokers, *, limit_s: float) -> GroupOffsets:
    """Return a client for the offsets of many groups. Raises FetchError if there are no brokers and
    in the cases of `broker_settings`."""
    return GroupOffsets(_settings(brokers, limit_s), lambda: brokers.has_offsets_topic)


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
            for part in parts_of(partitions):
                found |= client.read(group, part, limit_s=limit_s)
                done += len(part)
                on_progress(done, len(partitions))
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))
    return found


def _settings(brokers: Brokers, limit_s: float) -> Settings:
    if not brokers:
        raise FetchError(NO_BROKER)
    limit_ms = max(10, min(round(limit_s * 1000), 300_000))
    return {**broker_settings(brokers), "socket.timeout.ms": limit_ms}
