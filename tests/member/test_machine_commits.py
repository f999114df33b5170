"""A member's commits: their order, the lease, other clients' offsets, and callers' results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.members.machine import LATER, SESSION, TWO, Member, member_in, of, one, tps

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

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def found(*partitions: TopicPartition, **stored: int) -> ev.Committed:
    """Return the outcome of a commit that found other clients' offsets and wrote nothing."""
    node = StoredOffset(stored.get("value"), stored.get("version"), stored.get("mzxid", 0))
    marked = frozenset(partitions) if "mzxid" in stored else frozenset()
    return ev.Committed({}, dict.fromkeys(partitions, node), marked, {})


def asking(**settings: object) -> Member:
    """Return a settled member that has delivered messages up to offset 20 of each partition."""
    member = member_in(Phase.SETTLED, **settings)
    member.finished |= dict.fromkeys(member.state.owned, 19)
    member.delivered |= dict.fromkeys(member.state.owned, 20)
    return member


def test_an_explicit_commit_covers_everything_handed_out() -> None:
    """An explicit commit stores the delivered positions, and then its caller gets the result."""
    member = asking()
    assert one(member.commit(7), cmd.CommitOffsets).plan.writes[T0] == (20, 3)
    assert one(member.answer_commit(), cmd.AnswerCommit) == cmd.AnswerCommit(7, {})


def test_the_automatic_commit_covers_finished_messages() -> None:
    """An automatic commit excludes the message that the user is still processing."""
    member = asking()
    assert one(member.wait(60.0), cmd.CommitOffsets).plan.writes[T0] == (19, 3)


def test_the_automatic_commit_does_not_go_back() -> None:
    """An automatic commit after an explicit commit does not write a lower offset."""
    member = asking()
    member.commit()
    member.answer_commit()
    plan = one(member.wait(60.0), cmd.CommitOffsets).plan
    assert (plan.writes, plan.checks) == ({}, dict.fromkeys(tps(0, 1, 2, 3), 4))


def test_one_commit_at_a_time_in_order() -> None:
    """Explicit commits that wait for a running commit are then stored by one request."""
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
    """60 queued commits share one map of positions, are stored once, and are all answered."""
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
    """A queued commit is dropped only when the calls of all its callers have timed out."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    member.delivered[T0] = 101
    for request in (1, 2):
        member.commit(request)
    member.send(ev.CommitTimedOut, request=1)
    (waiting,) = member.state.commits.queued
    assert waiting.requests == (2,)
    member.send(ev.CommitTimedOut, request=2)
    assert not member.state.commits.queued


@pytest.mark.parametrize("late", [1, 2, 3])
def test_commits_of_given_offsets_are_merged_in_order(late: int) -> None:
    """If two commits of named offsets wait, only the later is stored; the queue keeps its order."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    for request, offset in ((1, 50), (2, 40)):
        at = Position(member.state.owned[T0].epoch, offset)
        member.commit_at(Purpose.GIVEN, {T0: at}, request)
    member.commit(3)
    assert [one.requests for one in member.state.commits.queued] == [(1, 2), (3,)]
    assert member.state.commits.queued[0].positions[T0].offset == 40
    member.send(ev.CommitTimedOut, request=late)
    left = {1: [(2,), (3,)], 2: [(1,), (3,)], 3: [(1, 2)]}
    assert [one.requests for one in member.state.commits.queued] == left[late]


def test_the_number_of_waiting_commits_is_bounded() -> None:
    """A commit that exceeds the limit of the queue fails at once."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    at = Position(member.state.owned[T0].epoch, 50)
    answers: list[cmd.AnswerCommit] = []
    for request in range(1, 2 * MAX_WAITING, 2):
        answers += of(member.commit(request), cmd.AnswerCommit)
        done = member.commit_at(Purpose.GIVEN, {T0: at}, request + 1)
        answers += of(done, cmd.AnswerCommit)
    assert len(member.state.commits.queued) == MAX_WAITING
    assert [one.request for one in answers] == list(range(MAX_WAITING + 1, 2 * MAX_WAITING, 2))
    assert all("already wait" in one.failures[T0] for one in answers)


def test_the_commit_of_a_rebalance_precedes_waiting_commits() -> None:
    """A rebalance's commit precedes queued commits, since other members wait for the rebalance."""
    member = asking()
    member.commit(1)
    member.delivered |= dict.fromkeys(tps(0), 30)
    member.commit(2)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    member.finished |= dict.fromkeys(tps(2, 3), 25)
    member.user_finishes(tps(2, 3))
    assert one(member.answer_commit(), cmd.CommitOffsets).plan.writes.keys() == tps(2, 3)


