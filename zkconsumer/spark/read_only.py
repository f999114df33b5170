"""What all formats of this package refuse: writing, and streams with wrong options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from zkconsumer.errors import SparkSourceError, ZkConsumerError
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


class RefusingStreamReader(DataSourceStreamReader):
    """A reader that raises `error` at Spark's first call.

    Spark 4.3 hides an exception raised by `streamReader` behind an error of its own: `reader` is
    unbound when `python_streaming_source_runner` cleans up.
    """

    def __init__(self, error: ZkConsumerError) -> None:
        self._error = error

    @errors_as_text()
    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    @errors_as_text()
    def initialOffset(self) -> dict[str, object]:
        raise self._error

    @errors_as_text()
    def latestOffset(
        self, start: dict[str, object] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, object]:
        raise self._error

    @errors_as_text()
    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[object]:
        raise self._error
