"""The sandbox's Spark session."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession


def test_the_jvm_leaves_nothing_elsewhere(spark: SparkSession) -> None:
    """The JVM's temporary files are in the session's own directory."""
    assert spark._jvm is not None
    temporary = Path(spark._jvm.java.lang.System.getProperty("java.io.tmpdir"))
    assert temporary.name == "tmp"
    assert temporary.parent / "local" == Path(spark.conf.get("spark.local.dir") or "")
