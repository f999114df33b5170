"""The logs of the fake brokers' partitions: appending, reading, transactions, retention.

`PartitionLog` keeps the entries that producers sent. `Logs` gives them to the simulator's fetcher,
`zkconsumer.sim.logs.MemoryFetcher`, so that one set of logs serves both.

Kafka: `kafka.log.UnifiedLog`, `LogValidator` and `ProducerStateManager`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from zkconsumer.protocol.kafka_fields import MalformedError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import record_sets
from zkconsumer.testing.errors import ErrorCode, KafkaFault
from zkconsumer.testing.record_sets import NO_PRODUCER, NO_TIME, Entry, Producer, Record

# Number of batches that a broker remembers of each idempotent producer, to recognise a repetition.
_REMEMBERED: Final = 5


class LogSettings(NamedTuple):
    """The settings of a topic that concern its logs.

    Attributes:
        magic: the format of the messages: 0, 1 or 2 (`message.format.version`).
        append_time: whether the broker sets the timestamps (`message.timestamp.type`).
        codec: the codec of the broker, or None for the producer's (`compression.type`).
        max_bytes: the maximum size of an entry (`max.message.bytes`).
    """

    magic: int = 2
    append_time: bool = False
    codec: int | None = None
    max_bytes: int = 1_048_588


class AbortedRange(NamedTuple):
    """An aborted transaction: its producer's id, its first offset, and its marker's offset."""

    producer: int
    first: int
    last: int


@dataclass
class _ProducerState:
    """What the log knows about an idempotent producer."""

    epoch: int
    batches: deque[Entry] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class Slice(NamedTuple):
    """The result of a read: whole entries as bytes, their codecs, and the aborted transactions."""

    data: bytes
    codecs: frozenset[int]
    aborted: Sequence[AbortedRange]


class PartitionLog:
    """The log of one partition.

    Attributes:
        start: the first offset that retention has kept.
        end: the offset of the next message, which is also the high watermark.
        written_ms: when the last message was appended, in ms since 1970.
    """

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.start = self.end = 0
        self.written_ms = 0
        self._entries: list[Entry] = []
        self._lasts: list[int] = []  # the last offset of each entry
        self._producers: dict[int, _ProducerState] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self._aborted: list[AbortedRange] = []

    @property
    def last_stable(self) -> int:
        """The offset up to which every transaction has ended."""
        return min(self._open.values(), default=self.end)

    # ---- appending ------------------------------------------------------------------------------

    def append(self, data: bytes, now_ms: int) -> int:
        """Append a record set, and return the offset of its first message.

        Raises:
            KafkaFault: the record set is refused, with the error code of a broker.
        """
        try:
            sent = list(record_sets.parse(data))
            if not sent:
                raise KafkaFault(
                    ErrorCode.CORRUPT_MESSAGE, "the record set contains no whole batch"
                )
            self._check_sizes(sent)
            if (known := self._repeated(sent[0])) is not None:
                return known
            stored = list(self._in_format(sent, now_ms))
            self._check_sizes(stored)
            first, self.written_ms = self.end, now_ms
            for one in stored:
                self._put(one.at(self.end))
            return first
        except MalformedError as error:
            raise KafkaFault(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        except record_sets.UnsupportedCodecError as error:
            raise KafkaFault(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error

    def append_records(self, records: Sequence[Record], *, codec: int = record_sets.NONE) -> int:
        """Append records as one batch, and return the first offset; their own offsets are ignored.

        Raises UnsupportedCodecError, or KafkaFault if the batch is too large.
        """
        first = self.end
        placed = [one._replace(offset=first + at) for at, one in enumerate(records)]
        append_time = self.settings.append_time
        magic = self.settings.magic
        stored = record_sets.entries(placed, magic=magic, codec=codec, append_time=append_time)
        self._check_sizes(stored)
        for one in stored:
            self._put(one)
        return first

    def _check_sizes(self, entries: Sequence[Entry]) -> None:
        """Raise KafkaFault if an entry is too large; in formats v0 and v1, each uncompressed
        message is an entry."""
        largest = max((len(one.data) for one in entries), default=0)
        if largest > self.settings.max_bytes:
            text = f"{largest} bytes exceed max.message.bytes"
            raise KafkaFault(ErrorCode.MESSAGE_TOO_LARGE, text)

    def _in_format(self, sent: Sequence[Entry], now_ms: int) -> Iterator[Entry]:
        """Yield the entries in the log's format, with offsets that count from the first one's."""
        magic, append_time, codec, _ = self.settings
        is_kept = all(one.magic == magic and codec in (None, one.codec) for one in sent)
        if is_kept and not append_time:
            yield from (self._renumbered(one) for one in sent)
            return
        records = [record for one in sent for record in one.records]
        if append_time:
            records = [one._replace(timestamp=now_ms) for one in records]
        records = [one._replace(offset=at) for at, one in enumerate(records)]
        first = sent[0]
        codec = first.codec if codec is None else codec
        if magic == 2 and first.magic == 2:
            attributes = first.attributes | (8 if append_time else 0)
            producer = Producer(first.producer, first.epoch, first.sequence)
            yield record_sets.batch(records, codec=codec, attributes=attributes, producer=producer)
        else:
            yield from record_sets.entries(
                records, magic=magic, codec=codec, append_time=append_time
            )

    @staticmethod
    def _renumbered(one: Entry) -> Entry:
        """Return a wrapper with offsets without gaps; old producers may send any offsets."""
        if one.magic == 2 or not one.codec:
            return one
        if one.magic == 1 and one.last - one.base + 1 == len(one.records):
            return one
        records = [record._replace(offset=at) for at, record in enumerate(one.records)]
        return record_sets.wrapper(records, magic=one.magic, codec=one.codec)

    def _put(self, one: Entry) -> None:
        if one.magic == 0 and one.codec and one.base != self._inner_base(one):
            # The offsets within a wrapper of format v0 are absolute.
            records = [
                record._replace(offset=one.base + at) for at, record in enumerate(one.records)
            ]
            one = record_sets.wrapper(records, magic=0, codec=one.codec)
        self._entries.append(one)
        self._lasts.append(one.last)
        self.end = one.last + 1
        if one.producer != NO_PRODUCER and not one.is_control:
            state = self._producers.setdefault(one.producer, _ProducerState(one.epoch))
            state.epoch = one.epoch
            state.batches.append(one)
            if one.is_transactional:
                self._open.setdefault(one.producer, one.base)

    @staticmethod
    def _inner_base(one: Entry) -> int:
        return one.records[0].offset

    def _repeated(self, first: Entry) -> int | None:
        """Return the offset of a batch that the log has already; None if the batch is new.

        Raises KafkaFault if a batch of the producer is missing before it.
        """
        if first.producer == NO_PRODUCER:
            return None
        state = self._producers.get(first.producer)
        if state is None or first.epoch > state.epoch:
            return None
        if first.epoch < state.epoch:
            text = f"the producer's epoch is {state.epoch}, not {first.epoch}"
            raise KafkaFault(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        for one in state.batches:
            if one.sequence == first.sequence:
                return one.base
        if state.batches:
            before = state.batches[-1]
            expected = (before.sequence + before.last - before.base + 1) & 0x7FFFFFFF
            if first.sequence != expected:
                text = f"the sequence number is {first.sequence}, not {expected}"
                raise KafkaFault(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
        return None

    def end_transaction(self, producer: Producer, now_ms: int, *, commits: bool) -> None:
        """Append the marker that ends the producer's transaction."""
        marker = record_sets.marker(self.end, now_ms, producer, commits=commits)
        self._put(marker)
        first = self._open.pop(producer.id, None)
        if not commits and first is not None:
            self._aborted.append(AbortedRange(producer.id, first, marker.last))

    def cut(self, first: int) -> None:
        """Delete the messages before an offset, as retention does; -1 stands for the end."""
        self.start = max(self.start, self.end if first < 0 else min(first, self.end))
        gone = bisect_left(self._lasts, self.start)
        del self._entries[:gone], self._lasts[:gone]

    # ---- reading --------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, magic: int, until: int) -> Slice:
        """Return the entries from the one that contains `offset` up to `until`.

        At least one entry is returned if there is one. The first may begin before the offset.

        Args:
            max_bytes: the maximum size, in bytes.
            magic: the highest message format that the reader knows; newer entries are converted.
            until: the high watermark or the last stable offset.
        """
        data, codecs = bytearray(), set()
        at, last = bisect_left(self._lasts, offset), offset
        while at < len(self._entries) and self._entries[at].base < until:
            entry = self._entries[at]
            part = b"".join(one.data for one in record_sets.converted(entry, magic))
            if data and len(data) + len(part) > max_bytes:
                break
            data += part
            codecs.add(entry.codec)
            last = entry.last
            at += 1
        aborted = [one for one in self._aborted if one.last >= offset and one.first <= last]
        return Slice(bytes(data), frozenset(codecs), aborted)

    @property
    def size(self) -> int:
        """The number of bytes of the log."""
        return self.size_from(self.start, self.end)

    def size_from(self, offset: int, until: int) -> int:
        """Return the number of bytes of the entries from the one that contains `offset`."""
        first, end = bisect_left(self._lasts, offset), bisect_left(self._lasts, until)
        return sum(len(one.data) for one in self._entries[first:end])

    def at_time(self, time_ms: int) -> Record | None:
        """Return the first record whose timestamp is at least `time_ms`; None if there is none."""
        for entry in self._entries:
            if entry.newest >= time_ms:
                for record in entry.records:
                    if record.timestamp >= time_ms and record.offset >= self.start:
                        return record
        return None

    def newest(self) -> Record | None:
        """Return the first of the records with the highest timestamp; None if there is none."""
        records = [record for _, record in self.records()]
        return max(records, key=lambda one: one.timestamp, default=None)

    def records(self) -> Iterator[tuple[Entry, Record]]:
        """Yield all records with their entries, without markers."""
        for entry in self._entries:
            if not entry.is_control:
                yield from ((entry, one) for one in entry.records if one.offset >= self.start)

    def entry_at(self, offset: int) -> Entry:
        """Return the entry that contains an offset of the log."""
        return self._entries[bisect_right(self._lasts, offset - 1)]


