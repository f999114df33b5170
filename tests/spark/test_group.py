"""Group mode: what a member without streams may plan, commits, and hands over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from members import SETTINGS, Group, eventually

from zkconsumer import ConsumerConfig
from zkconsumer.core.model import TopicPartition
from zkconsumer.core.registrations import Registration
from zkconsumer.sandbox import Sandbox
from zkconsumer.spark.membership import Membership
from zkconsumer.spark.ranges import OffsetRange


@pytest.fixture
def group(sandbox: Sandbox, unique: Callable[[str], str]) -> Iterator[Group]:
    """A group on a topic of four partitions; its members leave at the end of the test."""
    topic = unique("batches")
    sandbox.create_topic(topic, partitions=4)
    with ExitStack() as stack:
        made = Group(sandbox, unique("group"), topic, stack)
        made.stack = stack  # type: ignore[attr-defined]
        yield made


def member(group: Group, suffix: str, threads: int = 1, **settings: Any) -> Membership:
    """One that has joined."""
    config = ConsumerConfig(
        group_id=group.name, zookeeper_connect=group.sandbox.zookeeper_connect,
        consumer_id=suffix, **(SETTINGS | {"release_grace_s": 60.0} | settings),
    )
    one = Membership(config, Registration({group.topic: threads}))
    group.stack.callback(one.leave)  # type: ignore[attr-defined]
    one.join()
    return one


def serves(one: Membership, *partitions: int) -> None:
    """Waits until it may plan exactly these."""
    eventually(lambda: {tp.partition for tp in one.served()} == set(partitions))


def plan(one: Membership, size: int) -> list[OffsetRange]:
    """A batch of so many messages of each partition, from the stored offset or the beginning."""
    for tp, at in one.served().items():
        if at.offset is None:
            one.reset(tp, at, 0, "nothing is stored")
    begun = [OffsetRange(*tp, at.offset or 0, (at.offset or 0) + size)
             for tp, at in one.served().items()]
    return one.begin(begun)


def ends(batch: list[OffsetRange]) -> dict[TopicPartition, int]:
    return {one.tp: one.end for one in batch}


def test_a_batch_is_committed_when_it_is_finished(group: Group) -> None:
    """In flight nothing of it is stored; finished, all is, and it is told that it was news."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    batch = plan(one, 10)
    assert len(batch) == 4 and not one.served()
    one.commit().result(60)
    assert group.stored(0) == "0"
    assert one.finish(ends(batch)) and not one.finish(ends(batch))
    one.commit().result(60)
    assert [group.stored(n) for n in range(4)] == ["10"] * 4


def test_a_release_waits_for_the_batch_in_flight(group: Group) -> None:
    """What a joiner is due goes over when the batch is finished, and it begins at its end."""
    one = member(group, "a", threads=2)
    serves(one, 0, 1, 2, 3)
    batch = plan(one, 10)
    other = member(group, "b")
    eventually(lambda: one.state.phase.value == "stopping")
    assert not other.served()
    one.finish(ends(batch))
    serves(other, 3)
    assert [at.offset for at in other.served().values()] == [10]
    serves(one, 0, 1, 2)


def test_what_is_not_in_flight_goes_at_once(group: Group) -> None:
    """A joiner does not wait for a batch that has nothing of its partitions."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    for tp, at in one.served().items():
        one.reset(tp, at, 0, "nothing is stored")
    assert one.begin([OffsetRange(group.topic, 0, 0, 10), OffsetRange(group.topic, 3, 0, 0)])
    other = member(group, "b")
    serves(other, 2, 3)


def test_the_grace_ends_the_wait(group: Group) -> None:
    """A batch that takes too long is taken up by the new owner from its beginning."""
    one = member(group, "a", release_grace_s=0.3)
    serves(one, 0, 1, 2, 3)
    batch = plan(one, 10)
    other = member(group, "b")
    serves(other, 2, 3)
    assert [at.offset for at in other.served().values()] == [0, 0]
    one.finish(ends(batch))
    one.commit().result(60)
    assert [group.stored(n) for n in range(4)] == ["10", "10", "0", "0"]


def test_beside_a_connector(group: Group) -> None:
    """With a connector in the group every partition has one owner, and returns when that leaves."""
    one = member(group, "a")
    other = group.join("b")
    other.settled(2, 3)
    serves(one, 0, 1)
    other.close()
    serves(one, 0, 1, 2, 3)


def test_leaving_commits_what_is_finished(group: Group) -> None:
    """A clean leave stores what is finished, and nothing of the batch in flight."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    one.finish(ends(plan(one, 10)))
    plan(one, 10)
    one.leave()
    assert [group.stored(n) for n in range(4)] == ["10"] * 4
    assert group.owners() == []


def test_a_marked_edit_is_gone_on_from(group: Group) -> None:
    """A running member goes on from an operator's edit; one that begins can tell it from others."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    one.finish(ends(plan(one, 10)))
    one.commit().result(60)
    group.edit(0, 3)
    group.write(1, b"4")
    assert one.marked([group.tp(0), group.tp(1)]) == {group.tp(0)}
    one.commit().result(60)
    eventually(lambda: {at.offset for at in one.served().values()} == {3, 10})
    assert not one.served()[group.tp(0)].is_first


def test_what_comes_back_begins_at_the_stored_offset(group: Group) -> None:
    """After a lost session all is granted anew, and the batch in flight finishes nothing."""
    one = member(group, "a")
    serves(one, 0, 1, 2, 3)
    one.finish(ends(plan(one, 10)))
    one.commit().result(60)
    batch = plan(one, 10)
    for partition in range(4):
        group.admin.delete(group.owner(partition))
    eventually(lambda: len(one.served()) == 4)
    assert not one.finish(ends(batch))
    assert {(at.offset, at.is_first) for at in one.served().values()} == {(10, False)}
