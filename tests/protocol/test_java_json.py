"""JSON as the parsers of the JVM's consumers read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.protocol.java import json

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
    """Unknown escapes, control characters, odd blanks, repeated keys, any number are accepted."""
    assert json.parse_scala(text) == value


BROKEN = ["", "hello", "5", '"x"', "null", "{", "{}{}", "{} x", '{"a":1,}', '{"a":+1}', '{"a":01}']
BROKEN += ['{"a":NaN}', '{"a":Infinity}', "{'a':1}", "/*c*/{}", '{"a\nb":1}', '{"a\x1ab":1}', '{"a']
BROKEN += ["\ufeff{}", '{"a":1\x1a}', "{a:1}", '{"a\\\nb":1}']


@pytest.mark.parametrize("text", BROKEN, ids=ascii)
def test_what_the_jvm_cannot_parse(text: str) -> None:
    """A text that Scala's parser cannot parse raises ValueError."""
    with pytest.raises(ValueError):
        json.parse_scala(text)


def test_nesting_is_limited() -> None:
    """MAX_NESTING levels are parsed, and one more is rejected; brackets in strings do not count."""
    deep = json.MAX_NESTING
    json.parse_scala("[" * deep + "]" * deep)
    json.parse_scala('{"' + "[" * 1000 + '": "\\"[[["}')
    json.parse_scala("[" + ",".join(["[]"] * 1000) + "]")
    with pytest.raises(RecursionError):
        json.parse_scala("[" * (deep + 1) + "]" * (deep + 1))


def _write(key: str) -> str:
    """Return a string literal in which only quotes and backslashes are escaped."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_strings_are_read_back(document: dict[str, str]) -> None:
    """Any string without a line feed and U+001A is read back, even with control characters."""
    text = ",".join(f"{_write(key)}:{_write(value)}" for key, value in document.items())
    assert json.parse_scala(f"{{{text}}}") == document


# ---- with int32 alone, and as Jackson does ------------------------------------------------------


@pytest.mark.parametrize("number", ["1.5", "1e0", "99999999999", "-2147483649", "9" * 5000])
def test_numbers_that_scala_would_not_convert(number: str) -> None:
    """Up to 0.11 a number that is not an int32 makes the text invalid; later releases read it."""
    text = f'{{"a": [{number}]}}'
    with pytest.raises(json.NotInt32Error):
        json.parse_scala_int32(text)
    assert json.parse_scala(text) == json.parse_jackson(text)


def test_int32_is_what_scala_converts() -> None:
    """Integers of 32 bits are accepted, with any blanks around them."""
    assert json.parse_scala_int32('{"a": - 2147483648, "b":\x012147483647}') == {
        "a": -(2**31),
        "b": 2**31 - 1,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        (" \n[1]", [1]),
        ("5", 5),
        ('"x"', "x"),
        ('{"a":1} x', {"a": 1}),
        ("{}{", {}),
        ('{"a":"\\u0001","a":2}', {"a": 2}),
    ],
)
def test_what_jackson_takes(text: str, value: object) -> None:
    """Jackson accepts any value at the top level, and ignores text after the value."""
    assert json.parse_jackson(text) == value


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"a":1,}', '{"\\d":1}', '{"a\x01":1}', '{"a":NaN}', "\x0b{}", "{'a':1}"]
)
def test_what_jackson_cannot_parse(text: str) -> None:
    """Jackson rejects unknown escapes, raw control characters, and blanks that JSON lacks."""
    with pytest.raises(ValueError):
        json.parse_jackson(text)


def test_jackson_twice() -> None:
    """If Jackson cannot parse a text, it is parsed again with every backslash doubled."""
    assert json.parse_jackson_twice('{"t\\d":1}') == {"t\\d": 1}
    assert json.parse_jackson_twice('{"\\.\\\\d":1}') == {"\\.\\\\d": 1}
    assert json.parse_jackson_twice('{"\\\\d":1}') == {"\\d": 1}
    for parse in (json.parse_jackson, json.parse_jackson_twice):
        with pytest.raises(RecursionError):
            parse("[" * 100 + "]" * 100)
