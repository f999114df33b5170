"""Messages that stay in the response of the broker: only their places are known.

`Records` slices a key or a value when it is asked for. Positions become Python numbers one column
at a time, when the first message of the run needs that column.
"""

from __future__ import annotations

from mmap import mmap
from typing import Final

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.primitives import Array
from zkconsumer.kafka.fetcher import SAMPLED, TIMESTAMP_NOT_AVAILABLE
from zkconsumer.protocol.model import TopicPartition

# librdkafka's number of a timestamp type is Kafka's number plus one.
_TYPE_ID: Final = TIMESTAMP_NOT_AVAILABLE + 1

_STARTS: Final = (parsers.KEY_START, parsers.VALUE_START, parsers.HEADERS_START)
_ENDS: Final = (parsers.KEY_END, parsers.VALUE_END, parsers.HEADERS_END)


class CorruptError(Exception):
    """A batch or a record is malformed, or a checksum is wrong."""


class Records:
    """A run of messages of one partition, within a response or a decompressed batch.

    It implements `kafka.fetcher.MessageRun`. A run keeps the bytes of its response alive.
    """

    __slots__ = (
        "_count",
        "_data",
        "_first",
        "_is_dense",
        "_keeper",
        "_key_ends",
        "_key_starts",
        "_offsets",
        "_places",
        "_room",
        "_value_ends",
        "_value_starts",
        "tp",
    )

    _key_ends: list[int]
    _key_starts: list[int]
    _offsets: list[int]
    _value_ends: list[int]
    _value_starts: list[int]

    def __init__(
        self, tp: TopicPartition, data: mmap | bytes, places: Array, count: int, keeper: object
    ) -> None:
        """Describe messages; there is at least one.

        Args:
            data: the bytes to which `places` refers.
            places: a table that `parsers.locate` has filled.
            count: the number of messages.
            keeper: an object whose destruction lets other responses overwrite `data`.
        """
        self.tp = tp
        self._data, self._keeper = data, keeper
        self._places, self._count = places, count
        self._room = len(places) // parsers.PLACES
        self._first = self._at(parsers.OFFSET, 0)
        # Compaction and transactions leave gaps between offsets.
        self._is_dense = self._at(parsers.OFFSET, count - 1) - self._first == count - 1

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The number of bytes from the first key up to the end of the last message."""
        last = self._count - 1
        end = max(self._at(column, last) for column in _ENDS)
        return end - self._at(parsers.KEY_START, 0)

    @property
    def estimated_size(self) -> float:
        """The number of bytes of keys and values; in a long run, also of the records' headers."""
        if self._count > SAMPLED:
            return self.size
        return sum(
            max(0, self._at(end, number) - self._at(start, number))
            for start, end in zip(_STARTS[:2], _ENDS[:2], strict=True)
            for number in range(self._count)
        )

    def offset(self, number: int) -> int:
        """Return the offset of message `number`; the first message is number 0."""
        if self._is_dense:
            return self._first + number
        try:
            return self._offsets[number]
        except AttributeError:
            self._offsets = self._column(parsers.OFFSET)
            return self._offsets[number]

    def key(self, number: int) -> bytes | None:
        try:
            end = self._key_ends[number]
        except AttributeError:
            self._key_starts = self._column(parsers.KEY_START)
            self._key_ends = self._column(parsers.KEY_END)
            end = self._key_ends[number]
        return None if end < 0 else self._data[self._key_starts[number] : end]

    def value(self, number: int) -> bytes | None:
        try:
            end = self._value_ends[number]
        except AttributeError:
            self._value_starts = self._column(parsers.VALUE_START)
            self._value_ends = self._column(parsers.VALUE_END)
            end = self._value_ends[number]
        return None if end < 0 else self._data[self._value_starts[number] : end]

    def timestamp(self, number: int) -> tuple[int, int | None]:
        """Return librdkafka's number of the timestamp's type, and the time in ms.

        The time is None if it does not fit into 63 bits.
        """
        kind = self._at(parsers.RECORD_TIME_TYPE, number)
        if kind == parsers.NO_TIME:
            return TIMESTAMP_NOT_AVAILABLE, 0  # as librdkafka does
        time = self._at(parsers.RECORD_TIME, number)
        return kind + _TYPE_ID, None if time == parsers.UNKNOWN_TIME else time

    def headers(self, number: int) -> list[tuple[str, bytes | None]]:
        """Raises CorruptError if the headers are malformed."""
        start = self._at(parsers.HEADERS_START, number)
        return headers_of(self._data[start : self._at(parsers.HEADERS_END, number)])

    def leader_epoch(self, number: int) -> int | None:
        """Return the epoch of the leader that wrote the message; None before Kafka 0.11."""
        epoch = self._at(parsers.RECORD_LEADER, number)
        return None if epoch < 0 else epoch

    def length(self, number: int) -> int:
        """Return the number of bytes of the value."""
        return max(0, self._at(parsers.VALUE_END, number) - self._at(parsers.VALUE_START, number))

    def _at(self, column: int, number: int) -> int:
        return int(self._places[column * self._room + number])

    def _column(self, column: int) -> list[int]:
        start = column * self._room
        found: list[int] = self._places[start : start + self._count].tolist()
        return found


def headers_of(data: bytes) -> list[tuple[str, bytes | None]]:
    """Return a record's headers from the column `headers`. Raises CorruptError."""
    found: list[tuple[str, bytes | None]] = []
    octets = memoryview(data)

    def part(at: int) -> tuple[bytes | None, int]:
        size, at = parsers.varint(octets, at, len(data))
        if at < 0 or size < -1 or size > len(data) - at:
            raise CorruptError("the headers of a record are malformed")
        return (None if size < 0 else data[at : at + size]), at + max(size, 0)

    count, at = parsers.varint(octets, 0, len(data)) if data else (0, 0)
    for _ in range(count):
        name, at = part(at)
        value, at = part(at)
        if name is None:
            raise CorruptError("a header of a record has no name")
        found.append((name.decode(errors="replace"), value))
    return found
