"""Operations on a real ZooKeeper: register, read the group, read back, and release."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from support.zk.client import CLOSED, READ_ONLY, Client, peer_of, tps

from zkconsumer.member import operations, read_group
from zkconsumer.member import operations as ops
from zkconsumer.member.events import (
    Claimed,
    Committed,
    Denied,
    IdTaken,
    MemberNodeGone,
    OffsetsLoaded,
    Registered,
    Released,
    Verified,
    ViewRead,
)
from zkconsumer.member.offset_ledger import CommitPlan
from zkconsumer.member.operations import claim
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_snapshot import Known
from zkconsumer.protocol.model import Blocker, Storage, StoredOffset, TopicPartition
from zkconsumer.sandbox import ZooKeeperServer

T0, T1, T2 = tps(0, 1, 2)
SOUND = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


def owning(client: Client, *partitions: TopicPartition) -> None:
    """Let the member claim these partitions."""
    threads = dict.fromkeys(partitions, client.thread)
    client.run(claim(client.me, threads, {}, ask=frozenset(), all_or_nothing=False))
    assert client.owners().keys() >= set(partitions)


# ---- registering --------------------------------------------------------------------------------


def test_registering_creates_the_nodes_that_a_jvm_reads(client: Client) -> None:
    """ZKEphemeralTest.testZkWatchedEphemeral: the id znode is ephemeral; its parents stay."""
    data, stat = client.peer.get(client.me.path)
    assert data == (
        b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1400000000000"}'
    )
    assert stat.ephemeralOwner == client.me.session
    assert client.peer.exists(paths.ids(client.group)).ephemeralOwner == 0


def test_registering_twice_in_one_session_is_a_lost_reply(client: Client) -> None:
    """ZKEphemeralTest.testSameSession: a second registration finds the session's own id znode."""
    registered = Registered(client.peer.exists(client.me.path).czxid)
    assert [client.register(), client.register()] == [registered, registered]


def test_an_id_of_another_session_is_taken(
    zookeeper: ZooKeeperServer, client: Client, peer: KazooClient
) -> None:
    """ZKEphemeralTest.testOverlappingSessions: the id znode of another session stays."""
    rival = Client(zookeeper.connect, client.group, peer, "g_m")
    try:
        outcome = rival.run(ops.register(rival.me, 1))
        assert outcome == IdTaken(client.me.session)
        assert client.peer.exists(client.me.path).ephemeralOwner == client.me.session
    finally:
        rival.session.stop()


def test_an_id_that_vanishes_during_the_look_up_is_taken_over(client: Client) -> None:
    """If another session's id znode vanishes after a failed create, the next attempt succeeds."""
    client.peer.delete(client.me.path)
    client.peer.create(client.me.path, b"{}", ephemeral=True)
    operation = ops.register(client.me, 1)
    outcome = client.run(operation, before={0: lambda: client.peer.delete(client.me.path)})
    assert isinstance(outcome, Registered)


def test_an_overwritten_registration_is_restored(client: Client) -> None:
    """If another client overwrites the registration, registering restores the same znode."""
    sound, stat = client.peer.get(client.me.path)
    others = sound.replace(b":1}", b":7}"), sound.replace(b"static", b"black_list")
    for payload in (b"", b"{", *others):
        client.peer.set(client.me.path, payload)
        assert client.register() == Registered(stat.czxid)
        assert client.peer.get(client.me.path)[0] == sound
    assert client.run(ops.register(client.me, 1_500_000_000_000)) == Registered(stat.czxid)
    assert client.peer.get(client.me.path)[0] == sound, "a new timestamp alone caused a write"


def test_a_registration_that_is_too_large_is_denied(client: Client) -> None:
    """A registration that is too large for the server is not sent, and the session survives."""
    many = {f"{number:04}{'t' * 245}": 1 for number in range(4100)}
    before = client.register()
    large = ops.MemberIdentity(client.group, "g_large", many, client.me.strategy, client.me.session)
    outcome = client.run(ops.register(large, 1))
    assert isinstance(outcome, Denied)
    assert "larger than" in outcome.reason
    assert client.register() == before


