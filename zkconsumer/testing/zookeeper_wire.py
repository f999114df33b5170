"""The server's half of ZooKeeper's wire protocol: requests as bytes become values, replies bytes.

The format is ZooKeeper's jute (`zookeeper.jute`, `ZooDefs.OpCode`, `KeeperException.Code`). Numbers
are big-endian; a length precedes strings, buffers and lists, and -1 is the length of a null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Reply, Right
from zkconsumer.sim.ensemble import CHANGED, CHILD, CREATED, DELETED, WatchKind
from zkconsumer.sim.znodes import (
    Acl,
    CreateSequential,
    CreateWithAcl,
    SetAcl,
    Write,
    acl_of,
    is_valid_path,
)

# ---- numbers of the protocol ---------------------------------------------------------------------


class Op(IntEnum):
    """The requests that the fake answers, with ZooKeeper's numbers."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    CLOSE = -11


SINCE: Final[dict[int, tuple[int, int]]] = {
    Op.CHECK: (3, 4),
    Op.MULTI: (3, 4),
    Op.CREATE2: (3, 5),
    Op.CHECK_WATCHES: (3, 5),
    Op.REMOVE_WATCHES: (3, 5),
    Op.CREATE_CONTAINER: (3, 5),
    Op.MULTI_READ: (3, 6),
}
"""The first release that knows a request; 3.3 knows all others."""

LACKING: Final[dict[int, str]] = {
    16: "reconfig",
    20: "deleteContainer",
    21: "createTTL",
    102: "sasl",
    103: "getEphemerals",
    104: "getAllChildrenNumber",
    105: "setWatches2",
    106: "addWatch",
    107: "whoAmI",
}
"""Requests of real servers that the fake refuses, with their names."""

EVENT_XID = -1


class KeeperCode(IntEnum):
    """The result of a request, with the numbers of `KeeperException.Code`."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121


_ERRORS = {
    Code.OK: KeeperCode.OK,
    Code.NO_NODE: KeeperCode.NO_NODE,
    Code.NODE_EXISTS: KeeperCode.NODE_EXISTS,
    Code.BAD_VERSION: KeeperCode.BAD_VERSION,
    Code.NOT_EMPTY: KeeperCode.NOT_EMPTY,
    Code.NO_AUTH: KeeperCode.NO_AUTH,
}


def error_of(code: Code, request: object) -> KeeperCode:
    """Return the number of a refusal; `request` is the request or the write that was refused."""
    if code is not Code.OTHER:
        return _ERRORS[code]
    # The simulator refuses creates below ephemeral znodes, invalid paths, and to delete the root.
    is_valid = isinstance(request, rq.Create) and is_valid_path(request.path)
    return KeeperCode.NO_CHILDREN_FOR_EPHEMERALS if is_valid else KeeperCode.BAD_ARGUMENTS


# ---- reading -------------------------------------------------------------------------------------


class MalformedRequestError(Exception):
    """A request is not as its number says."""


class RefusedRequestError(Exception):
    """A request that the server refuses before the simulator sees it; `error` is the reply's."""

    def __init__(self, error: KeeperCode, text: str = "") -> None:
        super().__init__(text or error.name)
        self.error = error


