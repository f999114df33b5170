"""The class of the classes of rows.

A row class is declared like a dataclass with slots and keyword-only arguments. `dataclass` compiles
the methods of a class when the class is created, about half a millisecond each time. Every command
that reads a history creates all row classes, so here a constructor is compiled when the first row
is created, and the other methods are common to all classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field
from typing import Any, TypeAlias, dataclass_transform

Values: TypeAlias = dict[str, Any]
"""Name -> what the body of a class assigns to it, such as the default value of a field."""


def _first_row(self: Row, **values: Any) -> None:  # Any: the values of the fields
    """Be the constructor of a class until its first row is created."""
    table = type(self)
    # Only the class gets its constructor: a subclass has a first row of its own.
    table.__init__ = _constructor(table)  # type: ignore[method-assign]
    table.__init__(self, **values)


def _constructor(table: RowClass) -> Callable[..., None]:
    """Return the `__init__` of a row class."""
    scope = dict(table.defaults)
    parameters, lines = [], []
    for name in table.names:
        parameters.append(f"{name}={name}" if name in scope else name)
        if isinstance(scope.get(name), Field):
            scope[f"new_{name}"], scope[name] = scope[name].default_factory, None
            lines.append(f" self.{name} = new_{name}() if {name} is None else {name}")
        else:
            lines.append(f" self.{name} = {name}")
    exec("\n".join([f"def __init__(self, *, {', '.join(parameters)}):", *lines]), scope)
    made: Callable[..., None] = scope["__init__"]
    return made


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class RowClass(type):
    """The class of `Row` and of its subclasses.

    Attributes:
        names: the fields, in the order of their declaration.
        defaults: field -> its default value, or the `field` with its `default_factory`.
    """

    names: tuple[str, ...]
    defaults: Values

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: Values) -> RowClass:
        own = tuple(namespace.get("__annotations__", ()))
        defaults = {one: namespace.pop(one) for one in own if one in namespace}
        methods = {"__init__": _first_row, **namespace}
        made = super().__new__(cls, name, bases, {**methods, "__slots__": own})
        for base in bases:
            if isinstance(base, RowClass):
                own, defaults = (*base.names, *own), {**base.defaults, **defaults}
        made.names, made.defaults = own, defaults
        return made


class Row(metaclass=RowClass):
    """A row: two rows are equal if they have the same class and the same values."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and as_values(self) == as_values(other)

    __hash__ = None  # type: ignore[assignment]  # a row changes

    def __repr__(self) -> str:
        values = zip(type(self).names, as_values(self), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={one!r}' for name, one in values)})"


def as_values(row: Row) -> list[object]:
    """Return the values of a row, in the order of its columns."""
    return [getattr(row, name) for name in type(row).names]
