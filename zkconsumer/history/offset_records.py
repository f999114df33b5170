"""The records of the topic `__consumer_offsets`: commits of groups, and groups with their members.

Kafka: `kafka.server.OffsetManager` (0.8.2), `kafka.coordinator.group.GroupMetadataManager` (0.9 to
3.9), and `OffsetCommitKey.json`, `OffsetCommitValue.json`, `GroupMetadataKey.json` and
`GroupMetadataValue.json` of their message formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError
from zkconsumer.protocol.later.consumer_protocol import decode_assignment
from zkconsumer.protocol.model import TopicPartition

# The versions of keys. Higher versions belong to the groups of KIP-848 (3.7 and later).
_COMMITS: Final = (0, 1)
_GROUP: Final = 2

# The highest versions of values: of a commit, and of a group's metadata.
_COMMIT_VALUE: Final = 3
_GROUP_VALUE: Final = 3


class CommitKey(NamedTuple):
    """The key of a commit."""

    group: str
    tp: TopicPartition


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group: str


class CommitValue(NamedTuple):
    """A committed offset, its metadata, and its time by the broker's or the client's clock, in
    ms."""

    offset: int
    metadata: str
    time_ms: int


class StoredMember(NamedTuple):
    """A member of Kafka's own protocol, and the host that the broker saw."""

    member: str
    client: str
    host: str


def decode_key(data: bytes) -> CommitKey | GroupKey | None:
    """Return the meaning of a key; None for the records of KIP-848's groups.

    Raises MalformedError.
    """
    reader = FieldReader(memoryview(data))
    version = reader.int16()
    if version in _COMMITS:
        group, topic = reader.text(), reader.text()
        return CommitKey(group, TopicPartition(topic, reader.int32()))
    return GroupKey(reader.text()) if version == _GROUP else None


def decode_commit(data: bytes) -> CommitValue:
    """Return the value of a commit. Raises MalformedError, also for an unknown version."""
    reader = FieldReader(memoryview(data))
    version = reader.int16()
    if not 0 <= version <= _COMMIT_VALUE:
        raise MalformedError(f"version {version} of a commit is unknown")
    offset = reader.int64()
    if version >= 3:
        reader.int32()  # the epoch of the partition's leader
    metadata, time_ms = reader.text(), reader.int64()
    return CommitValue(offset, metadata.removesuffix("\0"), time_ms)


def decode_owners(data: bytes) -> Mapping[TopicPartition, StoredMember]:
    """Return the members of a classic group by their partitions, from the value of its metadata.

    Members of other protocols, such as Connect's workers, have no partitions. Raises
    MalformedError, also for an unknown version.
    """
    protocol_type, members = _decode_members(data)
    if protocol_type != "consumer":
        return {}
    try:
        return {tp: one for one, given in members for tp in decode_assignment(given)[0]}
    except ValueError as error:
        raise MalformedError(f"an assignment is malformed: {error}") from error


def has_members(data: bytes) -> bool:
    """Return whether a classic group has members, from the value of its metadata.

    Raises MalformedError, also for an unknown version.
    """
    return bool(_decode_members(data)[1])


def _decode_members(data: bytes) -> tuple[str, Sequence[tuple[StoredMember, bytes]]]:
    """Return the type of a group's protocol, and each member with its assignment."""
    reader = FieldReader(memoryview(data))
    version = reader.int16()
    if not 0 <= version <= _GROUP_VALUE:
        raise MalformedError(f"version {version} of a group's metadata is unknown")
    protocol_type = reader.text()
    reader.int32()  # the generation
    reader.text()  # the assignor
    reader.text()  # the leader
    if version >= 2:
        reader.int64()  # the time of the last change of the group's state

    def member() -> tuple[StoredMember, bytes]:
        name = reader.text()
        if version >= 3:
            reader.text()  # the id of a static member
        client, host = reader.text(), reader.text().removeprefix("/")
        if version >= 1:
            reader.int32()  # the rebalance timeout
        reader.int32()  # the session timeout
        reader.octets()  # the subscription
        return StoredMember(name, client, host), reader.octets()

    return protocol_type, reader.each(member)
