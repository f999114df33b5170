"""The Spark query of the pipeline: `python scripts/_pipeline_query.py SETTINGS`.

The query is one member of the legacy group. For each batch it writes the rows, and their number per
second and partition, to directories named after the batch, so that a replayed batch overwrites
itself. SIGTERM stops the query and then Spark.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from zkconsumer.sandbox import spark as sparks
from zkconsumer.spark.progress_listener import LagListener

# Seconds between two checks whether the query still runs.
_TURN_S = 0.2
WINDOW = "1 second"
# The query's threads in the group. The JVM consumer has one thread, so the query gets three of four
# partitions.
STREAMS = 3
# Maximum number of messages in a batch. Each batch should be shorter than the release grace (4 s).
# Without the limit, the first batch would contain all messages produced while Spark started.
MAX_OFFSETS = 20_000
# Spark's error if a Python process needs more than ten seconds to start. The error occurs on a busy
# machine, and no option changes the limit, so the query is started again.
_SLOW = "failed to connect back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The query's settings.

    Attributes:
        zookeeper, group, topic, name: the group to join; `name` is the consumer.id.
        directory: for its checkpoint, its Parquet files, its records and Spark's own files.
        session_timeout_s: the session timeout, after which a killed query's znodes disappear.
        trigger_s: seconds from the start of one batch to the start of the next.
    """

    zookeeper: str
    group: str
    topic: str
    name: str
    directory: str
    session_timeout_s: float
    trigger_s: float

    def command(self) -> list[str]:
        """Return the command line of the query's process."""
        return [sys.executable, __file__, json.dumps(asdict(self))]

    @property
    def rows(self) -> Path:
        """The directory of the Parquet files with the rows of each batch, in `batch=<number>`."""
        return Path(self.directory, "rows")

    @property
    def windows(self) -> Path:
        """The directory of the Parquet files with `window`, `partition` and `count`, in
        `batch=<number>`."""
        return Path(self.directory, "windows")

    @property
    def notes(self) -> Path:
        """JSON lines: `["began", batch]`, `["ended", batch]`, `["progress", text]`."""
        return Path(self.directory, "notes")


def prepare(query: Query) -> tuple[SparkSession, DataStreamWriter]:
    """Return a Spark session of this process, and the query to start in it."""
    notes = os.open(query.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, of: object) -> None:
        os.write(notes, json.dumps([what, of]).encode() + b"\n")

    def store(batch: DataFrame, number: int) -> None:
        note("began", number)
        batch.persist()
        batch.write.mode("overwrite").parquet(f"{query.rows}/batch={number}")
        counted = batch.groupBy(sf.window("timestamp", WINDOW).alias("window"), "partition").count()
        counted.select("window.start", "partition", "count").write.mode("overwrite").parquet(
            f"{query.windows}/batch={number}"
        )
        batch.unpersist()
        note("ended", number)

    spark = sparks.session(Path(query.directory, "spark"))
    spark.streams.addListener(LagListener(lambda line: note("progress", line)))
    rows = (
        spark.readStream.format("zkconsumer")
        .option("mode", "group")
        .option("zookeeper", query.zookeeper)
        .option("group.id", query.group)
        .option("consumer.id", query.name)
        .option("subscribe", query.topic)
        .option("streams", STREAMS)
        .option("maxOffsetsPerTrigger", MAX_OFFSETS)
        .option("auto.offset.reset", "smallest")
        .option("zookeeper.session.timeout.ms", f"{query.session_timeout_s * 1000:.0f}")
        .load()
    )
    return spark, (
        rows.select("partition", "offset", "timestamp", rows["value"].cast("string"))
        .writeStream.foreachBatch(store)
        .queryName(query.name)
        .option("checkpointLocation", f"{query.directory}/checkpoint")
        .trigger(processingTime=f"{query.trigger_s} seconds")
    )


def run(query: Query) -> None:
    """Run until SIGTERM. If the query fails, raise its error."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark, writer = prepare(query)
    running = writer.start()
    while not stopping.wait(_TURN_S) and (running.isActive or _is_slow(running)):
        if not running.isActive:
            running = writer.start()
    if error := running.exception():
        raise error
    running.stop()
    spark.stop()


def _is_slow(ended: StreamingQuery) -> bool:
    return _SLOW in str(ended.exception())


if __name__ == "__main__":
    run(Query(**json.loads(sys.argv[1])))
