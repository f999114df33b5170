"""Range and round-robin: vectors from JVMs, published examples, and properties."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.assignors import PartitionFormat, RoundRobinRule, Strategy, assign
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import thread_ids

T = TypeVar("T")
RANGE, ROUND_ROBIN = Strategy.RANGE, Strategy.ROUND_ROBIN
BRACKET, DASH = PartitionFormat.BRACKET, PartitionFormat.DASH
Subscriptions = dict[str, dict[str, int]]
Owned = dict[str, dict[str, list[int]]]


def _owned(
    strategy: Strategy,
    subscriptions: Subscriptions,
    sizes: Mapping[str, int],
    key_form: PartitionFormat = BRACKET,
) -> Owned:
    """Return thread -> topic -> partitions, for topics of these numbers of partitions."""
    owned: Owned = {}
    for tp, thread in sorted(
        assign(
            strategy,
            subscriptions=subscriptions,
            partitions={topic: range(size) for topic, size in sizes.items()},
            key_form=key_form,
        ).items()
    ):
        owned.setdefault(thread, {}).setdefault(tp.topic, []).append(tp.partition)
    return owned


# ---- the textbook -------------------------------------------------------------------------------

TWO_BY_THREE = {"t0": 3, "t1": 3}
C0_C1 = {"g_C0": {"t0": 1, "t1": 1}, "g_C1": {"t0": 1, "t1": 1}}


def test_textbook_range_two_topics_of_three_partitions() -> None:
    """Range: C0 has t0p0 t0p1 t1p0 t1p1, C1 has t0p2 t1p2."""
    assert _owned(RANGE, C0_C1, TWO_BY_THREE) == {
        "g_C0-0": {"t0": [0, 1], "t1": [0, 1]},
        "g_C1-0": {"t0": [2], "t1": [2]},
    }


def test_textbook_round_robin_two_topics_of_three_partitions() -> None:
    """Round-robin: C0 has t0p0 t0p2 t1p1, C1 has t0p1 t1p0 t1p2."""
    assert _owned(ROUND_ROBIN, C0_C1, TWO_BY_THREE) == {
        "g_C0-0": {"t0": [0, 2], "t1": [1]},
        "g_C1-0": {"t0": [1], "t1": [0, 2]},
    }


def test_textbook_five_partitions_two_consumers_of_two_threads() -> None:
    """Range: p0 p1 to C1-0, p2 to C1-1, p3 to C2-0, p4 to C2-1."""
    owned = _owned(RANGE, {"g_C1": {"t": 2}, "g_C2": {"t": 2}}, {"t": 5})
    assert owned == {
        "g_C1-0": {"t": [0, 1]},
        "g_C1-1": {"t": [2]},
        "g_C2-0": {"t": [3]},
        "g_C2-1": {"t": [4]},
    }


@pytest.mark.parametrize(("size", "shares"), [(10, [4, 3, 3]), (11, [4, 4, 3])])
def test_textbook_ten_and_eleven_partitions_over_three(size: int, shares: list[int]) -> None:
    """Range: the first threads get one more partition: 4/3/3 and 4/4/3."""
    owned = _owned(RANGE, {f"g_c{n}": {"t": 1} for n in range(3)}, {"t": size})
    assert [len(owned[f"g_c{n}-0"]["t"]) for n in range(3)] == shares


def test_textbook_two_topics_of_ten_over_three_threads() -> None:
    """Range: C1-0 has 0-3, C2-0 has 4-6, C2-1 has 7-9 of each topic."""
    owned = _owned(RANGE, {"g_C1": {"a": 1, "b": 1}, "g_C2": {"a": 2, "b": 2}}, {"a": 10, "b": 10})
    expected = {"g_C1-0": [0, 1, 2, 3], "g_C2-0": [4, 5, 6], "g_C2-1": [7, 8, 9]}
    assert owned == {thread: {"a": slice_, "b": slice_} for thread, slice_ in expected.items()}


# ---- golden vectors of the JVM ------------------------------------------------------------------

# topic filters, replaced by their matching topics
MIXED = {"g_a": {"foo": 2}, "g_b": {"foo": 1}, "g_c": {"foo": 1}}
UNEQUAL = {"c1": {"topic1": 1, "topic2": 1}, "c2": {"topic1": 1}, "c3": {"topic2": 2}}
THREE = {f"c{n}": {"topic1": 1} for n in (1, 2, 3)}
ALL_A_B = {"a": {"foo": 1, "bar": 1}, "b": {"foo": 1, "bar": 1}}
LOGS = {"c1": {"events": 2, "logs": 2}, "c2": {"events": 2, "logs": 2}}
ELEVENS = {"events": 11, "logs": 11}

RANGE_VECTORS: list[tuple[Subscriptions, dict[str, int], Owned]] = [
    (
        {"g_c1": {"t": 12}},
        {"t": 13},
        {"g_c1-0": {"t": [0, 1]}, "g_c1-1": {"t": [2]}, "g_c1-10": {"t": [3]}}
        | {"g_c1-11": {"t": [4]}}
        | {f"g_c1-{n}": {"t": [n + 3]} for n in range(2, 10)},
    ),
    (
        {"c1": {"t": 2}, "c2": {"t": 2}},
        {"t": 5},
        {"c1-0": {"t": [0, 1]}, "c1-1": {"t": [2]}, "c2-0": {"t": [3]}, "c2-1": {"t": [4]}},
    ),
    (
        {"c1": {"t": 2}, "c2": {"t": 2}},
        {"t": 3},
        {"c1-0": {"t": [0]}, "c1-1": {"t": [1]}, "c2-0": {"t": [2]}},
    ),
    (
        {f"c{n}": {"x": 1, "y": 1} for n in (1, 2, 3)},
        {"x": 4, "y": 4},
        {"c1-0": {"x": [0, 1], "y": [0, 1]}, "c2-0": {"x": [2], "y": [2]}}
        | {"c3-0": {"x": [3], "y": [3]}},
    ),
    (
        {"g_c10": {"t": 1}, "g_c2": {"t": 1}, "g_C1": {"t": 1}},
        {"t": 4},
        {"g_C1-0": {"t": [0, 1]}, "g_c10-0": {"t": [2]}, "g_c2-0": {"t": [3]}},
    ),
    (
        UNEQUAL,
        {"topic1": 4, "topic2": 3},
        {"c1-0": {"topic1": [0, 1], "topic2": [0]}, "c2-0": {"topic1": [2, 3]}}
        | {"c3-0": {"topic2": [1]}, "c3-1": {"topic2": [2]}},
    ),
    (
        MIXED,
        {"foo": 5, "bar": 2, "__consumer_offsets": 3},
        {"g_a-0": {"foo": [0, 1]}, "g_a-1": {"foo": [2]}, "g_b-0": {"foo": [3]}}
        | {"g_c-0": {"foo": [4]}},
    ),
]


@pytest.mark.parametrize(("subscriptions", "sizes", "owned"), RANGE_VECTORS)
def test_range_vectors(subscriptions: Subscriptions, sizes: dict[str, int], owned: Owned) -> None:
    """For the same members, range computes what a JVM computed."""
    assert _owned(RANGE, subscriptions, sizes) == owned


BOTH_FORMS: list[tuple[Subscriptions, dict[str, int], Owned]] = [
    (
        {"c1": {"t": 2}, "c2": {"t": 2}},
        {"t": 5},
        {"c1-0": {"t": [0, 4]}, "c1-1": {"t": [1]}, "c2-0": {"t": [2]}, "c2-1": {"t": [3]}},
    ),
    (
        UNEQUAL,
        {"topic1": 4, "topic2": 3},
        {"c1-0": {"topic1": [0, 2], "topic2": [2]}, "c2-0": {"topic1": [1, 3]}}
        | {"c3-0": {"topic2": [0]}, "c3-1": {"topic2": [1]}},
    ),
    (
        MIXED,
        {"foo": 5, "bar": 2},
        {"g_a-0": {"foo": [0, 4]}, "g_a-1": {"foo": [1]}, "g_b-0": {"foo": [2]}}
        | {"g_c-0": {"foo": [3]}},
    ),
]
BY_FORM: list[tuple[PartitionFormat, Subscriptions, dict[str, int], Owned]] = [
    (
        BRACKET,
        THREE,
        {"topic1": 12},
        {f"c{c}-0": {"topic1": [n for n in range(12) if n % 3 == c % 3]} for c in (1, 2, 3)},
    ),
    (
        DASH,
        THREE,
        {"topic1": 12},
        {f"c{c}-0": {"topic1": [n for n in range(12) if n % 3 == c - 1]} for c in (1, 2, 3)},
    ),
    (
        BRACKET,
        ALL_A_B,
        {"foo": 3, "bar": 3},
        {"a-0": {"foo": [0, 2], "bar": [1]}, "b-0": {"foo": [1], "bar": [0, 2]}},
    ),
    (
        DASH,
        ALL_A_B,
        {"foo": 3, "bar": 3},
        {"a-0": {"bar": [0, 2], "foo": [1]}, "b-0": {"bar": [1], "foo": [0, 2]}},
    ),
    (
        BRACKET,
        {"c1": {"t": 12}},
        {"t": 14},
        {"c1-0": {"t": [8, 10]}, "c1-1": {"t": [9, 11]}, "c1-10": {"t": [12]}}
        | {"c1-11": {"t": [13]}}
        | {f"c1-{n}": {"t": [n - 2]} for n in range(2, 10)},
    ),
    (
        DASH,
        {"c1": {"t": 12}},
        {"t": 14},
        {"c1-0": {"t": [0, 12]}, "c1-1": {"t": [1, 13]}, "c1-10": {"t": [2]}, "c1-11": {"t": [3]}}
        | {f"c1-{n}": {"t": [n + 2]} for n in range(2, 10)},
    ),
    (
        BRACKET,
        LOGS,
        ELEVENS,
        {
            "c1-0": {"events": [0, 4, 8, 10], "logs": [2, 6]},
            "c1-1": {"events": [1, 5, 9], "logs": [3, 7, 10]},
            "c2-0": {"events": [2, 6], "logs": [0, 4, 8]},
            "c2-1": {"events": [3, 7], "logs": [1, 5, 9]},
        },
    ),
    (
        DASH,
        LOGS,
        ELEVENS,
        {
            "c1-0": {"events": [1, 5, 9], "logs": [0, 4, 8]},
            "c1-1": {"events": [2, 6], "logs": [1, 5, 9, 10]},
            "c2-0": {"events": [3, 7, 10], "logs": [2, 6]},
            "c2-1": {"events": [0, 4, 8], "logs": [3, 7]},
        },
    ),
]
BY_FORM += [(form, *vector) for vector in BOTH_FORMS for form in PartitionFormat]


@pytest.mark.parametrize(("form", "subscriptions", "sizes", "owned"), BY_FORM)
def test_round_robin_vectors(
    form: PartitionFormat, subscriptions: Subscriptions, sizes: dict[str, int], owned: Owned
) -> None:
    """Round-robin computes what JVMs of 0.8.2-0.11 and of 1.0-1.1 computed."""
    assert _owned(ROUND_ROBIN, subscriptions, sizes, form) == owned


@pytest.mark.parametrize(
    ("form", "order"),
    [(BRACKET, list(range(20))), (DASH, [*range(10, 20), *range(10)])],
)
def test_round_robin_order_of_one_topic(form: PartitionFormat, order: list[int]) -> None:
    """The text that is hashed for a partition decides the order of the topic's 20 partitions."""
    dealt = assign(
        ROUND_ROBIN,
        subscriptions={"c": {"my.topic": 1}},
        partitions={"my.topic": range(20)},
        key_form=form,
    )
    assert [tp.partition for tp in dealt] == order


