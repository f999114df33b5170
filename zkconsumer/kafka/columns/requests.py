"""The requests of a reader as bytes: Fetch, ListOffsets, Metadata, ApiVersions, and those that read
a group's offsets.

All numbers are big-endian. The versions range from those of Kafka 0.8.2 to the last versions
without tagged fields, which all later brokers also support. This module uses no sockets.

Kafka: `clients/src/main/resources/common/message/*.json`, and for 0.8 and 0.9
`org.apache.kafka.common.protocol.Protocol`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from zkconsumer.kafka.columns.fetch_sessions import SessionRequest
from zkconsumer.protocol.kafka_fields import FieldReader, array, octets, text
from zkconsumer.protocol.model import TopicPartition

T = TypeVar("T")

FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

Versions = Mapping[int, int]
"""The version of each request that is used with a broker."""

# The versions that brokers of 0.8.2 and 0.9 support. These brokers close the connection when they
# receive an ApiVersions request.
_OFFSETS_OF_GROUPS: Final = {OFFSET_FETCH: 1, FIND_COORDINATOR: 0}
OF_0_8: Final[Versions] = {FETCH: 0, LIST_OFFSETS: 0, METADATA: 0, **_OFFSETS_OF_GROUPS}
OF_0_9: Final[Versions] = {
    FETCH: 1,
    LIST_OFFSETS: 0,
    METADATA: 0,
    **_OFFSETS_OF_GROUPS,
    DESCRIBE_GROUPS: 0,
}

# The versions that this module supports, the preferred one first.
_KNOWN: Final[Mapping[int, Sequence[int]]] = {
    FETCH: range(11, -1, -1),
    LIST_OFFSETS: (2, 1, 0),
    METADATA: (4, 1, 0),
    # Version 0 reads the offsets in ZooKeeper.
    OFFSET_FETCH: (1,),
    FIND_COORDINATOR: (0,),
    DESCRIBE_GROUPS: (0,),
    # The requests of a group's members, which only the bridge sends.
    OFFSET_COMMIT: range(7, 1, -1),
    JOIN_GROUP: range(5, -1, -1),
    HEARTBEAT: range(3, -1, -1),
    LEAVE_GROUP: range(3, -1, -1),
    SYNC_GROUP: range(3, -1, -1),
    SASL_HANDSHAKE: (1, 0),
    SASL_AUTHENTICATE: (0,),
}

# The error of a topic or a partition that the broker does not know.
UNKNOWN_TOPIC: Final = 3


class Isolation(Enum):
    """Whether a reader gets the messages of open transactions; the value is the protocol's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @property
    def octet(self) -> bytes:
        return bytes([self.value])


# The `replica.id` that consumers send.
_CONSUMER: Final = -1
# The epoch of a leader, which the reader does not use.
_NO_EPOCH: Final = -1


def frame(api: int, version: int, number: int, client_id: str, body: bytes) -> bytes:
    """Return a request with its size and header; the response repeats `number`."""
    return octets(struct.pack(">hhi", api, version, number) + text(client_id) + body)


def _by_topic(items: Iterable[tuple[TopicPartition, bytes]]) -> bytes:
    """Return an array of topics, each with an array of its partitions' items."""
    return array(
        [
            text(topic) + array([struct.pack(">i", tp.partition) + rest for tp, rest in part])
            for topic, part in groupby(items, lambda one: one[0].topic)
        ]
    )


# ---- ApiVersions ---------------------------------------------------------------------------------


def common_versions(response: FieldReader) -> Versions:
    """Return, for each request, the highest version that the broker and this module support."""
    response.int16()  # an error is impossible in version 0

    def one() -> tuple[int, range]:
        api, lowest, highest = response.int16(), response.int16(), response.int16()
        return api, range(lowest, highest + 1)

    offered = dict(response.each(one))
    best = {
        api: next((version for version in known if version in offered.get(api, ())), -1)
        for api, known in _KNOWN.items()
    }
    return {api: version for api, version in best.items() if version >= 0}


# ---- Metadata ------------------------------------------------------------------------------------


