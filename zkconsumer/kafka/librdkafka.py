"""All clients that fetch, commit and read offsets through librdkafka, over confluent-kafka.

From confluent-kafka 2.16 on, a call from another thread waits while one thread is inside `consume`.
So a fetcher belongs to one thread at a time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Raw
from confluent_kafka.admin import AdminClient

from zkconsumer.errors import BrokerAccessError, FetchError, first_few
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    LOOKUP_S,
    REPORT_INTERVAL_S,
    RESOLVE_S,
    Answers,
    AutoOffsetReset,
    FetchFault,
    FetchFaultKind,
    MessageList,
    Resolver,
    descriptors_error,
    drop_faults,
    runs_of,
)
from zkconsumer.kafka.log_answers import unknown_offsets_topic
from zkconsumer.kafka.refusals import TRANSPORT, Refusals, invalid, refusal
from zkconsumer.protocol.model import OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

# A fetcher is replaced this many seconds after all its brokers were down, even if some are up
# again. librdkafka 2.16 may not recover. A broker of 0.8 or 0.9 that has just started lists no
# brokers in its first metadata, and librdkafka then forgets the last known broker. In one
# observation with a broker of 0.10.2, librdkafka received metadata but fetched nothing. A new
# fetcher costs some milliseconds.
LOST_AFTER_S: Final = 5.0

MAX_AT_ONCE: Final = 1_000_000
"""The greatest number of messages that confluent-kafka returns at once."""

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})

# Errors that no retry can solve. librdkafka retries all other errors without a limit (no leader, no
# connection, unknown partition, a full broker), and so does the JVM's `LeaderFinderThread`.
_PERMANENT: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_MSG,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError._FATAL,
    }
)

_error: Final[Callable[[Message], KafkaError | None]] = Message.error


def new_client(settings: Settings) -> Consumer:
    """Make a broker client, or raise FetchError, which reports a lack of file descriptors."""
    try:
        return Consumer(settings)
    except KafkaException as error:
        why = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
        raise FetchError(
            f"no broker client can be made: {descriptors_error() or why}",
            where=str(settings.get("bootstrap.servers", "")),
            remedy="solve this problem and retry",
        ) from error


class _Errors:
    """Turns the errors of one client into faults; the client calls `report`.

    This object has no reference to the client, so a fetcher is destroyed as soon as no code refers
    to it, for example if Ctrl-C interrupts the code that has just made the fetcher. If the garbage
    collector destroyed the client later, it would swallow a KeyboardInterrupt that arrives then.

    Attributes:
        faults: see `Fetcher.faults`.
        lost_at: the time at which the fetcher reports `FetchFaultKind.LOST`; None unless all
            brokers have been down.
    """

    def __init__(self, settings: Settings) -> None:
        self.faults: deque[FetchFault] = deque()
        self.lost_at: float | None = None
        self._settings = settings
        # Kind of error -> (when it may be reported again, number of unreported errors since its
        # last report).
        self._reported: dict[int, tuple[float, int]] = {}

    def report(self, error: KafkaError) -> None:
        # librdkafka calls this method within `consume`, so on the owning thread.
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self.lost_at is None:
            self.lost_at = time.monotonic() + LOST_AFTER_S
        if (found := refusal(error, self._settings)) is not None:
            if self._may_report(error) is not None:
                self.faults.append(
                    FetchFault(FetchFaultKind.REFUSED, None, str(found), error=found)
                )
        elif error.code() in _PERMANENT:
            self.faults.append(FetchFault(FetchFaultKind.PERMANENT, None, error.str()))
        else:
            self.passing(error, None)

    def _may_report(self, error: KafkaError) -> int | None:
        """Return how many errors of this kind were not reported; None if this one must not be."""
        now = time.monotonic()
        due, swallowed = self._reported.get(error.code(), (0.0, 0))
        if now < due:
            self._reported[error.code()] = (due, swallowed + 1)
            return None
        self._reported[error.code()] = (now + REPORT_INTERVAL_S, 0)
        return swallowed

    def passing(self, error: KafkaError, tp: TopicPartition | None) -> None:
        if (swallowed := self._may_report(error)) is None:
            return
        if text := descriptors_error():
            self.faults.append(FetchFault(FetchFaultKind.PERMANENT, None, text))
            return
        more = f" ({swallowed} more such errors)" if swallowed else ""
        self.faults.append(FetchFault(FetchFaultKind.RETRIED, tp, f"{error.str()}{more}"))


class KafkaFetcher:
    """The `Fetcher` of real brokers."""

    is_instant: Final = False  # librdkafka's queue has a lock
    queued: Final = 0

    def __init__(self, settings: Settings) -> None:
        self._errors = _Errors(settings)
        self.faults = self._errors.faults
        self.wait_s = float(settings["fetch.wait.max.ms"]) / 1000
        refusals = Refusals(settings)
        self._resolver = Resolver(
            lambda: new_client({**settings, "error_cb": refusals}),
            partial(_log_ends, refusals=refusals),
        )
        self._assigned: set[TopicPartition] = set()
        self._known: set[TopicPartition] = set()
        # With read_committed: the last ends that librdkafka has reported. It knows no other last
        # stable offsets.
        self._reads_committed = settings.get("isolation.level") == "read_committed"
        self._stable_ends: dict[TopicPartition, int] = {}
        self._backlog: list[Message] = []
        self._consumer = new_client({**settings, "error_cb": self._errors.report})
        self._closed = False

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = LOOKUP_S) -> None:
        if not offsets:
            return
        for tp in self._look_up(offsets, timeout_s):
            text = f"no leader of {tp} is known to the brokers"
            self.faults.append(FetchFault(FetchFaultKind.RETRIED, tp, text))
        self._assigned.update(offsets)
        self._consumer.incremental_assign([Raw(*tp, offset) for tp, offset in offsets.items()])

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        # librdkafka rejects the whole list if one of its partitions is not assigned.
        gone = self._assigned.intersection(tps)
        if not gone:
            return
        self._assigned -= gone
        self._backlog = [one for one in self._backlog if _tp(one) not in gone]
        drop_faults(self.faults, gone)
        for tp in gone:
            self._stable_ends.pop(tp, None)
        self._consumer.incremental_unassign([Raw(*tp) for tp in gone])

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[MessageList]:
        messages = self.consume(min(max_messages, MAX_AT_ONCE), timeout_s)
        if len(self._assigned) == 1 and messages:
            (only,) = self._assigned
            return [MessageList(only, messages)]
        return runs_of(messages)

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
        """Return the same messages as `fetch`, for several partitions in one list."""
        messages, self._backlog = self._backlog, []
        if not messages:
            # A single call with a time limit is not enough: librdkafka would wait until it has
            # `max_messages` messages or the time is over, and would collect megabytes.
            messages = self._consumer.consume(max_messages, 0)
        if not messages:
            messages = self._consumer.consume(1, timeout_s)
            if messages and max_messages > 1:
                messages += self._consumer.consume(max_messages - 1, 0)
        lost_at = self._errors.lost_at
        if lost_at is not None and time.monotonic() >= lost_at:
            self._errors.lost_at = None
            if self._assigned:
                self.faults.append(
                    FetchFault(FetchFaultKind.LOST, None, "all brokers have been down")
                )
        if next(filter(_error, messages), None) is not None:
            return self._without_errors(messages)
        return messages

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        return self._resolver.resolve(tps, reset)

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = {}
        for tp in tps:
            if tp in self._assigned:
                with suppress(KafkaException):  # librdkafka does not know the partition yet
                    marks = self._consumer.get_watermark_offsets(Raw(*tp), cached=True)
                    found[tp] = -1 if marks is None else marks[1]
        # The last stable offset of a log whose messages have all been returned. While messages are
        # left, it is unknown, and the end is the high watermark.
        stable = [Raw(*tp) for tp in found if tp in self._stable_ends]
        for one in self._consumer.position(stable) if stable else ():
            if one.offset <= (end := self._stable_ends[_tp_of(one)]):
                found[_tp_of(one)] = end
        return {tp: end for tp, end in found.items() if end >= 0}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._resolver.close()
            self._consumer.close()

    def _look_up(self, tps: Collection[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """Make librdkafka load the metadata of these partitions; return those without a leader.

        Otherwise librdkafka loads metadata every five minutes, and until then every request for a
        newly assigned partition fails. No request is sent for partitions that librdkafka already
        knows.
        """
        topics = {tp.topic for tp in tps if tp not in self._known}
        if not topics:
            return []
        try:
            self._known.update(_leaders(self._consumer, topics, timeout_s))
        except KafkaException as error:
            # If a look-up ends at a short time limit, librdkafka repeats it without a further call.
            if timeout_s >= LOOKUP_S or error.args[0].code() != KafkaError._TIMED_OUT:
                self._errors.passing(error.args[0], None)
            return []
        return [tp for tp in tps if tp not in self._known]

    def _without_errors(self, messages: list[Message]) -> list[Message]:
        """Return the messages before the first error. Turn an error at the start, and the ends of
        logs, into faults."""
        found: list[Message] = []
        for number, one in enumerate(messages):
            error = one.error()
            if error is None:
                found.append(one)
            elif error.code() == KafkaError._PARTITION_EOF:
                end, tp = one.offset(), _tp(one)
                assert end is not None and tp is not None
                self.faults.append(FetchFault(FetchFaultKind.END, tp, error.str(), end))
                if self._reads_committed:
                    self._stable_ends[tp] = end
            else:
                self._backlog = messages[number + (not found) :]
                if not found:
                    self._take_error(error, _tp(one))
                break
        return found

    def _take_error(self, error: KafkaError, tp: TopicPartition | None) -> None:
        if error.code() in _OUT_OF_RANGE:
            self.faults.append(FetchFault(FetchFaultKind.OUT_OF_RANGE, tp, error.str()))
        elif error.code() == KafkaError._LOG_TRUNCATION:
            self.faults.append(FetchFault(FetchFaultKind.TRUNCATED, tp, error.str()))
        elif error.code() in _PERMANENT:
            self.faults.append(FetchFault(FetchFaultKind.PERMANENT, tp, error.str()))
        else:
            self._errors.passing(error, tp)


def _log_ends(
    client: Consumer, tps: Sequence[TopicPartition], reset: AutoOffsetReset, *, refusals: Refusals
) -> Answers:
    """Ask each leader for the first or the next offsets of its partitions."""
    try:
        leaders = _leaders(client, {tp.topic for tp in tps}, RESOLVE_S)
    except KafkaException as error:
        if text := descriptors_error():
            raise FetchError(text, where=first_few(tps, 10), remedy="then retry") from error
        if isinstance(refusal := refusals.explain(client, error), BrokerAccessError):
            raise refusal from error
        return dict.fromkeys(tps, str(error.args[0].str()))
    answers: Answers = dict.fromkeys(tps, "no leader is known to the brokers")
    for leader in sorted(set(leaders.values())):
        # The special times -1 and -2 return the exact ends of the log in every release since 0.8.2.
        # For other times, brokers before 0.10.1 return the start of a segment.
        wanted = [Raw(*tp, reset.spec) for tp in tps if leaders.get(tp) == leader]
        if not wanted:
            continue
        try:
            found = client.offsets_for_times(wanted, timeout=RESOLVE_S)
        except KafkaException as error:
            answers |= dict.fromkeys(map(_tp_of, wanted), str(error.args[0].str()))
            continue
        for one in found:
            known = one.error is None and one.offset >= 0
            answers[_tp_of(one)] = one.offset if known else _why(one.error)
    return answers


def _leaders(
    client: Consumer, topics: Collection[str], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the leader's broker id of each partition that has one; raises KafkaException.

    For several topics, it sends one request for all topics of the cluster. With one request per
    topic, each request could take the whole timeout.
    """
    only = {"topic": min(topics)} if len(topics) == 1 else {}
    found = client.list_topics(**only, timeout=timeout_s).topics
    return {
        TopicPartition(name, number): one.leader
        for name in found.keys() & topics
        for number, one in found[name].partitions.items()
        if one.leader >= 0
    }