# ---- properties ---------------------------------------------------------------------------------

# `Aa` and `BB` have equal hash codes.
TOPICS = st.sampled_from(["Aa", "BB", "t", "topic1", "my.topic", "é"])
CONSUMERS = st.text("ab1-_Zé￠", min_size=1, max_size=4).map("g_".__add__)
GROUPS = st.dictionaries(CONSUMERS, st.dictionaries(TOPICS, st.integers(1, 12)), max_size=6)
CLUSTERS = st.dictionaries(TOPICS, st.lists(st.integers(0, 40), unique=True, max_size=15))
STRATEGIES = st.sampled_from(Strategy)
FORMS = st.sampled_from(PartitionFormat)


@given(STRATEGIES, GROUPS, CLUSTERS, FORMS)
def test_every_partition_has_exactly_one_owner(
    strategy: Strategy, group: Subscriptions, cluster: dict[str, list[int]], form: PartitionFormat
) -> None:
    """Exactly one thread of a subscribed topic owns each of its partitions."""
    result = assign(strategy, subscriptions=group, partitions=cluster, key_form=form)
    threads: dict[str, set[str]] = {}
    for consumer, counts in group.items():
        for topic, count in counts.items():
            threads.setdefault(topic, set()).update(thread_ids(consumer, count))
    assert set(result) == {
        TopicPartition(topic, number) for topic in threads for number in cluster.get(topic, [])
    }
    assert all(thread in threads[tp.topic] for tp, thread in result.items())


