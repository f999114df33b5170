"""The connector: what users create, ask for streams, and shut down."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from zkconsumer.config import ConsumerConfig
from zkconsumer.consumer.codec import Codec
from zkconsumer.consumer.coordinator import Coordinator, Streams
from zkconsumer.consumer.gate import LeaseGate
from zkconsumer.consumer.stream import ReportKind, Stream, StreamReport
from zkconsumer.core import topics
from zkconsumer.core.assignors import Strategy
from zkconsumer.core.model import Purpose, RebalanceMode, TopicPartition
from zkconsumer.core.state import Phase, Settings
from zkconsumer.errors import (
    CommitError,
    ConnectorClosedError,
    ConsumerIdTakenError,
    MessageStreamsExistError,
)
from zkconsumer.kafka.brokers import broker_settings
from zkconsumer.kafka.fetcher import KafkaFetcher, Reset
from zkconsumer.kafka.settings import fetch_settings
from zkconsumer.trace import TraceFile
from zkconsumer.zk.session import ZooKeeperSession

logger = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

SHUTDOWN_MARGIN_S = 10.0
"""What a shutdown may take beyond its last commit, which itself has one session timeout."""


NUDGE_S = 60.0
"""`peers.nudge` makes the whole group rebalance, so not more often than this."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a member is doing, at one instant.

    Attributes:
        phase: where it stands, a name of `core.state.Phase`.
        session: the ZooKeeper session's number, or None.
        owned: consumer thread id -> the partitions it owns.
        blocked: partition -> who holds what this member should own.
        idle_peers: partitions assigned to members that are registered but do not claim them.
        waiting_for: why nothing more can be done now; empty when nothing is missing.
        malformed_peers: consumer id -> why its registration fails every JVM member.
        refused: partition -> why ZooKeeper refuses it.
        unreadable_offsets: partitions that are owned but not fetched.
        lease_s: how long messages may still be delivered without hearing from ZooKeeper.
    """

    phase: str
    session: int | None
    owned: Mapping[str, tuple[TopicPartition, ...]]
    blocked: Mapping[TopicPartition, str]
    idle_peers: frozenset[TopicPartition]
    waiting_for: str
    malformed_peers: Mapping[str, str]
    refused: Mapping[TopicPartition, str]
    unreadable_offsets: frozenset[TopicPartition]
    lease_s: float


class ConsumerConnector:
    """A member of a group (JVM: `kafka.consumer.ZookeeperConsumerConnector`, 0.8.0 to 1.1.1).

    As a context manager it shuts down at the end: after an exception the message in hand counts as
    not finished and is delivered again, otherwise everything handed out is committed.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        """Connect to ZooKeeper; nothing is registered before streams are created.

        Raises:
            ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `zk.session`.
        """
        self.config = config
        self.consumer_id = topics.consumer_id(config.group_id, config.consumer_id or _suffix())
        self._gate = LeaseGate()
        self._coordinator: Coordinator | None = None
        self._streams: Streams = {}
        self._closed = False
        self._latest: Any = None  # the connection, for the coordinator that comes later
        self._session = ZooKeeperSession(
            config, on_state=self._session_changed, on_watch=self._watch_fired
        )
        self._session.start()

    def _session_changed(self, session: Any) -> None:
        self._latest = session
        if self._coordinator is not None:
            self._coordinator.session_changed(session)

    def _watch_fired(self, kind: str, path: str) -> None:
        if self._coordinator is not None:
            self._coordinator.watch_fired(kind, path)

    # ---- streams ---------------------------------------------------------------------------------

    @overload
    def create_message_streams(
        self, topic_counts: Mapping[str, int]
    ) -> dict[str, list[Stream[bytes, bytes]]]: ...
    @overload
    def create_message_streams(
        self,
        topic_counts: Mapping[str, int],
        *,
        key_decoder: Callable[[bytes], K],
        value_decoder: Callable[[bytes], V],
    ) -> dict[str, list[Stream[K, V]]]: ...
    @overload
    def create_message_streams(
        self, topic_counts: Mapping[str, int], *, value_decoder: Callable[[bytes], V]
    ) -> dict[str, list[Stream[bytes, V]]]: ...
    def create_message_streams(
        self,
        topic_counts: Mapping[str, int],
        *,
        key_decoder: Callable[[bytes], Any] | None = None,
        value_decoder: Callable[[bytes], Any] | None = None,
    ) -> dict[str, list[Stream[Any, Any]]]:
        """Register in the group and return the streams: topic -> one stream for each thread.

        Returns when the member is registered; what it owns follows as the group settles. Decoders
        are called when a key or a value is asked for, never with None.

        Raises:
            MessageStreamsExistError: streams were created before on this connector.
            ConfigError, InvalidNameError: a count under 1, or an impossible topic name.
            ConsumerIdTakenError: a live session stayed registered under our consumer id.
            AccessDeniedError: ZooKeeper forbids the registration.
        """
        counts = topics.validate_topic_counts(topic_counts)
        self._require_open()
        if self._coordinator is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can create message streams at most once",
                where=self.consumer_id, remedy="create another connector, or ask for all at once",
            )
        trace = TraceFile(self.config.trace_file) if self.config.trace_file else None
        coordinator = Coordinator(self._settings(counts), gate=self._gate, trace=trace)
        codec = Codec(key_decoder, value_decoder, self._decode_failed)
        self._streams = {
            (topic, thread): self._stream(topic, thread, number, codec)
            for topic, count in counts.items()
            for number, thread in enumerate(topics.thread_ids(self.consumer_id, count))
        }
        coordinator.attach(self._session, self._streams)
        self._coordinator = coordinator
        coordinator.session_changed(self._latest)
        coordinator.start()
        self._wait_registered(coordinator)
        listed: dict[str, list[Stream[Any, Any]]] = {topic: [] for topic in counts}
        for (topic, _), stream in self._streams.items():
            listed[topic].append(stream)
        return listed

    def _settings(self, counts: Mapping[str, int]) -> Settings:
        c = self.config
        return Settings(
            group=c.group_id,
            consumer=self.consumer_id,
            subscription=counts,
            strategy=Strategy(c.partition_assignment_strategy),
            mode=RebalanceMode(c.rebalance_mode),
            auto_commit_s=c.auto_commit_interval_s if c.auto_commit_enable else None,
            grace_s=c.release_grace_s,
            backoff_s=c.rebalance_backoff_s,
            retries=c.rebalance_max_retries,
            nudge_s=NUDGE_S if c.peers_nudge else None,
        )

    def _stream(
        self, topic: str, thread: str, number: int, codec: Codec[Any, Any]
    ) -> Stream[Any, Any]:
        def connect() -> KafkaFetcher | None:
            view = self._coordinator.state.view if self._coordinator else None
            if view is None or not view.brokers:
                return None
            where = broker_settings(view.brokers)
            return KafkaFetcher({**fetch_settings(self.config), **where})

        return Stream(
            topic=topic,
            thread_id=thread,
            number=number,
            gate=self._gate,
            connect=connect,
            reset=Reset(self.config.auto_offset_reset),
            timeout_s=self.config.consumer_timeout_s,
            retry_s=self.config.refresh_leader_backoff_s,
            codec=codec,
            report=self._report,
        )

    def _report(self, report: StreamReport) -> None:
        if self._coordinator is not None:
            self._coordinator.stream_reported(report)

    def _decode_failed(self, text: str) -> None:
        self._report(StreamReport(ReportKind.DECODE_FAILED, self.consumer_id, text))

    def _wait_registered(self, coordinator: Coordinator) -> None:
        """A crashed predecessor's id node goes within its session timeout; wait for twice ours."""
        limit_s = 2 * self.config.zookeeper_session_timeout_s + SHUTDOWN_MARGIN_S
        try:
            coordinator.joined.result(limit_s)
        except FutureTimeoutError:
            self.shutdown()
            raise ConsumerIdTakenError(
                f"not registered within {limit_s:g} s: another session is registered under our "
                "consumer id, or ZooKeeper is away", where=self.consumer_id,
                remedy="stop the other consumer, or give each its own consumer.id",
            ) from None
        except BaseException:
            self.shutdown()
            raise

    # ---- while running ---------------------------------------------------------------------------

    def commit_offsets(self, *, timeout_s: float | None = None) -> None:
        """Commit everything handed out so far, of all streams (JVM: `commitOffsets`).

        Returns when it is stored. While ZooKeeper is away it waits, at most `timeout_s`.

        Raises:
            CommitError: some offsets were not stored, with each partition and the reason, or
                nothing was answered within `timeout_s` (then they may still be stored later).
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        if self._coordinator is None:
            return
        try:
            self._coordinator.commit().result(timeout_s)
        except FutureTimeoutError:
            raise CommitError(
                f"no answer within {timeout_s:g} s; the offsets may still be stored later",
                where=self.config.zookeeper_connect, remedy="commit again",
            ) from None

    def status(self) -> Status:
        """What this member owns, what blocks it, and what it waits for."""
        if self._coordinator is None:
            phase = Phase.CLOSED if self._closed else Phase.OFFLINE
            return Status(phase.value, None, {}, {}, frozenset(), "", {}, {}, frozenset(), 0.0)
        state = self._coordinator.state
        owned: dict[str, list[TopicPartition]] = {}
        for tp, mine in sorted(state.owned.items()):
            owned.setdefault(mine.thread, []).append(tp)
        return Status(
            phase=state.phase.value,
            session=state.session.id if state.session else None,
            owned={thread: tuple(held) for thread, held in owned.items()},
            blocked={tp: who.thread for tp, who in state.blocked.items()},
            idle_peers=state.idle_peers,
            waiting_for=state.waiting_for,
            malformed_peers=dict(state.view.malformed) if state.view else {},
            refused=dict(state.refused),
            unreadable_offsets=state.malformed,
            lease_s=max(0.0, self._gate.deadline - self._gate.clock()),
        )

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and gauges of the moment; names are stable."""
        if self._coordinator is None:
            return {}
        state, executor = self._coordinator.state, self._coordinator.requests
        return {
            **{name: float(count) for name, count in self._coordinator.counters.items()},
            "owned_partitions": float(len(state.owned)),
            "blocked_partitions": float(len(state.blocked)),
            "zookeeper_requests": float(executor),
        }

    # ---- the end ---------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group: stop delivering, commit everything handed out, end the session.

        May be called twice, and from any thread. Auto-commit off: nothing is committed.
        """
        self._leave(Purpose.LEAVE)

    def _leave(self, purpose: Purpose) -> None:
        if self._closed:
            return
        self._closed = True
        for stream in self._streams.values():
            stream.close()
        if self._coordinator is None:
            self._session.stop()
            return
        self._coordinator.leave(purpose)
        limit_s = self.config.zookeeper_session_timeout_s + SHUTDOWN_MARGIN_S
        self._coordinator.join(limit_s)
        if self._coordinator.is_alive():
            logger.error(
                "%s has not ended within %g s; its znodes go with its session",
                self.consumer_id, limit_s,
            )

    def _require_open(self) -> None:
        if self._closed:
            raise ConnectorClosedError(
                "the connector was shut down", where=self.consumer_id,
                remedy="create a new one; a connector cannot be used again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(Purpose.LEAVE if kind is None else Purpose.RELEASE)


def _suffix() -> str:
    return topics.default_suffix(
        hostname=socket.gethostname(),
        epoch_ms=int(time.time() * 1000),
        uuid_msb=uuid.uuid4().int >> 64,
    )
