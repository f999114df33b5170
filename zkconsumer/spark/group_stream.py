"""`mode=group`: a stream of what one member of a legacy group owns.

The membership lives in the driver's source process, as long as the query runs. A batch is described
by its end offset alone, `{"topic": {"0": [start, end]}}` with the partitions that are owned by
then: executors read fixed ranges, and a replay needs no membership. What comes with
`latestOffset(start)` is finished and in Spark's own log of commits, and is committed to the group
at once; `commit` comes a batch later, and never for the last one.

Calls and their order: `pyspark.sql.streaming.python_streaming_source_runner`, Spark 4.3.

Where a member's batches go on in each partition: by the checkpoint, the group, or the reset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

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
from zkconsumer.kafka.logs import LogRange
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.protocol.registrations import Registration
from zkconsumer.spark import offset_resolution, process_lifecycle
from zkconsumer.spark.batch_member import LEAVE_S, Membership, Served
from zkconsumer.spark.cluster_logs import ENDS_S, PAUSE_S, ClusterLogs, Pause, ShortLogs, brokers_of
from zkconsumer.spark.offset_ranges import (
    OffsetRange,
    StreamOffset,
    advance,
    from_offset,
    to_offset,
)
from zkconsumer.spark.options import Matching, SourceOptions, Topics
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import one_sentence
from zkconsumer.spark.task_reader import planned, read_task, warm_ups

if TYPE_CHECKING:
    import pyarrow


# ---- placing -------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


Positions = dict[TopicPartition, int]
Logs = Mapping[TopicPartition, LogRange]
Partitions = Mapping[TopicPartition, Served]


class Placing:
    """Of one query.

    Attributes:
        replayed: where batches began that were run again before the membership.
        checkpoint: the last batch of the checkpoint with which this process began.
    """

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options, self._name = options, name
        self.replayed: Positions = {}
        self.checkpoint: Mapping[TopicPartition, OffsetRange] = {}
        self._short = ShortLogs()

    def resume(
        self, group: Membership, served: Partitions, before: Mapping[TopicPartition, OffsetRange]
    ) -> bool:
        """Place what the checkpoint knows and this process has not had; False: not possible now.

        The group's offset is behind the checkpoint's where the query died between the two commits,
        or where an operator moved it back; a mark beside the offset tells which. What was replayed
        from just there has honoured the edit.
        """
        rule = self._options.on_restart
        moves = {
            tp: before[tp].end
            for tp, at in served.items()
            if at.is_first
            and tp in before
            and at.offset != before[tp].end
            and (
                at.offset is None
                or rule == "checkpoint"
                or (rule == "max" and at.offset < before[tp].end)
            )
        }
        if rule == "max" and moves:
            marked = group.marked(sorted(moves))
            if marked is None:
                return False
            for tp in marked:
                edit = served[tp].offset
                if edit != self.replayed.get(tp):
                    end = moves.pop(tp)
                    _log.info(
                        "%s: %s goes on from an operator's edit, %s, and not from %d",
                        self._name,
                        tp,
                        edit,
                        end,
                    )
        self._report(served, moves)
        for tp, end in moves.items():
            group.place(tp, served[tp], end)
        if moves:
            group.commit()
        return True

    def _report(self, served: Partitions, moves: Positions) -> None:
        """Warn of group offsets behind the checkpoint that the query does not go on from.

        The JVM's tools leave no mark, so their reset cannot be told from an offset that was never
        committed. Only where the group's offset is the beginning of the checkpoint's last batch,
        the query most likely ended between the two commits: no warning then.
        """
        if self._options.on_restart != "max":
            return
        behind = [
            f"{tp} {'none' if served[tp].offset is None else served[tp].offset} behind {end}"
            for tp, end in sorted(moves.items())
            if tp not in self.checkpoint or served[tp].offset != self.checkpoint[tp].start
        ]
        if behind:
            _log.warning(
                "%s: the group's offsets are behind the checkpoint's, and the query goes on from"
                " the checkpoint: %s%s. If another tool than `zkconsumer offsets` has reset them,"
                " the reset has no effect and is overwritten: to honour it, start the query with"
                " offsets.on.restart=zookeeper, or reset with `zkconsumer offsets`",
                self._name,
                ", ".join(behind[:_LOGGED_PARTITIONS]),
                f" and {more} more" if (more := len(behind) - _LOGGED_PARTITIONS) > 0 else "",
            )

    def positions(self, group: Membership, served: Partitions, logs: Logs) -> Positions:
        """From where each partition is read, which its log has; without those that must wait."""
        found: Positions = {}
        reset = False
        for tp, at in served.items():
            log = logs.get(tp)
            if log is None:
                if at.offset is not None:
                    found[tp] = at.offset
            elif at.offset is not None and self._short.must_wait(tp, at.offset, log):
                found[tp] = at.offset
            elif at.offset is not None and not at.is_stored:
                strict = self._options.fail_on_data_loss
                found[tp] = offset_resolution.within(tp, at.offset, log, fail_on_data_loss=strict)
                if found[tp] != at.offset:
                    group.reset(tp, at, found[tp], "gone from the log")
            elif at.offset is None or not log.start <= at.offset <= log.end:
                found[tp] = self._reset(group, tp, at, log)
                reset = True
            else:
                found[tp] = at.offset
        if reset:
            group.commit()
        return found

    def _reset(self, group: Membership, tp: TopicPartition, at: Served, log: LogRange) -> int:
        """As the old consumer: where the group has no offset, or one that the log has not got."""
        policy = self._options.config.auto_offset_reset
        offset = log.start if policy == "smallest" else log.end
        if at.offset is None:
            why = "nothing is stored"
            _log.info(
                "%s: %s begins at %d: %s (auto.offset.reset=%s)",
                self._name,
                tp,
                offset,
                why,
                policy,
            )
        else:
            why = f"the group's offset {at.offset} is not in the log of {log.start} to {log.end}"
            _log.warning(
                "%s: %s goes on at %d: %s (auto.offset.reset=%s)",
                self._name,
                tp,
                offset,
                why,
                policy,
            )
        group.reset(tp, at, offset, why)
        return offset


# ---- group reader --------------------------------------------------------------------------------


SETTLE_S: Final = 3.0
"""Seconds that the first batch waits for the group to come to rest, so that it has all that the
query gets. Another member may take longer to let go: then the batches after it have the rest."""

UNREAD_S: Final = 0.5
"""Seconds of these that it waits for more partitions while it owns some, which nobody reads."""

FRAME_S: Final = LEAVE_S + 8.0
"""Seconds that a reader waits until the previous reader of its DataFrame has ended, in a query that
was stopped just before. After that the DataFrame has two readers, which is an error."""

WARM_UP_TASKS: Final = 32
"""Tasks of the warm-up batch at most. Each starts or takes a worker; one that runs costs 60 ms."""

NO_LIMIT: Final = 2**63 - 1
"""Messages of a batch without `maxOffsetsPerTrigger`: Spark's largest long."""

TELL_S: Final = 60.0
"""Seconds between two lines in the log about the same waiting."""

_LOGGED_PARTITIONS: Final = 10
"""A log line about many partitions names so many of them."""

_WAITS: Final = (RebalanceBlockedError, UnsupportedPeerError)
"""What a query waits for, as the log has said: others let go, or leave."""


class GroupStreamReader(Pickled, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver's source process; `read` alone runs on executors.

    `options` are completed by `for_stream`; `columns` are those of `schema.columns_of`.
    """

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], *, frame: str | None = None
    ) -> None:
        """`frame`: the DataFrame that is read, which may have one reader at a time."""
        self._options, self._columns = options, tuple(columns)
        self._frame = frame
        self._hold: process_lifecycle.Hold | None = None
        self._group: Membership | None = None
        self._cluster = ClusterLogs(self._brokers)
        self._has_begun = False
        # Whether Spark has run a batch in this process: then plans are compiled, workers started.
        self._is_warm = False
        self._is_available_now = False
        self._placing = Placing(options, self._name)
        self._end: StreamOffset = {}  # what latestOffset has answered last
        # With Trigger.AvailableNow: nothing is read beyond these.
        self._targets: Positions | None = None
        # Partitions that a run of Trigger.AvailableNow leaves unread, each with the group's offset;
        # and whether a batch has carried them into the query's progress.
        self._unread: Positions = {}
        self._is_unread_reported = True
        self._away_since: float | None = None
        self._owned: Collection[TopicPartition] | None = None
        self._subscribed: Sequence[TopicPartition] = ()
        self._told_at: dict[str, float] = {}
        # The `start` that had no news, and the member's changes of ownership until then.
        self._idle: tuple[StreamOffset, int] | None = None
        self._pause = Pause()
        self._waits_for = ""  # the last error of the member that waiting may mend

    def __getstate__(self) -> dict[str, Any]:
        """For executors: `read` needs no more, and credentials stay where they are."""
        return {"_columns": self._columns}

    # ---- Spark's calls, in the source process ----------------------------------------------------

    @one_sentence()
    def initialOffset(self) -> StreamOffset:
        """Nothing yet: Spark asks twice and keeps neither answer, so the first batch decides."""
        self._begin()
        return {}

    @one_sentence()
    def getDefaultReadLimit(self) -> ReadLimit:
        self._begin()
        # Never ReadAllAvailable: Spark gives that to `latestOffset` with Trigger.Once alone, which
        # must be told apart (`MicroBatchExecution`, SingleBatchExecutor).
        return ReadMaxRows(self._options.max_per_trigger or NO_LIMIT)

    @one_sentence()
    def prepareForTriggerAvailableNow(self) -> None:
        """Note it; the member joins after the warm-up batch, and then the run's end is fixed."""
        self._begin()
        self._is_available_now = True

    def _fix_targets(self, group: Membership) -> None:
        """Fix what this run reads: the partitions owned now, up to the present ends of their logs.

        Raises MissingShareError, unless `failOnMissingShare` is false.
        """
        limit_s = 2 * self._options.config.zookeeper_session_timeout_s + JOIN_MARGIN_S
        _wait(lambda: group.is_settled, limit_s)
        # The coordinator explains an idle thread after it has settled.
        _wait(lambda: bool(group.served() or group.idle_reason), SETTLE_S)
        self._heed(group)
        served = group.served()
        if not group.is_settled:
            self._lacks_share(served, f"it did not settle within {limit_s:g} s", self._waits_for)
        elif not served:
            self._lacks_share(served, "it gives this query no partition", group.idle_reason)
        self._targets = {tp: log.end for tp, log in self._logs(served).items()}

    @one_sentence()
    def latestOffset(
        self, start: StreamOffset | None = None, limit: ReadLimit | None = None
    ) -> StreamOffset:
        """The end of the next batch; `start` itself, to the letter, when there is nothing new.

        Spark 4.0 and 4.1 give no arguments: then what was answered last is finished.
        """
        if self._group is None and start and not self._placing.checkpoint:
            self._placing.checkpoint = {one.tp: one for one in from_offset(start)}
        if self._must_warm_up(limit):
            assert start is not None
            self._end = self._warm_up(start)
            return self._end
        group = self._joined()
        if self._is_available_now and self._targets is None:
            self._fix_targets(group)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if start is None:
            start, most = self._end, self._options.max_per_trigger
        self._heed(group)
        has_lease = self._has_lease(group)
        if has_lease and self._is_known_to_be_idle(group, start):
            self._pause.hold()
            return start
        changes = group.changes
        self._finish(group, start)
        self._end = self._next(group, start, most) if has_lease else start
        if self._end is start and not self._is_unread_reported:
            # Without a batch Spark reports no progress, and the unread partitions are not seen.
            self._end = to_offset(_nothing_of(start), unlike=start)
        self._is_unread_reported = True
        self._cluster.is_idle = self._end is start
        self._idle = (start, changes) if has_lease and self._end is start else None
        if self._end is not start:
            self._pause.end()
        elif self._targets is None:
            self._pause.hold()
        return self._end

    def _is_known_to_be_idle(self, group: Membership, start: StreamOffset) -> bool:
        """Whether a look would find what the last one has found: nothing new."""
        return (
            self._targets is None
            and self._cluster.is_fresh
            and self._idle is not None
            and self._idle == (start, group.changes)
        )

    def reportLatestOffset(self) -> StreamOffset | None:
        """Where the query stands and where the log ends, `[position, end]`: between is the lag.

        A run of Trigger.AvailableNow that lacks its share also reports the unread partitions, with
        the group's offset as their position.
        """
        if self._group is None:
            return None
        reached = {**self._unread, **self._group.reached()}
        logs = _known(self._cluster.ends(reached)) if reached else {}
        found = {tp: at for tp, at in reached.items() if at is not None and tp in logs}
        return to_offset(OffsetRange(*tp, at, logs[tp].end) for tp, at in found.items()) or None

    @one_sentence()
    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        self._begin()
        ranges = [one for one in from_offset(end) if one.size]
        if self._group is None:
            self._end, self._is_warm = end, True
            self._placing.replayed |= {one.tp: one.start for one in ranges}
            if not ranges:
                return self._warm_up_tasks()
        made = planned(self._options, ranges, self._cluster.bootstrap())
        _log.info(
            "%s: batch of %d messages of %d partitions in %d tasks: %s",
            self._name,
            sum(one.size for one in ranges),
            len(ranges),
            len(made),
            _few(f"{one.tp} {one.start} to {one.end - 1}" for one in ranges) or "nothing",
        )
        return made

    def commit(self, end: StreamOffset) -> None:
        """Known already, from the call of `latestOffset` before."""

    def stop(self) -> None:
        """Leave the group; a task that still runs needs nothing from here."""
        if self._group is not None:
            self._group.leave()
        if self._hold is not None:
            self._hold.close()
        process_lifecycle.end_quietly()

    # ---- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_task(partition, self._columns)

    # ---- the membership --------------------------------------------------------------------------

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
        """Be the only reader of the DataFrame. Raises SparkSourceError: it has another.

        Spark starts a source process for each query, and for each side of a self-join. Each would
        be a member of the group, and get only a part of the messages.
        """
        hold = process_lifecycle.hold(f"zkconsumer-frame-{frame}", limit_s=FRAME_S)
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
        """Join at the first call that needs it: a replay does not."""
        self._begin()
        if self._group is None:
            config = replace(self._options.config, release_grace_s=self._options.revoke_grace_s)
            self._group = Membership(config, _registration(self._options))
            self._group.join()
            _log.info("%s: joined as %s", self._name, self._group.consumer_id)
            self._settle(self._group)
        return self._group

    def _settle(self, group: Membership) -> None:
        """Wait until the member owns its share, but not long with partitions that wait unread."""
        owns_since: list[float] = []

        def is_over() -> bool:
            if not owns_since and group.served():
                owns_since.append(time.monotonic())
            owns_s = time.monotonic() - owns_since[0] if owns_since else 0.0
            return group.is_settled or owns_s >= UNREAD_S

        _wait(is_over, SETTLE_S)

    # ---- the warm-up batch -----------------------------------------------------------------------

    def _must_warm_up(self, limit: ReadLimit | None) -> bool:
        """Whether an empty batch comes before the member joins.

        Not with Trigger.Once, whose only batch it would be, nor with Spark 4.0 and 4.1, which do
        the same with Trigger.AvailableNow.
        """
        return self._group is None and not self._is_warm and isinstance(limit, ReadMaxRows)

    def _warm_up(self, start: StreamOffset) -> StreamOffset:
        """The end of a batch without messages, and the connections to the brokers.

        On a new driver the first batch takes seconds: plans are compiled, Python workers start. A
        member that had joined before would own partitions, and nobody would read them meanwhile.
        """
        self._begin()
        self._is_warm = True
        self._cluster.bootstrap()  # raises what keeps it from ZooKeeper
        topics = self._cluster.topics() or {}
        self._subscribed = offset_resolution.partitions_of(self._options, topics)
        self._cluster.ends(self._subscribed)
        return to_offset(_nothing_of(start), unlike=start)

    def _warm_up_tasks(self) -> Sequence[InputPartition]:
        """Tasks that read nothing: as many as the first batch may have."""
        made = warm_ups(self._options, self._subscribed[:WARM_UP_TASKS], self._cluster.bootstrap())
        _log.info("%s: warms up with %d tasks before it joins", self._name, len(made))
        return made

    def _brokers(self) -> Sequence[Broker]:
        return (self._group and self._group.brokers()) or brokers_of(self._options.config)

    def _finish(self, group: Membership, start: StreamOffset) -> None:
        """All before `start` is done, and what was planned and is not in it is not going to be."""
        group.finish({one.tp: one.end for one in from_offset(start)})
        group.cancel()

    def _heed(self, group: Membership) -> None:
        """Raise what the member was told of, unless it is waited for."""
        while (error := group.failure()) is not None:
            if not isinstance(error, _WAITS):
                raise error
            self._waits_for = str(error)
        if self._targets is not None:
            _wait(lambda: group.is_at_rest, self._options.patience_s)

    def _lacks_share(self, served: Collection[TopicPartition], what: str, why: str) -> None:
        """Fail, or warn and note which partitions this run leaves unread, as the option says.

        Raises:
            MissingShareError: `failOnMissingShare` is true.
            SparkSourceError: the brokers do not answer, or Kafka does not tell the group's offsets.
        """
        said = f"{what}: {why}" if why else what
        if self._options.fail_on_missing_share:
            raise MissingShareError(
                f"the group does not give this query its share of the partitions: {said}",
                where=self._name,
                remedy="start the query again when the other owner has left; `zkconsumer explain"
                " GROUP` names it; failOnMissingShare=false reads what the query owns",
            )
        config = self._options.config
        topics = offset_resolution.await_topics(self._cluster, limit_s=config.socket_timeout_s)
        wanted = offset_resolution.partitions_of(self._options, topics)
        unread = [tp for tp in wanted if tp not in served]
        stored = offset_resolution.stored_offsets(config, unread)
        logs = _known(self._cluster.ends(unread))
        self._unread = {tp: stored.get(tp, log.start) for tp, log in logs.items()}
        self._is_unread_reported = False
        _log.warning(
            "%s: reads %d of %d partitions, because the group does not give this query its share"
            " of the partitions: %s (failOnMissingShare=false); unread: %s",
            self._name,
            len(served),
            len(wanted),
            said,
            _few(unread),
        )

    def _has_lease(self, group: Membership) -> bool:
        """Whether it is sure that what is owned is ours. Raises when that takes too long."""
        if group.holds_lease:
            if self._away_since is not None and self._told_at.pop("away", None) is not None:
                _log.info("%s: ZooKeeper is back", self._name)
            self._away_since = None
            return True
        now = boottime()
        if self._away_since is None:
            self._away_since = now
        away_s = now - self._away_since
        if away_s >= self._options.patience_s:
            raise SparkSourceError(
                f"ZooKeeper has been away for {away_s:.0f} s, and nobody knows who owns what",
                where=f"zookeeper={self._options.config.zookeeper_connect}",
                remedy="start the query again when it is back; zookeeper.patience.ms is how long"
                " it waits",
            )
        if away_s >= PAUSE_S:
            self._tell(
                "away",
                "ZooKeeper does not confirm the membership: no new batches until it"
                " does, for %g s at most",
                self._options.patience_s,
            )
        return False

    def _tell(self, what: str, text: str, *values: object) -> None:
        """A warning, at most once in `TELL_S`."""
        now = time.monotonic()
        if now - self._told_at.get(what, float("-inf")) >= TELL_S:
            self._told_at[what] = now
            _log.warning("%s: " + text, self._name, *values)

    # ---- the next batch --------------------------------------------------------------------------

    def _next(self, group: Membership, start: StreamOffset, limit: int | None) -> StreamOffset:
        before = {one.tp: one for one in from_offset(start)}
        self._see_topics(group, before)
        self._see_ownership(group)
        served = group.served()
        if not served:
            return start
        logs = self._logs(served)
        if not self._placing.resume(group, served, before):
            return start
        served = group.served()
        logs = {**logs, **self._renewed(served, logs)}
        positions = self._placing.positions(group, served, logs)
        ends = {tp: log.end for tp, log in logs.items()}
        if self._targets is not None:
            ends = {tp: min(end, self._targets.get(tp, 0)) for tp, end in ends.items()}
        ranges = advance(positions, ends, limit=limit)
        if not any(one.size for one in ranges):
            return start
        begun = group.begin(ranges)
        if not any(one.size for one in begun) or not group.holds_lease:
            group.cancel()
            return start
        return to_offset(begun, unlike=start)

    def _logs(self, partitions: Collection[TopicPartition]) -> Logs:
        """Where their logs begin and end; without those that cannot be known now."""
        if self._targets is not None:
            limit_s = self._options.config.socket_timeout_s
            return offset_resolution.await_ends(self._cluster, partitions, limit_s=limit_s)
        return _known(self._cluster.ends(partitions))

    def _renewed(self, served: Mapping[TopicPartition, Served], logs: Logs) -> Logs:
        """The logs from which something is read: retention may have moved where they begin."""
        moving = [tp for tp, at in served.items() if tp in logs and at.offset != logs[tp].end]
        first = [tp for tp in moving if served[tp].is_stored]
        found = _known(self._cluster.renewed(first, ENDS_S)) if first else {}
        return {**_known(self._cluster.renewed(moving)), **found} if moving else {}

    # ---- what the user should know ---------------------------------------------------------------

    def _see_topics(self, group: Membership, before: Collection[TopicPartition]) -> None:
        """Raises SparkSourceError where a topic that was read has been deleted.

        As in the JVM the deletion alone makes no member look at the group again. But it lets go of
        the topic's partitions, and the brokers know of none.
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
                    remedy="failOnDataLoss=false waits for it to come back; or take it out of"
                    " subscribe",
                )
            self._tell("topics", "waiting for topics that do not exist: %s", _few(missing))

    def _see_ownership(self, group: Membership) -> None:
        """Log what is owned when it changes; and why nothing is, as long as that lasts."""
        owned = group.reached().keys()
        if not owned and group.is_at_rest and (why := group.idle_reason):
            self._tell("idle", "this query owns no partition and waits for its share: %s", why)
        if owned != self._owned and (owned or self._owned):
            _log.info(
                "%s: owns %d partitions: %s", self._name, len(owned), _few(sorted(owned)) or "none"
            )
            self._owned = frozenset(owned)
        if owned:
            self._told_at.pop("idle", None)


def _registration(options: SourceOptions) -> Registration:
    """Raises ConfigError for more threads than a member can have."""
    wanted = options.subscription
    if isinstance(wanted, Topics):
        return Registration(paths.validate_topic_counts(wanted.threads))
    assert isinstance(wanted, Matching), "mode=group has no assign"
    count = paths.validate_streams(wanted.threads, where=wanted.filter.regex)
    return Registration({wanted.filter.regex: count}, wanted.filter.pattern)


def _nothing_of(offset: StreamOffset) -> list[OffsetRange]:
    """An empty range at the end of each of these."""
    return [one._replace(start=one.end) for one in from_offset(offset)]


def _known(logs: Mapping[TopicPartition, LogRange | str]) -> Logs:
    return {tp: one for tp, one in logs.items() if isinstance(one, LogRange)}


def _few(things: Iterable[object]) -> str:
    some = [str(one) for one in things]
    more = f" and {len(some) - _LOGGED_PARTITIONS} more" if len(some) > _LOGGED_PARTITIONS else ""
    return ", ".join(some[:_LOGGED_PARTITIONS]) + more


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    """Until it holds, or the time is up."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
