"""The sizes of requests and responses on the wire in bytes, including their length fields."""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import TopicPartition
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

_UUID = 16


def of_kafka(client: str, request: msg.Request, response: msg.Response) -> int:
    """Return the bytes of a request and its response.

    The coordinator's host is assumed to be `localhost`. Error messages are left out.
    """
    head = 4 + 2 + 2 + 4 + (2 + len(client.encode())) + 1
    if isinstance(request, msg.OffsetCommit):
        return head + _asked(request) + 9 + _stored(request)
    return head + _asked(request) + 9 + _told(response)


def _compact(value: str | bytes | None) -> int:
    size = len(value.encode() if isinstance(value, str) else value or b"")
    return _varint(size + 1) + size


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _many(sizes: list[int]) -> int:
    return _varint(len(sizes) + 1) + sum(sizes)


def _by_topic(partitions: Iterable[object] | None) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tp in partitions or ():
        assert isinstance(tp, TopicPartition)
        counts[tp.topic] = counts.get(tp.topic, 0) + 1
    return counts


def _asked(request: msg.Request) -> int:
    group = _compact(request.group)
    match request:
        case msg.FindCoordinator():
            return 1 + _many([group]) + 1
        case msg.JoinGroup(member=member, instance=instance, protocols=protocols):
            listed = [_compact(one.name) + _compact(one.metadata) + 1 for one in protocols]
            kind, reason = _compact(request.protocol_type), 1
            return (
                group
                + 8
                + _compact(member)
                + _compact(instance)
                + kind
                + _many(listed)
                + reason
                + 1
            )
        case msg.SyncGroup(member=member, assignments=assignments):
            listed = [_compact(one) + _compact(data) + 1 for one, data in assignments.items()]
            names = _compact(request.protocol_type) + _compact(request.protocol)
            return (
                group
                + 4
                + _compact(member)
                + _compact(request.instance)
                + names
                + _many(listed)
                + 1
            )
        case msg.Heartbeat(member=member, instance=instance):
            return group + 4 + _compact(member) + _compact(instance) + 1
        case msg.LeaveGroup(leavers=leavers):
            return (
                group
                + _many([_compact(one.member) + _compact(one.instance) + 2 for one in leavers])
                + 1
            )
        case msg.OffsetCommit(offsets=offsets, member=member, instance=instance):
            topics = [
                _compact(topic) + _varint(n + 1) + n * (4 + 8 + 4 + 1 + 1) + 1
                for topic, n in _by_topic(offsets).items()
            ]
            return group + 4 + _compact(member) + _compact(instance) + _many(topics) + 1
        case msg.OffsetFetch(partitions=partitions, member=member):
            topics = [
                _compact(t) + _varint(n + 1) + 4 * n + 1 for t, n in _by_topic(partitions).items()
            ]
            return _many([group + _compact(member) + 4 + _many(topics) + 1]) + 1 + 1
        case msg.ConsumerGroupHeartbeat():
            names = (
                1 if request.topics is None else _many([_compact(one) for one in request.topics])
            )
            owned = 1 if request.owned is None else _ids(request.owned)
            texts = (request.member, request.instance, request.rack, request.assignor)
            return group + 4 + 4 + sum(map(_compact, texts)) + names + owned + 1
    raise TypeError(type(request).__name__)


def _stored(request: msg.OffsetCommit) -> int:
    topics = [
        _compact(topic) + _varint(n + 1) + n * (4 + 2 + 1) + 1
        for topic, n in _by_topic(request.offsets).items()
    ]
    return 4 + _many(topics) + 1


def _ids(partitions: frozenset[TopicPartition]) -> int:
    counts = _by_topic(partitions)
    return _many([_UUID + _varint(n + 1) + 4 * n + 1 for n in counts.values()])


def _told(response: msg.Response) -> int:
    match response:
        case msg.FoundCoordinator():
            return 4 + _many([1 + 4 + _compact("localhost") + 4 + 2 + 1 + 1]) + 1
        case msg.Joined(members=members):
            listed = [
                _compact(one.member) + _compact(one.instance) + _compact(one.metadata) + 1
                for one in members
            ]
            texts = (response.protocol_type, response.protocol, response.leader)
            return (
                4
                + 2
                + 4
                + sum(map(_compact, texts))
                + 1
                + _compact(response.member)
                + _many(listed)
                + 1
            )
        case msg.Synced(assignment=assignment):
            names = _compact(response.protocol_type) + _compact(response.protocol)
            return 4 + 2 + names + _compact(assignment) + 1
        case msg.Left(leavers=leavers):
            listed = [_compact(one.member) + _compact(one.instance) + 3 for one, _ in leavers]
            return 4 + 2 + _many(listed) + 1
        case msg.OffsetsFetched(offsets=offsets):
            topics = [
                _compact(topic) + _varint(n + 1) + n * (4 + 8 + 4 + 1 + 2 + 1) + 1
                for topic, n in _by_topic(offsets).items()
            ]
            return 4 + _many([1 + _many(topics) + 2 + 1]) + 1
        case msg.ConsumerGroupAnswer(assignment=assignment):
            body = 1 if assignment is None else 1 + _ids(assignment) + 1
            return 4 + 2 + 1 + _compact(response.member) + 4 + 4 + body + 1
    return 4 + 2 + 1
