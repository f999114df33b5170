"""Options that Spark hands over, for both formats: strict in their names and in their values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TypeVar

from zkconsumer.errors import ConfigError

T = TypeVar("T")


def named(
    options: Mapping[str, str], names: Mapping[str, str], *, hint: Callable[[str], str]
) -> dict[str, str]:
    """The options by their right names, without regard to case.

    `names`: in lower case -> as the documentation writes it. Raises one ConfigError for all that
    are none of these, with what `hint` says of each.
    """
    given: dict[str, str] = {}
    faults: list[tuple[str, str]] = []
    for key, value in options.items():
        name = names.get(key.lower())
        if name is None:
            faults.append((key, hint(key)))
        else:
            given[name] = str(value).strip()
    if faults:
        raise ConfigError(
            "unknown options" if len(faults) > 1 else "unknown option",
            where=", ".join(name for name, _ in faults),
            remedy="; ".join(f"{name}: {hint}" for name, hint in faults),
        )
    return given


def nearest(key: str, names: Mapping[str, str]) -> str:
    """A hint: which of the right names was probably meant."""
    near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    return f"did you mean {names[near[0]]}?" if near else "see docs/spark.md for all there are"


def choice(given: Mapping[str, str], name: str, words: Mapping[str, T], default: T) -> T:
    """One of these words. Raises ConfigError."""
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in words:
        raise ConfigError(
            f"bad value {text[:80]!r} of {name}", where=name, remedy=" or ".join(words)
        )
    return words[text.lower()]


def flag(given: Mapping[str, str], name: str, default: str) -> bool:
    """true or false. Raises ConfigError."""
    return choice({name: default, **given}, name, {"true": True, "false": False}, False)


def whole(given: Mapping[str, str], name: str, most: int) -> int | None:
    """A whole number from 1 on; None where none is given. Raises ConfigError."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or not 0 < int(text) <= most:
        raise ConfigError(
            f"bad value {text[:80]!r} of {name}", where=name,
            remedy=f"a whole number from 1 to {most}",
        )
    return int(text)
