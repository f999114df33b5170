"""Commits: compare-and-set on real offset znodes, and writes by other clients."""

from __future__ import annotations

from kazoo.client import KazooClient
from support.zk.client import READ_ONLY, Client, tps

from zkconsumer.member.events import (
    Committed,
    MemberNodeGone,
    OffsetsLoaded,
    Outcome,
    StoreUnavailable,
)
from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.member.operations import commit, load
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, StoredOffset, TopicPartition
from zkconsumer.protocol.requests import Code, FetchOffsets, NotStored, Reply, StoreOffsets

T0, T1, T2 = tps(0, 1, 2)


def write(client: Client, **offsets: tuple[int, int | None]) -> Outcome:
    """Commit; `t0=(10, 3)` means: write 10 to partition 0 if its version is 3."""
    writes = {TopicPartition("t", int(name[1:])): what for name, what in offsets.items()}
    return client.run(commit(client.me, CommitPlan(writes, {})))


def committed(outcome: Outcome) -> Committed:
    assert isinstance(outcome, Committed)
    return outcome


def stored(client: Client, tp: TopicPartition) -> tuple[bytes, int]:
    data, stat = client.peer.get(client.offset(tp))
    return data, stat.version


def test_the_first_commit_makes_persistent_decimal_nodes(client: Client) -> None:
    """Parents and znodes are created as the JVM does; the next commit replaces version 0."""
    assert committed(write(client, t0=(10, None), t1=(0, None))).versions == {T0: 0, T1: 0}
    assert stored(client, T0) == (b"10", 0)
    assert client.peer.exists(client.offset(T0)).ephemeralOwner == 0
    assert committed(write(client, t0=(12, 0))).versions == {T0: 1}
    assert stored(client, T0) == (b"12", 1)


def test_a_commit_is_all_or_nothing(client: Client) -> None:
    """If another client wrote one of the offsets, the transaction writes none of them."""
    write(client, t0=(10, None), t1=(10, None))
    client.write(T1, b"5")
    outcome = committed(write(client, t0=(12, 0), t1=(12, 0)))
    assert outcome.versions == {}
    assert outcome.foreign.keys() == {T1}
    assert (outcome.foreign[T1].value, outcome.foreign[T1].version) == (5, 1)
    assert stored(client, T0) == (b"10", 0)


def test_an_unchanged_offset_is_checked(client: Client) -> None:
    """A check finds another client's write even if the member's own offset is unchanged."""
    write(client, t0=(10, None))
    client.write(T0, b"99")
    outcome = committed(client.run(commit(client.me, CommitPlan({}, {T0: 0}))))
    assert outcome.foreign[T0].value == 99
    assert outcome.marked == frozenset()


def test_an_offset_node_that_exists_already_is_foreign(client: Client) -> None:
    """If the offset znode exists already, the commit reads it and does not overwrite it."""
    client.write(T0, b"7")
    assert committed(write(client, t0=(10, None))).foreign[T0].value == 7
    assert stored(client, T0)[0] == b"7"


def test_a_deleted_offset_node_is_reported_as_foreign(client: Client) -> None:
    """A deleted offset znode is reported as deleted."""
    write(client, t0=(10, None))
    client.peer.delete(client.offset(T0))
    assert committed(write(client, t0=(12, 0))).foreign == {T0: StoredOffset(None, None)}


def test_a_deleted_and_recreated_node_is_foreign(client: Client) -> None:
    """If another client re-created an offset znode, its version 0 shows this."""
    write(client, t0=(10, None))
    write(client, t0=(11, 0))
    client.peer.delete(client.offset(T0))
    client.peer.create(client.offset(T0), b"3")
    assert committed(write(client, t0=(12, 1))).foreign[T0].value == 3


def test_a_commit_requires_the_id_znode(client: Client) -> None:
    """If this session has no id znode, nothing is committed."""
    write(client, t0=(10, None))
    client.peer.delete(client.me.path)
    assert write(client, t0=(12, 0)) == MemberNodeGone()
    assert stored(client, T0) == (b"10", 0)


def test_a_lost_reply_is_found_with_its_value(client: Client) -> None:
    """After a lost reply, the repeated commit finds its own value with a version one higher."""
    write(client, t0=(10, None))
    write(client, t0=(12, 0))
    found = committed(write(client, t0=(12, 0))).foreign[T0]
    assert (found.value, found.version) == (12, 1)


def test_a_marked_edit_is_distinguished_from_an_unmarked_one(client: Client) -> None:
    """A write in one transaction with a mark is an operator's edit; without a mark it is not."""
    write(client, t0=(10, None), t1=(10, None))
    client.edit(T0, 3)
    client.write(T1, b"3")
    outcome = committed(write(client, t0=(12, 0), t1=(12, 0)))
    assert outcome.foreign.keys() == {T0, T1}
    assert outcome.marked == {T0}


def test_a_write_after_a_mark_is_not_marked(client: Client) -> None:
    """If a zombie overwrites an operator's edit, its write does not count as an edit."""
    write(client, t0=(10, None))
    client.edit(T0, 3)
    client.write(T0, b"4")
    outcome = committed(write(client, t0=(12, 0)))
    assert outcome.foreign[T0].value == 4
    assert outcome.marked == frozenset()


