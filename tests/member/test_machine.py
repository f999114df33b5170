"""The machine: phases, illegal and stale events, the lease, the session, the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machine import LATER, SESSION, THREAD, TWO, Member, member_in, of, one, tps, view

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.machine import OUTCOMES, TABLE, IllegalTransitionError, step
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.model import Ownership, Purpose, RebalanceMode, Session, TopicPartition

ALL = tuple(Phase)
RUNNING = tuple(p for p in ALL if p not in (Phase.OFFLINE, Phase.CLOSED, Phase.LEAVING))
OUTCOMES_BY_TYPE: dict[type[ev.Outcome], ev.Outcome] = {
    ev.Registered: ev.Registered(1),
    ev.IdTaken: ev.IdTaken(0xC3),
    ev.ViewRead: ev.ViewRead(view()),
    ev.Verified: ev.Verified({}, {}),
    ev.Released: ev.Released({}),
    ev.Claimed: ev.Claimed({}, {}, {}),
    ev.OffsetsLoaded: ev.OffsetsLoaded({}),
    ev.Synced: ev.Synced(0.0),
    ev.Committed: ev.Committed({}, {}, frozenset(), {}),
    ev.MemberNodeGone: ev.MemberNodeGone(),
    ev.Denied: ev.Denied("somewhere", "no rights"),
    ev.Interrupted: ev.Interrupted(),
}


# ---- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ALL, ids=lambda p: p.value)
def test_every_phase_can_be_reached(phase: Phase) -> None:
    """A member gets into each phase by events that really happen."""
    assert member_in(phase).state.phase is phase


@pytest.mark.parametrize("phase", [p for p in ALL if p is not Phase.CLOSED], ids=lambda p: p.value)
def test_an_event_without_a_row_is_illegal(phase: Phase) -> None:
    """What the table does not name raises, and the state is what it was."""
    member = member_in(phase)
    before = member.state
    with pytest.raises(IllegalTransitionError, match=phase.value):
        step(member.state, ev.Event(now=member.now))
    assert member.state is before


@pytest.mark.parametrize("kind", OUTCOMES_BY_TYPE, ids=lambda k: k.__name__)
@pytest.mark.parametrize("phase", RUNNING, ids=lambda p: p.value)
def test_an_outcome_that_does_not_fit_the_phase_is_illegal(
    phase: Phase, kind: type[ev.Outcome]
) -> None:
    """The operation under way ends as its phase expects, or `step` raises and changes nothing."""
    member = member_in(phase)
    state = member.state
    legal = {phase, None} & {where for where, outcome in OUTCOMES if outcome is kind}
    if state.op is None or legal or kind is ev.Interrupted:
        return
    event = ev.Finished(now=member.now, op=state.op, outcome=OUTCOMES_BY_TYPE[kind])
    with pytest.raises(IllegalTransitionError, match=kind.__name__):
        step(state, event)
    assert member.state is state


@pytest.mark.parametrize("kind", OUTCOMES_BY_TYPE, ids=lambda k: k.__name__)
@pytest.mark.parametrize("phase", ALL, ids=lambda p: p.value)
def test_a_stale_result_is_ignored(phase: Phase, kind: type[ev.Outcome]) -> None:
    """The result of an operation that nobody waits for changes nothing and commands nothing."""
    member = member_in(phase)
    event = ev.Finished(now=member.now, op=-1, outcome=OUTCOMES_BY_TYPE[kind])
    state, commands = step(member.state, event)
    assert (state, commands) == (member.state, ())


def test_the_tables_name_existing_handlers_once() -> None:
    """Each row of both tables has a phase or None, and something to call."""
    assert all(callable(handler) for handler in (*TABLE.values(), *OUTCOMES.values()))
    assert {phase for phase, _ in (*TABLE, *OUTCOMES)} <= {None, *Phase}


# ---- connecting and the session -----------------------------------------------------------------


def test_the_way_from_nothing_to_settled() -> None:
    """Register, read, claim, read offsets, fetch: in this order, and each once."""
    member = Member()
    member.settle()
    steps = (cmd.Register, cmd.ReadView, cmd.Claim, cmd.LoadOffsets, cmd.StartFetching)
    assert [type(c) for c in member.log if isinstance(c, steps)] == list(steps)
    grants = member.last(cmd.StartFetching).grants
    assert {tp: offset for tp, (_, offset) in grants.items()} == dict.fromkeys(tps(0, 1, 2, 3), 10)
    assert {mine for mine, _ in grants.values()} == set(member.state.owned.values())


def test_the_gate_opens_when_registered_and_under_the_lease() -> None:
    """Nothing may be delivered before our id node exists and the leader has answered."""
    member = Member()
    assert not of(member.connect(), cmd.OpenGate)
    assert one(member.answer(ev.Registered(1)), cmd.OpenGate).deadline == member.now + 4.0


def test_suspension_pauses_at_once() -> None:
    """The first word of a broken connection shuts the gate; nothing is given up yet."""
    member = member_in(Phase.SETTLED)
    assert member.send(ev.Suspended) == (cmd.ShutGate(),)
    assert member.state.owned.keys() == tps(0, 1, 2, 3)


def test_the_same_session_reads_back_before_it_delivers() -> None:
    """After a reconnect in the same session the gate opens only when the claims were read back."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    assert not of(member.connect(), cmd.OpenGate)
    assert member.last(cmd.Verify).partitions == dict.fromkeys(tps(0, 1, 2, 3), THREAD)
    done = member.verify(*tps(3))
    assert one(done, cmd.OpenGate)
    assert one(done, cmd.Withdraw).partitions == tps(3)
    assert member.state.phase is Phase.READING