@given(STRATEGIES, GROUPS, CLUSTERS, FORMS, st.randoms(use_true_random=False))
def test_order_of_input_does_not_matter(
    strategy: Strategy,
    group: Subscriptions,
    cluster: dict[str, list[int]],
    form: PartitionFormat,
    chance: random.Random,
) -> None:
    """Members that read the same group in different orders compute the same assignment."""

    def shuffled(mapping: Mapping[str, T]) -> dict[str, T]:
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    once = assign(strategy, subscriptions=group, partitions=cluster, key_form=form)
    again = assign(
        strategy,
        subscriptions=shuffled({consumer: shuffled(own) for consumer, own in group.items()}),
        partitions=shuffled({t: chance.sample(ns, len(ns)) for t, ns in cluster.items()}),
        key_form=form,
    )
    assert once == again
    assert again == assign(strategy, subscriptions=group, partitions=cluster, key_form=form)


@given(GROUPS, CLUSTERS)
def test_range_is_even_and_contiguous(group: Subscriptions, cluster: dict[str, list[int]]) -> None:
    """Within a topic, shares are slices of the sorted partitions, and differ by at most one."""
    result = assign(RANGE, subscriptions=group, partitions=cluster)
    for topic, numbers in cluster.items():
        owners = [result[tp] for n in sorted(numbers) if (tp := TopicPartition(topic, n)) in result]
        shares = Counter(owners)
        threads = sum(counts.get(topic, 0) for counts in group.values())
        if owners:
            least = min(shares.values()) if len(shares) == threads else 0
            assert max(shares.values()) - least <= 1
            assert len(shares) == 1 + sum(a != b for a, b in pairwise(owners))


