"""Module that Spark finds by its name; `format("zkconsumer-groups")` needs no registration."""

from pyspark.sql.datasource import DataSource

from pyspark_zkconsumer import found


def _load() -> type[DataSource]:
    from zkconsumer.spark.tables.source import GroupsSource  # noqa: PLC0415 - may be missing

    return GroupsSource


DefaultSource = found(_load, "zkconsumer-groups")

__all__ = ["DefaultSource"]
