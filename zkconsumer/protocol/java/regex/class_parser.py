"""Parse the parts of a Java pattern that match one character: escapes and character classes.

`Scanner` is the cursor over a pattern's characters, with the rules of Java's own parser for
comments and quotes. `ClassParser` reads escapes and classes.
"""

from __future__ import annotations

from typing import NoReturn

from zkconsumer.errors import (
    FilterTooCostlyError,
    InvalidFilterError,
    UnsupportedFilterError,
    quoted,
)
from zkconsumer.protocol.java.regex.character_sets import (
    Bits,
    CharSet,
    Intersection,
    Mode,
    Negation,
    Union,
    between,
    family,
    in_class,
    known_character,
    predefined,
)

# ---- cursor --------------------------------------------------------------------------------------


_SPACE = frozenset(map(ord, "\t\n\v\f\r "))
_LINE_ENDS = frozenset(map(ord, "\n\r\u0085\u2028\u2029"))


class Scanner:
    """A cursor over code points; two zeros follow the last code point.

    In comments mode `peek`, `next` and `read` first skip blanks and comments; the other methods do
    not. The mode may change between any two steps.
    """

    def __init__(self, pattern: str) -> None:
        self.codes = [*map(ord, _unquoted(pattern)), 0, 0]
        self.length = len(self.codes) - 2
        self.cursor = 0
        self.mode = Mode.NONE

    def at(self, distance: int) -> str:
        """Return the character at a distance from the cursor, without moving the cursor."""
        return chr(self.codes[self.cursor + distance])

    def peek(self) -> str:
        """Return the next character without consuming it."""
        if Mode.COMMENTS in self.mode:
            self._pass_comments()
        return self.at(0)

    def next(self) -> str:
        """Skip one character, then peek."""
        self.cursor += 1
        return self.peek()

    def read(self) -> str:
        """Consume and return the next character."""
        found = self.peek()
        self.cursor += 1
        return found

    def skip(self) -> str:
        """Skip one character, then consume and return the one after it, even a blank."""
        self.cursor += 2
        return self.at(-1)

    def ended(self) -> bool:
        """Return whether the cursor is after the last character."""
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
    r"""Return the pattern with `\Q...\E` rewritten as escapes (`Pattern.RemoveQEQuoting`).

    A pattern without `\Q` is returned unchanged, so a lone `\E` is an error.
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
            out.append("\\x3" + char)  # in \1\Q2\E, a plain 2 would extend the escape \1 to \12
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


# ---- escapes and classes -------------------------------------------------------------------------


# Maximum number of nested groups and classes; a deeper pattern raises FilterTooCostlyError. This
# parser and the parser of `regex` recurse once per level, and 400 levels overflow the stack.
MAX_DEPTH = 50

_CONTROLS = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")


class ClassParser(Scanner):
    r"""Reads `[...]`, `\p{...}`, and the escapes that are valid inside and outside of a class."""

    depth = 0

    def deeper(self) -> None:
        """Enter a group or a class, or raise FilterTooCostlyError if they are nested too deeply."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise FilterTooCostlyError(f"more than {MAX_DEPTH} nested groups or classes")

    # ---- escapes --------------------------------------------------------------------------------

    def literal_escape(self, letter: str) -> int | None:
        """Return the code point of an escape; None if `letter` does not begin such an escape.

        The cursor is after the letter.
        """
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "0":
            return self._octal()
        if letter == "c":
            if self.ended():
                self.refuse("\\c without a character")
            return ord(self.read()) ^ 64
        if letter == "x":
            return self._hexadecimal()
        if letter == "u":
            return self._unicode()
        if letter == "N":
            self._named()
        return None if letter.isascii() and letter.isalnum() else ord(letter)

    def _octal(self) -> int:
        number, digits = 0, 0
        while digits < 3 and self.peek() in _OCTAL and number * 8 + int(self.peek()) <= 0o377:
            number = number * 8 + int(self.read())
            digits += 1
        if not digits:
            self.refuse("\\0 without an octal digit")
        return number

    def _hexadecimal(self) -> int:
        first = self.read()
        if first in _HEX:
            second = self.read()
            if second in _HEX:
                return int(first + second, 16)
        elif first == "{" and self.peek() in _HEX:
            number = 0
            while (digit := self.read()) in _HEX:
                number = number * 16 + int(digit, 16)
                if number > 0x10FFFF:
                    self.refuse("a code point beyond U+10FFFF")
            if digit == "}":
                return number
        self.refuse("\\x without hexadecimal digits")

    def _unicode(self) -> int:
        number = self._four_digits()
        before = self.cursor
        if 0xD800 <= number < 0xDC00:
            if self.read() == "\\" and self.read() == "u":
                low = self._four_digits()
                if 0xDC00 <= low < 0xE000:
                    return 0x10000 + (number - 0xD800) * 0x400 + (low - 0xDC00)
            self.cursor = before
        return number

    def _four_digits(self) -> int:
        digits = [self.read() for _ in range(4)]
        if not _HEX.issuperset(digits):
            self.refuse("\\u without four hexadecimal digits")
        return int("".join(digits), 16)

    def _named(self) -> None:
        name = ""
        if self.read() != "{":
            self.refuse("\\N without {")
        while (char := self.read()) != "}":
            if self.ended():
                self.refuse("\\N{ without }")
            name += char
        if not known_character(name):
            self.refuse(f"no character is named {quoted(name)}")
        raise UnsupportedFilterError("\\N{...} is an error in Java 8, and valid in Java 9")

    # ---- properties and classes -----------------------------------------------------------------

    def family(self) -> CharSet:
        r"""Read `\p{name}` or `\pL`; the cursor is on the p."""
        negated = self.at(0) == "P"
        if self.next() == "{":
            self.next()
            start = self.cursor
            while not self.ended() and self.peek() != "}":
                self.read()
            if self.ended():
                self.refuse("\\p{ without }")
            name = "".join(map(chr, self.codes[start : self.cursor]))
            self.read()
            if not name:
                self.refuse("\\p{} without a name")
        else:
            name = self.read()
        found = family(name, self.mode)
        return Negation(found) if negated else found

    def char_class(self) -> CharSet:
        """Read a class; the cursor is on the `[`."""
        self.deeper()
        found = self._members()
        self.read()
        self.depth -= 1
        return found

    def _members(self) -> CharSet:
        """Read up to but excluding the closing `]`; the cursor is one before the first member."""
        bits, whole, latest, used = Bits(), None, None, False
        char, negated, compound = self.next(), False, False
        if char == "^" and self.at(-1) == "[":
            char, negated = self.next(), True
        while True:
            if char == "[":
                latest, compound = self.char_class(), True
                whole = latest if whole is None else Union(whole, latest)
            elif char == "&" and self.next() == "&":
                whole, latest = self._intersected(_joined(whole, bits, used), latest)
                used, compound = False, True
            elif char == "]" and (whole is not None or used):
                found = _joined(whole, bits, used)
                assert found is not None
                if negated and compound:
                    raise UnsupportedFilterError(
                        "[^...] that contains a class or && matches different characters in Java 8"
                        " and in Java 9",
                        remedy="write [...&&[^...]]",
                    )
                return Negation(found) if negated else found
            else:
                if char == "\0" and self.ended():
                    self.refuse("a class without ]")
                self.cursor -= char == "&"  # go back, because no second & follows
                latest = self._member(bits)
                used = used or latest is None
                if latest is not None:
                    whole = latest if whole is None else Union(whole, latest)
            char = self.peek()

    def _intersected(
        self, left: CharSet | None, latest: CharSet | None
    ) -> tuple[CharSet, CharSet | None]:
        """Read the operand after `&&`. Return the resulting set, and the operand.

        The cursor is on the second `&`. If no operand follows, Java uses the last part before `&&`
        as the right-hand side.
        """
        char, right = self.next(), None
        while char not in "]&":
            if char == "[":
                inner = self.char_class()
                right = inner if right is None else Union(right, inner)
            else:
                self.cursor -= 1
                self.deeper()
                right = self._members()
                self.depth -= 1
            char = self.peek()
        if right is None and latest is None and isinstance(left, Bits):
            latest = left
        latest = right or latest
        if latest is None:
            self.refuse("&& without a set on either side")
        return (latest if left is None else Intersection(left, latest)), latest

    def _member(self, bits: Bits) -> CharSet | None:
        """Read a character (into `bits` if possible), a range or an escape of a class."""
        code = self._member_start()
        if not isinstance(code, int):
            return code
        if self.peek() == "-" and self.at(1) not in "[]":
            self.next()
            last = self._range_end()
            if last < code:
                self.refuse("a range whose end is before its start")
            return between(code, last, self.mode)
        return in_class(bits, code, self.mode)

    def _member_start(self) -> int | CharSet:
        char = self.peek()
        if char != "\\":
            self.next()
            return ord(char)
        letter = self.at(1)
        if letter in "pP":
            self.cursor += 1
            return self.family()
        starts_range = self.at(2) == "-"
        self.skip()
        if letter == "v" and starts_range:
            return 0x0B
        found = predefined(letter, self.mode)
        return self._class_escape(letter) if found is None else found

    def _class_escape(self, letter: str) -> int:
        code = self.literal_escape(letter)
        if code is None:
            self.refuse(f"the escape \\{letter} is not allowed in a class")
        return code

    def _range_end(self) -> int:
        char = self.peek()
        if char != "\\":
            self.next()
            return ord(char)
        letter = self.skip()
        if letter == "v":
            return 0x0B
        if predefined(letter, self.mode) is not None:
            self.refuse("a range that ends in a set")
        return self._class_escape(letter)


def _joined(whole: CharSet | None, bits: Bits, used: bool) -> CharSet | None:
    if not used:
        return whole
    return bits if whole is None else Union(whole, bits)
