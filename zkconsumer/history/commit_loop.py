"""Count the commits that continue a run, in a loop that numba compiles; see `commits`.

The module needs the extra `fast` (numba, pyarrow).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from zkconsumer.history import transactions as tx
from zkconsumer.history.columns import Array, Number, compiled, to_batch
from zkconsumer.history.commits import DIGITS, CommitRun, CommitRuns, PathParts, Rows
from zkconsumer.history.transactions import RowTuple

FOREIGN: Final = -2
"""The number for a path without a meaning; the loop leaves out the rows of these paths."""

OTHER: Final = -3
"""The number for a path that has a meaning and is not a partition's."""

_FREE: Final = -1
_LISTED: Final = -2
"""In place of the session of a run: the loop has listed a commit of the partition."""

_MAX_LISTED: Final = 1024
"""The loop ends when it has listed this number of rows."""

_SESSION, _LAST, _LAST_MS, _LAST_ZXID, _COUNT, _PAUSE = range(6)
_SLOTS: Final = 1 << 10


class _State(NamedTuple):
    """The arrays of the compiled loop. Both hash tables have open addressing.

    Attributes:
        runs: one array each for session, last offset, time and zxid of the last commit, number of
            commits, and longest pause; an array has a value for each partition. The session is -1
            if the next commit must be examined.
        numbers: path's slot -> number of the partition, or FOREIGN, OTHER or _FREE.
        places: path's slot -> begin and end of the path in `texts`.
        texts: the bytes of the paths.
        sessions: session's slot -> session (0: free), and the time of its last write; -1 if the
            session has ended.
        used: the number of paths, of bytes of paths, and of sessions.
        first, second: each path that has a meaning contains one of these.
        mark: the path of each edit mark contains this.
    """

    runs: Array
    numbers: Array
    places: Array
    texts: Array
    sessions: Array
    used: Array
    first: Array
    second: Array
    mark: Array


class _Columns(NamedTuple):
    """The columns that the compiled loop reads."""

    zxids: Array
    times: Array
    sessions: Array
    kinds: Array
    parts: Array
    path_ends: Array
    paths: Array
    data_ends: Array
    data: Array


class _Rows:
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
            self._numbers["part"],
            *_text(batch.column("path")),
            *_text(batch.column("data")),
        )

    def __len__(self) -> int:
        return len(self._data)

    def some(self, numbers: Array) -> list[RowTuple]:
        """Return rows with the fields of `transactions.Row`, except the access control list."""
        fields = [values[numbers].tolist() for values in self._numbers.values()]
        return [
            (*row[:6], self._path(at), self._content(at), *row[6:], None)
            for at, row in zip(numbers.tolist(), zip(*fields, strict=True), strict=True)
        ]

    def _path(self, at: int) -> str | None:
        begin, end = self.columns.path_ends[at : at + 2].tolist()
        return self.columns.paths[begin:end].tobytes().decode() if begin < end else None

    def _content(self, at: int) -> bytes | None:
        begin, end = self.columns.data_ends[at : at + 2].tolist()
        if begin < end:
            return bytes(self.columns.data[begin:end].tobytes())
        return b"" if self._data[at].is_valid else None


def _text(column: pa.Array) -> tuple[Array, Array]:
    """Return the offsets between the texts of a column, and the bytes of the texts."""
    _, ends, content = column.buffers()
    ends = np.frombuffer(ends, np.int32)[column.offset :]
    return ends, np.frombuffer(b"" if content is None else content, np.uint8)