def test_without_rights_registering_is_denied(client: Client) -> None:
    """If the member may not create below ids, the result names the znode and the reason."""
    client.peer.delete(client.me.path)
    client.peer.set_acls(paths.ids(client.group), READ_ONLY)
    outcome = client.run(ops.register(client.me, 1))
    assert isinstance(outcome, Denied)
    assert outcome.where == client.me.path
    assert "access control" in outcome.reason


# ---- nudging ------------------------------------------------------------------------------------


def test_a_nudge_replaces_the_id_znode(client: Client) -> None:
    """A nudge creates the id znode again, in the same session."""
    before = client.peer.exists(client.me.path)
    assert isinstance(client.run(ops.nudge(client.me, 1_400_000_000_000)), Registered)
    after = client.peer.exists(client.me.path)
    assert after.czxid > before.czxid
    assert after.ephemeralOwner == client.me.session


@pytest.mark.parametrize("batch", [0, 1])
def test_a_nudge_leaves_the_registration_of_another_session(client: Client, batch: int) -> None:
    """If another session takes the id znode after the read, the nudge leaves this znode alone."""

    def replace() -> None:
        client.peer.delete(client.me.path)
        client.peer.create(client.me.path, b"{}", ephemeral=True)
        client.peer.set(client.me.path, b"{ }")

    outcome = client.run(ops.nudge(client.me, 1), before={batch: replace})
    assert outcome == MemberNodeGone()
    assert client.peer.get(client.me.path)[0] == b"{ }"


def test_a_nudge_without_rights_is_denied(client: Client) -> None:
    """A nudge that ZooKeeper refuses changes nothing, and names the znode."""
    before = client.peer.exists(client.me.path)
    client.peer.set_acls(paths.ids(client.group), READ_ONLY)
    outcome = client.run(ops.nudge(client.me, 1))
    assert isinstance(outcome, Denied)
    assert outcome.where == client.me.path
    assert client.peer.exists(client.me.path).czxid == before.czxid


# ---- reading ------------------------------------------------------------------------------------


def test_a_view_without_own_id_node_ends_the_registration(client: Client) -> None:
    """If the id znode is gone or belongs to another session, reading the group reports this."""
    client.peer.delete(client.me.path)
    assert client.run(read_group.read_view(client.me)) == MemberNodeGone()
    client.peer.create(client.me.path, b"{}", ephemeral=True)
    assert client.run(read_group.read_view(client.me)) == MemberNodeGone()


def test_a_view_skips_members_that_leave_meanwhile(client: Client) -> None:
    """A member that leaves after the listing, but before it is read, is not in the view."""
    guest = paths.member(client.group, "g_guest")
    client.peer.create(guest, b"{}", ephemeral=True)
    # Batch 0 lists the members, and batch 1 reads their registrations.
    leaves = {1: lambda: client.peer.delete(guest)}
    outcome = client.run(read_group.read_view(client.me), before=leaves)
    assert isinstance(outcome, ViewRead)
    assert guest in client.reads
    assert (set(outcome.view.members), outcome.view.malformed) == ({"g_m"}, {})


def read_again(client: Client, earlier: ViewRead) -> ViewRead:
    """Read the group with the results of an earlier reading; `client.reads` has the paths read."""
    topics = [paths.topic(name) for name in earlier.view.topics]
    watched = frozenset([*topics, paths.BROKER_IDS] if earlier.view.brokers else topics)
    client.reads.clear()
    known = Known(earlier.view, earlier.listing, watched)
    outcome = client.run(read_group.read_view(client.me, known))
    assert isinstance(outcome, ViewRead)
    return outcome


def test_a_second_reading_reads_only_new_registrations(client: Client) -> None:
    """After joins and departures, only the listing and the new registrations are read."""
    names = [paths.member(client.group, f"g_{name}") for name in ("stays", "goes", "comes")]
    for path in names[:2]:
        client.peer.create(path, SOUND, ephemeral=True)
    first = client.run(read_group.read_view(client.me))
    assert isinstance(first, ViewRead)
    client.peer.delete(names[1])
    client.peer.create(names[2], SOUND, ephemeral=True)
    second = read_again(client, first)
    assert client.reads.count(names[2]) == 1
    assert not {client.me.path, *names[:2]} & {*client.reads}
    whole = client.run(read_group.read_view(client.me))
    assert whole == second


