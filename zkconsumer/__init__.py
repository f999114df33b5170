"""Kafka's legacy ZooKeeper-based high-level consumer, in Python, beside the JVM's own.

    from zkconsumer import ConsumerConfig, ConsumerConnector
"""

from zkconsumer.config import ConsumerConfig
from zkconsumer.consumer.connector import ConsumerConnector, Status
from zkconsumer.consumer.message import Batch, Message
from zkconsumer.consumer.stream import Stream
from zkconsumer.core.model import TopicPartition
from zkconsumer.errors import (
    CommitError,
    ConsumerTimeoutError,
    DecodeError,
    RebalanceBlockedError,
    ZkConsumerError,
)

__version__ = "0.1.0"

__all__ = [
    "ConsumerConfig",
    "ConsumerConnector",
    "Stream",
    "Message",
    "Batch",
    "Status",
    "TopicPartition",
    "ZkConsumerError",
    "ConsumerTimeoutError",
    "RebalanceBlockedError",
    "CommitError",
    "DecodeError",
]
