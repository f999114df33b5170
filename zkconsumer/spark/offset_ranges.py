"""Ranges of offsets: the messages of a batch, how the checkpoint represents them, and how they are
divided among tasks.

A range includes its start and excludes its end. Everything here is pure.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

from zkconsumer.errors import SparkSourceError
from zkconsumer.protocol.model import TopicPartition


class OffsetRange(NamedTuple):
    """Messages `start` to `end` - 1 of a partition (Spark: `OffsetRange`).

    `token` is the fencing token of the member that planned the range; None if no member did, or if
    the query does not read the token.
    """

    topic: str
    partition: int
    start: int
    end: int
    token: int | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Return the number of offsets. `copy` and `pickle` call `__len__`, so it stays the
        tuple's."""
        return max(0, self.end - self.start)


StreamOffset = dict[str, dict[str, list[int]]]
"""The form of a batch in Spark's checkpoint: `{"topic": {"0": [start, end]}}`.

The form describes a batch completely: a replay needs neither the previous batch nor the group's
owners. A partition without new messages has `[end, end]`. A third number distinguishes a repeated
batch from its original; it may be 0 or absent. A fourth number is the fencing token.
"""


def to_offset(ranges: Iterable[OffsetRange], *, unlike: StreamOffset | None = None) -> StreamOffset:
    """Return the checkpoint form of these ranges.

    Topics and partitions are sorted, because Spark compares the forms as text. If the text equals
    that of `unlike`, Spark concludes that there are no new messages. If the same ranges must be
    read once more (an operator rewound the group, or a topic was created again), a third number
    makes the text different. If there is no partition, an entry with an empty topic name makes the
    text different.
    """
    some = sorted(ranges)
    if not some and not unlike and unlike is not None:
        return {"": {}}
    found = _entry(some, 0)
    return _entry(some, 1) if found == unlike else found


def _entry(ranges: Iterable[OffsetRange], mark: int) -> StreamOffset:
    found: StreamOffset = {}
    for one in ranges:
        numbers = [one.start, one.end]
        if one.token is not None:
            numbers += [mark, one.token]
        elif mark:
            numbers.append(mark)
        found.setdefault(one.topic, {})[str(one.partition)] = numbers
    return found


