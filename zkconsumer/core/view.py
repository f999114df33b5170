"""What one reading of ZooKeeper says about the group, and who should own what by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.assignors import Strategy, assign
from zkconsumer.core.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.core.records import Broker, Pattern, Registration
from zkconsumer.core.topics import thread_ids


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's partition numbers, ascending; `czxid` tells a re-created topic from the old one."""

    partitions: tuple[int, ...]
    czxid: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group as read: not atomic, so it may be torn; every change of it is watched.

    Attributes:
        members: valid registrations by consumer id.
        malformed: consumer id -> why its registration would fail every JVM member.
        topics: existing topics that the assignment depends on.
        malformed_topics: topic -> why its znode would fail every JVM member.
        brokers: the registered brokers that can be read, in the order of their ids as strings.
    """

    members: Mapping[ConsumerId, Registration]
    malformed: Mapping[ConsumerId, str]
    topics: Mapping[str, Topic]
    malformed_topics: Mapping[str, str]
    brokers: tuple[Broker, ...]


def needed_topics(
    members: Mapping[ConsumerId, Registration], own: Mapping[str, int], strategy: Strategy
) -> tuple[str, ...]:
    """The topics that the assignment depends on.

    Range looks at our own; round-robin, from 0.10.2 on (KAFKA-2434), at every topic of the group.
    """
    if strategy is Strategy.RANGE:
        return tuple(sorted(own))
    static = (r.subscription for r in members.values() if r.pattern is Pattern.STATIC)
    return tuple(sorted({*own, *(topic for subscription in static for topic in subscription)}))


def undecidable(view: GroupView) -> tuple[str, str]:
    """(znode's name, reason) when we cannot compute what the JVM members compute; else ('', '')."""
    for consumer, registration in sorted(view.members.items()):
        if registration.pattern is not Pattern.STATIC:
            kind = registration.pattern.value
            return consumer, f"it subscribes by {kind}, which this release does not evaluate"
    for topic, reason in sorted(view.malformed_topics.items()):
        return topic, reason
    return "", ""


def assignment(
    view: GroupView, *, consumer: ConsumerId, own: Mapping[str, int], strategy: Strategy
) -> dict[TopicPartition, ThreadId]:
    """Our own part of the assignment, as every other member computes it too."""
    whole = _whole(view, strategy)
    mine = {thread for n in own.values() for thread in thread_ids(consumer, n)}
    return {tp: thread for tp, thread in whole.items() if thread in mine}


def assignment_of_others(
    view: GroupView, *, consumer: ConsumerId, strategy: Strategy
) -> dict[TopicPartition, ThreadId]:
    """What the other members should own of the topics in the view."""
    mine = view.members[consumer].subscription if consumer in view.members else {}
    own = assignment(view, consumer=consumer, own=mine, strategy=strategy)
    return {tp: thread for tp, thread in _whole(view, strategy).items() if tp not in own}


def _whole(view: GroupView, strategy: Strategy) -> dict[TopicPartition, ThreadId]:
    return assign(
        strategy,
        subscriptions={name: r.subscription for name, r in view.members.items()},
        partitions={name: topic.partitions for name, topic in view.topics.items()},
    )


def recreated(known: Mapping[str, int], view: GroupView) -> frozenset[str]:
    """Topics that were deleted and created again since; `known` holds their latest czxid."""
    return frozenset(
        name
        for name, topic in view.topics.items()
        if known.get(name, topic.czxid) != topic.czxid
    )
