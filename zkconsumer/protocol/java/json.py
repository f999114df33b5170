r"""Parse JSON as the JVM consumer's two parsers do, with bounded work.

Scala's `JSON.parseFull` reads every znode in Kafka 0.8.2-0.11. The dialect of this parser differs
from JSON:

- An unknown escape stands for its characters: `\d` is a backslash and a d. Kafka 0.8.1 wrote
  regular expressions unescaped.
- Raw control characters other than the line feed may occur in strings. Between tokens, every
  control character counts as a blank.
- `- 1` is a number.
- The last of several equal keys wins.
- The top-level value must be an object or an array.
- With `parse_scala_int32`, a number that is not an int32 makes the whole text invalid.

Jackson reads every znode in Kafka 1.0-1.1. Jackson is strict, but ignores text after the first
value. If it rejects the text, Kafka 1.0.1 and later double all backslashes and parse again, because
Kafka 0.8.1 wrote regular expressions unescaped.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate

from zkconsumer.protocol.java import text

# ---- Scala's parser ------------------------------------------------------------------------------


# Maximum depth of nested brackets. A deeper text raises RecursionError, whatever the interpreter's
# own limit is. Kafka writes at most four levels. The JVM's recursive parser throws
# StackOverflowError at some thousand levels.
MAX_NESTING = 64

# Maximum number of characters of an integer: an int64 with its sign has 20 characters. A longer
# integer becomes a float (or `inf`), which no decoder accepts as a count. The limit avoids a
# conversion that takes quadratic time.
MAX_INTEGER_LENGTH = 20

_STRING = r'"(?:[^"\\]++|\\.?)*+"?'  # possessive: linear even when the closing quote is missing
_STRINGS = re.compile(_STRING, re.DOTALL)
_BRACKETS = re.compile(r"[][{}]")
_LOOSE = re.compile(
    rf"(?P<string>{_STRING})|(?P<minus>-)[\x00-\x19\x1b-\x20]+(?=[0-9])|[\x00-\x19\x1b-\x1f]+",
    re.DOTALL,
)
_NEEDS_CARE = re.compile(r"[\x00-\x1f\\]|- ")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})?')


class NotInt32Error(Exception):
    """A number that Scala's `toInt` rejects (JVM: NumberFormatException)."""


def parse_scala(text: str) -> dict[str, object] | list[object]:
    """Parse one object or array; accept any number, as Jackson does.

    Raises ValueError where the JVM cannot parse the text, and RecursionError beyond MAX_NESTING.
    """
    return _parsed(text, _LAX)


def parse_scala_int32(text: str) -> dict[str, object] | list[object]:
    """Parse one object or array; also raises NotInt32Error (`kafka.utils.Json.parseFull`)."""
    return _parsed(text, _STRICT)


def _parsed(text: str, decoder: json.JSONDecoder) -> dict[str, object] | list[object]:
    require_shallow(text)
    if _NEEDS_CARE.search(text):
        text = _LOOSE.sub(_strict, text)
    if not text.lstrip(" \t\n\r").startswith(("{", "[")):
        raise ValueError("neither an object nor an array")
    value: dict[str, object] | list[object] = decoder.decode(text)
    return value


def require_shallow(text: str) -> None:
    """Raise RecursionError beyond MAX_NESTING."""
    if text.count("[") + text.count("{") > MAX_NESTING:
        brackets = _BRACKETS.findall(_STRINGS.sub("", text))
        if max(accumulate(1 if b in "[{" else -1 for b in brackets), default=0) > MAX_NESTING:
            raise RecursionError(f"more than {MAX_NESTING} levels of brackets")


def _strict(match: re.Match[str]) -> str:
    """Rewrite text that only Scala's parser accepts into JSON for Python's parser."""
    string = match["string"]
    if string is None:
        return match["minus"] or " "
    if "\n" in string or "\x1a" in string:
        raise ValueError("a line feed or U+001A inside a string")
    return _ESCAPE.sub(lambda escape: "\\\\" if escape[0] == "\\" else escape[0], string)


def lax_integer(digits: str) -> int | float:
    """Convert an integer of any length in bounded time."""
    return int(digits) if len(digits) <= MAX_INTEGER_LENGTH else float(digits)


def refuse_constant(constant: str) -> object:
    """Reject NaN and the infinities, which Python's decoder would accept."""
    raise ValueError(f"{constant} is not JSON")


def _int32(digits: str) -> int:
    try:
        return text.parse_int32(digits)
    except ValueError as error:
        raise NotInt32Error(digits) from error


_LAX = json.JSONDecoder(parse_int=lax_integer, parse_constant=refuse_constant, strict=False)
_STRICT = json.JSONDecoder(
    parse_int=_int32, parse_float=_int32, parse_constant=refuse_constant, strict=False
)


# ---- Jackson -------------------------------------------------------------------------------------


_BLANKS = " \t\n\r"


def parse_jackson(text: str) -> object:
    """Parse the first value in the text (`ObjectMapper.readTree`).

    Raises ValueError where Jackson cannot parse the text, and RecursionError beyond MAX_NESTING.
    """
    require_shallow(text)
    return _DECODER.raw_decode(text.lstrip(_BLANKS))[0]


def parse_jackson_twice(text: str) -> object:
    """Parse as Jackson does; if it fails, double all backslashes and parse again.

    Kafka 1.0.1: `kafka.utils.Json.parseFull`.
    """
    try:
        return parse_jackson(text)
    except ValueError:
        return parse_jackson(text.replace("\\", "\\\\"))


_DECODER = json.JSONDecoder(parse_int=lax_integer, parse_constant=refuse_constant)
