"""The columns of a record, as those of Spark's Kafka connector; a user's schema names some of them.

Spark: `org.apache.spark.sql.kafka010.KafkaRecordToRowConverter.kafkaSchema`, without headers.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zkconsumer.errors import ConfigError

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}

SCHEMA = StructType([StructField(name, kind) for name, kind in _TYPES.items()])
"""What a query has without `.schema(...)`."""


def columns_of(schema: StructType, types: Mapping[str, DataType] = _TYPES) -> tuple[str, ...]:
    """The columns that are to be read, in the user's order; only those are built.

    `types`: all that there are; those of a record, unless another table's are given.

    Raises ConfigError for a column that there is not, or of another type.
    """
    known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
    for one in schema.fields:
        kind = types.get(one.name)
        if kind is None:
            near = difflib.get_close_matches(one.name.lower(), map(str.lower, types), n=1)
            meant = [name for name in types if name.lower() in near]
            raise ConfigError(
                f"no column {one.name}",
                where="schema",
                remedy=(f"did you mean {meant[0]}? " if meant else "") + f"there are: {known}",
            )
        if one.dataType != kind:
            raise ConfigError(
                f"column {one.name} is {kind.simpleString()}, not {one.dataType.simpleString()}",
                where="schema",
                remedy="read it as that, and cast it in the query",
            )
    return tuple(schema.names)
