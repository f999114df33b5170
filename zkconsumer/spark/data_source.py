"""`format("zkconsumer")`: the data source object from which Spark gets a query's readers.

Spark creates one instance per `load()` in a Python process of its own and pickles it. The
constructor checks everything that needs no server, so that a wrong option fails at once. Parameter
names are Spark's, because Spark calls these methods by keyword
(`pyspark.sql.datasource.DataSource`).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
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
from zkconsumer.spark.process_lifecycle import errors_as_text
from zkconsumer.spark.schema import SCHEMA, columns_of


class ZkConsumerSource(Pickled, DataSource):
    """Kafka topics of a legacy cluster, for batch reads and for streams in both modes."""

    @errors_as_text()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._parsed = SourceOptions.parse(options)
        self._has_reader = False
        # All readers of one DataFrame share this id.
        self._frame = uuid4().hex

    def __getstate__(self) -> dict[str, object]:
        """Return all state until a reader exists. Afterwards return no state, since executors need
        none."""
        return {} if self._has_reader else self.__dict__

    @classmethod
    def name(cls) -> str:
        return "zkconsumer"

    def schema(self) -> StructType:
        return SCHEMA

    @errors_as_text()
    def reader(self, schema: StructType) -> DataSourceReader:
        self._has_reader = True
        return batch_reader(self._parsed.for_batch(), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._has_reader = True
        try:
            options, columns = self._parsed.for_stream(), columns_of(schema)
        except ZkConsumerError as error:
            return RefusingStreamReader(error)
        if options.mode is Mode.GROUP:
            return GroupStreamReader(options, columns, frame=self._frame)
        return DirectStreamReader(options, columns)


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
