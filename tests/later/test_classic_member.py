"""The member of the classic protocol: the commands with which it answers each event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from later.conftest import DrivenMember

from zkconsumer.later import classic_member as machine
from zkconsumer.later import member_events as ev
from zkconsumer.later.classic_member_state import ClassicPhase, ClassicState
from zkconsumer.later.client_state import ClientSettings, Mode
from zkconsumer.later.member_events import Callback
from zkconsumer.protocol.later import consumer_protocol as wire
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({T0, T1})
COOPERATIVE = ("cooperative-sticky",)


class Member(DrivenMember):
    """A member of the classic protocol, and the situations that the tests need."""

    def __init__(self, **properties: object) -> None:
        settings = replace(ClientSettings("g", "c", ("t",), ("range",)), **properties)
        super().__init__(machine, ClassicState(settings))

    def calls(self) -> list[Callback]:
        """Return the calls of the listener among the last commands."""
        return [one.callback for one in self.commands if isinstance(one, ev.CallListener)]

    # ---- situations ------------------------------------------------------------------------------

    def searching(self) -> Member:
        self.give(ev.MetadataChanged, (0, 1), {"t": Topic(2)})
        return self.give(ev.PollStarted)

    def joining(self) -> Member:
        return self.searching().answer(msg.FoundCoordinator(broker=1), msg.FindCoordinator)

    def completing(self, *, generation: int = 1, leads: bool = False) -> Member:
        members = ()
        if leads:
            data = wire.encode_subscription(Subscription(("t",)))
            members = (msg.JoinedMember("c-1", None, data),)
        joined = msg.Joined(
            member="c-1",
            generation=generation,
            protocol=self.state.settings.assignors[0],
            leader="c-1" if leads else "d-1",
            members=members,
        )
        return self.answer(joined, msg.JoinGroup)

    def assigned(self, *partitions: TopicPartition) -> Member:
        data = wire.encode_assignment(partitions)
        return self.answer(msg.Synced(assignment=data), msg.SyncGroup)

    def stable(self) -> Member:
        self.joining().completing().assigned(T0, T1)
        stored = {T0: OffsetAndMetadata(7)}
        return self.answer(msg.OffsetsFetched(offsets=stored), msg.OffsetFetch)


# ---- joining -------------------------------------------------------------------------------------


def test_requests_before_the_first_message() -> None:
    """Before the first message come FindCoordinator, JoinGroup, SyncGroup and OffsetFetch."""
    member = Member().searching()
    assert [one.broker for one in member.commands if isinstance(one, ev.Send)] == [0]
    member.answer(msg.FoundCoordinator(broker=1), msg.FindCoordinator)
    assert member.sent(msg.JoinGroup) and member.state.phase is ClassicPhase.PREPARING
    member.completing()
    assert member.sent(msg.SyncGroup) and member.state.phase is ClassicPhase.COMPLETING
    member.assigned(T0, T1)
    assert member.state.phase is ClassicPhase.STABLE
    assert member.calls() == [Callback.ASSIGNED] and member.sent(msg.OffsetFetch)
    stored = {T0: OffsetAndMetadata(7)}
    member.answer(msg.OffsetsFetched(offsets=stored), msg.OffsetFetch)
    assert member.commands == (ev.StartFetching({T0: 7, T1: None}),)
    assert machine.is_settled(member.state)


def test_the_leader_assigns() -> None:
    """The leader computes the assignment with the assignor that the coordinator names."""
    member = Member().joining().completing(leads=True)
    (sync,) = member.sent(msg.SyncGroup)
    assert isinstance(sync, msg.SyncGroup)
    assert {one: wire.decode_assignment(data)[0] for one, data in sync.assignments.items()} == {
        "c-1": (T0, T1)
    }


def test_a_leader_fails_if_its_assignor_does() -> None:
    """A member owns a partition that the leader's metadata lacks: `poll` raises, as in Kafka."""
    member = Member(assignors=COOPERATIVE).joining()
    known = Subscription(("t",))
    members = tuple(
        msg.JoinedMember(name, None, wire.encode_subscription(replace(known, owned=owned)))
        for name, owned in (("c-1", (T0,)), ("d-1", (TopicPartition("t", 2),)))
    )
    joined = msg.Joined(
        member="c-1", generation=3, protocol="cooperative-sticky", leader="c-1", members=members
    )
    member.answer(joined, msg.JoinGroup)
    assert member.state.phase is ClassicPhase.FAILED
    assert member.commands == (ev.Fail(Error.UNKNOWN_SERVER_ERROR),)


