"""Read whole logs from the brokers, as the brokers store them.

    with closing(StoredLogs(settings, limit_s=6.0)) as logs:
        for tp, span in logs.spans("__consumer_offsets").items():
            for batches, following in logs.batches(tp, span): ...

The batches contain what a consumer does not show: the markers of transactions, and the records of
open and aborted transactions. One thread reads one partition after another, with one request in
flight, so the memory is bounded by one response.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from zkconsumer.errors import BrokerAccessError, BrokersUnreachableError, FetchError, first_few
from zkconsumer.kafka.client_settings import RECEIVE_BYTES, Settings
from zkconsumer.kafka.columns.connection import AuthenticationError
from zkconsumer.kafka.columns.lookups import (
    LOST,
    OUT_OF_RANGE,
    PERMANENT,
    TOPIC_DENIED,
    Lookup,
    StoredSet,
    name_of,
    why,
)
from zkconsumer.kafka.columns.record_sets import RecordSet, plain_engine
from zkconsumer.kafka.columns.requests import Metadata
from zkconsumer.kafka.columns.responses import response_of
from zkconsumer.kafka.log_answers import EARLIEST, LATEST, LogRange
from zkconsumer.protocol.model import TopicPartition

_RESPONSE_BYTES: Final = 1 << 20
"""Bytes that a request asks for; a longer batch is requested again with its size."""

_PAUSE_S: Final = 0.2
"""Seconds between two attempts, for instance while a leader is elected."""


class StoredLogs:
    """A client that reads logs, for one thread; `close` closes its connections."""

    def __init__(self, settings: Settings, *, limit_s: float) -> None:
        """Create a client that connects later.

        Args:
            settings: librdkafka's, as `broker_settings` returns them.
            limit_s: seconds that a request may take, and that a partition may be without an answer.
        """
        # The end of a log is the high watermark, behind which transactions may be open.
        self._lookup = Lookup({**settings, "isolation.level": "read_uncommitted"})
        self._limit_s = limit_s
        self._metadata: Metadata | None = None

    def close(self) -> None:
        self._lookup.close()

    def spans(self, topic: str) -> dict[TopicPartition, LogRange]:
        """Return the present span of each partition's log; empty if the topic does not exist.

        Raises BrokersUnreachableError and BrokerAccessError.
        """
        try:
            known = self._known(topic)
            if code := known.refused.get(topic, 0) if topic in known.topics else 0:
                raise _refused(topic, code)
            return self._spans([TopicPartition(topic, n) for n in known.topics.get(topic, ())])
        except AuthenticationError as error:
            raise error.error from error

    def end(self, tp: TopicPartition) -> int:
        """Return the present end of a log. Raises BrokersUnreachableError and BrokerAccessError."""
        try:
            return self._spans([tp])[tp].end
        except AuthenticationError as error:
            raise error.error from error

    def _spans(self, tps: list[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the present span of each log. Raises FetchError and AuthenticationError."""
        deadline = time.monotonic() + self._limit_s
        while True:
            found, reasons = self._spans_once(tps)
            if not reasons:
                return found
            if time.monotonic() > deadline:
                raise BrokersUnreachableError(
                    "the ends of logs are unknown: " + first_few(reasons, 3, separator="; "),
                    where=tps[0].topic,
                    remedy="check that all brokers run, and try again",
                )
            time.sleep(_PAUSE_S)
            self._metadata = None

    def _spans_once(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, LogRange], list[str]]:
        """Return the spans that are known, and why others are not. Raises FetchError."""
        asked: dict[tuple[str, int], list[TopicPartition]] = {}
        reasons = []
        for tp in tps:
            if (leader := self._leader(tp)) is None:
                reasons.append(f"{tp} has no leader")
            else:
                asked.setdefault(leader, []).append(tp)
        starts, ends = self._lookup.offsets_at(asked, (EARLIEST, LATEST), self._limit_s)
        found = {}
        for tp, start in starts.items():
            end = ends[tp]
            if isinstance(start, int) and isinstance(end, int):
                found[tp] = LogRange(start, end)
            elif name_of(TOPIC_DENIED) in f"{start} {end}":
                raise _refused(tp.topic, TOPIC_DENIED)
            else:
                reasons.append(f"{tp}: {start if isinstance(start, str) else end}")
        return found, reasons

    def _known(self, topic: str) -> Metadata:
        if self._metadata is None:
            self._metadata = self._lookup.metadata([topic], self._limit_s)
        return self._metadata

    def _leader(self, tp: TopicPartition) -> tuple[str, int] | None:
        known = self._known(tp.topic)
        return known.addresses[known.leaders[tp]] if tp in known.leaders else None

    # ---- one partition -----------------------------------------------------------------------

    def batches(self, tp: TopicPartition, span: LogRange) -> Iterator[tuple[bytes, int]]:
        """Yield whole batches from the log's start up to the end of the span, in their order, and
        the offset after them.

        The first batch may begin before the start, and the last one may end after the end. A
        malformed batch ends the log: the bytes that begin with it are yielded last.

        Raises BrokersUnreachableError if the partition's leader does not answer for the time limit,
        and BrokerAccessError.
        """
        at, size = span.start, _RESPONSE_BYTES
        while at < span.end:
            fetched = self._fetched(tp, at, size, span.end)
            if fetched is None:  # the log does not contain the offset any more
                start = self._start(tp)
                if start <= at:
                    raise BrokersUnreachableError(
                        f"offset {at} is not in the log, which contained it before",
                        where=str(tp),
                        remedy="check whether the brokers have lost messages, and try again",
                    )
                at = start
                continue
            data = bytes(fetched.data)
            found = RecordSet(tp, response_of(data), plain_engine())
            if found.stopped_at:
                at, size = max(at, found.next_offset), _RESPONSE_BYTES
                yield data[: found.stopped_at], at
            elif not found.is_corrupt and data:
                size = min(max(found.needed, 2 * size), RECEIVE_BYTES)
            if found.is_corrupt:
                yield data[found.stopped_at :], at
            if found.is_corrupt or not data:
                return

    def _start(self, tp: TopicPartition) -> int:
        self._metadata = None
        found, reasons = self._spans_once([tp])
        if reasons:
            raise BrokersUnreachableError(reasons[0], where=str(tp), remedy="try again")
        return found[tp].start

    def _fetched(self, tp: TopicPartition, at: int, size: int, end: int) -> StoredSet | None:
        """Return the batches from an offset on; None if the log does not contain the offset.

        There may be none if compaction has removed all records up to `end`.

        Raises BrokersUnreachableError and BrokerAccessError.
        """
        deadline = time.monotonic() + self._limit_s
        while True:
            try:
                reason = f"{tp} has no leader"
                if (leader := self._leader(tp)) is not None:
                    found = self._lookup.fetch(leader, [(tp, at, size)], self._limit_s)[tp]
                    if found.error in PERMANENT:
                        raise _refused(tp.topic, found.error)
                    if found.error == OUT_OF_RANGE:
                        return None
                    if not found.error and (found.data or found.end >= end):
                        return found
                    # A new leader may report fewer messages than it stores.
                    short = f"the log ends at {found.end}, and ended at {end} before"
                    reason = f"{tp}: {name_of(found.error) if found.error else short}"
            except AuthenticationError as error:
                raise error.error from error
            except LOST as error:
                reason = f"the leader of {tp} does not answer: {why(error)}"
            if time.monotonic() > deadline:
                raise BrokersUnreachableError(
                    reason, where=str(tp), remedy="check that all brokers run, and try again"
                )
            self._metadata = None
            time.sleep(_PAUSE_S)


def _refused(topic: str, code: int) -> FetchError:
    """Return the error of a topic that cannot be read."""
    if code != TOPIC_DENIED:
        return FetchError(f"the topic cannot be read: {name_of(code)}", where=topic)
    return BrokerAccessError(
        "the brokers deny access to the topic",
        where=topic,
        remedy="permit READ on it: kafka-acls.sh --add --allow-principal User:NAME"
        f" --operation Read --topic {topic}",
    )
