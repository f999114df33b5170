"""Module that Spark finds by its name; `format("zkconsumer-history")` needs no registration."""

from zkconsumer.spark.history import HistorySource as DefaultSource

__all__ = ["DefaultSource"]
