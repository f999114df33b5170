"""Convert record sets of Fetch responses, one partition at a time.

`RecordSet` finds the batches, and so the next offset to fetch, before any record is read. `records`
then checks and decompresses them, and finds the places of the records without copying them.
`column_batches` instead copies the records into Arrow record batches. The functions of `parsers`
process each record.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from mmap import mmap
from typing import Final, Literal, NamedTuple

import google_crc32c

from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.batch_headers import HEADER_BYTES, batch_headers
from zkconsumer.kafka.columns.codecs import CodecError, decompress
from zkconsumer.kafka.columns.parsers import Parsers
from zkconsumer.kafka.columns.primitives import Array
from zkconsumer.kafka.columns.records import CorruptError, Records
from zkconsumer.kafka.columns.requests import Aborted
from zkconsumer.kafka.columns.responses import Response
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

# Maximum number of messages in a run of the plain engine, which takes some microseconds for each.
_PLAIN_RUN: Final = 500

# Maximum depth of nested compressed sets. The old producers wrote one level.
_MAX_NESTED: Final = 4


class ParserEngine(NamedTuple):
    """An implementation of the parsers: compiled over numpy arrays, or Python over memoryviews."""

    parsers: Parsers
    octets: Callable[[Array], Array]
    ints: Callable[[Array], Array]
    longs: Callable[[Array], Array]
    table: Callable[[int], Array]
    """Makes an array of 64-bit numbers, whose initial values are arbitrary."""
    readable: Callable[[Array], Array]
    """Makes bytes that `google_crc32c` can read, from an array of bytes."""
    run: int
    """Maximum number of messages in a run. The first one must not wait long for the others."""


@cache
def plain_engine() -> ParserEngine:
    """Return the engine that needs no numba; it takes some microseconds for each record."""

    def view(form: Literal["B", "i", "q"]) -> Callable[[Array], Array]:
        return lambda data: memoryview(data).cast("B").cast(form)

    return ParserEngine(
        parsers.PLAIN,
        view("B"),
        view("i"),
        view("q"),
        lambda count: zeros(count).cast("q"),
        bytes,
        _PLAIN_RUN,
    )


@cache
def compiled_engine() -> ParserEngine:
    """Return the compiled engine; the first call on a machine compiles it.

    Raises ImportError without numba, and RuntimeError if numba finds no directory for its cache.
    """
    import numpy as np  # noqa: PLC0415 - the extra `fast`

    def view(kind: type) -> Callable[[Array], Array]:
        return lambda data: np.frombuffer(data, kind)

    # The system provides only those pages of a table that are written.
    return ParserEngine(
        parsers.compiled(),
        view(np.uint8),
        view(np.int32),
        view(np.int64),
        lambda count: np.empty(count, np.int64),
        lambda data: data,
        ROWS,
    )


def zeros(count: int) -> memoryview:
    """Return memory for 64-bit numbers."""
    return memoryview(bytearray(8 * count))


class Piece(NamedTuple):
    """Uncompressed batches that one call can parse: rows of a table over the same bytes."""

    data: Array
    table: Array
    rows: int
    content: memoryview | None = None
    """The decompressed bytes; None if the bytes are those of the response."""


class _Group(NamedTuple):
    """Pieces to whose records one run can refer."""

    data: mmap | bytes
    keeper: object
    """The lease of the response, if `data` is its memory."""
    pieces: list[tuple[Piece, int]]
    """Each piece, with the position of its bytes in `data`."""

    @property
    def most(self) -> int:
        """An upper bound of the number of records, at least 1."""
        found = 1
        for piece, _ in self.pieces:
            counts = piece.table[parsers.COUNT :: parsers.WIDTH].tolist()
            found += sum(counts)
            if not all(counts):  # the old formats do not count their messages
                found += len(piece.data) // parsers.LEAST_ENTRY
        return int(found)


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
        response: Response,
        engine: ParserEngine,
        *,
        first: int = 0,
        until: int = parsers.MAX_OFFSET,
        aborted: Iterable[Aborted] = (),
    ) -> None:
        """Find the batches.

        Args:
            response: the bytes. They must not change while this object or its `Records` exist.
            first: offset of the first record wanted; a batch may begin with earlier ones.
            until: offset after the last record wanted.
            aborted: the transactions whose messages are left out.
        """
        self.tp = tp
        self.engine = engine
        self.span = first, until
        self._response = response
        self._data = response.data
        self._octets = engine.octets(self._data)
        self._table, self._rows, self.next_offset, self.stopped_at, self.is_corrupt = self._scan(
            self._octets
        )
        self._left_out = _aborted_batches(self._data, self.stopped_at, aborted)

    def _scan(self, octets: Array) -> tuple[Array, int, int, int, bool]:
        # A batch of format v2 has at least 61 bytes, a message of an old format at least 26.
        table = self.engine.table((len(octets) // parsers.LEAST_ENTRY + 1) * parsers.WIDTH)
        found = self.engine.longs(zeros(parsers.SCANNED))
        self.engine.parsers.scan(octets, 0, len(octets), table, found)
        count, stopped_at, status, upcoming = found.tolist()
        return table, count, upcoming, stopped_at, status == parsers.CORRUPT

    @property
    def needed(self) -> int:
        """The size in bytes of the incomplete batch at `stopped_at`; 0 if it is not known."""
        size = self._data[self.stopped_at + 8 : self.stopped_at + 12]
        return 12 + int.from_bytes(size, "big") if len(size) == 4 else 0

    def sizes(self) -> Batches:
        """Return the sizes of the complete batches; there must be at least one."""
        rows = _as_rows(self._table, self._rows)
        is_new = bool(rows) and all(row[parsers.FORMAT] == 2 for row in rows)
        first = rows[0][parsers.BASE] if is_new else self.span[0]
        density = self.stopped_at / max(1, self.next_offset - first)
        if not is_new:
            return Batches(density, 0)
        found = [row[parsers.END] - row[parsers.POSITION] + parsers.HEADER_V2 for row in rows]
        is_equal = min(found) >= _ABOUT_EQUAL * max(found)
        return Batches(density, max(found) if is_equal else 0)

    def records(self) -> Iterator[Records]:
        """Yield the records as runs of up to `engine.run` messages, which refer to the response.

        Small decompressed batches are joined. Raises CorruptError at a malformed batch, after the
        records before it.
        """
        failure: CorruptError | None = None
        try:
            for group in self._groups():
                yield from self._located(group)
        except CorruptError as error:
            failure = error
        self.raise_failure(failure)

    def _located(self, group: _Group) -> Iterator[Records]:
        """Yield the records of a group. Raises CorruptError after the records before it."""
        engine, size = self.engine, parsers.PLACES * min(self.engine.run, group.most)
        cursor, places = engine.longs(zeros(parsers.CURSOR)), engine.table(size)

        def run() -> Iterator[Records]:
            if filled := int(cursor[parsers.FILLED]):
                yield Records(self.tp, group.data, places, filled, group.keeper)

        for piece, shift in group.pieces:
            cursor[parsers.ROW], cursor[parsers.AT] = 0, -1
            at = piece.data, piece.table, piece.rows, cursor, *self.span, shift
            while (status := engine.parsers.locate(*at, places)) == parsers.FULL:
                yield from run()
                cursor[parsers.FILLED], places = 0, engine.table(size)
            if status != parsers.DONE:
                yield from run()
                check_status(status, piece, cursor)
        yield from run()

    def _groups(self) -> Iterator[_Group]:
        """Yield the pieces in groups, so that small decompressed batches become one run."""
        waiting: list[Piece] = []
        failure: CorruptError | None = None
        try:
            for piece in self.pieces():
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

    def _source(self) -> tuple[mmap | bytes, object, int]:
        """Return bytes that can be sliced, the object that keeps them, and the position in them at
        which the data begin."""
        if len(self._data) < _COPIED:
            return bytes(self._data), None, 0
        return self._response.memory, self._response.lease, self._response.start

    def raise_failure(self, failure: CorruptError | None) -> None:
        """Raise `failure`, or the error of the malformed batch that ended the scan, if any."""
        if failure is not None:
            raise failure
        if self.is_corrupt:
            raise CorruptError(
                f"the batch at offset {self._offset_at(self.stopped_at)} is malformed"
            )

    def _offset_at(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 8], "big", signed=True)

    def pieces(self) -> Iterator[Piece]:
        """Check the batches, decompress them, and yield them in their order.

        Raises CorruptError at a malformed batch, after the batches before it.
        """
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

    def _uncompressed(self, begin: int, end: int) -> Iterator[Piece]:
        if end > begin:
            table = self._table[begin * parsers.WIDTH : end * parsers.WIDTH]
            yield Piece(self._octets, table, end - begin)

    def _check(self, row: list[int]) -> None:
        """Check a batch's checksum. Skip uncompressed messages of the old formats, whose checksums
        `parse` checks."""
        at, end = row[parsers.CHECKED], row[parsers.END]
        if row[parsers.FORMAT] == 2:
            found = google_crc32c.value(self.engine.readable(self._octets[at:end]))
        elif row[parsers.CODEC]:
            found = zlib.crc32(self._data[at:end])
        else:
            return
        if found != row[parsers.CHECKSUM]:
            raise CorruptError(f"the batch before offset {row[parsers.NEXT]} has a wrong checksum")

    def _decompressed(self, data: memoryview, row: list[int], level: int) -> list[Piece]:
        """Return the decompressed contents of a batch whose checksum was already checked."""
        compressed = data[row[parsers.POSITION] : row[parsers.END]]
        where = f"the batch before offset {row[parsers.NEXT]}"
        try:
            content = decompress(row[parsers.CODEC], compressed)
        except CodecError as error:
            raise CorruptError(f"{where} cannot be decompressed: {error}") from error
        octets = self.engine.octets(content)
        if row[parsers.FORMAT] == 2:
            one = row.copy()
            one[parsers.POSITION], one[parsers.END], one[parsers.CODEC] = 0, len(content), 0
            return [Piece(octets, self.engine.longs(array("q", one)), 1, content)]
        table, count, _, stopped_at, is_corrupt = self._scan(octets)
        if is_corrupt or stopped_at != len(content) or level > _MAX_NESTED:
            raise CorruptError(f"{where} contains malformed messages")
        last = self.engine.parsers.last_offset(octets, 0, len(content))
        # Format v1 counts the offsets within a set from 0 (KIP-31); format v0 stores full offsets.
        shift = row[parsers.BASE] - last if row[parsers.FORMAT] == 1 else 0
        pieces: list[Piece] = []
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
                pieces.append(Piece(octets, self.engine.longs(array("q", inner)), 1, content))
        return pieces


def check_status(status: int, piece: Piece, cursor: Array) -> None:
    """Raise CorruptError if a parser has found a malformed record."""
    if status in (parsers.CORRUPT, parsers.CHECKSUM_FAILED):
        row = int(cursor[parsers.ROW]) * parsers.WIDTH
        what = "is malformed" if status == parsers.CORRUPT else "has a wrong checksum"
        upcoming = int(piece.table[row + parsers.NEXT])
        raise CorruptError(f"a batch before offset {upcoming} {what}")


def _joined(pieces: Sequence[Piece]) -> _Group:
    """Return decompressed pieces as one group."""
    contents: list[memoryview] = []
    placed: list[tuple[Piece, int]] = []
    shift = size = 0
    for piece in pieces:
        assert piece.content is not None
        if not contents or contents[-1] is not piece.content:
            contents.append(piece.content)
            shift, size = size, size + len(piece.content)
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
