"""Fetching for one stream, over confluent-kafka.

A fetcher belongs to one thread at a time: from confluent-kafka 2.16 on every call from another
thread waits while one is inside `consume`. So nothing here takes a lock, and no call blocks longer
than the time it is given. A question for offsets may take seconds, so it goes to a `Resolver`,
which asks the brokers with a client and on a thread of its own.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as Raw

from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.protocol.model import TopicPartition

# Looking up a topic before its first fetch spares librdkafka's one-second metadata timer. A broker
# that does not answer within this many seconds costs that second, nothing else.
LOOKUP_S: Final = 0.5

# Longest time for each of a resolver's requests to one broker (unit: seconds). No stream waits for
# the answer without looking at other things meanwhile. A broker that does not answer in time is
# asked again after `refresh.leader.backoff.ms`.
RESOLVE_S: Final = 2.0

# A resolver keeps its client for so long after the last question (unit: seconds): a failed question
# is asked again soon, and a stream with nothing to ask should not pay for a second client.
LINGER_S: Final = 1.0

# librdkafka 2.16 may be left without any broker, for ever: one that has just started names none in
# its first answer (0.8, 0.9), and the last that was known is then struck off; of a broker of 0.10.2
# it was seen to get metadata and to fetch no more. So this many seconds after all brokers were down
# a fetcher is lost, whatever it is told. Another one costs some milliseconds.
LOST_S: Final = 5.0

# One report per kind of error and this many seconds; librdkafka repeats "connection refused"
# twenty times a second for as long as a broker is away.
QUIET_S: Final = 5.0

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})

# What waiting does not mend. Everything else (no leader, no connection, unknown partition, a full
# broker) librdkafka retries by itself, and so did the JVM's leader finder, without end.
_PERMANENT: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.INVALID_MSG,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
    }
)

_error: Final[Callable[[Message], KafkaError | None]] = Message.error


def descriptors_error() -> str:
    """Return why the process can open no file or socket; empty if it can.

    librdkafka does not tell: its sockets fail as if no broker could be reached, or its metadata are
    missing, which looks like an unknown partition.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return (
                f"no file descriptor is left for connections to brokers (the limit of this process "
                f"is {limit}): raise it (ulimit -n, LimitNOFILE=), or use fewer connectors"
            )
    return ""


def new_client(settings: Settings | dict[str, Any]) -> Consumer:
    """Make a broker client; raises FetchError, which says so where file descriptors ran out."""
    try:
        return Consumer(settings)
    except KafkaException as error:
        why = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
        raise FetchError(
            f"no broker client can be made: {descriptors_error() or why}",
            where=str(settings.get("bootstrap.servers", "")),
            remedy="mend that and ask again",
        ) from error


class Reset(Enum):
    """`auto.offset.reset`; the values are the JVM's words, `spec` is ListOffsets' special time."""

    SMALLEST = "smallest"
    LARGEST = "largest"

    @property
    def spec(self) -> int:
        return OFFSET_BEGINNING if self is Reset.SMALLEST else OFFSET_END


