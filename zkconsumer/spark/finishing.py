"""Offsets of finished batches of Spark's own Kafka source, written to a legacy group in ZooKeeper.

For queries that keep `format("kafka")` (Spark: `KafkaMicroBatchStream`), whose monitors look into
`/consumers/<group>/offsets`. The checkpoint leads and the znodes follow: they are written only
after the batch is done, and only forward, so a replayed batch, or one that crashed in between,
changes nothing. It is no membership: two queries under one group would write over each other.

Where a batch ends is known in two places, so there are two ways:

- The progress that Spark reports of each finished batch names the end of each partition
  (`sources[i].endOffset`). `CommitListener` takes it from there: exact, also beyond markers of
  transactions and filtered rows, without a pass over the data, and after Spark's own commit log.
  It comes some tenths of a second late, and the last one may be missed if the driver dies first;
  the next batch makes up for it. Take this one.
- A foreachBatch function is given the rows and the number of the batch, and nothing of its offsets:
  neither the plan of that DataFrame nor any public call has them. So `committing` takes the largest
  offset of each partition among the rows. It commits within the call, which is right where the
  znodes must be written before the next batch begins; but the rows must still have the columns
  `topic`, `partition` and `offset`, what was filtered out before is not counted, and finding the
  largest is one pass more: the batch is kept for it (`persist`), rather than read from Kafka twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

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
from zkconsumer.spark.offset_mirror import OffsetMirror
from zkconsumer.spark.offset_ranges import OffsetRange
from zkconsumer.spark.progress_listener import positions

Process = Callable[[DataFrame, int], object]

_log = logging.getLogger(__name__)

_COLUMNS = ("topic", "partition", "offset")


def ranges_of(batch: DataFrame) -> list[OffsetRange]:
    """From the first to the last row of each partition in a batch, in order; one pass over it.

    Raises:
        SparkSourceError: the rows have no longer the columns topic, partition and offset.
    """
    if missing := [name for name in _COLUMNS if name not in batch.columns]:
        raise SparkSourceError(
            "the batch does not tell its offsets: columns are missing",
            where=", ".join(missing),
            remedy="select topic, partition and offset, too, or use a CommitListener",
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
    """A function for `foreachBatch` that calls `process`, and then writes the batch's offsets.

        query = rows.writeStream.foreachBatch(committing(store, zookeeper="zk:2181", group="g"))

    If `process` raises, or a write fails, the query fails and the batch comes again. The text above
    says what it can know of a batch, and when to take a `CommitListener` instead.

    Args:
        process: as `foreachBatch` takes it; it is given the batch persisted.
        zookeeper: `host:port,.../chroot`.
        group: whose offsets are written.
        properties: further ones of the old consumer (security, time-outs).

    Raises:
        ConfigError: a property is wrong. The function itself raises SparkSourceError where columns
        are missing, and the errors of ZooKeeper.
    """
    return Committing(process, _config(zookeeper, group, properties))


class Committing:
    """What `committing` returns; it can be pickled, since Spark Connect runs it elsewhere."""

    def __init__(self, process: Process, config: ConsumerConfig) -> None:
        self._process, self._config = process, config
        self._mirror: OffsetMirror | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        is_ours = not batch.is_cached
        if is_ours:
            batch.persist()
        try:
            self._process(batch, batch_id)
            ends = {one.tp: one.end for one in ranges_of(batch)}
        finally:
            if is_ours:
                batch.unpersist()
        if ends:
            self._mirror = self._mirror or OffsetMirror(self._config)
            self._mirror.commit(ends)

    def close(self) -> None:
        """End its session with ZooKeeper, which the next call begins anew."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mirror": None}


class CommitListener(StreamingQueryListener):
    """Writes the offsets of each finished batch of one query.

        spark.streams.addListener(CommitListener(query="orders", zookeeper="zk:2181", group="g"))

    What ZooKeeper refuses is a warning in the log, and tried again with the next batch: a monitor
    that lags is no reason to stop a query.
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
            query: its `queryName`; a listener hears of all queries of its session.
            zookeeper, group, properties: as in `committing`.

        Raises:
            ConfigError: a property is wrong.
        """
        self._query = query
        self._config = _config(zookeeper, group, properties)
        self._mirror: OffsetMirror | None = None
        self._run: Any = None
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
            _log.warning("%s: offsets are not written: %s", self._query, error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.runId == self._run:
            self.close()

    def close(self) -> None:
        """End its session with ZooKeeper, which the next batch begins anew."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close()


def _config(zookeeper: str, group: str, properties: Mapping[str, str] | None) -> ConsumerConfig:
    own = {"zookeeper.connect": zookeeper, "group.id": group}
    return ConsumerConfig.from_properties({**(properties or {}), **own})
