"""`format("zkconsumer-history")` on a real Spark: tables, streams, other filesystems, damage."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from spark.history_source import RestartedStream, loaded
from support.zk.history_logs import LogWriter, changed, created, every_kind, number

from zkconsumer.errors import ConfigError, ZkConsumerError
from zkconsumer.history import transactions as tx
from zkconsumer.history.describe import Description
from zkconsumer.history.inputs import History, find_servers
from zkconsumer.history.tables import TABLES, as_dict, transaction
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.spark.history import (
    MOMENTS,
    HistorySource,
    LogPart,
    TransactionsStream,
    column_name,
    deduplicated,
    schema_of,
    transactions_of,
)


def group(directory: Path) -> LogWriter:
    """The log of a member that joins, claims, commits and expires."""
    log = LogWriter()
    log.add(tx.CREATE, created(paths.topic("t"), b'{"version":1,"partitions":{"0":[1]}}'))
    log.add(tx.CREATE_SESSION, number(6000))
    data = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    log.add(tx.CREATE, created(paths.member("g", "g_a"), data, ephemeral=True))
    tp = TopicPartition("t", 0)
    log.add(tx.CREATE, created(paths.owner("g", tp), b"g_a-0", ephemeral=True), ms=100)
    for n in (10, 20, 5):
        log.add(tx.SET_DATA, changed(paths.offset("g", tp), b"%d" % n), ms=100)
    log.add(tx.CLOSE_SESSION, b"", cxid=0, ms=9000)
    log.write(directory)
    return log


def as_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return rows whose times are in milliseconds, as in the tables."""
    found = []
    for row in frame.collect():
        values = row.asDict(recursive=True)
        found.append(dict(_untimed(values)))
    return found


def _untimed(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    moments = {column_name(name): name for name in MOMENTS}
    for name, value in values.items():
        if name in moments:
            yield moments[name], None if value is None else round(value.timestamp() * 1000)
        elif name != "damage":
            yield name, bytes(value) if isinstance(value, bytearray) else value


def test_transactions(spark: SparkSession, tmp_path: Path) -> None:
    """The source, `binaryFile` and the plain reader return the same rows of each type."""
    every_kind().write(tmp_path)
    expected = [
        as_dict(transaction(row, batch.file))
        for batch in History(find_servers([tmp_path])).batches()
        for row in batch.rows
    ]
    assert as_rows(loaded(spark, tmp_path)) == expected
    found = as_rows(transactions_of(spark, str(tmp_path)))
    assert [row | {"file": ""} for row in found] == [row | {"file": ""} for row in expected]


@pytest.mark.parametrize("table", [name for name in TABLES if name != "transactions"])
def test_tables(spark: SparkSession, tmp_path: Path, table: str) -> None:
    """Each table has the rows that the command line shows, in columns of Spark types."""
    group(tmp_path)
    description = Description(find_servers([tmp_path]))
    description.read()
    expected = [as_dict(row) for row in getattr(description.result().tables, table)]
    assert expected
    assert as_rows(loaded(spark, tmp_path, table)) == expected


def test_servers_of_an_ensemble(spark: SparkSession, tmp_path: Path) -> None:
    """After `deduplicated`, a transaction that several servers wrote appears once."""
    for name in ("one", "two"):
        group(tmp_path / name)
    frame = loaded(spark, tmp_path)
    assert frame.count() == 2 * 8
    assert deduplicated(frame).count() == 8


def test_damage_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged log gives the rows before the damage, then a row that names file and byte."""
    log = group(tmp_path)
    content = bytearray(log.content())
    content[-20] ^= 1
    (tmp_path / "log.1").write_bytes(content)
    *good, bad = loaded(spark, tmp_path).collect()
    assert len(good) == 7
    assert f"{tmp_path / 'log.1'}, byte" in bad["damage"]


def test_a_stream_warns_of_damage_that_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream ends before a damaged place, and reports it once if it is there at a second look."""
    log = group(tmp_path)
    content = bytearray(log.content())
    content[-20] ^= 1
    (tmp_path / "log.1").write_bytes(content)
    stream = TransactionsStream([str(tmp_path)])
    ends = stream.latestOffset({}, None)
    assert caplog.messages == []
    assert stream.latestOffset(ends, None) == ends
    assert stream.latestOffset(ends, None) == ends
    (text,) = caplog.messages
    assert f"{tmp_path / 'log.1'}, byte" in text


def test_a_stream_of_a_compressed_log(tmp_path: Path) -> None:
    """A log that is compressed is not delivered again; only what it has got since is."""
    log = group(tmp_path)
    stream = TransactionsStream([str(tmp_path)])
    start = stream.latestOffset({}, None)
    log.add(tx.CREATE_SESSION, number(6000), session=7)
    (tmp_path / "log.1").unlink()
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(log.content()))
    end = stream.latestOffset(start, None)
    (part,) = stream.partitions(start, end)
    assert isinstance(part, LogPart)
    assert [row for batch in stream.read(part) for row in batch["zxid"].to_pylist()] == [9]
    assert not stream.partitions(end, stream.latestOffset(end, None))


def test_a_stream_of_a_growing_log(spark: SparkSession, tmp_path: Path) -> None:
    """A stream reads appended transactions and new logs; a restarted query repeats no row."""
    logs = tmp_path / "logs"
    log = group(logs)
    stream = RestartedStream(spark, logs, tmp_path)
    assert stream.run() == list(range(1, 9))
    log.add(tx.CREATE_SESSION, number(6000), session=7)
    (logs / "log.1").write_bytes(log.content()[:-4] + bytes(64))  # The last transaction is cut off.
    assert stream.run() == list(range(1, 9))
    log.write(logs, zeros=64)
    second = LogWriter(zxid=log.zxid)
    second.add(tx.CREATE_SESSION, number(6000), session=8)
    second.write(logs, "log.a")
    assert stream.run() == list(range(1, 11))


def test_wrong_options(spark: SparkSession, tmp_path: Path) -> None:
    """For an unknown table, the error lists the existing tables."""
    with pytest.raises(AnalysisException, match="there is no table 'owners'"):
        loaded(spark, tmp_path, "owners")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "members", "path": "/logs"}, "the table members cannot be read as a stream"),
        ({}, "the path is missing (path)"),
        ({"groups": "g", "path": "/logs"}, "contains the operations of all programs (groups)"),
    ],
)
def test_wrong_options_of_a_stream(options: dict[str, str], text: str) -> None:
    """The first call of a stream's reader says what is wrong; Spark hides earlier errors."""
    reader = HistorySource(options).streamReader(schema_of("transactions"))
    with pytest.raises(ZkConsumerError) as raised:
        reader.initialOffset()
    assert text in str(raised.value)


def test_transactions_of_groups(tmp_path: Path) -> None:
    """The table of all operations refuses the option `groups` instead of ignoring it."""
    with pytest.raises(ConfigError, match="contains the operations of all programs"):
        HistorySource({"groups": "g", "path": str(tmp_path)}).schema()
