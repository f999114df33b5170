"""Read the topic `__consumer_offsets` from the brokers, if their log directories cannot be read.

    with closing(OffsetsTopic(broker_settings(brokers), limit_s=6.0)) as topic:
        past = read_past_in_kafka(topic.replicas(), at_ms)

The records and the markers of transactions are those of the segments, so `history.kafka_offsets`
finds the same offsets in both. A broker does not say how far its cleaner has come; like a directory
without the cleaner's checkpoint, each missing record counts as removed by compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from zkconsumer.errors import ConfigError
from zkconsumer.history.offset_logs import Opened, Replica, Segment
from zkconsumer.kafka.client_settings import Settings, without_own_connections
from zkconsumer.kafka.columns.stored_logs import StoredLogs
from zkconsumer.kafka.log_answers import LogRange
from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition

_RECORD_BYTES: Final = 100
"""The usual size of a commit in bytes, from which the size of a log is estimated."""


class OffsetsTopic:
    """The topic, read over this client's own connections; for one thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        limit_s: float,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Create a client that connects later.

        Args:
            settings: librdkafka's, as `broker_settings` returns them.
            limit_s: the time limit of a request in seconds.
            on_progress: called with the number of offsets that have been read, and their total.

        Raises FetchError if zkconsumer's own connections do not support the brokers' security.
        """
        if refused := without_own_connections(settings):
            raise refused
        self._logs = StoredLogs(settings, limit_s=limit_s)
        self._on_progress = on_progress
        self._done = self._total = 0

    def close(self) -> None:
        """Close the connections."""
        self._logs.close()

    def replicas(self) -> list[Replica]:
        """Return the logs of all partitions; `entries` reads them up to their ends.

        Raises:
            ConfigError: the topic does not exist.
            BrokersUnreachableError, BrokerAccessError: the brokers do not answer, or deny access.
        """
        spans = self._logs.spans(OFFSETS_TOPIC)
        if not spans:
            raise ConfigError(
                "the brokers have no such topic, or deny access to it",
                where=OFFSETS_TOPIC,
                remedy="if no group has committed to Kafka, read only ZooKeeper's logs; otherwise"
                " permit READ on the topic",
            )
        self._done, self._total = 0, sum(one.end - one.start for one in spans.values())
        return [
            Replica(
                f"{tp} of the brokers",
                tp.partition,
                partial(self._open, tp, span),
                _RECORD_BYTES * (span.end - span.start),
            )
            for tp, span in sorted(spans.items())
        ]

    def _open(self, tp: TopicPartition, span: LogRange, files: ExitStack) -> Opened:
        return Opened([Segment(span.start, f"{tp} of the brokers", self._pieces(tp, span))])

    def _pieces(self, tp: TopicPartition, span: LogRange) -> Iterator[bytes]:
        before, at = self._done, span.start
        for batches, at in self._logs.batches(tp, span):
            yield batches
            self._done = before + min(at, span.end) - span.start
            self._on_progress(self._done, self._total)
        self._done = before + span.end - span.start
        if at >= span.end:
            # While the log was read, the cleaner may have removed records of which the only later
            # ones are after its former end.
            for batches, _ in self._logs.batches(tp, LogRange(at, self._logs.end(tp))):
                yield batches
