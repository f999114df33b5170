"""Batch reads (`spark.read`): what lies between two offsets of each partition when it is planned.

Spark plans once for each `load()`: a DataFrame shows the same messages however often it is used. No
group is joined and nothing is written, also with `group.id`.

A query's filters as bounds of what is read; everything here is pure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from zkconsumer.spark.cluster_logs import ClusterLogs, brokers_of
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.offset_resolution import batch_ranges
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import log_to_stderr, one_sentence
from zkconsumer.spark.task_reader import planned, read_task

if TYPE_CHECKING:
    import pyarrow


# ---- narrowing -----------------------------------------------------------------------------------


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})


class Narrowing:
    """What some filters, all of which must hold, leave to be read.

    Attributes:
        since_ms: no message before the first of this time (ms since 1970) can pass, if given.
    """

    def __init__(self) -> None:
        self._topics: frozenset[str] | None = None
        self._partitions: frozenset[int] | None = None
        # Bounds of whole numbers, both included.
        self._bounds: dict[str, tuple[float, float]] = {}
        self.since_ms: int | None = None

    def takes_over(self, one: Filter) -> bool:
        """Note this filter; whether it is kept to exactly, so that Spark need not look at it again.

        Of a list of offsets only the least and the greatest count. Of timestamps only a lower bound
        does: producers set them, so that behind a late one an early one may follow.
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
            case In(("offset",), numbers) if any(map(_is_whole, numbers)):
                known = [number for number in numbers if _is_whole(number)]
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
                return self._is_bound(one)
        return True

    def of_offsets(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What is left of these ranges; those of which nothing is are left out."""
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

    def _is_bound(self, one: Filter) -> bool:
        match one:
            case EqualTo((name,), value):
                low, high = value, value
            case GreaterThan((name,), value):
                low, high = value + 1 if _is_whole(value) else value, math.inf
            case GreaterThanOrEqual((name,), value):
                low, high = value, math.inf
            case LessThan((name,), value):
                low, high = -math.inf, value - 1 if _is_whole(value) else value
            case LessThanOrEqual((name,), value):
                low, high = -math.inf, value
            case _:
                return False
        if name not in ("partition", "offset") or not _is_whole(value):
            return False
        self._bound(name, low, high)
        return True

    def _bound(self, name: str, low: float, high: float) -> None:
        least, most = self._bounds.get(name, (-math.inf, math.inf))
        self._bounds[name] = (max(least, low), min(most, high))

    def _only_topics(self, topics: Iterable[Any]) -> None:
        some = frozenset(one for one in topics if isinstance(one, str))
        self._topics = some if self._topics is None else self._topics & some

    def _only_partitions(self, numbers: Iterable[Any]) -> None:
        some = frozenset(one for one in numbers if _is_whole(one))
        self._partitions = some if self._partitions is None else self._partitions & some

    def _since(self, at_ms: int) -> None:
        self.since_ms = at_ms if self.since_ms is None else max(self.since_ms, at_ms)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _millis(at: datetime) -> float:
    """Milliseconds since 1970, exactly as far as there are whole microseconds."""
    return (at - _EPOCH) / timedelta(milliseconds=1)


# ---- batch ---------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


class BatchReader(Pickled, DataSourceReader):
    """Spark calls `partitions` in a process on the driver, and `read` of a copy in the tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """`options` completed by `for_batch`; `columns` in the order of the schema."""
        self._options, self._columns = options, tuple(columns)

    def __getstate__(self) -> dict[str, Any]:
        """For executors: `read` needs no more, and credentials stay where they are."""
        return {"_columns": self._columns}

    def partitions(self) -> Sequence[InputPartition]:
        """Raises as `batch_ranges`; an empty plan is no error."""
        log_to_stderr()
        with one_sentence():
            cluster = ClusterLogs(partial(brokers_of, self._options.config))
            ranges = self._narrowed(batch_ranges(self._options, cluster), cluster)
            tasks = planned(self._options, ranges, cluster.bootstrap())
        _log.info(
            "batch read: %d offsets of %d partitions in %d tasks",
            sum(one.size for one in ranges),
            len(ranges),
            len(tasks),
        )
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Raises as `reading.read_ranges`."""
        return read_task(partition, self._columns)

    def _narrowed(
        self, ranges: Sequence[OffsetRange], cluster: ClusterLogs
    ) -> Sequence[OffsetRange]:
        return ranges


class PushingBatchReader(BatchReader):
    """One that is told of the query's filters, and reads only what they can let through.

    A class of its own, for Spark refuses any that takes filters while
    `spark.sql.python.filterPushdown.enabled` is false, its default in 4.3.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Those that Spark has still to evaluate."""
        return [one for one in filters if not self._narrowing.takes_over(one)]

    def _narrowed(
        self, ranges: Sequence[OffsetRange], cluster: ClusterLogs
    ) -> Sequence[OffsetRange]:
        found = self._narrowing.of_offsets(ranges)
        since_ms = self._narrowing.since_ms
        if since_ms is None or not are_times_exact(cluster.bootstrap()):
            return found
        firsts = cluster.at([one.tp for one in found if one.size], since_ms)
        # None: no message is as young. What could not be looked up is read as a whole.
        return [
            one._replace(start=max(one.start, at))
            if isinstance(at, int)
            else one._replace(start=one.end)
            if at is None
            else one
            for one, at in ((one, firsts.get(one.tp, "")) for one in found)
        ]


def batch_reader(options: SourceOptions, columns: Sequence[str]) -> BatchReader:
    """The reader that the option `pushFilters` asks for."""
    return (PushingBatchReader if options.push_filters else BatchReader)(options, columns)
