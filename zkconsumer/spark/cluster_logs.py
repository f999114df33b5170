"""The brokers' logs as the driver's side of a query looks at them: again and again, and cheaply.

Spark asks an idle query for news every 10 ms, so answers are kept, the longer the more they cost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from zkconsumer.admin.groups import registered_brokers
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError, SparkSourceError, ZkConsumerError
from zkconsumer.kafka.logs import NO_BROKER, LogClient, LogRange
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import BROKER_IDS
from zkconsumer.protocol.payloads import Broker
from zkconsumer.spark.task_reader import SHORT_LOG_S
from zkconsumer.zk.client import ZooKeeperClient

_log = logging.getLogger(__name__)

ENDS_S: Final = 0.2
"""Seconds that the ends of logs are kept at least: a batch takes Spark about half a second in any
case."""

IDLE_COSTS: Final = 30
"""What is looked at again and again while a query is idle is left alone for this many times the
processor time that it took: so each costs at most a thirtieth of a core, however many partitions
there are."""

ENDS_IDLE_S: Final = 10.0
"""Seconds that the ends are kept at most, while the query is idle: then a message waits as long.
The back-off reaches this with about 10,000 partitions."""

STARTS_S: Final = 300.0
"""Seconds that the beginnings of logs are kept. Only retention moves them, and an idle query has
read everything before their ends."""

MOVING_STARTS_S: Final = 10.0
"""The same where there is something to read: retention may take it away before a task comes."""

TOPICS_S: Final = 1.0
"""Seconds that topics, partitions and leaders are kept at least: an answer for a whole cluster is
large. Without need they are not asked for at all."""

TOPICS_IDLE_S: Final = 30.0
"""Seconds that they are kept at most, where new partitions are looked for."""

PAUSE_S: Final = 0.05
"""Seconds that an answer without news is held back at least. Spark asks again after 10 ms, which
would take a tenth of a core for nothing; a query with several sources waits for each of them."""

PAUSE_IDLE_S: Final = 1.0
"""Seconds that it is held back at most."""

BROKERS_S: Final = 60.0
"""Seconds that the brokers which tasks begin with are kept: a look-up takes a session of its own,
and a cluster does not exchange all its brokers within a minute."""

ASK_S: Final = 2.0
"""Seconds that one question to the brokers may take. A query is not stopped sooner than that."""

TELL_S: Final = 30.0
"""Seconds between two lines in the log about the same trouble."""


class ShortLogs:
    """Logs that end before a position which was reached in them; of one query."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, float] = {}

    def must_wait(self, tp: TopicPartition, position: int, log: LogRange) -> bool:
        """A leader that was just elected knows of less than it has, for `SHORT_LOG_S` at most."""
        if position <= log.end:
            self._since.pop(tp, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(tp, now) < SHORT_LOG_S


def brokers_of(config: ConsumerConfig) -> list[Broker]:
    """Those that are registered now; in a session of its own. Raises as `Connection`."""
    with ZooKeeperClient(config) as connection:
        return registered_brokers(connection)


class Pause:
    """Holds back answers without news, the longer the more an answer costs."""

    def __init__(self) -> None:
        self._before_s: float | None = None

    def hold(self) -> None:
        """Sleep `IDLE_COSTS` times what this process has spent since the last call.

        All that Spark makes of an answer counts: 10,000 partitions are 250 KB of JSON.
        """
        spent_s = time.process_time()
        pause_s = 0.0 if self._before_s is None else IDLE_COSTS * (spent_s - self._before_s)
        self._before_s = spent_s
        time.sleep(min(max(PAUSE_S, pause_s), PAUSE_IDLE_S))

    def end(self) -> None:
        """There is news: what the batch costs is no reason to wait after it."""
        self._before_s = None


class ClusterLogs:
    """Topics and ends of logs, kept for a moment; of one thread at a time.

    Brokers that do not answer are no error: what was known stays, `trouble` says what is wrong, the
    log says it now and then, and the brokers are looked up anew with `brokers`.
    """

    def __init__(self, brokers: Callable[[], Sequence[Broker]]) -> None:
        self._look_up = brokers
        self._client: LogClient | None = None
        self._topics: dict[str, tuple[int, ...]] | None = None
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._topics_at = self._ends_at = self._told_at = self._brokers_at = float("-inf")
        # How long the topics and the ends are kept while the query is idle.
        self._topics_s, self._ends_s = TOPICS_S, ENDS_S
        self._ends: dict[TopicPartition, LogRange | str] = {}
        # The beginnings of logs, each with the moment when it was asked for.
        self._starts: dict[TopicPartition, tuple[int, float]] = {}
        self.is_idle = False
        self.brokers: tuple[Broker, ...] = ()
        self.trouble = ""

    @property
    def is_fresh(self) -> bool:
        """Whether `ends` would answer from memory, for the partitions of last time."""
        kept_s = self._ends_s if self.is_idle else ENDS_S
        return time.monotonic() - self._ends_at < kept_s

    def topics(self) -> Mapping[str, tuple[int, ...]] | None:
        """The partitions of all topics; None as long as no broker has ever answered."""
        if time.monotonic() - self._topics_at >= self._topics_s:
            self._refresh()
        return self._topics

    def ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogRange | str]:
        """Where these logs begin and end; in place of what cannot be known stands the reason.

        The beginning may be `STARTS_S` old: see `renewed`.
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
        """`ends` of partitions that are going to be read; no beginning is older than `kept_s`."""
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
            # Leaders may have moved: look them up at the next question.
            self._topics_at = float("-inf")
            self._partitions = frozenset()
        self._tell("; ".join(reasons[:5]))

    def _find_starts(
        self, client: LogClient, partitions: Collection[TopicPartition], kept_s: float
    ) -> dict[TopicPartition, str]:
        """Ask where logs begin, if that is not known or older; the answer is what went wrong."""
        now = time.monotonic()
        never = (0, float("-inf"))
        asked = [tp for tp in partitions if now - self._starts.get(tp, never)[1] >= kept_s]
        found = client.starts(asked) if asked else {}
        self._starts |= {tp: (one, now) for tp, one in found.items() if isinstance(one, int)}
        return {tp: one for tp, one in found.items() if isinstance(one, str)}

    def at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | str | None]:
        """As `kafka.logs.offsets_at`."""
        self.topics()
        if self._client is None:
            return dict.fromkeys(partitions, self.trouble)
        return self._client.at(partitions, timestamp_ms)

    def bootstrap(self) -> tuple[Broker, ...]:
        """The brokers that tasks begin with. Raises SparkSourceError where none is registered, and
        what looking them up raises, unless some were known before."""
        if time.monotonic() - self._brokers_at >= BROKERS_S:
            try:
                self._find_brokers()
            except ZkConsumerError:
                if not self.brokers:
                    raise
                _log.warning("tasks begin with the brokers known before", exc_info=True)
        if not self.brokers:
            raise SparkSourceError(NO_BROKER, where=BROKER_IDS, remedy="start one")
        return self.brokers

    def _find_brokers(self) -> None:
        self._brokers_at = time.monotonic()
        self.brokers = tuple(self._look_up()) or self.brokers

    def _refresh(self) -> None:
        try:
            if self._client is None:
                self._find_brokers()
                self._client = LogClient(self.brokers, limit_s=ASK_S)
            spent_s = time.process_time()
            self._topics = self._client.topics()
            self._partitions = frozenset(
                TopicPartition(name, one)
                for name, numbers in self._topics.items()
                for one in numbers
            )
            self._topics_s = _kept_s(spent_s, TOPICS_S, TOPICS_IDLE_S)
            self._tell("")
        except FetchError as error:
            self._client, self._topics_s = None, TOPICS_S
            self._tell(str(error))
        except ZkConsumerError as error:
            self._tell(str(error))
        self._topics_at = time.monotonic()

    def _tell(self, trouble: str) -> None:
        now = time.monotonic()
        if trouble and (now - self._told_at >= TELL_S):
            self._told_at = now
            _log.warning("waiting for the brokers: %s", trouble)
        elif self.trouble and not trouble:
            self._told_at = float("-inf")
            _log.info("the brokers answer again")
        self.trouble = trouble


def _kept_s(spent_s: float, least_s: float, most_s: float) -> float:
    """How long something is kept that was begun at this processor time of the process."""
    return min(max(least_s, IDLE_COSTS * (time.process_time() - spent_s)), most_s)
