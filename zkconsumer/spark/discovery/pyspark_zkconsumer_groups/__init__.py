"""Found by Spark through its name: gives `format("zkconsumer-groups")` without a registration."""

from zkconsumer.spark.tables.source import GroupsSource as DefaultSource

__all__ = ["DefaultSource"]
