"""A vocabulary: the messages between the judge and one kind of program, as data.

The judge sends one message, and the program answers with any number of messages, the last of which
is `done`. Each message is a JSON object on one line. A vocabulary describes every message; the JSON
Schemas, the checks of a program's messages and the tables of docs/judge.md are made from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Final, TypeAlias

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Json, JsonObject

MAX_LINE_BYTES: Final = 1 << 20
"""Maximum number of bytes of a program's line; a longer line is a flood. A znode is not larger."""

MAX_ANSWERS: Final = 1000
"""Maximum number of messages in one answer; more are a flood. A member of a group with 1,000
partitions still fits."""

_SHOWN = 200
"""Number of characters of a wrong message that a verdict contains."""

# ---- the fields ----------------------------------------------------------------------------------

Schema: TypeAlias = JsonObject

TEXT: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
WHOLE: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
COUNTS: Final[Schema] = {"type": "array", "items": COUNT}


def table_of(values: Schema) -> Schema:
    """Return the schema of an object with any names, whose values have one schema."""
    return {"type": "object", "additionalProperties": values}


_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}

_MOST = 1e15
"""Upper bound of numbers, which excludes infinity."""

Accepts: TypeAlias = Callable[[Json], bool]


def _acceptor(schema: Schema) -> Accepts:
    """Return the check of a schema; only the keywords that vocabularies use are known."""
    if "enum" in schema:
        values = schema["enum"]
        return lambda value: value in values
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kinds = frozenset(kind for name in names for kind in _PYTHON[name])
    if "minimum" in schema:
        least = schema["minimum"]
        return lambda value: type(value) in kinds and least <= value <= _MOST
    inner = schema.get("items") or schema.get("additionalProperties")
    if inner is None:
        return lambda value: type(value) in kinds
    accepts = _acceptor(inner)

    def all_fit(value: Json) -> bool:
        if type(value) not in kinds:
            return False
        return all(map(accepts, value.values() if isinstance(value, dict) else value))

    return all_fit


class Sender(Enum):
    """Who sends a message."""

    JUDGE = "judge"
    PROGRAM = "program"


@dataclass(frozen=True)
class MessageField:
    """A field of a message: its JSON Schema, what it means, and whether it may be left out."""

    schema: Schema
    means: str
    optional: bool = False

    @cached_property
    def accepts(self) -> Accepts:
        """The function that returns whether a value fits the schema."""
        return _acceptor(self.schema)


Fields: TypeAlias = Mapping[str, MessageField]


@dataclass(frozen=True)
class Message:
    """A type of message: its sender, what it means, and its fields besides `type`."""

    sender: Sender
    means: str
    fields: Fields

    @cached_property
    def all_fields(self) -> Fields:
        """The fields with `type`."""
        return {"type": MessageField(TEXT, "the type of the message"), **self.fields}


NOW: Final = MessageField(SECONDS, "virtual seconds since the beginning of the schedule")

PHASE: Final = Message(
    Sender.PROGRAM,
    "A word for the story: what the member does now. It has no effect.",
    {
        "phase": MessageField(TEXT, "one word; the story shows its first 12 characters"),
        "text": MessageField(TEXT, "a sentence", optional=True),
    },
)

TICK: Final = Message(
    Sender.JUDGE, "The time that the program has asked for has come.", {"now": NOW}
)


DONE: Final = Message(
    Sender.PROGRAM,
    "The end of the answer to one message of the judge.",
    {
        "tick_s": MessageField(
            SECONDS, "seconds until the next `tick`; it replaces an earlier time", optional=True
        ),
        "closed": MessageField(FLAG, "true: the member has left, and ends", optional=True),
    },
)


def reset(fields: Fields) -> Message:
    """Return the message that begins a schedule of a member, with these fields."""
    means = "A new schedule begins: the program forgets everything, as if it had just started."
    return Message(Sender.JUDGE, means, fields)


class WrongMessageError(ValueError):
    """A line is not a message of a program; the text says why."""


def _accepts(message: JsonObject, line: bytes) -> None:
    """Accept every message whose fields are right."""


@dataclass(frozen=True)
class Vocabulary:
    """The messages of one kind of program.

    Attributes:
        types: what each message means, by its type.
        check: checks more of a program's message than its fields. Raises WrongMessageError.
    """

    types: Mapping[str, Message]
    check: Callable[[JsonObject, bytes], None] = _accepts

    def of(self, sender: Sender) -> dict[str, Message]:
        """Return the messages that one side sends, by their type."""
        return {name: one for name, one in self.types.items() if one.sender is sender}

    @cached_property
    def _answers(self) -> dict[str, Message]:
        return self.of(Sender.PROGRAM)

    def schemas(self) -> JsonObject:
        """Return one JSON Schema for each sender's messages."""
        return {sender.value: self._schema(sender) for sender in Sender}

    def _schema(self, sender: Sender) -> JsonObject:
        several = []
        for name, one in self.of(sender).items():
            fields = {
                key: {**field.schema, "description": field.means}
                for key, field in one.fields.items()
            }
            required = [key for key, field in one.fields.items() if not field.optional]
            several.append(
                {
                    "description": one.means,
                    "type": "object",
                    "properties": {"type": {"const": name}, **fields},
                    "required": ["type", *required],
                    "additionalProperties": False,
                }
            )
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "oneOf": several}

    def parse_answer(self, line: bytes) -> JsonObject:
        """Return a program's message. Raises WrongMessageError."""
        try:
            message = json.loads(line.decode())
        except (ValueError, RecursionError):
            raise wrong(line, "is not JSON") from None
        if not isinstance(message, dict):
            raise wrong(line, "is not a JSON object")
        found = self._answers.get(str(message.get("type")))
        if found is None:
            raise wrong(line, f"has no type of a program ({', '.join(self._answers)})")
        check_fields(line, message, found.all_fields)
        self.check(message, line)
        return message


def check_fields(line: bytes, message: JsonObject, fields: Fields) -> None:
    """Check the names and values of a message's fields. Raises WrongMessageError."""
    for name in message:
        if name not in fields:
            raise wrong(line, f"has an unknown field {name!r}")
    for name, one in fields.items():
        if name not in message:
            if not one.optional:
                raise wrong(line, f"has no field {name!r}")
        elif not one.accepts(message[name]):
            raise wrong(line, f"has a wrong value in {name!r}")


def wrong(line: bytes, why: str) -> WrongMessageError:
    """Return the error for a line; `why` continues the sentence "the line"."""
    text = line.decode(errors="replace").strip()
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return WrongMessageError(f"the line {why}: {shown}")
