"""Members that behave like JVM members, on a fake ZooKeeper."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.wait import eventually

from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.testing import (
    FakeServerError,
    FakeZooKeeper,
    StoppedClock,
    wait_until_settled,
)
from zkconsumer.testing.jvm_peer import JvmPeer

GROUP, TOPIC = "g", "t"
ALL = frozenset(TopicPartition(TOPIC, number) for number in range(4))


@pytest.fixture
def fake() -> Iterator[FakeZooKeeper]:
    """A ZooKeeper with a topic of four partitions, in the test's own time."""
    with FakeZooKeeper(clock=StoppedClock()) as server:
        server.create(paths.broker(0), b'{"host":"127.0.0.1","port":9,"version":1,"jmx_port":-1}')
        topic = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'
        server.create(paths.topic(TOPIC), topic)
        yield server


def peer(fake: FakeZooKeeper, *, messages: int = 0) -> JvmPeer:
    """Return a member with one stream; each partition has `messages` messages."""
    return JvmPeer(fake, GROUP, {TOPIC: 1}, end_offset=lambda _: messages)


def in_time(fake: FakeZooKeeper, condition: Callable[[], bool]) -> None:
    """Let the fake's time pass until a condition holds: a member pauses after a failed attempt."""

    def look() -> bool:
        fake.advance(0.5)
        return condition()

    eventually(look)


def test_two_peers_share_the_partitions(fake: FakeZooKeeper) -> None:
    """The second member takes two partitions; when it leaves, the first one has all again."""
    with peer(fake) as first:
        eventually(lambda: first.owned == ALL)
        with peer(fake) as second:
            in_time(fake, lambda: len(first.owned) == len(second.owned) == 2)
            assert first.owned | second.owned == ALL
        in_time(fake, lambda: first.owned == ALL)
        registered = fake.children(paths.ids(GROUP))
        assert registered == (first.consumer_id,)
    assert fake.children(paths.ids(GROUP)) == ()


def test_a_peer_delivers_and_commits(fake: FakeZooKeeper) -> None:
    """Its user gets every message, and the offsets are committed when it leaves."""
    with peer(fake, messages=3) as one:
        eventually(lambda: len(one.delivered) == 12)
    assert set(one.delivered) == {(tp, offset) for tp in ALL for offset in range(3)}
    for tp in ALL:
        assert payloads.decode_offset(fake.get(paths.offset(GROUP, tp)), where="") == 3


def test_a_dead_peer_keeps_its_partitions_until_its_session_expires(fake: FakeZooKeeper) -> None:
    """Its znodes stay for the session timeout; nothing is committed."""
    dead = peer(fake, messages=3)
    dead.join()
    eventually(lambda: dead.owned == ALL and len(dead.delivered) == 12)
    dead.kill()
    fake.advance(5.9)
    assert fake.owner(paths.owner(GROUP, TopicPartition(TOPIC, 0))) == dead.session
    fake.advance(0.2)
    assert fake.children(paths.ids(GROUP)) == ()
    assert not fake.exists(paths.offsets_of(GROUP, TOPIC))


def test_an_expired_peer_joins_again(fake: FakeZooKeeper) -> None:
    """It registers in a new session and claims its partitions again."""
    with peer(fake) as one:
        eventually(lambda: one.owned == ALL)
        before = one.session
        fake.expire(before)
        eventually(lambda: one.session != before and one.owned == ALL)
        path = paths.owner(GROUP, TopicPartition(TOPIC, 0))
        eventually(lambda: fake.exists(path) and fake.owner(path) == one.session)


def test_an_isolated_peer_delivers_what_another_owns(fake: FakeZooKeeper) -> None:
    """As a JVM member it does not notice that its session has ended: both deliver."""
    with peer(fake) as zombie:
        eventually(lambda: zombie.owned == ALL)
        fake.isolate(zombie.session)
        fake.advance(6.2)
        assert fake.children(paths.ids(GROUP)) == ()
        with peer(fake) as present:
            eventually(lambda: present.owned == ALL)
            assert zombie.owned == ALL
        fake.heal()
        eventually(lambda: fake.children(paths.ids(GROUP)) == (zombie.consumer_id,))


def test_a_restart_of_the_server_keeps_the_membership(fake: FakeZooKeeper) -> None:
    """The member continues its session after the server is back."""
    with peer(fake) as one:
        eventually(lambda: one.owned == ALL)
        before = one.session
        fake.restart()
        with peer(fake) as other:
            in_time(fake, lambda: len(one.owned) == len(other.owned) == 2)
        assert one.session == before


def test_a_group_has_not_settled_before_a_new_member_has_its_share(fake: FakeZooKeeper) -> None:
    """A new member owns no partition yet, although every partition has an owner."""
    with peer(fake) as one:
        in_time(fake, lambda: len(fake.children(paths.owners_of(GROUP, TOPIC))) == 4)
        owners = wait_until_settled(fake.connect, GROUP, members=1)
        assert set(owners) == ALL
        fake.isolate(one.session)
        fake.create(paths.member(GROUP, "g_new"), fake.get(paths.member(GROUP, one.consumer_id)))
        with pytest.raises(AssertionError, match=r"g_new-0 should own .*, and owns \[\]"):
            wait_until_settled(fake.connect, GROUP, members=2, timeout_s=0.1)
        fake.heal()


def test_a_consumer_beside_a_peer() -> None:
    """The example runs: a zkconsumer member takes over the partitions of a peer that dies."""
    examples = Path(__file__).parents[2] / "docs" / "examples"
    runpy.run_path(str(examples / "test_beside_jvm.py"))["test_a_jvm_member_dies"]()


def test_a_peer_joins_once_and_needs_a_server(fake: FakeZooKeeper) -> None:
    """The errors say what to do."""
    with peer(fake) as one, pytest.raises(FakeServerError, match="make another JvmPeer"):
        one.join()
    with pytest.raises(FakeServerError, match=r"call start\(\)"):
        peer(FakeZooKeeper()).join()
