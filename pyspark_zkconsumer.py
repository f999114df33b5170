"""Module that Spark finds by its name; `format("zkconsumer")` needs no registration."""

from collections.abc import Callable
from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType


def found(load: Callable[[], type[DataSource]], name: str) -> type[DataSource]:
    """Return the format that `load` imports; if pyarrow is missing or Spark is too old, return a
    format that says so.

    Spark imports all modules whose names begin with `pyspark_`. If one of them fails, Spark logs a
    warning, finds no format at all, and reports DATA_SOURCE_NOT_FOUND.
    """
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name == "pyarrow":
            missing = str(error)
        elif error.name == "pyspark.sql.streaming.datasource":
            from zkconsumer.spark import too_old  # noqa: PLC0415 - without pyarrow, this fails

            missing = f"{too_old()}: pip install 'zkconsumer[spark]'"
        else:
            raise

    class Missing(DataSource):
        """A format that cannot be used in this environment."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            raise ModuleNotFoundError(missing)

        # If the query names its columns, Spark does not call `schema`.
        def reader(self, schema: StructType) -> NoReturn:
            raise ModuleNotFoundError(missing)

        def streamReader(self, schema: StructType) -> NoReturn:
            raise ModuleNotFoundError(missing)

    return Missing


def _load() -> type[DataSource]:
    from zkconsumer.spark.data_source import ZkConsumerSource  # noqa: PLC0415 - may be missing

    return ZkConsumerSource


DefaultSource = found(_load, "zkconsumer")

__all__ = ["DefaultSource"]
