"""The messages, and batches of messages, that a stream hands to the user.

A message knows its run, and its number in the run. Keys and values are taken from the run, and
decoded, when the user asks for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Self, TypeVar, overload

from zkconsumer.consumer.stream_partitions import Codec, Decoded, Grant, GrantedPartition
from zkconsumer.errors import DecodeError
from zkconsumer.kafka.fetcher import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    MessageRun,
    Run,
)
from zkconsumer.protocol.model import Position, TopicPartition

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


class Message(Generic[K, V]):
    """One message (JVM: `kafka.message.MessageAndMetadata`, 0.8.1 to 1.1), decoded on access.

    The first access to `key` or `value` calls the decoder. If the decoder raises, the access raises
    DecodeError; the message and the stream can still be used, and the next access calls the decoder
    again.

    A message keeps the memory of its batch: the response of the broker that contained the message,
    2 MB by default. Call `detach` to keep a message longer than its batch.

    A message can be pickled, for example for a worker process. The pickle contains the decoded key
    and value, so the process that reads it needs no decoder.
    """

    __slots__ = ("_decoded", "_held", "_number", "_run")

    # The fields are set after construction, because an `__init__` would cost the iterator a tenth
    # of its throughput. `_decoded` is set when a decoder has returned.
    _run: MessageRun
    _number: int
    _held: GrantedPartition
    _decoded: Mapping[str, Decoded]

    @property
    def token(self) -> int:
        """The fencing token: the czxid of the owner znode under which this message was handed out.

        The token increases with every owner of the partition. A sink that remembers the highest
        token of each partition can refuse the late write of a former owner.
        """
        return self._held.epoch

    @property
    def topic(self) -> str:
        return self._run.tp.topic

    @property
    def partition(self) -> int:
        return self._run.tp.partition

    @property
    def offset(self) -> int:
        return self._run.offset(self._number)

    @property
    def timestamp(self) -> int | None:
        """The time in milliseconds since 1970; None from a broker before 0.10."""
        kind, milliseconds = self._run.timestamp(self._number)
        return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds

    @property
    def timestamp_type(self) -> TimestampType | None:
        """The origin of the timestamp; None from a broker before 0.10."""
        return _TIMESTAMP_TYPES.get(self._run.timestamp(self._number)[0])

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers in the producer's order; empty without headers or before Kafka 0.11."""
        return self._run.headers(self._number)

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that wrote the message; None before Kafka 0.11."""
        return self._run.leader_epoch(self._number)

    @property
    def key(self) -> K | None:
        """The decoded key; None if the message has no key."""
        decoder: Callable[[bytes], K] | None = self._held.codec.key
        if decoder is None:
            return self._run.key(self._number)  # type: ignore[return-value]  # K is bytes
        return self._decode("key", decoder, self._run.key)

    @property
    def value(self) -> V | None:
        """The decoded value; None if the message has no value (a tombstone)."""
        decoder: Callable[[bytes], V] | None = self._held.codec.value
        if decoder is None:
            return self._run.value(self._number)  # type: ignore[return-value]  # V is bytes
        return self._decode("value", decoder, self._run.value)

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The position after this message, with its fencing token, for a commit."""
        return {TopicPartition(self.topic, self.partition): Position(self.token, self.offset + 1)}

    def detach(self) -> Self:
        """Stop keeping the memory of the batch; return the message itself.

        The message then has a copy of its own key, value and headers. Do not call it while another
        thread reads the message.
        """
        read = self._run
        self._run = self._alone(read.key(self._number), read.value(self._number))
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Raises DecodeError if a decoder raises."""
        return _unpickled, (self._alone(self.key, self.value), self.token)

    def __repr__(self) -> str:
        return (
            f"Message({self.topic}-{self.partition} at {self.offset}, "
            f"key={self._run.key(self._number)!r:.40}, {self._run.length(self._number)} bytes, "
            f"token={self.token})"
        )

    def _alone(self, key: Decoded, value: Decoded) -> _Alone:
        return _Alone(
            tp=self._run.tp,
            position=self.offset,
            contents=(key, value),
            time=self._run.timestamp(self._number),
            epoch=self.leader_epoch,
            fields=self.headers,
            size=self._run.length(self._number),
        )

    def _decode(
        self, part: str, decoder: Callable[[bytes], T], read: Callable[[int], bytes | None]
    ) -> T | None:
        """Return the decoded key or value; call the decoder if no earlier access has."""
        known: Mapping[str, Decoded] = getattr(self, "_decoded", _NOTHING)
        if part not in known:
            raw = read(self._number)
            found = None if raw is None else self._called(part, decoder, raw)
            self._decoded = known = {**known, part: found}
        decoded: T | None = known[part]
        return decoded

    def _called(self, part: str, decoder: Callable[[bytes], T], raw: bytes) -> T:
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


_NOTHING: Final[Mapping[str, Decoded]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Alone:
    """The `MessageRun` of one message that was detached or unpickled; it ignores all numbers.

    So a message keeps its number when it is detached: the member's thread may be reading its
    offset. Key and value of an unpickled message are already decoded. `size` is the size of the
    undecoded value in bytes.
    """

    tp: TopicPartition
    position: int
    contents: tuple[Decoded, Decoded]
    time: tuple[int, int | None]
    epoch: int | None
    fields: list[tuple[str, bytes | None]]
    size: int

    @property
    def estimated_size(self) -> float:
        return self.size

    def __len__(self) -> int:
        return 1

    def offset(self, number: int) -> int:
        return self.position

    def key(self, number: int) -> Decoded:
        return self.contents[0]

    def value(self, number: int) -> Decoded:
        return self.contents[1]

    def length(self, number: int) -> int:
        return self.size

    def timestamp(self, number: int) -> tuple[int, int | None]:
        return self.time

    def leader_epoch(self, number: int) -> int | None:
        return self.epoch

    def headers(self, number: int) -> list[tuple[str, bytes | None]]:
        return self.fields


def _unpickled(contents: _Alone, token: int) -> Message[Decoded, Decoded]:
    """Return the message that a pickle contains."""
    held = GrantedPartition(Grant(contents.tp, None, token, 0), Codec())
    return made(contents, 0, held)


def made(run: MessageRun, number: int, held: GrantedPartition) -> Message[Decoded, Decoded]:
    """Return a message of a run."""
    message: Message[Decoded, Decoded] = Message()
    message._run, message._number, message._held = run, number, held
    return message


R_co = TypeVar("R_co", bound=Run, covariant=True)


class Part(NamedTuple, Generic[R_co]):
    """Messages of one run that were handed out under one grant."""

    run: R_co
    numbers: Sequence[int]
    held: GrantedPartition


class Batch(Sequence[Message[K, V]]):
    """The messages of one poll, in the broker's order. A message object is made on access. A batch
    can be pickled, as its messages can."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Part[MessageRun]]) -> None:
        self._parts = parts
        self._ends = [*accumulate(len(part.numbers) for part in parts)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Message[K, V]]:
        for run, numbers, held in self._parts:
            for number in numbers:
                message: Message[K, V] = Message()  # as `made` does; a call would cost more
                message._run = run
                message._number = number
                message._held = held
                yield message

    @overload
    def __getitem__(self, index: int) -> Message[K, V]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch[K, V]: ...
    def __getitem__(self, index: int | slice) -> Message[K, V] | Batch[K, V]:
        chosen = range(len(self))[index]
        if isinstance(chosen, int):
            part = bisect_right(self._ends, chosen)
            return made(*self._at(part, chosen))
        found: list[Part[MessageRun]] = []
        for part, some in groupby(chosen, partial(bisect_right, self._ends)):
            run, _, held = self._parts[part]
            found.append(Part(run, [self._at(part, one)[1] for one in some], held))
        return Batch(found)

    def _at(self, part: int, index: int) -> tuple[MessageRun, int, GrantedPartition]:
        run, numbers, held = self._parts[part]
        return run, numbers[index - self._ends[part]], held  # a negative index

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The position of each partition after the batch, with the fencing token."""
        found: dict[TopicPartition, Position] = {}
        for run, numbers, held in self._parts:
            last = max(numbers[0], numbers[-1])  # a slice may reverse the messages
            at = Position(held.epoch, run.offset(last) + 1)
            found[run.tp] = max(found.get(run.tp, at), at)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        """Raises DecodeError if a decoder raises."""
        return _unpickled_batch, (list(self),)

    def __repr__(self) -> str:
        return f"Batch({len(self)} messages)"


def _unpickled_batch(messages: list[Message[K, V]]) -> Batch[K, V]:
    """Return the batch that a pickle contains."""
    return Batch([Part(one._run, [one._number], one._held) for one in messages])
