"""Commits: one at a time, in order, under the lease; what they find, and what they answer."""

from __future__ import annotations

import pytest
from support.machine import LATER, SESSION, TWO, Member, member_in, of, one, tps

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.commits import MAX_TRIES, MAX_WAITING
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.model import (
    OffsetAndMetadata,
    Position,
    Purpose,
    Storage,
    StoredOffset,
    TopicPartition,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def found(*partitions: TopicPartition, **stored: int) -> ev.Committed:
    """A commit that wrote nothing because somebody else had written these."""
    node = StoredOffset(stored.get("value"), stored.get("version"), stored.get("mzxid", 0))
    marked = frozenset(partitions) if "mzxid" in stored else frozenset()
    return ev.Committed({}, dict.fromkeys(partitions, node), marked, {})


def asking(**settings: object) -> Member:
    """A settled member whose user has been handed messages up to 20 of every partition."""
    member = member_in(Phase.SETTLED, **settings)
    member.finished |= dict.fromkeys(member.state.owned, 19)
    member.delivered |= dict.fromkeys(member.state.owned, 20)
    return member


def test_an_explicit_commit_covers_everything_handed_out() -> None:
    """The user's commit stores what was handed out, and is answered when it is stored."""
    member = asking()
    assert one(member.commit(7), cmd.CommitOffsets).plan.writes[T0] == (20, 3)
    assert one(member.answer_commit(), cmd.AnswerCommit) == cmd.AnswerCommit(7, {})


def test_the_automatic_commit_covers_finished_messages() -> None:
    """The timer's commit leaves the message in hand out."""
    member = asking()
    assert one(member.wait(60.0), cmd.CommitOffsets).plan.writes[T0] == (19, 3)


def test_the_automatic_commit_does_not_go_back() -> None:
    """After an explicit commit of the message in hand, the timer writes nothing lower."""
    member = asking()
    member.commit()
    member.answer_commit()
    plan = one(member.wait(60.0), cmd.CommitOffsets).plan
    assert (plan.writes, plan.checks) == ({}, dict.fromkeys(tps(0, 1, 2, 3), 4))


def test_one_commit_at_a_time_in_order() -> None:
    """Explicit commits that come while one is under way wait, and are then stored as one."""
    member = asking()
    member.commit(1)
    assert not of(member.commit(2), cmd.CommitOffsets)
    member.delivered |= dict.fromkeys(tps(0), 30)
    assert not of(member.commit(3), cmd.CommitOffsets)
    done = member.answer_commit()
    assert one(done, cmd.AnswerCommit).request == 1
    assert one(done, cmd.CommitOffsets).plan.writes == {T0: (30, 4)}
    done = member.answer_commit()
    assert [each.request for each in of(done, cmd.AnswerCommit)] == [2, 3]


def test_explicit_commits_in_an_outage_are_one() -> None:
    """60 commits keep one map of positions, store it once, and all get their answers."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    for request in range(1, 61):
        member.delivered[T0] = 100 + request
        member.commit(request)
    assert len(member.state.commits.queued) == 1
    member.send(ev.Connected, session=SESSION, wall_ms=1)
    member.answer_sync()
    member.verify()
    assert member.last(cmd.CommitOffsets).plan.writes[T0][0] == 160
    answered = of(member.answer_commit(), cmd.AnswerCommit)
    assert sorted(one.request for one in answered) == list(range(1, 61))
    assert not any(one.failures for one in answered)
    assert not member.state.commits.queued


def test_a_commit_that_timed_out_is_dropped() -> None:
    """Nothing is stored for callers that gave up; a caller that still waits keeps the commit."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    member.delivered[T0] = 101
    for request in (1, 2):
        member.commit(request)
    member.send(ev.CommitTimedOut, request=1)
    (waiting,) = member.state.commits.queued
    assert (waiting.request, waiting.also) == (2, ())
    member.send(ev.CommitTimedOut, request=2)
    assert not member.state.commits.queued


@pytest.mark.parametrize("late", [1, 2, 3])
def test_given_offsets_wait_as_one_and_in_their_order(late: int) -> None:
    """The later of two given offsets is stored, and a commit of another kind keeps its place."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    for request, offset in ((1, 50), (2, 40)):
        at = Position(member.state.owned[T0].epoch, offset)
        member.send(
            ev.PositionsCollected, purpose=Purpose.GIVEN, positions={T0: at}, request=request
        )
    member.commit(3)
    assert [(one.request, one.also) for one in member.state.commits.queued] == [(2, (1,)), (3, ())]
    assert member.state.commits.queued[0].positions[T0].offset == 40
    member.send(ev.CommitTimedOut, request=late)
    assert [one.request for one in member.state.commits.queued] == {1: [2, 3], 2: [1, 3], 3: [2]}[
        late
    ]


def test_the_number_of_waiting_commits_is_bounded() -> None:
    """A program that alternates two kinds of commits in an outage is refused beyond the limit."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    at = Position(member.state.owned[T0].epoch, 50)
    answers: list[cmd.AnswerCommit] = []
    for request in range(1, 2 * MAX_WAITING, 2):
        answers += of(member.commit(request), cmd.AnswerCommit)
        done = member.send(
            ev.PositionsCollected, purpose=Purpose.GIVEN, positions={T0: at}, request=request + 1
        )
        answers += of(done, cmd.AnswerCommit)
    assert len(member.state.commits.queued) == MAX_WAITING
    assert [one.request for one in answers] == list(range(MAX_WAITING + 1, 2 * MAX_WAITING, 2))
    assert all("already wait" in one.failures[T0] for one in answers)


def test_a_hand_over_goes_first() -> None:
    """A release's commit overtakes the waiting ones, since other members wait for it."""
    member = asking()
    member.commit(1)
    member.delivered |= dict.fromkeys(tps(0), 30)
    member.commit(2)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    member.finished |= dict.fromkeys(tps(2, 3), 25)
    member.send(ev.ReleaseReady, partitions=tps(2, 3))
    assert one(member.answer_commit(), cmd.CommitOffsets).plan.writes.keys() == tps(2, 3)


def test_automatic_commits_do_not_pile_up() -> None:
    """While ZooKeeper is away one automatic commit waits, not one for each interval."""
    member = asking(auto_commit_s=1.0)
    member.send(ev.Suspended)
    for _ in range(5):
        member.now += 1.0
        member.send(ev.Tick)
    assert [asked.purpose for asked in member.state.commits.queued] == [Purpose.AUTO]


def test_a_commit_waits_for_zookeeper() -> None:
    """Asked for while the connection is gone, a commit runs after the read-back."""
    member = asking()
    member.send(ev.Suspended)
    assert not member.commit(1)
    member.connect()
    assert one(member.verify(), cmd.CommitOffsets)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}


