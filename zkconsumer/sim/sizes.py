"""How many bytes a request takes on the wire: a server refuses the largest."""

from __future__ import annotations

from typing import Any

from zkconsumer.sim.znodes import CreateWithAcl, SetAcl, Write
from zkconsumer.zk import requests as rq

MAX_REQUEST_BYTES = 0xFFFFF
"""jute.maxbuffer's default: a server drops a connection that sends more in one request."""

_HEADER_BYTES, _MULTI_HEADER_BYTES = 8, 9
_BODY_BYTES: dict[type[Any], int] = {
    rq.Create: 39,  # with the access control list that is open to anyone
    CreateWithAcl: 39,
    rq.SetData: 12,
    rq.Delete: 8,
    rq.Check: 8,
    SetAcl: 31,
    rq.SyncLeader: 4,
}
"""What a request takes on the wire beside its path and data."""
_WITH_DATA = (rq.Create, rq.SetData)


def is_too_large(request: rq.Request | Write) -> bool:
    """Whether the server drops the connection that this comes from."""
    writes = request.writes if isinstance(request, rq.Multi) else (request,)
    # A character takes four bytes at most: hardly any request needs the exact size.
    about = 64
    for write in writes:
        about += 64 + 4 * len(write.path)
        if isinstance(write, _WITH_DATA):
            about += len(write.data or b"")
    return about > MAX_REQUEST_BYTES and _size(request) > MAX_REQUEST_BYTES


def _size(request: rq.Request | Write) -> int:
    """Bytes of a request on the wire."""
    if isinstance(request, rq.Multi):
        parts = sum(_part(write) + _MULTI_HEADER_BYTES for write in request.writes)
        return _HEADER_BYTES + parts + _MULTI_HEADER_BYTES
    return _HEADER_BYTES + _part(request)


def _part(request: Any) -> int:
    data: bytes = getattr(request, "data", b"")
    return _BODY_BYTES[type(request)] + len(request.path.encode()) + len(data)
