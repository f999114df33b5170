"""Upstream's tests of ConsumerGroupCommand and ConsoleConsumer, run on `zkconsumer legacy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.jvm.tools import World
from support.members.group import SETTINGS
from support.wait import LIMIT_S, eventually
from support.zk.client import peer_of

from zkconsumer import ConsumerConfig, ConsumerConnector
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import Sandbox

OTHER = "another-topic"


class Place(World):
    """A chroot that has only the brokers' znodes, and a topic of one partition."""

    def __init__(self, sandbox: Sandbox, topic: str, directory: Path, stack: ExitStack) -> None:
        super().__init__(sandbox, "1.1.1", directory)
        self.topic, self._stack = topic, stack
        self.chroot = f"/{topic}"
        self.connect = f"{sandbox.zookeeper_connect}{self.chroot}"
        with peer_of(sandbox.zookeeper_connect) as zk:
            copied = [f"/brokers/ids/{number}" for number in zk.get_children("/brokers/ids")]
            state = "/partitions/0/state"
            for path in (*copied, f"/brokers/topics/{topic}", f"/brokers/topics/{topic}{state}"):
                zk.create(self.chroot + path, zk.get(path)[0], makepath=True)
            zk.ensure_path(f"{self.chroot}{paths.CONSUMERS}")  # as a broker registers the topic

    def group(self, name: str, *topics: str, consumer: str = "") -> None:
        """Create upstream's group: in partition 0 of each topic, offset 10 and an empty owner."""
        for topic in topics:
            tp = TopicPartition(topic, 0)
            self.put([{"path": paths.offset(name, tp), "data": "10"}])
            self.put([{"path": paths.owner(name, tp), "data": ""}])
        self.ensure(f"{name}/ids")
        if consumer:
            node = encode_registration(Registration(dict.fromkeys(topics, 1), timestamp_ms=1))
            self.put([{"path": paths.member(name, consumer), "data": node.decode()}])

    def tool(self, *arguments: str) -> str:
        """Return the output of ConsumerGroupCommand."""
        code, out, err = self.run("ConsumerGroupCommand", "--zookeeper", self.connect, *arguments)
        assert code == 0, err
        return out

    def has(self, group: str, topic: str) -> tuple[bool, bool]:
        """Return whether the group has offsets of a topic, and whether it has owners."""
        found = self.below(f"/consumers/{group}")
        directories = paths.offsets_of(group, topic), paths.owners_of(group, topic)
        return directories[0] in found, directories[1] in found

    def member(self, group: str, consumer: str, **settings: Any) -> ConsumerConnector:
        """Return a zkconsumer member; it leaves at the end of the test."""
        config = ConsumerConfig(
            group_id=group,
            zookeeper_connect=self.connect,
            consumer_id=consumer,
            **(SETTINGS | settings),
        )
        return self._stack.enter_context(ConsumerConnector(config))

    def rows(self, group: str) -> list[list[str]]:
        """Return the rows of `--describe` for the topic: one per partition and per idle member."""
        lines = self.tool("--describe", "--group", group).splitlines()
        return [row for line in lines if (row := line.split()) and row[0] in (self.topic, "-")]


@pytest.fixture
def place(sandbox: Sandbox, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Place]:
    """A chroot in which only the groups of the test exist."""
    topic = unique("upstream")
    sandbox.create_topic(topic)
    with ExitStack() as stack:
        yield Place(sandbox, topic, tmp_path, stack)


def test_a_group_is_deleted(place: Place) -> None:
    """DeleteConsumerGroupTest.testGroupWideDeleteInZK[DoesNothingForActiveConsumerGroup]."""
    place.group("deleted", place.topic)
    place.group("other", place.topic)
    place.group("active", place.topic, consumer="consumer1")
    place.tool("--delete", "--group", "deleted")
    said = place.tool("--delete", "--group", "active")
    assert "still active" in said
    assert place.groups() == ["active", "other"]
    assert place.has("other", place.topic) == place.has("active", place.topic) == (True, True)


