"""The stream of a consumer of the bridge; the simulator uses it, too."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from zkconsumer.bridge import state as bridge
from zkconsumer.consumer.stream_partitions import CommitScope, Grant
from zkconsumer.errors import ZkConsumerError
from zkconsumer.protocol.model import Position, TopicPartition
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

Post = Callable[[Callable[[float], bridge.Event]], None]
"""Passes an event, which gets the time, to the bridge."""


class BridgeStream:
    """The stream of one consumer: what the consumer is granted goes to the bridge.

    The consumer's thread calls all methods but `returned`, which the bridge's thread calls.
    """

    def __init__(
        self,
        consumer: int,
        *,
        post: Post,
        held: Callable[[], Mapping[TopicPartition, bridge.Held]],
    ) -> None:
        """`held` returns the partitions that all consumers of the bridge hold."""
        self._consumer, self._post, self._held = consumer, post, held
        self._lock = threading.Lock()  # guards `_releases`, which two threads change
        self._releases: list[tuple[frozenset[TopicPartition], Callable[[], None]]] = []

    def grant(self, grants: Iterable[Grant]) -> None:
        given = {one.tp: (one.epoch, one.offset) for one in grants}
        self._post(lambda now: bridge.Granted(now, self._consumer, given))

    def withdraw(self, tps: Iterable[TopicPartition]) -> None:
        gone = frozenset(tps)
        if gone:
            self._post(lambda now: bridge.Withdrawn(now, self._consumer, gone))

    def ask_release(self, tps: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        asked = frozenset(tps)
        with self._lock:
            self._releases.append((asked, done))
        self._post(lambda now: bridge.ReleaseAsked(now, self._consumer, asked))

    def positions(self, which: CommitScope) -> dict[TopicPartition, Position]:
        return {
            tp: Position(one.epoch, one.offset)
            for tp, one in self._held().items()
            if one.consumer == self._consumer and one.offset is not None
        }

    def explain(self, idle_reason: str, shortfall: str) -> None:
        if idle_reason:
            logger.debug("bridge consumer %d is idle: %s", self._consumer, idle_reason)

    def fail(self, error: Exception) -> None:
        logger.warning("bridge consumer %d: %s", self._consumer, error)

    def end(self, error: ZkConsumerError) -> None:
        logger.error("bridge consumer %d ends: %s", self._consumer, error)

    def returned(self, partitions: frozenset[TopicPartition]) -> None:
        """Answer the requests to release whose partitions have all returned."""
        with self._lock:
            ready = [done for asked, done in self._releases if asked <= partitions]
            self._releases = [one for one in self._releases if not one[0] <= partitions]
        for done in ready:
            done()
