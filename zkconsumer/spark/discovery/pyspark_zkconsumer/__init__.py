"""Module that Spark finds by its name; it provides `format("zkconsumer")` unregistered."""

from zkconsumer.spark.data_source import ZkConsumerSource as DefaultSource

__all__ = ["DefaultSource"]
