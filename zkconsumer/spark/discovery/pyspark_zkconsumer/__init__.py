"""Found by Spark through its name: gives `format("zkconsumer")` without a registration."""

from zkconsumer.spark.source import ZkConsumerSource as DefaultSource

__all__ = ["DefaultSource"]
