"""Settings: properties as one table, from files, and for the connection to ZooKeeper."""

from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig

__all__ = ["ConnectionConfig", "ConsumerConfig"]
