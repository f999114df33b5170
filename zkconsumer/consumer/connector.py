"""The connector: joins a group, creates its streams, and leaves the group."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, overload

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import commit_requests, group_member, metrics, positions
from zkconsumer.consumer.coordinator import Coordinator
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.listener import (
    Callbacks,
    ConsumerRebalanceListener,
    RebalanceCallbacks,
)
from zkconsumer.consumer.messages import Message
from zkconsumer.consumer.metrics import Exports, MetricsSnapshot
from zkconsumer.consumer.positions import OwnedPartition
from zkconsumer.consumer.status import Status, idle_status, status_of
from zkconsumer.consumer.stream import Stream, Streams, by_stream, seek
from zkconsumer.consumer.stream_fetcher import ReportKind, StreamReport
from zkconsumer.consumer.stream_partitions import Codec, Decoded
from zkconsumer.errors import (
    CommitError,
    ConnectorClosedError,
    ForkedError,
    MessageStreamsExistError,
)
from zkconsumer.member.phases import Phase
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import TopicFilter
from zkconsumer.protocol.model import OffsetAndMetadata, Purpose, TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.trace import TraceFile

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from zkconsumer.kafka.pool import FetcherPool

logger = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

SHUTDOWN_MARGIN_S = 10.0
"""Seconds for which a shutdown waits, besides the time for the last commit and for `on_revoked`.

Every later step takes at most a few seconds. The rest of this time allows for a slow machine.
"""

CLIENTS_S = 5.0
"""The time, in seconds, for which a shutdown waits for all broker clients to close.

