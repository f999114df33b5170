"""The Spark session of the sandbox."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession


def test_temporary_files_are_in_the_session_s_directory(spark: SparkSession) -> None:
    """The temporary files of the JVM are in the session's own directory."""
    asked = "SELECT reflect('java.lang.System', 'getProperty', 'java.io.tmpdir')"
    ((found,),) = spark.sql(asked).collect()
    temporary = Path(found)
    assert temporary.name == "tmp"
    assert temporary.parent / "local" == Path(spark.conf.get("spark.local.dir") or "")


def test_workers_import_compiled_modules(spark: SparkSession) -> None:
    """A Python worker imports pyspark from the environment, not from Spark's zip file."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: _file_of_pyspark()).collect()
    assert found == [pyspark.__file__]


def _file_of_pyspark() -> str:
    return pyspark.__file__


runs = itertools.count()


@pytest.mark.filterwarnings("ignore:.* runs again")
def test_a_worker_that_starts_too_slowly_fails_no_test() -> None:
    """If a test fails with Spark's error for a slow Python worker, it is run again."""
    if next(runs) == 0:
        raise RuntimeError("Python worker failed to connect back.")
    assert next(runs) == 2
