"""Reusable memory for record batches.

A slab holds all columns of one record batch. Its pages stay in the process, and its arrays are made
only once, because making a dozen buffers and their arrays takes as long as parsing 2,000 records. A
slab returns to its pool when the last Arrow array that refers to it is destroyed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final

import pyarrow as pa

from zkconsumer.kafka.columns.parsers import Columns
from zkconsumer.kafka.columns.primitives import Array
from zkconsumer.kafka.columns.responses import reserved

# Number of unused slabs that a pool keeps. An export collects several batches before it writes
# them.
_KEPT: Final = 8

# A record batch of fewer bytes is copied out of its slab.
_SMALL: Final = 64 * 1024

# Arrow recommends that buffers begin at multiples of this number of bytes.
_ALIGNED: Final = 64

_OCTETS, _INTS, _LONGS = 0, 1, 2
# The type of the elements of each column of `parsers.Columns`.
_KINDS: Final = (
    *(_INTS, _OCTETS, _OCTETS),  # ends, bytes and nulls of keys
    *(_INTS, _OCTETS, _OCTETS),  # of values
    *(_LONGS, _LONGS, _OCTETS),  # offsets, times and their nulls
    *(_INTS, _INTS, _OCTETS),  # types of times; ends and bytes of headers
)

View = Callable[[Array], Array]


class Slab:
    """The columns of one record batch in one piece of memory.

    Attributes:
        columns: the arrays that the parsers fill.
    """

    __slots__ = ("_address", "_home", "_memory", "_size", "_starts", "_touched", "columns")

    def __init__(
        self, views: Sequence[View], sizes: Sequence[int], home: deque[Slab] | None
    ) -> None:
        """Reserve memory; the system provides only those pages that are written.

        Args:
            views: make arrays of bytes, of 32-bit numbers and of 64-bit numbers.
            sizes: the bytes of each column.
            home: the pool to which the slab returns.
        """
        aligned = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
        *self._starts, self._size = accumulate(aligned, initial=0)
        self._memory = reserved(self._size)
        self._address = int(pa.py_buffer(self._memory).address)
        self._home = home
        self._touched = 0
        whole = memoryview(self._memory)
        self.columns = Columns(
            *(
                views[kind](whole[start : start + size])
                for kind, start, size in zip(_KINDS, self._starts, sizes, strict=True)
            )
        )

    def buffers(self, used: Sequence[int]) -> list[pa.Buffer]:
        """Return the first bytes of each column; `used` contains how many bytes of each.

        The slab then belongs to these buffers. Small buffers are copies instead, because
        a small batch must not keep a large slab.
        """
        size = sum(used)
        self._touched = max(self._touched, size)
        whole = pa.foreign_buffer(self._address, self._size, _Lease(self))
        parts = [whole.slice(at, n) for at, n in zip(self._starts, used, strict=False)]
        return _copied(parts) if size < max(_SMALL, self._touched // 2) else parts

    def give_back(self) -> None:
        if self._home is not None:
            self._home.append(self)


class _Lease:
    """The object to which a slab's Arrow buffers refer; its destruction frees the slab."""

    __slots__ = ("_slab",)

    def __init__(self, slab: Slab) -> None:
        self._slab = slab

    def __del__(self) -> None:
        self._slab.give_back()


def _copied(parts: Sequence[pa.Buffer]) -> list[pa.Buffer]:
    """Return copies of the parts, all in one buffer of the size that they need."""
    aligned = [-(-part.size // _ALIGNED) * _ALIGNED for part in parts]
    *starts, size = accumulate(aligned, initial=0)
    whole = pa.allocate_buffer(size)
    view = memoryview(whole).cast("B")
    for at, part in zip(starts, parts, strict=True):
        view[at : at + part.size] = memoryview(part).cast("B")
    return [whole.slice(at, part.size) for at, part in zip(starts, parts, strict=True)]


class SlabPool:
    """A pool of slabs of one size; slabs of other sizes are used once. Any thread may use it."""

    def __init__(self, views: Sequence[View], rows: int, size: int) -> None:
        """Make an empty pool.

        Args:
            views: make arrays of bytes, of 32-bit numbers and of 64-bit numbers.
            rows: number of records that fit into a slab.
            size: number of bytes of keys, and of values, that fit into it.
        """
        self._views = views
        self._rows, self._size = rows, size
        self._unused: deque[Slab] = deque(maxlen=_KEPT)

    @property
    def unused(self) -> int:
        """The number of unused slabs in the pool."""
        return len(self._unused)

    def take(self, keys: int = 0, values: int = 0, headers: int | None = None) -> Slab:
        """Return an unused slab with room for a record of these sizes; None means no headers."""
        home = self._unused if max(keys, values) <= self._size and headers is None else None
        if home:
            with suppress(IndexError):  # another thread has taken the last slab
                return home.pop()
        rows, keys, values = self._rows, max(self._size, keys), max(self._size, values)
        bits, ends = (rows + 7) // 8, 4 * rows + 4
        sizes = [ends, keys, bits, ends, values, bits, 8 * rows, 8 * rows, bits, 4 * rows]
        sizes += [0, 0] if headers is None else [ends, max(self._size, headers)]
        made = Slab(self._views, sizes, home)
        made.columns.key_ends[0] = made.columns.value_ends[0] = 0
        if headers is not None:
            made.columns.header_ends[0] = 0
        return made
