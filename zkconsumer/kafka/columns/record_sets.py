"""Convert record sets of Fetch responses, one partition at a time.

`RecordSet` finds the batches, and so the next offset to fetch, before any record is read. `batches`
then checks and decompresses them, and copies the records into Arrow record batches. `records`
instead finds the places of the records, and copies nothing. The functions of `parsers` process each
record.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from mmap import mmap
from typing import Final, Literal, NamedTuple

import google_crc32c
import pyarrow as pa

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.batch_headers import HEADER_BYTES, batch_headers
from zkconsumer.kafka.columns.buffers import Slab, SlabPool, address_of
from zkconsumer.kafka.columns.codecs import CodecError, decompress
from zkconsumer.kafka.columns.parsers import Columns, Parsers
from zkconsumer.kafka.columns.primitives import Array
from zkconsumer.kafka.columns.records import CorruptError, Records
from zkconsumer.kafka.columns.requests import Aborted
from zkconsumer.protocol.model import TopicPartition

# A record batch is complete when it has this many rows, or this many bytes of keys or values. For a
# larger message, the record batch has the size of the message. A response of 2 MB with messages of
# 100 bytes fits into one batch, because making a batch takes about as long as parsing 2,000
# records.
ROWS: Final = 20_000
BYTES: Final = 2 << 20

# Batches have about the same size if the smallest has at least this share of the bytes of the
# largest.
_ABOUT_EQUAL: Final = 0.95

# Records of fewer bytes are copied out of the memory of their response, because a message must not
# keep much more memory than the response needs.
_COPIED: Final = 256 * 1024

# A run of this many decompressed bytes, or more, is not joined with further batches.
_JOINED_BYTES: Final = 256 * 1024

# Maximum depth of nested compressed sets. The old producers wrote one level.
_MAX_NESTED: Final = 4

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


class ParserEngine(NamedTuple):
    """An implementation of the parsers: compiled over numpy arrays, or Python over memoryviews."""

    parsers: Parsers
    octets: Callable[[Array], Array]
    ints: Callable[[Array], Array]
    longs: Callable[[Array], Array]
    table: Callable[[int], Array]
    """Makes an array of 64-bit numbers, whose initial values are arbitrary."""
    pool: SlabPool


@cache
def plain_engine() -> ParserEngine:
    """Return the engine that needs no numba; it takes some microseconds for each record."""

    def view(form: Literal["B", "i", "q"]) -> Callable[[Array], Array]:
        return lambda data: memoryview(data).cast("B").cast(form)

    views = view("B"), view("i"), view("q")
    return ParserEngine(
        parsers.PLAIN,
        *views,
        lambda count: memoryview(_zeros(count)),
        SlabPool(views, ROWS, BYTES),
    )


@cache
def compiled_engine() -> ParserEngine:
    """Return the compiled engine; the first call on a machine compiles it.

    Raises ImportError without numba, and RuntimeError if numba finds no directory for its cache.
    """
    import numpy as np  # noqa: PLC0415 - the extra `fast`

    def view(kind: type) -> Callable[[Array], Array]:
        return lambda data: np.frombuffer(data, kind)

    views = view(np.uint8), view(np.int32), view(np.int64)
    # The system provides only those pages of a table that are written.
    return ParserEngine(
        parsers.compiled(),
        *views,
        lambda count: np.empty(count, np.int64),
        SlabPool(views, ROWS, BYTES),
    )


def _zeros(count: int) -> array[int]:
    return array("q", bytes(8 * count))


class _Output:
    """The record batch that is being filled; `take` returns it."""

    def __init__(self, engine: ParserEngine, tp: TopicPartition, with_headers: bool) -> None:
        self._engine = engine
        self._tp = tp
        self._with_headers = with_headers
        self.cursor = engine.longs(_zeros(parsers.CURSOR))
        self._slab: Slab | None = None

    @property
    def filled(self) -> int:
        return int(self.cursor[parsers.FILLED])

    def columns(self) -> Columns:
        """Return the columns to fill, with room for the record that did not fit before."""
        if self._slab is None:
            keys, values, headers = self.cursor[parsers.KEY_NEEDS : parsers.CURSOR].tolist()
            self._slab = self._engine.pool.take(
                keys, values, headers if self._with_headers else None
            )
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
            *_place(self._tp, rows),
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


class _Piece(NamedTuple):
    """Uncompressed batches that one call can parse: rows of a table over the same bytes."""

    data: Array
    table: Array
    rows: int
    content: pa.Buffer | None = None
    """The decompressed bytes; None if the bytes are those of the response."""


class _Group(NamedTuple):
    """Pieces to whose records one run can refer."""

    data: mmap | bytes
    keeper: pa.Buffer | None
    """The response, if `data` is its memory."""
    pieces: list[tuple[_Piece, int]]
    """Each piece, with the position of its bytes in `data`."""

    @property
    def most(self) -> int:
        """An upper bound of the number of records, at most `ROWS`."""
        found = sum(
            sum(piece.table[parsers.COUNT :: parsers.WIDTH].tolist())
            + len(piece.data) // parsers.LEAST_ENTRY
            for piece, _ in self.pieces
        )
        return min(ROWS, max(1, int(found)))


class Batches(NamedTuple):
    """The sizes of the batches in a record set; they predict the sizes in the next fetch."""

    bytes_per_offset: float
    equal_size: int
    """The bytes of the largest batch, if all are about as large; else 0."""


class RecordSet:
    """The batches of one partition in a Fetch response.

    Attributes:
        tp: the partition.
        next_offset: the offset after the last complete batch; -1 if there is none.
        stopped_at: the position of the incomplete or malformed batch after it.
        is_corrupt: whether that batch is malformed.
    """

    def __init__(
        self,
        tp: TopicPartition,
        data: pa.Buffer,
        engine: ParserEngine,
        *,
        first: int = 0,
        until: int = parsers.MAX_OFFSET,
        aborted: Iterable[Aborted] = (),
        memory: mmap | None = None,
    ) -> None:
        """Find the batches.

        Args:
            data: the bytes; they must not change before `batches` has ended, and while `Records`
                refer to them.
            first: offset of the first record wanted; a batch may begin with earlier ones.
            until: offset after the last record wanted.
            aborted: the transactions whose messages are left out.
            memory: the memory of which `data` is a part, if it can be sliced; otherwise `records`
                copies the bytes once.
        """
        self.tp = tp
        self._engine = engine
        self._first, self._until = first, until
        self._data, self._memory = data, memory
        self._octets = engine.octets(data)
        self._table, self._rows, self.next_offset, self.stopped_at, self.is_corrupt = self._scan(
            self._octets
        )
        self._left_out = _aborted_batches(memoryview(data).cast("B"), self.stopped_at, aborted)

    def _scan(self, octets: Array) -> tuple[Array, int, int, int, bool]:
        # A batch of format v2 has at least 61 bytes, a message of an old format at least 26.
        table = self._engine.table((len(octets) // parsers.LEAST_ENTRY + 1) * parsers.WIDTH)
        found = self._engine.longs(_zeros(parsers.SCANNED))
        self._engine.parsers.scan(octets, 0, len(octets), table, found)
        count, stopped_at, status, upcoming = found.tolist()
        return table, count, upcoming, stopped_at, status == parsers.CORRUPT

    @property
    def needed(self) -> int:
        """The size in bytes of the incomplete batch at `stopped_at`; 0 if it is not known."""
        size = bytes(memoryview(self._data)[self.stopped_at + 8 : self.stopped_at + 12])
        return 12 + int.from_bytes(size, "big") if len(size) == 4 else 0

    def sizes(self) -> Batches:
        """Return the sizes of the complete batches; there must be at least one."""
        rows = _as_rows(self._table, self._rows)
        is_new = bool(rows) and all(row[parsers.FORMAT] == 2 for row in rows)
        first = rows[0][parsers.BASE] if is_new else self._first
        density = self.stopped_at / max(1, self.next_offset - first)
        if not is_new:
            return Batches(density, 0)
        found = [row[parsers.END] - row[parsers.POSITION] + parsers.HEADER_V2 for row in rows]
        is_equal = min(found) >= _ABOUT_EQUAL * max(found)
        return Batches(density, max(found) if is_equal else 0)

    def batches(self, *, with_headers: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the records as record batches of up to `ROWS` rows or about `BYTES` bytes.

        With `with_headers` they have the column `headers`. Raises CorruptError at a malformed
        batch, after the records before it.
        """
        output = _Output(self._engine, self.tp, with_headers)
        failure: CorruptError | None = None
        try:
            for piece in self._pieces():
                output.cursor[parsers.ROW], output.cursor[parsers.AT] = 0, -1
                while self._parse(piece, output) == parsers.FULL:
                    if output.filled:
                        yield output.take()
                    else:
                        output.drop()
        except CorruptError as error:
            failure = error
        if output.filled:
            yield output.take()
        output.drop()
        self._raise(failure)

    def records(self) -> Iterator[Records]:
        """Yield the records as runs of up to `ROWS` messages, which refer to the response.

        Small decompressed batches are joined. Raises CorruptError as `batches` does.
        """
        failure: CorruptError | None = None
        try:
            for group in self._groups():
                yield from self._located(group)
        except CorruptError as error:
            failure = error
        self._raise(failure)

    def _located(self, group: _Group) -> Iterator[Records]:
        """Yield the records of a group. Raises CorruptError after the records before it."""
        engine, size = self._engine, parsers.PLACES * group.most
        cursor, places = engine.longs(_zeros(parsers.CURSOR)), engine.table(size)
        span = self._first, self._until

        def run() -> Iterator[Records]:
            if filled := int(cursor[parsers.FILLED]):
                yield Records(self.tp, group.data, places, filled, group.keeper)

        for piece, shift in group.pieces:
            cursor[parsers.ROW], cursor[parsers.AT] = 0, -1
            at = piece.data, piece.table, piece.rows, cursor, *span, shift
            while (status := engine.parsers.locate(*at, places)) == parsers.FULL:
                yield from run()
                cursor[parsers.FILLED], places = 0, engine.table(size)
            if status != parsers.DONE:
                yield from run()
                _check_status(status, piece, cursor)
        yield from run()

    def _groups(self) -> Iterator[_Group]:
        """Yield the pieces in groups, so that small decompressed batches become one run."""
        waiting: list[_Piece] = []
        failure: CorruptError | None = None
        try:
            for piece in self._pieces():
                is_full = sum(len(one.data) for one in waiting) >= _JOINED_BYTES
                if waiting and (is_full or piece.content is None):
                    yield _joined(waiting)
                    waiting = []
                if piece.content is None:
                    data, keeper, shift = self._source()
                    yield _Group(data, keeper, [(piece, shift)])
                else:
                    waiting.append(piece)
        except CorruptError as error:
            failure = error
        if waiting:
            yield _joined(waiting)
        if failure is not None:
            raise failure

    def _source(self) -> tuple[mmap | bytes, pa.Buffer | None, int]:
        """Return bytes that can be sliced, the buffer that keeps them, and the position in them at
        which the data begin."""
        if self._memory is None or self._data.size < _COPIED:
            return self._data.to_pybytes(), None, 0
        return self._memory, self._data, self._data.address - address_of(self._memory)

    def _raise(self, failure: CorruptError | None) -> None:
        """Raise `failure`, or the error of the malformed batch that ended the scan, if any."""
        if failure is not None:
            raise failure
        if self.is_corrupt:
            raise CorruptError(
                f"the batch at offset {self._offset_at(self.stopped_at)} is malformed"
            )

    def _parse(self, piece: _Piece, output: _Output) -> int:
        parse, columns = self._engine.parsers.parse, output.columns()
        cursor, span = output.cursor, (self._first, self._until)
        status = parse(piece.data, piece.table, piece.rows, cursor, *span, columns)
        _check_status(status, piece, cursor)
        return int(status)

    def _offset_at(self, at: int) -> int:
        return int.from_bytes(memoryview(self._data)[at : at + 8], "big", signed=True)

    def _pieces(self) -> Iterator[_Piece]:
        """Check the batches, decompress them, and yield them in their order."""
        begin = 0
        rows = _as_rows(self._table, self._rows)
        try:
            for number, row in enumerate(rows):
                if row[parsers.POSITION] in self._left_out:
                    yield from self._uncompressed(begin, number)
                    begin = number + 1
                    continue
                self._check(row)
                if row[parsers.CODEC]:
                    inner = self._decompressed(self._data, row, 1)
                    yield from self._uncompressed(begin, number)
                    begin = number + 1
                    yield from inner
        except CorruptError:
            yield from self._uncompressed(begin, number)
            raise
        yield from self._uncompressed(begin, self._rows)

    def _uncompressed(self, begin: int, end: int) -> Iterator[_Piece]:
        if end > begin:
            table = self._table[begin * parsers.WIDTH : end * parsers.WIDTH]
            yield _Piece(self._octets, table, end - begin)

    def _check(self, row: list[int]) -> None:
        """Check a batch's checksum. Skip uncompressed messages of the old formats, whose checksums
        `parse` checks."""
        data = self._data.slice(row[parsers.CHECKED], row[parsers.END] - row[parsers.CHECKED])
        if row[parsers.FORMAT] == 2:
            found = google_crc32c.value(data)
        elif row[parsers.CODEC]:
            found = zlib.crc32(data)
        else:
            return
        if found != row[parsers.CHECKSUM]:
            raise CorruptError(f"the batch before offset {row[parsers.NEXT]} has a wrong checksum")

    def _decompressed(self, data: pa.Buffer, row: list[int], level: int) -> list[_Piece]:
        """Return the decompressed contents of a batch whose checksum was already checked."""
        compressed = data.slice(row[parsers.POSITION], row[parsers.END] - row[parsers.POSITION])
        where = f"the batch before offset {row[parsers.NEXT]}"
        try:
            content = decompress(row[parsers.CODEC], compressed)
        except CodecError as error:
            raise CorruptError(f"{where} cannot be decompressed: {error}") from error
        octets = self._engine.octets(content)
        if row[parsers.FORMAT] == 2:
            one = row.copy()
            one[parsers.POSITION], one[parsers.END], one[parsers.CODEC] = 0, content.size, 0
            return [_Piece(octets, self._engine.longs(array("q", one)), 1, content)]
        table, count, _, stopped_at, is_corrupt = self._scan(octets)
        if is_corrupt or stopped_at != content.size or level > _MAX_NESTED:
            raise CorruptError(f"{where} contains malformed messages")
        last = self._engine.parsers.last_offset(octets, 0, content.size)
        # Format v1 counts the offsets within a set from 0 (KIP-31); format v0 stores full offsets.
        shift = row[parsers.BASE] - last if row[parsers.FORMAT] == 1 else 0
        pieces: list[_Piece] = []
        for inner in _as_rows(table, count):
            if inner[parsers.FORMAT] > 1:
                raise CorruptError(f"{where} contains a batch of another format")
            inner[parsers.BASE] += shift
            inner[parsers.NEXT] += shift
            inner[parsers.CHECKED] = -1
            if row[parsers.TIME_TYPE] == parsers.APPEND_TIME:
                inner[parsers.TIME], inner[parsers.TIME_TYPE] = (
                    row[parsers.TIME],
                    parsers.APPEND_TIME,
                )
            if inner[parsers.CODEC]:
                pieces += self._decompressed(content, inner, level + 1)
            else:
                pieces.append(_Piece(octets, self._engine.longs(array("q", inner)), 1, content))
        return pieces


