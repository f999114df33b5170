"""The brokers' logs as the driver's side of a query looks at them: again and again, and cheaply.

An idle query is asked every 10 ms for news, so what was heard is kept for a moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from zkconsumer.admin.kafkastore import registered
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.paths import BROKER_IDS
from zkconsumer.core.records import Broker
from zkconsumer.errors import FetchError, SparkSourceError, ZkConsumerError
from zkconsumer.kafka.logs import NO_BROKER, LogClient, LogRange
from zkconsumer.spark.reading import SHORT_LOG_S
from zkconsumer.zk.connection import Connection

_log = logging.getLogger(__name__)

ENDS_S: Final = 0.2
"""Seconds that the ends of logs are kept. An answer takes 1 to 2 ms of a processor, so that an idle
query takes about one hundredth of it; a batch takes Spark about half a second in any case."""

TOPICS_S: Final = 1.0
"""Seconds that topics, partitions and leaders are kept: an answer for a whole cluster is large."""

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
    with Connection(config) as connection:
        return registered(connection)


class ClusterLogs:
    """Topics and ends of logs, kept for a moment; of one thread at a time.

    Brokers that do not answer are no error: what was known stays, `trouble` says what is wrong, the
    log says it now and then, and the brokers are looked up anew with `brokers`.
    """

    def __init__(self, brokers: Callable[[], Sequence[Broker]]) -> None:
        self._look_up = brokers
        self._client: LogClient | None = None
        self._topics: dict[str, tuple[int, ...]] | None = None
        self._topics_at = self._ends_at = self._told_at = self._brokers_at = float("-inf")
        self._ends: dict[TopicPartition, LogRange | str] = {}
        self.brokers: tuple[Broker, ...] = ()
        self.trouble = ""

    @property
    def is_fresh(self) -> bool:
        """Whether `ends` would answer from memory, for the partitions of last time."""
        return time.monotonic() - self._ends_at < ENDS_S

    def topics(self) -> Mapping[str, tuple[int, ...]] | None:
        """The partitions of all topics; None as long as no broker has ever answered."""
        if time.monotonic() - self._topics_at >= TOPICS_S:
            self._refresh()
        return self._topics

    def ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogRange | str]:
        """Where these logs begin and end; in place of what cannot be known stands the reason."""
        if not self.is_fresh or not self._ends.keys() >= set(partitions):
            self.topics()
            if self._client is not None:
                self._ends = self._client.ends(partitions)
                self._ends_at = time.monotonic()
                reasons = [f"{tp}: {one}" for tp, one in self._ends.items() if isinstance(one, str)]
                if reasons:
                    self._topics_at = float("-inf")  # leaders may have moved
                self._tell("; ".join(reasons[:5]))
        missing = self.trouble or "no broker has answered yet"
        return {tp: self._ends.get(tp, missing) for tp in partitions}

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
            self._topics = self._client.topics()
            self._tell("")
        except FetchError as error:
            self._client = None
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
