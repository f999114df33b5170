"""Fetch messages over zkconsumer's own connections to brokers.

`RecordFetcher` is the second implementation of `kafka.fetcher.Fetcher`; the first one uses
librdkafka. `ColumnFetcher` returns the same messages as columns. The thread that calls `fetch` does
all work between two waits for a socket. Only look-ups and new connections, which may block, run on
other threads.

Each broker has at most one request in flight. The request contains all partitions that this broker
leads; those that have waited longest come first. The headers of the batches in a response contain
the next offsets, so the next request is sent before the first record is parsed. The broker and the
system's buffers work while this thread parses. Memory is bounded: a fetcher holds one response of
each broker, and receives the next one only when all records of the current one were returned. A
response of records stays in memory as long as the program keeps one of its messages.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from zkconsumer.errors import FetchError
from zkconsumer.kafka.client_settings import RECEIVE_BYTES, Settings
from zkconsumer.kafka.columns import fetch_sessions, parsers, requests
from zkconsumer.kafka.columns.compilation import engines_for, is_decided
from zkconsumer.kafka.columns.connection import AuthenticationError, Connection, connect
from zkconsumer.kafka.columns.fetch_sessions import FetchSession
from zkconsumer.kafka.columns.lookups import (
    LOST,
    OUT_OF_RANGE,
    PERMANENT,
    Lookup,
    isolation_of,
    name_of,
    why,
)
from zkconsumer.kafka.columns.record_sets import BYTES, Batches, ParserEngine, RecordSet
from zkconsumer.kafka.columns.records import CorruptError, Records
from zkconsumer.kafka.columns.requests import (
    FetchedPartition,
    FetchLimits,
    Isolation,
    Metadata,
)
from zkconsumer.kafka.columns.responses import Response
from zkconsumer.kafka.fetcher import (
    BUFFER_MESSAGES,
    LOOKUP_S,
    REPORT_INTERVAL_S,
    Answers,
    AutoOffsetReset,
    FetchFault,
    FetchFaultKind,
    Resolver,
    Run,
    descriptors_error,
    drop_faults,
)
from zkconsumer.protocol.kafka_fields import FieldReader
from zkconsumer.protocol.model import TopicPartition

T = TypeVar("T")

# Maximum number of bytes that all partitions of a request may return together, for brokers without
# such a limit (before 0.10.1). The limit is divided among the partitions, but each gets at least
# `_LEAST_PARTITION_BYTES`. A larger message raises the limit of its partition.
_OLD_RESPONSE_BYTES: Final = 64 << 20
_LEAST_PARTITION_BYTES: Final = 64 * 1024

# A request for a range of offsets asks for a number of whole batches, if the batches in the last
# response had about the same size. Otherwise it asks for (remaining offsets) * (bytes for each
# offset) * `_RANGE_MARGIN` + `_RANGE_SLACK` bytes, because a response can end within a batch. The
# first request for a partition asks for `_PROBE_BYTES`, to measure the sizes of a range.
_RANGE_MARGIN: Final = 1.01
_RANGE_SLACK: Final = 4 * 1024
_PROBE_BYTES: Final = 64 * 1024

# From this version of Fetch on, a client that exceeds its quota waits as long as the broker says.
# For older versions the broker holds the response back instead (KIP-219).
_CLIENT_WAITS: Final = 8

# Minimum number of partitions of one broker for which the fetcher uses a fetch session. With this
# number, a session saves a third of the processor time of a request without messages. With fewer
# partitions it saves little, and it takes one of the broker's sessions (1000 by default).
SESSION_FROM: Final = 50

# Maximum back-off, in seconds, before the next attempt to reach a broker; librdkafka is configured
# with the same value.
_LONGEST_PAUSE_S: Final = 1.0

# Time limit, in seconds, of a connection with its login, and of a metadata request.
_CONNECT_S: Final = 10.0


R = TypeVar("R", bound=Run)

# Runs of several partitions are returned together until they have this many messages. So a program
# does not get many small batches from many partitions; it gets large batches one at a time.
_TOGETHER: Final = 1000


class _Partition:
    """One assignment of a partition; another assignment makes another object.

    `offset` is the next offset to request. `limit` is the number of bytes to request if a message
    is larger than the fetcher's limit. A partition is `stopped` after a fault and at `until`.
    """

    __slots__ = ("end", "ended_at", "is_new", "limit", "offset", "stopped", "tp", "until")

    def __init__(self, tp: TopicPartition, offset: int, until: int) -> None:
        self.tp = tp
        self.offset = offset
        self.until = until
        self.limit = 0
        self.is_new = True  # whether it has returned no message yet
        self.end = -1  # the log's end
        self.ended_at = -1  # the log's end that was reported last
        self.stopped = offset >= until


class _Broker:
    """The connection to one broker, and the request in flight."""

    def __init__(self) -> None:
        self.connecting: Future[Connection] | None = None
        self.connection: Connection | None = None
        self.asked: dict[TopicPartition, _Partition] | None = None
        self.session = FetchSession()
        self.overdue_at = 0.0
        self.throttled_until = 0.0
        self.retry_at = 0.0
        self.pause_s = 0.0


def _limits_of(settings: Settings) -> FetchLimits:
    """Return the limits of each fetch request."""
    most = int(settings["fetch.message.max.bytes"]), int(settings.get("fetch.max.bytes", 0))
    return FetchLimits(
        wait_ms=int(settings["fetch.wait.max.ms"]),
        min_bytes=int(settings["fetch.min.bytes"]),
        max_bytes=max(most),
        isolation=isolation_of(settings),
    )


class OwnFetcher(ABC, Generic[R]):
    """A fetcher over zkconsumer's own connections; a subclass determines what `fetch` returns."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: ParserEngine | None = None,
        session_from: int = SESSION_FROM,
    ) -> None:
        """Create a fetcher; it connects when the first partition is assigned.

        Args:
            settings: librdkafka's settings, from `client_settings`.
            engine: the parser of records; None chooses the fastest one that is ready.
            session_from: number of partitions of one broker that are fetched in a fetch session.
        """
        self.faults: deque[FetchFault] = deque()
        self.queued: Final = 0
        self.wait_s = float(settings["fetch.wait.max.ms"]) / 1000
        self._settings = settings
        self._engine = engines_for(engine)
        self._session_from = session_from
        # Why no broker answered a look-up of offsets. The resolver's thread adds the reasons, and
        # `_advance` reports them: the owner must read the addresses again even if it reads nothing.
        self._unanswered: deque[str] = deque()
        unanswered = self._unanswered.append
        self._resolver = Resolver(lambda: Lookup(settings, unanswered), Lookup.ends)
        self._partition_bytes = int(settings["fetch.message.max.bytes"])
        self._limits = _limits_of(settings)
        ahead = 1024 * int(settings.get("queued.max.messages.kbytes", 0))
        self._ahead_bytes = min(ahead, self._limits.max_bytes)
        self._silent_s = float(settings.get("socket.timeout.ms", 30_000)) / 1000 + self.wait_s
        self._retry_s = max(0.01, float(settings.get("fetch.error.backoff.ms", 200)) / 1000)
        self._reports_ends = bool(settings.get("enable.partition.eof", False))
        # The partitions in the order of the next request: new ones come first, and those that
        # returned messages come last.
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._brokers: dict[int, _Broker] = {}
        self._metadata: Future[Metadata] | None = None
        self._metadata_at = 0.0  # when to ask again for missing leaders
        # Until then `_advance` has nothing to do: each broker has a request in flight.
        self._idle_until = 0.0
        self._pending: deque[tuple[_Partition, Iterator[R]]] = deque()
        self._reported: dict[str, tuple[float, int]] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lookup = Lookup(settings)
        # topic -> the sizes of the batches in the last response, which determine the size of range
        # requests.
        self._batches: dict[str, Batches] = {}
        self._closed = False
        self.fetched_bytes = 0
        self.throttled_s = 0.0  # how long brokers with quotas asked this client to wait

    # ---- called by the stream --------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int], timeout_s: float = LOOKUP_S) -> None:
        self.assign_ranges({tp: (offset, parsers.MAX_OFFSET) for tp, offset in offsets.items()})

    def assign_ranges(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Also fetch these partitions, each from its first offset up to but excluding the second.

        None of them may already be assigned. The call never blocks.
        """
        known, self._partitions = self._partitions, {}
        for tp, (first, until) in ranges.items():
            assert tp not in known, f"{tp} is assigned already"
            self._partitions[tp] = partition = _Partition(tp, first, until)
            if first >= parsers.MAX_OFFSET:
                text = f"offset {first} is not in the log"
                self._stop(partition, FetchFaultKind.OUT_OF_RANGE, text)
        self._partitions |= known
        self._metadata_at = self._idle_until = 0.0
        self._advance()

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        gone = {tp for tp in tps if self._partitions.pop(tp, None) is not None}
        if gone:
            drop_faults(self.faults, gone)

    def fetch(self, timeout_s: float, max_messages: int = BUFFER_MESSAGES) -> list[R]:
        """Return the next messages of some partitions; none at the timeout or at a new fault.

        The call waits at most `timeout_s` seconds, and parses for up to a few milliseconds. It
        ignores `max_messages`, because runs are as large as responses.
        """
        deadline = time.monotonic() + timeout_s
        known = len(self.faults)
        while True:
            if (run := self._parsed()) is not None:
                for broker in self._brokers.values():
                    if broker.connection is not None:
                        broker.connection.accept_ahead()
                return self._with_others(run)
            if len(self.faults) > known:
                return []
            self._advance()
            self._wait(max(0.0, deadline - time.monotonic()))
            if not self._pending and time.monotonic() >= deadline:
                return []

    def _with_others(self, run: R) -> list[R]:
        """Return a small run together with further runs that were already received."""
        if len(run) >= _TOGETHER:
            return [run]
        runs, count, size = [run], len(run), run.size
        while count < _TOGETHER and size < BYTES and (more := self._parsed()) is not None:
            runs.append(more)
            count += len(more)
            size += more.size
        return runs

    def resolve(self, tps: Iterable[TopicPartition], reset: AutoOffsetReset) -> Future[Answers]:
        return self._resolver.resolve(tps, reset)

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        known = ((tp, self._partitions.get(tp)) for tp in tps)
        return {tp: one.end for tp, one in known if one is not None and one.end >= 0}

    @property
    def is_instant(self) -> bool:
        return is_decided()

    @property
    def sessions(self) -> dict[int, FetchSession]:
        """The fetch sessions by the brokers' ids."""
        return {node: broker.session for node, broker in self._brokers.items()}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._resolver.close()
        if self._metadata is None:
            self._lookup.close()
        else:
            self._metadata.add_done_callback(lambda _: self._lookup.close())
        self._partitions.clear()
        self._pending.clear()
        for broker in self._brokers.values():
            if broker.connecting is not None:
                broker.connecting.add_done_callback(_close_unused)
            self._disconnect(broker)
        self._selector.close()
        self._woken.close()
        self._wake.close()

    # ---- records ---------------------------------------------------------------------------------

    @abstractmethod
    def _runs(self, found: RecordSet) -> Iterator[R]:
        """Parse a record set. Raises CorruptError after the records before a malformed batch."""

    def _parsed(self) -> R | None:
        """Return the next run of the responses that were received."""
        while self._pending:
            partition, runs = self._pending[0]
            if self._partitions.get(partition.tp) is partition:
                try:
                    if (run := next(runs, None)) is not None:
                        return run
                except CorruptError as error:
                    self._stop(partition, FetchFaultKind.PERMANENT, str(error))
                    # Later messages must not be returned: a commit would skip the damage.
                    left = (one for one in self._pending if one[0] is not partition)
                    self._pending = deque(left)
                    continue
            self._pending.popleft()
        return None

    def _stop(
        self, partition: _Partition, kind: FetchFaultKind, text: str, offset: int = -1
    ) -> None:
        partition.stopped = True
        self.faults.append(FetchFault(kind, partition.tp, text, offset))

    # ---- requests --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Apply the results of other threads, and send the requests that can be sent."""
        now = time.monotonic()
        while self._unanswered:
            self._passing(None, self._unanswered.popleft())
        if now < self._idle_until and self._metadata is None:
            return
        self._take_metadata(now)
        active = [one for one in self._partitions.values() if not one.stopped]
        missing = [one.tp for one in active if one.tp not in self._leaders]
        if missing and self._metadata is None and now >= self._metadata_at:
            topics = {tp.topic for tp in missing}
            self._metadata = self._in_background(partial(self._lookup.metadata, topics, _CONNECT_S))
        by_leader: dict[int, list[_Partition]] = {}
        for one in active:
            if one.tp in self._leaders:
                by_leader.setdefault(self._leaders[one.tp], []).append(one)
        for node, partitions in by_leader.items():
            broker = self._brokers.setdefault(node, _Broker())
            if broker.asked is not None:
                if now >= broker.overdue_at:
                    self._lose(node, TimeoutError())
            elif broker.connection is not None:
                if now >= broker.throttled_until:
                    self._ask(node, broker, partitions)
            else:
                self._connect(node, broker, now)
        if not missing:
            in_flight = [self._brokers[node] for node in by_leader]
            self._idle_until = min(
                (one.overdue_at if one.asked is not None else 0.0 for one in in_flight), default=0.0
            )

    def _take_metadata(self, now: float) -> None:
        if self._metadata is None or not self._metadata.done():
            return
        done, self._metadata = self._metadata, None
        self._metadata_at = now + self._retry_s
        try:
            found = done.result()
        except (FetchError, *LOST) as error:
            self._passing(None, str(error))
            return
        except AuthenticationError as error:
            self._metadata_at = now + REPORT_INTERVAL_S
            refused = FetchFault(FetchFaultKind.PERMANENT, None, str(error), error=error.error)
            self.faults.append(refused)
            return
        self._addresses |= found.addresses
        self._leaders |= found.leaders
        for tp in [tp for tp in self._partitions if tp not in self._leaders]:
            code = found.refused.get(tp.topic, 0)
            if code in PERMANENT:
                self._stop(self._partitions[tp], FetchFaultKind.PERMANENT, f"{tp}: {name_of(code)}")
            else:
                self._passing(tp, f"no leader of {tp} is known to the brokers")

    def _connect(self, node: int, broker: _Broker, now: float) -> None:
        if broker.connecting is None:
            if now >= broker.retry_at:
                call = partial(connect, self._addresses[node], self._settings, _CONNECT_S)
                broker.connecting = self._in_background(call)
            return
        if not broker.connecting.done():
            return
        done, broker.connecting = broker.connecting, None
        try:
            broker.connection = done.result()
        except AuthenticationError as error:
            broker.retry_at = now + REPORT_INTERVAL_S
            refused = FetchFault(FetchFaultKind.PERMANENT, None, str(error), error=error.error)
            self.faults.append(refused)
        except LOST as error:
            self._lose(node, error)
        else:
            self._selector.register(broker.connection, selectors.EVENT_READ, node)
            self._advance()

    def _ask(self, node: int, broker: _Broker, partitions: list[_Partition]) -> None:
        """Send a Fetch for all partitions that this broker leads."""
        assert broker.connection is not None
        version = broker.connection.versions[requests.FETCH]
        share = self._share(version, len(partitions))
        wanted = [(one.tp, one.offset, self._bytes_for(one, share)) for one in partitions]
        limits = self._limits._replace(
            max_bytes=max(self._limits.max_bytes, *(size for _, _, size in wanted))
        )
        is_session = (
            version >= fetch_sessions.SINCE_VERSION and len(partitions) >= self._session_from
        )
        session = broker.session
        request = session.request(wanted) if is_session else session.request_without(wanted)
        broker.asked = {one.tp: one for one in partitions}
        broker.overdue_at = time.monotonic() + self._silent_s
        try:
            body = requests.fetch_request(version, limits, request)
            broker.connection.send(requests.FETCH, body)
            self._watch(broker.connection, node)
        except OSError as error:
            self._lose(node, error)

    def _share(self, version: int, partitions: int) -> int:
        """Return how many bytes a request asks for from each of its `partitions` partitions."""
        # A response has fixed costs, and ends in an incomplete batch, which the reader drops. So
        # each partition may use the bytes of the whole response, and the next request begins with
        # other partitions.
        if version >= 3:
            return max(self._partition_bytes, self._ahead_bytes)
        most = min(self._partition_bytes, _OLD_RESPONSE_BYTES // partitions)
        least = min(self._partition_bytes, _LEAST_PARTITION_BYTES)
        return max(most, least, self._ahead_bytes // partitions)

    def _bytes_for(self, partition: _Partition, share: int) -> int:
        """Return how many bytes to request: few from a new partition, and from a range a little
        more than its remaining messages need."""
        if partition.until == parsers.MAX_OFFSET and partition.is_new:
            # Otherwise the first messages of several new partitions would come in one response
            # after another, and the program might take a second for each response.
            return max(min(share, _PROBE_BYTES), partition.limit)
        if partition.limit or partition.until == parsers.MAX_OFFSET:
            return max(share, partition.limit)
        batches = self._batches.get(partition.tp.topic)
        if batches is None:
            return min(share, _PROBE_BYTES)
        left = (partition.until - partition.offset) * batches.bytes_per_offset
        if batches.equal_size:
            return min(share, math.ceil(left / batches.equal_size) * batches.equal_size)
        return min(share, int(_RANGE_MARGIN * left) + _RANGE_SLACK)

    def _watch(self, connection: Connection, node: int) -> None:
        """If a part of a request is unsent, also wait until the socket accepts more bytes."""
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        events = selectors.EVENT_READ if connection.flush() else both
        if self._selector.get_key(connection).events != events:
            self._selector.modify(connection, events, node)

    # ---- responses -------------------------------------------------------------------------------

    def _wait(self, timeout_s: float) -> None:
        """Wait for a response, the end of a background call, or a retry that is due."""
        now = time.monotonic()
        dues = [self._metadata_at] if self._metadata is None else []
        for broker in self._brokers.values():
            idle_until = max(broker.retry_at, broker.throttled_until)
            dues.append(broker.overdue_at if broker.asked is not None else idle_until)
            if broker.connection is not None:
                broker.connection.await_response()
        left: list[float] = [due - now for due in dues if due > now]
        for key, _ in self._selector.select(min([timeout_s, *left])):
            if key.fileobj is self._woken:
                self._woken.recv(4096)
            else:
                self._receive(key.data)

    def _receive(self, node: int) -> None:
        broker = self._brokers[node]
        connection = broker.connection
        if connection is None:
            return  # the connection was lost while another event of this turn was handled
        try:
            if connection.is_sending:
                self._watch(connection, node)
            response = connection.receive(RECEIVE_BYTES)
            if response is None:
                return
            self.fetched_bytes += len(response.data)
            version = connection.versions[requests.FETCH]
            reader = FieldReader(response.data, 4)
            throttled_ms, code, session, found = requests.fetched(version, reader)
        except LOST as error:
            self._lose(node, error)
            return
        asked, broker.asked = broker.asked or {}, None
        self._idle_until = 0.0
        broker.pause_s = 0.0
        if throttled_ms > 0 and version >= _CLIENT_WAITS:
            self.throttled_s += throttled_ms / 1000
            broker.throttled_until = time.monotonic() + throttled_ms / 1000
        if code in fetch_sessions.ERRORS:
            broker.session.refused(code)
        elif code:
            self._lose(node, ConnectionError(name_of(code)))
            return
        else:
            broker.session.answered(session, [(one.tp, self._end_of(one)) for one in found])
            found += _unchanged(broker.session, asked.values(), {one.tp for one in found})
        engine = self._engine(sum(one.size for one in found))
        for one in found:
            partition = asked.get(one.tp)
            if partition is None or self._partitions.get(one.tp) is not partition:
                continue
            # If it is stopped, the parser has found a damaged batch since the request was sent.
            if not partition.stopped:
                self._take(partition, one, response, engine)
        self._advance()

    def _take(
        self,
        partition: _Partition,
        found: FetchedPartition,
        response: Response,
        engine: ParserEngine,
    ) -> None:
        if found.error:
            self._take_error(partition, found.error)
            return
        partition.end = self._end_of(found)
        if found.size:
            data = response.part(found.at, found.size)
            self._take_records(
                partition,
                RecordSet(
                    partition.tp,
                    data,
                    engine,
                    first=partition.offset,
                    until=partition.until,
                    aborted=found.aborted,
                ),
            )
        if partition.offset >= partition.until:
            partition.stopped = True
            if self._reports_ends:
                self._pending.append((partition, self._end(partition, partition.offset)))
        elif (
            self._reports_ends
            and partition.offset >= partition.end >= 0
            and partition.ended_at != partition.offset
        ):
            # Messages before the end were not returned to the user yet; report the fault after
            # them.
            partition.ended_at = partition.offset
            self._pending.append((partition, self._end(partition, partition.offset)))

    def _end_of(self, found: FetchedPartition) -> int:
        """Return the end of the log for this reader."""
        if self._limits.isolation is Isolation.READ_COMMITTED:
            return found.last_stable
        return found.high_watermark

    def _end(self, partition: _Partition, offset: int) -> Iterator[R]:
        """Yield nothing. When this generator runs, all messages before the end of the log were
        returned, so report the end."""
        self.faults.append(
            FetchFault(FetchFaultKind.END, partition.tp, "the end of the log", offset)
        )
        yield from ()

    def _take_records(self, partition: _Partition, found: RecordSet) -> None:
        if found.next_offset > partition.offset:
            if partition.until < parsers.MAX_OFFSET:
                self._batches[partition.tp.topic] = found.sizes()
            partition.offset = found.next_offset
            partition.limit, partition.is_new = 0, False
            # Put the other partitions first in the next request.
            self._partitions[partition.tp] = self._partitions.pop(partition.tp)
        elif not found.is_corrupt:
            self._grow(partition, found)
            return
        self._pending.append((partition, self._runs(found)))

    def _grow(self, partition: _Partition, found: RecordSet) -> None:
        """Request more bytes: the response contains only a part of the first batch."""
        needed = max(found.needed, 2 * max(partition.limit, self._partition_bytes))
        if partition.is_new and found.needed > max(partition.limit, _PROBE_BYTES):
            needed = found.needed
        if partition.limit >= RECEIVE_BYTES or found.needed > RECEIVE_BYTES:
            text = f"the batch at offset {partition.offset} has more than {RECEIVE_BYTES} bytes"
            self._stop(partition, FetchFaultKind.PERMANENT, text)
        partition.limit = min(needed, RECEIVE_BYTES)

    def _take_error(self, partition: _Partition, code: int) -> None:
        if code == OUT_OF_RANGE:
            text = f"offset {partition.offset} is not in the log"
            self._stop(partition, FetchFaultKind.OUT_OF_RANGE, text)
        elif code in PERMANENT:
            self._stop(partition, FetchFaultKind.PERMANENT, f"{partition.tp}: {name_of(code)}")
        else:
            # The leader has moved, or is being elected. Look it up after the back-off.
            self._leaders.pop(partition.tp, None)
            self._metadata_at = time.monotonic() + self._retry_s
            self._passing(partition.tp, f"{partition.tp}: {name_of(code)}")

    # ---- lost connections ------------------------------------------------------------------------

    def _lose(self, node: int, error: BaseException) -> None:
        """Close a connection, report why, and look up the leaders again after a back-off."""
        broker = self._brokers[node]
        self._disconnect(broker)
        self._idle_until = 0.0
        broker.session.lost()
        now = time.monotonic()
        broker.pause_s = min(_LONGEST_PAUSE_S, 2 * broker.pause_s or self._retry_s)
        broker.retry_at = now + broker.pause_s
        self._metadata_at = max(self._metadata_at, now + self._retry_s)
        for tp in [tp for tp, leader in self._leaders.items() if leader == node]:
            del self._leaders[tp]
        host, port = self._addresses[node]
        self._passing(None, f"broker {node} at {host}:{port}: {why(error)}")

    def _disconnect(self, broker: _Broker) -> None:
        broker.asked = None
        if broker.connection is not None:
            self._selector.unregister(broker.connection)
            broker.connection.close()
            broker.connection = None

    def _passing(self, tp: TopicPartition | None, text: str) -> None:
        """Report an error that is retried; each text at most every `REPORT_INTERVAL_S` s."""
        now = time.monotonic()
        due, swallowed = self._reported.get(text, (0.0, 0))
        if now < due:
            self._reported[text] = (due, swallowed + 1)
            return
        if len(self._reported) > _REMEMBERED:
            self._reported.clear()
        self._reported[text] = (now + REPORT_INTERVAL_S, 0)
        if descriptors := descriptors_error():
            self.faults.append(FetchFault(FetchFaultKind.PERMANENT, None, descriptors))
            return
        more = f" ({swallowed} more such errors)" if swallowed else ""
        self.faults.append(FetchFault(FetchFaultKind.RETRIED, tp, f"{text}{more}"))

    # ---- other threads ---------------------------------------------------------------------------

    def _in_background(self, call: Callable[[], T]) -> Future[T]:
        """Run a call on a new thread; when the call ends, `_wait` wakes up."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001  # the caller takes it from the future
                future.set_exception(error)
            with suppress(OSError):  # the fetcher was closed, or wake-ups already wait
                self._wake.send(b"\0")

        # A daemon thread, because a silent broker must not prevent the process from ending.
        threading.Thread(target=run, name="columns-connect", daemon=True).start()
        return future


class RecordFetcher(OwnFetcher[Records]):
    """The `Fetcher` that returns records."""

    def _runs(self, found: RecordSet) -> Iterator[Records]:
        return found.records()


def _unchanged(
    session: FetchSession, asked: Iterable[_Partition], found: Set[TopicPartition]
) -> list[FetchedPartition]:
    """Return the ends of logs that the response of a session omits, but the fetcher needs.

    A partition that was assigned again, at the offset of the last request, is new for the fetcher
    only.
    """
    new = [one.tp for one in asked if one.end < 0 and one.tp not in found]
    known = ((tp, session.end(tp)) for tp in new)
    return [FetchedPartition(tp, 0, end, end, (), 0, 0) for tp, end in known if end >= 0]


# Maximum number of different error texts for which the time of the last report is stored.
_REMEMBERED: Final = 100


def _close_unused(connecting: Future[Connection]) -> None:
    if connecting.exception() is None:
        connecting.result().close()
