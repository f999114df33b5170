"""The loops over the bytes of record sets: find batches, and locate records or copy them.

numba compiles these functions (`compiled`). Without numba, Python runs the same functions; tests
also run them in Python to check the compiled ones. The functions index only flat arrays, and check
every length against its bounds before they use the length. For malformed bytes they raise nothing
and report `CORRUPT`.

Kafka: `org.apache.kafka.common.record.DefaultRecord` and `DefaultRecordBatch` (format v2),
`kafka.message.Message` and `kafka.message.ByteBufferMessageSet` (formats v0 and v1), 0.8.2 to 3.9.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Final, NamedTuple, TypeVar

from zkconsumer.kafka.columns.primitives import Array, copy, crc32, int32, int64

F = TypeVar("F", bound=Callable[..., object])

# The functions that compiled functions call. numba inlines those of the second list: they run
# several times for each record, and a call would pass every array as seven numbers, which takes
# longer than the function itself.
_CALLED: Final[list[Callable[..., object]]] = []
_INLINED: Final[list[Callable[..., object]]] = []


def _loop(function: F) -> F:
    _CALLED.append(function)
    return function


def _inlined(function: F) -> F:
    _INLINED.append(function)
    return function


# ---- one row of the table of batches -------------------------------------------------------------

# A row describes one batch, or consecutive uncompressed messages of one old format.
POSITION: Final = 0  # the start of the batch's records or compressed bytes
END: Final = 1  # the end of these bytes
FORMAT: Final = 2  # 0, 1 or 2
CODEC: Final = 3
BASE: Final = 4  # format v2: added to each record's offset; compressed old message: its offset
TIME: Final = 5  # the base of the records' times (format v2), or the time of all records, in ms
TIME_TYPE: Final = 6  # NO_TIME, CREATE_TIME, APPEND_TIME or OWN_TIME
COUNT: Final = 7  # number of records; 0 in the old formats, which do not count them
CHECKED: Final = 8  # the start of the bytes that the checksum covers; they end at END
CHECKSUM: Final = 9
NEXT: Final = 10  # the offset after the last record
LEADER: Final = 11  # the epoch of the leader that wrote the batch; -1 in the old formats
WIDTH: Final = 12

NO_TIME: Final = -1
CREATE_TIME: Final = 0
APPEND_TIME: Final = 1
OWN_TIME: Final = -2  # each message has its own time and type (formats v0 and v1)

# ---- the results of a scan -----------------------------------------------------------------------

ROWS_FOUND: Final = 0
STOPPED_AT: Final = 1
STATUS: Final = 2
NEXT_OFFSET: Final = 3  # the offset after the last complete batch; -1 if there is none
SCANNED: Final = 4

# ---- the position at which parsing continues -----------------------------------------------------

ROW: Final = 0  # number of the batch in the table
AT: Final = 1  # position in the batch; -1 at its beginning
LEFT: Final = 2  # records left in the batch
FILLED: Final = 3  # rows filled in the columns
KEY_NULLS: Final = 4
VALUE_NULLS: Final = 5
TIME_NULLS: Final = 6
KEY_NEEDS: Final = 7  # the size in bytes, by column, of the next record if it does not fit
VALUE_NEEDS: Final = 8
HEADER_NEEDS: Final = 9
CURSOR: Final = 10

DONE: Final = 0
FULL: Final = 1
CORRUPT: Final = 2
CHECKSUM_FAILED: Final = 3

# Higher offsets are corrupt. The bound leaves room to add a record's offset without
# overflow.
MAX_OFFSET: Final = 1 << 62
MAX_DELTA: Final = (1 << 31) - 1

# The maximum time, in ms, that fits into 64 bits as microseconds. A later time becomes null.
MAX_TIME: Final = ((1 << 63) - 1) // 1000
# Represents a time difference that does not fit into 63 bits, and a time that becomes null.
_FAR: Final = 1 << 62

# Sizes in bytes. `_LEAST_MESSAGE` is an empty message of format v0 without its offset and size,
# HEADER_V2 is the header of a batch of format v2, and `_ENTRY` is the offset and size with which
# each message or batch begins.
_LEAST_MESSAGE: Final = 14
HEADER_V2: Final = 61
_ENTRY: Final = 12
LEAST_ENTRY: Final = _ENTRY + _LEAST_MESSAGE


# ---- where records are ---------------------------------------------------------------------------

# The columns of a table of places, one after another; each has room for the same number of records.
# A null ends at -1. A record without headers has no bytes of headers.
KEY_START: Final = 0
KEY_END: Final = 1
VALUE_START: Final = 2
VALUE_END: Final = 3
HEADERS_START: Final = 4
HEADERS_END: Final = 5
OFFSET: Final = 6
RECORD_TIME: Final = 7  # in ms, or UNKNOWN_TIME
RECORD_TIME_TYPE: Final = 8
RECORD_LEADER: Final = 9
PLACES: Final = 10

UNKNOWN_TIME: Final = _FAR


class Columns(NamedTuple):
    """The buffers of one record batch.

    A bit of `…_known` is 0 where the column is null. The bits are valid only if the column has a
    null.
    """

    key_ends: Array
    keys: Array
    key_known: Array
    value_ends: Array
    values: Array
    value_known: Array
    offsets: Array
    times: Array
    time_known: Array
    time_types: Array
    header_ends: Array
    headers: Array


# ---- numbers -------------------------------------------------------------------------------------


@_inlined
def varint(data: Array, at: int, end: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it; the position is -1 if it is malformed.

    A number of ten bytes is returned as a number above all valid ones.
    """
    if 0 <= at < end and data[at] < 128:  # most numbers have one byte
        return (int(data[at]) >> 1) ^ -(int(data[at]) & 1), at + 1
    result = shift = 0
    while 0 <= at < end and shift < 63:
        byte = int(data[at])
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return (result >> 1) ^ -(result & 1), at
        shift += 7
    if 0 <= at < end and data[at] < 2:
        return _FAR, at + 1
    return 0, -1


