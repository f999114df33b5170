"""Read one transaction log from its beginning, or from where the last read ended.

The memory that the reader needs does not depend on the size of the log: it holds a window of at
most 1 MB and the window's rows, or one transaction if that is larger than the window.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

from zkconsumer.errors import DamagedFileError, HistoryError
from zkconsumer.history import transactions as tx
from zkconsumer.history.transactions import Row, RowTuple, Stop

if TYPE_CHECKING:
    import pyarrow as pa

    from zkconsumer.history.columns import ColumnDecoder

MAGIC: Final = b"ZKLG"
VERSION: Final = 2
HEADER_BYTES: Final = 16
"""Bytes before the first transaction: the magic number, the version, the database's id."""

WINDOW_BYTES: Final = 1 << 20
"""Bytes that are read and decoded at a time.

The C library gives the memory of larger windows back to the system, so that the pages of the next
window are new. With 2 MB, these page faults take a fifth of the time.
"""

PLAIN_WINDOW_BYTES: Final = 1 << 16
"""Bytes that the plain decoder reads at a time: its rows take four times as many bytes, and fit
into a processor's cache. With 1 MB, a report takes a fifth longer.
"""

READ_ERRORS: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, RuntimeError)
"""What reading a file raises; the packages of some filesystems raise RuntimeError."""

