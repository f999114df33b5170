"""Read the log segments of Kafka's topic `__consumer_offsets`, as brokers keep them on their disks.

    for replica in find_replicas(["/var/lib/kafka"]):
        for entry in replica.entries(): ...

A replica is one directory `__consumer_offsets-N` of one broker. Only its segments are read:
`*.log`, and `*.log.swap`, which is a whole segment that the cleaner has made and not yet renamed.
The broker may write, compact and delete segments meanwhile. Therefore the files of a directory are
opened together, and again until no file has been added or replaced since the directory was listed.
If they came from different moments, all commits of a key could be missing: removed from an old
segment, because of a later commit in a segment that is too new for the list.

Sources of Kafka: `kafka.log.UnifiedLog` for the names of files, `kafka.log.LocalLog` for the order
in which `replaceSegments` renames them, and `kafka.server.checkpoints.OffsetCheckpointFile` for the
cleaner's checkpoint.
"""

from __future__ import annotations

import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple, TypeAlias

import google_crc32c

from zkconsumer.errors import BadFileError, HistoryError
from zkconsumer.frozen import dataclass
from zkconsumer.history.inputs import FAST_FROM, Problem, sources_at
from zkconsumer.history.logs import COMPRESSIONS, READ_ERRORS, LogSource, unreadable
from zkconsumer.history.tables import KAFKA
from zkconsumer.kafka.columns import parsers
from zkconsumer.kafka.columns.batch_headers import HEADER_BYTES, batch_headers
from zkconsumer.kafka.columns.compilation import engine_for
from zkconsumer.kafka.columns.record_sets import ParserEngine, RecordSet, plain_engine
from zkconsumer.kafka.columns.records import CorruptError, Records
from zkconsumer.kafka.columns.responses import response_of
from zkconsumer.kafka.fetcher import TIMESTAMP_NOT_AVAILABLE
from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition

_ENDINGS = "|".join(map(re.escape, COMPRESSIONS))
_FOLDER: Final = re.compile(rf"{OFFSETS_TOPIC}-(\d{{1,9}})")
_SEGMENT: Final = re.compile(rf"(\d{{20}})\.log({_ENDINGS})?")
_SWAP: Final = re.compile(r"(\d{20})\.log\.swap")
_INDEX: Final = re.compile(rf"(\d{{20}})\.index({_ENDINGS})?")
_CHECKPOINT: Final = "cleaner-offset-checkpoint"
_NAMES: Final = (
    f"the name of the file is not that of a segment of {OFFSETS_TOPIC}",
    f"{OFFSETS_TOPIC}-3/00000000000000000000.log",
)

_PIECE_BYTES: Final = 1 << 20
"""Bytes that are read and parsed at a time; a longer batch is read as a whole."""

_MAX_BATCH: Final = 1 << 30
"""Bytes of the longest batch that is read; a longer one is damage."""

_ATTEMPTS, _PAUSE_S = 100, 0.05
"""Attempts to open the segments of a directory, if the broker replaces one of them meanwhile, and
seconds between them."""


class Record(NamedTuple):
    """A record of the topic.

    Attributes:
        offset: its offset in its partition of `__consumer_offsets`.
        time_ms: when the broker wrote it; None before format v1 (0.10).
        producer: the id of the transaction's producer; -1 outside of transactions.
    """

    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    producer: int
    file: str


class Marker(NamedTuple):
    """The end of a transaction of a producer: a commit or an abort."""

    offset: int
    time_ms: int | None
    producer: int
    commits: bool
    file: str


class Break(NamedTuple):
    """The beginning of a segment, or a place at which records cannot be read.

    Attributes:
        is_damage: whether records of the segment are lost here.
        base: the offset with which the segment begins, by its name.
    """

    is_damage: bool
    base: int


Entry: TypeAlias = Record | Marker | Break


@dataclass(frozen=True)
class Segment:
    """A segment of a replica: `pieces` yields its bytes in order, in pieces of any size."""

    base: int
    name: str
    pieces: Iterator[bytes]


class Opened(NamedTuple):
    """The segments of a replica, in the order of their offsets.

    Attributes:
        cleaned: the offset up to which the broker's cleaner has removed records; None if the
            checkpoint of the cleaner is missing.
        absent: the base offsets of the segments of which only the index exists.
    """

    segments: Sequence[Segment]
    cleaned: int | None = None
    absent: frozenset[int] = frozenset()


