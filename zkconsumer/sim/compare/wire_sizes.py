"""The sizes of requests and responses on the wire in bytes, including their length fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.requests import Code, Reply

# ---- ZooKeeper -----------------------------------------------------------------------------------

_HEAD = 4 + 8  # length, xid and type
_REPLY = 4 + 16  # length, xid, zxid and error
_STAT = 68
_OPEN_ACL = 4 + 4 + (4 + 5) + (4 + 6)  # one entry: permissions, "world", "anyone"
_OP = 9  # head of an operation of a transaction, and of its result

PING = _HEAD + _REPLY
"""A ping and its answer."""


def of_zookeeper(request: rq.Request, reply: Reply | None) -> int:
    """Return the bytes of a request and its reply."""
    return _HEAD + _request(request) + (0 if reply is None else _REPLY + _answer(request, reply))


def of_watch_event(path: str) -> int:
    """Return the bytes of a watch event."""
    return _REPLY + 8 + _text(path)


def _text(value: str | bytes | None) -> int:
    return 4 + len(value.encode() if isinstance(value, str) else value or b"")


def _request(request: rq.Request | rq.Write) -> int:
    match request:
        case rq.Multi(writes):
            return sum(_OP + _request(one) for one in writes) + _OP
        case rq.Create(path, data):
            return _text(path) + _text(data) + _OPEN_ACL + 4
        case rq.SetData(path, data):
            return _text(path) + _text(data) + 4
        case rq.Delete(path) | rq.Check(path):
            return _text(path) + 4
        case rq.SyncLeader(path):
            return _text(path)
    return _text(request.path) + 1


def _answer(request: rq.Request, reply: Reply) -> int:
    if reply.code is not Code.OK:
        return 0
    match request:
        case rq.Multi(writes):
            return sum(_OP + _result(one) for one in writes) + _OP
        case rq.Get():
            return _text(reply.value.data) + _STAT
        case rq.Exists():
            return _STAT
        case rq.Children():
            return 4 + sum(map(_text, reply.value))
        case rq.Listing():
            return 4 + sum(map(_text, reply.value.names)) + _STAT
    return _result(request)


def _result(request: rq.Request | rq.Write) -> int:
    match request:
        case rq.Create(path) | rq.SyncLeader(path):
            return _text(path)
        case rq.SetData():
            return _STAT
    return 0


# ---- Kafka: the newest versions of 3.9.1, which all have compact fields --------------------------

_INT8, _INT16, _INT32, _INT64 = 1, 2, 4, 8
_UUID = 16

_Field = int | str | bytes | None | list[int]
"""A field: the size of a number, a text, or the sizes of an array's elements."""


def of_kafka(client: str, request: msg.Request, response: msg.Response) -> int:
    """Return the bytes of a request and its response.

    The coordinator's host is assumed to be `localhost`. Error messages are left out.
    """
    head = _INT32 + _fields(_INT16, _INT16, _INT32, _INT16 + len(client.encode()))
    answer_head = _INT32 + _fields(_INT32)
    stored = request.offsets if isinstance(request, msg.OffsetCommit) else None
    return head + _request_body(request) + answer_head + _response_body(response, stored)


def _fields(*fields: _Field) -> int:
    """Return the size of a structure: its fields, and an empty list of tagged fields."""
    return sum(map(_field, fields)) + 1


def _field(one: _Field) -> int:
    match one:
        case int():
            return one
        case list():
            return _varint(len(one) + 1) + sum(one)
        case _:
            size = len(one.encode() if isinstance(one, str) else one or b"")
            return _varint(size + 1) + size


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _partitions(partitions: Iterable[TopicPartition] | None, each: int) -> list[int]:
    """Return the sizes of topics with `each` bytes for a partition."""
    counts = Counter(tp.topic for tp in partitions or ())
    return [_fields(topic, [each] * count) for topic, count in counts.items()]


def _ids(partitions: Iterable[TopicPartition]) -> list[int]:
    """Return the sizes of topics that are named by their ids."""
    counts = Counter(tp.topic for tp in partitions)
    return [_fields(_UUID, [_INT32] * count) for count in counts.values()]


def _request_body(request: msg.Request) -> int:
    group = request.group
    match request:
        case msg.FindCoordinator():
            return _fields(_INT8, [_field(group)])
        case msg.JoinGroup(member=member, instance=instance, protocols=protocols):
            listed = [_fields(one.name, one.metadata) for one in protocols]
            kind = request.protocol_type
            return _fields(group, _INT32, _INT32, member, instance, kind, listed, "")
        case msg.SyncGroup(member=member, instance=instance, assignments=assignments):
            listed = [_fields(one, data) for one, data in assignments.items()]
            names = request.protocol_type, request.protocol
            return _fields(group, _INT32, member, instance, *names, listed)
        case msg.Heartbeat(member=member, instance=instance):
            return _fields(group, _INT32, member, instance)
        case msg.LeaveGroup(leavers=leavers):
            return _fields(group, [_fields(one.member, one.instance, "") for one in leavers])
        case msg.OffsetCommit(offsets=offsets, member=member, instance=instance):
            each = _fields(_INT32, _INT64, _INT32, "")  # partition, offset, epoch, metadata
            return _fields(group, _INT32, member, instance, _partitions(offsets, each))
        case msg.OffsetFetch(partitions=partitions, member=member):
            return _fields([_fields(group, member, _INT32, _partitions(partitions, _INT32))], _INT8)
        case msg.ConsumerGroupHeartbeat():
            topics = request.topics
            subscribed = None if topics is None else [_field(one) for one in topics]
            texts = request.member, _INT32, request.instance, request.rack, _INT32
            owned = None if request.owned is None else _ids(request.owned)
            return _fields(group, *texts, subscribed, request.assignor, owned)
    raise TypeError(type(request).__name__)


def _response_body(
    response: msg.Response, stored: Mapping[TopicPartition, OffsetAndMetadata] | None
) -> int:
    """Return the size of a response; `stored` are the offsets that its request has committed."""
    match response:
        case msg.FoundCoordinator():
            return _fields(_INT32, [_fields("", _INT32, "localhost", _INT32, _INT16, "")])
        case msg.Joined(members=members):
            listed = [_fields(one.member, one.instance, one.metadata) for one in members]
            texts = response.protocol_type, response.protocol, response.leader
            return _fields(_INT32, _INT16, _INT32, *texts, _INT8, response.member, listed)
        case msg.Synced(assignment=assignment):
            return _fields(_INT32, _INT16, response.protocol_type, response.protocol, assignment)
        case msg.Left(leavers=leavers):
            listed = [_fields(one.member, one.instance, _INT16) for one, _ in leavers]
            return _fields(_INT32, _INT16, listed)
        case msg.OffsetsCommitted():
            return _fields(_INT32, _partitions(stored, _fields(_INT32, _INT16)))
        case msg.OffsetsFetched(offsets=offsets):
            each = _fields(_INT32, _INT64, _INT32, "", _INT16)
            return _fields(_INT32, [_fields("", _partitions(offsets, each), _INT16)])
        case msg.ConsumerGroupAnswer(assignment=assignment):
            body = _INT8 if assignment is None else _INT8 + _fields(_ids(assignment))
            return _fields(_INT32, _INT16, "", response.member, _INT32, _INT32, body)
        case msg.HeartbeatAnswer():
            return _fields(_INT32, _INT16)
    raise TypeError(type(response).__name__)
