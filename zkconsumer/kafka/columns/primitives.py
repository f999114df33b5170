"""Read numbers, copy bytes and compute checksums, in Python.

In a loop that numba compiles, numba replaces each call of these functions with other instructions,
which `compiled_primitives` defines. For example, one load instruction reads a whole number, not
only one byte.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A one-dimensional array: numpy's when compiled, else a memoryview of the same bytes."""


def int32(data: Array, at: int) -> int:
    """Return the big-endian signed number of 4 bytes; the caller has checked the bounds."""
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def int64(data: Array, at: int) -> int:
    """Return the big-endian signed number of 8 bytes; the caller has checked the bounds."""
    return int.from_bytes(data[at : at + 8], "big", signed=True)


def copy(source: Array, at: int, size: int, target: Array, to: int) -> None:
    """Copy bytes; the caller has checked the bounds."""
    target[to : to + size] = source[at : at + size]


def crc32(data: Array, at: int, end: int) -> int:
    """Return the CRC-32 of the bytes from `at` to `end`."""
    return zlib.crc32(data[at:end])
