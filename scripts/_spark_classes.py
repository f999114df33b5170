"""Record the class-data archive of Spark's drivers, unless it exists.

A driver runs what the tests' drivers run: SQL, tables in Parquet, a stream with a checkpoint, and a
Python function. HotSpot writes the archive (190 MB) when the driver's JVM exits. The recording
needs 40 s of processor time, and each later driver needs 4 s less.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pyspark
from pyspark.sql import SparkSession

from zkconsumer.sandbox import server, spark
from zkconsumer.sandbox.jars import find_java

# The flags of the tests' drivers.
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def can_record() -> bool:
    """Return whether the runtime has an archive of its own classes. HotSpot can only add to it."""
    runtime = find_java().executable.resolve().parent.parent
    return any((runtime / "lib" / "server").glob("classes*.jsa"))


def link_home(home: Path) -> None:
    """Create the SPARK_HOME of the archive. Raises OSError, for instance across file systems."""
    fresh = home.with_suffix(f".{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        for folder in ("bin", "jars"):
            source = Path(pyspark.__file__).parent / folder
            shutil.copytree(source, fresh / folder, copy_function=os.link)
        fresh.rename(home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def work(session: SparkSession, directory: Path) -> None:
    """Load the classes: run jobs of each kind."""
    rows = session.range(100).selectExpr("id", "id % 7 AS key", "cast(id AS string) AS value")
    rows.createOrReplaceTempView("rows")
    query = "SELECT key, count(*), max(value) FROM rows WHERE id > 3 GROUP BY key ORDER BY key"
    session.sql(query).collect()
    path = str(directory / "table")
    rows.write.parquet(path)
    joined = session.read.parquet(path).join(session.range(9), "id")
    joined.mapInArrow(lambda batches: batches, joined.schema).collect()
    stream = session.readStream.format("rate").load().writeStream.format("memory")
    stream.queryName("numbers").option("checkpointLocation", str(directory / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()


def record(known: Path) -> None:
    """Run a session whose JVM writes the archive."""
    with TemporaryDirectory(prefix="zkconsumer-spark-") as name, server.recording(known) as fresh:
        directory = Path(name)
        options = (FAST_JVM, *server.options(known, record=fresh))
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
        session = spark.session(directory)
        gateway = session.sparkContext._gateway
        assert gateway is not None
        try:
            work(session, directory)
        finally:
            session.stop()
            gateway.shutdown()
            # The JVM ends when its standard input ends.
            gateway.proc.stdin.close()
            gateway.proc.wait()


def remove_others(known: Path) -> None:
    """Remove the archives of other versions of pyspark or Java, and unfinished ones."""
    for other in known.parent.glob("spark-driver-*"):
        if other not in (known, spark.archive_home(known)):
            shutil.rmtree(other) if other.is_dir() else other.unlink()


def main() -> int:
    known = spark.archive()
    home = spark.archive_home(known)
    if known.exists() or not can_record():
        return 0
    try:
        if not home.exists():
            link_home(home)
    except OSError as error:
        sys.stderr.write(f"Spark's drivers start without a class-data archive: {error}\n")
        return 0
    record(known)
    remove_others(known)
    return 0


if __name__ == "__main__":
    sys.exit(main())
