"""Java's regular expressions (`java.util.regex`), on top of the `regex` library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import regex

from zkconsumer.errors import InvalidFilterError

# Compiled patterns that are kept. A group has few; the least used is compiled anew.
_REMEMBERED = 128


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """A compiled pattern."""

    _compiled: Any

    def matches(self, texts: Sequence[str], *, timeout_s: float) -> list[bool]:
        """Which texts match as a whole (`String.matches`); TimeoutError after `timeout_s`."""
        return [
            self._compiled.fullmatch(text, timeout=timeout_s) is not None for text in texts
        ]


@lru_cache(maxsize=_REMEMBERED)
def compile_java(pattern: str) -> JavaPattern:
    """Compile a pattern of Java's syntax, or raise InvalidFilterError."""
    try:
        return JavaPattern(regex.compile(pattern, regex.V1 | regex.ASCII))
    except regex.error as error:
        raise InvalidFilterError(
            f"{pattern} is an invalid regex.", where=str(error), remedy="mend it"
        ) from error
