"""The group's offsets in Kafka (`offsets.storage=kafka`), read and committed.

`kafka.group_offsets` reads them, and librdkafka commits them. Each request takes at most
`offsets.channel.socket.timeout.ms`, and the member's state machine decides whether to retry; the
JVM retries without a limit. JVM: `kafka.client.ClientUtils.channelToOffsetManager` and the requests
of `ZookeeperConsumerConnector.commitOffsets` and `fetchOffsets`, 0.8.2 to 1.1.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError, ZkConsumerError
from zkconsumer.kafka.access import Refusals
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.group_offsets import UNREADABLE, GroupOffsets
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.requests import (
    Code,
    FetchOffsets,
    NotStored,
    OffsetRequest,
    Reply,
    StoreOffsets,
)

logger = logging.getLogger(__name__)

# Seconds between two polls for the reply to a commit; librdkafka delivers the reply only in a poll.
TURN_S: Final = 0.01

# Seconds that `stop` waits for a running request. If the request takes longer, the thread ends
# later, within the time limit of the request.
STOP_S: Final = 1.0

_NEW_CONSUMER = (
    "a new consumer (Kafka 0.9 or later) is a member of the group with this name, so the brokers"
    " accept offsets only from members; stop it, or give it another group.id"
)
_PERMANENT: Final[Mapping[int, str]] = {
    KafkaError.UNKNOWN_MEMBER_ID: _NEW_CONSUMER,
    KafkaError.ILLEGAL_GENERATION: _NEW_CONSUMER,
    KafkaError.REBALANCE_IN_PROGRESS: _NEW_CONSUMER,
    KafkaError.OFFSET_METADATA_TOO_LARGE: (
        "shorten the metadata; see offset.metadata.max.bytes of the broker"
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic or the partition no longer exists",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the brokers' access control forbids it",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the brokers' access control forbids it",
    KafkaError.INVALID_GROUP_ID: "the brokers reject this group.id",
    KafkaError.INVALID_COMMIT_OFFSET_SIZE: "the commit is larger than a broker accepts",
}
"""Errors of a commit that no retry can solve, and their remedies.

