"""Check that a group has settled: it has members, and every partition that they subscribe to has a
registered owner.

`kafka.tools.VerifyConsumerRebalance` intends the same check. In 0.8.2 and from 0.9.0 to 0.10.0.0 it
reports "failed" for every group (KAFKA-3952). In all its releases it also demands owners for
Kafka's internal topics, although `exclude.internal.topics` excludes these topics from every topic
filter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import groupby

from zkconsumer.admin.findings import Finding, Severity, partitions_of
from zkconsumer.admin.groups import (
    GroupImage,
    existing_group,
    read_all_topic_payloads,
)
from zkconsumer.admin.health import last_write
from zkconsumer.errors import AccessDeniedError, Advice, RemedyOperation, quoted
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import RequestedTopics, requested_topics
from zkconsumer.protocol.model import ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import OwnerZnode, TopicPayloads
from zkconsumer.zk.client import ZooKeeperClient

MALFORMED, NO_OWNER, UNREGISTERED = "malformed-registration", "no-owner", "unregistered-owner"
MALFORMED_TOPIC, ACCESS_DENIED, NO_MEMBERS = "malformed-topic", "access-denied", "no-members"
PERSISTENT_MEMBER, PERSISTENT_OWNER = "persistent-registration", "persistent-owner"


def verify(
    connection: ZooKeeperClient, group: str, *, exclude_internal: bool = True
) -> list[Finding]:
    """Return why a group has not settled; empty if it has settled.

    The group is read once, so a group that is rebalancing has not settled. `exclude_internal` is
    the members' `exclude.internal.topics`. Raises UnknownGroupError, AccessDeniedError and
    ZooKeeperUnreachableError.
    """
    image = existing_group(connection, group, needs_offsets=False)
    payloads = read_all_topic_payloads(connection)
    return list(unsettled(image, payloads, exclude_internal=exclude_internal))


def unsettled(
    image: GroupImage, topics: TopicPayloads, *, exclude_internal: bool = True
) -> Iterator[Finding]:
    """Yield why a group has not settled; `topics` is topic -> payload of all topics."""
    wanted = requested_topics(image.members, topics, exclude_internal=exclude_internal)
    yield from _nobody(image)
    for consumer, error in wanted.faults.items():
        yield Finding(
            Severity.ERROR,
            MALFORMED,
            image.name,
            consumer,
            f"its registration cannot be read: {error.what}",
            "its topics are unknown, so it is unknown whether they have owners",
            "examine the group",
            advice=Advice(RemedyOperation.EXAMINE, image.name),
        )
    yield from unreadable_topics(image.name, wanted, topics)
    for topic, missing in unowned(wanted, image.owners).items():
        of_all = len(missing) == len(wanted.partitions[topic])
        some = f"{partitions_of(missing)} without an owner"
        what = "no partition has an owner" if of_all else some
        yield Finding(
            Severity.ERROR,
            NO_OWNER,
            image.name,
            topic,
            what,
            "their messages are not consumed",
            "see which threads should own them",
            missing,
            advice=Advice(RemedyOperation.EXPLAIN, image.name),
        )
    for (topic, thread), numbers in unregistered(wanted, image.threads).items():
        yield Finding(
            Severity.ERROR,
            UNREGISTERED,
            image.name,
            topic,
            f"{quoted(thread)}, the owner of {partitions_of(numbers)}, is not a thread that a"
            " member has registered for this topic",
            "no member of the group consumes them",
            "examine the group",
            numbers,
            advice=Advice(RemedyOperation.EXAMINE, image.name),
            sessions=tuple(
                sorted({image.owners[TopicPartition(topic, one)].session for one in numbers} - {0})
            ),
        )


def _nobody(image: GroupImage) -> Iterator[Finding]:
    """Yield that no member is registered, and which znodes are left over from members."""
    health = image.health
    if not health.live:
        yield Finding(
            Severity.WARNING,
            NO_MEMBERS,
            image.name,
            image.name,
            f"no member is registered{_last_write(image)}",
            "no member of the group consumes its partitions",
            "start its members, or examine the group",
            advice=Advice(RemedyOperation.EXAMINE, image.name),
        )
    for consumer in health.leftovers:
        yield Finding(
            Severity.ERROR,
            PERSISTENT_MEMBER,
            image.name,
            consumer,
            "its registration is persistent: no session expiry deletes it",
            "partitions are assigned to it, and their messages are not consumed",
            "examine the group",
            advice=Advice(RemedyOperation.EXAMINE, image.name),
        )
    for topic, of_topic in groupby(health.leftover_owners, lambda tp: tp.topic):
        numbers = tuple(tp.partition for tp in of_topic)
        yield Finding(
            Severity.ERROR,
            PERSISTENT_OWNER,
            image.name,
            topic,
            f"the owner znodes of {partitions_of(numbers)} are persistent",
            "no member can claim the partitions",
            "examine the group",
            numbers,
            advice=Advice(RemedyOperation.EXAMINE, image.name),
        )


def _last_write(image: GroupImage) -> str:
    if image.has_unknown_offsets:
        return f"; its last commit is unknown: {image.denial}"
    return last_write(image.health, time.time())


def unreadable_topics(
    group: str, wanted: RequestedTopics, topics: TopicPayloads
) -> Iterator[Finding]:
    """Yield the topics of a group whose partitions are unknown."""
    for topic, fault in wanted.topic_faults.items():
        payload = topics.get(topic)
        if isinstance(payload, AccessDeniedError):
            yield Finding(
                Severity.ERROR,
                ACCESS_DENIED,
                group,
                topic,
                f"its partitions are unknown: {payload.what}",
                "it is unknown which partitions the members must own",
                f"permit this client to read {payload.where}, or {payload.remedy}",
            )
        else:
            yield Finding(
                Severity.ERROR,
                MALFORMED_TOPIC,
                group,
                topic,
                f"its partitions cannot be read: {fault}",
                "members that subscribe to it fail in every rebalance",
                f"compare {paths.topic(topic)} with the znode of another topic, and correct it",
            )


def unowned(
    wanted: RequestedTopics, owners: Mapping[TopicPartition, OwnerZnode]
) -> dict[str, tuple[int, ...]]:
    """Return topic -> partitions without an owner, of the topics that members subscribe to."""
    found = {
        topic: tuple(number for number in numbers if TopicPartition(topic, number) not in owners)
        for topic, numbers in wanted.partitions.items()
    }
    return {topic: missing for topic, missing in sorted(found.items()) if missing}


def unregistered(
    wanted: RequestedTopics, owners: Mapping[TopicPartition, ThreadId]
) -> dict[tuple[str, ThreadId], tuple[int, ...]]:
    """Return (topic, owner) -> partitions whose owner is not a thread registered for the topic.

    `owners` is `GroupImage.threads`, or a part of it. Topics without a subscriber are left out, and
    so are threads of members whose registration cannot be read.
    """
    known = {topic: frozenset(threads) for topic, threads in wanted.threads.items()}
    there = {topic: frozenset(numbers) for topic, numbers in wanted.partitions.items()}
    found: dict[tuple[str, ThreadId], list[int]] = {}
    for tp, thread in owners.items():
        if tp.topic not in known or tp.partition not in there[tp.topic]:
            continue
        if thread in known[tp.topic] or consumer_of(thread) in wanted.faults:
            continue
        found.setdefault((tp.topic, thread), []).append(tp.partition)
    return {key: tuple(numbers) for key, numbers in found.items()}
