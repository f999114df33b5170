"""Who should own what: every member computes this alone, from the same input, with equal results.

The result must be that of the group's JVM members to the last partition, or claims collide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from zkconsumer.core.assignors import range as range_assignor
from zkconsumer.core.assignors import roundrobin
from zkconsumer.core.assignors.roundrobin import KeyForm, Variant
from zkconsumer.core.javatext import utf16_key
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.topics import thread_ids

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
        return range_assignor.assign(threads, numbers)
    return roundrobin.assign(threads, numbers, key_form=key_form, variant=variant)
