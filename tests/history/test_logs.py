"""Reading transaction logs: both decoders, the ends of files, damage, and growing files."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tracemalloc
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from support.zk.history_logs import (
    HEADER,
    LogWriter,
    changed,
    created,
    every_kind,
    multi,
    number,
    rows_of,
    sized,
    transaction,
)

from zkconsumer.errors import DamagedFileError, HistoryError
from zkconsumer.history import transactions as tx
from zkconsumer.history.columns import ColumnDecoder, to_batch, to_tuples
from zkconsumer.history.logs import End, LogReader, LogSource
from zkconsumer.history.transactions import Row

FAST = ColumnDecoder()


def source(content: bytes, name: str = "log.1") -> LogSource:
    return LogSource(name, lambda: io.BytesIO(content), len(content))


def read(content: bytes, fast: ColumnDecoder | None = None) -> tuple[list[Row], object]:
    """Return the rows and the log's end: an End, or the offset and the text of the damage."""
    reader = LogReader(source(content), fast)
    rows: list[Row] = []
    try:
        for batch in reader.batches():
            rows += batch.rows
    except DamagedFileError as error:
        return rows, (error.offset, error.what)
    return rows, reader.end


def both(content: bytes) -> tuple[list[Row], object]:
    """Read with both decoders, which must agree."""
    plain, fast = read(content), read(content, FAST)
    assert plain == fast
    return plain


# ---- what a log holds ---------------------------------------------------------------------------


def test_every_kind() -> None:
    """Both decoders read each type of transaction alike, with and without a digest."""
    log = every_kind()
    rows, end = both(log.content())
    assert end is End.COMPLETE
    assert {row.kind for row in rows} == set(tx.KINDS)
    assert [row.zxid for row in rows] == sorted(row.zxid for row in rows)
    assert len({row.zxid for row in rows}) == log.zxid


def test_a_failed_multi_is_one_row() -> None:
    """A failed multi, which had no effect, is one row with the error of the part that failed."""
    log = LogWriter()
    failed = [(tx.CREATE, created("/x")), (tx.ERROR, number(-103)), (tx.ERROR, number(-2))]
    log.add(tx.MULTI, multi(*failed))
    (row,), _ = both(log.content())
    assert (row.kind, row.part, row.path, row.number) == (tx.MULTI, -1, None, -103)


def test_a_failed_multi_that_was_applied_before_it_was_written() -> None:
    """A failed multi is one row, even if parts of type ERROR contain the operations' records."""
    # A killed leader of ZooKeeper 3.8.4 wrote this into its log after it had caught up with the new
    # leader.
    logs = []
    for check, change in ((tx.CHECK, tx.SET_DATA), (tx.ERROR, tx.ERROR)):
        log = LogWriter()
        parts = [(check, sized("/x") + number(1)), (tx.ERROR, number(-103)), (tx.ERROR, number(-2))]
        log.add(tx.MULTI, multi(*parts))
        log.add(tx.MULTI, multi((change, changed("/x", b"1")), (tx.ERROR, number(-2))) + bytes(12))
        logs.append(both(log.content()))
    assert logs[0] == logs[1]
    assert [row.number for row in logs[0][0]] == [-103, -2]


def test_a_multi_has_a_row_per_part() -> None:
    """The parts of an applied multi are rows, numbered from 0, which have the multi's zxid."""
    log = LogWriter(zxid=6)
    log.add(tx.MULTI, multi((tx.CREATE, created("/x", b"1")), (tx.DELETE, sized("/y"))))
    rows, _ = both(log.content())
    assert [(r.zxid, r.kind, r.part, r.path) for r in rows] == [(7, 1, 0, "/x"), (7, 2, 1, "/y")]


def test_closed_sessions() -> None:
    """The 12 bytes of a closed session are a digest, unless they are exactly a list of paths."""
    log = LogWriter()
    log.add(tx.CLOSE_SESSION, number(1) + sized("/abc"))
    log.add(tx.CLOSE_SESSION, struct.pack(">iq", 2, -5))
    log.add(tx.CLOSE_SESSION, number(1) + sized("/abc") + struct.pack(">iq", 2, -5))
    rows, _ = both(log.content())
    assert [tx.deleted_paths(row.data) for row in rows] == [["/abc"], [], ["/abc"]]


def test_access_lists() -> None:
    """`decode_acl` returns the access list of a create transaction."""
    log = LogWriter()
    log.add(tx.CREATE, created("/a"))
    (row,), _ = both(log.content())
    assert tx.decode_acl(row.acl) == [(31, "world", "anyone")]


def test_rows_and_columns() -> None:
    """Rows that are converted to columns and back are unchanged."""
    rows, _ = read(every_kind().content())
    assert to_tuples(to_batch(rows)) == rows


