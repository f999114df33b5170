"""Compiled loops compute the same numbers and checksums as Python does."""

from __future__ import annotations

import random
import zlib

import numpy as np
from numba import njit

from zkconsumer.kafka.columns import primitives
from zkconsumer.kafka.columns.compiled_primitives import by_products, by_tables, can_multiply

DATA = np.frombuffer(random.Random(1).randbytes(200), np.uint8)
PLAIN = memoryview(DATA.tobytes())


def test_numbers_are_big_endian_and_signed() -> None:
    """Compiled code reads numbers of 4 and 8 bytes as Python does, at every alignment."""
    for name in ("int32", "int64"):
        plain = getattr(primitives, name)
        compiled = njit(lambda data, at, plain=plain: plain(data, at))
        found = [compiled(DATA, at) for at in range(190)]
        assert found == [plain(PLAIN, at) for at in range(190)]
        assert min(found) < 0 < max(found)


def test_the_compiled_checksum_is_crc32() -> None:
    """Both checksum loops agree with zlib for every length below 80 bytes and each alignment."""
    ways = [by_tables, by_products] if can_multiply() else [by_tables]
    for way in ways:
        compiled = njit(way)
        for at in range(17):
            for end in range(at, at + 80):
                assert compiled(DATA, at, end) == zlib.crc32(PLAIN[at:end])
