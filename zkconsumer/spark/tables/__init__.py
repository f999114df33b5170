"""Groups of a whole cluster as DataFrames: members, owners, offsets, lag, and what changes.

    from zkconsumer.spark import tables

    behind = tables.lag(spark, zookeeper="zk1:2181/kafka").groupBy("group").sum("lag")

Each action reads anew, in tasks side by side; within one action a DataFrame is a reading, not a
transaction. A row that cannot be read says why in its `error`. The columns are those of
`zkconsumer.spark.tables.rows.COLUMNS`, described in docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Required, TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from zkconsumer.spark.process_lifecycle import load
from zkconsumer.spark.schema import columns_of
from zkconsumer.spark.tables.options import Table
from zkconsumer.spark.tables.rows import COLUMNS

FORMAT = "zkconsumer-groups"


class Asked(TypedDict, total=False):
    """Which groups a table is of, and how it is read; all but `zookeeper` may be left out.

    Attributes:
        zookeeper: `host:port[,host:port...][/chroot]`.
        groups: these only, as far as they exist; an empty collection is an error.
        groups_pattern: those whose whole name this regex matches (Java's syntax, as a white list).
        topics: whose owners and offsets; not for members.
        storage: of offsets and lag: `kafka` asks the brokers' storage, too.
        parallelism: tasks at most; by default `sparkContext.defaultParallelism`.
        poll_interval_s: of changes: seconds between two readings, by default 5.
        starting: of changes: `earliest` begins with all there is, as changes from nothing;
            `latest` with what changes from now on.
        columns: those that are needed; fewer cost less, and without log_start, log_end and lag no
            broker is asked.
        properties: the old consumer's `zookeeper.*` properties: times, authentication, TLS.
    """

    zookeeper: Required[str]
    groups: Collection[str]
    groups_pattern: str
    topics: Collection[str]
    storage: Literal["zookeeper", "kafka"]
    parallelism: int
    poll_interval_s: float
    starting: Literal["earliest", "latest"]
    columns: Collection[str]
    properties: Mapping[str, str]


def members(spark: SparkSession, **asked: Unpack[Asked]) -> DataFrame:
    """The registered members: what they ask for, and how much they own.

    Raises, as all of these do, ConfigError for a column that the table has not; and Spark's
    AnalysisException with the reason for any other argument that is wrong, when it is read.
    """
    return _table(spark, Table.MEMBERS, asked)


def owners(spark: SparkSession, **asked: Unpack[Asked]) -> DataFrame:
    """Which thread owns which partition."""
    return _table(spark, Table.OWNERS, asked)


def offsets(spark: SparkSession, **asked: Unpack[Asked]) -> DataFrame:
    """What is committed, a row for each place where it is kept."""
    return _table(spark, Table.OFFSETS, asked)


def lag(spark: SparkSession, **asked: Unpack[Asked]) -> DataFrame:
    """How far each partition that a group has to do with is behind its log."""
    return _table(spark, Table.LAG, asked)


def owner_changes(spark: SparkSession, **asked: Unpack[Asked]) -> DataFrame:
    """A stream: partitions that are claimed, released, or moved to another thread.

    What may be merged into one row: `zkconsumer.spark.tables.source.ChangesReader`.
    """
    return _stream(spark, Table.OWNER_CHANGES, asked)


def offset_changes(spark: SparkSession, **asked: Unpack[Asked]) -> DataFrame:
    """A stream: offsets in ZooKeeper that are committed or deleted; as `owner_changes`."""
    return _stream(spark, Table.OFFSET_CHANGES, asked)


def _table(spark: SparkSession, table: Table, asked: Asked) -> DataFrame:
    parallelism = asked.get("parallelism") or spark.sparkContext.defaultParallelism
    options = _options(table, {**asked, "parallelism": parallelism})
    return load(spark.read.format(FORMAT).schema(_schema(table, asked)).options(**options))


def _stream(spark: SparkSession, table: Table, asked: Asked) -> DataFrame:
    options = _options(table, asked)
    return load(spark.readStream.format(FORMAT).schema(_schema(table, asked)).options(**options))


def _options(table: Table, asked: Asked) -> dict[str, str]:
    """The format's options, by the names that they have there."""
    given = {
        "table": table.value,
        "zookeeper": asked["zookeeper"],
        "groupsPattern": asked.get("groups_pattern"),
        "offsets.storage": asked.get("storage"),
        "parallelism": asked.get("parallelism"),
        "startingOffsets": asked.get("starting"),
        **asked.get("properties", {}),
    }
    found = {name: str(value) for name, value in given.items() if value is not None}
    if "groups" in asked:
        found["groups"] = ",".join(asked["groups"])
    if "topics" in asked:
        found["topics"] = ",".join(asked["topics"])
    if "poll_interval_s" in asked:
        found["poll.interval.ms"] = str(round(asked["poll_interval_s"] * 1000))
    return found


def _schema(table: Table, asked: Asked) -> StructType:
    types = COLUMNS[table]
    columns = asked.get("columns", types)
    schema = StructType([StructField(name, types.get(name, StringType())) for name in columns])
    columns_of(schema, types)
    return schema
