"""What rows mean: each table and each kind of incident, on a small log for each test."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support.zk.history_logs import LogWriter, changed, created, multi, number, sized

from zkconsumer.history import inputs
from zkconsumer.history import transactions as tx
from zkconsumer.history.describe import Described, Description
from zkconsumer.history.group_replay import GroupHistory
from zkconsumer.history.incidents import KINDS
from zkconsumer.history.inputs import History, find_servers
from zkconsumer.history.snapshots import Tree, Znode
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import CONTAINER_OWNER, TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration

ROOT = "/kafka"
TOPIC = b'{"version":1,"partitions":{"0":[1],"1":[1]}}'
GROWN_TOPIC = b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}'


class Story(LogWriter):
    """The log of a group `g`, which consumes two partitions of topic `t` in chroot /kafka."""

    def begin(self) -> None:
        self.add(tx.CREATE, created(ROOT + paths.topic("t"), TOPIC))

    def session(self, session: int, ms: int = 0) -> None:
        self.add(tx.CREATE_SESSION, number(6000), session=session, ms=ms)

    def join(self, session: int, name: str, ms: int = 0) -> None:
        self.session(session, ms)
        data = encode_registration(Registration({"t": 1}, timestamp_ms=1))
        path = ROOT + paths.member("g", name)
        self.add(tx.CREATE, created(path, data, ephemeral=True), session=session)

    def claim(self, session: int, name: str, partition: int, ms: int = 0) -> None:
        path = ROOT + paths.owner("g", TopicPartition("t", partition))
        thread = f"{name}-0".encode()
        self.add(tx.CREATE, created(path, thread, ephemeral=True), session=session, ms=ms)

    def release(self, session: int, partition: int, ms: int = 0) -> None:
        path = ROOT + paths.owner("g", TopicPartition("t", partition))
        self.add(tx.DELETE, sized(path), session=session, ms=ms)

    def commit(self, session: int, partition: int, offset: int, ms: int = 0) -> None:
        path = ROOT + paths.offset("g", TopicPartition("t", partition))
        body = changed(path, b"%d" % offset)
        self.add(tx.SET_DATA, body, session=session, ms=ms)

    def end(self, session: int, ms: int = 0, *, cxid: int = 0) -> None:
        self.add(tx.CLOSE_SESSION, b"", session=session, cxid=cxid, ms=ms)

    def two(self) -> None:
        """Let two members join, and let each claim one partition."""
        self.begin()
        self.join(1, "g_a")
        self.join(2, "g_b")
        self.claim(1, "g_a", 0, 100)
        self.claim(2, "g_b", 1, 100)


Describe: TypeAlias = Callable[[], Described]
"""Writes the log of the story, and returns the log's description."""


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def described(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Return the description of a story; check that the compiled loops and plain Python agree, and
    that `KINDS`, the list of documented incidents, contains each kind of incident found."""

    def describe() -> Described:
        story.write(tmp_path)
        found = []
        for fast_from in (1 << 60, 0):
            monkeypatch.setattr(inputs, "FAST_FROM", fast_from)
            description = Description(find_servers([tmp_path]))
            description.read()
            found.append(description.result())
        plain, compiled = found
        assert compiled == plain
        assert set(kinds(plain)) <= KINDS.keys()
        return plain

    return describe


def kinds(found: Described) -> list[str]:
    return [one.kind for one in found.tables.incidents]


def test_a_rebalance_settles(story: Story, described: Describe) -> None:
    """A rebalance ends when the owners equal an assignor's result; the row names the assignor."""
    story.two()
    (rebalance,) = described().tables.rebalances
    assert rebalance.triggers == ["g_a joined", "g_b joined"]
    assert rebalance.settled_ms == rebalance.time_ms + 200
    assert "range" in rebalance.why
    assert (rebalance.claimed, rebalance.released, rebalance.members) == (2, 0, 2)


def test_an_expiry_and_its_gap(story: Story, described: Describe) -> None:
    """If a session expires its member leaves, and the time without an owner is measured."""
    story.two()
    story.end(2, 1000)
    story.claim(1, "g_a", 1, 2500)
    found = described().tables
    assert [(m.consumer, m.event) for m in found.members][-1] == ("g_b", "expired")
    assert [(s.session, s.ended, s.silent_ms) for s in found.sessions][-1] == (2, "expired", 1000)
    last = found.ownership[-1]
    assert (last.partition, last.consumer, last.gap_ms) == (1, "g_a", 2500)
    rebalance = found.rebalances[-1]
    assert rebalance.triggers == ["g_b expired"]
    assert (rebalance.unowned_s, rebalance.moved, rebalance.moved_without_need) == (2.5, 1, 0)


def test_a_close_is_not_an_expiry(story: Story, described: Describe) -> None:
    """If a client closed its session, its member `left`, and its ownership was `closed`."""
    story.two()
    story.end(2, 1000, cxid=9)
    found = described().tables
    assert found.members[-1].event == "left"
    assert found.ownership[-1].ended == "closed"


def test_refused_writes_are_counted_by_session(story: Story, described: Describe) -> None:
    """A refused write in a rebalance is counted by session, since the log names no path."""
    story.two()
    story.end(2, 1000)
    story.add(tx.ERROR, number(-110), session=1)
    refused = (tx.CREATE, created("/x")), (tx.ERROR, number(-101))
    story.add(tx.MULTI, multi(*refused), session=1)
    assert described().tables.rebalances[-1].refused == {"0x1": 2}


def test_a_move_without_need(story: Story, described: Describe) -> None:
    """If a partition moves between two members that both stay, the move counts as unnecessary."""
    story.two()
    for partition, session in ((0, 1), (1, 2)):
        story.release(session, partition, 60_000)
    story.claim(1, "g_a", 1)
    story.claim(2, "g_b", 0)
    rebalance = described().tables.rebalances[-1]
    assert rebalance.triggers == ["owner znodes were deleted"]
    assert (rebalance.moved, rebalance.moved_without_need) == (2, 2)


def test_commits_are_runs(story: Story, described: Describe) -> None:
    """The commits of one session are one row, with their count, positions and longest pause."""
    story.two()
    for n in range(10):
        story.commit(1, 0, 100 * n, 1000 if n != 5 else 9000)
    (run,) = described().tables.commits
    assert (run.by, run.count, run.first, run.last) == ("g_a", 10, 0, 900)
    assert run.longest_pause_ms == 9000


def test_an_offset_moves_back(story: Story, described: Describe) -> None:
    """A lower commit starts a new row, and is an incident that names the committing member."""
    story.two()
    story.commit(1, 0, 100)
    story.commit(1, 0, 40)
    found = described()
    assert [run.begins for run in found.tables.commits] == ["first", "moved back"]
    (incident,) = found.tables.incidents
    assert incident.kind == "offset moved back"
    assert incident.what == "g_a moved t-0 back from 100 to 40"


def test_a_marked_edit(story: Story, described: Describe) -> None:
    """If a tool writes an offset together with an edit mark, this is an edit, not an incident."""
    story.two()
    story.commit(1, 0, 100)
    story.session(9)
    path = ROOT + paths.offset("g", TopicPartition("t", 0))
    mark = (tx.CREATE, created(ROOT + paths.edit("g", 1)))
    story.add(tx.MULTI, multi((tx.SET_DATA, changed(path, b"5")), mark), session=9)
    found = described()
    assert [run.begins for run in found.tables.commits] == ["first", "edit"]
    assert found.tables.incidents == []


@pytest.mark.parametrize("mark_first", [False, True])
def test_two_edits_of_one_tool(story: Story, described: Describe, mark_first: bool) -> None:
    """Each edit is a row, even if a tool sets an offset twice in one session."""
    story.two()
    story.commit(1, 0, 100)
    path = ROOT + paths.offset("g", TopicPartition("t", 0))
    for number_of_edit in (1, 2, 3):
        mark = (tx.CREATE, created(ROOT + paths.edit("g", number_of_edit)))
        parts = [(tx.SET_DATA, changed(path, b"5")), mark]
        story.add(tx.MULTI, multi(*(parts[::-1] if mark_first else parts)), session=9)
    story.commit(9, 0, 6)
    runs = [(run.begins, run.first, run.last, run.count) for run in described().tables.commits]
    assert runs == [("first", 100, 100, 1), *[("edit", 5, 5, 1)] * 2, ("edit", 5, 6, 2)]


def test_an_edit_after_a_commit(story: Story, described: Describe) -> None:
    """An edit is a row even if its session has committed the offset before without a mark."""
    story.two()
    story.commit(9, 0, 3)
    path = ROOT + paths.offset("g", TopicPartition("t", 0))
    mark = (tx.CREATE, created(ROOT + paths.edit("g", 1)))
    story.add(tx.MULTI, multi((tx.SET_DATA, changed(path, b"5")), mark), session=9)
    story.commit(9, 0, 6)
    runs = [(run.begins, run.first, run.last) for run in described().tables.commits]
    assert runs == [("first", 3, 3), ("edit", 5, 6)]


def test_offsets_below_zero(story: Story, described: Describe) -> None:
    """A run continues with offsets below zero, which mean that there is no offset."""
    story.two()
    for offset in (-5, -3):
        story.commit(1, 0, offset)
    (run,) = described().tables.commits
    assert (run.first, run.last, run.count) == (-5, -3, 2)


def test_a_zombie(story: Story, described: Describe) -> None:
    """If a former owner commits after another session has claimed, this is an incident."""
    story.two()
    story.commit(1, 0, 100)
    story.release(1, 0)
    story.claim(2, "g_b", 0)
    story.commit(2, 0, 200)
    story.commit(1, 0, 150)
    found = described()
    assert set(kinds(found)) >= {"late commit", "offset moved back"}
    late = next(one for one in found.tables.incidents if one.kind == "late commit")
    assert late.what == "g_a committed 150 for t-0, which another session owned"


def test_flapping(story: Story, described: Describe) -> None:
    """If sessions of one consumer id expire several times, this is a `flapping session`."""
    story.two()
    for session in (2, 3, 4):
        story.end(session, 20_000)
        story.join(session + 1, "g_b", 5000)
        story.claim(session + 1, "g_b", 1)
    found = described()
    assert "flapping session" in kinds(found)
    assert "expired 3 times" in next(
        one.what for one in found.tables.incidents if one.kind == "flapping session"
    )


def test_a_storm(story: Story, described: Describe) -> None:
    """Many joins and leaves within minutes are reported as one storm."""
    story.two()
    for session in range(2, 9):
        story.end(session, 8000)
        story.join(session + 1, "g_b", 1000)
    assert kinds(described()).count("rebalance storm") == 1


def test_a_member_gives_up(story: Story, described: Describe) -> None:
    """If a registered member does not claim its free partitions, it has given up."""
    story.two()
    story.end(2, 1000)
    for _ in range(4):
        story.add(tx.ERROR, number(-110), session=1, ms=2000)
    story.commit(1, 0, 100, 60_000)
    found = described()
    assert kinds(found) == ["member gave up"]
    (incident,) = found.tables.incidents
    assert incident.what.startswith("g_a did not claim 1 partitions for 68 s, after 4 refused")
    assert found.tables.rebalances[-1].settled_ms is None


def test_a_blocked_partition(story: Story, described: Describe) -> None:
    """If a partition's owner is not registered, it blocks the group; the incident names it."""
    story.two()
    path = ROOT + paths.member("g", "g_b")
    story.add(tx.DELETE, sized(path), session=2, ms=1000)
    story.commit(1, 0, 100, 60_000)
    found = described()
    assert set(kinds(found)) == {"blocked partition", "owner without a registration"}
    assert any("t-1 is held by g_b-0 (session 0x2)" in one.what for one in found.tables.incidents)


def test_a_member_that_does_not_release_blocks(story: Story, described: Describe) -> None:
    """If a registered owner keeps another member's partition, the incident names this owner."""
    story.two()
    story.join(3, "g_aa", 60_000)
    story.release(1, 0, 100)
    story.claim(1, "g_a", 0)
    story.commit(1, 0, 100, 30_000)
    assert [one.what for one in described().tables.incidents] == [
        "t-1 is held by g_b-0 (session 0x2), but g_aa should own it"
    ]


def test_a_blocked_partition_that_became_free(story: Story, described: Describe) -> None:
    """If a partition was blocked for some time, this is reported even if it is free now."""
    story.two()
    path = ROOT + paths.member("g", "g_b")
    story.add(tx.DELETE, sized(path), session=2, ms=1000)
    story.release(2, 1, 30_000)
    story.claim(1, "g_a", 1)
    story.commit(1, 0, 100, 60_000)
    found = described()
    blocked = next(one for one in found.tables.incidents if one.kind == "blocked partition")
    assert blocked.ended_ms == blocked.time_ms + 30_000
    assert found.tables.rebalances[-1].settled_ms == blocked.ended_ms


def test_a_block_that_is_older_than_the_logs(tmp_path: Path) -> None:
    """If a partition is blocked in the snapshot, the block is reported from the first log on."""
    data = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    tree = Tree.fresh()
    tree.zxid = 10
    for path, content, owner in (
        (ROOT + paths.topic("t"), TOPIC, 0),
        (ROOT + paths.member("g", "g_a"), data, 1),
        (ROOT + paths.owner("g", TopicPartition("t", 0)), b"g_a-0", 1),
        (ROOT + paths.owner("g", TopicPartition("t", 1)), b"g_gone-0", 2),
    ):
        tree.add(path, Znode(content, -1, 1, 1, 5, 5, 0, 0, 0, owner, 1))
    story = Story(zxid=10)
    for n in range(3):
        story.commit(1, 0, n, 10_000)
    story.write(tmp_path, "log.b")
    (batch,) = History(find_servers([tmp_path])).batches()
    history = GroupHistory()
    history.begin(tree, "snapshot.a")
    history.apply(batch)
    (incident,) = history.finish().incidents
    assert incident.what.startswith("t-1 is held by g_gone-0 (session 0x2)")
    assert (incident.time_ms, incident.ended_ms) == (batch.time_ms, batch.time_ms + 20_000)


def test_a_snapshot_that_contains_later_transactions(story: Story, tmp_path: Path) -> None:
    """A member and an owner that a snapshot contains too early begin with their transactions."""
    data = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    tree = Tree.fresh()
    tree.zxid, tree.sessions = 10, {1: 6000, 7: 6000}
    for path, content, czxid, owner in (
        (ROOT + paths.topic("t"), TOPIC, 1, 0),
        (ROOT + paths.member("g", "g_a"), data, 2, 1),
        (ROOT + paths.owner("g", TopicPartition("t", 1)), b"g_a-0", 3, 1),
        (ROOT + paths.member("g", "g_b"), data, 12, 7),
        (ROOT + paths.owner("g", TopicPartition("t", 0)), b"g_b-0", 13, 7),
        (ROOT + paths.member("h", "h_a"), data, 2, 1),
    ):
        tree.add(path, Znode(content, -1, czxid, czxid, 5, 5, 0, 0, 0, owner, czxid))
    story.zxid = 10
    story.join(7, "g_b")
    story.claim(7, "g_b", 0)
    story.end(7, 60_000)
    story.write(tmp_path, "log.b")
    history = GroupHistory()
    history.begin(tree, "snapshot.a")
    for batch in History(find_servers([tmp_path])).batches():
        history.apply(batch)
    found = history.finish()
    assert [(one.zxid, one.consumer, one.event) for one in found.members] == [
        (10, "g_a", "present"),
        (10, "h_a", "present"),
        (12, "g_b", "joined"),
        (14, "g_b", "expired"),
    ]
    assert [(one.zxid, one.partition, one.ended) for one in found.ownership] == [
        (3, 1, ""),
        (13, 0, "expired"),
    ]
    assert [(one.session, one.ended) for one in found.sessions] == [(1, ""), (7, "expired")]


SESSION_OF_SERVER_200 = (200 << 56) - (1 << 64) + 1


def test_the_kinds_of_the_znodes_of_a_snapshot(tmp_path: Path) -> None:
    """A member ends with its session, also one of server 200; a persistent owner has no session."""
    data = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    tree = Tree.fresh()
    tree.zxid = 10
    for path, content, owner in (
        (ROOT + paths.member("g", "g_a"), data, SESSION_OF_SERVER_200),
        (ROOT + paths.member("g", "g_b"), data, CONTAINER_OWNER),
        (ROOT + paths.member("g", "g_c"), data, 0),
        (ROOT + paths.owner("g", TopicPartition("t", 0)), b"g_b-0", 0),
    ):
        tree.add(path, Znode(content, -1, 1, 1, 5, 5, 0, 0, 0, owner, 1))
    story = Story(zxid=10)
    story.end(SESSION_OF_SERVER_200, 1000)
    story.write(tmp_path, "log.b")
    (batch,) = History(find_servers([tmp_path])).batches()
    history = GroupHistory()
    history.begin(tree, "snapshot.a")
    history.apply(batch)
    tree.apply(batch.rows)
    found = history.finish()
    events = [(one.consumer, one.event) for one in found.members]
    assert events == [*((f"g_{name}", "present") for name in "bca"), ("g_a", "expired")]
    assert [one.session for one in found.sessions] == [SESSION_OF_SERVER_200]
    assert [one.session for one in found.ownership] == [0]
    assert ROOT + paths.member("g", "g_a") not in tree.znodes
    assert ROOT + paths.member("g", "g_b") in tree.znodes


def test_a_persistent_owner_belongs_to_no_session(story: Story, described: Describe) -> None:
    """A persistent owner znode adds no session to the table."""
    story.two()
    story.release(1, 0)
    path = ROOT + paths.owner("g", TopicPartition("t", 0))
    story.add(tx.CREATE, created(path, b"g_a-0"), session=1)
    assert [one.session for one in described().tables.sessions] == [1, 2]


def test_an_offset_whose_time_to_live_has_passed(story: Story, described: Describe) -> None:
    """If a server deletes an offset with a TTL, this is an incident without a session."""
    story.two()
    story.commit(1, 0, 100)
    path = ROOT + paths.offset("g", TopicPartition("t", 0))
    story.add(tx.DELETE_CONTAINER, sized(path), session=0)
    (incident,) = described().tables.incidents
    assert (incident.kind, incident.session) == ("offset deleted", None)
    assert incident.what == "a server deleted the offset of t-0, which was 100"


def test_an_owner_that_was_deleted_in_a_gap(story: Story, described: Describe) -> None:
    """If the logs lack the deletion of an owner znode, its row ends with the next owner's claim."""
    story.two()
    story.zxid += 1
    at = story.zxid + 1
    story.claim(2, "g_b", 0, 1000)
    story.end(1, 1000)
    owners = [one for one in described().tables.ownership if one.partition == 0]
    assert [(one.consumer, one.ended, one.ended_zxid) for one in owners] == [
        ("g_a", "removed", at),
        ("g_b", "", None),
    ]


def test_an_owner_without_a_registration_is_not_settled(story: Story, described: Describe) -> None:
    """Even without the topic's znode, a group with an unregistered owner is not settled."""
    story.two()
    story.add(tx.DELETE, sized(ROOT + paths.topic("t")), session=9, ms=60_000)
    story.add(tx.DELETE, sized(ROOT + paths.member("g", "g_b")), session=2, ms=1000)
    assert described().tables.rebalances[-1].settled_ms is None


def test_a_refused_write_after_a_rebalance(story: Story, described: Describe) -> None:
    """A write that is refused long after a group has settled is counted in no rebalance."""
    story.two()
    story.add(tx.ERROR, number(-103), session=1, ms=4000)
    story.add(tx.ERROR, number(-103), session=1, ms=60_000)
    assert described().tables.rebalances[-1].refused == {"0x1": 1}


def test_a_registration_that_outlives_its_session(story: Story, described: Describe) -> None:
    """A registration that is not ephemeral remains when the session that created it ends."""
    story.two()
    story.session(3)
    path = ROOT + paths.member("g", "g_c")
    story.add(tx.CREATE, created(path, b"not JSON"), session=3)
    story.end(3, 1000)
    assert [m.event for m in described().tables.members if m.consumer == "g_c"] == ["joined"]


def test_an_unreadable_registration(story: Story, described: Describe) -> None:
    """A registration that stays unreadable is an incident; an empty one that is filled is not."""
    story.two()
    for session, name, content in ((3, "g_c", b"not JSON"), (4, "g_d", b"")):
        path = ROOT + paths.member("g", name)
        story.session(session)
        story.add(tx.CREATE, created(path, content, ephemeral=True), session=session)
    written = encode_registration(Registration({"t": 1}, timestamp_ms=1))
    story.add(tx.SET_DATA, changed(path, written), session=4, ms=30)
    story.end(3, 60_000)
    found = [one for one in described().tables.incidents if one.kind == "unreadable registration"]
    assert [one.what.partition(":")[0] for one in found] == [
        "no member could read the registration of g_c, so every rebalance of the group failed"
    ]
    assert (found[0].ended_ms or 0) - found[0].time_ms == 60_030


def test_a_topic_changes_while_a_member_joins(story: Story, described: Describe) -> None:
    """If a topic gets partitions during a rebalance, this is a further trigger of the rebalance."""
    story.two()
    story.end(2, 60_000)
    story.add(tx.SET_DATA, changed(ROOT + paths.topic("t"), GROWN_TOPIC), session=9)
    assert described().tables.rebalances[-1].triggers == ["g_b expired", "topic t changed"]


def test_a_topic_of_a_black_list_needs_no_owner(story: Story, described: Describe) -> None:
    """A group settles without the topic that a member's black list names, even if it had owners."""
    story.join(1, "g_a")
    story.begin()
    story.add(tx.CREATE, created(ROOT + paths.topic("other"), TOPIC))
    story.claim(1, "g_a", 0)
    story.end(1, 1_000)
    story.session(2)
    black_list = encode_registration(Registration({"t": 1}, Pattern.BLACK_LIST, timestamp_ms=1))
    member = ROOT + paths.member("g", "g_b")
    story.add(tx.CREATE, created(member, black_list, ephemeral=True), session=2)
    for partition in range(2):
        owner = ROOT + paths.owner("g", TopicPartition("other", partition))
        story.add(tx.CREATE, created(owner, b"g_b-0", ephemeral=True), session=2)
    last = described().tables.rebalances[-1]
    assert (last.members, last.settled_ms is None) == (1, False)


@pytest.mark.parametrize("claimed", [True, False])
def test_gave_up_needs_every_possible_assignor(
    story: Story, described: Describe, claimed: bool
) -> None:
    """Before a group settles, a member is named only if it gave up under each possible assignor."""
    partitions = b",".join(b'"%d":[1]' % n for n in range(3))
    story.add(tx.CREATE, created(ROOT + paths.topic("t"), b'{"partitions":{%b}}' % partitions))
    story.join(1, "g_a")
    story.join(2, "g_b")
    if claimed:  # Range gives partition 2 to the second member; round-robin gives it partition 1.
        story.claim(2, "g_b", 1)
    story.commit(9, 0, 1, 20_000)
    named = [one.what.split()[0] for one in described().tables.incidents]
    assert named == (["g_a"] if claimed else ["g_a", "g_b"])


def test_owners_of_a_settled_group_exclude_rules(story: Story, described: Describe) -> None:
    """After a group settled by range, the share that round-robin would give blocks a partition."""
    story.add(tx.CREATE, created(ROOT + paths.topic("t"), GROWN_TOPIC))
    story.join(1, "g_a")
    story.join(2, "g_b")
    for session, name, partition in ((1, "g_a", 0), (1, "g_a", 1), (2, "g_b", 2)):
        story.claim(session, name, partition)
    story.release(1, 1, 60_000)
    story.release(2, 2)
    story.claim(2, "g_b", 1)
    story.commit(9, 0, 1, 20_000)
    assert kinds(described()) == ["blocked partition", "member gave up"]


def test_a_topic_that_grows_later_is_no_evidence(story: Story, described: Describe) -> None:
    """A group that settled with one member may follow any assignor, after its topic grew, too."""
    story.begin()
    story.join(1, "g_a")
    story.claim(1, "g_a", 0)
    story.claim(1, "g_a", 1)
    story.add(tx.SET_DATA, changed(ROOT + paths.topic("t"), GROWN_TOPIC), session=9, ms=60_000)
    story.join(2, "g_b")
    story.release(1, 0)
    story.release(1, 1)
    story.claim(2, "g_b", 1)  # as round-robin gives it; range gives partition 2
    story.commit(9, 0, 1, 20_000)
    assert [one.what.split()[0] for one in described().tables.incidents] == ["g_a"]


def test_commits_stop(story: Story, described: Describe) -> None:
    """If an owner stops committing while another member commits, this is an incident."""
    story.two()
    for n in range(10):
        story.commit(1, 0, n, 500)
        story.commit(2, 1, n, 500)
    for n in range(10, 100):
        story.commit(1, 0, n, 2000)
    assert kinds(described()) == ["commits stopped"]


def test_a_new_leader(story: Story, described: Describe) -> None:
    """An election (a new epoch) is an incident; its row has the time without any write."""
    story.two()
    story.zxid = 1 << 32
    story.commit(1, 0, 5, 12_000)
    (incident,) = described().tables.incidents
    assert (incident.kind, incident.what) == (
        "new leader",
        "a new leader was elected; no write for 12.0 s",
    )


def test_only_the_groups_that_are_asked_for(story: Story, tmp_path: Path) -> None:
    """Groups that were not requested get no rows."""
    story.two()
    story.write(tmp_path)
    description = Description(find_servers([tmp_path]), ["other"])
    description.read()
    found = description.result()
    assert (found.groups, found.tables.members, found.tables.sessions) == ([], [], [])


def test_many_partitions_and_sessions(story: Story, described: Describe) -> None:
    """With 1,200 sessions and 600 partitions, the tables of the compiled loops grow correctly."""
    chance = random.Random(7)
    story.begin()
    story.two()
    for _ in range(6000):
        session, partition = chance.randrange(1, 1200), chance.randrange(600)
        story.commit(session, partition, chance.randrange(10 ** chance.randrange(1, 19)))
        if chance.random() < 0.1:
            other = changed(f"/other/{chance.randrange(900)}", b"1")
            story.add(tx.SET_DATA, other, session=session)
    found = described().tables
    assert sum(run.count for run in found.commits) == 6000
    assert len({run.session for run in found.commits}) > 1000
