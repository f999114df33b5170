"""Rolling files of `zkconsumer consume --to DIRECTORY`: one open file for each partition.

A file is written under a hidden name. A complete file goes through these steps, in this order:

1. its bytes are synced;
2. it is renamed to `TOPIC-PARTITION-FIRST..LAST.FORMAT`, and the directory is synced;
3. the offset after LAST, and after transaction markers that follow it, is committed.

So a committed message is always in a file that has its final name. A process that is killed before
step 2 leaves a hidden file, which the next run removes. A process that is killed between the steps
2 and 3 leaves a file whose messages the group reads again. `Directory.overlapping` finds such a
file by its name.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc, parquet

from zkconsumer.cli.message_lines import json_lines_of_columns
from zkconsumer.errors import ConfigError, NotOwnedError, ZkConsumerError
from zkconsumer.file_lock import try_lock
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Position, TopicPartition

# Bytes of messages in memory before they become a row group of a Parquet file. Readers skip and
# decode whole row groups. Larger row groups would need more memory for each partition.
ROW_GROUP_BYTES: Final = 16 << 20
# Upper bound of the bytes in memory for all partitions. Above it, row groups become smaller.
BUFFERED_BYTES: Final = 256 << 20

# The columns of a file: those of Spark's Kafka connector, without the fencing token.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

# Suffix of the name of a file that is being written.
_OPEN: Final = ".open"
_NAME: Final = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d+)\.\.(?P<last>\d+)\.\w+")


class ExportedFile(NamedTuple):
    """A complete file: the partition and the first and last offset in its name.

    `reached` is the offset after the last message, and after transaction markers that follow it.
    """

    tp: TopicPartition
    first: int
    last: int
    path: Path
    reached: int


class Writer(Protocol):
    """Writes the messages of one file in its format."""

    def write(self, batches: list[pa.RecordBatch]) -> None: ...
    def close(self) -> None:
        """Write the end of the file format; the file stays open."""


class _Parquet:
    """Parquet: one row group for each call. The columns with few values are dictionaries."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        deltas = dict.fromkeys(("offset", "timestamp"), "DELTA_BINARY_PACKED")
        self._schema = schema
        self._writer = parquet.ParquetWriter(
            file,
            schema,
            compression="snappy",
            use_dictionary=["topic", "partition", "timestampType"],
            column_encoding=deltas,
            # Statistics of keys and values would cost a comparison for each byte.
            write_statistics=["topic", "partition", "offset", "timestamp", "timestampType"],
        )

    def write(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


class _Arrow:
    """Arrow's IPC file format (Feather version 2)."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._writer = ipc.new_file(file, schema)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        for one in batches:
            self._writer.write_batch(one)

    def close(self) -> None:
        self._writer.close()


class _Lines:
    """One JSON object per line, as on standard output."""

    def __init__(self, file: IO[bytes], _: pa.Schema) -> None:
        self._file = file

    def write(self, batches: list[pa.RecordBatch]) -> None:
        for one in batches:
            self._file.write(json_lines_of_columns(one))

    def close(self) -> None:
        self._file.flush()


WRITERS: Final[Mapping[str, Callable[[IO[bytes], pa.Schema], Writer]]] = {
    "parquet": _Parquet,
    "arrow": _Arrow,
    "jsonl": _Lines,
}


class Directory:
    """The directory of an export. Several processes may write into it at the same time."""

    def __init__(self, path: Path) -> None:
        """Create the directory if it does not exist. Raises ConfigError."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Windows neither opens nor syncs a directory.
            if sys.platform != "win32":
                self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(
                f"the directory cannot be used: {error.strerror}",
                where=f"--to {path}",
                remedy="name a directory that this user may write, or one that does not exist",
            ) from error
        self.path = path

    def close(self) -> None:
        if sys.platform != "win32":
            os.close(self._descriptor)

    def sync(self) -> None:
        if sys.platform != "win32":
            os.fsync(self._descriptor)

    def remove_incomplete(self) -> list[Path]:
        """Delete and return the hidden files that no process is writing any more."""
        removed = []
        for path in sorted(self.path.glob(f".*{_OPEN}")):
            with suppress(OSError):
                with path.open("rb") as file:
                    try_lock(file)
                    if sys.platform != "win32":
                        path.unlink()
                if sys.platform == "win32":  # there, an open file cannot be deleted
                    path.unlink()
                removed.append(path)
        return removed

    def files(self) -> list[ExportedFile]:
        """Return the complete files in the order of their names."""
        found = []
        for path in sorted(self.path.iterdir()):
            if (match := _NAME.fullmatch(path.name)) and not path.name.startswith("."):
                tp = TopicPartition(match["topic"], int(match["partition"]))
                first, last = int(match["first"]), int(match["last"])
                found.append(ExportedFile(tp, first, last, path, last + 1))
        return found

    def overlapping(self, tp: TopicPartition, offset: int) -> list[ExportedFile]:
        """Return the files with messages of this partition from `offset` on."""
        return [one for one in self.files() if one.tp == tp and one.last >= offset]


class _OpenFile:
    """The file that is being written for one partition under one fencing token."""

    def __init__(
        self, directory: Directory, tp: TopicPartition, token: int, kind: str, batch: pa.RecordBatch
    ) -> None:
        self._directory, self.tp, self.token, self._kind = directory, tp, token, kind
        self.first = self.last = self.reached = int(batch["offset"][0].as_py())
        self.opened_s = time.monotonic()
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = self.count = 0
        name = f".{tp.topic}-{tp.partition}-{self.first:020}.{os.getpid()}.{kind}{_OPEN}"
        self._path = directory.path / name
        self._file = self._path.open("wb")
        # The lock tells other processes that this file is being written, until this process ends.
        try_lock(self._file)
        self._writer = WRITERS[kind](self._file, batch.schema)

    @property
    def size(self) -> int:
        return self._file.tell() + self.waiting_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self.count += batch.num_rows
        self.last = int(batch["offset"][-1].as_py())
        self.reached = self.last + 1

    def write_waiting(self) -> None:
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if waiting:
            self._writer.write(waiting)

    def complete(self) -> ExportedFile:
        """Sync the file and give it its final name; the caller syncs the directory."""
        self.write_waiting()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        name = f"{self.tp.topic}-{self.tp.partition}-{self.first:020}..{self.last:020}.{self._kind}"
        path = self._directory.path / name
        if sys.platform == "win32":  # there, an open file cannot be renamed
            self._file.close()
        self._path.rename(path)
        self._file.close()
        return ExportedFile(self.tp, self.first, self.last, path, self.reached)

    def discard(self) -> None:
        """Delete the file; its messages are not committed."""
        self._waiting = []
        with suppress(OSError):
            self._path.unlink()
        self._file.close()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits at which a file is complete: its size in bytes, and the seconds since its first
    message."""

    file_bytes: int
    file_s: float


class ExportGroup(Protocol):
    """The methods of the member that an export calls."""

    def owns(self, tp: TopicPartition, token: int) -> bool: ...
    def commit(self, offsets: Mapping[TopicPartition, int]) -> None: ...


class Export:
    """The open files of a member, and the commits after they are complete.

    The threads of the streams call `write` and `complete_due`. The connector's thread calls
    `on_revoked` and `on_lost`. A lock for each partition is held from the change of its file to the
    end of the commit, so a partition is not released between the two.

    Attributes:
        files, count: the number of complete files, and of messages written.
    """

    def __init__(
        self,
        directory: Directory,
        kind: str,
        limits: Limits,
        *,
        group: ExportGroup,
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._kind, self._limits = directory, kind, limits
        self._group, self._say = group, say
        self.files = self.count = 0
        self._open: dict[TopicPartition, _OpenFile] = {}
        # Partition -> the highest fencing token whose file has ended. Partition -> the token for
        # which `_report_overlap` has compared the first message with the directory's files.
        self._ended: dict[TopicPartition, int] = {}
        self._compared: dict[TopicPartition, int] = {}
        # Partition -> the last position at which it had no open file.
        self._passed: dict[TopicPartition, Position] = {}
        self._locks: defaultdict[TopicPartition, threading.RLock] = defaultdict(threading.RLock)
        self._counting = threading.Lock()

    # ---- called by the threads of the streams ----------------------------------------------------

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of `poll_arrow`, which may contain runs of several partitions."""
        for run in runs_of(batch):
            tp = TopicPartition(run["topic"][0].as_py(), run["partition"][0].as_py())
            with self._locked([tp]):
                self._write_run(tp, int(run["token"][0].as_py()), run.select(COLUMNS))

    def _write_run(self, tp: TopicPartition, token: int, rows: pa.RecordBatch) -> None:
        if token <= self._ended.get(tp, -1):
            return  # revoked while this thread was writing: the next owner reads these messages
        file = self._open.get(tp)
        if file is not None and file.token != token:
            self._discard(tp)
            file = None
        if file is None:
            self._report_overlap(tp, token, int(rows["offset"][0].as_py()))
            file = self._open[tp] = _OpenFile(self._directory, tp, token, self._kind, rows)
        file.add(rows)
        self._counted(rows.num_rows)
        buffered = sum(one.waiting_bytes for one in list(self._open.values()))
        if file.waiting_bytes >= ROW_GROUP_BYTES or buffered >= BUFFERED_BYTES:
            file.write_waiting()
        if file.size >= self._limits.file_bytes:
            self.complete([tp])

    def _report_overlap(self, tp: TopicPartition, token: int, offset: int) -> None:
        """Log the files whose messages are written again, once for each assignment."""
        if self._compared.get(tp) == token:
            return
        self._compared[tp] = token
        for one in self._directory.overlapping(tp, offset):
            self._say(
                f"written twice: offsets {max(one.first, offset)} to {one.last} of {tp}; they are"
                f" already in {one.path}, and were not committed"
            )

    def passed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Take the positions of a stream whose messages have all been written.

        A position may be higher than the offset after the last message, because transaction markers
        have offsets. It is committed with the partition's file, or at once if no file is open.
        """
        for tp, at in positions.items():
            with self._locked([tp]):
                if at.epoch <= self._ended.get(tp, -1):
                    continue  # messages that came after the end of the file were not written
                file = self._open.get(tp)
                if file is not None and file.token == at.epoch:
                    file.reached = max(file.reached, at.offset)
                elif file is None and self._passed.get(tp) != at:
                    # If the commit fails, the next call repeats it.
                    with suppress(ZkConsumerError):
                        self._group.commit({tp: at.offset})
                        self._passed[tp] = at

    def complete_due(self) -> None:
        """Complete the files whose maximum age has passed."""
        oldest = time.monotonic() - self._limits.file_s
        if due := [tp for tp, one in list(self._open.items()) if one.opened_s <= oldest]:
            self.complete(due)

    def complete(self, tps: Iterable[TopicPartition] | None = None) -> None:
        """Complete the files of these partitions, or all, and commit the offsets after them.

        Raises ZkConsumerError if a file cannot be written, and what the commit raises.
        """
        wanted = list(self._open) if tps is None else list(tps)
        with self._locked(wanted):
            done: list[ExportedFile] = []
            for tp in wanted:
                if (file := self._open.pop(tp, None)) is None:
                    continue
                if self._group.owns(tp, file.token):
                    done.append(file.complete())
                else:
                    self._forget(file)
            if done:
                self._directory.sync()
                with self._counting:
                    self.files += len(done)
                self._commit(done)

    def _commit(self, done: list[ExportedFile]) -> None:
        try:
            self._group.commit({one.tp: one.reached for one in done})
        except NotOwnedError:
            # The refused commit stored no offset. Commit again, for the partitions that this member
            # still owns.
            if len(done) > 1:
                for one in done:
                    self._commit([one])
                return
            self._report_uncommitted(done)
        except BaseException:
            self._report_uncommitted(done)
            raise

    def _report_uncommitted(self, done: list[ExportedFile]) -> None:
        for one in done:
            self._say(
                f"perhaps written twice: offsets {one.first} to {one.last} of {one.tp}; they are in"
                f" {one.path}, and their commit failed"
            )

    # ---- called by the connector's thread --------------------------------------------------------

    def on_assigned(self, tps: list[TopicPartition], /) -> None:
        """Do nothing: a file is created at the first message."""

    def on_revoked(self, tps: list[TopicPartition], /) -> None:
        """Complete and commit files before their partitions are released."""
        wanted = list(tps)
        with self._locked(wanted):
            for tp in wanted:
                if (file := self._open.get(tp)) is not None:
                    self._ended[tp] = file.token
            self.complete(wanted)

    def on_lost(self, tps: list[TopicPartition], /) -> None:
        """Delete open files: another member may already own the partitions."""
        for tp in tps:
            with self._locked([tp]):
                self._discard(tp)

    def discard(self) -> None:
        """Delete all open files, after an error."""
        self.on_lost(list(self._open))

    def _discard(self, tp: TopicPartition) -> None:
        if (file := self._open.pop(tp, None)) is not None:
            self._forget(file)

    def _forget(self, file: _OpenFile) -> None:
        self._ended[file.tp] = file.token
        self._counted(-file.count)
        file.discard()

    def _counted(self, messages: int) -> None:
        with self._counting:
            self.count += messages

    @contextmanager
    def _locked(self, tps: Iterable[TopicPartition]) -> Iterator[None]:
        """Hold the locks of these partitions, and raise ZkConsumerError for an OSError."""
        with ExitStack() as stack:
            for tp in sorted(tps):  # a fixed order prevents deadlocks between threads
                stack.enter_context(self._locks[tp])
            try:
                yield
            except OSError as error:
                raise ZkConsumerError(
                    f"a file cannot be written: {error}",
                    where=str(self._directory.path),
                    remedy="correct the cause and run the command again; the messages of the"
                    " incomplete files are not committed",
                ) from error


def runs_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Split a batch where the partition or the fencing token changes."""
    changes = None
    for name in ("partition", "token", "topic"):
        column = batch[name]
        differs = pc.not_equal(column[1:], column[:-1])
        changes = differs if changes is None else pc.or_(changes, differs)
    cuts = [0, *(one + 1 for one in pc.indices_nonzero(changes).to_pylist()), batch.num_rows]
    return [batch.slice(start, end - start) for start, end in pairwise(cuts)]
