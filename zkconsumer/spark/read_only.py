"""The base class of this package's formats: Spark can read them, and cannot write to them."""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from zkconsumer.errors import SparkSourceError
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import errors_as_text


class ReadOnlySource(Pickled, DataSource):
    """A data source that refuses `write` and `writeStream` in one sentence."""

    @errors_as_text()
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise self._only_reads()

    @errors_as_text()
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise self._only_reads()

    def _only_reads(self) -> SparkSourceError:
        return SparkSourceError(
            "zkconsumer only reads",
            where=f'format("{self.name()}")',
            remedy='write to Kafka with a producer, or with Spark\'s own format("kafka") if the'
            " brokers are 0.10 or later",
        )
