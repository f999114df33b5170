"""Explain how the members of a group compute which thread owns which partition.

Sources: `kafka.consumer.RangeAssignor` and `RoundRobinAssignor`, Kafka 0.8.2 to 1.1.1. In 0.8.0 and
0.8.1 `ZookeeperConsumerConnector` itself implements range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from zkconsumer.admin.findings import ExaminedGroup, partitions_of, ranges
from zkconsumer.admin.groups import (
    existing_group,
    read_all_topic_payloads,
    read_brokers,
    require_topics,
)
from zkconsumer.admin.health import remarks
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.errors import MalformedZnodeError, first_few
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import RoundRobinRule, Strategy
from zkconsumer.protocol.group_assignment import AssignmentFailure
from zkconsumer.protocol.java.text import java_hash, utf16_key
from zkconsumer.protocol.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.protocol.paths import consumer_of
from zkconsumer.zk.client import ZooKeeperClient


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of one topic that one thread should own, and owns.

    Attributes:
        position: the thread's place, from 1, among the topic's threads (range) or on the circle of
            all threads (round-robin).
        partitions: the partitions that the thread should own.
        owned: the partitions that the thread owns now.
        why: the reason in one sentence.
    """

    topic: str
    position: int
    thread: ThreadId
    partitions: tuple[int, ...]
    owned: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of how the members of a group compute the owner of each partition.

    Attributes:
        rules: the strategy and the Kafka release whose rules apply.
        words: paragraphs that explain the computation for the group.
        topics: topic -> a paragraph that explains the computation for the topic.
        shares: the share of each thread of each topic.
        failures: member -> the exception that it throws instead of computing an assignment, if it
            is a JVM member. A registration does not show the client of a member, so members are
            left out only if they have claimed a partition since the unreadable registration exists:
            JVM members cannot, and zkconsumer members can.
    """

    group: str
    rules: str
    words: tuple[str, ...]
    topics: dict[str, str]
    shares: tuple[Share, ...]
    failures: dict[str, str]


def explain(
    connection: ZooKeeperClient, group: str, *, settings: ConsumerConfig | None = None
) -> Explanation:
    """Read a live group once, and explain it by the rules that its owner znodes show.

    `settings` gives the members' strategy and `exclude.internal.topics` if no partition has an
    owner. Raises UnknownGroupError, AccessDeniedError and ZooKeeperUnreachableError.
    """
    return explanation(examined_group(connection, group, settings=settings))


def examined_group(
    connection: ZooKeeperClient, group: str, *, settings: ConsumerConfig | None = None
) -> ExaminedGroup:
    """Read what an explanation of a group needs, once. Raises the errors of `explain`."""
    image = existing_group(connection, group, needs_offsets=False)
    payloads = read_all_topic_payloads(connection)
    require_topics(image, payloads)
    has_brokers = bool(read_brokers(connection))
    return ExaminedGroup(image, payloads, settings=settings, has_brokers=has_brokers)


def explanation(examined: ExaminedGroup) -> Explanation:
    """Explain a group that was read. Performs no I/O."""
    rules, wanted = examined.rules, examined.wanted
    is_range = (
        rules.strategy is Strategy.RANGE or rules.profile.variant is RoundRobinRule.RANGE_ONLY
    )
    tolerant = _tolerant(examined)
    failures = {
        consumer: f"{part.error}: {part.message}"
        for consumer, part in rules.parts.items()
        if isinstance(part, AssignmentFailure) and consumer not in tolerant
    }
    topics = {
        topic: fault or (_range_words if is_range else _circle_words)(examined, topic)
        for topic in wanted.threads
        for fault in (wanted.topic_faults.get(topic, ""),)
    }
    shares = tuple(_range_shares(examined) if is_range else _circle_shares(examined))
    return Explanation(
        examined.group,
        str(rules),
        tuple(_words(examined, is_range=is_range)),
        topics,
        shares,
        failures,
    )


def _tolerant(examined: ExaminedGroup) -> set[ConsumerId]:
    """Return the members that have claimed a partition after an unreadable registration of another
    member was written: they are not JVM members, whose every rebalance then fails."""
    written = [
        examined.image.nodes[paths.member(examined.group, consumer)].stat.mzxid
        for consumer, registration in examined.image.members.items()
        if isinstance(registration, MalformedZnodeError)
    ]
    if not written:
        return set()
    return {
        consumer_of(examined.owners[tp])
        for tp, node in examined.image.owners.items()
        if node.session and node.czxid > min(written)
    }


def _words(examined: ExaminedGroup, *, is_range: bool) -> Iterator[str]:
    yield from (f"{one[:1].upper()}{one[1:]}." for one in remarks(examined.health, time.time()))
    if examined.image.has_unknown_offsets:
        yield f"The last commit is unknown: {examined.image.denial}."
    count = len(examined.image.registrations)
    if not count:
        yield "Without a registration no partition is assigned."
        return
    if not examined.has_brokers:
        yield "No broker is registered, so members do not rebalance."
    if examined.health.leftovers:
        yield "Members assign partitions to registrations without a session, as to all others."
    members = "1 member is" if count == 1 else f"{count} members are"
    yield (
        f"{members} registered. Each computes the whole assignment for itself, by the rules of"
        f" {examined.rules}. ZooKeeper does not store the rules:"
        + (
            " no partition has an owner, so these are the defaults."
            if not examined.owners
            else " these are the rules that explain the owner znodes best."
        )
    )
    if is_range:
        yield (
            "Range assigns each topic by itself. It takes the partitions in numerical order, and"
            " the threads sorted by their ids as Java compares strings (so -10 comes before -2)."
            " Of n partitions, each of m threads gets n / m, and the first n mod m threads get one"
            " more."
        )
    else:
        form = examined.rules.profile.key_form.value.format(topic="topic", partition="n")
        yield (
            "Round-robin assigns all topics together. It sorts all partitions by the hash code of"
            f' "{form}", and puts all threads, sorted by their ids, on a circle. Each partition'
            " goes to the next thread on the circle that subscribes to its topic."
        )


# ---- range --------------------------------------------------------------------------------------


def _range_words(examined: ExaminedGroup, topic: str) -> str:
    n, m = len(examined.wanted.partitions[topic]), len(examined.wanted.threads[topic])
    if not n:
        return f"The topic has no partitions or does not exist: its {_threads(m)} own nothing."
    share, extra = divmod(n, m)
    text = f"{_count(n)} / {_threads(m)} = {share} each"
    if extra:
        first = f"the first {extra} get" if extra > 1 else "the first gets"
        text += f", and {n} mod {m} = {extra}: {first} one more"
    idle = m - n
    return f"{text}. {_idle(m, n)}" if idle > 0 else f"{text}."


def _idle(threads: int, partitions: int) -> str:
    return (
        f"{_threads(threads)}, {_count(partitions)}: {threads - partitions} idle by design, since a"
        " partition has one owner at a time."
    )


def _range_shares(examined: ExaminedGroup) -> Iterator[Share]:
    for topic, threads in examined.wanted.threads.items():
        numbers = examined.wanted.partitions[topic]
        share, extra = divmod(len(numbers), len(threads))
        start = 0
        for position, thread in enumerate(threads):
            end = start + share + (position < extra)
            own = numbers[start:end]
            place = f"thread {position + 1} of {len(threads)}"
            if own:
                amount = f"{share} + 1 partitions" if position < extra else _count(share)
                which = f"numbers {start + 1} to {end}" if len(own) > 1 else f"number {end}"
                why = f"{place} gets {amount}: {which} of {len(numbers)}"
            elif numbers:
                why = f"{place} gets none: the topic has {_count(len(numbers))}"
            else:
                why = "there are no partitions"
            yield _with_present(examined, Share(topic, position + 1, thread, own, (), why))
            start = end


# ---- round-robin --------------------------------------------------------------------------------


def _circle_words(examined: ExaminedGroup, topic: str) -> str:
    n, threads = len(examined.wanted.partitions[topic]), examined.wanted.threads[topic]
    if not n:
        return (
            "The topic has no partitions or does not exist:"
            f" its {_threads(len(threads))} own nothing of it."
        )
    circle = _circle(examined)
    text = f"{_count(n)} for {len(threads)} of the {_threads(len(circle))} on the circle"
    first = min(
        examined.wanted.partitions[topic], key=lambda number: _hash(examined, topic, number)
    )
    code = _hash(examined, topic, first)
    return f"{text}; the first partition to be assigned is {first}, whose hash code is {code}."


def _circle(examined: ExaminedGroup) -> list[ThreadId]:
    return sorted(
        {one for threads in examined.wanted.threads.values() for one in threads}, key=utf16_key
    )


def _hash(examined: ExaminedGroup, topic: str, partition: int) -> int:
    form = examined.rules.profile.key_form.value
    return java_hash(form.format(topic=topic, partition=partition))


def _circle_shares(examined: ExaminedGroup) -> Iterator[Share]:
    circle = _circle(examined)
    place = {thread: position for position, thread in enumerate(circle)}
    every = sorted(examined.due, key=lambda tp: _hash(examined, tp.topic, tp.partition))
    turn = {tp: number for number, tp in enumerate(every, 1)}
    mine: dict[tuple[str, ThreadId], list[int]] = {}
    for tp, thread in examined.due.items():
        mine.setdefault((tp.topic, thread), []).append(tp.partition)
    for topic, threads in examined.wanted.threads.items():
        for thread in threads:
            numbers = tuple(sorted(mine.get((topic, thread), ())))
            where = f"place {place[thread] + 1} of {len(circle)} on the circle"
            if numbers:
                turns = ranges(turn[TopicPartition(topic, number)] for number in numbers)
                why = f"{where}: gets number {turns} of {len(turn)} partitions in hash order"
            else:
                why = f"{where}: no partition of this topic is assigned to it"
            share = Share(topic, place[thread] + 1, thread, numbers, (), why)
            yield _with_present(examined, share)


# ---- the present owners -------------------------------------------------------------------------


def _with_present(examined: ExaminedGroup, share: Share) -> Share:
    """Return the share, completed with the partitions that the thread owns now and how they
    differ."""
    owned = examined.owned_by.get((share.topic, share.thread), ())
    missing = [number for number in share.partitions if number not in owned]
    extra = [number for number in owned if number not in share.partitions]
    why = share.why
    if missing:
        held = [
            f"{number} by {examined.owners[tp]}"
            for number in missing
            if (tp := TopicPartition(share.topic, number)) in examined.owners
        ]
        why += f"; does not own {partitions_of(missing)}"
        why += f" (held: {first_few(held, 3)})" if held else ""
    if extra:
        why += f"; owns {partitions_of(extra)} assigned to another thread"
    return replace(share, owned=owned, why=why)


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