class Metadata(NamedTuple):
    """The addresses by broker id, the leader of each partition that has one, and the partitions of
    the topics that exist."""

    addresses: dict[int, tuple[str, int]]
    leaders: dict[TopicPartition, int]
    refused: dict[str, int]
    """Topics that cannot be read, with their error."""
    topics: dict[str, tuple[int, ...]]


def metadata_request(version: int, topics: Sequence[str] | None) -> bytes:
    """Return a request for these topics; for all topics if it is None, or before version 4 (0.11).

    Older brokers with `auto.create.topics.enable` create each topic that a request names.
    """
    if version == 0:
        return array([])
    everything = struct.pack(">i", -1)
    if version < 4:
        return everything
    return (everything if topics is None else array([text(one) for one in topics])) + b"\0"


def metadata(version: int, response: FieldReader) -> Metadata:
    if version >= 3:
        response.int32()  # throttle time

    def broker() -> tuple[int, tuple[str, int]]:
        node, host, port = response.int32(), response.text(), response.int32()
        if version >= 1:
            response.text()  # rack
        return node, (host, port)

    def partition() -> tuple[int, int]:
        # The error is not needed: a partition without a leader has no leader id either.
        _, number, leader, replicas = response.numbers(">hiii")
        response.skip(4 * max(0, replicas))
        in_sync = response.int32()
        response.skip(4 * max(0, in_sync))
        return number, leader

    def topic() -> tuple[str, int, list[tuple[int, int]]]:
        error, name = response.int16(), response.text()
        if version >= 1:
            response.int8()  # internal or not
        return name, error, response.each(partition)

    addresses = dict(response.each(broker))
    if version >= 2:
        response.text()  # cluster
    if version >= 1:
        response.int32()  # controller
    topics = response.each(topic)
    leaders = {
        TopicPartition(name, number): leader
        for name, _, partitions in topics
        for number, leader in partitions
        if leader in addresses
    }
    refused = {name: error for name, error, _ in topics if error}
    existing = {
        name: tuple(sorted(number for number, _ in partitions))
        for name, error, partitions in topics
        if error != UNKNOWN_TOPIC
    }
    return Metadata(addresses, leaders, refused, existing)


# ---- ListOffsets ---------------------------------------------------------------------------------


def offsets_request(
    version: int, tps: Iterable[TopicPartition], spec: int, isolation: Isolation
) -> bytes:
    """Return a request for offsets at the special time `spec`: -1: the next, -2: the first.

    The next offset is the last stable offset with READ_COMMITTED. Before version 2 (0.11), there
    are no transactions.
    """
    rest = struct.pack(">q", spec) + (b"" if version else struct.pack(">i", 1))
    head = struct.pack(">i", _CONSUMER) + (isolation.octet if version >= 2 else b"")
    return head + _by_topic((tp, rest) for tp in sorted(tps))


def _each_partition(
    response: FieldReader, partition: Callable[[], tuple[int, T]]
) -> dict[TopicPartition, T]:
    """Read topics with their partitions; `partition` reads a partition's number and the rest."""

    def topic() -> list[tuple[TopicPartition, T]]:
        name = response.text()
        return [(TopicPartition(name, one), rest) for one, rest in response.each(partition)]

    return dict(one for part in response.each(topic) for one in part)


def offsets(version: int, response: FieldReader) -> dict[TopicPartition, tuple[int, int]]:
    """Return error and offset of each partition."""
    if version >= 2:
        response.int32()  # throttle time

    def partition() -> tuple[int, tuple[int, int]]:
        number, error = response.int32(), response.int16()
        if version:
            response.int64()  # time
            return number, (error, response.int64())
        found = response.each(response.int64)
        return number, (error, found[0] if found else -1)

    return _each_partition(response, partition)


# ---- a group's offsets ---------------------------------------------------------------------------


def coordinator_request(group: str) -> bytes:
    return text(group)


def coordinator(version: int, response: FieldReader) -> tuple[int, tuple[str, int]]:
    """Return the error, and the address of the broker that stores the offsets of the group."""
    error, _ = response.int16(), response.int32()
    return error, (response.text(), response.int32())


def committed_request(group: str, tps: Iterable[TopicPartition]) -> bytes:
    return text(group) + _by_topic((tp, b"") for tp in sorted(tps))