def test_a_commit_without_a_reply_is_resolved_by_reading_back() -> None:
    """A lost reply: the same commit again, and the value found is recognised as our own."""
    member = asking()
    member.commit(1)
    member.answer_commit(ev.Interrupted())
    member.send(ev.Suspended)
    member.connect()
    again = one(member.verify(), cmd.CommitOffsets)
    assert again.plan.writes[T0] == (20, 3)
    done = member.answer_commit(found(*tps(0, 1, 2, 3), value=20, version=4))
    assert one(done, cmd.AnswerCommit).failures == {}
    assert not of(done, cmd.Notice)


def test_a_commit_that_an_expiry_overtakes_fails_by_name() -> None:
    """What was to be committed is no longer ours: the user's commit names every partition."""
    member = asking()
    member.commit(1)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert one(done, cmd.AnswerCommit).failures.keys() == tps(0, 1, 2, 3)
    assert all("expired" in why for why in one(done, cmd.AnswerCommit).failures.values())


def test_a_commit_names_what_was_lost_meanwhile() -> None:
    """An owner node lost while the commit waited: that partition fails by name, no other."""
    member = asking()
    member.send(ev.Suspended)
    member.commit(1)
    member.connect()
    assert one(member.verify(T1), cmd.CommitOffsets).plan.writes.keys() == tps(0, 2, 3)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures.keys() == {T1}


