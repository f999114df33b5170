"""`format("zkconsumer-history")`: ZooKeeper's transaction logs as tables and as a stream.

    spark.read.format("zkconsumer-history").option("table", "rebalances").load("/var/lib/zookeeper")
    spark.readStream.format("zkconsumer-history").load("/var/lib/zookeeper")

A query of the table `transactions` has one task for each file. The rows of the other tables depend
on the state of each group from the first transaction on, so one task reads all files, ordered by
zxid.

Python's data sources open files in Python, so each executor must be able to open the path. It may
be a URL such as `hdfs://host:port/logs`, which fsspec reads (extra `hdfs`). For a filesystem
without a Python package, `transactions_of` reads files with Spark's own `binaryFile`.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zkconsumer.errors import BadFileError, ConfigError, DamagedFileError, ZkConsumerError
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import by_uncompressed_name, find_servers, uncompressed
from zkconsumer.history.logs import LogReader, LogSource, RowBatch
from zkconsumer.history.tables import TABLES, Event, as_columns, columns_of
from zkconsumer.history.transactions import (
    CLOSE_SESSION,
    CREATE,
    CREATE2,
    CREATE_SESSION,
    CREATE_TTL,
    ERROR,
    KINDS,
    MULTI,
    VERSIONED,
)
from zkconsumer.protocol.model import Json
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import (
    errors_as_text,
    log_to_stderr,
    skip_imports_in_collections,
)
from zkconsumer.spark.read_only import ReadOnlySource, RefusingStreamReader

if TYPE_CHECKING:
    from zkconsumer.history.columns import ColumnDecoder

_log = SafeLogger(logging.getLogger(__name__))

MOMENTS: Final = frozenset(
    {"time_ms", "ended_ms", "settled_ms", "first_release_ms", "last_claim_ms", "last_ms"}
)
"""Columns with a time since the epoch. In Spark these columns have the type timestamp;
`column_name` returns their names."""

_TYPES: Final[Mapping[type, DataType]] = {
    int: LongType(),
    str: StringType(),
    bytes: BinaryType(),
    bool: BooleanType(),
    float: DoubleType(),
}

POLL_S: Final = 1.0
"""Seconds between two checks of the files by a stream."""

ROWS: Final = 10_000
"""Number of rows of a record batch, for all tables except `transactions`."""


def schema_of(table: str) -> StructType:
    """Return the columns of a table. Raises ConfigError for an unknown table."""
    if table not in TABLES:
        raise ConfigError(
            f"there is no table {table!r}",
            where="table",
            remedy=f"use one of {', '.join(TABLES)}",
        )
    return StructType(
        [_field(name, hint) for name, hint in columns_of(TABLES[table]).items()]
        + ([StructField("damage", StringType())] if table == "transactions" else [])
    )


def column_name(name: str) -> str:
    """Return Spark's name of a column: `time` for `time_ms`, `ended_at` for `ended_ms`."""
    if name not in MOMENTS:
        return name
    return "time" if name == "time_ms" else name.removesuffix("_ms") + "_at"


def _field(name: str, hint: Any) -> StructField:  # Any: a class, or a type with arguments
    if name in MOMENTS:
        return StructField(column_name(name), TimestampType())
    if isinstance(hint, UnionType):
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is list:
        return StructField(name, ArrayType(StringType()))
    if get_origin(hint) is dict:
        return StructField(name, MapType(StringType(), LongType()))
    return StructField(name, _TYPES[hint])


class HistorySource(ReadOnlySource):
    """The data source; Spark creates it with the options of the query."""

    @classmethod
    def name(cls) -> str:
        return "zkconsumer-history"

    @errors_as_text()
    def schema(self) -> StructType:
        return schema_of(self._table)

    @errors_as_text()
    def reader(self, schema: StructType) -> DataSourceReader:
        return HistoryReader(self._paths, self._table, self._groups)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            if self._table != "transactions":
                raise ConfigError(
                    f"the table {self._table} cannot be read as a stream",
                    where="table",
                    remedy="stream the table transactions, or read this one with spark.read",
                )
            return TransactionsStream(self._paths)
        except ZkConsumerError as error:
            return RefusingStreamReader(error)

    @property
    def _table(self) -> str:
        table = str(self.options.get("table", "transactions"))
        if table == "transactions" and self._groups:
            raise ConfigError(
                "the table transactions contains the operations of all programs",
                where="groups",
                remedy="remove the option, and filter the rows by their path",
            )
        return table

    @property
    def _paths(self) -> list[str]:
        paths = [one.strip() for one in str(self.options.get("path", "")).split(",")]
        found = [one.removeprefix("file://") for one in paths if one]
        if not found:
            raise ConfigError("the path is missing", where="path", remedy="use .load(PATH)")
        return found

    @property
    def _groups(self) -> list[str]:
        names = str(self.options.get("groups", "")).split(",")
        return [name.strip() for name in names if name.strip()]


# ---- batch --------------------------------------------------------------------------------------