class Reader:
    """Reads the fields of a frame one after the other."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_at_end(self) -> bool:
        """Whether the frame has no more fields."""
        return self._at == len(self._data)

    def int32(self) -> int:
        """Read four bytes."""
        return self._number(">i")

    def int64(self) -> int:
        """Read eight bytes."""
        return self._number(">q")

    def boolean(self) -> bool:
        """Read one byte; at the end of the frame, where old clients send none, False."""
        return not self.is_at_end and bool(self._number(">b"))

    def buffer(self) -> bytes | None:
        """Read bytes, or a null."""
        size = self.int32()
        if size < 0:
            return None
        if size > len(self._data) - self._at:
            raise MalformedRequestError(f"a field of {size} bytes exceeds its request")
        self._at += size
        return self._data[self._at - size : self._at]

    def string(self) -> str:
        """Read a text; a null is empty."""
        try:
            return (self.buffer() or b"").decode()
        except UnicodeDecodeError:
            raise MalformedRequestError("a text is not UTF-8") from None

    def strings(self) -> list[str]:
        """Read a list of texts."""
        return [self.string() for _ in range(self._count())]

    def rights(self) -> list[Right]:
        """Read an access control list."""
        found = []
        for _ in range(self._count()):
            permissions, scheme = self.int32(), self.string()
            found.append(Right(f"{scheme}:{self.string()}", permissions))
        return found

    def _count(self) -> int:
        count = self.int32()
        if count > len(self._data) - self._at:
            raise MalformedRequestError(f"a list of {count} elements exceeds its request")
        return count

    def _number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._at)
        except struct.error:
            raise MalformedRequestError("the request ends too early") from None
        self._at += struct.calcsize(form)
        return int(value)


class Connect(NamedTuple):
    """A client's first frame."""

    last_zxid: int
    timeout_ms: int
    session: int
    password: bytes
    knows_read_only: bool


def read_connect(frame: bytes) -> Connect:
    """Read a connect request."""
    reader = Reader(frame)
    reader.int32()  # the protocol's version, always 0
    last_zxid, timeout_ms, session = reader.int64(), reader.int32(), reader.int64()
    password = reader.buffer() or b""
    return Connect(last_zxid, timeout_ms, session, password, not reader.is_at_end)


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life."""


@dataclass(frozen=True, slots=True)
class Close:
    """The end of a session."""


@dataclass(frozen=True, slots=True)
class Authenticate:
    """A login; the credentials depend on the scheme."""

    scheme: str
    credentials: bytes


@dataclass(frozen=True, slots=True)
class SetWatches:
    """The watches that a client sets again after a reconnect; see `Ensemble.set_watches`."""

    seen: int
    data: tuple[str, ...]
    absent: tuple[str, ...]
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watches:
    """The watches of a session at a znode, which a request asks for or removes."""

    path: str
    kinds: frozenset[WatchKind]


@dataclass(frozen=True, slots=True)
class MultiWrite:
    """A `multi`; the operation of each write determines the form of its result."""

    ops: tuple[Op, ...]
    writes: tuple[rq.Write, ...]


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Several reads in one request."""

    reads: tuple[rq.Get | rq.Children, ...]


Request = (
    rq.Request
    | rq.Rights
    | Write
    | Ping
    | Close
    | Authenticate
    | SetWatches
    | Watches
    | MultiWrite
    | MultiRead
)


class ZooKeeperCall(NamedTuple):
    """A request with its number and the client's number for it."""

    xid: int
    op: Op
    request: Request

    @property
    def paths(self) -> tuple[str, ...]:
        """The znodes that the request names."""
        request = self.request
        if isinstance(request, MultiWrite):
            return tuple(write.path for write in request.writes)
        if isinstance(request, MultiRead):
            return tuple(read.path for read in request.reads)
        path = getattr(request, "path", None)
        return () if path is None else (path,)


def read_head(frame: bytes) -> tuple[int, int, Reader]:
    """Read the client's number and the operation's, and return the rest of the frame."""
    reader = Reader(frame)
    return reader.int32(), reader.int32(), reader


def read_request(op: Op, reader: Reader, identities: Iterable[str]) -> Request:
    """Read a request.

    Args:
        op: the operation's number.
        reader: the frame behind the header.
        identities: those of the connection, which an entry `auth` of an ACL stands for.

    Raises:
        MalformedError: the frame has another format.
        RefusedRequestError: a path, an ACL or a kind of znode that the server refuses.
    """
    return _READ[op](reader, tuple(identities))


_CONTAINER_FLAGS: Final = 4
"""The flags of a container in a request (`CreateMode.CONTAINER`)."""

_Identities = tuple[str, ...]
_SCHEMES = ("digest", "ip", "sasl", "x509")


