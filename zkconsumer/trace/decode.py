"""The values of a trace from their JSON: the inverse of `encode`, led by the classes' own types.

A trace is input like any other: what does not fit the types is refused, and no more is made of a
line than the classes of the core that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from zkconsumer.core import events, model, offsets, records, releases, state, view
from zkconsumer.core.model import TopicPartition

T = TypeVar("T")

_CLASSES: Mapping[str, type] = {
    name: one
    for module in (events, model, offsets, records, releases, state, view)
    for name, one in vars(module).items()
    if isinstance(one, type) and is_dataclass(one)
}


class Undecodable(ValueError):
    """JSON that is not a value of the type asked for."""


def decode(wanted: type[T], value: Any) -> T:
    """A value of type `wanted`, or of a class derived from it, from its JSON.

    Raises:
        Undecodable: it is none.
    """
    result: T = _decode(wanted, value)
    return result


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode(wanted: Any, value: Any) -> Any:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return _one_of(arguments, value)
    if origin is tuple:
        return _tuple(arguments, value)
    if origin is frozenset:
        return frozenset(_decode(arguments[0], item) for item in _list(value))
    if origin is not None and issubclass(origin, Mapping):
        pairs = [_pair(item) for item in _list(value)]
        return {_decode(arguments[0], k): _decode(arguments[1], v) for k, v in pairs}
    if wanted is TopicPartition:
        return _partition(value)
    if is_dataclass(wanted):
        return _instance(wanted, value)
    if issubclass(wanted, Enum):
        return _member(wanted, value)
    if issubclass(wanted, tuple):  # another named tuple
        hints = _hints(wanted)
        return wanted(*_tuple(tuple(hints.values()), value))
    return _plain(wanted, value)


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and NoneType in kinds:
        return None
    (kind,) = [one for one in kinds if one is not NoneType]
    return _decode(kind, value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Undecodable(f"a list was expected: {_shown(value)}")
    return value


def _pair(value: Any) -> list[Any]:
    if len(_list(value)) != 2:
        raise Undecodable(f"[key, value] was expected: {_shown(value)}")
    return _list(value)


def _tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    items = _list(value)
    if kinds[1:] == (...,):
        return tuple(_decode(kinds[0], item) for item in items)
    if len(items) != len(kinds):
        raise Undecodable(f"{len(kinds)} items were expected: {_shown(value)}")
    return tuple(_decode(kind, item) for kind, item in zip(kinds, items, strict=True))


def _partition(value: Any) -> TopicPartition:
    topic, dash, number = _plain(str, value).rpartition("-")
    if not dash or not number.isascii() or not number.isdigit() or len(number) > 10:
        raise Undecodable(f"no partition: {_shown(value)}")
    return TopicPartition(topic, int(number))


def _instance(wanted: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise Undecodable(f"a {wanted.__name__} was expected: {_shown(value)}")
    named = value.get("is")
    cls: Any = _CLASSES.get(named) if isinstance(named, str) else None
    if cls is None or not issubclass(cls, wanted):
        raise Undecodable(f"a {wanted.__name__} was expected: {_shown(named)}")
    given = set(value) - {"is"}
    known = {one.name for one in fields(cls)}
    if given != known:
        raise Undecodable(f"{named} has the fields {sorted(known)}, not {sorted(given)}")
    hints = _hints(cls)
    return cls(**{name: _decode(hints[name], value[name]) for name in known})


def _member(wanted: type[Enum], value: Any) -> Enum:
    try:
        return wanted(value)
    except ValueError as error:
        raise Undecodable(str(error)) from error


def _plain(wanted: type, value: Any) -> Any:
    is_bool = isinstance(value, bool)
    if wanted is float and isinstance(value, int) and not is_bool:
        return value  # equal, and written as it was
    if not isinstance(value, wanted) or (is_bool and wanted is not bool):
        raise Undecodable(f"{wanted.__name__} was expected: {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
