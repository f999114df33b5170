"""Find the files of one or more servers, and read their logs as one sequence ordered by zxid.

Every server of an ensemble writes the same transactions. The sequence contains each transaction
once. `Problem`s name transactions and files that are missing, damaged, or different on some server.

The names of a server's logs are not trusted: the logs are ordered by their first transactions, and
logs whose zxids overlap are merged. No transaction is left out without a problem that names it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from zkconsumer.errors import BadFileError, DamagedFileError, HistoryError
from zkconsumer.history.logs import (
    COMPRESSIONS,
    HEADER_BYTES,
    End,
    LogReader,
    LogSource,
    RowBatch,
    first_zxid,
    unreadable,
)
from zkconsumer.history.tables import ZOOKEEPER
from zkconsumer.history.transactions import Row

if TYPE_CHECKING:
    from zkconsumer.history.columns import ColumnDecoder

_ENDINGS = "|".join(map(re.escape, COMPRESSIONS))
_LOG = re.compile(rf"log\.([0-9a-f]{{1,16}})({_ENDINGS})?")
_SNAPSHOT = re.compile(rf"snapshot\.([0-9a-f]{{1,16}})({_ENDINGS}|\.snappy)?")
_ARCHIVE = r"(?i).*\.(tar(\.\w+)?|tgz|taz|tbz|tbz2|tb2|txz|tlz|zip)"  # compiled if it is needed

MAX_DEPTH: Final = 4
"""Number of directory levels below a given directory that are searched for files of servers."""

FAST_FROM: Final = 32 << 20
"""Minimum size of the logs, in bytes, for which the compiled decoder is used. Loading it takes 0.5
s, and compiling it takes 10 s the first time on a machine; the plain decoder reads this much in
less than 1 s."""


class Server:
    """The files of one server, oldest first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.logs: list[LogSource] = []
        self.snapshots: list[LogSource] = []


class Problem(NamedTuple):
    """A gap, damage or contradiction in the logs.

    Attributes:
        kind: `damaged`, `unreadable`, `missing` (a gap in zxids), `torn` (an older log ends within
            a transaction), `empty` (an older log has no transaction), `contradiction` (within the
            files of one server), `disagreement` (between servers).
        where: the file, or the servers.
        zxid: the transaction at which the problem begins, or the last transaction read before the
            problem.
        what: one sentence that describes the problem.
        store: `zookeeper` or `kafka`, whose logs have no zxid.
    """

    kind: str
    where: str
    zxid: int
    what: str
    store: str = ZOOKEEPER


def zxid_of(source: LogSource) -> int:
    """Return the zxid in the name of a log or a snapshot; -1 for another name."""
    match = _LOG.fullmatch(source.base) or _SNAPSHOT.fullmatch(source.base)
    return int(match[1], 16) if match else -1


def has_between(snapshots: Sequence[LogSource], last: int, zxid: int) -> bool:
    """Return whether one of the sorted snapshots shows a transaction between two others."""
    at = bisect_right(snapshots, last, key=zxid_of)
    return at < len(snapshots) and zxid_of(snapshots[at]) < zxid


Wanted: TypeAlias = Callable[[str], bool]
"""Whether the name of a file, without its directories, is that of a file to read."""


# ---- finding files ------------------------------------------------------------------------------


def find_servers(paths: Iterable[str | os.PathLike[str]]) -> list[Server]:
    """Return the servers whose files are at the paths.

    A path is a `dataDir` or `dataLogDir`, a directory that contains some, a log, a snapshot, or a
    tar or zip archive of these. It may be a URL of another filesystem, such as `hdfs://host:port/logs`.
    Files of one directory belong to one server. If one directory contains only snapshots and one
    other only logs, both belong to one server.

    Raises:
        BadFileError: a path does not exist, no installed package reads a URL, or there is no log
            and no snapshot at any path.
        HistoryError: the operating system or the filesystem of a URL refuses to read a path.
    """
    found: dict[str, Server] = {}
    given = [os.fspath(path) for path in paths]
    for path in given:
        for source in sources_at(path, _is_of_server, _NAMES):
            _add(found, source)
    servers = [found[name] for name in sorted(found)]
    if not servers:
        raise BadFileError(
            "there is no transaction log and no snapshot of ZooKeeper",
            where=", ".join(given),
            remedy="give the server's dataDir and dataLogDir, or files named log.ZXID",
        )
    for server in servers:
        server.logs.sort(key=zxid_of)
        server.snapshots.sort(key=zxid_of)
    without_logs = [one for one in servers if not one.logs]
    without_snapshots = [one for one in servers if not one.snapshots]
    if len(without_logs) == len(without_snapshots) == 1 and len(servers) == 2:
        without_snapshots[0].snapshots = without_logs[0].snapshots
        return without_snapshots
    return servers


