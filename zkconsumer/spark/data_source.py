"""`format("zkconsumer")`: the data source object from which Spark gets a query's readers.

Spark creates one instance per `load()` in a Python process of its own and pickles it. The
methods check everything that needs no server, so that a wrong option fails at once. Parameter
names are Spark's, because Spark calls these methods by keyword
(`pyspark.sql.datasource.DataSource`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from zkconsumer.errors import ZkConsumerError
from zkconsumer.spark.batch import batch_reader
from zkconsumer.spark.direct_stream import DirectStreamReader
from zkconsumer.spark.group_stream import GroupStreamReader
from zkconsumer.spark.options import Mode, SourceOptions
from zkconsumer.spark.process_lifecycle import errors_as_text
from zkconsumer.spark.read_only import ReadOnlySource, RefusingStreamReader
from zkconsumer.spark.schema import MEMBER_TYPES, TYPES, columns_of, schema_with


class ZkConsumerSource(ReadOnlySource):
    """Kafka topics of a legacy cluster, for batch reads and for streams in both modes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # The other methods parse the options, because a write fails whatever its options are.
        self._options = options
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

    @errors_as_text()
    def schema(self) -> StructType:
        """Return the columns. Spark calls this method in `load()`, unless the query has a schema of
        its own. Raises ConfigError for wrong options, so that they fail at once.
        """
        return schema_with(SourceOptions.parse(self._options).more_columns)

    @errors_as_text()
    def reader(self, schema: StructType) -> DataSourceReader:
        self._has_reader = True
        options = SourceOptions.parse(self._options).for_batch()
        return batch_reader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._has_reader = True
        try:
            options = SourceOptions.parse(self._options).for_stream()
            columns = columns_of(schema, MEMBER_TYPES if options.mode is Mode.GROUP else TYPES)
        except ZkConsumerError as error:
            return RefusingStreamReader(error)
        if options.mode is Mode.GROUP:
            return GroupStreamReader(options, columns, frame=self._frame)
        return DirectStreamReader(options, columns)
