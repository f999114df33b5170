"""The rules of rebalances, commits and leases, checked on live members and real servers."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from kazoo.exceptions import NotEmptyError
from support.internals import thread_of
from support.members.group import Group
from support.wait import LIMIT_S, eventually

from zkconsumer.consumer.commit_requests import CommitRequested
from zkconsumer.errors import (
    ConnectorClosedError,
    ConsumerIdTakenError,
    RebalanceBlockedError,
    UnsupportedPeerError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration

# ---- other clients' changes to the member's znodes -----------------------------------------------


def test_a_deleted_owner_node_is_claimed_again(group: Group) -> None:
    """If another client deletes an owner znode, the member claims the partition again at once."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    one.read(40)
    before = group.admin.exists(group.owner(1)).czxid
    group.admin.delete(group.owner(1))
    eventually(lambda: one.counted.get("ownership_lost") == 1)
    one.settled(0, 1, 2, 3)
    stat = group.admin.exists(group.owner(1))
    assert (stat.ephemeralOwner, stat.czxid > before) == (one.status.session, True)
    group.sandbox.produce(group.topic, 1, partition=1)
    eventually(lambda: 10 in one.readers[0].offsets(1))
    last = next(m for m in one.readers[0].messages if (m.partition, m.offset) == (1, 10))
    assert last.token == stat.czxid


def test_a_replaced_owner_node_stops_its_partition(group: Group) -> None:
    """If another session replaces an owner znode in one transaction, delivery stops at once."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    one.read(40)
    transaction = group.admin.transaction()
    transaction.delete(group.owner(2))
    transaction.create(group.owner(2), b"somebody-0", ephemeral=True)
    transaction.commit()
    eventually(lambda: one.owned == {0, 1, 3})
    group.sandbox.produce(group.topic, 1, partition=2)
    group.sandbox.produce(group.topic, 1, partition=3)
    eventually(lambda: 10 in one.readers[0].offsets(3))
    assert 10 not in one.readers[0].offsets(2)
    eventually(lambda: one.status.blocked.get(group.tp(2)) == "somebody-0")
    group.admin.delete(group.owner(2))
    eventually(lambda: 10 in one.readers[0].offsets(2))
    one.settled(0, 1, 2, 3)


def test_an_overwritten_owner_node_is_created_again(group: Group) -> None:
    """If another client overwrites an owner znode, the member creates its own again."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    group.admin.set(group.owner(0), b"somebody-0")
    ours = one.readers[0].stream.thread_id.encode()
    eventually(lambda: group.admin.get(group.owner(0))[0] == ours)
    one.settled(0, 1, 2, 3)
    one.read(40)


def test_a_deleted_id_node_is_created_again(group: Group) -> None:
    """If another client deletes the id znode, the member registers again and loses nothing."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    one.read(40)
    owners = {p: group.admin.exists(group.owner(p)).czxid for p in range(4)}
    path = paths.member(group.name, one.connector.consumer_id)
    before = group.admin.exists(path).czxid
    group.admin.delete(path)
    eventually(lambda: (now := group.admin.exists(path)) and now.czxid > before)
    one.settled(0, 1, 2, 3)
    assert group.admin.exists(path).ephemeralOwner == one.status.session
    assert owners == {p: group.admin.exists(group.owner(p)).czxid for p in range(4)}
    group.sandbox.produce(group.topic, 1, partition=0)
    eventually(lambda: 10 in one.readers[0].offsets(0))
    assert len(one.readers[0].messages) == 41, "a message was repeated or lost"


def test_an_overwritten_id_node_is_restored(group: Group) -> None:
    """If another client overwrites the registration, the member restores it."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    path = paths.member(group.name, one.connector.consumer_id)
    sound = group.admin.get(path)[0]
    group.admin.set(path, b"garbage")
    eventually(lambda: group.admin.get(path)[0] == sound)
    one.settled(0, 1, 2, 3)
    one.read(40)
    assert one.status.malformed_peers == {}


