"""The assignment of a group as each of its members computes it, including the members' errors.

Each member computes the assignment by itself, from its own registration, all registrations, and the
topics. A JVM member stops at the first payload that it cannot read, and does not report this to
other members. So one member of a group may fail, or all may fail. `assign_each_member` computes
each member's result separately, failures included. The function reads the payloads in the order in
which Kafka's `AssignmentContext` reads them; this order changed in 0.10.2 (KAFKA-2434).

`requested_topics` expands the subscriptions of a group for display and for checks, without
assigning partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from zkconsumer.errors import (
    AccessDeniedError,
    ConfigError,
    InvalidFilterError,
    MalformedZnodeError,
    ZkConsumerError,
    quoted,
)
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.assignors import RoundRobinRule, Strategy, assign
from zkconsumer.protocol.filters import TopicFilter, matching, normalise
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import thread_ids, znode_fault
from zkconsumer.protocol.paths import topic as topic_path
from zkconsumer.protocol.payloads import (
    JvmException,
    TopicPayloads,
    decode_topic,
    known_partitions,
)
from zkconsumer.protocol.registrations import Pattern, Registration, read_registration
from zkconsumer.protocol.releases import DEFAULT, Profile

# A rebalance changes few payloads, and each assignment needs all of them. The sizes are enough for
# the members and the topics of large groups.
_registration = lru_cache(maxsize=4096)(read_registration)
_numbers = lru_cache(maxsize=4096)(decode_topic)


@dataclass(frozen=True, slots=True)
class GroupInput:
    """The payloads from which a group's members compute the assignment, and the members' settings.

    Attributes:
        strategy: `partition.assignment.strategy` of all members.
        registrations: consumer id -> payload, in the order in which ZooKeeper lists them.
        topics: topic -> payload, for all existing topics.
        exclude_internal: `exclude.internal.topics` of all members.
    """

    strategy: Strategy
    registrations: Mapping[ConsumerId, bytes | None]
    topics: TopicPayloads
    exclude_internal: bool = True


@dataclass(frozen=True, slots=True)
class AssignmentFailure:
    """A member's exception: Java's class name, or zkconsumer's if only zkconsumer fails."""

    error: str
    message: str


MemberAssignment = dict[TopicPartition, ThreadId]


def assign_each_member(
    group: GroupInput, profile: Profile, *, members: Iterable[ConsumerId] | None = None
) -> dict[ConsumerId, MemberAssignment | AssignmentFailure]:
    """Return each member's own assignment by the release's rules, or the member's failure.

    `members` selects the members to compute; the default is all registered members. A member that
    is not registered fails.
    """
    reading = _Reading(group, profile)
    parts: dict[ConsumerId, MemberAssignment | AssignmentFailure] = {}
    whole: dict[TopicPartition, ThreadId] | AssignmentFailure | None = None
    for consumer in group.registrations if members is None else members:
        failure = reading.failure_of(consumer)
        if failure is None:
            whole = _assign_all(group.strategy, reading, profile) if whole is None else whole
        parts[consumer] = failure or (whole if isinstance(whole, AssignmentFailure) else {})
    if whole is None or isinstance(whole, AssignmentFailure):
        return parts
    owners = {
        thread: consumer
        for consumer, counts in reading.counts.items()
        for thread in thread_ids(consumer, max(counts.values(), default=0))
    }
    for tp, thread in whole.items():
        part = parts.get(owners[thread])
        if isinstance(part, dict):
            part[tp] = thread
    return parts


def assign_group(group: GroupInput, profile: Profile) -> dict[TopicPartition, ThreadId] | None:
    """Return the assignment of all members by the release's rules; None if any member fails.

    It is the union of what `assign_each_member` returns, computed without each member's part.
    """
    if not group.registrations:
        return {}
    reading = _Reading(group, profile)
    whole = _assign_all(group.strategy, reading, profile) if reading.is_complete else None
    return None if isinstance(whole, AssignmentFailure) else whole


def stream_counts(group: GroupInput, profile: Profile) -> Mapping[ConsumerId, Mapping[str, int]]:
    """Return member -> topic -> number of streams, for the members that can be read."""
    return _Reading(group, profile).counts