@dataclass
class Replica:
    """One replica of one partition of the topic.

    Attributes:
        name: its directory, or the broker that is asked.
        partition: the number of the partition.
        open: returns the segments; the stack closes their files.
        size: the bytes of its segments.
        opened: what `entries` has opened.
        problems: the damage that `entries` has found.
    """

    name: str
    partition: int
    open: Callable[[ExitStack], Opened]
    size: int = 0
    opened: Opened = field(default_factory=lambda: Opened(()))
    problems: list[Problem] = field(default_factory=list)

    def entries(self) -> Iterator[Entry]:
        """Yield records, transaction markers and breaks in the order of their offsets.

        Raises HistoryError if a file cannot be read.
        """
        engine = engine_for if self.size >= FAST_FROM else _plain_engine
        last = -1
        with ExitStack() as files:
            self.opened = self.open(files)
            segments = self.opened.segments
            for number, segment in enumerate(segments):
                yield Break(False, segment.base)
                reader = _SegmentReader(segment, self.partition, engine)
                for one in reader.entries():
                    # A segment that the cleaner has just made may overlap with the next one.
                    if isinstance(one, Break):
                        yield one
                    elif one.offset > last:
                        last = one.offset
                        yield one
                if reader.is_torn and number < len(segments) - 1:
                    yield reader.lost("torn", "the segment ends within a batch", reader.at)
                self.problems += reader.problems


def _plain_engine(_: int) -> ParserEngine:
    return plain_engine()


# ---- finding files -------------------------------------------------------------------------------


def find_replicas(given: Iterable[str | os.PathLike[str]]) -> list[Replica]:
    """Return the replicas of `__consumer_offsets` at paths: a broker's log directory, a directory
    of one partition, a segment, or an archive of these.

    Raises:
        BadFileError: a path does not exist, or contains no segment of the topic.
        HistoryError: a path cannot be read.
    """
    folders: dict[str, dict[str, LogSource]] = {}
    checkpoints: dict[str, LogSource] = {}
    listed: set[str] = set()
    for path in [os.fspath(one) for one in given]:
        is_found = False
        for folder, source in _files(path):
            if source.base == _CHECKPOINT:
                checkpoints[folder] = source
            elif _FOLDER.fullmatch(folder.rpartition("/")[2]):
                folders.setdefault(folder, {})[source.base] = source
                is_found = is_found or _is_segment(source.base)
                if os.path.isdir(path):
                    listed.add(folder)
        if not is_found:
            raise BadFileError(
                f"there is no segment of {OFFSETS_TOPIC}",
                where=path,
                remedy="give a directory of the broker's log.dirs: it contains the directories"
                f" {OFFSETS_TOPIC}-0, {OFFSETS_TOPIC}-1 and so on",
            )
    return [
        _replica(folder, files, checkpoints.get(folder.rpartition("/")[0]), folder in listed)
        for folder, files in sorted(folders.items())
    ]


def _files(path: str) -> Iterator[tuple[str, LogSource]]:
    """Yield each file at a path that may belong to the topic, with its directory."""
    if "://" not in path:
        path = os.path.abspath(path)
        parent = Path(path).parent
        while _FOLDER.fullmatch(parent.name):
            parent = parent.parent
        if _FOLDER.search(path) and (parent / _CHECKPOINT).is_file():
            yield str(parent), LogSource.of_path(parent / _CHECKPOINT)
    for source in sources_at(path, _is_wanted, _NAMES):
        yield source.name.replace(":", "/").rpartition("/")[0], source


def _is_wanted(name: str) -> bool:
    return _is_segment(name) or bool(_INDEX.fullmatch(name)) or name == _CHECKPOINT


def _is_segment(name: str) -> bool:
    return bool(_SEGMENT.fullmatch(name) or _SWAP.fullmatch(name))


