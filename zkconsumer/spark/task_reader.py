"""Reads in tasks: fixed ranges of offsets become Arrow record batches.

A task uses neither groups nor ZooKeeper. The driver gives it ranges and the brokers' addresses
(`planned`), and every reader's `read` passes them to `read_task`. Each attempt of a task reads
exactly its ranges. The task skips offsets that have no message because of log compaction or
transaction markers. Messages that are no longer in the log cause an error or a warning
(`failOnDataLoss`; Spark: `org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer`).
"""

from __future__ import annotations

import gc
import logging
import math
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from zkconsumer import loops
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import FetchError, SparkSourceError
from zkconsumer.kafka.client_settings import (
    Brokers,
    Settings,
    broker_settings,
    fetch_settings,
)
from zkconsumer.kafka.engines import (
    RunFetcher,
    columnar,
    columnar_with_headers,
    librdkafka_s,
    planned_range_engine,
    range_engine,
)
from zkconsumer.kafka.fetcher import (
    AutoOffsetReset,
    BrokerClient,
    FetchFault,
    FetchFaultKind,
    MessageList,
)
from zkconsumer.kafka.logs import STALE_END_S
from zkconsumer.loops import Loops
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.offset_ranges import OffsetRange, Ranges, tasks
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import errors_as_text, skip_imports_in_collections
from zkconsumer.spark.schema import HEADERS, TOKEN

if TYPE_CHECKING:
    import pyarrow
    from confluent_kafka import Message

log = SafeLogger(logging.getLogger(__name__))

# Messages per call to librdkafka. 10,000 messages exceed the processor's caches, which costs a
# fifth of the throughput.
ROWS_PER_BATCH: Final = 1000

# A batch of columns below both of these limits (in rows and in bytes) is joined with the following
# batches, because a batch costs Spark about as much as a thousand rows.
ENOUGH_ROWS: Final = 4000
ENOUGH_BYTES: Final = 1 << 19

# Seconds that one call waits for a message. If no message arrives, the reader checks for problems.
WAIT_S: Final = 0.1

# Time that a broker may hold back the answer to a fetch at the log's end (ms). The time is short. A
# range ends at an offset that existed when the batch was planned, so the broker waits only if
# trailing offsets have no message, or if the leader lags.
FETCH_WAIT_MS: Final = 10

# Time until librdkafka checks a full queue again (ms). A full queue of 1 KB messages lasts 5 ms. A
# task only reads, so its queue is not full for long, unlike a stream's.
QUEUE_BACKOFF_MS: Final = 1

# Allocations between two cyclic garbage collections while a task reads. Messages and timestamps are
# never part of a cycle; Python's default of 700 would cost a fifth of the time.
COLLECT_EVERY: Final = 1_000_000

# A warm-up task waits at most this many seconds for the leader's answer.
WARM_UP_S: Final = 1.0

# No log has this offset.
BEYOND_LOGS: Final = (1 << 62) - 1

# Number of consumers that a worker process keeps for its next tasks, each for different brokers
# or settings. If there are more, the least recently used one is closed.
KEPT_CONSUMERS: Final = 3

# Seconds after which a worker process closes a kept consumer that no task has used. A worker lives
# as long as its application, and a consumer has connections, threads and a timer.
IDLE_S: Final = 120.0

# Maximum number of fetches per partition for a range that is read without prefetching. This applies
# if the log has messages after the range. Each fetch asks for an equal share of the range. The next
# fetch starts only when the queue is empty, so librdkafka fetches nothing beyond the range. Longer
# ranges are prefetched, which is faster. Prefetching may fetch 3 MB too much, which is little
# compared with such a range.
SIZED_FETCHES: Final = 8

# Minimum size of such a fetch in bytes: below this size, bytes beyond the range cost nothing.
SMALLEST_FETCH: Final = 64 * 1024

# A kept consumer is used for a range if its fetch size is at most this factor times the needed
# size.
FETCH_TOLERANCE: Final = 1.1

# Bytes that a fetch brings in addition to its messages: a broker answers with whole producer
# batches, so the first one may start before the range (JVM producers: `batch.size` = 16 KB).
FETCH_SLACK: Final = 16 * 1024

