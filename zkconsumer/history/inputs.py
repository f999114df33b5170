"""Find the files of one or more servers, and read their logs as one sequence ordered by zxid.

Every server of an ensemble writes the same transactions. The sequence contains each transaction
once. `Problem`s name transactions and files that are missing, damaged, or different on some server.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from zkconsumer.errors import BadFileError, DamagedFileError, HistoryError
from zkconsumer.history.logs import READ_ERRORS, Batch, LogReader, Source, unreadable
from zkconsumer.history.transactions import Row

if TYPE_CHECKING:
    from zkconsumer.history.columns import ColumnDecoder

_LOG = re.compile(r"log\.([0-9a-f]{1,16})(\.gz)?")
_SNAPSHOT = re.compile(r"snapshot\.([0-9a-f]{1,16})(\.gz|\.snappy)?")

MAX_DEPTH: Final = 4
"""Number of directory levels below a given directory that are searched for files of servers."""

FAST_FROM: Final = 32 << 20
"""Minimum size of the logs, in bytes, for which the compiled decoder is used. Loading it takes 0.5
s, and compiling it takes 10 s the first time on a machine; the plain decoder reads this much in
less than 1 s."""


@dataclass
class Server:
    """The files of one server, oldest first."""

    name: str
    logs: list[Source] = field(default_factory=list)
    snapshots: list[Source] = field(default_factory=list)


@dataclass(frozen=True)
class Problem:
    """A gap, damage or contradiction in the logs.

    Attributes:
        kind: `damaged`, `unreadable`, `missing` (a gap in zxids), `disagreement`.
        where: the file, or the servers.
        zxid: the transaction at which the problem begins, or the last transaction read before the
            problem.
        what: one sentence that describes the problem.
    """

    kind: str
    where: str
    zxid: int
    what: str


def zxid_of(source: Source) -> int:
    """Return the zxid in the name of a log or a snapshot; -1 for another name."""
    match = _LOG.fullmatch(source.base) or _SNAPSHOT.fullmatch(source.base)
    return int(match[1], 16) if match else -1


# ---- finding files ------------------------------------------------------------------------------


def find_servers(paths: Iterable[str | os.PathLike[str]]) -> list[Server]:
    """Return the servers whose files are at the paths.

    A path is a `dataDir` or `dataLogDir`, a directory that contains some, a log, a snapshot, or a
    tar archive of these. It may be a URL of another filesystem, such as `hdfs://host:port/logs`.
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
        for source in _sources(path):
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


def _add(servers: dict[str, Server], source: Source) -> None:
    folder = source.name.rpartition("/")[0] or "."
    server = servers.setdefault(folder, Server(folder))
    if _LOG.fullmatch(source.base):
        server.logs.append(source)
    else:
        server.snapshots.append(source)


def _sources(given: str) -> Iterator[Source]:
    """Yield the logs and snapshots at a path or a URL."""
    for source in _at_url(given) if "://" in given else _at_path(Path(given)):
        if _is_of_server(source.base):
            yield source
        elif ".tar" in Path(source.base).suffixes or source.base.endswith(".tgz"):
            yield from _in_archive(source)
        else:
            raise BadFileError(
                "the name of the file is neither that of a log nor that of a snapshot",
                where=given,
                remedy="keep the server's names, such as log.100000001 and snapshot.100000000",
            )


def _is_of_server(name: str) -> bool:
    """Return whether a file has the name of a log or a snapshot."""
    return bool(_LOG.fullmatch(name) or _SNAPSHOT.fullmatch(name))


def _at_path(path: Path) -> Iterator[Source]:
    """Yield the file at a path, or the logs and snapshots below it."""
    if path.is_dir():
        depth = len(path.parts) + MAX_DEPTH
        for folder, folders, names in os.walk(path, onerror=_raise):
            if len(Path(folder).parts) >= depth:
                folders.clear()
            for name in names:
                if _is_of_server(name):
                    yield Source.of_path(Path(folder, name))
    elif path.exists():
        yield Source.of_path(path)
    else:
        raise _missing(str(path))


def _missing(where: str) -> BadFileError:
    return BadFileError("the path does not exist", where=where, remedy="check its spelling")


def _raise(error: OSError) -> None:
    raise unreadable(str(error.filename), error)


def _at_url(url: str) -> Iterator[Source]:
    """Yield the file at a URL, or the logs and snapshots below it, on any filesystem of fsspec."""
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
        for info in _below(files, files.info(root), MAX_DEPTH):
            name = str(info["name"])
            path = url.rstrip("/") + name[len(root.rstrip("/")) :]
            # A read changes the time of the last access.
            stamp = str([value for key, value in info.items() if "access" not in key])
            yield Source(path, partial(files.open, name), info["size"], stamp)
    except FileNotFoundError:
        raise _missing(url) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise unreadable(url, error) from None


def _below(files: Any, info: Any, levels: int) -> Iterator[Any]:  # Any: types of fsspec
    """Yield a file, or the logs and snapshots of a directory and of `levels` levels below it.

    fsspec's own `walk` omits directories that the user may not read.
    """
    if info["type"] != "directory":
        yield info
        return
    for one in files.ls(info["name"], detail=True):
        if one["type"] != "directory":
            if _is_of_server(one["name"].rpartition("/")[2]):
                yield one
        # An object store may list a directory as a part of itself.
        elif levels and one["name"].rstrip("/") != info["name"].rstrip("/"):
            yield from _below(files, one, levels - 1)


def _in_archive(archived: Source) -> Iterator[Source]:
    """Yield the files of a tar archive, which are copied into a temporary directory.

    A compressed archive cannot be read from the middle. The directory is removed when the process
    ends.
    """
    folder = Path(_temporary().name)
    try:
        with archived.open_raw() as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                if not member.isfile() or not _is_of_server(member.name.rpartition("/")[2]):
                    continue
                copy = folder / str(next(_numbers))
                content = cast(IO[bytes], archive.extractfile(member))
                with copy.open("wb") as target:
                    shutil.copyfileobj(content, target)
                yield replace(Source.of_path(copy), name=f"{archived.name}:{member.name}")
    except (*READ_ERRORS, tarfile.TarError) as error:
        raise unreadable(archived.name, error) from None


_numbers = count()


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="zkconsumer-history-")


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