def test_a_registration_that_was_created_again_is_read_again(client: Client) -> None:
    """If the names are equal but the cversion is not, all registrations are read again."""
    path = paths.member(client.group, "g_again")
    client.peer.create(path, b"{}", ephemeral=True)
    first = client.run(read_group.read_view(client.me))
    assert isinstance(first, ViewRead)
    client.peer.delete(path)
    client.peer.create(path, b"not JSON", ephemeral=True)
    second = read_again(client, first)
    assert set(second.view.malformed) == {"g_again"}
    assert path in client.reads
    assert client.me.path in client.reads


def test_a_registration_that_is_filled_by_a_second_request(client: Client) -> None:
    """An empty registration is watched, and a payload that comes during the read is not missed."""
    path = paths.member(client.group, "g_node")
    client.peer.create(path, b"", ephemeral=True)
    first = client.run(read_group.read_view(client.me))
    assert isinstance(first, ViewRead)
    assert set(first.view.malformed) == {"g_node"}
    client.peer.set(path, SOUND)
    second = read_again(client, first)
    assert set(second.view.members) == {"g_m", "g_node"}
    assert ("CHANGED", path) in client.watches
    client.peer.set(path, b"")
    # Batch 2 reads the empty registration again.
    filled = {2: lambda: client.peer.set(path, SOUND)}
    third = client.run(read_group.read_view(client.me), before=filled)
    assert isinstance(third, ViewRead)
    assert (set(third.view.members), third.view.malformed) == ({"g_m", "g_node"}, {})


def test_a_pattern_that_is_corrected(client: Client) -> None:
    """A registration with an invalid regular expression is watched as well."""
    path = paths.member(client.group, "g_regex")
    bad = b'{"version":1,"subscription":{"(":1},"pattern":"white_list","timestamp":"1"}'
    client.peer.create(path, bad, ephemeral=True)
    first = client.run(read_group.read_view(client.me))
    assert isinstance(first, ViewRead)
    assert set(first.view.malformed) == {"g_regex"}
    client.peer.set(path, bad.replace(b"(", b"t"))
    assert "g_regex" in read_again(client, first).view.members
    assert ("CHANGED", path) in client.watches


def test_a_broker_that_is_filled_by_a_second_request(client: Client) -> None:
    """An empty registration of a broker is named, and watched."""
    path = paths.broker(f"{client.group}-7".encode().hex())
    client.peer.create(path, b"", ephemeral=True, makepath=True)
    outcome = client.run(read_group.read_view(client.me))
    assert isinstance(outcome, ViewRead)
    assert set(outcome.view.malformed_brokers) == {path.rpartition("/")[2]}
    client.peer.set(path, b'{"version":1,"host":"h","port":1,"jmx_port":-1,"timestamp":"1"}')
    outcome = client.run(read_group.read_view(client.me))
    assert isinstance(outcome, ViewRead)
    assert not outcome.view.malformed_brokers
    assert ("CHANGED", path) in client.watches
    client.peer.delete(path)


def test_an_offset_and_an_owner_that_are_filled_by_a_second_request(client: Client) -> None:
    """An unreadable offset and an owner znode without a payload are watched."""
    offset, owner = paths.offset(client.group, T0), paths.owner(client.group, T0)
    client.peer.create(offset, b"?", makepath=True)
    client.peer.create(owner, b"", ephemeral=True, makepath=True)
    loaded = client.run(operations.load(client.me, [T0], Storage.ZOOKEEPER))
    assert isinstance(loaded, OffsetsLoaded)
    assert loaded.offsets[T0].error
    asked = frozenset({T0})
    claim_it = claim(client.me, {T0: client.thread}, {}, ask=asked, all_or_nothing=False)
    blocked = client.run(claim_it)
    assert isinstance(blocked, Claimed)
    assert blocked.blocked[T0].thread == "an unreadable owner"
    client.peer.set(offset, b"7")
    client.peer.set(owner, b"g_node-0")
    client.run(operations.verify(client.me, {T0: client.thread}))  # its reply follows the events
    assert {("CHANGED", offset), ("CHANGED", owner)} <= {*client.watches}


