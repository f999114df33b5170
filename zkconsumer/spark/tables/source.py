"""`format("zkconsumer-groups")`: groups of a whole cluster as tables, and as streams of changes.

    spark.read.format("zkconsumer-groups").option("zookeeper", "zk1:2181/kafka")
        .option("table", "lag").load()

Spark makes these objects and calls them, in processes of its own: constructors touch nothing.

Which task reads which groups of a table: shares of about the same size.

Listing is cheap beside reading: one request for each topic of a group, and none for a partition.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from zkconsumer.admin.groups import (
    MEMBERS,
    OFFSETS,
    OWNERS,
    read_group_names,
    read_groups,
    read_topic_payloads,
)
from zkconsumer.errors import SparkSourceError
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import requested_topics
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import end_on_sigterm, log_to_stderr, one_sentence
from zkconsumer.spark.schema import columns_of
from zkconsumer.spark.tables import changes
from zkconsumer.spark.tables.changes import Key, State
from zkconsumer.spark.tables.options import GroupsOptions, Table, parse
from zkconsumer.spark.tables.rows import COLUMNS, Reader, Row, schema_of
from zkconsumer.zk.client import ZooKeeperClient

# ---- plan ----------------------------------------------------------------------------------------


LEAST: Final = 1_000
"""Znodes that are worth a task: starting one and connecting takes as long as reading so many."""

AT_ONCE: Final = 20_000
"""Znodes that a task reads at once, about; more take more memory and gain nothing."""

_ROOMS: Final[Mapping[Table, tuple[str, ...]]] = {
    Table.MEMBERS: (MEMBERS,),
    Table.OWNERS: (OWNERS,),
    Table.OFFSETS: (OFFSETS,),
    Table.LAG: (OWNERS, OFFSETS),
}


class Piece(NamedTuple):
    """A group, or of a large one some topics (None: all), and about how many znodes that is."""

    group: str
    topics: frozenset[str] | None
    size: int


def plan(connection: ZooKeeperClient, options: GroupsOptions) -> list[list[Piece]]:
    """The pieces of each task; no task where there is no group.

    A group that may not be listed is planned all the same: its task tells of it.
    """
    names = options.selected(read_group_names(connection))
    if options.table is Table.MEMBERS:
        found = connection.listable(map(paths.ids, names))
        sizes = {name: 1 + len(found.get(paths.ids(name), ())) for name in names}
        return _dealt([Piece(name, None, size) for name, size in sizes.items()], options)
    counts = _counts(connection, names, options)
    total = sum(sum(topics.values()) for topics in counts.values())
    share = ceil(max(total, LEAST) / options.parallelism)
    pieces = []
    for name, topics in counts.items():
        size = 1 + sum(topics.values())
        if size <= share or len(topics) == 1:
            pieces.append(Piece(name, options.topics, size))
            continue
        rest = _subscribed(connection, name, options) - topics.keys()
        parts = [*topics.items(), *dict.fromkeys(rest, 1).items()]
        pieces += [Piece(name, frozenset([topic]), 1 + count) for topic, count in parts]
    return _dealt(pieces, options)


def chunks(pieces: Sequence[Piece]) -> Iterator[tuple[list[str], frozenset[str] | None]]:
    """What a task reads at once: groups, and which topics of theirs."""
    groups: list[str] = []
    topics: frozenset[str] | None = None
    size = 0
    for one in sorted(pieces, key=lambda one: sorted(one.topics or ())):
        if groups and (one.topics != topics or size + one.size > AT_ONCE):
            yield groups, topics
            groups, size = [], 0
        groups.append(one.group)
        topics, size = one.topics, size + one.size
    if groups:
        yield groups, topics


def _counts(
    connection: ZooKeeperClient, names: Sequence[str], options: GroupsOptions
) -> dict[str, dict[str, int]]:
    """Group -> topic -> znodes below it."""
    counts: dict[str, dict[str, int]] = {name: {} for name in names}
    rooms = {
        f"{paths.group(name)}/{room}": name for name in names for room in _ROOMS[options.table]
    }
    below = {
        f"{room}/{topic}": (rooms[room], topic)
        for room, topics in connection.listable(rooms).items()
        for topic in topics
        if options.topics is None or topic in options.topics
    }
    for path, partitions in connection.listable(below).items():
        name, topic = below[path]
        counts[name][topic] = counts[name].get(topic, 0) + len(partitions)
    return counts


def _subscribed(connection: ZooKeeperClient, name: str, options: GroupsOptions) -> Collection[str]:
    """The topics that count though the group has nothing of them yet."""
    if options.table is not Table.LAG and not options.ask_kafka:
        return frozenset()
    images = read_groups(connection, [name], rooms=(MEMBERS,))
    payloads = read_topic_payloads(connection, images.values())
    found = {
        topic
        for image in images.values()
        for topic in requested_topics(image.members, payloads).threads
    }
    return found if options.topics is None else found & options.topics


def _dealt(pieces: list[Piece], options: GroupsOptions) -> list[list[Piece]]:
    """The largest first, each to whom has least; topics of one group in one task are one piece."""
    total = sum(one.size for one in pieces)
    tasks = min(options.parallelism, ceil(total / LEAST), len(pieces))
    shares: list[dict[str, Piece]] = [{} for _ in range(tasks)]
    least = [(0, number) for number in range(tasks)]
    for piece in sorted(pieces, key=lambda one: (-one.size, one.group)):
        load, number = heapq.heappop(least)
        before = shares[number].get(piece.group)
        if before and before.topics is not None and piece.topics is not None:
            joined = before.topics | piece.topics
            shares[number][piece.group] = Piece(piece.group, joined, before.size + piece.size)
        else:
            shares[number][piece.group] = piece
        heapq.heappush(least, (load + piece.size, number))
    return [list(share.values()) for share in shares]


# ---- source --------------------------------------------------------------------------------------


ROWS: Final = 10_000
"""Rows of one record batch at most: Spark keeps a whole one in memory."""

WAIT_S: Final = 0.1
"""Spark asks for news every 10 ms; an answer that there is none takes so long, to spare a core."""


class GroupsSource(Pickled, DataSource):
    """What Spark finds by its name; options and tables are described in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "zkconsumer-groups"

    @one_sentence()
    def schema(self) -> StructType:
        return schema_of(self._parsed().table)

    @one_sentence()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed()
        if options.table.is_stream:
            raise SparkSourceError(
                f"{options.table.value} is a stream", where="table", remedy="use spark.readStream"
            )
        columns_of(schema, COLUMNS[options.table])
        return TableReader(options, schema)

    @one_sentence()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._parsed()
        if not options.table.is_stream:
            raise SparkSourceError(
                f"{options.table.value} is no stream",
                where="table",
                remedy=f"{Table.OWNER_CHANGES.value}, {Table.OFFSET_CHANGES.value}, or spark.read",
            )
        columns_of(schema, COLUMNS[options.table])
        return ChangesReader(options, schema)

    def _parsed(self) -> GroupsOptions:
        return parse(self.options)