def test_a_restarted_static_leader_keeps_the_assignment() -> None:
    """If the reply has `skip_assignment`, a restarted static leader sends no assignment."""
    member = Member(instance="i").joining()
    joined = msg.Joined(
        member="c-1", generation=3, protocol="range", leader="c-1", skip_assignment=True
    )
    member.answer(joined, msg.JoinGroup)
    (sync,) = member.sent(msg.SyncGroup)
    assert isinstance(sync, msg.SyncGroup) and not sync.assignments


@pytest.mark.parametrize(
    ("assignors", "mode"),
    [
        (("range", "cooperative-sticky"), Mode.EAGER),
        (("cooperative-sticky",), Mode.COOPERATIVE),
        (("sticky",), Mode.EAGER),
    ],
)
def test_a_member_with_an_eager_assignor_is_eager(assignors: tuple[str, ...], mode: Mode) -> None:
    """A member is cooperative only if all its assignors are cooperative."""
    assert ClientSettings("g", "c", ("t",), assignors).mode is mode


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Error.MEMBER_ID_REQUIRED, True),
        (Error.UNKNOWN_MEMBER_ID, True),
        (Error.REBALANCE_IN_PROGRESS, True),
        (Error.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_a_join_is_repeated(error: Error, again: bool) -> None:
    """After some errors JoinGroup is repeated at once, after others when a back-off has ended."""
    member = Member().joining().answer(msg.Joined(error, "c-1"), msg.JoinGroup)
    assert bool(member.sent(msg.JoinGroup)) is again
    if not again:
        assert member.give(ev.Tick, after_s=0.2).sent(msg.JoinGroup)


@pytest.mark.parametrize(
    "error",
    [Error.INCONSISTENT_GROUP_PROTOCOL, Error.FENCED_INSTANCE_ID, Error.GROUP_MAX_SIZE_REACHED],
)
def test_poll_raises_a_permanent_error_of_a_join(error: Error) -> None:
    """If no retry can succeed, `poll` raises the error of the join."""
    member = Member().joining().answer(msg.Joined(error), msg.JoinGroup)
    assert member.state.phase is ClassicPhase.FAILED
    assert member.commands == (ev.Fail(error),)
    assert member.give(ev.Tick, after_s=60.0).commands == ()


def test_the_coordinator_has_moved_before_the_join() -> None:
    """After NOT_COORDINATOR the member looks for the coordinator, and joins the group there."""
    member = Member().joining().answer(msg.Joined(Error.NOT_COORDINATOR), msg.JoinGroup)
    assert member.sent(msg.FindCoordinator)
    member.answer(msg.FoundCoordinator(broker=0), msg.FindCoordinator)
    assert member.give(ev.Tick, after_s=0.2).sent(msg.JoinGroup)


@pytest.mark.parametrize("error", [Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION])
def test_a_sync_is_refused(error: Error) -> None:
    """If SyncGroup is refused the member rejoins; if its id is unknown, without an id."""
    member = Member().joining().completing()
    member.answer(msg.Synced(error), msg.SyncGroup)
    (join,) = member.sent(msg.JoinGroup)
    assert isinstance(join, msg.JoinGroup)
    assert join.member == ("" if error is Error.UNKNOWN_MEMBER_ID else "c-1")


def test_the_look_up_backs_off() -> None:
    """A failed look-up is repeated after 0.1 s, 0.2 s, 0.4 s, and so on, up to 1 s."""
    member, pauses = Member().searching(), []
    for _ in range(6):
        member.answer(msg.FoundCoordinator(Error.COORDINATOR_NOT_AVAILABLE), msg.FindCoordinator)
        due = machine.next_deadline(member.state, member.now)
        pauses.append(round(due - member.now, 3))
        member.give(ev.Tick, after_s=due - member.now)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


# ---- rebalances ----------------------------------------------------------------------------------


def test_an_eager_member_revokes_all_before_it_joins() -> None:
    """An eager member stops delivery, commits, calls the listener, and then sends JoinGroup."""
    member = Member().stable().give(ev.Tick, after_s=3.0)
    member.answer(msg.HeartbeatAnswer(Error.REBALANCE_IN_PROGRESS), msg.Heartbeat)
    assert member.commands[0] == ev.StopFetching(BOTH) and member.sent(msg.OffsetCommit)
    assert not member.sent(msg.JoinGroup)
    member.answer(msg.OffsetsCommitted(), msg.OffsetCommit)
    assert member.calls() == [Callback.REVOKED] and member.sent(msg.JoinGroup)
    assert not member.state.owned


def test_a_cooperative_member_keeps_delivering() -> None:
    """A cooperative member revokes only the partitions that it loses, and then joins again."""
    member = Member(assignors=COOPERATIVE).stable().give(ev.Tick, after_s=3.0)
    member.answer(msg.HeartbeatAnswer(Error.REBALANCE_IN_PROGRESS), msg.Heartbeat)
    member.answer(msg.OffsetsCommitted(), msg.OffsetCommit)
    assert member.sent(msg.JoinGroup) and member.calls() == []
    member.completing(generation=2).assigned(T0)
    assert member.commands[0] == ev.StopFetching(frozenset({T1}))
    assert member.calls() == [Callback.REVOKED, Callback.ASSIGNED]
    assert member.state.owned == {T0} and member.state.rejoin


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE])
@pytest.mark.parametrize("error", [Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION])
def test_a_lost_generation(error: Error, assignors: tuple[str, ...]) -> None:
    """A fenced member loses all partitions without a commit (`onPartitionsLost`), and rejoins."""
    member = Member(assignors=assignors).stable().give(ev.Tick, after_s=3.0)
    member.answer(msg.HeartbeatAnswer(error), msg.Heartbeat)
    assert member.calls() == [Callback.LOST] and not member.sent(msg.OffsetCommit)
    assert member.sent(msg.JoinGroup) and not member.state.owned


