"""Reading JSON as the JVM consumer's parser does, with bounded work.

The dialect is that of Scala's `JSON.parseFull`, which Kafka 0.8.2-0.11 use on every znode:
unknown escapes stand for themselves (`\\d` is a backslash and a d: 0.8.1 wrote regexes so), raw
control characters but the line feed may stand in strings, every control character is a blank
between tokens, `- 1` is a number, the last of equal keys wins, and only an object or an array can
stand at the top. Numbers are laxer here, as in Jackson (1.0-1.1): a fraction or a huge number in a
field that nobody reads is no fault.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate

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


def parse(text: str) -> dict[str, object] | list[object]:
    """Parse one object or array.

    Raises ValueError where the JVM finds the text unparsable, RecursionError beyond MAX_NESTING.
    """
    if text.count("[") + text.count("{") > MAX_NESTING:
        brackets = _BRACKETS.findall(_STRINGS.sub("", text))
        if max(accumulate(1 if b in "[{" else -1 for b in brackets), default=0) > MAX_NESTING:
            raise RecursionError(f"more than {MAX_NESTING} levels of brackets")
    if _NEEDS_CARE.search(text):
        text = _LOOSE.sub(_strict, text)
    value = _DECODER.decode(text)
    if not isinstance(value, dict | list):
        raise ValueError("neither an object nor an array")
    return value


def _strict(match: re.Match[str]) -> str:
    """Turn what only the JVM's parser understands into what Python's does."""
    string = match["string"]
    if string is None:
        return match["minus"] or " "
    if "\n" in string or "\x1a" in string:
        raise ValueError("a line feed or U+001A inside a string")
    return _ESCAPE.sub(lambda escape: "\\\\" if escape[0] == "\\" else escape[0], string)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INTEGER_LENGTH else float(digits)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse, strict=False)
