"""The offset ledger: which stored offsets a commit overwrites, and which it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.member.offset_ledger import (
    Commit,
    CommitPlan,
    ForeignWrites,
    Ledger,
    starting_offset,
    track,
)
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Position,
    Positions,
    Purpose,
    Storage,
    StoredOffset,
    TopicPartition,
)

TP = TopicPartition("t", 0)
EPOCH = 7


def ledger(value: int | None, version: int | None) -> Ledger:
    return Ledger({TP: track(StoredOffset(value, version), EPOCH)})


def at(offset: int, epoch: int = EPOCH) -> dict[TopicPartition, Position]:
    return {TP: Position(epoch, offset)}


def plan(
    ledger: Ledger,
    positions: Positions,
    storage: Storage = Storage.ZOOKEEPER,
    metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> CommitPlan:
    return ledger.plan(Commit(Purpose.AUTO, positions, metadata), storage)


def met(
    before: Ledger, offset: int, theirs: StoredOffset, *marked: TopicPartition
) -> tuple[Ledger, ForeignWrites]:
    """Apply a commit of `offset` that finds another client's offset."""
    return before.after_commit(
        plan(before, at(offset)),
        versions={},
        foreign={TP: theirs},
        marked=frozenset(marked),
    )


def test_a_new_position_is_written_over_the_version_that_was_read() -> None:
    """A commit replaces only the znode version that was read, or creates a missing znode."""
    assert plan(ledger(10, 3), at(12)).writes == {TP: (12, 3)}
    assert plan(ledger(None, None), at(0)).writes == {TP: (0, None)}


def test_an_unchanged_position_is_checked() -> None:
    """If the position has not changed, a commit writes nothing but checks the znode's version."""
    unchanged = plan(ledger(10, 3), at(10))
    assert (unchanged.writes, unchanged.checks) == ({}, {TP: 3})


def test_positions_of_another_ownership_count_for_nothing() -> None:
    """A commit leaves out positions of an earlier ownership and of partitions not owned."""
    for positions in (at(12, EPOCH - 1), {TopicPartition("t", 1): Position(EPOCH, 5)}):
        asked = plan(ledger(10, 3), positions)
        assert (asked.writes, asked.checks) == ({}, {})


def test_the_members_own_commits_never_go_back() -> None:
    """After a commit that included the message in progress, no commit writes a lower offset."""
    before = ledger(10, 3)
    after, _ = before.after_commit(
        plan(before, at(11)), versions={TP: 4}, foreign={}, marked=frozenset()
    )
    lower = plan(after, at(10))
    assert (lower.writes, lower.checks) == ({}, {TP: 4})


def test_a_reset_may_go_back() -> None:
    """After `auto.offset.reset` has moved the position back, the next commit lowers the offset."""
    assert plan(ledger(1000, 3).reset(TP), at(0)).writes == {TP: (0, 3)}
    assert Ledger().reset(TP) == Ledger()


def test_a_lower_foreign_value_is_written_over() -> None:
    """A lower offset of a former owner is reported, and the next attempt overwrites the znode."""
    after, findings = met(ledger(10, 3), 12, StoredOffset(5, 4))
    assert findings.overwritten == {TP: (12, 5)}
    assert plan(after, at(12)).writes == {TP: (12, 4)}


def test_a_deleted_offset_node_is_written_again() -> None:
    """A deleted offset znode is created again."""
    after, findings = met(ledger(10, 3), 12, StoredOffset(None, None))
    assert findings.overwritten == {TP: (12, None)}
    assert plan(after, at(12)).writes == {TP: (12, None)}


def test_a_higher_foreign_value_is_left_until_the_position_passes_it() -> None:
    """Another client's higher offset is reported, and left until the position is higher."""
    after, findings = met(ledger(10, 3), 12, StoredOffset(20, 4))
    assert findings.left == {TP: (12, 20)}
    assert plan(after, at(15)).writes == plan(after, at(20)).writes == {}
    assert plan(after, at(15)).checks == {TP: 4}
    assert plan(after, at(21)).writes == {TP: (21, 4)}


def test_a_foreign_value_lowered_below_the_position_is_overwritten() -> None:
    """If another client's offset falls below the member's position, the member overwrites it."""
    left, _ = met(ledger(10, 3), 12, StoredOffset(100, 4))
    lowered, _ = met(left, 90, StoredOffset(70, 5))
    assert plan(lowered, at(90)).writes == {TP: (90, 5)}


