"""The range strategy: each topic by itself, in contiguous slices (`RangeAssignor`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zkconsumer.core.model import TopicPartition


def assign(
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
