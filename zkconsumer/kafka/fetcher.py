"""Fetch messages for one stream, over confluent-kafka.

A fetcher belongs to one thread at a time: from confluent-kafka 2.16 on, a call from another thread
waits while one thread is inside `consume`. So this module uses no lock for a fetcher, and no call
blocks longer than its time limit. A look-up of offsets may take seconds, so a `Resolver` performs
it with a separate client and thread.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as Raw

from zkconsumer.errors import BrokerAccessError, FetchError
from zkconsumer.kafka.access import Refusals, refusal
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.protocol.model import TopicPartition

# Seconds to wait for the look-up of a topic before its first fetch. The look-up avoids a wait of
# one second for librdkafka's metadata timer. If the broker does not answer in time, the first fetch
# waits for the timer.
LOOKUP_S: Final = 0.5

# Time limit, in seconds, of each request of a resolver to one broker. If the broker does not answer
# in time, the stream asks again after `refresh.leader.backoff.ms`. The stream does not block
# meanwhile.
RESOLVE_S: Final = 2.0

# Seconds for which a resolver keeps its client after the last look-up. The time is long enough for
# the retry of a failed look-up, and short because a second client has a cost.
LINGER_S: Final = 1.0

# A fetcher is replaced this many seconds after all its brokers were down, even if some are up
# again. librdkafka 2.16 may not recover. A broker of 0.8 or 0.9 that has just started lists no
# brokers in its first metadata, and librdkafka then forgets the last known broker. In one
# observation with a broker of 0.10.2, librdkafka received metadata but fetched nothing. A new
# fetcher costs some milliseconds.
LOST_AFTER_S: Final = 5.0

# Seconds between two reports of one kind of error; librdkafka repeats "connection refused" twenty
# times a second while a broker is down.
REPORT_INTERVAL_S: Final = 5.0

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


def descriptors_error() -> str:
    """Return why the process cannot open another file or socket; "" if it can.

    librdkafka does not report this error. Its sockets fail as if no broker could be reached. Or its
    requests for metadata fail, and the partition seems to be unknown.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return (
                f"no file descriptor is left for connections to brokers{_descriptors_limit()}: "
                "raise the limit (ulimit -n, LimitNOFILE=), or use fewer connectors"
            )
    return ""


def _descriptors_limit() -> str:
    if sys.platform == "win32":
        return ""
    import resource  # noqa: PLC0415 - Windows has no such module

    return f" (the limit of this process is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"


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


class AutoOffsetReset(Enum):
    """`auto.offset.reset` with the JVM's values; `spec` is the special time of ListOffsets."""

    SMALLEST = "smallest"
    LARGEST = "largest"

    @property
    def spec(self) -> int:
        return OFFSET_BEGINNING if self is AutoOffsetReset.SMALLEST else OFFSET_END


class FetchFaultKind(Enum):
    OUT_OF_RANGE = "the position is not in the log; the partition must be assigned again"
    TRUNCATED = "the log was truncated below the position; the partition must be assigned again"
    PERMANENT = "an error that no retry can solve"
    REFUSED = "the brokers refuse the connection; librdkafka retries; reports are rate-limited"
    RETRIED = "any other error; librdkafka retries; reports are rate-limited"
    LOST = "all brokers have been down; this fetcher may never reconnect, a new one may"
    END = "no message is left before `offset`, the log's end; needs `enable.partition.eof`"


@dataclass(frozen=True, slots=True)
class FetchFault:
    """An error of a fetcher, or the end of a log (`FetchFaultKind.END`). `tp` is None if the fault
    concerns all brokers.

    `error` is the exception that the streams raise, if the reporter of the fault has one. `text`
    describes the fault. The end of a log comes after the messages that the fetcher has returned so
    far, and `offset` may be higher than the offset after the last of them: transaction markers and
    messages that compaction has removed have offsets, too.
    """

    kind: FetchFaultKind
    tp: TopicPartition | None
    text: str
    offset: int = -1
    error: FetchError | None = None


def drop_faults(faults: deque[FetchFault], tps: Collection[TopicPartition]) -> None:
    """Remove the faults of partitions that are no longer fetched.

    Otherwise a stream could apply the fault to a later assignment of the partition.
    """
    if faults:
        kept = [one for one in faults if one.tp not in tps]
        faults.clear()
        faults.extend(kept)


Answers = dict[TopicPartition, int | str]
"""Partition -> its offset, or the reason why the offset could not be looked up."""


class Fetched(Protocol):
    """A message, or a run of messages: it has a partition, and the offset of its first message.

    The values are None only for an error, which no fetcher returns.
    """

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...