def test_a_replaced_id_node_pauses_the_member(group: Group) -> None:
    """While another session has the consumer id, the member has no lease and delivers nothing."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    one.read(40)
    path = paths.member(group.name, one.connector.consumer_id)
    transaction = group.admin.transaction()
    transaction.delete(path)
    transaction.create(path, b"{}", ephemeral=True)
    transaction.commit()
    eventually(lambda: one.counted.get("consumer_id_taken", 0) >= 1)
    group.sandbox.produce(group.topic, 1, partition=0)
    assert one.status.lease_s == 0.0
    assert 10 not in one.readers[0].offsets(0)
    group.admin.delete(path)
    eventually(lambda: 10 in one.readers[0].offsets(0))


# ---- pauses -------------------------------------------------------------------------------------


def test_a_back_off_of_0_does_not_read_the_group_without_end(group: Group) -> None:
    """With `rebalance.backoff.ms=0`, a blocked member waits 50 ms between two readings."""
    blocker = TopicPartition(group.topic, 0)
    group.admin.create(paths.owner(group.name, blocker), b"other-0", ephemeral=True, makepath=True)
    one = group.join(rebalance_backoff_s=0.0)
    eventually(lambda: one.counted.get("rebalances", 0) >= 3)
    first, began = one.counted["rebalances"], time.monotonic()
    eventually(lambda: one.counted["rebalances"] >= first + 40)
    assert time.monotonic() - began >= 30 * 0.05


def test_a_member_whose_id_is_taken_releases_its_partitions(group: Group) -> None:
    """If another session takes the id, the member's owner znodes are deleted; streams raise."""
    one = group.join()
    one.settled(0, 1, 2, 3)
    one.read(40)
    id_znode = paths.member(group.name, one.connector.consumer_id)
    transaction = group.admin.transaction()
    transaction.delete(id_znode)
    transaction.create(id_znode, b"{}", ephemeral=True)
    transaction.commit()
    eventually(lambda: not any(group.admin.exists(group.owner(number)) for number in range(4)))
    eventually(lambda: one.readers[0].errors)
    assert isinstance(one.readers[0].errors[0], ConsumerIdTakenError)
    assert one.counted["ownership_lost"] >= 1
    two = group.join("n")
    two.settled(0, 1, 2, 3)
    group.admin.delete(id_znode)
    one.settled(0, 1)
    two.settled(2, 3)


@pytest.mark.parametrize("below", ["ids", "owners", "offsets", ""])
def test_the_znodes_of_a_live_group_are_deleted(group: Group, below: str) -> None:
    """`rmr` of a part or the whole of a live group: nothing is delivered again, no error."""
    one = group.join(auto_commit_interval_s=0.2)
    one.settled(0, 1, 2, 3)
    one.read(40)
    eventually(lambda: [group.stored(number) for number in range(4)] == ["10"] * 4)
    root = f"{paths.group(group.name)}/{below}".rstrip("/")
    with suppress(NotEmptyError):  # the member writes again while the recursive deletion runs
        group.admin.delete(root, recursive=True)
    group.sandbox.produce(group.topic, 4)
    one.read(44)
    one.settled(0, 1, 2, 3)
    eventually(lambda: sum(map(int, filter(None, map(group.stored, range(4))))) == 44)
    assert len(one.readers[0].messages) == 44
    assert one.readers[0].errors == []
    assert one.counted.get("denied", 0) == 0


def test_strategies_that_differ_are_named_at_once(group: Group) -> None:
    """If an owner follows another strategy, `waiting_for` says so before a JVM gives up."""
    first = group.join("a")
    first.settled(0, 1, 2, 3)
    second = group.join("b", partition_assignment_strategy="roundrobin", rebalance_backoff_s=60.0)
    eventually(lambda: "roundrobin" in second.status.waiting_for)
    assert "range" in second.status.waiting_for
    eventually(lambda: "roundrobin" in second.readers[0].stream.waiting_for)
    assert second.counted.get("disagreement", 0) == 0


# ---- other clients' offsets ----------------------------------------------------------------------


def test_a_lower_foreign_offset_is_overwritten(group: Group) -> None:
    """The owner overwrites a lower offset that another client has written, and reports it."""
    one = group.join(auto_commit_interval_s=0.1)
    one.read(40)
    eventually(lambda: group.stored(0) in ("9", "10"))
    group.write(0, b"2")
    eventually(lambda: one.counted.get("foreign_offset_overwritten") == 1)
    eventually(lambda: group.stored(0) in ("9", "10"))


