"""joptsimple's option parser and help: release 3.2 (Kafka 0.8 and 0.9) and 5.0 (later Kafka).

Errors equal joptsimple's byte for byte. The help has joptsimple's words; it breaks lines at blanks
only, and its columns have one width in all releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Final

from zkconsumer.cli.legacy.releases import KafkaRelease
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.java.text import parse_int32, parse_int64

# Characters of a line of the help, of its first column at most, and between the columns.
_WIDTH: Final = 80
_LEFT: Final = 39
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
        """Return the options and their descriptions in two columns."""
        rows = [_HEAD, _RULE, *((self._left(one), _right(one)) for one in self._options.values())]
        left = min(_LEFT, max(len(option) for option, _ in rows))
        right = _WIDTH - left - _GAP
        lines = [
            f"{option.ljust(left + _GAP)}{words}".rstrip()
            for row in rows
            for option, words in zip_longest(
                _lines(row[0], left), _lines(row[1], right), fillvalue=""
            )
        ]
        return "".join(f"{line}\n" for line in lines)

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


_HEAD: Final = ("Option", "Description")
_RULE: Final = ("------", "-----------")


def _lines(text: str, width: int) -> list[str]:
    """Break a text at blanks; further lines are indented. A longer word is not broken."""
    return [
        line
        for part in text.strip().split("\n")
        for line in wrap(
            part, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]
