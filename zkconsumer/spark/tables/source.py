"""`format("zkconsumer-groups")`: groups of a whole cluster as tables, and as streams of changes.

    spark.read.format("zkconsumer-groups").option("zookeeper", "zk1:2181/kafka")
        .option("table", "lag").load()

Spark creates these objects and calls them in separate processes. Their constructors access no
server. The driver divides a table's groups among tasks of about equal size. Listing is cheap
compared with reading: it needs one request for each topic of a group, and none for a partition.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from zkconsumer.admin.groups import (
    GroupImage,
    read_group_names,
    read_readable_parts,
    read_topic_payloads,
)
from zkconsumer.errors import SparkSourceError, ZkConsumerError
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import requested_topics
from zkconsumer.protocol.group_znodes import MEMBERS, OFFSETS, OWNERS
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import end_on_sigterm, errors_as_text, log_to_stderr
from zkconsumer.spark.read_only import ReadOnlySource, RefusingStreamReader
from zkconsumer.spark.schema import columns_of
from zkconsumer.spark.tables import changes
from zkconsumer.spark.tables.changes import Key, ZnodeReading
from zkconsumer.spark.tables.options import GroupsOptions, Table, parse
from zkconsumer.spark.tables.rows import COLUMNS, Row, RowReader, schema_of
from zkconsumer.zk.client import ZooKeeperClient

_log = SafeLogger(logging.getLogger(__name__))

# ---- Which task reads which groups ---------------------------------------------------------------


MIN_ZNODES_PER_TASK: Final = 1_000
"""Minimum number of znodes for a separate task: starting a task and connecting takes as long as
reading this many znodes.
"""

ZNODES_PER_READ: Final = 20_000
"""Approximate number of znodes that a task reads at once. More would need more memory without being
faster.
"""

_DIRECTORIES: Final[Mapping[Table, tuple[str, ...]]] = {
    Table.MEMBERS: (MEMBERS,),
    Table.OWNERS: (OWNERS,),
    Table.OFFSETS: (OFFSETS,),
    Table.LAG: (OWNERS, OFFSETS),
}


class GroupSlice(NamedTuple):
    """A group, or some topics of a large group (None: all topics), and its approximate number of
    znodes.
    """

    group: str
    topics: frozenset[str] | None
    size: int


def plan(connection: ZooKeeperClient, options: GroupsOptions) -> list[list[GroupSlice]]:
    """Return the slices of groups of each task; no task if there is no group.

    A group whose znodes may not be listed is also assigned to a task, which reports the error.
    """
    names = options.selected(read_group_names(connection))
    if options.table is Table.MEMBERS:
        found = connection.permitted_children(map(paths.ids, names))
        sizes = {name: 1 + len(found.get(paths.ids(name), ())) for name in names}
        return _distributed([GroupSlice(name, None, size) for name, size in sizes.items()], options)
    counts = _counts(connection, names, options)
    total = sum(sum(topics.values()) for topics in counts.values())
    share = ceil(max(total, MIN_ZNODES_PER_TASK) / options.parallelism)
    slices = []
    for name, topics in counts.items():
        size = 1 + sum(topics.values())
        if size <= share or len(topics) == 1 or not _may_be_split(connection, name):
            slices.append(GroupSlice(name, options.topics, size))
            continue
        rest = _subscribed(connection, name, options) - topics.keys()
        parts = [*topics.items(), *dict.fromkeys(rest, 1).items()]
        slices += [GroupSlice(name, frozenset([topic]), 1 + count) for topic, count in parts]
    return _distributed(slices, options)


def chunks(slices: Sequence[GroupSlice]) -> Iterator[tuple[list[str], frozenset[str] | None]]:
    """Yield the groups, with their topics, that a task reads together."""
    groups: list[str] = []
    topics: frozenset[str] | None = None
    size = 0
    for one in sorted(slices, key=lambda one: sorted(one.topics or ())):
        if groups and (one.topics != topics or size + one.size > ZNODES_PER_READ):
            yield groups, topics
            groups, size = [], 0
        groups.append(one.group)
        topics, size = one.topics, size + one.size
    if groups:
        yield groups, topics


def _counts(
    connection: ZooKeeperClient, names: Sequence[str], options: GroupsOptions
) -> dict[str, dict[str, int]]:
    """Return the number of znodes below each topic of each group."""
    counts: dict[str, dict[str, int]] = {name: {} for name in names}
    parents = {
        f"{paths.group(name)}/{directory}": name
        for name in names
        for directory in _DIRECTORIES[options.table]
    }
    below = {
        f"{parent}/{topic}": (parents[parent], topic)
        for parent, topics in connection.permitted_children(parents).items()
        for topic in topics
        if options.topics is None or topic in options.topics
    }
    for path, partitions in connection.permitted_children(below).items():
        name, topic = below[path]
        counts[name][topic] = counts[name].get(topic, 0) + len(partitions)
    return counts


def _may_be_split(connection: ZooKeeperClient, name: str) -> bool:
    """Return whether tasks may share a group: each would report an unreadable znode that belongs to
    no topic."""
    images = read_readable_parts(connection, [name], topics=())
    return not any(image.denial for image in images.values())


def _subscribed(connection: ZooKeeperClient, name: str, options: GroupsOptions) -> Collection[str]:
    """Return the subscribed topics that the table includes although the group has no znodes for
    them yet.
    """
    if options.table is not Table.LAG and not options.ask_kafka:
        return frozenset()
    images = read_readable_parts(connection, [name], directories=(MEMBERS,))
    payloads = read_topic_payloads(connection, images.values())
    found = {
        topic
        for image in images.values()
        for topic in requested_topics(image.members, payloads).threads
    }
    return found if options.topics is None else found & options.topics


def _distributed(slices: list[GroupSlice], options: GroupsOptions) -> list[list[GroupSlice]]:
    """Distribute slices over tasks, the largest first and always to the smallest task.

    Topics of one group in one task become one slice.
    """
    total = sum(one.size for one in slices)
    tasks = min(options.parallelism, ceil(total / MIN_ZNODES_PER_TASK), len(slices))
    shares: list[dict[str, GroupSlice]] = [{} for _ in range(tasks)]
    least = [(0, number) for number in range(tasks)]
    for part in sorted(slices, key=lambda one: (-one.size, one.group)):
        load, number = heapq.heappop(least)
        before = shares[number].get(part.group)
        if before and before.topics is not None and part.topics is not None:
            joined = before.topics | part.topics
            shares[number][part.group] = GroupSlice(part.group, joined, before.size + part.size)
        else:
            shares[number][part.group] = part
        heapq.heappush(least, (load + part.size, number))
    return [list(share.values()) for share in shares]


# ---- The data source -----------------------------------------------------------------------------


ROWS: Final = 10_000
"""Maximum number of rows in a record batch: Spark keeps a whole batch in memory."""

WAIT_S: Final = 0.1
"""Seconds for which an answer without changes is delayed. Spark asks every 10 ms, so immediate
answers would occupy a core.
"""


class GroupsSource(ReadOnlySource):
    """The data source that Spark finds by its name. docs/spark.md describes its options and
    tables.
    """

    @classmethod
    def name(cls) -> str:
        return "zkconsumer-groups"

    @errors_as_text()
    def schema(self) -> StructType:
        return schema_of(self._parsed().table)

    @errors_as_text()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed()
        if options.table.is_stream:
            raise SparkSourceError(
                f"{options.table.value} is a stream", where="table", remedy="use spark.readStream"
            )
        columns_of(schema, COLUMNS[options.table])
        return TableReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            options = self._parsed()
            if not options.table.is_stream:
                raise SparkSourceError(
                    f"{options.table.value} is not a stream",
                    where="table",
                    remedy=f"use {Table.OWNER_CHANGES.value}, {Table.OFFSET_CHANGES.value},"
                    " or spark.read",
                )
            columns_of(schema, COLUMNS[options.table])
        except ZkConsumerError as error:
            return RefusingStreamReader(error)
        return ChangesReader(options, schema)

    def _parsed(self) -> GroupsOptions:
        return parse(self.options)


# ---- Tables --------------------------------------------------------------------------------------


@dataclass
class TableTask(InputPartition):
    """The groups that one task reads."""

    slices: Sequence[GroupSlice]


class TableReader(Pickled, DataSourceReader):
    """Divides the groups among tasks on the driver; each task reads its groups over one
    connection.
    """

    def __init__(self, options: GroupsOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    @errors_as_text()
    def partitions(self) -> Sequence[InputPartition]:
        log_to_stderr()
        with ZooKeeperClient(self._options.config) as connection:
            return [TableTask(slices) for slices in plan(connection, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TableTask):  # Spark's own task for an empty plan
            return
        log_to_stderr()
        with (
            errors_as_text(),
            ZooKeeperClient(self._options.config) as connection,
            closing(RowReader(connection, self._options, self._schema.names)) as reader,
        ):
            for groups, topics in chunks(partition.slices):
                yield from record_batches(reader.rows(groups, topics), self._schema)


def record_batches(rows: Sequence[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of a schema. A row omits columns that are null."""
    types = to_arrow_schema(schema, timezone="UTC")
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        columns = [pa.array([row.get(one.name) for row in part], one.type) for one in types]
        yield pa.RecordBatch.from_arrays(columns, schema=types)


