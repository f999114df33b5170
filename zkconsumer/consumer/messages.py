"""The messages, and batches of messages, that a stream hands to the user.

librdkafka's messages are wrapped only when the user accesses them, because wrapping costs
throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Generic, TypeVar, cast, overload

from zkconsumer.consumer.stream_partitions import Codec, Decoded, Grant, GrantedPartition
from zkconsumer.errors import DecodeError
from zkconsumer.kafka.fetcher import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    FetchedMessage,
)
from zkconsumer.protocol.model import Position, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Message as RawMessage

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class TimestampType(Enum):
    """The origin of a message's timestamp (JVM: `org.apache.kafka.common.record.TimestampType`)."""

    CREATE_TIME = "CreateTime"  # the producer
    LOG_APPEND_TIME = "LogAppendTime"  # the broker


_TIMESTAMP_TYPES = {
    TIMESTAMP_CREATE_TIME: TimestampType.CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME: TimestampType.LOG_APPEND_TIME,
}

KeyOf = Callable[[FetchedMessage], Hashable]
"""A function that returns a message's partition as a key that is unique within one stream."""


def key_of(topic: str | None, kind: type[FetchedMessage]) -> KeyOf:
    """Return the function that returns the key of a message's partition within a stream.

    In the stream of one topic, the key is the partition number. In the stream of a filter (topic
    None), the key is the pair of topic and number, which equals a `TopicPartition`. `kind` is the
    class of all messages; a method of the class is faster than a look-up for each message.
    """
    return kind.partition if topic is not None else topic_and_number


def topic_and_number(raw: FetchedMessage) -> Hashable:
    """Return the key of a message's partition in the stream of a filter."""
    return raw.topic(), raw.partition()


class Message(Generic[K, V]):
    """One message (JVM: `kafka.message.MessageAndMetadata`, 0.8.1 to 1.1), decoded on access.

    Each access to `key` or `value` calls the decoder. If the decoder raises, the access raises
    DecodeError; the message and the stream can still be used.

    A message can be pickled, for example for a worker process. The pickle contains the decoded key
    and value, so the process that reads it needs no decoder.
    """

    __slots__ = ("_held", "_raw")

    # The fields are set after construction, because an `__init__` would cost the iterator a tenth
    # of its throughput. A third field would cost 4 %.
    _raw: RawMessage
    _held: GrantedPartition

    @property
    def token(self) -> int:
        """The fencing token: the czxid of the owner znode under which this message was handed out.

        The token increases with every owner of the partition. A sink that remembers the highest
        token of each partition can refuse the late write of a former owner.
        """
        return self._held.epoch

    @property
    def topic(self) -> str:
        return self._raw.topic()  # type: ignore[return-value]  # None only for an error

    @property
    def partition(self) -> int:
        return self._raw.partition()  # type: ignore[return-value]  # None only for an error

    @property
    def offset(self) -> int:
        return self._raw.offset()  # type: ignore[return-value]  # None only for an error

    @property
    def timestamp(self) -> int | None:
        """The time in milliseconds since 1970; None from a broker before 0.10.

        With the columnar reader a time that does not fit into 64 bits as microseconds is None, too.
        """
        kind, milliseconds = self._raw.timestamp()
        return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds

    @property
    def timestamp_type(self) -> TimestampType | None:
        """The origin of the timestamp; None from a broker before 0.10."""
        return _TIMESTAMP_TYPES.get(self._raw.timestamp()[0])

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers in the producer's order; empty without headers or before Kafka 0.11."""
        # librdkafka's consumer returns a list; the stubs also allow the types a producer accepts.
        return cast(list[tuple[str, bytes | None]], self._raw.headers() or [])

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that wrote the message; None before Kafka 0.11."""
        epoch = self._raw.leader_epoch()
        return None if epoch is None or epoch < 0 else epoch

    @property
    def key(self) -> K | None:
        """The decoded key; None if the message has no key."""
        raw = self._raw.key()
        decoder: Callable[[bytes], K] | None = self._held.codec.key
        if raw is None or decoder is None:
            return raw  # type: ignore[return-value]  # without a decoder K is bytes
        return self._decoded("key", decoder, raw)

    @property
    def value(self) -> V | None:
        """The decoded value; None if the message has no value (a tombstone)."""
        raw = self._raw.value()
        decoder: Callable[[bytes], V] | None = self._held.codec.value
        if raw is None or decoder is None:
            return raw  # type: ignore[return-value]  # without a decoder V is bytes
        return self._decoded("value", decoder, raw)

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The position after this message, with its fencing token, for a commit."""
        return {TopicPartition(self.topic, self.partition): Position(self.token, self.offset + 1)}

    def __reduce__(self) -> tuple[object, ...]:
        """Raises DecodeError if a decoder raises."""
        contents = _Unpickled(
            at=TopicPartition(self.topic, self.partition),
            position=self.offset,
            decoded=(self.key, self.value),
            time=self._raw.timestamp(),
            epoch=self.leader_epoch,
            fields=self.headers,
            size=len(self._raw),
        )
        return _unpickled, (contents, self.token)

    def __repr__(self) -> str:
        return (
            f"Message({self.topic}-{self.partition} at {self.offset}, "
            f"key={self._raw.key()!r:.40}, {len(self._raw)} bytes, token={self.token})"
        )

    def _decoded(self, part: str, decoder: Callable[[bytes], T], raw: bytes) -> T:
        try:
            return decoder(raw)
        except Exception as error:  # the user's decoder may raise anything
            where = f"{self.topic}-{self.partition} at offset {self.offset}"
            text = f"the {part} decoder raised {type(error).__name__}: {error}"
            self._held.codec.failed(f"{text} ({where})")
            raise DecodeError(
                text,
                where=where,
                remedy="catch this error and skip the message, or fix the decoder",
            ) from error