class FetchedOffset(NamedTuple):
    """An offset of a group: -1 if there is none."""

    error: int
    offset: int
    metadata: str


def committed(version: int, response: FieldReader) -> dict[TopicPartition, FetchedOffset]:
    """Return the group's offset for each partition."""

    def partition() -> tuple[int, FetchedOffset]:
        number, offset, metadata = response.int32(), response.int64(), response.text()
        return number, FetchedOffset(response.int16(), offset, metadata)

    return _each_partition(response, partition)


def members_request(group: str) -> bytes:
    return array([text(group)])


def members(version: int, response: FieldReader) -> tuple[int, list[str]]:
    """Return the error, and the members of Kafka's own protocol: "CLIENT at HOST"."""

    def member() -> str:
        response.text()  # the member's id
        client, host = response.text(), response.text().removeprefix("/")
        response.octets()  # the subscription
        response.octets()  # the assignment
        return f"{client} at {host}"

    def group() -> tuple[int, list[str]]:
        error = response.int16()
        for _ in ("group", "state", "type of the protocol", "protocol"):
            response.text()
        return error, response.each(member)

    (found,) = response.each(group)
    return found


# ---- Fetch ---------------------------------------------------------------------------------------


class FetchLimits(NamedTuple):
    """How long a broker may wait for messages, how many bytes it may return, and up to where."""

    wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class Aborted(NamedTuple):
    """An aborted transaction: its producer's id, and the offset of its first message."""

    producer: int
    first: int


class FetchedPartition(NamedTuple):
    """The part of a response for one partition.

    The partition's record set begins at `at` and has `size` bytes. `last_stable` is the high
    watermark if the broker has no transactions. The broker names the aborted transactions of the
    record set only with READ_COMMITTED.
    """

    tp: TopicPartition
    error: int
    high_watermark: int
    last_stable: int
    aborted: Sequence[Aborted]
    at: int
    size: int


class FetchResponse(NamedTuple):
    """A response: the throttle time, the error of the whole response, the id of the fetch session
    or 0, and the partitions."""

    throttled_ms: int
    error: int
    session: int
    partitions: list[FetchedPartition]


def fetch_request(version: int, limits: FetchLimits, request: SessionRequest) -> bytes:
    """Return a request for partitions in this order, each with an offset and a limit in bytes.

    Before version 7 there are no sessions, and the request must contain all partitions.
    """
    body = struct.pack(">iii", _CONSUMER, limits.wait_ms, limits.min_bytes)
    if version >= 3:
        body += struct.pack(">i", limits.max_bytes)
    if version >= 4:
        body += limits.isolation.octet
    if version >= 7:
        body += struct.pack(">ii", request.session, request.epoch)
    epoch = struct.pack(">i", _NO_EPOCH) if version >= 9 else b""
    start = struct.pack(">q", -1) if version >= 5 else b""  # the log start, which followers send
    body += _by_topic(
        (tp, epoch + struct.pack(">q", offset) + start + struct.pack(">i", size))
        for tp, offset, size in request.wanted
    )
    if version >= 7:
        body += _by_topic((tp, b"") for tp in request.removed)
    return body + (text("") if version >= 11 else b"")  # rack


def fetched(version: int, response: FieldReader) -> FetchResponse:
    throttled_ms = response.int32() if version >= 1 else 0
    error = session = 0
    if version >= 7:
        error, session = response.int16(), response.int32()

    def one_aborted() -> Aborted:
        return Aborted(response.int64(), response.int64())

    def partition(topic: str) -> FetchedPartition:
        number, failure, high_watermark = response.int32(), response.int16(), response.int64()
        last_stable = response.int64() if version >= 4 else high_watermark
        if version >= 5:
            response.int64()  # first offset of the log
        aborted = response.each(one_aborted) if version >= 4 else ()
        if version >= 11:
            response.int32()  # preferred replica
        size = max(0, response.int32())
        at, tp = response.skip(size), TopicPartition(topic, number)
        return FetchedPartition(tp, failure, high_watermark, last_stable, aborted, at, size)

    def topic() -> list[FetchedPartition]:
        return response.each(partial(partition, response.text()))

    found = [one for part in response.each(topic) for one in part]
    return FetchResponse(throttled_ms, error, session, found)
