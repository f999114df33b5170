"""A group as a member reads it from ZooKeeper, and the assignment computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import thread_ids, znode_fault
from zkconsumer.protocol.payloads import Broker
from zkconsumer.protocol.registrations import Pattern, Registration
from zkconsumer.protocol.releases import DEFAULT, Profile
from zkconsumer.protocol.requests import ListedChildren


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's partition numbers, ascending; re-creating a topic changes `czxid`."""

    partitions: tuple[int, ...]
    czxid: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group as a member reads it.

    The read is not atomic, so the parts may contradict each other; watches report every change.

    Attributes:
        members: valid registrations by consumer id.
        malformed: consumer id -> why its registration would make every JVM member fail.
        topics: the existing topics on which the assignment depends.
        malformed_topics: topic -> why its znode would make every JVM member fail.
        brokers: the registered brokers that can be read, in the order of their ids as strings.
        matched: for every member that subscribes with a pattern, the matching topics, each with
            its number of streams.
        unevaluated: member -> why zkconsumer cannot evaluate its pattern, although the JVM can.
        malformed_brokers: broker id -> why its registration cannot be read.
    """

    members: Mapping[ConsumerId, Registration]
    malformed: Mapping[ConsumerId, str]
    topics: Mapping[str, Topic]
    malformed_topics: Mapping[str, str]
    brokers: tuple[Broker, ...]
    matched: Mapping[ConsumerId, Mapping[str, int]] = field(default_factory=dict)
    unevaluated: Mapping[ConsumerId, str] = field(default_factory=dict)
    malformed_brokers: Mapping[str, str] = field(default_factory=dict)

    def counts(self) -> dict[ConsumerId, Mapping[str, int]]:
        """Return every member's topics with their numbers of streams, with patterns expanded."""
        return {
            name: one.subscription if one.pattern is Pattern.STATIC else self.matched.get(name, {})
            for name, one in self.members.items()
        }


@dataclass(frozen=True, slots=True)
class Known:
    """The result of an earlier read of the group, parts of which the next read can reuse.

    If the listing's `cversion` has grown by exactly the number of added and removed names, no
    registration was re-created, and the registrations that could be read are still valid. A
    malformed registration is read again, because some clients write the payload with a second
    request.

    Attributes:
        view: the result of the earlier read.
        listing: the consumers that the earlier read listed, including consumers that left before
            they were read.
        watched: paths of topics, and of the list of brokers, whose watch has not fired. So their
            content is unchanged.
    """

    view: GroupView
    listing: ListedChildren
    watched: frozenset[str] = frozenset()

    def has_same_registrations(self, now: ListedChildren) -> bool:
        """Return whether all consumers in both listings still have the same registrations."""
        changes = len(frozenset(self.listing.names).symmetric_difference(now.names))
        return now.cversion - self.listing.cversion == changes


def needed_topics(
    counts: Iterable[Mapping[str, int]], own: Mapping[str, int], strategy: Strategy
) -> tuple[str, ...]:
    """Return the topics on which the assignment depends.

    Range depends on the member's own topics. From Kafka 0.10.2 on (KAFKA-2434), round-robin depends
    on every topic of the group. A registration before 0.10.2 may contain names that ZooKeeper
    rejects; they are left out.
    """
    if strategy is Strategy.RANGE:
        return tuple(sorted(own))
    theirs = {topic for of_member in counts for topic in of_member if topic not in own}
    return tuple(sorted({*own, *(topic for topic in theirs if not znode_fault(topic))}))


def undecidable(view: GroupView) -> tuple[str, str]:
    """Return (znode's name, reason) if zkconsumer cannot compute the JVM's assignment.

    Returns ("", "") if it can.
    """
    for consumer, reason in sorted(view.unevaluated.items()):
        return consumer, reason
    for topic, reason in sorted(view.malformed_topics.items()):
        return topic, reason
    return "", ""


def assignment(
    view: GroupView,
    *,
    consumer: ConsumerId,
    own: Mapping[str, int],
    strategy: Strategy,
    profile: Profile = DEFAULT,
) -> dict[TopicPartition, ThreadId]:
    """Return one member's part of the assignment; all members compute the same assignment.

    Raises ConfigError if the group's release has no assignment for such subscriptions.
    """
    whole = assign_all(view, strategy, profile)
    mine = {thread for n in own.values() for thread in thread_ids(consumer, n)}
    return {tp: thread for tp, thread in whole.items() if thread in mine}


def assignment_of_others(
    view: GroupView, *, consumer: ConsumerId, strategy: Strategy, profile: Profile = DEFAULT
) -> dict[TopicPartition, ThreadId]:
    """Return the other members' part of the assignment; raises the same errors as `assignment`."""
    mine = view.counts().get(consumer, {})
    own = assignment(view, consumer=consumer, own=mine, strategy=strategy, profile=profile)
    return {
        tp: thread for tp, thread in assign_all(view, strategy, profile).items() if tp not in own
    }


def assign_all(
    view: GroupView, strategy: Strategy, profile: Profile
) -> dict[TopicPartition, ThreadId]:
    """Return the assignment of all members; raises the same errors as `assignment`."""
    return assign(
        strategy,
        subscriptions=view.counts(),
        partitions={name: topic.partitions for name, topic in view.topics.items()},
        key_form=profile.key_form,
        variant=profile.variant,
    )


def recreated(known: Mapping[str, int], view: GroupView) -> frozenset[str]:
    """Return the topics that were re-created; `known` maps topics to their last known czxids."""
    return frozenset(
        name for name, topic in view.topics.items() if known.get(name, topic.czxid) != topic.czxid
    )
