"""What a property may hold: one small value per kind, and `setting`, which puts it on a field.

A kind turns the text of a properties file into a typed value (`from_text`) and checks a typed value
(`check`), whichever way it came. Both raise ValueError; `zkconsumer.config` says where.
The rules are those of `kafka.utils.VerifiableProperties` 0.9 and later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

# Java's Int: what `Integer.parseInt` takes. Larger numbers are refused, as there.
INT_MAX = 2**31 - 1
_JAVA_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Kind(Protocol):
    """The type of a property."""

    @property
    def allowed(self) -> str:
        """What is allowed, for the error's remedy and for the documentation."""

    def from_text(self, text: str) -> object:
        """The value that stands in a properties file as `text`; ValueError if it is none."""

    def check(self, value: object) -> object:
        """`value`, normalised; ValueError if it is not allowed."""


class Secret(str):
    """A string that does not show itself in a repr, hence not in a log of the configuration."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@dataclass(frozen=True, slots=True)
class Text:
    """A string that matches `pattern` as a whole; `type` may be a subclass of str."""

    allowed: str = "any text"
    pattern: str = r"(?s).*"
    type: Callable[[str], str] = str

    def from_text(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(self.pattern, value) is None:
            raise ValueError
        return self.type(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words; `fold` is applied first (the JVM lower-cases some and not others)."""

    words: tuple[str, ...]
    fold: Callable[[str], str] = str

    @property
    def allowed(self) -> str:
        return " or ".join(self.words)

    def from_text(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str) or self.fold(value) not in self.words:
            raise ValueError
        return self.fold(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """Exactly `true` or `false`: the JVM takes neither `True` nor `1` nor `yes`."""

    allowed: str = "true or false"

    def from_text(self, text: str) -> bool:
        return {"true": True, "false": False}[text] if text in ("true", "false") else _no(text)

    def check(self, value: object) -> bool:
        return value if isinstance(value, bool) else _no(value)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of `unit` from `least` to Java's largest Int."""

    least: int
    unit: str = ""

    @property
    def allowed(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"a whole number{unit and ' of' + unit}, {self.least} to {INT_MAX}"

    def from_text(self, text: str) -> int:
        return _java_int(text)

    def check(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        return value if self.least <= value <= INT_MAX else _no(value)


@dataclass(frozen=True, slots=True)
class Millis:
    """Whole milliseconds in a file, float seconds in Python; the one place that translates."""

    least: int

    @property
    def allowed(self) -> str:
        return f"whole milliseconds, {self.least} to {INT_MAX} (in Python: seconds)"

    def from_text(self, text: str) -> float:
        return _java_int(text) / 1000

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError
        if not self.least / 1000 <= value <= INT_MAX / 1000:  # also false for NaN
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class MillisOrNever:
    """Like Millis, where any negative number in a file means "never", in Python None."""

    allowed: str = f"whole milliseconds up to {INT_MAX}, negative: never (in Python: seconds, None)"

    def from_text(self, text: str) -> float | None:
        number = _java_int(text)
        return None if number < 0 else number / 1000

    def check(self, value: object) -> float | None:
        return None if value is None else Millis(0).check(value)


# kafka.common.Config.validateChars, without the two names that are no names in a ZooKeeper path.
GROUP = Text("ASCII letters, digits, '.', '_' and '-', at least one", r"(?!\.\.?$)[A-Za-z0-9._-]+")
CLIENT = Text("ASCII letters, digits, '.', '_' and '-'", r"[A-Za-z0-9._-]*")
# What the JVM does not check and should: a '/' makes a tree of nodes below `ids`, which fails every
# member of the group, and ZooKeeper refuses the other characters in paths.
ID_SUFFIX = Text(
    "no '/', no control characters",
    r"[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]*",
)
HOSTS = Text("host:port[,host:port...][/chroot]", r"\S+")
TOKEN = Text("user:password", r"[^:]+:.+", Secret)


class Required:
    """The default of a property that has none."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The default of a property that another one decides; `by` says which, for the reader."""

    by: str


REQUIRED = Required()
Default = str | float | bool | None | Decided | Required


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a property, and the attribute that holds it."""

    name: str
    kind: Kind
    default: Default
    effect: str
    attribute: str = ""


def setting(name: str, kind: Kind, default: Default, effect: str) -> Any:
    """A dataclass field for property `name`; a default that is Decided is None until resolved."""
    metadata = {"setting": Setting(name, kind, default, effect)}
    if isinstance(default, Required):
        return field(metadata=metadata)
    return field(default=None if isinstance(default, Decided) else default, metadata=metadata)


def settings_of(cls: type) -> tuple[Setting, ...]:
    """The rows of a dataclass whose fields were made by `setting`, in order."""
    return tuple(replace(one.metadata["setting"], attribute=one.name) for one in fields(cls))


def _java_int(text: str) -> int:
    # Python's int() also takes blanks, underscores and numbers of any length.
    if _JAVA_INT.fullmatch(text) is None or len(text) > len("-2147483648"):
        raise ValueError(text)
    return int(text)


def _no(value: object) -> Any:
    raise ValueError(value)
