"""Record the connections that ZooKeeper's servers list, for `zkconsumer history --connections`.

    with ConnectionLog(Path("connections.jsonl")) as log:
        while True:
            log.add(ask_servers(config), now_ms)

The file has a line of JSON for each change: a connection that is new, or that is gone. So it grows
with the number of connections, and not with time. `history.clients` reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from zkconsumer.errors import BadFileError, ConfigError, HistoryError
from zkconsumer.file_lock import try_lock
from zkconsumer.history.clients import CONNECTED, GONE
from zkconsumer.protocol.model import JsonObject, session_text
from zkconsumer.zk.clients import ConnectedClient, ServerClients

MOST_BYTES: Final = 64 << 20
"""Size at which a new part of the file begins, in bytes: 300,000 connections."""

PARTS: Final = 4
"""Number of parts that are kept, with the present one. The oldest part is deleted."""


class _Connection(NamedTuple):
    """A connection to one server. `since_ms` is the time at which it began, by the server's
    clock."""

    server: str
    session: int
    address: str
    since_ms: int

    def line(self, event: str, seen_ms: int) -> JsonObject:
        """Return the line about the connection, which a sample saw at `seen_ms`."""
        host, _, port = self.address.rpartition(":")
        return {
            "event": event,
            "server": self.server,
            "session": session_text(self.session),
            "host": host.strip("[]"),
            "port": int(port),
            "since_ms": self.since_ms,
            "seen_ms": seen_ms,
        }


class ConnectionChange(NamedTuple):
    """What a sample added to the file.

    Attributes:
        connected, gone: the numbers of connections.
        silent: server -> why it does not list its clients; only servers that listed them before.
        back: the servers that list their clients again.
    """

    connected: int
    gone: int
    silent: dict[str, str]
    back: list[str]


class ConnectionLog:
    """A file of connections that grows; one process writes it at a time."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES, parts: int = PARTS) -> None:
        """Open the file, or create it. If a process was ended while it wrote, the incomplete last
        line is cut off.

        Raises:
            ConfigError: another process writes the file.
            BadFileError: the file has another content.
            HistoryError: the operating system refuses to read or to write the file.
        """
        self._path, self._most_bytes, self._parts = path, most_bytes, parts
        self._seen: dict[_Connection, int] = {}  # connection -> the time of the last sample
        self._silent: dict[str, str] = {}
        try:
            self._file = self._opened()
        except OSError as error:
            raise self._refused(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, answers: Iterable[ServerClients], now_ms: int) -> ConnectionChange:
        """Add what the servers have listed.

        A connection is gone if its server lists its clients without it. As long as a server is
        silent, nothing is known about its connections. Raises HistoryError if the file cannot be
        written.
        """
        lines: list[JsonObject] = []
        change = ConnectionChange(0, 0, {}, [])
        for server, clients, why in answers:
            if bool(why) != (server in self._silent):
                event = "silent" if why else "listed"
                lines.append({"event": event, "server": server, "why": why, "seen_ms": now_ms})
                if why:
                    change.silent[server] = self._silent[server] = why
                else:
                    change.back.append(server)
                    del self._silent[server]
            if not why:
                lines += self._changes(server, clients.items(), now_ms)
        try:
            self._write(lines)
            if self._file.tell() > self._most_bytes:
                self._rotate()
        except OSError as error:
            raise self._refused(error) from None
        events = [line["event"] for line in lines]
        return change._replace(connected=events.count(CONNECTED), gone=events.count(GONE))

    def _changes(
        self, server: str, clients: Iterable[tuple[int, ConnectedClient]], now_ms: int
    ) -> list[JsonObject]:
        """Return the lines about the connections of a server that are new or gone."""
        known = {(one.session, one.address): one for one in self._seen if one.server == server}
        listed = set()
        for session, client in clients:
            since_ms = client.since_ms
            if since_ms is None:
                old = known.get((session, client.address))
                since_ms = now_ms if old is None else old.since_ms
            listed.add(_Connection(server, session, client.address, since_ms))
        before = set(known.values())
        lines = [one.line(GONE, self._seen.pop(one)) for one in sorted(before - listed)]
        lines += [one.line(CONNECTED, now_ms) for one in sorted(listed - before)]
        self._seen |= dict.fromkeys(listed, now_ms)
        return lines

    # ---- the file ----------------------------------------------------------------------------

    def _opened(self) -> IO[bytes]:
        self._path.touch()
        with ExitStack() as stack:
            file = stack.enter_context(self._path.open("r+b"))
            try:
                try_lock(file)
            except BlockingIOError:
                raise ConfigError(
                    "another process records into this file",
                    where=str(self._path),
                    remedy="end it, or choose another file (--file)",
                ) from None
            self._cut(file)
            stack.pop_all()  # the caller closes the file
            return file

    def _cut(self, file: IO[bytes]) -> None:
        """Check that the file is a recorded one, and cut off a part of a line at its end."""
        first = file.readline()
        if first and not first.startswith(b'{"event": '):
            raise BadFileError(
                "`zkconsumer history record` did not write this file",
                where=str(self._path),
                remedy="choose another file (--file)",
            )
        size = file.seek(0, os.SEEK_END)
        tail = file.seek(max(0, size - (1 << 16)))
        end = file.read().rfind(b"\n") + 1
        file.truncate(tail + end)
        file.seek(tail + end)

    def _write(self, lines: Sequence[JsonObject]) -> None:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        self._file.write(text.encode())
        self._file.flush()

    def _rotate(self) -> None:
        """Begin a new part of the file. It begins with the connections that exist."""
        older = [self._path.with_name(f"{self._path.name}.{at}") for at in range(1, self._parts)]
        for source, target in reversed([*zip([self._path, *older[:-1]], older, strict=True)]):
            with suppress(FileNotFoundError):
                source.replace(target)
        self._file.close()
        self._file = self._opened()
        self._write([one.line(CONNECTED, seen_ms) for one, seen_ms in sorted(self._seen.items())])

    def _refused(self, error: OSError) -> HistoryError:
        return HistoryError(
            f"the recorded file cannot be written: {error.strerror or error}",
            where=str(self._path),
            remedy="check its directory, its permissions and the free space",
        )