@dataclass
class LogPart(InputPartition):
    """A log, and the range of bytes that a task reads of it; `end` is -1 for the whole log."""

    path: str
    begin: int = 0
    end: int = -1


class HistoryReader(Pickled, DataSourceReader):
    """Reads a table."""

    def __init__(self, paths: Sequence[str], table: str, groups: Sequence[str]) -> None:
        self._paths, self._table, self._groups = list(paths), table, list(groups)

    @errors_as_text()
    def partitions(self) -> Sequence[InputPartition]:
        if self._table != "transactions":
            return [LogPart("")]
        servers = find_servers(self._paths)
        return [LogPart(log.name) for server in servers for log in server.logs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPart)
        log_to_stderr()
        with errors_as_text():
            if self._table == "transactions":
                yield from _transactions(partition, _opened(partition.path, self._paths))
            else:
                yield from self._rows()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        description = Description(find_servers(self._paths), self._groups)
        description.read()
        rows: list[Event] = getattr(description.result().tables, self._table)
        return table_batches(rows, self._table)


def table_batches(rows: Sequence[Event], table: str) -> Iterator[pa.RecordBatch]:
    """Yield rows of a table in the columns of `schema_of`; an empty batch if there are none."""
    schema = arrow_schema(table)
    names = list(columns_of(TABLES[table]))
    if table == "transactions":
        names.append("damage")
    for first in range(0, max(1, len(rows)), ROWS):
        columns = as_columns(rows[first : first + ROWS], TABLES[table])
        arrays = [
            _array(columns.get(name, []), name, field.type)
            for name, field in zip(names, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Return `schema_of` as Arrow's types."""
    return to_arrow_schema(schema_of(table), timezone="UTC")


def _array(values: list[Json], name: str, kind: pa.DataType) -> pa.Array:
    if name in MOMENTS:
        return pa.array(values, pa.timestamp("ms", "UTC")).cast(kind)
    if pa.types.is_map(kind):
        values = [list(value.items()) for value in values]
    return pa.array(values, kind)


def _decoder() -> ColumnDecoder | None:
    """Return the compiled decoder; None if the extra `fast` is missing, which makes decoding
    slower."""
    from zkconsumer.history.columns import (  # noqa: PLC0415 - loads numba, which plans do not need
        ColumnDecoder,
        can_compile,
    )

    return ColumnDecoder() if can_compile() else None


def _opened(name: str, paths: Sequence[str]) -> LogSource:
    """Return a log by its name; a log in an archive is unpacked again on the executor."""
    for given in ([name], paths):
        with suppress(BadFileError):
            logs = (log for server in find_servers(given) for log in server.logs)
            if found := next((log for log in logs if log.name == name), None):
                return found
    raise BadFileError(
        "the log existed when the query was planned, and has been deleted",
        where=name,
        remedy="keep the logs while they are read",
    )


def _transactions(part: LogPart, source: LogSource) -> Iterator[pa.RecordBatch]:
    """Yield a log's rows. If the log is damaged, the last row has the error in the column
    `damage`."""
    reader = LogReader(source, _decoder(), part.begin, part.end)
    try:
        for batch in reader.batches():
            yield transaction_batch(batch)
    except DamagedFileError as error:
        schema = arrow_schema("transactions")
        values = {"file": source.name, "damage": str(error)}
        yield pa.RecordBatch.from_arrays(
            [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
        )
    skip_imports_in_collections()


def transaction_batch(batch: RowBatch) -> pa.RecordBatch:
    """Return decoded rows as rows of the table `transactions`, column by column."""
    rows, schema = batch.columns, arrow_schema("transactions")
    found = {
        **transaction_columns(rows),
        "file": pa.repeat(batch.file, rows.num_rows),
        "kind": KIND_NAMES.take(kind_numbers(rows)),
    }
    return pa.RecordBatch.from_arrays([found[field.name] for field in schema], schema=schema)


KIND_NAMES: Final = pa.array(list(KINDS.values()))
"""The names of all kinds of transactions."""

_KIND_CODES: Final = pa.array(list(KINDS), pa.int8())


def kind_numbers(rows: pa.RecordBatch) -> pa.Array:
    """Return, for each row, the place of its kind in `KIND_NAMES`."""
    return pc.index_in(rows.column("kind"), _KIND_CODES)


def transaction_columns(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of the table `transactions`, except `file` and `kind`."""
    kind, number = rows.column("kind"), rows.column("number")

    def if_kind(kinds: Collection[int], values: pa.Array) -> pa.Array:
        is_one = pc.is_in(kind, pa.array(list(kinds), pa.int8()))
        if not pc.any(is_one).as_py():  # most batches have no row of a rare kind
            return pa.nulls(len(values), values.type)
        return pc.if_else(is_one, values, pa.scalar(None, values.type))

    part = rows.column("part").cast(pa.int64())
    time = rows.column("time_ms").cast(pa.timestamp("ms", "UTC"))
    return {
        "zxid": rows.column("zxid"),
        "time": time.cast(arrow_schema("transactions").field("time").type),
        "session": rows.column("session"),
        "cxid": rows.column("cxid").cast(pa.int64()),
        "part": pc.if_else(pc.less(part, 0), pa.scalar(None, pa.int64()), part),
        "path": rows.column("path"),
        "data": _data(rows),
        "version": if_kind(VERSIONED, rows.column("version").cast(pa.int64())),
        "ephemeral": if_kind([CREATE, CREATE2], pc.equal(number, 1)),
        "timeout_ms": if_kind([CREATE_SESSION], number),
        "ttl_ms": if_kind([CREATE_TTL], number),
        "error": if_kind([ERROR, MULTI], number),
        "damage": pa.nulls(rows.num_rows, pa.string()),
    }


def _data(rows: pa.RecordBatch) -> pa.Array:
    """Return the data of rows, without the deleted paths of sessions that ended."""
    is_close = pc.equal(rows.column("kind"), pa.scalar(CLOSE_SESSION, pa.int8()))
    if not pc.any(is_close).as_py():
        return rows.column("data")
    return pc.if_else(is_close, pa.scalar(None, pa.binary()), rows.column("data"))


# ---- stream -------------------------------------------------------------------------------------


class TransactionsStream(Pickled, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the transactions that servers append to new and growing logs, each transaction once.

    The offset of a batch is the end of the last whole transaction of each log, in bytes. So each
    row is delivered exactly once, even if the query restarts from its checkpoint.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._target: dict[str, int] | None = None
        self._decoder: ColumnDecoder | None = None
        self._due_s = 0.0
        self._seen: dict[str, tuple[str, int]] = {}  # log -> its stamp, and where it ended then
        self._damage: dict[str, DamagedFileError] = {}  # log -> the damage at which it ended
        self._reported: set[tuple[str, int]] = set()  # logs, and the bytes of reported damage

    def initialOffset(self) -> dict[str, int]:
        return {}

    @errors_as_text()
    def prepareForTriggerAvailableNow(self) -> None:
        log_to_stderr()
        self._target = self._ends({})
        self._report_damage(self._damage)

    @errors_as_text()
    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        """Return the present ends of the logs; check the files at most once per second."""
        log_to_stderr()
        if self._target is not None:
            return self._target
        time.sleep(max(0.0, min(POLL_S, self._due_s - time.monotonic())))
        self._due_s = time.monotonic() + POLL_S
        earlier = dict(self._damage)
        ends = self._ends(start)
        self._report_damage(earlier)
        return ends

    def _ends(self, start: Mapping[str, int]) -> dict[str, int]:
        """Return where the last whole transaction of each log ends."""
        ends, known = dict(start), by_uncompressed_name(start)
        self._decoder = self._decoder or _decoder()
        for server in find_servers(self._paths):
            for log in server.logs:
                stamp, end = self._seen.get(log.name, ("", 0))
                if log.stamp and log.stamp == stamp:
                    ends[log.name] = end
                    continue
                reader = LogReader(log, self._decoder, known.get(uncompressed(log.name), 0))
                try:
                    for _ in reader.batches():
                        pass
                    self._damage.pop(log.name, None)
                except DamagedFileError as error:
                    self._damage[log.name] = error  # the rows before it are still delivered
                ends[log.name] = reader.offset
                self._seen[log.name] = log.stamp, reader.offset
        return ends

    def _report_damage(self, earlier: Mapping[str, DamagedFileError]) -> None:
        """Log each damage once, if it was there earlier, too: a server may be writing the bytes."""
        for name, damage in self._damage.items():
            known, place = earlier.get(name), (name, damage.offset)
            if known is None or known.offset != damage.offset or place in self._reported:
                continue
            self._reported.add(place)
            _log.warning("%s; the stream ends there in this log, and waits for its repair", damage)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        known = by_uncompressed_name(start)
        begins = {name: known.get(uncompressed(name), 0) for name in end}
        return [
            LogPart(name, begins[name], until)
            for name, until in end.items()
            if until > begins[name]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPart)
        with errors_as_text():
            yield from _transactions(partition, _opened(partition.path, self._paths))


# ---- any filesystem -----------------------------------------------------------------------------


def transactions_of(spark: SparkSession, path: str) -> DataFrame:
    """Return the table `transactions` of the logs below a path of any filesystem that Spark reads.

    Spark reads each file as a whole, so a file may have up to 2 GB; one task decodes one file.
    """
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    logs = files.option("pathGlobFilter", "log.*").load(path).select("path", "content")
    return logs.mapInArrow(decode_files, schema_of("transactions"))


def decode_files(files: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode files with the columns path and content; for `mapInArrow`."""
    for batch in files:
        for path, content in zip(batch.column(0), batch.column(1), strict=True):
            data = content.as_buffer().to_pybytes()
            source = LogSource(path.as_py(), partial(io.BytesIO, data), len(data))
            yield from _transactions(LogPart(source.name), source)


def deduplicated(transactions: DataFrame) -> DataFrame:
    """Return each transaction once, even if several servers of one ensemble wrote it.

    Different transactions with one zxid are all kept.
    """
    return transactions.dropDuplicates([one for one in transactions.columns if one != "file"])
