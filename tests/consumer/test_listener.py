"""The rebalance listener of live members gets the calls that the JVM's listener gets.

`rebalance_listener.jsonl.gz` has the captured calls of real JVM consumers' listeners.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Set
from typing import Any

import pytest
from support.captures import captured
from support.members.group import Group, MemberUnderTest
from support.wait import LIMIT_S, eventually

from zkconsumer import ConsumerThreadId
from zkconsumer.errors import MessageStreamsExistError
from zkconsumer.sandbox import Sandbox


class RecordingListener:
    """A listener that records its calls, and can do more before a call returns."""

    def __init__(self, *, then: Callable[[str], None] = lambda callback: None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.ids: set[str] = set()
        self._then = then

    def before_releasing_partitions(self, partitions: Mapping[str, Set[int]]) -> None:
        self.calls.append(("released", {topic: set(them) for topic, them in partitions.items()}))
        self._then("released")

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        self.ids.add(consumer_id)
        self.calls.append(("assigned", {topic: dict(them) for topic, them in assignment.items()}))
        self._then("assigned")


def join(
    group: Group, suffix: str, listener: RecordingListener, threads: int = 1, **settings: Any
) -> MemberUnderTest:
    one = group.member(suffix, **settings)
    one.connector.set_consumer_rebalance_listener(listener)
    one.subscribe(group.topic, threads)
    return one


def callbacks(calls: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Drop repeated calls: only the JVM calls a listener again if it repeats an attempt."""
    return [call for number, call in enumerate(calls) if call not in calls[number - 1 : number]]


@pytest.mark.parametrize(("mode", "given_up"), [("eager", {0, 1}), ("incremental", {1})])
def test_consumer_rebalance_listener(
    group: Group, sandbox: Sandbox, unique: Callable[[str], str], mode: str, given_up: set[int]
) -> None:
    """ZookeeperConsumerConnectorTest.testConsumerRebalanceListener, in both modes."""
    group.topic = unique("topic1")
    sandbox.create_topic(group.topic, partitions=2)
    first, second = RecordingListener(), RecordingListener()
    one = join(group, "consumer1", first, rebalance_mode=mode)
    one.settled(0, 1)
    mine, theirs = (ConsumerThreadId(f"{group.name}_consumer{n}", 0) for n in (1, 2))
    assert first.calls == [("released", {}), ("assigned", {group.topic: {0: mine, 1: mine}})]
    assert first.ids == {f"{group.name}_consumer1"}
    first.calls.clear()
    two = join(group, "consumer2", second, rebalance_mode=mode)
    one.settled(0)
    two.settled(1)
    together = ("assigned", {group.topic: {0: mine, 1: theirs}})
    assert first.calls == [("released", {group.topic: given_up}), together]
    assert (callbacks(second.calls)[0], second.calls[-1]) == (("released", {}), together)
    assert second.ids == {f"{group.name}_consumer2"}


def listener_calls(release: str, member: str) -> list[tuple[str, Any]]:
    """Return the captured calls of the listener of a JVM member."""
    calls: list[tuple[str, Any]] = []
    for entry in captured("rebalance_listener"):
        if (entry["release"], entry["member"]) != (release, member):
            continue
        if entry["ev"] == "beforeReleasingPartitions":
            owned = {
                topic: set(map(int, re.findall(r"\d+", text.partition("Set(")[2])))
                for topic, text in entry["owned"].items()
            }
            calls.append(("released", owned))
        elif entry["ev"] == "beforeStartingFetchers":
            pairs = re.findall(r"(\d+)=lis_([AB]-\d)", entry["global"])
            calls.append(("assigned", {"seq": {int(p): thread for p, thread in pairs}}))
    return calls


@pytest.mark.parametrize("release", ["0.9.0.1", "0.11.0.3", "1.1.1"])
def test_the_listener_gets_the_calls_of_the_jvms_listener(group: Group, release: str) -> None:
    """While A and B join and A leaves, a listener with `eager` gets the same calls as the JVM's."""
    first, second = RecordingListener(), RecordingListener()
    a = join(group, "A", first, threads=2, rebalance_mode="eager")
    a.settled(0, 1, 2, 3)
    b = join(group, "B", second, rebalance_mode="eager")
    b.settled(3)
    a.settled(0, 1, 2)
    a.close()
    b.settled(0, 1, 2, 3)

    def plain(calls: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        cut = len(f"{group.name}_")
        return [
            (
                kind,
                {
                    topic.replace(group.topic, "seq"): them
                    if kind == "released"
                    else {p: str(thread)[cut:] for p, thread in them.items()}
                    for topic, them in what.items()
                },
            )
            for kind, what in callbacks(calls)
        ]

    assert plain(first.calls) == callbacks(listener_calls(release, "A"))
    assert plain(second.calls) == callbacks(listener_calls(release, "B"))


def test_a_commit_in_the_listener_avoids_redeliveries(group: Group) -> None:
    """Without auto-commit, a commit before the release prevents redeliveries (MirrorMaker)."""
    member: list[MemberUnderTest] = []

    def commit(callback: str) -> None:
        if callback == "released" and member:
            member[0].connector.commit_offsets()

    one = join(group, "a", RecordingListener(then=commit), auto_commit_enable=False)
    one.settled(0, 1, 2, 3)
    one.read(40)
    member.append(one)
    assert group.stored(3) is None
    other = group.join("b")
    other.settled(2, 3)
    assert {group.stored(2), group.stored(3)} == {"10"}
    for partition in (2, 3):
        group.sandbox.produce(group.topic, 1, partition=partition)
    other.read(2)
    assert other.readers[0].offsets(2) + other.readers[0].offsets(3) == [10, 10]
    one.settled(0, 1)
    assert "listener_failed" not in one.counted


@pytest.mark.parametrize("callback", ["released", "assigned"])
def test_a_listener_that_hangs_delays_no_rebalance(group: Group, callback: str) -> None:
    """If a call does not return, a rebalance or shutdown continues after `release.grace.ms`."""
    free, hangs = threading.Event(), threading.Event()

    def hang(called: str) -> None:
        if hangs.is_set() and called == callback:
            free.wait(LIMIT_S)

    try:
        one = join(group, "a", RecordingListener(then=hang), release_grace_s=0.3)
        one.settled(0, 1, 2, 3)
        hangs.set()
        other = group.join("b")
        other.settled(2, 3)
        one.settled(0, 1)
        assert one.counted["listener_late"] >= 1
        group.sandbox.produce(group.topic, 1, partition=0)
        eventually(lambda: 10 in one.readers[0].offsets(0))
        one.close()
        other.settled(0, 1, 2, 3)
    finally:
        free.set()


def test_a_listener_that_raises_loses_nothing(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """If both callbacks raise, the errors are counted and logged, and the group continues."""

    def fail(callback: str) -> None:
        raise ValueError(f"no {callback}")

    one = join(group, "a", RecordingListener(then=fail))
    one.settled(0, 1, 2, 3)
    one.read(40)
    assert one.counted["listener_failed"] == 2
    other = group.join("b")
    other.settled(2, 3)
    one.settled(0, 1)
    assert one.counted["listener_failed"] == 4
    texts = [record.getMessage() for record in caplog.records if record.exc_info]
    assert any("before_releasing_partitions raised" in text for text in texts)


def test_a_listener_is_set_before_the_streams(group: Group) -> None:
    """A listener that is set after the streams exist is refused in the words of the JVM."""
    one = group.join("a")
    with pytest.raises(MessageStreamsExistError, match="rebalance listener before creating"):
        one.connector.set_consumer_rebalance_listener(RecordingListener())
