"""The bytes of the requests to a group's coordinator, in the last versions without tagged fields.

`kafka.columns.requests` chooses the versions. Brokers from 0.11 to 4.x support one version of each
request. Source: `clients/src/main/resources/common/message/*.json` of Kafka 3.9.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Final

from zkconsumer.kafka.columns import requests
from zkconsumer.protocol.kafka_fields import FieldReader, array, octets, text
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

APIS: Final[Mapping[type[msg.Request], int]] = {
    msg.OffsetCommit: requests.OFFSET_COMMIT,
    msg.OffsetFetch: requests.OFFSET_FETCH,
    msg.FindCoordinator: requests.FIND_COORDINATOR,
    msg.JoinGroup: requests.JOIN_GROUP,
    msg.Heartbeat: requests.HEARTBEAT,
    msg.LeaveGroup: requests.LEAVE_GROUP,
    msg.SyncGroup: requests.SYNC_GROUP,
}
"""The number of each request."""

STATIC_SINCE: Final = 5
"""The first version of JoinGroup with static members (Kafka 2.3)."""


def _millis(seconds: float) -> bytes:
    return struct.pack(">i", round(seconds * 1000))


def write(request: msg.Request, version: int) -> bytes:
    """Return the body of a request."""
    return _WRITERS[type(request)](request, version)


def _join(one: msg.Request, version: int) -> bytes:
    assert isinstance(one, msg.JoinGroup)
    protocols = [text(each.name) + octets(each.metadata) for each in one.protocols]
    return b"".join(
        (
            text(one.group),
            _millis(one.session_timeout_s),
            _millis(one.rebalance_timeout_s) if version >= 1 else b"",
            text(one.member),
            text(one.instance) if version >= STATIC_SINCE else b"",
            text(one.protocol_type),
            array(protocols),
        )
    )


def _sync(one: msg.Request, version: int) -> bytes:
    assert isinstance(one, msg.SyncGroup)
    given = [text(member) + octets(data) for member, data in one.assignments.items()]
    instance = text(one.instance) if version >= 3 else b""
    return _member(one.group, one.generation, one.member) + instance + array(given)


def _heartbeat(one: msg.Request, version: int) -> bytes:
    assert isinstance(one, msg.Heartbeat)
    instance = text(one.instance) if version >= 3 else b""
    return _member(one.group, one.generation, one.member) + instance


def _member(group: str, generation: int, member: str) -> bytes:
    return text(group) + struct.pack(">i", generation) + text(member)


def _leave(one: msg.Request, version: int) -> bytes:
    assert isinstance(one, msg.LeaveGroup)
    if version < 3:
        return text(one.group) + text(one.leavers[0].member)
    leavers = [text(each.member) + text(each.instance) for each in one.leavers]
    return text(one.group) + array(leavers)


def _commit(one: msg.Request, version: int) -> bytes:
    assert isinstance(one, msg.OffsetCommit)
    topics = []
    epoch = struct.pack(">i", -1) if version >= 6 else b""
    for topic, part in groupby(sorted(one.offsets.items()), lambda item: item[0].topic):
        partitions = [
            struct.pack(">iq", tp.partition, at.offset) + epoch + text(at.metadata)
            for tp, at in part
        ]
        topics.append(text(topic) + array(partitions))
    instance = text(one.instance) if version >= 7 else b""
    retention = struct.pack(">q", -1) if version <= 4 else b""  # the broker's setting
    return _member(one.group, one.generation, one.member) + instance + retention + array(topics)


def _fetch(one: msg.Request, version: int) -> bytes:
    assert isinstance(one, msg.OffsetFetch)
    return requests.committed_request(one.group, one.partitions or ())


_WRITERS: Mapping[type[msg.Request], Callable[[msg.Request, int], bytes]] = {
    msg.FindCoordinator: lambda one, version: requests.coordinator_request(one.group),
    msg.JoinGroup: _join,
    msg.SyncGroup: _sync,
    msg.Heartbeat: _heartbeat,
    msg.LeaveGroup: _leave,
    msg.OffsetCommit: _commit,
    msg.OffsetFetch: _fetch,
}


# ---- responses -----------------------------------------------------------------------------------


def read(request: msg.Request, version: int, response: FieldReader) -> msg.Response:
    """Return the response to a request other than FindCoordinator. Raises MalformedError."""
    return _READERS[type(request)](version, response)


def _error(code: int) -> Error:
    try:
        return Error(code)
    except ValueError:  # for example, access to the group is denied
        return Error.UNKNOWN_SERVER_ERROR


def _joined(version: int, response: FieldReader) -> msg.Response:
    if version >= 2:
        response.int32()  # throttle time
    error, generation = _error(response.int16()), response.int32()
    protocol, leader, member = response.text(), response.text(), response.text()

    def one() -> msg.JoinedMember:
        name = response.text()
        instance = response.optional_text() if version >= STATIC_SINCE else None
        return msg.JoinedMember(name, instance, response.octets())

    members = tuple(response.each(one))
    return msg.Joined(error, member, generation, msg.CONSUMER, protocol or None, leader, members)


def _synced(version: int, response: FieldReader) -> msg.Response:
    if version >= 1:
        response.int32()
    return msg.Synced(_error(response.int16()), response.octets())


def _beaten(version: int, response: FieldReader) -> msg.Response:
    if version >= 1:
        response.int32()
    return msg.HeartbeatAnswer(_error(response.int16()))


def _left(version: int, response: FieldReader) -> msg.Response:
    if version >= 1:
        response.int32()
    return msg.Left(_error(response.int16()))


def _committed(version: int, response: FieldReader) -> msg.Response:
    if version >= 3:
        response.int32()

    def topic() -> dict[TopicPartition, Error]:
        name = response.text()

        def partition() -> tuple[TopicPartition, Error]:
            return TopicPartition(name, response.int32()), _error(response.int16())

        return dict(response.each(partition))

    errors = {tp: error for each in response.each(topic) for tp, error in each.items()}
    return msg.OffsetsCommitted(*_divided(errors))


def _fetched(version: int, response: FieldReader) -> msg.Response:
    found = requests.committed(version, response)
    # A partition without an offset has this error up to version 1.
    errors = {
        tp: _error(one.error) for tp, one in found.items() if one.error != requests.UNKNOWN_TOPIC
    }
    error, refused = _divided(errors)
    offsets = {
        tp: OffsetAndMetadata(one.offset, one.metadata)
        for tp, one in found.items()
        if not one.error and one.offset >= 0
    }
    return msg.OffsetsFetched(error, offsets, refused)


_OF_ONE_PARTITION = frozenset(
    {
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.OFFSET_METADATA_TOO_LARGE,
        Error.INVALID_COMMIT_OFFSET_SIZE,
        Error.TOPIC_AUTHORIZATION_FAILED,
    }
)


def _divided(
    errors: Mapping[TopicPartition, Error],
) -> tuple[Error, dict[TopicPartition, Error]]:
    """Return the error of the group, which all partitions have, and the errors of single ones."""
    refused = {tp: one for tp, one in errors.items() if one in _OF_ONE_PARTITION}
    of_group = (one for one in errors.values() if one is not Error.NONE)
    return next((one for one in of_group if one not in _OF_ONE_PARTITION), Error.NONE), refused


def found(response: FieldReader) -> tuple[msg.FoundCoordinator, tuple[str, int]]:
    """Return the response to FindCoordinator, and the coordinator's address."""
    error, broker = _error(response.int16()), response.int32()
    return msg.FoundCoordinator(error, broker), (response.text(), response.int32())


