"""One format for what happens to a member: JSON lines, one for each transition of the machine.

`{"v": 1, "t": seconds, "member": consumer id, "event": …, "from": phase, "to": phase,
"commands": […]}`. A value is `{"is": class name, field: value, …}`, a partition "topic-number", an
enum its value, a mapping a list of [key, value]. Payloads of messages never appear.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from zkconsumer.core.commands import Command
from zkconsumer.core.events import Event
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.state import State
from zkconsumer.errors import ConfigError

VERSION = 1


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


def transition(before: State, event: Event, after: State, commands: Iterable[Command]) -> str:
    """One line of a trace, without its end."""
    return json.dumps(
        {
            "v": VERSION,
            "t": round(event.now, 6),
            "member": before.settings.consumer,
            "event": encode(event),
            "from": before.phase.value,
            "to": after.phase.value,
            "commands": [encode(command) for command in commands],
        },
        separators=(",", ":"),
    )


class TraceFile:
    """Appends transitions to a file; each line is whole when it is written.

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

    def write(
        self, before: State, event: Event, after: State, commands: Iterable[Command]
    ) -> None:
        self._file.write(transition(before, event, after, commands) + "\n")

    def close(self) -> None:
        self._file.close()
