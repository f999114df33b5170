"""The connector: joins a group, creates its streams, and leaves the group."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import queue
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from copy import copy
from typing import TYPE_CHECKING, Literal, Self, TypeVar, overload

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.consumer import commit_requests, metrics, positions
from zkconsumer.consumer.group_member import GroupMember
from zkconsumer.consumer.listener import (
    Callbacks,
    ConsumerRebalanceListener,
    RebalanceCallbacks,
)
from zkconsumer.consumer.member_thread import MemberThread
from zkconsumer.consumer.messages import Message
from zkconsumer.consumer.metrics import Exports, MetricsSnapshot
from zkconsumer.consumer.positions import OwnedPartition
from zkconsumer.consumer.status import Status, idle_status, status_of
from zkconsumer.consumer.stream import Stream, StreamReader, Streams, by_stream, seek
from zkconsumer.consumer.stream_fetcher import (
    ReportKind,
    StreamReport,
    in_thread,
    inline,
)
from zkconsumer.consumer.stream_partitions import Codec, Decoded
from zkconsumer.consumer.stuck_streams import StuckStreams
from zkconsumer.errors import (
    CommitError,
    ConfigError,
    ConnectorClosedError,
    ConsumerTimeoutError,
    ForkedError,
    MessageStreamsExistError,
    ZkConsumerError,
)
from zkconsumer.kafka.engines import StreamClients, fetcher_pool
from zkconsumer.kafka.fetcher import IDLE_S, TURN_S, AutoOffsetReset
from zkconsumer.member.phases import Phase
from zkconsumer.protocol import arguments, paths
from zkconsumer.protocol.filters import TopicFilter
from zkconsumer.protocol.model import OffsetAndMetadata, Purpose, TopicPartition
from zkconsumer.protocol.registrations import Registration
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.trace import TraceFile

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from zkconsumer.kafka.pool import FetcherPool

logger = SafeLogger(logging.getLogger(__name__))
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Partitions = TopicPartition | Iterable[TopicPartition]
"""One partition, or several."""

ASSIGNED_S = 60.0
"""Default time limit, in seconds, of `wait_until_assigned`: a rebalance that waits for the expiry
of a session takes less time."""

SHUTDOWN_MARGIN_S = 10.0
"""Seconds for which a shutdown waits, besides the time for the last commit and for `on_revoked`.