def _add(servers: dict[str, Server], source: LogSource) -> None:
    folder = source.name[: -len(source.base)].rstrip("/:") or "."
    server = servers.setdefault(folder, Server(folder))
    files = server.logs if _LOG.fullmatch(source.base) else server.snapshots
    if source.name not in (one.name for one in files):  # two given paths may contain one file
        files.append(source)


_NAMES: Final = (
    "the name of the file is neither that of a log nor that of a snapshot",
    "log.100000001 and snapshot.100000000",
)


def sources_at(given: str, wanted: Wanted, names: tuple[str, str]) -> Iterator[LogSource]:
    """Yield the files with a wanted name at a path or a URL: the file itself, the files of a
    directory and of the directories in it, or the files of an archive.

    `names` are what the error says about a file with another name, and examples of wanted names.
    Raises what `find_servers` raises.
    """
    if not given:
        raise BadFileError("the path is empty", remedy="name a file or a directory")
    for source in _at_url(given, wanted) if "://" in given else _at_path(Path(given), wanted):
        if wanted(source.base):
            yield source
        elif re.fullmatch(_ARCHIVE, source.base):
            from zkconsumer.history.archives import files_of  # loads tarfile, zipfile: 4 ms

            yield from files_of(source, wanted)
        else:
            what, examples = names
            raise BadFileError(
                what,
                where=given,
                remedy=f"keep the server's names, such as {examples}; "
                "archives are tar files, also compressed, and zip files",
            )


def _is_of_server(name: str) -> bool:
    """Return whether a file has the name of a log or a snapshot."""
    return bool(_LOG.fullmatch(name) or _SNAPSHOT.fullmatch(name))


def _at_path(path: Path, wanted: Wanted) -> Iterator[LogSource]:
    """Yield the file at a path, or the wanted files below it."""
    if path.is_dir():
        depth = len(path.parts) + MAX_DEPTH
        for folder, folders, names in os.walk(path, onerror=_raise):
            if len(Path(folder).parts) >= depth:
                folders.clear()
            for name in filter(wanted, names):
                try:
                    yield LogSource.of_path(Path(folder, name))
                except HistoryError:
                    # A running server has deleted the file since the directory was listed.
                    if os.path.lexists(Path(folder, name)):
                        raise
    elif path.exists():
        yield LogSource.of_path(path)
    else:
        raise _missing(str(path))


def _missing(where: str) -> BadFileError:
    return BadFileError("the path does not exist", where=where, remedy="check its spelling")


def _raise(error: OSError) -> None:
    """Raise the error, unless the server has deleted a directory during the search.

    A running broker deletes the directories of a deleted topic.
    """
    if not isinstance(error, FileNotFoundError):
        raise unreadable(str(error.filename), error)


def _at_url(url: str, wanted: Wanted) -> Iterator[LogSource]:
    """Yield the file at a URL, or the wanted files below it, on any filesystem of fsspec."""
    try:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise BadFileError(
            f"no installed package reads this URL: {error}",
            where=url,
            remedy="for hdfs:// and webhdfs://, pip install 'zkconsumer[hdfs]'",
        ) from None
    try:
        files.invalidate_cache()  # a stream lists its files again
        for info in _below(files, files.info(root), MAX_DEPTH, wanted):
            name = str(info["name"])
            path = url.rstrip("/") + name[len(root.rstrip("/")) :]
            # A read changes the time of the last access.
            stamp = str([value for key, value in info.items() if "access" not in key])
            yield LogSource(path, partial(files.open, name), info["size"], stamp)
    except FileNotFoundError:
        raise _missing(url) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise unreadable(url, error) from None


