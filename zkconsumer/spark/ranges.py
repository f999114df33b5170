"""Which messages a task or a batch reads: whole ranges of offsets, as values.

Everything here is pure; offsets are those of the Kafka log, `start` included and `end` not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zkconsumer.core.model import TopicPartition
from zkconsumer.errors import SparkSourceError


class OffsetRange(NamedTuple):
    """Messages `start` to `end` - 1 of a partition (Spark: `OffsetRange`)."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many messages at most; no `__len__`, by which a tuple is copied and pickled."""
        return max(0, self.end - self.start)


StreamOffset = dict[str, dict[str, list[int]]]
"""What Spark's checkpoint keeps of a batch: `{"topic": {"0": [start, end]}}`.

It describes the batch by itself: a replay needs neither the batch before it nor who owns what. A
partition without news keeps `[end, end]`. A third number only tells a repetition apart.
"""


def to_offset(
    ranges: Iterable[OffsetRange], *, unlike: StreamOffset | None = None
) -> StreamOffset:
    """The checkpoint's form; topics and partitions in order, since Spark compares it as text.

    The text of `unlike` would mean no news to Spark; where the same ranges are to be read once more
    (an operator's rewind, a topic made anew), a third number tells the two apart. Without any
    partition, the topic with the empty name does.
    """
    found: StreamOffset = {}
    for one in sorted(ranges):
        found.setdefault(one.topic, {})[str(one.partition)] = [one.start, one.end]
    if not found and not unlike and unlike is not None:
        return {"": {}}
    if found == unlike:
        return {topic: {number: [*pair, 1] for number, pair in partitions.items()}
                for topic, partitions in found.items()}
    return found


def from_offset(offset: Mapping[str, Mapping[str, Iterable[int]]]) -> list[OffsetRange]:
    """The ranges of a checkpoint's offset.

    Raises:
        SparkSourceError: it is none of ours: the checkpoint is another source's.
    """
    try:
        return [
            OffsetRange(topic, int(partition), *map(int, list(pair)[:2]))
            for topic, partitions in offset.items()
            for partition, pair in partitions.items()
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise SparkSourceError(
            "the checkpoint holds an offset that this source has not written",
            where=json.dumps(offset)[:200],
            remedy="give the query a checkpoint of its own",
        ) from error