# ---- Changes -------------------------------------------------------------------------------------


@dataclass
class BatchBounds(InputPartition):
    """The two offsets of a batch, which describe the batch completely."""

    start: Mapping[str, object]
    end: Mapping[str, object]


class ChangesReader(Pickled, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads owners or offsets at intervals; a batch contains the differences to the last reading.

    Several changes of one znode between two readings become one row, from the first `old` to the
    last `new`. A change that was reverted becomes a row only if the znode's zxid shows that the
    znode was written. For an offset, `merged` is the number of further commits that the row
    represents. All other changes appear, even after a restart and after a time without a running
    query, because the checkpoint contains the last reading.

    A reading is not a transaction. Changes of two znodes may appear in batches in the wrong order;
    changes of one znode never do. Each reading starts with `sync`, so it is never older than the
    last one.

    The changes of znodes that ZooKeeper does not allow to be read appear as soon as they may be
    read again. A warning names the group and these znodes once.
    """

    def __init__(self, options: GroupsOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._connection: ZooKeeperClient | None = None
        self._due_s = 0.0
        self._target: dict[Key, ZnodeReading] | None = None
        self._partial: dict[str, GroupImage] = {}
        self._warned: set[str] = set()

    def initialOffset(self) -> dict[str, object]:
        return changes.NO_READING

    @errors_as_text()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._read()

    @errors_as_text()
    def latestOffset(self, start: dict[str, object], limit: object) -> dict[str, object]:
        """Return the present reading, or `start` itself if nothing changed: Spark compares the two
        as text.

        Raises SparkSourceError if another source wrote the checkpoint, and what `ZooKeeperClient`
        raises.
        """
        left_s = self._due_s - time.monotonic()
        if self._target is None and left_s > 0:
            time.sleep(min(WAIT_S, left_s))
            return start
        before = changes.from_offset(self._options.table, start)
        now = self._read() if self._target is None else self._target
        now |= {key: one for key, one in before.items() if self._is_hidden(key)}
        self._due_s = time.monotonic() + self._options.poll_interval_s
        if start and now == before:
            return start
        return changes.to_offset(
            self._options.table,
            now,
            read_ms=time.time_ns() // 1_000_000,
            is_first=self._options.from_now and not start,
        )

    def _read(self) -> dict[Key, ZnodeReading]:
        if self._connection is None:
            self._set_up_process()
            connection = ZooKeeperClient(self._options.config)
            connection.__enter__()
            self._connection = connection
        connection = self._connection
        connection.sync()
        names = self._options.selected(read_group_names(connection))
        directory = OWNERS if self._options.table is Table.OWNER_CHANGES else OFFSETS
        images = read_readable_parts(
            connection, names, directories=(directory,), topics=self._options.topics
        )
        self._partial = {name: image for name, image in images.items() if image.denial}
        for name in self._partial.keys() - self._warned:
            _log.warning(
                "group %s: some changes are not reported: %s", name, self._partial[name].denial
            )
        self._warned |= self._partial.keys()
        return changes.states_of(images.values())

    def _is_hidden(self, key: Key) -> bool:
        """Return whether a znode may exist although the last reading does not have it."""
        group, topic, partition = key
        path_of = paths.owner if self._options.table is Table.OWNER_CHANGES else paths.offset
        image = self._partial.get(group)
        return image is not None and bool(
            image.refusal(path_of(group, TopicPartition(topic, partition)))
        )

    def _set_up_process(self) -> None:
        """Set up logging and shutdown of the process that Spark created for this reader."""
        log_to_stderr()
        end_on_sigterm(self.stop)

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        return [] if end.get("first") else [BatchBounds(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BatchBounds)
        with errors_as_text():
            rows = list(
                changes.changes_between(self._options.table, partition.start, partition.end)
            )
        yield from record_batches(rows, self._schema)

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None
