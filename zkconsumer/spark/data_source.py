"""`format("zkconsumer")`: what Spark asks for a query's readers.

Spark makes an instance per `load()`, in a process of its own, and pickles it. So that a wrong
option is told of at once, all that can be checked without servers is checked when it is made.
Parameter names are Spark's: it calls by keyword (`pyspark.sql.datasource.DataSource`).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from zkconsumer.errors import ZkConsumerError
from zkconsumer.spark.batch import batch_reader
from zkconsumer.spark.direct_stream import DirectStreamReader
from zkconsumer.spark.group_stream import GroupStreamReader
from zkconsumer.spark.options import Mode, SourceOptions
from zkconsumer.spark.pickling import Pickled
from zkconsumer.spark.process_lifecycle import one_sentence
from zkconsumer.spark.schema import SCHEMA, columns_of


class ZkConsumerSource(Pickled, DataSource):
    """Topics of Kafka through a legacy group: batches, and streams in both modes."""

    @one_sentence()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._parsed = SourceOptions.parse(options)
        self._has_reader = False
        # Made once for each `load()`: every reader of the DataFrame knows it.
        self._frame = uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        """From process to process on the driver all; with a reader to executors, who need none."""
        return {} if self._has_reader else self.__dict__

    @classmethod
    def name(cls) -> str:
        return "zkconsumer"

    def schema(self) -> StructType:
        return SCHEMA

    @one_sentence()
    def reader(self, schema: StructType) -> DataSourceReader:
        self._has_reader = True
        return batch_reader(self._parsed.for_batch(), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._has_reader = True
        try:
            options, columns = self._parsed.for_stream(), columns_of(schema)
        except ZkConsumerError as error:
            return Refusal(error)
        if options.mode is Mode.GROUP:
            return GroupStreamReader(options, columns, frame=self._frame)
        return DirectStreamReader(options, columns)


class Refusal(DataSourceStreamReader):
    """Raises an error at the engine's first call.

    What `streamReader` raises Spark 4.3 hides behind a mistake of its own (`reader` is unbound when
    `python_streaming_source_runner` cleans up).
    """

    def __init__(self, error: ZkConsumerError) -> None:
        self._error = error

    @one_sentence()
    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    @one_sentence()
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @one_sentence()
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        raise self._error

    @one_sentence()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error