def test_the_latest_of_several_edits_is_marked(client: Client) -> None:
    """After several edits, the latest edit of each partition is recognised by its mark."""
    write(client, t0=(10, None), t1=(10, None))
    for offset in (1, 2, 3):
        client.edit(T0, offset)
    client.edit(T1, 5)
    assert committed(write(client, t0=(12, 0), t1=(12, 0))).marked == {T0, T1}


def test_a_malformed_offset_is_reported_and_not_overwritten(client: Client) -> None:
    """A malformed offset is reported and not overwritten."""
    write(client, t0=(10, None))
    client.write(T0, b"ten")
    outcome = committed(write(client, t0=(12, 0)))
    assert client.offset(T0) in outcome.foreign[T0].error
    assert stored(client, T0)[0] == b"ten"


def test_an_offset_without_rights_delays_no_other(client: Client) -> None:
    """If an offset may not be written, the result names it, and the others are stored."""
    write(client, t0=(10, None), t1=(10, None), t2=(10, None))
    client.peer.set_acls(client.offset(T1), READ_ONLY)
    outcome = committed(write(client, t0=(12, 0), t1=(12, 0), t2=(12, 0)))
    assert outcome.versions == {T0: 1, T2: 1}
    assert "access control" in outcome.denied[T1]


def test_offsets_without_a_right_to_make_them_are_denied(client: Client, peer: KazooClient) -> None:
    """Without rights below the group, the result names every offset, and the commit ends."""
    peer.set_acls(paths.ids(client.group).rpartition("/")[0], READ_ONLY)
    outcome = committed(write(client, t0=(10, None), t1=(10, None)))
    assert outcome.denied.keys() == {T0, T1}


def test_thousands_of_offsets_take_several_transactions(client: Client) -> None:
    """2,500 offsets are stored and replaced, in transactions that ZooKeeper accepts."""
    many = tps(*range(2500))
    first = CommitPlan(dict.fromkeys(many, (1, None)), {})
    assert committed(client.run(commit(client.me, first))).versions == dict.fromkeys(many, 0)
    second = CommitPlan(dict.fromkeys(many, (2, 0)), {})
    assert committed(client.run(commit(client.me, second))).versions == dict.fromkeys(many, 1)


def test_long_names_stay_below_the_size_of_a_transaction(client: Client) -> None:
    """With topic names of 249 letters, transactions are divided by their size in bytes."""
    many = [TopicPartition("t" * 249, number) for number in range(3000)]
    plan = CommitPlan(dict.fromkeys(many, (1, None)), {})
    assert len(committed(client.run(commit(client.me, plan))).versions) == 3000


# ---- offsets in Kafka ---------------------------------------------------------------------------

KAFKA = {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6, "note"), T2: OffsetAndMetadata(7)}


def test_kafka_is_asked_after_zookeeper(client: Client) -> None:
    """The outcome tells what each store stored, what Kafka denied, and what was unavailable."""
    client.kafka = Reply(Code.OK, NotStored({T1: "too long"}, {T2: "no coordinator"}))
    outcome = committed(client.run(commit(client.me, CommitPlan({T0: (5, None)}, {}, KAFKA))))
    assert client.asked == [StoreOffsets(KAFKA)]
    assert (outcome.versions, outcome.kafka) == ({T0: 0}, {T0})
    assert (outcome.denied, outcome.unavailable) == ({T1: "too long"}, {T2: "no coordinator"})


def test_kafka_is_not_asked_after_a_foreign_write_to_zookeeper(client: Client) -> None:
    """If another client wrote to ZooKeeper, perhaps an edit, the commit sends nothing to Kafka."""
    write(client, t0=(10, None))
    client.peer.set(client.offset(T0), b"3")
    outcome = committed(client.run(commit(client.me, CommitPlan({T0: (12, 0)}, {}, KAFKA))))
    assert outcome.foreign.keys() == {T0}
    assert not client.asked
    assert not outcome.kafka


def test_kafka_is_not_asked_for_a_former_member(client: Client) -> None:
    """A commit goes to Kafka only after ZooKeeper has confirmed that the member still exists."""
    assert committed(client.run(commit(client.me, CommitPlan({}, {}, KAFKA)))).kafka == {*KAFKA}
    client.asked.clear()
    client.peer.delete(client.me.path)
    assert isinstance(client.run(commit(client.me, CommitPlan({}, {}, KAFKA))), MemberNodeGone)
    assert not client.asked


def test_offsets_are_loaded_from_both(client: Client) -> None:
    """Offsets are loaded from both stores; if Kafka does not answer, the reason is returned."""
    write(client, t0=(10, None))
    client.kafka = Reply(Code.OK, {T1: KAFKA[T1]})
    outcome = client.run(load(client.me, [T1, T0], Storage.DUAL))
    assert client.asked == [FetchOffsets((T0, T1))]
    assert isinstance(outcome, OffsetsLoaded)
    assert (outcome.offsets[T0].value, outcome.offsets[T1].value) == (10, None)
    assert outcome.kafka == {T1: KAFKA[T1]}
    client.kafka = Reply(Code.OTHER, "no coordinator")
    outcome = client.run(load(client.me, [T0], Storage.KAFKA))
    assert outcome == StoreUnavailable("no coordinator")
