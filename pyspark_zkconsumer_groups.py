"""Module that Spark finds by its name; `format("zkconsumer-groups")` needs no registration."""

from zkconsumer.spark.tables.source import GroupsSource as DefaultSource

__all__ = ["DefaultSource"]