class Logs:
    """The logs of all partitions, as `zkconsumer.sim.logs.Log` describes them."""

    def __init__(self, partitions: Mapping[TopicPartition, PartitionLog]) -> None:
        self._partitions = partitions

    def start(self, tp: TopicPartition) -> int:
        return self._partitions[tp].start

    def end(self, tp: TopicPartition) -> int:
        return self._partitions[tp].end

    def data(self, tp: TopicPartition) -> bytes:
        """Return a log as a broker stores it: its record sets, without compaction."""
        log = self._partitions[tp]
        return log.read(log.start, log.size, magic=log.settings.magic, until=log.end).data

    def message(self, tp: TopicPartition, offset: int) -> Message:
        entry = self._partitions[tp].entry_at(offset)
        record = next(one for one in entry.records if one.offset == offset)
        return message_of(tp, entry, record)


def message_of(tp: TopicPartition, entry: Entry, record: Record) -> Message:
    """Return a record as confluent-kafka's consumers return it."""
    kind = TIMESTAMP_LOG_APPEND_TIME if entry.has_append_time else TIMESTAMP_CREATE_TIME
    return Message(
        topic=tp.topic,
        partition=tp.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=(0, NO_TIME) if record.timestamp == NO_TIME else (kind, record.timestamp),
    )
