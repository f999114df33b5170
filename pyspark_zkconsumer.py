"""Module that Spark finds by its name; `format("zkconsumer")` needs no registration."""

from zkconsumer.spark.data_source import ZkConsumerSource as DefaultSource

__all__ = ["DefaultSource"]
