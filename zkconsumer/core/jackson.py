"""Reading JSON as Jackson does for Kafka 1.0-1.1: strict but for what stands behind the value.

Where the text is no JSON, Kafka 1.0.1 and later double all backslashes and try again, for the sake
of regexes that 0.8.1 wrote unescaped.
"""

from __future__ import annotations

import json

from zkconsumer.core.scalajson import lax_integer, refuse_constant, require_shallow

_BLANKS = " \t\n\r"


def parse(text: str) -> object:
    """Parse the first value (`ObjectMapper.readTree`).

    Raises ValueError where Jackson finds the text unparsable, RecursionError for too many levels.
    """
    require_shallow(text)
    return _DECODER.raw_decode(text.lstrip(_BLANKS))[0]


def parse_twice(text: str) -> object:
    """Parse, if need be with all backslashes doubled (`kafka.utils.Json.parseFull`, 1.0.1)."""
    try:
        return parse(text)
    except ValueError:
        return parse(text.replace("\\", "\\\\"))


_DECODER = json.JSONDecoder(parse_int=lax_integer, parse_constant=refuse_constant)
