"""The znodes after each step of a zkconsumer group equal those of JVM members.

The steps are those of the captures, on a real ZooKeeper and broker. Times are not compared, nor
whether a parent's payload is empty or null, in which the releases differ. The members that consume
are eager: by default a member keeps partitions in a rebalance, and therefore commits them later.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from support.captures import captured
from support.members.group import STEADY_S
from support.zk.client import peer_of

from zkconsumer import ConsumerConfig, ConsumerConnector, white_list
from zkconsumer.consumer.stream import Stream
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.sandbox import Sandbox
from zkconsumer.sandbox.process import until

RELEASES = {"0.8.2.2", "0.9.0.1", "0.11.0.3", "1.1.1"}
# Release -> partition -> the number of its five messages that A consumed first, which depended on
# the order of arrival. Other releases that left the same znodes have the same numbers.
CONSUMED_BY_A = {"0.9.0.1": {1: 5, 2: 3}, "1.1.1": {1: 3, 2: 5}}
ALIKE = {"static": [{"0.8.2.2", "0.9.0.1"}, {"0.11.0.3", "1.1.1"}], "wildcard": [RELEASES]}
LIMIT_S = 50.0  # longer than any step, but shorter than the interval of automatic commits

Nodes = dict[str, dict[str, object]]


def captured_nodes(scenario: str, release: str) -> dict[str, Nodes]:
    """Return step -> the znodes at the beginning of the step."""
    found: dict[str, Nodes] = {}
    for entry in captured("trees"):
        if entry["scenario"] == scenario and release in entry["releases"]:
            found[entry["at"]] = entry["nodes"]
    return found


class CapturedGroup:
    """A group on the shared servers, and its znodes; all its topics begin with `topic`."""

    def __init__(self, sandbox: Sandbox, unique: Callable[[str], str], stack: ExitStack) -> None:
        self.sandbox, self._stack = sandbox, stack
        self.group, self.topic = unique("group"), unique("topic")
        self._client = stack.enter_context(peer_of(sandbox.zookeeper_connect))

    def join(self, suffix: str, **settings: Any) -> ConsumerConnector:
        config = ConsumerConfig(
            group_id=self.group,
            consumer_id=suffix,
            zookeeper_connect=self.sandbox.zookeeper_connect,
            zookeeper_session_timeout_s=STEADY_S,
            auto_offset_reset="smallest",
            rebalance_backoff_s=0.5,
            **settings,
        )
        return self._stack.enter_context(ConsumerConnector(config))

    def program(self, suffix: str, topic: str) -> subprocess.Popen[bytes]:
        """A member in its own process, which the test kills."""
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "zkconsumer",
                "consume",
                "--topic",
                topic,
                "--zookeeper",
                self.sandbox.zookeeper_connect,
                "--group",
                self.group,
                "--property",
                f"consumer.id={suffix}",
                "--property",
                "zookeeper.session.timeout.ms=3000",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def nodes(self, group: str, topic: str) -> Nodes:
        """Return all znodes of the group, in the format and with the names of the captures."""
        found: Nodes = {}
        paths = [f"/consumers/{self.group}"]
        while paths:
            path = paths.pop()
            try:
                data, stat = self._client.get(path)
                paths += [f"{path}/{name}" for name in self._client.get_children(path)]
            except NoNodeError:
                continue
            named, text = (
                one.replace(self.group, group).replace(self.topic, topic)
                for one in (path, data.decode())
            )
            text = re.sub(r'"timestamp":"\d+"', '"timestamp":"1400000000000"', text)
            found[named] = {"payload": text, "ephemeral": stat.ephemeralOwner != 0}
        return found


class Steps:
    """Compares the znodes of a scene with the steps of a captured scenario."""

    def __init__(
        self, scene: CapturedGroup, steps: dict[str, Nodes], group: str, topic: str
    ) -> None:
        self.scene, self._steps, self._names = scene, steps, (group, topic)

    def before(self, step: str) -> None:
        """Wait until the znodes equal those at the beginning of this step."""
        expected = self._steps.pop(step)
        found: list[Nodes] = []

        def is_equal() -> bool:
            found[:] = [self.scene.nodes(*self._names)]
            return found == [expected]

        until(is_equal, limit_s=LIMIT_S)
        assert found == [expected]

    def ends(self) -> None:
        """Check that the znodes of the last step exist, and that no step was left out."""
        self.before("end")
        assert not self._steps


def take(stream: Stream[Any, Any], count: int) -> None:
    """Take this number of messages, and request one more, which finishes them."""
    taken = 0
    limit = time.monotonic() + LIMIT_S
    while taken <= count and time.monotonic() < limit:
        try:
            next(stream)
            taken += 1
        except ConsumerTimeoutError:
            if taken == count:
                return
    raise AssertionError(f"{taken} messages instead of {count}")


@pytest.fixture
def scene(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[CapturedGroup]:
    """A scene; its members leave at the end of the test."""
    with ExitStack() as stack:
        yield CapturedGroup(sandbox, unique, stack)


@pytest.mark.parametrize("release", CONSUMED_BY_A)
def test_static_members_come_consume_and_go(scene: CapturedGroup, release: str) -> None:
    """After joins, a commit, a hand-over and leaves, the znodes equal the JVM's."""
    first, topic = CONSUMED_BY_A[release], scene.topic
    stage = Steps(scene, captured_nodes("static", release), "seqg", "seq")
    scene.sandbox.create_topic(topic, partitions=4)
    for partition, count in first.items():
        scene.sandbox.produce(topic, count, partition=partition)
    stage.before("A new+createMessageStreams")
    a = scene.join("A", consumer_timeout_s=0.3, rebalance_mode="eager")
    (of_a,) = a.create_message_streams({topic: 1})[topic]
    stage.before("A consumes 8")
    take(of_a, 8)
    stage.before("A commitOffsets()")
    a.commit_offsets()
    stage.before("A consumes 4 more")
    for partition, count in first.items():
        scene.sandbox.produce(topic, 5 - count, partition=partition)
    scene.sandbox.produce(topic, 2, partition=3)
    take(of_a, 4)
    stage.before("B new+createMessageStreams")
    b = scene.join("B", consumer_timeout_s=0.3, rebalance_mode="eager")
    (of_b,) = b.create_message_streams({topic: 1})[topic]
    stage.before("B consumes 2")
    scene.sandbox.produce(topic, 2, partition=3)
    take(of_b, 2)
    stage.before("A shutdown")
    a.shutdown()
    stage.before("B shutdown")
    b.shutdown()
    stage.ends()