def test_the_commit_of_a_rebalance_is_not_lowered_by_an_earlier_one() -> None:
    """A queued commit of a lower offset does not undo a newer commit that was run before it."""
    member = asking()
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    assert member.state.phase is Phase.STOPPING
    member.send(ev.Suspended)
    lower = Position(member.state.owned[T2].epoch, 5)
    member.commit_at(Purpose.GIVEN, {T2: lower}, 2)
    member.user_finishes(tps(2, 3))
    done = (*member.connect(), *member.verify())
    assert one(done, cmd.CommitOffsets).plan.writes[T2] == (19, 3)
    assert [one.positions[T2].offset for one in member.state.commits.queued] == [19]


def test_automatic_commits_do_not_pile_up() -> None:
    """While ZooKeeper is unavailable, one automatic commit waits, not one for each interval."""
    member = asking(auto_commit_s=1.0)
    member.send(ev.Suspended)
    for _ in range(5):
        member.now += 1.0
        member.send(ev.Tick)
    assert [asked.purpose for asked in member.state.commits.queued] == [Purpose.AUTO]


def test_a_commit_waits_for_zookeeper() -> None:
    """A commit that is requested without a connection is run after the read-back."""
    member = asking()
    member.send(ev.Suspended)
    assert not member.commit(1)
    member.connect()
    assert one(member.verify(), cmd.CommitOffsets)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}


def test_a_commit_without_a_reply_is_resolved_by_reading_back() -> None:
    """A commit without a reply is sent again, and the member recognises the value it wrote."""
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
    """An explicit commit of partitions that were lost fails and names each of them."""
    member = asking()
    member.commit(1)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert one(done, cmd.AnswerCommit).failures.keys() == tps(0, 1, 2, 3)
    assert all("expired" in why for why in one(done, cmd.AnswerCommit).failures.values())


def test_a_commit_names_partitions_lost_meanwhile() -> None:
    """If one partition is lost while its commit waits, only that partition fails."""
    member = asking()
    member.send(ev.Suspended)
    member.commit(1)
    member.connect()
    assert one(member.verify(T1), cmd.CommitOffsets).plan.writes.keys() == tps(0, 2, 3)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures.keys() == {T1}


def test_a_commit_that_was_stored_before_the_loss_has_not_failed() -> None:
    """A partition whose offset was stored counts as committed, even if it is lost afterwards."""
    member = asking()
    member.commit(1)
    member.send(ev.OwnerNodeChanged, partition=T1)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}


def test_a_lower_foreign_offset_is_overwritten_and_reported() -> None:
    """A lower offset that a former owner wrote is reported, and the next attempt overwrites it."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(found(T0, value=5, version=9))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_OVERWRITTEN
    assert one(done, cmd.CommitOffsets).plan.writes[T0] == (20, 9)


def test_a_higher_foreign_offset_is_left_and_reported() -> None:
    """A higher offset of another client is reported once and left; the commit succeeds."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(found(T0, value=50, version=9))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_LEFT
    plan = one(done, cmd.CommitOffsets).plan
    assert (plan.writes.keys(), plan.checks) == (tps(1, 2, 3), {T0: 9})
    done = member.answer_commit()
    assert one(done, cmd.AnswerCommit).failures == {}


