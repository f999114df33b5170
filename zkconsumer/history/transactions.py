"""Decode ZooKeeper's transactions in plain Python: the reference and the fallback of `columns`.

The format is that of ZooKeeper 3.4.6 to 3.9 (`FileTxnLog`, `SerializeUtils`, `zookeeper.jute`). One
transaction is a checksum (Adler-32 of what follows the length), a length, a header, a record, in
releases from 3.6 on a digest of 12 bytes, and the byte `B`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import adler32

CREATE, DELETE, SET_DATA, SET_ACL, CHECK, MULTI, CREATE2 = 1, 2, 5, 7, 13, 14, 15
RECONFIG, CREATE_CONTAINER, DELETE_CONTAINER, CREATE_TTL = 16, 19, 20, 21
CREATE_SESSION, CLOSE_SESSION, ERROR = -10, -11, -1

KINDS: Final = {
    CREATE: "create",
    DELETE: "delete",
    SET_DATA: "setData",
    SET_ACL: "setACL",
    CHECK: "check",
    MULTI: "multi",
    CREATE2: "create2",
    RECONFIG: "reconfig",
    CREATE_CONTAINER: "createContainer",
    DELETE_CONTAINER: "deleteContainer",
    CREATE_TTL: "createTTL",
    CREATE_SESSION: "createSession",
    CLOSE_SESSION: "closeSession",
    ERROR: "error",
}
"""Type of a transaction -> ZooKeeper's name (`Request.op2String`)."""

VERSIONED: Final = frozenset(
    {CREATE, SET_DATA, SET_ACL, CHECK, CREATE2, RECONFIG, CREATE_CONTAINER, CREATE_TTL}
)
"""Types of transactions with the version of a znode."""

MAX_TRANSACTION: Final = 64 << 20
"""Maximum bytes of one transaction. A server refuses more than `jute.maxbuffer`, 1 MB by default. A
greater length is reported as damage, so that a wrong length does not allocate memory."""

MAX_PATHS: Final = 50_000
"""Number of paths of commits that a reader keeps, in 10 MB."""

MAX_SEARCH: Final = 64 << 10
"""Number of bytes in which `complete_at` searches for the end of a transaction; longer transactions
are rare."""

DIGEST: Final = 12  # bytes of the digest after a record: a version and the digest of the tree
ERROR_SIZE: Final = 4  # bytes of the record of an error
OVERHEAD: Final = 12  # bytes of the checksum and the length before a transaction's header
_HEADER: Final = 32  # bytes of a transaction's header
_END: Final = 0x42  # the byte after each transaction, `B`
_SLASH: Final = 0x2F

_HEAD = struct.Struct(">Qiqiqqii")  # a header, and the first number of its record
_INT = struct.Struct(">i")
_int_at: Final = _INT.unpack_from  # bound once, because most records call it several times
_PAIR = struct.Struct(">ii")
_LONG = struct.Struct(">q")

# The encoded access control list that gives all rights to everyone; most znodes have it.
_OPEN: Final = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")


class Row(NamedTuple):
    """One operation. An applied multi has one row per part, with the multi's zxid and time.

    A failed multi has a single row of kind MULTI: the log keeps the parts before the failure as
    ordinary records, but none of them happened.

    Attributes:
        time_ms: the leader's wall clock, in milliseconds since the epoch.
        cxid: the client's number of the request; 0 for an action of a server, such as an expiry.
        part: the number of the part within its multi; -1 for a transaction of its own.
        data: the znode's data; for CLOSE_SESSION the encoded list of deleted paths, if any.
        version: the new version; for creates the parent's new version of children, -1 if unknown.
        number: CREATE and CREATE2: 1 for an ephemeral znode; CREATE_TTL: milliseconds;
            CREATE_SESSION: the timeout in milliseconds; ERROR and MULTI: the error code.
        acl: the encoded access control list, which `decode_acl` decodes.
    """

    zxid: int
    time_ms: int
    session: int
    cxid: int
    kind: int
    part: int
    path: str | None
    data: bytes | None
    version: int
    number: int
    acl: bytes | None


RowTuple: TypeAlias = tuple[Any, ...]
"""The fields of a `Row` without their names: making a tuple takes a third of the time, and the
garbage collector does not keep track of it."""

Values = tuple[str | None, bytes | None, int, int, bytes | None]
"""The content of a record: path, data, version, number, acl."""


