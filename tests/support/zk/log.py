"""A reader of a ZooKeeper server's transaction log.

The log is a complete record that no member can falsify: it contains every write in the leader's
order, with the session that made it. The format is that of `FileTxnLog` and of the records in
`zookeeper.jute` (3.4 to 3.9).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Node, Stat
from zkconsumer.sim.znodes import End, ZnodeChange

CREATES = (1, 15)  # The types of transactions that create a znode: create and create2.
DELETE, SET_DATA, MULTI, SESSION, CLOSE, ERROR = 2, 5, 14, -10, -11, -1
FILE_HEADER = 16  # In bytes: the magic number, the version, the id of the database.
CHECKSUM = 8  # Number of bytes before the length of each entry.


class Entry(NamedTuple):
    """A transaction. `t_ms` is the server's wall clock. `call` is 0 if no client requested the
    transaction."""

    zxid: int
    session: int
    call: int
    t_ms: int
    kind: int
    body: bytes


class _Fields:
    """Reads the fields of a record one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self) -> int:
        return self._take(4)

    def _take(self, size: int) -> int:
        part = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(part, "big", signed=True)

    def flag(self) -> bool:
        return self._take(1) != 0

    def block(self) -> bytes:
        size = max(0, self.number())  # -1 is null
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.block().decode()


def entries(directories: Sequence[Path]) -> list[Entry]:
    """Return the committed transactions of one server, or of an ensemble's servers, in order.

    Transactions that only a minority of the servers has written are left out, since a new leader
    may have discarded them.
    """
    found: dict[int, Entry] = {}
    seen: Counter[int] = Counter()
    for directory in directories:
        own = {entry.zxid: entry for file in directory.glob("log.*") for entry in _file(file)}
        found |= own
        seen.update(own.keys())
    quorum = len(directories) // 2 + 1
    return [found[zxid] for zxid in sorted(found) if seen[zxid] >= quorum]


def _file(path: Path) -> Iterator[Entry]:
    with path.open("rb") as file:
        file.seek(FILE_HEADER)
        while len(head := file.read(CHECKSUM + 4)) == CHECKSUM + 4:
            size = int.from_bytes(head[CHECKSUM:], "big")
            if not size:
                return  # The rest of the file is preallocated.
            data = file.read(size + 1)
            if len(data) <= size:
                return  # The server is still writing this entry.
            session, call, zxid, t_ms, kind = struct.unpack_from(">qiqqi", data)
            yield Entry(zxid, session, call, t_ms, kind, data[32:])


def is_refused(entry: Entry) -> bool:
    """Return whether ZooKeeper refused a transaction, or one of its writes."""
    fields = _Fields(entry.body)
    if entry.kind == ERROR:
        return fields.number() != 0
    parts = []
    if entry.kind == MULTI:
        parts = [(fields.number(), _Fields(fields.block())) for _ in range(fields.number())]
    return any(kind == ERROR and body.number() != 0 for kind, body in parts)


class Written(NamedTuple):
    """A change, or the beginning of a session (None), with its time on the wall clock.

    `forced`: a client requested the end of the session, either its own or another session.
    """

    t_ms: int
    zxid: int
    session: int
    change: ZnodeChange | None
    forced: bool = False


class Tree:
    """The znodes below `root` according to the log; call `apply` for each transaction in order."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._nodes: dict[str, Node] = {}

    def apply(self, entry: Entry) -> Iterator[Written]:
        """Return a transaction's changes below the root, and its begin or end of a session."""
        if entry.kind == SESSION:
            yield Written(entry.t_ms, entry.zxid, entry.session, None)
        elif entry.kind == CLOSE:
            yield from self._end(entry)
        elif entry.kind == MULTI:
            fields = _Fields(entry.body)
            parts = [(fields.number(), fields.block()) for _ in range(fields.number())]
            if all(kind != ERROR for kind, _ in parts):
                for kind, body in parts:
                    yield from self._write(entry, kind, body)
        else:
            yield from self._write(entry, entry.kind, entry.body)

    def _end(self, entry: Entry) -> Iterator[Written]:
        end = End.CLOSED if entry.call else End.EXPIRED
        owned = [p for p, node in self._nodes.items() if node.stat.owner == entry.session]
        for path in owned:
            yield self._changed(entry, end, path, None)
        change = ZnodeChange(entry.zxid, entry.session, end, "", None, None)
        yield Written(entry.t_ms, entry.zxid, entry.session, change, forced=bool(entry.call))

    def _write(self, entry: Entry, kind: int, body: bytes) -> Iterator[Written]:
        if kind not in (*CREATES, DELETE, SET_DATA):
            return
        fields = _Fields(body)
        path = fields.text()
        if not path.startswith(self._root):
            return
        old = self._nodes.get(path)
        if kind == DELETE:
            yield self._changed(entry, rq.Delete(path), path, None)
            return
        data = fields.block()
        if kind == SET_DATA:
            version = fields.number()
            assert old is not None, path
            stat = old.stat._replace(mzxid=entry.zxid, version=version)
            yield self._changed(entry, rq.SetData(path, data, version - 1), path, Node(data, stat))
            return
        for _ in range(fields.number()):  # The access control list: rights, scheme, identity.
            fields.number(), fields.text(), fields.text()
        ephemeral = fields.flag()
        stat = Stat(entry.zxid, entry.zxid, 0, entry.session if ephemeral else 0)
        yield self._changed(entry, rq.Create(path, data, ephemeral), path, Node(data, stat))

    def _changed(self, entry: Entry, write: Any, path: str, new: Node | None) -> Written:
        old = self._nodes.pop(path, None)
        if new is not None:
            self._nodes[path] = new
        change = ZnodeChange(entry.zxid, entry.session, write, path, old, new)
        return Written(entry.t_ms, entry.zxid, entry.session, change)


def history(directories: Sequence[Path], *, root: str, since_ms: int = 0) -> list[Written]:
    """Return all writes below `root` since a time, and the begin and end of every session."""
    tree = Tree(root)
    return [
        written
        for entry in entries(directories)
        if entry.t_ms >= since_ms
        for written in tree.apply(entry)
    ]