_READERS: Mapping[type[msg.Request], Callable[[int, FieldReader], msg.Response]] = {
    msg.JoinGroup: _joined,
    msg.SyncGroup: _synced,
    msg.Heartbeat: _beaten,
    msg.LeaveGroup: _left,
    msg.OffsetCommit: _committed,
    msg.OffsetFetch: _fetched,
}


# ---- members -------------------------------------------------------------------------------------


class GroupDescription:
    """A group as its coordinator describes it (DescribeGroups, version 0).

    Attributes:
        state: "Stable", "Empty", "Dead" and so on.
        protocol: the assignor; empty without members.
        members: the member ids, with client and host.
        readers: partition -> client and host of the member to which it is assigned.
    """

    def __init__(self, response: FieldReader) -> None:
        """Raises MalformedError."""
        self.error, self.state, self.kind, self.protocol = 0, "", "", ""
        self.members: dict[str, str] = {}
        self.readers: dict[TopicPartition, str] = {}

        def member() -> None:
            name, client, host = response.text(), response.text(), response.text()
            response.octets()  # the subscription
            assignment = response.octets()
            shown = self.members[name] = f"{client} at {host.removeprefix('/')}"
            if self.kind == msg.CONSUMER and assignment:
                with suppress(ValueError):  # another client's assignment may have any form
                    self.readers |= dict.fromkeys(decode_assignment(assignment)[0], shown)

        def group() -> None:
            self.error = response.int16()
            response.text()
            self.state, self.kind = response.text(), response.text()
            self.protocol = response.text()
            response.each(member)

        response.each(group)

    @property
    def is_rebalancing(self) -> bool:
        """Whether the members wait for their assignment."""
        return self.state in ("PreparingRebalance", "CompletingRebalance", "AwaitingSync")
