"""`dataclass` for the package's own values: frozen for type checkers, and cheap at runtime.

For `@dataclass(frozen=True)` Python compiles six methods, which takes a millisecond for each class
at every start. Here only `__init__` is compiled; the other methods are shared functions. An
assignment to a field is an error of mypy, as always, but not an error at runtime. The modules that
define the public names, such as `zkconsumer.admin`, use Python's own decorator, which refuses the
assignment at runtime, too. docs/performance.md has the times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

Values: TypeAlias = tuple[object, ...]

if TYPE_CHECKING:
    # Type checkers see Python's own decorator, and check all that they know about it.
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exports it
else:

    def dataclass(kind: type | None = None, /, *, frozen: bool = False, **options: bool):
        """Declare a dataclass; the options are those of `dataclasses.dataclass` except `order`."""
        if kind is None:
            return lambda kind: dataclass(kind, frozen=frozen, **options)
        if not frozen:
            return dataclasses.dataclass(kind, **options)
        made = dataclasses.dataclass(kind, eq=False, repr=False, **options)
        fields = dataclasses.fields(made)
        values = _values_of([one.name for one in fields if one.compare])
        shown = [one.name for one in fields if one.repr]

        def __eq__(self: object, other: object) -> bool:
            return values(self) == values(other) if type(other) is type(self) else NotImplemented

        def __hash__(self: object) -> int:
            return hash(values(self))

        def __repr__(self: object) -> str:
            pairs = (f"{name}={getattr(self, name)!r}" for name in shown)
            return f"{type(self).__qualname__}({', '.join(pairs)})"

        for method in (__eq__, __hash__, __repr__):
            # As Python's decorator, replace no method that the class defines.
            if kind.__dict__.get(method.__name__) is None:
                setattr(made, method.__name__, method)
        return made


def _values_of(names: list[str]) -> Callable[[object], Values]:
    """Return a function that returns the values of these attributes."""
    if not names:
        return lambda one: ()
    value = attrgetter(*names)
    return value if len(names) > 1 else lambda one: (value(one),)