def _create(reader: Reader, identities: _Identities) -> CreateWithAcl:
    path, data = reader.string(), reader.buffer()
    rights, flags = reader.rights(), reader.int32()
    if not 0 <= flags <= 3:
        raise RefusedRequestError(
            KeeperCode.UNIMPLEMENTED, f"a znode with the flags {flags} (container, TTL)"
        )
    make = CreateSequential if flags & 2 else CreateWithAcl
    return make(path, data, bool(flags & 1), acl=_acl(rights, identities))


def _acl(rights: Sequence[Right], identities: _Identities) -> Acl:
    """Return the list that the simulator keeps (ZooKeeper: `PrepRequestProcessor.fixupACL`)."""
    entries: list[Right] = []
    for identity, permissions in rights:
        scheme, _, name = identity.partition(":")
        if scheme == "auth":
            logins = [one for one in identities if not one.startswith("ip:")]
            entries += [Right(one, permissions) for one in logins]
        elif scheme == "ip" and "/" in name:
            raise RefusedRequestError(
                KeeperCode.UNIMPLEMENTED, f"the ACL entry {identity!r}, a network"
            )
        elif identity == "world:anyone" or (scheme in _SCHEMES and name):
            entries.append(Right(identity, permissions))
        else:
            raise RefusedRequestError(KeeperCode.INVALID_ACL, f"the ACL entry {identity!r}")
    if not entries:
        raise RefusedRequestError(KeeperCode.INVALID_ACL, "an ACL without an entry")
    return acl_of(entries)


def _set_data(reader: Reader, _: _Identities) -> rq.SetData:
    return rq.SetData(reader.string(), reader.buffer(), reader.int32())


def _set_acl(reader: Reader, identities: _Identities) -> SetAcl:
    path, rights = reader.string(), reader.rights()
    if reader.int32() != -1:
        raise RefusedRequestError(KeeperCode.UNIMPLEMENTED, "setACL with a version")
    return SetAcl(path, _acl(rights, identities))


def _delete(reader: Reader, _: _Identities) -> rq.Delete:
    return rq.Delete(reader.string(), reader.int32())


def _check(reader: Reader, _: _Identities) -> rq.Check:
    return rq.Check(reader.string(), reader.int32())


def _authenticate(reader: Reader, _: _Identities) -> Authenticate:
    reader.int32()  # a type that no server reads
    return Authenticate(reader.string(), reader.buffer() or b"")


def _set_watches(reader: Reader, _: _Identities) -> SetWatches:
    return SetWatches(
        reader.int64(), tuple(reader.strings()), tuple(reader.strings()), tuple(reader.strings())
    )


# ZooKeeper's `Watcher.WatcherType`; 4 and 5 are the kinds that `addWatch` sets.
_WATCH_KINDS = {
    1: frozenset({WatchKind.CHILD}),
    2: frozenset({WatchKind.DATA}),
    3: frozenset(WatchKind),
}


def _watches(reader: Reader, _: _Identities) -> Watches:
    path, number = reader.string(), reader.int32()
    if number not in _WATCH_KINDS:
        raise RefusedRequestError(KeeperCode.BAD_ARGUMENTS, f"watches of the kind {number}")
    return Watches(path, _WATCH_KINDS[number])


def _create_container(reader: Reader, identities: _Identities) -> CreateWithAcl:
    path, data, rights = reader.string(), reader.buffer(), reader.rights()
    if reader.int32() != _CONTAINER_FLAGS:
        raise RefusedRequestError(KeeperCode.BAD_ARGUMENTS, "a container with other flags")
    return CreateWithAcl(path, data, False, acl=_acl(rights, identities))


def _elements(reader: Reader) -> Iterable[int]:
    """Yield the number of each element of a transaction, before its fields."""
    while True:
        op, is_end, _ = reader.int32(), reader.boolean(), reader.int32()
        if is_end:
            return
        yield op


_WRITES: dict[int, Callable[[Reader, _Identities], rq.Write]] = {
    Op.CREATE: _create,
    Op.CREATE2: _create,
    Op.DELETE: _delete,
    Op.SET_DATA: _set_data,
    Op.CHECK: _check,
}


