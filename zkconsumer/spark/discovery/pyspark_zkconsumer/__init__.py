"""Found by Spark through its name: gives `format("zkconsumer")` without a registration."""

from zkconsumer.spark.data_source import ZkConsumerSource as DefaultSource

__all__ = ["DefaultSource"]