def _cleaned(source: LogSource | None, partition: int) -> int | None:
    """Return the offset up to which the cleaner has been, from its checkpoint.

    A partition that the cleaner has never cleaned is missing in the checkpoint.
    """
    if source is None:
        return None
    try:
        with source.open() as file:
            lines = file.read().decode(errors="replace").splitlines()
    except READ_ERRORS as error:
        raise unreadable(source.name, error) from None
    for line in lines[2:]:  # the version, and the number of lines
        words = line.split()
        if len(words) == 3 and words[:2] == [OFFSETS_TOPIC, str(partition)]:
            return int(words[2])
    return 0


def _replica(
    folder: str, files: Mapping[str, LogSource], checkpoint: LogSource | None, is_listed: bool
) -> Replica:
    """`is_listed`: whether the files are those of a directory that can be listed again."""
    match = _FOLDER.fullmatch(folder.rpartition("/")[2])
    assert match is not None
    partition = int(match[1])
    cleaned = partial(_cleaned, checkpoint, partition)
    opening = partial(_opened, files, cleaned)
    if is_listed:
        directory = Path(next(iter(files.values())).name).parent
        opening = partial(_open_directory, directory, cleaned)
    size = sum(one.size for name, one in files.items() if _is_segment(name))
    return Replica(folder, partition, opening, size)


def _open_directory(directory: Path, cleaned: Callable[[], int | None], files: ExitStack) -> Opened:
    """Open the segments that a directory has at one moment.

    Raises HistoryError if a file cannot be read, or if the broker replaces files all the time.
    """
    for _ in range(_ATTEMPTS):
        listed = _listed(directory)
        with ExitStack() as opened:
            failure: HistoryError | None = None
            try:
                sources = {name: LogSource.of_path(directory / name) for name in listed}
                found = _opened(sources, cleaned, opened)
            except HistoryError as error:
                failure = error
            if _listed(directory) == listed:
                if failure is not None:
                    raise failure
                files.enter_context(opened.pop_all())
                return found
        time.sleep(_PAUSE_S)
    raise HistoryError(
        "the broker replaced segments while they were opened",
        where=str(directory),
        remedy="try again, or copy the directory and read the copy",
    )


def _listed(directory: Path) -> dict[str, tuple[int, int]]:
    """Return the names of the wanted files in a directory, with their inodes. Raises HistoryError.

    A file that the broker replaces has another inode afterwards.
    """
    found = {}
    try:
        for name in sorted(filter(_is_wanted, os.listdir(directory))):
            with suppress(FileNotFoundError):  # deleted since the directory was listed
                stat = (directory / name).stat()
                found[name] = stat.st_dev, stat.st_ino
    except OSError as error:
        raise unreadable(str(directory), error) from None
    return found


def _opened(
    sources: Mapping[str, LogSource], cleaned: Callable[[], int | None], files: ExitStack
) -> Opened:
    """Open the segments among some files.

    The checkpoint is read after they are open, because the cleaner writes it after it has replaced
    them.
    """
    # In this order, the segment that the cleaner has made comes after the one that it replaces.
    chosen = {int(name[:20]): sources[name] for name in sorted(sources) if _is_segment(name)}
    segments = [
        Segment(base, one.name, _pieces(one.name, files.enter_context(one.open())))
        for base, one in sorted(chosen.items())
    ]
    indexes = {int(name[:20]) for name in sources if _INDEX.fullmatch(name)}
    return Opened(segments, cleaned(), frozenset(indexes - chosen.keys()))


def _pieces(name: str, file: IO[bytes]) -> Iterator[bytes]:
    try:
        while piece := file.read(_PIECE_BYTES):
            yield piece
    except READ_ERRORS as error:
        raise unreadable(name, error) from None


# ---- reading one segment -------------------------------------------------------------------------


