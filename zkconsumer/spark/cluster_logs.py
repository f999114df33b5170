"""A cache of topics, partitions and log ends, for the driver's part of a query.

Spark asks an idle query for new messages every 10 ms. The brokers' answers are therefore cached,
and expensive answers are cached for longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from zkconsumer.admin.groups import registered_brokers
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import (
    BrokersUnreachableError,
    FetchError,
    SparkSourceError,
    ZkConsumerError,
    first_few,
)
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import NO_BROKER, STALE_END_S, LogClient, LogRange
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import BROKER_IDS
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk.client import ZooKeeperClient

_log = SafeLogger(logging.getLogger(__name__))

ENDS_S: Final = 0.2
"""Minimum time to cache the ends of logs, in seconds. A batch takes Spark about 0.5 s anyway."""

IDLE_DELAY_RATIO: Final = 30
"""Ratio of pause to cost for requests that an idle query repeats: after a request that used 1 s of
processor time, the query waits 30 s.

So each kind of request costs at most 1/30 of a core, for any number of partitions.
"""

ENDS_IDLE_S: Final = 10.0
"""Maximum time to cache the ends of logs while the query is idle, in seconds. A new message may
wait this long. The cache time reaches this maximum at about 10,000 partitions.
"""

STARTS_S: Final = 300.0
"""Time to cache the beginnings of logs, in seconds. Only retention moves the beginnings, and an
idle query has read all logs to their ends.
"""

MOVING_STARTS_S: Final = 10.0
"""Time to cache the beginning of a log from which a batch reads, in seconds: retention may delete
messages before a task reads them.
"""

TOPICS_S: Final = 1.0
"""Minimum time to cache topics, partitions and leaders, in seconds. The brokers' answer covers the
whole cluster and is large, so it is requested only when it is needed.
"""

TOPICS_IDLE_S: Final = 30.0
"""Maximum time to cache topics, partitions and leaders for a query that looks for new partitions,
in seconds.
"""

MIN_IDLE_DELAY_S: Final = 0.05
"""Minimum delay of an answer without new messages, in seconds.

Spark asks again after 10 ms, which would cost a tenth of a core. The delay is short because a query
with several sources waits for each of them.
"""

MAX_IDLE_DELAY_S: Final = 1.0
"""Maximum delay of an answer without new messages, in seconds."""

BROKERS_S: Final = 60.0
"""Time to cache the tasks' bootstrap brokers, in seconds. A look-up needs a ZooKeeper session of
its own, and a cluster does not replace all its brokers within a minute.
"""

ASK_S: Final = 2.0
"""Time limit of one request to the brokers, in seconds. Stopping the query may take this long."""

LOG_EVERY_S: Final = 30.0
"""Seconds between two log lines about the same problem."""


class ShortLogs:
    """Logs whose reported end lies before a position that the query has already reached."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._reads_committed = config.isolation_level == "read_committed"
        self._since: dict[TopicPartition, float] = {}

    def must_wait(self, tp: TopicPartition, position: int, log: LogRange) -> bool:
        """Return whether the query must wait because the leader may report an end that is too low.

        A leader that was just elected may know of fewer messages than it stores. The wait ends
        after `STALE_END_S`. With `isolation.level=read_committed` the query waits without a limit:
        the end is the last stable offset, and a reader of uncommitted messages may have committed a
        later position.
        """
        if position <= log.end:
            self._since.pop(tp, None)
            return False
        if self._reads_committed:
            return True
        now = time.monotonic()
        return now - self._since.setdefault(tp, now) < STALE_END_S


class TriggerDelay:
    """Delays batches until enough messages are available.

    Rule: `org.apache.spark.sql.kafka010.KafkaMicroBatchStream.delayBatch`, Spark 4.3. The first
    batch is not delayed.
    """

    def __init__(self, least: int | None, limit_s: float) -> None:
        """Args:
        least: the minimum number of messages; None delays no batch.
        limit_s: seconds after the previous batch; after this time any message suffices.
        """
        self._least, self._limit_s = least, limit_s
        self._last_at = float("-inf")

    def must_wait(self, available: int) -> bool:
        """Return whether a batch of the available messages must wait; otherwise it begins now."""
        if self._least is None or not available:
            return False
        now = time.monotonic()
        if available < self._least and now - self._last_at < self._limit_s:
            return True
        self._last_at = now
        return False


