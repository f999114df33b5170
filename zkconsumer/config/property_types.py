"""The types of properties, and `setting`, which declares a property as a dataclass field.

A type converts the text in a properties file to a typed value (`from_text`), and checks a typed
value from any source (`check`). Both raise ValueError without a message;
`zkconsumer.config.settings` adds the property and its place. The rules are those of
`kafka.utils.VerifiableProperties` 0.9 and later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from zkconsumer.errors import ConfigError, InvalidNameError
from zkconsumer.protocol.paths import MAX_NAME_LENGTH, validate_group, znode_fault
from zkconsumer.protocol.releases import profile

# Java's largest Int; `Integer.parseInt` rejects larger numbers.
INT_MAX = 2**31 - 1
_JAVA_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)


class PropertyType(Protocol):
    """The type of a property."""

    @property
    def allowed(self) -> str:
        """The allowed values as text, for the error's remedy and for the documentation."""

    def from_text(self, text: str) -> object:
        """Convert the text in a properties file; raise ValueError if it is invalid."""

    def check(self, value: object) -> object:
        """Return `value`, normalised; raise ValueError if it is not allowed."""


class Secret(str):
    """A string whose repr is masked, so that a log of the configuration does not contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@dataclass(frozen=True, slots=True)
class Text:
    """A string for which `accepts` returns a true value; `type` may be a subclass of str."""

    allowed: str = "any text"
    accepts: Callable[[str], object] = lambda text: True
    type: Callable[[str], str] = str

    def from_text(self, text: str) -> str:
        return text

    def check(self, value: object) -> str:
        if not isinstance(value, str) or not self.accepts(value):
            raise ValueError
        return self.type(value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words; `fold` first converts the text: the JVM lower-cases some properties."""

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
    """Exactly `true` or `false`: the JVM rejects `True`, `1` and `yes`."""

    allowed: str = "true or false"

    def from_text(self, text: str) -> bool:
        return {"true": True, "false": False}[text] if text in ("true", "false") else _no(text)

    def check(self, value: object) -> bool:
        return value if isinstance(value, bool) else _no(value)


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer of `unit` from `least` to `most`, by default Java's largest Int."""

    least: int
    unit: str = ""
    most: int = INT_MAX

    @property
    def allowed(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"a whole number{unit and ' of' + unit}, {self.least} to {self.most}"

    def from_text(self, text: str) -> int:
        return _java_int(text)

    def check(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        return value if self.least <= value <= self.most else _no(value)


@dataclass(frozen=True, slots=True)
class Millis:
    """Whole milliseconds in a file, float seconds in Python; only this module converts them."""

    least: int

    @property
    def allowed(self) -> str:
        return f"whole milliseconds, {self.least} to {INT_MAX} (in Python: seconds)"

    def from_text(self, text: str) -> float:
        return _java_int(text) / 1000

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError
        if not self.least / 1000 <= value <= INT_MAX / 1000:  # this comparison is false for NaN
            raise ValueError
        return float(value)


MIN_BACKOFF_S = 0.05
"""Minimum back-off between two attempts, in seconds; a shorter back-off is raised to this value.

The JVM accepts 0, and then retries as fast as the servers answer.
"""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Like Millis, for the back-off between two attempts; at least `MIN_BACKOFF_S`."""

    allowed: str = f"{Millis(0).allowed}; 0 to 49 ms are raised to {MIN_BACKOFF_S * 1000:.0f} ms"

    def from_text(self, text: str) -> float:
        return _java_int(text) / 1000

    def check(self, value: object) -> float:
        return max(Millis(0).check(value), MIN_BACKOFF_S)


@dataclass(frozen=True, slots=True)
class MillisOrNever:
    """Like Millis; a negative number in a file means "never", which in Python is None."""

    allowed: str = (
        f"whole milliseconds up to {INT_MAX}, or a negative number for no limit"
        " (in Python: seconds, or None)"
    )

    def from_text(self, text: str) -> float | None:
        number = _java_int(text)
        return None if number < 0 else number / 1000

    def check(self, value: object) -> float | None:
        return None if value is None else Millis(0).check(value)


def in_seconds(kind: PropertyType) -> str:
    """Return the values that a time has in Python, in seconds; empty if the kind is no time."""
    match kind:
        case Millis(least):
            return f"seconds, {least / 1000:g} to {INT_MAX // 1000}"
        case Backoff():
            return f"seconds, 0 to {INT_MAX // 1000}"
        case MillisOrNever():
            return f"seconds, 0 to {INT_MAX // 1000}, or None for never"
    return ""


def _is_group(name: str) -> bool:
    try:
        return bool(validate_group(name))
    except InvalidNameError:
        return False


GROUP = Text(
    f"1 to {MAX_NAME_LENGTH} characters of A-Z a-z 0-9 . _ -, except '.' and '..'", _is_group
)
# As `kafka.common.Config.validateChars`, which also accepts the empty text.
CLIENT = Text("A-Z a-z 0-9 . _ -", re.compile(r"[A-Za-z0-9._-]*").fullmatch)
# The JVM does not check `consumer.id`, although an id with '/' creates a tree of znodes below
# `ids`, and every member of the group then fails.
ID_SUFFIX = Text(
    "what ZooKeeper allows in the name of a znode",
    lambda suffix: "/" not in suffix and not znode_fault(f"_{suffix}"),
)
AUTO_RELEASE = "auto"


def _release(name: str) -> str:
    return name if name == AUTO_RELEASE else profile(name).release


def _is_release(name: str) -> bool:
    try:
        return bool(_release(name))
    except ConfigError:
        return False


# An unambiguous prefix is completed: `0.11` becomes `0.11.0.3`.
RELEASE = Text("0.8.0 to 1.1.1, 0.8.2-0.11, or auto", _is_release, _release)
HOSTS = Text("host:port[,host:port...][/chroot]")
TOKEN = Text("user:password", re.compile(r"[^:]+:.+").fullmatch, Secret)
SECRET = Text("a non-empty text", bool, Secret)
PATH = Text("a path", bool)
# As the pattern `kafka.cluster.EndPoint.uriParseExp`.
LISTENER = Text("a listener name or a security protocol", re.compile(r"[A-Za-z0-9_.-]+").fullmatch)
PORT = Integer(1, most=65535)
SERVICE = Text("A-Z a-z 0-9 . _ -", re.compile(r"[A-Za-z0-9._-]+").fullmatch)


class Required:
    """Stands for the default of a required property, which has no default."""

    def __repr__(self) -> str:
        return "<required>"


@dataclass(frozen=True, slots=True)
class DerivedDefault:
    """The default of a property that depends on another property, which `by` names."""

    by: str


REQUIRED = Required()
Default = str | float | bool | None | DerivedDefault | Required


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a property, and the attribute that holds its value."""

    name: str
    kind: PropertyType
    default: Default
    effect: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Unset:
    """Stands for an argument that was not passed, so that a property can set its attribute."""

    default: object

    def __repr__(self) -> str:
        return repr(self.default)  # `help` shows it


def setting(
    name: str, kind: PropertyType, default: Default, effect: str
) -> Any:  # Any: the default of a field of any type, as `dataclasses.field` returns
    """Return a dataclass field; a DerivedDefault is None until the constructor resolves it."""
    metadata = {"setting": Setting(name, kind, default, effect)}
    later = None if isinstance(default, DerivedDefault) else default
    return field(default=Unset(later), metadata=metadata)


def unset(
    default: object,
) -> Any:  # Any: the default of a field of any type, as `dataclasses.field` returns
    """Return a dataclass field that is not a property of its own."""
    return field(default=Unset(default))


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the rows of the fields that were made by `setting`, in order."""
    return tuple(
        replace(one.metadata["setting"], attribute=one.name)
        for one in fields(cls)
        if "setting" in one.metadata
    )


def _java_int(text: str) -> int:
    # Python's int() also accepts blanks, underscores and numbers of any length.
    if _JAVA_INT.fullmatch(text) is None or len(text) > len("-2147483648"):
        raise ValueError(text)
    return int(text)


def _no(
    value: object,
) -> Any:  # Any: the default of a field of any type, as `dataclasses.field` returns
    raise ValueError(value)
