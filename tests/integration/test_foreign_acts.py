"""Other clients change the group's znodes: by hand, by mistake, or as frozen JVM members."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from support.members.crew import Crew, LocalMember, wait_for

from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition

pytestmark = pytest.mark.usefixtures("topic")


@pytest.fixture
def pair(crew: Crew) -> tuple[LocalMember, LocalMember]:
    """Two settled members; a producer writes all the time."""
    pair = crew.join_here(), crew.join_here()
    crew.settle(*pair)
    crew.flowing(*pair)
    return pair


def _first(member: LocalMember) -> TopicPartition:
    return min(member.owned)


def _given(member: LocalMember, tp: TopicPartition) -> list[int]:
    return [one.offset for one in member.delivered if one.partition == tp]


def _replace(admin: KazooClient, path: str) -> None:
    """In one transaction, replace a znode by the administrator's, with the same data."""
    data, _ = admin.get(path)
    transaction = admin.transaction()
    transaction.delete(path)
    transaction.create(path, data, ephemeral=True)
    transaction.commit()


def test_an_owner_node_is_deleted(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """If its owner znode is deleted, the owner claims again, and delivers under a new token."""
    member, _ = pair
    tp = _first(member)
    before = crew.observer.snapshot().owners[tp].czxid
    admin.delete(paths.owner(crew.group, tp))
    wait_for(
        lambda: any(one.token > before for one in member.delivered if one.partition == tp), "token"
    )
    crew.settle(*pair)
    assert member.metrics()["ownership_lost"] == 1
    crew.finish()


def test_an_owner_node_is_replaced(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """While another session holds a partition, even with equal data, it is not delivered."""
    member, _ = pair
    tp = _first(member)
    _replace(admin, paths.owner(crew.group, tp))
    wait_for(lambda: str(tp) in member.last("status")["blocked"], "the blocker to be seen")
    # The payload names the member's own thread, but another session owns the znode.
    thread = f"{member.consumer}-0"
    wait_for(lambda: member.connector.status().blocked.get(tp) == thread, "its name to be read")
    # The user logs a message a little later than the member hands it out.
    crew.flowing(*pair)
    given = _given(member, tp)
    crew.flowing(*pair)
    assert _given(member, tp) == given
    admin.delete(paths.owner(crew.group, tp))
    crew.settle(*pair)
    wait_for(lambda: len(_given(member, tp)) > len(given), "the partition to be served again")
    crew.finish()


def test_an_id_node_is_deleted(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """If its id znode is deleted, the member registers again and keeps its partitions."""
    member, _ = pair
    path = paths.member(crew.group, member.consumer)
    before = admin.exists(path).czxid
    admin.delete(path)
    wait_for(lambda: (now := admin.exists(path)) and now.czxid > before, "a new id znode")
    crew.settle(*pair)
    crew.flowing(*pair)
    crew.finish()


def test_an_id_node_is_replaced(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """While another session holds its id, the member delivers nothing; then it continues."""
    member, partner = pair
    path = paths.member(crew.group, member.consumer)
    _replace(admin, path)
    wait_for(lambda: member.metrics().get("consumer_id_taken"), "the member to notice")
    # The user logs a message a little later than the member hands it out.
    crew.flowing(partner)
    given = len(member.delivered)
    crew.flowing(partner)
    assert len(member.delivered) == given
    admin.delete(path)
    crew.settle(*pair)
    crew.flowing(*pair)
    crew.finish()


def test_a_lower_offset_is_written_over(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """If another client writes a lower offset, the live owner overwrites and reports it."""
    member, _ = pair
    tp = _first(member)
    wait_for(lambda: crew.observer.snapshot().offsets.get(tp, 0) > 1, "a commit")
    admin.set(paths.offset(crew.group, tp), b"1")
    wait_for(lambda: member.metrics().get("foreign_offset_overwritten"), "the report")
    wait_for(lambda: crew.observer.snapshot().offsets[tp] > 1, "our own offset")
    assert _given(member, tp) == sorted(set(_given(member, tp)))


def test_a_higher_offset_is_left_until_it_is_passed(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """If another client writes a higher offset, it is kept until the position is higher."""
    member, _ = pair
    tp = _first(member)
    wait_for(lambda: tp in crew.observer.snapshot().offsets, "a commit")
    higher = max(crew.traffic.produced[tp]) + 2_000  # more than the traffic adds in a minute
    admin.set(paths.offset(crew.group, tp), str(higher).encode())
    wait_for(lambda: member.metrics().get("foreign_offset_left"), "the report")
    assert crew.observer.snapshot().offsets[tp] == higher
    crew.traffic.burst(tp, 2_000)
    wait_for(lambda: crew.observer.snapshot().offsets[tp] > higher, "the position to pass it")
    crew.finish()


def test_a_marked_edit_is_honoured(
    crew: Crew, admin: KazooClient, pair: tuple[LocalMember, LocalMember]
) -> None:
    """If a tool writes an offset with a mark, delivery continues there at once."""
    member, _ = pair
    tp = _first(member)
    wait_for(lambda: crew.observer.snapshot().offsets.get(tp, 0) > 1, "a commit")
    admin.ensure_path(paths.edits(crew.group))
    edit = admin.transaction()
    edit.set_data(paths.offset(crew.group, tp), b"1")
    edit.create(paths.edit(crew.group, 1))
    edit.commit()
    wait_for(lambda: _given(member, tp).count(1) == 2, "the message at the edited offset")
    assert member.metrics()["operator_edit_honoured"] == 1
    assert _given(member, tp).count(0) == 1
    wait_for(lambda: crew.observer.snapshot().offsets[tp] > 1, "commits to continue from there")
