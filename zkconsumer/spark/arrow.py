"""Messages as Arrow record batches, in the columns of Spark's Kafka connector.

Nothing is done per message in Python: unbound methods go through `map`, what is the same for a
whole run of messages is made once, and offsets are computed where they have no holes. Imports
pyarrow, so executors import this module only when they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from zkconsumer.core.model import TopicPartition

# A batch is passed on with so many messages, or as soon as it has so many bytes: fewer cost Spark
# more per row, more cost this process its caches.
ROWS: Final = 8000
BYTES: Final = 1 << 20

# `pyspark.sql.pandas.types.to_arrow_schema` of the connector's schema, in time zone UTC: Spark
# compares for equality.
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}

# Kafka's `TimestampType.id` is one less than librdkafka's number: none -1, created 0, appended 1.
_TYPE_ID: Final = -1

# Offsets of a run are a slice of these, and the first offset on top.
_COUNT: Final = pa.array(range(ROWS), pa.int64())

# Made once: as plain numbers they would be inspected with each call, which takes longer than the
# call.
_THOUSAND: Final = pa.scalar(1000, pa.int64())
_NULL: Final = pa.scalar(None, pa.int64())

_key: Final[Callable[[Message], Any]] = Message.key
_value: Final[Callable[[Message], Any]] = Message.value
_offset: Final[Callable[[Message], Any]] = Message.offset
_timestamp: Final[Callable[[Message], Any]] = Message.timestamp
_first: Final[Callable[[tuple[int, int]], int]] = itemgetter(0)
_second: Final[Callable[[tuple[int, int]], int]] = itemgetter(1)


class Run:
    """Messages of one partition, in order; not empty, and not more than `ROWS`."""

    def __init__(self, tp: TopicPartition, messages: Sequence[Message]) -> None:
        self.tp = tp
        self.messages = messages

    def key(self) -> pa.Array:
        return pa.array(list(map(_key, self.messages)), pa.binary())

    def value(self) -> pa.Array:
        return pa.array(list(map(_value, self.messages)), pa.binary())

    def topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.tp.topic, pa.string()), len(self.messages))

    def partition(self) -> pa.Array:
        return pa.repeat(pa.scalar(self.tp.partition, pa.int32()), len(self.messages))

    def offset(self) -> pa.Array:
        size, first = len(self.messages), _offset(self.messages[0])
        if _offset(self.messages[-1]) - first + 1 == size:
            return pc.add(_COUNT.slice(0, size), pa.scalar(first, pa.int64()))
        return pa.array(list(map(_offset, self.messages)), pa.int64())

    @cached_property
    def _stamps(self) -> list[tuple[int, int]]:
        """Of each message librdkafka's type of its timestamp, and the timestamp in ms."""
        return list(map(_timestamp, self.messages))

    @cached_property
    def _stamp_types(self) -> set[int]:
        """Usually one: it changes when the topic's configuration or the record format does."""
        return set(map(_first, self._stamps))

    def timestamp(self) -> pa.Array:
        millis = pa.array(list(map(_second, self._stamps)), pa.int64())
        if TIMESTAMP_NOT_AVAILABLE in self._stamp_types:
            known = pa.array([one != TIMESTAMP_NOT_AVAILABLE for one, _ in self._stamps])
            millis = pc.if_else(known, millis, _NULL)
        return pc.multiply(millis, _THOUSAND).view(TYPES["timestamp"])

    def timestamp_type(self) -> pa.Array:
        types = self._stamp_types
        if len(types) == 1:
            (only,) = types
            return pa.repeat(pa.scalar(only + _TYPE_ID, pa.int32()), len(self.messages))
        return pa.array([one + _TYPE_ID for one, _ in self._stamps], pa.int32())


_MAKERS: Final[dict[str, Callable[[Run], pa.Array]]] = {
    "key": Run.key,
    "value": Run.value,
    "topic": Run.topic,
    "partition": Run.partition,
    "offset": Run.offset,
    "timestamp": Run.timestamp,
    "timestampType": Run.timestamp_type,
}


def record_batches(runs: Iterable[Run], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The runs as batches of about `ROWS` rows or `BYTES`, with these columns in this order."""
    schema = pa.schema([(name, TYPES[name]) for name in columns])
    makers = [_MAKERS[name] for name in columns]
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for run in runs:
        waiting.append(pa.RecordBatch.from_arrays([make(run) for make in makers], schema=schema))
        rows += len(run.messages)
        size += waiting[-1].nbytes
        if rows >= ROWS or size >= BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
