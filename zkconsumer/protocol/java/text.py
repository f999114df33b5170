"""The JVM's rules for strings and numbers: UTF-16 order, hash codes, number parsing, map order.

Members of a group agree on the assignment only if they sort and hash in the same way, so these
rules are part of the protocol. The rules are those of `java.lang.String`, `Integer`, `Long` and the
immutable `HashMap` of Scala 2.10 and 2.11, which the consumer of Kafka 0.8.2-1.1 uses.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1

# Maximum number of characters of a number, without leading ASCII zeros; a longer text is not a
# number. An int64 has 19 digits; further digits can only be leading zeros of another script.
MAX_NUMBER_LENGTH = 64

# Java examines single UTF-16 units, so it does not recognise digits beyond U+FFFF.
_NUMBER = re.compile(r"([+-]?)(\d+)")
_SUPPLEMENTARY = re.compile("[\U00010000-\U0010ffff]")

# Scala's small maps (`Map1`..`Map4`) keep the insertion order; larger maps are hash maps.
_SCALA_SMALL_MAP = 4


def utf16_key(text: str) -> bytes:
    """Return a sort key that orders strings as `String.compareTo` does, by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def java_hash(text: str, *, prefix_hash: int = 0) -> int:
    """Return `String.hashCode`: signed 32-bit, 31*h + unit.

    `prefix_hash` is the hash of the characters before `text`.
    """
    raw = text.encode("utf-16-be", "surrogatepass")
    value = prefix_hash
    for unit in struct.unpack(f">{len(raw) // 2}H", raw):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value > MAX_INT32 else value


def java_abs(number: int) -> int:
    """Return the absolute value of an int32, but 0 for the smallest one (Kafka's `Utils.abs`)."""
    return 0 if number == MIN_INT32 else abs(number)


def parse_int32(text: str) -> int:
    """Parse as `Integer.parseInt`; raise ValueError where Java throws NumberFormatException."""
    return _parse(text, MIN_INT32, MAX_INT32)


def parse_int64(text: str) -> int:
    """Parse as `Long.parseLong`; raise ValueError where Java throws NumberFormatException."""
    return _parse(text, MIN_INT64, MAX_INT64)


def _parse(text: str, low: int, high: int) -> int:
    """Parse an optional sign and decimal digits of any script, without blanks or underscores."""
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
    """Return the keys in the order of a Scala immutable Map that was filled in the given order.

    With up to four entries, the map keeps the order of insertion. With five or more, it has the
    order of a hash trie: five bits of the scrambled hash code per level, lowest bits first
    (`HashMap.improve`). Keys with equal hash codes keep the given order in this function; their
    order in the JVM is unknown.
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