def test_a_topic_of_a_group_is_deleted(place: Place) -> None:
    """DeleteConsumerGroupTest.testGroupTopicWideDeleteInZK...: one topic, several, a live group."""
    place.group("one", place.topic)
    place.group("both", place.topic, OTHER)
    place.group("active", place.topic, OTHER, consumer="consumer1")
    for group in ("one", "both", "active"):
        place.tool("--delete", "--group", group, "--topic", place.topic)
    assert place.groups() == ["active", "both"]
    assert place.has("both", place.topic) == (False, False)
    assert place.has("both", OTHER) == place.has("active", place.topic) == (True, True)


def test_a_topic_of_all_groups_is_deleted(place: Place) -> None:
    """DeleteConsumerGroupTest.testTopicWideDeleteInZK: all groups lose the topic, but no other."""
    for group in ("group1", "group2"):
        place.group(group, place.topic, OTHER)
    place.tool("--delete", "--topic", place.topic)
    for group in ("group1", "group2"):
        assert place.has(group, place.topic) == (False, False)
        assert place.has(group, OTHER) == (True, True)


def test_a_group_that_was_deleted_consumes_again(place: Place) -> None:
    """DeleteConsumerGroupTest.testConsumptionOnRecreatedTopicAfterTopicWideDeleteInZK."""
    place.group("group1", place.topic)
    place.tool("--delete", "--topic", place.topic)
    place.sandbox.produce(place.topic, 10)
    member = place.member(
        "group1", "consumer1", auto_commit_enable=False, consumer_timeout_s=LIMIT_S
    )
    (stream,) = member.create_message_streams({place.topic: 1})[place.topic]
    assert [next(stream).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    member.commit_offsets()
    assert place.has("group1", place.topic) == (True, True)
    assert place.below(f"/consumers/group1/offsets/{place.topic}/0").popitem()[1] == "5"


def test_groups_are_described(place: Place) -> None:
    """DescribeConsumerGroupTest: no group; one member; two, one of them idle; only offsets."""
    assert place.rows("group1") == []
    place.sandbox.produce(place.topic, 3)
    members = [place.member("group1", name, consumer_timeout_s=LIMIT_S) for name in ("a", "b")]
    streams = members[0].create_message_streams({place.topic: 1})[place.topic]
    assert [next(streams[0]).offset for _ in range(3)] == [0, 1, 2]
    members[0].commit_offsets()
    (row,) = place.rows("group1")
    assert row == [place.topic, "0", "3", "3", "0", "group1_a"]
    members[1].create_message_streams({place.topic: 1})
    eventually(lambda: len(place.rows("group1")) == 2)
    assert place.rows("group1")[1][0] == "-"
    for member in members:
        member.shutdown()
    assert place.rows("group1") == [[place.topic, "0", "3", "3", "0", "-"]]


def test_groups_are_listed(place: Place) -> None:
    """ListConsumerGroupTest: no group, and two groups with one consumer each."""
    assert place.tool("--list").split() == []
    for group in ("group1", "group2"):
        place.member(group, "simple").create_message_streams({place.topic: 1})
    eventually(lambda: sorted(place.tool("--list").split()) == ["group1", "group2"])


def test_the_console_consumer(place: Place) -> None:
    """ConsoleConsumerTest.shouldLimitReadsToMaxMessageLimit, and the use of its old arguments."""
    place.sandbox.produce(place.topic, 20)
    read = ["ConsoleConsumer", "--zookeeper", place.connect, "--topic", place.topic]
    code, out, _ = place.run(*read, "--from-beginning", "--max-messages", "10")
    assert (code, out.split()) == (0, [str(number) for number in range(10)])
    properties = ("auto.offset.reset=smallest", "group.id=named")
    told = [word for one in properties for word in ("--consumer-property", one)]
    assert place.run(*read, *told, "--max-messages", "3")[1].split() == ["0", "1", "2"]
    assert place.has("named", place.topic)[0]
    late = [*read, "--from-beginning", "--consumer-property", "auto.offset.reset=largest"]
    assert place.run(*late)[0] == 1
    code, out, err = place.run(*read, *told, "--group", "another")
    assert code == 1 and "group" in out + err