class _Fault(Exception):
    """Raised for a malformed record, with its place in the window and the reason."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(at, why)
        self.at, self.why = at, why


# ---- records ------------------------------------------------------------------------------------


def _text(window: bytes, at: int, stop: int) -> tuple[str, int]:
    """Return a string that may be empty, and the offset after it."""
    (size,) = _int_at(window, at)
    end = at + 4 + size
    if size < 0 or end > stop:
        raise _Fault(at, f"a text of {size} bytes does not fit into its record")
    try:
        return window[at + 4 : end].decode(), end
    except UnicodeDecodeError as error:
        raise _Fault(at + 4 + error.start, "a text is not valid UTF-8") from None


def _path(window: bytes, at: int, stop: int) -> tuple[str, int]:
    (size,) = _int_at(window, at)
    end = at + 4 + size
    if size > 0 and end <= stop and window[at + 4] == _SLASH:
        try:
            return window[at + 4 : end].decode(), end
        except UnicodeDecodeError:
            pass
    _text(window, at, stop)  # raises a fault that says more
    raise _Fault(at, "a path does not begin with /")


def _buffer(window: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    (size,) = _int_at(window, at)
    if size == -1:
        return None, at + 4
    end = at + 4 + size
    if size < 0 or end > stop:
        raise _Fault(at, f"data of {size} bytes do not fit into their record")
    return window[at + 4 : end], end


def _acl(window: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    """Return an encoded access control list and the offset after it, and check its lengths."""
    (count,) = _int_at(window, at)
    if count == -1:
        return None, at + 4
    if count < 0 or count * 12 > stop - at:
        raise _Fault(at, f"{count} access rights do not fit into their record")
    end = at + 4
    for _ in range(count):
        end += 4  # the permissions
        for _ in ("scheme", "identity"):
            (size,) = _int_at(window, end)
            begin, end = end, end + 4 + max(size, 0)
            if size < -1 or end > stop:
                raise _Fault(begin, f"a text of {size} bytes does not fit into its record")
    return window[at:end], end


def decode_acl(encoded: bytes | None) -> list[tuple[int, str, str]]:
    """Return (permissions, scheme, identity) of each entry of a row's `acl`."""
    found: list[tuple[int, str, str]] = []
    at = 4
    while encoded is not None and at < len(encoded):
        (rights,) = _int_at(encoded, at)
        scheme, at = _text(encoded, at + 4, len(encoded))
        identity, at = _text(encoded, at, len(encoded))
        found.append((rights, scheme, identity))
    return found


def deleted_paths(encoded: bytes | None) -> list[str]:
    """Return the paths that a CLOSE_SESSION row lists in its `data`."""
    found: list[str] = []
    at = 4
    while encoded is not None and at < len(encoded):
        path, at = _text(encoded, at, len(encoded))
        found.append(path)
    return found


def _end(window: bytes, at: int, stop: int, slack: int) -> None:
    """Check that a record ends at `stop`, or `slack` bytes before `stop` if `slack` is the size of
    a digest."""
    if at > stop:
        raise _Fault(stop, f"a record is {at - stop} bytes longer than its transaction")
    if at not in (stop, stop - slack):
        raise _Fault(at, f"a record is {stop - at} bytes shorter than its transaction")


def _new_znode(window: bytes, at: int, stop: int) -> tuple[str, bytes | None, bytes | None, int]:
    """Return the fields with which every record of a creation begins (path, data, acl), and the
    offset after them.
    """
    path, at = _path(window, at, stop)
    data, at = _buffer(window, at, stop)
    if window.startswith(_OPEN, at) and at + len(_OPEN) <= stop:
        return path, data, _OPEN, at + len(_OPEN)
    acl, at = _acl(window, at, stop)
    return path, data, acl, at


