"""JSON as the JVM consumer's parser reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.core import scalajson

TEXT = st.text(st.characters(exclude_characters="\n\x1a\ud800", exclude_categories=["Cs"]))

LAX = {
    '{"t\\d+": 1}': {"t\\d+": 1},
    '{"a\\b": 1}': {"a\b": 1},
    '{"\\x\\\\d\\/": 1}': {"\\x\\d/": 1},
    '{"\\u0074": 1}': {"t": 1},
    '{"\\u00zz": 1}': {"\\u00zz": 1},
    '{"a\tb\x01": 1}': {"a\tb\x01": 1},
    '{\x01"a"\x0b:\x1f-\t1}': {"a": -1},
    '{"a": - 1}': {"a": -1},
    '{"a": 1, "a": 2}': {"a": 2},
    '["-  1"]': ["-  1"],
    '{"a": 1.5, "b": 99999999999}': {"a": 1.5, "b": 99999999999},
    '{"a": ' + "9" * 5000 + "}": {"a": float("inf")},
}


@pytest.mark.parametrize(("text", "value"), LAX.items(), ids=lambda v: ascii(v)[:40])
def test_what_the_jvm_takes_is_taken(text: str, value: object) -> None:
    """Unknown escapes, raw control characters, odd blanks, equal keys and any number are taken."""
    assert scalajson.parse(text) == value


BROKEN = ["", "hello", "5", '"x"', "null", "{", "{}{}", "{} x", '{"a":1,}', '{"a":+1}', '{"a":01}']
BROKEN += ['{"a":NaN}', '{"a":Infinity}', "{'a':1}", "/*c*/{}", '{"a\nb":1}', '{"a\x1ab":1}', '{"a']
BROKEN += ["\ufeff{}", '{"a":1\x1a}', "{a:1}", '{"a\\\nb":1}']


@pytest.mark.parametrize("text", BROKEN, ids=ascii)
def test_what_the_jvm_cannot_parse(text: str) -> None:
    """What Scala's parser finds unparsable is a ValueError."""
    with pytest.raises(ValueError):
        scalajson.parse(text)


def test_nesting_is_limited() -> None:
    """Up to MAX_NESTING levels are read, one more is refused; brackets in strings do not count."""
    deep = scalajson.MAX_NESTING
    scalajson.parse("[" * deep + "]" * deep)
    scalajson.parse('{"' + "[" * 1000 + '": "\\"[[["}')
    scalajson.parse("[" + ",".join(["[]"] * 1000) + "]")
    with pytest.raises(RecursionError):
        scalajson.parse("[" * (deep + 1) + "]" * (deep + 1))


def _write(key: str) -> str:
    """A string literal as a careless writer makes it: only quotes and backslashes escaped."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_strings_come_through(document: dict[str, str]) -> None:
    """Any string without line feed and U+001A survives, even with its control characters raw."""
    text = ",".join(f"{_write(key)}:{_write(value)}" for key, value in document.items())
    assert scalajson.parse(f"{{{text}}}") == document
