"""`mode=direct`: a stream of all partitions, which keeps its progress in the checkpoint only.

The end offset of a batch describes it completely, `{"topic": {"0": [start, end]}}`
(`offset_ranges.to_offset`). So a replay needs neither the previous batch nor the options that say
where the query starts. A reader connects to nothing before the first call that needs a connection,
because Spark creates some readers only to pickle them.

Spark's calls and their order: `pyspark.sql.streaming.python_streaming_source_runner`, Spark 4.3.
When Spark calls `latestOffset(start)`, the batch that ends at `start` is finished. Spark calls
`commit` for this batch only after the next batch, and never for the last batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from zkconsumer.errors import SparkSourceError, ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark import offset_resolution
from zkconsumer.spark.cluster_logs import (
    ENDS_S,
    TOPICS_S,
    ClusterLogs,
    IdleDelay,
    ShortLogs,
    TriggerDelay,
    brokers_of,
    known_logs,
)
from zkconsumer.spark.offset_mirror import BackgroundMirror, OffsetMirror
from zkconsumer.spark.offset_ranges import (
    MicroBatch,
    OffsetRange,
    Offsets,
    StreamOffset,
    advance,
    available,
    to_offset,
)
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.process_lifecycle import begin, errors_as_text, log_to_stderr
from zkconsumer.spark.start_positions import few
from zkconsumer.spark.task_reader import TaskReader, planned
from zkconsumer.zk.client import ZooKeeperClient

_log = SafeLogger(logging.getLogger(__name__))


class DirectStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader in the driver's source process; only `read` runs on executors.

    `options` come from `for_stream`, and `columns` from `schema.columns_of`.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._cluster = ClusterLogs(lambda: brokers_of(options.config))
        self._mirror = (
            BackgroundMirror(OffsetMirror(options.config)) if options.mirror_offsets else None
        )
        self._has_begun = False
        # `_last` ends at the last answer of `latestOffset`. `_without_news` is the last `start` for
        # which there were no new messages.
        self._last = MicroBatch({})
        self._without_news: StreamOffset | None = None
        # With Trigger.AvailableNow: the run reads up to these offsets.
        self._targets: Offsets | None = None
        # Partitions of the checkpoint that were deleted or unsubscribed. If such a partition
        # appears again, it counts as new and is read from its beginning.
        self._gone: set[TopicPartition] = set()
        self._checked_at = float("-inf")
        self._short = ShortLogs(options.config)
        self._pause = IdleDelay()
        self._delay = TriggerDelay(options.min_per_trigger, options.max_delay_s)
        self._warned: set[str] = set()

    # ---- Spark's calls, in the source process ----------------------------------------------------

    def initialOffset(self) -> StreamOffset:
        """Return an empty offset. Spark calls this twice and keeps neither answer, so the first
        batch decides where the query starts.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        self._begin()
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @errors_as_text()
    def prepareForTriggerAvailableNow(self) -> None:
        self._begin()
        limit_s = self._options.config.socket_timeout_s
        topics = offset_resolution.await_topics(self._cluster, limit_s=limit_s)
        partitions = offset_resolution.partitions_of(self._options, topics)
        logs = offset_resolution.await_ends(self._cluster, partitions, limit_s=limit_s)
        self._targets = {tp: log.end for tp, log in logs.items()}

    @errors_as_text()
    def latestOffset(
        self, start: StreamOffset | None = None, limit: ReadLimit | None = None
    ) -> StreamOffset:
        """Return the end of the next batch, or `start` itself, unchanged, if there are no new
        messages.

        Spark 4.0 and 4.1 pass no arguments; then no batch is known to be finished.
        """
        self._begin()
        batch = self._last if start is None else MicroBatch(start)
        if start is None:
            most = self._options.max_per_trigger
        else:
            self._mirror_finished(batch)
            # Spark passes `maxOffsetsPerTrigger` as a ReadMaxRows.
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        start = batch.offset
        if start == self._without_news and self._cluster.is_fresh and self._targets is None:
            self._pause.hold()
            return start
        end = self._next(batch, most)
        self._last = batch if end is start else MicroBatch(end)
        self._cluster.is_idle = end is start
        self._without_news = start if end is start else None
        if end is not start:
            self._pause.end()
        return end

    def reportLatestOffset(self) -> StreamOffset | None:
        """Return where the logs end. Spark reports the difference between these offsets and the
        batch's end as the lag.
        """
        ends = self._last.ends
        logs = known_logs(self._cluster.ends(ends)) if ends else {}
        return to_offset(OffsetRange(*tp, ends[tp], log.end) for tp, log in logs.items()) or None

    @errors_as_text()
    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        self._begin()
        # With Spark 4.0 and 4.1 only this call says where a restarted query continues.
        batch = MicroBatch(end)
        if not self._last.offset:
            self._last = batch
        ranges = [one for one in batch.ranges.values() if one.size]
        made = planned(self._options, ranges, self._cluster.bootstrap())
        _log.info(
            "batch of %d messages of %d partitions in %d tasks: %s",
            sum(one.size for one in ranges),
            len(ranges),
            len(made),
            few(f"{one.tp} {one.start} to {one.end - 1}" for one in ranges) or "nothing",
        )
        return made

    def commit(self, end: StreamOffset) -> None:
        self._mirror_finished(MicroBatch(end))

    def stop(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def _begin(self) -> None:
        """Set up the process at the first call. `stop` must be called at the process's end only if
        there is an offset mirror, which then makes its last commit.
        """
        if not self._has_begun:
            self._has_begun = True
            log_to_stderr()
            if self._mirror is not None:
                begin(self.stop)

    # ---- The next batch --------------------------------------------------------------------------

    def _next(self, batch: MicroBatch, limit: int | None) -> StreamOffset:
        start, before = batch.offset, batch.ends
        topics = self._cluster.topics()
        if topics is None:
            return start
        wanted = offset_resolution.partitions_of(self._options, topics)
        if self._targets is not None:
            wanted = [tp for tp in wanted if tp in self._targets or tp in before]
        found = self._continued(before, wanted, topics) if before else self._first_batch(wanted)
        if found is None:
            return start
        positions, ends = found
        if self._targets is not None:
            ends = {tp: min(end, self._targets.get(tp, 0)) for tp, end in ends.items()}
        elif self._delay.must_wait(available(positions, ends)):
            ends = {}
        ranges = advance(positions, ends, limit=limit)
        moved = any(before.get(one.tp, one.start) != one.start for one in ranges)
        if moved or any(one.size for one in ranges) or (ranges and not before):
            return batch.followed_by(ranges)
        return start

    def _first_batch(self, wanted: Collection[TopicPartition]) -> tuple[Offsets, Offsets] | None:
        """Return the positions and log ends of the first batch, or None while some of them are
        unknown.

        The first batch writes the positions to the checkpoint, even if it is empty.
        """
        if missing := offset_resolution.absent(self._options, wanted):
            self._warn_once("waiting for topics or partitions that do not exist yet:", missing)
        logs = known_logs(self._cluster.ends(wanted))
        if len(logs) < len(wanted) or not logs:
            return None
        logs = known_logs(self._cluster.renewed(wanted, ENDS_S))
        positions = offset_resolution.offsets_of(self._options, "starting", logs, self._cluster)
        found, ends = self._within(positions, logs)
        return (found, ends) if len(ends) == len(found) else None

    def _continued(
        self,
        before: Mapping[TopicPartition, int],
        wanted: Collection[TopicPartition],
        topics: Mapping[str, tuple[int, ...]],
    ) -> tuple[Offsets, Offsets]:
        """Return the positions and log ends of a later batch: positions come from the checkpoint,
        and new partitions start at the beginning of their logs.
        """
        self._drop(before, wanted, topics)
        logs = known_logs(self._cluster.ends(wanted))
        if moving := [tp for tp, log in logs.items() if before.get(tp) != log.end]:
            logs |= known_logs(self._cluster.renewed(moving))
        back = self._gone.intersection(logs)
        self._gone -= back
        positions = {tp: at for tp, at in before.items() if tp not in self._gone}
        for tp in [*back, *(tp for tp in wanted if tp not in before)]:
            if tp in logs:
                positions[tp] = logs[tp].start
                if tp in back or logs[tp].end > logs[tp].start:
                    _log.info(
                        "%s is a new partition; it is read from its beginning, offset %d",
                        tp,
                        logs[tp].start,
                    )
        return self._within(positions, logs)

    def _within(
        self, positions: Mapping[TopicPartition, int], logs: offset_resolution.Logs
    ) -> tuple[Offsets, Offsets]:
        """Return the positions, moved into the logs, and the logs' ends. A partition whose reported
        end may be too low keeps its position and has no end in the result.
        """
        strict = self._options.fail_on_data_loss
        found = dict(positions)
        ends: Offsets = {}
        for tp, at in positions.items():
            if tp in logs and not self._short.must_wait(tp, at, logs[tp]):
                found[tp] = offset_resolution.within(tp, at, logs[tp], fail_on_data_loss=strict)
                ends[tp] = logs[tp].end
        return found, ends

    def _drop(
        self,
        before: Mapping[TopicPartition, int],
        wanted: Collection[TopicPartition],
        topics: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Find the partitions of the checkpoint that no longer exist or are unsubscribed. Raises
        SparkSourceError.
        """
        missing = before.keys() - set(wanted) - self._gone
        if not missing:
            return
        there = {tp for tp in missing if tp.partition in topics.get(tp.topic, ())}
        if there:
            self._warn_once("no longer subscribed, so no longer read:", there)
            self._gone |= there
        deleted = self._deleted(missing - there)
        if not deleted:
            return
        if self._options.fail_on_data_loss:
            names = sorted({tp.topic for tp in deleted})
            raise SparkSourceError(
                f"topic {', '.join(names)} was deleted",
                where=", ".join(map(str, sorted(deleted))),
                remedy="failOnDataLoss=false continues without it; or remove it from subscribe;"
                " or give the query a new checkpoint",
            )
        self._warn_once("deleted, so no longer read (failOnDataLoss=false):", deleted)
        self._gone |= deleted

    def _deleted(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose topic has no znode; a broker's answer alone is no proof."""
        now = time.monotonic()
        if not partitions or now - self._checked_at < TOPICS_S:
            return set()
        self._checked_at = now
        names = {paths.topic(tp.topic): tp.topic for tp in partitions}
        try:
            with ZooKeeperClient(self._options.config) as connection:
                there = {names[path] for path in connection.stats(names)}
        except ZkConsumerError as error:
            _log.warning("cannot check in ZooKeeper whether topics were deleted: %s", error)
            return set()
        return {tp for tp in partitions if tp.topic not in there}

    def _warn_once(self, what: str, names: Iterable[object]) -> None:
        line = f"{what} {', '.join(sorted(map(str, names)))}"
        if line not in self._warned:
            self._warned.add(line)
            _log.warning("%s", line)

    def _mirror_finished(self, batch: MicroBatch) -> None:
        """Write the offsets of a finished batch to the group."""
        if self._mirror is not None and batch.offset:
            self._mirror.follow(batch.ends)
