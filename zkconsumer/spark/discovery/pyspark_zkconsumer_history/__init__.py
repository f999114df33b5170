"""Module that Spark finds by its name; it provides `format("zkconsumer-history")` unregistered."""

from zkconsumer.spark.history import HistorySource as DefaultSource

__all__ = ["DefaultSource"]