@given(st.dictionaries(CONSUMERS, st.integers(1, 5), min_size=1, max_size=5), CLUSTERS, FORMS)
def test_round_robin_of_equals_is_even(
    streams: dict[str, int], cluster: dict[str, list[int]], form: PartitionFormat
) -> None:
    """With equal subscriptions, both variants agree, and shares differ by at most one."""
    group = {consumer: dict.fromkeys(cluster, count) for consumer, count in streams.items()}
    skipping, identical = (
        assign(ROUND_ROBIN, subscriptions=group, partitions=cluster, key_form=form, variant=v)
        for v in (RoundRobinRule.SKIPPING, RoundRobinRule.IDENTICAL)
    )
    assert skipping == identical
    shares = Counter(skipping.values())
    threads = sum(streams.values())
    least = min(shares.values(), default=0) if len(shares) == threads else 0
    assert max(shares.values(), default=0) - least <= 1


# ---- the rest -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [
        {"a": {"t": 1, "u": 1}, "b": {"t": 1}},
        {"a": {"t": 1, "u": 2}},
        {"a": {"t": 1}, "b": {"u": 1}},
    ],
)
def test_old_round_robin_refuses_unequal_subscriptions(group: Subscriptions) -> None:
    """With two topics, unequal topics or numbers of streams raise, as in Kafka 0.8.2-0.10.1."""
    with pytest.raises(ConfigError, match="topics t and u"):
        assign(ROUND_ROBIN, subscriptions=group, partitions={}, variant=RoundRobinRule.IDENTICAL)


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("group", [{}, {"a": {}}, {"a": {"t": 1}}])
def test_nothing_to_assign(strategy: Strategy, group: Subscriptions) -> None:
    """Without members, topics or partitions the assignment is empty."""
    for variant in RoundRobinRule:
        assert assign(strategy, subscriptions=group, partitions={"u": [0]}, variant=variant) == {}


@pytest.mark.parametrize("strategy", Strategy)
def test_ten_thousand_partitions_are_quick(strategy: Strategy) -> None:
    """10,000 partitions take much less than the ten seconds of a quadratic algorithm."""
    group = {f"g_{n}": {f"t{n % 2}": 4} | ({"t0": 4, "t1": 4} if n % 3 else {}) for n in range(50)}
    cluster = {"t0": range(5000), "t1": range(5000)}
    start = time.thread_time()
    result = assign(strategy, subscriptions=group, partitions=cluster)
    assert time.thread_time() - start < 5
    assert len(result) == 10_000


def test_threads_are_ordered_by_utf16_units() -> None:
    """Threads are sorted by UTF-16 code units, not code points, as `String.compareTo` does."""
    group = {"g_\U0001f600": {"t": 1}, "g_￠": {"t": 1}}
    for strategy in Strategy:
        first = assign(strategy, subscriptions=group, partitions={"t": [0, 1]})
        assert first[TopicPartition("t", 0)] == "g_\U0001f600-0"
