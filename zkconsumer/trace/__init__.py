"""One format for what happens to a member: JSON lines, one for each transition of the machine.

The first line says how the member was set up: `{"v": 1, "settings": …}`. Every other one is
`{"v": 1, "t": seconds, "member": consumer id, "event": …, "from": phase, "to": phase, "commands":
[…], "state": digest}`. A value is `{"is": class name, field: value, …}`, a partition
"topic-number", an enum its value, a mapping a list of [key, value]. Payloads of messages never
appear.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from typing import Any

from zkconsumer.core.commands import Command
from zkconsumer.core.events import Event
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.state import Settings, State
from zkconsumer.errors import ConfigError

VERSION = 1

DIGEST_LENGTH = 16
"""Hexadecimal digits of a state's digest: enough to tell states apart, not to prove anything."""


def encode(value: Any) -> Any:
    """A value of the core as plain JSON; sets are sorted, so equal values give equal text."""
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        named = {f.name: encode(getattr(value, f.name)) for f in fields(value)}
        return {"is": type(value).__name__, **named}
    if isinstance(value, Mapping):
        return [[encode(k), encode(v)] for k, v in sorted(value.items())]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def text(value: Any) -> str:
    """Plain JSON as a line without its end."""
    return json.dumps(value, separators=(",", ":"))


class Digest:
    """One member's states in a few characters each; only fields that have changed are read anew."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, bytes]] = {}

    def of(self, state: State) -> str:
        whole = sha256()
        for one in fields(state):
            value = getattr(state, one.name)
            known = self._known.get(one.name)
            # States share what they have in common, and none of it is ever changed in place.
            if known is None or known[0] is not value:
                known = value, sha256(text(encode(value)).encode()).digest()
                self._known[one.name] = known
            whole.update(known[1])
        return whole.hexdigest()[:DIGEST_LENGTH]


def header(settings: Settings) -> dict[str, Any]:
    """What the first line of a member's trace says."""
    return {"v": VERSION, "settings": encode(settings)}


def transition(
    before: State, event: Event, after: State, commands: Iterable[Command], *, digest: str
) -> dict[str, Any]:
    """What one line of a trace says; `digest` is that of `after`."""
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


class TraceFile:
    """Appends a member's transitions to a file; each line is whole when it is written.

    Raises ConfigError when the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - see `close`
        except OSError as error:
            raise ConfigError(
                f"the trace cannot be written: {error.strerror}", where=f"trace.file={path}",
                remedy="name a file that can be made and written",
            ) from error
        self._digest: Digest | None = None

    def write(
        self, before: State, event: Event, after: State, commands: Iterable[Command]
    ) -> None:
        if self._digest is None:
            self._digest = Digest()
            self._file.write(text(header(before.settings)) + "\n")
        digest = self._digest.of(after)
        entry = transition(before, event, after, commands, digest=digest)
        self._file.write(text(entry) + "\n")

    def close(self) -> None:
        self._file.close()
