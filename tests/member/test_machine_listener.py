"""The user's rebalance listener: when it is called, with which arguments, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from support.members.machine import (
    LATER,
    ME,
    PEER,
    SESSION,
    THREAD,
    TWO,
    Member,
    joined,
    member_in,
    of,
    one,
    tps,
    view,
)

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.model import Purpose, RebalanceMode, StoredOffset, TopicPartition

RELEASING, STARTING = cmd.Callback.RELEASING, cmd.Callback.STARTING
ALL = dict.fromkeys(tps(0, 1, 2, 3), THREAD)


def listening(**settings: Any) -> Member:
    return Member(**({"listener_s": 1.0} | settings))


def settled(**settings: Any) -> Member:
    member = listening(**settings)
    member.register()
    member.drive()
    assert member.state.phase is Phase.SETTLED
    return member


def calls(member: Member, since: int = 0) -> list[tuple[cmd.Callback, dict[TopicPartition, str]]]:
    return [(c.callback, dict(c.partitions)) for c in of(member.log[since:], cmd.CallListener)]


def test_without_a_listener_nothing_is_called() -> None:
    """Without a listener no phase waits for it, and other members' assignments are not stored."""
    member = member_in(Phase.SETTLED)
    joined(member)
    member.drive(TWO)
    assert not calls(member)
    assert member.state.assignment is None


def test_a_first_rebalance_releases_nothing_and_says_so() -> None:
    """In the first rebalance the listener is called before the claim and before fetching."""
    member = listening()
    member.register()
    assert one(member.read(TWO), cmd.CallListener).partitions == {}
    assert one(member.listened(), cmd.Claim)
    call = one(member.claim(), cmd.CallListener)
    assert (call.callback, call.partitions) == (
        STARTING,
        dict.fromkeys(tps(0, 1), THREAD) | dict.fromkeys(tps(2, 3), f"{PEER}-0"),
    )
    assert not of(member.log, cmd.LoadOffsets)
    assert one(member.listened(), cmd.LoadOffsets)
    assert one(member.load(), cmd.StartFetching)


def test_the_listener_is_called_between_the_commit_and_the_release() -> None:
    """The listener gets the revoked partitions after their commit and before their release."""
    member = settled()
    before = len(member.log)
    joined(member)
    member.drive(TWO)
    order = (
        cmd.AskRelease,
        cmd.CollectPositions,
        cmd.CommitOffsets,
        cmd.CallListener,
        cmd.Withdraw,
        cmd.Release,
    )
    done = [type(c) for c in member.log[before:] if isinstance(c, order)]
    assert [kind for kind in done if kind is not cmd.CommitOffsets] == [
        cmd.AskRelease,
        cmd.CollectPositions,
        cmd.CallListener,
        cmd.Withdraw,
        cmd.Release,
        cmd.CallListener,
    ]
    assert calls(member, before) == [
        (RELEASING, dict.fromkeys(tps(2, 3), THREAD)),
        (STARTING, dict.fromkeys(tps(0, 1), THREAD) | dict.fromkeys(tps(2, 3), f"{PEER}-0")),
    ]


def test_an_eager_listener_gets_all_owned_partitions() -> None:
    """With `rebalance.mode=eager` the listener gets all owned partitions, as in the JVM."""
    member = settled(mode=RebalanceMode.EAGER)
    before = len(member.log)
    joined(member)
    member.drive(TWO)
    assert calls(member, before)[0] == (RELEASING, ALL)


def test_the_listener_learns_of_changes_among_other_members() -> None:
    """The listener is also called if an assignment changes only other members' partitions."""
    member = settled()
    joined(member, view([ME, PEER], {"t": 1}))
    member.drive(view([ME, PEER], {"t": 1}))
    before = len(member.log)
    joined(member, view([ME, "g_p", PEER], {"t": 2}))
    member.drive(view([ME, "g_p", PEER], {"t": 2}))
    assert [callback for callback, _ in calls(member, before)] == [RELEASING, STARTING]
    assert calls(member, before)[0][1] == {}
    assert not of(member.log[before:], cmd.Release)


def test_a_reading_without_changes_calls_no_listener() -> None:
    """The listener is not called for an unchanged group, nor while no broker is found."""
    member = settled()
    before = len(member.log)
    joined(member, view())
    member.drive()
    assert not calls(member, before)
    joined(member, view(brokers=()))
    assert not calls(member, before)


def test_a_lost_owner_node_is_reported_before_it_is_fetched_again() -> None:
    """After an owner znode was lost, the listener is called before fetching starts again."""
    member = settled()
    before = len(member.log)
    member.send(ev.OwnerNodeChanged, partition=TopicPartition("t", 0))
    member.drive()
    assert calls(member, before) == [(RELEASING, {}), (STARTING, ALL)]


def test_after_an_expiry_the_listener_gets_the_whole_assignment() -> None:
    """After an expiry the listener gets no partition to release, then the whole assignment."""
    member = settled()
    before = len(member.log)
    member.send(ev.Suspended)
    member.connect(LATER)
    member.answer(ev.Registered(2))
    member.drive()
    assert calls(member, before) == [(RELEASING, {}), (STARTING, ALL)]


