"""`poll_arrow` keeps the promises of `poll`, in columns and with each fetch engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from support.kafka.logs import REQUEST_S, producer
from support.kafka.streams import (
    ColumnLog,
    KafkaLog,
    Log,
    Reader,
    log_cases,
    opened,
    settings_for,
)
from support.wait import LIMIT_S

from zkconsumer.consumer.arrow_batches import SCHEMA_WITH_TOKEN
from zkconsumer.errors import ConnectorClosedError
from zkconsumer.kafka.columns.column_batches import pool_of
from zkconsumer.kafka.columns.column_fetcher import ColumnFetcher
from zkconsumer.kafka.columns.record_sets import plain_engine
from zkconsumer.sandbox import Sandbox


@pytest.fixture(params=log_cases("memory", "kafka", "columns"))
def log(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Log]:
    """A log of three empty partitions; `memory` and `kafka` return librdkafka's messages."""
    with opened(request, unique("arrow")) as log:
        yield log


@pytest.fixture
def reader(log: Log) -> Iterator[Reader]:
    one = Reader(log, connect_columns=log.columns if isinstance(log, ColumnLog) else None)
    yield one
    one.stream.close()


def polled(reader: Reader, count: int, *, most: int = 8000) -> list[pa.RecordBatch]:
    """Return batches with `count` messages in total, of which the last batch is unfinished."""
    found: list[pa.RecordBatch] = []
    deadline = time.monotonic() + LIMIT_S
    while sum(one.num_rows for one in found) < count:
        assert time.monotonic() < deadline
        one = reader.stream.poll_arrow(max_messages=most, timeout_s=0.2)
        assert one.schema == SCHEMA_WITH_TOKEN
        assert one.num_rows <= most
        one.validate(full=True)
        found += [one] if one.num_rows else []
    return found


def rows(batches: list[pa.RecordBatch], partition: int, name: str = "offset") -> list[object]:
    table = pa.Table.from_batches(batches).to_pylist()
    return [row[name] for row in table if row["partition"] == partition]


def test_columns_equal_messages(log: Log, reader: Reader) -> None:
    """Columns have the keys, values, positions, times and fencing tokens of the messages."""
    log.append_keyed(0, "k", "v")
    log.append_keyed(0, None, None)
    token = reader.grant(0, 0)
    found = pa.Table.from_batches(polled(reader, 2)).to_pylist()
    assert [(row["key"], row["value"]) for row in found] == [(b"k", b"v"), (None, None)]
    for offset, row in enumerate(found):
        assert (row["topic"], row["partition"], row["offset"]) == (log.topic, 0, offset)
        assert (row["token"], row["timestampType"]) == (token, 0)
        assert abs(row["timestamp"] - datetime.now(UTC)).total_seconds() < LIMIT_S


def test_a_batch_is_finished_when_the_next_is_asked_for(log: Log, reader: Reader) -> None:
    """A commit includes only the messages of finished batches, so not the last batch."""
    log.append(0, map(str, range(30)))
    reader.grant(0, 0)
    first = polled(reader, 1, most=10)
    count = first[0].num_rows
    assert (reader.finished(0), reader.delivered(0)) == (0, count)
    polled(reader, 1, most=10)
    assert reader.finished(0) == count


def test_no_message_is_lost_between_small_batches(log: Log, reader: Reader) -> None:
    """If `max_messages` cuts a batch, the next batch begins at the cut."""
    for partition in (0, 1):
        log.append(partition, map(str, range(50)))
        reader.grant(partition, 0)
    found = polled(reader, 100, most=7)
    for partition in (0, 1):
        assert rows(found, partition) == list(range(50))


def test_an_empty_batch(reader: Reader) -> None:
    """Without a message the batch is empty, but has all the columns."""
    reader.grant(0, 0)
    found = reader.stream.poll_arrow(timeout_s=0.05)
    assert (found.num_rows, found.schema) == (0, SCHEMA_WITH_TOKEN)


def test_no_message_of_a_withdrawn_partition_is_delivered(log: Log, reader: Reader) -> None:
    """A revoked partition stops at once; the other partition continues without a gap."""
    for partition in (0, 1):
        log.append(partition, map(str, range(500)))
        reader.grant(partition, 0)
    before = polled(reader, 1, most=10)
    reader.withdraw(0)
    after = polled(reader, 500 - len(rows(before, 1)), most=100)
    assert rows(after, 0) == []
    assert rows(before + after, 1) == list(range(500))


