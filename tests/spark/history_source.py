"""The data source `zkconsumer-history` in a test's Spark session: tables, and streams of logs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

FORMAT = "zkconsumer-history"
# Time limit of one run of a stream, in seconds.
RUN_LIMIT_S = 120


def loaded(spark: SparkSession, path: Path | str, table: str = "transactions") -> DataFrame:
    """Return a table of the logs at a path or URL."""
    return spark.read.format(FORMAT).option("table", table).load(str(path))


class RestartedStream:
    """A stream of the logs at a path or URL; each run starts again from the checkpoint."""

    def __init__(self, spark: SparkSession, path: Path | str, directory: Path) -> None:
        self._spark, self._path = spark, str(path)
        self._out, self._checkpoint = str(directory / "out"), str(directory / "checkpoint")

    def run(self) -> list[int]:
        """Read the logs to their end; return the zxids of all runs in ascending order."""
        frame = self._spark.readStream.format(FORMAT).load(self._path)
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).start(self._out)
        try:
            assert query.awaitTermination(RUN_LIMIT_S), f"not within {RUN_LIMIT_S} s"
        finally:
            query.stop()
        return sorted(row.zxid for row in self._spark.read.parquet(self._out).collect())
