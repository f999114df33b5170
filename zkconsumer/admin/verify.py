"""Whether a group has settled: every partition that members ask for is owned by one of them.

What `kafka.tools.VerifyConsumerRebalance` meant to check. That of 0.8.2, and of 0.9.0 to 0.10.0.0,
says "failed" of every group (KAFKA-3952), and all of them want owners of Kafka's own topics, which
`exclude.internal.topics` keeps from every wildcard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zkconsumer.admin.findings import Finding, Severity, partitions_of
from zkconsumer.admin.groups import (
    GroupImage,
    read_groups,
    read_topic_names,
    read_topics,
    unknown_group,
)
from zkconsumer.errors import shown
from zkconsumer.protocol.group_assignment import RequestedTopics, requested_topics
from zkconsumer.protocol.model import ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.protocol.payloads import OwnerZnode
from zkconsumer.zk.client import ZooKeeperClient

MALFORMED, NO_OWNER, UNREGISTERED = "malformed-registration", "no-owner", "unregistered-owner"
MALFORMED_TOPIC = "malformed-topic"


def verify(
    connection: ZooKeeperClient, group: str, *, exclude_internal: bool = True
) -> list[Finding]:
    """What keeps a group from having settled; empty when it has, and when it has no members.

    Reads once, so that a group in the middle of a rebalance has not settled. `exclude_internal` is
    the members' `exclude.internal.topics`. Raises UnknownGroupError, AccessDeniedError and
    ZooKeeperUnreachableError.
    """
    images = read_groups(connection, [group])
    if group not in images:
        raise unknown_group(group, connection)
    topics = read_topics(connection, read_topic_names(connection))
    payloads = {name: one.node.data for name, one in topics.items()}
    return list(unsettled(images[group], payloads, exclude_internal=exclude_internal))


def unsettled(
    image: GroupImage, topics: Mapping[str, bytes | None], *, exclude_internal: bool = True
) -> Iterator[Finding]:
    """The same of what was read; `topics` are the payloads of all topics there are."""
    wanted = requested_topics(image.members, topics, exclude_internal=exclude_internal)
    for consumer, error in wanted.faults.items():
        yield Finding(
            Severity.ERROR,
            MALFORMED,
            image.name,
            consumer,
            f"its registration cannot be read: {error.what}",
            "which topics it asks for, and whether they are owned, cannot be told",
            f"zkconsumer doctor --group {image.name}",
        )
    for topic, fault in wanted.topic_faults.items():
        yield Finding(
            Severity.ERROR,
            MALFORMED_TOPIC,
            image.name,
            topic,
            f"its partitions: {fault}",
            "members that read it fail",
            "compare the topic's znode with another's and mend it",
        )
    for topic, missing in unowned(wanted, image.owners).items():
        of_all = len(missing) == len(wanted.partitions[topic])
        what = "no partition has an owner" if of_all else f"{partitions_of(missing)} without owner"
        yield Finding(
            Severity.ERROR,
            NO_OWNER,
            image.name,
            topic,
            what,
            "nobody reads them",
            f"zkconsumer explain {image.name}",
            missing,
        )
    for (topic, thread), numbers in unregistered(wanted, image.owners).items():
        yield Finding(
            Severity.ERROR,
            UNREGISTERED,
            image.name,
            topic,
            f"{shown(thread)}, the owner of {partitions_of(numbers)}, is no thread that a member"
            " has registered for this topic",
            "no member of the group reads them",
            f"zkconsumer doctor --group {image.name}",
            numbers,
        )


def unowned(
    wanted: RequestedTopics, owners: Mapping[TopicPartition, OwnerZnode]
) -> dict[str, tuple[int, ...]]:
    """Topic -> partitions that members ask for and nobody owns; not those where all are owned."""
    found = {
        topic: tuple(number for number in numbers if TopicPartition(topic, number) not in owners)
        for topic, numbers in wanted.partitions.items()
    }
    return {topic: missing for topic, missing in sorted(found.items()) if missing}


def unregistered(
    wanted: RequestedTopics, owners: Mapping[TopicPartition, OwnerZnode]
) -> dict[tuple[str, ThreadId], tuple[int, ...]]:
    """(topic, owner) -> partitions, where the owner is no thread that is registered for the topic.

    Only topics that members ask for, and no threads of members whose registration says nothing.
    """
    known = {topic: frozenset(threads) for topic, threads in wanted.threads.items()}
    there = {topic: frozenset(numbers) for topic, numbers in wanted.partitions.items()}
    found: dict[tuple[str, ThreadId], list[int]] = {}
    for tp, node in owners.items():
        if tp.topic not in known or tp.partition not in there[tp.topic]:
            continue
        if node.thread in known[tp.topic] or consumer_of(node.thread) in wanted.faults:
            continue
        found.setdefault((tp.topic, node.thread), []).append(tp.partition)
    return {key: tuple(numbers) for key, numbers in found.items()}