Remote: TypeAlias = Any
"""A filesystem of fsspec, or its description of a file; fsspec has no types."""


def _below(files: Remote, info: Remote, levels: int, wanted: Wanted) -> Iterator[Remote]:
    """Yield a file, or the wanted files of a directory and of `levels` levels below it.

    fsspec's own `walk` omits directories that the user may not read.
    """
    if info["type"] != "directory":
        yield info
        return
    for one in files.ls(info["name"], detail=True):
        if one["type"] != "directory":
            if wanted(one["name"].rpartition("/")[2]):
                yield one
        # An object store may list a directory as a part of itself.
        elif levels and one["name"].rstrip("/") != info["name"].rstrip("/"):
            yield from _below(files, one, levels - 1, wanted)


def uncompressed(name: str) -> str:
    """Return the name of a log without the ending of its compression."""
    for ending in COMPRESSIONS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def by_uncompressed_name(positions: Mapping[str, int]) -> dict[str, int]:
    """Return the highest position of each log, by its uncompressed name.

    A log may be compressed after it is read. Positions count uncompressed bytes in both files.
    """
    found: dict[str, int] = {}
    for name, position in positions.items():
        plain = uncompressed(name)
        found[plain] = max(position, found.get(plain, 0))
    return found


# ---- one sequence -------------------------------------------------------------------------------


def fast_decoder(servers: Sequence[Server]) -> ColumnDecoder | None:
    """Return the compiled decoder if it is installed and the logs are large enough for it."""
    if sum(log.size for server in servers for log in server.logs) < FAST_FROM:
        return None
    try:
        from zkconsumer.history.columns import ColumnDecoder, can_compile
    except ImportError:
        return None
    return ColumnDecoder() if can_compile() else None


class _OpenLog:
    """A log that is being read, with the batch that was read last and not delivered yet."""

    def __init__(self, log: LogSource, batches: Iterator[RowBatch], batch: RowBatch) -> None:
        self.log, self.batches, self.batch = log, batches, batch

    @property
    def last(self) -> int:
        """The last zxid of the batch."""
        return int(self.batch.zxids[-1])

    def advance(self, bound: int) -> bool:
        """Drop the rows up to a zxid. Return whether there are others."""
        rest = self.batch.part(bisect_right(self.batch.zxids, bound))
        following = rest if len(rest) else next(self.batches, None)
        if following is not None:
            self.batch = following
        return following is not None


