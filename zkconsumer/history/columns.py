"""Decode ZooKeeper's transactions into Arrow columns, with loops that numba compiles.

The results are those of `transactions.decode`, as record batches. If a transaction cannot be
decoded, `transactions` finds the reason. The module needs the extra `fast` (numba, pyarrow).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import pyarrow as pa

from zkconsumer.history import transactions as tx
from zkconsumer.history.transactions import RowTuple

try:
    import numba
    import numpy as np
except ImportError:  # numba is optional: without it, the plain decoder's rows become columns
    numba = np = None  # type: ignore[assignment]  # see `can_compile`

Array: TypeAlias = Any
"""An array of numpy, or the arrays of `_Columns`: numba and numpy have no types here."""

Number: TypeAlias = Any  # Any: numpy in compiled code has no types

SCHEMA = pa.schema(
    [
        pa.field("zxid", pa.int64(), nullable=False),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("session", pa.int64(), nullable=False),
        pa.field("cxid", pa.int32(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("acl", pa.binary()),
    ]
)
"""The fields of `transactions.Row`, in their order."""

BATCH_ROWS = 1 << 16
"""Number of rows of one record batch: its columns, about 10 MB, fit into a processor's cache."""

BATCH_BYTES = 8 << 20
"""Number of bytes for a batch's paths, and for its data; a single transaction may need more."""


class _Columns(NamedTuple):
    """The arrays that the compiled loop fills.

    There are only a few arrays, because passing an array to a compiled function costs as much as
    decoding a field.

    Attributes:
        numbers: an array of the rows' values for each numeric field, in the order of `_NUMBERS`.
        ends: an array for each of the texts path, data and acl; it has 0, and then the end of each
            row's text.
        given: an array for each of the texts; it has 1 for a row with the text, else 0.
        texts: the bytes of all paths, of all data and of all acls.
        used: the number of bytes used in each array of texts.
    """

    numbers: Array
    ends: Array
    given: Array
    texts: Array
    used: Array


_NUMBERS = ("zxid", "time_ms", "session", "cxid", "kind", "part", "version", "number")
_TEXTS = ("path", "data", "acl")
_ZXID, _TIME, _SESSION, _CXID, _KIND, _PART, _VERSION, _NUMBER = range(8)
_PATH, _DATA, _ACL = range(3)


def _columns(rows: int, size: int) -> _Columns:
    return _Columns(
        np.empty((8, rows), np.int64),
        np.zeros((3, rows + 1), np.int32),
        np.empty((3, rows), np.uint8),
        np.empty((3, size), np.uint8),
        np.zeros(3, np.int64),
    )


def can_compile() -> bool:
    """Return whether the extra `fast` is installed, which `ColumnDecoder` needs."""
    return numba is not None


class ColumnDecoder:
    """Decodes windows of a log into record batches, and reuses its arrays."""

    def __init__(self) -> None:
        self._columns = _columns(BATCH_ROWS, BATCH_BYTES)

    def decode(self, window: bytes, at: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the complete and undamaged transactions from `at`, and the offset after them."""
        buffer = np.frombuffer(window, np.uint8)
        batches: list[pa.RecordBatch] = []
        while True:
            begin = at
            at, rows, full = _transactions(buffer, at, self._columns)
            if rows:
                batch = self._batch(rows)
                if not _is_utf8(batch):  # the plain decoder stops before the malformed transaction
                    found: list[RowTuple] = []
                    at = tx.decode(window, begin, found, {})
                    return [*batches, to_batch(found)], at
                batches.append(batch)
            elif full:  # the next transaction does not fit into the arrays
                self._columns = _columns(
                    2 * self._columns.numbers.shape[1], 2 * self._columns.texts.shape[1]
                )
            if not full:
                return batches, at

    def _batch(self, rows: int) -> pa.RecordBatch:
        """Copy the filled parts of the arrays into a record batch."""
        c = self._columns

        def numbers(line: int, kind: pa.DataType) -> pa.Array:
            values = c.numbers[line, :rows].astype(kind.to_pandas_dtype())
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])

        def texts(line: int, kind: pa.DataType) -> pa.Array:
            ends = c.ends[line, : rows + 1]
            valid = pa.py_buffer(np.packbits(c.given[line, :rows], bitorder="little"))
            content = c.texts[line, : ends[rows]]
            return pa.Array.from_buffers(kind, rows, [valid, _copied(ends), _copied(content)])

        arrays = [
            texts(_TEXTS.index(field.name), field.type)
            if field.name in _TEXTS
            else numbers(_NUMBERS.index(field.name), field.type)
            for field in SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _is_utf8(batch: pa.RecordBatch) -> bool:
    try:
        batch.column("path").validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _copied(values: Array) -> pa.Buffer:
    return pa.py_buffer(values.tobytes())


def to_batch(rows: Sequence[RowTuple]) -> pa.RecordBatch:
    """Return rows of the plain decoder as a record batch."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def to_tuples(batch: pa.RecordBatch) -> list[RowTuple]:
    """Return a record batch as tuples with the fields of `transactions.Row`.

    Equal paths become one object, which takes a third of the time of decoding each path.
    """
    paths = batch.column("path").dictionary_encode()
    names = [*paths.dictionary.to_pylist(), None]
    numbers = paths.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False).tolist()
    columns = {
        field.name: batch.column(field.name).to_numpy().tolist()
        if field.name in _NUMBERS
        else batch.column(field.name).to_pylist()
        for field in SCHEMA
        if field.name != "path"
    }
    columns["path"] = map(names.__getitem__, numbers)
    return list(zip(*(columns[field.name] for field in SCHEMA), strict=True))