# ---- commits in the listener --------------------------------------------------------------------


@pytest.mark.parametrize("auto_commit_s", [60.0, None])
def test_a_commit_in_the_listener_covers_revoked_partitions(auto_commit_s: float | None) -> None:
    """A commit in the listener stores all delivered positions, even of revoked partitions."""
    member = settled(auto_commit_s=auto_commit_s)
    member.finished |= dict.fromkeys(tps(0, 1, 2, 3), 15)
    member.delivered |= dict.fromkeys(tps(0, 1, 2, 3), 16)
    joined(member)
    member.user_finishes(tps(2, 3))
    if auto_commit_s is not None:
        member.answer_commit()
    assert member.state.phase is Phase.BEFORE_RELEASE
    written = one(member.commit(), cmd.CommitOffsets).plan.writes
    assert {tp: offset for tp, (offset, _) in written.items()} == dict.fromkeys(ALL, 16)
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}
    assert one(member.listened(), cmd.Release).partitions == tps(2, 3)


def test_an_edit_found_in_the_listener_is_the_next_owners_start() -> None:
    """If a commit in the listener finds an edit, this member does not deliver from the edit."""
    member = settled(auto_commit_s=None)
    member.delivered |= dict.fromkeys(tps(0, 1, 2, 3), 16)
    joined(member)
    member.user_finishes(tps(2, 3))
    member.commit()
    edited = {TopicPartition("t", 3): StoredOffset(2, 9)}
    done = member.answer_commit(ev.Committed({}, edited, frozenset(edited), {}))
    assert one(done, cmd.Withdraw).partitions == tps(3)
    assert not of(done, cmd.StartFetching)


# ---- trouble ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.BEFORE_RELEASE, Phase.BEFORE_START])
def test_a_listener_that_hangs_is_waited_for_no_longer_than_the_grace(phase: Phase) -> None:
    """After `release.grace.ms` the rebalance continues without the listener and reports it."""
    member = member_in(phase)
    op = member.last(cmd.CallListener).op
    assert not member.wait(0.9)
    done = member.wait(0.2)
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.LISTENER_LATE
    following = cmd.Release if phase is Phase.BEFORE_RELEASE else cmd.LoadOffsets
    assert one(done, following)
    outcome = ev.ListenerReturned(member.last(cmd.CallListener).callback)
    assert not member.send(ev.Finished, op=op, outcome=outcome)


@pytest.mark.parametrize("phase", [Phase.BEFORE_RELEASE, Phase.BEFORE_START])
def test_a_listener_that_raises_is_reported_and_the_rebalance_continues(phase: Phase) -> None:
    """An exception that the listener raises is reported once, and the rebalance continues."""
    member = member_in(phase)
    done = member.listened("ValueError: no")
    notice = one(done, cmd.Notice)
    assert (notice.kind, "ValueError: no" in notice.text) == (cmd.NoticeKind.LISTENER_FAILED, True)
    member.drive(TWO if phase is Phase.BEFORE_RELEASE else view())
    assert member.state.phase is Phase.SETTLED


def test_a_late_exception_is_reported_too() -> None:
    """An exception is reported even if the rebalance has continued without waiting for it."""
    member = member_in(Phase.BEFORE_START)
    op = member.last(cmd.CallListener).op
    member.wait(1.1)
    outcome = ev.ListenerReturned(STARTING, "ValueError: no")
    done = member.send(ev.Finished, op=op, outcome=outcome)
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.LISTENER_FAILED


@pytest.mark.parametrize("session", [SESSION, LATER])
def test_after_a_lost_connection_the_listener_is_called_again(session: Any) -> None:
    """If the connection is lost during the call, the member still completes the rebalance."""
    member = member_in(Phase.BEFORE_RELEASE)
    before = len(member.log)
    member.send(ev.Suspended)
    member.connect(session)
    assert member.last(cmd.Withdraw).partitions >= tps(2, 3)
    if session is LATER:
        member.answer(ev.Registered(2))
    member.drive(TWO)
    assert calls(member, before)[-1][0] is STARTING
    assert member.state.owned.keys() == member.state.serving == tps(0, 1)


@pytest.mark.parametrize("phase", [Phase.BEFORE_RELEASE, Phase.BEFORE_START])
def test_leaving_does_not_wait_for_the_listener(phase: Phase) -> None:
    """A shutdown does not wait for a running listener, and calls none, as in the JVM's consumer."""
    member = member_in(phase)
    before = len(member.log)
    member.send(ev.CloseRequested)
    if member.state.commits.running is not None:
        member.answer_commit()
    assert member.state.phase is Phase.CLOSED
    assert not calls(member, before)


# ---- callbacks ----------------------------------------------------------------------------------

ASSIGNED, REVOKED, LOST = cmd.Callback.ASSIGNED, cmd.Callback.REVOKED, cmd.Callback.LOST


