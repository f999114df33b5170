"""Sets of characters: how they are put together, and how the `regex` library is told of them.

A set is an expression, since a class of Java's is parsed before all of its characters are known
(`Bits`). Its text is a bracketed set of `regex`'s version 1, with every character escaped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Flag, auto
from functools import lru_cache

import regex

from zkconsumer.errors import UnsupportedFilterError


class Mode(Flag):
    """The inline flags that a position of a pattern is under."""

    NONE = 0
    CASE_INSENSITIVE = auto()  # i
    UNICODE_CASE = auto()  # u
    UNICODE_CLASSES = auto()  # U, which turns u on and off with it
    MULTILINE = auto()  # m
    DOT_ALL = auto()  # s
    UNIX_LINES = auto()  # d
    COMMENTS = auto()  # x


@dataclass(frozen=True, slots=True)
class Text:
    """What stands between the brackets of a set."""

    body: str


@dataclass(slots=True)
class Bits:
    """The single characters below U+0100 of one class; it grows while the class is parsed."""

    codes: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Union:
    """Characters of either set."""

    left: CharSet
    right: CharSet


@dataclass(frozen=True, slots=True)
class Intersection:
    """Characters of both sets."""

    left: CharSet
    right: CharSet


@dataclass(frozen=True, slots=True)
class Negation:
    """All other characters."""

    inner: CharSet


CharSet = Text | Bits | Union | Intersection | Negation

# Separates the topics that are matched in one go. ZooKeeper refuses surrogates in a path, so no
# topic holds it; no set that is written into a pattern holds it either.
SEPARATOR = "\udfff"


# One character, as `escaped` writes it, that is not SEPARATOR.
_ONE = regex.compile(r"[0-9A-Za-z]|\\u(?!DFFF)[0-9A-F]{4}|\\U[0-9A-F]{8}")


def escaped(code: int) -> str:
    """One character as `regex` reads it in a set and outside of one."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}"


def span(first: int, last: int) -> str:
    """A range for the body of a set."""
    return escaped(first) if first == last else f"{escaped(first)}-{escaped(last)}"


def _bracketed(one: CharSet) -> str:
    match one:
        case Text(body):
            return f"[{body}]"
        case Bits(codes):
            return f"[{''.join(escaped(code) for code in sorted(codes))}]"
        case Union(left, right):
            return f"[{_bracketed(left)}{_bracketed(right)}]"
        case Intersection(left, right):
            return f"[{_bracketed(left)}&&{_bracketed(right)}]"
        case Negation(inner):
            return f"[^{_bracketed(inner)}]"


def written(one: CharSet) -> str:
    """The set as a pattern of `regex`; it never matches SEPARATOR."""
    if isinstance(one, Text) and _ONE.fullmatch(one.body):
        return one.body
    return f"[{_bracketed(one)}--[\\uDFFF]]"


# ---- case ---------------------------------------------------------------------------------------


def upper(code: int) -> int:
    """`Character.toUpperCase(int)`: one character for one, unlike str.upper."""
    for text in (chr(code).upper(), chr(code).title()):
        if len(text) == 1:
            return ord(text)
    return code


def lower(code: int) -> int:
    """`Character.toLowerCase(int)`: one character for one, unlike str.lower."""
    text = chr(code).lower()
    return ord(text[0]) if len(text) == 1 or code == _DOTTED_I else code


_DOTTED_I = 0x130  # whose small letter is i and, in full, a dot
# Small and capital letters whose other forms lie beyond U+00FF: Java keeps them out of its bits.
_NO_BITS = frozenset(map(ord, "IiSsKk\u00ff\u00b5\u00c5\u00e5"))


@lru_cache(maxsize=1)
def _cased() -> tuple[tuple[int, int, int], ...]:
    """(character, its capital, that one's small letter) of all that have another form."""
    every = "".join(map(chr, range(0x20000)))
    codes = (ord(found[0]) for found in regex.finditer(r"\p{Changes_When_Casemapped}", every))
    return tuple((code, upper(code), lower(upper(code))) for code in codes)


def single(code: int, mode: Mode) -> CharSet:
    """A character that stands for itself, or for its other cases too."""
    if Mode.CASE_INSENSITIVE not in mode:
        return Text(escaped(code))
    if Mode.UNICODE_CASE not in mode:
        return Text("".join(map(escaped, sorted(_ascii_cases(code)))))
    capital, small = upper(code), lower(upper(code))
    others = {one for one, _, folded in _cased() if folded == small}
    if capital == small and others - {code}:
        raise UnsupportedFilterError(
            f"Java is of two minds about the case of {chr(code)}", remedy="leave (?iu) out"
        )
    return Text("".join(map(escaped, sorted({small, code, *others}))))


def _ascii_cases(code: int) -> set[int]:
    text = chr(code)
    return {ord(text.lower()), ord(text.upper())} if text.isascii() else {code}


def in_class(bits: Bits, code: int, mode: Mode) -> CharSet | None:
    """A single character of a class: added to its bits (then None), or a set of its own."""
    folds = Mode.CASE_INSENSITIVE in mode
    unicode = folds and Mode.UNICODE_CASE in mode
    if code > 0xFF or (unicode and code in _NO_BITS):
        return single(code, mode)
    bits.codes.add(code)
    if folds:
        bits.codes |= _ascii_cases(code)
    if unicode and code > 0x7F:
        bits.codes |= {lower(code), upper(code)}
    return None


def between(first: int, last: int, mode: Mode) -> CharSet:
    """A range of a class."""
    body = span(first, last)
    if Mode.CASE_INSENSITIVE not in mode:
        return Text(body)
    if Mode.UNICODE_CASE in mode:
        others = {
            code
            for code, capital, small in _cased()
            if first <= capital <= last or first <= small <= last
        }
    else:
        others = {
            other
            for code in range(max(first, 0x41), min(last, 0x7A) + 1)
            for other in _ascii_cases(code)
        }
    return Text(body + "".join(map(escaped, sorted(others))))
