"""Batch reads (`spark.read`): the messages between two offsets of each partition.

Spark plans once for each `load()`, so a DataFrame shows the same messages each time it is used. A
batch read joins no group and writes nothing, even with `group.id`. `PushedFilters` turns a query's
filters into bounds of the offsets to read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from zkconsumer.kafka.logs import are_times_exact
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.cluster_logs import ClusterLogs, brokers_of
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.offset_resolution import batch_ranges
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.process_lifecycle import errors_as_text, log_to_stderr
from zkconsumer.spark.task_reader import TaskReader, planned

# ---- Filters that Spark pushes down --------------------------------------------------------------


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})


class PushedFilters:
    """The topics, partitions and offsets that can pass all filters of a query.

    Attributes:
        since_ms: a time in ms since 1970, or None. No message before the first message with this
            time or a later one can pass.
    """

    def __init__(self) -> None:
        self._topics: frozenset[str] | None = None
        self._partitions: frozenset[int] | None = None
        # Lower and upper bounds of integer columns, both inclusive.
        self._bounds: dict[str, tuple[float, float]] = {}
        self.since_ms: int | None = None

    def accept(self, one: Filter) -> bool:
        """Add a filter; return True if the bounds apply it exactly.

        Otherwise Spark must evaluate the filter again.

        A list of offsets becomes a minimum and a maximum. An upper bound of timestamps has no
        effect: producers set timestamps, so a message with a lower timestamp may follow one with a
        higher timestamp.
        """
        match one:
            case IsNotNull((name,)):
                return name in _NEVER_NULL
            case EqualTo(("topic",), str(topic)):
                self._only_topics([topic])
            case In(("topic",), topics):
                self._only_topics(topics)
            case In(("partition",), numbers):
                self._only_partitions(numbers)
            case In(("offset",), numbers) if any(map(_is_integer, numbers)):
                known = [number for number in numbers if _is_integer(number)]
                self._bound("offset", min(known), max(known))
                return False
            case EqualTo(("timestamp",), datetime(tzinfo=tzinfo()) as at) | GreaterThanOrEqual(
                ("timestamp",), datetime(tzinfo=tzinfo()) as at
            ):
                self._since(math.ceil(_millis(at)))
                return False
            case GreaterThan(("timestamp",), datetime(tzinfo=tzinfo()) as at):
                self._since(math.floor(_millis(at)) + 1)
                return False
            case _:
                return self._add_bound(one)
        return True

    def apply_to(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that can pass the filters, without empty ones."""
        low, high = self._bounds.get("offset", (-math.inf, math.inf))
        first, last = self._bounds.get("partition", (-math.inf, math.inf))
        found = [
            one._replace(start=int(max(one.start, low)), end=int(min(one.end, high + 1)))
            for one in ranges
            if (self._topics is None or one.topic in self._topics)
            and (self._partitions is None or one.partition in self._partitions)
            and first <= one.partition <= last
        ]
        return [one for one in found if one.size]

    def _add_bound(self, one: Filter) -> bool:
        match one:
            case EqualTo((name,), value):
                low, high = value, value
            case GreaterThan((name,), value):
                low, high = value + 1 if _is_integer(value) else value, math.inf
            case GreaterThanOrEqual((name,), value):
                low, high = value, math.inf
            case LessThan((name,), value):
                low, high = -math.inf, value - 1 if _is_integer(value) else value
            case LessThanOrEqual((name,), value):
                low, high = -math.inf, value
            case _:
                return False
        if name not in ("partition", "offset") or not _is_integer(value):
            return False
        self._bound(name, low, high)
        return True

    def _bound(self, name: str, low: float, high: float) -> None:
        least, most = self._bounds.get(name, (-math.inf, math.inf))
        self._bounds[name] = (max(least, low), min(most, high))

    def _only_topics(self, topics: Iterable[object]) -> None:
        some = frozenset(one for one in topics if isinstance(one, str))
        self._topics = some if self._topics is None else self._topics & some

    def _only_partitions(self, numbers: Iterable[object]) -> None:
        some = frozenset(one for one in numbers if isinstance(one, int) and _is_integer(one))
        self._partitions = some if self._partitions is None else self._partitions & some

    def _since(self, at_ms: int) -> None:
        self.since_ms = at_ms if self.since_ms is None else max(self.since_ms, at_ms)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _millis(at: datetime) -> float:
    """Return the milliseconds since 1970, exact for whole microseconds."""
    return (at - _EPOCH) / timedelta(milliseconds=1)


# ---- Readers -------------------------------------------------------------------------------------


_log = SafeLogger(logging.getLogger(__name__))


class BatchReader(TaskReader, DataSourceReader):
    """Spark calls `partitions` in a process on the driver, and `read` of a copy in the tasks.

    `options` come from `for_batch`.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks; the plan may be empty. Raises what `batch_ranges` raises."""
        log_to_stderr()
        with errors_as_text():
            cluster = ClusterLogs(partial(brokers_of, self._options.config))
            ranges = self._filtered(batch_ranges(self._options, cluster), cluster)
            tasks = planned(self._options, ranges, cluster.bootstrap())
        _log.info(
            "batch read: %d offsets of %d partitions in %d tasks",
            sum(one.size for one in ranges),
            len(ranges),
            len(tasks),
        )
        return tasks

    def _filtered(
        self, ranges: Sequence[OffsetRange], cluster: ClusterLogs
    ) -> Sequence[OffsetRange]:
        return ranges


class PushingBatchReader(BatchReader):
    """A batch reader that reads only messages that can pass the query's filters.

    The class is separate, because Spark refuses a reader that accepts filters while
    `spark.sql.python.filterPushdown.enabled` is false, which is the default in Spark 4.3.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._filters = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return the filters that Spark must still evaluate."""
        return [one for one in filters if not self._filters.accept(one)]

    def _filtered(
        self, ranges: Sequence[OffsetRange], cluster: ClusterLogs
    ) -> Sequence[OffsetRange]:
        found = self._filters.apply_to(ranges)
        since_ms = self._filters.since_ms
        if since_ms is None or not are_times_exact(cluster.bootstrap()):
            return found
        firsts = cluster.at([one.tp for one in found if one.size], since_ms)
        # None means that no message has this time or a later one. A string means that the look-up
        # failed; then the range is read in full.
        return [
            one._replace(start=max(one.start, at))
            if isinstance(at, int)
            else one._replace(start=one.end)
            if at is None
            else one
            for one, at in ((one, firsts.get(one.tp, "")) for one in found)
        ]


def batch_reader(options: SourceOptions, columns: Sequence[str]) -> BatchReader:
    """Return the reader for the option `pushFilters`."""
    return (PushingBatchReader if options.push_filters else BatchReader)(options, columns)