def test_an_empty_offset_znode_is_no_offset(client: Client) -> None:
    """An offset znode without data, as Curator creates it, has no offset, and can be written."""
    client.peer.create(paths.offset(client.group, T0), b"", makepath=True)
    loaded = client.run(operations.load(client.me, [T0], Storage.ZOOKEEPER))
    assert isinstance(loaded, OffsetsLoaded)
    stored = loaded.offsets[T0]
    assert (stored.value, stored.version, stored.error) == (None, 0, "")
    plan = CommitPlan({T0: (5, 0)}, {})
    assert client.run(operations.commit(client.me, plan)) == Committed({T0: 1}, {}, frozenset(), {})


def test_a_malformed_registration_is_named(client: Client) -> None:
    """The view contains an unreadable registration with the reason."""
    client.peer.create(paths.member(client.group, "g_bad"), b"[" * 100_000, ephemeral=True)
    outcome = client.run(read_group.read_view(client.me))
    assert isinstance(outcome, ViewRead)
    assert set(outcome.view.malformed) == {"g_bad"}


def test_an_unreadable_peer_is_denied(client: Client) -> None:
    """If a registration may not be read, reading the group is denied with the path."""
    path = paths.member(client.group, "g_shut")
    client.peer.create(path, b"{}", ephemeral=True, acl=CLOSED)
    outcome = client.run(read_group.read_view(client.me))
    assert isinstance(outcome, Denied)
    assert outcome.where == path


def test_topics_are_watched_whether_they_exist_or_not(
    client: Client, unique: Callable[[str], str]
) -> None:
    """A topic's creation, its deletion, and a change of its data each fire the watch."""
    topic = unique("topic")
    me = ops.MemberIdentity(client.group, "g_m", {topic: 1}, client.me.strategy, client.me.session)
    path = paths.topic(topic)
    client.peer.ensure_path(paths.TOPICS)
    fired = []
    for change in (
        lambda: client.peer.create(path, b'{"version":1,"partitions":{"0":[0]}}'),
        lambda: client.peer.set(path, b'{"version":1,"partitions":{"0":[0],"1":[0]}}'),
        lambda: client.peer.delete(path),
    ):
        outcome = client.run(read_group.read_view(me))
        assert isinstance(outcome, ViewRead)
        fired.append(outcome.view.topics[topic].partitions if outcome.view.topics else ())
        change()
    client.run(read_group.read_view(me))
    assert fired == [(), (0,), (0, 1)]
    assert [kind for kind, at in client.watches if at == path] == ["CREATED", "CHANGED", "DELETED"]


# ---- reading back -------------------------------------------------------------------------------


def test_verify_distinguishes_own_owner_nodes(client: Client) -> None:
    """Reading back tells apart: this thread, another thread, another session, and no owner."""
    owning(client, T0, T1)
    client.take(T2, client.thread)
    asked = {T0: client.thread, T1: "g_m-1", T2: client.thread, TopicPartition("t", 3): "g_m-0"}
    outcome = client.run(ops.verify(client.me, asked))
    assert isinstance(outcome, Verified)
    assert outcome.held.keys() == {T0}
    assert outcome.held[T0].epoch == client.peer.exists(client.owner(T0)).czxid
    assert outcome.lost[T1] == Blocker(client.thread, client.me.session)
    assert outcome.lost[T2] == Blocker(client.thread, client.peer.client_id[0])
    assert outcome.lost[TopicPartition("t", 3)] is None


def test_verify_watches_own_owner_nodes(client: Client) -> None:
    """If another client deletes an owner znode of this member, the watch fires at once."""
    owning(client, T0)
    client.run(ops.verify(client.me, {T0: client.thread}))
    client.peer.delete(client.owner(T0))
    client.run(ops.verify(client.me, {T0: client.thread}))
    assert ("DELETED", client.owner(T0)) in client.watches


def test_many_are_verified_and_watched_as_one_is(
    zookeeper: ZooKeeperServer, unique: Callable[[str], str]
) -> None:
    """Each of 250 owner znodes below a chroot is watched, and each change fires one event."""
    chroot = f"/{unique('many')}"
    with peer_of(zookeeper.connect) as peer:
        peer.create(chroot)
    connect = f"{zookeeper.connect}{chroot}"
    with peer_of(connect) as peer:
        client = Client(connect, "many", peer, "g_m")
        try:
            client.register()
            mine, absent = tps(*range(230)), tps(*range(230, 250))
            owning(client, *mine)
            outcome = client.run(ops.verify(client.me, dict.fromkeys(mine + absent, client.thread)))
            assert isinstance(outcome, Verified)
            assert list(outcome.held) == mine
            assert outcome.lost == dict.fromkeys(absent)
            for tp in absent:
                client.take(tp)
            client.watches.clear()  # The claim's watch on the list of owners has fired.
            for tp in mine[:200]:
                peer.delete(client.owner(tp))
            for tp in mine[200:]:
                peer.set(client.owner(tp), b"1")
                peer.set(client.owner(tp), b"2")
            client.run(ops.verify(client.me, {T0: client.thread}))
            assert client.watches == [
                *(("DELETED", client.owner(tp)) for tp in mine[:200]),
                *(("CHANGED", client.owner(tp)) for tp in mine[200:]),
            ]
        finally:
            client.session.stop()


