"""Settings: properties as one table, from files, and for the connection to ZooKeeper."""

from zkconsumer.config.consumer import ConnectionConfig, ConsumerConfig

__all__ = ["ConnectionConfig", "ConsumerConfig"]
