"""Strings and numbers as the JVM treats them: UTF-16 order, hash codes, number parsing, map order.

Members of a group agree only if they sort and hash alike, so these few rules are part of the
protocol. They are those of `java.lang.String`, `Integer`, `Long` and Scala 2.10/2.11's immutable
`HashMap`, on which the Kafka 0.8.2-1.1 consumer is built.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1

# The longest text that is tried as a number, in characters without leading ASCII zeros: an int64
# has 19 digits, more can only be padding in other scripts' zeros. Longer text is not a number.
MAX_NUMBER_LENGTH = 64

# Java looks at single UTF-16 units, so digits beyond U+FFFF are no digits to it.
_NUMBER = re.compile(r"([+-]?)(\d+)")
_SUPPLEMENTARY = re.compile("[\U00010000-\U0010ffff]")

# Scala keeps insertion order in its small maps (`Map1`..`Map4`) and hashes from the fifth entry on.
_SCALA_SMALL_MAP = 4


def utf16_key(text: str) -> bytes:
    """Sort key that orders strings as `String.compareTo` does, by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def java_hash(text: str, *, prefix_hash: int = 0) -> int:
    """`String.hashCode`: signed 32-bit, 31*h + unit.

    `prefix_hash` continues from the hash of what stands before `text`.
    """
    raw = text.encode("utf-16-be", "surrogatepass")
    value = prefix_hash
    for unit in struct.unpack(f">{len(raw) // 2}H", raw):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value > MAX_INT32 else value


def parse_int32(text: str) -> int:
    """`Integer.parseInt`; raises ValueError where Java raises NumberFormatException."""
    return _parse(text, MIN_INT32, MAX_INT32)


def parse_int64(text: str) -> int:
    """`Long.parseLong`; raises ValueError where Java raises NumberFormatException."""
    return _parse(text, MIN_INT64, MAX_INT64)


def _parse(text: str, low: int, high: int) -> int:
    """An optional sign and decimal digits of any script; no blanks, no underscores."""
    match = _NUMBER.fullmatch(text)
    if match is None or _SUPPLEMENTARY.search(text):
        raise ValueError("not a decimal number")
    digits = match[2].lstrip("0") or "0"
    if len(digits) > MAX_NUMBER_LENGTH:
        raise ValueError("number out of range")
    number = int(match[1] + digits)
    if not low <= number <= high:
        raise ValueError("number out of range")
    return number


def scala_map_order(keys: Iterable[str]) -> list[str]:
    """The keys in the order in which a Scala immutable Map, filled in this order, iterates.

    Up to four entries that is insertion order; from five on it is a hash trie's: five bits of the
    scrambled hash code a level, lowest first (`HashMap.improve`). Keys with equal hash codes keep
    their order here; nothing is known about theirs in the JVM.
    """
    ordered = list(keys)
    return ordered if len(ordered) <= _SCALA_SMALL_MAP else sorted(ordered, key=_trie_position)


def _trie_position(key: str) -> tuple[int, ...]:
    code = java_hash(key) & 0xFFFFFFFF
    code = (code + ~(code << 9)) & 0xFFFFFFFF
    code ^= code >> 14
    code = (code + (code << 4)) & 0xFFFFFFFF
    code ^= code >> 10
    return tuple(code >> shift & 31 for shift in range(0, 35, 5))
