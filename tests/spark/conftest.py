"""A real Spark for the tests of this room: one session for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from zkconsumer.sandbox import spark as sparks


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`; queries of one test have names, topics and checkpoints of their own."""
    made = sparks.session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()