def test_a_dead_client_is_recreated_after_a_back_off() -> None:
    """Each death without a connection in between doubles the back-off; a connection resets it."""
    member = member_in(Phase.SETTLED)
    for wait_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        done = member.send(ev.ClientDied, reason="no ticket", refused=False)
        assert of(done, cmd.ShutGate)
        notice = one(done, cmd.Notice)
        assert (notice.kind, "no ticket" in notice.text) == (cmd.NoticeKind.CLIENT_DIED, True)
        assert not of(member.wait(wait_s - 0.01), cmd.RecreateClient)
        assert of(member.wait(0.01), cmd.RecreateClient)
        assert not of(member.wait(60.0), cmd.RecreateClient)
    assert member.state.owned.keys() == tps(0, 1, 2, 3)
    member.connect()
    member.drive()
    assert (member.state.phase, member.state.client.reason) == (Phase.SETTLED, "")
    member.send(ev.ClientDied, reason="again", refused=False)
    assert of(member.wait(0.5), cmd.RecreateClient)


def test_a_credential_that_is_refused_again_and_again_closes_the_member() -> None:
    """The fifth refusal in a row ends the member; whoever waits is told before anything else."""
    member = member_in(Phase.SETTLED)
    member.delivered[TopicPartition("t", 0)] = 20
    member.send(ev.Suspended)
    member.commit(request=7)
    for _ in range(4):
        done = member.send(ev.ClientDied, reason="wrong password", refused=True)
        assert not of(done, cmd.GiveUp)
        member.wait(60.0)
    done = member.send(ev.ClientDied, reason="wrong password", refused=True)
    assert member.state.phase is Phase.CLOSED
    assert done[0] == cmd.GiveUp("wrong password", refused=True)
    answer = one(done, cmd.AnswerCommit)
    assert (answer.request, "wrong password" in str(answer.failures)) == (7, True)
    assert done[-2:] == (cmd.ShutGate(), cmd.CloseSession())


def test_a_leaver_does_not_wait_for_another_client() -> None:
    """The client dies while the last commit is under way: the member closes and says so."""
    member = member_in(Phase.LEAVING)
    done = member.send(ev.ClientDied, reason="a bug", refused=False)
    assert one(done, cmd.GiveUp).reason == "a bug"
    assert member.state.phase is Phase.CLOSED


def test_a_new_session_owns_nothing() -> None:
    """Expiry: delivery of everything ends, then register and claim afresh, whatever was known."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert one(done, cmd.Withdraw).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.Register)
    assert not member.state.owned
    assert not member.state.offsets
    member.drive()
    assert member.state.phase is Phase.SETTLED
    assert member.last(cmd.Claim).partitions.keys() == tps(0, 1, 2, 3)


def test_the_identity_of_the_session_tells_not_its_state() -> None:
    """An expiry seen only as a new session id, with no suspension before it, counts as one."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert one(done, cmd.Withdraw).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.ShutGate)


@pytest.mark.parametrize("session", [SESSION, LATER], ids=["same", "new"])
@pytest.mark.parametrize("phase", RUNNING, ids=lambda p: p.value)
def test_a_reconnect_in_any_phase_ends_settled(phase: Phase, session: Session) -> None:
    """Cut off in any phase of a rebalance, with any session, a member settles again."""
    member = member_in(phase)
    member.send(ev.Suspended)
    member.send(ev.Connected, session=session, wall_ms=2)
    member.drive()
    assert member.state.phase is Phase.SETTLED
    assert member.state.serving == member.state.owned.keys() == tps(0, 1, 2, 3)


