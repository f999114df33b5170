"""The fields of Kafka's wire protocol as bytes: numbers, strings, bytes and arrays.

Requests, responses, the records of `__consumer_offsets`, and what members of a group exchange
consist of these fields. All numbers are big-endian. Kafka: `org.apache.kafka.common.protocol.types.
Type`; the types of flexible versions (KIP-482) are not here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class MalformedError(ValueError):
    """Bytes do not have the format of their version."""


class FieldReader:
    """Reads fields in their order. Raises MalformedError."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    def number(self, form: str) -> int:
        return self.numbers(form)[0]

    def numbers(self, form: str) -> tuple[int, ...]:
        """Return several numbers; one call for each would take most of the time of a response."""
        try:
            found = struct.unpack_from(form, self.data, self.at)
        except struct.error as error:
            raise MalformedError(f"a field exceeds its {len(self.data)} bytes") from error
        self.at += struct.calcsize(form)
        return found

    def int8(self) -> int:
        return self.number(">b")

    def int16(self) -> int:
        return self.number(">h")

    def int32(self) -> int:
        return self.number(">i")

    def int64(self) -> int:
        return self.number(">q")

    def skip(self, size: int) -> int:
        """Return the current position, and skip `size` bytes."""
        at = self.at
        if size < 0 or size > len(self.data) - at:
            raise MalformedError(f"a field of {size} bytes exceeds its {len(self.data)} bytes")
        self.at += size
        return at

    def optional_octets(self) -> bytes | None:
        """Return bytes after their 32-bit length; None for a null."""
        return self._sized(self.int32())

    def octets(self) -> bytes:
        """Return bytes after their 32-bit length; a null becomes empty bytes."""
        return self.optional_octets() or b""

    def optional_text(self) -> str | None:
        """Return a string; None for a null."""
        data = self._sized(self.int16())
        return None if data is None else data.decode(errors="replace")

    def text(self) -> str:
        """Return a string; a null becomes an empty string."""
        return self.optional_text() or ""

    def _sized(self, size: int) -> bytes | None:
        if size < 0:
            return None
        at = self.skip(size)
        return bytes(self.data[at : at + size])

    def each(self, one: Callable[[], T]) -> list[T]:
        """Return the elements of an array; a null becomes an empty list."""
        return [one() for _ in range(self.int32())]


def text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def octets(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)
