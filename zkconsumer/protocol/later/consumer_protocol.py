"""The bytes that members of the classic protocol exchange: subscriptions, assignments, user data.

The coordinator forwards these bytes without interpreting them. Source: `ConsumerProtocol` of Kafka
3.9.1, in its newest version 3, and the user data of the two sticky assignors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.kafka_fields import FieldReader, array, octets, text
from zkconsumer.protocol.later.subscriptions import NO_GENERATION, Subscription
from zkconsumer.protocol.model import TopicPartition

VERSION = 3
"""Version of the subscription and of the assignment. Version 1 (Kafka 2.4) added `owned`, version 2
(3.2) the generation, and version 3 (3.5) the rack."""


def encode_subscription(subscription: Subscription, user_data: bytes | None = None) -> bytes:
    """Return the metadata that a member of Kafka 3.9.1 sends for one assignor.

    `subscription.instance` is left out: JoinGroup has its own field for it.
    """
    return b"".join(
        (
            struct.pack(">h", VERSION),
            array([text(one) for one in sorted(subscription.topics, key=utf16_key)]),
            octets(user_data),
            _partitions(subscription.owned, sort=True),
            struct.pack(">i", subscription.generation),
            text(subscription.rack),
        )
    )


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    """Return the assignment that the leader sends for one member, without user data."""
    return struct.pack(">h", VERSION) + _partitions(partitions) + octets(None)


def encode_sticky_user_data(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Return the user data of `StickyAssignor`: the previous assignment and its generation."""
    return _partitions(owned) + struct.pack(">i", generation)


def encode_cooperative_user_data(generation: int) -> bytes:
    """Return the user data of `CooperativeStickyAssignor`: the generation."""
    return struct.pack(">i", generation)


def decode_subscription(data: bytes) -> tuple[Subscription, bytes | None]:
    """Return a subscription and its user data.

    Raises:
        MalformedError: the bytes are not a subscription.
    """
    reader = FieldReader(memoryview(data))
    version = reader.int16()
    topics = tuple(reader.each(reader.text))
    user_data = reader.optional_octets()
    owned = _read_partitions(reader) if version >= 1 else ()
    generation = reader.int32() if version >= 2 else NO_GENERATION
    rack = reader.optional_text() if version >= 3 else None
    return Subscription(topics, owned, generation, rack), user_data


def decode_assignment(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes | None]:
    """Return the partitions of an assignment and its user data; empty bytes have no partitions.

    Raises:
        MalformedError: the bytes are not an assignment.
    """
    if not data:
        return (), None
    reader = FieldReader(memoryview(data))
    reader.int16()
    return _read_partitions(reader), reader.optional_octets()


def decode_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Return the previous assignment and its generation.

    Raises:
        MalformedError: the bytes are not user data of `StickyAssignor`.
    """
    reader = FieldReader(memoryview(data))
    return _read_partitions(reader), reader.int32()


# ---- fields --------------------------------------------------------------------------------------


def _partitions(partitions: Iterable[TopicPartition], *, sort: bool = False) -> bytes:
    """Encode partitions by topic; Kafka sorts only the partitions of a subscription."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    topics = sorted(numbers, key=utf16_key) if sort else list(numbers)
    parts = [struct.pack(">i", len(topics))]
    for topic in topics:
        found = sorted(numbers[topic]) if sort else numbers[topic]
        parts.append(text(topic) + struct.pack(f">i{len(found)}i", len(found), *found))
    return b"".join(parts)


def _read_partitions(reader: FieldReader) -> tuple[TopicPartition, ...]:
    found = []
    for _ in range(reader.int32()):
        topic = reader.text()
        found += [TopicPartition(topic, reader.int32()) for _ in range(reader.int32())]
    return tuple(found)
