"""Keys of worlds: two worlds that will behave in the same way have the same key.

`KeyPart` gives a value the form that its world's key contains. The form leaves out the numbers that
only have to differ or to be ordered, and the times; the key contains their ranks, or their distance
from the present time, instead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from zkconsumer.frozen import dataclass

Value: TypeAlias = Any  # Any: a value in the state of a world

LATEST_S, EARLIEST_S = 100.0, -10.0
"""Distance from the present time, in seconds, beyond which all times count as equal: a distant
automatic commit, or a lease that ended long ago. No rule of the worlds looks further ahead, or
further back: ZooKeeper's members report a blocked partition after 8 s."""


def distance(seconds: float) -> float:
    """Return a distance from the present time as a key contains it."""
    return round(min(max(seconds, EARLIEST_S), LATEST_S), 3)


Convert = Callable[[Value], Value]
"""Returns what a key contains instead of a value."""


@dataclass(frozen=True)
class KeyRules:
    """Which numbers of values a key replaces.

    Attributes:
        kinds: for each kind of numbers, the names of the fields that contain such numbers.
        left_out: fields that are equal in all states, that are never read, or that only number
            what comes next.
        of_class, of_field: what a key contains instead of an object of a class, and instead of the
            value of a field.
    """

    kinds: tuple[frozenset[str], ...]
    left_out: frozenset[str]
    of_class: Mapping[type[Value], Convert] = field(default_factory=dict)
    of_field: Mapping[str, Convert] = field(default_factory=dict)

    @cached_property
    def _special(self) -> dict[str, int | Convert]:
        """For each field that is not taken as it is: the place in `kinds`, or the conversion."""
        kinds = {name: place for place, names in enumerate(self.kinds) for name in names}
        return {**kinds, **self.of_field}

    @cached_property
    def _fields(self) -> dict[type[Value], tuple[tuple[str, int | Convert | None], ...]]:
        """The fields of each class that has been looked up."""
        return {}

    def fields_of(self, kind: type[Value]) -> tuple[tuple[str, int | Convert | None], ...]:
        """Return the fields of a class that belong to the key.

        Each field comes with the place in `kinds`, the conversion, or None if it is taken as it is.
        """
        found = self._fields.get(kind)
        if found is None:
            names = kind._fields if hasattr(kind, "_fields") else [it.name for it in fields(kind)]
            kept = [name for name in names if name not in self.left_out]
            found = tuple((name, self._special.get(name)) for name in kept)
            self._fields[kind] = found
        return found


Numbers = tuple[tuple[Value, ...], ...]
"""The numbers that a form leaves out, by their kinds, in the order of the form."""


class KeyPart:
    """One part of a world in the form that its key contains, and the numbers that the form leaves
    out.

    Attributes:
        numbers: the numbers, by their kinds (`KeyRules.kinds`).
    """

    def __init__(self, rules: KeyRules) -> None:
        self._rules = rules
        self.numbers: tuple[list[Value], ...] = tuple([] for _ in rules.kinds)

    def of(self, value: Value) -> Hashable:
        """Return the form of a value; numbers that the key replaces are collected separately."""
        kind = type(value)
        if value is None or kind in (int, str, bytes, bool, float) or isinstance(value, Enum):
            found: Hashable = value
            return found
        if kind in self._rules.of_class:
            return kind.__name__, self.of(self._rules.of_class[kind](value))
        if isinstance(value, Mapping):
            return tuple((key, self.of(value[key])) for key in sorted(value))
        if isinstance(value, frozenset | set):
            return tuple(sorted(value))
        if hasattr(kind, "_fields") or is_dataclass(value):
            return kind.__name__, *[
                self.of(getattr(value, name))
                if special is None
                else self._replaced(name, special, getattr(value, name))
                for name, special in self._rules.fields_of(kind)
            ]
        return tuple([self.of(one) for one in value])

    def _replaced(self, name: str, special: int | Convert, value: Value) -> Hashable:
        """Return what the form contains instead of the value of a field."""
        if value is None:
            return None
        if callable(special):
            return self.of(special(value))
        self.numbers[special].append(value)
        return name

    def taken(self) -> Numbers:
        """Return the numbers that the form leaves out."""
        return tuple(map(tuple, self.numbers))


def together(*several: Numbers) -> Numbers:
    """Return the numbers of several parts of one form."""
    return tuple(sum(of_kind, ()) for of_kind in zip(*several, strict=True))