@_loop
def _after(at: int, size: int, end: int) -> int:
    """Return the position after `size` bytes, or -1 if it exceeds `end`; size -1 is a null."""
    if at < 0 or size < -1 or size > end - at:
        return -1
    return at + max(size, 0)


# ---- batches -------------------------------------------------------------------------------------


def scan(data: Array, at: int, end: int, table: Array, found: Array) -> None:
    """Describe the complete batches from `at` to `end` in `table`, except control batches.

    The function writes into `found` the number of rows, the position at which the scan stopped, its
    status, and the next offset. The status is FULL if the table is full, CORRUPT at a malformed
    batch, otherwise DONE. An incomplete batch at the end is left for the next fetch.
    """
    rows = 0
    status = DONE
    upcoming = -1
    while end - at > HEADER_V2 - 45:  # offset, size, checksum or epoch, and format
        if (rows + 1) * WIDTH > len(table):
            status = FULL
            break
        size = int32(data, at + 8)
        if size < _LEAST_MESSAGE:
            status = CORRUPT
            break
        if size > end - at - _ENTRY:
            break
        stop = at + _ENTRY + size
        if data[at + 16] == 2:
            added = _scan_batch(data, at, stop, table, rows)
        else:
            added = _scan_message(data, at, stop, table, rows)
        if added < 0:
            status = CORRUPT
            break
        upcoming = max(upcoming, table[rows * WIDTH + NEXT])
        rows += added
        at = stop
    found[ROWS_FOUND] = rows
    found[STOPPED_AT] = at
    found[STATUS] = status
    found[NEXT_OFFSET] = upcoming


