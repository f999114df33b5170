"""Spark's drivers start with a class-data archive."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from support.internals import driver_of

from zkconsumer.sandbox import spark as sparks


def test_a_driver_uses_the_archive(spark: SparkSession) -> None:
    """The driver has mapped the archive that the set-up of the tests recorded."""
    known = sparks.archive()  # Some runtimes cannot write one.
    mapped = Path(f"/proc/{driver_of(spark)}/maps").read_text()
    assert (str(known) in mapped) == known.exists()
