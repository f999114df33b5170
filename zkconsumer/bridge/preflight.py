"""What must be true before a bridge starts, and what an operator should know."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import closing
from typing import Final

from zkconsumer.admin.apply import count
from zkconsumer.admin.groups import (
    existing_group,
    has_offsets_topic,
    read_topic_names,
    unknown_topic_remedy,
)
from zkconsumer.admin.lag import NO_SUCH_TOPIC
from zkconsumer.bridge.brokers import GroupAdmin
from zkconsumer.bridge.state import ASSIGNORS
from zkconsumer.bridge.wire import GroupDescription
from zkconsumer.errors import (
    Advice,
    ConfigError,
    FetchError,
    RefusedError,
    RemedyOperation,
    first_few,
)
from zkconsumer.history.offset_records import (
    CommitValue,
    GroupKey,
    decode_commit,
    decode_key,
)
from zkconsumer.history.offset_records import has_members as has_members_in
from zkconsumer.kafka.client_settings import Settings
from zkconsumer.kafka.columns.lookups import Stored
from zkconsumer.kafka.group_evidence import has_consumer_protocol, partition_count, records_since
from zkconsumer.kafka.group_offsets import GroupOffsets
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    TopicPartition,
    coordinator_partition,
)
from zkconsumer.times import time_text
from zkconsumer.zk.client import ZooKeeperClient

RECENT_S: Final = 600.0
"""How far back, in seconds, commits to Kafka are looked for. A JVM consumer that stores its offsets
in Kafka commits them at every `auto.commit.interval.ms`, by default 60 s, even if none has
changed."""

LOSES_MEMBERSHIP = (
    "the brokers are older than 2.3 and have no static members: if the bridge restarts, the new"
    " members read every partition until it leads the group again"
)


CLASSIC: Final = "set group.protocol=classic in the new consumers"
"""What to do about a group of KIP-848's protocol."""


def check_group(
    connection: ZooKeeperClient,
    admin: GroupAdmin,
    group: str,
    brokers: Settings,
    *,
    instance: str,
    takes_lead: bool,
    limit_s: float,
) -> list[str]:
    """Check that both sides can share the group.

    Args:
        brokers: librdkafka's settings for the connection to the brokers.
        instance: the bridge's `group.instance.id`.
        takes_lead: whether the bridge may remove other members from the brokers' group.
        limit_s: seconds per request to the brokers.

    Returns:
        What an operator should know before the bridge starts.

    Raises:
        RefusedError: they cannot.
        FetchError: the brokers do not answer.
    """
    # This request is refused at once if the login is wrong; librdkafka would try again for a while.
    found = admin.describe(limit_s)
    check_protocol(brokers, group, limit_s=limit_s)
    check_brokers_group(found, group, instance=instance, takes_lead=takes_lead)
    has_members = bool(found.members)
    return check_offsets(connection, group, brokers, has_members=has_members, limit_s=limit_s)


def check_topics(connection: ZooKeeperClient, topics: Iterable[str]) -> None:
    """Check that topics exist which an operator has named. Raises ConfigError."""
    known = read_topic_names(connection)
    for topic in topics:
        if topic not in known:
            raise ConfigError(
                NO_SUCH_TOPIC,
                where=f"--topic {topic}",
                remedy=unknown_topic_remedy(topic, connection),
                advice=Advice(RemedyOperation.LIST_TOPICS),
            )


def check_brokers_group(
    found: GroupDescription, group: str, *, instance: str, takes_lead: bool
) -> None:
    """Check that the bridge can lead the brokers' group.

    Args:
        instance: the bridge's `group.instance.id`. A static member's id begins with it. If an
            earlier bridge is still a member, this one replaces it, and leads the group.

    Raises:
        RefusedError: the group has no assignor that the bridge can compute, it is not a group of
            consumers, or its members must be removed first.
    """
    if not found.members:
        return
    if found.kind != "consumer":
        raise RefusedError(
            f"the brokers' group is one of {found.kind or 'an unknown protocol'}, not of consumers",
            where=group,
            remedy="use the name of a group of consumers",
        )
    if found.protocol and found.protocol not in ASSIGNORS:
        raise RefusedError(
            f"the new members use the assignor {found.protocol}, which the bridge cannot compute",
            where=group,
            remedy=f"set partition.assignment.strategy to one of {', '.join(ASSIGNORS)}; Kafka"
            " Streams cannot share a group with a bridge",
        )
    is_expected = any(one.startswith(f"{instance}-") for one in found.members)
    if not takes_lead and not is_expected:
        shown = first_few(sorted(found.members.values()), 5)
        raise RefusedError(
            f"the brokers' group already has {count(found.members, 'member')}, and the bridge does"
            f" not lead it: {shown}",
            where=group,
            remedy="start the bridge before the new members, or give --take-lead: the bridge then"
            " removes them once, and they join again at once",
        )