def test_a_marked_edit_moves_the_position() -> None:
    """Delivery continues at an operator's edit of the offset, which is not overwritten."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(found(T0, value=5, version=9, mzxid=77))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_EDITED
    assert one(done, cmd.Withdraw).partitions == {T0}
    assert one(done, cmd.StartFetching).grants == {T0: (member.state.owned[T0], 5)}
    assert T0 not in one(done, cmd.CommitOffsets).plan.writes


def test_positions_from_before_an_edit_are_forgotten() -> None:
    """A queued commit whose position is older than an edit does not overwrite the edit."""
    member = asking()
    member.commit(1)
    member.delivered |= dict.fromkeys(tps(0), 30)
    member.commit(2)
    member.answer_commit(found(T0, value=5, version=9, mzxid=77))
    member.answer_commit()
    assert member.state.commits.running is None or T0 not in member.state.commits.plan.writes


def test_a_reset_during_a_commit_is_not_forgotten() -> None:
    """A running or waiting commit discards positions from before an `auto.offset.reset`."""
    member = asking()
    member.commit(1)
    member.commit(2)
    member.user_resets(T0)
    member.delivered |= {T0: 5}
    member.answer_commit()
    member.answer_commit()
    assert one(member.commit(3), cmd.CommitOffsets).plan.writes[T0] == (5, 4)


def test_the_late_report_of_a_reset_does_not_concern_the_next_ownership() -> None:
    """A reset that is reported after the partition was claimed again discards no commit."""
    member = asking()
    member.commit(1)
    member.commit(2)
    earlier = member.state.owned[T0].epoch - 1
    member.send(ev.PositionReset, partition=T0, epoch=earlier, offset=0)
    member.delivered |= {T0: 5}
    member.answer_commit()
    assert T0 in member.state.commits.running.positions


def test_the_last_commit_keeps_what_was_reset_before() -> None:
    """A member that leaves stores the position after a reset, even if the report comes later."""
    # 1. A stream resets its position and delivers messages. 2. The member leaves and collects the
    # positions. 3. The report of the reset arrives. 4. The connection breaks before the reply.
    member = asking()
    plan = one(member.send(ev.CloseRequested, purpose=Purpose.LEAVE), cmd.CommitOffsets).plan
    assert plan.writes[T0] == (20, 3)
    member.user_resets(T0)
    member.send(ev.Suspended)
    member.connect()
    assert member.state.commits.plan.writes[T0] == (20, 3)
    member.answer_commit()
    assert member.state.phase is Phase.CLOSED


def test_a_reset_during_a_commit_lowers_no_foreign_offset() -> None:
    """If a reset happens during a commit, another client's higher offset is not overwritten."""
    member = asking()
    member.commit(1)
    member.user_resets(T0)
    member.delivered |= {T0: 5}
    done = member.answer_commit(found(T0, value=50, version=9))
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.OFFSET_LEFT
    member.answer_commit()
    plan = one(member.commit(2), cmd.CommitOffsets).plan
    assert (T0 in plan.writes, plan.checks[T0]) == (False, 9)


def test_edits_are_noticed_without_new_positions() -> None:
    """Automatic and explicit commits check the versions of offset znodes that need no write."""
    member = asking()
    member.commit(1)
    member.answer_commit()
    checks = dict.fromkeys(tps(0, 1, 2, 3), 4)
    assert one(member.commit(2), cmd.CommitOffsets).plan.checks == checks
    done = member.answer_commit(found(T0, value=2, version=9, mzxid=77))
    assert one(done, cmd.StartFetching).grants[T0][1] == 2


def test_a_commit_against_a_persistent_writer_ends() -> None:
    """If another client keeps writing the offset, the commit fails after `MAX_TRIES` attempts."""
    member = asking()
    done = member.commit(1)
    for n in range(MAX_TRIES):
        done = member.answer_commit(found(T0, value=5, version=10 + n))
    assert "keep writing" in one(done, cmd.AnswerCommit).failures[T0]


def test_a_refused_offset_does_not_hold_up_the_others() -> None:
    """If ZooKeeper denies one offset znode, the commit names it and stores the other offsets."""
    member = asking()
    member.commit(1)
    outcome = ev.Committed(dict.fromkeys(tps(1, 2, 3), 4), {}, frozenset(), {T0: "no rights"})
    done = member.answer_commit(outcome)
    assert one(done, cmd.AnswerCommit).failures == {T0: "no rights"}
    assert not of(done, cmd.CommitOffsets)