A client closes in milliseconds unless librdkafka waits for the operating system, for example to
resolve a host name.
"""

CLOSERS = 32
"""Upper bound of the number of threads that close broker clients during a shutdown."""


class ConsumerConnector:
    """A member of a group (JVM: `kafka.consumer.ZookeeperConsumerConnector`, 0.8.0 to 1.1.1).

    As a context manager, it shuts down at the end of the block, and commits every message that was
    handed out. After an exception, it does not commit the message that the user was processing, so
    that message is redelivered.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, object],
        *,
        on_assigned: Callable[[list[TopicPartition]], object] | None = None,
        on_revoked: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
        callbacks: RebalanceCallbacks | None = None,
    ) -> None:
        """Connect to ZooKeeper; creating streams registers the member.

        Args:
            config: the configuration; a mapping of properties is converted to a `ConsumerConfig`.
            on_assigned, on_revoked, on_lost: functions that a thread of the connector calls with
                the affected partitions, as `RebalanceCallbacks` describes.
            callbacks: an object with these three methods.

        Raises:
            ZooKeeperUnreachableError, ChrootMissingError, ConfigError: see `zk.session` and
                `Exports`.
        """
        if not isinstance(config, ConsumerConfig):
            config = ConsumerConfig(config)
        self.config = config
        self._callbacks = Callbacks.of(
            callbacks, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost
        )
        self._member = GroupMember(config)
        self.consumer_id = self._member.consumer_id
        self._streams: Streams = {}
        self._pool: FetcherPool | None = None
        self._listener: ConsumerRebalanceListener | None = None
        self._leaving = threading.RLock()  # held while a thread leaves the group
        self._has_left = False
        self._exports = Exports(self._figures)
        self._pid = os.getpid()
        _connectors.add(self)
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
        """Call `listener` at every rebalance (JVM: `setConsumerRebalanceListener`, 0.9.0.0).

        The listener runs on its own thread. The member waits for each call for at most
        `release.grace.ms`.

        Raises:
            MessageStreamsExistError: this connector already has streams.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        if self._coordinator is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can only set consumer rebalance listener before creating "
                "streams",
                where=self.consumer_id,
                remedy="set the listener before you create streams",
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
        key_decoder: Callable[[bytes], Decoded] | None = None,
        value_decoder: Callable[[bytes], Decoded] | None = None,
    ) -> dict[str, list[Stream[Decoded, Decoded]]]:
        """Register in the group; return topic -> one stream for each consumer thread.

        The call returns when the member is registered. The member claims its partitions afterwards.

        Args:
            topic_counts: topic -> number of consumer threads.
            key_decoder: called with the bytes of a key when `Message.key` is read; not called for a
                message without a key. Without a decoder, `Message.key` returns the bytes.
            value_decoder: like `key_decoder`, for `Message.value`.

        Raises:
            MessageStreamsExistError: this connector already has streams.
            ConfigError, InvalidNameError: a count is below 1, or a topic name is invalid.
            ConsumerIdTakenError: another session stays registered under this consumer id.
            AccessDeniedError: ZooKeeper refuses the registration.
        """
        counts = paths.validate_topic_counts(topic_counts)
        codec = Codec(key_decoder, value_decoder, self._decode_failed)
        streams = self._join(Registration(counts), counts.items(), codec)
        by_topic: dict[str, list[Stream[Decoded, Decoded]]] = {topic: [] for topic in counts}
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
        key_decoder: Callable[[bytes], Decoded] | None = None,
        value_decoder: Callable[[bytes], Decoded] | None = None,
    ) -> list[Stream[Decoded, Decoded]]:
        """Register in the group for every topic that the filter matches, now and later.

        Returns `streams` streams, one for each consumer thread. A stream delivers its thread's
        partitions of all matching topics. A connector creates streams once, either by this method
        or by `create_message_streams`, which also describes the decoders.

        Raises:
            MessageStreamsExistError, ConfigError, ConsumerIdTakenError, AccessDeniedError: as
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
        codec: Codec[Decoded, Decoded],
    ) -> Streams:
        """Create the streams and wait until the member is registered.

        `counts` gives the consumer threads of each topic; the topic None stands for a filter.
        """
        self._require_open()
        if self._coordinator is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can create message streams at most once",
                where=self.consumer_id,
                remedy="create another connector, or create all streams in one call",
            )
        settings = self._member.settings(
            registration, listener=self._listener, callbacks=self._callbacks
        )
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
        self._member.start(
            settings,
            self._streams,
            trace=trace,
            listener=self._listener,
            callbacks=self._callbacks,
        )
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

    # ---- commits, pause and seek, status ---------------------------------------------------------

    def commit_offsets(
        self,
        offsets: commit_requests.ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        timeout_s: float = commit_requests.COMMIT_TIMEOUT_S,
    ) -> None:
        """Commit the offsets of every message handed out so far (JVM: `commitOffsets`).

        The call returns when the offsets are stored. While ZooKeeper is unreachable the call waits
        for at most `timeout_s` seconds. Simultaneous calls of several threads become one commit,
        and each call gets the result of that commit.

        Args:
            offsets: partition -> the next offset to read, or OffsetAndMetadata. The call commits
                exactly these offsets, even if they are lower than the stored offsets (JVM 0.9 and
                later). None: the positions after every message handed out.
            retries: how many times the commit is sent to Kafka again with `offsets.storage=kafka`
                (the JVM's `retryOnFailure`). None means `offsets.commit.max.retries`.
            timeout_s: seconds after which the call raises CommitError. A commit that has not been
                sent by then is dropped.

        Raises:
            CommitError: some offsets were not stored; the error names each partition and the
                reason. CommitError is also raised if 16 commits are already waiting, or if no
                answer came within `timeout_s`; in that case a commit that was already sent may
                still be stored.
            NotOwnedError: `offsets` names a partition that this member does not own. No offset is
                committed.
            ConfigError: an offset or `retries` is invalid, or metadata is given and ZooKeeper
                stores the offsets.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        storage = group_member.storage(self.config)
        self._commit(
            commit_requests.new_commit_request(offsets, retries=retries, storage=storage), timeout_s
        )

    def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        timeout_s: float = commit_requests.COMMIT_TIMEOUT_S,
    ) -> None:
        """Commit, for each partition, the offset after the last of these messages.

        `messages` is one message, a batch or an iterable; None means every message handed out.

        A position is committed even if it is lower than the stored offset. The call returns when
        the offsets are stored. `retries` and `timeout_s` are those of `commit_offsets`.

        Raises:
            NotOwnedError: this member has lost a partition since it delivered the messages (their
                fencing token is out of date). No offset is committed.
            CommitError, ConfigError, ConnectorClosedError: as `commit_offsets`.
        """
        if messages is None:
            return self.commit_offsets(retries=retries, timeout_s=timeout_s)
        self._require_open()
        self._commit(
            commit_requests.commit_request_after(positions.after(messages), retries=retries),
            timeout_s,
        )

    def _commit(self, asked: commit_requests.CommitRequested, timeout_s: float) -> None:
        if self._coordinator is None:
            # Without streams the member owns no partition, so this call raises NotOwnedError for
            # any offset.
            commit_requests.commit_event(asked, {}, request=0, now=0.0)
            return
        try:
            self._coordinator.commit(asked).result(timeout_s)
        except FutureTimeoutError:
            self._coordinator.give_up(asked)
            raise CommitError(
                f"no answer within {timeout_s:g} s; a commit that was already sent may still be "
                "stored",
                where=self.config.zookeeper_connect,
                remedy="commit again",
            ) from None

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop delivering and fetching these partitions until `resume`.

        The member keeps the partitions and commits their positions as usual. The pause ends when
        the member loses a partition: if the partition is assigned to this member again later, it is
        not paused. A message that another thread is receiving during the call may still be
        delivered.

        Raises:
            NotOwnedError: this member does not serve all of the partitions. No partition is paused.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        for stream, tps in by_stream(self._streams.values(), partitions).items():
            stream.pause(tps)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver these partitions again, from the position at which they were paused.

        Raises the same errors as `pause`.
        """
        self._require_open()
        for stream, tps in by_stream(self._streams.values(), partitions).items():
            stream.resume(tps)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        self._require_own_process()
        return frozenset().union(*(stream.paused for stream in self._streams.values()))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Deliver `offset` next; discard the messages of the partition that were already fetched.

        The next commit stores the new position, even if it is lower than the stored offset. If the
        log does not contain `offset`, `auto.offset.reset` applies.

        Raises:
            NotOwnedError: this member does not serve the partition.
            ConfigError: `offset` is not an integer from 0 to 2**63 - 2.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        if self._coordinator is not None:
            self._coordinator.counting_seek(TopicPartition(*partition))
        seek(self._streams.values(), partition, offset)

    def seek_to_beginning(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float = positions.ASK_S
    ) -> None:
        """Seek to the first message that each log contains.

        Raises:
            BrokersUnreachableError, BrokerAccessError: the brokers do not return the offset within
                `timeout_s` seconds, or refuse access. No position is changed.
            ZooKeeperUnreachableError: ZooKeeper does not return the brokers' addresses in time.
            NotOwnedError, ConnectorClosedError: as `seek`.
        """
        for tp, (start, _) in self._ends(partitions, timeout_s).items():
            self.seek(tp, start)

    def seek_to_end(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float = positions.ASK_S
    ) -> None:
        """Seek to the end of each log; raise the same errors as `seek_to_beginning`."""
        for tp, (_, end) in self._ends(partitions, timeout_s).items():
            self.seek(tp, end)

    def seek_to_timestamp(
        self,
        partitions: Iterable[TopicPartition],
        timestamp_ms: int,
        *,
        timeout_s: float = positions.ASK_S,
    ) -> None:
        """Seek to the first message at or after a time, or to the end if there is none.

        Args:
            partitions: partitions that this member serves.
            timestamp_ms: milliseconds since 1970.
            timeout_s: the time limit of each request in seconds.

        Raises:
            RefusedError: the brokers are older than 0.10 and do not store message timestamps.
            ConfigError: `timestamp_ms` is not an integer from 0 to 2**63 - 2.
            BrokersUnreachableError, BrokerAccessError, ZooKeeperUnreachableError, NotOwnedError,
                ConnectorClosedError: as `seek_to_beginning`.
        """
        asked = [TopicPartition(*one) for one in partitions]
        by_stream(self._streams.values(), asked)
        found = self.offsets_for_times(dict.fromkeys(asked, timestamp_ms), timeout_s=timeout_s)
        for tp, offset in found.items():
            if offset is not None:
                self.seek(tp, offset)
        self.seek_to_end([tp for tp, one in found.items() if one is None], timeout_s=timeout_s)

    # ---- positions and logs ----------------------------------------------------------------------

    def assignment(self) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that this member owns, each with its thread and fencing token.

        The result is empty after a shutdown.
        """
        self._require_own_process()
        if self._coordinator is None or self._closed:
            return {}
        return positions.assignment(self._coordinator.state.owned)

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next message to hand out; None while it is not known yet.

        Raises:
            NotOwnedError: this member does not serve the partition.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        return positions.position(self._streams, partition)

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag of each partition: the number of messages between position and log end.

        The call sends no request; the known log ends are a few seconds old. None means that the
        position or the log end is not known yet.
        """
        self._require_own_process()
        return positions.lag(self._streams)

    def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float = positions.ASK_S
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's stored offset of each partition; None if there is none.

        The partitions need not be owned by this member. `timeout_s` is the time limit of each
        request in seconds.

        Raises:
            ZooKeeperUnreachableError: ZooKeeper does not answer in time.
            MalformedZnodeError: an offset znode holds no number.
            BrokersUnreachableError, BrokerAccessError: Kafka stores the offsets, and the brokers do
                not answer in time, or refuse access.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        return positions.committed(self._member, partitions, limit_s=timeout_s)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float = positions.ASK_S
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each log.

        Raises BrokersUnreachableError, BrokerAccessError, ZooKeeperUnreachableError and
        ConnectorClosedError, as `seek_to_beginning`. This member need not own the partitions.
        """
        return {tp: start for tp, (start, _) in self._log_ends(partitions, timeout_s).items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float = positions.ASK_S
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each log; raise the same errors as `beginning_offsets`."""
        return {tp: end for tp, (_, end) in self._log_ends(partitions, timeout_s).items()}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout_s: float = positions.ASK_S
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first message at or after a time; None if there is none.

        Args:
            times: partition -> milliseconds since 1970. This member need not own the partition.
            timeout_s: the time limit of each request in seconds.

        Raises:
            RefusedError: the brokers are older than 0.10 and do not store message timestamps.
            ConfigError: a time is not an integer from 0 to 2**63 - 2.
            BrokersUnreachableError, BrokerAccessError, ZooKeeperUnreachableError,
                ConnectorClosedError: as `beginning_offsets`.
        """
        self._require_open()
        return positions.at_times(self._member, times, limit_s=timeout_s)

    def _log_ends(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int, int]]:
        self._require_open()
        return positions.ends(self._member, partitions, limit_s=timeout_s)

    def _ends(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return first and end offsets of partitions; raise NotOwnedError if one is not served."""
        asked = [TopicPartition(*one) for one in partitions]
        by_stream(self._streams.values(), asked)
        return self._log_ends(asked, timeout_s) if asked else {}

    def status(self) -> Status:
        """Return what this member owns, what blocks it, and what it waits for."""
        self._require_own_process()
        if self._coordinator is None:
            return idle_status(Phase.CLOSED if self._closed else Phase.OFFLINE)
        member, coordinator = self._member, self._coordinator
        trouble = "" if self._closed else member.session.trouble()
        return status_of(coordinator.state, member.gate, coordinator.failure, trouble=trouble)

    def metrics(self) -> dict[str, float]:
        """Return the counters since the start, and the gauges (`zkconsumer docs metrics`)."""
        self._require_own_process()
        figures = self._figures()
        return figures.flat() if figures else {}

    def _figures(self) -> MetricsSnapshot | None:
        if self._coordinator is None:
            return None
        return metrics.figures(self.config, self._coordinator, self._member.gate, self._streams)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Export this member's metrics in a registry of prometheus-client until the shutdown.

        Raises:
            ConfigError: prometheus-client is not installed.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        self._exports.register(registry)

    # ---- shutdown --------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group: stop delivering, commit every message handed out, end the session.

        With `auto.commit.enable=false` the call commits nothing. Last, it closes the broker
        clients, in parallel and within `CLIENTS_S` seconds. If a call is still running then, such
        as a rebalance listener that does not return, a warning names the call, and the call's
        daemon thread continues.

        Any thread may call `shutdown`, even more than once. Each call waits until the member has
        left the group.

        Raises:
            ZkConsumerError: an error ended the member before or during the call, so the last commit
                was not made. The error names the cause. A second call raises nothing.
        """
        self._require_own_process()
        self._leave(Purpose.LEAVE)
        self._raise_failure()

    def _leave(self, purpose: Purpose) -> None:
        """Leave the group and close everything; a later call waits for the first one.

        The first call's `purpose` applies. Each step may be repeated. So a call that Ctrl-C has
        interrupted is completed by the next call, and a signal handler may call `shutdown` while
        the thread that it interrupts does so.
        """
        with self._leaving:
            if self._has_left:
                return
            for stream in self._streams.values():
                stream.end_iteration()
            if self._coordinator is None:
                self._closed = True
                self._exports.end()
                self._member.stop()
            else:
                self._leave_group(self._coordinator, purpose)
            self._has_left = True

    def _leave_group(self, coordinator: Coordinator, purpose: Purpose) -> None:
        coordinator.leave(purpose)
        config = self.config
        wait_s = max(config.zookeeper_session_timeout_s, config.release_grace_s)
        limit_s = wait_s + SHUTDOWN_MARGIN_S
        coordinator.join(limit_s)
        # `on_revoked` may commit until the coordinator has ended.
        self._closed = True
        self._exports.end()
        if coordinator.is_alive():
            text = (
                "%s has not ended within %g s; ZooKeeper deletes its znodes when its session "
                "expires"
            )
            logger.error(text, self.consumer_id, limit_s)
        running = [*coordinator.still_running, *self._close_clients()]
        if running:
            logger.warning(
                "%s: shut down, but these are still running: %s",
                self.consumer_id,
                ", ".join(running),
            )

    def _close_clients(self) -> list[str]:
        """Close the streams' broker clients in parallel; return the names of clients still open."""
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
                    logger.exception("%s: closing %r failed", self.consumer_id, stream)
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
        """Raise the error that ended the member, if any, once."""
        failure = self._coordinator.failure if self._coordinator is not None else None
        if failure is not None and not self._has_raised:
            self._has_raised = True
            raise copy(failure) from failure.__cause__

    def _forked(self) -> None:
        """Make the connector unusable in the child process of a fork.

        The connector's threads do not exist in the child, and its connections belong to the parent
        process. librdkafka would wait for its threads without a limit, so the child never deletes
        the broker clients.
        """
        self._member.gate.shut()
        for stream in self._streams.values():
            stream.forked(_forked_error(self.consumer_id))
        self._has_left = self._closed = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise _forked_error(self.consumer_id)

    def _require_open(self) -> None:
        self._require_own_process()
        if self._coordinator is not None and self._coordinator.failure is not None:
            raise copy(self._coordinator.failure)
        if self._closed:
            raise ConnectorClosedError(
                "the connector was shut down",
                where=self.consumer_id,
                remedy="create a new connector; a connector cannot be used again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid:
            return  # in a child process, the end of the block must not end the parent's member
        self._leave(Purpose.LEAVE if kind is None else Purpose.RELEASE)
        if kind is None:
            self._raise_failure()


# ---- fork ----------------------------------------------------------------------------------------


_connectors: weakref.WeakSet[ConsumerConnector] = weakref.WeakSet()


def _forked_error(where: str) -> ForkedError:
    return ForkedError(
        "the connector was created in the parent process of this process",
        where=where,
        remedy="create a connector in each process, after the fork",
    )


def _after_fork() -> None:
    for connector in list(_connectors):
        connector._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
