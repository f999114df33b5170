"""joptsimple's option parser and help: release 3.2 (Kafka 0.8 and 0.9) and 5.0 (later Kafka).

Errors and help equal joptsimple's byte for byte. The help wraps lines where
`java.text.BreakIterator` sees the end of a word. A trailing hyphen or colon also ends a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.protocol.java.text import parse_int32, parse_int64

# Columns of joptsimple's help.
WIDTH: Final = 80
_OLD_COLUMN: Final = (WIDTH - 2) // 2
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a tool.

    `argument` is the name of its value in the help: None for an option without a value, "" for a
    value without a name. `kind` is the Java class of the value: String, Integer or Long.
    """

    name: str
    doc: str = ""
    argument: str | None = None
    kind: str = "String"
    default: str | None = None


class OptionError(Exception):
    """The arguments are invalid; `kind` is the class of the exception in joptsimple."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Options:
    """The parsed arguments."""

    def __init__(self, parser: Parser, given: Sequence[tuple[str, str]]) -> None:
        self._parser = parser
        self._given = given

    def has(self, name: str) -> bool:
        return any(one == name for one, _ in self._given)

    def values(self, name: str) -> list[str]:
        """Return all values of an option, or its default."""
        found = [value for one, value in self._given if one == name]
        default = self._parser.option(name).default
        return found if found or default is None else [default]

    def text(self, name: str) -> str | None:
        """Return the value of an option, or its default. Raises OptionError for two values."""
        found = self.values(name)
        if len(found) > 1:
            raise self._parser.error(
                f"Found multiple arguments for option {self._parser.listed(name)}, "
                "but you asked for only one",
                "MultipleArgumentsForOptionException",
            )
        return found[0] if found else None

    def required(self, name: str) -> str:
        """Return the value of an option that has a default, or is known to be present."""
        found = self.text(name)
        if found is None:
            raise AssertionError(f"--{name} was not checked")
        return found

    def number(self, name: str) -> int | None:
        """Return the value of an Integer or Long option; raise OptionError if it is no number."""
        text = self.text(name)
        if text is None:
            return None
        kind = self._parser.option(name).kind
        try:
            return parse_int32(text) if kind == "Integer" else parse_int64(text)
        except ValueError:
            raise self._parser.unreadable(name, text) from None


class Parser:
    """The options of one tool in one release."""

    def __init__(self, options: Iterable[Option], release: KafkaRelease) -> None:
        self._options = {one.name: one for one in sorted(options, key=lambda one: one.name)}
        self._old = not release.since(KafkaRelease.R0_10)
        # Since KAFKA-4703 (0.11) options can no longer be abbreviated.
        self._abbreviated = not release.since(KafkaRelease.R0_11)

    def option(self, name: str) -> Option:
        return self._options[name]

    def parse(self, arguments: Sequence[str]) -> Options:
        """Parse arguments; like all these tools, ignore arguments that are not options.

        Raises OptionError.
        """
        given: list[tuple[str, str]] = []
        left = iter(arguments)
        for one in left:
            if one == "--":
                break
            if one.startswith("-") and len(one) > 1:
                name, _, value = one.lstrip("-").partition("=")
                option = self._recognised(name)
                if option.argument is not None and not value:
                    value = next(left, "")
                    if not value:
                        raise self.error(
                            f"Option {self.listed(option.name)} requires an argument",
                            "OptionMissingRequiredArgumentException",
                        )
                given.append((option.name, value))
        return Options(self, given)

    def _recognised(self, name: str) -> Option:
        if name in self._options:
            return self._options[name]
        meant = [one for one in self._options if name and one.startswith(name)]
        if self._abbreviated and len(meant) == 1:
            return self._options[meant[0]]
        raise self.error(
            f"{self.quoted(name)} is not a recognized option", "UnrecognizedOptionException"
        )

    # ---- joptsimple's error texts ----------------------------------------------------------------

    def error(self, text: str, kind: str) -> OptionError:
        return OptionError(text, f"joptsimple.{kind}")

    def unreadable(self, name: str, text: str) -> OptionError:
        if self._old:
            words = (
                f"Cannot convert argument '{text}' of option {self.listed(name)} "
                f"to class java.lang.{self.option(name).kind}"
            )
        else:
            words = f"Cannot parse argument '{text}' of option {name}"
        return self.error(words, "OptionArgumentConversionException")

    def quoted(self, name: str) -> str:
        return f"'{name}'" if self._old else name

    def listed(self, name: str) -> str:
        return f"['{name}']" if self._old else name

    # ---- help ------------------------------------------------------------------------------------

    def help(self) -> str:
        """Return what `printHelpOn` prints, with a line end after the last line."""
        rows = [(self._left(one), _right(one)) for one in self._options.values()]
        return _old_help(rows) if self._old else _new_help(rows)

    def _left(self, option: Option) -> str:
        if option.argument is None:
            return f"--{option.name}"
        hidden = self._old and option.kind == "String"
        words = [word for word in ("" if hidden else option.kind, option.argument) if word]
        return f"--{option.name} <{': '.join(words)}>" if words else f"--{option.name}"


def _right(option: Option) -> str:
    if option.default is None:
        return option.doc
    return f"{option.doc} (default: {option.default})".strip()


_PRE = '($"\\[{'
_POST = '!%.,:;?")\\]}'
# A piece of text that a line break may follow. It consists of opening characters, a word or a
# number, hyphens or closing characters, and blanks. The rules are those of `LineBreak` in the JDK's
# BreakIteratorRules, as far as help texts need them.
_WORD = re.compile(
    rf"[{_PRE}]*(?:[{_PRE}-]*[0-9]+(?:[.,][0-9]+)*|[^\s{_PRE}{_POST}-]*)(?:-+|[{_POST}]*)\s*"
)


def _lines(text: str, width: int) -> Iterator[str]:
    for embedded in text.strip().split("\n"):
        line = ""
        for word in (match[0] for match in _WORD.finditer(embedded)):
            if len(line) + len(word) > width:
                yield line.rstrip()
                line = "  " + word
            else:
                line += word
        if line:
            yield line.rstrip()


_HEAD: Final = [("Option", "Description"), ("------", "-----------")]


def _old_help(rows: Sequence[tuple[str, str]]) -> str:
    """Return the help as two columns of equal width (`joptsimple.internal.ColumnarData`)."""
    widths = (_OLD_COLUMN, _OLD_COLUMN)
    return _paired([*_HEAD, *_fitted(rows, widths)], widths, gap=1)


def _new_help(rows: Sequence[tuple[str, str]]) -> str:
    """Return the help as two columns, each as wide as its texts need (`joptsimple.internal.Rows`).
    The widths are computed before and again after the texts are wrapped.
    """
    cells = [*_HEAD, *rows]
    cells = [*_HEAD, *_fitted(rows, _widths(cells))]
    return _paired(cells, _widths(cells), gap=_GAP)


def _widths(cells: Sequence[tuple[str, str]]) -> tuple[int, int]:
    left = min((WIDTH - _GAP) // 2, max(len(one) for one, _ in cells))
    return left, min(WIDTH - left - _GAP, max(len(one) for _, one in cells))


def _fitted(rows: Sequence[tuple[str, str]], widths: tuple[int, int]) -> Iterator[tuple[str, str]]:
    for left, right in rows:
        yield from zip_longest(_lines(left, widths[0]), _lines(right, widths[1]), fillvalue="")


def _paired(cells: Sequence[tuple[str, str]], widths: tuple[int, int], *, gap: int) -> str:
    return "".join(
        left.ljust(widths[0]) + " " * gap + right.ljust(widths[1]) + "\n" for left, right in cells
    )
