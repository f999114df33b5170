"""The machine: its phases, illegal and stale events, the lease, the session, and leaving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.members.machine import (
    LATER,
    NOBODY,
    SESSION,
    THREAD,
    TWO,
    Member,
    member_in,
    of,
    one,
    tps,
    view,
)

from zkconsumer.member import commands as cmd
from zkconsumer.member import events as ev
from zkconsumer.member.machine import HANDLERS, OUTCOME_HANDLERS, IllegalTransitionError, step
from zkconsumer.member.phases import Phase
from zkconsumer.protocol.model import Ownership, Purpose, RebalanceMode, Session, TopicPartition

ALL = tuple(Phase)
RUNNING = tuple(p for p in ALL if p not in (Phase.OFFLINE, Phase.CLOSED, Phase.LEAVING))
OUTCOMES_BY_TYPE: dict[type[ev.Outcome], ev.Outcome] = {
    ev.Registered: ev.Registered(1),
    ev.IdTaken: ev.IdTaken(0xC3),
    ev.ViewRead: ev.ViewRead(view(), NOBODY),
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
    """A sequence of possible events leads a member into each phase."""
    assert member_in(phase).state.phase is phase


@pytest.mark.parametrize("phase", [p for p in ALL if p is not Phase.CLOSED], ids=lambda p: p.value)
def test_an_event_without_a_row_is_illegal(phase: Phase) -> None:
    """An event without a handler raises an error, and the state is unchanged."""
    member = member_in(phase)
    before = member.state
    with pytest.raises(IllegalTransitionError, match=phase.value):
        step(member.state, ev.Event(now=member.now))
    assert member.state is before


@pytest.mark.parametrize("phase", RUNNING, ids=lambda p: p.value)
def test_an_outcome_that_does_not_fit_the_phase_is_illegal(phase: Phase) -> None:
    """An outcome that the phase does not expect raises an error, and the state is unchanged."""
    for kind, outcome in OUTCOMES_BY_TYPE.items():
        member = member_in(phase)
        state = member.state
        legal = {phase, None} & {where for where, expected in OUTCOME_HANDLERS if expected is kind}
        if state.op is None or legal or kind is ev.Interrupted:
            continue
        with pytest.raises(IllegalTransitionError, match=kind.__name__):
            step(state, ev.Finished(now=member.now, op=state.op, outcome=outcome))
        assert member.state is state, kind


@pytest.mark.parametrize("phase", ALL, ids=lambda p: p.value)
def test_a_stale_result_is_ignored(phase: Phase) -> None:
    """The outcome of an obsolete operation changes no state and causes no command."""
    for kind, outcome in OUTCOMES_BY_TYPE.items():
        member = member_in(phase)
        state, commands = step(member.state, ev.Finished(now=member.now, op=-1, outcome=outcome))
        assert (state, commands) == (member.state, ()), kind


def test_the_tables_name_existing_handlers_once() -> None:
    """Each row of both tables has a phase or None, and a handler."""
    assert all(callable(handler) for handler in (*HANDLERS.values(), *OUTCOME_HANDLERS.values()))
    assert {phase for phase, _ in (*HANDLERS, *OUTCOME_HANDLERS)} <= {None, *Phase}


# ---- connecting and the session -----------------------------------------------------------------


def test_the_way_from_nothing_to_settled() -> None:
    """A member registers, reads, claims, loads offsets and fetches: in this order, each once."""
    member = Member()
    member.settle()
    steps = (cmd.Register, cmd.ReadView, cmd.Claim, cmd.LoadOffsets, cmd.StartFetching)
    assert [type(c) for c in member.log if isinstance(c, steps)] == list(steps)
    grants = member.last(cmd.StartFetching).grants
    assert {tp: offset for tp, (_, offset) in grants.items()} == dict.fromkeys(tps(0, 1, 2, 3), 10)
    assert {mine for mine, _ in grants.values()} == set(member.state.owned.values())


def test_the_gate_opens_when_registered_and_under_the_lease() -> None:
    """No message is delivered before the id znode exists and the leader confirms the session."""
    member = Member()
    assert not of(member.connect(), cmd.OpenGate)
    assert one(member.answer(ev.Registered(1)), cmd.OpenGate).deadline == member.now + 4.0


def test_suspension_pauses_at_once() -> None:
    """A lost connection shuts the gate at once; the member keeps its partitions for now."""
    member = member_in(Phase.SETTLED)
    assert member.send(ev.Suspended) == (cmd.ShutGate(),)
    assert member.state.owned.keys() == tps(0, 1, 2, 3)


def test_the_same_session_reads_back_before_it_delivers() -> None:
    """After a reconnect the gate opens only when the owner znodes have been read back."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    assert not of(member.connect(), cmd.OpenGate)
    assert member.last(cmd.Verify).partitions == dict.fromkeys(tps(0, 1, 2, 3), THREAD)
    done = member.verify(*tps(3))
    assert one(done, cmd.OpenGate)
    assert one(done, cmd.Withdraw).partitions == tps(3)
    assert member.state.phase is Phase.READING


