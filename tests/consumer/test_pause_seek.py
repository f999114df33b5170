"""Pause, resume and seek on a connector in a real group, with ownership and commits."""

from __future__ import annotations

import pytest
from support.members.group import Group
from support.wait import eventually

from zkconsumer.errors import ConfigError, ConnectorClosedError, NotOwnedError


def test_a_seek_backwards_is_committed(group: Group) -> None:
    """After a seek back the next commit stores a lower offset, and later commits higher ones."""
    one = group.join(consumer_timeout_s=None)
    one.read(40)
    one.connector.commit_offsets()
    assert group.stored(2) == "10"
    one.readers[0].free.clear()  # The next message is still unfinished.
    one.connector.seek(group.tp(2), 4)
    one.connector.commit_offsets()
    assert group.stored(2) in ("4", "5")
    one.readers[0].free.set()
    one.read(46)
    assert one.readers[0].offsets(2) == [*range(10), *range(4, 10)]
    one.connector.commit_offsets()
    assert group.stored(2) == "10"
    assert one.counted["seeks"] == 1


def test_a_seek_forward_skips(group: Group) -> None:
    """A seek ahead skips messages, even on a paused partition, and the position is committed."""
    one = group.join(consumer_timeout_s=None)
    one.read(40)
    one.connector.pause([group.tp(1)])
    group.sandbox.produce(group.topic, 20, partition=1)
    one.connector.seek((group.topic, 1), 25)  # type: ignore[arg-type]  # any pair will do
    one.connector.commit_offsets()
    assert group.stored(1) == "25"
    one.connector.resume([group.tp(1)])
    one.read(45)
    assert one.readers[0].offsets(1)[10:] == list(range(25, 30))


def test_a_pause_ends_when_the_partition_moves_away_and_comes_back(group: Group) -> None:
    """A pause ends when the partition moves to another member, and stays ended if it returns."""
    one = group.join("a")
    one.read(40)
    moving = [tp for held in one.status.owned.values() for tp in held][2:]
    one.connector.pause(moving)
    assert one.connector.paused() == set(moving)
    for tp in moving:
        group.sandbox.produce(group.topic, 5, partition=tp.partition)
    two = group.join("b")
    two.read(10)
    one.settled(0, 1)
    assert len(one.readers[0].messages) == 40
    assert not one.connector.paused()
    with pytest.raises(NotOwnedError, match=f"{moving[0]}, {moving[1]}"):
        one.connector.pause([group.tp(0), *moving])
    assert not one.connector.paused()
    two.close()
    for tp in moving:
        group.sandbox.produce(group.topic, 1, partition=tp.partition)
    one.read(42)
    assert {m.offset for m in one.readers[0].messages[40:]} == {15}


def test_a_kept_partition_stays_paused_through_a_rebalance(group: Group) -> None:
    """If a paused partition keeps its owner in an incremental rebalance, it stays paused."""
    one = group.join("a")
    one.read(40)
    kept = group.tp(0)
    one.connector.pause([kept])
    two = group.join("b")
    one.settled(0, 1)
    group.sandbox.produce(group.topic, 5, partition=0)
    group.sandbox.produce(group.topic, 5, partition=1)
    one.read(45)
    assert one.connector.paused() == {kept}
    assert one.readers[0].offsets(0) == list(range(10))
    one.connector.resume([kept])
    one.read(50)
    assert one.readers[0].offsets(0) == list(range(15))
    assert two.owned == {2, 3}


def test_only_owned_partitions_can_be_paused_and_sought(group: Group) -> None:
    """Pause and seek raise without streams, ownership or a valid offset, and after a shutdown."""
    one = group.member()
    with pytest.raises(NotOwnedError):
        one.connector.seek(group.tp(0), 0)
    one.subscribe(group.topic)
    one.settled(0, 1, 2, 3)
    eventually(lambda: len(one.readers[0].messages) == 40)
    for steer in (one.connector.pause, one.connector.resume):
        with pytest.raises(NotOwnedError, match="elsewhere-9"):
            steer([group.tp(0), ("elsewhere", 9)])  # type: ignore[list-item]  # any pair will do
    with pytest.raises(NotOwnedError):
        one.connector.seek(group.tp(4), 0)
    for offset in (-1, 2**63, 1.5, True):
        with pytest.raises(ConfigError, match="is not an offset"):
            one.connector.seek(group.tp(0), offset)  # type: ignore[arg-type]  # wrong types
    one.close()
    assert one.connector.paused() == frozenset()
    with pytest.raises(ConnectorClosedError):
        one.connector.seek(group.tp(0), 0)