class _Reading:
    """The decoded payloads. All members read the same payloads, so each is decoded only once."""

    def __init__(self, group: GroupInput, profile: Profile) -> None:
        self._variant = profile.variant
        self.counts: dict[ConsumerId, Mapping[str, int]] = {}
        self._unreadable: dict[ConsumerId, AssignmentFailure] = {}
        internal = profile.internal_topics if group.exclude_internal else frozenset[str]()
        subscriptions = Subscriptions(group.topics, internal=internal)
        for consumer, payload in group.registrations.items():
            try:
                registration = _registration(payload, where=consumer, profile=profile)
                self.counts[consumer] = subscriptions.of(registration)
            except ZkConsumerError as error:
                self._unreadable[consumer] = _failure(error)
        self.partitions: dict[str, tuple[int, ...]] = {}
        self._faults: dict[str, AssignmentFailure] = {}
        for topic in dict.fromkeys(topic for counts in self.counts.values() for topic in counts):
            try:
                self.partitions[topic] = _partitions(topic, group.topics, profile)
            except (MalformedZnodeError, AccessDeniedError) as error:
                self._faults[topic] = _failure(error)

    @property
    def is_complete(self) -> bool:
        """Whether no member fails: each payload is readable."""
        return not self._unreadable and not self._faults

    def failure_of(self, consumer: ConsumerId) -> AssignmentFailure | None:
        """Return the failure for the first payload that this member cannot read, or None."""
        if consumer in self._unreadable:
            return self._unreadable[consumer]
        if consumer not in self.counts:
            return AssignmentFailure(
                JvmException.NO_NODE, f"NoNode for the registration of {quoted(consumer)}"
            )
        theirs = next(iter(self._unreadable.values()), None)
        of_topic = next((self._faults[t] for t in self.counts[consumer] if t in self._faults), None)
        match self._variant:
            case RoundRobinRule.RANGE_ONLY:
                return theirs or of_topic
            case RoundRobinRule.IDENTICAL:
                return of_topic or theirs
            case RoundRobinRule.SKIPPING:
                return theirs or next(iter(self._faults.values()), None)


Matched = Mapping[TopicFilter, "tuple[str, ...] | ConfigError"]
"""Filter -> the topics that it matches, or the error that it raises."""


def filter_of(registration: Registration) -> tuple[TopicFilter, int]:
    """Return the filter of a registration with a pattern, and its number of streams.

    If a registration has a pattern, Kafka's `TopicCount` uses only the first entry of its
    subscription.
    """
    regex, streams = next(iter(registration.subscription.items()))
    return TopicFilter(registration.pattern, normalise(regex)), streams


class Subscriptions:
    """Expands members' subscriptions over one list of topics.

    Most members of a group have the same pattern, so each pattern is matched only once.
    """

    def __init__(
        self,
        topics: Iterable[str],
        *,
        internal: frozenset[str],
        matched: Matched | None = None,
    ) -> None:
        """`topics` are all existing topics. Patterns do not match the topics in `internal`.

        `matched` maps filters to their known matches; `of` evaluates all other filters.
        """
        self._topics, self._internal = tuple(topics), internal
        self._matched: dict[TopicFilter, tuple[str, ...] | ConfigError] = dict(matched or {})

    def of(self, registration: Registration) -> Mapping[str, int]:
        """Return the number of streams of each topic that one member subscribes to.

        Raises the errors of `matching`, and MalformedZnodeError for a pattern that matches a topic
        and has no streams (JVM: AssertionError).
        """
        if registration.pattern is Pattern.STATIC:
            return registration.subscription
        topic_filter, streams = filter_of(registration)
        if topic_filter not in self._matched:
            found = matching(topic_filter, self._topics, internal=self._internal)
            self._matched[topic_filter] = found
        topics = self._matched[topic_filter]
        if isinstance(topics, ConfigError):
            raise topics
        if topics and streams < 1:
            raise MalformedZnodeError(f"{streams} streams", thrown=JvmException.ASSERTION)
        return dict.fromkeys(topics, streams)


