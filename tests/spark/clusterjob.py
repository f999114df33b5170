"""A job as users submit it: a batch read and a short stream; prints the results.

    clusterjob.py '{"zookeeper": ..., "topic": ..., "checkpoint": ..., "way": ...}'

The last line is one JSON object. `batch` and `stream` contain the messages that the batch and
the stream read. `retried` contains the messages of a batch read in which each task failed once,
with the number of the attempt. `executors` contains the directories of the executors; `package`
contains the paths of the package on the driver and the executors. If the executors lack the package
or the interpreter, the object contains only `error`, the text that the user sees.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession


def where(rows: Iterable[Row]) -> Iterator[tuple[str, str, str]]:
    """Return each row's value, the executor's directory, and the package's directory."""
    import zkconsumer  # noqa: PLC0415 - on the executor

    for row in rows:
        yield bytes(row.value).decode(), os.getcwd(), zkconsumer.__file__


def fail_midway(rows: Iterable[Row]) -> Iterator[tuple[str, int]]:
    """Return each row's value and the number of the attempt; the first attempt fails halfway."""
    tried = TaskContext.get().attemptNumber()
    for number, row in enumerate(rows):
        if tried == 0 and number == 7:
            raise RuntimeError("the first try fails midway")
        yield bytes(row.value).decode(), tried


def main(zookeeper: str, topic: str, checkpoint: str, way: str) -> dict[str, Any]:
    spark = SparkSession.builder.getOrCreate()
    if way not in ("installed", "unreadable"):
        from zkconsumer.spark.data_source import ZkConsumerSource  # noqa: PLC0415 - as docs/spark.md

        spark.dataSource.register(ZkConsumerSource)
    options = {"zookeeper": zookeeper, "subscribe": topic, "startingOffsets": "earliest"}
    options["minPartitions"] = "4"  # Without this, the few messages would share one task.
    rows = spark.read.format("zkconsumer").options(**options).load()
    if way in ("not sent", "unreadable"):
        try:
            rows.collect()
        except (PySparkException, Py4JJavaError) as error:
            return {"error": str(error)}
    batch = rows.rdd.mapPartitions(where).collect()
    query = (
        spark.readStream.format("zkconsumer")
        .options(**options)
        .load()
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    import zkconsumer  # noqa: PLC0415 - on the driver

    return {
        "batch": sorted(value for value, _, _ in batch),
        "retried": sorted(rows.rdd.mapPartitions(fail_midway).collect()),
        "stream": sorted(bytes(row.value).decode() for row in spark.table("streamed").collect()),
        "executors": sorted({cwd for _, cwd, _ in batch}),
        "package": sorted({zkconsumer.__file__, *(package for _, _, package in batch)}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