def brokers_of(config: ConsumerConfig) -> Brokers:
    """Read the registered brokers in a separate session. Raises what `ZooKeeperClient` raises."""
    with ZooKeeperClient(config) as connection:
        return registered_brokers(connection)


def known_logs(logs: Mapping[TopicPartition, LogRange | str]) -> dict[TopicPartition, LogRange]:
    """Return the logs whose beginning and end are known."""
    return {tp: one for tp, one in logs.items() if isinstance(one, LogRange)}


class IdleDelay:
    """Delays answers without new messages. The more processor time an answer costs, the longer it
    is delayed."""

    def __init__(self) -> None:
        self._before_s: float | None = None

    def hold(self) -> None:
        """Sleep for `IDLE_DELAY_RATIO` times the processor time used since the last call.

        That time includes Spark's own handling of the answer, which has 250 KB of JSON for 10,000
        partitions.
        """
        spent_s = time.process_time()
        pause_s = 0.0 if self._before_s is None else IDLE_DELAY_RATIO * (spent_s - self._before_s)
        self._before_s = spent_s
        time.sleep(min(max(MIN_IDLE_DELAY_S, pause_s), MAX_IDLE_DELAY_S))

    def end(self) -> None:
        """Forget the cost so far: there are new messages, and the next pause must not include the
        cost of their batch.
        """
        self._before_s = None