def test_a_commit_that_was_stored_before_the_loss_has_not_failed() -> None:
    """Stored in ZooKeeper, then lost before the answer came: the user is told of no failure."""
    member = asking()
    member.commit(1)
    member.send(ev.OwnerNodeChanged, partition=T1)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}


def test_a_lower_foreign_offset_is_overwritten_and_reported() -> None:
    """A zombie's commit below ours: reported, and written over by the next try."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(found(T0, value=5, version=9))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_OVERWRITTEN
    assert one(done, cmd.CommitOffsets).plan.writes[T0] == (20, 9)


def test_a_higher_foreign_offset_is_left_and_reported() -> None:
    """A value above ours: reported once, left, and our commit counts as done."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(found(T0, value=50, version=9))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_LEFT
    plan = one(done, cmd.CommitOffsets).plan
    assert (plan.writes.keys(), plan.checks) == (tps(1, 2, 3), {T0: 9})
    done = member.answer_commit()
    assert one(done, cmd.AnswerCommit).failures == {}


def test_a_marked_edit_moves_the_reading() -> None:
    """An operator's edit: delivery starts afresh from there, and nothing is written over it."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(found(T0, value=5, version=9, mzxid=77))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_EDITED
    assert one(done, cmd.Withdraw).partitions == {T0}
    assert one(done, cmd.StartFetching).grants == {T0: (member.state.owned[T0], 5)}
    assert T0 not in one(done, cmd.CommitOffsets).plan.writes


def test_positions_from_before_an_edit_are_forgotten() -> None:
    """A commit that waits with a position from before the edit does not write over it."""
    member = asking()
    member.commit(1)
    member.delivered |= dict.fromkeys(tps(0), 30)
    member.commit(2)
    member.answer_commit(found(T0, value=5, version=9, mzxid=77))
    member.answer_commit()
    assert (
        member.state.commits.running is None or T0 not in member.state.commits.running.plan.writes
    )


def test_a_reset_during_a_commit_is_not_forgotten() -> None:
    """Positions from before `auto.offset.reset` count for nothing, in flight or waiting."""
    member = asking()
    member.commit(1)
    member.commit(2)
    member.send(ev.PositionReset, partition=T0, offset=0)
    member.delivered |= {T0: 5}
    member.answer_commit()
    member.answer_commit()
    assert one(member.commit(3), cmd.CommitOffsets).plan.writes[T0] == (5, 4)


def test_a_reset_during_a_commit_moves_nobody_else_back() -> None:
    """Somebody's offset ahead of ours, told to be left standing, is not written over after all."""
    member = asking()
    member.commit(1)
    member.send(ev.PositionReset, partition=T0, offset=0)
    member.delivered |= {T0: 5}
    done = member.answer_commit(found(T0, value=50, version=9))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_LEFT
    member.answer_commit()
    plan = one(member.commit(2), cmd.CommitOffsets).plan
    assert (T0 in plan.writes, plan.checks[T0]) == (False, 9)


def test_edits_are_noticed_without_new_positions() -> None:
    """The timer's commit, and the user's, check the versions even when no position has changed."""
    member = asking()
    member.commit(1)
    member.answer_commit()
    checks = dict.fromkeys(tps(0, 1, 2, 3), 4)
    assert one(member.commit(2), cmd.CommitOffsets).plan.checks == checks
    done = member.answer_commit(found(T0, value=2, version=9, mzxid=77))
    assert one(done, cmd.StartFetching).grants[T0][1] == 2