Every other step takes at most a few seconds. The rest of this time allows for a slow machine.
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
        on_error: Callable[[ZkConsumerError], object] | None = None,
    ) -> None:
        """Connect to ZooKeeper; creating streams registers the member.

        Args:
            config: the configuration; a mapping of properties is converted to a `ConsumerConfig`.
            on_assigned, on_revoked, on_lost: functions that a thread of the connector calls with
                the affected partitions, as `RebalanceCallbacks` describes.
            callbacks: an object with these three methods.
            on_error: a function that gets each stream error that does not end the member. The
                stream calls the function on the thread that reads the stream, and then continues.
                Without the function, the stream raises the error.

        Raises:
            ZooKeeperUnreachableError: no session began within `zookeeper.connection.timeout.ms`.
            ChrootMissingError: the chroot of `zookeeper.connect` does not exist.
            AccessDeniedError: ZooKeeper refuses the credential, or the group's znodes belong to
                another user.
            ConfigError: a property or an argument is invalid, the session timeout is too short for
                the server, or the metrics cannot be exported.
        """
        if not isinstance(config, ConsumerConfig):
            config = ConsumerConfig(config)
        self.config = config
        self._callbacks = Callbacks.of(
            callbacks, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost
        )
        self._on_error = arguments.function(on_error, "on_error")
        self._has_left = True  # until the connection begins
        self._member = GroupMember(config)
        self.consumer_id = self._member.consumer_id
        self._streams: Streams = {}
        self._pool: FetcherPool | None = None
        self._listener: ConsumerRebalanceListener | None = None
        self._leaving = threading.RLock()  # held while a thread leaves the group
        self._stuck: StuckStreams | None = None
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
        self._has_left = False

    @property
    def _thread(self) -> MemberThread | None:
        return self._member.thread

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
        if self._thread is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can only set consumer rebalance listener before creating "
                "streams",
                where=self.consumer_id,
                remedy="set the listener before you create streams",
            )
        for name in ("before_releasing_partitions", "before_starting_fetchers"):
            if not callable(getattr(listener, name, None)):
                right = f"an object with the method {name}"
                raise arguments.wrong(listener, "a listener", where="listener", right=right)
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
        codec = self._codec(key_decoder, value_decoder)
        streams = self._join(Registration(counts), counts.items(), codec)
        by_topic: dict[str, list[Stream[Decoded, Decoded]]] = {topic: [] for topic in counts}
        for (topic, _), stream in streams.items():
            by_topic[topic or ""].append(Stream(stream))
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
        if not isinstance(topic_filter, TopicFilter):
            right = "white_list('orders.*') or black_list('test.*')"
            raise arguments.wrong(topic_filter, "a filter", where="topic_filter", right=right)
        count = paths.validate_streams(streams, where=topic_filter.regex)
        codec = self._codec(key_decoder, value_decoder)
        registration = Registration({topic_filter.regex: count}, topic_filter.pattern)
        joined = self._join(registration, [(None, count)], codec)
        return [Stream(one) for one in joined.values()]

    def _codec(
        self,
        key_decoder: Callable[[bytes], Decoded] | None,
        value_decoder: Callable[[bytes], Decoded] | None,
    ) -> Codec[Decoded, Decoded]:
        return Codec(
            arguments.function(key_decoder, "key_decoder"),
            arguments.function(value_decoder, "value_decoder"),
            self._decode_failed,
        )

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
        if self._thread is not None:
            raise MessageStreamsExistError(
                "ConsumerConnector can create message streams at most once",
                where=self.consumer_id,
                remedy="create another connector, or create all streams in one call",
            )
        settings = self._member.settings(
            registration, listener=self._listener, callbacks=self._callbacks
        )
        counts = list(counts)
        self._pool = fetcher_pool(
            self.config,
            self.consumer_id,
            sum(count for _, count in counts),
            brokers=self._member.brokers,
            trouble=self._fetch_troubled,
        )
        self._streams = self._readers(counts, codec)
        # Open the trace file last, so that an earlier error leaves no file open.
        clock = self._member.gate.clock
        self._stuck = StuckStreams(self.consumer_id, self._streams.values(), clock)
        trace = TraceFile(self.config.trace_file) if self.config.trace_file else None
        self._member.start(
            settings,
            self._streams,
            trace=trace,
            listener=self._listener,
            callbacks=self._callbacks,
            look=self._stuck.look,
        )
        try:
            self._member.wait_registered()
        except BaseException:
            self._leave(Purpose.LEAVE)
            raise
        return self._streams

    def _readers(
        self, counts: Iterable[tuple[str | None, int]], codec: Codec[Decoded, Decoded]
    ) -> Streams:
        """Return the streams of each consumer thread; `counts` as for `_join`."""
        return {
            (topic, thread): self._reader(topic, thread, number, codec)
            for topic, count in counts
            for number, thread in enumerate(paths.thread_ids(self.consumer_id, count))
        }

    def _reader(
        self, topic: str | None, thread: str, number: int, codec: Codec[Decoded, Decoded]
    ) -> StreamReader[Decoded, Decoded]:
        config, pool = self.config, self._pool
        clients = StreamClients(config, self._member.brokers)
        if pool is None:
            # The stream has its own client. Only a message wakes this client during a wait, so each
            # wait is short (`TURN_S`).
            connect, background, turn_s = clients.messages, in_thread, TURN_S
        else:
            connect = lambda: pool.fetcher(made.wake_signal)  # noqa: E731 - one expression
            background, turn_s = inline, IDLE_S
        made: StreamReader[Decoded, Decoded] = StreamReader(
            topic=topic,
            thread_id=thread,
            number=number,
            gate=self._member.gate,
            connect=connect,
            connect_columns=None if clients.engines.columns is None else clients.columns,
            brokers_moved=clients.have_brokers_moved,
            reset=AutoOffsetReset(config.auto_offset_reset),
            timeout_s=config.consumer_timeout_s,
            retry_s=config.refresh_leader_backoff_s,
            codec=codec,
            report=self._report,
            background=background,
            turn_s=turn_s,
            on_error=self._on_error,
        )
        return made

    def _report(self, report: StreamReport) -> None:
        if self._thread is not None:
            self._thread.stream_reported(report)

    def _fetch_troubled(self, text: str) -> None:
        self._report(StreamReport(ReportKind.FETCH_TROUBLE, self.consumer_id, text))

    def _decode_failed(self, text: str) -> None:
        self._report(StreamReport(ReportKind.DECODE_FAILED, self.consumer_id, text))

    # ---- commits, pause and seek, status ---------------------------------------------------------

    @overload
    def commit_offsets(
        self,
        offsets: commit_requests.ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = commit_requests.COMMIT_TIMEOUT_S,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def commit_offsets(
        self,
        offsets: commit_requests.ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        wait: Literal[False],
    ) -> Future[None]: ...
    def commit_offsets(
        self,
        offsets: commit_requests.ExplicitOffsets | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = commit_requests.COMMIT_TIMEOUT_S,
        wait: bool = True,
    ) -> Future[None] | None:
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
                sent by then is dropped. None waits without a limit.
            wait: False returns at once, with a future that gets the result or the error. A shutdown
                waits for the commit. A callback of the future runs on a thread of the member, so it
                must not block.

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
        storage = self.config.storage
        request = commit_requests.new_commit_request(offsets, retries=retries, storage=storage)
        return self._commit(request, timeout_s, wait=wait)

    @overload
    def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = commit_requests.COMMIT_TIMEOUT_S,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        wait: Literal[False],
    ) -> Future[None]: ...
    def commit(
        self,
        messages: Message[Decoded, Decoded] | Iterable[Message[Decoded, Decoded]] | None = None,
        *,
        retries: int | None = None,
        timeout_s: float | None = commit_requests.COMMIT_TIMEOUT_S,
        wait: bool = True,
    ) -> Future[None] | None:
        """Commit, for each partition, the offset after the last of these messages.

        `messages` is one message, a batch or an iterable; None means every message handed out.

        The offset is committed even if it is lower than the stored offset. The call returns when
        the offsets are stored. `retries`, `timeout_s` and `wait` are those of `commit_offsets`.

        Raises:
            NotOwnedError: this member has lost a partition since it delivered the messages (their
                fencing token is out of date). No offset is committed.
            CommitError, ConfigError, ConnectorClosedError: as `commit_offsets`.
        """
        self._require_open()
        if messages is None:
            storage = self.config.storage
            request = commit_requests.new_commit_request(None, retries=retries, storage=storage)
        else:
            after = positions.after(messages)
            request = commit_requests.commit_request_after(after, retries=retries)
        return self._commit(request, timeout_s, wait=wait)

    def _commit(
        self, asked: commit_requests.CommitRequested, timeout_s: float | None, *, wait: bool
    ) -> Future[None] | None:
        limit_s = arguments.time_limit(timeout_s)
        if self._thread is None:
            # Without streams the member owns no partition, so this call raises NotOwnedError for
            # any offset.
            commit_requests.commit_event(asked, {}, request=0, now=0.0)
            asked.answer.set_result(None)
            return None if wait else asked.answer
        answer = self._thread.commit(asked)
        if not wait:
            return answer
        try:
            answer.result(limit_s)
        except FutureTimeoutError:
            self._thread.give_up(asked)
            raise CommitError(
                f"no answer within {limit_s:g} s; a commit that was already sent may still be "
                "stored",
                where=self.config.zookeeper_connect,
                remedy="commit again",
            ) from None
        return None

    def pause(self, partitions: Partitions) -> None:
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
        asked = arguments.partitions(partitions)
        for stream, tps in by_stream(self._streams.values(), asked).items():
            stream.pause(tps)

    def resume(self, partitions: Partitions) -> None:
        """Deliver these partitions again, from the position at which they were paused.

        Raises the same errors as `pause`.
        """
        self._require_open()
        asked = arguments.partitions(partitions)
        for stream, tps in by_stream(self._streams.values(), asked).items():
            stream.resume(tps)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions that this member serves now.

        The result leaves out a partition that is about to be released. If an operator edits the
        offset of a paused partition, the partition stays paused at the new offset, but the result
        leaves it out for a moment.
        """
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
        tp = arguments.partition(partition, "partition")
        if self._thread is not None:
            self._thread.counting_seek(tp)
        seek(self._streams.values(), tp, offset)

    def seek_to_beginning(
        self, partitions: Partitions, *, timeout_s: float | None = positions.ASK_S
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
        self, partitions: Partitions, *, timeout_s: float | None = positions.ASK_S
    ) -> None:
        """Seek to the end of each log; raise the same errors as `seek_to_beginning`."""
        for tp, (_, end) in self._ends(partitions, timeout_s).items():
            self.seek(tp, end)

    def seek_to_timestamp(
        self,
        partitions: Partitions,
        timestamp_ms: int,
        *,
        timeout_s: float | None = positions.ASK_S,
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
        asked = arguments.partitions(partitions)
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
        if self._thread is None or self._closed:
            return {}
        return positions.assignment(self._thread.state.owned)

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next message to hand out; None while it is not known yet.

        Raises:
            NotOwnedError: this member does not serve the partition.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        return positions.position(self._streams, arguments.partition(partition, "partition"))

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag of each partition: the number of messages between position and log end.

        The call sends no request; the known log ends are a few seconds old. None means that the
        position or the log end is not known yet.
        """
        self._require_own_process()
        return positions.lag(self._streams)

    def committed(
        self, partitions: Partitions, *, timeout_s: float | None = positions.ASK_S
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
        asked = arguments.partitions(partitions)
        limit_s = arguments.finite_limit(timeout_s)
        return positions.committed(self._member, asked, limit_s=limit_s)

    def beginning_offsets(
        self, partitions: Partitions, *, timeout_s: float | None = positions.ASK_S
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each log.

        Raises BrokersUnreachableError, BrokerAccessError, ZooKeeperUnreachableError and
        ConnectorClosedError, as `seek_to_beginning`. This member need not own the partitions.
        """
        return {tp: start for tp, (start, _) in self._log_ends(partitions, timeout_s).items()}

    def end_offsets(
        self, partitions: Partitions, *, timeout_s: float | None = positions.ASK_S
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each log; raise the same errors as `beginning_offsets`."""
        return {tp: end for tp, (_, end) in self._log_ends(partitions, timeout_s).items()}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout_s: float | None = positions.ASK_S
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
        asked = arguments.by_partition(times, "times", "1790000000000")
        limit_s = arguments.finite_limit(timeout_s)
        return positions.at_times(self._member, asked, limit_s=limit_s)

    def _log_ends(
        self, partitions: Partitions, timeout_s: float | None
    ) -> dict[TopicPartition, tuple[int, int]]:
        self._require_open()
        asked = arguments.partitions(partitions)
        return positions.ends(self._member, asked, limit_s=arguments.finite_limit(timeout_s))

    def _ends(
        self, partitions: Partitions, timeout_s: float | None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return first and end offsets of partitions; raise NotOwnedError if one is not served."""
        asked = arguments.partitions(partitions)
        by_stream(self._streams.values(), asked)
        return self._log_ends(asked, timeout_s) if asked else {}

    def status(self) -> Status:
        """Return what this member owns, what blocks it, and what it waits for."""
        self._require_own_process()
        if self._thread is None:
            return idle_status(Phase.CLOSED if self._closed else Phase.OFFLINE)
        member, thread = self._member, self._thread
        return status_of(
            thread.state,
            member.gate,
            error=thread.failure,
            trouble="" if self._closed else member.session.trouble(),
            stuck=self._stuck.reasons if self._stuck is not None else {},
        )

    def metrics(self) -> dict[str, float]:
        """Return the counters since the start, and the gauges (`zkconsumer docs metrics`)."""
        self._require_own_process()
        figures = self._figures()
        return figures.flat() if figures else {}

    def _figures(self) -> MetricsSnapshot | None:
        if self._thread is None:
            return None
        thread, gate = self._thread, self._member.gate
        stuck = len(self._stuck.reasons) if self._stuck is not None else 0
        return metrics.figures(self.config, thread, gate, self._streams, stuck=stuck)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Export this member's metrics in a registry of prometheus-client until the shutdown.

        Raises:
            ConfigError: prometheus-client is not installed, or `registry` is not one of its
                registries.
            ConnectorClosedError: the connector was shut down.
        """
        self._require_open()
        self._exports.register(registry)

    # ---- reading in threads ----------------------------------------------------------------------

    def wait_until_assigned(
        self, timeout_s: float | None = ASSIGNED_S
    ) -> dict[TopicPartition, OwnedPartition]:
        """Wait until the member owns all partitions that are assigned to it; return them.

        The result may be empty, for instance in a group with more threads than partitions. Later
        rebalances may change the assignment at any time.

        Raises:
            ConfigError: the connector has no streams, or `timeout_s` is negative.
            ConsumerTimeoutError: the member has not settled within `timeout_s` seconds; the error
                says what it waits for. None waits without a limit.
            ConnectorClosedError, ZkConsumerError: the member has ended.
        """
        self._require_open()
        limit_s = arguments.time_limit(timeout_s)
        if self._thread is None:
            raise ConfigError(
                "a connector without streams is assigned no partition",
                where="wait_until_assigned",
                remedy="create the streams first",
            )
        if not self._thread.wait_settled(limit_s):
            status = self.status()
            held = ", ".join(f"{tp} is held by {who}" for tp, who in status.blocked.items())
            raise ConsumerTimeoutError(
                f"not all assigned partitions are owned within {limit_s:g} s",
                where=self.consumer_id,
                remedy=status.waiting_for or held or f"the member is {status.phase}; wait longer",
            )
        self._require_open()
        return self.assignment()

    def run(
        self, work: Callable[[Stream[K, V]], T], streams: Stream[K, V] | Iterable[Stream[K, V]]
    ) -> list[T]:
        """Call `work(stream)` for each stream, each in a thread of its own; wait for all of them.

        If a call raises an exception, or Ctrl-C interrupts this call, the streams of this connector
        end. Each loop over a stream then ends after its current message. `run` waits until all
        calls have returned, and raises the first exception. Leave the group afterwards: the end of
        the `with` block does so.

        Args:
            work: reads its stream, for instance in a `for` loop.
            streams: the streams of this connector, as `create_message_streams` returns them for a
                topic.

        Returns:
            The results of the calls, in the order of the streams.
        """
        self._require_open()
        if not callable(work):
            raise arguments.wrong(work, "a function", where="work", right="work(stream)")
        return run_in_threads(work, _streams_of(streams), self._end_iterations)

    def _end_iterations(self) -> None:
        for stream in self._streams.values():
            stream.end_iteration()

    # ---- shutdown --------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group: stop delivering, commit every message handed out, end the session.

        With `auto.commit.enable=false` the shutdown commits nothing. In the end it closes the
        broker clients, in parallel and within `CLIENTS_S` seconds. If some call of the member is
        still running after that, such as a rebalance listener that does not return, a warning names
        this call, and its daemon thread continues.

        Any thread may call `shutdown`, even more than once. Each call waits until the member has
        left the group.

        Raises:
            ZkConsumerError: an error ended the member before or during the call, so the last commit
                was not made. The error names the cause. A second call raises nothing.
        """
        self._require_own_process()
        self._leave(Purpose.LEAVE)
        self._raise_failure()

    def close(self) -> None:
        """Leave the group: another name of `shutdown`."""
        self.shutdown()

    def __del__(self) -> None:
        if not getattr(self, "_has_left", True) and os.getpid() == self._pid:
            _warn_forgotten(self)

    def _leave(self, purpose: Purpose) -> None:
        """Leave the group and close everything; a later call waits for the first one.

        The first call's `purpose` applies. Each step may be repeated. So a call that Ctrl-C has
        interrupted is completed by the next call, and a signal handler may call `shutdown` while
        the thread that it interrupts does so.
        """
        with self._leaving:
            if self._has_left:
                return
            self._end_iterations()
            if self._thread is None:
                self._closed = True
                self._exports.end()
                self._member.stop()
            else:
                self._leave_group(self._thread, purpose)
            self._has_left = True

    def _leave_group(self, thread: MemberThread, purpose: Purpose) -> None:
        thread.leave(purpose)
        config = self.config
        wait_s = max(config.zookeeper_session_timeout_s, config.release_grace_s)
        limit_s = wait_s + SHUTDOWN_MARGIN_S
        has_ended = thread.wait_for_end(limit_s)
        # `on_revoked` may commit until the member's thread has ended.
        self._closed = True
        self._exports.end()
        if not has_ended:
            text = (
                "%s has not ended within %g s; ZooKeeper deletes its znodes when its session "
                "expires"
            )
            logger.error(text, self.consumer_id, limit_s)
        running = [*thread.still_running, *self._close_clients()]
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
                    logger.exception("%s: closing %s failed", self.consumer_id, stream)
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
        failure = self._thread.failure if self._thread is not None else None
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
        if self._thread is not None and self._thread.failure is not None:
            raise copy(self._thread.failure)
        if self._closed:
            raise ConnectorClosedError(
                "the connector was shut down",
                where=self.consumer_id,
                remedy="create a new connector; a connector cannot be used again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if os.getpid() != self._pid:
            return  # in a child process, the end of the block must not end the parent's member
        self._leave(Purpose.LEAVE if kind is None else Purpose.RELEASE)
        if kind is None:
            self._raise_failure()


# ---- reading in threads --------------------------------------------------------------------------


def _streams_of(given: Stream[K, V] | Iterable[Stream[K, V]]) -> list[Stream[K, V]]:
    """Return one stream, or several, as a list; raise ConfigError for anything else."""
    found = [given] if isinstance(given, Stream) else given
    if isinstance(found, Mapping) or not isinstance(found, Iterable):
        right = "the list of a topic's streams: streams['orders']"
        raise arguments.wrong(given, "a list of streams", where="streams", right=right)
    streams = list(found)
    for one in streams:
        if not isinstance(one, Stream):
            raise arguments.wrong(one, "a stream", where="streams", right="streams['orders']")
    return streams


def run_in_threads(
    work: Callable[[Stream[K, V]], T], streams: list[Stream[K, V]], end: Callable[[], None]
) -> list[T]:
    """Call `work` for each stream in its own thread; after the first exception call `end`.

    Returns the results in the order of the streams, or raises the first exception when all calls
    have returned. It waits for them after Ctrl-C, too; a second Ctrl-C ends this wait.
    """
    ended: queue.SimpleQueue[tuple[int, Future[T]]] = queue.SimpleQueue()

    def call(number: int, stream: Stream[K, V]) -> None:
        result: Future[T] = Future()
        try:
            result.set_result(work(stream))
        except BaseException as error:  # noqa: BLE001  # the thread's boundary: `run` raises it
            result.set_exception(error)
        ended.put((number, result))

    for number, stream in enumerate(streams):
        name = f"{stream.thread_id}-{stream.topic or 'filter'}-work"
        # A daemon thread, so that work that never returns does not keep the process alive.
        threading.Thread(target=call, args=(number, stream), name=name, daemon=True).start()
    results: dict[int, T] = {}
    first: BaseException | None = None
    left = len(streams)
    try:
        while left:
            number, result = _next_of(ended)
            left -= 1
            if (error := result.exception()) is None:
                results[number] = result.result()
            elif first is None:
                first = error
                end()
            else:
                logger.error("%s: the work has failed, too", streams[number], exc_info=error)
    except BaseException:  # Ctrl-C
        end()
        for _ in range(left):
            _next_of(ended)
        raise
    if first is not None:
        raise first
    return [results[number] for number in range(len(streams))]


def _next_of(ended: queue.SimpleQueue[T]) -> T:
    """Return the next item; on Windows, Ctrl-C interrupts only a wait that has a limit."""
    while True:
        try:
            return ended.get(timeout=1.0)
        except queue.Empty:
            continue


# ---- a forgotten shutdown ------------------------------------------------------------------------


def _warn_forgotten(connector: ConsumerConnector) -> None:
    warnings.warn(
        f"the connector {connector.consumer_id} was not shut down: its last messages are "
        "redelivered, and its partitions have no reader until the session expires; use a `with` "
        "block or call shutdown()",
        ResourceWarning,
        stacklevel=2,
        source=connector,
    )


@atexit.register
def _warn_at_exit() -> None:
    for connector in list(_connectors):
        if not connector._has_left:
            _warn_forgotten(connector)
            connector._has_left = True  # `__del__` does not repeat the warning


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