def test_a_higher_foreign_offset_is_left_until_the_position_passes_it(group: Group) -> None:
    """Another client's higher offset is reported, and kept until the position is higher."""
    one = group.join(auto_commit_interval_s=0.1)
    one.read(40)
    eventually(lambda: group.stored(0) in ("9", "10"))
    group.write(0, b"15")
    eventually(lambda: one.counted.get("foreign_offset_left") == 1)
    group.sandbox.produce(group.topic, 3, partition=0)
    one.read(43)
    one.connector.commit_offsets()
    assert group.stored(0) == "15"
    group.sandbox.produce(group.topic, 5, partition=0)
    one.read(48)
    one.connector.commit_offsets()
    assert group.stored(0) == "18"
    assert one.counted["foreign_offset_left"] == 1


def test_a_marked_edit_is_honoured_on_a_live_group(group: Group) -> None:
    """An idle member adopts an operator's edit, even if it has no new position to commit."""
    one = group.join(auto_commit_interval_s=0.1)
    one.read(40)
    one.connector.commit_offsets()
    group.edit(0, 4)
    one.read(46)
    assert one.readers[0].offsets(0) == [*range(10), *range(4, 10)]
    assert one.counted["operator_edit_honoured"] == 1
    one.connector.commit_offsets()
    assert group.stored(0) == "10"
    assert [one.readers[0].offsets(p) for p in (1, 2, 3)] == [list(range(10))] * 3


def test_a_marked_edit_forward_skips(group: Group) -> None:
    """If an operator's edit is ahead of the position, the messages between are skipped."""
    for partition in (1, 2, 3):
        group.write(partition, b"10")
    one = group.member()
    stream = one.connector.create_message_streams({group.topic: 1})[group.topic][0]
    eventually(lambda: [m.offset for m in stream.poll(max_messages=1, timeout_s=0.1)] == [0])
    one.connector.commit_offsets()
    group.edit(0, 7)
    one.connector.commit_offsets()
    seen: list[int] = []
    eventually(lambda: seen.extend(m.offset for m in stream.poll(timeout_s=0.1)) or len(seen) == 3)
    assert seen == [7, 8, 9]


def test_an_explicit_commit_notices_an_edit(group: Group) -> None:
    """Without auto-commit, the user's next commit finds and adopts an operator's edit."""
    one = group.join(auto_commit_enable=False)
    one.read(40)
    one.connector.commit_offsets()
    group.edit(0, 7)
    one.connector.commit_offsets()
    eventually(lambda: one.readers[0].offsets(0) == [*range(10), 7, 8, 9])


def test_offsets_are_read_after_the_claim(group: Group) -> None:
    """A new owner starts at the offset that was stored just before the partition became free."""
    group.hold(0)
    one = group.join()
    eventually(lambda: one.owned == {1, 2, 3} and group.tp(0) in one.status.blocked)
    group.write(0, b"6")
    group.admin.delete(group.owner(0))
    eventually(lambda: one.readers[0].offsets(0) == [6, 7, 8, 9])


# ---- handing over -------------------------------------------------------------------------------


def test_a_clean_hand_over_repeats_nothing(group: Group) -> None:
    """When a second member takes half of the partitions, each message is delivered exactly once."""
    first = group.join("a")
    first.read(40)
    second = group.join("b")
    first.settled(0, 1)
    second.settled(2, 3)
    for partition in range(4):
        group.sandbox.produce(group.topic, 5, partition=partition)
    eventually(lambda: len(first.readers[0].messages) + len(second.readers[0].messages) >= 60)
    assert len(first.readers[0].messages) == 50
    assert [second.readers[0].offsets(p) for p in (2, 3)] == [list(range(10, 15))] * 2


def test_a_slow_user_holds_a_release_for_the_grace_only(group: Group) -> None:
    """An unfinished message delays a release by `release.grace.ms` at most, and is redelivered."""
    first = group.join("a", release_grace_s=0.3)
    first.read(40)
    first.readers[0].free.clear()
    group.sandbox.produce(group.topic, 1, partition=3)
    first.read(41)
    second = group.join("b")
    second.settled(2, 3)
    assert second.readers[0].offsets(3) in ([], [10])
    eventually(lambda: second.readers[0].offsets(3) == [10])
    assert group.stored(3) == "10"
    first.readers[0].free.set()
    first.settled(0, 1)
    group.sandbox.produce(group.topic, 1, partition=0)
    eventually(lambda: 10 in first.readers[0].offsets(0))
    assert first.readers[0].offsets(3) == list(range(11))


