"""Why a thread owns what it owns: the arithmetic that every member does, in words.

Range: `kafka.consumer.RangeAssignor`, round-robin: `RoundRobinAssignor`, Kafka 0.8.2 to 1.1.1; in
0.8.0 and 0.8.1 range is in `ZookeeperConsumerConnector` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zkconsumer.admin.findings import ExaminedGroup, partitions_of, ranges
from zkconsumer.admin.groups import (
    read_brokers,
    read_groups,
    read_topic_names,
    read_topics,
    unknown_group,
)
from zkconsumer.config.settings import ConsumerConfig
from zkconsumer.protocol.assignors import Strategy, Variant
from zkconsumer.protocol.group_assignment import Failure
from zkconsumer.protocol.java.text import java_hash, utf16_key
from zkconsumer.protocol.model import ThreadId, TopicPartition
from zkconsumer.zk.client import ZooKeeperClient


@dataclass(frozen=True, slots=True)
class Share:
    """What one thread of a topic should own.

    Attributes:
        position: the thread's place among the topic's threads, from 1; in round-robin, on the
            circle of all threads.
        partitions: what it should own; `owned`: what it does own now.
        why: the reason, in a sentence.
    """

    topic: str
    position: int
    thread: ThreadId
    partitions: tuple[int, ...]
    owned: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a group's partitions are owned as they are.

    Attributes:
        rules: the strategy and the release whose rules these are.
        words: how it is computed, a paragraph each; topics' own come under their names in `topics`.
        failures: member -> what it throws instead.
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
    """Explain a live group, read once, by the rules that its owner nodes show.

    `settings` are its members' (strategy, `exclude.internal.topics`) where the nodes do not tell.
    Raises UnknownGroupError, AccessDeniedError and ZooKeeperUnreachableError.
    """
    images = read_groups(connection, [group])
    if group not in images:
        raise unknown_group(group, connection)
    topics = read_topics(connection, read_topic_names(connection))
    payloads = {name: one.node.data for name, one in topics.items()}
    has_brokers = bool(read_brokers(connection))
    return explanation(
        ExaminedGroup(images[group], payloads, settings=settings, has_brokers=has_brokers)
    )


def explanation(case: ExaminedGroup) -> Explanation:
    """The same of what was read."""
    rules, wanted = case.rules, case.wanted
    is_range = rules.strategy is Strategy.RANGE or rules.profile.variant is Variant.RANGE_ONLY
    failures = {
        consumer: f"{part.error}: {part.message}"
        for consumer, part in rules.parts.items()
        if isinstance(part, Failure)
    }
    topics = {
        topic: fault or (_range_words if is_range else _circle_words)(case, topic)
        for topic in wanted.threads
        for fault in (wanted.topic_faults.get(topic, ""),)
    }
    shares = tuple(_range_shares(case) if is_range else _circle_shares(case))
    return Explanation(
        case.group, str(rules), tuple(_words(case, is_range=is_range)), topics, shares, failures
    )


def _words(case: ExaminedGroup, *, is_range: bool) -> Iterator[str]:
    count = len(case.image.registrations)
    if not count:
        yield "No member is registered, so nobody is due anything."
        return
    if not case.has_brokers:
        yield "No broker is registered: members do not rebalance until there is one."
    members = "1 member is" if count == 1 else f"{count} members are"
    yield (
        f"{members} registered, and each computes the whole assignment for itself, as"
        f" {case.rules} does it. Nothing in ZooKeeper says so:"
        + (
            " no partition has an owner, so these are the defaults."
            if not case.owners
            else " these are the rules that the owner nodes fit best."
        )
    )
    if is_range:
        yield (
            "Range deals each topic by itself: its partitions in numerical order, its threads"
            " sorted by their ids as Java compares strings (so -10 comes before -2); n partitions"
            " among m threads are n / m each, and one more for the first n mod m threads."
        )
    else:
        form = case.rules.profile.key_form.value.format(topic="topic", partition="n")
        yield (
            "Round-robin deals all topics together: all partitions sorted by the hash code of"
            f' "{form}", all threads sorted by their ids on a circle; each partition goes to the'
            " next thread on the circle that has the topic."
        )


# ---- range --------------------------------------------------------------------------------------


def _range_words(case: ExaminedGroup, topic: str) -> str:
    n, m = len(case.wanted.partitions[topic]), len(case.wanted.threads[topic])
    if not n:
        return f"The topic does not exist, or has no partitions: its {_threads(m)} have nothing."
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


def _range_shares(case: ExaminedGroup) -> Iterator[Share]:
    for topic, threads in case.wanted.threads.items():
        numbers = case.wanted.partitions[topic]
        share, extra = divmod(len(numbers), len(threads))
        start = 0
        for position, thread in enumerate(threads):
            end = start + share + (position < extra)
            mine = numbers[start:end]
            place = f"thread {position + 1} of {len(threads)}"
            if mine:
                why = f"{place}: {share}" + (" + 1" if position < extra else "")
                why += f", from place {start + 1} of {len(numbers)}"
            elif numbers:
                why = f"{place}, and the {_count(len(numbers))} end at {len(numbers)}: idle"
            else:
                why = "there are no partitions"
            yield _beside_today(case, Share(topic, position + 1, thread, mine, (), why))
            start = end


# ---- round-robin --------------------------------------------------------------------------------


def _circle_words(case: ExaminedGroup, topic: str) -> str:
    n, threads = len(case.wanted.partitions[topic]), case.wanted.threads[topic]
    if not n:
        return (
            f"The topic does not exist, or has no partitions: its {_threads(len(threads))}"
            " have nothing of it."
        )
    circle = _circle(case)
    text = f"{_count(n)} for {len(threads)} of the {_threads(len(circle))} on the circle"
    first = min(case.wanted.partitions[topic], key=lambda number: _hash(case, topic, number))
    code = _hash(case, topic, first)
    return f"{text}; the first to be dealt is {first}, whose hash code is {code}."


def _circle(case: ExaminedGroup) -> list[ThreadId]:
    return sorted(
        {one for threads in case.wanted.threads.values() for one in threads}, key=utf16_key
    )


def _hash(case: ExaminedGroup, topic: str, partition: int) -> int:
    form = case.rules.profile.key_form.value
    return java_hash(form.format(topic=topic, partition=partition))


def _circle_shares(case: ExaminedGroup) -> Iterator[Share]:
    circle = _circle(case)
    place = {thread: position for position, thread in enumerate(circle)}
    every = sorted(case.due, key=lambda tp: _hash(case, tp.topic, tp.partition))
    turn = {tp: number for number, tp in enumerate(every, 1)}
    mine: dict[tuple[str, ThreadId], list[int]] = {}
    for tp, thread in case.due.items():
        mine.setdefault((tp.topic, thread), []).append(tp.partition)
    for topic, threads in case.wanted.threads.items():
        for thread in threads:
            numbers = tuple(sorted(mine.get((topic, thread), ())))
            where = f"place {place[thread] + 1} of {len(circle)} on the circle"
            if numbers:
                turns = ranges(turn[TopicPartition(topic, number)] for number in numbers)
                why = f"{where}: dealt in turn {turns} of {len(turn)}"
            else:
                why = f"{where}: no partition of this topic fell to it"
            share = Share(topic, place[thread] + 1, thread, numbers, (), why)
            yield _beside_today(case, share)


# ---- both ---------------------------------------------------------------------------------------


def _beside_today(case: ExaminedGroup, share: Share) -> Share:
    """With what it owns now, and the reason ends with how that differs."""
    owned = case.owned_by.get((share.topic, share.thread), ())
    missing = [number for number in share.partitions if number not in owned]
    extra = [number for number in owned if number not in share.partitions]
    why = share.why
    if missing:
        held = [
            f"{number} by {case.owners[tp]}"
            for number in missing
            if (tp := TopicPartition(share.topic, number)) in case.owners
        ]
        why += f"; does not own {partitions_of(missing)}"
        why += f" (held: {', '.join(held[:3])}{' ...' if len(held) > 3 else ''})" if held else ""
    if extra:
        why += f"; owns {partitions_of(extra)} that others are due"
    return replace(share, owned=owned, why=why)


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