class BrokerClient(Protocol):
    """What a stream needs of a client, whatever the client fetches."""

    @property
    def faults(self) -> deque[FetchFault]:
        """The faults that the stream has not handled yet, oldest first; the stream removes them."""

    @property
    def wait_s(self) -> float:
        """The maximum time, in seconds, for which a broker may delay its response to a fetch."""

    @property
    def queued(self) -> int:
        """The number of messages that wait in a queue of this client; any thread may read it.

        It is 0 if only librdkafka knows the number.
        """

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = LOOKUP_S) -> None:
        """Also fetch these partitions, each from its offset. No partition may be assigned already.

        Blocks for at most `timeout_s` seconds. If the brokers do not answer in that time, the
        partitions are assigned anyway, and their first messages may arrive up to a second later.
        """

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions; no later `consume` returns their messages.

        Partitions that are not assigned are ignored. The faults of these partitions are dropped.
        """

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        """Look up the first or the next offset of each partition's log; returns at once.

        Any thread may complete the future. The future fails with a FetchError only if no broker
        client can be made, no file descriptor is left, or the brokers refuse the connection.
        """

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends that earlier fetches have reported; sends no request.

        With `isolation.level=read_committed` an end is the last stable offset, if it is known.
        """

    def close(self) -> None:
        """Close the clients; may be called more than once."""


class Fetcher(BrokerClient, Protocol):
    """Fetches the messages of one stream, from any partitions and given offsets."""

    @property
    def kind(self) -> type[Fetched]:
        """The class of the messages. They have the methods of librdkafka's messages."""

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
        """Return the available messages; if there are none, wait up to `timeout_s` for the first.

        Messages of a partition are in order. Messages after a fault are returned by the next call.
        """


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

    kind: Final = Message
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

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
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
        # The last stable offset of a log of which all messages were returned. It is unknown while
        # messages are left; then the end is the high watermark.
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


_OffsetQuery = tuple[list[TopicPartition], AutoOffsetReset, Future[Answers]]


class Client(Protocol):
    """A client for look-ups."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Client)


class Resolver(Generic[C]):
    """Looks up the ends of logs, with a separate client and thread.

    Both exist only while there are look-ups, and for `LINGER_S` seconds after the last one. Waiting
    look-ups are sent together. Each broker receives its own request, so a silent broker delays the
    other results but does not make them fail.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        ask: Callable[[C, Sequence[TopicPartition], AutoOffsetReset], Answers],
    ) -> None:
        """`connect` makes a client, and `ask` looks up the ends with it; both may block."""
        self._connect = connect
        self._ask = ask
        self._changed = threading.Condition()
        self._waiting: list[_OffsetQuery] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        """See `Fetcher.resolve`. Any thread may call it."""
        answer: Future[Answers] = Future()
        with self._changed:
            self._waiting.append((list(tps), reset, answer))
            if self._thread is None:
                # A daemon thread, because a silent broker must not prevent the process from ending.
                self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)
                self._thread.start()
            self._changed.notify()
        return answer

    def close(self) -> None:
        """Make the thread end after its running look-ups; return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        client: C | None = None
        try:
            while batch := self._next():
                try:
                    client = client or self._connect()
                    self._answer(client, batch)
                except Exception as error:  # noqa: BLE001  # the calling streams raise it
                    for _, _, answer in batch:
                        if not answer.done():
                            answer.set_exception(error)
        finally:
            if client is not None:
                client.close()

    def _answer(self, client: C, batch: Sequence[_OffsetQuery]) -> None:
        for reset in AutoOffsetReset:
            asked = [(tps, answer) for tps, wanted, answer in batch if wanted is reset]
            if asked:
                found = self._ask(client, sorted({tp for tps, _ in asked for tp in tps}), reset)
                for tps, answer in asked:
                    answer.set_result({tp: found[tp] for tp in tps})

    def _next(self) -> list[_OffsetQuery]:
        """Return the waiting look-ups; an empty result after `LINGER_S` ends the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, LINGER_S)
            batch, self._waiting = self._waiting, []
            if not batch:
                self._thread = None
            return batch


def _log_ends(
    client: Consumer, tps: Sequence[TopicPartition], reset: AutoOffsetReset, *, refusals: Refusals
) -> Answers:
    """Ask each leader for the first or the next offsets of its partitions."""
    try:
        leaders = _leaders(client, {tp.topic for tp in tps}, RESOLVE_S)
    except KafkaException as error:
        if text := descriptors_error():
            where = ", ".join(map(str, tps[:10]))
            raise FetchError(text, where=where, remedy="then retry") from error
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
