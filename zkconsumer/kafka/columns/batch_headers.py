"""The headers of batches of format v2: to which transaction a batch belongs, and whether it has
messages.

Kafka: `org.apache.kafka.common.record.DefaultRecordBatch`, 0.11 to 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

# Offset and size of the batch, format, attributes, last offset relative to the first, producer's
# id, and number of records.
_FIELDS: Final = struct.Struct(">qi4xb4xhi16xq6xi")
_ENTRY: Final = 12

_IS_TRANSACTIONAL: Final = 16
_IS_CONTROL: Final = 32

HEADER_BYTES: Final = 61
"""The size of the header; the records follow it."""


class BatchHeader(NamedTuple):
    """A batch from position `at` to position `stop`, whose last offset is `last`."""

    at: int
    stop: int
    last: int
    attributes: int
    producer: int
    records: int

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _IS_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker."""
        return bool(self.attributes & _IS_CONTROL)


def batch_headers(data: memoryview) -> Iterator[BatchHeader | None]:
    """Yield the header of each complete batch; None for a message of an older format.

    `data` has unsigned bytes. Malformed sizes end the iteration.
    """
    at = 0
    while len(data) - at > _ENTRY:
        stop = at + _ENTRY + int.from_bytes(data[at + 8 : at + _ENTRY], "big", signed=True)
        if stop > len(data) or stop - at < 26:  # an empty message of format v0
            return
        if data[at + 16] != 2:
            yield None
        elif stop - at < HEADER_BYTES:
            return
        else:
            base, _, _, attributes, last, producer, records = _FIELDS.unpack_from(data, at)
            yield BatchHeader(at, stop, base + last, attributes, producer, records)
        at = stop


def has_no_message(data: memoryview, first: int, end: int) -> bool:
    """Return whether the batches show that no message has an offset from `first` to `end` - 1.

    The offsets belong to transaction markers, and to messages that compaction has removed. False
    also means that the data end before `end`.
    """
    reached = first
    for one in batch_headers(data):
        if reached >= end:
            break
        if one is None or (one.last >= first and one.records and not one.is_control):
            return False
        reached = max(reached, one.last + 1)
    return reached >= end
