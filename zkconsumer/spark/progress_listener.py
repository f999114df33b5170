"""A listener that logs a query's progress, batch by batch.

    spark.streams.addListener(LagListener())

Spark calls a StreamingQueryListener after a batch is finished and in the checkpoint's commit log
(`ProgressReporter`, `StreamingQueryListenerBus`), on a separate thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from zkconsumer.errors import first_few
from zkconsumer.protocol.model import Json, TopicPartition
from zkconsumer.safe_logger import SafeLogger

_log = SafeLogger(logging.getLogger(__name__))

# Maximum number of partitions that one line names, starting with the highest lag. More partitions
# would not fit into a line of a terminal.
LOGGED_PARTITIONS: Final = 4


class PartitionProgress(NamedTuple):
    """The offsets that a batch read from a partition, `start` to `end` - 1, and the lag after
    it.
    """

    tp: TopicPartition
    start: int | None
    end: int
    lag: int | None

    def __str__(self) -> str:
        read = f"[{'' if self.start is None else self.start},{self.end})"
        return f"{self.tp} {read}" + ("" if self.lag is None else f" lag {self.lag}")


def progress_of(source: SourceProgress) -> list[PartitionProgress]:
    """Return the partitions of a batch of this source or of Spark's Kafka source, sorted by name.

    The lag is None if the source did not report the end of the log.
    """
    starts, ends = positions(source.startOffset), positions(source.endOffset)
    latest = positions(source.latestOffset)
    # A run of Trigger.AvailableNow that lacks a part of its share does not read these partitions.
    unread = {tp: at for tp, at in latest.items() if tp not in ends and len(at) > 1}
    return [
        PartitionProgress(
            tp,
            # This package's end offset contains the whole range of the batch.
            end[0] if len(end) > 1 else starts.get(tp, (None,))[-1],
            end[-1],
            max(0, latest[tp][-1] - end[-1]) if tp in latest else None,
        )
        for tp, end in sorted(ends.items())
    ] + [
        PartitionProgress(tp, None, at[0], max(0, at[-1] - at[0]))
        for tp, at in sorted(unread.items())
    ]


def positions(offset: Json) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse an offset from a checkpoint or progress: `{"topic":{"0":42}}` or
    `{"topic":{"0":[40,42]}}`.

    Return an empty result for an offset of any other form, because a listener also receives the
    progress of other sources.
    """
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
        return {
            TopicPartition(topic, int(partition)): tuple(map(int, _list(value)))
            for topic, partitions in found.items()
            for partition, value in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


def _list(value: Json) -> list[Json]:
    return value[:2] if isinstance(value, list) else [value]


def description_of(source: SourceProgress) -> str:
    """Return a description of a source: its own, or else the topics of its last batch.

    Spark describes each source in Python by the name of a Java object
    (`PythonMicroBatchStreamBase` has no `toString`, Spark 4.3), so this one is
    `zkconsumer[orders, payments]`.
    """
    topics = sorted({tp.topic for tp in positions(source.endOffset)})
    if ".PythonMicroBatchStream" not in source.description or not topics:
        return source.description
    return f"zkconsumer[{first_few(topics, LOGGED_PARTITIONS)}]"


class LagListener(StreamingQueryListener):
    """Reports each batch that read from Kafka: its number, rows, duration, ranges and remaining
    lag.

    Attributes:
        lag: the lag of each partition after the last batch, by the query's name or id.
    """

    def __init__(self, tell: Callable[[str], object] = _log.info) -> None:
        """`tell` receives each line, on the listener's thread."""
        self.lag: dict[str, Mapping[TopicPartition, int]] = {}
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._tell(f"{event.name or event.id}: started")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        found = [one for source in progress.sources for one in progress_of(source)]
        if not found:
            return
        lags = {one.tp: one.lag for one in found if one.lag is not None}
        self.lag[name] = lags
        found.sort(key=lambda one: -(one.lag or 0))
        ranges = first_few(found, LOGGED_PARTITIONS)
        if not progress.name:
            name += f" {' and '.join(map(description_of, progress.sources))}"
        self._tell(
            f"{name}: batch {progress.batchId}, {progress.numInputRows} rows in"
            f" {progress.batchDuration / 1000:.2f} s, lag {sum(lags.values())}"
            f" in {len(found)} partitions: {ranges}"
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._tell(f"{event.id}: " + ("failed" if event.exception else "ended"))
