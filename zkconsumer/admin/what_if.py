"""Who would own what if members came or went, or topics grew; and what would move against today.

The group is read once and never written; every member computes what is shown here by itself
(`kafka.consumer.PartitionAssignor`, Kafka 0.8.0 to 1.1.1).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from zkconsumer.admin.groups import (
    MEMBERS,
    OWNERS,
    read_groups,
    read_topic_names,
    read_topics,
    unknown_group,
)
from zkconsumer.errors import ConfigError, MalformedZnodeError, shown
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import Failure, GroupInput, MemberAssignment
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import validate_streams, validate_topic_counts
from zkconsumer.protocol.payloads import decode_topic
from zkconsumer.protocol.registrations import (
    Pattern,
    Registration,
    decode_registration,
    encode_registration,
)
from zkconsumer.zk.client import ZooKeeperClient

_WHERE = "--what-if"
_FORMS = "+MEMBER:THREADS, +MEMBER:TOPIC=THREADS[,...], -MEMBER, or TOPIC=+PARTITIONS"
_GROWTH = re.compile(r"([^=]+)=\+([0-9]{1,6})")

MAX_ADDED = 100_000
"""Partitions that a what-if adds to a topic: far beyond use, and still computed in a second. More
are refused."""

Owners = Mapping[TopicPartition, ThreadId]


def live_group(
    connection: ZooKeeperClient,
    name: str,
    *,
    strategy: Strategy = Strategy.RANGE,
    exclude_internal: bool = True,
) -> tuple[GroupInput, Owners]:
    """What members of a group compute from, and who owns what now.

    Raises UnknownGroupError, AccessDeniedError and ZooKeeperUnreachableError.
    """
    images = read_groups(connection, [name], rooms=(MEMBERS, OWNERS))
    if name not in images:
        raise unknown_group(name, connection)
    topics = read_topics(connection, read_topic_names(connection))
    payloads = {topic: one.node.data for topic, one in topics.items()}
    image = images[name]
    return image.group_input(payloads, strategy, exclude_internal=exclude_internal), image.threads


# ---- what if ------------------------------------------------------------------------------------


def what_if(group: GroupInput, wishes: Iterable[str]) -> GroupInput:
    """The group after all of these, one after the other; raises ConfigError for one that cannot be.

    `+MEMBER:2` comes with two threads for whatever the group's members ask for, `+MEMBER:T=2,U=1`
    for topics of its own; `-MEMBER` goes; `TOPIC=+8` has eight partitions more, and is new if it
    does not exist.
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
    """With one member more."""
    payload = encode_registration(replace(registration, timestamp_ms=0))
    return replace(group, registrations={**group.registrations, consumer: payload})


def left(group: GroupInput, consumer: ConsumerId, *, where: str) -> GroupInput:
    """With one member less; raises ConfigError where it is none, and `where` is what said so."""
    if consumer not in group.registrations:
        raise ConfigError(
            f"{shown(consumer)} is no member",
            where=where,
            remedy="one of " + ", ".join(list(group.registrations)[:5])
            if group.registrations
            else "the group has none",
        )
    others = {name: data for name, data in group.registrations.items() if name != consumer}
    return replace(group, registrations=others)


def topic_counts(text: str, *, where: str) -> dict[str, int]:
    """`TOPIC=STREAMS[,TOPIC=STREAMS]` as a subscription. Raises ConfigError."""
    try:
        pairs = [one.rpartition("=") for one in text.split(",")]
        return validate_topic_counts({topic: int(count) for topic, _, count in pairs})
    except ValueError as error:
        raise ConfigError(
            f"{shown(text)} is no subscription", where=where, remedy="TOPIC=STREAMS[,...]"
        ) from error


def _joined(group: GroupInput, wish: str) -> GroupInput:
    consumer, colon, asked = wish[1:].rpartition(":")
    if not colon or not consumer:
        raise ConfigError(f"{shown(wish)} names no member", where=_WHERE, remedy=_FORMS)
    paths.validate_consumer_id(consumer)
    if "=" in asked:
        return joined(group, consumer, Registration(topic_counts(asked, where=_WHERE)))
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        raise ConfigError(f"{shown(wish)} names no member", where=_WHERE, remedy=_FORMS)
    threads = validate_streams(int(asked), where=_WHERE)
    return joined(group, consumer, _like_the_others(group, threads))


def _like_the_others(group: GroupInput, threads: int) -> Registration:
    """What the members ask for: all their topics, or the filter that most of them have."""
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
            "no member says which topics the group reads",
            where=_WHERE,
            remedy="+MEMBER:TOPIC=THREADS",
        )
    return Registration(topics)


def _grown(group: GroupInput, wish: str) -> GroupInput:
    match = _GROWTH.fullmatch(wish)
    if match is None or not 0 < int(match[2]) <= MAX_ADDED:
        raise ConfigError(
            f"{shown(wish)} is no change of a group",
            where=_WHERE,
            remedy=f"{_FORMS}; at most {MAX_ADDED} partitions",
        )
    topic, more = paths.validate_topic(match[1]), int(match[2])
    there = decode_topic(group.topics[topic], where=topic) if topic in group.topics else ()
    first = there[-1] + 1 if there else 0
    numbers = (*there, *range(first, first + more))
    document = {"version": 1, "partitions": {str(number): [0] for number in numbers}}
    return replace(group, topics={**group.topics, topic: json.dumps(document).encode()})


# ---- what moves ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Who owns a partition `now`, and who would `then`; None: nobody."""

    partition: TopicPartition
    now: ThreadId | None
    then: ThreadId | None

    @property
    def moves(self) -> bool:
        """Whether it goes from one owner to another."""
        return self.now is not None and self.then is not None and self.now != self.then


def places(parts: Mapping[ConsumerId, MemberAssignment | Failure], owners: Owners) -> list[Place]:
    """Each partition that has an owner, or would have one, sorted."""
    then = {
        tp: thread
        for part in parts.values()
        if not isinstance(part, Failure)
        for tp, thread in part.items()
    }
    return [Place(tp, owners.get(tp), then.get(tp)) for tp in sorted({*then, *owners})]