def _check_status(status: int, piece: _Piece, cursor: Array) -> None:
    """Raise CorruptError if a parser has found a malformed record."""
    if status in (parsers.CORRUPT, parsers.CHECKSUM_FAILED):
        row = int(cursor[parsers.ROW]) * parsers.WIDTH
        what = "is malformed" if status == parsers.CORRUPT else "has a wrong checksum"
        upcoming = int(piece.table[row + parsers.NEXT])
        raise CorruptError(f"a batch before offset {upcoming} {what}")


def _joined(pieces: Sequence[_Piece]) -> _Group:
    """Return decompressed pieces as one group."""
    contents: list[pa.Buffer] = []
    placed: list[tuple[_Piece, int]] = []
    shift = size = 0
    for piece in pieces:
        assert piece.content is not None
        if not contents or contents[-1] is not piece.content:
            contents.append(piece.content)
            shift, size = size, size + piece.content.size
        placed.append((piece, shift))
    return _Group(b"".join(contents), None, placed)


def _aborted_batches(data: memoryview, end: int, aborted: Iterable[Aborted]) -> frozenset[int]:
    """Return the positions of the records of aborted batches, among the complete batches up to
    `end`.

    The messages of an aborted transaction are those of its producer from the transaction's first
    offset to the abort marker.

    Kafka: `org.apache.kafka.clients.consumer.internals.Fetcher.PartitionRecords`, 0.11 to 3.9.
    """
    waiting = sorted(aborted, key=lambda one: one.first, reverse=True)
    if not waiting:
        return frozenset()
    producers: set[int] = set()
    found: set[int] = set()
    for one in batch_headers(data[:end]):
        if one is None:
            continue
        while waiting and waiting[-1].first <= one.last:
            producers.add(waiting.pop().producer)
        records = one.at + HEADER_BYTES
        if one.is_control:
            if parsers.is_abort_marker(data, records, one.stop):
                producers.discard(one.producer)
        elif one.is_transactional and one.producer in producers:
            found.add(records)
    return frozenset(found)


def _as_rows(table: Array, count: int) -> list[list[int]]:
    flat = table[: count * parsers.WIDTH].tolist()
    return [flat[at : at + parsers.WIDTH] for at in range(0, len(flat), parsers.WIDTH)]