def _partitions(topic: str, topics: TopicPayloads, profile: Profile) -> tuple[int, ...]:
    fault = znode_fault(topic)
    if fault:
        what = f"{quoted(topic)} cannot be a topic: {fault}"
        raise MalformedZnodeError(what, thrown=JvmException.ARGUMENT)
    if topic not in topics:
        return ()
    payload = topics[topic]
    if isinstance(payload, AccessDeniedError):
        raise payload
    return _numbers(payload, where=topic, profile=profile)


def _assign_all(
    strategy: Strategy, reading: _Reading, profile: Profile
) -> dict[TopicPartition, ThreadId] | AssignmentFailure:
    if (
        strategy is Strategy.ROUND_ROBIN
        and profile.variant is RoundRobinRule.IDENTICAL
        and profile.release.startswith("0.8.")
        and not any(reading.counts.values())
    ):
        # The JVM reads the head of an empty map (KAFKA-1648).
        return AssignmentFailure(JvmException.NULL, "no member of the group has a topic")
    try:
        return assign(
            strategy,
            subscriptions=reading.counts,
            partitions=reading.partitions,
            key_form=profile.key_form,
            variant=profile.variant,
        )
    except ConfigError as error:
        return AssignmentFailure(JvmException.ARGUMENT, error.what)


def _failure(error: ZkConsumerError) -> AssignmentFailure:
    match error:
        case MalformedZnodeError(thrown=thrown) if thrown:
            return AssignmentFailure(thrown, error.what)
        case InvalidFilterError():
            return AssignmentFailure(JvmException.REGEX, error.what)
        case _:
            return AssignmentFailure(type(error).__name__, str(error))


# ---- requested topics ---------------------------------------------------------------------------


Members = Mapping[ConsumerId, Registration | MalformedZnodeError]


@dataclass(frozen=True, slots=True)
class RequestedTopics:
    """The expanded subscriptions of a group.

    Attributes:
        counts: member -> topic -> number of streams, for the members that can be read.
        faults: member -> why its registration or its filter cannot be read.
        threads: topic -> its consumer thread ids, sorted as the JVM sorts them.
        partitions: topic -> its partitions, ascending; empty if the topic does not exist.
        topic_faults: topic -> why its znode cannot be read.
    """

    counts: Mapping[ConsumerId, Mapping[str, int]]
    faults: Mapping[ConsumerId, ZkConsumerError]
    threads: Mapping[str, tuple[ThreadId, ...]]
    partitions: Mapping[str, tuple[int, ...]]
    topic_faults: Mapping[str, str]


def requested_topics(
    members: Members,
    topics: TopicPayloads,
    *,
    profile: Profile = DEFAULT,
    exclude_internal: bool = True,
) -> RequestedTopics:
    """Expand the members' subscriptions; `topics` are the payloads of all existing topics.

    Kafka 0.8.0-1.1.1: `TopicCount.constructTopicCount` and `getConsumerThreadIdsPerTopic`.
    """
    internal = profile.internal_topics if exclude_internal else frozenset[str]()
    subscriptions = Subscriptions(topics, internal=internal)
    counts: dict[ConsumerId, Mapping[str, int]] = {}
    faults: dict[ConsumerId, ZkConsumerError] = {}
    for consumer, registration in members.items():
        try:
            if isinstance(registration, MalformedZnodeError):
                raise registration
            counts[consumer] = subscriptions.of(registration)
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
    return RequestedTopics(counts, faults, ordered, partitions, topic_faults)


def partitions_in(
    topic: str, topics: TopicPayloads, *, profile: Profile = DEFAULT
) -> tuple[tuple[int, ...], str]:
    """Return a topic's partitions, ascending, and the reason if they cannot be read (else "")."""
    fault = znode_fault(topic)
    if fault or topic not in topics:
        return (), fault
    payload = topics[topic]
    if isinstance(payload, AccessDeniedError):
        return (), str(payload)
    try:
        return known_partitions(payload, where=topic_path(topic), profile=profile), ""
    except MalformedZnodeError as error:
        return (), error.what
