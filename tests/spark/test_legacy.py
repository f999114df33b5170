"""The functions of `pyspark.streaming.kafka`, implemented with the present sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from zkconsumer.sandbox import Sandbox
from zkconsumer.spark.legacy import (
    OffsetRange,
    TopicAndPartition,
    bytes_decoder,
    create_direct_stream,
    create_rdd,
    create_stream,
    offset_ranges,
)


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """Two partitions of ten messages, `0-0` to `1-9`."""
    name = unique("legacy")
    sandbox.create_topic(name, partitions=2)
    for partition in range(2):
        sandbox.produce(
            name, [f"{partition}-{number}" for number in range(10)], partition=partition
        )
    return name


def drained(rows: DataFrame, directory: Path) -> tuple[list[str], list[OffsetRange]]:
    """Run a query until it has all messages; return the values, and the ranges of its batches."""
    values: list[str] = []
    ranges: list[OffsetRange] = []

    def take(batch: DataFrame, number: int) -> None:
        values.extend(row.value for row in batch.select("value").collect())
        ranges.extend(offset_ranges(batch))

    query = rows.writeStream.foreachBatch(take).trigger(availableNow=True)
    query.option("checkpointLocation", str(directory)).start().awaitTermination()
    return sorted(values), sorted(ranges)


def test_create_stream(
    spark: SparkSession, sandbox: Sandbox, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """createStream: the query is a member with these threads per topic, and decodes values."""
    rows = create_stream(
        spark,
        sandbox.zookeeper_connect,
        unique("group"),
        {topic: 2},
        {"auto.offset.reset": "smallest"},
    )
    values, ranges = drained(rows, tmp_path)
    assert values == [f"{partition}-{number}" for partition in range(2) for number in range(10)]
    assert ranges == [OffsetRange(topic, 0, 0, 10), OffsetRange(topic, 1, 0, 10)]


def test_create_direct_stream(
    spark: SparkSession, sandbox: Sandbox, topic: str, tmp_path: Path
) -> None:
    """createDirectStream: the query starts at auto.offset.reset or at the given offsets."""
    params = {
        "zookeeper.connect": sandbox.zookeeper_connect,
        "metadata.broker.list": "ignored:1",
        "auto.offset.reset": "smallest",
    }
    values, _ = drained(create_direct_stream(spark, [topic], params), tmp_path / "all")
    assert len(values) == 20
    given = {TopicAndPartition(topic, 1): 7}
    decoder = sf.udf(lambda value: value.decode().upper() + "!", "string")
    rows = create_direct_stream(spark, [topic], params, given, value_decoder=decoder)
    assert drained(rows, tmp_path / "some") == (
        ["1-7!", "1-8!", "1-9!"],
        [OffsetRange(topic, 1, 7, 10)],
    )


def test_create_rdd(spark: SparkSession, sandbox: Sandbox, topic: str) -> None:
    """createRDD: a batch reads exactly these ranges; `bytes_decoder` gives bytes."""
    ranges = [OffsetRange(topic, 0, 2, 4), OffsetRange(topic, 1, 9, 10)]
    params = {"zookeeper.connect": sandbox.zookeeper_connect}
    rows = create_rdd(spark, params, ranges, value_decoder=bytes_decoder)
    assert sorted(bytes(row.value) for row in rows.collect()) == [b"0-2", b"0-3", b"1-9"]
    assert offset_ranges(rows) == ranges
    with pytest.raises(ValueError, match="two ranges"):
        create_rdd(spark, params, [*ranges, ranges[0]])


def test_bytes_that_are_not_utf8(
    spark: SparkSession, sandbox: Sandbox, unique: Callable[[str], str]
) -> None:
    """As in Spark 2.4, the default decoder raises for bytes that are not UTF-8."""
    topic = unique("legacy")
    sandbox.create_topic(topic)
    sandbox.produce(topic, [b"\xff"])
    params = {"zookeeper.connect": sandbox.zookeeper_connect}
    rows = create_rdd(spark, params, [OffsetRange(topic, 0, 0, 1)])
    with pytest.raises(PySparkException, match="MALFORMED_CHARACTER_CODING"):
        rows.collect()


def test_the_old_type_errors(spark: SparkSession) -> None:
    """Wrong types and offsets of other topics are refused with the texts of Spark 2.4."""
    stream: Any = create_stream
    direct: Any = create_direct_stream
    rdd: Any = create_rdd
    wrong = {
        "topics should be dict": lambda: stream(spark, "zk:2181", "g", ["a"]),
        "topics should be list": lambda: direct(spark, {"a": 1}, {}),
        "kafkaParams should be dict": lambda: direct(spark, ["a"], None),
        "offsetRanges should be list": lambda: rdd(spark, {}, None),
    }
    for text, call in wrong.items():
        with pytest.raises(TypeError, match=text):
            call()
    with pytest.raises(ValueError, match="do not equal to the topic from offsets: b"):
        create_direct_stream(spark, ["a"], {}, {TopicAndPartition("b", 0): 1})