def test_a_dead_client_is_recreated_after_a_back_off() -> None:
    """Each time the client dies the back-off doubles; a connection resets the back-off."""
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
    """After the fifth refused login in a row, the waiting calls fail and the member closes."""
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
    """If the client dies during the last commit, the member closes and reports the failure."""
    member = member_in(Phase.LEAVING)
    done = member.send(ev.ClientDied, reason="a bug", refused=False)
    assert one(done, cmd.GiveUp).reason == "a bug"
    assert member.state.phase is Phase.CLOSED


def test_a_new_session_owns_nothing() -> None:
    """After its session expires, the member stops delivery, registers again and claims again."""
    member = member_in(Phase.SETTLED)
    member.send(ev.Suspended)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert one(done, cmd.Withdraw).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.Register)
    assert not member.state.owned
    assert not member.state.offsets.entries
    member.drive()
    assert member.state.phase is Phase.SETTLED
    assert member.last(cmd.Claim).partitions.keys() == tps(0, 1, 2, 3)


def test_the_session_id_decides_not_the_connection_state() -> None:
    """A new session id counts as an expired session even if no `Suspended` event preceded it."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert one(done, cmd.Withdraw).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.ShutGate)


@pytest.mark.parametrize("session", [SESSION, LATER], ids=["same", "new"])
@pytest.mark.parametrize("phase", RUNNING, ids=lambda p: p.value)
def test_a_reconnect_in_any_phase_ends_settled(phase: Phase, session: Session) -> None:
    """After a lost connection in any phase the member settles, in the old or a new session."""
    member = member_in(phase)
    member.send(ev.Suspended)
    member.send(ev.Connected, session=session, wall_ms=2)
    member.drive()
    assert member.state.phase is Phase.SETTLED
    assert member.state.serving == member.state.owned.keys() == tps(0, 1, 2, 3)


def test_a_claim_without_a_reply_is_read_back() -> None:
    """If a claim gets no reply, its owner znodes are read back and their partitions delivered."""
    member = member_in(Phase.CLAIMING)
    member.answer(ev.Interrupted())
    member.send(ev.Suspended)
    member.connect()
    assert member.last(cmd.Verify).partitions == dict.fromkeys(tps(0, 1, 2, 3), THREAD)
    member.verify()
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_taken_consumer_id_is_waited_for() -> None:
    """If another session has registered this consumer id, the member reports it and retries."""
    member = member_in(Phase.REGISTERING)
    assert one(member.answer(ev.IdTaken(0xC3)), cmd.Notice).kind is cmd.NoticeKind.ID_TAKEN
    gone = member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert one(gone, cmd.Register)
    member.answer(ev.IdTaken(0xC3))
    assert one(member.wait(2.1), cmd.Register)


def test_an_id_taken_after_the_join_releases_everything() -> None:
    """If another session takes the id, the member releases everything and claims again later."""
    member = member_in(Phase.SETTLED)
    member.commit(request=7)
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    waits = member.answer(ev.IdTaken(0xC3))
    assert not of(waits, cmd.Release), "released during a commit"
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
    assert not of(member.answer(ev.IdTaken(0xC3)), cmd.Release), "released twice"
    member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_a_release_after_a_taken_id_that_fails_is_repeated() -> None:
    """A refused release is retried; the partition is claimed again when the id is free."""
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
    assert one(member.log[before:], cmd.Release).partitions == {t3}, "the token is reused"
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


def test_the_remedy_names_a_persistent_id_node() -> None:
    """The remedy for a persistent id znode, which outlives sessions, is a command."""
    member = member_in(Phase.REGISTERING)
    assert "doctor --fix" in one(member.answer(ev.IdTaken(0)), cmd.Notice).remedy
    member = member_in(Phase.REGISTERING)
    assert "doctor --fix" not in one(member.answer(ev.IdTaken(0xC3)), cmd.Notice).remedy


def test_an_id_node_that_vanishes_stops_everything() -> None:
    """If its id znode is deleted, the member registers and reads back before it delivers again."""
    member = member_in(Phase.SETTLED)
    done = member.send(ev.Triggered, trigger=ev.Trigger.OWN_MEMBER_NODE)
    assert of(done, cmd.ShutGate)
    assert of(done, cmd.Register)
    assert not of(member.answer(ev.Registered(2)), cmd.OpenGate)
    assert of(member.verify(), cmd.OpenGate)
    member.drive()
    assert member.state.serving == tps(0, 1, 2, 3)


WITH_OPERATION = (
    Phase.RECOVERING,
    Phase.READING,
    Phase.BEFORE_RELEASE,
    Phase.RELEASING,
    Phase.CLAIMING,
    Phase.BEFORE_START,
    Phase.LOADING,
    Phase.VERIFYING,
)


@pytest.mark.parametrize("phase", WITH_OPERATION, ids=lambda p: p.value)
def test_a_missing_id_znode_found_by_a_check_causes_a_registration(phase: Phase) -> None:
    """If an operation finds that the id znode is missing, the member registers again."""
    member = member_in(phase)
    done = member.answer(ev.MemberNodeGone())
    assert of(done, cmd.ShutGate)
    assert of(done, cmd.Register)


# ---- the lease ----------------------------------------------------------------------------------


def test_the_lease_is_renewed_every_sixth_of_the_timeout() -> None:
    """A `sync` is sent every sixth of the session timeout, and each reply extends the lease."""
    member = member_in(Phase.SETTLED)
    done = member.wait(6.0)
    assert len(of(done, cmd.Sync)) == 6
    assert [round(gate.deadline - 1000, 6) for gate in of(done, cmd.OpenGate)] == [
        n + 4.0 for n in range(1, 7)
    ]


def test_without_an_answer_there_is_no_second_sync() -> None:
    """While a `sync` has no reply, no other is sent, and the lease is not extended."""
    member = member_in(Phase.SETTLED)
    member.now += 1.0
    assert one(member.send(ev.Tick), cmd.Sync)
    member.now += 20.0
    assert not of(member.send(ev.Tick), cmd.Sync)
    assert not member.state.lease.holds(member.now)


def test_nothing_is_committed_after_the_lease() -> None:
    """A commit requested after the end of the lease waits until the lease is renewed."""
    member = member_in(Phase.SETTLED)
    member.now += 1.0
    member.send(ev.Tick)
    member.now += 20.0
    member.delivered |= dict.fromkeys(tps(0), 30)
    assert not of(member.commit(), cmd.CommitOffsets)
    assert of(member.answer_sync(), cmd.CommitOffsets)


# ---- the end ------------------------------------------------------------------------------------


def test_a_clean_leave_commits_the_last_message() -> None:
    """A member that leaves stops delivery, commits delivered messages, and ends its session."""
    member = member_in(Phase.SETTLED)
    member.finished |= dict.fromkeys(tps(0), 15)
    member.delivered |= dict.fromkeys(tps(0), 16)
    done = member.send(ev.CloseRequested)
    assert of(done, cmd.Withdraw)
    assert one(done, cmd.CommitOffsets).plan.writes == {(*tps(0),)[0]: (16, 3)}
    assert not of(done, cmd.CloseSession)
    assert of(member.answer_commit(), cmd.CloseSession)
    assert member.state.phase is Phase.CLOSED


def test_a_leave_after_an_error_does_not_commit_the_unfinished_message() -> None:
    """A member that leaves with purpose RELEASE commits only finished messages."""
    member = member_in(Phase.SETTLED)
    member.finished |= dict.fromkeys(tps(0), 15)
    member.delivered |= dict.fromkeys(tps(0), 16)
    done = member.send(ev.CloseRequested, purpose=Purpose.RELEASE)
    assert one(done, cmd.CommitOffsets).plan.writes == {(*tps(0),)[0]: (15, 3)}


def test_without_auto_commit_a_leave_commits_nothing() -> None:
    """With `auto.commit.enable=false` nothing is committed, not even at a release or a leave."""
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
    """A member that leaves waits at most one session timeout for its last commit."""
    member = member_in(Phase.LEAVING)
    assert not of(member.wait(5.9), cmd.CloseSession)
    assert of(member.wait(0.2), cmd.CloseSession)


def test_a_leaver_without_its_id_node_does_not_wait() -> None:
    """If the last commit finds no id znode, or the session is new, the member closes at once."""
    member = member_in(Phase.LEAVING)
    assert of(member.answer_commit(ev.MemberNodeGone()), cmd.CloseSession)
    member = member_in(Phase.LEAVING)
    member.send(ev.Suspended)
    done = member.send(ev.Connected, session=LATER, wall_ms=2)
    assert of(done, cmd.CloseSession)


def test_a_leaver_commits_after_a_reconnect() -> None:
    """If a last commit gets no reply, it is sent again after a reconnect of the same session."""
    member = member_in(Phase.LEAVING)
    member.send(ev.Suspended)
    assert of(member.connect(), cmd.CommitOffsets)
    assert of(member.answer_commit(), cmd.CloseSession)


@pytest.mark.parametrize("phase", RUNNING, ids=lambda p: p.value)
def test_a_member_can_leave_in_any_phase(phase: Phase) -> None:
    """A member can leave in any phase, and closes as soon as its commits have completed."""
    member = member_in(phase)
    member.send(ev.CloseRequested)
    member.drive()
    assert member.state.phase is Phase.CLOSED
    assert of(member.log, cmd.CloseSession)


def test_a_closed_member_ignores_all_events() -> None:
    """A closed member ignores a tick and a new session."""
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
    """End the running operation with one of the outcomes that its phase expects."""
    legal = {(member.state.phase, kind), (None, kind)} & OUTCOME_HANDLERS.keys()
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
    "ready": lambda m, numbers: m.user_finishes(tps(*numbers)),
    "suspend": lambda m, _: m.send(ev.Suspended),
    "client dies": lambda m, _: m.send(ev.ClientDied, reason="a bug", refused=False),
    "connect": lambda m, session: m.send(ev.Connected, session=session, wall_ms=1),
    "time": _time,
    "commit": _commit,
    "reset": lambda m, number: m.user_resets(_tp(number)),
}


@given(st.lists(HAPPENINGS, max_size=60), st.sampled_from(["incremental", "eager"]))
def test_a_member_settles_after_any_events(happenings: list[tuple[str, object]], mode: str) -> None:
    """After any events in any order the invariants hold, and the member settles in the end."""
    member = Member(mode=RebalanceMode(mode))
    member.settle()
    for what, how in happenings:
        HAPPEN[what](member, how)
        state = member.state
        assert state.serving <= state.owned.keys(), "delivered without ownership"
        assert state.serving.isdisjoint(state.unfetched)
        assert not (state.phase is Phase.SETTLED and state.read_again), "trigger lost"
        assert state.phase is not Phase.WAITING or state.retry_at is not None, "no deadline"
    member.send(ev.Suspended)
    member.send(ev.Connected, session=LATER, wall_ms=3)
    member.drive()
    if member.state.phase is Phase.WAITING:
        member.wait(3.0)
        member.drive()
    assert member.state.phase is Phase.SETTLED
    assert member.state.serving == tps(0, 1, 2, 3)


def test_the_automatic_commit_collects_positions_of_delivered_partitions() -> None:
    """An automatic commit collects the positions of exactly the delivered partitions."""
    member = member_in(Phase.SETTLED)
    member.finished |= dict.fromkeys(tps(0, 1, 2, 3), 20)
    done = member.wait(60.0)
    assert one(done, cmd.CollectPositions).partitions == tps(0, 1, 2, 3)
    assert one(done, cmd.CommitOffsets).plan.writes.keys() == tps(0, 1, 2, 3)
