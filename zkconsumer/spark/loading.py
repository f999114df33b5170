"""What Spark says of a format that it does not find, in one sentence."""

from __future__ import annotations

import os

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from zkconsumer.errors import SparkSourceError


def load(reader: DataFrameReader | DataStreamReader) -> DataFrame:
    """`reader.load()`, of a format of this package.

    Raises:
        SparkSourceError: Spark has not found the package, in place of DATA_SOURCE_NOT_FOUND.
        PySparkException: the format itself refuses, with its reason.
    """
    try:
        return reader.load()
    except (Py4JJavaError, PySparkException) as error:
        # Spark 4.3 leaves this one as it comes from Java, with 155 lines of its own.
        if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
            raise
    environ = os.environ  # looked at as by Spark's PythonUtils.defaultPythonExec
    python = environ.get("PYSPARK_DRIVER_PYTHON") or environ.get("PYSPARK_PYTHON") or "python3"
    raise SparkSourceError(
        "Spark does not find the formats of zkconsumer",
        where=f"it looked with {python}",
        remedy="let PYSPARK_DRIVER_PYTHON, or else PYSPARK_PYTHON, name an interpreter that starts "
        "and has zkconsumer[spark]; if the package came with the job, register its format",
    )
