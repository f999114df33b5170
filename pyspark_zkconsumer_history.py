"""Module that Spark finds by its name; `format("zkconsumer-history")` needs no registration."""

from pyspark.sql.datasource import DataSource

from pyspark_zkconsumer import found


def _load() -> type[DataSource]:
    from zkconsumer.spark.history import HistorySource  # noqa: PLC0415 - may be missing

    return HistorySource


DefaultSource = found(_load, "zkconsumer-history")

__all__ = ["DefaultSource"]
