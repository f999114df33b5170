"""Java's regular expressions (`java.util.regex`, `String.matches`) on top of the `regex` library.

`Parser` parses a pattern as Java does, and `text_of` writes an equivalent pattern for `regex`, with
every set of characters written out. The reference is Java 11. A pattern that Java's releases read
differently, or that `regex` cannot match as Java does, raises UnsupportedFilterError. Java and
`regex` implement different versions of Unicode, so they may classify a recently added character
differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import regex

from zkconsumer.errors import (
    FilterTooCostlyError,
    InvalidFilterError,
    UnsupportedFilterError,
    quoted,
)
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java.regex.character_sets import SEPARATOR
from zkconsumer.protocol.java.regex.parser import Parser
from zkconsumer.protocol.java.regex.syntax_tree import repetition_product, text_of

Compiled: TypeAlias = Any  # Any: the library regex has no types

# Maximum number of characters of a pattern; a longer pattern raises FilterTooCostlyError. A pattern
# of this length can list hundreds of topics, and is parsed and compiled within half a second.
MAX_LENGTH = 16_384

# Maximum product of nested counted repetitions: (a{100}){100} has 10,000. A larger product raises
# FilterTooCostlyError, because `regex` stores every iteration while it matches.
MAX_ROUNDS = 10_000

# Maximum number of characters of the pattern written for `regex`; a longer pattern raises
# FilterTooCostlyError. Case-insensitive classes and Unicode properties make this pattern longer
# than the original. `regex` compiles 200,000 characters within a second.
MAX_WRITTEN = 200_000

# Number of compiled patterns in the cache; a group has few. A pattern that is not in the cache is
# compiled again.
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """A compiled pattern; `text` is the pattern written for `regex`."""

    text: str
    _compiled: Compiled

    def matches(self, texts: Sequence[str], *, timeout_s: float) -> list[bool]:
        """Return for each text whether the whole text matches (`String.matches`).

        All texts are matched in one call; none of them may contain SEPARATOR. Raises TimeoutError
        after `timeout_s` seconds of the process's processor time.
        """
        joined = "".join(text + SEPARATOR for text in texts)
        found = self._compiled.findall(joined, timeout=timeout_s, concurrent=True)
        if self._compiled.groups > 1:
            return [bool(groups[-1]) for groups in found]
        return list(map(bool, found))


@lru_cache(maxsize=_REMEMBERED)
def compile_java(pattern: str) -> JavaPattern:
    """Compile a pattern in Java's syntax.

    Raises InvalidFilterError where Java throws PatternSyntaxException, UnsupportedFilterError for a
    pattern that cannot be matched as in Java, and FilterTooCostlyError beyond a limit.
    """
    if len(pattern) > MAX_LENGTH:
        raise FilterTooCostlyError(
            f"the regex has {len(pattern)} characters; the limit is {MAX_LENGTH}"
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
    """Return the pattern if it is printable and fits into a line, otherwise its start in quotes."""
    return pattern if len(pattern) <= 80 and pattern.isprintable() else quoted(pattern)


def _translated(pattern: str) -> str:
    parser = Parser(pattern)
    tree = parser.parse()
    if repetition_product(tree) > MAX_ROUNDS:
        raise FilterTooCostlyError(f"nested repetitions with more than {MAX_ROUNDS} rounds")
    text = text_of(tree, frozenset(parser.referenced))
    if len(text) > MAX_WRITTEN:
        raise FilterTooCostlyError(f"character classes of more than {MAX_WRITTEN} characters")
    return text


def _for_many(text: str) -> str:
    """Return a pattern that consumes one topic and its separator.

    Its last group is set if the pattern `text` matches the whole topic.
    """
    return f"(?:{text})(\\uDFFF)|[^\\uDFFF]*+\\uDFFF"
