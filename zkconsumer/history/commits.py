"""Count the commits that continue a run, in a loop that numba compiles.

A run consists of consecutive commits of one partition by one session. Most transactions of a
ZooKeeper that serves consumers continue a run. `CommitRuns` counts these, and stops at every other
row, which `GroupHistory` handles. The module needs the extra `fast` (numba, pyarrow).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from zkconsumer.history import transactions as tx
from zkconsumer.history.columns import Array, Number, compiled
from zkconsumer.history.tables import Commits
from zkconsumer.history.transactions import RowTuple

FOREIGN: Final = -2
"""The number for a path that belongs to no described group; the loop skips all rows of such a
path."""

_FREE: Final = -1
_DIGITS: Final = 18
"""Maximum number of digits of an offset that the loop reads; a longer number may not fit into 64
bits."""

_SESSION, _LAST, _LAST_MS, _LAST_ZXID, _COUNT, _PAUSE = range(6)
_SLOTS: Final = 1 << 10


class _State(NamedTuple):
    """The arrays of the compiled loop. Both hash tables have open addressing.

    Attributes:
        runs: one array each for session, last offset, time and zxid of the last commit, number of
            commits, and longest pause; an array has a value for each partition. The session is -1
            if the next commit must be examined.
        numbers: path's slot -> number of the partition, or FOREIGN, or _FREE.
        places: path's slot -> begin and end of the path in `texts`.
        texts: the bytes of the paths.
        sessions: session's slot -> session (0: free), and the time of its last write.
        used: the number of paths, of bytes of paths, and of sessions.
    """

    runs: Array
    numbers: Array
    places: Array
    texts: Array
    sessions: Array
    used: Array


class _Columns(NamedTuple):
    """The columns that the compiled loop reads."""

    zxids: Array
    times: Array
    sessions: Array
    kinds: Array
    path_ends: Array
    paths: Array
    data_ends: Array
    data: Array


class ColumnRows:
    """The rows of a record batch: its columns as arrays, and single rows as tuples."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._data = batch.column("data")
        self._numbers = {
            field.name: batch.column(field.name).to_numpy()
            for field in batch.schema
            if pa.types.is_integer(field.type)
        }
        self.columns = _Columns(
            self._numbers["zxid"],
            self._numbers["time_ms"],
            self._numbers["session"],
            self._numbers["kind"],
            *_text(batch.column("path")),
            *_text(batch.column("data")),
        )

    def __len__(self) -> int:
        return len(self._data)

    def number(self, name: str, at: int) -> int:
        """Return a numeric field of a row."""
        return int(self._numbers[name][at])

    def row(self, at: int) -> RowTuple:
        """Return a row with the fields of `transactions.Row`, except its access control list."""
        zxid, time_ms, session, cxid, kind, part, version, number = (
            int(numbers[at]) for numbers in self._numbers.values()
        )
        begin, end = self.columns.path_ends[at : at + 2]
        path = self.columns.paths[begin:end].tobytes().decode() if begin < end else None
        begin, end = self.columns.data_ends[at : at + 2]
        data = self.columns.data[begin:end].tobytes() if begin < end else self._data[at].as_py()
        return zxid, time_ms, session, cxid, kind, part, path, data, version, number, None


def _text(column: pa.Array) -> tuple[Array, Array]:
    """Return the offsets between the texts of a column, and the bytes of the texts."""
    _, ends, content = column.buffers()
    ends = np.frombuffer(ends, np.int32)[column.offset :]
    return ends, np.frombuffer(b"" if content is None else content, np.uint8)


class CommitRuns:
    """The runs of commits of all partitions, which the compiled loop continues."""

    def __init__(self) -> None:
        self._state = _State(
            np.full((6, _SLOTS), -1, np.int64),
            np.full(_SLOTS, _FREE, np.int32),
            np.zeros((2, _SLOTS), np.int64),
            np.empty(1 << 16, np.uint8),
            np.zeros((2, _SLOTS), np.int64),
            np.zeros(3, np.int64),
        )
        self._partitions = 0

    def new_partition(self) -> int:
        """Return the number of a new partition."""
        runs = self._state.runs
        if self._partitions == runs.shape[1]:
            more = np.full_like(runs, -1)
            self._state = self._state._replace(runs=np.concatenate((runs, more), axis=1))
        self._partitions += 1
        return self._partitions - 1

    def learn(self, path: str, number: int) -> None:
        """Record the partition of a path."""
        text = np.frombuffer(path.encode(), np.uint8)
        while not _inserted(self._state, text, number):
            self._grow(len(text))

    def skip(self, path: str) -> None:
        """Record that a path belongs to no described group."""
        self.learn(path, FOREIGN)

    def _grow(self, more: int) -> None:
        """Double the tables of paths and sessions."""
        old = self._state
        slots = 2 * len(old.numbers)
        self._state = old._replace(
            numbers=np.full(slots, _FREE, np.int32),
            places=np.zeros((2, slots), np.int64),
            texts=np.empty(2 * len(old.texts) + more, np.uint8),
            sessions=np.zeros((2, 2 * old.sessions.shape[1]), np.int64),
            used=np.zeros(3, np.int64),
        )
        _copied(old, self._state)

    def forget_paths(self) -> None:
        """Drop all paths; keep the runs."""
        self._state.numbers[:] = _FREE
        self._state.used[:2] = 0

    def continued(self, rows: ColumnRows, at: int) -> int:
        """Count the rows from `at` on that continue runs, and return the number of the first row
        that does not.

        The row at `at` must belong to the same epoch as the row before it.
        """
        while True:
            at, is_full = _continued(rows.columns, at, self._state)
            if not is_full:
                return at
            self._grow(0)

    def last_write_ms(self, session: int) -> int | None:
        """Return the time of the last row of a session that the loop has counted."""
        slot = _session_slot(self._state.sessions, session)
        found = int(self._state.sessions[1, slot])
        return found if self._state.sessions[0, slot] == session else None

    def load(self, number: int, run: Commits) -> None:
        """Copy the loop's figures of a partition into its row of the table."""
        line = self._state.runs[:, number].tolist()
        if line[_COUNT] >= 0:
            run.last, run.last_ms, run.last_zxid = line[_LAST], line[_LAST_MS], line[_LAST_ZXID]
            run.count, run.longest_pause_ms = line[_COUNT], line[_PAUSE]

    def store(self, number: int, session: int, run: Commits | None) -> None:
        """Let the loop continue a run; with -1 for the session, it stops at the next commit."""
        line = self._state.runs[:, number]
        if run is None:
            line[:] = -1
            return
        line[_SESSION], line[_LAST], line[_LAST_MS] = session, run.last, run.last_ms
        line[_LAST_ZXID], line[_COUNT] = run.last_zxid, run.count
        line[_PAUSE] = run.longest_pause_ms


