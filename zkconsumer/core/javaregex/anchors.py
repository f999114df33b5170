"""The dot and the assertions of Java's patterns, written for `regex`.

Topics are matched side by side, each with a separator behind it; so their starts and ends are
written as looks at that separator.
"""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.core.javaregex.families import BOUND_WORD, LINE_ENDS, UNICODE_WORD
from zkconsumer.core.javaregex.sets import CharSet, Mode, Negation, Text

START = r"(?<![^\uDFFF])"
END = r"(?=\uDFFF)"


def dot(mode: Mode) -> CharSet:
    """What . matches."""
    if Mode.DOT_ALL in mode:
        return Negation(Text(r"\uDFFF"))
    return Negation(Text(r"\n" if Mode.UNIX_LINES in mode else LINE_ENDS))


def line_start(mode: Mode) -> str:
    """What ^ asserts: never the end of the text, of several lines."""
    if Mode.MULTILINE not in mode:
        return START
    before = r"(?<=\n)" if Mode.UNIX_LINES in mode else rf"(?<=[{LINE_ENDS}])(?<!\r(?=\n))"
    return f"(?:(?!{END})(?:{START}|{before}))"


def line_end(mode: Mode) -> str:
    """What $ asserts: the end of the text or the line end before it; of several lines, any."""
    return _before_line_end(mode, "" if Mode.MULTILINE in mode else END)


def _final_end(mode: Mode) -> str:
    """What \\Z asserts: the end of the text, or the line end before it."""
    return _before_line_end(mode, END)


def _before_line_end(mode: Mode, then: str) -> str:
    if Mode.UNIX_LINES in mode:
        return rf"(?:{END}|(?=\n{then}))"
    return rf"(?:{END}|(?=\r\n{then}|[\r\u0085\u2028\u2029]{then})|(?<!\r)(?=\n{then}))"


def _word_bound(mode: Mode) -> str:
    """What \\b asserts. A mark belongs to the word if its base does."""
    word = UNICODE_WORD if Mode.UNICODE_CLASSES in mode else BOUND_WORD
    base = r"[\p{L}\p{Nd}]"
    left = rf"(?:(?<=[{word}])|(?<={base}\p{{Mn}}+))"
    right = rf"(?:(?=[{word}])|(?=\p{{Mn}})(?<={base}\p{{Mn}}*))"
    return rf"(?:{left}(?!{right})|(?!{left}){right})"


# letter of an escape -> what it asserts
ASSERTIONS: dict[str, Callable[[Mode], str]] = {
    "A": lambda _: START,
    "G": lambda _: START,
    "Z": _final_end,
    "z": lambda _: END,
    "b": _word_bound,
    "B": lambda mode: f"(?!{_word_bound(mode)})",
}