def announcing(**settings: Any) -> Member:
    """Return a settled member whose user has callbacks."""
    return settled(**({"announces": True} | settings))


def announced(commands: Iterable[cmd.Command]) -> list[tuple[cmd.Callback, list[int]]]:
    """Return the calls of callbacks with the numbers of their partitions."""
    return [
        (one.callback, sorted(tp.partition for tp in one.partitions))
        for one in of(commands, cmd.CallListener)
        if one.callback in (ASSIGNED, REVOKED, LOST)
    ]


def test_callbacks_get_each_partition_in_turn() -> None:
    """A partition is assigned, then revoked before its release, or lost with its owner znode."""
    member = announcing()
    assert announced(member.log) == [(ASSIGNED, [0, 1, 2, 3])]
    before = len(member.log)
    joined(member)
    member.drive(TWO)
    assert announced(member.log[before:]) == [(REVOKED, [2, 3])]
    done = member.send(ev.OwnerNodeChanged, partition=TopicPartition("t", 0))
    assert announced(done) == [(LOST, [0])]
    before = len(member.log)
    member.drive(TWO)
    assert announced(member.log[before:]) == [(ASSIGNED, [0])]


def test_a_leaving_member_waits_for_on_revoked_and_claims_nothing() -> None:
    """While on_revoked runs, a commit is stored and a free partition is not claimed."""
    member = listening(announces=True)
    member.register()
    member.read()
    member.listened()
    member.claim(TopicPartition("t", 3))
    member.drive()
    assert member.state.phase is Phase.WAITING
    member.delivered |= dict.fromkeys(tps(0, 1, 2), 16)
    done = member.send(ev.CloseRequested)
    assert announced(done) == [(REVOKED, [0, 1, 2])]
    assert one(done, cmd.AskRelease).partitions == tps(0, 1, 2)
    member.answer_commit()
    assert member.state.phase is Phase.LEAVING
    assert not member.send(ev.OwnersChanged, topic="t")
    member.delivered |= dict.fromkeys(tps(0), 17)
    member.commit()
    assert one(member.answer_commit(), cmd.AnswerCommit).failures == {}
    done = member.listened()
    assert one(done, cmd.CloseSession) and not announced(done)


def test_a_leaving_member_waits_for_on_revoked_no_longer_than_the_grace() -> None:
    """After `release.grace.ms` the member leaves without the callback, and reports it."""
    member = announcing(auto_commit_s=None)
    member.send(ev.CloseRequested)
    assert not member.wait(0.9)
    done = member.wait(0.2)
    assert one(done, cmd.Notice).kind is cmd.NoticeKind.LISTENER_LATE
    assert one(done, cmd.CloseSession)


@pytest.mark.parametrize("session", [SESSION, LATER])
def test_a_connection_that_breaks_does_not_end_the_wait_for_on_revoked(session: Any) -> None:
    """After a reconnect or an expiry, a leaving member still waits for on_revoked alone."""
    member = announcing()
    member.send(ev.CloseRequested)
    before = len(member.log)
    member.send(ev.Suspended)
    member.connect(session)
    assert member.state.phase is Phase.LEAVING
    assert not announced(member.log[before:])
    assert one(member.listened(), cmd.CloseSession)


def test_a_member_that_gives_up_has_lost_its_partitions() -> None:
    """If the ZooKeeper client fails for good, on_lost gets every announced partition once."""
    member = announcing()
    done: tuple[cmd.Command, ...] = ()
    while member.state.phase is not Phase.CLOSED:
        done += member.send(ev.ClientDied, reason="auth failed", refused=True)
    assert announced(done) == [(LOST, [0, 1, 2, 3])]


def test_a_leaving_member_commits_nothing_of_a_release_in_progress() -> None:
    """A commit that waits for a release does not write offsets of the released partitions."""
    member = settled()
    joined(member)
    member.delivered |= dict.fromkeys(tps(0, 1, 2, 3), 16)
    member.user_finishes(tps(2, 3))
    if member.state.commits.running is not None:
        member.answer_commit()
    member.listened()
    assert member.state.phase is Phase.RELEASING
    member.collected(Purpose.GIVEN, tps(0, 3), request=1)
    member.send(ev.CloseRequested)
    member.answer_commit()
    assert member.state.commits.running is not None
    assert not member.state.commits.plan.touches(tps(3))
    failed = one(member.answer_commit(), cmd.AnswerCommit).failures
    assert failed.keys() == tps(3)


def test_a_leaving_member_ends_the_commits_that_its_user_awaits() -> None:
    """Without automatic commits, the member leaves after the explicit commits are stored."""
    member = settled(auto_commit_s=None)
    member.delivered |= dict.fromkeys(tps(0), 16)
    member.commit()
    member.send(ev.CloseRequested)
    assert member.state.phase is Phase.LEAVING
    done = member.answer_commit()
    assert one(done, cmd.AnswerCommit).failures == {}
    assert one(done, cmd.CloseSession)