class _SegmentReader:
    """Reads the batches of one segment.

    Attributes:
        at: the byte at which the next batch begins.
        is_torn: whether the segment ends within a batch.
    """

    def __init__(
        self, segment: Segment, partition: int, engine: Callable[[int], ParserEngine]
    ) -> None:
        self._segment, self._engine = segment, engine
        self._tp = TopicPartition(OFFSETS_TOPIC, partition)
        self.at = 0
        self.is_torn = False
        self.problems: list[Problem] = []

    def entries(self) -> Iterator[Entry]:
        """Yield what the segment contains, up to its end or to a batch without a readable size."""
        window, needed = b"", 0
        for piece in self._segment.pieces:
            window += piece
            if len(window) < needed:
                continue
            found = self._set(window)
            if found.stopped_at:
                yield from self._of_batches(window[: found.stopped_at], found)
                self.at += found.stopped_at
                window = window[found.stopped_at :]
            needed = int.from_bytes(window[8:12], "big") + 12 if len(window) >= 12 else 0
            if found.is_corrupt or needed > _MAX_BATCH:
                if window.strip(b"\0") or any(one.strip(b"\0") for one in self._segment.pieces):
                    what = "a batch has a wrong size, so the rest of the segment cannot be read"
                    yield self.lost("damaged", what, self.at)
                return  # zeros: the broker has reserved the space
        self.is_torn = bool(window.strip(b"\0"))

    def _set(self, data: bytes) -> RecordSet:
        return RecordSet(self._tp, response_of(data), self._engine(len(data)))

    def lost(self, kind: str, what: str, at: int) -> Break:
        """Record a problem at a byte of the segment; return the break in the entries."""
        what = f"{what}, at byte {at}"
        self.problems.append(Problem(kind, self._segment.name, 0, what, KAFKA))
        return Break(True, self._segment.base)

    def _of_batches(self, data: bytes, found: RecordSet) -> Iterator[Entry]:
        """Yield the entries of whole batches."""
        try:
            if found.is_corrupt:
                found = self._set(data)  # without the malformed batch after them
            entries = self._entries(data, found)
        except CorruptError:
            yield from self._one_by_one(data)
        else:
            yield from entries

    def _one_by_one(self, data: bytes) -> Iterator[Entry]:
        """Yield the entries of the batches that are not damaged, and a break for each other one."""
        at = 0
        while at < len(data):
            stop = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            batch = data[at:stop]
            try:
                yield from self._entries(batch, self._set(batch))
            except CorruptError as error:
                yield self.lost("damaged", str(error), self.at + at)
            at = stop

    def _entries(self, data: bytes, found: RecordSet) -> Iterable[Record | Marker]:
        """Return records and markers of batches in the order of their offsets.

        Raises CorruptError.
        """
        name = self._segment.name
        markers, spans = _transactions(data, name)
        records = [
            Record(
                run.offset(at),
                _time_ms(run, at),
                run.key(at),
                run.value(at),
                _producer(spans, run.offset(at)) if spans else -1,
                name,
            )
            for run in found.records()
            for at in range(len(run))
        ]
        return sorted([*records, *markers], key=_offset) if markers else records


_Span: TypeAlias = tuple[int, int, int]
"""The first and the last offset of a batch, and the id of its producer."""

# The offset of a batch of format v2, and its highest timestamp.
_BASE_AND_TIME: Final = struct.Struct(">q27xq")

# The place of a batch's checksum; it covers everything after it.
_CHECKSUM: Final = slice(17, 21)

_NEVER: Final = 1 << 62


def _transactions(data: bytes, name: str) -> tuple[list[Marker], list[_Span]]:
    """Return the markers, and the batches that belong to transactions. Raises CorruptError."""
    view = memoryview(data)
    markers, spans = [], []
    for one in batch_headers(view):
        if one is None or not (one.is_control or one.is_transactional):
            continue
        base, time_ms = _BASE_AND_TIME.unpack_from(view, one.at)
        if not one.is_control:
            spans.append((base, one.last, one.producer))
            continue
        batch = data[one.at : one.stop]
        checksum = int.from_bytes(batch[_CHECKSUM], "big")
        if google_crc32c.value(batch[_CHECKSUM.stop :]) != checksum:
            raise CorruptError(f"the batch before offset {one.last + 1} has a wrong checksum")
        commits = not parsers.is_abort_marker(view, one.at + HEADER_BYTES, one.stop)
        markers.append(Marker(one.last, time_ms, one.producer, commits, name))
    return markers, spans


def _producer(spans: Sequence[_Span], offset: int) -> int:
    at = bisect_right(spans, (offset, _NEVER, 0)) - 1
    return spans[at][2] if at >= 0 and offset <= spans[at][1] else -1


def _offset(one: Record | Marker) -> int:
    return one.offset


def _time_ms(run: Records, at: int) -> int | None:
    kind, time_ms = run.timestamp(at)
    return None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms
