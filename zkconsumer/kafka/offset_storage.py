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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError, ZkConsumerError, first_few
from zkconsumer.kafka.client_settings import Brokers, Settings, broker_settings
from zkconsumer.kafka.group_offsets import UNREADABLE, GroupOffsets
from zkconsumer.kafka.log_answers import NO_BROKER
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.requests import (
    Code,
    FetchOffsets,
    NotStored,
    OffsetRequest,
    Reply,
    StoreOffsets,
)
from zkconsumer.safe_logger import SafeLogger

if TYPE_CHECKING:
    from zkconsumer.kafka.librdkafka import Committer

logger = SafeLogger(logging.getLogger(__name__))

# Seconds that `stop` waits for a running request. If the request takes longer, the thread ends
# later, within the time limit of the request.
STOP_S: Final = 1.0

_NEW_CONSUMER = (
    "a new consumer (Kafka 0.9 or later) is a member of the group with this name, so the brokers"
    " accept offsets only from members; stop it, or give it another group.id"
)
_PERMANENT: Final[Mapping[int, str]] = {
    25: _NEW_CONSUMER,
    22: _NEW_CONSUMER,
    27: _NEW_CONSUMER,
    12: ("shorten the metadata; see offset.metadata.max.bytes of the broker"),
    3: "the topic or the partition no longer exists",
    30: "the brokers' access control forbids it",
    29: "the brokers' access control forbids it",
    24: "the brokers reject this group.id",
    28: "the commit is larger than a broker accepts",
}
"""Errors of Kafka's protocol that no retry of a commit can solve, and their remedies.

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
    or None if no broker is registered. It calls `has_offsets_topic` as `GroupOffsets` does, at each
    fetch: a topic that was missing before the claim of a partition may exist after it. `limit_s` is
    the time limit of one request in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        connect: Callable[[], Settings | None],
        has_offsets_topic: Callable[[], bool | None] = lambda: None,
        limit_s: float,
    ) -> None:
        super().__init__(name=f"{name}-offsets", daemon=True)
        self._connect, self._limit_s = connect, limit_s
        self._has_offsets_topic = has_offsets_topic
        self._queue: queue.SimpleQueue[
            tuple[OffsetRequest, Callable[[Sequence[Reply]], None]] | None
        ] = queue.SimpleQueue()
        self._settings: Settings | None = None
        self._reader: GroupOffsets | None = None
        self._committer: Committer | None = None

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
                return _unavailable(request, NO_BROKER)
            match request:
                case FetchOffsets(partitions):
                    return Reply(Code.OK, self._fetch(self._settings, partitions))
                case StoreOffsets(offsets):
                    return Reply(Code.OK, self._store(self._settings, offsets))
        except ZkConsumerError as error:
            # The next request makes a new client for the brokers that are registered at that time.
            self._drop()
            return _unavailable(request, str(error))

    def _drop(self) -> None:
        self._settings = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._committer is not None:
            self._committer.close()
            self._committer = None

    def _fetch(
        self, settings: Settings, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the group has committed; a partition without one is absent.

        A partition that the brokers do not know is also absent. For any other error the JVM assumes
        that there is no offset, and applies `auto.offset.reset`. In zkconsumer the whole request
        fails, and is retried.
        """
        self._reader = self._reader or GroupOffsets(settings, self._has_offsets_topic)
        self._reader.begin_reading()  # a silent broker takes its share of the limit only once
        found = self._reader.read(settings["group.id"], partitions, limit_s=self._limit_s)
        if faults := [f"{tp}: {why}" for tp, why in found.items() if isinstance(why, str)]:
            raise FetchError(first_few(faults, 5, separator="; "))
        return {tp: at for tp, at in found.items() if isinstance(at, OffsetAndMetadata)}

    def _store(
        self, settings: Settings, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> NotStored:
        """Commit without membership; brokers accept this while no consumer of 0.9 or later is in
        the group.
        """
        from zkconsumer.kafka.librdkafka import Committer  # noqa: PLC0415 - loads librdkafka

        self._committer = self._committer or Committer(settings)
        # Erase metadata that librdkafka could not read; the JVM's members erase all metadata.
        offsets = {
            tp: at._replace(metadata="") if at.metadata == UNREADABLE else at
            for tp, at in offsets.items()
        }
        failed = self._committer.commit(offsets, limit_s=self._limit_s)
        if not failed:
            return NotStored({}, {})
        # librdkafka also reports the last error for partitions that were stored, so read them back.
        try:
            found = self._fetch(settings, sorted(failed))
        except FetchError:
            found = {}  # each failure then counts: what denies the commit may deny the fetch, too
        result = NotStored({}, {})
        for tp, (code, why) in failed.items():
            remedy = _PERMANENT.get(code, "")
            if found.get(tp) != offsets[tp]:
                into = result.denied if remedy else result.unavailable
                into[tp] = f"Kafka: {why}" + (remedy and f": {remedy}")
        if result.unavailable:
            self._drop()
        return result


def _unavailable(request: OffsetRequest, reason: str) -> Reply:
    if isinstance(request, StoreOffsets):
        return Reply(Code.OK, NotStored({}, dict.fromkeys(request.offsets, f"Kafka: {reason}")))
    return Reply(Code.OTHER, reason)


def offset_store(
    config: ConsumerConfig,
    consumer: str,
    brokers: Callable[[], Brokers],
    has_offsets_topic: Callable[[], bool | None],
) -> KafkaOffsetStore | None:
    """Return the client that stores offsets in Kafka; None with `offsets.storage=zookeeper`.

    `brokers` returns the registered brokers, and `has_offsets_topic` whether the topic of the
    offsets exists. Both may wait for ZooKeeper.
    """
    if config.offsets_storage == "zookeeper":
        return None

    def connect() -> Settings | None:
        known = brokers()
        return {**channel_settings(config), **broker_settings(known)} if known else None

    limit_s = config.offsets_channel_socket_timeout_s
    return KafkaOffsetStore(
        consumer, connect=connect, has_offsets_topic=has_offsets_topic, limit_s=limit_s
    )