def test_a_commit_names_refused_and_foreign_offsets() -> None:
    """If one offset is denied and another client wrote another one, the commit names both."""
    member = asking()
    member.commit(1)
    foreign = {T1: StoredOffset(5, 9)}
    versions = dict.fromkeys(tps(2, 3), 4)
    done = member.answer_commit(ev.Committed(versions, foreign, frozenset(), {T0: "no rights"}))
    assert one(done, cmd.AnswerCommit).failures.keys() == {T0, T1}


def test_a_commit_that_is_refused_as_a_whole_is_answered() -> None:
    """If ZooKeeper refuses a whole commit, the result has the reason for each partition."""
    member = asking()
    member.commit(1)
    done = member.answer_commit(ev.Denied("somewhere", "no rights"))
    assert one(done, cmd.AnswerCommit).failures == dict.fromkeys(tps(0, 1, 2, 3), "no rights")
    assert member.state.phase is Phase.SETTLED


def test_an_unreadable_offset_fails_every_explicit_commit() -> None:
    """Each explicit commit names an unreadable offset znode until it is corrected."""
    member = asking()
    member.commit(1)
    broken = {T0: StoredOffset(None, 9, error="'x' is not an offset")}
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
    """A commit succeeds at once, without a request, if no message was delivered."""
    member = member_in(Phase.WAITING)
    member.finished.clear()
    member.delivered.clear()
    done = member.commit(1)
    assert one(done, cmd.AnswerCommit).failures == {}
    assert not of(done, cmd.CommitOffsets)


# ---- offsets in Kafka ---------------------------------------------------------------------------

KAFKA = frozenset(tps(0, 1, 2, 3))


def stored(member: Member, *missing: TopicPartition, reason: str = "") -> ev.Committed:
    """Return the outcome of a commit that Kafka has stored for all partitions but `missing`."""
    assert member.state.commits.running is not None
    plan = member.state.commits.plan
    versions = {tp: 0 if v is None else v + 1 for tp, (_, v) in plan.writes.items()}
    kafka = frozenset(plan.kafka).difference(missing)
    return ev.Committed(
        versions, {}, frozenset(), {}, kafka, dict.fromkeys(missing, reason or "no coordinator")
    )


def test_a_commit_to_kafka_sends_all_that_is_owned() -> None:
    """With `offsets.storage=kafka` a commit sends all positions to Kafka, none to ZooKeeper."""
    member = asking(storage=Storage.KAFKA)
    for _ in range(2):
        plan = one(member.commit(1), cmd.CommitOffsets).plan
        assert plan.kafka == dict.fromkeys(KAFKA, OffsetAndMetadata(20))
        assert (plan.writes, plan.checks) == ({}, {})
        assert one(member.answer_commit(stored(member)), cmd.AnswerCommit).failures == {}


def test_dual_commit_is_one_commit_to_both() -> None:
    """With dual commit one command writes to both Kafka and ZooKeeper."""
    member = asking(storage=Storage.DUAL)
    plan = one(member.commit(1), cmd.CommitOffsets).plan
    assert plan.writes.keys() == plan.kafka.keys() == KAFKA
    done = member.answer_commit(stored(member))
    assert one(done, cmd.AnswerCommit).failures == {}


def test_kafka_is_asked_once_others_are_through_with_zookeeper() -> None:
    """If a commit finds another client's offsets in ZooKeeper, the next attempt writes to Kafka."""
    member = asking(storage=Storage.DUAL)
    member.commit(1)
    done = member.answer_commit(found(*KAFKA, value=50, version=9))
    plan = one(done, cmd.CommitOffsets).plan
    assert (plan.writes, plan.kafka.keys()) == ({}, KAFKA)
    assert one(member.answer_commit(stored(member)), cmd.AnswerCommit).failures == {}


def test_a_commit_that_kafka_could_not_take_is_tried_again() -> None:
    """A commit that Kafka cannot store is retried as often as configured; then it fails."""
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


def test_a_retry_after_kafkas_failure_reports_zookeepers_refusal() -> None:
    """With dual commit the notice of a retry reports the refusals of both storages."""
    member = asking(storage=Storage.DUAL, commit_retries=2)
    member.commit(1)
    denied = {T1: "access denied"}
    done = member.answer_commit(replace(stored(member, T0), denied=denied))
    notice = one(done, cmd.Notice)
    assert notice.kind is cmd.NoticeKind.COMMIT_RETRIED
    assert "no coordinator" in notice.text
    assert "access denied" in notice.text