def check_protocol(brokers: Settings, group: str, *, limit_s: float) -> None:
    """Check that the group does not use KIP-848's protocol.

    Args:
        brokers: librdkafka's settings for the connection to the brokers.
        limit_s: seconds per request to the brokers.

    Raises RefusedError.
    """
    if has_consumer_protocol(brokers, group, limit_s=limit_s):
        raise RefusedError(
            "in a group with group.protocol=consumer (KIP-848) the broker computes the assignment,"
            " so a bridge is impossible",
            where=group,
            remedy=CLASSIC,
        )


def check_offsets(
    connection: ZooKeeperClient, group: str, brokers: Settings, *, has_members: bool, limit_s: float
) -> list[str]:
    """Check that no old member stores its offsets in Kafka, alone or with dual commit.

    As soon as the bridge is a member of the brokers' group, the brokers refuse commits without a
    member id, which such a member sends. No znode says where a member stores its offsets. The
    evidence is a partition that an old member owns, and that has an offset in Kafka but none in
    ZooKeeper, or that was committed to Kafka from outside the brokers' group since the old member
    claimed it.

    Args:
        brokers: librdkafka's settings for the connection to the brokers.
        has_members: whether the brokers' group has members now.
        limit_s: seconds per request to the brokers.

    Returns:
        What an operator must check, because the brokers do not show the group's offsets, or their
        topic of the offsets.

    Raises:
        RefusedError: an old member stores its offsets in Kafka.
    """
    image = existing_group(connection, group)
    claimed = {tp: image.nodes[paths.owner(group, tp)].stat.mtime_ms for tp in image.owners}
    if not claimed:
        return []
    exists = has_offsets_topic(connection)
    stored = _in_kafka(brokers, group, claimed, exists=exists, limit_s=limit_s)
    unknown = [one for one in dict.fromkeys(stored.values()) if isinstance(one, str)]
    for tp in sorted(claimed):
        if tp not in image.offsets and isinstance(stored.get(tp), OffsetAndMetadata):
            raise _stores_in_kafka(group, f"{tp} has an offset in Kafka, and none in ZooKeeper")
    since_ms = max(min(claimed.values()), round(1000 * (time.time() - RECENT_S)))
    try:
        found = outside_commits(
            brokers,
            group,
            exists=exists,
            since_ms=since_ms,
            has_members=has_members,
            limit_s=limit_s,
        )
    except FetchError as error:
        unknown.append(str(error))
        found = {}
    for tp, committed in sorted(found.items()):
        if committed.time_ms > claimed.get(tp, committed.time_ms):
            at = time_text(committed.time_ms, "seconds")
            raise _stores_in_kafka(
                group, f"{tp} was committed to Kafka at {at}, from outside the brokers' group"
            )
    return [
        f"check that no old member has offsets.storage=kafka, which is unknown: {one}"
        for one in unknown
    ]


def _in_kafka(
    brokers: Settings,
    group: str,
    partitions: Collection[TopicPartition],
    *,
    exists: bool | None,
    limit_s: float,
) -> Stored:
    """Return the group's offsets in Kafka; a text says why an offset is unknown."""
    try:
        with closing(GroupOffsets(brokers, lambda: exists)) as client:
            return client.read(group, partitions, limit_s=limit_s)
    except FetchError as error:
        return dict.fromkeys(partitions, str(error))


def _stores_in_kafka(group: str, evidence: str) -> RefusedError:
    return RefusedError(
        f"an old member stores its offsets in Kafka: {evidence}. The brokers refuse such commits"
        " as soon as the bridge joins the group",
        where=group,
        remedy="restart the old members one by one with offsets.storage=kafka and"
        " dual.commit.enabled=true, unless they have these settings, and then one by one with"
        " offsets.storage=zookeeper",
    )


def outside_commits(
    brokers: Settings,
    group: str,
    *,
    exists: bool | None,
    since_ms: int,
    has_members: bool,
    limit_s: float,
) -> dict[TopicPartition, CommitValue]:
    """Return the last commit of each partition that no member of the brokers' group has made.

    A commit's record does not name the committer. But its coordinator writes the group's members
    into the same log whenever they change, so the records before it say whether there were any.

    Args:
        exists: whether ZooKeeper has the topic of the offsets; None: unknown.
        since_ms: how far back to read, in ms since 1970.
        has_members: whether the group has members now.

    Raises FetchError.
    """
    count = partition_count(brokers, OFFSETS_TOPIC, limit_s=limit_s)
    if not count:
        if exists is not False:
            raise FetchError("the brokers do not show the topic", where=OFFSETS_TOPIC)
        return {}
    tp = TopicPartition(OFFSETS_TOPIC, coordinator_partition(group, count))
    is_empty: bool | None = None  # until the first record of the members
    before: dict[TopicPartition, CommitValue] = {}
    found: dict[TopicPartition, CommitValue] = {}
    for record in records_since(brokers, tp, since_ms, limit_s=limit_s):
        key, value = decode_key(record.key() or b""), record.value()
        if key is None or key.group != group:
            continue
        if isinstance(key, GroupKey):
            is_empty = value is None or not has_members_in(value)
        elif value is not None and is_empty is not False:
            (before if is_empty is None else found)[key.tp] = decode_commit(value)
    if is_empty is None and not has_members:
        return before
    return found
