"""Found by Spark through its name: gives `format("zkconsumer-history")` without a registration."""

from zkconsumer.spark.history import HistorySource as DefaultSource

__all__ = ["DefaultSource"]