def _create(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, data, acl, at = _new_znode(window, at, stop)
    if at >= stop or window[at] > 1:
        raise _Fault(at, "the mark of an ephemeral znode is neither 0 nor 1")
    ephemeral = window[at]
    at += 1
    if at == stop:  # the records of 3.4.0 end here (CreateTxnV0)
        return path, data, -1, ephemeral, acl
    (version,) = _int_at(window, at)
    if at + 4 != stop:
        _end(window, at + 4, stop, slack)
    return path, data, version, ephemeral, acl


def _create_container(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, data, acl, at = _new_znode(window, at, stop)
    (version,) = _int_at(window, at)
    _end(window, at + 4, stop, slack)
    return path, data, version, 0, acl


def _create_ttl(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, data, acl, at = _new_znode(window, at, stop)
    (version,) = _int_at(window, at)
    (ttl,) = _LONG.unpack_from(window, at + 4)
    _end(window, at + 12, stop, slack)
    return path, data, version, ttl, acl


def _delete(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, at = _path(window, at, stop)
    if at != stop:
        _end(window, at, stop, slack)
    return path, None, 0, 0, None


def _set_data(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, at = _path(window, at, stop)
    data, at = _buffer(window, at, stop)
    (version,) = _int_at(window, at)
    _end(window, at + 4, stop, slack)
    return path, data, version, 0, None


def _set_acl(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, at = _path(window, at, stop)
    acl, at = _acl(window, at, stop)
    (version,) = _int_at(window, at)
    _end(window, at + 4, stop, slack)
    return path, None, version, 0, acl


def _check(window: bytes, at: int, stop: int, slack: int) -> Values:
    path, at = _path(window, at, stop)
    (version,) = _int_at(window, at)
    _end(window, at + 4, stop, slack)
    return path, None, version, 0, None


def _number(window: bytes, at: int, stop: int, slack: int) -> Values:
    (number,) = _int_at(window, at)
    _end(window, at + 4, stop, slack)
    return None, None, 0, number, None


def _close(window: bytes, at: int, stop: int, slack: int) -> Values:
    """Read the list of deleted paths, which releases before 3.6 do not write.

    The remaining 12 bytes can be a list or a digest; they are a list if it fits exactly.
    """
    for end in (stop, stop - slack):
        try:
            if _skip_texts(window, at, end) == end:
                return None, window[at:end], 0, 0, None
        except (_Fault, struct.error):
            pass
    _end(window, at, stop, slack)
    return None, None, 0, 0, None


def _skip_texts(window: bytes, at: int, stop: int) -> int:
    (count,) = _int_at(window, at)
    if count < 0 or count * 4 > stop - at:
        raise _Fault(at, f"{count} paths do not fit into their record")
    at += 4
    for _ in range(count):
        (size,) = _int_at(window, at)
        at += 4 + size
        if size < 0 or at > stop:
            raise _Fault(at, f"a text of {size} bytes does not fit into its record")
    return at


Decode = Callable[[bytes, int, int, int], Values]

_IN_MULTI: Final[dict[int, Decode]] = {
    CREATE: _create,
    CREATE2: _create,
    CREATE_CONTAINER: _create_container,
    CREATE_TTL: _create_ttl,
    DELETE: _delete,
    DELETE_CONTAINER: _delete,
    SET_DATA: _set_data,
    CHECK: _check,
    ERROR: _number,
}
_ALONE: Final[dict[int, Decode]] = {
    **{kind: how for kind, how in _IN_MULTI.items() if kind != CHECK},
    RECONFIG: _set_data,
    SET_ACL: _set_acl,
    CREATE_SESSION: _number,
    CLOSE_SESSION: _close,
}


def _parts(window: bytes, at: int, stop: int, slack: int) -> Iterator[tuple[int, Values]]:
    """Yield (kind, values) of each part of a multi in the log, even if it had no effect.

    A server that applies a failed multi changes the type of its parts to ERROR in memory. If it
    writes the multi only afterwards, these parts keep the record of their operation. A restarted
    server does this while it catches up with the leader. For such a part, the yielded error is 0.
    """
    (count,) = _int_at(window, at)
    if count < 0 or count * 8 > stop - at:
        raise _Fault(at, f"{count} parts do not fit into their multi")
    at += 4
    for _ in range(count):
        kind, size = _PAIR.unpack_from(window, at)
        begin, at = at + 8, at + 8 + size
        how = _IN_MULTI.get(kind)
        if how is None:
            raise _Fault(begin - 8, f"a multi has a part of the unknown type {kind}")
        if size < 0 or at > stop:
            raise _Fault(begin - 4, f"a part of {size} bytes does not fit into its multi")
        if kind == ERROR and size != ERROR_SIZE:
            yield kind, (None, None, 0, 0, None)
        else:
            yield kind, how(window, begin, at, 0)
    _end(window, at, stop, slack)


def parts_of(window: bytes, at: int, stop: int) -> list[tuple[int, Values]]:
    """Return the records of a transaction, which are between two offsets after its header.

    The parts before the failure of a multi are included, although they never happened.
    """
    (kind,) = _int_at(window, at - 4)
    if kind == MULTI:
        return list(_parts(window, at, stop, DIGEST))
    return [(kind, _ALONE[kind](window, at, stop, DIGEST))]


# ---- transactions -------------------------------------------------------------------------------


class Stop(Enum):
    """The reasons for which no transaction can be decoded at an offset."""

    MORE = "the window ends within a transaction"
    ZEROS = "the file was preallocated, and nothing was written here"
    LENGTH = "the length of a transaction is not possible"
    CHECKSUM = "the checksum or the end mark of a transaction is wrong"
    RECORD = "a record is malformed, although its checksum is right"


def decode(window: bytes, at: int, rows: list[RowTuple], paths: dict[bytes, str]) -> int:
    """Append the rows of complete and undamaged transactions from `at`; return the offset after
    them.

    `examine` says why it stops there. `paths` keeps the paths of commits between calls, so that
    each is decoded once; it is emptied when it has `MAX_PATHS`.
    """
    limit, add, known = len(window), rows.append, paths.get
    head, integer = _HEAD.unpack_from, _int_at
    decoders = _ALONE.get
    if len(paths) > MAX_PATHS:
        paths.clear()
    padded = window + bytes(4)  # a transaction without a record is shorter than `_HEAD`
    while at + 45 <= limit:
        checksum, size, session, cxid, zxid, time_ms, kind, length = head(padded, at)
        stop = at + 12 + size
        if size < 32 or stop >= limit or window[stop] != 66:
            break
        if adler32(window[at + 12 : stop]) != checksum:  # a slice of a view takes longer
            break
        try:
            # Four of five transactions are commits, so they are decoded without a function call.
            if kind == 5:
                end = at + 48 + length
                path = known(window[at + 48 : end]) or _new_path(window[at + 48 : end], paths)
                (length,) = integer(window, end)
                last = end + 4 + length
                if path and length >= 0 and (last + 16 == stop or last + 4 == stop):
                    (version,) = integer(window, last)
                    data = window[end + 4 : last]
                    add((zxid, time_ms, session, cxid, 5, -1, path, data, version, 0, None))
                    at = stop + 1
                    continue
            if kind == MULTI:
                rows += _multi(window, at + 44, stop, (zxid, time_ms, session, cxid))
            else:
                how = decoders(kind) or _decoder(kind, at + 44)
                add((zxid, time_ms, session, cxid, kind, -1, *how(window, at + 44, stop, DIGEST)))
        except (_Fault, struct.error, UnicodeDecodeError):
            return at
        at = stop + 1
    return at


def _new_path(encoded: bytes, paths: dict[bytes, str]) -> str:
    """Decode a path, and keep it in `paths`; return "" if it does not begin with a slash."""
    path = encoded.decode()
    if path[:1] != "/":
        return ""
    paths[encoded] = path
    return path


def _multi(window: bytes, at: int, stop: int, head: tuple[int, ...]) -> list[RowTuple]:
    """Return the rows of a multi, which begin with the values of `head`."""
    parts = list(_parts(window, at, stop, DIGEST))
    if not parts or ERROR in [kind for kind, _ in parts]:
        errors = [values[3] for kind, values in parts if kind == ERROR]
        return [(*head, MULTI, -1, None, None, 0, next(filter(None, errors), 0), None)]
    return [(*head, kind, number, *values) for number, (kind, values) in enumerate(parts)]


def _decoder(kind: int, at: int) -> Decode:
    """Return what decodes the record at an offset, of a type other than MULTI."""
    how = _ALONE.get(kind)
    if how is None:
        raise _Fault(at - 4, f"the type of a transaction, {kind}, is unknown")
    return how


def examine(window: bytes, at: int) -> tuple[Stop, int, str]:
    """Return why `decode` stopped at an offset: the reason, the offset of the fault, and a
    description."""
    if len(window) - at < OVERHEAD:
        return Stop.MORE, at, ""
    checksum, size = struct.unpack_from(">Qi", window, at)
    if size == 0 and checksum == 0:
        return Stop.ZEROS, at, ""
    if not _HEADER <= size <= MAX_TRANSACTION:
        return Stop.LENGTH, at + 8, f"a transaction has the length {size}"
    stop = at + OVERHEAD + size
    if stop >= len(window):
        return Stop.MORE, at, ""
    if adler32(memoryview(window)[at + OVERHEAD : stop]) != checksum:
        return Stop.CHECKSUM, at, "the checksum of a transaction is wrong"
    if window[stop] != _END:
        return Stop.CHECKSUM, stop, "a transaction does not end with B"
    (kind,) = _int_at(window, at + 40)
    try:
        if kind == MULTI:
            _multi(window, at + 44, stop, ())
        else:
            _decoder(kind, at + 44)(window, at + 44, stop, DIGEST)
    except _Fault as fault:
        return Stop.RECORD, fault.at, fault.why
    except struct.error:
        pass
    return Stop.RECORD, at + 44, "a record is longer than its transaction"


def complete_at(window: bytes, at: int) -> int:
    """Return the true end of the transaction at `at` if only its length is wrong, else -1.

    A torn transaction has no end that fits its checksum. So the function distinguishes a wrong
    length, which is damage, from a torn transaction, which is a normal end of a log.
    """
    (checksum,) = struct.unpack_from(">Q", window, at)
    for size in range(_HEADER, min(len(window) - at - OVERHEAD, MAX_SEARCH)):
        end = at + OVERHEAD + size
        if window[end] == _END and adler32(window[at + OVERHEAD : end]) == checksum:
            return end
    return -1