# Bytes of a stored message besides key and value: record format v2, and v0 and v1 of old brokers.
RECORD_OVERHEAD: Final = 12
OLD_RECORD_OVERHEAD: Final = 34

# One message in 128 is measured to estimate the size of a topic's messages.
_MEASURED: Final = 128


_offset: Final[Callable[[Message], int]] = methodcaller("offset")


@dataclass(frozen=True)
class ReadSettings:
    """How a task reads; the driver sends it to the executors.

    Attributes:
        client: librdkafka's settings, from `client_settings`.
        patience_s: seconds without any message, for instance without a leader, after which the task
            fails.
        fail_on_data_loss: whether the task fails if messages are no longer in the log.
        has_backlog: whether the logs contain messages after the ranges. Then a task fetches only as
            much as its ranges need, because the rest would be discarded.
        engine: `fetch.engine`. With `auto`, an executor without the extra `fast` uses librdkafka.
    """

    client: Settings
    patience_s: float
    fail_on_data_loss: bool = True
    has_backlog: bool = False
    engine: str = "auto"


def client_settings(config: ConsumerConfig, brokers: Brokers) -> Settings:
    """Return librdkafka's settings for tasks. Raises FetchError, see `broker_settings`."""
    return {
        **fetch_settings(config),
        **broker_settings(brokers),
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
    }


def read_ranges(
    ranges: Iterable[OffsetRange], columns: Sequence[str], settings: ReadSettings
) -> Generator[pyarrow.RecordBatch, None, None]:
    """Yield the messages of these ranges with these columns, in order within each partition.

    Raises:
        SparkSourceError: pyarrow is missing; messages are no longer in the log, and
            `fail_on_data_loss` is true; no message arrived for `patience_s`; or the brokers refuse
            the request.
    """
    _check_pyarrow()
    left = [one for one in ranges if one.size]
    reader = _reader_for(settings, left, columns)
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *thresholds[1:])
    try:
        while left:
            # If a partition has two ranges, each is read in a separate pass. Usually there is one
            # pass.
            once = {one.tp: one for one in reversed(left)}
            left = [one for one in left if one is not once[one.tp]]
            yield from reader.batches(once.values(), settings, columns)
    except GeneratorExit:  # Spark needs no more rows, for instance because of a LIMIT
        reader.give_back()
        raise
    except BaseException:
        reader.close()
        raise
    finally:
        gc.set_threshold(*thresholds)
    reader.give_back()


def warm_up(tp: TopicPartition, settings: ReadSettings) -> None:
    """Import what reading needs, and keep a consumer that is connected to the partition's leader.

    The consumer requests an offset beyond every log, so the leader answers without a message. A
    broker that does not answer within `WARM_UP_S` causes no error here.

    Raises:
        SparkSourceError: pyarrow is missing.
    """
    _check_pyarrow()
    reader = _reader_for(settings, (), ())
    reader.connect(tp)
    reader.give_back()


def _reader_for(
    settings: ReadSettings, ranges: Sequence[OffsetRange], columns: Sequence[str]
) -> RangeReader:
    """Return the reader of a task; it reuses the consumer of an earlier task if there is one."""
    if not _reads_columns(settings):
        return CACHE.take(MessageReader, _sized(settings, ranges))
    kind = HeaderReader if HEADERS in columns else ColumnReader
    return CACHE.take(kind, settings.client)


def _check_pyarrow() -> None:
    """Raise SparkSourceError if pyarrow is missing."""
    with _packages_of("spark"):
        import pyarrow  # noqa: F401, PLC0415 - see the error


@contextmanager
def _packages_of(extra: str) -> Iterator[None]:
    """Raise SparkSourceError if an import fails, which names the package and the extra."""
    try:
        yield
    except ImportError as error:
        raise SparkSourceError(
            f"an executor cannot read: {error}",
            where=f"{sys.executable} on {socket.gethostname()}",
            remedy=f"install zkconsumer[{extra}] there, or set PYSPARK_PYTHON to an interpreter"
            " that has it",
        ) from error