# ---- tables -----------------------------------------------------------------------------------


@dataclass
class Share(InputPartition):
    """What one task reads."""

    pieces: Sequence[Piece]


class TableReader(Pickled, DataSourceReader):
    """The driver deals the groups out, and each task reads its own over one connection."""

    def __init__(self, options: GroupsOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    @one_sentence()
    def partitions(self) -> Sequence[InputPartition]:
        log_to_stderr()
        with ZooKeeperClient(self._options.config) as connection:
            return [Share(pieces) for pieces in plan(connection, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):  # Spark's own, where there is no group at all
            return
        log_to_stderr()
        with one_sentence(), ZooKeeperClient(self._options.config) as connection:
            reader = Reader(connection, self._options, self._schema.names)
            for groups, topics in chunks(partition.pieces):
                yield from record_batches(reader.rows(groups, topics), self._schema)


def record_batches(rows: Sequence[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows with the columns of a schema; a row lacks those that are null."""
    types = to_arrow_schema(schema, timezone="UTC")
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        columns = [pa.array([row.get(one.name) for row in part], one.type) for one in types]
        yield pa.RecordBatch.from_arrays(columns, schema=types)


# ---- changes ----------------------------------------------------------------------------------


@dataclass
class Between(InputPartition):
    """The two offsets of a batch, which say all of it."""

    start: Mapping[str, Any]
    end: Mapping[str, Any]


class ChangesReader(Pickled, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads owners or offsets from time to time; a batch is what differs from the last reading.

    Several changes of one znode between two readings are one row, of the first `old` to the last
    `new`; one that was undone is none, unless the znode was written, which its zxid shows. Of an
    offset, `merged` says how many commits a row stands for beside its own. None is lost otherwise:
    not by a restart, nor while no query ran, since the checkpoint keeps what was read last.

    A reading is not a transaction: changes of two znodes may be told in the wrong order of batches,
    never those of one. `sync` goes before it, so that no server shows what is older than told.
    """

    def __init__(self, options: GroupsOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._connection: ZooKeeperClient | None = None
        self._due_s = 0.0
        self._target: dict[Key, State] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return changes.NOTHING

    @one_sentence()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._read()

    @one_sentence()
    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        """What is there now; `start` itself, which Spark compares as text, where nothing changed.

        Raises SparkSourceError for another source's checkpoint, and as `Connection` does.
        """
        left_s = self._due_s - time.monotonic()
        if self._target is None and left_s > 0:
            time.sleep(min(WAIT_S, left_s))
            return start
        before = changes.from_offset(self._options.table, start)
        now = self._read() if self._target is None else self._target
        self._due_s = time.monotonic() + self._options.poll_interval_s
        if start and now == before:
            return start
        return changes.to_offset(
            self._options.table,
            now,
            read_ms=time.time_ns() // 1_000_000,
            is_first=self._options.from_now and not start,
        )

    def _read(self) -> dict[Key, State]:
        if self._connection is None:
            self._settle()
            connection = ZooKeeperClient(self._options.config)
            connection.__enter__()
            self._connection = connection
        connection = self._connection
        connection.sync(paths.CONSUMERS)
        names = self._options.selected(read_group_names(connection))
        room = OWNERS if self._options.table is Table.OWNER_CHANGES else OFFSETS
        images = read_groups(connection, names, rooms=(room,), topics=self._options.topics)
        return changes.reading(images.values())

    def _settle(self) -> None:
        """See to the process that Spark has made for this reader."""
        log_to_stderr()
        end_on_sigterm(self.stop)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [] if end.get("first") else [Between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Between)
        with one_sentence():
            rows = list(changes.between(self._options.table, partition.start, partition.end))
        yield from record_batches(rows, self._schema)

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None
