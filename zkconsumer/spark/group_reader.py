"""`mode=group`: a stream of what one member of a legacy group owns.

The membership lives in the driver's source process, as long as the query runs. A batch is described
by its end offset alone, `{"topic": {"0": [start, end]}}` with the partitions that are owned by
then: executors read fixed ranges, and a replay needs no membership. What comes with
`latestOffset(start)` is finished and in Spark's own log of commits, and is committed to the group
at once; `commit` comes a batch later, and never for the last one.

Calls and their order: `pyspark.sql.streaming.python_streaming_source_runner`, Spark 4.3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from zkconsumer.consumer.gate import boottime
from zkconsumer.core import topics
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.records import Broker, Registration
from zkconsumer.errors import RebalanceBlockedError, SparkSourceError, UnsupportedPeerError
from zkconsumer.kafka.logs import LogRange
from zkconsumer.spark import lifecycle, resolving
from zkconsumer.spark.lifecycle import one_sentence
from zkconsumer.spark.logs import ClusterLogs, brokers_of
from zkconsumer.spark.membership import MARGIN_S, Membership
from zkconsumer.spark.options import Matching, SourceOptions, Topics
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.placing import Logs, Placing, Positions
from zkconsumer.spark.planning import advance
from zkconsumer.spark.ranges import OffsetRange, StreamOffset, from_offset, to_offset
from zkconsumer.spark.tasks import planned, read_task

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger(__name__)

PAUSE_S: Final = 0.05
"""Seconds that an answer without news is held back. Spark asks again after 10 ms, which would take
a tenth of a core for nothing; a query with several sources waits for each of them."""

SETTLE_S: Final = 3.0
"""Seconds that the first batch waits for the group to come to rest, so that it has all that the
query gets. Another member may take longer to let go: then the batches after it have the rest."""

TELL_S: Final = 60.0
"""Seconds between two lines in the log about the same waiting."""

_TOLD: Final = 10  # of many partitions, so many are logged

_WAITS: Final = (RebalanceBlockedError, UnsupportedPeerError)
"""What a query waits for, as the log has said: others let go, or leave."""


class GroupStreamReader(Pickled, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver's source process; `read` alone runs on executors.

    `options` are completed by `for_stream`; `columns` are those of `schema.columns_of`.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options, self._columns = options, tuple(columns)
        self._group: Membership | None = None
        self._cluster = ClusterLogs(self._brokers)
        self._has_begun = False
        self._placing = Placing(options, self._name)
        self._end: StreamOffset = {}  # what latestOffset has answered last
        # With Trigger.AvailableNow: nothing is read beyond these.
        self._targets: Positions | None = None
        self._away_since: float | None = None
        self._owned: Collection[TopicPartition] | None = None
        self._told_at: dict[str, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For executors: `read` needs no more, and credentials stay where they are."""
        return {"_columns": self._columns}

    # ---- Spark's calls, in the source process ----------------------------------------------------

    def initialOffset(self) -> StreamOffset:
        """Nothing yet: Spark asks twice and keeps neither answer, so the first batch decides."""
        self._begin()
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        self._begin()
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @one_sentence()
    def prepareForTriggerAvailableNow(self) -> None:
        """What is read is what is owned and there when the group has come to rest."""
        group = self._joined()
        limit_s = 2 * self._options.config.zookeeper_session_timeout_s + MARGIN_S
        _wait(lambda: group.is_settled, limit_s)
        self._targets = {tp: log.end for tp, log in self._logs(group.served()).items()}

    @one_sentence()
    def latestOffset(
        self, start: StreamOffset | None = None, limit: ReadLimit | None = None
    ) -> StreamOffset:
        """The end of the next batch; `start` itself, to the letter, when there is nothing new.

        Spark 4.0 and 4.1 give no arguments: then what was answered last is finished.
        """
        group = self._joined()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if start is None:
            start, most = self._end, self._options.max_per_trigger
        self._finish(group, start)
        self._heed(group)
        self._end = self._next(group, start, most) if self._has_lease(group) else start
        if self._end is start and self._targets is None:
            time.sleep(PAUSE_S)
        return self._end

    def reportLatestOffset(self) -> StreamOffset | None:
        """Beside where the query stands the end of the log: what is left then is the lag."""
        if self._group is None:
            return None
        reached = self._group.reached()
        logs = _known(self._cluster.ends(reached)) if reached else {}
        found = {tp: at for tp, at in reached.items() if at is not None and tp in logs}
        return to_offset(OffsetRange(*tp, at, logs[tp].end) for tp, at in found.items()) or None

    @one_sentence()
    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        self._begin()
        ranges = [one for one in from_offset(end) if one.size]
        if self._group is None:
            self._end = end
            self._placing.replayed |= {one.tp: one.start for one in ranges}
        made = planned(self._options, ranges, self._cluster.bootstrap())
        _log.info(
            "%s: batch of %d messages of %d partitions in %d tasks: %s",
            self._name, sum(one.size for one in ranges), len(ranges), len(made),
            _few(f"{one.tp} {one.start} to {one.end - 1}" for one in ranges) or "nothing",
        )
        return made

    def commit(self, end: StreamOffset) -> None:
        """Known already, from the call of `latestOffset` before."""

    def stop(self) -> None:
        """Leave the group; a task that still runs needs nothing from here."""
        if self._group is not None:
            self._group.leave()
        lifecycle.end_quietly()

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
            lifecycle.begin(self.stop)

    def _joined(self) -> Membership:
        """Join at the first call that needs it: a replay does not."""
        self._begin()
        if self._group is None:
            config = replace(
                self._options.config, release_grace_s=self._options.revoke_grace_s
            )
            self._group = Membership(config, _registration(self._options))
            self._group.join()
            _log.info("%s: joined as %s", self._name, self._group.consumer_id)
            group = self._group
            _wait(lambda: group.is_settled, SETTLE_S)
        return self._group

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
        if self._targets is not None:
            _wait(lambda: group.is_at_rest, self._options.patience_s)

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
            self._tell("away", "ZooKeeper does not confirm the membership: no new batches until it"
                       " does, for %g s at most", self._options.patience_s)
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
        positions = self._placing.positions(group, group.served(), logs)
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
            return resolving.await_ends(self._cluster, partitions, limit_s=limit_s)
        return _known(self._cluster.ends(partitions))

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
                    f"topic {', '.join(sorted(deleted))} was deleted", where=self._name,
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
            _log.info("%s: owns %d partitions: %s", self._name, len(owned),
                      _few(sorted(owned)) or "none")
            self._owned = frozenset(owned)
        if owned:
            self._told_at.pop("idle", None)


def _registration(options: SourceOptions) -> Registration:
    """Raises ConfigError for more threads than a member can have."""
    wanted = options.subscription
    if isinstance(wanted, Topics):
        return Registration(topics.validate_topic_counts(wanted.threads))
    assert isinstance(wanted, Matching), "mode=group has no assign"
    count = topics.validate_streams(wanted.threads, where=wanted.filter.regex)
    return Registration({wanted.filter.regex: count}, wanted.filter.pattern)


def _known(logs: Mapping[TopicPartition, LogRange | str]) -> Logs:
    return {tp: one for tp, one in logs.items() if isinstance(one, LogRange)}


def _few(things: Iterable[object]) -> str:
    some = [str(one) for one in things]
    more = f" and {len(some) - _TOLD} more" if len(some) > _TOLD else ""
    return ", ".join(some[:_TOLD]) + more


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    """Until it holds, or the time is up."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
