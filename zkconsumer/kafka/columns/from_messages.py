"""Messages as Arrow record batches, with the columns of Spark's Kafka connector.

No Python code runs per message: `map` calls unbound methods, values that are equal for a whole run
of messages are created once, and consecutive offsets are computed. This module imports pyarrow, so
Spark's executors import it only when they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from operator import attrgetter, itemgetter, methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from zkconsumer.kafka.fetcher import TIMESTAMP_NOT_AVAILABLE
from zkconsumer.protocol.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Message

Value: TypeAlias = Any  # Any: a value of a message; its column has its type

# A record batch is complete when it has this many messages or this many bytes. With smaller
# batches, Spark needs more time per row; larger ones exceed the processor's caches.
ROWS: Final = 8000
BYTES: Final = 1 << 20

# These types must equal `pyspark.sql.pandas.types.to_arrow_schema` of the connector's schema in
# time zone UTC, because Spark compares them for equality.
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "token": pa.int64(),
}

# Kafka's `TimestampType.id` is librdkafka's number minus one: -1 none, 0 create time, 1 append
# time.
_TYPE_ID: Final = -1

# One message in 16 is measured for the limit `BYTES`. Measuring every message would take 2 % of the
# time.
_SAMPLE: Final = 16

# These scalars are created once, because pyarrow inspects a plain number in each call, and this
# takes longer than the call itself.
_THOUSAND: Final = pa.scalar(1000, pa.int64())
_NULL: Final = pa.scalar(None, pa.int64())

# The maximum time, in ms, that fits into 64 bits as microseconds. `parsers` has the same number;
# importing it would load numba.
_MAX_TIME: Final = pa.scalar(((1 << 63) - 1) // 1000, pa.int64())

_offset: Final[Callable[[Message], Value]] = methodcaller("offset")
_first: Final[Callable[[tuple[int, int]], int]] = itemgetter(0)
_second: Final[Callable[[tuple[int, int]], int]] = itemgetter(1)


class _Rows:
    """The values of one record batch's messages that its columns need."""

    def __init__(self, columns: Sequence[str], tokens: Mapping[TopicPartition, int | None]) -> None:
        self.count = self.size = 0
        self._columns, self._tokens = columns, tokens
        # Keys, values, headers, and pairs of timestamp type and timestamp in ms. Each list is
        # filled only if a column needs it.
        self._taken: dict[str, list[Value]] = {_FROM[name]: [] for name in columns if name in _FROM}
        # Runs of messages of one partition: the first offset if the offsets are consecutive,
        # otherwise all offsets.
        self._runs: list[tuple[TopicPartition, int, int | list[int]]] = []

    def add(self, tp: TopicPartition, messages: Sequence[Message]) -> None:
        """Add a run of messages of one partition. The run is in order and not empty."""
        for name, into in self._taken.items():
            into.extend(map(_TAKEN[name](type(messages[0])), messages))
        count, first = len(messages), _offset(messages[0])
        self.count += count
        self.size += _SAMPLE * sum(map(len, messages[::_SAMPLE]))
        if _offset(messages[-1]) - first + 1 != count:
            self._runs.append((tp, count, list(map(_offset, messages))))
            return
        if self._runs:
            last, number, start = self._runs[-1]
            if last == tp and isinstance(start, int) and start + number == first:
                self._runs[-1] = (tp, number + count, start)
                return
        self._runs.append((tp, count, first))

    def build(self, schema: pa.Schema) -> pa.RecordBatch:
        makers = [_MAKERS[name] for name in self._columns]
        return pa.RecordBatch.from_arrays([make(self) for make in makers], schema=schema)

    def key(self) -> pa.Array:
        return pa.array(self._taken["key"], pa.binary())

    def value(self) -> pa.Array:
        return pa.array(self._taken["value"], pa.binary())

    def topic(self) -> pa.Array:
        return _concatenated(_repeated(tp.topic, pa.string(), count) for tp, count, _ in self._runs)

    def partition(self) -> pa.Array:
        return _concatenated(
            _repeated(tp.partition, pa.int32(), count) for tp, count, _ in self._runs
        )

    def offset(self) -> pa.Array:
        return _concatenated(
            pc.add(_zero_up_to(count), pa.scalar(start, pa.int64()))
            if isinstance(start, int)
            else pa.array(start, pa.int64())
            for _, count, start in self._runs
        )

    def headers(self) -> pa.Array:
        return header_column(self._taken["headers"])

    def token(self) -> pa.Array:
        return _concatenated(
            _repeated(self._tokens.get(tp), pa.int64(), count) for tp, count, _ in self._runs
        )

    def timestamp(self) -> pa.Array:
        stamps = self._taken["stamp"]
        millis = pa.array(list(map(_second, stamps)), pa.int64())
        if TIMESTAMP_NOT_AVAILABLE in self._types:
            known = pa.array([one != TIMESTAMP_NOT_AVAILABLE for one, _ in stamps])
            millis = pc.if_else(known, millis, _NULL)
        try:
            micros = pc.multiply_checked(millis, _THOUSAND)
        except pa.ArrowInvalid:  # as the columnar reader, return null for too large times
            fits = pc.less_equal(pc.abs(millis), _MAX_TIME)
            micros = pc.multiply(pc.if_else(fits, millis, _NULL), _THOUSAND)
        return micros.view(TYPES["timestamp"])

    def timestamp_type(self) -> pa.Array:
        if len(self._types) == 1:
            (only,) = self._types
            return _repeated(only + _TYPE_ID, pa.int32(), self.count)
        return pa.array([one + _TYPE_ID for one, _ in self._taken["stamp"]], pa.int32())

    @cached_property
    def _types(self) -> set[int]:
        """Return the column of timestamp types.

        The type is usually the same for all messages. The type changes only with the topic's
        configuration or record format.
        """
        return set(map(_first, self._taken["stamp"]))


