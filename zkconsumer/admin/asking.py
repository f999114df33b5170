"""What the members of a group ask for: topics, threads and partitions, patterns expanded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.computing import topics_of
from zkconsumer.core.javatext import utf16_key
from zkconsumer.core.model import ConsumerId, ThreadId
from zkconsumer.core.paths import topic as topic_path
from zkconsumer.core.paths import znode_fault
from zkconsumer.core.records import decode_topic
from zkconsumer.core.registrations import Registration
from zkconsumer.core.releases import DEFAULT, Profile
from zkconsumer.core.topics import thread_ids
from zkconsumer.errors import MalformedZnodeError, ZkConsumerError

Members = Mapping[ConsumerId, Registration | MalformedZnodeError]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a group's registrations come to.

    Attributes:
        counts: member -> topic -> number of streams, of those that can be read.
        faults: member -> why its registration or its filter cannot be read.
        threads: topic -> the consumer thread ids for it, sorted as the JVM sorts them.
        partitions: topic -> its partitions, ascending; none where it does not exist.
        topic_faults: topic -> why its znode cannot be read.
    """

    counts: Mapping[ConsumerId, Mapping[str, int]]
    faults: Mapping[ConsumerId, ZkConsumerError]
    threads: Mapping[str, tuple[ThreadId, ...]]
    partitions: Mapping[str, tuple[int, ...]]
    topic_faults: Mapping[str, str]


def asked(
    members: Members,
    topics: Mapping[str, bytes | None],
    *,
    profile: Profile = DEFAULT,
    exclude_internal: bool = True,
) -> Asked:
    """Read what members ask for; `topics` are the payloads of all topics there are.

    Kafka: `TopicCount.constructTopicCount` and `getConsumerThreadIdsPerTopic`, 0.8.0 to 1.1.1.
    """
    internal = profile.internal_topics if exclude_internal else frozenset[str]()
    counts: dict[ConsumerId, Mapping[str, int]] = {}
    faults: dict[ConsumerId, ZkConsumerError] = {}
    for consumer, registration in members.items():
        try:
            if isinstance(registration, MalformedZnodeError):
                raise registration
            counts[consumer] = topics_of(registration, topics, internal)
        except ZkConsumerError as error:
            faults[consumer] = error
    threads: dict[str, list[ThreadId]] = {}
    for consumer, wanted in counts.items():
        for topic, count in wanted.items():
            threads.setdefault(topic, []).extend(thread_ids(consumer, count))
    partitions, topic_faults = {}, {}
    for topic in threads:
        partitions[topic], fault = partitions_in(topic, topics, profile=profile)
        if fault:
            topic_faults[topic] = fault
    ordered = {
        topic: tuple(sorted(found, key=utf16_key)) for topic, found in sorted(threads.items())
    }
    return Asked(counts, faults, ordered, partitions, topic_faults)


def partitions_in(
    topic: str, topics: Mapping[str, bytes | None], *, profile: Profile = DEFAULT
) -> tuple[tuple[int, ...], str]:
    """A topic's partitions, ascending, and why they cannot be told ("" where they can)."""
    fault = znode_fault(topic)
    if fault or topic not in topics:
        return (), fault
    try:
        return decode_topic(topics[topic], where=topic_path(topic), profile=profile), ""
    except MalformedZnodeError as error:
        return (), error.what
