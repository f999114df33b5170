"""Commit the offsets of finished batches of Spark's own Kafka source to a legacy group in
ZooKeeper.

These functions serve queries that keep `format("kafka")` (Spark: `KafkaMicroBatchStream`) and whose
monitoring reads `/consumers/<group>/offsets`. The checkpoint remains the source of truth. Offsets
are written only after their batch is finished, and only forward, so a replayed batch or a crash in
between changes nothing. The query does not become a group member: two queries with one group would
overwrite each other's offsets.

Spark reports the end of a batch in two places, so there are two ways to commit it:

- The progress of each finished batch contains the end of each partition (`sources[i].endOffset`).
  `CommitListener` reads it there. These ends are exact, even with transaction markers and filtered
  rows. The listener needs no pass over the data, and commits after Spark has written its own commit
  log. The commit is some tenths of a second late. If the driver dies first, the last commit is
  missing until the next batch. Prefer this way.
- A `foreachBatch` function receives the rows and the batch number, but no offsets. So `committing`
  takes the largest offset of each partition among the rows. It commits within the call. Use it if
  the znodes must be written before the next batch starts. The rows must still have the columns
  `topic`, `partition` and `offset`, and rows that were filtered out do not count. Finding the
  largest offsets needs one more pass, so the batch is kept (`persist`) instead of read from Kafka
  twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import SparkSourceError, ZkConsumerError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.offset_mirror import OffsetMirror
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.progress_listener import positions

Process = Callable[[DataFrame, int], object]

_log = SafeLogger(logging.getLogger(__name__))

_COLUMNS = ("topic", "partition", "offset")


def ranges_of(batch: DataFrame) -> list[OffsetRange]:
    """Return the offset range of each partition's rows in a batch, in order. The function reads all
    rows once.

    Raises:
        SparkSourceError: the rows lack a column topic, partition or offset.
    """
    if missing := [name for name in _COLUMNS if name not in batch.columns]:
        raise SparkSourceError(
            "the batch lacks columns from which to find its offsets",
            where=", ".join(missing),
            remedy="also select topic, partition and offset, or use a CommitListener",
        )
    rows = (
        batch.groupBy("topic", "partition")
        .agg(sf.min("offset").alias("first"), sf.max("offset").alias("last"))
        .collect()
    )
    return sorted(
        OffsetRange(row["topic"], row["partition"], row["first"], row["last"] + 1) for row in rows
    )


def committing(
    process: Process,
    *,
    zookeeper: str,
    group: str,
    properties: Mapping[str, str] | None = None,
) -> Committing:
    """Return a function for `foreachBatch` that calls `process` and then writes the offsets.

        query = rows.writeStream.foreachBatch(committing(store, zookeeper="zk:2181", group="g"))

    If `process` raises or a write fails, the query fails, and Spark replays the batch when the
    query restarts. The module's docstring says when to use a `CommitListener` instead.

    Args:
        process: a function for `foreachBatch`; the batch that it receives is persisted.
        zookeeper: `host:port,.../chroot`.
        group: the group whose offsets are written.
        properties: further properties of the old consumer (security, timeouts).

    Raises:
        ConfigError: a property is wrong. The returned function raises SparkSourceError if columns
            are missing, and the errors of `OffsetMirror.commit`.
    """
    return Committing(process, _config(zookeeper, group, properties))


class Committing:
    """The function that `committing` returns. The function can be pickled, because Spark Connect
    runs it in another process.
    """

    def __init__(self, process: Process, config: ConsumerConfig) -> None:
        self._process, self._config = process, config
        self._mirror: OffsetMirror | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        must_persist = not batch.is_cached
        if must_persist:
            batch.persist()
        try:
            self._process(batch, batch_id)
            ends = {one.tp: one.end for one in ranges_of(batch)}
        finally:
            if must_persist:
                batch.unpersist()
        if ends:
            self._mirror = self._mirror or OffsetMirror(self._config)
            self._mirror.commit(ends)

    def close(self) -> None:
        """End the ZooKeeper session; the next call opens a new one."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_mirror": None}


class CommitListener(StreamingQueryListener):
    """Writes the offsets of each finished batch of one query to ZooKeeper.

        spark.streams.addListener(CommitListener(query="orders", zookeeper="zk:2181", group="g"))

    If a write fails, the listener logs a warning and writes the offsets of the next batch: late
    offsets of a group are no reason to stop a query.
    """

    def __init__(
        self,
        *,
        query: str,
        zookeeper: str,
        group: str,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            query: the query's `queryName`; Spark calls a listener for all queries of its session.
            zookeeper, group, properties: as in `committing`.

        Raises:
            ConfigError: a property is wrong.
        """
        self._query = query
        self._config = _config(zookeeper, group, properties)
        self._mirror: OffsetMirror | None = None
        self._run: object = None
        self._written: Mapping[TopicPartition, int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if event.name == self._query:
            self._run, self._written = event.runId, {}

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if event.progress.name != self._query:
            return
        self._run = event.progress.runId
        ends = {
            tp: end[-1]
            for source in event.progress.sources
            for tp, end in positions(source.endOffset).items()
        }
        if not ends or ends == self._written:
            return
        try:
            self._mirror = self._mirror or OffsetMirror(self._config)
            self._mirror.commit(ends)
            self._written = ends
        except ZkConsumerError as error:
            _log.warning("query %s: offsets were not written to ZooKeeper: %s", self._query, error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.runId == self._run:
            self.close()

    def close(self) -> None:
        """End the ZooKeeper session; the next batch opens a new one."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close()


def _config(zookeeper: str, group: str, properties: Mapping[str, str] | None) -> ConsumerConfig:
    own = {"zookeeper.connect": zookeeper, "group.id": group}
    return ConsumerConfig.from_properties({**(properties or {}), **own})
