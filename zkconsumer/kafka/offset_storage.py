"""The group's offsets in Kafka (`offsets.storage=kafka`), over confluent-kafka.

The coordinator of a group, in this module, is the broker that keeps its offsets. librdkafka looks
it up and follows its moves; what the JVM waits for without end is bounded here: a request has
`offsets.channel.socket.timeout.ms` in all, and the member's machine decides about another try.
JVM: `kafka.client.ClientUtils.channelToOffsetManager` and the requests of
`ZookeeperConsumerConnector.commitOffsets` and `fetchOffsets`, 0.8.2 to 1.1.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import ZkConsumerError
from zkconsumer.kafka.client_settings import Settings
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

# Seconds between two looks for the answer to a commit; librdkafka gives it to its poll only.
TURN_S: Final = 0.01

# Seconds that `stop` waits for a request under way; after that its thread ends by itself, within
# the time that the request has.
STOP_S: Final = 1.0

_STRANGER = (
    "a consumer of the new kind (Kafka 0.9 or later) is in the group of this name in the brokers, "
    "which then take offsets from its like only; stop it, or give it another group.id"
)
_FOR_GOOD: Final[Mapping[int, str]] = {
    KafkaError.UNKNOWN_MEMBER_ID: _STRANGER,
    KafkaError.ILLEGAL_GENERATION: _STRANGER,
    KafkaError.REBALANCE_IN_PROGRESS: _STRANGER,
    KafkaError.OFFSET_METADATA_TOO_LARGE: "shorten it; see offset.metadata.max.bytes of the broker",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic or the partition does not exist any more",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the brokers' access control forbids it",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the brokers' access control forbids it",
    KafkaError.INVALID_GROUP_ID: "the brokers refuse such a group.id",
    KafkaError.INVALID_COMMIT_OFFSET_SIZE: "the commit is larger than a broker takes",
}
"""Errors of a commit that waiting does not mend, and what to do about them.

The JVM retries all of these, but for too large metadata, which it counts as stored, and then
returns from `commitOffsets` as if all were well.
"""


def channel_settings(config: ConsumerConfig) -> Settings:
    """The settings of a consumer that commits and asks, and never subscribes; without addresses."""
    limit_ms = max(10, min(round(config.offsets_channel_socket_timeout_s * 1000), 300_000))
    return {
        "client.id": config.client_id,
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "socket.timeout.ms": limit_ms,
        # So long librdkafka keeps a commit for a group whose coordinator it does not know.
        "session.timeout.ms": limit_ms,
        # A broker that was restarted must not be longer away than it is.
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
    }


class KafkaOffsetStore(threading.Thread):
    """Asks and stores on a thread of its own, the only one that touches its consumer.

    `connect` tells how the brokers are reached now, None when none is known; it is called on this
    thread. `limit_s` is what one request may take.
    """

    def __init__(
        self, name: str, *, connect: Callable[[], Settings | None], limit_s: float
    ) -> None:
        super().__init__(name=f"{name}-offsets", daemon=True)
        self._connect, self._limit_s = connect, limit_s
        self._queue: queue.SimpleQueue[
            tuple[OffsetRequest, Callable[[Sequence[Reply]], None]] | None
        ] = queue.SimpleQueue()
        self._consumer: Consumer | None = None
        self._answers: list[tuple[KafkaError | None, list[RawPartition]]] = []

    # ---- any thread ------------------------------------------------------------------------------

    def submit(self, request: OffsetRequest, done: Callable[[Sequence[Reply]], None]) -> None:
        """Have it done in its turn; `done` gets the one reply, on the store's thread."""
        self._queue.put((request, done))

    def stop(self) -> None:
        """End the thread; a request under way is waited for a moment."""
        self._queue.put(None)
        if self.is_alive():
            self.join(STOP_S)

    # ---- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            request, done = item
            try:
                reply = self._ask(request)
            except Exception as error:  # the thread's boundary: whoever waits must hear of it
                logger.exception("%s failed", self.name)
                reply = _unavailable(request, f"{type(error).__name__}: {error}")
            done((reply,))
        self._drop()

    def _ask(self, request: OffsetRequest) -> Reply:
        try:
            consumer = self._connected()
            if consumer is None:
                return _unavailable(request, "no broker is registered in ZooKeeper")
            match request:
                case FetchOffsets(partitions):
                    return Reply(Code.OK, self._fetch(consumer, partitions))
                case StoreOffsets(offsets):
                    return Reply(Code.OK, self._store(consumer, offsets))
        except ZkConsumerError as error:
            return _unavailable(request, str(error))
        except KafkaException as error:
            # The next try begins anew, with the brokers that are registered by then.
            self._drop()
            return _unavailable(request, error.args[0].str())

    def _connected(self) -> Consumer | None:
        if self._consumer is None:
            settings = self._connect()
            if settings is not None:
                callbacks = {"on_commit": self._committed, "error_cb": _passing}
                self._consumer = Consumer({**settings, **callbacks})
        return self._consumer

    def _drop(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _fetch(
        self, consumer: Consumer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; absent where it has nothing.

        A partition that brokers do not know (0.8.2 says so, later ones do not) has nothing, either.
        For any other error the JVM takes it that there is none, and resets; here all is asked for
        again.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        asked = [RawPartition(*tp) for tp in partitions]
        for one in consumer.committed(asked, timeout=self._limit_s):
            if one.error is not None and one.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(one.error)
            if one.error is None and one.offset >= 0:
                tp = TopicPartition(one.topic, one.partition)
                found[tp] = OffsetAndMetadata(one.offset, one.metadata or "")
        return found

    def _store(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> NotStored:
        """A simple commit, as of a client that is no member: it is taken while the group has none.

        Not the call that waits: it has no limit of its own.
        """
        self._answers.clear()
        # Where there are metadata the library ends them with a NUL, empty ones included, which
        # other clients then see; so none are given where there are none.
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
        # librdkafka gives the last error to all that had none, and those are stored.
        found = self._fetch(consumer, sorted(failed))
        result = NotStored({}, {})
        for tp, why in failed.items():
            remedy = _FOR_GOOD.get(why.code(), "")
            if found.get(tp) != offsets[tp]:
                into = result.denied if remedy else result.unavailable
                into[tp] = f"Kafka: {why.str()}" + (remedy and f": {remedy}")
        if result.unavailable:
            self._drop()
        return result

    def _committed(self, error: KafkaError | None, partitions: list[RawPartition]) -> None:
        # Called by librdkafka within `poll`, so on this thread.
        self._answers.append((error, partitions))


def _unavailable(request: OffsetRequest, reason: str) -> Reply:
    if isinstance(request, StoreOffsets):
        return Reply(Code.OK, NotStored({}, dict.fromkeys(request.offsets, f"Kafka: {reason}")))
    return Reply(Code.OTHER, reason)


def _passing(error: Any) -> None:
    """Connections come and go; a request that fails for it says so itself."""
    logger.debug("%s", error)