def test_the_user_says_how_often_to_try() -> None:
    """The number of retries that a call passes replaces the configured number."""
    member = asking(storage=Storage.KAFKA, commit_retries=2)
    positions = {T0: Position(member.state.owned[T0].epoch, 20)}
    member.commit_at(Purpose.EXPLICIT, positions, 1, retries=0)
    done = member.answer_commit(stored(member, T0))
    assert one(done, cmd.AnswerCommit).failures == {T0: "no coordinator"}


def test_a_permanent_refusal_by_kafka_is_not_retried() -> None:
    """A commit that Kafka permanently refuses fails at once, with the reason."""
    member = asking(storage=Storage.KAFKA)
    member.commit(1)
    refused = ev.Committed({}, {}, frozenset(), {T0: "another kind"}, KAFKA - {T0})
    done = member.answer_commit(refused)
    assert one(done, cmd.AnswerCommit).failures == {T0: "another kind"}
    assert not of(done, cmd.CommitOffsets)


def test_a_hand_over_does_not_wait_for_a_retry() -> None:
    """A rebalance's commit precedes a pending retry; if it fails, the release continues."""
    member = asking(storage=Storage.KAFKA)
    member.commit(1)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    member.answer_commit(stored(member, T0))
    done = member.user_finishes(tps(2, 3))
    assert one(done, cmd.CommitOffsets).plan.kafka.keys() == tps(2, 3)
    done = member.answer_commit(stored(member, *tps(2, 3)))
    assert {n.kind for n in of(done, cmd.Notice)} == {cmd.NoticeKind.COMMIT_FAILED}
    assert one(done, cmd.Release).partitions == tps(2, 3)
    assert not of(done, cmd.CommitOffsets)
    # The retry follows; it excludes the partitions that another member owns by now.
    done = member.answer(ev.Released({}))
    assert one(done, cmd.CommitOffsets).plan.kafka.keys() == KAFKA - tps(2, 3)


def test_a_retry_is_due_also_while_zookeeper_is_away() -> None:
    """If a retry's back-off ends without a connection, the commit is sent after the reconnect."""
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
    """Offsets that the user names are stored exactly, even one below the position."""
    member = asking(storage=storage)
    member.commit(1)
    member.answer_commit(stored(member))
    epochs = {tp: member.state.owned[tp].epoch for tp in (T0, T1)}
    positions = {T0: Position(epochs[T0], 5), T1: Position(epochs[T1], 30)}
    done = member.commit_at(Purpose.GIVEN, positions, 2, metadata={T1: "note"})
    plan = one(done, cmd.CommitOffsets).plan
    if storage is not Storage.KAFKA:
        assert plan.writes == {T0: (5, 4), T1: (30, 4)}
    if storage is not Storage.ZOOKEEPER:
        assert plan.kafka == {T0: (5, ""), T1: (30, "note")}
    assert one(member.answer_commit(stored(member)), cmd.AnswerCommit).failures == {}


def test_offsets_of_just_claimed_partitions_fail_by_name() -> None:
    """A commit fails for a partition whose stored offset the member has not read yet."""
    member = member_in(Phase.LOADING)
    positions = {T0: Position(member.state.owned[T0].epoch, 5)}
    done = member.commit_at(Purpose.GIVEN, positions, 1)
    assert "just claimed" in one(done, cmd.AnswerCommit).failures[T0]


def test_without_kafkas_offsets_revocations_continue() -> None:
    """If Kafka returns no offsets, a back-off delays claimed partitions but no revocation."""
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
    """A release waits until a running commit of the revoked partitions has completed."""
    member = asking(auto_commit_s=None)
    member.commit(1)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.read(TWO)
    done = member.user_finishes(tps(2, 3))
    assert not of(done, cmd.Release)
    done = member.answer_commit(found(TopicPartition("t", 2), value=1, version=4))
    assert TopicPartition("t", 2) in one(done, cmd.CommitOffsets).plan.writes
    assert not of(done, cmd.Release)
    done = member.answer_commit()
    assert one(done, cmd.Release).partitions == tps(2, 3)
    assert one(done, cmd.AnswerCommit).failures == {}
