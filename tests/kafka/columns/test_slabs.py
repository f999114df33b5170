"""A memory slab is reused once no object refers to it, and not earlier."""

from __future__ import annotations

import multiprocessing
import os

import pyarrow as pa
import pytest
from support.kafka.encoded_records import Record, batch
from support.wait import LIMIT_S

from zkconsumer.kafka.columns.column_batches import batches
from zkconsumer.kafka.columns.record_sets import (
    ParserEngine,
    RecordSet,
    compiled_engine,
    plain_engine,
)
from zkconsumer.kafka.columns.responses import response_of
from zkconsumer.kafka.columns.slabs import SlabPool
from zkconsumer.protocol.model import TopicPartition

TP = TopicPartition("topic", 3)


class Reader:
    """An engine with its own pool of slabs."""

    def __init__(self, engine: ParserEngine) -> None:
        self.engine = engine
        self.pool = SlabPool((engine.octets, engine.ints, engine.longs), 100, 1 << 20)

    def read(self, records: list[Record]) -> pa.RecordBatch:
        """Return the record batch of these records."""
        found = RecordSet(TP, response_of(batch(records)), self.engine)
        (one,) = batches(found, pool=self.pool)
        return one

    def large(self, fill: int) -> pa.RecordBatch:
        """Return a record batch of two large values; it stays in its slab."""
        return self.read([Record(n, b"k", bytes([fill]) * 200_000, 5) for n in range(2)])


@pytest.fixture(params=[compiled_engine, plain_engine])
def reader(request: pytest.FixtureRequest) -> Reader:
    """A reader with each engine."""
    return Reader(request.param())


def address(found: pa.Array) -> int:
    return int(found.buffers()[2].address)


def test_the_memory_of_a_dropped_batch_is_used_again(reader: Reader) -> None:
    """The next batch uses the memory of a batch that was dropped, and has its own rows."""
    first = reader.large(1)
    before = address(first["value"])
    del first
    second = reader.large(2)
    assert address(second["value"]) == before
    second.validate(full=True)
    assert second["value"].to_pylist() == [bytes([2]) * 200_000] * 2


def test_one_column_keeps_the_memory(reader: Reader) -> None:
    """While a column or a slice of a batch exists, later batches do not change it."""
    kept = reader.large(1)["value"][1:]
    others = [reader.large(fill) for fill in (2, 3)]
    assert kept.to_pylist() == [bytes([1]) * 200_000]
    assert len({address(one) for one in (kept, *(one["value"] for one in others))}) == 3


def test_a_child_process_has_its_own_memory(reader: Reader) -> None:
    """After a fork, batches of the child process do not change those of the parent."""
    kept = [reader.large(1)]

    def child() -> None:
        before = address(kept.pop()["value"])
        second = reader.large(2)
        os._exit(0 if address(second["value"]) == before else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(LIMIT_S)
    process.kill()  # Only a child that hangs is still alive.
    process.join(LIMIT_S)
    assert process.exitcode == 0
    assert kept[0]["value"].to_pylist() == [bytes([1]) * 200_000] * 2


def test_a_small_batch_keeps_no_slab(reader: Reader) -> None:
    """A batch of a few rows is copied out of its slab, which is reused at once."""
    small = [reader.read([Record(0, b"k", b"v", 5)]) for _ in range(3)]
    large = [reader.large(1), reader.large(2)]
    for one in (*small, *large):
        one.validate(full=True)
    assert all(one["value"].to_pylist() == [b"v"] for one in small)
    assert all(one.get_total_buffer_size() < 1000 for one in small)


def test_a_large_record_gets_memory_of_its_size(reader: Reader) -> None:
    """A record that is larger than a slab is read, and its memory is not kept."""
    found = reader.read([Record(0, b"K" * 1_500_000, b"V" * 3_000_000, 5)])
    found.validate(full=True)
    assert (len(found["key"][0].as_py()), len(found["value"][0].as_py())) == (1_500_000, 3_000_000)
    del found
    assert reader.pool.unused == 1