def test_a_claim_without_a_reply_is_read_back() -> None:
    """What a claim may have created before the connection broke is verified, and then served."""
    member = member_in(Phase.CLAIMING)
    member.answer(ev.Interrupted())
    member.send(ev.Suspended)
    member.connect()
    assert member.last(cmd.Verify).partitions == dict.fromkeys(tps(0, 1, 2, 3), THREAD)
    member.verify()
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_taken_consumer_id_is_waited_for() -> None:
    """Another session under our id: reported, and tried again when its node goes or in time."""
    member = member_in(Phase.REGISTERING)
    assert one(member.answer(ev.IdTaken(0xC3)), cmd.Notice).kind is cmd.NoticeKind.ID_TAKEN
    gone = member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert one(gone, cmd.Register)
    member.answer(ev.IdTaken(0xC3))
    assert one(member.wait(2.1), cmd.Register)


def test_an_id_taken_after_the_join_releases_everything() -> None:
    """The member withdraws and releases all it owns, says so, and claims again when it can."""
    member = member_in(Phase.SETTLED)
    member.commit(request=7)
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    waits = member.answer(ev.IdTaken(0xC3))
    assert not of(waits, cmd.Release), "released before the commit under way had ended"
    member.answer_commit()
    member.wait(2.1)
    done = member.answer(ev.IdTaken(0xC3))
    assert one(done, cmd.Withdraw).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.Release).partitions == tps(0, 1, 2, 3)
    said = [notice for notice in of(done, cmd.Notice) if notice.where == "t-0, t-1, t-2, t-3"]
    assert [notice.kind for notice in said] == [cmd.NoticeKind.OWNERSHIP_LOST]
    assert (member.state.owned, member.state.serving) == ({}, frozenset())
    member.answer(ev.Released({}))
    again = member.wait(2.1)
    assert one(again, cmd.Register)
    assert not of(member.answer(ev.IdTaken(0xC3)), cmd.Release), "nothing is left to release"
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_release_after_a_taken_id_that_fails_is_repeated() -> None:
    """What cannot be released is asked for again, and is claimed anew when the id is free."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    member.answer(ev.IdTaken(0xC3))
    t3 = TopicPartition("t", 3)
    denied = of(member.answer(ev.Released({t3: "no rights"})), cmd.Notice)
    assert [(notice.kind, notice.where) for notice in denied] == [(cmd.NoticeKind.DENIED, "t-3")]
    member.wait(2.1)
    assert one(member.answer(ev.IdTaken(0xC3)), cmd.Release).partitions == {t3}
    member.send(ev.Suspended)
    member.connect(SESSION)
    member.answer(ev.Registered(2))
    assert member.last(cmd.Verify).partitions == {t3: THREAD}
    member.answer(ev.Verified({t3: Ownership(THREAD, 99)}, {}))
    before = len(member.log)
    member.read()
    assert one(member.log[before:], cmd.Release).partitions == {t3}, "the token would be reused"
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_persistent_id_node_is_named_as_such() -> None:
    """An id node without a session will never go by itself: the remedy says so."""
    member = member_in(Phase.REGISTERING)
    assert "by hand" in one(member.answer(ev.IdTaken(0)), cmd.Notice).remedy
    member = member_in(Phase.REGISTERING)
    assert "by hand" not in one(member.answer(ev.IdTaken(0xC3)), cmd.Notice).remedy


def test_an_id_node_that_vanishes_stops_everything() -> None:
    """Own id node gone: nothing is delivered until registered and read back; nothing is lost."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert of(done, cmd.ShutGate)
    assert of(done, cmd.Register)
    assert not of(member.answer(ev.Registered(2)), cmd.OpenGate)
    assert of(member.verify(), cmd.OpenGate)
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


@pytest.mark.parametrize("phase", RUNNING[1:], ids=lambda p: p.value)
def test_the_check_of_our_id_node_registers_again(phase: Phase) -> None:
    """A transaction that fails on the check of our own id node leads to a registration."""
    member = member_in(phase)
    if member.state.op is not None:
        done = member.answer(ev.MemberNodeGone())
        assert of(done, cmd.ShutGate)
        assert of(done, cmd.Register)


# ---- the lease ----------------------------------------------------------------------------------