def test_a_commit_against_a_persistent_writer_ends() -> None:
    """Somebody writes faster than we do: the commit fails by name after a number of tries."""
    member = asking()
    done = member.commit(1)
    for n in range(MAX_TRIES):
        done = member.answer_commit(found(T0, value=5, version=10 + n))
    assert "keep writing" in one(done, cmd.AnswerCommit).failures[T0]


def test_a_refused_offset_does_not_hold_up_the_others() -> None:
    """No rights for one: it is named; the others are stored."""
    member = asking()
    member.commit(1)
    outcome = ev.Committed(dict.fromkeys(tps(1, 2, 3), 4), {}, frozenset(), {T0: "no rights"})
    done = member.answer_commit(outcome)
    assert one(done, cmd.AnswerCommit).failures == {T0: "no rights"}
    assert not of(done, cmd.CommitOffsets)


def test_what_a_refusal_keeps_from_being_written_is_named() -> None:
    """One refused and another written by somebody else meanwhile: neither is passed over."""
    member = asking()
    member.commit(1)
    foreign = {T1: StoredOffset(5, 9)}
    versions = dict.fromkeys(tps(2, 3), 4)
    done = member.answer_commit(ev.Committed(versions, foreign, frozenset(), {T0: "no rights"}))
    assert one(done, cmd.AnswerCommit).failures.keys() == {T0, T1}


def test_a_commit_that_is_refused_as_a_whole_is_answered() -> None:
    """Denied altogether: every partition fails with the reason, and the member goes on."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(ev.Denied("somewhere", "no rights"))
    assert one(done, cmd.AnswerCommit).failures == dict.fromkeys(tps(0, 1, 2, 3), "no rights")
    assert member.state.phase is Phase.SETTLED


def test_an_unreadable_offset_fails_every_explicit_commit() -> None:
    """An offset node that somebody broke is named by each commit until it is mended."""
    member = asking()
    member.commit(1)
    broken = {T0: StoredOffset(None, 9, error="'x' is no offset")}
    member.answer_commit(ev.Committed({}, broken, frozenset(), {}))
    assert one(member.answer_commit(), cmd.AnswerCommit).failures.keys() == {T0}
    member.delivered |= dict.fromkeys(tps(0, 1), 30)
    member.commit(2)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures.keys() == {T0}
    member.commit(3)
    done = member.answer_commit(found(T0, value=5, version=10))
    assert one(done, cmd.CommitOffsets).plan.writes == {T0: (30, 10)}
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}


def test_a_commit_without_positions_is_done() -> None:
    """Nothing was handed out: the commit is answered at once, without ZooKeeper."""
    member = member_in(Phase.WAITING)
    member.finished.clear()
    member.delivered.clear()
    done = member.commit(1)
    assert one(done, cmd.AnswerCommit).failures == {}
    assert not of(done, cmd.CommitOffsets)


# ---- offsets in Kafka ---------------------------------------------------------------------------

KAFKA = frozenset(tps(0, 1, 2, 3))


def stored(member: Member, *missing: TopicPartition, reason: str = "") -> ev.Committed:
    """Kafka has stored what is under way, but for what it could not take now."""
    assert member.state.commits.running is not None
    plan = member.state.commits.running.plan
    versions = {tp: 0 if v is None else v + 1 for tp, (_, v) in plan.writes.items()}
    kafka = frozenset(plan.kafka).difference(missing)
    return ev.Committed(
        versions, {}, frozenset(), {}, kafka, dict.fromkeys(missing, reason or "no coordinator")
    )


def test_a_commit_to_kafka_sends_all_that_is_owned() -> None:
    """Everything handed out, changed or not, each time; nothing is written to ZooKeeper."""
    member = asking(storage=Storage.KAFKA)
    for _ in range(2):
        plan = one(member.commit(1), cmd.CommitOffsets).plan
        assert plan.kafka == dict.fromkeys(KAFKA, OffsetAndMetadata(20))
        assert (plan.writes, plan.checks) == ({}, {})
        assert one(member.answer_commit(stored(member)), cmd.AnswerCommit).failures == {}


def test_dual_commit_is_one_commit_to_both() -> None:
    """Both are written by one command, and one answer says it all."""
    member = asking(storage=Storage.DUAL)
    plan = one(member.commit(1), cmd.CommitOffsets).plan
    assert plan.writes.keys() == plan.kafka.keys() == KAFKA
    done = member.answer_commit(stored(member))
    assert one(done, cmd.AnswerCommit).failures == {}


def test_kafka_is_asked_once_others_are_through_with_zookeeper() -> None:
    """A foreign write cuts a commit short before Kafka was asked: the next try asks it."""
    member = asking(storage=Storage.DUAL)
    member.commit(1)
    done = member.answer_commit(found(*KAFKA, value=50, version=9))
    plan = one(done, cmd.CommitOffsets).plan
    assert (plan.writes, plan.kafka.keys()) == ({}, KAFKA)
    assert one(member.answer_commit(stored(member)), cmd.AnswerCommit).failures == {}


def test_a_commit_that_kafka_could_not_take_is_tried_again() -> None:
    """After the back-off, as often as configured, with a notice each time; then it has failed."""
    member = asking(storage=Storage.KAFKA, commit_retries=2, channel_backoff_s=1.0)
    member.commit(1)
    for _ in range(2):
        done = member.answer_commit(stored(member, T0))
        assert one(done, cmd.Notice).kind is cmd.NoticeKind.COMMIT_RETRIED
        assert not of(done, cmd.AnswerCommit)
        assert not of(member.wait(0.9), cmd.CommitOffsets)
        assert one(member.wait(0.2), cmd.CommitOffsets).plan.kafka.keys() == KAFKA
    done = member.answer_commit(stored(member, T0))
    assert one(done, cmd.AnswerCommit).failures == {T0: "no coordinator"}
    assert member.state.commits.retry_at is None


def test_the_user_says_how_often_to_try() -> None:
    """The call's own number counts instead of the configured one."""
    member = asking(storage=Storage.KAFKA, commit_retries=2)
    positions = {T0: Position(member.state.owned[T0].epoch, 20)}
    member.send(
        ev.PositionsCollected, purpose=Purpose.EXPLICIT, positions=positions, request=1, retries=0
    )
    done = member.answer_commit(stored(member, T0))
    assert one(done, cmd.AnswerCommit).failures == {T0: "no coordinator"}


