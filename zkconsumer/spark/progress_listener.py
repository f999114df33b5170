"""What a query tells of its progress, batch by batch: an example of a listener, and in use.

    spark.streams.addListener(LagListener())

A StreamingQueryListener hears of each batch once it is finished and in the checkpoint's commit log
(Spark: `ProgressReporter`, `StreamingQueryListenerBus`), from a thread of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from zkconsumer.protocol.model import TopicPartition

_log = logging.getLogger(__name__)

# Partitions in one line, those that lag most: a line of a terminal holds about so many.
TOLD: Final = 4


class PartitionProgress(NamedTuple):
    """What a batch has read of a partition, `start` to `end` - 1, and what it has left."""

    tp: TopicPartition
    start: int | None
    end: int
    lag: int | None

    def __str__(self) -> str:
        read = f"[{'' if self.start is None else self.start},{self.end})"
        return f"{self.tp} {read}" + ("" if self.lag is None else f" lag {self.lag}")


def progress_of(source: SourceProgress) -> list[PartitionProgress]:
    """The partitions of a batch of ours, or of Spark's own Kafka source, by their names.

    A lag is None where the source has not told the end of the log.
    """
    starts, ends = positions(source.startOffset), positions(source.endOffset)
    latest = positions(source.latestOffset)
    # A run of Trigger.AvailableNow that lacks its share leaves these unread.
    unread = {tp: at for tp, at in latest.items() if tp not in ends and len(at) > 1}
    return [
        PartitionProgress(
            tp,
            # Ours tells the whole range of the batch in its end.
            end[0] if len(end) > 1 else starts.get(tp, (None,))[-1],
            end[-1],
            max(0, latest[tp][-1] - end[-1]) if tp in latest else None,
        )
        for tp, end in sorted(ends.items())
    ] + [
        PartitionProgress(tp, None, at[0], max(0, at[-1] - at[0]))
        for tp, at in sorted(unread.items())
    ]


def positions(offset: Any) -> dict[TopicPartition, tuple[int, ...]]:
    """An offset of a checkpoint or of progress: `{"topic":{"0":42}}`, or `{"topic":{"0":[40,42]}}`.

    Nothing, where it is none of these: a listener hears of all queries of its session.
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


def _list(value: Any) -> list[Any]:
    return value[:2] if isinstance(value, list) else [value]


class LagListener(StreamingQueryListener):
    """Tells of each batch that read from Kafka: its number, rows, time, ranges, and what is left.

    Attributes:
        lag: for each query's name (or id), the lag of each partition after its last batch.
    """

    def __init__(self, tell: Callable[[str], object] = _log.info) -> None:
        """`tell` gets each line; it is called on the listener's thread."""
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
        ranges = ", ".join(map(str, found[:TOLD])) + (", ..." if len(found) > TOLD else "")
        self._tell(
            f"{name}: batch {progress.batchId}, {progress.numInputRows} rows in"
            f" {progress.batchDuration / 1000:.2f} s, lag {sum(lags.values())}"
            f" in {len(found)} partitions: {ranges}"
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._tell(f"{event.id}: " + ("failed" if event.exception else "ended"))
