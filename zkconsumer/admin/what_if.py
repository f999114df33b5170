"""The assignment of a group after hypothetical changes: members join or leave, topics grow.

The group is read once, and nothing is written. The result is the assignment that each member would
compute for itself (`kafka.consumer.PartitionAssignor`, Kafka 0.8.0 to 1.1.1).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zkconsumer.admin.groups import existing_group, read_all_topic_payloads, require_topics
from zkconsumer.errors import ConfigError, MalformedZnodeError, first_few, quoted
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import (
    AssignmentFailure,
    GroupInput,
    MemberAssignment,
    partitions_in,
    requested_topics,
)
from zkconsumer.protocol.group_znodes import MEMBERS, OWNERS
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.later import assignors as later
from zkconsumer.protocol.later.assignors import Assignor
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import validate_streams, validate_topic_counts
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
)
from zkconsumer.zk.client import ZooKeeperClient

_WHERE = "what-if"
_FORMS = "+MEMBER:THREADS, +MEMBER:TOPIC=THREADS[,...], -MEMBER, or TOPIC=+PARTITIONS"
_GROWTH = re.compile(r"([^=]+)=\+([0-9]{1,6})")

MAX_ADDED = 100_000
"""Maximum number of partitions that one change may add to a topic; a higher number is an error. The
assignment is then still computed within a second."""

Owners = Mapping[TopicPartition, ThreadId]


def live_group(
    connection: ZooKeeperClient,
    name: str,
    *,
    strategy: Strategy = Strategy.RANGE,
    exclude_internal: bool = True,
) -> tuple[GroupInput, Owners]:
    """Return the input of a group's assignment, and partition -> present owner.

    Raises UnknownGroupError, AccessDeniedError and ZooKeeperUnreachableError.
    """
    image = existing_group(connection, name, directories=(MEMBERS, OWNERS))
    payloads = read_all_topic_payloads(connection)
    require_topics(image, payloads)
    return image.group_input(payloads, strategy, exclude_internal=exclude_internal), image.threads


# ---- hypothetical changes -----------------------------------------------------------------------


def what_if(group: GroupInput, wishes: Iterable[str]) -> GroupInput:
    """Return the group after changes, applied in their order. Raises ConfigError for a bad change.

    `+MEMBER:2` is a new member with two threads for each topic of the group. `+MEMBER:T=2,U=1` is a
    new member with its own subscription. `-MEMBER` removes a member. `TOPIC=+8` adds eight
    partitions to a topic, and creates the topic if it does not exist.
    """
    for wish in wishes:
        if wish.startswith("+"):
            group = _joined(group, wish)
        elif wish.startswith("-"):
            group = left(group, wish[1:], where=_WHERE)
        else:
            group = _grown(group, wish)
    return group


def joined(group: GroupInput, consumer: ConsumerId, registration: Registration) -> GroupInput:
    """Return the group with one more member."""
    payload = encode_registration(replace(registration, timestamp_ms=0))
    return replace(group, registrations={**group.registrations, consumer: payload})


def left(group: GroupInput, consumer: ConsumerId, *, where: str) -> GroupInput:
    """Return the group without a member. Raises ConfigError with `where` for an unknown member."""
    if consumer not in group.registrations:
        raise ConfigError(
            f"{quoted(consumer)} is not a member",
            where=where,
            remedy="name one of " + first_few(group.registrations, 5)
            if group.registrations
            else "the group has no members",
        )
    others = {name: data for name, data in group.registrations.items() if name != consumer}
    return replace(group, registrations=others)


def topic_counts(text: str, *, where: str) -> dict[str, int]:
    """Parse `TOPIC=STREAMS[,TOPIC=STREAMS]` as a subscription. Raises ConfigError."""
    try:
        pairs = [one.rpartition("=") for one in text.split(",")]
        return validate_topic_counts({topic: int(count) for topic, _, count in pairs})
    except ValueError as error:
        raise ConfigError(
            f"{quoted(text)} is not a subscription",
            where=where,
            remedy="use TOPIC=STREAMS[,...]",
        ) from error


def _joined(group: GroupInput, wish: str) -> GroupInput:
    consumer, colon, threads_or_topics = wish[1:].rpartition(":")
    if not colon or not consumer:
        raise ConfigError(f"{quoted(wish)} names no member", where=_WHERE, remedy=f"use {_FORMS}")
    paths.validate_consumer_id(consumer)
    if "=" in threads_or_topics:
        topics = topic_counts(threads_or_topics, where=_WHERE)
        return joined(group, consumer, Registration(topics))
    count = threads_or_topics
    if not (count.isascii() and count.isdigit() and len(count) < 10):
        raise ConfigError(
            f"{quoted(wish)} has no number of threads", where=_WHERE, remedy=f"use {_FORMS}"
        )
    threads = validate_streams(int(count), where=_WHERE)
    return joined(group, consumer, _usual_registration(group, threads))


def _usual_registration(group: GroupInput, threads: int) -> Registration:
    """Return a registration for all topics of the members, or for their most frequent filter."""
    topics: dict[str, int] = {}
    filters: Counter[tuple[Pattern, str]] = Counter()
    for consumer, payload in group.registrations.items():
        try:
            found = decode_registration(payload, where=consumer)
        except MalformedZnodeError:
            continue
        if found.pattern is Pattern.STATIC:
            topics |= dict.fromkeys(found.subscription, threads)
        else:
            filters[found.pattern, next(iter(found.subscription))] += 1
    if filters and not topics:
        (pattern, regex), _ = filters.most_common(1)[0]
        return Registration({regex: threads}, pattern)
    if not topics:
        raise ConfigError(
            "no member has a subscription that the new member could adopt",
            where=_WHERE,
            remedy="use +MEMBER:TOPIC=THREADS",
        )
    return Registration(topics)


def _grown(group: GroupInput, wish: str) -> GroupInput:
    match = _GROWTH.fullmatch(wish)
    if match is None or not 0 < int(match[2]) <= MAX_ADDED:
        raise ConfigError(
            f"{quoted(wish)} is not a change of a group",
            where=_WHERE,
            remedy=f"use {_FORMS}, with at most {MAX_ADDED} partitions",
        )
    topic, more = paths.validate_topic(match[1]), int(match[2])
    there, fault = partitions_in(topic, group.topics)
    if fault:
        raise ConfigError(f"the partitions of topic {topic} cannot be read: {fault}", where=_WHERE)
    first = there[-1] + 1 if there else 0
    numbers = (*there, *range(first, first + more))
    document = {"version": 1, "partitions": {str(number): [0] for number in numbers}}
    return replace(group, topics={**group.topics, topic: json.dumps(document).encode()})


# ---- the result ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PredictedOwner:
    """A partition with its owner before (`now`) and after (`then`) the changes; None: no owner."""

    partition: TopicPartition
    now: ThreadId | None
    then: ThreadId | None

    @property
    def moves(self) -> bool:
        """Whether both owners exist and differ."""
        return self.now is not None and self.then is not None and self.now != self.then


def places(
    parts: Mapping[ConsumerId, MemberAssignment | AssignmentFailure], owners: Owners
) -> list[PredictedOwner]:
    """Return each partition that has an owner before or after the changes, sorted."""
    then = {
        tp: thread
        for part in parts.values()
        if not isinstance(part, AssignmentFailure)
        for tp, thread in part.items()
    }
    return [PredictedOwner(tp, owners.get(tp), then.get(tp)) for tp in sorted({*then, *owners})]


# ---- Kafka's later consumer ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaterGroup:
    """A group after each of its threads was replaced by a consumer of Kafka's later group
    protocols.

    Attributes:
        places: each partition with its present owner and the thread that would own it.
        faults: member -> why its registration cannot be read; the threads of such a member are left
            out.
    """

    places: Sequence[PredictedOwner]
    faults: Mapping[ConsumerId, str]

    def shares(self) -> dict[ThreadId, tuple[int, int]]:
        """Return the number of partitions of each thread, before and after the change."""
        now = Counter(one.now for one in self.places)
        then = Counter(one.then for one in self.places)
        threads = sorted({*now, *then} - {None}, key=lambda one: utf16_key(one or ""))
        return {one: (now[one], then[one]) for one in threads if one is not None}


def with_later_consumers(group: GroupInput, owners: Owners, assignor: Assignor) -> LaterGroup:
    """Return what each thread would own if it were one consumer of Kafka's later protocols.

    A KafkaConsumer belongs to one thread, so each thread of the group becomes one member. Each such
    member subscribes to the topics of the thread, and has no previous assignment.

    Raises:
        ConfigError: no thread of the group can be read.
        JavaError: Kafka's assignor throws this exception.
    """
    requested = requested_topics(
        {name: _decoded(name, data) for name, data in group.registrations.items()},
        group.topics,
        exclude_internal=group.exclude_internal,
    )
    wanted: dict[ThreadId, list[str]] = {}
    for topic, threads in requested.threads.items():
        for thread in threads:
            wanted.setdefault(thread, []).append(topic)
    if not wanted:
        raise ConfigError(
            "the group has no threads, so there is nothing to assign",
            remedy="start its members, or add one with --join",
        )
    found = later.assign(
        assignor,
        {topic: Topic(len(numbers)) for topic, numbers in requested.partitions.items()},
        {thread: Subscription(tuple(topics)) for thread, topics in wanted.items()},
    )
    then = {one: thread for thread, partitions in found.items() for one in partitions}
    places = [
        PredictedOwner(one, owners.get(one), then.get(one)) for one in sorted({*then, *owners})
    ]
    return LaterGroup(places, {one: str(why) for one, why in requested.faults.items()})


def _decoded(consumer: ConsumerId, payload: bytes | None) -> Registration | MalformedZnodeError:
    try:
        return decode_registration(payload, where=consumer)
    except MalformedZnodeError as error:
        return error
