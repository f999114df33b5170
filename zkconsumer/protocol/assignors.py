"""Who should own what: every member computes this alone, from the same input, with equal results.

The result must be that of the group's JVM members to the last partition, or claims collide.

The range strategy: each topic by itself, in contiguous slices (`RangeAssignor`).

The round-robin strategy: all partitions in hash order, all threads (`RoundRobinAssignor`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import Enum

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.java.text import java_hash, utf16_key
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import thread_ids

# ---- range ---------------------------------------------------------------------------------------


def assign_range(
    threads: Mapping[str, Sequence[str]], partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """Slice each topic's partitions among its threads; both come sorted, by topic.

    The first P mod C threads get one partition more. Slices are of positions, not of numbers, so
    gaps in the numbering do not matter.
    """
    assignment: dict[TopicPartition, str] = {}
    for topic, of_topic in threads.items():
        numbers = partitions[topic]
        share, extra = divmod(len(numbers), len(of_topic))
        start = 0
        for position, thread in enumerate(of_topic):
            end = start + share + (position < extra)
            for number in numbers[start:end]:
                assignment[TopicPartition(topic, number)] = thread
            start = end
    return assignment


# ---- roundrobin ----------------------------------------------------------------------------------


class KeyForm(Enum):
    """`TopicAndPartition.toString`, whose hash code orders the partitions.

    It changed by accident (KAFKA-5822), so members of both kinds in one group do not agree.
    """

    BRACKET = "[{topic},{partition}]"  # 0.8.2-0.11
    DASH = "{topic}-{partition}"  # 1.0-1.1


class Variant(Enum):
    """What becomes of members with different subscriptions."""

    RANGE_ONLY = "range"  # 0.8.0-0.8.1: there is no round-robin, range is what it gets
    IDENTICAL = "identical"  # 0.8.2-0.10.1: refused
    SKIPPING = "skipping"  # 0.10.2-1.1 (KAFKA-2434): threads without the topic are passed over


def assign_roundrobin(
    threads: Mapping[str, Sequence[str]],
    partitions: Mapping[str, Sequence[int]],
    *,
    key_form: KeyForm,
    variant: Variant,
) -> dict[TopicPartition, str]:
    """Deal all partitions out over one circle of all threads; both come sorted, by topic.

    Partitions with equal hash codes are dealt by topic and number; in the JVM their order follows
    a Scala hash map and ZooKeeper's order of children, and cannot be reproduced.
    """
    if variant is Variant.IDENTICAL:
        _require_identical(threads)
    circle = sorted({thread for of_topic in threads.values() for thread in of_topic}, key=utf16_key)
    place = {thread: position for position, thread in enumerate(circle)}
    places = {topic: [place[thread] for thread in own] for topic, own in threads.items()}
    assignment: dict[TopicPartition, str] = {}
    cursor = 0
    for tp in _hash_order(partitions, key_form):
        own = places[tp.topic]
        found = bisect_left(own, cursor)  # the next thread on the circle that has the topic
        position = own[found] if found < len(own) else own[0]
        assignment[tp] = circle[position]
        cursor = position + 1
    return assignment


def _hash_order(partitions: Mapping[str, Sequence[int]], key_form: KeyForm) -> list[TopicPartition]:
    keyed: list[tuple[int, TopicPartition]] = []
    before, after = key_form.value.split("{partition}")
    for topic in sorted(partitions, key=utf16_key):
        # Ten thousand keys share few beginnings: hash each of those once.
        prefix = java_hash(before.format(topic=topic))
        keyed.extend(
            (java_hash(f"{number}{after}", prefix_hash=prefix), TopicPartition(topic, number))
            for number in partitions[topic]
        )
    keyed.sort(key=lambda pair: pair[0])
    return [tp for _, tp in keyed]


def _require_identical(threads: Mapping[str, Sequence[str]]) -> None:
    first, *others = threads or ("",)
    for other in others:
        if threads[other] != threads[first]:
            raise ConfigError(
                "round-robin as in Kafka 0.8.2-0.10.1 needs equal subscriptions: the same topics"
                " for every member, and one stream count for all topics of a member",
                where=f"topics {first} and {other}",
                remedy="make the subscriptions equal, or use range",
            )


# ---- assignors -----------------------------------------------------------------------------------


__all__ = ["KeyForm", "Strategy", "Variant", "assign"]


class Strategy(Enum):
    """`partition.assignment.strategy`; it must be the same in the whole group."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"


def assign(
    strategy: Strategy,
    *,
    subscriptions: Mapping[str, Mapping[str, int]],
    partitions: Mapping[str, Sequence[int]],
    key_form: KeyForm = KeyForm.BRACKET,
    variant: Variant = Variant.SKIPPING,
) -> dict[TopicPartition, str]:
    """Give every partition of every subscribed topic to one consumer thread.

    Args:
        subscriptions: consumer id -> topic -> number of streams, for every member of the group.
        partitions: topic -> partition numbers in any order; a missing topic has none, and a topic
            that nobody subscribes to is left out.
        key_form, variant: what the group's JVM release does in round-robin; ignored by range.

    Returns:
        partition -> consumer thread id, for all members.

    Raises:
        ConfigError: round-robin with Variant.IDENTICAL and subscriptions that differ.
    """
    threads: dict[str, list[str]] = {}
    for consumer, counts in subscriptions.items():
        for topic, count in counts.items():
            threads.setdefault(topic, []).extend(thread_ids(consumer, count))
    for of_topic in threads.values():
        of_topic.sort(key=utf16_key)
    numbers = {topic: sorted(partitions.get(topic, ())) for topic in threads}
    if strategy is Strategy.RANGE or variant is Variant.RANGE_ONLY:
        return assign_range(threads, numbers)
    return assign_roundrobin(threads, numbers, key_form=key_form, variant=variant)
