"""Unusual payloads of peers and brokers: a member handles them as each Kafka release did.

The captures record which partitions every member of a group got, or that the member threw an
exception. A JVM member that throws stays without partitions. A zkconsumer member names the
reason, and keeps its partitions or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.captures import captured
from support.members.group import SETTINGS, MemberUnderTest
from support.scenes import Scene, scenes
from support.wait import eventually

from zkconsumer.protocol import paths
from zkconsumer.protocol.registrations import Registration, encode_registration
from zkconsumer.sandbox import ZooKeeperServer

RELEASES = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1")
SOUND = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'
BY_RELEASE = pytest.mark.parametrize("release", RELEASES)


def cases(name: str, strategy: str = "range") -> Iterator[dict[str, Any]]:
    """Return the captured groups in a file that use this strategy."""
    return (case for case in captured(f"assignor/{name}") if case["strategy"] == strategy)


def part(case: dict[str, Any], release: str, consumer: str) -> set[int] | None:
    """Return the partitions that a member of the release got; None if it threw an exception."""
    (result,) = (one for one in case["results"] if release in one["releases"])
    topics = result["assignment"].get(consumer)
    if topics is None:
        return None
    return {int(number) for of_topic in topics.values() for number in of_topic}


class Peers(Scene):
    """A chroot with zkconsumer members and one broker, which cannot be reached."""

    stack: ExitStack

    def peer(self, consumer: str, payload: bytes | None) -> str:
        return self.hold(paths.member("g", consumer), payload)

    def consumer(
        self, suffix: str, topic: str, release: str, strategy: str = "range"
    ) -> MemberUnderTest:
        config = self.config(
            consumer_id=suffix,
            peers_release=release,
            partition_assignment_strategy=strategy,
            **SETTINGS,
        )
        one = MemberUnderTest(config)
        self.stack.callback(one.close)
        one.subscribe(topic)
        return one


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, unique: Callable[[str], str]) -> Iterator[Peers]:
    """A chroot with peers; its members and sessions end with the test."""
    with scenes(zookeeper, unique("scene"), Peers) as made, ExitStack() as made.stack:
        yield made


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@BY_RELEASE
def test_odd_registrations(scene: Peers, release: str) -> None:
    """If JVM members fail at a registration, it is skipped and named; the others get a share."""
    scene.put(paths.topic("t"), SOUND)
    one = scene.consumer("b", "t", release)
    one.settled(0, 1, 2, 3)
    named = 0
    for case in cases("malformed_registrations"):
        expected = part(case, release, "g_b")
        seen = one.counted["rebalances"]
        path = scene.peer("g_a", _bytes(case["registrations"]["g_a"]))
        eventually(lambda seen=seen: one.counted["rebalances"] > seen)
        if expected is None:
            eventually(lambda: "g_a" in one.status.malformed_peers)
            named += 1
            assert one.status.malformed_peers["g_a"]
            one.settled(0, 1, 2, 3)
        else:
            one.settled(*expected)
            assert not one.status.malformed_peers, case["name"]
        # The member must notice the deletion before the next peer registers under this path.
        seen = one.counted["rebalances"]
        scene.session.delete(path)
        eventually(lambda seen=seen: one.counted["rebalances"] > seen)
        eventually(lambda: not one.status.malformed_peers)
        one.settled(0, 1, 2, 3)
    assert named >= 20
    assert one.readers[0].errors == []


@BY_RELEASE
def test_odd_topics(scene: Peers, release: str) -> None:
    """If JVM members cannot parse a topic, the member names it and keeps its partitions."""
    scene.put(paths.topic("t"), SOUND)
    one = scene.consumer("a", "t", release)
    named = 0
    for case in cases("malformed_topics"):
        if set(case["topics"]) != {"t"}:
            continue
        one.settled(0, 1, 2, 3)
        scene.put(paths.topic("t"), _bytes(case["topics"]["t"]))
        expected = part(case, release, "g_a")
        if expected is None:
            named += 1
            eventually(lambda: one.status.waiting_for.startswith("t: "))
            assert one.owned == {0, 1, 2, 3}, "the member lost an owned partition"
        else:
            eventually(lambda expected=expected: one.owned == expected)
            assert not one.status.waiting_for.startswith("t: "), case["name"]
        scene.put(paths.topic("t"), SOUND)
    one.settled(0, 1, 2, 3)
    assert named >= 3


@pytest.mark.parametrize("release", RELEASES[2:])
def test_odd_topics_of_peers(scene: Peers, release: str) -> None:
    """From 0.10.2 on, an unreadable topic of one peer stops round-robin for the whole group."""
    scene.put(paths.topic("t"), SOUND)
    scene.put(paths.topic("u"), b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
    scene.peer("g_b", encode_registration(Registration({"t": 1}, timestamp_ms=1)))
    one = scene.consumer("a", "u", release, "roundrobin")
    named = 0
    for case in cases("malformed_topics", "roundrobin"):
        if set(case["topics"]) != {"t", "u"}:
            continue
        one.settled(0, 1)
        eventually(lambda: not one.status.waiting_for)
        seen = one.counted["rebalances"]
        scene.put(paths.topic("t"), _bytes(case["topics"]["t"]))
        eventually(lambda seen=seen: one.counted["rebalances"] > seen)
        expected = part(case, release, "g_a")
        if expected is None:
            named += 1
            eventually(lambda: one.status.waiting_for.startswith("t: "))
        assert one.owned == {0, 1}
        assert expected in (None, {0, 1})
        # The member must read this payload before the test writes the next one.
        eventually(lambda: one.status.phase in ("settled", "waiting"))
        seen = one.counted["rebalances"]
        scene.put(paths.topic("t"), SOUND)
        eventually(lambda seen=seen: one.counted["rebalances"] > seen)
    one.settled(0, 1)
    assert named > 0
