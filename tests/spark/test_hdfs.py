"""`format("zkconsumer-history")` on a real HDFS, by its own protocol and over HTTP."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark.hadoop import Hdfs
from spark.history_source import FORMAT, RestartedStream, loaded
from support.zk.history_logs import LogWriter, every_kind, number

from zkconsumer.errors import BadFileError, HistoryError
from zkconsumer.history import transactions as tx
from zkconsumer.history.inputs import History, find_servers
from zkconsumer.sandbox.ports import free_port
from zkconsumer.spark import history_pipeline

INCIDENT = Path(__file__).parents[1] / "golden" / "history" / "incident.tar.gz"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """A NameNode and a DataNode."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as made:
        yield made


@pytest.fixture(scope="module")
def files(hdfs: Hdfs) -> fsspec.AbstractFileSystem:
    """The files of the HDFS, accessed as the user who started it."""
    return fsspec.filesystem("hdfs", host="127.0.0.1", port=int(hdfs.url.rpartition(":")[2]))


def put(files: fsspec.AbstractFileSystem, path: str, content: bytes) -> None:
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe(path, content)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows; the names of files have no directories."""
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return [row | {"file": row["file"].rpartition("/")[2]} for row in found]


@pytest.mark.parametrize("way", ["hdfs", "webhdfs"])
def test_transactions(
    spark: SparkSession, hdfs: Hdfs, files: fsspec.AbstractFileSystem, tmp_path: Path, way: str
) -> None:
    """Logs in a directory on HDFS, plain or compressed, give the same rows as on disk."""
    log = every_kind()
    later = LogWriter(zxid=log.zxid)
    later.add(tx.CREATE_SESSION, number(6000))
    contents = {"log.1": log.content(), "log.ff.gz": gzip.compress(later.content())}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        put(files, f"/{way}/logs/version-2/{name}", content)
    root = hdfs.url if way == "hdfs" else hdfs.web
    found = loaded(spark, f"{root}/{way}/logs")
    assert rows(found) == rows(loaded(spark, str(tmp_path)))
    names = {f"{root}/{way}/logs/version-2/{name}" for name in contents}
    assert {row.file for row in found.select("file").collect()} == names


def test_tables_of_an_archive(
    spark: SparkSession, hdfs: Hdfs, files: fsspec.AbstractFileSystem
) -> None:
    """From an archive of three servers, a table has the same rows as on disk."""
    put(files, "/archives/incident.tar.gz", INCIDENT.read_bytes())
    found = rows(loaded(spark, f"{hdfs.url}/archives/incident.tar.gz", "ownership"))
    assert found
    assert found == rows(loaded(spark, str(INCIDENT), "ownership"))


def test_a_stream_of_a_growing_log(
    spark: SparkSession, hdfs: Hdfs, files: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    """A stream reads appended data and new logs; a restarted query reads no row twice."""
    log = every_kind()
    whole, torn = log.content(), len(log.content()) - 5
    put(files, "/stream/log.1", whole[:torn])
    stream = RestartedStream(spark, f"{hdfs.url}/stream", tmp_path)
    (tmp_path / "log.1").write_bytes(whole)
    expected = [row.zxid for one in History(find_servers([tmp_path])).batches() for row in one.rows]
    last = [zxid for zxid in expected if zxid == log.zxid]
    assert stream.run() == expected[: -len(last)]
    with files.open("/stream/log.1", "ab") as file:
        file.write(whole[torn:])
    second = LogWriter(zxid=log.zxid)
    second.add(tx.CREATE_SESSION, number(6000))
    put(files, f"/stream/log.{second.zxid:x}", second.content())
    assert stream.run() == [*expected, second.zxid]


def test_a_running_stream_finds_new_logs(
    spark: SparkSession, hdfs: Hdfs, files: fsspec.AbstractFileSystem
) -> None:
    """A running query reads new logs, and a log that a longer one has replaced."""
    log = LogWriter()
    log.add(tx.CREATE_SESSION, number(6000))
    put(files, "/live/log.1", log.content() + bytes(1000))
    frame = spark.readStream.format(FORMAT).load(f"{hdfs.web}/live")
    query = frame.writeStream.format("memory").queryName("live").start()
    try:
        for _ in range(2):
            query.processAllAvailable()
            log.add(tx.CREATE_SESSION, number(6000))
            # A server preallocates space, so the size of the file stays the same.
            content = log.content()
            put(files, "/live/log.1", content + bytes(2000 - len(content)))
            other = LogWriter(zxid=log.zxid + 100)
            other.add(tx.CREATE_SESSION, number(6000))
            put(files, f"/live/log.{other.zxid:x}", other.content())
        query.processAllAvailable()
        found = sorted(row.zxid for row in spark.table("live").collect())
    finally:
        query.stop()
    assert found == [1, 2, 3, 103, 104]


def test_the_pipeline(
    spark: SparkSession, hdfs: Hdfs, files: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    """`history_pipeline` writes tables of logs on HDFS; a second run reads only what is new."""
    log = every_kind()
    put(files, "/pipeline/log.1", log.content())
    ensembles = {"prod": [f"{hdfs.url}/pipeline"]}
    (first,) = history_pipeline.run(spark, ensembles, tmp_path)
    log.add(tx.CREATE_SESSION, number(6000))
    put(files, "/pipeline/log.1", log.content())
    (second,) = history_pipeline.run(spark, ensembles, tmp_path)
    count = history_pipeline.read(spark, tmp_path, "transactions").count()
    assert (second.transactions, count) == (1, first.transactions + 1)


# ---- errors -------------------------------------------------------------------------------------


def test_permission_denied(
    spark: SparkSession,
    hdfs: Hdfs,
    files: fsspec.AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a directory or a file that the user may not read, the error is one line."""
    put(files, "/denied/deep/log.1", every_kind().content())
    files.client.set_permission("/denied/deep", 0o700)
    root = hdfs.web.replace("://", "://guest@")
    with pytest.raises(
        PySparkException, match="Permission denied: user=guest, access=READ_EXECUTE"
    ):
        loaded(spark, f"{root}/denied").collect()
    put(files, "/refused/log.1", every_kind().content())
    files.client.set_permission("/refused/log.1", 0o600)
    monkeypatch.setenv("HADOOP_USER_NAME", "guest")
    fsspec.get_filesystem_class("hdfs").clear_instance_cache()
    with pytest.raises(HistoryError, match="user=guest") as raised:
        find_servers([f"{hdfs.url}/denied"])
    assert len(str(raised.value).splitlines()) == 1
    assert "FSPermissionChecker" not in str(raised.value)
    for url in (hdfs.url, root):
        history = History(find_servers([f"{url}/refused"]))
        assert list(history.batches()) == []
        (problem,) = history.problems
        assert (problem.kind, problem.where) == ("unreadable", f"{url}/refused/log.1")
        assert "Permission denied: user=guest, access=READ" in problem.what
    fsspec.get_filesystem_class("hdfs").clear_instance_cache()


