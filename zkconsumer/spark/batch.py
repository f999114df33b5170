"""Batch reads (`spark.read`): what lies between two offsets of each partition when it is planned.

Spark plans once for each `load()`: a DataFrame shows the same messages however often it is used. No
group is joined and nothing is written, also with `group.id`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from zkconsumer.kafka.logs import are_times_exact
from zkconsumer.spark.lifecycle import log_to_stderr, one_sentence
from zkconsumer.spark.logs import ClusterLogs, brokers_of
from zkconsumer.spark.narrowing import Narrowing
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.ranges import OffsetRange
from zkconsumer.spark.resolving import batch_ranges
from zkconsumer.spark.tasks import planned, read_task

if TYPE_CHECKING:
    import pyarrow

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
            sum(one.size for one in ranges), len(ranges), len(tasks),
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
            one._replace(start=max(one.start, at)) if isinstance(at, int)
            else one._replace(start=one.end) if at is None else one
            for one, at in ((one, firsts.get(one.tp, "")) for one in found)
        ]


def batch_reader(options: SourceOptions, columns: Sequence[str]) -> BatchReader:
    """The reader that the option `pushFilters` asks for."""
    return (PushingBatchReader if options.push_filters else BatchReader)(options, columns)
