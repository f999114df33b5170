"""What a stream needs from a broker client, and what all clients share.

`kafka.librdkafka` has the client that uses librdkafka, and `kafka.columns.fetcher` zkconsumer's
own. This module imports neither. A fetcher belongs to one thread at a time, and no call blocks
longer than its time limit. A look-up of offsets may take seconds, so a `Resolver` performs it with
a separate client and thread.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

from zkconsumer.errors import FetchError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Message

# Maximum number of messages that are taken from a broker client at once. Each message is checked
# again before it is handed out. A higher number gains nothing measurable; a lower number costs
# throughput.
BUFFER_MESSAGES: Final = 1000

# Size of the sample from which the bytes of a longer run are estimated.
SAMPLED: Final = 10

# Time limit, in seconds, of a call to a broker client that no change can end: a stream sees the
# member's changes, and a shared client its commands, within this time. The wake-ups of a
# stream cost about 0.1 % of a CPU.
TURN_S: Final = 0.05

# Maximum sleep, in seconds, of a thread without partitions to fetch. After this time the broker
# client delivers its events. A change or a command ends the sleep early.
IDLE_S: Final = 10.0

# Back-off, in seconds, after a permanent error of a partition or of a shared client. Each attempt
# raises an error in the users' threads, which should receive messages of other partitions in
# between.
FAILED_S: Final = 5.0

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

# Seconds between two reports of one kind of error; librdkafka repeats "connection refused" twenty
# times a second while a broker is down.
REPORT_INTERVAL_S: Final = 5.0


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


# librdkafka's numbers of the types of timestamps, which all messages use.
TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1
TIMESTAMP_LOG_APPEND_TIME: Final = 2


class AutoOffsetReset(Enum):
    """`auto.offset.reset` with the JVM's values; `spec` is the special time of ListOffsets."""

    SMALLEST = "smallest"
    LARGEST = "largest"

    @property
    def spec(self) -> int:
        return -2 if self is AutoOffsetReset.SMALLEST else -1


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


class Run(Protocol):
    """Fetched messages of one partition, in order. The first message has the number 0."""

    @property
    def tp(self) -> TopicPartition: ...
    @property
    def size(self) -> int:
        """The number of bytes in memory, at least of the values."""

    @property
    def estimated_size(self) -> float:
        """The number of bytes of keys and values, perhaps estimated."""

    def __len__(self) -> int: ...
    def offset(self, number: int) -> int: ...


class MessageRun(Run, Protocol):
    """A run whose messages can be read one by one.

    `key` and `value` return None for a null. `timestamp` returns librdkafka's number of the type,
    and the time in ms, which is None if it is too large. `headers` may be empty.
    """

    def key(self, number: int) -> bytes | None: ...
    def value(self, number: int) -> bytes | None: ...
    def timestamp(self, number: int) -> tuple[int, int | None]: ...
    def headers(self, number: int) -> list[tuple[str, bytes | None]]: ...
    def leader_epoch(self, number: int) -> int | None:
        """Return the epoch of the leader that wrote the message; None before Kafka 0.11."""

    def length(self, number: int) -> int:
        """Return the number of bytes of the value."""


class MessageList:
    """A run of librdkafka's messages, each of which has its own memory."""

    __slots__ = ("messages", "tp")

    def __init__(self, tp: TopicPartition, messages: list[Message]) -> None:
        """Wrap messages of one partition; there is at least one."""
        self.tp = tp
        self.messages = messages

    @property
    def size(self) -> int:
        return sum(map(len, self.messages))

    @property
    def estimated_size(self) -> float:
        """The number of bytes of keys and values, estimated from a random sample of a long run.

        Measuring all messages would cost a tenth of the throughput.
        """
        few = len(self) <= SAMPLED
        sample = self.messages if few else random.choices(self.messages, k=SAMPLED)
        return len(self) / len(sample) * sum(len(one) + len(one.key() or b"") for one in sample)

    def __len__(self) -> int:
        return len(self.messages)

    def offset(self, number: int) -> int:
        return self.messages[number].offset()  # type: ignore[return-value]  # None for errors only

    def key(self, number: int) -> bytes | None:
        return self.messages[number].key()

    def value(self, number: int) -> bytes | None:
        return self.messages[number].value()

    def timestamp(self, number: int) -> tuple[int, int | None]:
        return self.messages[number].timestamp()

    def headers(self, number: int) -> list[tuple[str, bytes | None]]:
        # librdkafka's consumer returns a list; the stubs also allow the types a producer accepts.
        return cast(list[tuple[str, bytes | None]], self.messages[number].headers() or [])

    def leader_epoch(self, number: int) -> int | None:
        epoch = self.messages[number].leader_epoch()
        return None if epoch is None or epoch < 0 else epoch

    def length(self, number: int) -> int:
        return len(self.messages[number])


def runs_of(messages: list[Message]) -> list[MessageList]:
    """Return librdkafka's messages as runs.

    While a backlog is read, there is usually a single run. So the function first checks for one
    run, which costs half as much.
    """
    if not messages:
        return []
    kind = type(messages[0])  # a method of the class is faster than a look-up for each message
    topics, numbers = list(map(kind.topic, messages)), list(map(kind.partition, messages))
    first, number, count = topics[0], numbers[0], len(messages)
    if numbers.count(number) == count and topics.count(first) == count:
        return [MessageList(_partition(first, number), messages)]
    start, found = 0, []
    for (topic, number), same in groupby(zip(topics, numbers, strict=True)):
        end = start + sum(1 for _ in same)
        found.append(MessageList(_partition(topic, number), messages[start:end]))
        start = end
    return found


def _partition(topic: str | None, number: int | None) -> TopicPartition:
    assert topic is not None and number is not None  # only errors lack them
    return TopicPartition(topic, number)


class BrokerClient(Protocol):
    """What a stream needs from a client, whatever the client fetches."""

    @property
    def faults(self) -> deque[FetchFault]:
        """The faults that the stream has not handled yet, oldest first; the stream removes them."""

    @property
    def wait_s(self) -> float:
        """The maximum time, in seconds, for which a broker may delay its response to a fetch."""

    @property
    def is_instant(self) -> bool:
        """Whether `fetch` with a timeout of 0 never waits for a lock or for a compiler."""

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
        """Stop fetching these partitions; no later `fetch` returns their messages.

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

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> Sequence[MessageRun]:
        """Return the available messages; if there are none, wait up to `timeout_s` for the first.

        Messages of a partition are in order. Messages after a fault are returned by the next call.
        librdkafka returns at most `max_messages`; the columnar reader returns whole responses.
        """


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