The JVM retries after all of these errors except for metadata that are too large. The JVM treats a
commit with such metadata as stored, so `commitOffsets` returns without an error.
"""


def channel_settings(config: ConsumerConfig) -> Settings:
    """Return the settings of a client that commits and fetches offsets but never subscribes.

    The settings contain no broker addresses.
    """
    limit_ms = max(10, min(round(config.offsets_channel_socket_timeout_s * 1000), 300_000))
    return {
        "client.id": config.client_id,
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "socket.timeout.ms": limit_ms,
        # librdkafka keeps a commit for this time while it does not know the group's coordinator.
        "session.timeout.ms": limit_ms,
        # Reconnect within 1 s, so that a restarted broker is used soon.
        "reconnect.backoff.max.ms": 1000,
    }


class KafkaOffsetStore(threading.Thread):
    """Fetches and stores offsets on its own thread; no other thread uses its consumer.

    The thread calls `connect`, which returns the settings for the brokers that are registered now,
    or None if no broker is registered. `limit_s` is the time limit of one request in seconds.
    """

    def __init__(
        self, name: str, *, connect: Callable[[], Settings | None], limit_s: float
    ) -> None:
        super().__init__(name=f"{name}-offsets", daemon=True)
        self._connect, self._limit_s = connect, limit_s
        self._queue: queue.SimpleQueue[
            tuple[OffsetRequest, Callable[[Sequence[Reply]], None]] | None
        ] = queue.SimpleQueue()
        self._settings: Settings | None = None
        self._reader: GroupOffsets | None = None
        self._consumer: Consumer | None = None
        self._refusals: Refusals | None = None
        self._answers: list[tuple[KafkaError | None, list[RawPartition]]] = []

    # ---- any thread ------------------------------------------------------------------------------

    def submit(self, request: OffsetRequest, done: Callable[[Sequence[Reply]], None]) -> None:
        """Queue a request. The store calls `done` once with the reply, on the store's thread."""
        self._queue.put((request, done))

    def stop(self) -> None:
        """End the thread; waits at most `STOP_S` seconds for a running request."""
        self._queue.put(None)
        if self.is_alive():
            self.join(STOP_S)

    # ---- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            request, done = item
            try:
                reply = self._ask(request)
            except Exception as error:  # the thread's boundary: the reply reports the error
                logger.exception("%s failed", self.name)
                reply = _unavailable(request, f"{type(error).__name__}: {error}")
            done((reply,))
        self._drop()

    def _ask(self, request: OffsetRequest) -> Reply:
        try:
            self._settings = self._settings or self._connect()
            if self._settings is None:
                return _unavailable(request, "no broker is registered in ZooKeeper")
            match request:
                case FetchOffsets(partitions):
                    return Reply(Code.OK, self._fetch(self._settings, partitions))
                case StoreOffsets(offsets):
                    return Reply(Code.OK, self._store(self._settings, offsets))
        except ZkConsumerError as error:
            self._drop()
            return _unavailable(request, str(error))
        except KafkaException as error:
            why: object = error.args[0].str()
            if self._consumer is not None and self._refusals is not None:
                self._consumer.poll(0)
                why = self._refusals.last or why
            # The next request makes a new client for the brokers that are registered at that time.
            self._drop()
            return _unavailable(request, str(why))

    def _committer(self, settings: Settings) -> Consumer:
        if self._consumer is None:
            self._refusals = Refusals(settings)
            callbacks = {"on_commit": self._committed, "error_cb": self._on_error}
            self._consumer = Consumer({**settings, **callbacks})
        return self._consumer

    def _drop(self) -> None:
        self._settings = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _fetch(
        self, settings: Settings, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the group has committed; a partition without one is absent.

        A partition that the brokers do not know is also absent. For any other error the JVM assumes
        that there is no offset, and applies `auto.offset.reset`. In zkconsumer the whole request
        fails, and is retried.
        """
        self._reader = self._reader or GroupOffsets(settings)
        found = self._reader.read(settings["group.id"], partitions, limit_s=self._limit_s)
        if faults := [f"{tp}: {why}" for tp, why in found.items() if isinstance(why, str)]:
            raise FetchError("; ".join(faults[:5]))
        return {tp: at for tp, at in found.items() if isinstance(at, OffsetAndMetadata)}

    def _store(
        self, settings: Settings, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> NotStored:
        """Commit without membership; brokers accept this while no consumer of 0.9 or later is in
        the group.

        The method does not use the synchronous call, which has no time limit.
        """
        consumer = self._committer(settings)
        self._answers.clear()
        # Erase metadata that librdkafka could not read; the JVM's members erase all metadata.
        offsets = {
            tp: at._replace(metadata="") if at.metadata == UNREADABLE else at
            for tp, at in offsets.items()
        }
        # confluent-kafka appends a NUL to metadata, even to empty ones, and other clients read the
        # NUL. So do not pass empty metadata.
        raw = [RawPartition(*tp, *(at if at.metadata else at[:1])) for tp, at in offsets.items()]
        consumer.commit(offsets=raw, asynchronous=True)
        deadline = time.monotonic() + self._limit_s
        while not self._answers:
            consumer.poll(TURN_S)
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        error, partitions = self._answers.pop()
        single = {TopicPartition(p.topic, p.partition): p.error for p in partitions}
        failed = {tp: why for tp in offsets if (why := single.get(tp) or error) is not None}
        if not failed:
            return NotStored({}, {})
        # librdkafka also reports the last error for partitions that were stored, so read them back.
        found = self._fetch(settings, sorted(failed))
        result = NotStored({}, {})
        for tp, why in failed.items():
            remedy = _PERMANENT.get(why.code(), "")
            if found.get(tp) != offsets[tp]:
                into = result.denied if remedy else result.unavailable
                into[tp] = f"Kafka: {why.str()}" + (remedy and f": {remedy}")
        if result.unavailable:
            self._drop()
        return result

    def _committed(self, error: KafkaError | None, partitions: list[RawPartition]) -> None:
        # librdkafka calls this method within `poll`, so on this thread.
        self._answers.append((error, partitions))

    def _on_error(self, error: KafkaError) -> None:
        # Log at DEBUG, because a failed request also returns the error to its caller.
        logger.debug("%s", error)
        if self._refusals is not None:
            self._refusals(error)


def _unavailable(request: OffsetRequest, reason: str) -> Reply:
    if isinstance(request, StoreOffsets):
        return Reply(Code.OK, NotStored({}, dict.fromkeys(request.offsets, f"Kafka: {reason}")))
    return Reply(Code.OTHER, reason)
