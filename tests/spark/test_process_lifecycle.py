"""The errors that appear if Spark does not find a format or if the format raises."""

from __future__ import annotations

import sys

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from zkconsumer.errors import SparkSourceError
from zkconsumer.spark.process_lifecycle import load


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_a_format_that_is_not_found_is_one_sentence(spark: SparkSession, kind: str) -> None:
    """The error names the interpreter that Spark used, without any line of Java's traceback."""
    with pytest.raises(SparkSourceError) as caught:
        load(getattr(spark, kind).format("zkconsumer-of-nobody"))
    (sentence,) = str(caught.value).splitlines()
    assert sys.executable in sentence
    assert "PYSPARK_DRIVER_PYTHON" in sentence


def test_errors_of_the_format_reach_the_user(spark: SparkSession) -> None:
    """Errors of the format reach the user through Spark, with their reason."""
    with pytest.raises(AnalysisException, match="no-such-option"):
        load(spark.read.format("zkconsumer").option("no-such-option", "1"))