def test_a_release_within_the_grace_waits_for_the_unfinished_message(group: Group) -> None:
    """If the user finishes the message within the grace period, no message is redelivered."""
    first = group.join("a", release_grace_s=LIMIT_S)
    first.read(40)
    first.readers[0].free.clear()
    group.sandbox.produce(group.topic, 1, partition=3)
    first.read(41)
    second = group.join("b")
    eventually(lambda: first.status.phase == "stopping")
    first.readers[0].free.set()
    second.settled(2, 3)
    assert group.stored(3) == "11"
    assert second.readers[0].offsets(3) == []


# ---- eager --------------------------------------------------------------------------------------


def test_eager_claims_all_or_nothing(group: Group) -> None:
    """If one of four partitions is blocked, an eager member owns none; afterwards it owns all."""
    group.hold(2)
    one = group.join(rebalance_mode="eager")
    eventually(lambda: one.status.blocked.get(group.tp(2)) == "somebody-0")
    assert [group.owner_session(p) == one.status.session for p in range(4)] == [False] * 4
    group.admin.delete(group.owner(2))
    one.settled(0, 1, 2, 3)
    one.read(40)


def test_eager_members_share(group: Group) -> None:
    """Two eager members claim half of the partitions each, and deliver messages of each one."""
    first = group.join("a", rebalance_mode="eager")
    first.read(40)
    second = group.join("b", rebalance_mode="eager")
    first.settled(0, 1)
    second.settled(2, 3)
    for partition in range(4):
        group.sandbox.produce(group.topic, 1, partition=partition)
    eventually(lambda: all(10 in first.readers[0].offsets(number) for number in (0, 1)))
    eventually(lambda: all(10 in second.readers[0].offsets(number) for number in (2, 3)))


# ---- blocked ------------------------------------------------------------------------------------


def test_a_stream_without_partitions_raises_one_error_about_the_blocker(group: Group) -> None:
    """After retries x back-off, one error names the blocker; the stream can still be used."""
    for partition in range(4):
        group.hold(partition)
    one = group.join(rebalance_max_retries=2, rebalance_backoff_s=0.1)
    eventually(lambda: one.readers[0].errors)
    requests = one.counted["zookeeper_requests"]
    eventually(lambda: one.counted["zookeeper_requests"] > requests + 20)
    (error,) = one.readers[0].errors
    assert isinstance(error, RebalanceBlockedError)
    assert "somebody-0" in str(error)
    assert all(str(group.tp(p)) in error.where for p in range(4))
    assert one.counted["rebalance_blocked"] == 1
    assert set(one.status.blocked.values()) == {"somebody-0"}
    for partition in range(4):
        group.admin.delete(group.owner(partition))
    one.read(40)
    assert one.counted["rebalance_unblocked"] == 1


def test_streams_with_partitions_continue(group: Group) -> None:
    """If half of a member's streams are blocked, the other half delivers without an error."""
    group.hold(2)
    group.hold(3)
    one = group.join(threads=2, rebalance_max_retries=2, rebalance_backoff_s=0.1)
    eventually(lambda: one.readers[1].errors)
    one.read(20)
    assert one.readers[0].errors == []
    assert [type(error) for error in one.readers[1].errors] == [RebalanceBlockedError]


def test_a_surplus_stream_raises_no_error_about_blockers(group: Group) -> None:
    """A stream without an assigned partition raises no error about blocked partitions."""
    group.hold(0)
    one = group.join(threads=5, rebalance_max_retries=1, rebalance_backoff_s=0.1)
    eventually(lambda: one.readers[0].errors)
    assert [len(reader.errors) for reader in one.readers] == [1, 0, 0, 0, 0]


def test_a_surplus_stream_says_why_it_is_idle(group: Group) -> None:
    """If there are more threads than partitions, an idle stream gives this reason."""
    one = group.join(threads=5)
    one.settled(0, 1, 2, 3)
    eventually(lambda: "more consumer threads" in one.readers[4].stream.waiting_for)


def test_a_peer_with_an_unsupported_filter_is_named(group: Group) -> None:
    """If a peer's filter cannot be evaluated, members keep their partitions but claim no more."""
    first = group.join("b")
    first.settled(0, 1, 2, 3)
    first.read(40)
    peer = Registration({r"\N{COLON}*": 1}, Pattern.WHITE_LIST, 1_400_000_000_000)
    path = paths.member(group.name, "wild")
    group.admin.create(path, encode_registration(peer), ephemeral=True)
    eventually(lambda: "wild" in first.status.waiting_for)
    assert first.owned == {0, 1, 2, 3}
    second = group.join("a")
    eventually(lambda: second.readers[0].errors)
    assert [type(error) for error in second.readers[0].errors] == [UnsupportedPeerError]
    assert "wild" in str(second.readers[0].errors[0])
    assert second.owned == set()
    group.sandbox.produce(group.topic, 1, partition=0)
    eventually(lambda: 10 in first.readers[0].offsets(0))
    group.admin.delete(path)
    second.settled(0, 1)
    first.settled(2, 3)