def test_a_large_transaction() -> None:
    """A transaction that exceeds a window and the arrays of a batch is read."""
    log = LogWriter()
    log.add(tx.CREATE, created("/small"))
    log.add(tx.SET_DATA, changed("/large", bytes(20 << 20)))
    log.add(tx.MULTI, multi(*[(tx.DELETE, sized(f"/{n}")) for n in range(100_000)]))
    log.add(tx.CREATE, created("/after"))
    rows, end = both(log.content())
    assert (len(rows), end) == (100_003, End.COMPLETE)


# ---- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"", End.PREALLOCATED),
        (bytes(100), End.PREALLOCATED),
        (HEADER[:9], End.TORN),
        (HEADER, End.COMPLETE),
        (HEADER + bytes(65536), End.PREALLOCATED),
    ],
)
def test_logs_without_a_transaction(content: bytes, end: End) -> None:
    """A log that the server has just created gives neither a row nor an error."""
    assert both(content) == ([], end)


def test_cut_at_every_byte() -> None:
    """A log that is cut at any byte gives the transactions before the cut, and no error."""
    log = every_kind()
    whole, _ = read(log.content())
    content = log.content()
    starts = [16, *(16 + end for end in accumulate(map(len, log.entries)))]
    for size in range(16, len(content)):
        complete = bisect_right(starts, size) - 1
        rest = content[starts[complete] : size]
        rows, end = both(content[:size])
        assert rows == [row for row in whole if row.zxid <= complete]
        assert end is (End.TORN if any(rest) else End.PREALLOCATED if rest else End.COMPLETE)
        for zeros in (1, 70):
            assert both(content[:size] + bytes(zeros))[0] == rows


def test_zeros_after_a_torn_transaction() -> None:
    """Half a transaction before zeros is no damage: a crash leaves this in preallocated files."""
    log = every_kind()
    content = log.content()
    rows, end = both(content[:-5] + bytes(1000))
    assert (rows[-1].zxid, end) == (log.zxid - 1, End.TORN)


def test_data_after_zeros() -> None:
    """Data after zeros is damage; the error has the offset of the zeros."""
    log = every_kind()
    content = log.content()
    rows, end = both(content + bytes(40) + content[16:])
    assert rows[-1].zxid == log.zxid
    assert isinstance(end, tuple)
    assert end[0] == len(content)


# ---- damage -------------------------------------------------------------------------------------


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    for at in range(len(content)):
        for bit in (0, 3, 7):
            yield at, content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def test_each_flipped_bit_is_found() -> None:
    """A wrong bit in any field damages its transaction; the rows before it are returned."""
    log = every_kind()
    starts = [16, *(16 + end for end in accumulate(map(len, log.entries)))]
    whole, _ = read(log.content())
    for at, content in flips(log.content()):
        if 8 <= at < 16:
            continue  # The database id has no checksum.
        rows, end = both(content)
        number_of = max((n for n, start in enumerate(starts) if start <= at), default=-1)
        assert rows == [row for row in whole if row.zxid <= number_of], at
        assert isinstance(end, tuple), (at, end)
        assert max(0, starts[max(number_of, 0)] if at >= 16 else 0) <= end[0] <= at + 8


def sealed(body: bytes, kind: int = tx.SET_DATA) -> bytes:
    good = transaction(1, tx.CREATE, created("/good"))
    return HEADER + good + transaction(2, kind, body) + good


WRONG = {
    "2 GB of path": (tx.SET_DATA, struct.pack(">i", 2**31 - 1) + b"/a"),
    "negative path": (tx.SET_DATA, struct.pack(">i", -7) + b"/a"),
    "null path": (tx.DELETE, number(-1)),
    "empty path": (tx.DELETE, number(0)),
    "no slash": (tx.DELETE, sized("a")),
    "no slash in a commit": (tx.SET_DATA, changed("a", b"1")),
    "2 GB of data": (tx.SET_DATA, sized("/a") + struct.pack(">i", 2**31 - 1)),
    "data of -2": (tx.SET_DATA, sized("/a") + number(-2) + number(1)),
    "too short": (tx.SET_DATA, sized("/a") + sized(b"1") + b"\0\0"),
    "too long": (tx.SET_DATA, changed("/a", b"1") + b"\0"),
    "not UTF-8": (tx.SET_DATA, changed("/a", b"1").replace(b"/a", b"/\xff")),
    "2 G of rights": (tx.CREATE, sized("/a") + sized(b"") + struct.pack(">i", 2**31 - 1)),
    "rights of -2": (tx.CREATE, sized("/a") + sized(b"") + number(-2) + b"\0" + number(1)),
    "flag of 2": (tx.CREATE, created("/a")[:-5] + b"\2" + number(1)),
    "2 G of parts": (tx.MULTI, struct.pack(">i", 2**31 - 1)),
    "-1 part": (tx.MULTI, number(-1)),
    "part of 2 GB": (tx.MULTI, number(1) + number(1) + struct.pack(">i", 2**31 - 1) + b"x"),
    "multi in a multi": (tx.MULTI, multi((tx.MULTI, multi()))),
    "check alone": (tx.CHECK, sized("/a") + number(1)),
    "unknown type": (99, sized("/a")),
    "no number": (tx.ERROR, b""),
    "empty record": (tx.SET_DATA, b""),
    "2 G of closed paths": (tx.CLOSE_SESSION, struct.pack(">i", 2**31 - 1)),
}


