"""Many reads in one request: ZooKeeper's `multiRead`, which kazoo does not know.

A request costs kazoo some 60 us of Python, whatever it asks for; a read in a request of a hundred
costs a tenth. Each is answered for itself, as if it had been sent alone: its payload and stat, its
children, or why not. ZooKeeper has it from 3.6.0 on (`ZooDefs.OpCode.multiRead`); an older server
shuts the connection that such a request comes by.

It takes no watches. Those of payloads are armed together by another request, which ZooKeeper's own
client sends after each reconnect (`ZooDefs.OpCode.setWatches`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from zkconsumer.zk import requests as rq
from zkconsumer.zk.requests import Children, Get, Node, Request, Rights, Stat

SINCE = (3, 6)
"""The first release of ZooKeeper that knows it."""

WORTH_IT = 20
"""Reads of one batch from which on they are put together."""

AT_ONCE = 100
"""Reads in one request. A server makes the whole reply in its memory, where payloads may take 1 MiB
each; what more would gain is not to be seen. The rest goes into further requests."""

REQUEST_BYTES = 512 * 1024
"""Bytes of one request, about: a server shuts the connection at jute.maxbuffer, by default 1 MiB.
The rest goes into further requests."""

PlainRead = Get | rq.Exists | Children

_GET, _CHILDREN, _ERROR = 4, 8, -1  # `ZooDefs.OpCode`
_HEADER = struct.Struct("!i?i")  # `MultiHeader`: the operation, whether this is the end, the error
_END = _HEADER.pack(-1, True, -1)
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_ANY_ZXID = 2**63 - 1  # whenever the znode was last changed, its watch is armed


def release_in(answer: str) -> tuple[int, ...]:
    """Return the release that a server's answer to `srvr` names, as (3, 8, 4); empty if none."""
    found = re.search(r"version: (\d+)\.(\d+)\.(\d+)", answer)
    return tuple(map(int, found.groups())) if found else ()


class ManyReads:
    """One request, as kazoo sends and reads it.

    The result is for each read a Node (of Exists, too) or the names of the children, or
    ZooKeeper's code of the error, a negative number.
    """

    type = 22

    def __init__(self, reads: Sequence[PlainRead], chroot: str) -> None:
        parts: list[bytes] = []
        for read in reads:
            path = ((chroot + read.path).rstrip("/") or "/").encode()
            kind = _CHILDREN if isinstance(read, Children) else _GET
            parts += (_HEADER.pack(kind, False, -1), _INT.pack(len(path)), path, b"\0")
        self._body = b"".join((*parts, _END))

    def serialize(self) -> bytes:
        """`MultiOperationRecord`."""
        return self._body

    def deserialize(self, data: bytes, offset: int) -> list[Node | list[str] | int]:
        """`MultiResponse`."""
        found: list[Node | list[str] | int] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if is_end:
                return found
            (count,) = _INT.unpack_from(data, offset)  # bytes, children, or the error
            offset += _INT.size
            if kind == _ERROR:
                found.append(count)
            elif kind == _CHILDREN:
                names = []
                for _ in range(count):
                    (size,) = _INT.unpack_from(data, offset)
                    offset += _INT.size + size
                    names.append(data[offset - size : offset].decode())
                found.append(names)
            else:
                payload = None if count < 0 else data[offset : offset + count]
                offset += max(count, 0)
                czxid, mzxid, _, mtime, version, _, _, owner, _, _, _ = _STAT.unpack_from(
                    data, offset
                )
                offset += _STAT.size
                found.append(Node(payload, Stat(czxid, mzxid, version, owner, mtime)))


class Arm:
    """One request that watches the payloads of many znodes, as kazoo sends it and reads its end.

    Sent before their reads, it leaves nothing unseen. Of a znode that is not there it arms nothing,
    and tells of its end before the reply: while kazoo knows of no watch, so that this is not heard.
    Before ZooKeeper 3.8.4 it watches a znode also where its read is refused: news of that one only
    makes the reader look again.
    """

    type = 101

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` with the chroot."""
        parts = [struct.pack("!qi", _ANY_ZXID, len(paths))]
        for path in paths:
            encoded = path.encode()
            parts += (_INT.pack(len(encoded)), encoded)
        parts.append(struct.pack("!ii", 0, 0))  # none of absence, none of children
        self._body = b"".join(parts)

    def serialize(self) -> bytes:
        """`SetWatches`."""
        return self._body

    def deserialize(self, data: bytes, offset: int) -> None:
        """The reply is a header alone."""


def go_together(batch: Sequence[Request | Rights]) -> TypeGuard[Sequence[PlainRead]]:
    """Whether it is all reads, without a watch but for that of a payload."""
    return all(
        isinstance(one, PlainRead) and (not one.watch or isinstance(one, Get)) for one in batch
    )


def pieces(reads: Iterable[PlainRead]) -> Iterator[list[PlainRead]]:
    """Cut what is too much for one request."""
    piece: list[PlainRead] = []
    size = 0
    for read in reads:
        more = 4 * len(read.path) + 32  # at most, but for the chroot
        if piece and (len(piece) == AT_ONCE or size + more > REQUEST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(read)
        size += more
    if piece:
        yield piece
