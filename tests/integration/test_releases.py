"""Members that follow the rules of different releases, and members that detect the release."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from support.members.crew import STEADY_S, wait_for

from zkconsumer import ConsumerConfig, ConsumerConnector, white_list
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.assignors import Strategy, assign
from zkconsumer.protocol.releases import profile
from zkconsumer.sandbox import Sandbox
from zkconsumer.testing import groups

Join = Callable[..., ConsumerConnector]
TOPIC_PARTITIONS = 11  # One number has two digits, so that the two orders differ.


@pytest.fixture
def topic(sandbox: Sandbox, unique: Callable[[str], str]) -> str:
    """A topic whose partitions the two variants of round-robin assign differently."""
    base = unique("topic")
    numbers = range(TOPIC_PARTITIONS)
    names = (f"{base}.{n}" for n in itertools.count())
    # The hash of the topic's name decides the place of partition 10 in the order.
    name = next(n for n in names if dealt(n, "0.11.0.3", numbers) != dealt(n, "1.1.1", numbers))
    sandbox.create_topic(name, partitions=TOPIC_PARTITIONS)
    return name


def dealt(topic: str, release: str, numbers: range, members: str = "abc") -> dict[int, str]:
    """Return the owner of each partition according to the rules of the release."""
    rules = profile(release)
    found = assign(
        Strategy.ROUND_ROBIN,
        subscriptions={member: {topic: 1} for member in members},
        partitions={topic: numbers},
        key_form=rules.key_form,
    )
    return {tp.partition: thread for tp, thread in found.items()}


@pytest.fixture
def join(sandbox: Sandbox, topic: str, stack: ExitStack) -> Join:
    """Let a round-robin member with these properties join; its group has the topic's name."""

    def make(consumer: str, **properties: Any) -> ConsumerConnector:
        config = ConsumerConfig(
            zookeeper_connect=sandbox.zookeeper_connect,
            group_id=topic,
            consumer_id=consumer,
            partition_assignment_strategy="roundrobin",
            rebalance_backoff_s=0.3,
            zookeeper_session_timeout_s=STEADY_S,
            **properties,
        )
        member = stack.enter_context(ConsumerConnector(config))
        member.create_message_streams({topic: 1})
        return member

    return make


def owners(sandbox: Sandbox, topic: str) -> dict[int, str]:
    found = groups.owners(sandbox.zookeeper_connect, topic)
    return {tp.partition: thread[len(topic) + 1 :] for tp, thread in found.items()}


def test_a_member_with_another_order_is_named(sandbox: Sandbox, topic: str, join: Join) -> None:
    """In round-robin, a member of 1.1 reports that it disagrees with two members of 0.11."""
    for consumer in ("a", "b"):
        join(consumer)
    wait_for(lambda: len(owners(sandbox, topic)) == TOPIC_PARTITIONS, "the first two to settle")
    odd = join("c", peers_release="1.1.1")
    wait_for(lambda: odd.metrics().get("disagreement", 0) > 0, "the disagreement to be named")


def test_auto_finds_the_groups_release(sandbox: Sandbox, topic: str, join: Join) -> None:
    """With peers.release=auto a member follows the rules of its 1.1 group, and all settle."""
    members = [join(consumer, peers_release="1.1.1") for consumer in ("a", "b")]
    numbers = range(TOPIC_PARTITIONS)
    due = dealt(topic, "1.1.1", numbers, "ab")
    wait_for(lambda: owners(sandbox, topic) == due, "the first two to settle")
    members.append(join("c", peers_release="auto"))
    due = dealt(topic, "1.1.1", numbers)
    wait_for(lambda: owners(sandbox, topic) == due, "all three to settle")
    wait_for(lambda: {one.status().phase for one in members} == {"settled"}, "rest")


def test_a_registration_that_would_be_misread_is_refused(sandbox: Sandbox) -> None:
    """If a regex would match nothing in the form in which 1.1 writes it, the regex is refused."""
    config = ConsumerConfig(
        zookeeper_connect=sandbox.zookeeper_connect, group_id="g", peers_release="1.1.1"
    )
    with (
        ConsumerConnector(config) as connector,
        pytest.raises(ConfigError, match=r"Kafka 1\.1\.1 writes"),
    ):
        connector.create_message_streams_by_filter(white_list(r"test\d+"))