class CompiledRuns(CommitRuns):
    """The runs of all partitions, with their figures in arrays, which the compiled loop updates."""

    def __init__(self, plain: CommitRuns) -> None:
        """Take over the runs, the meanings of paths, and the last write of each session."""
        super().__init__(plain.parts)
        texts = (*plain.parts.meanings, plain.parts.mark)
        self._state = _State(
            np.full((6, _SLOTS), -1, np.int64),
            np.full(_SLOTS, _FREE, np.int32),
            np.zeros((2, _SLOTS), np.int64),
            np.empty(1 << 16, np.uint8),
            np.zeros((2, _SLOTS), np.int64),
            np.zeros(3, np.int64),
            *(np.frombuffer(text.encode(), np.uint8) for text in texts),
        )
        for run in plain.runs:
            self._add(run)
        for path, place in plain.places.items():
            self.learn(path, place)
        for session, time_ms in plain.last_writes().items():
            while not _written(self._state, session, time_ms):
                self._grow(0)

    def _add(self, run: CommitRun) -> None:
        super()._add(run)
        figures = self._state.runs
        if run.number == figures.shape[1]:
            more = np.full_like(figures, -1)
            self._state = self._state._replace(runs=np.concatenate((figures, more), axis=1))
        self._store(run)

    def learn(self, path: str, place: object) -> None:
        super().learn(path, place)
        number = FOREIGN if place is None else OTHER
        if isinstance(place, CommitRun):
            number = place.number
        text = np.frombuffer(path.encode(), np.uint8)
        while not _inserted(self._state, text, number):
            self._grow(len(text))

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
        super().forget_paths()
        self._state.numbers[:] = _FREE
        self._state.used[:2] = 0

    def others(self, batch: Rows) -> Iterator[RowTuple]:
        rows, at = _Rows(batch.columns), 0
        listed = np.empty(len(rows), np.int64)
        while at < len(rows):
            at, count, is_full = _counted(rows.columns, at, self._state, listed)
            found = rows.some(listed[:count])
            for number, row in enumerate(found):
                if row[5] == 0:
                    yield from self.marks(found, number)
                if isinstance(run := self.places.get(row[6]), CommitRun):
                    self._load(run)
                yield row
                if isinstance(run := self.places.get(row[6]), CommitRun):
                    self._store(run)
            if is_full:
                self._grow(0)

    def examine(self, run: CommitRun) -> None:
        super().examine(run)
        self._state.runs[_SESSION, run.number] = -1

    def pop_last_write_ms(self, session: int) -> int | None:
        sessions = self._state.sessions
        slot = _session_slot(sessions, session)
        found = int(sessions[1, slot])
        if sessions[0, slot] != session or found <= 0:
            return None
        sessions[1, slot] = -1
        return found

    def last_writes(self) -> dict[int, int]:
        pairs = zip(*self._state.sessions.tolist(), strict=True)
        return {session: time_ms for session, time_ms in pairs if session and time_ms > 0}

    def update(self) -> None:
        for run in self.runs:
            self._load(run)

    def _load(self, run: CommitRun) -> None:
        """Write the figures of a run into its row."""
        row, line = run.row, self._state.runs[:, run.number].tolist()
        if row is not None and line[_COUNT] >= 0:
            row.last, row.last_ms, row.last_zxid = line[_LAST], line[_LAST_MS], line[_LAST_ZXID]
            row.count, row.longest_pause_ms = line[_COUNT], line[_PAUSE]

    def _store(self, run: CommitRun) -> None:
        """Let the loop continue a run from the figures in its row."""
        row, line = run.row, self._state.runs[:, run.number]
        if row is None:
            line[:] = -1
        else:
            figures = (row.last, row.last_ms, row.last_zxid, row.count, row.longest_pause_ms)
            line[:] = (run.session, *figures)


def load() -> None:
    """Load the loops from numba's cache, or compile them."""
    runs = CompiledRuns(CommitRuns(PathParts(("/a/", "/b/"), "/c/")))
    runs.learn("/a/0", CommitRun())
    runs._grow(0)
    runs.pop_last_write_ms(1)
    for _ in runs.others(_OneCommit()):
        pass


class _OneCommit:
    """One commit as a batch."""

    tuples: Final[Sequence[RowTuple]] = [(1, 1, 1, 1, tx.SET_DATA, -1, "/", b"1", 1, 0, None)]

    @property
    def columns(self) -> pa.RecordBatch:
        """The commit as a record batch."""
        return to_batch(self.tuples)


# ---- compiled -----------------------------------------------------------------------------------


@compiled
def _word(text: Array, at: int) -> Number:
    """Return eight bytes as a number, which the compiler reads at once."""
    i, found = np.uint64(at), np.uint64(0)
    for j in range(8):
        found |= np.uint64(text[i + np.uint64(j)]) << np.uint64(8 * j)
    return found


@compiled
def _hash(text: Array, begin: int, end: int) -> Number:
    """Return a hash of a path: FNV-1a over words of eight bytes, and over the bytes of the rest."""
    found, at = np.uint64(14695981039346656037), begin
    while at + 8 <= end:
        found = (found ^ _word(text, at)) * np.uint64(1099511628211)
        found ^= found >> np.uint64(29)
        at += 8
    while at < end:
        found = (found ^ np.uint64(text[np.uint64(at)])) * np.uint64(1099511628211)
        at += 1
    return found ^ (found >> np.uint64(32))


