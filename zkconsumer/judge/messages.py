"""The messages between the judge and a program, as data: docs/judge.md explains them.

The judge sends one message, and the program answers with any number of messages, the last of which
is `done`. Each message is a JSON object on one line. `TYPES` describes every message; the JSON
Schemas (`schemas`), the checks (`parse_answer`) and the tables of the page are made from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.protocol.requests import Code, Node, Reply, Stat

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

_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


LOST: Final = "connection_loss"
"""The code of the reply to a request whose connection broke first."""


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


@dataclass(frozen=True)
class Message:
    """A type of message: its sender, what it means, and its fields besides `type`."""

    sender: Sender
    means: str
    fields: Mapping[str, MessageField]


_NOW = MessageField(SECONDS, "virtual seconds since the beginning of the schedule")
_ID = MessageField(WHOLE, "the number that the program has given to the request")

OPS: Final = ("create", "set", "delete", "check", "get", "exists", "children", "multi", "sync")
_WRITES: Final = OPS[:4]
_READS: Final = ("get", "exists", "children")

_OF_A_REQUEST: Final[Mapping[str, MessageField]] = {
    "op": MessageField({"enum": list(OPS)}, "what ZooKeeper shall do"),
    "path": MessageField(TEXT, "the znode; not for `multi`", optional=True),
    "data": MessageField(
        TEXT_OR_NULL, "the payload of `create` and `set`; default: empty", optional=True
    ),
    "ephemeral": MessageField(FLAG, "whether the new znode ends with the session", optional=True),
    "version": MessageField(WHOLE, "for `set`, `delete`, `check`; default -1: any", optional=True),
    "watch": MessageField(
        FLAG, "for `get`, `exists`, `children`: watch the znode once", optional=True
    ),
}

TYPES: Final[Mapping[str, Message]] = {
    "reset": Message(
        Sender.JUDGE,
        "A new schedule begins: the program forgets everything, as if it had just started.",
        {
            "member": MessageField(TEXT, "the consumer id, for instance `g_0`"),
            "group": MessageField(TEXT, "the group"),
            "topic": MessageField(TEXT, "the topic to which the member subscribes"),
            "streams": MessageField(COUNT, "the number of the member's threads"),
            "session_s": MessageField(SECONDS, "the session timeout in seconds"),
            "wall_ms": MessageField(COUNT, "the time for the registration, in milliseconds"),
        },
    ),
    "connected": Message(
        Sender.JUDGE,
        "The client is connected. Another session than before means that the old one has ended.",
        {"now": _NOW, "session": MessageField(COUNT, "the id of the session")},
    ),
    "disconnected": Message(
        Sender.JUDGE,
        "The connection is broken, and its watches with it. The session may live on. Each request "
        "without a reply gets the reply `connection_loss`: ZooKeeper may have executed it.",
        {"now": _NOW},
    ),
    "reply": Message(
        Sender.JUDGE,
        "ZooKeeper's reply to one request.",
        {
            "now": _NOW,
            "id": _ID,
            "code": MessageField(
                {"enum": [*(it.name.lower() for it in Code if it is not Code.BROKEN), LOST]},
                "`ok`, or why the request has failed",
            ),
            "data": MessageField(TEXT_OR_NULL, "of `get`: the payload", optional=True),
            "version": MessageField(WHOLE, "of `get`, `exists`, `set`: the version", optional=True),
            "owner": MessageField(
                WHOLE,
                "of `get`, `exists`: the session of an ephemeral znode, else 0",
                optional=True,
            ),
            "czxid": MessageField(
                WHOLE, "of `get`, `exists`: the transaction that made the znode", optional=True
            ),
            "children": MessageField(
                {"type": "array", "items": TEXT}, "of `children`: the names", optional=True
            ),
            "failed": MessageField(
                WHOLE, "of a refused `multi`: the index of the write", optional=True
            ),
        },
    ),
    "watch": Message(
        Sender.JUDGE,
        "A watch has fired. It fires once; the program sets it again with its next read.",
        {
            "now": _NOW,
            "kind": MessageField(
                {"enum": ["created", "deleted", "changed", "child"]}, "what has happened"
            ),
            "path": MessageField(TEXT, "the watched znode"),
        },
    ),
    "tick": Message(
        Sender.JUDGE, "The time that the program has asked for has come.", {"now": _NOW}
    ),
    "poll": Message(
        Sender.JUDGE,
        "The user has finished the last message, and asks for the next one. The program answers "
        "with one `deliver`, or with none if it may not deliver anything.",
        {
            "now": _NOW,
            "ends": MessageField(
                {"type": "array", "items": COUNT},
                "for each partition of the topic, the offset of the next message to be written",
            ),
        },
    ),
    "close": Message(
        Sender.JUDGE,
        "The user closes the member. It commits, releases, and answers `done` with `closed`.",
        {"now": _NOW},
    ),
    "request": Message(
        Sender.PROGRAM,
        "A request to ZooKeeper. Requests are executed in their order.",
        {
            "id": MessageField(WHOLE, "any number; the reply has the same"),
            **_OF_A_REQUEST,
            "ops": MessageField(
                {"type": "array", "items": {"type": "object"}},
                "of `multi`: the writes (`create`, `set`, `delete`, `check`), all or none",
                optional=True,
            ),
        },
    ),
    "deliver": Message(
        Sender.PROGRAM,
        "The user gets a message. Only in the answer to `poll`, and at most once.",
        {
            "partition": MessageField(COUNT, "the partition of the topic"),
            "offset": MessageField(COUNT, "the message's offset"),
        },
    ),
    "phase": Message(
        Sender.PROGRAM,
        "A word for the story: what the member does now. It has no effect.",
        {
            "phase": MessageField(TEXT, "one word; the story shows its first 12 characters"),
            "text": MessageField(TEXT, "a sentence", optional=True),
        },
    ),
    "done": Message(
        Sender.PROGRAM,
        "The end of the answer to one message of the judge.",
        {
            "tick_s": MessageField(
                SECONDS, "seconds until the next `tick`; it replaces an earlier time", optional=True
            ),
            "closed": MessageField(
                FLAG, "true: the member has left, and its session ends", optional=True
            ),
        },
    ),
}


def schemas() -> JsonObject:
    """Return one JSON Schema for each sender's messages."""
    return {sender.value: _schema(sender) for sender in Sender}