@_loop
def _scan_batch(data: Array, at: int, stop: int, table: Array, rows: int) -> int:
    """Describe a batch of format v2; return 1, 0 for a control batch, or -1 if it is malformed."""
    if stop - at < HEADER_V2:
        return -1
    base, last, count = int64(data, at), int32(data, at + 23), int32(data, at + 57)
    if base < 0 or base > MAX_OFFSET or last < 0 or count < 0:
        return -1
    attributes = int(data[at + 21]) * 256 + data[at + 22]
    row = rows * WIDTH
    is_append = (attributes & 8) != 0
    table[row + POSITION] = at + HEADER_V2
    table[row + END] = stop
    table[row + FORMAT] = 2
    table[row + CODEC] = attributes & 7
    table[row + BASE] = base
    table[row + TIME] = int64(data, at + 35 if is_append else at + 27)
    table[row + TIME_TYPE] = APPEND_TIME if is_append else CREATE_TIME
    table[row + COUNT] = count
    table[row + CHECKED] = at + 21
    table[row + CHECKSUM] = int32(data, at + 17) & 0xFFFFFFFF
    table[row + NEXT] = base + last + 1
    table[row + LEADER] = int32(data, at + 12)
    return 0 if attributes & 32 else 1


@_loop
def _scan_message(data: Array, at: int, stop: int, table: Array, rows: int) -> int:
    """Describe a message of an old format; return the number of rows added, or -1.

    Consecutive uncompressed messages of one format share a row, and this function checks the
    lengths within the first of them only. `parse` later checks the lengths within the others. It
    finds the end of each message at the same position as this function.
    """
    row = rows * WIDTH
    before = row - WIDTH
    if (
        rows
        and data[at + 17] & 7 == 0
        and table[before + FORMAT] == data[at + 16]
        and table[before + CODEC] == 0
        and table[before + END] == at
        and 0 <= int64(data, at) <= MAX_OFFSET
    ):
        table[before + END] = stop
        table[before + NEXT] = table[row + NEXT] = int64(data, at) + 1
        return 0
    after, offset, kind, codec, time, time_type, _, _, value_at, value_size = message(
        data, at, stop
    )
    if after != stop or offset > MAX_OFFSET:
        return -1
    if codec != 0 and value_size < 0:
        return -1
    table[row + POSITION] = at if codec == 0 else value_at
    table[row + END] = stop
    table[row + FORMAT] = kind
    table[row + CODEC] = codec
    table[row + BASE] = 0 if codec == 0 else offset
    table[row + TIME] = time
    table[row + TIME_TYPE] = APPEND_TIME if codec and time_type == APPEND_TIME else OWN_TIME
    table[row + COUNT] = 0
    table[row + CHECKED] = at + 16
    table[row + CHECKSUM] = int32(data, at + 12) & 0xFFFFFFFF
    table[row + NEXT] = offset + 1
    table[row + LEADER] = -1
    return 1