class RangeReader(ABC):
    """Reads the ranges of one task after another, with one consumer.

    Attributes:
        settings: the consumer's settings.
        client: the consumer.
    """

    client: BrokerClient

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open()
        self._forget_task()

    def _forget_task(self) -> None:
        self._ranges: dict[TopicPartition, OffsetRange] = {}
        # The next offset of each partition that is not finished.
        self._next: dict[TopicPartition, int] = {}
        # The time since which no message has arrived; and for each log that ends before its range,
        # the time at which the task first saw this.
        self._idle_since: float | None = None
        self._short_since: dict[TopicPartition, float] = {}
        self._trouble = ""

    @abstractmethod
    def _open(self) -> None:
        """Make the consumer."""

    @abstractmethod
    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions, whose ranges are known, from these offsets."""

    @abstractmethod
    def _wait(self, limit_s: float) -> None:
        """Wait for an answer of a leader, for at most `limit_s` seconds."""

    @abstractmethod
    def _read(
        self, columns: Sequence[str], tokens: Mapping[TopicPartition, int | None]
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages of the ranges as record batches with these columns."""

    def batches(
        self, ranges: Iterable[OffsetRange], settings: ReadSettings, columns: Sequence[str]
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages of these ranges; there is at most one range per partition."""
        self._task = settings
        self._ranges = {one.tp: one for one in ranges}
        self._next = {tp: one.start for tp, one in self._ranges.items()}
        self._assign(self._next)
        yield from self._read(columns, {tp: one.token for tp, one in self._ranges.items()})

    def connect(self, tp: TopicPartition) -> None:
        """Connect to the partition's leader within `WARM_UP_S`."""
        self.client.assign({tp: BEYOND_LOGS})
        deadline = time.monotonic() + WARM_UP_S
        while not self.client.faults and (left_s := deadline - time.monotonic()) > 0:
            self._wait(min(WAIT_S, left_s))
        self.client.unassign([tp])

    def give_back(self) -> None:
        """Keep the consumer, so that the next task of this process can use it."""
        self.client.unassign(self._next)
        self._forget_task()
        CACHE.keep(self)

    def close(self) -> None:
        self.client.close()

    def _handle_faults(self) -> None:
        while self.client.faults:
            self._handle(self.client.faults.popleft())

    def _finish(self, tp: TopicPartition) -> None:
        del self._next[tp]
        self._short_since.pop(tp, None)
        self.client.unassign([tp])

    def _check_time_limits(self) -> None:
        """Handle a call that returned no message within `WAIT_S`."""
        now = time.monotonic()
        for tp, since in list(self._short_since.items()):
            if now - since >= self._short_limit_s:
                self._check_log(tp)
        if self._idle_since is None:
            self._idle_since = now
        elif self._next and now - self._idle_since >= self._task.patience_s:
            tp, offset = next(iter(self._next.items()))
            raise SparkSourceError(
                f"no message arrived from the brokers for {self._task.patience_s:g} s",
                where=f"{tp} from {offset} to {self._ranges[tp].end - 1}"
                + (f", and {len(self._next) - 1} more partitions" if len(self._next) > 1 else "")
                + (f"; last error: {self._trouble}" if self._trouble else ""),
                remedy="check that the brokers run, and that the partition exists and has a leader;"
                " kafkaConsumer.pollTimeoutMs sets how long a task waits",
            )

    @property
    def _short_limit_s(self) -> float:
        return min(STALE_END_S, self._task.patience_s)

    def _handle(self, fault: FetchFault) -> None:
        tp = fault.tp
        if fault.error is not None:
            error = fault.error
            raise SparkSourceError(error.what, where=error.where, remedy=error.remedy)
        if fault.kind is FetchFaultKind.PERMANENT:
            raise SparkSourceError(
                f"the brokers refuse: {fault.text}",
                where=str(tp or ""),
                remedy="retrying does not help; see the brokers' logs",
            )
        if fault.kind is FetchFaultKind.LOST:
            self.close()
            self._open()
            self._assign(self._next)
        elif fault.kind is FetchFaultKind.RETRIED:
            self._trouble = fault.text
            log.info("reading continues after an error: %s", fault.text)
        elif tp is None or tp not in self._next:
            return  # the partition is finished
        elif fault.kind is not FetchFaultKind.END:
            self._check_log(tp)
        elif fault.offset >= self._ranges[tp].end:
            self._finish(tp)
        else:
            self._short_since.setdefault(tp, time.monotonic())

    def _check_log(self, tp: TopicPartition) -> None:
        """Find out why a partition's next messages do not arrive, and continue, wait, or fail.

        Continue at the first offset in the log if retention deleted messages, or wait if the leader
        may report too low an end.
        """
        position, end = self._next[tp], self._ranges[tp].end
        self.client.unassign([tp])
        first = self.client.resolve([tp], AutoOffsetReset.SMALLEST).result()[tp]
        until = self.client.resolve([tp], AutoOffsetReset.LARGEST).result()[tp]
        if isinstance(first, str) or isinstance(until, str):
            self._trouble = str(first if isinstance(first, str) else until)
        elif first > position:
            self._report_missing(tp, position, min(first, end), first, until)
            position = first
        elif until >= end:
            self._short_since.pop(tp, None)
        elif self._task.client.get("isolation.level") == "read_committed":
            # The range was planned before the query read committed messages only.
            self._trouble = f"a transaction is open at offset {until}"
        elif self._is_short_too_long(tp):
            self._report_missing(tp, max(position, until), end, first, until)
            position = end
        if position >= end:
            self._finish(tp)
        else:
            self._next[tp] = position
            self._assign({tp: position})

    def _is_short_too_long(self, tp: TopicPartition) -> bool:
        now = time.monotonic()
        return now - self._short_since.setdefault(tp, now) >= self._short_limit_s

    def _report_missing(
        self, tp: TopicPartition, start: int, end: int, first: int, until: int
    ) -> None:
        """Fail or warn: messages `start` to `end` - 1 are not in the log, which has `first` to
        `until` - 1.
        """
        asked = self._ranges[tp]
        what = f"{end - start} messages are no longer in the log"
        where = (
            f"{tp}: offsets {start} to {end - 1} of the range {asked.start} to {asked.end - 1};"
            " the log "
            + (
                f"has offsets {first} to {until - 1}"
                if until > first
                else f"is empty at offset {until}"
            )
        )
        if self._task.fail_on_data_loss:
            remedy = "failOnDataLoss=false reads the messages that are left"
            raise SparkSourceError(what, where=where, remedy=remedy)
        log.warning("%s (%s); skipped, because failOnDataLoss=false", what, where)


# ---- Columns without librdkafka ------------------------------------------------------------------


def _reads_columns(settings: ReadSettings) -> bool:
    """Return whether this process reads with the columnar reader; otherwise log why it does not.

    With `auto`, a process does not wait until the reader's loops are compiled. It reads through
    librdkafka, and one process of the machine compiles them. Raises SparkSourceError if
    `fetch.engine=columns` has no login for the SASL mechanism.
    """
    try:
        engine = range_engine(settings.engine, settings.client)
    except FetchError as error:
        raise SparkSourceError(error.what, where=error.where, remedy=error.remedy) from error
    if engine.why:
        log_once(
            f"{engine.why}, so this executor reads through librdkafka, which is slower: install"
            f" zkconsumer[fast] for {sys.executable}"
        )
    if engine.name == "librdkafka":
        return False
    if settings.engine == "columns" or loops.are_loaded(Loops.READER):
        return True
    loops.start_compiling()
    log_once(
        "the columnar reader is not compiled on this machine yet, so this executor reads through"
        " librdkafka; another process compiles it now (`zkconsumer compile` does so beforehand)"
        if loops.cache_directory() is not None
        else "numba finds no directory for compiled code, so this executor reads through"
        " librdkafka, which is slower: set NUMBA_CACHE_DIR to a directory that it may write"
    )
    return False


@cache
def log_once(text: str) -> None:
    log.warning("%s", text)


class MessageReader(RangeReader):
    """Reads ranges through librdkafka."""

    def _open(self) -> None:
        self.client = self._fetcher = librdkafka_s(self.settings)

    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._fetcher.assign(positions)

    def _wait(self, limit_s: float) -> None:
        self._fetcher.fetch(limit_s, 1)

    def _read(
        self, columns: Sequence[str], tokens: Mapping[TopicPartition, int | None]
    ) -> Iterator[pyarrow.RecordBatch]:
        from zkconsumer.kafka.columns.from_messages import record_batches  # noqa: PLC0415 - as above

        return record_batches(self._runs(), columns, tokens)

    def _runs(self) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """Yield runs of at most `ROWS_PER_BATCH` messages of one partition."""
        while self._next:
            left = sum(self._ranges[tp].end - offset for tp, offset in self._next.items())
            runs = self._fetcher.fetch(WAIT_S, min(ROWS_PER_BATCH, left))
            if runs:
                self._idle_since = None
                yield from self._within_ranges(runs)
            else:
                self._check_time_limits()
            self._handle_faults()

    def _within_ranges(
        self, runs: Iterable[MessageList]
    ) -> Iterator[tuple[TopicPartition, list[Message]]]:
        for run in runs:
            tp, messages = run.tp, run.messages
            if tp not in self._next:
                continue  # a message after the end of a finished range
            end = self._ranges[tp].end
            reached = _offset(messages[-1]) + 1
            self._next[tp] = reached
            self._short_since.pop(tp, None)
            if reached >= end:
                self._finish(tp)
            kept = messages if reached <= end else [one for one in messages if _offset(one) < end]
            if self._task.has_backlog:
                CACHE.measure(tp.topic, messages)
            if kept:
                yield tp, kept


class ColumnReader(RangeReader):
    """Reads ranges with the columnar reader, which requests nothing after the end of a range."""

    def _open(self) -> None:
        self.client = self._fetcher = self._make(self.settings)

    @staticmethod
    def _make(settings: Settings) -> RunFetcher:
        return columnar(settings)

    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        ranges = {tp: (at, self._ranges[tp].end) for tp, at in positions.items()}
        self._fetcher.assign_ranges(ranges)

    def _wait(self, limit_s: float) -> None:
        self._fetcher.fetch(limit_s)

    def _read(
        self, columns: Sequence[str], tokens: Mapping[TopicPartition, int | None]
    ) -> Iterator[pyarrow.RecordBatch]:
        waiting: list[pyarrow.RecordBatch] = []
        while self._next:
            runs = self._fetcher.fetch(WAIT_S)
            if not runs:
                self._check_time_limits()
            else:
                self._idle_since = None
            for run in runs:
                self._next[run.tp] = run.offset(len(run) - 1) + 1
                self._short_since.pop(run.tp, None)
                if self._next[run.tp] >= self._ranges[run.tp].end:
                    self._finish(run.tp)
            waiting += [_selected(run.batch, columns, tokens[run.tp]) for run in runs]
            if sum(one.num_rows for one in waiting) >= ENOUGH_ROWS or (
                sum(one.nbytes for one in waiting) >= ENOUGH_BYTES
            ):
                yield from _joined(waiting)
                waiting = []
            self._handle_faults()
        yield from _joined(waiting)


class HeaderReader(ColumnReader):
    """Reads ranges with the columnar reader, with the column `headers`."""

    @staticmethod
    def _make(settings: Settings) -> RunFetcher:
        return columnar_with_headers(settings)


def _selected(
    batch: pyarrow.RecordBatch, columns: Sequence[str], token: int | None
) -> pyarrow.RecordBatch:
    """Return these columns of a batch of the columnar reader, with decoded headers."""
    if HEADERS not in columns and TOKEN not in columns:
        return batch.select(columns)
    import pyarrow as pa  # noqa: PLC0415 - see `_check_pyarrow`

    from zkconsumer.kafka.columns.from_messages import TYPES, header_column  # noqa: PLC0415 - as above
    from zkconsumer.kafka.columns.records import headers_of  # noqa: PLC0415 - an extra

    def column(name: str) -> pyarrow.Array:
        if name == TOKEN:
            return pa.repeat(pa.scalar(token, TYPES[TOKEN]), batch.num_rows)
        if name == HEADERS:
            return header_column(map(headers_of, batch.column(HEADERS).to_pylist()))
        return batch.column(name)

    schema = pa.schema([(name, TYPES[name]) for name in columns])
    return pa.RecordBatch.from_arrays([column(name) for name in columns], schema=schema)


def _joined(batches: list[pyarrow.RecordBatch]) -> list[pyarrow.RecordBatch]:
    """Join small batches into one."""
    if len(batches) < 2:
        return batches
    import pyarrow as pa  # noqa: PLC0415 - see `_check_pyarrow`

    columns = zip(*(one.columns for one in batches), strict=True)
    arrays = [pa.concat_arrays(parts) for parts in columns]
    return [pa.RecordBatch.from_arrays(arrays, schema=batches[0].schema)]


# ---- Fetches that are sized to the ranges --------------------------------------------------------


def _sized(settings: ReadSettings, ranges: Iterable[OffsetRange]) -> Settings:
    """Return client settings with which the fetches return little more than these ranges.

    The first task of a process does not know the size of messages and uses the normal settings.
    Compressed messages are smaller on the wire than estimated, so their fetches return more than
    the range, but never more than with the normal settings.
    """
    client = settings.client
    largest = client["fetch.message.max.bytes"]
    assert isinstance(largest, int)
    sizes = CACHE.message_bytes({one.topic for one in ranges})
    if not settings.has_backlog or sizes is None:
        return client
    overhead = RECORD_OVERHEAD if client.get("api.version.request", True) else OLD_RECORD_OVERHEAD
    needed = max((one.size * (sizes[one.topic] + overhead) for one in ranges), default=0)
    fetches = max(1, math.ceil((needed + FETCH_SLACK) / largest))
    if fetches > SIZED_FETCHES:
        return client
    least = max(SMALLEST_FETCH, needed / fetches + FETCH_SLACK)
    for kept in CACHE.settings(MessageReader):
        size = kept["fetch.message.max.bytes"]
        if kept == _with_fetches(client, size) and least <= size <= FETCH_TOLERANCE * least:
            return kept
    return _with_fetches(client, min(largest, round(least * math.sqrt(FETCH_TOLERANCE))))


def _with_fetches(client: Settings, size: int) -> Settings:
    """Return settings with which the client fetches `size` bytes per partition at a time, without
    prefetching."""
    return {**client, "fetch.message.max.bytes": size, "queued.min.messages": 1}


# ---- What a worker process keeps for its next tasks ----------------------------------------------

_Key = tuple[type[RangeReader], frozenset[tuple[str, object]]]


class ReaderCache:
    """The readers and the estimated sizes of messages that a worker process keeps for its tasks.

    A child process begins with an empty cache, because librdkafka's threads do not survive a fork.
    """

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # The readers without a task, each with the time of its last use; the most recently used one
        # is last.
        self._kept: dict[_Key, tuple[RangeReader, float]] = {}
        # Topic -> the estimated size in bytes of a message's key and value.
        self._bytes: dict[str, float] = {}
        self._is_closing = False  # whether a thread closes unused readers

    def take(self, kind: type[RangeReader], settings: Settings) -> RangeReader:
        """Return a reader for one task; a new one takes 10 to 50 ms to connect.

        Raises SparkSourceError if a package is missing.
        """
        with self._lock:
            kept = self._kept.pop((kind, frozenset(settings.items())), None)
        if kept is not None:
            kept[0].client.faults.clear()
            return kept[0]
        with _packages_of("spark,fast"):
            return kind(settings)

    def keep(self, reader: RangeReader) -> None:
        """Keep a reader without partitions, at most `KEPT_CONSUMERS` of them."""
        key = type(reader), frozenset(reader.settings.items())
        with self._lock:
            if key in self._kept:
                unused = [reader]
            else:
                self._kept[key] = reader, time.monotonic()
                oldest = list(self._kept)[:-KEPT_CONSUMERS]
                unused = [self._kept.pop(one)[0] for one in oldest]
            must_start, self._is_closing = not self._is_closing, True
        for one in unused:
            one.close()
        if must_start:
            threading.Thread(target=self._close_unused, name="idle", daemon=True).start()

    def settings(self, kind: type[RangeReader]) -> list[Settings]:
        """Return the settings of the readers of this kind that are kept."""
        with self._lock:
            return [one.settings for one, _ in self._kept.values() if isinstance(one, kind)]

    def _close_unused(self) -> None:
        """Close readers that no task has used for `IDLE_S`, until the process ends."""
        while True:
            time.sleep(IDLE_S / 4)
            with self._lock:
                now = time.monotonic()
                old = [key for key, (_, at) in self._kept.items() if now - at >= IDLE_S]
                unused = [self._kept.pop(key)[0] for key in old]
            for one in unused:
                one.close()

    def measure(self, topic: str, messages: Sequence[Message]) -> None:
        """Update the estimate of a topic's message size."""
        some = messages[::_MEASURED]
        mean = sum(len(one) + len(one.key() or b"") for one in some) / len(some)
        with self._lock:
            self._bytes[topic] = (self._bytes.get(topic, mean) + mean) / 2

    def message_bytes(self, topics: Iterable[str]) -> dict[str, float] | None:
        """Return the estimated sizes of these topics' messages; None if one is unknown."""
        with self._lock:
            known = {topic: self._bytes.get(topic) for topic in topics}
        found = {topic: size for topic, size in known.items() if size is not None}
        return found if len(found) == len(known) else None


CACHE: Final = ReaderCache()


# ---- Tasks, as the driver plans them -------------------------------------------------------------


class RangesPartition(InputPartition):
    """The ranges of one task, and how to read them. The object contains no ZooKeeper
    credentials."""

    def __init__(self, ranges: Ranges, settings: ReadSettings) -> None:
        self.ranges, self.settings = ranges, settings

    def __repr__(self) -> str:
        return f"RangesPartition({list(self.ranges)})"


class WarmUpPartition(InputPartition):
    """A task that reads no message: its worker imports what reading needs, and connects to a
    broker.
    """

    def __init__(self, tp: TopicPartition, settings: ReadSettings) -> None:
        self.tp, self.settings = tp, settings


def warm_ups(
    options: SourceOptions, partitions: Iterable[TopicPartition], brokers: Brokers
) -> list[WarmUpPartition]:
    """Return a warm-up task for each partition. Raises FetchError as `client_settings` does."""
    settings = _settings(options, brokers)
    return [WarmUpPartition(tp, settings) for tp in partitions]


def _settings(options: SourceOptions, brokers: Brokers) -> ReadSettings:
    engine = planned_range_engine(options.config)
    if engine.why:
        log_once(f"tasks read through librdkafka, which is slower, because {engine.why}")
    return ReadSettings(
        client=client_settings(options.config, brokers),
        patience_s=options.poll_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
        engine=engine.name,
    )


def planned(
    options: SourceOptions, ranges: Iterable[OffsetRange], brokers: Brokers
) -> list[RangesPartition]:
    """Return a Spark partition for each task that `offset_ranges.tasks` plans. Raises FetchError as
    `client_settings` does.
    """
    ranges = list(ranges)
    settings = replace(_settings(options, brokers), has_backlog=_is_limited(options, ranges))
    planned_tasks = tasks(
        ranges, min_partitions=options.min_partitions, max_records=options.max_records
    )
    return [RangesPartition(one, settings) for one in planned_tasks]


def _is_limited(options: SourceOptions, ranges: Sequence[OffsetRange]) -> bool:
    """Whether the ranges end because of `maxOffsetsPerTrigger`, and not at the ends of the logs."""
    limit = options.max_per_trigger
    # Shares of the limit are rounded down, so each range may be one message shorter than its share.
    return limit is not None and sum(one.size for one in ranges) + len(ranges) >= limit


def read_task(partition: InputPartition, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of one task. Spark runs a task even for an empty plan; this task yields
    nothing. Raises what `read_ranges` raises."""
    if isinstance(partition, RangesPartition):
        with errors_as_text():
            yield from read_ranges(partition.ranges, columns, partition.settings)
            skip_imports_in_collections()
    elif isinstance(partition, WarmUpPartition):
        with errors_as_text():
            warm_up(partition.tp, partition.settings)
            skip_imports_in_collections()


class TaskReader(Pickled):
    """What the readers of all modes do on executors, and what Spark sends there."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """`columns` are in the order of the schema (`schema.columns_of`)."""
        self._options, self._columns = options, tuple(columns)

    def __getstate__(self) -> dict[str, object]:
        """Return the state that executors need: `read` uses only the columns, and credentials stay
        on the driver.
        """
        return {"_columns": self._columns}

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of one task, as `read_task` does."""
        return read_task(partition, self._columns)
