"""The memory of responses, which later responses use again."""

from __future__ import annotations

import mmap
import sys
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

# The size in bytes of the memory of a response; larger responses use memory only once. By default a
# broker returns up to 2 MB, and headers.
USUAL_BYTES: Final = (2 << 20) + (64 << 10)

# Number of unused pieces of memory that are kept.
_KEPT: Final = 8


class Response(NamedTuple):
    """A response, or a part of one.

    Attributes:
        memory: the memory of the whole response. A slice of it is a copy.
        start: the position of the part in the memory.
        data: the bytes of the part.
        lease: no other response uses the memory while this object exists.
    """

    memory: mmap.mmap | bytes
    start: int
    data: memoryview
    lease: object = None

    def part(self, at: int, size: int) -> Response:
        """Return the `size` bytes from position `at` of this part on."""
        start = self.start + at
        return self._replace(start=start, data=self.data[at : at + size])


def response_of(data: bytes) -> Response:
    """Return bytes as a response."""
    return Response(data, 0, memoryview(data))


def response_memory(size: int) -> Response:
    """Return memory for a response of at least `size` bytes, of which all are data."""
    memory = _taken(size)
    return Response(memory, 0, memoryview(memory).toreadonly(), _Lease(memory))


class _Lease:
    """The object that the users of a response keep; its destruction frees the memory."""

    __slots__ = ("_memory",)

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __del__(self) -> None:
        if len(self._memory) == USUAL_BYTES:
            _unused.append(self._memory)


def _taken(size: int) -> mmap.mmap:
    if size > USUAL_BYTES:
        return reserved(size)
    with suppress(IndexError):
        return _unused.pop()
    return reserved(USUAL_BYTES)


_unused: Final[deque[mmap.mmap]] = deque(maxlen=_KEPT)


def reserved(size: int) -> mmap.mmap:
    """Reserve memory; the system provides only those pages that are written."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    # By default, a child process after a fork would write into the same memory.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
