"""The names that a user may have meant instead of an unknown one: "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from zkconsumer.errors import quoted

_MOST: Final = 3
_CUTOFF: Final = 0.6
"""The lowest similarity of two names (`difflib`): `biling` and `billing` have 0.92, and `pey` and
`pay` 0.67."""


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are most similar to a name, the nearest first, at most three.

    Capital and small letters count as equal.
    """
    folded: dict[str, str] = {}
    for one in known:
        if one != name:
            folded.setdefault(one.casefold(), one)
    return [folded[one] for one in get_close_matches(name.casefold(), folded, _MOST, _CUTOFF)]


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """Return "did you mean 'orders'?" followed by another remedy, or only that remedy if no known
    name is similar."""
    found = [quoted(one) for one in similar(name, known)]
    if not found:
        return otherwise
    *others, last = found
    question = f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
    return f"{question} Otherwise, {otherwise}" if otherwise else question
