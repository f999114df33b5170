"""The bytes that members of the classic protocol exchange: subscriptions, assignments, user data.

The coordinator forwards these bytes without interpreting them. Source: `ConsumerProtocol` of Kafka
3.9.1, in its newest version 3, and the user data of the two sticky assignors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from zkconsumer.protocol.java.text import utf16_key
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
            _strings(sorted(subscription.topics, key=utf16_key)),
            _bytes(user_data),
            _partitions(subscription.owned, sort=True),
            struct.pack(">i", subscription.generation),
            struct.pack(">h", -1) if subscription.rack is None else _string(subscription.rack),
        )
    )


def encode_assignment(
    partitions: Sequence[TopicPartition], user_data: bytes | None = None
) -> bytes:
    """Return the assignment that the leader sends for one member."""
    return struct.pack(">h", VERSION) + _partitions(partitions) + _bytes(user_data)


def encode_sticky_user_data(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Return the user data of `StickyAssignor`: the previous assignment and its generation."""
    return _partitions(owned) + struct.pack(">i", generation)


def encode_cooperative_user_data(generation: int) -> bytes:
    """Return the user data of `CooperativeStickyAssignor`: the generation."""
    return struct.pack(">i", generation)


def decode_subscription(data: bytes) -> tuple[Subscription, bytes | None]:
    """Return a subscription and its user data.

    Raises:
        ValueError: the bytes are not a subscription.
    """
    reader = _Reader(data)
    version = reader.int16()
    topics = tuple(reader.string() or "" for _ in range(reader.int32()))
    user_data = reader.bytes()
    owned = reader.partitions() if version >= 1 else ()
    generation = reader.int32() if version >= 2 else NO_GENERATION
    rack = reader.string() if version >= 3 else None
    return Subscription(topics, owned, generation, rack), user_data


def decode_assignment(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes | None]:
    """Return the partitions of an assignment and its user data; empty bytes have no partitions.

    Raises:
        ValueError: the bytes are not an assignment.
    """
    if not data:
        return (), None
    reader = _Reader(data)
    reader.int16()
    return reader.partitions(), reader.bytes()


def decode_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Return the previous assignment and its generation.

    Raises:
        ValueError: the bytes are not user data of `StickyAssignor`.
    """
    reader = _Reader(data)
    return reader.partitions(), reader.int32()


# ---- fields --------------------------------------------------------------------------------------


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _strings(texts: Sequence[str]) -> bytes:
    return struct.pack(">i", len(texts)) + b"".join(map(_string, texts))


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _partitions(partitions: Iterable[TopicPartition], *, sort: bool = False) -> bytes:
    """Encode partitions by topic; Kafka sorts only the partitions of a subscription."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    topics = sorted(numbers, key=utf16_key) if sort else list(numbers)
    parts = [struct.pack(">i", len(topics))]
    for topic in topics:
        found = sorted(numbers[topic]) if sort else numbers[topic]
        parts.append(_string(topic) + struct.pack(f">i{len(found)}i", len(found), *found))
    return b"".join(parts)


class _Reader:
    """Reads fields one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) < size:
            raise ValueError(f"{len(self._data)} bytes end within a field at byte {self._at}")
        self._at += size
        return found

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()

    def bytes(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self._take(size)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found = []
        for _ in range(self.int32()):
            topic = self.string() or ""
            found += [TopicPartition(topic, self.int32()) for _ in range(self.int32())]
        return tuple(found)