def from_offset(offset: Mapping[str, Mapping[str, Iterable[int]]]) -> list[OffsetRange]:
    """Return the ranges in an entry of Spark's checkpoint (Spark's `Offset`).

    Raises:
        SparkSourceError: the offset has another form, so another source wrote the checkpoint.
    """
    try:
        return [
            OffsetRange(topic, int(partition), *_parsed(numbers))
            for topic, partitions in offset.items()
            for partition, numbers in partitions.items()
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise SparkSourceError(
            "the checkpoint contains an offset that this source did not write",
            where=json.dumps(offset)[:200],
            remedy="give the query a checkpoint of its own",
        ) from error


def _parsed(numbers: Iterable[int]) -> tuple[int, int, int | None]:
    start, end, *more = map(int, numbers)
    return start, end, more[1] if len(more) > 1 else None


class MicroBatch:
    """A batch as Spark's checkpoint has it; its ranges are parsed once, when they are needed.

    The ranges raise SparkSourceError, as `from_offset` does.
    """

    def __init__(self, offset: StreamOffset) -> None:
        """`offset` is the end offset of the batch, which Spark compares by its text."""
        self.offset = offset

    @cached_property
    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Partition -> its range."""
        return {one.tp: one for one in from_offset(self.offset)}

    @cached_property
    def ends(self) -> dict[TopicPartition, int]:
        """Partition -> the end of its range."""
        return {tp: one.end for tp, one in self.ranges.items()}

    def followed_by(self, ranges: Iterable[OffsetRange]) -> StreamOffset:
        """Return the end offset of the next batch; its text differs from this one's."""
        return to_offset(ranges, unlike=self.offset)

    def followed_by_nothing(self) -> StreamOffset:
        """Return the end offset of an empty batch that follows this one."""
        return self.followed_by(one._replace(start=one.end) for one in self.ranges.values())


# ---- Planning a batch and its tasks --------------------------------------------------------------


Offsets = dict[TopicPartition, int]
"""Partition -> the next offset to read."""

Ranges = tuple[OffsetRange, ...]
"""The ranges that one task reads."""

SHARED_TASK: Final = 5_000
"""Number of messages up to which small ranges share a task.

Reading this many messages takes about 10 ms, while a separate task costs Spark about 60 ms. Without
sharing, a batch of many partitions with a few messages each would take seconds.
"""


def advance(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    limit: int | None = None,
) -> list[OffsetRange]:
    """Return a range for each partition, from its position to the end of its log.

    The ranges contain about `limit` messages in all; see `shared`. A partition whose log end is
    unknown or lies before its position gets an empty range.
    """
    sizes = {tp: max(0, ends.get(tp, at) - at) for tp, at in positions.items()}
    shares = sizes if limit is None else shared(limit, sizes)
    return [OffsetRange(*tp, at, at + shares[tp]) for tp, at in positions.items()]


def available(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Return the number of messages from the positions to the ends of the logs."""
    return sum(max(0, ends.get(tp, at) - at) for tp, at in positions.items())


def shared(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Divide `limit` messages among partitions, in proportion to the number of messages in each
    partition.

    Every partition with messages gets at least one, so the sum may exceed `limit` by the number of
    partitions (`org.apache.spark.sql.kafka010.KafkaMicroBatchStream.rateLimit`, Spark 4.3).
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    return {
        tp: min(size, max(1, limit * size // total)) if size else 0 for tp, size in sizes.items()
    }


def tasks(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Ranges]:
    """Distribute ranges over tasks.

    No task has more than `max_records` messages: longer ranges are first divided into equal parts.

    If there are more non-empty ranges than `min_partitions`, each large range gets its own task,
    and small ranges share tasks of up to `SHARED_TASK` messages; there are at least
    `min_partitions` tasks. If there are fewer, the ranges are split in proportion to their sizes,
    as in `org.apache.spark.sql.kafka010.KafkaOffsetRangeCalculator` of Spark 4.3; rounding may add
    or remove a few tasks.
    """
    nonempty = sorted(one for one in ranges if one.size)
    if max_records is not None:
        nonempty = [part for one in nonempty for part in _divided(one, -(-one.size // max_records))]
    if min_partitions is not None and min_partitions > len(nonempty):
        return [(part,) for part in _split(nonempty, min_partitions)]
    if max_records is not None and max_records < 2 * SHARED_TASK:
        return [(one,) for one in nonempty]  # a shared task might have more messages
    large = [one for one in nonempty if one.size >= SHARED_TASK]
    small = [one for one in nonempty if one.size < SHARED_TASK]
    needed = -(-_size(small) // SHARED_TASK)
    bins = min(len(small), max(needed, (min_partitions or 0) - len(large)))
    return sorted([*((one,) for one in large), *_packed(small, bins)])


def _split(ranges: Sequence[OffsetRange], wanted: int) -> list[OffsetRange]:
    total = _size(ranges)
    small = {one for one in ranges if _parts(one.size, total, wanted) == 1}
    rest = total - _size(small)
    for_rest = max(wanted - len(small), 1)
    found: list[OffsetRange] = []
    for one in ranges:
        found += _divided(one, 1 if one in small else _parts(one.size, rest, for_rest))
    return found


def _divided(one: OffsetRange, parts: int) -> list[OffsetRange]:
    """Return the range in this number of parts of about equal size, without empty ones."""
    found: list[OffsetRange] = []
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


def _packed(ranges: Sequence[OffsetRange], bins: int) -> list[Ranges]:
    """Distribute ranges over bins, the largest range first and always into the emptiest bin."""
    filled: list[tuple[int, int, list[OffsetRange]]] = [(0, number, []) for number in range(bins)]
    for one in sorted(ranges, key=attrgetter("size"), reverse=True):
        size, number, members = filled[0]
        members.append(one)
        heapq.heapreplace(filled, (size + one.size, number, members))
    return [tuple(sorted(members)) for _, _, members in filled]