# The class of the messages -> its method: calling a method of the class is faster than looking it
# up for each message.
_TAKEN: Final[dict[str, Callable[[type[Message]], Callable[[Message], Value]]]] = {
    "key": attrgetter("key"),
    "value": attrgetter("value"),
    "headers": attrgetter("headers"),
    "stamp": attrgetter("timestamp"),
}
_FROM: Final = {
    "key": "key",
    "value": "value",
    "headers": "headers",
    "timestamp": "stamp",
    "timestampType": "stamp",
}
_MAKERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "key": _Rows.key,
    "value": _Rows.value,
    "topic": _Rows.topic,
    "partition": _Rows.partition,
    "offset": _Rows.offset,
    "timestamp": _Rows.timestamp,
    "timestampType": _Rows.timestamp_type,
    "headers": _Rows.headers,
    "token": _Rows.token,
}


def header_column(records: Iterable[Sequence[tuple[str, bytes | None]] | None]) -> pa.Array:
    """Return each record's headers; null if it has none (Spark: `KafkaRecordToRowConverter`)."""
    rows = [
        [{"key": key, "value": value} for key, value in one] if one else None for one in records
    ]
    return pa.array(rows, TYPES["headers"])


def record_batches(
    runs: Iterable[tuple[TopicPartition, Sequence[Message]]],
    columns: Sequence[str],
    tokens: Mapping[TopicPartition, int | None] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Yield the messages as batches of about `ROWS` rows or `BYTES` bytes, with these columns.

    `tokens` are the partitions' fencing tokens, for the column `token`.
    """
    schema = pa.schema([(name, TYPES[name]) for name in columns])
    rows = _Rows(columns, tokens)
    for tp, messages in runs:
        rows.add(tp, messages)
        if rows.count >= ROWS or rows.size >= BYTES:
            yield rows.build(schema)
            rows = _Rows(columns, tokens)
    if rows.count:
        yield rows.build(schema)


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


@cache
def _up_to(power: int) -> pa.Array:
    return pa.array(range(1 << power), pa.int64())


def _zero_up_to(count: int) -> pa.Array:
    """Return the numbers from 0 to `count` - 1."""
    return _up_to(max(14, count.bit_length())).slice(0, count)


def _concatenated(arrays: Iterable[pa.Array]) -> pa.Array:
    some = list(arrays)
    return some[0] if len(some) == 1 else pa.concat_arrays(some)
