"""PartitionAssignorTest: random groups in which each member computes its own assignment."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from zkconsumer.protocol.assignors import PartitionFormat, RoundRobinRule, Strategy, assign
from zkconsumer.protocol.filters import matching, white_list
from zkconsumer.protocol.model import TopicPartition

Counts = Mapping[str, Mapping[str, int]]
NO_TOPICS: frozenset[str] = frozenset()


def _topics(chance: random.Random) -> dict[str, int]:
    """Topics as in upstream's test: up to 100 topics of 8 to 119 partitions."""
    return {f"topic-{n}": chance.randrange(8, 120) for n in range(1, chance.randrange(2, 101))}


def _consumers(chance: random.Random) -> list[str]:
    return [f"g1c{n}" for n in range(1, chance.randrange(2, 11))]


def _shares(
    strategy: Strategy,
    counts: Counts,
    topics: Mapping[str, int],
    key_form: PartitionFormat,
    chance: random.Random,
) -> dict[TopicPartition, str]:
    """Return the disjoint shares that the members compute from differently ordered input."""
    owned: dict[TopicPartition, str] = {}
    for consumer in counts:
        whole = assign(
            strategy,
            subscriptions=dict(chance.sample(sorted(counts.items()), len(counts))),
            partitions={
                topic: chance.sample(range(n), n)
                for topic, n in chance.sample(sorted(topics.items()), len(topics))
            },
            key_form=key_form,
            variant=RoundRobinRule.SKIPPING,
        )
        part = {tp: thread for tp, thread in whole.items() if thread.startswith(f"{consumer}-")}
        assert not owned.keys() & part.keys()
        owned |= part
    every = {TopicPartition(topic, n) for topic, size in topics.items() for n in range(size)}
    assert owned.keys() == every
    return owned


def _is_even(owned: Mapping[TopicPartition, str], counts: Counts) -> bool:
    """Return whether the numbers of partitions of any two threads differ by at most one."""
    threads = {f"{name}-{n}" for name, of in counts.items() for n in range(max(of.values()))}
    load = Counter({thread: 0 for thread in threads} | Counter(owned.values()))
    return max(load.values()) - min(load.values()) <= 1


CASES = pytest.mark.parametrize(
    ("seed", "key_form"), [(seed, form) for seed in range(3) for form in PartitionFormat]
)


@CASES
def test_round_robin_of_wildcards(seed: int, key_form: PartitionFormat) -> None:
    """PartitionAssignorTest.testRoundRobinPartitionAssignor: every member has white list `.*`."""
    chance = random.Random(seed)
    topics = _topics(chance)
    matched = matching(white_list(".*"), topics, internal=NO_TOPICS)
    counts = {
        name: dict.fromkeys(matched, streams)
        for name, streams in ((name, chance.randrange(1, 9)) for name in _consumers(chance))
    }
    owned = _shares(Strategy.ROUND_ROBIN, counts, topics, key_form, chance)
    assert _is_even(owned, counts)


@CASES
def test_round_robin_of_static_subscriptions(seed: int, key_form: PartitionFormat) -> None:
    """PartitionAssignorTest.testRoundRobinPartitionAssignorStaticSubscriptions: one stream each."""
    chance = random.Random(seed)
    topics = _topics(chance)
    counts = {name: dict.fromkeys(topics, 1) for name in _consumers(chance)}
    owned = _shares(Strategy.ROUND_ROBIN, counts, topics, key_form, chance)
    assert _is_even(owned, counts)


@CASES
def test_round_robin_of_unequal_subscriptions(seed: int, key_form: PartitionFormat) -> None:
    """PartitionAssignorTest.testRoundRobinPartitionAssignorUnbalancedStaticSubscriptions."""
    chance = random.Random(seed)
    topics = {f"topic-{n}": 10 for n in range(1, 11)}
    counts = {
        f"g1c{c}": {f"topic-{n}": 3 for n in range(1, 11 - c % 5)}
        for c in range(chance.randrange(5, 11))
    }
    _shares(Strategy.ROUND_ROBIN, counts, topics, key_form, chance)


@CASES
def test_range_of_static_subscriptions(seed: int, key_form: PartitionFormat) -> None:
    """PartitionAssignorTest.testRangePartitionAssignor: all topics, random numbers of streams."""
    chance = random.Random(seed)
    topics = _topics(chance)
    counts = {
        name: {topic: chance.randrange(1, 9) for topic in topics} for name in _consumers(chance)
    }
    _shares(Strategy.RANGE, counts, topics, key_form, chance)
