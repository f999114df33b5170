"""Strings and numbers as the JVM handles them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.protocol.java.text import (
    java_hash,
    parse_int32,
    parse_int64,
    scala_map_order,
    utf16_key,
)

HASHES = {  # A JVM computed these values.
    "": 0,
    "t-0": 112919,
    "[t,0]": 87540032,
    "topic1-0": -957338107,
    "[topic1,0]": -315570884,
    "topic1-10": 387289834,
    "[topic1,10]": -1192763153,
    "foo-0": 97614057,
    "[foo,0]": -2110476050,
    "bar-2": 93505784,
    "[bar,2]": 2057134783,
    "Aa-0": 2031075,
    "BB-0": 2031075,
    "[Aa,0]": -1626752098,
    "\U0001f600": 1772899,  # 31 * 0xD83D + 0xDE00: two code units, not one character
}


@pytest.mark.parametrize(("text", "expected"), HASHES.items(), ids=ascii)
def test_hash_code(text: str, expected: int) -> None:
    """The hash codes equal those that a JVM computes, even for surrogates."""
    assert java_hash(text) == expected


@given(st.text(), st.text())
def test_hash_code_continues_from_a_prefix(before: str, after: str) -> None:
    """Hashing a text in two steps gives the hash of the whole text."""
    assert java_hash(after, prefix_hash=java_hash(before)) == java_hash(before + after)


def test_order_is_by_utf16_units() -> None:
    """Strings sort by UTF-16 code units: digits, then capitals; surrogates before U+FFE0."""
    ordered = ["g_C1", "g_a", "g_a-1-0", "g_c10", "g_c2", "g_é", "g_\U0001f600", "g_￠"]
    assert sorted(reversed(ordered), key=utf16_key) == ordered
    assert sorted(f"c-{n}" for n in range(12))[2:5] == ["c-10", "c-11", "c-2"]


ACCEPTED = {
    "3": 3,
    "+3": 3,
    "003": 3,
    "-0": 0,
    "-5": -5,
    "٣": 3,
    "\u06603": 3,
    "0" * 100_000 + "7": 7,
    "9223372036854775807": 2**63 - 1,
    "-9223372036854775808": -(2**63),
}


@pytest.mark.parametrize(("text", "value"), ACCEPTED.items(), ids=lambda v: ascii(v)[:30])
def test_long_parse_long_accepts(text: str, value: int) -> None:
    """All texts that `Long.parseLong` accepts are accepted: signs, zeros, digits of any script."""
    assert parse_int64(text) == value


REFUSED = ["", "+", "-", " 3", "3 ", "3\n", "3.0", "3L", "0x3", "1e1", "1_0", "--1", "\ufffd"]
REFUSED += ["9223372036854775808", "-9223372036854775809", "9" * 10_000]
REFUSED += ["3\0", "\U0001d7d3", "²", "½"]


@pytest.mark.parametrize("text", REFUSED, ids=lambda v: ascii(v)[:30])
def test_long_parse_long_refuses(text: str) -> None:
    """All texts that `Long.parseLong` rejects are rejected, even if Python's int() accepts them."""
    with pytest.raises(ValueError, match="number"):
        parse_int64(text)


def test_integer_range() -> None:
    """`Integer.parseInt` accepts only numbers of 32 bits."""
    assert parse_int32("2147483647") == 2**31 - 1
    with pytest.raises(ValueError, match="range"):
        parse_int32("2147483648")


def test_scala_map_order() -> None:
    """A Scala map of up to four keys keeps their order; a larger map sorts keys by their hash."""
    assert scala_map_order(["d", "c", "b", "a"]) == ["d", "c", "b", "a"]
    for keys in (["t1", "t2", "t3", "t4", "t5"], ["t5", "t4", "t3", "t2", "t1"]):
        assert scala_map_order(keys) == ["t4", "t5", "t3", "t2", "t1"]