def test_no_namenode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no NameNode answers, the error says so; Hadoop's settings limit the attempts."""
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.client.failover.max.attempts</name><value>2</value>"
        "</property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    url = f"hdfs://127.0.0.1:{free_port()}/logs"
    with pytest.raises(HistoryError, match=r"Connection refused .* whether its server runs"):
        find_servers([url])


def test_a_missing_block(hdfs: Hdfs, files: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """If no DataNode has the data of a log, the log counts as unreadable, not as empty."""
    data = hdfs.directory / "hdfs" / "data"
    before = set(data.rglob("blk_*"))
    put(files, "/lost/log.1", every_kind().content())
    for block in set(data.rglob("blk_*")) - before:
        os.remove(block)
    history = History(find_servers([f"{hdfs.url}/lost"]))
    assert list(history.batches()) == []
    (problem,) = history.problems
    assert problem.kind == "unreadable"
    assert "DataNode" in problem.what


def test_a_missing_path(spark: SparkSession, hdfs: Hdfs) -> None:
    """For a path that does not exist on the HDFS, the error names the path."""
    for root in (hdfs.url, hdfs.web):
        with pytest.raises(BadFileError, match=f"the path does not exist .{root}/nothing"):
            find_servers([f"{root}/nothing"])
    with pytest.raises(PySparkException, match=f"the path does not exist .{hdfs.url}/nothing"):
        loaded(spark, f"{hdfs.url}/nothing").collect()