def _multi(reader: Reader, identities: _Identities) -> MultiWrite:
    ops: list[Op] = []
    writes: list[rq.Write] = []
    for number in _elements(reader):
        read = _WRITES.get(number)
        if read is None:
            raise RefusedRequestError(
                KeeperCode.UNIMPLEMENTED, f"{name_of(number)} in a transaction"
            )
        ops.append(Op(number))
        writes.append(read(reader, identities))
    return MultiWrite(tuple(ops), tuple(writes))


def _multi_read(reader: Reader, _: _Identities) -> MultiRead:
    reads: list[rq.Get | rq.Children] = []
    for op in _elements(reader):
        if op not in (Op.GET_DATA, Op.GET_CHILDREN):
            raise MalformedRequestError(f"{name_of(op)} in a multiRead")
        kind = rq.Get if op == Op.GET_DATA else rq.Children
        reads.append(kind(reader.string(), reader.boolean()))
    return MultiRead(tuple(reads))


def _watched(make: Callable[[str, bool], Request]) -> Callable[[Reader, _Identities], Request]:
    return lambda reader, _: make(reader.string(), reader.boolean())


def _named(make: Callable[[str], Request]) -> Callable[[Reader, _Identities], Request]:
    return lambda reader, _: make(reader.string())


_READ: dict[Op, Callable[[Reader, _Identities], Request]] = {
    Op.CREATE: _create,
    Op.CREATE2: _create,
    Op.DELETE: _delete,
    Op.EXISTS: _watched(rq.Exists),
    Op.GET_DATA: _watched(rq.Get),
    Op.SET_DATA: _set_data,
    Op.GET_ACL: _named(rq.Rights),
    Op.SET_ACL: _set_acl,
    Op.GET_CHILDREN: _watched(rq.Children),
    Op.GET_CHILDREN2: _watched(rq.Listing),
    Op.SYNC: _named(rq.SyncLeader),
    Op.PING: lambda *_: Ping(),
    Op.CHECK: _check,
    Op.MULTI: _multi,
    Op.MULTI_READ: _multi_read,
    Op.AUTH: _authenticate,
    Op.CHECK_WATCHES: _watches,
    Op.REMOVE_WATCHES: _watches,
    Op.CREATE_CONTAINER: _create_container,
    Op.SET_WATCHES: _set_watches,
    Op.CLOSE: lambda *_: Close(),
}


def name_of(number: int) -> str:
    """Return the name of a request for a log line."""
    if number in LACKING:
        return LACKING[number]
    return Op(number).name if number in {*Op} else f"request {number}"


# ---- writing -------------------------------------------------------------------------------------


class FullStat(NamedTuple):
    """ZooKeeper's `Stat`; times are in milliseconds since 1970."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    owner: int
    data_length: int
    num_children: int
    pzxid: int


_STAT = struct.Struct(">qqqqiiiqiiq")
_HEAD = struct.Struct(">iqi")
_ELEMENT = struct.Struct(">i?i")
_LAST_ELEMENT = _ELEMENT.pack(-1, True, -1)
_INT = struct.Struct(">i")


def head(xid: int, zxid: int, error: KeeperCode = KeeperCode.OK) -> bytes:
    """Return a reply's header."""
    return _HEAD.pack(xid, zxid, error)


def connected(request: Connect, *, timeout_ms: int, session: int, password: bytes) -> bytes:
    """Return the reply to a connect request; session 0 tells that the session has expired.

    Clients before 3.4 do not know the last field (`ZooKeeperServer.finishSessionInit`).
    """
    start = struct.pack(">iiq", 0, timeout_ms, session) + write_buffer(password)
    return start + b"\0" if request.knows_read_only else start


_KINDS = {CREATED: 1, DELETED: 2, CHANGED: 3, CHILD: 4}
_SYNC_CONNECTED = 3