class FaultKind(Enum):
    OUT_OF_RANGE = "the position is not in the log; nothing more comes until it is assigned anew"
    TRUNCATED = "the log was cut behind us; nothing more comes until it is assigned anew"
    PERMANENT = "waiting does not mend it"
    PASSING = "retried; already rate-limited"
    LOST = "all brokers have been down; this fetcher may never reach one again, another one may"
    END = "all was fetched up to `offset`, the log's end; told only with `enable.partition.eof`"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong, or END; `tp` is None when it concerns the brokers as a whole."""

    kind: FaultKind
    tp: TopicPartition | None
    text: str
    offset: int = -1


Answers = dict[TopicPartition, int | str]
"""An offset for each partition, or the reason why the brokers did not give one."""


class Fetcher(Protocol):
    """What a stream needs: messages of partitions, of whatever topics, from given positions."""

    @property
    def faults(self) -> deque[Fault]:
        """What went wrong and was not yet taken; the stream pops from the left."""

    @property
    def wait_s(self) -> float:
        """How long a broker may hold back the answer to a fetch, in seconds."""

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = LOOKUP_S) -> None:
        """Fetch these partitions too, each from its offset; none may be assigned already.

        Blocks for at most `timeout_s`. If the brokers do not answer in that time, the partitions
        are assigned all the same, and their first messages may come up to a second later.
        """

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Stop fetching; no later `consume` returns a message of these. Unknown ones: nothing."""

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
        """What there is, at once; when there is nothing, the first that comes within `timeout_s`.

        In order per partition. What stands behind a fault comes with the next call.
        """

    def resolve(self, tps: Iterable[TopicPartition], reset: Reset) -> Future[Answers]:
        """Ask for the first or the next offset of each partition's log; returns at once.

        Any thread may complete the future. It holds an exception, a FetchError, only if no broker
        client can be made, or no file descriptor is left.
        """

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of their logs, as far as what was fetched has told of them; asks nobody."""

    def close(self) -> None:
        """Let everything go. Twice does nothing."""


class KafkaFetcher:
    """The `Fetcher` of real brokers."""

    def __init__(self, settings: Settings) -> None:
        self.faults: deque[Fault] = deque()
        self.wait_s = float(settings["fetch.wait.max.ms"]) / 1000
        self._resolver = Resolver(settings)
        self._assigned: set[TopicPartition] = set()
        self._known: set[TopicPartition] = set()
        self._backlog: list[Message] = []
        # kind of error -> (when it may be reported again, how often it was swallowed until then)
        self._reported: dict[int, tuple[float, int]] = {}
        self._consumer = new_client({**settings, "error_cb": self._on_error})
        # When it counts as lost, after all brokers have been down; None while they have not.
        self._lost_at: float | None = None
        self._closed = False

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = LOOKUP_S) -> None:
        if not offsets:
            return
        for tp in self._look_up(offsets, timeout_s):
            text = f"no leader of {tp} is known to the brokers"
            self.faults.append(Fault(FaultKind.PASSING, tp, text))
        self._assigned.update(offsets)
        self._consumer.incremental_assign([Raw(*tp, offset) for tp, offset in offsets.items()])

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        # librdkafka refuses the whole list for one partition that is not assigned.
        gone = self._assigned.intersection(tps)
        if not gone:
            return
        self._assigned -= gone
        self._backlog = [one for one in self._backlog if _tp(one) not in gone]
        self._consumer.incremental_unassign([Raw(*tp) for tp in gone])

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
        messages, self._backlog = self._backlog, []
        if not messages:
            # Not one call with a timeout: librdkafka would hold messages back until it has
            # `max_messages` of them, or the time is over, and it would gather megabytes.
            messages = self._consumer.consume(max_messages, 0)
        if not messages:
            messages = self._consumer.consume(1, timeout_s)
            if messages and max_messages > 1:
                messages += self._consumer.consume(max_messages - 1, 0)
        if self._lost_at is not None and time.monotonic() >= self._lost_at:
            self._lost_at = None
            if self._assigned:
                self.faults.append(Fault(FaultKind.LOST, None, "all brokers have been down"))
        if next(filter(_error, messages), None) is not None:
            return self._up_to_error(messages)
        return messages

    def resolve(self, tps: Iterable[TopicPartition], reset: Reset) -> Future[Answers]:
        return self._resolver.resolve(tps, reset)

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = {}
        for tp in tps:
            if tp in self._assigned:
                with suppress(KafkaException):  # it has not heard of the partition yet
                    marks = self._consumer.get_watermark_offsets(Raw(*tp), cached=True)
                    found[tp] = -1 if marks is None else marks[1]
        return {tp: end for tp, end in found.items() if end >= 0}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._resolver.close()
            self._consumer.close()

    def _look_up(self, tps: Collection[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """Make librdkafka know these partitions; the answer are those without a leader.

        By itself it asks the brokers once in five minutes, and until then every request for a
        partition that was added meanwhile fails. Those it knows cost nothing.
        """
        topics = {tp.topic for tp in tps if tp not in self._known}
        if not topics:
            return []
        try:
            self._known.update(_leaders(self._consumer, topics, timeout_s))
        except KafkaException as error:
            # librdkafka looks up again by itself after a look-up that a short limit ended.
            if timeout_s >= LOOKUP_S or error.args[0].code() != KafkaError._TIMED_OUT:
                self._passing(error.args[0], None)
            return []
        return [tp for tp in tps if tp not in self._known]

    def _up_to_error(self, messages: list[Message]) -> list[Message]:
        """The messages before the first error; or, when it comes first, none, and its fault."""
        first = next(i for i, one in enumerate(messages) if one.error() is not None)
        if first:
            self._backlog = messages[first:]
            return messages[:first]
        self._backlog = messages[1:]
        error, tp = messages[0].error(), _tp(messages[0])
        assert error is not None
        if error.code() in _OUT_OF_RANGE:
            self.faults.append(Fault(FaultKind.OUT_OF_RANGE, tp, error.str()))
        elif error.code() == KafkaError._LOG_TRUNCATION:
            self.faults.append(Fault(FaultKind.TRUNCATED, tp, error.str()))
        elif error.code() in _PERMANENT:
            self.faults.append(Fault(FaultKind.PERMANENT, tp, error.str()))
        elif error.code() == KafkaError._PARTITION_EOF:
            end = messages[0].offset()
            assert end is not None
            self.faults.append(Fault(FaultKind.END, tp, error.str(), end))
        else:
            self._passing(error, tp)
        return []

    def _on_error(self, error: KafkaError) -> None:
        # Called by librdkafka within `consume`, so on the owning thread.
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._lost_at is None:
            self._lost_at = time.monotonic() + LOST_S
        if error.code() in _PERMANENT:
            self.faults.append(Fault(FaultKind.PERMANENT, None, error.str()))
        else:
            self._passing(error, None)

    def _passing(self, error: KafkaError, tp: TopicPartition | None) -> None:
        now = time.monotonic()
        due, swallowed = self._reported.get(error.code(), (0.0, 0))
        if now < due:
            self._reported[error.code()] = (due, swallowed + 1)
            return
        self._reported[error.code()] = (now + QUIET_S, 0)
        if text := descriptors_error():
            self.faults.append(Fault(FaultKind.PERMANENT, None, text))
            return
        more = f" ({swallowed} more like it)" if swallowed else ""
        self.faults.append(Fault(FaultKind.PASSING, tp, f"{error.str()}{more}"))


_Question = tuple[list[TopicPartition], Reset, Future[Answers]]


class Resolver:
    """Asks brokers for the ends of logs, with a client and on a thread of its own.

    Both exist only while there are questions, and `LINGER_S` longer. Questions that wait are asked
    together. Each broker is asked apart, so that one that is silent delays the others' answers but
    does not spoil them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._waiting: list[_Question] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def resolve(self, tps: Iterable[TopicPartition], reset: Reset) -> Future[Answers]:
        """See `Fetcher.resolve`. Any thread may call it."""
        answer: Future[Answers] = Future()
        with self._changed:
            self._waiting.append((list(tps), reset, answer))
            if self._thread is None:
                # A daemon: it must not keep the process from ending while a broker is silent.
                self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)
                self._thread.start()
            self._changed.notify()
        return answer

    def close(self) -> None:
        """End the thread soon; returns at once. Questions under way get an answer all the same."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        client: Consumer | None = None
        try:
            while batch := self._next():
                try:
                    client = client or new_client(dict(self._settings))
                    self._answer(client, batch)
                except Exception as error:  # noqa: BLE001  # raised by the streams that ask
                    for _, _, answer in batch:
                        if not answer.done():
                            answer.set_exception(error)
        finally:
            if client is not None:
                client.close()

    def _answer(self, client: Consumer, batch: Sequence[_Question]) -> None:
        for reset in Reset:
            asked = [(tps, answer) for tps, wanted, answer in batch if wanted is reset]
            if asked:
                found = _log_ends(client, sorted({tp for tps, _ in asked for tp in tps}), reset)
                for tps, answer in asked:
                    answer.set_result({tp: found[tp] for tp in tps})

    def _next(self) -> list[_Question]:
        """Return the questions that wait; none after a while without any, which ends the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, LINGER_S)
            batch, self._waiting = self._waiting, []
            if not batch:
                self._thread = None
            return batch


def _log_ends(client: Consumer, tps: Sequence[TopicPartition], reset: Reset) -> Answers:
    """Ask each leader for the first or the next offsets of its partitions."""
    try:
        leaders = _leaders(client, {tp.topic for tp in tps}, RESOLVE_S)
    except KafkaException as error:
        if text := descriptors_error():
            where = ", ".join(map(str, tps[:10]))
            raise FetchError(text, where=where, remedy="then ask again") from error
        return dict.fromkeys(tps, str(error.args[0].str()))
    answers: Answers = dict.fromkeys(tps, "no leader is known to the brokers")
    for leader in sorted(set(leaders.values())):
        # The special times -1 and -2 give the log's ends exactly, on every release since 0.8.2;
        # real times would be answered per segment before 0.10.1.
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

    Several topics are looked up with all that there are, in one request: one by one, each may take
    its time-out.
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
    """What a message is of; an error may be of no partition."""
    topic, number = message.topic(), message.partition()
    if topic is None or number is None or number < 0:
        return None
    return TopicPartition(topic, number)


def _tp_of(raw: Raw) -> TopicPartition:
    return TopicPartition(raw.topic, raw.partition)


def _why(error: KafkaError | None) -> str:
    return error.str() if error is not None else "the broker named no offset"