def test_the_lease_is_renewed_every_sixth_of_the_timeout() -> None:
    """Syncs go out a sixth of the session timeout apart, each extending the gate's deadline."""
    member = member_in(Phase.SETTLED)
    done = member.wait(6.0)
    assert len(of(done, cmd.Sync)) == 6
    assert [round(gate.deadline - 1000, 6) for gate in of(done, cmd.OpenGate)] == [
        n + 4.0 for n in range(1, 7)
    ]


def test_without_an_answer_there_is_no_second_sync() -> None:
    """While a sync has no answer no other is sent, and the deadline stays as it is."""
    member = member_in(Phase.SETTLED)
    member.now += 1.0
    assert one(member.send(ev.Tick), cmd.Sync)
    member.now += 20.0
    assert not of(member.send(ev.Tick), cmd.Sync)
    assert not member.state.lease.holds(member.now)


def test_nothing_is_committed_after_the_lease() -> None:
    """A commit asked for when the lease is over waits for the next answer of the leader."""
    member = member_in(Phase.SETTLED)
    member.now += 1.0
    member.send(ev.Tick)
    member.now += 20.0
    member.delivered |= dict.fromkeys(tps(0), 30)
    assert not of(member.commit(), cmd.CommitOffsets)
    assert of(member.answer_sync(), cmd.CommitOffsets)


# ---- the end ------------------------------------------------------------------------------------


def test_a_clean_leave_commits_the_last_message() -> None:
    """Leaving stops delivery, stores everything handed out, and then ends the session."""
    member = member_in(Phase.SETTLED)
    member.finished |= dict.fromkeys(tps(0), 15)
    member.delivered |= dict.fromkeys(tps(0), 16)
    done = member.send(ev.CloseRequested)
    assert of(done, cmd.Withdraw)
    assert one(done, cmd.CommitOffsets).plan.writes == {(*tps(0),)[0]: (16, 3)}
    assert not of(done, cmd.CloseSession)
    assert of(member.answer_commit(), cmd.CloseSession)
    assert member.state.phase is Phase.CLOSED


def test_a_leave_after_an_error_does_not_commit_the_message_in_hand() -> None:
    """Leaving with the purpose of a release stores finished messages only."""
    member = member_in(Phase.SETTLED)
    member.finished |= dict.fromkeys(tps(0), 15)
    member.delivered |= dict.fromkeys(tps(0), 16)
    done = member.send(ev.CloseRequested, purpose=Purpose.RELEASE)
    assert one(done, cmd.CommitOffsets).plan.writes == {(*tps(0),)[0]: (15, 3)}


def test_without_auto_commit_a_leave_commits_nothing() -> None:
    """`auto.commit.enable=false`: nothing at the end, nor at a release, nor in time."""
    member = member_in(Phase.SETTLED, auto_commit_s=None)
    member.delivered |= dict.fromkeys(tps(0, 2), 16)
    member.finished |= dict.fromkeys(tps(0, 2), 16)
    assert not of(member.wait(200.0), cmd.CommitOffsets)
    member.send(ev.Triggered, trigger=ev.Trigger.MEMBERS)
    member.drive(TWO)
    member.send(ev.CloseRequested)
    assert member.state.phase is Phase.CLOSED
    assert not [c for c in member.log if isinstance(c, cmd.CommitOffsets)]


def test_a_leave_waits_no_longer_than_a_session() -> None:
    """A last commit that is never answered ends with the session's timeout."""
    member = member_in(Phase.LEAVING)
    assert not of(member.wait(5.9), cmd.CloseSession)
    assert of(member.wait(0.2), cmd.CloseSession)


def test_a_leaver_without_its_id_node_does_not_wait() -> None:
    """When the last commit finds our id node gone, or the session is new, the member just ends."""
    member = member_in(Phase.LEAVING)
    assert of(member.answer_commit(ev.MemberNodeGone()), cmd.CloseSession)
    member = member_in(Phase.LEAVING)
    member.send(ev.Suspended)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert of(done, cmd.CloseSession)


def test_a_leaver_commits_after_a_reconnect() -> None:
    """A last commit that a broken connection cut off is sent again in the same session."""
    member = member_in(Phase.LEAVING)
    member.send(ev.Suspended)
    assert of(member.connect(), cmd.CommitOffsets)
    assert of(member.answer_commit(), cmd.CloseSession)


@pytest.mark.parametrize("phase", RUNNING, ids=lambda p: p.value)
def test_one_can_leave_in_any_phase(phase: Phase) -> None:
    """Asked to leave in any phase, a member is closed as soon as its commits have ended."""
    member = member_in(phase)
    member.send(ev.CloseRequested)
    member.drive()
    assert member.state.phase is Phase.CLOSED
    assert of(member.log, cmd.CloseSession)


