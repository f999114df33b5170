"""The columns of a record: those of Spark's Kafka connector. A schema may select some of them.

Source: `org.apache.spark.sql.kafka010.KafkaRecordToRowConverter.kafkaSchema`. `headers` is null for
a record without headers. In group mode there is also the fencing token of the record's partition.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pyspark.sql.types import (
    ArrayType,
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

_SHOWN: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}

HEADERS, TOKEN = "headers", "token"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

TYPES: Mapping[str, DataType] = {**_SHOWN, HEADERS: ArrayType(_HEADER)}
"""The columns that every query can select."""

MEMBER_TYPES: Mapping[str, DataType] = {**TYPES, TOKEN: LongType()}
"""The columns that a query with `mode=group` can select."""


def schema_with(more: Iterable[str]) -> StructType:
    """Return the schema of a query that does not call `.schema(...)`: the columns that Spark's
    connector always has, and these."""
    names = [*_SHOWN, *more]
    return StructType([StructField(name, MEMBER_TYPES[name]) for name in names])


SCHEMA = schema_with(())
"""The columns that Spark's connector always has."""


def columns_of(schema: StructType, types: Mapping[str, DataType] = TYPES) -> tuple[str, ...]:
    """Return the names of the columns to read, in the user's order. The source does not build the
    other columns.

    Args:
        types: every column that the table has; by default the columns of a record without a
            member.

    Raises:
        ConfigError: a column does not exist or has another type.
    """
    known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
    for one in schema.fields:
        kind = types.get(one.name)
        if kind is None:
            near = difflib.get_close_matches(one.name.lower(), map(str.lower, types), n=1)
            meant = [name for name in types if name.lower() in near]
            raise ConfigError(
                f"there is no column {one.name}",
                where="schema",
                remedy=(f"did you mean {meant[0]}? " if meant else "")
                + f"the columns are: {known}",
            )
        if one.dataType != kind:
            raise ConfigError(
                f"column {one.name} is {kind.simpleString()}, not {one.dataType.simpleString()}",
                where="schema",
                remedy="use that type in the schema, and cast the column in the query",
            )
    return tuple(schema.names)
