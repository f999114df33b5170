"""Subscriptions by pattern next to subscriptions by name, on real servers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from support.members.crew import LIMIT_S, STEADY_S, wait_for

from zkconsumer import ConsumerConfig, ConsumerConnector, black_list, white_list
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import groups

Join = Callable[..., ConsumerConnector]


@pytest.fixture
def prefix(unique: Callable[[str], str]) -> str:
    """The prefix of this test's topics; the group has the same name."""
    return unique("wild") + "."


@pytest.fixture
def join(sandbox: Sandbox, prefix: str, stack: ExitStack) -> Join:
    """Make a connector of this test's group, which ends with the test."""

    def make(consumer: str, **properties: Any) -> ConsumerConnector:
        config = ConsumerConfig(
            zookeeper_connect=sandbox.zookeeper_connect,
            group_id=prefix.rstrip("."),
            consumer_id=consumer,
            auto_offset_reset="smallest",
            zookeeper_session_timeout_s=STEADY_S,
            **properties,
        )
        return stack.enter_context(ConsumerConnector(config))

    return make


@pytest.fixture
def owners(sandbox: Sandbox, prefix: str) -> Callable[[], dict[str, str]]:
    """Return 'topic without the prefix-partition' -> consumer thread without the group."""
    group = prefix.rstrip(".")

    def now() -> dict[str, str]:
        found = groups.owners(sandbox.zookeeper_connect, group)
        return {
            str(tp).removeprefix(prefix): thread.removeprefix(f"{group}_")
            for tp, thread in found.items()
        }

    return now


def values(streams: list[Any], count: int) -> Counter[str]:
    """Return the values of the next `count` messages of all streams, in turn."""
    seen: Counter[str] = Counter()
    limit = time.monotonic() + LIMIT_S
    while seen.total() < count:
        assert time.monotonic() < limit, f"{seen.total()} of {count} messages"
        for stream in streams:
            for message in stream.poll(timeout_s=0.05):
                assert message.value is not None
                seen[f"{message.topic}/{message.value.decode()}"] += 1
    return seen


def test_topics_come_and_go(
    sandbox: Sandbox, prefix: str, join: Join, owners: Callable[[], dict[str, str]]
) -> None:
    """A white list reads topics that are created later, and releases a topic that is deleted."""
    first = prefix + "first"
    sandbox.create_topic(first, partitions=2)
    sandbox.produce(first, 10)
    member = join("m")
    streams = member.create_message_streams_by_filter(white_list(prefix + "[a-z]+"), 2)
    assert values(streams, 10) == Counter({f"{first}/{n}": 1 for n in range(10)})
    assert owners() == {"first-0": "m-0", "first-1": "m-1"}
    second = prefix + "second"
    sandbox.create_topic(second, partitions=1)
    sandbox.create_topic(prefix + "3", partitions=1)
    sandbox.produce(second, 5)
    assert values(streams, 5) == Counter({f"{second}/{n}": 1 for n in range(5)})
    assert owners() == {"first-0": "m-0", "first-1": "m-1", "second-0": "m-0"}
    sandbox.delete_topic(first)
    wait_for(lambda: owners() == {"second-0": "m-0"}, "the deleted topic to be released")
    sandbox.produce(second, 5)
    assert values(streams, 5).total() == 5


def test_nothing_matches_yet(sandbox: Sandbox, prefix: str, join: Join) -> None:
    """A member without a topic says what it waits for, and starts with the first topic."""
    member = join("m")
    (stream,) = member.create_message_streams_by_filter(white_list(prefix + "x"))
    wait_for(lambda: "no topic matches the white_list" in member.status().waiting_for, "its reason")
    sandbox.create_topic(prefix + "x", partitions=1)
    sandbox.produce(prefix + "x", 3)
    assert values([stream], 3).total() == 3


def test_static_white_and_black_in_one_group(
    sandbox: Sandbox, prefix: str, join: Join, owners: Callable[[], dict[str, str]]
) -> None:
    """A whitelist, a blacklist and named topics share partitions as in the JVM's assignor."""
    foo, bar = prefix + "foo", prefix + "bar"
    sandbox.create_topic(foo, partitions=5)
    sandbox.create_topic(bar, partitions=2)
    everything_else = f"(?!{prefix}).*"
    one, two, three = join("a"), join("b"), join("c")
    one.create_message_streams({foo: 2})
    two.create_message_streams_by_filter(white_list(f"{prefix}fo.*"))
    three.create_message_streams_by_filter(black_list(f"{bar},{everything_else}"))
    due = {"foo-0": "a-0", "foo-1": "a-0", "foo-2": "a-1", "foo-3": "b-0", "foo-4": "c-0"}
    wait_for(lambda: owners() == due, "the assignment")


def test_internal_topics(sandbox: Sandbox, prefix: str, join: Join) -> None:
    """Kafka's own topics match no pattern, unless exclude.internal.topics is false."""
    internal = "__consumer_offsets"
    with closing(Consumer({"bootstrap.servers": sandbox.bootstrap, "group.id": prefix})) as one:
        one.committed([Partition("x", 0)], timeout=LIMIT_S)  # This look-up creates the topic.
    wait_for(lambda: internal in sandbox.list_topics(), "the internal topic")
    for exclude, expected in ((True, set()), (False, {internal})):
        member = join(f"m-{exclude}", exclude_internal_topics=exclude)
        wanted = white_list(f"{prefix}none|__consumer_off.*")
        member.create_message_streams_by_filter(wanted)
        wait_for(
            lambda member=member, expected=expected: (
                {tp.topic for held in member.status().owned.values() for tp in held} == expected
                and member.status().phase in ("settled", "waiting")
            ),
            "its partitions",
        )
        member.shutdown()


def test_round_robin_with_patterns(
    sandbox: Sandbox, prefix: str, join: Join, owners: Callable[[], dict[str, str]]
) -> None:
    """A static round-robin member takes into account the topics that match its peers' patterns."""
    foo, bar = prefix + "foo", prefix + "bar"
    sandbox.create_topic(foo, partitions=3)
    how = {"partition_assignment_strategy": "roundrobin"}
    one, two = join("a", **how), join("b", **how)
    one.create_message_streams({foo: 1})
    two.create_message_streams_by_filter(white_list(prefix + ".*"))
    wait_for(lambda: sorted(owners().values()) == ["a-0", "a-0", "b-0"], "three partitions")
    sandbox.create_topic(bar, partitions=3)
    wait_for(lambda: len(owners()) == 6, "the new topic's partitions")
    bars = {TopicPartition(bar, n) for n in range(3)}
    thread = f"{prefix.rstrip('.')}_b-0"
    wait_for(lambda: bars <= set(two.status().owned.get(thread, ())), "the second member's share")
