"""A group's offsets in Kafka, accessed without zkconsumer: by a client and by raw bytes."""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPartition

from support.wait import LIMIT_S
from support.zk.client import peer_of
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.kafka.offset_storage import KafkaOffsetStore, channel_settings
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition
from zkconsumer.protocol.requests import OffsetRequest, Reply
from zkconsumer.sandbox.process import until
from zkconsumer.sandbox.topics import client_settings

OFFSET_COMMIT, OFFSET_FETCH, COORDINATOR = 8, 9, 10
Store = Callable[[OffsetRequest], Reply]


class Foreign:
    """A client of Kafka that is not a member of the group; it commits and reads offsets."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer, self.topic = consumer, topic

    def commit(self, offsets: Mapping[int, int], metadata: str = "") -> None:
        """Commit these offsets, by partition."""
        self.consumer.commit(
            offsets=[RawPartition(self.topic, p, at, metadata) for p, at in offsets.items()],
            asynchronous=False,
        )

    def committed(self, *partitions: int) -> dict[int, tuple[int, str]]:
        """Return partition -> (offset, metadata), for partitions that have an offset in Kafka."""
        asked = [RawPartition(self.topic, number) for number in partitions]
        return {
            one.partition: (one.offset, one.metadata or "")
            for one in self.consumer.committed(asked, timeout=LIMIT_S)
            if one.offset >= 0
        }

    def offsets(self, *partitions: int) -> dict[int, int]:
        return {number: offset for number, (offset, _) in self.committed(*partitions).items()}


@contextmanager
def foreign(zookeeper: str, group: str, topic: str) -> Iterator[Foreign]:
    """Return another client of the group's offsets."""
    settings = {
        **client_settings(zookeeper),
        "group.id": group,
        "enable.auto.commit": False,
        "session.timeout.ms": 30_000,
        "error_cb": lambda _: None,
    }
    consumer = Consumer(settings)
    try:
        yield Foreign(consumer, topic)
    finally:
        consumer.close()


@contextmanager
def new_style_member(zookeeper: str, group: str, topic: str) -> Iterator[None]:
    """Return a new consumer (0.9 or later) that is a member of the brokers' group."""
    settings = {**client_settings(zookeeper), "group.id": group, "session.timeout.ms": 10_000}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        assert until(joined, limit_s=LIMIT_S)
        yield
    finally:
        consumer.close()


class Wire:
    """A connection to a broker, for requests that are given as bytes."""

    def __init__(self, address: str, limit_s: float = LIMIT_S) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), limit_s)

    def ask(self, request: bytes) -> bytes:
        """Return the response to a request, both without the length that precedes them."""
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", self._take(4))
        return self._take(length)

    def _take(self, count: int) -> bytes:
        taken = b""
        while len(taken) < count:
            piece = self._socket.recv(count - len(taken))
            assert piece, "the broker closed the connection"
            taken += piece
        return taken

    def close(self) -> None:
        self._socket.close()


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def header(api: int, version: int, client: str = "") -> bytes:
    return struct.pack(">hhi", api, version, 0) + text(client)


def coordinator_of(address: str, group: str) -> int | None:
    """Ask the broker at `address`, and return the broker id of a group's coordinator."""
    wire = Wire(address)
    try:
        answer = wire.ask(header(COORDINATOR, 0) + text(group))
    finally:
        wire.close()
    _, error, broker = struct.unpack_from(">ihi", answer)
    return None if error else broker


def fetch_request(group: str, topic: str, partitions: int) -> bytes:
    """Return an OffsetFetch of version 1, which reads offsets stored in Kafka."""
    numbers = b"".join(struct.pack(">i", number) for number in range(partitions))
    one = text(topic) + struct.pack(">i", partitions) + numbers
    return header(OFFSET_FETCH, 1) + text(group) + struct.pack(">i", 1) + one


def commit_request(captured: bytes, group: str, topic: str) -> bytes:
    """Return a captured OffsetCommit with another group and topic, and otherwise unchanged."""
    api, version, _ = struct.unpack_from(">hhi", captured)
    assert api == OFFSET_COMMIT
    at = 8
    for _ in range(2):  # client.id, group
        (length,) = struct.unpack_from(">h", captured, at)
        at += 2 + length
    # The generation and the member id "", from v2 on the retention, then one topic.
    end = at + 4 + 2 + (8 if version >= 2 else 0) + 4
    (length,) = struct.unpack_from(">h", captured, end)
    rest = captured[end + 2 + length :]
    return header(api, version) + text(group) + captured[at:end] + text(topic) + rest


