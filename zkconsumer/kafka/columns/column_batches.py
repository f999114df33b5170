"""Copy the records of record sets into Arrow record batches.

The functions of `parsers` process each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.parsers import Columns
from zkconsumer.kafka.columns.record_sets import (
    BYTES,
    ROWS,
    ParserEngine,
    Piece,
    RecordSet,
    check_status,
    zeros,
)
from zkconsumer.kafka.columns.records import CorruptError
from zkconsumer.kafka.columns.slabs import Slab, SlabPool
from zkconsumer.protocol.model import TopicPartition

# These types are looked up once, because a look-up costs as much as making a buffer.
BINARY: Final = pa.binary()
INT32: Final = pa.int32()
INT64: Final = pa.int64()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of Spark's Kafka connector. `timestampType` is Kafka's `TimestampType.id`."""

HEADERS: Final = pa.field("headers", pa.binary())
"""The column of each record's undecoded headers, for `headers_of`; only on request."""


@cache
def pool_of(engine: ParserEngine) -> SlabPool:
    """Return the slabs of an engine, which all its record batches share."""
    return SlabPool((engine.octets, engine.ints, engine.longs), ROWS, BYTES)


def batches(
    found: RecordSet, *, with_headers: bool = False, pool: SlabPool | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records as record batches of up to `ROWS` rows or about `BYTES` bytes.

    With `with_headers` they have the column `headers`. Raises CorruptError at a malformed batch,
    after the records before it.
    """
    output = _Output(found, pool or pool_of(found.engine), with_headers)
    failure: CorruptError | None = None
    try:
        for piece in found.pieces():
            output.cursor[parsers.ROW], output.cursor[parsers.AT] = 0, -1
            while output.parse(piece) == parsers.FULL:
                if output.filled:
                    yield output.take()
                else:
                    output.drop()
    except CorruptError as error:
        failure = error
    if output.filled:
        yield output.take()
    output.drop()
    found.raise_failure(failure)


class _Output:
    """The record batch that is being filled; `take` returns it."""

    def __init__(self, found: RecordSet, pool: SlabPool, with_headers: bool) -> None:
        self._found = found
        self._pool = pool
        self._with_headers = with_headers
        self.cursor = found.engine.longs(zeros(parsers.CURSOR))
        self._slab: Slab | None = None

    @property
    def filled(self) -> int:
        return int(self.cursor[parsers.FILLED])

    def parse(self, piece: Piece) -> int:
        """Copy records into the columns; return FULL or DONE. Raises CorruptError."""
        found = self._found
        status = found.engine.parsers.parse(
            piece.data, piece.table, piece.rows, self.cursor, *found.span, self._columns()
        )
        check_status(status, piece, self.cursor)
        return int(status)

    def _columns(self) -> Columns:
        """Return the columns to fill, with room for the record that did not fit before."""
        if self._slab is None:
            keys, values, headers = self.cursor[parsers.KEY_NEEDS : parsers.CURSOR].tolist()
            self._slab = self._pool.take(keys, values, headers if self._with_headers else None)
            for at in range(parsers.FILLED, parsers.CURSOR):
                self.cursor[at] = 0
        return self._slab.columns

    def drop(self) -> None:
        """Release the empty columns, because they are too small for the next record."""
        if self._slab is not None:
            self._slab.give_back()
            self._slab = None

    def take(self) -> pa.RecordBatch:
        """Return the filled rows as a record batch."""
        assert self._slab is not None
        slab, self._slab = self._slab, None
        rows, made = self.filled, slab.columns
        bits, ends = (rows + 7) // 8, 4 * rows + 4
        used = [ends, int(made.key_ends[rows]), bits, ends, int(made.value_ends[rows]), bits]
        used += [8 * rows, 8 * rows, bits, 4 * rows]
        if self._with_headers:
            used += [ends, int(made.header_ends[rows])]
        b = slab.buffers(used)
        nulls = self.cursor[parsers.KEY_NULLS : parsers.TIME_NULLS + 1].tolist()
        key, value, time = (b[at] if n else None for at, n in zip((2, 5, 8), nulls, strict=True))
        of = pa.Array.from_buffers
        arrays = [
            of(BINARY, rows, [key, b[0], b[1]], nulls[0]),
            of(BINARY, rows, [value, b[3], b[4]], nulls[1]),
            *_place(self._found.tp, rows),
            of(INT64, rows, [None, b[6]], 0),
            of(TIMESTAMP, rows, [time, b[7]], nulls[2]),
            of(INT32, rows, [None, b[9]], 0),
        ]
        if not self._with_headers:
            return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        arrays.append(of(BINARY, rows, [None, b[10], b[11]], 0))
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.append(HEADERS))


def _place(tp: TopicPartition, rows: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns `topic` and `partition`; large batches share the buffers of these
    columns."""
    if rows >= ROWS // 8:
        topic, partition = _full_place(tp)
        return topic.slice(0, rows), partition.slice(0, rows)
    return (
        pa.repeat(pa.scalar(tp.topic, pa.string()), rows),
        pa.repeat(pa.scalar(tp.partition, INT32), rows),
    )


@lru_cache(maxsize=64)
def _full_place(tp: TopicPartition) -> tuple[pa.Array, pa.Array]:
    return (
        pa.repeat(pa.scalar(tp.topic, pa.string()), ROWS),
        pa.repeat(pa.scalar(tp.partition, pa.int32()), ROWS),
    )
