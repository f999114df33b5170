r"""Read and write Java's .properties syntax.

The reader follows `java.util.Properties.load`, and returns line numbers:

Blank lines and lines that begin with `#` or `!` are skipped. A key ends at the first unescaped `=`,
`:` or blank; blanks around the separator are ignored. A line that ends in an odd number of
backslashes continues on the next line, whose leading blanks are ignored. `\t`, `\n`, `\r`, `\f`
and `\uXXXX` are escapes; any other escaped character stands for itself. `\uXXXX` is a UTF-16 unit,
so two of them can be one character. If a key occurs twice, the last value wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from zkconsumer.errors import ConfigError

_BLANKS = " \t\f"
_LINE = re.compile(r"\r\n|\r|\n")
# An escaped character, or a character that does not end a key.
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|u|.|$)", re.DOTALL)
_NOT_PLAIN = re.compile(r"[^\x00-\x7e]|\\")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> Iterator[tuple[str, str, int]]:
    r"""Yield each (key, value, line number) of a file, in order.

    The file is decoded as UTF-8 if it is valid UTF-8, otherwise as ISO-8859-1, which Java uses. The
    two encodings agree on ASCII. Raises ConfigError if the file cannot be read, or has a `\u`
    escape that is malformed or half of a surrogate pair.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the properties file: {error.strerror}",
            where=str(path),
            remedy="name an existing, readable file",
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    yield from parse_properties(text, where=str(path))


def parse_properties(text: str, *, where: str) -> Iterator[tuple[str, str, int]]:
    """Yield each (key, value, line number) of `text`; `where` is its name in errors."""
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None, "the pattern matches the empty string"
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None, "the pattern matches the empty string"
        place = f"{where}:{number}"
        yield _unescape(key[0], place), _unescape(line[separator.end() :], place), number


def properties_text(settings: Mapping[str, object]) -> str:
    r"""Return the content of a file that Java reads as these settings.

    Java reads a file as ISO-8859-1. So every other character is written as the `\uXXXX` of its
    UTF-16 units.
    """
    return "".join(f"{name}={_escape(str(value))}\n" for name, value in settings.items())


def _escape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "\\\\" if match[0] == "\\" else re.sub("(....)", r"\\u\1", units)

    return _NOT_PLAIN.sub(one, text)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = iter(enumerate(_LINE.split(text), start=1))
    for number, first in lines:
        line = first.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            _, more = next(lines, (0, ""))
            line = line[:-1] + more.lstrip(_BLANKS)
        yield number, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, where: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise ConfigError(
                "malformed \\u escape", where=where, remedy="write \\u and four hexadecimal digits"
            )
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        return _CONTROL.get(escape, escape)

    units = _ESCAPE.sub(one, text).encode("utf-16-le", "surrogatepass")
    try:
        return units.decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "a \\u escape is one half of a surrogate pair, without the other half",
            where=where,
            remedy="write both halves, one after the other, or the character itself",
        ) from error
