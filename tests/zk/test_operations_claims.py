"""Claims: a free partition is claimed at once, and never one that another session owns; an eager
claim takes all partitions or none; other owners are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from support.wait import eventually
from support.zk.client import READ_ONLY, Client, tps

from zkconsumer.member.events import Claimed, MemberNodeGone, Outcome
from zkconsumer.member.operations import claim
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import UNKNOWN_BLOCKER, Blocker, TopicPartition

T0, T1, T2 = tps(0, 1, 2)
Races = Mapping[int, Callable[[], object]]


def run_claim(
    client: Client,
    *partitions: TopicPartition,
    thread: str = "",
    ask: bool = True,
    whole: bool = False,
    before: Races | None = None,
) -> Outcome:
    """Claim for one thread; look up the owners that block the claim, unless `ask` is false."""
    threads = dict.fromkeys(partitions, thread or client.thread)
    asked = frozenset(partitions) if ask else frozenset()
    return client.run(claim(client.me, threads, {}, ask=asked, all_or_nothing=whole), before=before)


def claimed(outcome: Outcome) -> Claimed:
    assert isinstance(outcome, Claimed)
    return outcome


def with_parents(client: Client) -> None:
    """Create the parents of owner znodes, so that a claim's first batch lists owners and the next
    one creates owner znodes.
    """
    client.peer.ensure_path(paths.owners_of(client.group, "t"))


def test_free_partitions_are_claimed_with_missing_parents(client: Client) -> None:
    """Owner znodes are created as the JVM does: thread id, ephemeral, persistent parents."""
    outcome = claimed(run_claim(client, T0, T1))
    assert client.owners() == dict.fromkeys((T0, T1), (client.thread.encode(), client.me.session))
    assert (outcome.blocked, outcome.denied) == ({}, {})
    for tp in (T0, T1):
        assert outcome.claimed[tp].epoch == client.peer.exists(client.owner(tp)).czxid
    assert client.peer.exists(paths.owners_of(client.group, "t")).ephemeralOwner == 0


def test_a_held_partition_does_not_delay_free_ones(client: Client) -> None:
    """If another session owns one partition, the others are claimed, and the owner is named."""
    client.take(T1)
    outcome = claimed(run_claim(client, T0, T1, T2))
    assert outcome.claimed.keys() == {T0, T2}
    assert outcome.blocked == {T1: Blocker("g_other-0", client.peer.client_id[0])}


def test_equal_data_of_another_session_is_in_the_way(client: Client) -> None:
    """Unlike in the JVM, another session's owner znode blocks a claim even with equal data."""
    client.take(T0, client.thread)
    outcome = claimed(run_claim(client, T0))
    assert outcome.claimed == {}
    assert outcome.blocked == {T0: Blocker(client.thread, client.peer.client_id[0])}


def test_a_node_of_this_session_and_thread_is_this_members(client: Client) -> None:
    """After a lost reply the claim finds its own znode, whose czxid is the epoch."""
    first = claimed(run_claim(client, T0))
    again = claimed(run_claim(client, T0))
    assert again.claimed == first.claimed


def test_a_move_within_the_member_is_one_transaction(client: Client) -> None:
    """One transaction moves a partition to another thread of the member, with a new epoch."""
    first = claimed(run_claim(client, T0))
    moved = claimed(run_claim(client, T0, thread="g_m-1"))
    assert client.owners()[T0] == (b"g_m-1", client.me.session)
    assert moved.claimed[T0].thread == "g_m-1"
    assert moved.claimed[T0].epoch > first.claimed[T0].epoch


def test_the_other_partitions_are_claimed_after_a_conflict(client: Client) -> None:
    """If another client claims one partition just before, the others are still claimed."""
    with_parents(client)
    outcome = claimed(run_claim(client, T0, T1, T2, ask=False, before={1: lambda: client.take(T1)}))
    assert outcome.claimed.keys() == {T0, T2}
    assert outcome.blocked == {T1: UNKNOWN_BLOCKER}
    assert client.owners()[T1][1] == client.peer.client_id[0]


def test_a_blocker_is_watched(client: Client) -> None:
    """When an owner znode that blocks a claim is deleted, the watch on the topic's owners fires."""
    client.take(T1)
    run_claim(client, T0, T1)
    client.watches.clear()
    client.peer.delete(client.owner(T1))
    assert claimed(run_claim(client, T1)).claimed.keys() == {T1}
    assert ("CHILD", paths.owners_of(client.group, "t")) in client.watches


