"""What a stream hands to the user: messages, and batches of them, wrapped as lazily as can be."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE
from confluent_kafka import Message as RawMessage

from zkconsumer.consumer.stream_partitions import PartitionState
from zkconsumer.errors import DecodeError

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


KeyOf = Callable[[RawMessage], Hashable]
"""What tells the partitions of one stream apart."""


def key_of(topic: str | None) -> KeyOf:
    """The partition's number in a stream of one topic, where it is all that a message is asked for;
    topic and number (equal to a `TopicPartition`) in a stream of several, given as None.
    """
    return RawMessage.partition if topic is not None else _topic_and_number


def _topic_and_number(raw: RawMessage) -> Hashable:
    return raw.topic(), raw.partition()


class Message(Generic[K, V]):
    """One message, as `kafka.message.MessageAndMetadata` (0.8.1 to 1.1): decoded when asked for.

    A decoder's exception is raised as DecodeError by `key` or `value`, each time they are asked
    for, and disturbs neither the message nor the stream.
    """

    __slots__ = ("_held", "_raw")

    # Filled in by whoever makes one: an `__init__` would cost the iterator a tenth of its
    # throughput, and a third field 4 %.
    _raw: RawMessage
    _held: PartitionState

    @property
    def token(self) -> int:
        """The fencing token: the czxid of the owner znode under which this was handed out.

        It only grows, from owner to owner; a sink that remembers the greatest one it has seen for a
        partition can refuse a frozen owner's late write.
        """
        return self._held.epoch

    @property
    def topic(self) -> str:
        return self._raw.topic()  # type: ignore[return-value]  # None only in an error

    @property
    def partition(self) -> int:
        return self._raw.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self._raw.offset()  # type: ignore[return-value]

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970, by producer or broker; None from a broker before 0.10."""
        kind, milliseconds = self._raw.timestamp()
        return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds

    @property
    def key(self) -> K | None:
        """The decoded key; None when the message has none, whatever the decoder."""
        raw = self._raw.key()
        decoder: Callable[[bytes], K] | None = self._held.codec.key
        if raw is None or decoder is None:
            return raw  # type: ignore[return-value]  # without a decoder K is bytes
        return self._decoded("key", decoder, raw)

    @property
    def value(self) -> V | None:
        """The decoded value; None when the message has none (a tombstone)."""
        raw = self._raw.value()
        decoder: Callable[[bytes], V] | None = self._held.codec.value
        if raw is None or decoder is None:
            return raw  # type: ignore[return-value]
        return self._decoded("value", decoder, raw)

    def __len__(self) -> int:
        """Bytes of the value as it came."""
        return len(self._raw)

    def __bool__(self) -> bool:
        return True  # also with an empty value

    def __repr__(self) -> str:
        return (
            f"Message({self.topic}-{self.partition} at {self.offset}, "
            f"key={self._raw.key()!r:.40}, {len(self)} bytes, token={self.token})"
        )

    def _decoded(self, part: str, decoder: Callable[[bytes], T], raw: bytes) -> T:
        try:
            return decoder(raw)
        except Exception as error:  # the user's code: anything may come
            where = f"{self.topic}-{self.partition} at offset {self.offset}"
            text = f"the {part} decoder raised {type(error).__name__}: {error}"
            self._held.codec.failed(f"{text} ({where})")
            raise DecodeError(
                text, where=where, remedy="catch it and skip the message, or mend the decoder"
            ) from error


def wrapped(raw: RawMessage, held: PartitionState) -> Message[Any, Any]:
    """The message as the user sees it."""
    message: Message[Any, Any] = Message()
    message._raw = raw
    message._held = held
    return message


class Batch(Sequence[Message[K, V]]):
    """Messages as they came out of the broker; each is wrapped when it is looked at."""

    __slots__ = ("_held", "_key_of", "_raws")

    def __init__(
        self, raws: list[RawMessage], held: Mapping[Hashable, PartitionState], key_of: KeyOf
    ) -> None:
        self._raws = raws
        self._held = held  # within one batch each partition has one owner znode
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

    def __repr__(self) -> str:
        return f"Batch({len(self)} messages)"