@pytest.mark.parametrize("case", WRONG)
def test_false_contents_with_a_right_checksum(case: str) -> None:
    """A malformed record is damage of its transaction; the transaction before it is returned."""
    kind, body = WRONG[case]
    content = sealed(body, kind)
    rows, end = both(content)
    assert [row.path for row in rows] == ["/good"]
    assert isinstance(end, tuple)
    first = HEADER + transaction(1, tx.CREATE, created("/good"))
    assert len(first) < end[0] < len(first) + 45 + len(body)


def test_any_record_with_a_right_checksum() -> None:
    """Both decoders agree on each record, cut or with a wrong number at each byte."""
    chance = random.Random(11)
    for one in every_kind().entries:
        (kind,), body = struct.unpack_from(">i", one, 40), one[44:-1]
        for at in range(len(body)):
            both(sealed(body[:at], kind))
            wrong = struct.pack(">i", chance.choice([-2, -1, 0, 1, 5, 2**31 - 1]))
            both(sealed(body[:at] + wrong + body[at + 4 :], kind))


@pytest.mark.parametrize("size", [2**31 - 1, -1, -(2**31), 1, 31, tx.MAX_TRANSACTION + 1])
def test_impossible_lengths(size: int) -> None:
    """A transaction of impossible length is damage, and no memory of this length is allocated."""
    good = transaction(1, tx.CREATE, created("/good"))
    content = HEADER + good + struct.pack(">Qi", 1, size) + good * 3
    tracemalloc.start()
    rows, end = read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 1
    assert end == (len(HEADER + good) + 8, f"a transaction has the length {size}")
    assert peak < 20 << 20


@pytest.mark.parametrize(
    ("content", "offset"),
    [(b"ZKSN" + HEADER[4:], 0), (b"\x1f\x8b" + bytes(30), 0), (b"ZKLG" + bytes(8) + b"1", 4)],
)
def test_other_files(content: bytes, offset: int) -> None:
    """If the magic number or version is wrong, the file is refused at the first wrong byte."""
    with pytest.raises(DamagedFileError, match=rf"log\.1, byte {offset}\b"):
        list(LogReader(source(content)).batches())


def test_a_deep_path() -> None:
    """A path of 100,000 levels is read like any other path."""
    log = LogWriter()
    path = "/a" * 100_000
    log.add(tx.SET_DATA, changed(path, b"1"))
    (row,), end = both(log.content())
    assert (row.path, end) == (path, End.COMPLETE)


def test_random_bytes() -> None:
    """Random bytes after a header raise DamagedFileError, or no error."""
    chance = random.Random(7)
    for _ in range(200):
        both(HEADER + chance.randbytes(chance.randrange(400)))


# ---- files --------------------------------------------------------------------------------------


def test_a_growing_file(tmp_path: Path) -> None:
    """A second call continues after the last whole transaction, even if a torn one follows it."""
    log = every_kind()
    whole, _ = read(log.content())
    file = log.write(tmp_path)
    content = log.content()
    for cut in (10, 17, 200, 333, len(content) - 3):
        for zeros in (0, 64):
            file.write_bytes(content[:cut] + bytes(zeros))
            reader = LogReader(LogSource.of_path(file))
            rows = rows_of(reader.batches())
            file.write_bytes(content + bytes(zeros))
            rows += rows_of(reader.batches())
            assert rows == whole


def test_a_compressed_log() -> None:
    """A log compressed with gzip gives the same rows as the uncompressed log."""
    content = every_kind().content()
    reader = LogReader(source(gzip.compress(content), "log.1.gz"))
    assert rows_of(reader.batches()) == read(content)[0]


def test_a_truncated_compressed_log() -> None:
    """If a gzip file is truncated, the error names the file."""
    content = gzip.compress(every_kind().content())[:-30]
    with pytest.raises(HistoryError, match=r"log\.1\.gz"):
        list(LogReader(source(content, "log.1.gz")).batches())


def test_memory_does_not_depend_on_the_size(tmp_path: Path) -> None:
    """To read 12 MB, at most the memory of a few windows is needed."""
    entry = transaction(1, tx.SET_DATA, changed("/consumers/g/offsets/t/0", b"1" * 1000))
    file = tmp_path / "log.1"
    with file.open("wb") as out:
        out.write(HEADER)
        for _ in range(12):
            out.write(entry * 1000)
    tracemalloc.start()
    count = sum(len(batch.rows) for batch in LogReader(LogSource.of_path(file)).batches())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 12_000
    assert peak < 20 << 20