def test_what_kafka_refuses_for_good_is_not_tried_again() -> None:
    """A refusal is answered at once, with the reason."""
    member = asking(storage=Storage.KAFKA)
    member.commit(1)
    refused = ev.Committed({}, {}, frozenset(), {T0: "another kind"}, KAFKA - {T0})
    done = member.answer_commit(refused)
    assert one(done, cmd.AnswerCommit).failures == {T0: "another kind"}
    assert not of(done, cmd.CommitOffsets)


def test_a_hand_over_does_not_wait_for_a_retry() -> None:
    """Others wait for it: it goes before what is tried again, has one try, and releases then."""
    member = asking(storage=Storage.KAFKA)
    member.commit(1)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    member.answer_commit(stored(member, T0))
    done = member.send(ev.ReleaseReady, partitions=tps(2, 3))
    assert one(done, cmd.CommitOffsets).plan.kafka.keys() == tps(2, 3)
    done = member.answer_commit(stored(member, *tps(2, 3)))
    assert {n.kind for n in of(done, cmd.Notice)} == {cmd.NoticeKind.COMMIT_FAILED}
    assert one(done, cmd.Release).partitions == tps(2, 3)
    assert not of(done, cmd.CommitOffsets)
    # What was to be tried again follows, less what is another's by now.
    done = member.answer(ev.Released({}))
    assert one(done, cmd.CommitOffsets).plan.kafka.keys() == KAFKA - tps(2, 3)


