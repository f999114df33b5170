"""Which messages a task or a batch reads: whole ranges of offsets, as values.

Everything here is pure; offsets are those of the Kafka log, `start` included and `end` not.

Which messages the next batch has, and how they are dealt to tasks; everything here is pure.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from zkconsumer.errors import SparkSourceError
from zkconsumer.protocol.model import TopicPartition


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


def to_offset(ranges: Iterable[OffsetRange], *, unlike: StreamOffset | None = None) -> StreamOffset:
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
        return {
            topic: {number: [*pair, 1] for number, pair in partitions.items()}
            for topic, partitions in found.items()
        }
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


# ---- planning ------------------------------------------------------------------------------------


Ranges = tuple[OffsetRange, ...]
"""What one task reads."""

SHARED_TASK: Final = 5_000
"""Messages up to which ranges share a task. They are read in about 10 ms, where a task of its own
costs Spark some 60: many partitions with a few messages each would otherwise cost a batch seconds.
"""


def advance(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    limit: int | None = None,
) -> list[OffsetRange]:
    """From each position to the end of its log, `limit` messages in all; empty without news.

    A partition whose end is not known, or lies before its position, gets an empty range.
    """
    sizes = {tp: max(0, ends.get(tp, at) - at) for tp, at in positions.items()}
    shares = sizes if limit is None else shared(limit, sizes)
    return [OffsetRange(*tp, at, at + shares[tp]) for tp, at in positions.items()]


def shared(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """`limit` messages, dealt in proportion to what each partition has.

    None that has any gets nothing, so that there can be as many more as there are partitions
    (`org.apache.spark.sql.kafka010.KafkaMicroBatchStream.rateLimit`, Spark 4.3).
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    return {
        tp: min(size, max(1, limit * size // total)) if size else 0 for tp, size in sizes.items()
    }


def tasks(ranges: Iterable[OffsetRange], *, min_partitions: int | None = None) -> list[Ranges]:
    """Deal ranges to tasks: a task a partition, but small ones together, and large ones in parts.

    With more non-empty ranges than `min_partitions`, those that are small share tasks of up to
    `SHARED_TASK` messages, and there are never fewer tasks than `min_partitions`. With fewer, they
    are split in proportion to their sizes, as `org.apache.spark.sql.kafka010.
    KafkaOffsetRangeCalculator` of Spark 4.3 does; rounding can make it a few more or fewer.
    """
    whole = sorted(one for one in ranges if one.size)
    if min_partitions is not None and min_partitions > len(whole):
        return [(part,) for part in _split(whole, min_partitions)]
    large = [one for one in whole if one.size >= SHARED_TASK]
    small = [one for one in whole if one.size < SHARED_TASK]
    needed = -(-_size(small) // SHARED_TASK)
    bins = min(len(small), max(needed, (min_partitions or 0) - len(large)))
    return sorted([*((one,) for one in large), *_together(small, bins)])


def _split(ranges: Sequence[OffsetRange], wanted: int) -> list[OffsetRange]:
    total = _size(ranges)
    small = {one for one in ranges if _parts(one.size, total, wanted) == 1}
    rest = total - _size(small)
    for_rest = max(wanted - len(small), 1)
    found: list[OffsetRange] = []
    for one in ranges:
        parts = 1 if one in small else _parts(one.size, rest, for_rest)
        start = one.start
        for left in range(parts, 0, -1):
            end = start + (one.end - start) // left
            if end > start:
                found.append(one._replace(start=start, end=end))
            start = end
    return found


def _size(ranges: Iterable[OffsetRange]) -> int:
    return sum(one.size for one in ranges)


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, round(size / total * wanted))


def _together(ranges: Sequence[OffsetRange], bins: int) -> list[Ranges]:
    """The largest first, each into what has least: no bin is much fuller than another."""
    filled: list[tuple[int, int, list[OffsetRange]]] = [(0, number, []) for number in range(bins)]
    for one in sorted(ranges, key=attrgetter("size"), reverse=True):
        size, number, members = filled[0]
        members.append(one)
        heapq.heapreplace(filled, (size + one.size, number, members))
    return [tuple(sorted(members)) for _, _, members in filled]
