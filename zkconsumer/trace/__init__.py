"""The trace format: JSON lines, one for each step of a member's state machine.

The first line holds the member's settings: `{"v": 3, "settings": …}`. Every other line is `{"v": 3,
"t": seconds, "member": consumer id, "event": …, "from": phase, "to": phase, "commands": […],
"state": digest}`. A dataclass is written as `{"is": class name, field: value, …}`, a partition as
"topic-number", an enum as its value, and a mapping as a list of [key, value]. A trace never
contains payloads of messages.

`encode` and `TraceFile` write a trace. `decode` reads values back, guided by the types of the
classes' fields. A trace is untrusted input: `decode` rejects a value that does not fit its type,
and creates only the dataclasses listed in `_CLASSES`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from zkconsumer.errors import ConfigError
from zkconsumer.member import events, offset_ledger, state
from zkconsumer.member.commands import Command
from zkconsumer.member.events import Event
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import group_snapshot, model, payloads, releases
from zkconsumer.protocol.arguments import shown
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition

Wanted: TypeAlias = Any  # Any: a class, a generic alias or a union

VERSION = 3

DIGEST_LENGTH = 16
"""Number of hexadecimal digits of a state's digest.

This length is enough to distinguish states, but does not protect against forgery.
"""


def encode(value: Json) -> Json:
    """Return a value as plain JSON; sets are sorted, so that equal values give equal text."""
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        # A trace omits the values that a command repeats from the state.
        named = {f.name: encode(getattr(value, f.name)) for f in fields(value) if f.repr}
        return {"is": type(value).__name__, **named}
    if isinstance(value, Mapping):
        return [[encode(k), encode(v)] for k, v in sorted(value.items())]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def text(value: Json) -> str:
    """Return plain JSON as one line, without a line end."""
    return json.dumps(value, separators=(",", ":"))


class Digest:
    """Computes short digests of one member's states. It encodes a field again only if the field has
    changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Json, bytes]] = {}

    def of(self, state: State) -> str:
        whole = sha256()
        for one in fields(state):
            value = getattr(state, one.name)
            known = self._known.get(one.name)
            # Successive states share unchanged values, and no value is ever changed in place.
            if known is None or known[0] is not value:
                known = value, sha256(text(encode(value)).encode()).digest()
                self._known[one.name] = known
            whole.update(known[1])
        return whole.hexdigest()[:DIGEST_LENGTH]


def header(settings: Settings) -> JsonObject:
    """Return the first line of a member's trace."""
    return {"v": VERSION, "settings": encode(settings)}


def transition(
    before: State, event: Event, after: State, commands: Iterable[Command], *, digest: str
) -> JsonObject:
    """Return one line of a trace; `digest` is the digest of `after`."""
    return {
        "v": VERSION,
        "t": round(event.now, 6),
        "member": before.settings.consumer,
        "event": encode(event),
        "from": before.phase.value,
        "to": after.phase.value,
        "commands": [encode(command) for command in commands],
        "state": digest,
    }


_BLOCK_BYTES = 1 << 16  # a line of a large group has hundreds of kilobytes


def _drop_incomplete_line(path: str | os.PathLike[str]) -> None:
    """Cut a file after its last complete line: the process before this one may have died while it
    wrote the rest. Raises OSError."""
    if not os.path.isfile(path):  # a pipe, or a file that does not exist yet
        return
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            if (at := file.read(end - begin).rfind(b"\n")) >= 0:
                end = begin + at + 1
                break
            end = begin
        file.truncate(end)