def test_a_marked_edit_is_adopted_lower_or_higher() -> None:
    """An operator's marked edit is adopted, lower or higher, and commits continue from it."""
    for to in (2, 50):
        after, findings = met(ledger(10, 3), 12, StoredOffset(to, 4), TP)
        assert findings.edited == {TP: to}
        assert plan(after, at(to)).writes == {}
        assert plan(after, at(to + 1)).writes == {TP: (to + 1, 4)}


def test_an_own_write_without_a_reply_is_recognised() -> None:
    """A write without a reply is recognised by its value and by a version that is one higher."""
    before = ledger(10, 3)
    unsure = before.after_lost_reply(plan(before, at(12)))
    after, findings = met(unsure, 15, StoredOffset(12, 4))
    assert not findings
    assert plan(after, at(15)).writes == {TP: (15, 4)}


def test_a_foreign_write_is_not_taken_for_the_members_own() -> None:
    """If the version is two higher, another client has written the value, and this is reported."""
    before = ledger(10, 3)
    unsure = before.after_lost_reply(plan(before, at(12)))
    _, findings = met(unsure, 15, StoredOffset(12, 5))
    assert findings.overwritten == {TP: (15, 12)}


def test_a_malformed_offset_is_never_written_over() -> None:
    """An unreadable offset is reported; until it is corrected, commits only check its version."""
    after, findings = met(ledger(10, 3), 12, StoredOffset(None, 4, error="no offset"))
    assert findings.malformed == {TP: "no offset"}
    asked = plan(after, at(13))
    assert (asked.writes, asked.checks) == ({}, {TP: 4})
    mended, findings = met(after, 13, StoredOffset(9, 5))
    assert plan(mended, at(13)).writes == {TP: (13, 5)}


def test_results_for_partitions_lost_meanwhile_are_ignored() -> None:
    """Results for a partition that has left the ledger meanwhile change nothing."""
    asked = plan(ledger(10, 3), at(12))
    after, findings = Ledger().after_commit(
        asked, versions={TP: 4}, foreign={TP: StoredOffset(1, 9)}, marked=frozenset({TP})
    )
    assert after == Ledger()
    assert not findings


def test_without_takes_positions_away() -> None:
    """`without` removes the positions of the given partitions, and keeps the others."""
    other = TopicPartition("t", 1)
    both = {TP: Position(1, 1), other: Position(1, 2)}
    assert Commit(Purpose.AUTO, both).without({TP}).positions == {other: Position(1, 2)}


# ---- the model ----------------------------------------------------------------------------------


@dataclass
class Znode:
    """One offset znode as ZooKeeper stores it, and the marks of an operator's tool.

    In this model a re-created znode continues to count its versions. A real one starts at 0; when
    it reaches the version that the owner knows, no client can tell that it was re-created.
    """

    value: int | None = None
    version: int | None = None
    zxid: int = 0
    mzxid: int = 0
    marks: set[int] = field(default_factory=set)
    written: int = 0

    def write(self, value: int) -> None:
        self.zxid += 1
        self.mzxid = self.zxid
        self.value, self.version = value, self.written
        self.written += 1

    def delete(self) -> None:
        self.value = self.version = None

    def stored(self) -> StoredOffset:
        mzxid = 0 if self.version is None else self.mzxid
        return StoredOffset(self.value, self.version, mzxid)


