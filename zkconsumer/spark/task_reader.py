"""What a task does: reads fixed ranges of offsets from the brokers as Arrow record batches.

It knows neither groups nor ZooKeeper: what it gets says which messages, and where the brokers are.
A range is read exactly, on each try anew: holes that compaction or transactions have left are
passed over, and what is no longer in the log is an error or a line in the log
(`failOnDataLoss`, Spark: `org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer`).

What the driver gives a task, and what every reader's `read` does with it.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message
from pyspark.sql.datasource import InputPartition

from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import SparkSourceError
from zkconsumer.kafka.client_settings import Settings, broker_settings, fetch_settings
from zkconsumer.kafka.fetcher import Fault, FaultKind, KafkaFetcher, Reset
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.spark.offset_ranges import OffsetRange, Ranges, tasks
from zkconsumer.spark.options import SourceOptions
from zkconsumer.spark.process_lifecycle import one_sentence

if TYPE_CHECKING:
    import pyarrow


log = logging.getLogger(__name__)

# Messages taken from librdkafka at a time: with 10,000 the caches are lost (a fifth slower).
CHUNK: Final = 1000

# Seconds that one call waits for a message; then what may have gone wrong is looked at.
WAIT_S: Final = 0.1

# A fetch at the log's end waits so long for more (unit: ms): ranges end at what was there when they
# were planned, so there is nothing to wait for but a log's last holes and a lagging leader.
FETCH_WAIT_MS: Final = 10

# A full queue is looked at again after so long (unit: ms). With messages of 1 KB it lasts 5 ms; and
# a task does nothing but read, so that it is not full for long, as a stream's may be.
QUEUE_BACKOFF_MS: Final = 1

# Seconds in which a leader may say that its log ends before the range does. One that has just been
# elected knows of less than it has until its followers have asked it again.
SHORT_LOG_S: Final = 5.0

# Objects that may be made, while a task reads, until cycles are looked for. Messages and timestamps
# are no part of any: with Python's 700 the search takes a fifth of the time, for nothing.
COLLECT_EVERY: Final = 1_000_000

# Consumers of other brokers or settings that a worker process keeps for its next task. One more,
# and the one that was not used for the longest time is closed.
KEPT: Final = 2

# Seconds without a task after which a worker process closes a consumer that it has kept: a worker
# lives as long as its application, and a consumer has connections, threads and a timer.
IDLE_S: Final = 120.0

_topic: Final[Callable[[Message], Any]] = Message.topic
_partition: Final[Callable[[Message], Any]] = Message.partition
_offset: Final[Callable[[Message], Any]] = Message.offset


@dataclass(frozen=True)
class ReadSettings:
    """With what a task reads; goes from the driver to the executors.

    Attributes:
        client: librdkafka's settings, from `client_settings`.
        patience_s: seconds without any progress, broker away or leader unknown, until that is an
            error.
        fail_on_data_loss: whether a message that is no longer in the log is one.
    """

    client: Settings
    patience_s: float
    fail_on_data_loss: bool = True


def client_settings(config: ConsumerConfig, brokers: Sequence[Broker]) -> Settings:
    """librdkafka's settings for tasks. Raises FetchError as `broker_settings`."""
    return {
        **fetch_settings(config),
        **broker_settings(brokers),
        "enable.partition.eof": True,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
    }


