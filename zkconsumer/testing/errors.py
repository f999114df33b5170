"""The error codes that the fake brokers return.

Kafka: `org.apache.kafka.common.protocol.Errors`.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """An error code of Kafka's protocol, except those of group coordinators (`protocol.later`)."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    UNKNOWN_TOPIC_ID = 100
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69


class KafkaFault(Exception):
    """A request, or one partition of a request, is refused with an error code and a reason."""

    def __init__(self, code: ErrorCode, why: str = "") -> None:
        super().__init__(why)
        self.code, self.why = code, why
