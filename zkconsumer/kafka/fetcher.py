"""Fetching one topic's partitions for one stream, over confluent-kafka.

A fetcher belongs to one thread at a time: from confluent-kafka 2.16 on every call from another
thread waits while one is inside `consume`. So nothing here takes a lock, and no call but `resolve`
and the first `assign` blocks longer than the time it is given.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from zkconsumer.kafka.settings import Settings

# Looking up a topic before its first fetch spares librdkafka's one-second metadata timer. A broker
# that does not answer within this many seconds costs that second, nothing else.
LOOKUP_S: Final = 0.5

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


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong; `partition` is None when it concerns the brokers as a whole."""

    kind: FaultKind
    partition: int | None
    text: str


class Fetcher(Protocol):
    """What a stream needs: messages of one topic's partitions, from given positions."""

    @property
    def faults(self) -> deque[Fault]:
        """What went wrong and was not yet taken; the stream pops from the left."""

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Fetch these partitions too, each from its offset; none may be assigned already."""

    def unassign(self, partitions: Iterable[int]) -> None:
        """Stop fetching; no later `consume` returns a message of these. Unknown ones: nothing."""

    def consume(self, max_messages: int, timeout_s: float) -> list[Message]:
        """What there is, at once; when there is nothing, the first that comes within `timeout_s`.

        In order per partition. What stands behind a fault comes with the next call.
        """

    def resolve(self, partitions: Iterable[int], reset: Reset) -> dict[int, int | str]:
        """The first or the next offset of each partition's log, or why it is not known now."""

    def close(self) -> None:
        """Let everything go. Twice does nothing."""


class KafkaFetcher:
    """The `Fetcher` of real brokers."""

    def __init__(self, topic: str, settings: Settings) -> None:
        self.topic = topic
        self.faults: deque[Fault] = deque()
        self._assigned: set[int] = set()
        self._known: set[int] = set()
        self._backlog: list[Message] = []
        # kind of error -> (when it may be reported again, how often it was swallowed until then)
        self._reported: dict[int, tuple[float, int]] = {}
        self._consumer = Consumer({**settings, "error_cb": self._on_error})
        self._closed = False

    def assign(self, offsets: Mapping[int, int]) -> None:
        if not offsets:
            return
        for number in self._look_up(offsets):
            text = f"no leader of {self.topic}-{number} is known to the brokers"
            self.faults.append(Fault(FaultKind.PASSING, number, text))
        self._assigned.update(offsets)
        self._consumer.incremental_assign(
            [TopicPartition(self.topic, number, offset) for number, offset in offsets.items()]
        )

    def unassign(self, partitions: Iterable[int]) -> None:
        # librdkafka refuses the whole list for one partition that is not assigned.
        gone = self._assigned.intersection(partitions)
        if not gone:
            return
        self._assigned -= gone
        self._backlog = [one for one in self._backlog if one.partition() not in gone]
        self._consumer.incremental_unassign([TopicPartition(self.topic, one) for one in gone])

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
        if any(map(_error, messages)):
            return self._up_to_error(messages)
        return messages

    def resolve(self, partitions: Iterable[int], reset: Reset) -> dict[int, int | str]:
        wanted = [TopicPartition(self.topic, number, reset.spec) for number in partitions]
        self._look_up([one.partition for one in wanted])
        # The special times -1 and -2 give the log's ends exactly, on every release since 0.8.2, in
        # one request a broker; real times would be answered per segment before 0.10.1.
        try:
            found = self._consumer.offsets_for_times(wanted, timeout=LOOKUP_S)
        except KafkaException as error:
            return dict.fromkeys((one.partition for one in wanted), str(error.args[0].str()))
        return {
            one.partition: one.offset if one.error is None and one.offset >= 0 else _why(one.error)
            for one in found
        }

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _look_up(self, partitions: Collection[int]) -> list[int]:
        """Make librdkafka know these partitions; the answer are those without a leader.

        By itself it asks the brokers once in five minutes, and until then every request for a
        partition that was added meanwhile fails. Those it knows cost nothing.
        """
        if self._known.issuperset(partitions):
            return []
        try:
            topics = self._consumer.list_topics(self.topic, timeout=LOOKUP_S).topics
        except KafkaException as error:
            self._passing(error.args[0], None)
            return []
        found = topics[self.topic].partitions if self.topic in topics else {}
        self._known.update(number for number, one in found.items() if one.leader >= 0)
        return [number for number in partitions if number not in self._known]

    def _up_to_error(self, messages: list[Message]) -> list[Message]:
        """The messages before the first error; or, when it comes first, none, and its fault."""
        first = next(i for i, one in enumerate(messages) if one.error() is not None)
        if first:
            self._backlog = messages[first:]
            return messages[:first]
        self._backlog = messages[1:]
        error, number = messages[0].error(), messages[0].partition()
        assert error is not None
        number = number if number is not None and number >= 0 else None
        if error.code() in _OUT_OF_RANGE:
            self.faults.append(Fault(FaultKind.OUT_OF_RANGE, number, error.str()))
        elif error.code() == KafkaError._LOG_TRUNCATION:
            self.faults.append(Fault(FaultKind.TRUNCATED, number, error.str()))
        elif error.code() in _PERMANENT:
            self.faults.append(Fault(FaultKind.PERMANENT, number, error.str()))
        elif error.code() != KafkaError._PARTITION_EOF:
            self._passing(error, number)
        return []

    def _on_error(self, error: KafkaError) -> None:
        # Called by librdkafka within `consume`, so on the owning thread.
        if error.code() in _PERMANENT:
            self.faults.append(Fault(FaultKind.PERMANENT, None, error.str()))
        else:
            self._passing(error, None)

    def _passing(self, error: KafkaError, partition: int | None) -> None:
        now = time.monotonic()
        due, swallowed = self._reported.get(error.code(), (0.0, 0))
        if now < due:
            self._reported[error.code()] = (due, swallowed + 1)
            return
        self._reported[error.code()] = (now + QUIET_S, 0)
        more = f" ({swallowed} more like it)" if swallowed else ""
        self.faults.append(Fault(FaultKind.PASSING, partition, f"{error.str()}{more}"))


def _why(error: KafkaError | None) -> str:
    return error.str() if error is not None else "the broker named no offset"