def test_an_old_heartbeat_s_answer_is_ignored() -> None:
    """UNKNOWN_MEMBER_ID for an earlier membership does not affect the present membership."""
    member = Member().stable().give(ev.Tick, after_s=3.0)
    member.state = replace(member.state, generation=2)
    member.answer(msg.HeartbeatAnswer(Error.UNKNOWN_MEMBER_ID), msg.Heartbeat)
    assert member.state.phase is ClassicPhase.STABLE


def test_a_user_that_does_not_poll_delays_the_join() -> None:
    """If a heartbeat's reply reports a rebalance, the member waits for the user's next poll."""
    member = Member().stable().give(ev.PollReturned).give(ev.Tick, after_s=3.0)
    member.answer(msg.HeartbeatAnswer(Error.REBALANCE_IN_PROGRESS), msg.Heartbeat)
    assert member.commands == ()
    assert member.give(ev.PollStarted).sent(msg.OffsetCommit)


def test_a_user_that_never_polls_is_no_member_any_more() -> None:
    """After `max.poll.interval.ms` the member leaves, and loses all partitions at the next poll."""
    member = Member(poll_s=10.0).stable().give(ev.PollReturned).give(ev.Tick, after_s=10.0)
    assert member.sent(msg.LeaveGroup) and member.state.phase is ClassicPhase.UNJOINED
    assert member.give(ev.PollStarted).calls() == [Callback.LOST]


def test_the_leader_watches_its_topics() -> None:
    """If a topic gets new partitions, the leader joins again, but other members do not."""
    more = (0, 1), {"t": Topic(3)}
    leader = Member().joining().completing(leads=True).assigned(T0, T1)
    assert leader.give(ev.MetadataChanged, *more).state.rejoin
    assert not Member().stable().give(ev.MetadataChanged, *more).state.rejoin


# ---- connections and commits ---------------------------------------------------------------------