def event(kind: str, path: str) -> bytes:
    """Return the notification of a watch."""
    return (
        _HEAD.pack(EVENT_XID, -1, KeeperCode.OK)
        + struct.pack(">ii", _KINDS[kind], _SYNC_CONNECTED)
        + write_string(path)
    )


def write_buffer(data: bytes | None) -> bytes:
    """Encode bytes, or a null."""
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def write_string(text: str) -> bytes:
    """Encode a text."""
    return write_buffer(text.encode())


def write_strings(texts: Sequence[str]) -> bytes:
    """Encode a list of texts."""
    return b"".join((_INT.pack(len(texts)), *map(write_string, texts)))


def write_stat(stat: FullStat) -> bytes:
    """Encode the metadata of a znode."""
    return _STAT.pack(*stat)


def write_rights(rights: Sequence[Right]) -> bytes:
    """Encode an access control list."""
    parts = [_INT.pack(len(rights))]
    for identity, permissions in rights:
        scheme, _, name = identity.partition(":")
        parts += (_INT.pack(permissions), write_string(scheme), write_string(name))
    return b"".join(parts)


Describe = Callable[[str, rq.Stat | None], FullStat]
"""Returns the metadata of a znode; of the simulator's Stat if it is given, else as it is now."""


def result(op: Op, request: Request | rq.Write, value: object, describe: Describe) -> bytes:
    """Encode the value of a successful reply of the simulator.

    Args:
        op: the operation's number.
        request: what was requested.
        value: the value of the simulator's Reply, or its result for a write of a transaction.
        describe: the metadata of znodes.
    """
    match op:
        case Op.CREATE:
            return write_string(str(value))
        case Op.CREATE2 | Op.CREATE_CONTAINER:
            return write_string(str(value)) + write_stat(describe(str(value), None))
        case Op.DELETE | Op.CHECK:
            return b""
        case Op.SYNC:
            return write_string(str(value))
    path: str = getattr(request, "path", "")
    match value:
        case rq.Stat():  # of exists and setData
            return write_stat(describe(path, value))
        case rq.Node(data, _):
            return write_buffer(data) + write_stat(describe(path, None))
        case rq.ListedChildren(names, _):
            return write_strings(names) + write_stat(describe(path, None))
        case tuple() if op is Op.GET_CHILDREN:
            return write_strings(value)
        case tuple():
            return write_rights(value) + write_stat(describe(path, None))
    return write_stat(describe(path, None))  # of setACL


def transaction_result(transaction: MultiWrite, reply: Reply, describe: Describe) -> bytes:
    """Encode the result of each write of a transaction.

    If a write was refused, the writes before it have the error 0, and those after it
    `RUNTIME_INCONSISTENCY`.
    """
    if reply.code is Code.OK:
        parts = [
            _ELEMENT.pack(op, False, KeeperCode.OK) + result(op, write, value, describe)
            for op, write, value in zip(
                transaction.ops, transaction.writes, reply.value, strict=True
            )
        ]
    else:
        failed = int(reply.value)
        errors = [KeeperCode.OK] * failed
        errors.append(error_of(reply.code, transaction.writes[failed]))
        errors += [KeeperCode.RUNTIME_INCONSISTENCY] * (len(transaction.writes) - failed - 1)
        parts = [_failure(error) for error in errors]
    return b"".join((*parts, _LAST_ELEMENT))


def reads_result(reads: Sequence[tuple[rq.Get | rq.Children, Reply]], describe: Describe) -> bytes:
    """Encode the result of each read of a `multiRead`."""
    parts = []
    for request, reply in reads:
        if reply.code is Code.OK:
            op = Op.GET_DATA if isinstance(request, rq.Get) else Op.GET_CHILDREN
            parts.append(
                _ELEMENT.pack(op, False, KeeperCode.OK) + result(op, request, reply.value, describe)
            )
        else:
            parts.append(_failure(error_of(reply.code, request)))
    return b"".join((*parts, _LAST_ELEMENT))


def _failure(error: KeeperCode) -> bytes:
    return _ELEMENT.pack(-1, False, error) + _INT.pack(error)