# ---- topics and brokers -------------------------------------------------------------------------


def test_an_unknown_topic_is_waited_for(group: Group) -> None:
    """A member waits for a missing topic, says why, and delivers the topic once it exists."""
    topic = f"{group.topic}-later"
    one = group.member()
    one.subscribe(topic)
    eventually(lambda: f"{topic} does not exist" in one.status.waiting_for)
    eventually(lambda: f"{topic} does not exist" in one.readers[0].stream.waiting_for)
    assert one.status.phase == "waiting"
    group.sandbox.create_topic(topic, partitions=2)
    group.sandbox.produce(topic, 5, partition=1)
    one.read(5)
    assert one.readers[0].errors == []


def test_a_deleted_topic_stops_and_a_recreated_one_starts(group: Group) -> None:
    """A deleted topic stops with a warning; when it is created again, it is delivered."""
    one = group.join(auto_commit_interval_s=0.1)
    one.read(40)
    one.connector.commit_offsets()
    group.sandbox.delete_topic(group.topic)
    eventually(lambda: one.counted.get("topic_deleted") == 1)
    assert one.status.unreadable_offsets == frozenset()
    group.sandbox.create_topic(group.topic, partitions=4)
    eventually(lambda: one.counted.get("topic_recreated") == 1)
    one.settled(0, 1, 2, 3)
    group.sandbox.produce(group.topic, 3, partition=2)
    eventually(lambda: one.readers[0].offsets(2)[10:] == [0, 1, 2])


# ---- commits and leaving ------------------------------------------------------------------------


def test_without_auto_commit_nothing_is_committed(group: Group) -> None:
    """With `auto.commit.enable=false` no offset is committed, not even when the member leaves."""
    first = group.join("a", auto_commit_enable=False, auto_commit_interval_s=0.1)
    first.read(40)
    second = group.join("b", auto_commit_enable=False, auto_commit_interval_s=0.1)
    second.settled(2, 3)
    first.close()
    second.close()
    assert [group.stored(p) for p in range(4)] == [None] * 4


def test_a_clean_leave_commits_the_last_message(group: Group) -> None:
    """A clean shutdown stores the offset of every delivered message."""
    one = group.join()
    one.read(40)
    one.close()
    assert [group.stored(p) for p in range(4)] == ["10"] * 4
    assert group.owner_session(0) is None


def test_an_exception_does_not_commit_the_unfinished_message(group: Group) -> None:
    """If the user's code raises inside `with`, the message that it processed is redelivered."""
    one = group.member(consumer_timeout_s=LIMIT_S)
    seen = None
    with pytest.raises(RuntimeError, match="the user's own"), one.connector as connector:
        stream = connector.create_message_streams({group.topic: 1})[group.topic][0]
        eventually(lambda: stream.poll(max_messages=5, timeout_s=0.1))
        for message in stream:
            seen = message
            if message.offset == 7:
                raise RuntimeError("the user's own")
    assert seen is not None
    assert group.stored(seen.partition) == "7"


def test_an_exception_does_not_take_back_an_explicit_commit(group: Group) -> None:
    """An offset that the user has committed stays committed, whatever error follows."""
    one = group.member(consumer_timeout_s=LIMIT_S)
    with pytest.raises(RuntimeError, match="the user's own"), one.connector as connector:
        stream = connector.create_message_streams({group.topic: 1})[group.topic][0]
        for message in iter(lambda: next(stream, None), None):
            if message is not None and message.offset == 7:
                connector.commit_offsets()
                partition = message.partition
                raise RuntimeError("the user's own")
    assert group.stored(partition) == "8"


def test_a_commit_during_a_shutdown_is_answered(group: Group) -> None:
    """A commit after the member has ended raises ConnectorClosedError, and does not hang."""
    one = group.join()
    thread = thread_of(one.connector)
    one.close()
    thread.join(LIMIT_S)
    late = thread.commit(CommitRequested(None))
    with pytest.raises(ConnectorClosedError):
        late.result(LIMIT_S)
