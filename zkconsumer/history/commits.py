"""Count the commits that continue a run, in plain Python; every other row is for `GroupHistory`.

A run consists of consecutive commits of one partition by one session. Most transactions of a
ZooKeeper that serves consumers continue a run. `commit_loop` does the same in a compiled loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from zkconsumer.history.tables import Commits
from zkconsumer.history.transactions import CLOSE_SESSION, SET_DATA, RowTuple

DIGITS: Final = 18
"""Maximum number of digits of an offset in a commit that is counted here. A longer number may not
fit into 64 bits."""


class CommitRun:
    """The present run of a partition.

    Attributes:
        row: its row of the table `commits`; None if the partition has no commit.
        session: the session whose next commit may continue the run; -1 if the next commit must be
            examined.
        number: the place of the run in `CommitRuns.runs`; -1 if it is not there yet.
    """

    __slots__ = ("number", "row", "session")

    def __init__(self) -> None:
        self.row: Commits | None = None
        self.session = self.number = -1


class PathParts(NamedTuple):
    """Texts that paths contain. A check for them is faster than decoding the path.

    Attributes:
        meanings: each path that has a meaning contains one of these two.
        mark: the path of each edit mark contains this.
    """

    meanings: tuple[str, str]
    mark: str


class Rows(Protocol):
    """Rows as tuples and as columns; a `Batch` has both."""

    @property
    def tuples(self) -> Sequence[RowTuple]:
        """The rows as tuples."""

    @property
    def columns(self) -> Any:  # Any: pyarrow, which is optional
        """The rows as a record batch."""


class CommitRuns:
    """The runs of all partitions, the meanings of paths, and the last write of each session.

    Attributes:
        runs: the runs of all partitions.
        places: path -> a run for the path of an offset, None for a path whose rows change no table,
            and any other value for another path.
    """

    def __init__(self, parts: PathParts) -> None:
        self.parts = parts
        self.runs: list[CommitRun] = []
        self.places: dict[str, object] = {}
        self._at: dict[str, CommitRun] = {}  # the paths of `places` that are offsets
        self._last_writes: dict[int, int] = {}

    def learn(self, path: str, place: object) -> None:
        """Record the meaning of a path, as in `places`."""
        self.places[path] = place
        if isinstance(place, CommitRun):
            self._at[path] = place
            if place.number == -1:
                self._add(place)

    def _add(self, run: CommitRun) -> None:
        """Give a number to a run."""
        run.number = len(self.runs)
        self.runs.append(run)

    def forget_paths(self) -> None:
        """Drop the meanings of all paths."""
        self.places.clear()
        self._at.clear()

    def others(self, batch: Rows) -> Iterator[RowTuple]:
        """Yield the rows that do not continue a run, and count those that do.

        The rows come in their order, with one exception: the edit marks of a transaction come
        first, and again in their order. Rows of paths without a meaning are left out. Handle a row
        before the next one is taken.
        """
        runs, last_writes, marked = self._at.get, self._last_writes, -1
        rows = batch.tuples
        for at, row in enumerate(rows):
            zxid, time_ms, session, _, kind, part, path, data, _, _, _ = row
            if kind != CLOSE_SESSION:
                last_writes[session] = time_ms
            if part == 0:
                for mark in self.marks(rows, at):
                    marked = zxid
                    yield mark
            run = runs(path)
            if run is not None and run.session == session and kind == SET_DATA and zxid != marked:
                line = run.row
                if line is not None and data is not None and data.isdigit() and len(data) <= DIGITS:
                    offset = int(data)
                    if offset >= line.last:
                        pause = time_ms - line.last_ms
                        if pause > line.longest_pause_ms:  # noqa: PLR1730 - `max` takes longer
                            line.longest_pause_ms = pause
                        line.last, line.last_ms, line.last_zxid = offset, time_ms, zxid
                        line.count += 1
                        continue
            if path is None or self._has_meaning(path):
                yield row

    def _has_meaning(self, path: str) -> bool:
        """Return whether a path may have a meaning."""
        if path in self.places:
            return self.places[path] is not None
        for part in self.parts.meanings:  # noqa: SIM110 - `any` takes four times as long
            if part in path:
                return True
        return False

    def marks(self, rows: Sequence[RowTuple], first: int) -> Iterator[RowTuple]:
        """Yield the edit marks of a transaction whose parts begin at the number `first`."""
        zxid = rows[first][0]
        for at in range(first, len(rows)):
            row = rows[at]
            if row[0] != zxid or row[5] < at - first:
                return
            if row[6] and self.parts.mark in row[6]:
                yield row

    def examine(self, run: CommitRun) -> None:
        """Let `others` yield the next commit of a partition, because its owner has changed."""
        run.session = -1

    def pop_last_write_ms(self, session: int) -> int | None:
        """Return the time of the last write of a session that ends; None if it is unknown."""
        return self._last_writes.pop(session, None)

    def last_writes(self) -> Mapping[int, int]:
        """Return the time of the last write of each session that has not ended."""
        return self._last_writes

    def update(self) -> None:
        """Write the commits that have been counted into the rows of the table."""

    def plain(self) -> CommitRuns:
        """Return a copy that can be pickled, without the meanings of paths."""
        self.update()
        found = CommitRuns(self.parts)
        found.runs, found._last_writes = self.runs, dict(self.last_writes())
        return found