class TraceFile:
    """Appends a member's steps to a file, one complete line per step.

    Raises ConfigError if the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            _drop_incomplete_line(path)
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - see `close`
        except OSError as error:
            raise ConfigError(
                f"the trace cannot be written: {error.strerror}",
                where=f"trace.file={path}",
                remedy="name a file that this process can create and write",
            ) from error
        self._digest: Digest | None = None

    def write(self, before: State, event: Event, after: State, commands: Iterable[Command]) -> None:
        if self._digest is None:
            self._digest = Digest()
            self._file.write(text(header(before.settings)) + "\n")
        digest = self._digest.of(after)
        entry = transition(before, event, after, commands, digest=digest)
        self._file.write(text(entry) + "\n")

    def close(self) -> None:
        self._file.close()


# ---- decoding ------------------------------------------------------------------------------------


T = TypeVar("T")

_CLASSES: Mapping[str, type] = {
    name: one
    for module in (events, model, offset_ledger, payloads, releases, state, group_snapshot)
    for name, one in vars(module).items()
    if isinstance(one, type) and is_dataclass(one)
}


class Undecodable(ValueError):
    """The JSON is not a value of the requested type."""


def decode(wanted: type[T], value: Json) -> T:
    """Return a value of type `wanted`, or of a subclass, from its JSON.

    Raises:
        Undecodable: the JSON is not such a value.
    """
    result: T = _decode(wanted, value)
    return result


@cache
def _hints(cls: type) -> dict[str, Wanted]:
    return get_type_hints(cls)


def _decode(wanted: Any, value: Json) -> Json:  # Any: for Wanted, which mypy narrows wrongly
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
    if issubclass(wanted, tuple):  # a named tuple other than TopicPartition
        hints = _hints(wanted)
        return wanted(*_tuple(tuple(hints.values()), value))
    return _plain(wanted, value)


def _one_of(kinds: tuple[Wanted, ...], value: Json) -> Json:
    if value is None and NoneType in kinds:
        return None
    (kind,) = [one for one in kinds if one is not NoneType]
    return _decode(kind, value)


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise Undecodable(f"a list was expected: {shown(value)}")
    return value


def _pair(value: Json) -> list[Json]:
    if len(_list(value)) != 2:
        raise Undecodable(f"[key, value] was expected: {shown(value)}")
    return _list(value)


def _tuple(kinds: tuple[Wanted, ...], value: Json) -> tuple[Json, ...]:
    items = _list(value)
    if kinds[1:] == (...,):
        return tuple(_decode(kinds[0], item) for item in items)
    if len(items) != len(kinds):
        raise Undecodable(f"{len(kinds)} items were expected: {shown(value)}")
    return tuple(_decode(kind, item) for kind, item in zip(kinds, items, strict=True))


def _partition(value: Json) -> TopicPartition:
    topic, dash, number = _plain(str, value).rpartition("-")
    if not dash or not number.isascii() or not number.isdigit() or len(number) > 10:
        raise Undecodable(f"no partition: {shown(value)}")
    return TopicPartition(topic, int(number))


def _instance(wanted: Wanted, value: Json) -> Json:
    if not isinstance(value, dict):
        raise Undecodable(f"a {wanted.__name__} was expected: {shown(value)}")
    named = value.get("is")
    cls: Json = _CLASSES.get(named) if isinstance(named, str) else None
    if cls is None or not issubclass(cls, wanted):
        raise Undecodable(f"a {wanted.__name__} was expected: {shown(named)}")
    given = set(value) - {"is"}
    known = {one.name for one in fields(cls)}
    if given != known:
        raise Undecodable(f"{named} has the fields {sorted(known)}, not {sorted(given)}")
    hints = _hints(cls)
    return cls(**{name: _decode(hints[name], value[name]) for name in known})


def _member(wanted: type[Enum], value: Json) -> Enum:
    try:
        return wanted(value)
    except ValueError as error:
        raise Undecodable(str(error)) from error


def _plain(wanted: type, value: Json) -> Json:
    is_bool = isinstance(value, bool)
    if wanted is float and isinstance(value, int) and not is_bool:
        return value  # keep the int, which is equal to the float and is encoded as before
    if not isinstance(value, wanted) or (is_bool and wanted is not bool):
        raise Undecodable(f"{wanted.__name__} was expected: {shown(value)}")
    return value