# ---- compiled -----------------------------------------------------------------------------------


@compiled
def _hash(text: Array, begin: int, end: int) -> Number:
    """Return the FNV-1a hash of a path."""
    found = np.uint64(14695981039346656037)
    for i in range(begin, end):
        found = (found ^ np.uint64(text[i])) * np.uint64(1099511628211)
    return found ^ (found >> np.uint64(32))


@compiled
def _path_slot(s: Array, text: Array, begin: int, end: int) -> Number:
    """Return the slot of a path, or the free slot where it belongs."""
    mask = np.uint64(len(s.numbers) - 1)
    slot = np.int64(_hash(text, begin, end) & mask)
    while s.numbers[slot] != _FREE:
        first = s.places[0, slot]
        if s.places[1, slot] - first == end - begin:
            is_same = True
            for i in range(end - begin):
                if s.texts[first + i] != text[begin + i]:
                    is_same = False
                    break
            if is_same:
                return slot
        slot = (slot + 1) & np.int64(mask)
    return slot


@compiled
def _inserted(s: Array, text: Array, number: int) -> Number:
    """Insert a path; return False if the tables are too full for it."""
    slot = _path_slot(s, text, 0, len(text))
    if s.numbers[slot] == _FREE:
        begin = s.used[1]
        if 2 * (s.used[0] + 1) > len(s.numbers) or begin + len(text) > len(s.texts):
            return False
        s.texts[begin : begin + len(text)] = text
        s.places[0, slot], s.places[1, slot] = begin, begin + len(text)
        s.used[0] += 1
        s.used[1] += len(text)
    s.numbers[slot] = number
    return True


@compiled
def _session_slot(sessions: Array, session: int) -> Number:
    """Return the slot of a session, or the free slot where it belongs."""
    mask = np.int64(sessions.shape[1] - 1)
    mixed = np.uint64(session) * np.uint64(11400714819323198485)
    slot = np.int64(mixed >> np.uint64(32)) & mask
    while sessions[0, slot] != session and sessions[0, slot] != 0:
        slot = (slot + 1) & mask
    return slot


@compiled
def _copied(old: Array, new: Array) -> None:
    """Insert the paths and sessions of smaller tables into empty ones."""
    for slot in range(len(old.numbers)):
        if old.numbers[slot] != _FREE:
            begin, end = old.places[0, slot], old.places[1, slot]
            _inserted(new, old.texts[begin:end], old.numbers[slot])
    for slot in range(old.sessions.shape[1]):
        session = old.sessions[0, slot]
        if session != 0:
            found = _session_slot(new.sessions, session)
            new.sessions[0, found], new.sessions[1, found] = session, old.sessions[1, slot]
            new.used[2] += 1


@compiled
def _written(s: Array, session: int, time_ms: int) -> Number:
    """Record the time of a session's write; return False if the table of sessions is too full."""
    slot = _session_slot(s.sessions, session)
    if s.sessions[0, slot] == 0:
        if 2 * (s.used[2] + 1) > s.sessions.shape[1]:
            return False
        s.sessions[0, slot] = session
        s.used[2] += 1
    s.sessions[1, slot] = time_ms
    return True


@compiled
def _offset(data: Array, begin: int, end: int) -> Number:
    """Return the offset in a payload of decimal digits, or -1."""
    if end == begin or end - begin > _DIGITS:
        return -1
    found = np.int64(0)
    for i in range(begin, end):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9:
            return -1
        found = found * 10 + digit
    return found


@compiled
def _continued(c: _Columns, at: int, s: Array) -> Number:
    """Return the number of the first row that continues no run, and whether the table of sessions
    is too full."""
    first, count = at, len(c.zxids)
    while at < count:
        begin, end = c.path_ends[at], c.path_ends[at + 1]
        if begin == end or (at > first and c.zxids[at] >> 32 != c.zxids[at - 1] >> 32):
            break
        number = s.numbers[_path_slot(s, c.paths, begin, end)]
        offset, run = 0, s.runs[:, max(number, 0)]
        if number != FOREIGN:
            if number == _FREE or c.kinds[at] != tx.SET_DATA:
                break
            offset = _offset(c.data, c.data_ends[at], c.data_ends[at + 1])
            if run[_SESSION] != c.sessions[at] or run[_COUNT] < 0 or offset < run[_LAST]:
                break
        if not _written(s, c.sessions[at], c.times[at]):
            return at, True
        if number != FOREIGN:
            run[_PAUSE] = max(run[_PAUSE], c.times[at] - run[_LAST_MS])
            run[_LAST], run[_LAST_MS], run[_LAST_ZXID] = offset, c.times[at], c.zxids[at]
            run[_COUNT] += 1
        at += 1
    return at, False
