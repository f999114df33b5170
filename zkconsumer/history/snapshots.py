"""Read snapshots of ZooKeeper's tree, and replay transactions on them.

A snapshot is fuzzy: the server writes it while it applies transactions. So `snapshot.N` contains
all transactions up to the zxid N, and may contain some later ones. The tree is exact after the
transactions that follow N have been replayed. The format is that of ZooKeeper 3.4.6 to 3.9
(`FileSnap`, `SnapStream`, `DataTree`), plain or compressed (`.gz`, `.snappy`).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Final, cast
from zlib import adler32

from zkconsumer.errors import DamagedFileError, HistoryError
from zkconsumer.history import transactions as tx
from zkconsumer.history.inputs import zxid_of
from zkconsumer.history.logs import READ_ERRORS, LogSource, unreadable
from zkconsumer.history.transactions import Row
from zkconsumer.protocol.model import CONTAINER_OWNER, TTL_OWNER, is_session

MAGIC: Final = b"ZKSN"
VERSION: Final = 2
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_BLOCK: Final = 1 << 20  # number of bytes that are read at a time
_MAX_COUNT: Final = 100_000_000  # sessions or access lists; a higher number is damage

REMEDY: Final = "an older snapshot is used if there is one, and the logs are replayed from there"


@dataclass(slots=True)
class Znode:
    """A znode with its persisted state (`StatPersisted`). `owner` is a session, or 0."""

    data: bytes | None
    acl: int
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    pzxid: int


@dataclass
class Tree:
    """Znodes by path (the root is "/") and sessions with their timeouts in milliseconds.

    Attributes:
        zxid: the last transaction that is in the tree for certain.
        latest: the last transaction that may be in the tree.
        acls: the access control lists that `Znode.acl` refers to.
    """

    zxid: int = 0
    latest: int = 0
    znodes: dict[str, Znode] = field(default_factory=dict)
    sessions: dict[int, int] = field(default_factory=dict)
    acls: dict[int, list[tuple[int, str, str]]] = field(default_factory=dict)
    _ephemerals: dict[int, set[str]] = field(default_factory=dict)

    @classmethod
    def fresh(cls) -> Tree:
        """Return the tree of a new database, before its first transaction."""
        tree = cls()
        for path in ("/", "/zookeeper", "/zookeeper/quota"):
            tree.add(path, Znode(b"", -1, *(0 for _ in range(9))))
        return tree

    def add(self, path: str, znode: Znode) -> None:
        """Add a znode."""
        self.znodes[path] = znode
        if is_session(znode.owner):
            self._ephemerals.setdefault(znode.owner, set()).add(path)

    # ---- replay --------------------------------------------------------------------------------

    def apply(self, rows: Iterable[Row]) -> None:
        """Replay transactions as a server does (`DataTree.processTxn`).

        Changes that a fuzzy snapshot already contains are ignored: the creation of a znode that
        exists, and the change or deletion of a znode that does not exist.
        """
        for row in rows:
            self.zxid = max(self.zxid, row.zxid)
            match row.kind:
                case tx.SET_DATA | tx.RECONFIG:
                    self._set_data(row)
                case tx.CREATE | tx.CREATE2 | tx.CREATE_CONTAINER | tx.CREATE_TTL:
                    self._create(row)
                case tx.DELETE | tx.DELETE_CONTAINER:
                    self._delete(cast(str, row.path), row.zxid)
                case tx.SET_ACL:
                    znode = self.znodes.get(cast(str, row.path))
                    if znode is not None:
                        znode.acl, znode.aversion = self._acl(row.acl), row.version
                case tx.CREATE_SESSION:
                    self.sessions[row.session] = row.number
                case tx.CLOSE_SESSION:
                    self.sessions.pop(row.session, None)
                    listed = tx.deleted_paths(row.data)
                    left = self._ephemerals.pop(row.session, set()).difference(listed)
                    for path in (*listed, *sorted(left)):
                        self._delete(path, row.zxid)

    def _set_data(self, row: Row) -> None:
        znode = self.znodes.get(cast(str, row.path))
        if znode is not None:
            znode.data, znode.version = row.data, row.version
            znode.mzxid, znode.mtime = row.zxid, row.time_ms

    def _create(self, row: Row) -> None:
        path = cast(str, row.path)
        parent = self.znodes.get(parent_of(path))
        existing = self.znodes.get(path)
        if existing is not None:
            existing.acl = self._acl(row.acl)
        if parent is not None:
            version = row.version if row.version != -1 else parent.cversion + 1
            if version > parent.cversion:
                parent.cversion, parent.pzxid = version, row.zxid
        if existing is not None or parent is None:
            return
        owner = {
            tx.CREATE_CONTAINER: CONTAINER_OWNER,
            tx.CREATE_TTL: (TTL_OWNER | row.number) - (1 << 64),
        }.get(row.kind, row.session if row.number else 0)
        zxid, time = row.zxid, row.time_ms
        acl = self._acl(row.acl)
        self.add(path, Znode(row.data, acl, zxid, zxid, time, time, 0, 0, 0, owner, zxid))

    def _delete(self, path: str, zxid: int) -> None:
        parent = self.znodes.get(parent_of(path))
        znode = self.znodes.pop(path, None)
        if parent is not None and zxid > parent.pzxid:
            parent.pzxid = zxid
        if znode is not None and is_session(znode.owner):
            self._ephemerals.get(znode.owner, set()).discard(path)

    def _acl(self, encoded: bytes | None) -> int:
        """Return the number of an access control list; -1 if there is none, as on the server."""
        if encoded is None:
            return -1
        found = tx.decode_acl(encoded)
        for number, one in self.acls.items():
            if one == found:
                return number
        number = max(self.acls, default=0) + 1
        self.acls[number] = found
        return number


def parent_of(path: str) -> str:
    """Return the path of the parent; "" for the root, which has none."""
    return path.rpartition("/")[0] or ("/" if path != "/" else "")


# ---- files --------------------------------------------------------------------------------------


class _Bytes:
    """The decompressed bytes of a snapshot, with their offset and checksum."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self._window, self._at, self._summed = b"", 0, 0
        self._begin = 0  # the offset of the window in the file
        self._sum = 1

    @property
    def offset(self) -> int:
        return self._begin + self._at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises DamagedFileError at the end of the file."""
        while len(self._window) - self._at < size:
            more = self._file.read(_BLOCK)
            if not more:
                raise self.damage("the snapshot ends too early")
            self.checksum()
            self._begin += self._at
            self._window, self._at, self._summed = self._window[self._at :] + more, 0, 0
        begin, self._at = self._at, self._at + size
        return self._window[begin : self._at]

    def checksum(self) -> int:
        """Return the checksum of all bytes taken so far."""
        self._sum = adler32(memoryview(self._window)[self._summed : self._at], self._sum)
        self._summed = self._at
        return self._sum

    def rest(self) -> bytes:
        """Return up to 100 bytes that follow, without advancing the position."""
        while len(self._window) - self._at < 100 and (more := self._file.read(_BLOCK)):
            self._window += more
        return self._window[self._at : self._at + 100]

    def integer(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def long(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def count(self) -> int:
        found = self.integer()
        if not 0 <= found <= _MAX_COUNT:
            raise self.damage(f"a list has {found} entries")
        return found

    def buffer(self) -> bytes | None:
        size = self.integer()
        if size == -1:
            return None
        if not 0 <= size <= tx.MAX_TRANSACTION:
            raise self.damage(f"a text has {size} bytes")
        return self.take(size)

    def text(self) -> str:
        found = self.buffer()
        try:
            return "" if found is None else found.decode()
        except UnicodeDecodeError:
            raise self.damage("a text is not valid UTF-8") from None

    def damage(self, what: str) -> DamagedFileError:
        return DamagedFileError(what, file=self._name, offset=self.offset, remedy=REMEDY)


def read_snapshot(source: LogSource) -> Tree:
    """Return the tree in a snapshot.

    Raises:
        DamagedFileError: the snapshot is malformed, incomplete, or its checksum is wrong. The
            offset counts decompressed bytes.
        HistoryError: the file cannot be read, or it is compressed with Snappy and pyarrow is
            missing.
    """
    try:
        with _opened(source) as file:
            return _read(_Bytes(file, source.name), zxid_of(source))
    except READ_ERRORS as error:
        raise unreadable(source.name, error) from None


def _read(data: _Bytes, zxid: int) -> Tree:
    if data.take(4) != MAGIC:
        raise data.damage("this is no snapshot of ZooKeeper")
    if data.integer() != VERSION:
        raise data.damage("the version of the snapshot is unknown")
    data.long()  # the database's id
    tree = Tree(zxid, zxid)
    for _ in range(data.count()):
        session = data.long()
        tree.sessions[session] = data.integer()
    for _ in range(data.count()):
        number = data.long()
        tree.acls[number] = [
            (data.integer(), data.text(), data.text()) for _ in range(data.count())
        ]
    while (path := data.text()) != "/":
        if path and (not path.startswith("/") or (parent_of(path)) not in tree.znodes):
            raise data.damage("a znode has no parent in the snapshot")
        content, acl = data.buffer(), data.long()
        stat = struct.unpack(">qqqqiiiqq", data.take(60))
        znode = Znode(content, acl, *stat)
        tree.latest = max(tree.latest, znode.mzxid, znode.pzxid)
        tree.add(path or "/", znode)
    _check_seals(data)
    return tree


def _check_seals(data: _Bytes) -> None:
    """Check the checksum after the tree, and the checksums after the parts that later releases
    append.

    3.6 and later append a digest (20 bytes), and 3.9 appends the last zxid (8 bytes).
    """
    sizes = {0: (), 33: (20,), 21: (8,), 54: (20, 8)}
    _check_seal(data)
    rest = len(data.rest())
    if rest not in sizes:
        raise data.damage(f"{rest} bytes follow the tree")
    for size in sizes[rest]:
        data.take(size)
        _check_seal(data)


def _check_seal(data: _Bytes) -> None:
    expected = data.checksum()
    if data.long() != expected or data.text() != "/":
        raise data.damage("the checksum of the snapshot is wrong")


def _opened(source: LogSource) -> IO[bytes]:
    if source.name.endswith(".snappy"):
        return cast(IO[bytes], io.BufferedReader(_Snappy(source)))
    return source.open()


class _Snappy(io.RawIOBase):
    """Decompresses a stream of snappy-java's `SnappyOutputStream`: a header and blocks."""

    def __init__(self, source: LogSource) -> None:
        self._name, self._file, self._left = source.name, source.open(), b""
        try:
            import pyarrow
        except ImportError:
            raise HistoryError(
                "the snapshot is compressed with Snappy, and pyarrow is not installed",
                where=source.name,
                remedy="pip install 'zkconsumer[fast]'",
            ) from None
        self._codec = pyarrow.Codec("snappy")
        if self._file.read(16)[:8] != _SNAPPY_MAGIC:
            raise self._damage("this is no snapshot compressed with Snappy")

    def readable(self) -> bool:
        return True

    def readinto(self, target: object) -> int:
        view = memoryview(cast(bytearray, target))
        while not self._left:
            size = self._file.read(4)
            if not size:
                return 0
            self._left = self._block(int.from_bytes(size, "big", signed=True))
        part, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(part)] = part
        return len(part)

    def _block(self, size: int) -> bytes:
        packed = self._file.read(size) if 0 < size <= tx.MAX_TRANSACTION else b""
        if not packed or len(packed) < size:
            raise self._damage(f"a compressed block has {size} bytes")
        length = shift = 0
        for byte in packed[:5]:
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if length > tx.MAX_TRANSACTION:
            raise self._damage(f"a decompressed block has {length} bytes")
        try:
            return bytes(self._codec.decompress(packed, decompressed_size=length))
        except OSError:
            raise self._damage("a compressed block is malformed") from None

    def _damage(self, what: str) -> DamagedFileError:
        at = self._file.tell()
        return DamagedFileError(what, file=self._name, offset=at, remedy=REMEDY)
