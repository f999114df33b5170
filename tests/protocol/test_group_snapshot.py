"""The assignment that a member computes from its snapshot of the group."""

from __future__ import annotations

from support.members.machine import ME, PEER, view

from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_snapshot import (
    assignment,
    assignment_of_others,
    needed_topics,
    recreated,
    undecidable,
)
from zkconsumer.protocol.model import TopicPartition

OWN = {"t": 1}


def test_range_needs_only_the_members_own_topics() -> None:
    """Range reads only the topics to which this member subscribes."""
    assert needed_topics([{"u": 1}], OWN, Strategy.RANGE) == ("t",)


def test_round_robin_needs_every_topic_of_the_group() -> None:
    """From 0.10.2 on, round-robin reads all topics to which any member subscribes."""
    assert needed_topics([{"u": 1, "t": 2}, {"v": 1}], OWN, Strategy.ROUND_ROBIN) == (
        "t",
        "u",
        "v",
    )


def test_names_that_zookeeper_refuses_are_not_read() -> None:
    """Before 0.10.2, a topic name that cannot be a znode is not read from ZooKeeper."""
    assert needed_topics([{"": 1, "\ud800": 1, "u": 1}], OWN, Strategy.ROUND_ROBIN) == ("t", "u")


def test_the_parts_of_two_members_are_disjoint() -> None:
    """From the same snapshot, two members compute disjoint assignments of all partitions."""
    group = view([ME, PEER], {"t": 5})
    parts = [
        assignment(group, consumer=name, own=OWN, strategy=strategy)
        for strategy in Strategy
        for name in (ME, PEER)
    ]
    whole = {TopicPartition("t", n) for n in range(5)}
    for mine, theirs in (parts[:2], parts[2:]):
        assert not mine.keys() & theirs.keys()
        assert mine.keys() | theirs.keys() == whole


def test_a_pattern_has_streams_for_each_matching_topic() -> None:
    """A member with a pattern has all its streams for each matching topic, and for no other."""
    group = view([ME], {"t": 2, "u": 2}, wildcards={"g_w": {"u": 3}})
    assert group.counts() == {ME: {"t": 1, "u": 1}, "g_w": {"u": 3}}
    theirs = assignment_of_others(group, consumer=ME, strategy=Strategy.RANGE)
    assert set(theirs) == {TopicPartition("u", 1)}


def test_a_pattern_over_its_limits_cannot_be_evaluated() -> None:
    """A member whose pattern exceeds the cost limits is reported with the reason."""
    assert undecidable(view(wildcards={"g_w": "over 1 s"})) == ("g_w", "over 1 s")
    assert undecidable(view()) == ("", "")


def test_a_malformed_topic_cannot_be_evaluated() -> None:
    """A topic znode that makes JVM members fail is reported with the reason."""
    assert undecidable(view(topics={}, malformed_topics={"t": "no payload"})) == ("t", "no payload")


def test_a_recreated_topic_is_known_by_its_czxid() -> None:
    """A changed czxid means that the topic was re-created, unless the topic is new."""
    assert recreated({"t": 1}, view(czxid=2)) == {"t"}
    assert recreated({"t": 1}, view(czxid=1)) == frozenset()
    assert recreated({}, view(czxid=2)) == frozenset()
