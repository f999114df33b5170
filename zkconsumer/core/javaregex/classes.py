"""Escapes and classes of Java's patterns: what matches one character, or stands for one."""

from __future__ import annotations

from zkconsumer.core.javaregex.families import family, known_character, predefined
from zkconsumer.core.javaregex.scanner import Scanner
from zkconsumer.core.javaregex.sets import (
    Bits,
    CharSet,
    Intersection,
    Negation,
    Union,
    between,
    in_class,
)
from zkconsumer.errors import FilterTooCostlyError, UnsupportedFilterError, shown

# Groups and classes within each other. The parser, and that of `regex`, call themselves once for
# each; 400 of them overflow the stack. Deeper patterns raise FilterTooCostlyError.
MAX_DEPTH = 50

_CONTROLS = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")


class ClassParser(Scanner):
    """Reads `[...]`, `\\p{...}` and the escapes that are good in a class and outside of one."""

    depth = 0

    def deeper(self) -> None:
        """Enter a group or a class, or raise FilterTooCostlyError."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise FilterTooCostlyError(f"more than {MAX_DEPTH} groups or classes in each other")

    # ---- escapes --------------------------------------------------------------------------------

    def literal_escape(self, letter: str) -> int | None:
        """The code point that an escape stands for; None if `letter` starts no such escape.

        The cursor is behind the letter.
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
            self.refuse(f"no character is named {shown(name)}")
        raise UnsupportedFilterError("\\N{...} is an error in Java 8, not in Java 9")

    # ---- families and classes -------------------------------------------------------------------

    def family(self) -> CharSet:
        """Read \\p{name} or \\pL; the cursor is on the p."""
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
                self.refuse("\\p{} names nothing")
        else:
            name = self.read()
        found = family(name, self.mode)
        return Negation(found) if negated else found

    def char_class(self) -> CharSet:
        """Read a class; the cursor is on the [."""
        self.deeper()
        found = self._members()
        self.read()
        self.depth -= 1
        return found

    def _members(self) -> CharSet:
        """Read up to the closing ], which stays; the cursor is one before the first member."""
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
                        "Java 8 and Java 9 differ in what [^...] is with a class or && in it",
                        remedy="write [...&&[^...]]",
                    )
                return Negation(found) if negated else found
            else:
                if char == "\0" and self.ended():
                    self.refuse("a class without ]")
                self.cursor -= char == "&"  # where the look for a second one began
                latest = self._member(bits)
                used = used or latest is None
                if latest is not None:
                    whole = latest if whole is None else Union(whole, latest)
            char = self.peek()

    def _intersected(
        self, left: CharSet | None, latest: CharSet | None
    ) -> tuple[CharSet, CharSet | None]:
        """Read what follows &&; the cursor is on the second &. Returns the set and its last part.

        Without anything to the right, Java takes what was read last for the right-hand side.
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
            self.refuse("&& with nothing beside it")
        return (latest if left is None else Intersection(left, latest)), latest

    def _member(self, bits: Bits) -> CharSet | None:
        """Read a character (into `bits`, if it can be), a range or an escape of a class."""
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
            self.refuse(f"\\{letter} in a class")
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