def read_ranges(
    ranges: Iterable[OffsetRange], columns: Sequence[str], settings: ReadSettings
) -> Iterator[pyarrow.RecordBatch]:
    """The messages of these ranges, in order per partition, with these columns in this order.

    Raises:
        SparkSourceError: pyarrow is missing; messages are missing from the log, and
            `fail_on_data_loss`; nothing came for `patience_s`; or the brokers refuse.
    """
    record_batches = _record_batches()
    left = [one for one in ranges if one.size]
    reader = _Reader(settings)
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *thresholds[1:])
    try:
        while left:
            # A partition with two ranges is read twice; usually there is none, and one round.
            once = {one.tp: one for one in reversed(left)}
            left = [one for one in left if one is not once[one.tp]]
            yield from record_batches(reader.read(once.values()), columns)
    except GeneratorExit:  # Spark needs no more rows
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

    A broker that does not answer is no error here. Raises SparkSourceError: pyarrow is missing.
    """
    _record_batches()
    fetcher = _take(settings.client)
    fetcher.resolve([tp], Reset.LARGEST)
    _keep(settings.client, fetcher)


def _record_batches() -> Callable[..., Iterator[pyarrow.RecordBatch]]:
    """`arrow.record_batches`. Raises SparkSourceError: pyarrow is missing."""
    try:
        from zkconsumer.spark.arrow import record_batches  # noqa: PLC0415 - see the error
    except ImportError as error:
        raise SparkSourceError(
            f"an executor cannot read: {error}",
            where=f"{sys.executable} on {socket.gethostname()}",
            remedy="install zkconsumer[spark] there, or let PYSPARK_PYTHON name where it is",
        ) from error
    return record_batches


class _Reader:
    """One task's reading of ranges, with a consumer that it takes from those kept."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._fetcher = _take(settings.client)
        self._ranges: dict[TopicPartition, OffsetRange] = {}
        # Where the reading of each partition stands; what is done is no longer here.
        self._next: dict[TopicPartition, int] = {}
        # Since when nothing has come at all, and since when a log ends before its range.
        self._idle_since: float | None = None
        self._short_since: dict[TopicPartition, float] = {}
        self._trouble = ""

    def read(self, ranges: Iterable[OffsetRange]) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """Runs of messages, each of one partition and at most `CHUNK`; one range a partition."""
        self._ranges = {one.tp: one for one in ranges}
        self._next = {tp: one.start for tp, one in self._ranges.items()}
        self._fetcher.assign(self._next)
        while self._next:
            left = sum(self._ranges[tp].end - offset for tp, offset in self._next.items())
            messages = self._fetcher.consume(min(CHUNK, left), WAIT_S)
            if messages:
                self._idle_since = None
                yield from self._taken(messages)
            else:
                self._waited()
            while self._fetcher.faults:
                self._met(self._fetcher.faults.popleft())

    def give_back(self) -> None:
        """Let the next task of this process have the consumer."""
        self._fetcher.unassign(self._next)
        _keep(self._settings.client, self._fetcher)

    def close(self) -> None:
        self._fetcher.close()

    def _taken(self, messages: list[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
        for tp, run in self._by_partition(messages):
            if tp not in self._next:
                continue  # fetched beyond the end of its range
            end = self._ranges[tp].end
            reached = _offset(run[-1]) + 1
            self._next[tp] = reached
            self._short_since.pop(tp, None)
            if reached >= end:
                self._finish(tp)
            kept = run if reached <= end else [one for one in run if _offset(one) < end]
            if kept:
                yield tp, kept

    def _by_partition(
        self, messages: list[Message]
    ) -> Iterator[tuple[TopicPartition, list[Message]]]:
        if len(self._next) == 1:
            yield next(iter(self._next)), messages
            return
        at = 0
        places = zip(map(_topic, messages), map(_partition, messages), strict=True)
        for place, same in groupby(places):
            until = at + len(list(same))
            yield TopicPartition(*place), messages[at:until]
            at = until

    def _finish(self, tp: TopicPartition) -> None:
        del self._next[tp]
        self._short_since.pop(tp, None)
        self._fetcher.unassign([tp])

    def _waited(self) -> None:
        """Nothing came for `WAIT_S`."""
        now = time.monotonic()
        for tp, since in list(self._short_since.items()):
            if now - since >= self._short_limit_s:
                self._look_at_log(tp)
        if self._idle_since is None:
            self._idle_since = now
        elif self._next and now - self._idle_since >= self._settings.patience_s:
            tp, offset = next(iter(self._next.items()))
            raise SparkSourceError(
                f"nothing came from the brokers for {self._settings.patience_s:g} s",
                where=f"{tp} from {offset} to {self._ranges[tp].end - 1}"
                + (f", and {len(self._next) - 1} partitions more" if len(self._next) > 1 else "")
                + (f"; last heard: {self._trouble}" if self._trouble else ""),
                remedy="see that the brokers run, and that the partition exists and has a leader;"
                " kafkaConsumer.pollTimeoutMs is how long a task waits",
            )

    @property
    def _short_limit_s(self) -> float:
        return min(SHORT_LOG_S, self._settings.patience_s)

    def _met(self, fault: Fault) -> None:
        tp = fault.tp
        if fault.kind is FaultKind.PERMANENT:
            raise SparkSourceError(
                f"the brokers refuse: {fault.text}",
                where=str(tp or ""),
                remedy="waiting does not mend it; the brokers' logs may say more",
            )
        if fault.kind is FaultKind.LOST:
            self._fetcher.close()
            self._fetcher = KafkaFetcher(self._settings.client)
            self._fetcher.assign(self._next)
        elif fault.kind is FaultKind.PASSING:
            self._trouble = fault.text
            log.info("reading goes on after: %s", fault.text)
        elif tp is None or tp not in self._next:
            return  # of a partition that is done
        elif fault.kind is not FaultKind.END:
            self._look_at_log(tp)
        elif fault.offset >= self._ranges[tp].end:
            self._finish(tp)
        else:
            self._short_since.setdefault(tp, time.monotonic())

    def _look_at_log(self, tp: TopicPartition) -> None:
        """What is to be read is not all there: fetch what is, or wait for it, or fail."""
        position, end = self._next[tp], self._ranges[tp].end
        self._fetcher.unassign([tp])
        first = self._fetcher.resolve([tp], Reset.SMALLEST).result()[tp]
        until = self._fetcher.resolve([tp], Reset.LARGEST).result()[tp]
        if isinstance(first, str) or isinstance(until, str):
            self._trouble = str(first if isinstance(first, str) else until)
        elif first > position:
            self._missing(tp, position, min(first, end), first, until)
            position = first
        elif until >= end:
            self._short_since.pop(tp, None)
        elif self._is_short_for_long(tp):
            self._missing(tp, max(position, until), end, first, until)
            position = end
        if position >= end:
            self._finish(tp)
        else:
            self._next[tp] = position
            self._fetcher.assign({tp: position})

    def _is_short_for_long(self, tp: TopicPartition) -> bool:
        now = time.monotonic()
        return now - self._short_since.setdefault(tp, now) >= self._short_limit_s

    def _missing(self, tp: TopicPartition, start: int, end: int, first: int, until: int) -> None:
        """Messages `start` to `end` - 1 are no longer in the log of `first` to `until` - 1."""
        asked = self._ranges[tp]
        what = f"{end - start} messages are not in the log any more"
        where = (
            f"{tp}: {start} to {end - 1}, of {asked.start} to {asked.end - 1} to be read; the log "
            + (f"has {first} to {until - 1}" if until > first else f"is empty at {until}")
        )
        if self._settings.fail_on_data_loss:
            remedy = "failOnDataLoss=false reads what there is"
            raise SparkSourceError(what, where=where, remedy=remedy)
        log.warning("%s (%s): passed over, as failOnDataLoss=false says", what, where)


# ---- consumers that wait for the next task -------------------------------------------------------

# Of each process by its number, because librdkafka's threads do not survive a fork: a child leaves
# its parent's alone. In each the one that was used last stands last, each with that moment.
_Kept = dict[frozenset[tuple[str, Any]], tuple[KafkaFetcher, float]]
_idle: dict[int, _Kept] = {}
# The processes in which a thread closes what is idle.
_closing: set[int] = set()


def _take(settings: Settings) -> KafkaFetcher:
    """A consumer without partitions: a new one costs connections and look-ups, 10 to 50 ms."""
    kept = _idle.get(os.getpid(), {}).pop(frozenset(settings.items()), None)
    if kept is None:
        return KafkaFetcher(settings)
    kept[0].faults.clear()
    return kept[0]


def _keep(settings: Settings, fetcher: KafkaFetcher) -> None:
    mine = _idle.setdefault(os.getpid(), {})
    key = frozenset(settings.items())
    if key in mine:
        fetcher.close()
        return
    mine[key] = fetcher, time.monotonic()
    while len(mine) > KEPT:
        mine.pop(next(iter(mine)))[0].close()
    if os.getpid() not in _closing:
        _closing.add(os.getpid())
        threading.Thread(target=_close_idle, name="idle", daemon=True).start()


def _close_idle() -> None:
    """Close the consumers that no task has used for `IDLE_S`, as long as the process lives.

    It runs beside the thread of the tasks, without a lock: who pops a consumer has it. A task may
    take the consumer, and keep it again, between the look and the `pop`: then it is put back.
    """
    while True:
        time.sleep(IDLE_S / 4)
        mine = _idle.get(os.getpid(), {})
        for key, kept in list(mine.items()):
            if time.monotonic() - kept[1] >= IDLE_S:
                found = mine.pop(key, None)
                if found is kept:
                    kept[0].close()
                elif found is not None:
                    mine[key] = found


# ---- tasks ---------------------------------------------------------------------------------------


class RangesPartition(InputPartition):
    """Ranges for one task, and how to read them; without any credential of ZooKeeper's."""

    def __init__(self, ranges: Ranges, settings: ReadSettings) -> None:
        self.ranges, self.settings = ranges, settings

    def __repr__(self) -> str:
        return f"RangesPartition({list(self.ranges)})"


class WarmUpPartition(InputPartition):
    """A task that reads no message: its worker imports what reading needs, and connects."""

    def __init__(self, tp: TopicPartition, settings: ReadSettings) -> None:
        self.tp, self.settings = tp, settings


def warm_ups(
    options: SourceOptions, partitions: Iterable[TopicPartition], brokers: Sequence[Broker]
) -> list[WarmUpPartition]:
    """A task for each partition. Raises FetchError as `client_settings`."""
    settings = _settings(options, brokers)
    return [WarmUpPartition(tp, settings) for tp in partitions]


def _settings(options: SourceOptions, brokers: Sequence[Broker]) -> ReadSettings:
    return ReadSettings(
        client=client_settings(options.config, brokers),
        patience_s=options.poll_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def planned(
    options: SourceOptions, ranges: Iterable[OffsetRange], brokers: Sequence[Broker]
) -> list[RangesPartition]:
    """One for each task that `planning.tasks` makes. Raises FetchError as `client_settings`."""
    settings = _settings(options, brokers)
    dealt = tasks(ranges, min_partitions=options.min_partitions)
    return [RangesPartition(one, settings) for one in dealt]


def read_task(partition: InputPartition, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """The records of one task; none where Spark made up a task for an empty plan."""
    if isinstance(partition, RangesPartition):
        with one_sentence():
            yield from read_ranges(partition.ranges, columns, partition.settings)
    elif isinstance(partition, WarmUpPartition):
        with one_sentence():
            warm_up(partition.tp, partition.settings)
