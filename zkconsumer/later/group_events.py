"""The events, replies and settings of a broker's group coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.later.messages import Request, Response
from zkconsumer.protocol.later.subscriptions import Topic


@dataclass(frozen=True, slots=True)
class Event:
    """An event that the coordinator must handle."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A request arrived.

    Attributes:
        number: a number that no other request to this broker has; the reply carries it. The reply
            to JoinGroup and SyncGroup may come many steps later.
        request: the request.
        client: `client.id`, the beginning of the member ids that the coordinator chooses.
        fresh: the end of a member id that the coordinator chooses for this request. Kafka draws a
            random UUID; here the caller supplies it, so that `step` is deterministic.
    """

    number: int
    request: Request
    client: str = "client"
    fresh: str = ""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed; due at `group_coordinator.next_deadline`."""


@dataclass(frozen=True, slots=True)
class Elected(Event):
    """The broker became leader of a partition of `__consumer_offsets`, and starts to load it."""

    partition: int


@dataclass(frozen=True, slots=True)
class Loaded(Event):
    """The broker has read the partition; `records` is a result of `group_coordinator.stored`.

    Until then, the coordinator answers COORDINATOR_LOAD_IN_PROGRESS for the partition's groups.
    """

    partition: int
    records: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Resigned(Event):
    """The broker no longer leads the partition; parked requests get NOT_COORDINATOR."""

    partition: int


@dataclass(frozen=True, slots=True)
class TopicsChanged(Event):
    """The cluster's topics, by name; KIP-848's coordinator assigns their partitions itself."""

    topics: Mapping[str, Topic]


DEFAULT_SESSION_S: Final = 45.0
"""The default of `session.timeout.ms` in Kafka 3.9, and of KIP-848's
`group.consumer.session.timeout.ms`, in seconds."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to the request with this number."""

    number: int
    response: Response


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The broker's settings of group coordination, with the defaults of Kafka 3.9.

    Attributes:
        initial_delay_s: `group.initial.rebalance.delay.ms`.
        min_session_s: `group.min.session.timeout.ms`.
        max_session_s: `group.max.session.timeout.ms`.
        max_size: `group.max.size` and `group.consumer.max.size`.
        new_member_join_s: the maximum time for which a new member's JoinGroup is parked (not a
            setting).
        offsets_partitions: `offsets.topic.num.partitions`.
        retention_s: `offsets.retention.minutes`.
        retention_check_s: `offsets.retention.check.interval.ms`.
        heartbeat_s: `group.consumer.heartbeat.interval.ms` (KIP-848).
        session_s: `group.consumer.session.timeout.ms` (KIP-848).
    """

    initial_delay_s: float = 3.0
    min_session_s: float = 6.0
    max_session_s: float = 1800.0
    max_size: int = 2**31 - 1
    new_member_join_s: float = 300.0
    offsets_partitions: int = 50
    retention_s: float = 7 * 86400.0
    retention_check_s: float = 600.0
    heartbeat_s: float = 5.0
    session_s: float = DEFAULT_SESSION_S