def test_a_malformed_owner_node_counts_as_another_owners(client: Client) -> None:
    """If an owner znode's payload is not text, the znode counts as another owner's."""
    client.peer.create(client.owner(T0), b"\xff\xfe" * 100, ephemeral=True, makepath=True)
    outcome = client.run(ops.verify(client.me, {T0: client.thread}))
    assert isinstance(outcome, Verified)
    assert outcome.lost[T0] is not None


# ---- releasing ----------------------------------------------------------------------------------


def test_a_release_deletes_only_released_owner_nodes(client: Client) -> None:
    """A release deletes the owner znodes of released partitions, and no others."""
    owning(client, T0, T1, T2)
    assert client.run(ops.release(client.me, [T0, T1])) == Released({})
    assert client.owners().keys() == {T2}


def test_a_release_never_deletes_another_sessions_node(client: Client) -> None:
    """If another session has taken an owner znode, it stays, even with this member's thread id."""
    owning(client, T0, T1)
    client.peer.delete(client.owner(T0))
    client.take(T0, client.thread)
    assert client.run(ops.release(client.me, [T0, T1])) == Released({})
    assert client.owners().keys() == {T0}


def test_a_release_continues_without_vanished_nodes(client: Client) -> None:
    """If an owner znode vanishes before its deletion, the others are still released."""
    owning(client, T0, T1, T2)
    gone = {1: lambda: client.peer.delete(client.owner(T1))}
    assert client.run(ops.release(client.me, [T0, T1, T2]), before=gone) == Released({})
    assert not client.owners()


def test_a_release_requires_the_id_znode(client: Client) -> None:
    """If this session has no id znode, a release deletes nothing."""
    owning(client, T0)
    gone = {1: lambda: client.peer.delete(client.me.path)}
    assert client.run(ops.release(client.me, [T0]), before=gone) == MemberNodeGone()
    assert client.owners().keys() == {T0}


def test_more_than_a_thousand_owner_nodes_are_claimed_and_released(client: Client) -> None:
    """Claims and releases of 2,500 partitions are divided into several transactions."""
    many = tps(*range(2500))
    owning(client, *many)
    assert client.run(ops.release(client.me, many)) == Released({})
    assert not client.owners()


# ---- offsets ------------------------------------------------------------------------------------


def test_offsets_are_read_as_the_jvm_reads_them(client: Client) -> None:
    """A negative, missing or malformed offset has no value; a malformed one is an error."""
    client.write(T0, b"42")
    client.write(T1, b"-1")
    client.write(T2, b"4 2")
    outcome = client.run(operations.load(client.me, tps(0, 1, 2, 3), Storage.ZOOKEEPER))
    assert isinstance(outcome, OffsetsLoaded)
    found = outcome.offsets
    assert (found[T0].value, found[T0].version) == (42, 1)
    assert (found[T1].value, found[T1].version) == (None, 1)
    assert found[TopicPartition("t", 3)] == StoredOffset(None, None)
    assert client.offset(T2) in found[T2].error
    assert found[T2].value is None


def test_an_offset_without_rights_is_an_error_of_that_partition(client: Client) -> None:
    """If an offset may not be read, its partition gets the error, and the others are read."""
    client.write(T0, b"1")
    client.write(T1, b"2")
    client.peer.set_acls(client.offset(T0), CLOSED)
    outcome = client.run(operations.load(client.me, [T0, T1], Storage.ZOOKEEPER))
    assert isinstance(outcome, OffsetsLoaded)
    assert "access control" in outcome.offsets[T0].error
    assert outcome.offsets[T1].value == 2
