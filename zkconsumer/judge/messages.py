"""The messages between the judge and a member of a group in ZooKeeper; see docs/judge.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from zkconsumer.judge.vocabulary import (
    COUNT,
    COUNTS,
    DONE,
    FLAG,
    NOW,
    PHASE,
    SECONDS,
    TEXT,
    TEXT_OR_NULL,
    TEXTS,
    TICK,
    WHOLE,
    Message,
    MessageField,
    Sender,
    Vocabulary,
    check_fields,
    reset,
    wrong,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.protocol.requests import Code, Node, Reply, Stat

LOST: Final = "connection_loss"
"""The code of the reply to a request whose connection broke first."""

_ID = MessageField(WHOLE, "the number that the program has given to the request")

OPS: Final = ("create", "set", "delete", "check", "get", "exists", "children", "multi", "sync")
_WRITES: Final = OPS[:4]

_OF_A_REQUEST: Final[Mapping[str, MessageField]] = {
    "op": MessageField({"enum": list(OPS)}, "the operation"),
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

_TYPES: Final[Mapping[str, Message]] = {
    "reset": reset(
        {
            "member": MessageField(TEXT, "the consumer id, for instance `g_0`"),
            "group": MessageField(TEXT, "the group"),
            "topic": MessageField(TEXT, "the topic to which the member subscribes"),
            "streams": MessageField(COUNT, "the number of the member's threads"),
            "session_s": MessageField(SECONDS, "the session timeout in seconds"),
            "wall_ms": MessageField(COUNT, "the time for the registration, in milliseconds"),
        }
    ),
    "connected": Message(
        Sender.JUDGE,
        "The client is connected. Another session than before means that the old one has ended.",
        {"now": NOW, "session": MessageField(COUNT, "the id of the session")},
    ),
    "disconnected": Message(
        Sender.JUDGE,
        "The connection is broken, and its watches with it. The session may live on. Each request "
        "without a reply gets the reply `connection_loss`: ZooKeeper may have executed it.",
        {"now": NOW},
    ),
    "reply": Message(
        Sender.JUDGE,
        "ZooKeeper's reply to one request.",
        {
            "now": NOW,
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
            "children": MessageField(TEXTS, "of `children`: the names", optional=True),
            "failed": MessageField(
                WHOLE, "of a refused `multi`: the index of the write", optional=True
            ),
        },
    ),
    "watch": Message(
        Sender.JUDGE,
        "A watch has fired. It fires once; the program sets it again with its next read.",
        {
            "now": NOW,
            "kind": MessageField(
                {"enum": ["created", "deleted", "changed", "child"]}, "what has happened"
            ),
            "path": MessageField(TEXT, "the watched znode"),
        },
    ),
    "tick": TICK,
    "poll": Message(
        Sender.JUDGE,
        "The user has finished the last message, and asks for the next one. The program answers "
        "with one `deliver`, or with none if it may not deliver anything.",
        {
            "now": NOW,
            "ends": MessageField(
                COUNTS,
                "for each partition of the topic, the offset of the next message to be written",
            ),
        },
    ),
    "close": Message(
        Sender.JUDGE,
        "The user closes the member. It commits, releases, and answers `done` with `closed`.",
        {"now": NOW},
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
    "phase": PHASE,
    "done": DONE,
}


# ---- requests ------------------------------------------------------------------------------------

Request = rq.Request | rq.Write


def request_of(message: Mapping[str, Json], line: bytes = b"") -> Request:
    """Return the request that a `request` message stands for. Raises WrongMessageError."""
    if message["op"] == "multi":
        ops = message.get("ops") or []
        if not ops:
            raise wrong(line, "is a multi without writes")
        for one in ops:
            check_fields(line, one, _OF_A_REQUEST)
            if one["op"] not in _WRITES:
                raise wrong(line, f"is a multi with {one['op']!r}, which is not a write")
        return rq.Multi(tuple(_single(one, line) for one in ops))
    found: Request = _single(message, line)
    return found


def _single(message: Mapping[str, Json], line: bytes) -> Any:  # Any: the op has its class
    path = message.get("path")
    if not isinstance(path, str) or not path.startswith("/"):
        raise wrong(line, "has no path that starts with a slash")
    if path != "/" and (fault := paths.znode_fault(path[1:])):
        raise wrong(line, f"has a path that no znode can have ({fault})")
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


def _check(message: JsonObject, line: bytes) -> None:
    if message["type"] == "request":
        request_of(message, line)


VOCABULARY: Final = Vocabulary(_TYPES, _check)


# ---- ZooKeeper's reply ---------------------------------------------------------------------------


def reply_of(request: Request, reply: Reply) -> JsonObject:
    """Return the fields of the `reply` message to a request, besides `now` and `id`."""
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
    if isinstance(request, rq.Children):
        assert isinstance(value, tuple | list)  # a real session returns a list
        return found | {"children": list(value)}
    return found  # the results of a multi's writes are not told


def _stat(stat: Stat) -> JsonObject:
    return {"version": stat.version, "owner": stat.owner, "czxid": stat.czxid}