def _tp(message: Message) -> TopicPartition | None:
    """Return the partition of a message; None for an error that concerns no partition."""
    topic, number = message.topic(), message.partition()
    if topic is None or number is None or number < 0:
        return None
    return TopicPartition(topic, number)


def _tp_of(raw: Raw) -> TopicPartition:
    return TopicPartition(raw.topic, raw.partition)


def _why(error: KafkaError | None) -> str:
    return error.str() if error is not None else "the broker returned no offset"


# ---- a group's offsets ---------------------------------------------------------------------------

# Seconds between two polls for the reply to a commit; librdkafka delivers the reply only in a poll.
TURN_S: Final = 0.01


class Committer:
    """Commits a group's offsets to Kafka, for one thread.

    librdkafka finds the group's coordinator, and finds the new one if the offsets move to another
    broker.
    """

    def __init__(self, settings: Settings) -> None:
        self._refusals = Refusals(settings)
        self._answers: list[tuple[KafkaError | None, list[Raw]]] = []
        callbacks = {"on_commit": self._committed, "error_cb": self._on_error}
        self._consumer = Consumer({**settings, **callbacks})

    def close(self) -> None:
        self._consumer.close()

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, limit_s: float
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Commit offsets; return the error code and text of each partition that failed.

        Raises FetchError if there is no reply within `limit_s` seconds, or if the brokers refuse
        the connection. The method does not use the synchronous call, which has no time limit.
        """
        self._answers.clear()
        # confluent-kafka appends a NUL to metadata, even to empty ones, and other clients read the
        # NUL. So do not pass empty metadata.
        raw = [Raw(*tp, *(at if at.metadata else at[:1])) for tp, at in offsets.items()]
        try:
            self._consumer.commit(offsets=raw, asynchronous=True)
        except KafkaException as error:
            raise FetchError(error.args[0].str()) from error
        deadline = time.monotonic() + limit_s
        while not self._answers:
            self._consumer.poll(TURN_S)
            if time.monotonic() > deadline:
                raise self._refusals.last or FetchError(KafkaError(KafkaError._TIMED_OUT).str())
        common, partitions = self._answers.pop()
        single = {TopicPartition(p.topic, p.partition): p.error for p in partitions}
        return {
            tp: (why.code(), why.str())
            for tp in offsets
            if (why := single.get(tp) or common) is not None
        }

    def _committed(self, error: KafkaError | None, partitions: list[Raw]) -> None:
        # librdkafka calls this method within `poll`, so on the caller's thread.
        self._answers.append((error, partitions))

    def _on_error(self, error: KafkaError) -> None:
        # Log at DEBUG, because a failed request also returns the error to its caller.
        logger.debug("%s", error)
        self._refusals(error)


def committed(
    settings: Settings,
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    limit_s: float,
    has_offsets_topic: Callable[[], bool | None],
) -> dict[TopicPartition, OffsetAndMetadata | str | None]:
    """Return a group's offsets; non-empty metadata may be cut, or followed by other memory.

    `kafka.group_offsets` explains the other values and `has_offsets_topic`. Raises FetchError if no
    broker answers, or if it is unknown whether the topic of the offsets exists.
    """
    refusals, deadline = Refusals(settings), time.monotonic() + limit_s
    reporting: Settings = {**settings, "error_cb": refusals}
    try:
        asked = AdminClient(reporting)
        try:
            if OFFSETS_TOPIC not in asked.list_topics(timeout=limit_s).topics:
                if (exists := has_offsets_topic()) is None:
                    raise unknown_offsets_topic()
                if not exists:
                    return dict.fromkeys(partitions)
        except KafkaException as error:
            raise refusals.explain(asked, error) from error
        client = Consumer({**reporting, "group.id": group, "enable.auto.commit": False})
    except KafkaException as error:
        raise invalid(error) from error
    try:
        left_s = max(0.001, deadline - time.monotonic())
        answers = client.committed([Raw(*tp) for tp in partitions], timeout=left_s)
    except KafkaException as error:
        if error.args[0].code() in TRANSPORT:
            raise refusals.explain(client, error) from error
        return dict.fromkeys(partitions, f"Kafka: {error.args[0].str()}")
    finally:
        client.close()
    return {_tp_of(one): _stored(one) for one in answers}


def _stored(answer: Raw) -> OffsetAndMetadata | str | None:
    if answer.error is not None:
        is_unknown = answer.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return None if is_unknown else f"Kafka: {answer.error.str()}"
    if answer.offset < 0:
        return None
    try:
        return OffsetAndMetadata(answer.offset, answer.metadata or "")
    except UnicodeDecodeError:
        return OffsetAndMetadata(answer.offset, "?")
