"""Java's regular expressions (`java.util.regex`, `String.matches`) on top of the `regex` library.

A pattern is parsed as Java parses it and written anew for `regex`, with every set of characters
spelled out. The yardstick is Java 11; what its releases read differently, and what `regex` cannot
do as Java does, is refused (UnsupportedFilterError). Both know Unicode, of different years: a
character that Unicode has had for less long than the group's JVMs may be classed differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import regex

from zkconsumer.errors import (
    FilterTooCostlyError,
    InvalidFilterError,
    UnsupportedFilterError,
    shown,
)
from zkconsumer.protocol.java.regex.character_sets import SEPARATOR
from zkconsumer.protocol.java.regex.parser import Parser
from zkconsumer.protocol.java.regex.syntax_tree import rounds, text_of

# Characters of a pattern: room for a list of hundreds of topics, and parsed and compiled within
# half a second. Longer ones raise FilterTooCostlyError.
MAX_LENGTH = 16_384

# Rounds of counted repetitions within each other, multiplied: (a{100}){100} has 10,000. More raise
# FilterTooCostlyError, since `regex` keeps a record of each while it matches.
MAX_ROUNDS = 10_000

# Characters of what is written for `regex`; classes in any case of letters and many families make
# it longer than the pattern. `regex` compiles this much within a second; more raises
# FilterTooCostlyError.
MAX_WRITTEN = 200_000

# Compiled patterns that are kept. A group has few; the least used is compiled anew.
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """A compiled pattern; `text` is what was written for `regex`."""

    text: str
    _compiled: Any

    def matches(self, texts: Sequence[str], *, timeout_s: float) -> list[bool]:
        """Which texts match as a whole (`String.matches`).

        TimeoutError after `timeout_s` seconds of the process's time, for all texts together: they
        are matched in one go. None of them may hold SEPARATOR.
        """
        joined = "".join(text + SEPARATOR for text in texts)
        found = self._compiled.findall(joined, timeout=timeout_s)
        if self._compiled.groups > 1:
            return [bool(groups[-1]) for groups in found]
        return list(map(bool, found))


@lru_cache(maxsize=_REMEMBERED)
def compile_java(pattern: str) -> JavaPattern:
    """Compile a pattern of Java's syntax.

    Raises InvalidFilterError where Java raises PatternSyntaxException, UnsupportedFilterError for
    what cannot be done here as Java does it, FilterTooCostlyError beyond a limit.
    """
    if len(pattern) > MAX_LENGTH:
        raise FilterTooCostlyError(
            f"a regex of {len(pattern)} characters, and {MAX_LENGTH} are allowed"
        )
    try:
        text = _translated(pattern)
        return JavaPattern(text, regex.compile(_for_many(text), regex.V1))
    except InvalidFilterError as error:
        where = ", ".join(filter(None, [error.what, error.where]))
        raise InvalidFilterError(f"{_short(pattern)} is an invalid regex", where=where) from error
    except UnsupportedFilterError as error:
        what = f"the regex {_short(pattern)} cannot be evaluated"
        raise type(error)(what, where=error.what, remedy=error.remedy) from error
    except (regex.error, RecursionError, MemoryError) as error:
        raise UnsupportedFilterError(
            f"the regex {_short(pattern)} cannot be evaluated", where=str(error)
        ) from error


def _short(pattern: str) -> str:
    """As it stands, if it can be printed in a line; else its beginning, quoted."""
    return pattern if len(pattern) <= 80 and pattern.isprintable() else shown(pattern)


def _translated(pattern: str) -> str:
    parser = Parser(pattern)
    tree = parser.parse()
    if rounds(tree) > MAX_ROUNDS:
        raise FilterTooCostlyError(f"repetitions of more than {MAX_ROUNDS} rounds together")
    text = text_of(tree, frozenset(parser.referenced))
    if len(text) > MAX_WRITTEN:
        raise FilterTooCostlyError(f"sets of more than {MAX_WRITTEN} characters together")
    return text


def _for_many(text: str) -> str:
    """Matches one text and the separator after it, which is the last group if the text was hit."""
    return f"(?:{text})(\\uDFFF)|[^\\uDFFF]*+\\uDFFF"
