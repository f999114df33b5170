"""Configuration: the table of properties, properties files, and the connection to ZooKeeper."""

from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig

__all__ = ["ConnectionConfig", "ConsumerConfig"]
