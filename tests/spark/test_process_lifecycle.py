"""Errors of a format that is missing or raises, and garbage collections in Spark's workers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from support.logged import logged

from pyspark_zkconsumer import found
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import SparkSourceError
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.protocol.payloads import Broker
from zkconsumer.spark.process_lifecycle import load, log_interpreters
from zkconsumer.spark.task_reader import (
    RangesPartition,
    ReadSettings,
    client_settings,
    read_task,
)


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_a_format_that_is_not_found_is_one_sentence(spark: SparkSession, kind: str) -> None:
    """The error names the interpreter that Spark used, without any line of Java's traceback."""
    with pytest.raises(SparkSourceError) as caught:
        load(getattr(spark, kind).format("zkconsumer-of-nobody"))
    (sentence,) = str(caught.value).splitlines()
    assert sys.executable in sentence
    assert "PYSPARK_DRIVER_PYTHON" in sentence


def test_a_spark_that_is_too_old(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 finds each format, and Spark 3.5 does not; both errors name the releases."""
    new, text = "pyspark.sql.streaming.datasource", r"need pyspark 4\.2 or later, .* pip install"
    monkeypatch.setitem(sys.modules, new, None)

    def fail() -> type[DataSource]:
        raise ModuleNotFoundError("no such module", name=new)

    source = found(fail, "zkconsumer")({})
    columns = StructType()
    for call in (
        source.schema,
        lambda: source.reader(columns),
        lambda: source.streamReader(columns),
    ):
        with pytest.raises(ModuleNotFoundError, match=text):
            call()
    with pytest.raises(SparkSourceError, match=text):
        load(spark.read.format("zkconsumer-of-nobody"))


@pytest.mark.parametrize(("executors", "lines"), [("/a/python", 0), ("./b/python", 1)])
def test_two_interpreters_are_logged(
    executors: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If driver and executors have different interpreters, one line names both."""
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/a/python")
    monkeypatch.setenv("PYSPARK_PYTHON", executors)
    with caplog.at_level("INFO"):
        log_interpreters()
    found = logged(caplog, "zkconsumer.spark")
    assert len(found) == lines
    assert all("/a/python" in one and executors in one for one in found)


def test_errors_of_the_format_reach_the_user(spark: SparkSession) -> None:
    """Errors of the format reach the user through Spark, with their reason."""
    with pytest.raises(AnalysisException, match="no-such-option"):
        load(spark.read.format("zkconsumer").option("no-such-option", "1"))


def frozen_objects(settings: ReadSettings) -> type[DataSource]:
    """Return a source with tasks that read nothing. Each task yields how many objects its worker's
    garbage collections skipped before it."""

    # The classes are local, because the workers cannot import this module.
    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [RangesPartition((), settings) for _ in range(8)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            before = gc.get_freeze_count()
            assert not list(read_task(partition, ()))
            yield (before,)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "frozen-objects"

        def schema(self) -> str:
            return "count long"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    return Source


def test_collections_skip_what_earlier_tasks_have_imported(spark: SparkSession) -> None:
    """After its first task, a worker's garbage collections skip the objects of all packages."""
    config = ConsumerConfig(group_id="none", zookeeper_connect="unused:2181")
    broker = Broker(None, -1, 4, ("PLAINTEXT://127.0.0.1:1",))
    settings = ReadSettings(client_settings(config, Brokers([broker])), patience_s=1.0)
    spark.dataSource.register(frozen_objects(settings))
    of_driver = gc.get_freeze_count()
    counts = [row["count"] for row in spark.read.format("frozen-objects").load().collect()]
    assert max(counts) > 50_000
    assert not list(read_task(RangesPartition((), settings), ()))
    assert gc.get_freeze_count() <= of_driver  # This process does not run Spark's tasks.
