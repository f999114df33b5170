"""The connector: what users create, ask for streams, and shut down."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import commit_requests, group_member, metrics
from zkconsumer.consumer.coordinator import Coordinator
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.listener import ConsumerRebalanceListener
from zkconsumer.consumer.metrics import Exports, Figures
from zkconsumer.consumer.status import Status, idle_status, status_of
from zkconsumer.consumer.stream import Stream, Streams, by_stream, seek
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import Codec
from zkconsumer.errors import (
    CommitError,
    ConnectorClosedError,
    MessageStreamsExistError,
)
from zkconsumer.kafka.pool import FetcherPool
from zkconsumer.member.phases import Phase
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import TopicFilter
from zkconsumer.protocol.model import Purpose, TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.trace import TraceFile

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

SHUTDOWN_MARGIN_S = 10.0
"""What the end of a session may take beyond its last commit, which itself has one session timeout.
All that it does has limits of a few seconds; this one is for a machine that is slow."""

CLIENTS_S = 5.0
"""Seconds for which a shutdown waits for all broker clients to close. One closes in milliseconds,
unless its library waits for the system, as for a host name that is being resolved."""

CLOSERS = 32
"""Threads that close broker clients at the end of a connector, at most."""


class ConsumerConnector:
    """A member of a group (JVM: `kafka.consumer.ZookeeperConsumerConnector`, 0.8.0 to 1.1.1).

    As a context manager it shuts down at the end: after an exception the message in hand counts as
    not finished and is delivered again, otherwise everything handed out is committed.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        """Connect to ZooKeeper; nothing is registered before streams are created.

        Raises:
            ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `zk.session`, `Exports`.
        """
        self.config = config
        self._member = GroupMember(config)
        self.consumer_id = self._member.consumer_id
        self._streams: Streams = {}
        self._pool: FetcherPool | None = None
        self._listener: ConsumerRebalanceListener | None = None
        self._exports = Exports(self._figures)
        self._closed = False
        self._has_raised = False
        if config.metrics_port is not None:
            self._exports.serve(config.metrics_host, config.metrics_port)
        try:
            self._member.connect()
        except BaseException:
            self._exports.end()
            raise

    @property
    def _coordinator(self) -> Coordinator | None:
        return self._member.coordinator

    # ---- streams ---------------------------------------------------------------------------------

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Have it told of every rebalance (JVM: `setConsumerRebalanceListener`, 0.9.0.0).

        It runs on a thread of its own and is waited for, each time, for `release.grace.ms`.

        Raises:
            MessageStreamsExistError: streams were created before.
        """
        self._require_open()
        if self._coordinator is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can only set consumer rebalance listener before creating "
                "streams",
                where=self.consumer_id,
                remedy="set it first",
            )
        self._listener = listener

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
        counts = paths.validate_topic_counts(topic_counts)
        codec = Codec(key_decoder, value_decoder, self._decode_failed)
        streams = self._join(Registration(counts), counts.items(), codec)
        by_topic: dict[str, list[Stream[Any, Any]]] = {topic: [] for topic in counts}
        for (topic, _), stream in streams.items():
            by_topic[topic or ""].append(stream)
        return by_topic

    @overload
    def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[Stream[bytes, bytes]]: ...
    @overload
    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        *,
        key_decoder: Callable[[bytes], K],
        value_decoder: Callable[[bytes], V],
    ) -> list[Stream[K, V]]: ...
    @overload
    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        *,
        value_decoder: Callable[[bytes], V],
    ) -> list[Stream[bytes, V]]: ...
    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        *,
        key_decoder: Callable[[bytes], Any] | None = None,
        value_decoder: Callable[[bytes], Any] | None = None,
    ) -> list[Stream[Any, Any]]:
        """Register in the group for all topics of a filter, also those that are created later.

        Each stream carries its thread's partitions of all these topics. Otherwise as
        `create_message_streams`; one connector can do one of the two, once.

        Raises:
            MessageStreamsExistError, ConfigError, ConsumerIdTakenError, AccessDeniedError: as for
                `create_message_streams`.
        """
        count = paths.validate_streams(streams, where=topic_filter.regex)
        codec = Codec(key_decoder, value_decoder, self._decode_failed)
        registration = Registration({topic_filter.regex: count}, topic_filter.pattern)
        return list(self._join(registration, [(None, count)], codec).values())

    def _join(
        self,
        registration: Registration,
        counts: Iterable[tuple[str | None, int]],
        codec: Codec[Any, Any],
    ) -> Streams:
        """Make the streams, by topic (None for all of a filter), and wait for the registration."""
        self._require_open()
        if self._coordinator is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can create message streams at most once",
                where=self.consumer_id,
                remedy="create another connector, or ask for all at once",
            )
        settings = self._member.settings(registration, self._listener)
        counts = list(counts)
        self._pool = group_member.fetcher_pool(
            self.config,
            self.consumer_id,
            sum(count for _, count in counts),
            brokers=self._member.brokers,
            report=self._report,
        )
        self._streams = {
            (topic, thread): group_member.stream(
                self.config,
                topic,
                thread,
                number,
                codec,
                gate=self._member.gate,
                brokers=self._member.brokers,
                report=self._report,
                pool=self._pool,
            )
            for topic, count in counts
            for number, thread in enumerate(paths.thread_ids(self.consumer_id, count))
        }
        # Open the trace file last, so that an earlier error leaves no file open.
        trace = TraceFile(self.config.trace_file) if self.config.trace_file else None
        self._member.start(settings, self._streams, trace=trace, listener=self._listener)
        try:
            self._member.wait_registered()
        except BaseException:
            self._leave(Purpose.LEAVE)
            raise
        return self._streams

    def _report(self, report: StreamReport) -> None:
        if self._coordinator is not None:
            self._coordinator.stream_reported(report)

    def _decode_failed(self, text: str) -> None:
        self._report(StreamReport(ReportKind.DECODE_FAILED, self.consumer_id, text))

    # ---- while running ---------------------------------------------------------------------------

    def commit_offsets(
        self,
        offsets: commit_requests.Given | None = None,
        *,
        retries: int | None = None,
        timeout_s: float = commit_requests.COMMIT_TIMEOUT_S,
    ) -> None:
        """Commit everything handed out so far, of all streams (JVM: `commitOffsets`).

        Returns when the offsets are stored. While ZooKeeper is away the call waits, at most
        `timeout_s` seconds. Commits of several threads that wait at the same time are stored as
        one, and all of them get its result.

        Args:
            offsets: partition -> the next offset to read, or OffsetAndMetadata: exactly these are
                committed instead, also where that goes back (JVM 0.9 and later).
            retries: for the JVM's `retryOnFailure`: how often Kafka may be asked again, with
                `offsets.storage=kafka`; None for `offsets.commit.max.retries`.
            timeout_s: seconds after which the call gives up, 120 by default. A commit that has
                not been sent by then is dropped.

        Raises:
            CommitError: some offsets were not stored, with each partition and the reason; or
                nothing was answered within `timeout_s` (a commit that had been sent by then may
                still be stored); or 16 commits wait already.
            NotOwnedError: `offsets` has partitions that are not ours; then none is committed.
            ConfigError: an offset or a number that is none, or metadata for ZooKeeper.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        storage = group_member.storage(self.config)
        asked = commit_requests.asked(offsets, retries=retries, storage=storage)
        if self._coordinator is None:
            # This member owns nothing yet.
            commit_requests.positions_given(asked.given or {}, {}, request=0, now=0.0)
            return
        try:
            self._coordinator.commit(asked).result(timeout_s)
        except FutureTimeoutError:
            self._coordinator.give_up(asked)
            raise CommitError(
                f"no answer within {timeout_s:g} s; a commit that was sent may still be stored",
                where=self.config.zookeeper_connect,
                remedy="commit again",
            ) from None

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver no more of these, and fetch no more, until they are resumed.

        They stay owned, and their positions are committed as ever. It holds for the present
        ownership: a partition that was given away and comes back is not paused. A message that
        another thread is being given at this moment may still come.

        Raises:
            NotOwnedError: not all of them are served by this member; then none is paused.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        for stream, tps in by_stream(self._streams.values(), partitions).items():
            stream.pause(tps)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver these again, from where they were paused; raises as `pause`."""
        self._require_open()
        for stream, tps in by_stream(self._streams.values(), partitions).items():
            stream.resume(tps)

    def paused(self) -> frozenset[TopicPartition]:
        """What is paused."""
        return frozenset().union(*(stream.paused for stream in self._streams.values()))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Deliver `offset` next, and nothing of the partition that was fetched before.

        The next commit stores it, also where that means going back. An offset that the log does not
        have is replaced by `auto.offset.reset`, as a stored one would be.

        Raises:
            NotOwnedError: the partition is not served by this member.
            ConfigError: an offset under 0.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        seek(self._streams.values(), partition, offset)

    def status(self) -> Status:
        """What this member owns, what blocks it, and what it waits for."""
        if self._coordinator is None:
            return idle_status(Phase.CLOSED if self._closed else Phase.OFFLINE)
        return status_of(self._coordinator.state, self._member.gate, self._coordinator.failure)

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and gauges of the moment; names are stable."""
        figures = self._figures()
        return figures.flat() if figures else {}

    def _figures(self) -> Figures | None:
        if self._coordinator is None:
            return None
        return metrics.figures(self.config, self._coordinator, self._member.gate, self._streams)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Export them in a registry of prometheus-client, until the shutdown.

        Raises ConfigError without prometheus-client, ConnectorClosedError after the shutdown.
        """
        self._require_open()
        self._exports.register(registry)

    # ---- the end ---------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group: stop delivering, commit everything handed out, end the session.

        The broker clients are closed after that, at the same time and within `CLIENTS_S` seconds.
        What is still running then, such as a rebalance listener that does not return, is named in
        a warning and left to its daemon thread.

        May be called twice, and from any thread. Auto-commit off: nothing is committed.

        Raises:
            ZkConsumerError: the member ended by itself, before or during the call, so that the last
                commit was not made; the error says why. A second call raises nothing.
        """
        self._leave(Purpose.LEAVE)
        self._raise_failure()

    def _leave(self, purpose: Purpose) -> None:
        if self._closed:
            return
        self._closed = True
        self._exports.end()
        for stream in self._streams.values():
            stream.halt()
        if self._coordinator is None:
            self._member.stop()
            return
        self._coordinator.leave(purpose)
        limit_s = self.config.zookeeper_session_timeout_s + SHUTDOWN_MARGIN_S
        self._coordinator.join(limit_s)
        if self._coordinator.is_alive():
            text = "%s has not ended within %g s; its znodes go with its session"
            logger.error(text, self.consumer_id, limit_s)
        running = [*self._coordinator.still_running, *self._close_clients()]
        if running:
            logger.warning(
                "%s: shut down, but still running are: %s", self.consumer_id, ", ".join(running)
            )

    def _close_clients(self) -> list[str]:
        """Close the streams' broker clients in parallel; return those not closed in `CLIENTS_S`."""
        todo = deque(self._streams.values())
        left = {id(stream): f"the broker client of {stream!r}" for stream in todo}

        def close() -> None:
            while True:
                try:
                    stream = todo.popleft()
                except IndexError:
                    return
                try:
                    stream.close()
                except Exception:
                    logger.exception("%s: while it closed %r", self.consumer_id, stream)
                left.pop(id(stream), None)

        threads = [
            threading.Thread(target=close, name=f"{self.consumer_id}-close-{n}", daemon=True)
            for n in range(min(CLOSERS, len(todo)))
        ]
        deadline = time.monotonic() + CLIENTS_S
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        running = list(left.copy().values())
        if self._pool is not None:
            self._pool.close()
            shared = self._pool.join(max(0.0, deadline - time.monotonic()))
            running += [f"the broker client of the thread {name}" for name in shared]
        return running

    def _raise_failure(self) -> None:
        """Raise, once, what has ended the member by itself."""
        failure = self._coordinator.failure if self._coordinator is not None else None
        if failure is not None and not self._has_raised:
            self._has_raised = True
            raise copy(failure) from failure.__cause__

    def _require_open(self) -> None:
        if self._coordinator is not None and self._coordinator.failure is not None:
            raise copy(self._coordinator.failure)
        if self._closed:
            raise ConnectorClosedError(
                "the connector was shut down",
                where=self.consumer_id,
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
        if kind is None:
            self._raise_failure()