class ClusterLogs:
    """Topics and log ends, cached for a short time. Only one thread may use it at a time.

    Until the first answer of a broker, an error that a user must correct is raised: a wrong
    address or chroot of ZooKeeper, no registered broker, a property that librdkafka refuses, or a
    refused login. Brokers that do not answer cause no error, and neither does any problem after the
    first answer. The last known values remain, `trouble` describes the problem, and a warning is
    logged from time to time. `brokers` then looks up the brokers again.
    """

    def __init__(self, brokers: Callable[[], Brokers]) -> None:
        self._look_up = brokers
        self._client: LogClient | None = None
        self._topics: dict[str, tuple[int, ...]] | None = None
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._topics_at = self._ends_at = self._logged_at = self._brokers_at = float("-inf")
        # Cache times of the topics and of the ends while the query is idle, in seconds.
        self._topics_s, self._ends_s = TOPICS_S, ENDS_S
        self._ends: dict[TopicPartition, LogRange | str] = {}
        # The beginning of each log, and when it was requested.
        self._starts: dict[TopicPartition, tuple[int, float]] = {}
        self.is_idle = False
        self.brokers = Brokers()
        self.trouble = ""

    @property
    def is_fresh(self) -> bool:
        """Whether `ends` would answer from its cache if it were called with the same partitions
        again."""
        kept_s = self._ends_s if self.is_idle else ENDS_S
        return time.monotonic() - self._ends_at < kept_s

    def topics(self) -> Mapping[str, tuple[int, ...]] | None:
        """Return the partitions of all topics, or None if no broker has answered yet.

        Raises ZkConsumerError until the first answer; see the class.
        """
        if time.monotonic() - self._topics_at >= self._topics_s:
            self._refresh()
        return self._topics

    def ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogRange | str]:
        """Return where each log begins and ends, or the reason why that is unknown.

        A beginning may be up to `STARTS_S` seconds old; `renewed` returns a newer one.
        """
        if not self.is_fresh or not self._ends.keys() >= set(partitions):
            if self._client is None or not self._partitions.issuperset(partitions):
                self.topics()
            if self._client is not None:
                self._ask(self._client, partitions)
        missing = self.trouble or "no broker has answered yet"
        return {tp: self._ends.get(tp, missing) for tp in partitions}

    def renewed(
        self, partitions: Collection[TopicPartition], kept_s: float = MOVING_STARTS_S
    ) -> Mapping[TopicPartition, LogRange | str]:
        """Return `ends` for partitions that are about to be read, with beginnings at most `kept_s`
        seconds old.
        """
        if self._client is not None:
            self._find_starts(self._client, partitions, kept_s)
            for tp in partitions:
                end, start = self._ends.get(tp), self._starts.get(tp)
                if isinstance(end, LogRange) and start is not None:
                    self._ends[tp] = end._replace(start=min(start[0], end.end))
        return self.ends(partitions)

    def _ask(self, client: LogClient, partitions: Collection[TopicPartition]) -> None:
        spent_s = time.process_time()
        troubles = self._find_starts(client, partitions, STARTS_S)
        ends = client.latest(partitions)
        self._ends = {}
        for tp, end in ends.items():
            if isinstance(end, str):
                self._ends[tp] = end
            elif tp in self._starts:
                self._ends[tp] = LogRange(min(self._starts[tp][0], end), end)
            else:
                self._ends[tp] = troubles.get(tp, NO_BROKER)
        self._ends_s = _kept_s(spent_s, ENDS_S, ENDS_IDLE_S)
        self._ends_at = time.monotonic()
        reasons = [f"{tp}: {one}" for tp, one in self._ends.items() if isinstance(one, str)]
        if reasons:
            # Leaders may have changed: look them up at the next request.
            self._topics_at = float("-inf")
            self._partitions = frozenset()
        self._log_trouble(first_few(reasons, 5, separator="; "))

    def _find_starts(
        self, client: LogClient, partitions: Collection[TopicPartition], kept_s: float
    ) -> dict[TopicPartition, str]:
        """Request the beginnings that are unknown or older than `kept_s`. Return the errors by
        partition.
        """
        now = time.monotonic()
        never = (0, float("-inf"))
        asked = [tp for tp in partitions if now - self._starts.get(tp, never)[1] >= kept_s]
        found = client.starts(asked) if asked else {}
        self._starts |= {tp: (one, now) for tp, one in found.items() if isinstance(one, int)}
        return {tp: one for tp, one in found.items() if isinstance(one, str)}

    def at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | str | None]:
        """Return the offsets of a time, as `kafka.logs.offsets_at` does."""
        self.topics()
        if self._client is None:
            return dict.fromkeys(partitions, self.trouble)
        return self._client.at(partitions, timestamp_ms)

    def bootstrap(self) -> Brokers:
        """Return the brokers to which tasks connect first.

        Raises:
            SparkSourceError: no broker is registered.
            ZkConsumerError: the look-up failed, and no brokers were known before.
        """
        if time.monotonic() - self._brokers_at >= BROKERS_S:
            try:
                self._find_brokers()
            except ZkConsumerError:
                if not self.brokers:
                    raise
                _log.warning(
                    "looking up the brokers failed; tasks connect to the brokers known before",
                    exc_info=True,
                )
        return self._registered()

    def _registered(self) -> Brokers:
        if not self.brokers:
            raise SparkSourceError(
                NO_BROKER,
                where=BROKER_IDS,
                remedy="start a broker, or correct the chroot in the option zookeeper",
            )
        return self.brokers

    def _find_brokers(self) -> None:
        self._brokers_at = time.monotonic()
        self.brokers = self._look_up() or self.brokers

    def _refresh(self) -> None:
        try:
            if self._client is None:
                self._find_brokers()
                self._client = LogClient(self._registered(), limit_s=ASK_S)
            spent_s = time.process_time()
            self._topics = self._client.topics()
            self._partitions = frozenset(
                TopicPartition(name, one)
                for name, numbers in self._topics.items()
                for one in numbers
            )
            self._topics_s = _kept_s(spent_s, TOPICS_S, TOPICS_IDLE_S)
            self._log_trouble("")
        except ZkConsumerError as error:
            if isinstance(error, FetchError):
                self._client, self._topics_s = None, TOPICS_S
            if self._topics is None and not isinstance(error, BrokersUnreachableError):
                raise
            self._log_trouble(str(error))
        self._topics_at = time.monotonic()

    def _log_trouble(self, trouble: str) -> None:
        now = time.monotonic()
        if trouble and (now - self._logged_at >= LOG_EVERY_S):
            self._logged_at = now
            _log.warning("log ends are unknown, retrying: %s", trouble)
        elif self.trouble and not trouble:
            self._logged_at = float("-inf")
            _log.info("the log ends are known again")
        self.trouble = trouble


def _kept_s(spent_s: float, least_s: float, most_s: float) -> float:
    """Return how long to cache an answer, given the processor time at which its request started."""
    return min(max(least_s, IDLE_DELAY_RATIO * (time.process_time() - spent_s)), most_s)