@dataclass
class Owner:
    """The partition's owner: its ledger, its position, and what its writes have caused."""

    znode: Znode
    ledger: Ledger = field(default_factory=Ledger)
    position: int = 0
    may_go_back: bool = False
    edits: list[int | None] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    def load(self) -> None:
        self.ledger = Ledger({TP: track(self.znode.stored(), EPOCH)})
        self.position = self.znode.value or 0

    def commit(self, *, in_hand: int = 0, reply_lost: bool = False) -> None:
        """Commit as `member.commits` does: plan again after another client's write."""
        for _ in range(8):
            asked = plan(self.ledger, at(max(self.position - in_hand, 0)))
            expected = asked.writes[TP][1] if TP in asked.writes else asked.checks.get(TP)
            if TP not in asked.writes and TP not in asked.checks:
                return
            if self.znode.version == expected:
                if TP in asked.writes:
                    self._write(asked.writes[TP][0])
                    if reply_lost:
                        self.ledger = self.ledger.after_lost_reply(asked)
                        return
                versions = {TP: self.znode.version or 0} if TP in asked.writes else {}
                self.ledger, _ = self.ledger.after_commit(
                    asked, versions=versions, foreign={}, marked=frozenset()
                )
                return
            marked = frozenset({TP}) if self.znode.mzxid in self.znode.marks else frozenset()
            self.ledger, findings = self.ledger.after_commit(
                asked, versions={}, foreign={TP: self.znode.stored()}, marked=marked
            )
            self.left += [to for _, to in findings.left.values() if to is not None]
            if TP in findings.edited:
                self.edits.append(findings.edited[TP])
                self.position = findings.edited[TP] or 0
                return
        raise AssertionError("a commit does not end")

    def _write(self, offset: int) -> None:
        stored = self.znode.value
        assert self.may_go_back or stored is None or offset > stored, "the owner lowered the offset"
        self.may_go_back = False
        self.znode.write(offset)


