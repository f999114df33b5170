"""`format("zkconsumer-groups")`: groups of a whole cluster as tables, and as streams of changes.

    spark.read.format("zkconsumer-groups").option("zookeeper", "zk1:2181/kafka")
        .option("table", "lag").load()

Spark makes these objects and calls them, in processes of its own: constructors touch nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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

from zkconsumer.admin.images import OFFSETS, OWNERS, read_group_names, read_groups
from zkconsumer.core import paths
from zkconsumer.errors import SparkSourceError
from zkconsumer.spark.lifecycle import end_on_sigterm, log_to_stderr, one_sentence
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.schema import columns_of
from zkconsumer.spark.tables import changes
from zkconsumer.spark.tables.changes import Key, State
from zkconsumer.spark.tables.options import GroupsOptions, Table, parse
from zkconsumer.spark.tables.plan import Piece, chunks, plan
from zkconsumer.spark.tables.rows import COLUMNS, Reader, Row, schema_of
from zkconsumer.zk.connection import Connection

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
                f"{options.table.value} is no stream", where="table",
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
        with Connection(self._options.config) as connection:
            return [Share(pieces) for pieces in plan(connection, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):  # Spark's own, where there is no group at all
            return
        log_to_stderr()
        with one_sentence(), Connection(self._options.config) as connection:
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
        self._connection: Connection | None = None
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
            self._options.table, now, read_ms=time.time_ns() // 1_000_000,
            is_first=self._options.from_now and not start,
        )

    def _read(self) -> dict[Key, State]:
        if self._connection is None:
            self._settle()
            connection = Connection(self._options.config)
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