class History:
    """The transactions of one server or of an ensemble, ordered by zxid, each once.

    Iterate over `batches`; `problems` then names missing, damaged and different transactions. A
    second iteration continues with the transactions that the servers have written since.
    """

    def __init__(self, servers: Sequence[Server], *, after: int = 0) -> None:
        """Take the servers, and the zxid after which the sequence begins."""
        self.servers = list(servers)
        self.problems: list[Problem] = []
        self.last_zxid = after
        self._disagreed: tuple[str, str, int] = ("", "", 0)
        self._fast = fast_decoder(servers)
        self._readers: dict[str, LogReader] = {}

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in the order of their zxids."""
        streams = [self._of_server(server) for server in self.servers]
        yield from streams[0] if len(streams) == 1 else self._merged(streams)

    def _of_server(self, server: Server) -> Iterator[Batch]:
        """Yield a server's rows after the zxid `last`, in order, and record gaps and damage."""
        last = self.last_zxid
        for log in _needed(server.logs, last):
            reader = self._readers.setdefault(log.name, LogReader(log, self._fast))
            try:
                for batch in reader.batches():
                    zxids = batch.zxids
                    first = bisect_right(zxids, last)
                    if first < len(zxids):
                        new = batch.since(first)
                        last = self._check_order(new, last)
                        yield new
            except HistoryError as error:
                kind = "damaged" if isinstance(error, DamagedFileError) else "unreadable"
                self.problems.append(Problem(kind, error.where, last, error.what))
        self.last_zxid = max(last, self.last_zxid)

    def _check_order(self, batch: Batch, last: int) -> int:
        """Record gaps after the zxid `last`; return the highest zxid."""
        zxids = batch.zxids
        if batch.is_compiled and _is_gapless(zxids, last):
            return int(zxids[-1])
        for zxid in map(int, zxids):
            if zxid > last + 1 and last:
                # The first transaction of a new leader (epoch) may follow any other.
                before = last if zxid >> 32 == last >> 32 else zxid >> 32 << 32
                if missing := zxid - before - 1:
                    what = f"the file lacks the {missing} transactions before 0x{zxid:x}"
                    self.problems.append(Problem("missing", batch.file, last, what))
            last = max(last, zxid)
        return last

    # ---- several servers -----------------------------------------------------------------------

    def _merged(self, streams: list[Iterator[Batch]]) -> Iterator[Batch]:
        """Merge the servers' rows; where they differ, use the rows of the majority."""
        ahead: dict[int, list[Row]] = {}
        files: dict[int, str] = {}
        begins: dict[int, int] = {}
        while True:
            for number, stream in enumerate(streams):
                if not ahead.get(number):
                    batch = next(stream, None)
                    ahead.pop(number, None)
                    if batch is not None:
                        ahead[number], files[number] = batch.rows, batch.file
                        begins.setdefault(number, int(batch.zxids[0]))
            if not ahead:
                return
            limit = min(rows[-1].zxid for rows in ahead.values())
            cut = {}
            for number, rows in ahead.items():
                at = bisect_right(rows, limit, key=lambda row: row.zxid)
                cut[number], ahead[number] = rows[:at], rows[at:]
            first = next(iter(cut.values()))
            if any(rows != first for rows in cut.values()):
                first = self._agreed(cut, begins)
            if first:
                yield Batch(files[next(iter(cut))], first)

    def _agreed(self, cut: dict[int, list[Row]], begins: dict[int, int]) -> list[Row]:
        """Return the rows of the majority, and record where servers disagree.

        A server covers the zxids between its first and its last transaction. A transaction that
        fewer than half of the covering servers have was never committed: its leader lost its role.
        """
        by_zxid: dict[int, dict[int, tuple[Row, ...]]] = {}
        for number, rows in cut.items():
            for zxid, same in groupby(rows, key=lambda row: row.zxid):
                by_zxid.setdefault(zxid, {})[number] = tuple(same)
        agreed: list[Row] = []
        for zxid in sorted(by_zxid):
            versions = by_zxid[zxid]
            counts = Counter(versions.values())
            ((rows_of, votes),) = counts.most_common(1)
            lacking = [n for n in cut if n not in versions and begins[n] < zxid]
            taken = 2 * votes >= len(versions) + len(lacking)
            if len(counts) > 1:
                self._disagree(zxid, versions, "have different transactions", taken=taken)
            elif lacking:
                self._disagree(zxid, lacking, "lack the transaction", taken=taken)
            if taken:
                agreed += rows_of
        return agreed

    def _disagree(self, zxid: int, numbers: Iterable[int], what: str, *, taken: bool) -> None:
        """Record a disagreement; record consecutive equal ones once, at the first zxid."""
        names = ", ".join(self.servers[n].name for n in numbers)
        if taken:
            text = f"these servers {what} 0x{{:x}} of the others"
        else:
            text = f"these servers {what} 0x{{:x}}, which is left out: no majority has it"
        key = (names, text)
        if self._disagreed != (*key, zxid - 1):
            self.problems.append(Problem("disagreement", names, zxid, text.format(zxid)))
        self._disagreed = (*key, zxid)


def _is_gapless(zxids: Any, last: int) -> bool:  # Any: an array of numpy
    """Return for each zxid of an array whether it equals or directly follows the previous zxid."""
    steps = zxids[1:] - zxids[:-1]
    return 0 <= zxids[0] - last <= 1 and bool(((steps == 0) | (steps == 1)).all())


def _needed(logs: list[Source], after: int) -> list[Source]:
    """Return the logs that can contain transactions after a zxid; their names show their zxids."""
    first = max(0, bisect_right(logs, after, key=zxid_of) - 1)
    return logs[first:]