OFFSETS = st.integers(0, 30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("consume"), st.integers(1, 9)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("commit finished"), st.integers(1, 9)),
        st.tuples(st.just("commit in vain"), st.just(0)),
        st.tuples(st.just("foreign"), OFFSETS),
        st.tuples(st.just("edit"), OFFSETS),
        st.tuples(st.just("delete"), st.just(0)),
        st.tuples(st.just("reset"), OFFSETS),
        st.tuples(st.just("reload"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=300)
@given(STEPS)
def test_the_ledger_keeps_its_rules_against_a_model(steps: list[tuple[str, int]]) -> None:
    """Whatever others write, offsets do not go back, edits are adopted, and commits are stored."""
    znode = Znode()
    owner = Owner(znode)
    owner.load()
    edited: int | None = None
    for what, number in steps:
        if what == "consume":
            owner.position += number
        elif what == "commit":
            before = len(owner.edits)
            owner.commit()
            if edited is not None:
                assert owner.edits[before:] == [edited], "an edit was not adopted"
                edited = None
            assert znode.value is None or znode.value >= owner.position
        elif what == "commit finished":
            owner.commit(in_hand=number)
            edited = None
        elif what == "commit in vain":
            owner.commit(reply_lost=True)
            edited = None
        elif what == "foreign":
            znode.write(number)
            edited = None  # This write hides an edit that the owner has not seen yet.
        elif what == "edit":
            znode.write(number)
            znode.marks.add(znode.mzxid)
            edited = number if owner.ledger.entries[TP].version is not None else None
        elif what == "delete":
            znode.delete()
            edited = None
        elif what == "reset":
            owner.ledger = owner.ledger.reset(TP)
            owner.position, owner.may_go_back = number, True
        else:
            owner.load()
            owner.may_go_back, edited = False, None


@given(OFFSETS, OFFSETS)
def test_a_foreign_offset_that_was_left_was_higher(ours: int, theirs: int) -> None:
    """The higher of the two offsets stays, and another client's higher offset is reported."""
    znode = Znode()
    znode.write(0)
    owner = Owner(znode)
    owner.load()
    owner.position = ours
    znode.write(theirs)
    owner.commit()
    assert znode.value == max(ours, theirs)
    assert owner.left == ([theirs] if theirs > ours else [])


# ---- offsets in Kafka ---------------------------------------------------------------------------


def in_kafka(offset: int, metadata: str = "", *, value: int | None = None) -> Ledger:
    """Return a ledger for an offset stored in Kafka and, with `value`, also in ZooKeeper."""
    kafka = OffsetAndMetadata(offset, metadata)
    tracked, _ = starting_offset(Storage.DUAL, StoredOffset(value, 3), kafka, EPOCH)
    return Ledger({TP: tracked})


@pytest.mark.parametrize(
    ("storage", "zookeeper", "kafka", "start"),
    [
        (Storage.DUAL, 3, 6, 6),
        (Storage.DUAL, 9, 6, 9),
        (Storage.DUAL, 18, None, 18),
        (Storage.DUAL, None, 5, 5),
        (Storage.DUAL, None, None, None),
        (Storage.KAFKA, 9, 6, 6),
        (Storage.KAFKA, 18, None, 18),
        (Storage.KAFKA, None, None, None),
        (Storage.ZOOKEEPER, 3, None, 3),
    ],
)
def test_where_reading_begins(
    storage: Storage, zookeeper: int | None, kafka: int | None, start: int | None
) -> None:
    """Dual commit starts reading at the higher offset, `kafka` at Kafka's, or else ZooKeeper's."""
    stored = StoredOffset(zookeeper, None if zookeeper is None else 0)
    noted = None if kafka is None else OffsetAndMetadata(kafka)
    assert starting_offset(storage, stored, noted, EPOCH)[1] == start


def test_a_malformed_znode_matters_only_with_dual_commit() -> None:
    """With `offsets.storage=kafka` only Kafka's offset must be readable; dual commit needs both."""
    broken, noted = StoredOffset(None, 3, error="no offset"), OffsetAndMetadata(5)
    assert not starting_offset(Storage.KAFKA, broken, noted, EPOCH)[0].error
    assert starting_offset(Storage.KAFKA, broken, None, EPOCH)[0].error
    assert starting_offset(Storage.DUAL, broken, noted, EPOCH)[0].error


def test_kafka_is_sent_everything_and_never_an_earlier_offset() -> None:
    """A commit to Kafka sends the position, or the last committed offset if that is higher."""
    before = in_kafka(10)
    for position, sent in ((12, 12), (10, 10), (8, 10), (0, 10)):
        asked = plan(before, at(position), Storage.KAFKA)
        assert asked.kafka == {TP: OffsetAndMetadata(sent)}
        assert (asked.writes, asked.checks) == ({}, {})
    assert plan(before, {}, Storage.KAFKA).kafka == {}
    assert plan(before, at(12)).kafka == {}


def test_both_stores_are_written_each_by_its_own_rule() -> None:
    """Dual commit always writes to Kafka, but to ZooKeeper only if its offset is lower."""
    asked = plan(in_kafka(10, value=4), at(10), Storage.DUAL)
    assert (asked.writes, asked.kafka) == ({TP: (10, 3)}, {TP: OffsetAndMetadata(10)})
    asked = plan(in_kafka(4, value=10), at(10), Storage.DUAL)
    assert (asked.checks, asked.kafka) == ({TP: 3}, {TP: OffsetAndMetadata(10)})


def test_metadata_stay_with_their_offset() -> None:
    """Metadata is kept if the offset stays the same, and dropped if the offset changes."""
    before = in_kafka(10, "note")
    assert plan(before, at(10), Storage.KAFKA).kafka == {TP: (10, "note")}
    assert plan(before, at(8), Storage.KAFKA).kafka == {TP: (10, "note")}
    assert plan(before, at(11), Storage.KAFKA).kafka == {TP: (11, "")}
    for other in ("other", ""):
        assert plan(before, at(10), Storage.KAFKA, {TP: other}).kafka == {TP: (10, other)}


def test_an_acknowledged_commit_to_kafka_is_remembered() -> None:
    """Once a commit to Kafka is acknowledged, the next commit sends no lower offset."""
    before = in_kafka(10)
    asked = plan(before, at(12), Storage.KAFKA)
    none, _ = before.after_commit(asked, versions={}, foreign={}, marked=frozenset())
    stored, _ = before.after_commit(
        asked, versions={}, foreign={}, marked=frozenset(), kafka=frozenset({TP})
    )
    assert plan(none, at(11), Storage.KAFKA).kafka == {TP: (11, "")}
    assert plan(stored, at(11), Storage.KAFKA).kafka == {TP: (12, "")}


def test_offsets_in_kafka_that_may_go_back() -> None:
    """An offset in Kafka may go back after a reset or a marked edit, or if the user asks for it."""
    before = in_kafka(10, value=10)
    edited, _ = before.after_commit(
        plan(before, at(12), Storage.DUAL),
        versions={},
        foreign={TP: StoredOffset(2, 4)},
        marked=frozenset({TP}),
    )
    for ledger_then in (before.reset(TP), edited, before.allowing(at(3))):
        assert plan(ledger_then, at(3), Storage.DUAL).kafka == {TP: (3, "")}
    foreign, _ = before.after_commit(
        plan(before, at(12), Storage.DUAL),
        versions={},
        foreign={TP: StoredOffset(2, 4)},
        marked=frozenset(),
    )
    assert plan(foreign, at(3), Storage.DUAL).kafka == {TP: (10, "")}
    assert before.allowing(at(10)) == before.allowing(at(11)) == before
