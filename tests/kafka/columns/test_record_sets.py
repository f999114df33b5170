"""Record sets of every format give the rows that were written; malformed sets give errors."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kafka.encoded_records import CODECS, Record, batch, message, message_set, varint

from zkconsumer.kafka.columns import codecs, parsers
from zkconsumer.kafka.columns.column_batches import SCHEMA, batches
from zkconsumer.kafka.columns.record_sets import (
    ROWS,
    Batches,
    ParserEngine,
    RecordSet,
    compiled_engine,
    plain_engine,
)
from zkconsumer.kafka.columns.records import CorruptError, headers_of
from zkconsumer.kafka.columns.responses import response_of
from zkconsumer.protocol.model import TopicPartition

TP = TopicPartition("topic", 3)
OLD_CODECS = ("none", "gzip", "snappy", "xerial", "lz4", "lz4-0.8")
COMPILED = compiled_engine()
PLAIN = plain_engine()
ENGINES = {"compiled": COMPILED, "plain": PLAIN}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> ParserEngine:
    return ENGINES[request.param]


Row = tuple[int, bytes | None, bytes | None, int | None, int]


def rows_of(data: bytes, engine: ParserEngine, **wanted: int) -> tuple[list[Row], str]:
    """Return the rows of a record set, and the text of the error that ends them.

    Check that both forms of a record set have the same rows.
    """
    rows, error = column_rows(data, engine, **wanted)
    assert located_rows(data, engine, **wanted) == (rows, error)
    return rows, error


def located_rows(data: bytes, engine: ParserEngine, **wanted: int) -> tuple[list[Row], str]:
    """Return the rows of the runs that refer to the bytes of a record set, as columns have them."""
    found: list[Row] = []
    try:
        for run in RecordSet(TP, response_of(data), engine, **wanted).records():
            for one in range(len(run)):
                kind, time = run.timestamp(one)
                is_null = kind == 0 or time is None or abs(time) > parsers.MAX_TIME
                known = None if is_null else time
                found.append((run.offset(one), run.key(one), run.value(one), known, kind - 1))
    except CorruptError as error:
        return found, str(error)
    return found, ""


def column_rows(data: bytes, engine: ParserEngine, **wanted: int) -> tuple[list[Row], str]:
    """Return the rows of the record batches of a record set."""
    found: list[Row] = []
    try:
        for one in batches(RecordSet(TP, response_of(data), engine, **wanted)):
            one.validate(full=True)
            assert one.schema == SCHEMA
            assert set(one["topic"].to_pylist()) == {"topic"}
            assert set(one["partition"].to_pylist()) == {3}
            times = one["timestamp"].cast(pa.int64()).to_pylist()
            found += zip(
                one["offset"].to_pylist(),
                one["key"].to_pylist(),
                one["value"].to_pylist(),
                [None if time is None else time // 1000 for time in times],
                one["timestampType"].to_pylist(),
                strict=True,
            )
    except CorruptError as error:
        return found, str(error)
    return found, ""


def expected(records: Iterable[Record], *, magic: int, append_time: int | None = None) -> list[Row]:
    if magic == 0:
        return [(one.offset, one.key, one.value, None, -1) for one in records]
    if append_time is not None:
        return [(one.offset, one.key, one.value, append_time, 1) for one in records]
    return [(one.offset, one.key, one.value, one.time, 0) for one in records]


SOME_BYTES = st.none() | st.binary(max_size=40)
TIMES = st.integers(1, 1 << 50)


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    offset = draw(st.integers(0, 1 << 40))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        found.append(Record(offset, draw(SOME_BYTES), draw(SOME_BYTES), draw(TIMES)))
        offset += draw(st.integers(1, 5))
    return found


@settings(max_examples=60)
@given(some_records(), st.sampled_from(list(CODECS)), st.none() | TIMES)
def test_a_batch_contains_what_was_written(
    records: list[Record], codec: str, append_time: int | None
) -> None:
    """Both engines read format v2 alike, with each codec and both types of timestamps."""
    data = batch(records, codec=codec, append_time=append_time)
    for engine in (COMPILED, PLAIN):
        found = rows_of(data, engine)
        assert found == (expected(records, magic=2, append_time=append_time), "")


@settings(max_examples=60)
@given(some_records(), st.sampled_from((0, 1)), st.sampled_from(OLD_CODECS), st.none() | TIMES)
def test_messages_of_old_formats(
    records: list[Record], magic: int, codec: str, append_time: int | None
) -> None:
    """Sets in formats v0 and v1 give the rows that were written, with each codec."""
    data = message_set(records, magic=magic, codec=codec, append_time=append_time)
    for engine in (COMPILED, PLAIN):
        found = rows_of(data, engine)
        assert found == (expected(records, magic=magic, append_time=append_time), "")


@cache
def corpus() -> dict[str, tuple[bytes, list[Record]]]:
    """A record set of each format, and its records."""
    records = [
        Record(10, b"k", b"value" * 5, 1000),
        Record(11, None, b"", 1001),
        Record(13, b"", None, 999, (("h", b"1"), ("h", None))),
    ]
    found = {f"v2-{codec}": batch(records, codec=codec) for codec in CODECS}
    for magic in (0, 1):
        for codec in OLD_CODECS:
            found[f"v{magic}-{codec}"] = message_set(records, magic=magic, codec=codec)
    return {name: (data, records) for name, data in found.items()}


def magic_of(name: str) -> int:
    return int(name[1])


@pytest.mark.parametrize("name", list(corpus()))
def test_an_incomplete_batch_is_left_for_the_next_fetch(name: str, engine: ParserEngine) -> None:
    """A set that is cut at any byte gives its complete batches, and no error."""
    data, records = corpus()[name]
    rows = expected(records, magic=magic_of(name))
    before = batch([Record(1, None, b"first", 5)])
    first = (1, None, b"first", 5, 0)
    # Each uncompressed message of an old format is complete by itself.
    ends = [*beginnings(data)[1:], len(data)]
    for size in range(len(data)):
        complete = rows[: bisect_right(ends, size)]
        assert rows_of(before + data[:size], engine) == ([first, *complete], "")


@pytest.mark.parametrize("name", list(corpus()))
def test_a_flipped_bit_gives_no_wrong_row(name: str) -> None:
    """In both engines a flipped bit changes only offsets, or the rows end before its batch."""
    # In format v2 no checksum covers an offset, a size, or the leader epoch. In the old formats
    # each uncompressed message has a checksum of its own.
    data, records = corpus()[name]
    rows = expected(records, magic=magic_of(name))
    begins = beginnings(data)
    assert len(begins) == (len(rows) if name in ("v0-none", "v1-none") else 1)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        found, error = rows_of(bytes(damaged), COMPILED)
        assert (found, error) == rows_of(bytes(damaged), PLAIN)
        number = bisect_right(begins, at) - 1
        field = at - begins[number]
        if field < 8 and not error:
            assert [row[1:] for row in found] == [row[1:] for row in rows]
        elif magic_of(name) == 2 and field in range(12, 16):
            assert (found, error) == (rows, "")
        else:
            assert found == rows[:number]
            assert error or field in range(8, 12)


def beginnings(data: bytes) -> list[int]:
    """Return the start positions of the batches, or of the messages of an old format."""
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_random_bytes_with_right_checksums(kind: int) -> None:
    """If damage has a correct checksum (a length of 2^31, for example), both engines agree."""
    chance = random.Random(kind)
    records = [Record(n, b"key", b"value", 5) for n in range(3)]
    sizes = [varint(n) for n in (-2, -1, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 62)]
    sizes += [struct.pack(">i", n) for n in (-(1 << 31), -2, (1 << 31) - 1, 1 << 20)]
    errors = 0
    for _ in range(400):
        data = bytearray(batch(records) if kind == 2 else message_set(records, magic=kind))
        begin = parsers.HEADER_V2 if kind == 2 else 0
        patch = chance.choice([*sizes, chance.randbytes(1), chance.randbytes(9)])
        at = chance.randrange(begin, len(data))
        data[at : at + len(patch)] = patch[: len(data) - at]
        outcome = unchecked(bytes(data), COMPILED)
        assert outcome == unchecked(bytes(data), PLAIN)
        errors += outcome[1] != parsers.DONE
    assert errors > 100


def unchecked(data: bytes, engine: ParserEngine) -> tuple[list[int], int]:
    """Parse without comparing checksums; return the offsets and the status."""
    table = engine.longs(bytearray(8 * parsers.WIDTH * 20))
    found = engine.longs(bytearray(8 * parsers.SCANNED))
    engine.parsers.scan(engine.octets(data), 0, len(data), table, found)
    rows = int(found[parsers.ROWS_FOUND])
    for row in range(rows):
        table[row * parsers.WIDTH + parsers.CHECKED] = -1
    cursor = engine.longs(bytearray(8 * parsers.CURSOR))
    cursor[parsers.AT] = -1
    out = columns(engine, 50, 1000)
    status = engine.parsers.parse(engine.octets(data), table, rows, cursor, 0, 1 << 61, out)
    status = status or int(found[parsers.STATUS])
    return list(out.offsets[: cursor[parsers.FILLED]]), status


def columns(engine: ParserEngine, rows: int, size: int) -> parsers.Columns:
    """Return buffers filled with zeros for some rows."""
    kinds = ("ints", "octets", "octets") * 2 + (
        "longs",
        "longs",
        "octets",
        "ints",
        "ints",
        "octets",
    )
    sizes = [4 * rows + 4, size, rows] * 2 + [8 * rows, 8 * rows, rows, 4 * rows, 0, 0]
    made = zip(kinds, sizes, strict=True)
    return parsers.Columns(*(getattr(engine, kind)(bytearray(size)) for kind, size in made))


def test_a_compressed_batch_that_does_not_decompress(engine: ParserEngine) -> None:
    """Damage under a correct checksum gives the rows before it, then an error with the offset."""
    good = batch([Record(0, None, b"a", 7)])
    bad = message(Record(5, None, b"no gzip at all", 7), magic=1, attributes=1)
    found, error = rows_of(good + bad, engine)
    assert found == [(0, None, b"a", 7, 0)]
    assert "before offset 6 cannot be decompressed" in error


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.LZ4, codecs.ZSTD])
def test_malformed_batches_cost_no_memory(codec: int) -> None:
    """A batch that no memory is large enough for is refused, and fills no memory before."""
    data = b"\x04\x22\x4d\x18\x60\x40\x82" + b"no frame" if codec == codecs.LZ4 else b"nothing"
    tracemalloc.start()
    try:
        with pytest.raises(codecs.CodecError):
            codecs.decompress(codec, memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_wrong_checksum(engine: ParserEngine) -> None:
    """The rows before a damaged batch are delivered; the error names the next offset."""
    good, bad = batch([Record(0, None, b"a", 7)]), bytearray(batch([Record(1, None, b"b", 7)]))
    bad[-2] ^= 1
    found, error = rows_of(good + bytes(bad), engine)
    assert found == [(0, None, b"a", 7, 0)]
    assert error == "the batch before offset 2 has a wrong checksum"


def test_the_sizes_of_batches(engine: ParserEngine) -> None:
    """`sizes` gives the bytes per offset, and the size of a batch if all batches are equal."""
    equal = [batch([Record(10 * n + m, None, bytes(100), 5) for m in range(10)]) for n in range(3)]
    size = len(equal[0])
    found = RecordSet(TP, response_of(b"".join(equal) + equal[0][:50]), engine, first=7)
    assert found.sizes() == Batches(size / 10, size)
    other = batch([Record(30, None, bytes(100), 5)])
    unequal = RecordSet(TP, response_of(b"".join([*equal, other])), engine)
    assert unequal.sizes() == Batches((3 * size + len(other)) / 31, 0)
    old = message_set([Record(n, None, bytes(100)) for n in range(4)], magic=0)
    assert RecordSet(TP, response_of(old), engine).sizes() == Batches(len(old) / 4, 0)


def test_control_batches_are_holes(engine: ParserEngine) -> None:
    """Transaction markers give no rows, and the next fetch begins after them."""
    marker = batch([Record(1, b"\0\0\0\1", b"\0\0\0\0\0\0", 7)], is_control=True)
    data = batch([Record(0, None, b"a", 7)]) + marker
    assert rows_of(data, engine) == ([(0, None, b"a", 7, 0)], "")
    assert RecordSet(TP, response_of(data), engine).next_offset == 2


def test_nested_compressed_sets(engine: ParserEngine) -> None:
    """In nested wrappers of v1, offsets are relative to the next outer wrapper."""
    records = [Record(n, None, b"%d" % n, 9) for n in range(20, 26)]
    inner = [message_set(records[at : at + 3], magic=1, codec="gzip") for at in (0, 3)]
    # In the outer set, each wrapper has the relative offset of its last record.
    moved = [struct.pack(">q", at) + data[8:] for at, data in zip((2, 5), inner, strict=True)]
    outer = Record(25, None, gzip.compress(b"".join(moved)), 9)
    data = message(outer, magic=1, attributes=1)
    assert rows_of(data, engine) == (expected(records, magic=1), "")


def test_formats_may_follow_one_another(engine: ParserEngine) -> None:
    """If the format of a log was changed, one response has batches of all formats."""
    parts = [
        message_set([Record(0, None, b"a"), Record(1, None, b"b")], magic=0),
        message_set([Record(2, None, b"c", 5)], magic=1, codec="lz4"),
        message_set([Record(3, None, b"d", 5)], magic=1),
        batch([Record(4, None, b"e", 6)], codec="zstd"),
        batch([Record(5, None, b"f", 6)]),
    ]
    found, error = rows_of(b"".join(parts), engine)
    assert not error
    assert [(offset, value) for offset, _, value, _, _ in found] == list(
        enumerate([b"a", b"b", b"c", b"d", b"e", b"f"])
    )
    assert RecordSet(TP, response_of(b"".join(parts)), engine).next_offset == 6


def test_only_the_wanted_offsets(engine: ParserEngine) -> None:
    """Within a batch, records before `first` and from `until` on are skipped."""
    records = [Record(n, None, b"%d" % n, 5) for n in range(10)]
    for data in (batch(records), message_set(records, magic=0), message_set(records, magic=1)):
        found, _ = rows_of(data, engine, first=3, until=7)
        assert [row[0] for row in found] == [3, 4, 5, 6]


def test_headers_can_be_returned(engine: ParserEngine) -> None:
    """Headers are returned in their order, with repeated names and null values."""
    headers = (("a", b"1"), ("b", None), ("a", b""))
    data = batch([Record(0, None, b"v", 5, headers), Record(1, None, b"w", 5)])
    (found,) = batches(RecordSet(TP, response_of(data), engine), with_headers=True)
    assert [headers_of(one) for one in found["headers"].to_pylist()] == [list(headers), []]
    (run,) = RecordSet(TP, response_of(data), engine).records()
    assert [run.headers(number) for number in range(2)] == [list(headers), []]


def test_large_sets_come_in_several_batches(engine: ParserEngine) -> None:
    """A record batch has at most `ROWS` rows or 2 MiB, or a single larger message."""
    many = [Record(n, b"k", b"v", 5) for n in range(ROWS + 1000)]
    large = [Record(ROWS + 1000 + n, None, bytes([n]) * 700_000, 5) for n in range(3)]
    huge = [Record(ROWS + 1003, b"K" * 3_000_000, bytes(4_000_000), 5)]
    data = b"".join(map(batch, (many, large, huge)))
    found = list(batches(RecordSet(TP, response_of(data), engine)))
    assert [one.num_rows for one in found][:1] == [ROWS]
    assert sum(one.num_rows for one in found) == ROWS + 1004
    assert found[-1]["key"].to_pylist() == [b"K" * 3_000_000]
    assert all(one.nbytes < 2 << 20 for one in found[:-1])
    offsets = [offset for one in found for offset in one["offset"].to_pylist()]
    assert offsets == list(range(ROWS + 1004))


def test_small_batches_keep_small_buffers(engine: ParserEngine) -> None:
    """The buffers of a small batch are not much larger than its rows."""
    records = [Record(n, None, b"v" * 10, 5) for n in range(100)]
    data = batch(records, codec="gzip")
    (found,) = batches(RecordSet(TP, response_of(data), engine))
    assert found.get_total_buffer_size() < 20_000


def test_times_that_microseconds_cannot_hold_are_null(engine: ParserEngine) -> None:
    """If a time exceeds the range of microseconds, the time is null; the record is delivered."""
    data = batch([Record(0, None, b"a", 0), Record(1, None, b"b", (1 << 62) + 5)])
    found, error = rows_of(data, engine)
    assert not error
    assert [row[3] for row in found] == [0, None]


def test_a_time_is_exact_although_another_one_does_not_fit(engine: ParserEngine) -> None:
    """A time of milliseconds is exact even if the batch begins with a time of nanoseconds."""
    times = [1_790_000_000_000_000_000, 1_790_000_000_000, 1_790_000_000_000_000_000 - 5]
    data = batch([Record(at, None, b"a", time) for at, time in enumerate(times)])
    found, error = rows_of(data, engine)
    assert not error
    assert [row[3] for row in found] == [None, 1_790_000_000_000, None]


def test_a_timestamp_is_a_time_in_utc(engine: ParserEngine) -> None:
    """The column has microseconds in UTC, as in Spark's Kafka connector."""
    data = batch([Record(0, None, b"a", 1_500_000_000_123)])
    (found,) = batches(RecordSet(TP, response_of(data), engine))
    when = datetime(2017, 7, 14, 2, 40, 0, 123_000, tzinfo=UTC)
    assert found["timestamp"].to_pylist() == [when]
