"""The characters of a pattern, as Java's parser walks over them."""

from __future__ import annotations

from typing import NoReturn

from zkconsumer.core.javaregex.sets import Mode
from zkconsumer.errors import InvalidFilterError

_SPACE = frozenset(map(ord, "\t\n\v\f\r "))
_LINE_ENDS = frozenset(map(ord, "\n\r\u0085\u2028\u2029"))


class Scanner:
    """A cursor over code points, with two zeros behind the last.

    In comments mode `peek`, `next` and `read` pass over blanks and comments first; the others
    take the characters as they stand. The mode may change between any two steps.
    """

    def __init__(self, pattern: str) -> None:
        self.codes = [*map(ord, _unquoted(pattern)), 0, 0]
        self.length = len(self.codes) - 2
        self.cursor = 0
        self.mode = Mode.NONE

    def at(self, distance: int) -> str:
        """The character so far from the cursor, which stays."""
        return chr(self.codes[self.cursor + distance])

    def peek(self) -> str:
        """The next character, which is not taken."""
        if Mode.COMMENTS in self.mode:
            self._pass_comments()
        return self.at(0)

    def next(self) -> str:
        """Leave out one character and peek."""
        self.cursor += 1
        return self.peek()

    def read(self) -> str:
        """Take the next character."""
        found = self.peek()
        self.cursor += 1
        return found

    def skip(self) -> str:
        """Leave out one character and take the one after it, whatever it is."""
        self.cursor += 2
        return self.at(-1)

    def ended(self) -> bool:
        """Whether the cursor is behind the last character."""
        return self.cursor >= self.length

    def refuse(self, reason: str) -> NoReturn:
        """Raise InvalidFilterError; the caller adds the pattern."""
        raise InvalidFilterError(reason, where=f"near character {min(self.cursor, self.length)}")

    def _pass_comments(self) -> None:
        while self.codes[self.cursor] in _SPACE or self.at(0) == "#":
            while self.codes[self.cursor] in _SPACE:
                self.cursor += 1
            if self.at(0) == "#":
                self._pass_line()

    def _pass_line(self) -> None:
        ends = {0x0A} if Mode.UNIX_LINES in self.mode else _LINE_ENDS
        self.cursor += 1
        while self.codes[self.cursor] and self.codes[self.cursor] not in ends:
            self.cursor += 1
        self.cursor = min(self.cursor, self.length)


def _unquoted(pattern: str) -> str:
    """The pattern with \\Q...\\E written as escapes (`Pattern.RemoveQEQuoting`).

    Without a \\Q nothing is done, so that a lone \\E is an error.
    """
    first = _first_quote(pattern)
    if first < 0:
        return pattern
    out, rest, quoting, opening = [pattern[:first]], pattern[first + 2 :], True, True
    while rest:
        char, rest = rest[0], rest[1:]
        if char == "\\" and quoting:
            ends = rest.startswith("E")
            quoting, rest = not ends, rest[ends:]
            out.append("" if ends else "\\\\")
        elif char == "\\" and rest.startswith("Q"):
            quoting, opening, rest = True, True, rest[1:]
            continue
        elif char == "\\":
            out.append(char + rest[:1])
            rest = rest[1:]
        elif char.isascii() and char.isdigit() and opening:
            out.append("\\x3" + char)  # an escape before the quote must not swallow the digit
        elif char.isascii() and not char.isalnum() and quoting:
            out.append("\\" + char)
        else:
            out.append(char)
        opening = False
    return "".join(out)


def _first_quote(pattern: str) -> int:
    at = 0
    while at < len(pattern) - 1:
        if pattern[at] != "\\":
            at += 1
        elif pattern[at + 1] != "Q":
            at += 2
        else:
            return at
    return -1