def test_closed_is_for_ever() -> None:
    """A closed member answers nothing and does nothing."""
    member = member_in(Phase.CLOSED)
    before = member.state
    for event in (ev.Tick(now=9e9), ev.Connected(now=9e9, session=LATER, wall_ms=1)):
        assert step(before, event) == (before, ())


# ---- anything at any time -----------------------------------------------------------------------

NUMBERS = st.integers(0, 3)
HAPPENINGS = st.one_of(
    st.tuples(st.just("answer"), st.sampled_from(tuple(OUTCOMES_BY_TYPE))),
    st.tuples(st.just("go on"), st.booleans()),
    st.tuples(st.just("trigger"), st.sampled_from(tuple(ev.Trigger))),
    st.tuples(st.just("owner node"), NUMBERS),
    st.tuples(st.just("owners"), st.just(0)),
    st.tuples(st.just("topic deleted"), st.just(0)),
    st.tuples(st.just("ready"), st.sets(NUMBERS)),
    st.tuples(st.just("suspend"), st.just(0)),
    st.tuples(st.just("client dies"), st.just(0)),
    st.tuples(st.just("connect"), st.sampled_from((SESSION, LATER))),
    st.tuples(st.just("time"), st.floats(0.0, 20.0)),
    st.tuples(st.just("commit"), st.integers(0, 50)),
    st.tuples(st.just("reset"), NUMBERS),
)


def _answer(member: Member, kind: type[ev.Outcome]) -> None:
    """The operation under way ends in one of the ways that its phase knows."""
    legal = {(member.state.phase, kind), (None, kind)} & OUTCOMES.keys()
    if member.state.op is not None and (legal or kind is ev.Interrupted):
        member.answer(OUTCOMES_BY_TYPE[kind])


def _commit(member: Member, offset: int) -> None:
    member.delivered |= dict.fromkeys(member.state.serving, offset)
    member.commit()


def _time(member: Member, seconds: float) -> None:
    member.now += seconds
    member.send(ev.Tick)


def _tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


HAPPEN: dict[str, Callable[[Member, Any], object]] = {
    "answer": _answer,
    "go on": lambda m, alone: m.go_on(view() if alone else TWO),
    "trigger": lambda m, trigger: m.send(ev.Triggered, trigger=trigger),
    "owner node": lambda m, number: m.send(ev.OwnerNodeChanged, partition=_tp(number)),
    "owners": lambda m, _: m.send(ev.OwnersChanged, topic="t"),
    "topic deleted": lambda m, _: m.send(ev.TopicDeleted, topic="t"),
    "ready": lambda m, numbers: m.send(ev.ReleaseReady, partitions=tps(*numbers)),
    "suspend": lambda m, _: m.send(ev.Suspended),
    "client dies": lambda m, _: m.send(ev.ClientDied, reason="a bug", refused=False),
    "connect": lambda m, session: m.send(ev.Connected, session=session, wall_ms=1),
    "time": _time,
    "commit": _commit,
    "reset": lambda m, number: m.send(ev.PositionReset, partition=_tp(number), offset=0),
}


@given(st.lists(HAPPENINGS, max_size=60), st.sampled_from(["incremental", "eager"]))
def test_whatever_happens_a_member_can_settle(
    happenings: list[tuple[str, object]], mode: str
) -> None:
    """After any events, in any order, the rules hold, and a quiet world lets the member settle."""
    member = Member(mode=RebalanceMode(mode))
    member.settle()
    for what, how in happenings:
        HAPPEN[what](member, how)
        state = member.state
        assert state.serving <= state.owned.keys(), "served without an owner node"
        assert not state.serving & state.malformed
        assert not (state.phase is Phase.SETTLED and state.read_again), "lost trigger"
        assert state.phase is not Phase.WAITING or state.retry_at is not None, "waits for ever"
    member.send(ev.Suspended)
    member.send(ev.Connected, session=LATER, wall_ms=3)
    member.drive()
    if member.state.phase is Phase.WAITING:
        member.wait(3.0)
        member.drive()
    assert member.state.phase is Phase.SETTLED
    assert member.state.serving == tps(0, 1, 2, 3)


def test_positions_of_streams_are_asked_for_what_is_served_only() -> None:
    """The automatic commit asks for the partitions that are served, and no others."""
    member = member_in(Phase.SETTLED)
    member.finished |= dict.fromkeys(tps(0, 1, 2, 3), 20)
    done = member.wait(60.0)
    assert one(done, cmd.CollectPositions).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.CommitOffsets).plan.writes.keys() == tps(0, 1, 2, 3)
