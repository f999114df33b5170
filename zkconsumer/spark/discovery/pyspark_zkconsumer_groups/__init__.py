"""Module that Spark finds by its name; it provides `format("zkconsumer-groups")` unregistered."""

from zkconsumer.spark.tables.source import GroupsSource as DefaultSource

__all__ = ["DefaultSource"]