def _schema(sender: Sender) -> JsonObject:
    several = []
    for name, one in TYPES.items():
        if one.sender is sender:
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


# ---- a program's answer --------------------------------------------------------------------------


class WrongMessageError(ValueError):
    """A line is not a message of a program; the text says why."""


def parse_answer(line: bytes) -> JsonObject:
    """Return a program's message. Raises WrongMessageError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise _wrong(line, "is not JSON") from None
    if not isinstance(message, dict):
        raise _wrong(line, "is not a JSON object")
    known = TYPES.get(str(message.get("type")))
    if known is None or known.sender is not Sender.PROGRAM:
        names = ", ".join(name for name, one in TYPES.items() if one.sender is Sender.PROGRAM)
        raise _wrong(line, f"has no type of a program ({names})")
    _check(line, message, {"type": MessageField(TEXT, ""), **known.fields})
    if message["type"] == "request":
        request_of(message, line)
    return message


def _check(line: bytes, message: JsonObject, fields: Mapping[str, MessageField]) -> None:
    for name in message:
        if name not in fields:
            raise _wrong(line, f"has an unknown field {name!r}")
    for name, one in fields.items():
        if name not in message:
            if not one.optional:
                raise _wrong(line, f"has no field {name!r}")
        elif not _fits(message[name], one.schema):
            raise _wrong(line, f"has a wrong value in {name!r}")


def _fits(value: Json, schema: Schema) -> bool:
    """Return whether a value is valid; only the keywords that `TYPES` uses are known."""
    if "enum" in schema:
        return value in schema["enum"]
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kinds = tuple(kind for name in names for kind in _PYTHON[name])
    if type(value) not in kinds:
        return False
    if "minimum" in schema:
        return bool(schema["minimum"] <= value <= _MOST)
    items = schema.get("items")
    return items is None or all(_fits(one, items) for one in value)


_MOST = 1e15
"""Upper bound of numbers, which excludes infinity."""


def _wrong(line: bytes, why: str) -> WrongMessageError:
    text = line.decode(errors="replace").strip()
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return WrongMessageError(f"the line {why}: {shown}")


Request = rq.Request | rq.Write


def request_of(message: Mapping[str, Json], line: bytes = b"") -> Request:
    """Return the request that a `request` message stands for. Raises WrongMessageError."""
    if message["op"] == "multi":
        ops = message.get("ops") or []
        if not ops:
            raise _wrong(line, "is a multi without writes")
        for one in ops:
            _check(line, one, _OF_A_REQUEST)
            if one["op"] not in _WRITES:
                raise _wrong(line, f"is a multi with {one['op']!r}, which is not a write")
        return rq.Multi(tuple(_single(one, line) for one in ops))
    found: Request = _single(message, line)
    return found


def _single(message: Mapping[str, Json], line: bytes) -> Any:  # Any: the op has its class
    path = message.get("path")
    if not isinstance(path, str) or not path.startswith("/"):
        raise _wrong(line, "has no path that starts with a slash")
    return _MAKE[message["op"]](path, message)


def _payload(message: Mapping[str, Json]) -> bytes | None:
    data = message.get("data", "")
    return None if data is None else str(data).encode(errors="replace")


_MAKE: Final[Mapping[str, Callable[[str, Mapping[str, Json]], Any]]] = {  # Any: as above
    "create": lambda path, it: rq.Create(path, _payload(it), it.get("ephemeral", False)),
    "set": lambda path, it: rq.SetData(path, _payload(it), it.get("version", -1)),
    "delete": lambda path, it: rq.Delete(path, it.get("version", -1)),
    "check": lambda path, it: rq.Check(path, it.get("version", -1)),
    "get": lambda path, it: rq.Get(path, it.get("watch", False)),
    "exists": lambda path, it: rq.Exists(path, it.get("watch", False)),
    "children": lambda path, it: rq.Children(path, it.get("watch", False)),
    "sync": lambda path, _: rq.SyncLeader(path),
}


# ---- ZooKeeper's reply ---------------------------------------------------------------------------


def reply_of(reply: Reply) -> JsonObject:
    """Return the fields of a `reply` message besides `now` and `id`."""
    if reply.code is Code.BROKEN:
        return {"code": LOST}
    if reply.code is Code.OK and reply.value is None:  # the answer to `exists`
        return {"code": Code.NO_NODE.name.lower()}
    found: JsonObject = {"code": reply.code.name.lower()}
    value = reply.value
    if reply.code is not Code.OK:
        return found | ({"failed": value} if isinstance(value, int) else {})
    if isinstance(value, Node):
        data = None if value.data is None else value.data.decode(errors="replace")
        return found | {"data": data, **_stat(value.stat)}
    if isinstance(value, Stat):
        return found | _stat(value)
    if isinstance(value, tuple):
        return found | {"children": list(value)}
    return found


def _stat(stat: Stat) -> JsonObject:
    return {"version": stat.version, "owner": stat.owner, "czxid": stat.czxid}
