r"""Reading JSON as Jackson does for Kafka 1.0-1.1: strict but for what stands behind the value.

Where the text is no JSON, Kafka 1.0.1 and later double all backslashes and try again, for the sake
of regexes that 0.8.1 wrote unescaped.

Reading JSON as the JVM consumer's parser does, with bounded work.

The dialect is that of Scala's `JSON.parseFull`, which Kafka 0.8.2-0.11 use on every znode:
unknown escapes stand for themselves (`\d` is a backslash and a d: 0.8.1 wrote regexes so), raw
control characters but the line feed may stand in strings, every control character is a blank
between tokens, `- 1` is a number, the last of equal keys wins, and only an object or an array can
stand at the top. There a number that is no int32 makes the whole text a fault, wherever it stands.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate

from zkconsumer.protocol.java import text

# ---- scalajson -----------------------------------------------------------------------------------


# Levels of brackets. Kafka writes four at most; the JVM's recursive parser ends in a
# StackOverflowError at some thousand. Deeper text raises RecursionError, whatever the interpreter.
MAX_NESTING = 64

# Characters. An int64 with its sign has 20; longer integers become floats (`inf` in the end), which
# no reader takes for a count, and never cost the quadratic time of a conversion.
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
    """A number that `toInt` refuses (JVM: NumberFormatException)."""


def parse_scala(text: str) -> dict[str, object] | list[object]:
    """Parse one object or array, with any number, as in Jackson.

    Raises ValueError where the JVM finds the text unparsable, RecursionError beyond MAX_NESTING.
    """
    return _parsed(text, _LAX)


def parse_scala_int32(text: str) -> dict[str, object] | list[object]:
    """Parse one object or array; raises NotInt32Error as well (`kafka.utils.Json.parseFull`)."""
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
    """Turn what only the JVM's parser understands into what Python's does."""
    string = match["string"]
    if string is None:
        return match["minus"] or " "
    if "\n" in string or "\x1a" in string:
        raise ValueError("a line feed or U+001A inside a string")
    return _ESCAPE.sub(lambda escape: "\\\\" if escape[0] == "\\" else escape[0], string)


def lax_integer(digits: str) -> int | float:
    """Any integer, in bounded time."""
    return int(digits) if len(digits) <= MAX_INTEGER_LENGTH else float(digits)


def refuse_constant(constant: str) -> object:
    """Refuse NaN and the infinities, which Python's decoder would take."""
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


# ---- jackson -------------------------------------------------------------------------------------


_BLANKS = " \t\n\r"


def parse_jackson(text: str) -> object:
    """Parse the first value (`ObjectMapper.readTree`).

    Raises ValueError where Jackson finds the text unparsable, RecursionError for too many levels.
    """
    require_shallow(text)
    return _DECODER.raw_decode(text.lstrip(_BLANKS))[0]


def parse_jackson_twice(text: str) -> object:
    """Parse, if need be with all backslashes doubled (`kafka.utils.Json.parseFull`, 1.0.1)."""
    try:
        return parse_jackson(text)
    except ValueError:
        return parse_jackson(text.replace("\\", "\\\\"))


_DECODER = json.JSONDecoder(parse_int=lax_integer, parse_constant=refuse_constant)
