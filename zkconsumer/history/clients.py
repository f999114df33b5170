"""The machines and users behind sessions, from what ZooKeeper's servers say about their clients.

    clients = read_clients(sessions, server_logs=["/var/log/zookeeper"])
    clients.at(session, time_ms)  # SessionClient(host="10.0.0.5", port=41022, user=None)

A transaction names its session only. Three kinds of files name the client of a session:

- a server's own log: address and port of a connection. `docs/history.md` says which lines each
  release writes at which level.
- the audit log (since 3.6): the user and the host of each write.
- the file that `zkconsumer history record` writes: the connections that the servers listed.

The times in a server's logs are local times of the server, and do not name the zone. The zone is
derived from sessions whose beginning or expiry is in the transactions too. A client that the files
do not show stays unknown.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from zkconsumer.errors import BadFileError
from zkconsumer.history.logs import READ_ERRORS, LogSource, unreadable
from zkconsumer.history.tables import (
    UNKNOWN,
    Commits,
    Incident,
    Member,
    Ownership,
    SessionClient,
    Tables,
)

SLACK_MS: Final = 2_000
"""Milliseconds by which a server may log a connection after the first transaction of its session:
the clocks of the servers differ, and the line follows the reply."""

ZONE_MS: Final = 15 * 60_000
"""Zones differ from UTC by multiples of a quarter of an hour."""

NEAR_MS: Final = 60_000
"""Maximum difference between the time of a line and that of its transaction, apart from the zone.
With a larger difference, the line is no evidence of the zone."""

CONNECTED: Final = "connected"
GONE: Final = "gone"
"""The events of the lines of a recorded file that describe a connection (`connection_line`)."""

_DAY_MS: Final = 86_400_000
_ALWAYS_MS: Final = 1 << 62

_PROGRESS_LINES: Final = 20_000
"""Lines between two reports of the progress."""

_LOG_NAME: Final = re.compile(r".*\.(log|out)(\..+)?", re.DOTALL)


class _Line(Enum):
    """What a line says."""

    BEGIN = "a connection of the session begins"
    SEEN = "the session has this connection"
    END = "the connection of the session ends"
    EXPIRY = "the session expires"


_SESSION: Final = r"0x(?P<session>[0-9a-f]+)"
_LINES: Final = tuple(
    (text, re.compile(pattern), line)
    for text, pattern, line in (
        (
            "Established session 0x",
            rf"Established session {_SESSION} with .* for client (?P<client>\S+)",
            _Line.BEGIN,
        ),
        (
            "attempting to renew session 0x",
            rf"attempting to renew session {_SESSION} at (?P<client>\S+)",
            _Line.BEGIN,
        ),
        (
            "session = 0x",
            r"attempting to (?:renew|establish new) session: ?session = "
            rf"{_SESSION},.* address = (?P<client>\S+)",
            _Line.BEGIN,
        ),
        (
            "auth success",
            rf"Session {_SESSION}: auth success for scheme \S+ and address (?P<client>\S+)",
            _Line.SEEN,
        ),
        (
            "Invalid session 0x",
            rf"Invalid session {_SESSION} for client (?P<client>\S+), probably",
            _Line.SEEN,
        ),
        (
            "Closed socket connection",
            r"Closed socket connection for client (?P<client>\S+) which had sessionid "
            rf"{_SESSION}",
            _Line.END,
        ),
        (
            "the socket: address",
            rf"the socket: address = (?P<client>\S+), session = {_SESSION}",
            _Line.END,
        ),
        (
            "Expiring session 0x",
            rf"Expiring session {_SESSION}, timeout of(?P<client>)",
            _Line.EXPIRY,
        ),
    )
)
"""A text that a line contains, which is faster to find; the pattern of the line; what it says."""

# A line of the audit log. The lines about ephemeral znodes of a session that has ended have no
# address, and their user is that of the server.
_AUDIT: Final = re.compile(
    rf"session={_SESSION}\t(?:user=(?P<user>[^\t]*)\t)?ip=(?P<ip>[^\t]+)\toperation="
)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.](\d{3})(Z|[+-]\d\d:?\d\d)?", re.ASCII
)


# ---- files ---------------------------------------------------------------------------------------


Lifetimes: TypeAlias = Mapping[int, tuple[int | None, int | None]]
"""Session -> when it began and ended, in milliseconds since 1970; None if unknown."""


def read_clients(
    sessions: Lifetimes,
    *,
    server_logs: Iterable[str | os.PathLike[str]] = (),
    connections: Iterable[str | os.PathLike[str]] = (),
    wanted: Container[int] | None = None,
    on_progress: Callable[[int], None] = lambda lines: None,
) -> Clients:
    """Read the files that name clients; the times are on the scale of the transactions.

    The memory that is needed grows with the sessions, and not with the files.

    Args:
        sessions: the sessions in the transactions, which show the zones of the servers' logs.
        server_logs: servers' logs and audit logs, or directories that contain some; compressed
            files too.
        connections: files that `zkconsumer history record` has written, with the older parts beside
            them.
        wanted: the sessions whose clients are returned; None means all.
        on_progress: called with the number of lines of servers' logs that have been read.

    Raises:
        BadFileError: a path does not exist, a directory contains no log, or a line of a recorded
            file has another format.
        HistoryError: the operating system refuses to read a file, or a compressed one is damaged.
    """
    found = _Reading(sessions, wanted, on_progress)
    silent = [
        os.fspath(given)
        for given in server_logs
        if not sum(map(found.read_log, _log_files(Path(given))))
    ]
    for path in (file for given in connections for file in parts_of(Path(given))):
        found.read_samples(path)
    return found.placed(silent)


def _log_files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [_existing(path)]
    found = sorted(file for file in path.rglob("*") if _LOG_NAME.fullmatch(file.name))
    found = [file for file in found if file.is_file()]
    if not found:
        raise BadFileError(
            "the directory contains no log of a server",
            where=str(path),
            remedy="give a directory with files such as zookeeper.log or zookeeper-HOST.out.1.gz,"
            " or name the files",
        )
    return found


def parts_of(path: Path) -> Sequence[Path]:
    """Return the parts of a recorded file, oldest first: `FILE.2`, `FILE.1`, `FILE`."""
    number = re.compile(rf"{re.escape(path.name)}\.(\d+)")
    older = {
        int(match[1]): file
        for file in path.parent.glob(f"{path.name}.*")
        if (match := number.fullmatch(file.name))
    }
    return [*(older[at] for at in sorted(older, reverse=True)), _existing(path)]


def _existing(path: Path) -> Path:
    if not path.exists():
        raise BadFileError("the path does not exist", where=str(path), remedy="check its spelling")
    return path


# ---- what the files say --------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """Lines of one file that say the same about a session, one after the other.

    Attributes:
        host, port: those of the connection; None if the lines do not say it.
        user: the client's; None if it has not authenticated, or the lines do not say it.
        first_ms, last_ms: the times of the lines; those in a log are local times of the server.
        closed_ms: when the connection ended; None if the lines do not say it.
        folder: that of the server's log, which determines the zone; "" if the times have a zone.
    """

    session: int
    host: str
    port: int | None
    user: str | None
    first_ms: int
    last_ms: int
    folder: str
    closed_ms: int | None = None


def _run(session: int, address: tuple[str, int | None], user: str | None, line: _Moment) -> _Run:
    return _Run(session, *address, user, line.local_ms, line.local_ms, line.folder)


class _Reading:
    """What the files say, in the order of their lines."""

    def __init__(
        self, sessions: Lifetimes, wanted: Container[int] | None, on_progress: Callable[[int], None]
    ) -> None:
        self._sessions, self._wanted, self._on_progress = sessions, wanted, on_progress
        self._lines = 0
        self._connections: list[_Run] = []
        self._writers: list[_Run] = []
        self._begun: dict[tuple[int, str, int | None, str], _Run] = {}
        # Folder -> day -> how many lines are evidence of each zone.
        self._votes: dict[str, dict[int, Counter[int]]] = {}

    # ---- reading -----------------------------------------------------------------------------

    def read_log(self, path: Path) -> int:
        """Read a server's log or its audit log, and return how many lines name a client. Raises
        HistoryError."""
        one = _LogFile(str(path.parent))
        source = LogSource.of_path(path)
        try:
            with source.open() as file:
                for line in file:
                    self._lines += 1
                    if self._lines % _PROGRESS_LINES == 0:
                        self._on_progress(self._lines)
                    if b"0x" in line:
                        self._line(line.decode(errors="replace"), one)
        except READ_ERRORS as error:
            raise unreadable(source.name, error) from None
        return one.named

    def _line(self, line: str, file: _LogFile) -> None:
        time = _TIME.search(line)
        if time is None:
            return
        if "session=0x" in line and (audit := _AUDIT.search(line)):
            session, ip = _signed(audit["session"]), audit["ip"]
            names = [name for name in (audit["user"] or "").split(",") if name != ip]
            run = _run(session, (ip, None), ",".join(names) or None, file.at(time))
            file.named += 1
            self._extend(self._writers, run, file, is_writer=True)
            return
        for text, pattern, what in _LINES:
            if text in line and (match := pattern.search(line)):
                session = _signed(match["session"])
                if what is _Line.EXPIRY:
                    ended_ms = self._sessions.get(session, (None, None))[1]
                    self._vote(file.at(time), ended_ms, 3)
                elif address := _address(match["client"]):
                    file.named += 1
                    self._connection(_run(session, address, None, file.at(time)), file, what)
                return

    def _connection(self, run: _Run, file: _LogFile, what: _Line) -> None:
        """Add what a line says about a connection."""
        place = run.session, run.host, run.port, run.folder
        if what is not _Line.END:
            if (known := self._extend(self._connections, run, file, is_writer=False)) is not None:
                self._begun[place] = known
            return
        known = self._begun.get(place)
        if known is not None:
            known.closed_ms = run.first_ms
        elif self._is_wanted(run.session):
            # It is unknown when the connection began, so no moment is known at which it existed.
            run.port = None
            self._connections.append(run)

    def _is_wanted(self, session: int) -> bool:
        return self._wanted is None or session in self._wanted

    def _extend(self, to: list[_Run], run: _Run, file: _LogFile, *, is_writer: bool) -> _Run | None:
        """Add a line to the run of its session in this file, or begin another run.

        Return the run; None if the session is not wanted.
        """
        key = run.session, is_writer
        last = file.runs.get(key)
        if key not in file.runs and run.session in self._sessions:
            weight = 1 if run.port is None else 3  # a first write may be late
            moment = _Moment(run.first_ms, run.folder)
            self._vote(moment, self._sessions[run.session][0], weight)
            file.runs[key] = None
        if not self._is_wanted(run.session):
            return None
        if last is not None and (last.host, last.port, last.user) == (run.host, run.port, run.user):
            last.last_ms = run.last_ms
            return last
        file.runs[key] = run
        to.append(run)
        return run

    def read_samples(self, path: Path) -> None:
        """Read a file of `zkconsumer history record`. Raises BadFileError and HistoryError."""
        try:
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith("\n"):  # the last line may be incomplete
                        self._sample(line, f"{path}, line {number}")
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(str(path), error) from None

    def _sample(self, line: str, where: str) -> None:
        try:
            run = _sampled(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise BadFileError(
                f"`zkconsumer history record` did not write this line: {error!r}",
                where=where,
                remedy="name a file that this command has written",
            ) from None
        if run is not None and self._is_wanted(run.session):
            self._connections.append(run)

    # ---- placing in time ---------------------------------------------------------------------

    def _vote(self, line: _Moment, time_ms: int | None, weight: int) -> None:
        """Count a line as evidence of its server's zone, if the transactions have its event."""
        local_ms, folder = line
        if folder and time_ms:
            zone = round((local_ms - time_ms) / ZONE_MS) * ZONE_MS
            if abs(local_ms - time_ms - zone) <= NEAR_MS and abs(zone) <= _DAY_MS:
                days = self._votes.setdefault(folder, {})
                days.setdefault(local_ms // _DAY_MS, Counter())[zone] += weight

    def placed(self, silent: Sequence[str]) -> Clients:
        """Return the clients, with times on the scale of the transactions."""
        found = Clients(silent=silent)
        for runs, of in (
            (self._connections, found.connections),
            (self._writers, found.writers),
        ):
            for run in runs:
                zone = 0 if not run.folder else _zone(self._votes, run.folder, run.first_ms)
                client = SessionClient(run.host, run.port, run.user)
                if zone is None:
                    found.unplaced.add(run.folder)
                    seen = _Seen(client)
                else:
                    closed_ms = None if run.closed_ms is None else run.closed_ms - zone
                    seen = _Seen(client, run.first_ms - zone, run.last_ms - zone, closed_ms)
                of.setdefault(run.session, []).append(seen)
        return found


@dataclass
class _LogFile:
    """A log that is being read.

    Attributes:
        folder: its directory.
        named: the number of lines that name a client.
        runs: session, whether it is of the audit log -> its last run; None if it is not wanted.
    """

    folder: str
    named: int = 0
    runs: dict[tuple[int, bool], _Run | None] = field(default_factory=dict)

    def at(self, time: re.Match[str]) -> _Moment:
        """Return the time of a line."""
        return _Moment(_milliseconds(time), "" if time[4] else self.folder)


class _Moment(NamedTuple):
    """A time in a log, and the folder that determines its zone; "" if the time has a zone."""

    local_ms: int
    folder: str


def _zone(votes: dict[str, dict[int, Counter[int]]], folder: str, local_ms: int) -> int | None:
    """Return the zone of a server on the day of a line, or on the nearest day with evidence."""
    days = votes.get(folder)
    if not days:
        return None
    nearest = min(days, key=lambda day: (abs(day - local_ms // _DAY_MS), day))
    return days[nearest].most_common(1)[0][0]


def _milliseconds(time: re.Match[str]) -> int:
    """Return the time of a line; without a zone, as if it were UTC."""
    moment = datetime.fromisoformat(f"{time[1]}T{time[2]}.{time[3]}{time[4] or '+00:00'}")
    return round(moment.astimezone(UTC).timestamp() * 1000)


def _address(text: str) -> tuple[str, int] | None:
    """Return host and port of Java's `InetSocketAddress`, which precedes them with a name and `/`;
    None if the connection had no address any more."""
    host, _, port = text.rpartition("/")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


def _signed(hexadecimal: str) -> int:
    """Return a session as the transactions have it."""
    number = int(hexadecimal[-16:], 16)
    return number - (1 << 64 if number >> 63 else 0)


def _sampled(document: Any) -> _Run | None:  # Any: JSON
    """Return the connection of a line of `zkconsumer history record`; None for another line."""
    if document["event"] not in (CONNECTED, GONE):
        return None
    return _Run(
        _signed(document["session"].removeprefix("0x")),
        str(document["host"]),
        int(document["port"]),
        None,
        int(document["since_ms"]),
        int(document["seen_ms"]),
        "",
        closed_ms=int(document["seen_ms"]) if document["event"] == GONE else None,
    )


# ---- the client of a session ---------------------------------------------------------------------


class _Seen(NamedTuple):
    """A client of a session between two times, and when its connection ended; None if a time is
    unknown."""

    client: SessionClient
    first_ms: int | None = None
    last_ms: int | None = None
    closed_ms: int | None = None


@dataclass
class Clients:
    """The clients of sessions.

    Attributes:
        connections, writers: session -> what server logs and samples, and what audit logs say.
        unplaced: the directories of logs whose zone is unknown, because they and the transactions
            have no session in common.
        silent: the given logs and directories in which no line names a client.
    """

    connections: dict[int, list[_Seen]] = field(default_factory=dict)
    writers: dict[int, list[_Seen]] = field(default_factory=dict)
    unplaced: set[str] = field(default_factory=set)
    silent: Sequence[str] = ()

    def notes(self) -> Iterator[str]:
        """Yield what the files lack."""
        for name in self.silent:
            yield (
                f"{name}: no line names a client. Since 3.5, a server logs connections at the level"
                " DEBUG only (`zkconsumer docs history`)"
            )
        for name in sorted(self.unplaced):
            yield (
                f"{name}: the zone of the times is unknown, because no session that begins or"
                " expires in these logs does so in the transactions, too. Ports are unknown, and a"
                " host is known only if its session has no other"
            )

    def at(self, session: int | None, time_ms: int) -> SessionClient:
        """Return the client of a session at a time: that of its last known connection until then.

        If the files show only later connections of the session, the port is None, and the host is
        known only if all of them have the same host.
        """
        if session is None:
            return UNKNOWN
        writers = self.writers.get(session, [])
        everything = [*self.connections.get(session, []), *writers]
        begun, written = _begun(everything, time_ms), _begun(writers, time_ms)
        host = begun[-1].client.host if begun else _only(one.client.host for one in everything)
        return SessionClient(
            host,
            _port(begun, time_ms),
            written[-1].client.user if written else _only(one.client.user for one in writers),
        )


def _port(begun: Sequence[_Seen], time_ms: int) -> int | None:
    """Return the port of the last connection that was seen until a time; None if it is unknown."""
    if not begun or begun[-1].client.port is not None:
        return begun[-1].client.port if begun else None
    # The audit log has no port, but the server's log may have it.
    host = begun[-1].client.host
    same = [one for one in begun if one.client.host == host and one.client.port is not None]
    is_closed = bool(same) and same[-1].closed_ms is not None and same[-1].closed_ms < time_ms
    return same[-1].client.port if same and not is_closed else None


def _only(values: Iterable[str | None]) -> str | None:
    """Return the only value; None if there are several."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _begun(seen: Sequence[_Seen], time_ms: int) -> list[_Seen]:
    """Return what was seen until a time, the last one last."""
    for until_ms in (time_ms, time_ms + SLACK_MS):
        found = [one for one in seen if one.first_ms is not None and one.first_ms <= until_ms]
        if found:
            return sorted(found, key=lambda one: (min(one.last_ms or 0, until_ms), one.first_ms))
    return []


# ---- rows ----------------------------------------------------------------------------------------


def sessions_of(tables: Tables) -> set[int]:
    """Return the sessions of the rows that `name_clients` completes."""
    found = {row.session for row in tables.sessions}
    return found | {row.session for row in _rows_of(tables) if row.session is not None}


def _rows_of(tables: Tables) -> Iterator[Member | Ownership | Commits | Incident]:
    yield from tables.members
    yield from tables.ownership
    yield from tables.commits
    yield from tables.incidents


def name_clients(tables: Tables, clients: Clients) -> None:
    """Set host, port and user of each row that has a session."""
    for session in tables.sessions:
        last_ms = _ALWAYS_MS if session.ended_ms is None else session.ended_ms
        session.host, session.port, session.user = clients.at(session.session, last_ms)
    for row in _rows_of(tables):
        if row.session is not None:
            row.host, row.port, row.user = clients.at(row.session, row.time_ms)