def test_pause_and_seek(log: Log, reader: Reader) -> None:
    """A paused partition delivers no message; after a seek the first offset is the one sought."""
    log.append(0, map(str, range(100)))
    reader.grant(0, 0)
    polled(reader, 1, most=10)
    reader.stream.pause([reader.tp(0)])
    assert reader.stream.poll_arrow(timeout_s=0.2).num_rows == 0
    reader.stream.resume([reader.tp(0)])
    reader.stream.seek(reader.tp(0), 60)
    assert rows(polled(reader, 40), 0) == list(range(60, 100))


def test_no_message_is_delivered_without_a_lease(log: Log, reader: Reader) -> None:
    """While the gate is shut no batch is delivered; afterwards no message is missing."""
    log.append(0, map(str, range(100)))
    reader.grant(0, 0)
    before = polled(reader, 1, most=10)
    reader.gate.shut()
    assert reader.stream.poll_arrow(timeout_s=0.2).num_rows == 0
    reader.gate.open(reader.gate.clock() + 3600)
    after = polled(reader, 100 - len(rows(before, 0)))
    assert rows(before + after, 0) == list(range(100))


def test_both_kinds_of_poll_may_alternate(log: Log, reader: Reader) -> None:
    """Messages left over by one kind of poll are delivered once by the other kind."""
    log.append(0, map(str, range(100)))
    reader.grant(0, 0)
    found = rows(polled(reader, 10, most=10), 0)
    found += [one.offset for one in reader.stream.poll(max_messages=10, timeout_s=LIMIT_S)]
    found += rows(polled(reader, 10, most=10), 0)
    found += [next(reader.stream).offset]
    found += rows(polled(reader, 100 - len(found)), 0)
    assert found == list(range(100))


def test_a_release_waits_for_the_batch(log: Log, reader: Reader) -> None:
    """A partition is released only after its last batch is finished."""
    log.append(0, map(str, range(100)))
    reader.grant(0, 0)
    polled(reader, 1, most=10)
    released: list[bool] = []
    reader.stream.ask_release([reader.tp(0)], lambda: released.append(True))
    assert not released
    assert reader.stream.poll_arrow(timeout_s=0.05).num_rows == 0
    assert released == [True]


def test_a_closed_stream_says_so(reader: Reader) -> None:
    """After the shutdown every call raises ConnectorClosedError."""
    reader.stream.close()
    for _ in range(2):
        with pytest.raises(ConnectorClosedError):
            reader.stream.poll_arrow(timeout_s=0.05)


def test_pandas_follows(log: Log, reader: Reader) -> None:
    """`to_pandas` of a batch has a row for each message."""
    log.append(0, ["a", "b"])
    reader.grant(0, 0)
    frame = pa.Table.from_batches(polled(reader, 2)).to_pandas()
    assert list(frame["value"]) == [b"a", b"b"]
    assert list(frame["offset"]) == [0, 1]


@pytest.mark.server
@pytest.mark.parametrize("kind", [KafkaLog, ColumnLog])
def test_a_time_that_columns_cannot_hold_is_no_time(
    kind: type[KafkaLog], sandbox: Sandbox, unique: Callable[[str], str]
) -> None:
    """Nanoseconds are null in columns; a message has the value."""
    log = kind(unique("nanoseconds"), sandbox)
    sandbox.create_topic(log.topic)
    one = producer(sandbox)
    millis, nanos = 1_790_000_000_000, 1_790_000_000_000_000_000
    for stamp in (millis, nanos):
        one.produce(log.topic, "x", partition=0, timestamp=stamp)
    assert one.flush(REQUEST_S) == 0
    reader = Reader(log, connect_columns=log.columns if isinstance(log, ColumnLog) else None)
    reader.grant(0, 0)
    messages = [next(reader.stream) for _ in range(2)]
    assert [one.timestamp for one in messages] == [millis, nanos]
    reader.stream.seek(log.tp(0), 0)
    found = rows(polled(reader, 2), 0, "timestamp")
    assert found == [datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC), None]
    reader.stream.close()


@pytest.mark.server
def test_a_stream_keeps_no_memory_of_a_dropped_batch(
    sandbox: Sandbox, unique: Callable[[str], str]
) -> None:
    """The memory of a batch is free when the program drops it, even while it is unfinished."""
    log = KafkaLog(unique("slabs"), sandbox)
    sandbox.create_topic(log.topic)
    log.append(0, ["v" * 1000] * 500)
    engine = plain_engine.__wrapped__()
    settings = settings_for(sandbox.bootstrap)
    reader = Reader(log, connect_columns=lambda: ColumnFetcher(settings, engine=engine))
    reader.grant(0, 0)
    assert sum(one.num_rows for one in polled(reader, 500)) == 500
    assert pool_of(engine).unused >= 1
    assert reader.finished(0) is not None and reader.delivered(0) == 500
    reader.stream.close()
