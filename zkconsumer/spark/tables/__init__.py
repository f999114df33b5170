"""Groups of a whole cluster as DataFrames: members, owners, offsets, lag, and their changes.

    from zkconsumer.spark import tables

    behind = tables.lag(spark, zookeeper="zk1:2181/kafka").groupBy("group").sum("lag")

Each action reads the data again, in parallel tasks. A read is not a transaction, so rows of one
result may show different moments. If the data of a row cannot be read, its column `error` has the
reason. The columns are those of `zkconsumer.spark.tables.rows.COLUMNS`; docs/spark.md describes
them.
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


class TableArguments(TypedDict, total=False):
    """The groups that a table contains, and how it is read. Only `zookeeper` is required.

    Attributes:
        zookeeper: `host:port[,host:port...][/chroot]`.
        groups: only these groups; groups that do not exist are left out, and an empty collection is
            an error.
        groups_pattern: only groups whose whole name matches this regex (in Java's syntax, as in a
            white list).
        topics: only owners and offsets of these topics; not for members.
        storage: for offsets and lag: `kafka` also reads the brokers' offset storage.
        parallelism: maximum number of tasks; by default `sparkContext.defaultParallelism`.
        poll_interval_s: for changes: seconds between two readings, by default 5.
        starting: for changes: `earliest` starts with the present state, as changes from nothing;
            `latest` starts with changes from now on.
        columns: the columns to read. Fewer columns cost less; without log_start, log_end and lag
            the brokers receive no request.
        properties: the old consumer's `zookeeper.*` properties: time limits, authentication, TLS.
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


def members(spark: SparkSession, **arguments: Unpack[TableArguments]) -> DataFrame:
    """Return the registered members: their subscriptions and how many partitions they own.

    Raises, as all functions of this module do, ConfigError for a column that the table does not
    have. For any other invalid argument Spark raises AnalysisException with the reason when the
    table is read.
    """
    return _table(spark, Table.MEMBERS, arguments)


def owners(spark: SparkSession, **arguments: Unpack[TableArguments]) -> DataFrame:
    """Return which thread owns which partition."""
    return _table(spark, Table.OWNERS, arguments)


def offsets(spark: SparkSession, **arguments: Unpack[TableArguments]) -> DataFrame:
    """Return the committed offsets, with one row for each place that stores them."""
    return _table(spark, Table.OFFSETS, arguments)


def lag(spark: SparkSession, **arguments: Unpack[TableArguments]) -> DataFrame:
    """Return the lag of each partition that a group owns, has offsets of, or subscribes to."""
    return _table(spark, Table.LAG, arguments)


def owner_changes(spark: SparkSession, **arguments: Unpack[TableArguments]) -> DataFrame:
    """Return a stream of partitions that are claimed, released, or moved to another thread.

    `zkconsumer.spark.tables.source.ChangesReader` says which changes may be merged into one row.
    """
    return _stream(spark, Table.OWNER_CHANGES, arguments)


def offset_changes(spark: SparkSession, **arguments: Unpack[TableArguments]) -> DataFrame:
    """Return a stream of the commits and deletions of offsets in ZooKeeper; see `owner_changes`."""
    return _stream(spark, Table.OFFSET_CHANGES, arguments)


def _table(spark: SparkSession, table: Table, arguments: TableArguments) -> DataFrame:
    parallelism = arguments.get("parallelism") or spark.sparkContext.defaultParallelism
    options = _options(table, {**arguments, "parallelism": parallelism})
    return load(spark.read.format(FORMAT).schema(_schema(table, arguments)).options(**options))


def _stream(spark: SparkSession, table: Table, arguments: TableArguments) -> DataFrame:
    options = _options(table, arguments)
    return load(
        spark.readStream.format(FORMAT).schema(_schema(table, arguments)).options(**options)
    )


def _options(table: Table, arguments: TableArguments) -> dict[str, str]:
    """Return the format's options under their documented names."""
    given = {
        "table": table.value,
        "zookeeper": arguments["zookeeper"],
        "groupsPattern": arguments.get("groups_pattern"),
        "offsets.storage": arguments.get("storage"),
        "parallelism": arguments.get("parallelism"),
        "startingOffsets": arguments.get("starting"),
        **arguments.get("properties", {}),
    }
    found = {name: str(value) for name, value in given.items() if value is not None}
    if "groups" in arguments:
        found["groups"] = ",".join(arguments["groups"])
    if "topics" in arguments:
        found["topics"] = ",".join(arguments["topics"])
    if "poll_interval_s" in arguments:
        found["poll.interval.ms"] = str(round(arguments["poll_interval_s"] * 1000))
    return found


def _schema(table: Table, arguments: TableArguments) -> StructType:
    types = COLUMNS[table]
    columns = arguments.get("columns", types)
    schema = StructType([StructField(name, types.get(name, StringType())) for name in columns])
    columns_of(schema, types)
    return schema