@dataclass(frozen=True, slots=True)
class _Unpickled:
    """The contents of an unpickled message, with the methods of librdkafka's messages.

    Key and value are already decoded. `size` is the size of the undecoded value in bytes.
    """

    at: TopicPartition
    position: int
    decoded: tuple[Decoded, Decoded]
    time: tuple[int, int | None]
    epoch: int | None
    fields: list[tuple[str, bytes | None]]
    size: int

    def topic(self) -> str:
        return self.at.topic

    def partition(self) -> int:
        return self.at.partition

    def offset(self) -> int:
        return self.position

    def key(self) -> Decoded:
        return self.decoded[0]

    def value(self) -> Decoded:
        return self.decoded[1]

    def timestamp(self) -> tuple[int, int | None]:
        return self.time

    def leader_epoch(self) -> int | None:
        return self.epoch

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.fields

    def __len__(self) -> int:
        return self.size


def _unpickled(contents: _Unpickled, token: int) -> Message[Decoded, Decoded]:
    """Return the message that a pickle contains."""
    held = GrantedPartition(Grant(contents.at, None, token), Codec())
    return wrapped(cast("RawMessage", contents), held)


def wrapped(raw: RawMessage, held: GrantedPartition) -> Message[Decoded, Decoded]:
    """Return librdkafka's message as a `Message`."""
    message: Message[Decoded, Decoded] = Message()
    message._raw = raw
    message._held = held
    return message


class Batch(Sequence[Message[K, V]]):
    """The messages that one poll returned, in the broker's order. Each is wrapped when it is
    accessed. A batch can be pickled, as its messages can."""

    __slots__ = ("_held", "_key_of", "_raws")

    def __init__(
        self, raws: list[RawMessage], held: Mapping[Hashable, GrantedPartition], key_of: KeyOf
    ) -> None:
        self._raws = raws
        self._held = held  # one state for each partition: a batch has no change of owner
        self._key_of = key_of

    def __len__(self) -> int:
        return len(self._raws)

    def __iter__(self) -> Iterator[Message[K, V]]:
        held, key_of = self._held, self._key_of
        for raw in self._raws:
            yield wrapped(raw, held[key_of(raw)])

    @overload
    def __getitem__(self, index: int) -> Message[K, V]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch[K, V]: ...
    def __getitem__(self, index: int | slice) -> Message[K, V] | Batch[K, V]:
        if isinstance(index, slice):
            return Batch(self._raws[index], self._held, self._key_of)
        raw = self._raws[index]
        return wrapped(raw, self._held[self._key_of(raw)])

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The position of each partition after the batch, with the fencing token."""
        last = dict(zip(map(self._key_of, self._raws), self._raws, strict=True))
        return {
            state.tp: Position(state.epoch, cast(int, raw.offset()) + 1)
            for state, raw in ((self._held[key], raw) for key, raw in last.items())
        }

    def __reduce__(self) -> tuple[object, ...]:
        """Raises DecodeError if a decoder raises."""
        return _unpickled_batch, (list(self),)

    def runs(self) -> Iterator[tuple[TopicPartition, int, list[RawMessage]]]:
        """Yield undecoded messages in runs of one partition, with partition and fencing token."""
        for key, run in groupby(self._raws, self._key_of):
            held = self._held[key]
            yield held.tp, held.epoch, list(run)

    def __repr__(self) -> str:
        return f"Batch({len(self)} messages)"


def _unpickled_batch(messages: list[Message[K, V]]) -> Batch[K, V]:
    """Return the batch that a pickle contains."""
    raws = [message._raw for message in messages]
    held: dict[Hashable, GrantedPartition] = {
        topic_and_number(message._raw): message._held for message in messages
    }
    return Batch(raws, held, topic_and_number)