def test_a_lost_connection_ends_no_membership() -> None:
    """After a lost connection the member looks for its coordinator, but keeps delivering."""
    member = Member().stable().give(ev.Disconnected, 1)
    assert member.sent(msg.FindCoordinator) and member.state.owned == BOTH
    member.answer(msg.FoundCoordinator(broker=1), msg.FindCoordinator)
    assert member.state.phase is ClassicPhase.STABLE and not member.sent(msg.JoinGroup)


def test_a_coordinator_without_answers_is_looked_up_again() -> None:
    """If nothing answers for a session timeout, the member looks for its coordinator again."""
    member = Member(session_s=10.0).stable()
    for _ in range(3):
        member.give(ev.Tick, after_s=3.0)
        assert member.state.client.coordinator == 1
    member.give(ev.Tick, after_s=1.0)
    assert member.state.client.coordinator is None


def test_automatic_commits() -> None:
    """At each interval the member commits the positions of all partitions, in its generation."""
    member = Member(auto_commit_s=5.0).stable().give(ev.Consumed, T0, 9)
    (commit,) = member.give(ev.Tick, after_s=5.0).sent(msg.OffsetCommit)
    assert isinstance(commit, msg.OffsetCommit) and commit.generation == 1
    assert {tp: one.offset for tp, one in commit.offsets.items()} == {T0: 9, T1: 0}


def test_without_automatic_commits() -> None:
    """With `enable.auto.commit=false` a rebalance commits nothing."""
    member = Member(auto_commit_s=None).stable().give(ev.Tick, after_s=3.0)
    member.answer(msg.HeartbeatAnswer(Error.REBALANCE_IN_PROGRESS), msg.Heartbeat)
    assert member.sent(msg.JoinGroup) and not member.sent(msg.OffsetCommit)


def test_a_commit_of_an_old_generation() -> None:
    """If a commit is refused for its old generation, the membership ends; the member rejoins."""
    member = Member(auto_commit_s=2.0).stable().give(ev.Tick, after_s=2.0)
    member.answer(msg.OffsetsCommitted(Error.ILLEGAL_GENERATION), msg.OffsetCommit)
    assert member.calls() == [Callback.LOST] and member.sent(msg.JoinGroup)


def test_a_commit_before_a_join_is_repeated() -> None:
    """If the coordinator moves, the member sends its commit to the new one before it joins."""
    member = Member().stable().give(ev.Tick, after_s=3.0)
    member.answer(msg.HeartbeatAnswer(Error.REBALANCE_IN_PROGRESS), msg.Heartbeat)
    member.answer(msg.OffsetsCommitted(Error.NOT_COORDINATOR), msg.OffsetCommit)
    member.answer(msg.FoundCoordinator(broker=0), msg.FindCoordinator)
    member.give(ev.Tick, after_s=0.2)
    assert member.sent(msg.OffsetCommit) and not member.sent(msg.JoinGroup)


# ---- closing -------------------------------------------------------------------------------------


def test_closing() -> None:
    """A closing member commits, calls the listener, and sends LeaveGroup, in this order."""
    member = Member().stable().give(ev.CloseRequested)
    assert member.sent(msg.OffsetCommit) and not member.sent(msg.LeaveGroup)
    member.answer(msg.OffsetsCommitted(), msg.OffsetCommit)
    assert member.calls() == [Callback.REVOKED] and member.sent(msg.LeaveGroup)
    assert member.state.phase is ClassicPhase.CLOSED


def test_a_static_member_does_not_leave() -> None:
    """A static member that is closed sends no LeaveGroup, so its session continues."""
    member = Member(instance="i", auto_commit_s=None).stable().give(ev.CloseRequested)
    assert not member.sent(msg.LeaveGroup) and member.state.phase is ClassicPhase.CLOSED


def test_closing_without_a_coordinator() -> None:
    """A member that closes tries its last commit for 30 s, and then closes without it."""
    member = Member().stable().give(ev.Disconnected, 1).give(ev.CloseRequested)
    assert member.state.phase is ClassicPhase.STABLE
    assert member.give(ev.Tick, after_s=30.0).state.phase is ClassicPhase.CLOSED


def test_an_unknown_event() -> None:
    """An event of an unknown class is an error of the caller, and raises."""
    with pytest.raises(machine.ImpossibleEventError):
        machine.step(Member().state, ev.Event(0.0))