class History:
    """The transactions of one server or of an ensemble, ordered by zxid, each once.

    Iterate over `batches`; `problems` then names missing, damaged and different transactions. A
    second iteration continues with the transactions that the servers have written since.

    Attributes:
        overlapping: the names of the logs whose zxids overlap with those of another log.
        skipped: the number of rows that were left out because they do not come after the beginning.
    """

    def __init__(
        self, servers: Sequence[Server], *, after: int = 0, overlapping: Iterable[str] = ()
    ) -> None:
        """Take the servers, and the zxid after which the sequence begins.

        `overlapping`: the overlapping logs of an earlier history, which this one continues.
        """
        self.servers = list(servers)
        self.problems: list[Problem] = []
        self.last_zxid = after
        self.skipped = 0
        self.overlapping = set(overlapping)
        self._recorded: tuple[str, str, int] = ("", "", 0)
        self._fast = fast_decoder(servers)
        self._readers: dict[str, LogReader] = {}
        self._unreadable: HistoryError | None = None
        self._ends: dict[str, int] = {}  # log -> the last zxid that was read from it
        self._gaps: dict[str, list[tuple[int, int]]] = {}  # server -> the zxids around each gap
        self._firsts: dict[str, int] = {}  # log -> the zxid of its first transaction

    def look_again(self, servers: Sequence[Server]) -> list[str]:
        """Take the servers' present files; the next iteration reads what they have written since.

        Return the names of the files that contain transactions before the last one that was read,
        and that were not read: a log that is new, or an older log that has grown. The next
        iteration leaves these transactions out, so read all files again with a new History. A log
        that was only compressed is not new.
        """
        sizes = {uncompressed(log.name): log.size for one in self.servers for log in one.logs}
        late = []
        for server in servers:
            logs = sorted(server.logs, key=self._first)
            for log in logs:
                size = sizes.get(uncompressed(log.name))
                if (size is None and self._first(log) <= self.last_zxid) or (
                    size is not None
                    and log is not logs[-1]
                    and log.size > size
                    and self._has_unread(log)
                ):
                    late.append(log.name)
        self.servers = list(servers)
        return late

    def _has_unread(self, log: LogSource) -> bool:
        """Return whether the next transaction of a log precedes the last one that was read."""
        known = self._readers.get(log.name)
        if known is None:
            return False
        try:
            batch = next(LogReader(log, offset=known.offset).batches(), None)
        except HistoryError:
            return False
        return batch is not None and int(batch.zxids[0]) <= self.last_zxid

    @property
    def offsets(self) -> dict[str, int]:
        """Each log that has been opened, and the number of its bytes that have been read.

        Raises HistoryError if a log could not be read to its end.
        """
        if self._unreadable is not None:
            raise self._unreadable
        return {name: reader.offset for name, reader in self._readers.items()}

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows in the order of their zxids."""
        streams = [self._of_server(server) for server in self.servers]
        yield from streams[0] if len(streams) == 1 else self._merged(streams)

    def _of_server(self, server: Server) -> Iterator[RowBatch]:
        """Yield a server's rows after the zxid `last_zxid`, and record gaps, damage and
        contradictions."""
        last = after = self.last_zxid
        logs = sorted(server.logs, key=self._first)
        self._check_names(logs)
        for batch in self._in_order(self._needed(logs, after), after):
            last = self._check_order(batch, last, server)
            yield batch
        self._check_ends(logs[:-1])
        self.last_zxid = max(last, self.last_zxid)

    def _check_names(self, logs: list[LogSource]) -> None:
        """Record the logs that belong at another place than their names say."""
        for log, named in zip(logs, sorted(logs, key=zxid_of), strict=True):
            first = self._first(log)
            if log is not named and first != zxid_of(log) and log.name not in self._readers:
                what = f"the log begins with the transaction 0x{first:x}, unlike its name"
                self.problems.append(Problem("contradiction", log.name, first, what))

    def _first(self, log: LogSource) -> int:
        """Return the zxid of a log's first transaction, or else the zxid in its name."""
        if log.name not in self._firsts:
            found = first_zxid(log)
            if found is None:
                return zxid_of(log)
            self._firsts[log.name] = found
        return self._firsts[log.name]

    def _needed(self, logs: list[LogSource], after: int) -> list[LogSource]:
        """Return the logs that can contain transactions after a zxid."""
        first = max(0, bisect_right(logs, after, key=self._first) - 1)
        return [one for one in logs[:first] if one.name in self.overlapping] + logs[first:]

    def _in_order(self, logs: Iterable[LogSource], after: int) -> Iterator[RowBatch]:
        """Yield the rows of a server's logs, which are in the order of their first transactions.

        A log is opened when the logs before it have been read up to its first zxid.
        """
        waiting, opened = deque(logs), list[_OpenLog]()
        while waiting or opened:
            while waiting and (
                not opened or self._first(waiting[0]) <= min(one.last for one in opened)
            ):
                log = waiting.popleft()
                batches = self._of_log(log, after)
                if (batch := next(batches, None)) is not None:
                    opened.append(_OpenLog(log, batches, batch))
            if len(opened) == 1:
                bound = opened[0].last
                yield opened[0].batch
            elif opened:
                bound = min(one.last for one in opened)
                yield from self._merged_logs(opened, bound)
            opened = [one for one in opened if one.advance(bound)]

    def _of_log(self, log: LogSource, after: int) -> Iterator[RowBatch]:
        """Yield a log's rows after a zxid. Within each batch the zxids ascend."""
        reader = self._readers.setdefault(log.name, LogReader(log, self._fast))
        reader.source = log  # an archive that has changed is copied again
        try:
            for batch in reader.batches():
                for part in _ascending(batch):
                    self._check_descent(log, int(part.zxids[0]))
                    self._ends[log.name] = int(part.zxids[-1])
                    new = part.part(bisect_right(part.zxids, after))
                    self.skipped += len(part) - len(new)
                    if len(new):
                        yield new
        except HistoryError as error:
            kind = "damaged" if isinstance(error, DamagedFileError) else "unreadable"
            if kind == "unreadable":
                self._unreadable = error
            at = self._ends.get(log.name, self._first(log) - 1)
            self.problems.append(Problem(kind, error.where, at, error.what))

    def _check_descent(self, log: LogSource, zxid: int) -> None:
        """Record a transaction that is lower than the one before it in the same log."""
        before = self._ends.get(log.name, 0)
        if zxid < before:
            what = f"in this log the transaction 0x{zxid:x} follows the higher 0x{before:x}"
            self.problems.append(Problem("contradiction", log.name, zxid, what))

    def _merged_logs(self, opened: list[_OpenLog], bound: int) -> Iterator[RowBatch]:
        """Yield the rows of overlapping logs up to a zxid, in the order of their zxids.

        Equal transactions are duplicates, which are yielded once. Different transactions with one
        zxid are all yielded, and recorded as a contradiction.
        """
        self.overlapping.update(one.log.name for one in opened)
        found: dict[int, dict[tuple[Row, ...], str]] = {}
        for one in opened:
            rows = one.batch.part(0, bisect_right(one.batch.zxids, bound)).rows
            for zxid, same in groupby(rows, key=lambda row: row.zxid):
                found.setdefault(zxid, {}).setdefault(tuple(same), one.batch.file)
        for zxid in sorted(found):
            versions = found[zxid]
            if len(versions) > 1:
                what = "these logs of one server have different transactions 0x{:x}"
                self._record("contradiction", ", ".join(versions.values()), zxid, what)
            for rows_of, file in versions.items():
                yield RowBatch(file, list(rows_of))

    def _check_order(self, batch: RowBatch, last: int, server: Server) -> int:
        """Record a server's gaps after the zxid `last`; return the highest zxid.

        The first transaction of a new leader (epoch) may follow any other, unless the name of a
        snapshot shows a transaction between them.
        """
        zxids = batch.zxids
        if _is_gapless(zxids, last):
            return int(zxids[-1])
        for zxid in map(int, zxids):
            if zxid > last + 1 and last:
                before = last if zxid >> 32 == last >> 32 else zxid >> 32 << 32
                missing = zxid - before - 1
                if missing or has_between(server.snapshots, last, zxid):
                    number = f"the {missing}" if missing else "some"
                    what = f"the file lacks {number} transactions before 0x{zxid:x}"
                    self.problems.append(Problem("missing", batch.file, last, what))
                    self._gaps.setdefault(server.name, []).append((last, zxid))
            last = max(last, zxid)
        return last

    def _check_ends(self, older: Iterable[LogSource]) -> None:
        """Record how each log ends, except a server's last one."""
        for log in older:
            reader = self._readers.get(log.name)
            if reader is None:
                continue
            at = self._ends.get(log.name, self._first(log))
            if reader.end is End.TORN:
                what = f"the log ends within a transaction, at byte {reader.offset}"
                self.problems.append(Problem("torn", log.name, at, what))
            elif reader.offset <= HEADER_BYTES and reader.end is not End.UNREAD:
                what = "the log has no transaction, although the server wrote a later one"
                self.problems.append(Problem("empty", log.name, at, what))

    # ---- several servers -----------------------------------------------------------------------

    def _merged(self, streams: list[Iterator[RowBatch]]) -> Iterator[RowBatch]:
        """Merge the servers' rows; where they differ, use the rows of the majority."""
        ahead: dict[int, list[Row]] = {}
        files: dict[int, str] = {}
        begins: dict[int, int] = {}
        after = self.last_zxid
        while True:
            for number, stream in enumerate(streams):
                if not ahead.get(number):
                    batch = next(stream, None)
                    ahead.pop(number, None)
                    if batch is not None:
                        ahead[number], files[number] = batch.rows, batch.file
                        if number not in begins:
                            # A continued reading skips a server's first transactions.
                            logs, first = self.servers[number].logs, int(batch.zxids[0])
                            begins[number] = min(map(self._first, logs)) if after else first
            if not ahead:
                return
            limit = min(rows[-1].zxid for rows in ahead.values())
            cut = {}
            for number, rows in ahead.items():
                at = bisect_right(rows, limit, key=lambda row: row.zxid)
                cut[number], ahead[number] = rows[:at], rows[at:]
            parts = [next(iter(cut.items()))]
            if any(rows != parts[0][1] for rows in cut.values()):
                parts = self._agreed(cut, begins)
            for number, rows in parts:
                yield RowBatch(files[number], rows)

    def _agreed(
        self, cut: dict[int, list[Row]], begins: dict[int, int]
    ) -> list[tuple[int, list[Row]]]:
        """Return the rows of the majority in parts, each with a server that has its rows, and
        record where servers disagree.

        A server covers the zxids between its first and its last transaction, apart from the gaps in
        its files. A transaction that fewer than half of the covering servers have was never
        committed: its leader lost its role.
        """
        by_zxid: dict[int, dict[int, tuple[Row, ...]]] = {}
        for number, rows in cut.items():
            for zxid, same in groupby(rows, key=lambda row: row.zxid):
                by_zxid.setdefault(zxid, {})[number] = tuple(same)
        agreed: list[tuple[int, list[Row]]] = []
        for zxid in sorted(by_zxid):
            versions = by_zxid[zxid]
            counts = Counter(versions.values())
            ((rows_of, votes),) = counts.most_common(1)
            lacking = [
                n
                for n in cut
                if n not in versions and begins[n] < zxid and not self._is_in_gap(n, zxid)
            ]
            taken = 2 * votes >= len(versions) + len(lacking)
            if len(counts) > 1:
                self._disagree(zxid, versions, "have different transactions", taken=taken)
            elif lacking:
                self._disagree(zxid, lacking, "lack the transaction", taken=taken)
            if taken:
                number = next(n for n, rows in versions.items() if rows == rows_of)
                if not agreed or agreed[-1][0] != number:
                    agreed.append((number, []))
                agreed[-1][1].extend(rows_of)
        return agreed

    def _is_in_gap(self, number: int, zxid: int) -> bool:
        """Return whether a transaction is in a gap of a server's files."""
        gaps = self._gaps.get(self.servers[number].name, ())
        return any(last < zxid < following for last, following in gaps)

    def _disagree(self, zxid: int, numbers: Iterable[int], what: str, *, taken: bool) -> None:
        """Record a disagreement of servers."""
        names = ", ".join(self.servers[n].name for n in numbers)
        if taken:
            text = f"these servers {what} 0x{{:x}} of the others"
        else:
            text = f"these servers {what} 0x{{:x}}, which is left out: no majority has it"
        self._record("disagreement", names, zxid, text)

    def _record(self, kind: str, where: str, zxid: int, text: str) -> None:
        """Record a problem; record consecutive equal ones once, at the first zxid."""
        if self._recorded != (where, text, zxid - 1):
            self.problems.append(Problem(kind, where, zxid, text.format(zxid)))
        self._recorded = (where, text, zxid)


def _is_gapless(zxids: Any, last: int) -> bool:  # Any: a list, or an array of numpy
    """Return whether each of the ascending zxids equals or directly follows the zxid before it."""
    if not 0 <= zxids[0] - last <= 1:
        return False
    if isinstance(zxids, list):
        return len(set(zxids)) == int(zxids[-1]) - int(zxids[0]) + 1
    return bool((zxids[1:] - zxids[:-1] <= 1).all())


def _ascending(batch: RowBatch) -> Iterator[RowBatch]:
    """Yield a batch in parts within which the zxids ascend; usually, that is the whole batch."""
    zxids = batch.zxids
    if batch.is_compiled:
        falls = (zxids[1:] < zxids[:-1]).nonzero()[0].tolist()
    elif zxids == sorted(zxids):
        falls = []
    else:
        falls = [n for n in range(len(zxids) - 1) if zxids[n + 1] < zxids[n]]
    ends = [*(at + 1 for at in falls), len(batch)]
    for first, end in zip([0, *ends], ends, strict=False):
        yield batch.part(first, end)
