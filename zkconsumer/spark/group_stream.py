"""`mode=group`: a stream of the partitions that one member of a legacy group owns.

The member lives in the driver's source process as long as the query runs. The end offset of a batch
describes it completely, `{"topic": {"0": [start, end]}}`, with the partitions that the member owned
when it planned the batch. Executors read these fixed ranges, and a replay needs no member.

When Spark calls `latestOffset(start)`, the batch that ends at `start` is finished and in Spark's
commit log, so its offsets are committed to the group at once. Spark calls `commit` for this batch
only after the next batch, and never for the last batch. Spark's calls and their order:
`pyspark.sql.streaming.python_streaming_source_runner`, Spark 4.3.

`StartPositions` decides at which offset the batches of each partition continue: at the checkpoint's
offset, at the group's offset, or at the offset that `auto.offset.reset` selects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from zkconsumer.consumer.group_member import JOIN_MARGIN_S
from zkconsumer.consumer.stream_partitions import boottime
from zkconsumer.errors import (
    MissingShareError,
    RebalanceBlockedError,
    SparkSourceError,
    UnsupportedPeerError,
)
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark import offset_resolution, process_lifecycle
from zkconsumer.spark.batch_member import LEAVE_S, Membership, ServedPartition
from zkconsumer.spark.cluster_logs import (
    ENDS_S,
    MIN_IDLE_DELAY_S,
    ClusterLogs,
    IdleDelay,
    TriggerDelay,
    brokers_of,
    known_logs,
)
from zkconsumer.spark.offset_ranges import (
    MicroBatch,
    OffsetRange,
    Offsets,
    StreamOffset,
    advance,
    available,
    to_offset,
)
from zkconsumer.spark.options import Matching, SourceOptions, Topics
from zkconsumer.spark.process_lifecycle import errors_as_text
from zkconsumer.spark.schema import TOKEN
from zkconsumer.spark.start_positions import Logs, StartPositions, few
from zkconsumer.spark.task_reader import TaskReader, planned, warm_ups

_log = SafeLogger(logging.getLogger(__name__))


# ---- The reader ----------------------------------------------------------------------------------


SETTLE_S: Final = 3.0
"""Seconds that the first batch waits for the group to settle, so that it contains every partition
of the query. If another member takes longer to release its partitions, later batches contain them.
"""

MORE_PARTITIONS_WAIT_S: Final = 0.5
"""Maximum wait for more partitions, in seconds, once the member owns some. The wait is short,
because no member reads the owned partitions during it. """

PREVIOUS_READER_WAIT_S: Final = LEAVE_S + 8.0
"""Seconds that a reader waits for the previous reader of its DataFrame to end, for instance that of
a query that was just stopped. After that the DataFrame has two readers, which is an error.
"""

WARM_UP_TASKS: Final = 32
"""Maximum number of tasks in the warm-up batch. Each task starts a worker; with a running worker it
costs 60 ms.
"""

NO_LIMIT: Final = 2**63 - 1
"""Maximum number of messages in a batch without `maxOffsetsPerTrigger`: Spark's largest long."""

LOG_EVERY_S: Final = 60.0
"""Seconds between two log lines about the same wait."""

_TEMPORARY_ERRORS: Final = (RebalanceBlockedError, UnsupportedPeerError)
"""Errors that resolve by themselves when other members release partitions or leave. The query
waits."""


class GroupStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader in the driver's source process; only `read` runs on executors.

    `options` come from `for_stream`, and `columns` from `schema.columns_of`.
    """

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], *, frame: str | None = None
    ) -> None:
        """`frame` identifies the DataFrame, which may have one reader at a time."""
        super().__init__(options, columns)
        self._frame = frame
        self._hold: process_lifecycle.Hold | None = None
        self._group: Membership | None = None
        self._cluster = ClusterLogs(self._brokers)
        self._has_begun = False
        # Whether Spark has run a batch in this process. If so, its plans are compiled and its
        # workers are running.
        self._is_warm = False
        self._is_available_now = False
        self._starts = StartPositions(options, self._name)
        self._end: StreamOffset = {}  # the last answer of latestOffset
        # With Trigger.AvailableNow: the run reads up to these offsets.
        self._targets: Offsets | None = None
        # Partitions that a run of Trigger.AvailableNow does not read, each with the group's offset;
        # and whether a batch has reported them in the query's progress.
        self._unread: Offsets = {}
        self._is_unread_reported = True
        self._away_since: float | None = None
        self._owned: Collection[TopicPartition] | None = None
        self._subscribed: Sequence[TopicPartition] = ()
        self._warned_at: dict[str, float] = {}
        # The `start` for which there were no new messages, and the member's change count at that
        # time.
        self._idle: tuple[StreamOffset, int] | None = None
        self._pause = IdleDelay()
        self._delay = TriggerDelay(options.min_per_trigger, options.max_delay_s)
        self._waits_for = ""  # the member's last error that may resolve by itself

    # ---- Spark's calls, in the source process ----------------------------------------------------

    @errors_as_text()
    def initialOffset(self) -> StreamOffset:
        """Return an empty offset. Spark calls this twice and keeps neither answer, so the first
        batch decides where the query starts.
        """
        self._begin()
        return {}

    @errors_as_text()
    def getDefaultReadLimit(self) -> ReadLimit:
        self._begin()
        # Never return ReadAllAvailable. Then Spark passes ReadAllAvailable to `latestOffset` only
        # with Trigger.Once, and the reader can recognise this trigger (`MicroBatchExecution`,
        # SingleBatchExecutor).
        return ReadMaxRows(self._options.max_per_trigger or NO_LIMIT)

    @errors_as_text()
    def prepareForTriggerAvailableNow(self) -> None:
        """Record that the trigger is AvailableNow. The reader fixes the end of the run later, when
        the member has joined after the warm-up batch.
        """
        self._begin()
        self._is_available_now = True

    def _fix_targets(self, group: Membership) -> None:
        """Fix what this run reads: the partitions owned now, up to the present ends of their logs.

        Raises MissingShareError, unless `failOnMissingShare` is false.
        """
        limit_s = 2 * self._options.config.zookeeper_session_timeout_s + JOIN_MARGIN_S
        _wait(lambda: group.is_settled, limit_s)
        # The member's thread sets the reason for an idle thread only after it has settled.
        _wait(lambda: bool(group.served() or group.idle_reason), SETTLE_S)
        self._raise_failures(group)
        served = group.served()
        if not group.is_settled:
            self._report_missing_share(
                served, f"it did not settle within {limit_s:g} s", self._waits_for
            )
        elif not served:
            self._report_missing_share(
                served, "it gives this query no partition", group.idle_reason
            )
        self._targets = {tp: log.end for tp, log in self._logs(served).items()}

    @errors_as_text()
    def latestOffset(
        self, start: StreamOffset | None = None, limit: ReadLimit | None = None
    ) -> StreamOffset:
        """Return the end of the next batch, or `start` itself, unchanged, if there are no new
        messages.

        Spark 4.0 and 4.1 pass no arguments; then the batch that ends at the last answer is
        finished.
        """
        batch = MicroBatch(self._end if start is None else start)
        if self._group is None and start and not self._starts.checkpoint:
            self._starts.checkpoint = batch.ranges
        if self._must_warm_up(limit):
            self._end = self._warm_up(batch)
            return self._end
        group = self._joined()
        if self._is_available_now and self._targets is None:
            self._fix_targets(group)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if start is None:
            most = self._options.max_per_trigger
        start = batch.offset
        self._raise_failures(group)
        has_lease = self._has_lease(group)
        if has_lease and self._is_known_to_be_idle(group, start):
            self._pause.hold()
            return start
        changes = group.changes
        self._finish(group, batch)
        self._end = self._next(group, batch, most) if has_lease else start
        while self._targets is not None and self._end is start:
            if has_lease and group.holds_lease:
                break
            # An answer without messages would end the run before it has read its share.
            self._raise_failures(group)
            has_lease = self._has_lease(group)
            self._end = self._next(group, batch, most) if has_lease else start
        if self._end is start and not self._is_unread_reported:
            # Spark reports progress only with a batch. If there were no batch, the unread
            # partitions would stay invisible.
            self._end = batch.followed_by_nothing()
        self._is_unread_reported = True
        self._cluster.is_idle = self._end is start
        self._idle = (start, changes) if has_lease and self._end is start else None
        if self._end is not start:
            self._pause.end()
        elif self._targets is None:
            self._pause.hold()
        return self._end

    def _is_known_to_be_idle(self, group: Membership, start: StreamOffset) -> bool:
        """Whether the last call of `latestOffset` found no new messages, and nothing can have
        changed since."""
        return (
            self._targets is None
            and self._cluster.is_fresh
            and self._idle is not None
            and self._idle == (start, group.changes)
        )

    def reportLatestOffset(self) -> StreamOffset | None:
        """Return the query's position and the log's end, `[position, end]`; the difference is the
        lag.

        If a run of Trigger.AvailableNow lacks partitions of its share, the answer includes them,
        with the group's offset as the position.
        """
        if self._group is None:
            return None
        reached = {**self._unread, **self._group.reached()}
        logs = known_logs(self._cluster.ends(reached)) if reached else {}
        found = {tp: at for tp, at in reached.items() if at is not None and tp in logs}
        return to_offset(OffsetRange(*tp, at, logs[tp].end) for tp, at in found.items()) or None

    @errors_as_text()
    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        self._begin()
        ranges = [one for one in MicroBatch(end).ranges.values() if one.size]
        if self._group is None:
            self._end, self._is_warm = end, True
            if not ranges:
                return self._warm_up_tasks()
        made = planned(self._options, ranges, self._cluster.bootstrap())
        _log.info(
            "%s: batch of %d messages of %d partitions in %d tasks: %s",
            self._name,
            sum(one.size for one in ranges),
            len(ranges),
            len(made),
            few(f"{one.tp} {one.start} to {one.end - 1}" for one in ranges) or "nothing",
        )
        return made

    def commit(self, end: StreamOffset) -> None:
        """Do nothing: the preceding call of `latestOffset` has already committed the batch."""

    def stop(self) -> None:
        """Leave the group. A task that still runs needs nothing from this process."""
        if self._group is not None:
            self._group.leave()
        if self._hold is not None:
            self._hold.close()
        process_lifecycle.end_quietly()

    # ---- The member ------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"group {self._options.config.group_id}"

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            process_lifecycle.begin(self.stop)
            if self._frame is not None:
                self._hold = self._held_frame(self._frame)

    def _held_frame(self, frame: str) -> process_lifecycle.Hold:
        """Become the only reader of the DataFrame. Raises SparkSourceError if it has another
        reader.

        Spark starts a source process for each query and for each side of a self-join. Each would be
        a separate member and get only a part of the messages.
        """
        hold = process_lifecycle.hold_name(
            f"zkconsumer-frame-{frame}", limit_s=PREVIOUS_READER_WAIT_S
        )
        if hold is None:
            raise SparkSourceError(
                "this DataFrame of mode=group has another reader, in this query (a self-join) or in"
                " another query: each reader would be a member of the group, and get only a part of"
                " the messages",
                where=self._name,
                remedy="call load() once for each query; join in foreachBatch, or use mode=direct",
            )
        return hold

    def _joined(self) -> Membership:
        """Return the member; the first call joins the group. A replay needs no member."""
        self._begin()
        if self._group is None:
            config = replace(self._options.config, release_grace_s=self._options.revoke_grace_s)
            self._group = Membership(config, _registration(self._options))
            self._group.join()
            _log.info("%s: joined as %s", self._name, self._group.consumer_id)
            self._settle(self._group)
        return self._group

    def _settle(self, group: Membership) -> None:
        """Wait until the member owns its share; once it owns partitions, wait only briefly."""
        owns_since: list[float] = []

        def is_over() -> bool:
            if not owns_since and group.served():
                owns_since.append(time.monotonic())
            owns_s = time.monotonic() - owns_since[0] if owns_since else 0.0
            return group.is_settled or owns_s >= MORE_PARTITIONS_WAIT_S

        _wait(is_over, SETTLE_S)

    # ---- the warm-up batch -----------------------------------------------------------------------

    def _must_warm_up(self, limit: ReadLimit | None) -> bool:
        """Return whether an empty batch must precede the join.

        No warm-up batch is possible with Trigger.Once, which has only one batch. Spark 4.0 and 4.1
        treat Trigger.AvailableNow in the same way.
        """
        return self._group is None and not self._is_warm and isinstance(limit, ReadMaxRows)

    def _warm_up(self, batch: MicroBatch) -> StreamOffset:
        """Connect to the brokers, and return the end of an empty batch.

        On a new driver the first batch takes seconds, because Spark compiles plans and starts
        Python workers. If the member joined first, it would own partitions that no member reads
        during that time.
        """
        self._begin()
        self._is_warm = True
        self._cluster.bootstrap()  # raises if ZooKeeper is unreachable
        topics = self._cluster.topics() or {}
        self._subscribed = offset_resolution.partitions_of(self._options, topics)
        self._cluster.ends(self._subscribed)
        return batch.followed_by_nothing()

    def _warm_up_tasks(self) -> Sequence[InputPartition]:
        """Return as many tasks as the first batch may have. These tasks read no messages."""
        made = warm_ups(self._options, self._subscribed[:WARM_UP_TASKS], self._cluster.bootstrap())
        _log.info("%s: runs %d warm-up tasks before the member joins", self._name, len(made))
        return made

    def _brokers(self) -> Brokers:
        return (self._group and self._group.brokers()) or brokers_of(self._options.config)

    def _finish(self, group: Membership, batch: MicroBatch) -> None:
        """Finish this batch. Drop all other planned batches, since Spark never runs them."""
        group.finish(batch.ends)
        group.cancel()

    def _raise_failures(self, group: Membership) -> None:
        """Raise the member's errors, except those that resolve by themselves.

        A run of Trigger.AvailableNow waits here until the member is at rest.
        """
        while (error := group.failure()) is not None:
            if not isinstance(error, _TEMPORARY_ERRORS):
                raise error
            self._waits_for = str(error)
        if self._targets is not None:
            _wait(lambda: self._has_lease(group) and group.is_at_rest, self._options.patience_s)

    def _report_missing_share(
        self, served: Collection[TopicPartition], what: str, why: str
    ) -> None:
        """Fail, or warn and note which partitions this run does not read, according to
        `failOnMissingShare`.

        Raises:
            MissingShareError: `failOnMissingShare` is true.
            SparkSourceError: the brokers do not answer, or Kafka does not return the group's
                offsets.
        """
        said = f"{what}: {why}" if why else what
        if self._options.fail_on_missing_share:
            raise MissingShareError(
                f"the group does not give this query its share of the partitions: {said}",
                where=self._name,
                remedy="start the query again after the other owner has left; `zkconsumer explain"
                " GROUP` names it; failOnMissingShare=false reads the partitions that the query"
                " owns",
            )
        config = self._options.config
        topics = offset_resolution.await_topics(self._cluster, limit_s=config.socket_timeout_s)
        wanted = offset_resolution.partitions_of(self._options, topics)
        unread = [tp for tp in wanted if tp not in served]
        stored = offset_resolution.stored_offsets(config, unread)
        logs = known_logs(self._cluster.ends(unread))
        self._unread = {tp: stored.get(tp, log.start) for tp, log in logs.items()}
        self._is_unread_reported = False
        _log.warning(
            "%s: reads %d of %d partitions, because the group does not give this query its share"
            " of the partitions: %s (failOnMissingShare=false); unread: %s",
            self._name,
            len(served),
            len(wanted),
            said,
            few(unread),
        )

    def _has_lease(self, group: Membership) -> bool:
        """Whether the member's ownership is confirmed. Raises SparkSourceError if that takes longer
        than `zookeeper.patience.ms`.
        """
        if group.holds_lease:
            if self._away_since is not None and self._warned_at.pop("away", None) is not None:
                _log.info("%s: ZooKeeper confirms the membership again", self._name)
            self._away_since = None
            return True
        now = boottime()
        if self._away_since is None:
            self._away_since = now
        away_s = now - self._away_since
        if away_s >= self._options.patience_s:
            raise SparkSourceError(
                f"ZooKeeper has been unreachable for {away_s:.0f} s: the owners of partitions are"
                " unknown",
                where=f"zookeeper={self._options.config.zookeeper_connect}",
                remedy="start the query again when ZooKeeper is reachable; zookeeper.patience.ms"
                " sets how long a query waits",
            )
        if away_s >= MIN_IDLE_DELAY_S:
            self._warn_repeatedly(
                "away",
                "ZooKeeper does not confirm the membership: the query plans no batches until it"
                " does, and fails after %g s",
                self._options.patience_s,
            )
        return False

    def _warn_repeatedly(self, what: str, text: str, *values: object) -> None:
        """Log a warning about `what`, at most once in `LOG_EVERY_S`."""
        now = time.monotonic()
        if now - self._warned_at.get(what, float("-inf")) >= LOG_EVERY_S:
            self._warned_at[what] = now
            _log.warning("%s: " + text, self._name, *values)

    # ---- The next batch --------------------------------------------------------------------------

    def _next(self, group: Membership, batch: MicroBatch, limit: int | None) -> StreamOffset:
        """Return the end of the batch after `batch`; without new messages, that of `batch`."""
        start = batch.offset
        self._check_topics(group, batch.ranges)
        self._log_ownership(group)
        served = group.served()
        if not served:
            return start
        logs = self._logs(served)
        if not self._starts.resume(group, served, batch.ranges):
            return start
        served = group.served()
        logs = {**logs, **self._renewed(served, logs)}
        positions = self._starts.positions(group, served, logs)
        ends = {tp: log.end for tp, log in logs.items()}
        if self._targets is not None:
            ends = {tp: min(end, self._targets.get(tp, 0)) for tp, end in ends.items()}
        elif self._delay.must_wait(available(positions, ends)):
            return start
        ranges = advance(positions, ends, limit=limit)
        if not any(one.size for one in ranges):
            return start
        begun = group.begin(ranges)
        if not any(one.size for one in begun) or not group.holds_lease:
            group.cancel()
            return start
        if TOKEN not in self._columns:
            begun = [one._replace(token=None) for one in begun]
        return batch.followed_by(begun)

    def _logs(self, partitions: Collection[TopicPartition]) -> Logs:
        """Return the first and the end offset of each log; leave out unknown ones.

        With Trigger.AvailableNow, none is left out. Raises SparkSourceError if one stays unknown.
        """
        if self._is_available_now:  # a partition without an end would not be read
            limit_s = self._options.config.socket_timeout_s
            return offset_resolution.await_ends(self._cluster, partitions, limit_s=limit_s)
        return known_logs(self._cluster.ends(partitions))

    def _renewed(self, served: Mapping[TopicPartition, ServedPartition], logs: Logs) -> Logs:
        """Return the logs from which the batch reads, with their present beginnings, because
        retention may have deleted messages.
        """
        moving = [tp for tp, at in served.items() if tp in logs and at.offset != logs[tp].end]
        first = [tp for tp in moving if served[tp].is_stored]
        found = known_logs(self._cluster.renewed(first, ENDS_S)) if first else {}
        return {**known_logs(self._cluster.renewed(moving)), **found} if moving else {}

    # ---- What the query logs about topics and ownership ------------------------------------------

    def _check_topics(self, group: Membership, before: Collection[TopicPartition]) -> None:
        """Warn of subscribed topics that do not exist.

        As in the JVM, the deletion of a topic alone does not make a member read the group again.
        But the member releases the topic's partitions, and the brokers no longer know them.

        Raises SparkSourceError if a topic was deleted from which the query has read.
        """
        wanted, view = self._options.subscription, group.state.view
        if not isinstance(wanted, Topics) or view is None or not group.is_at_rest:
            return
        there = view.topics.keys() | view.malformed_topics.keys()
        idle = {tp.topic for tp in before} - {tp.topic for tp in group.reached()}
        known = self._cluster.topics() if idle else None
        if known is not None:
            there -= idle - known.keys()
        if missing := sorted(wanted.threads.keys() - there):
            deleted = {tp.topic for tp in before}.intersection(missing)
            if deleted and self._options.fail_on_data_loss:
                raise SparkSourceError(
                    f"topic {', '.join(sorted(deleted))} was deleted",
                    where=self._name,
                    remedy="failOnDataLoss=false waits until it is created again; or remove it from"
                    " subscribe",
                )
            self._warn_repeatedly(
                "topics", "waiting for topics that do not exist: %s", few(missing)
            )

    def _log_ownership(self, group: Membership) -> None:
        """Log the owned partitions when they change. If the query owns no partition, log the reason
        repeatedly."""
        owned = group.reached().keys()
        if not owned and group.is_at_rest and (why := group.idle_reason):
            self._warn_repeatedly(
                "idle", "this query owns no partition and waits for its share: %s", why
            )
        if owned != self._owned and (owned or self._owned):
            _log.info(
                "%s: owns %d partitions: %s", self._name, len(owned), few(sorted(owned)) or "none"
            )
            self._owned = frozenset(owned)
        if owned:
            self._warned_at.pop("idle", None)


def _registration(options: SourceOptions) -> Registration:
    """Return the member's registration. Raises ConfigError if it has too many threads."""
    wanted = options.subscription
    if isinstance(wanted, Topics):
        return Registration(paths.validate_topic_counts(wanted.threads))
    assert isinstance(wanted, Matching), "mode=group has no assign"
    count = paths.validate_streams(wanted.threads, where=wanted.filter.regex)
    return Registration({wanted.filter.regex: count}, wanted.filter.pattern)


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until the condition holds, for at most `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
