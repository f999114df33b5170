"""The two assignment strategies, which assign each partition to a consumer thread.

Every member computes the whole assignment by itself from the same input. The result must equal the
JVM members' result for every partition; otherwise two members claim the same partition.

The range strategy gives each thread contiguous partitions of each topic (Kafka: `RangeAssignor`).
The round-robin strategy gives all partitions, sorted by a hash code, in turn to all threads
(`RoundRobinAssignor`).
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


def assign_range_0_8(
    threads: Mapping[str, Sequence[str]], partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """Divide each topic's partitions among its threads.

    Both arguments map topics to sorted values; threads are sorted as UTF-16 strings.

    With P partitions and C threads, the first P mod C threads get one more partition. The division
    counts positions and not partition numbers, so gaps in the numbering do not matter.
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


# ---- round-robin ---------------------------------------------------------------------------------


class PartitionFormat(Enum):
    """The form of `TopicAndPartition.toString`, whose hash code orders the partitions.

    The form changed unintentionally (KAFKA-5822), so members with different forms in one group
    disagree.
    """

    BRACKET = "[{topic},{partition}]"  # 0.8.2-0.11
    DASH = "{topic}-{partition}"  # 1.0-1.1


class RoundRobinRule(Enum):
    """The treatment of members with different subscriptions in round-robin."""

    RANGE_ONLY = "range"  # 0.8.0-0.8.1: round-robin does not exist, range is used instead
    IDENTICAL = "identical"  # 0.8.2-0.10.1: different subscriptions are an error
    SKIPPING = "skipping"  # 0.10.2-1.1 (KAFKA-2434): threads without the topic are skipped


def assign_roundrobin(
    threads: Mapping[str, Sequence[str]],
    partitions: Mapping[str, Sequence[int]],
    *,
    key_form: PartitionFormat,
    variant: RoundRobinRule,
) -> dict[TopicPartition, str]:
    """Give all partitions in turn to all threads.

    Both arguments map topics to sorted values. Threads are ordered as UTF-16 strings, and
    partitions by a hash code.

    Partitions with equal hash codes are ordered by topic and number. In the JVM their order depends
    on a Scala hash map and on ZooKeeper's order of children, and cannot be reproduced.
    """
    if variant is RoundRobinRule.IDENTICAL:
        _require_identical(threads)
    circle = sorted({thread for of_topic in threads.values() for thread in of_topic}, key=utf16_key)
    place = {thread: position for position, thread in enumerate(circle)}
    places = {topic: [place[thread] for thread in own] for topic, own in threads.items()}
    assignment: dict[TopicPartition, str] = {}
    cursor = 0
    for tp in _hash_order(partitions, key_form):
        own = places[tp.topic]
        found = bisect_left(own, cursor)  # the next thread in the cycle that has the topic
        position = own[found] if found < len(own) else own[0]
        assignment[tp] = circle[position]
        cursor = position + 1
    return assignment


def _hash_order(
    partitions: Mapping[str, Sequence[int]], key_form: PartitionFormat
) -> list[TopicPartition]:
    keyed: list[tuple[int, TopicPartition]] = []
    before, after = key_form.value.split("{partition}")
    for topic in sorted(partitions, key=utf16_key):
        # The keys of all partitions of a topic share a prefix, so hash the prefix once.
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


# ---- both strategies -----------------------------------------------------------------------------


__all__ = ["PartitionFormat", "RoundRobinRule", "Strategy", "assign"]


class Strategy(Enum):
    """`partition.assignment.strategy`; all members of a group must use the same strategy."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"


def assign(
    strategy: Strategy,
    *,
    subscriptions: Mapping[str, Mapping[str, int]],
    partitions: Mapping[str, Sequence[int]],
    key_form: PartitionFormat = PartitionFormat.BRACKET,
    variant: RoundRobinRule = RoundRobinRule.SKIPPING,
) -> dict[TopicPartition, str]:
    """Give every partition of every subscribed topic to one consumer thread.

    Args:
        subscriptions: consumer id -> topic -> number of streams, for every member of the group.
        partitions: topic -> partition numbers in any order. A missing topic has no partitions, and
            a topic without subscribers is left out.
        key_form, variant: the round-robin rules of the group's JVM release; ignored by range.

    Returns:
        partition -> consumer thread id, for all members.

    Raises:
        ConfigError: round-robin with RoundRobinRule.IDENTICAL and subscriptions that differ.
    """
    streams: dict[str, list[tuple[str, int]]] = {}
    for consumer, counts in subscriptions.items():
        for topic, count in counts.items():
            streams.setdefault(topic, []).append((consumer, count))
    # Members usually subscribe to the same topics, so their threads are sorted once.
    ordered: dict[tuple[tuple[str, int], ...], list[str]] = {}
    threads: dict[str, list[str]] = {}
    for topic, of_topic in streams.items():
        key = tuple(of_topic)
        if key not in ordered:
            found = (thread for one in of_topic for thread in thread_ids(*one))
            ordered[key] = sorted(found, key=utf16_key)
        threads[topic] = ordered[key]
    numbers = {topic: sorted(partitions.get(topic, ())) for topic in threads}
    if strategy is Strategy.RANGE or variant is RoundRobinRule.RANGE_ONLY:
        return assign_range_0_8(threads, numbers)
    return assign_roundrobin(threads, numbers, key_form=key_form, variant=variant)