@compiled
def _is_same(one: Array, first: int, other: Array, begin: int, size: int) -> Number:
    """Return whether two texts of the same size are equal."""
    i = 0
    while i + 8 <= size:
        if _word(one, first + i) != _word(other, begin + i):
            return False
        i += 8
    while i < size:
        if one[np.uint64(first + i)] != other[np.uint64(begin + i)]:
            return False
        i += 1
    return True


@compiled
def _path_slot(s: Array, text: Array, begin: int, end: int) -> Number:
    """Return the slot of a path, or the free slot where it belongs."""
    mask = np.uint64(len(s.numbers) - 1)
    slot = np.int64(_hash(text, begin, end) & mask)
    while s.numbers[slot] != _FREE:
        first, size = s.places[0, slot], end - begin
        if s.places[1, slot] - first == size and _is_same(s.texts, first, text, begin, size):
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
        if session != 0 and old.sessions[1, slot] > 0:
            found = _session_slot(new.sessions, session)
            new.sessions[0, found], new.sessions[1, found] = session, old.sessions[1, slot]
            new.used[2] += 1


@compiled
def _written(s: Array, session: int, time_ms: int) -> Number:
    """Record the time of a session's write; return False if the table of sessions is too full."""
    if session == 0:  # a server's own transaction
        return True
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
    if end == begin or end - begin > DIGITS:
        return -1
    found = np.int64(0)
    for i in range(begin, end):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9:
            return -1
        found = found * 10 + digit
    return found


@compiled
def _contains(text: Array, begin: int, end: int, part: Array) -> Number:
    """Return whether a path contains a part."""
    size = len(part)
    for i in range(begin, end - size + 1):
        j = 0
        while j < size and text[i + j] == part[j]:
            j += 1
        if j == size:
            return True
    return False


@compiled
def _number_of(c: _Columns, at: int, s: Array) -> Number:
    """Return the number of a row's path; OTHER if the row has none."""
    begin, end = c.path_ends[at], c.path_ends[at + 1]
    if begin == end:
        return OTHER
    number = s.numbers[_path_slot(s, c.paths, begin, end)]
    if number != _FREE:
        return number
    if _contains(c.paths, begin, end, s.first) or _contains(c.paths, begin, end, s.second):
        return number
    return FOREIGN


@compiled
def _end_of_marked(c: _Columns, at: int, mark: Array) -> Number:
    """Return the number of the row after a transaction that contains an edit mark; `at` if it
    contains none."""
    end, is_marked = at, False
    while end < len(c.zxids) and c.zxids[end] == c.zxids[at] and c.parts[end] >= end - at:
        is_marked = is_marked or _contains(c.paths, c.path_ends[end], c.path_ends[end + 1], mark)
        end += 1
    return end if is_marked else at


@compiled
def _continues(c: _Columns, at: int, run: Array) -> Number:
    """Count a commit; return False if it does not continue the run of its partition."""
    offset = _offset(c.data, c.data_ends[at], c.data_ends[at + 1])
    if offset < max(np.int64(0), run[_LAST]):
        return False
    if run[_SESSION] != c.sessions[at] or run[_COUNT] < 0:
        return False
    run[_PAUSE] = max(run[_PAUSE], c.times[at] - run[_LAST_MS])
    run[_LAST], run[_LAST_MS], run[_LAST_ZXID] = offset, c.times[at], c.zxids[at]
    run[_COUNT] += 1
    return True


@compiled
def _counted(c: _Columns, at: int, s: Array, listed: Array) -> Number:
    """Count the commits from `at` on that continue runs, and list the numbers of the other rows.

    The loop ends before a commit if a listed row can change whether the commit continues a run.

    Return the number of the next row, the number of listed rows, and whether the table of sessions
    is too full.
    """
    n, marked, can_count = 0, at, True
    while at < len(c.zxids) and (n < _MAX_LISTED or at < marked):
        kind = c.kinds[at]
        if kind != tx.CLOSE_SESSION and not _written(s, c.sessions[at], c.times[at]):
            return at, n, True
        if c.parts[at] == 0:
            marked = _end_of_marked(c, at, s.mark)
        number = _number_of(c, at, s)
        if at < marked:
            can_count = False
        elif number == FOREIGN:
            at += 1
            continue
        elif number >= 0 and kind == tx.SET_DATA:
            run = s.runs[:, number]
            if not can_count or run[_SESSION] == _LISTED:
                break
            if _continues(c, at, run):
                at += 1
                continue
            run[_SESSION] = _LISTED
        elif kind not in (tx.ERROR, tx.MULTI):
            can_count = False
        listed[n] = at
        n, at = n + 1, at + 1
        if kind == tx.CLOSE_SESSION:  # its last write is asked for before there are others
            break
    return at, n, False