def test_a_retry_is_due_also_while_zookeeper_is_away() -> None:
    """The back-off ends, nothing can be sent, no tick is due any more; it follows on reconnect."""
    member = asking(storage=Storage.KAFKA, auto_commit_s=None)
    member.commit(1)
    member.answer_commit(stored(member, T0))
    member.send(ev.Suspended)
    assert not of(member.wait(5.0), cmd.CommitOffsets)
    assert member.state.commits.retry_at is None
    member.connect()
    assert one(member.verify(), cmd.CommitOffsets).plan.kafka.keys() == KAFKA


@pytest.mark.parametrize("storage", list(Storage))
def test_offsets_that_the_user_names_are_committed_exactly(storage: Storage) -> None:
    """Lower or higher than before, those partitions alone; and an automatic commit goes on."""
    member = asking(storage=storage)
    member.commit(1)
    member.answer_commit(stored(member))
    epochs = {tp: member.state.owned[tp].epoch for tp in (T0, T1)}
    positions = {T0: Position(epochs[T0], 5), T1: Position(epochs[T1], 30)}
    done = member.send(
        ev.PositionsCollected,
        purpose=Purpose.GIVEN,
        positions=positions,
        request=2,
        metadata={T1: "note"},
    )
    plan = one(done, cmd.CommitOffsets).plan
    if storage is not Storage.KAFKA:
        assert plan.writes == {T0: (5, 4), T1: (30, 4)}
    if storage is not Storage.ZOOKEEPER:
        assert plan.kafka == {T0: (5, ""), T1: (30, "note")}
    assert one(member.answer_commit(stored(member)), cmd.AnswerCommit).failures == {}


def test_offsets_of_what_was_just_claimed_fail_by_name() -> None:
    """Before its stored offset is known, nothing is written over it."""
    member = member_in(Phase.LOADING)
    positions = {T0: Position(member.state.owned[T0].epoch, 5)}
    done = member.send(ev.PositionsCollected, purpose=Purpose.GIVEN, positions=positions, request=1)
    assert "just claimed" in one(done, cmd.AnswerCommit).failures[T0]


def test_where_kafka_does_not_tell_the_offsets_the_group_is_still_heeded() -> None:
    """What was claimed waits for the back-off; what must go meanwhile goes."""
    member = member_in(Phase.LOADING, storage=Storage.KAFKA, channel_backoff_s=1.0)
    done = member.answer(ev.StoreUnavailable("no coordinator"))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSETS_UNAVAILABLE
    assert member.state.phase is Phase.WAITING
    assert "no coordinator" in member.state.waiting_for
    assert not of(member.wait(0.9), cmd.ReadView)
    assert of(member.wait(0.2), cmd.ReadView)
    assert one(member.read(TWO), cmd.Release).partitions == tps(2, 3)
    done = member.answer(ev.Released({}))
    asked = one(done, cmd.LoadOffsets)
    assert (asked.partitions, asked.storage) == (tps(0, 1), Storage.KAFKA)
    loaded = ev.OffsetsLoaded(
        dict.fromkeys(tps(0, 1), StoredOffset(7, 1)), {T0: OffsetAndMetadata(5)}
    )
    done = member.answer(loaded)
    grants = one(done, cmd.StartFetching).grants
    assert {tp: at for tp, (_, at) in grants.items()} == {T0: 5, T1: 7}
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSETS_MIGRATED


def test_a_release_waits_for_a_commit_that_touches_it() -> None:
    """A commit is refused while what it writes is to be released: it ends before that goes."""
    member = asking(auto_commit_s=None)
    member.commit(1)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    done = member.send(ev.ReleaseReady, partitions=tps(2, 3))
    assert not of(done, cmd.Release)
    done = member.answer_commit(found(TopicPartition("t", 2), value=1, version=4))
    assert TopicPartition("t", 2) in one(done, cmd.CommitOffsets).plan.writes
    assert not of(done, cmd.Release)
    done = member.answer_commit()
    assert one(done, cmd.Release).partitions == tps(2, 3)
    assert one(done, cmd.AnswerCommit).failures == {}
