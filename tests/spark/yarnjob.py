"""A job as users submit it to YARN: streams of both modes, and the history of a group on HDFS.

    yarnjob.py '{"zookeeper": ..., "topic": ..., "group": ..., "logs": ..., "directory": ..., ...}'

The results are one JSON object in the file `result`, because the driver may run in a container.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType


@udf(StringType())
def container() -> str:
    """Return the directory of the container in which a task runs."""
    return os.getcwd()


def streamed(spark: SparkSession, name: str, checkpoint: str, options: dict[str, str]) -> list[str]:
    """Return the messages that a query reads with `Trigger.AvailableNow`."""
    frame = spark.readStream.format("zkconsumer").options(**options).load()
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", f"{checkpoint}/{name}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(bytes(row.value).decode() for row in spark.table(name).collect())


def main(given: dict[str, str]) -> dict[str, Any]:
    from zkconsumer.spark import history_pipeline  # noqa: PLC0415 - only where it is installed

    spark = SparkSession.builder.getOrCreate()
    common = {"zookeeper": given["zookeeper"], "subscribe": given["topic"]}
    direct = common | {"startingOffsets": "earliest"}
    group = common | {"mode": "group", "group.id": given["group"]}
    group |= {"auto.offset.reset": "smallest"}
    rows = spark.read.format("zkconsumer").options(**direct).load()
    history = spark.read.format("zkconsumer-history").load(given["logs"])
    (run,) = history_pipeline.run(spark, {"prod": [given["logs"]]}, given["tables"])
    return {
        "batch": rows.count(),
        "containers": [row[0] for row in rows.select(container()).distinct().collect()],
        "direct": streamed(spark, "direct", given["checkpoint"], direct),
        "group": streamed(spark, "grouped", given["checkpoint"], group),
        "history": history.count(),
        "pipeline": run.transactions,
        "driver": os.getcwd(),
        "interpreter": sys.executable,
    }


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    Path(request["result"]).write_text(json.dumps(main(request)), encoding="utf-8")