COMPRESSIONS: Final[Mapping[str, Callable[[IO[bytes]], object]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""The ending of a file's name -> what decompresses the file."""

REMEDY: Final = (
    "the transactions before the damage are used; for the others, read the same log of another"
    " server of the ensemble"
)


class LogSource(NamedTuple):
    """A file that can be opened more than once: on disk, in an archive, or in memory.

    Attributes:
        name: the name of the file in errors and tables.
        open_raw: opens it for reading from its beginning, as stored.
        size: bytes as stored.
        stamp: a text that changes when the file changes; "" if the filesystem offers none.
    """

    name: str
    open_raw: Callable[[], IO[bytes]]
    size: int
    stamp: str = ""

    @classmethod
    def of_path(cls, path: Path) -> LogSource:
        """Return a file on disk. Raises HistoryError if it cannot be read."""
        try:
            return cls(str(path), lambda: path.open("rb"), path.stat().st_size)
        except OSError as error:
            raise unreadable(str(path), error) from None

    @property
    def base(self) -> str:
        """The file's name without its directories."""
        return self.name.replace(":", "/").rpartition("/")[2]

    def open(self) -> IO[bytes]:
        """Open the content, decompressed. Raises HistoryError."""
        try:
            raw = self.open_raw()
        except READ_ERRORS as error:
            raise unreadable(self.name, error) from None
        decompressed = COMPRESSIONS.get(Path(self.base).suffix)
        return raw if decompressed is None else cast(IO[bytes], decompressed(raw))


def unreadable(name: str, error: Exception) -> HistoryError:
    """Return the error for a file or directory that its filesystem refuses to read."""
    reason = getattr(error, "strerror", None) or str(error)
    # A server of Hadoop appends its stack trace, and hdfs-native escapes the line breaks.
    reason = reason.partition("\n")[0].partition("\\n")[0]
    server = ", and whether its server runs" if "://" in name else ""
    return HistoryError(
        f"a file of a server cannot be read: {reason}",
        where=name,
        remedy=f"check the path and its permissions{server}",
    )


class RowBatch:
    """Rows of one file, as tuples or as Arrow columns; each form is made from the other.

    If the batch has columns, these contain the rows, and `_rows` is None.
    """

    def __init__(
        self, file: str, rows: Sequence[RowTuple] | None, columns: pa.RecordBatch = None
    ) -> None:
        """`columns` is None if there are rows only."""
        self.file, self._rows, self._columns = file, rows, columns

    @property
    def tuples(self) -> Sequence[RowTuple]:
        """The rows as tuples with the fields of `Row`."""
        if self._rows is not None:
            return self._rows
        from zkconsumer.history.columns import to_tuples

        return to_tuples(self._columns)

    @property
    def rows(self) -> list[Row]:
        """The rows."""
        return list(map(Row._make, self.tuples))

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else int(self._columns.num_rows)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled decoder has read the rows, so that there are columns."""
        return self._rows is None

    @cached_property
    def zxids(self) -> Any:  # Any: numpy, which is imported on use
        """The zxid of each row: a list, or an array if there are columns."""
        if self._rows is not None:
            return [row[0] for row in self._rows]
        return self._columns.column("zxid").to_numpy()

    @property
    def time_ms(self) -> int:
        """The time of the first row."""
        return self._time_ms(0)

    @property
    def last(self) -> tuple[int, int]:
        """The zxid and the time of the last row."""
        return int(self.zxids[-1]), self._time_ms(len(self) - 1)

    def _time_ms(self, at: int) -> int:
        if self._rows is not None:
            return int(self._rows[at][1])
        return int(self._columns["time_ms"][at].as_py())

    def part(self, first: int, end: int | None = None) -> RowBatch:
        """Return the rows from the number `first` on, up to the number `end`."""
        end = len(self) if end is None else end
        if (first, end) == (0, len(self)):
            return self
        if self._rows is not None:
            return RowBatch(self.file, self._rows[first:end])
        return RowBatch(self.file, None, self._columns.slice(first, end - first))

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows as a record batch; needs pyarrow."""
        if self._columns is not None:
            return self._columns
        from zkconsumer.history.columns import to_batch

        return to_batch(self._rows or [])


class End(Enum):
    """How a log ends; all of these are normal."""

    UNREAD = "not read to its end yet"
    COMPLETE = "after a whole transaction"
    PREALLOCATED = "before zeros, which the server had reserved"
    TORN = "within a transaction that is still being written, or was cut off by a crash"


def first_zxid(source: LogSource) -> int | None:
    """Return the zxid of a log's first transaction; None if there is none, or it is unreadable."""
    begin = HEADER_BYTES + tx.OVERHEAD + 12  # after the session and its number of the request
    try:
        with source.open() as file:
            head = file.read(begin + 8)
    except (HistoryError, *READ_ERRORS):
        return None
    if len(head) < begin + 8 or not head.startswith(MAGIC):
        return None
    (zxid,) = struct.unpack_from(">q", head, begin)
    return zxid or None


class LogReader:
    """Reads a transaction log; call `batches` again to continue with appended transactions.

    Attributes:
        offset: where the next transaction begins; 0 before the header has been read.
        until: the byte at which reading ends, even if the file continues; -1 for its end.
        end: how the last call of `batches` ended.
    """

    def __init__(
        self,
        source: LogSource,
        fast: ColumnDecoder | None = None,
        offset: int = 0,
        until: int = -1,
    ) -> None:
        self.source, self.fast, self.offset, self.until = source, fast, offset, until
        self.end = End.UNREAD
        self._paths: dict[bytes, str] = {}

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows from `offset` on.

        Raises:
            DamagedFileError: the file is damaged at a byte. The rows before it have been yielded.
            HistoryError: the file cannot be read.
        """
        try:
            with self.source.open() as file:
                if self.offset or self._read_header(file):
                    file.seek(self.offset)
                    yield from self._read(file)
        except READ_ERRORS as error:
            raise unreadable(self.source.name, error) from None

    def _read_header(self, file: IO[bytes]) -> bool:
        """Return whether the header is complete."""
        header = file.read(HEADER_BYTES)
        if not header.strip(b"\0"):
            self.end = End.PREALLOCATED
            return False
        if not (MAGIC + struct.pack(">i", VERSION)).startswith(header[:8]):
            at = 0 if not header.startswith(MAGIC) else len(MAGIC)
            raise self._damage("this is no transaction log of ZooKeeper", at)
        if len(header) < HEADER_BYTES:
            self.end = End.TORN
            return False
        self.offset = HEADER_BYTES
        return True

    def _read(self, file: IO[bytes]) -> Iterator[RowBatch]:
        window, usual = b"", WINDOW_BYTES if self.fast else PLAIN_WINDOW_BYTES
        while True:
            size = max(usual, len(window))
            if self.until >= 0:
                size = min(size, max(0, self.until - self.offset - len(window)))
            more = file.read(size)
            window += more
            batches, at = self._decode(window)
            self.offset += at
            window = window[at:]
            yield from batches
            stop, where, why = tx.examine(window, 0)
            if stop is Stop.MORE and more:
                continue
            try:
                self.end = self._judge(window, file, stop, where, why)
            except DamagedFileError:
                # The server may have appended since then, so zeros or a partial transaction may now
                # be complete.
                file.seek(self.offset)
                again = file.read(len(window))
                if again == window:
                    raise
                window = again
                continue
            return

    def _decode(self, window: bytes) -> tuple[list[RowBatch], int]:
        if self.fast is not None:
            columns, at = self.fast.decode(window, 0)
            return [RowBatch(self.source.name, None, one) for one in columns], at
        rows: list[RowTuple] = []
        at = tx.decode(window, 0, rows, self._paths)
        return [RowBatch(self.source.name, rows)] if rows else [], at

    def _judge(self, window: bytes, file: IO[bytes], stop: Stop, where: int, why: str) -> End:
        """Return how the log ends at the beginning of `window`; raise DamagedFileError if the log
        is damaged there."""
        if not window:
            return End.COMPLETE
        last = _last_byte(window, file)
        if last == 0:
            return End.PREALLOCATED
        if stop is Stop.ZEROS:
            raise self._damage(f"zeros are followed by data at byte {self.offset + last - 1}", 0)
        if stop is Stop.RECORD:
            raise self._damage(why, where)
        size = struct.unpack_from(">i", window, 8)[0] if len(window) >= tx.OVERHEAD else 0
        whole = tx.OVERHEAD + max(size, 0) + 1
        if stop is Stop.MORE or last < whole or last <= tx.OVERHEAD:
            if len(window) < tx.OVERHEAD or tx.complete_at(window, 0) == -1:
                if size <= tx.MAX_TRANSACTION:
                    return End.TORN
            else:
                raise self._damage(f"a transaction has the wrong length {size}", 8)
        raise self._damage(why, where)

    def _damage(self, what: str, at: int) -> DamagedFileError:
        return DamagedFileError(what, file=self.source.name, offset=self.offset + at, remedy=REMEDY)


def _last_byte(window: bytes, file: IO[bytes]) -> int:
    """Return the number of bytes up to the last non-zero one, in the window and after it."""
    last, begin = len(window.rstrip(b"\0")), len(window)
    while more := file.read(WINDOW_BYTES):
        rest = len(more.rstrip(b"\0"))
        last = begin + rest if rest else last
        begin += len(more)
    return last