def errors_in(answer: bytes) -> dict[int, int]:
    """Return partition -> error, from the answer to an OffsetCommit of one topic."""
    (length,) = struct.unpack_from(">h", answer, 8)
    return dict(struct.iter_unpack(">ih", answer[14 + length :]))


def kept(wire: Wire, group: str, topic: str, partitions: int) -> dict[int, tuple[int, bytes, int]]:
    """Return a broker's answer to OffsetFetch: partition -> offset, metadata, error."""
    answer = wire.ask(fetch_request(group, topic, partitions))
    at, found = 14 + len(topic), {}
    for _ in range(partitions):
        number, offset, length = struct.unpack_from(">iqh", answer, at)
        end = at + 14 + length
        (error,) = struct.unpack_from(">h", answer, end)
        found[number] = offset, answer[at + 14 : end], error
        at = end + 2
    assert at == len(answer)
    return found


def offsets_of(captured: bytes) -> dict[int, tuple[int, str]]:
    """Return the offsets in a captured OffsetCommit of one topic."""
    _, version, _ = struct.unpack_from(">hhi", captured)
    request = commit_request(captured, "", "")
    at = 8 + 2 + 2 + 4 + 2 + (8 if version >= 2 else 0) + 4 + 2
    (count,) = struct.unpack_from(">i", request, at)
    at, found = at + 4, {}
    for _ in range(count):
        number, offset = struct.unpack_from(">iq", request, at)
        at += 12 + (8 if version == 1 else 0)
        (length,) = struct.unpack_from(">h", request, at)
        found[number] = (offset, request[at + 2 : at + 2 + length].decode())
        at += 2 + length
    assert at == len(request), "the broker does not understand the request"
    return found


def commit_as_another_client(
    address: str, group: str, tp: TopicPartition, offset: int, metadata: bytes, *, version: int = 2
) -> None:
    """Commit an offset to Kafka as clients without librdkafka do: without a NUL after the metadata.

    The request is OffsetCommit without a member, of version 1 (0.8.2) or 2 (0.9 and later).
    """
    body = text(group) + struct.pack(">i", -1) + text("")
    body += struct.pack(">q", -1) if version == 2 else b""  # how long to keep the offset
    body += struct.pack(">i", 1) + text(tp.topic) + struct.pack(">iiq", 1, tp.partition, offset)
    body += struct.pack(">q", -1) if version == 1 else b""  # the time of the commit
    body += struct.pack(">h", len(metadata)) + metadata

    def is_committed() -> bool:
        coordinator_of(address, group)  # the broker creates the topic of the offsets
        return errors_in(wire.ask(header(OFFSET_COMMIT, version) + body)) == {tp.partition: 0}

    wire = Wire(address)
    try:
        assert until(is_committed, limit_s=LIMIT_S)
    finally:
        wire.close()


@contextmanager
def store_of(zookeeper: str, group: str, *, limit_s: float = LIMIT_S) -> Iterator[Store]:
    """Return the offset store that a zkconsumer member uses, without the member."""
    config = ConsumerConfig(
        group_id=group, zookeeper_connect=zookeeper, offsets_channel_socket_timeout_s=limit_s
    )
    settings = {**channel_settings(config), **client_settings(zookeeper)}
    with peer_of(zookeeper) as client:
        store = KafkaOffsetStore(
            group,
            connect=lambda: settings,
            has_offsets_topic=lambda: client.exists(paths.topic(OFFSETS_TOPIC)) is not None,
            limit_s=limit_s,
        )
        with running(store) as ask:
            yield ask


@contextmanager
def running(store: KafkaOffsetStore) -> Iterator[Store]:
    """Yield a function that sends requests to a started store; stop the store at the end."""
    store.start()

    def ask(request: OffsetRequest) -> Reply:
        replies: queue.SimpleQueue[Sequence[Reply]] = queue.SimpleQueue()
        store.submit(request, replies.put)
        (reply,) = replies.get(timeout=LIMIT_S)
        return reply

    try:
        yield ask
    finally:
        store.stop()
        store.join(LIMIT_S)
        assert not store.is_alive()