def test_a_wildcard_member_and_a_static_one(scene: CapturedGroup) -> None:
    """After a new topic, a new partition and a kill, the znodes equal the JVM's."""
    stage = Steps(scene, captured_nodes("wildcard", "1.1.1"), "seqgw", "wseq")
    one, two = f"{scene.topic}1", f"{scene.topic}2"
    scene.sandbox.create_topic(one, partitions=2)
    stage.before("A new+createMessageStreamsByFilter")
    a = scene.join("A")
    a.create_message_streams_by_filter(white_list(f"{scene.topic}.*"), 2)
    stage.before("B new+createMessageStreams (static)")
    b = scene.program("B", one)
    stage.before("new topic appears")
    scene.sandbox.create_topic(two, partitions=2)
    stage.before("partition added to topic 1")
    scene.sandbox.add_partitions(one, partitions=3)
    stage.before("B killed -9")
    b.kill()
    stage.before("1 s after kill")
    stage.before("A shutdown")
    a.shutdown()
    stage.ends()


@pytest.mark.parametrize("scenario", ALIKE)
def test_every_release_equals_a_compared_one(scenario: str) -> None:
    """Step by step, each release's znodes equal those of a release that the tests compare."""
    for releases in ALIKE[scenario]:
        first, *others = (captured_nodes(scenario, release) for release in sorted(releases))
        assert len(first) >= 8
        assert all(other == first for other in others)
    assert set().union(*ALIKE[scenario]) == RELEASES