# ---- compiled -----------------------------------------------------------------------------------
# Each function reads a field at an offset. The function returns the offset after the field, or -1
# if the field is malformed.

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Let numba compile a function at its first call, if numba is installed."""
    return function if numba is None else cast(F, numba.njit(cache=True, nogil=True)(function))


@compiled
def _int(buffer: Array, at: int) -> Number:
    # With an unsigned index, the four bytes become one load. A negative index counts from the end,
    # so a signed index would need a check of its sign for each byte.
    i = np.uint64(at)
    return np.int64(
        np.int32(
            (np.uint32(buffer[i]) << np.uint32(24))
            | (np.uint32(buffer[i + np.uint64(1)]) << np.uint32(16))
            | (np.uint32(buffer[i + np.uint64(2)]) << np.uint32(8))
            | np.uint32(buffer[i + np.uint64(3)])
        )
    )


@compiled
def _long(buffer: Array, at: int) -> Number:
    return (_int(buffer, at) << 32) | (_int(buffer, at + 4) & 0xFFFFFFFF)


@compiled
def _adler(buffer: Array, at: int, stop: int) -> Number:
    """Compute Adler-32 in blocks of 4096 bytes, in which the sums stay below 32 bits."""
    one, two = np.uint32(1), np.uint32(0)
    while at < stop:
        block = buffer[at : min(stop, at + 4096)]
        size = len(block)
        plain, weighted = np.uint32(0), np.uint32(0)
        for i in range(size):
            value = np.uint32(block[i])
            plain += value
            weighted += value * np.uint32(size - i)
        two = (two + np.uint32(size) * one + weighted) % np.uint32(65521)
        one = (one + plain) % np.uint32(65521)
        at += size
    return (np.int64(two) << 16) | np.int64(one)


@compiled
def _copy(buffer: Array, at: int, size: int, c: Array, text: int, n: int) -> None:
    """Copy one text field of row number `n`."""
    source, row, target = np.uint64(at), np.uint64(text), np.uint64(c.used[text])
    for i in range(np.uint64(size)):
        c.texts[row, target + i] = buffer[source + i]
    c.used[text] += size
    c.given[text, n] = 1


@compiled
def _read_path(buffer: Array, at: int, stop: int, c: Array, n: int) -> Number:
    if at + 4 > stop:
        return -1
    size = _int(buffer, at)
    if size < 1 or size > stop - at - 4 or buffer[at + 4] != 47:
        return -1
    _copy(buffer, at + 4, size, c, _PATH, n)
    return at + 4 + size


@compiled
def _read_data(buffer: Array, at: int, stop: int, c: Array, n: int) -> Number:
    if at + 4 > stop:
        return -1
    size = _int(buffer, at)
    if size == -1:
        return at + 4
    if size < 0 or size > stop - at - 4:
        return -1
    _copy(buffer, at + 4, size, c, _DATA, n)
    return at + 4 + size


@compiled
def _read_acl(buffer: Array, at: int, stop: int, c: Array, n: int) -> Number:
    if at + 4 > stop:
        return -1
    count = _int(buffer, at)
    if count == -1:
        return at + 4
    if count < 0 or count * 12 > stop - at:
        return -1
    end = at + 4
    for _ in range(count):
        end += 4
        for _ in range(2):
            if end + 4 > stop:
                return -1
            size = _int(buffer, end)
            end += 4 + max(size, 0)
            if size < -1 or end > stop:
                return -1
    _copy(buffer, at, end - at, c, _ACL, n)
    return end


@compiled
def _read_version(buffer: Array, at: int, stop: int, c: Array, n: int) -> Number:
    if at == -1 or at + 4 > stop:
        return -1
    c.numbers[_VERSION, n] = _int(buffer, at)
    return at + 4


@compiled
def _read_create(buffer: Array, kind: int, at: int, stop: int, c: Array, n: int) -> Number:
    at = _read_path(buffer, at, stop, c, n)
    if at != -1:
        at = _read_data(buffer, at, stop, c, n)
    if at != -1:
        at = _read_acl(buffer, at, stop, c, n)
    if at == -1:
        return -1
    if kind in (tx.CREATE, tx.CREATE2):
        if at >= stop or buffer[at] > 1:
            return -1
        c.numbers[_NUMBER, n] = buffer[at]
        if at + 1 == stop:
            c.numbers[_VERSION, n] = -1
            return stop
        return _read_version(buffer, at + 1, stop, c, n)
    at = _read_version(buffer, at, stop, c, n)
    if kind == tx.CREATE_TTL and at != -1:
        if at + 8 > stop:
            return -1
        c.numbers[_NUMBER, n] = _long(buffer, at)
        return at + 8
    return at


@compiled
def _read_close(buffer: Array, at: int, stop: int, slack: int, c: Array, n: int) -> Number:
    """Read the list of deleted paths, if there is one that fits exactly."""
    for end in (stop, stop - slack):
        if at + 4 > end:
            continue
        count = _int(buffer, at)
        place = at + 4
        fits = 0 <= count <= (end - at) // 4
        for _ in range(count if fits else 0):
            size = _int(buffer, place) if place + 4 <= end else -1
            place += 4 + size
            if size < 0 or place > end:
                fits = False
                break
        if fits and place == end:
            _copy(buffer, at, end - at, c, _DATA, n)
            return end
    return at


@compiled
def _read_record(buffer: Array, kind: int, at: int, stop: int, c: Array, n: int) -> Number:
    if kind in (tx.CREATE, tx.CREATE2, tx.CREATE_CONTAINER, tx.CREATE_TTL):
        return _read_create(buffer, kind, at, stop, c, n)
    if kind in (tx.ERROR, tx.CREATE_SESSION):
        if at + 4 > stop:
            return -1
        c.numbers[_NUMBER, n] = _int(buffer, at)
        return at + 4
    at = _read_path(buffer, at, stop, c, n)
    if at == -1 or kind in (tx.DELETE, tx.DELETE_CONTAINER):
        return at
    if kind == tx.SET_ACL:
        at = _read_acl(buffer, at, stop, c, n)
    elif kind != tx.CHECK:
        at = _read_data(buffer, at, stop, c, n)
    return _read_version(buffer, at, stop, c, n)


@compiled
def _in_multi(kind: int) -> bool:
    return kind in (
        *(tx.CREATE, tx.DELETE, tx.SET_DATA, tx.CHECK, tx.CREATE2, tx.CREATE_CONTAINER),
        *(tx.DELETE_CONTAINER, tx.CREATE_TTL, tx.ERROR),
    )


@compiled
def _begin_row(c: Array, n: int, head: Array, kind: int, part: int) -> None:
    numbers = c.numbers
    numbers[_ZXID, n], numbers[_TIME, n], numbers[_SESSION, n], numbers[_CXID, n] = head
    numbers[_KIND, n], numbers[_PART, n], numbers[_VERSION, n], numbers[_NUMBER, n] = (
        kind,
        part,
        0,
        0,
    )
    c.given[_PATH, n] = c.given[_DATA, n] = c.given[_ACL, n] = 0


@compiled
def _end_row(c: Array, n: int) -> None:
    for text in range(3):
        c.ends[text, n + 1] = c.used[text]


@compiled
def _read_multi(buffer: Array, at: int, stop: int, head: Array, c: Array, first: int) -> Number:
    """Fill the rows from `first`; return the number of the next row, or -1 for a fault."""
    count = _int(buffer, at) if at + 4 <= stop else -1
    if count < 0 or count * 8 > stop - at:
        return -1
    used = (c.used[0], c.used[1], c.used[2])
    at += 4
    n, error, failed = first, 0, count == 0
    for part in range(count):
        if at + 8 > stop:
            return -1
        kind, size = _int(buffer, at), _int(buffer, at + 4)
        begin, at = at + 8, at + 8 + size
        if size < 0 or at > stop or not _in_multi(kind):
            return -1
        _begin_row(c, n, head, kind, part)
        # A record of type ERROR with another size is the record of an operation; see
        # `transactions`.
        is_record = kind != tx.ERROR or size == tx.ERROR_SIZE
        if is_record and _read_record(buffer, kind, begin, at, c, n) != at:
            return -1
        if kind == tx.ERROR:
            error, failed = error or c.numbers[_NUMBER, n], True
        _end_row(c, n)
        n += 1
    if at != stop and at + tx.DIGEST != stop:
        return -1
    if failed:  # a failed multi changed nothing
        c.used[0], c.used[1], c.used[2] = used
        _begin_row(c, first, head, tx.MULTI, -1)
        c.numbers[_NUMBER, first] = error
        _end_row(c, first)
        return first + 1
    return n


@compiled
def _record(buffer: Array, at: int, stop: int, c: Array, n: int) -> Number:
    """Fill the rows of the transaction at `at`; return the number of the next row, or -1."""
    head = (
        *(_long(buffer, at + 24), _long(buffer, at + 32), _long(buffer, at + 12)),
        _int(buffer, at + 20),
    )
    kind, at = _int(buffer, at + 40), at + 44
    if kind == tx.MULTI:
        return _read_multi(buffer, at, stop, head, c, n)
    _begin_row(c, n, head, kind, -1)
    if kind == tx.CLOSE_SESSION:
        end = _read_close(buffer, at, stop, tx.DIGEST, c, n)
    elif kind in (tx.SET_ACL, tx.RECONFIG, tx.CREATE_SESSION) or (
        _in_multi(kind) and kind != tx.CHECK
    ):
        end = _read_record(buffer, kind, at, stop, c, n)
    else:
        return -1
    if end == -1 or (end != stop and end + tx.DIGEST != stop):
        return -1
    _end_row(c, n)
    return n + 1


@compiled
def _set_data(buffer: Array, at: int, stop: int, c: Array, n: int) -> bool:
    """Fill the row of the transaction at `at` if it sets a znode's data and is well-formed.

    Four of five transactions are commits. Because they need no function for each field, the whole
    log takes less than half of the time.
    """
    path = at + 48
    path_size = _int(buffer, at + 44) if path < stop else 0
    data = path + path_size + 4
    if path_size < 1 or data + 4 > stop or buffer[path] != 47:
        return False
    data_size = _int(buffer, data - 4)
    end = data + data_size
    if data_size < 0 or (end + 4 != stop and end + 4 + tx.DIGEST != stop):
        return False
    numbers, row = c.numbers, np.uint64(n)
    numbers[_ZXID, row], numbers[_TIME, row] = _long(buffer, at + 24), _long(buffer, at + 32)
    numbers[_SESSION, row], numbers[_CXID, row] = _long(buffer, at + 12), _int(buffer, at + 20)
    numbers[_KIND, row], numbers[_PART, row] = tx.SET_DATA, -1
    numbers[_VERSION, row], numbers[_NUMBER, row] = _int(buffer, end), 0
    c.given[_ACL, row] = 0
    _copy(buffer, path, path_size, c, _PATH, n)
    _copy(buffer, data, data_size, c, _DATA, n)
    _end_row(c, n)
    return True


@compiled
def _transactions(buffer: Array, at: int, c: Array) -> Number:
    """Fill the columns with the transactions from the offset `at` of `buffer` on.

    Return the offset after the last of these transactions, the number of rows, and whether the
    columns are full.
    """
    limit, n, used = len(buffer), 0, c.used
    used[:] = 0
    while at + 45 <= limit:
        size = _int(buffer, at + 8)
        stop = at + 12 + size
        if size < 32 or stop >= limit or buffer[stop] != 0x42:
            break
        most = max(used[0], used[1], used[2])
        if n + 1 + size // 8 > c.numbers.shape[1] or most + size > c.texts.shape[1]:
            return at, n, True
        if _adler(buffer, at + 12, stop) != _long(buffer, at):
            break
        if _int(buffer, at + 40) == tx.SET_DATA and _set_data(buffer, at, stop, c, n):
            n += 1
        else:
            before = (used[0], used[1], used[2])
            after = _record(buffer, at, stop, c, n)
            if after == -1:
                used[0], used[1], used[2] = before
                break
            n = after
        at = stop + 1
    return at, n, False