@pytest.mark.parametrize("batch", [2, 3])
def test_a_blocker_that_vanishes_during_the_claim_is_not_missed(client: Client, batch: int) -> None:
    """If a blocker vanishes before its look-up, the partition is claimed; later, a watch fires."""
    with_parents(client)
    told = ("CHILD", paths.owners_of(client.group, "t"))

    def vanish() -> None:
        client.watches.clear()
        client.peer.delete(client.owner(T1))
        if batch == 3:
            eventually(lambda: told in client.watches)

    # Batches: 0 lists, 1 creates both (conflict), 2 lists again, 3 creates what was free.
    races = {1: lambda: client.take(T1), batch: vanish}
    outcome = claimed(run_claim(client, T0, T1, ask=False, before=races))
    assert outcome.claimed.keys() == ({T0, T1} if batch == 2 else {T0})
    assert outcome.blocked == ({} if batch == 2 else {T1: UNKNOWN_BLOCKER})


def test_a_topic_without_rights_is_denied_and_delays_no_other(client: Client) -> None:
    """Partitions of a topic whose owners may not be written are denied; others are claimed."""
    other = TopicPartition("u", 0)
    with_parents(client)
    client.peer.set_acls(paths.owners_of(client.group, "t"), READ_ONLY)
    outcome = claimed(run_claim(client, T0, T1, other))
    assert outcome.claimed.keys() == {other}
    assert outcome.denied.keys() == {T0, T1}
    assert all("access control" in why for why in outcome.denied.values())


def test_a_claim_requires_the_id_znode(client: Client) -> None:
    """If this session has no id znode, nothing is claimed."""
    client.peer.delete(client.me.path)
    assert run_claim(client, T0) == MemberNodeGone()
    assert not client.owners()


def test_all_or_nothing_claims_nothing_while_anything_is_held(client: Client) -> None:
    """Eager: if another session owns one partition, none is claimed, and the owner is named."""
    client.take(T1)
    outcome = claimed(run_claim(client, T0, T1, T2, whole=True))
    assert outcome.claimed == {}
    assert outcome.blocked.keys() == {T0, T1, T2}
    assert outcome.blocked[T1].thread == "g_other-0"
    assert client.owners().keys() == {T1}


def test_all_or_nothing_rolls_back_a_conflict_on_the_way(client: Client) -> None:
    """Eager: if another client claims one partition in between, no claim remains."""
    with_parents(client)
    races = {1: lambda: client.take(T1)}
    outcome = claimed(run_claim(client, T0, T1, T2, whole=True, before=races))
    assert outcome.claimed == {}
    assert client.owners().keys() == {T1}


@pytest.mark.parametrize("then", ["gone", "retaken"])
def test_a_roll_back_removes_all_claims_and_no_foreign_node(client: Client, then: str) -> None:
    """Eager, with several transactions: changes of other clients do not stop the roll-back."""
    many = tps(*range(1200))
    with_parents(client)

    def interfere() -> None:
        client.peer.delete(client.owner(T0))
        if then == "retaken":
            client.take(T0)

    # Batch 0 lists, 1 creates 1,000, 2 creates the rest (conflict), 3 lists, 4 creates 199.
    races = {2: lambda: client.take(many[-1]), 5: interfere}
    outcome = claimed(run_claim(client, *many, whole=True, ask=False, before=races))
    assert outcome.claimed == {}
    left = {many[-1], T0} if then == "retaken" else {many[-1]}
    assert client.owners().keys() == left
    assert {owner for _, owner in client.owners().values()} == {client.peer.client_id[0]}


def test_claims_that_cannot_be_rolled_back_are_owned(client: Client) -> None:
    """Eager: if ZooKeeper denies the roll-back, the claims are reported as owned and as denied."""
    many = tps(*range(1200))
    with_parents(client)

    def interfere() -> None:
        client.take(many[-1])
        client.peer.set_acls(paths.owners_of(client.group, "t"), READ_ONLY)

    # Batch 0 lists the owners, 1 creates 1,000 znodes, 2 creates the rest.
    outcome = claimed(run_claim(client, *many, whole=True, ask=False, before={2: interfere}))
    ours = {tp for tp, (_, owner) in client.owners().items() if owner == client.me.session}
    assert len(ours) >= 1000
    assert outcome.claimed.keys() == ours
    assert ours <= outcome.denied.keys()
    assert not ours & outcome.blocked.keys()


def test_own_leftovers_do_not_break_all_or_nothing(client: Client) -> None:
    """Eager: an owner znode of this thread from an earlier claim counts as claimed."""
    run_claim(client, T0)
    outcome = claimed(run_claim(client, T0, T1, whole=True))
    assert outcome.claimed.keys() == {T0, T1}
