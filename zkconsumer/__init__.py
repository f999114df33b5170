"""Kafka's ZooKeeper-based high-level consumer in Python; it joins the same groups as JVM consumers.

Start with `ConsumerConfig` and `ConsumerConnector`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zkconsumer.config.settings import ConsumerConfig
    from zkconsumer.consumer.connector import ConsumerConnector
    from zkconsumer.consumer.listener import (
        ConsumerRebalanceListener,
        ConsumerThreadId,
        RebalanceCallbacks,
    )
    from zkconsumer.consumer.messages import Batch, Message, TimestampType
    from zkconsumer.consumer.positions import OwnedPartition
    from zkconsumer.consumer.status import Status
    from zkconsumer.consumer.stream import Stream
    from zkconsumer.errors import (
        AccessDeniedError,
        BrokerAccessError,
        BrokersUnreachableError,
        ChrootMissingError,
        CommitError,
        ConfigError,
        ConnectorClosedError,
        ConsumerIdTakenError,
        ConsumerTimeoutError,
        DecodeError,
        FetchError,
        FilterTooCostlyError,
        ForkedError,
        InvalidFilterError,
        InvalidNameError,
        MalformedZnodeError,
        MessageStreamsExistError,
        NotOwnedError,
        RebalanceBlockedError,
        RefusedError,
        StreamInUseError,
        UnknownGroupError,
        UnsupportedFilterError,
        UnsupportedPeerError,
        ZkConsumerError,
        ZooKeeperUnreachableError,
    )
    from zkconsumer.protocol.filters import TopicFilter, black_list, white_list
    from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "Batch",
    "BrokerAccessError",
    "BrokersUnreachableError",
    "ChrootMissingError",
    "CommitError",
    "ConfigError",
    "ConnectorClosedError",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerIdTakenError",
    "ConsumerRebalanceListener",
    "ConsumerThreadId",
    "ConsumerTimeoutError",
    "DecodeError",
    "FetchError",
    "FilterTooCostlyError",
    "ForkedError",
    "InvalidFilterError",
    "InvalidNameError",
    "MalformedZnodeError",
    "Message",
    "MessageStreamsExistError",
    "NotOwnedError",
    "OffsetAndMetadata",
    "OwnedPartition",
    "RebalanceBlockedError",
    "RebalanceCallbacks",
    "RefusedError",
    "Status",
    "Stream",
    "StreamInUseError",
    "TimestampType",
    "TopicFilter",
    "TopicPartition",
    "UnknownGroupError",
    "UnsupportedFilterError",
    "UnsupportedPeerError",
    "ZkConsumerError",
    "ZooKeeperUnreachableError",
    "black_list",
    "white_list",
]

# Each name is imported on its first use: `--help` needs neither client library
# (docs/performance.md has the times of the imports).
_HOMES = {
    "ConsumerConfig": "zkconsumer.config.settings",
    "ConsumerConnector": "zkconsumer.consumer.connector",
    "Status": "zkconsumer.consumer.status",
    "Stream": "zkconsumer.consumer.stream",
    "Message": "zkconsumer.consumer.messages",
    "Batch": "zkconsumer.consumer.messages",
    "TimestampType": "zkconsumer.consumer.messages",
    "TopicPartition": "zkconsumer.protocol.model",
    "ConsumerRebalanceListener": "zkconsumer.consumer.listener",
    "RebalanceCallbacks": "zkconsumer.consumer.listener",
    "ConsumerThreadId": "zkconsumer.consumer.listener",
    "OwnedPartition": "zkconsumer.consumer.positions",
    "OffsetAndMetadata": "zkconsumer.protocol.model",
    "TopicFilter": "zkconsumer.protocol.filters",
    "white_list": "zkconsumer.protocol.filters",
    "black_list": "zkconsumer.protocol.filters",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "zkconsumer.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