@_loop
def message(
    data: Array, at: int, end: int
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Return the parts of a message of format v0 or v1.

    The parts are the position after the message (-1 if it is malformed), offset, format, codec,
    time in ms, type of the time, position and size of the key, and position and size of the value.
    """
    malformed = (-1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if end - at < _ENTRY + _LEAST_MESSAGE:
        return malformed
    offset, size, kind, attributes = (
        int64(data, at),
        int32(data, at + 8),
        data[at + 16],
        data[at + 17],
    )
    head = 18 if kind == 0 else 26
    if size < 0 or size > end - at - _ENTRY or size + _ENTRY < head + 8 or kind > 1 or offset < 0:
        return malformed
    stop = at + _ENTRY + size
    time, time_type = 0, NO_TIME
    if kind == 1:
        # Treat the time 0 of this format as a missing time, as librdkafka does.
        time = int64(data, at + 18)
        time_type = NO_TIME if time == 0 else int((attributes & 8) != 0)
    key_size = int32(data, at + head)
    key_at = at + head + 4
    value_at = _after(key_at, key_size, stop - 4)
    if value_at < 0:
        return malformed
    value_size = int32(data, value_at)
    if _after(value_at + 4, value_size, stop) != stop:
        return malformed
    codec = int(attributes & 7)
    return (
        stop,
        offset,
        int(kind),
        codec,
        time,
        time_type,
        key_at,
        key_size,
        value_at + 4,
        value_size,
    )


def last_offset(data: Array, at: int, end: int) -> int:
    """Return the offset of the last message of a decompressed set; -1 if it is malformed."""
    offset = -1
    while at < end:
        if end - at < _ENTRY:
            return -1
        offset, size = int64(data, at), int32(data, at + 8)
        if size < _LEAST_MESSAGE or size > end - at - _ENTRY:
            return -1
        at += _ENTRY + size
    return offset


# ---- records -------------------------------------------------------------------------------------


def parse(
    data: Array, table: Array, rows: int, cursor: Array, first: int, until: int, out: Columns
) -> int:
    """Copy the records with offsets from `first` to `until` - 1 into the columns.

    `table` has `rows` rows of uncompressed batches. `cursor` is the position at which to begin, and
    after the call the position at which to continue. Returns DONE at the end of the table, FULL if
    there is no room for a record, CORRUPT, or CHECKSUM_FAILED.
    """
    while cursor[ROW] < rows:
        row = cursor[ROW] * WIDTH
        if cursor[AT] < 0:
            cursor[AT] = table[row + POSITION]
            cursor[LEFT] = table[row + COUNT]
        if table[row + FORMAT] == 2:
            status = _parse_batch(data, table, row, cursor, first, until, out)
        else:
            status = _parse_messages(data, table, row, cursor, first, until, out)
        if status != DONE:
            return status
        cursor[ROW] += 1
        cursor[AT] = -1
    return DONE


@_loop
def _parse_batch(
    data: Array, table: Array, row: int, cursor: Array, first: int, until: int, out: Columns
) -> int:
    at, left, end = cursor[AT], cursor[LEFT], table[row + END]
    base, time, time_type = table[row + BASE], table[row + TIME], table[row + TIME_TYPE]
    status = DONE
    while left > 0:
        after, late, delta, key_at, key_size, value_at, value_size, rest = _record(data, at, end)
        if after < 0:
            status = CORRUPT
            break
        if first <= base + delta < until:
            if not _has_room(out, cursor, key_size, value_size, after - rest):
                status = FULL
                break
            known = time if time_type == APPEND_TIME else _later(time, late)
            _add(data, key_at, key_size, value_at, value_size, rest, after - rest, cursor, out)
            _add_time(base + delta, known, time_type, cursor, out)
        at = after
        left -= 1
    cursor[AT], cursor[LEFT] = at, left
    return CORRUPT if status == DONE and at != end else status


@_inlined
def _later(time: int, late: int) -> int:
    """Return `time + late`, or `_FAR` if the columns cannot hold the sum.

    The sum of two numbers of 64 bits may overflow, so it is made only if it is small.
    """
    if late == _FAR or not -MAX_TIME - late <= time <= MAX_TIME - late:
        return _FAR
    return time + late


@_inlined
def _record(data: Array, at: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the parts of a record of format v2.

    The parts are the position after the record (-1 if it is malformed), its time and offset
    relative to the batch, position and size of key and value, and the position of its headers.
    """
    size, start = varint(data, at, end)
    stop = _after(start, size, end)
    late, here = varint(data, start + 1 if stop >= 0 else -1, stop)  # skip the attributes
    delta, here = varint(data, here, stop)
    key_size, key_at = varint(data, here, stop)
    here = _after(key_at, key_size, stop)
    value_size, value_at = varint(data, here, stop)
    rest = _after(value_at, value_size, stop)
    if size < 0 or rest < 0 or delta < 0 or delta > MAX_DELTA:
        stop = -1
    return stop, late, delta, key_at, key_size, value_at, value_size, rest


def is_abort_marker(data: Array, at: int, end: int) -> bool:
    """Return whether a control batch, whose records begin at `at`, aborts its transaction.

    The key of a control record is its version and its type, each of 16 bits; type 0 is an abort.
    """
    after, _, _, key_at, key_size, _, _, _ = _record(data, at, end)
    return after >= 0 and key_size >= 4 and data[key_at + 2] == 0 and data[key_at + 3] == 0


@_loop
def _parse_messages(
    data: Array, table: Array, row: int, cursor: Array, first: int, until: int, out: Columns
) -> int:
    at, end, base = cursor[AT], table[row + END], table[row + BASE]
    is_checked = table[row + CHECKED] >= 0
    status = DONE
    while at < end:
        after, offset, _, _, time, time_type, key_at, key_size, value_at, value_size = message(
            data, at, end
        )
        if after < 0:
            status = CORRUPT
            break
        if is_checked and crc32(data, at + 16, after) != int32(data, at + 12) & 0xFFFFFFFF:
            status = CHECKSUM_FAILED
            break
        if first <= base + offset < until:
            if not _has_room(out, cursor, key_size, value_size, 0):
                status = FULL
                break
            if table[row + TIME_TYPE] == APPEND_TIME:
                time, time_type = table[row + TIME], APPEND_TIME
            _add(data, key_at, key_size, value_at, value_size, at, 0, cursor, out)
            _add_time(base + offset, time, time_type, cursor, out)
        at = after
    cursor[AT] = at
    return status


@_inlined
def _has_room(out: Columns, cursor: Array, key_size: int, value_size: int, headers: int) -> bool:
    """Return whether a record fits; if not, store the room that it needs."""
    row = cursor[FILLED]
    if (
        row < len(out.offsets)
        and out.key_ends[row] + key_size <= len(out.keys)
        and out.value_ends[row] + value_size <= len(out.values)
        and (len(out.header_ends) == 0 or out.header_ends[row] + headers <= len(out.headers))
    ):
        return True
    cursor[KEY_NEEDS] = max(key_size, 0)
    cursor[VALUE_NEEDS] = max(value_size, 0)
    cursor[HEADER_NEEDS] = headers
    return False


@_inlined
def _mark(known: Array, row: int, nulls: int, is_null: bool) -> None:
    """Record whether a row's value is null; write no bits before the column's first null."""
    if nulls or is_null:
        if nulls == 0:
            for number in range(row >> 3):
                known[number] = 255
        if nulls == 0 or row & 7 == 0:
            known[row >> 3] = 255
        if is_null:
            known[row >> 3] &= 255 ^ (1 << (row & 7))


@_inlined
def _add(
    data: Array,
    key_at: int,
    key_size: int,
    value_at: int,
    value_size: int,
    headers_at: int,
    headers: int,
    cursor: Array,
    out: Columns,
) -> None:
    """Copy key, value and headers into row number `cursor[FILLED]` of the columns."""
    row = cursor[FILLED]
    used = out.key_ends[row]
    copy(data, key_at, max(key_size, 0), out.keys, used)
    out.key_ends[row + 1] = used + max(key_size, 0)
    _mark(out.key_known, row, cursor[KEY_NULLS], key_size < 0)
    cursor[KEY_NULLS] += 1 if key_size < 0 else 0
    used = out.value_ends[row]
    copy(data, value_at, max(value_size, 0), out.values, used)
    out.value_ends[row + 1] = used + max(value_size, 0)
    _mark(out.value_known, row, cursor[VALUE_NULLS], value_size < 0)
    cursor[VALUE_NULLS] += 1 if value_size < 0 else 0
    if len(out.header_ends):
        used = out.header_ends[row]
        copy(data, headers_at, headers, out.headers, used)
        out.header_ends[row + 1] = used + headers


@_inlined
def _add_time(offset: int, time: int, time_type: int, cursor: Array, out: Columns) -> None:
    """Write offset and time into row number `cursor[FILLED]` of the columns, and complete the
    row."""
    row = cursor[FILLED]
    is_known = time_type != NO_TIME and -MAX_TIME <= time <= MAX_TIME
    out.offsets[row] = offset
    out.times[row] = time * 1000 if is_known else 0
    out.time_types[row] = time_type
    _mark(out.time_known, row, cursor[TIME_NULLS], not is_known)
    cursor[TIME_NULLS] += 0 if is_known else 1
    cursor[FILLED] = row + 1


# ---- records without a copy ----------------------------------------------------------------------


def locate(
    data: Array,
    table: Array,
    rows: int,
    cursor: Array,
    first: int,
    until: int,
    shift: int,
    places: Array,
) -> int:
    """Find the records with offsets from `first` to `until` - 1, as `parse` does, but copy none.

    The positions of their keys, values and headers in `data`, each plus `shift`, are written into
    `places`. The arguments and the result are otherwise those of `parse`.
    """
    room = len(places) // PLACES
    while cursor[ROW] < rows:
        row = cursor[ROW] * WIDTH
        if cursor[AT] < 0:
            cursor[AT] = table[row + POSITION]
            cursor[LEFT] = table[row + COUNT]
        if table[row + FORMAT] == 2:
            status = _locate_batch(data, table, row, cursor, first, until, shift, places, room)
        else:
            status = _locate_messages(data, table, row, cursor, first, until, shift, places, room)
        if status != DONE:
            return status
        cursor[ROW] += 1
        cursor[AT] = -1
    return DONE


@_loop
def _locate_batch(
    data: Array,
    table: Array,
    row: int,
    cursor: Array,
    first: int,
    until: int,
    shift: int,
    places: Array,
    room: int,
) -> int:
    at, left, end = cursor[AT], cursor[LEFT], table[row + END]
    base, time, time_type = table[row + BASE], table[row + TIME], table[row + TIME_TYPE]
    leader = table[row + LEADER]
    status = DONE
    while left > 0:
        after, late, delta, key_at, key_size, value_at, value_size, rest = _record(data, at, end)
        if after < 0:
            status = CORRUPT
            break
        if first <= base + delta < until:
            if cursor[FILLED] == room:
                status = FULL
                break
            known = _FAR
            if time_type == APPEND_TIME:
                known = time
            elif late != _FAR and -_FAR < time < _FAR:
                known = time + late  # both have less than 63 bits, so the sum does not overflow
            one = cursor[FILLED]
            _put(places, room, one, key_at + shift, key_size, value_at + shift, value_size)
            places[HEADERS_START * room + one] = rest + shift
            places[HEADERS_END * room + one] = after + shift
            _put_time(places, room, one, base + delta, known, time_type, leader)
            cursor[FILLED] += 1
        at = after
        left -= 1
    cursor[AT], cursor[LEFT] = at, left
    return CORRUPT if status == DONE and at != end else status


@_loop
def _locate_messages(
    data: Array,
    table: Array,
    row: int,
    cursor: Array,
    first: int,
    until: int,
    shift: int,
    places: Array,
    room: int,
) -> int:
    at, end, base = cursor[AT], table[row + END], table[row + BASE]
    is_checked = table[row + CHECKED] >= 0
    status = DONE
    while at < end:
        after, offset, _, _, time, time_type, key_at, key_size, value_at, value_size = message(
            data, at, end
        )
        if after < 0:
            status = CORRUPT
            break
        if is_checked and crc32(data, at + 16, after) != int32(data, at + 12) & 0xFFFFFFFF:
            status = CHECKSUM_FAILED
            break
        if first <= base + offset < until:
            if cursor[FILLED] == room:
                status = FULL
                break
            if table[row + TIME_TYPE] == APPEND_TIME:
                time, time_type = table[row + TIME], APPEND_TIME
            one = cursor[FILLED]
            _put(places, room, one, key_at + shift, key_size, value_at + shift, value_size)
            places[HEADERS_START * room + one] = places[HEADERS_END * room + one] = at + shift
            _put_time(places, room, one, base + offset, time, time_type, -1)
            cursor[FILLED] += 1
        at = after
    cursor[AT] = at
    return status


@_inlined
def _put(
    places: Array,
    room: int,
    one: int,
    key_at: int,
    key_size: int,
    value_at: int,
    value_size: int,
) -> None:
    """Write where key and value of record number `one` are."""
    places[KEY_START * room + one] = key_at
    places[KEY_END * room + one] = -1 if key_size < 0 else key_at + key_size
    places[VALUE_START * room + one] = value_at
    places[VALUE_END * room + one] = -1 if value_size < 0 else value_at + value_size


@_inlined
def _put_time(
    places: Array, room: int, one: int, offset: int, time: int, time_type: int, leader: int
) -> None:
    """Write offset, time and leader's epoch of record number `one`."""
    is_known = time_type != NO_TIME and -_FAR < time < _FAR
    places[OFFSET * room + one] = offset
    places[RECORD_TIME * room + one] = time if is_known else UNKNOWN_TIME
    places[RECORD_TIME_TYPE * room + one] = time_type
    places[RECORD_LEADER * room + one] = leader


# ---- compiling -----------------------------------------------------------------------------------


class Parsers(NamedTuple):
    """The functions that other modules call, compiled or not."""

    scan: Callable[[Array, int, int, Array, Array], None]
    parse: Callable[[Array, Array, int, Array, int, int, Columns], int]
    locate: Callable[[Array, Array, int, Array, int, int, int, Array], int]
    last_offset: Callable[[Array, int, int], int]


PLAIN: Final = Parsers(scan, parse, locate, last_offset)


def can_compile() -> bool:
    """Return whether numba is installed (the extra `fast`)."""
    return find_spec("numba") is not None


@cache
def compiled() -> Parsers:
    """Return the functions as machine code, which does not hold the global interpreter lock.

    The first call on a machine compiles them, which takes 5 to 20 seconds. Later processes load
    them from numba's cache, which is next to this file or in `NUMBA_CACHE_DIR`.
    """
    from numba import njit, types  # noqa: PLC0415 - a slow import
    from numba.core.errors import NumbaPedanticWarning  # noqa: PLC0415 - as above
    from numba.extending import register_jitable  # noqa: PLC0415 - as above

    import zkconsumer.kafka.columns.compiled_primitives  # noqa: F401, PLC0415 - loads numba

    for function in _CALLED:
        register_jitable(function)
    for function in _INLINED:
        register_jitable(inline="always")(function)
    seen = types.Array(types.uint8, 1, "C", readonly=True)
    octets, ints, longs = (types.Array(t, 1, "C") for t in (types.uint8, types.int32, types.int64))
    columns = types.NamedTuple(
        [ints, octets, octets, ints, octets, octets, longs, longs, octets, ints, ints, octets],
        Columns,
    )
    long = types.int64
    signatures = (
        types.void(seen, long, long, longs, longs),
        long(seen, longs, long, longs, long, long, columns),
        long(seen, longs, long, longs, long, long, long, longs),
        long(seen, long, long),
    )
    # `_nrt` is off, because the functions create no arrays. With `_nrt`, each call would count
    # references to all arrays that are its arguments, which takes 20 times as long as parsing one
    # record.
    options = {"nogil": True, "cache": True, "_nrt": False, "error_model": "numpy"}
    make = [njit([one], **options) for one in signatures]
    with warnings.catch_warnings():
        # numba 0.68 warns about its own inlining; the compiled code is correct.
        warnings.simplefilter("ignore", NumbaPedanticWarning)
        made = [maker(loop) for maker, loop in zip(make, PLAIN, strict=True)]
    return Parsers(*made)
