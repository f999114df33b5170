"""The member of KIP-848's protocol: the commands with which it answers each event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from later.conftest import DrivenMember

from zkconsumer.later import consumer_member as machine
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.consumer_member import CLOSE_S, ConsumerPhase, ConsumerState
from zkconsumer.later.member_events import Callback
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
BOTH = frozenset({T0, T1})


class Member(DrivenMember):
    """A member of KIP-848's protocol, and the situations that the tests need."""

    def __init__(self, **properties: object) -> None:
        settings = replace(ClientSettings("g", "c", ("t",), auto_commit_s=None), **properties)
        super().__init__(machine, ConsumerState(settings))

    def hear(
        self,
        *partitions: TopicPartition,
        epoch: int = 1,
        error: Error = Error.NONE,
        same: bool = False,
    ) -> Member:
        """Answer the pending heartbeat, with a target assignment unless it is unchanged."""
        target = None if same or error is not Error.NONE else frozenset(partitions)
        answer = msg.ConsumerGroupAnswer(
            error=error, member="m", epoch=epoch, heartbeat_interval_s=5.0, assignment=target
        )
        return self.answer(answer, msg.ConsumerGroupHeartbeat)

    def load(self, **offsets: int) -> Member:
        """Answer the pending OffsetFetch; `p0=7` means that partition 0 has offset 7."""
        stored = {
            TopicPartition("t", int(name[1:])): OffsetAndMetadata(at)
            for name, at in offsets.items()
        }
        return self.answer(msg.OffsetsFetched(offsets=stored), msg.OffsetFetch)

    def heartbeat(self) -> msg.ConsumerGroupHeartbeat:
        """Return the only heartbeat among the last commands."""
        (one,) = self.sent(msg.ConsumerGroupHeartbeat)
        assert isinstance(one, msg.ConsumerGroupHeartbeat)
        return one

    def calls(self) -> list[tuple[Callback, frozenset[TopicPartition]]]:
        """Return the calls of the listener among the last commands, with the partitions of each."""
        return [
            (one.callback, one.partitions)
            for one in self.commands
            if isinstance(one, ev.CallListener)
        ]

    # ---- situations ------------------------------------------------------------------------------

    def joining(self) -> Member:
        self.give(ev.MetadataChanged, (0, 1), {"t": Topic(2)})
        self.give(ev.PollStarted)
        return self.answer(msg.FoundCoordinator(broker=1), msg.FindCoordinator)

    def stable(self) -> Member:
        """A member that owns both partitions, and has reported this to the coordinator."""
        self.joining().hear(T0, T1).load(p0=7)
        self.hear(same=True)
        assert self.state.phase is ConsumerPhase.STABLE
        return self

    def consumed(self) -> Member:
        """A member that has delivered messages of both partitions, which it can commit."""
        return self.stable().give(ev.Consumed, T0, 9).give(ev.Consumed, T1, 3)


# ---- joining -------------------------------------------------------------------------------------


def test_requests_before_the_first_message() -> None:
    """The first heartbeat has epoch 0 and all fields; the next ones acknowledge the target."""
    member = Member().joining()
    first = member.heartbeat()
    assert (first.epoch, first.topics, first.owned) == (0, ("t",), frozenset())
    member.hear(T0, T1)
    assert member.calls() == [(Callback.ASSIGNED, BOTH)]
    acknowledged = member.heartbeat()
    assert (acknowledged.epoch, acknowledged.owned) == (1, BOTH)
    assert acknowledged.topics is None, "the coordinator already knows the topics"
    member.load(p0=7)
    assert member.commands == (ev.StartFetching({T0: 7, T1: None}),)
    member.hear(same=True)
    assert machine.is_settled(member.state)


def test_heartbeats_keep_the_interval_of_the_coordinator() -> None:
    """A stable member sends a heartbeat when the interval ends, and only changed fields."""
    member = Member().stable()
    assert not member.give(ev.Tick, after_s=4.9).sent(msg.ConsumerGroupHeartbeat)
    again = member.give(ev.Tick, after_s=0.2).heartbeat()
    assert (again.epoch, again.topics, again.owned) == (1, None, None)


def test_one_heartbeat_at_a_time() -> None:
    """While a heartbeat has no answer, the member sends no further heartbeat."""
    member = Member().stable()
    member.give(ev.Tick, after_s=6.0)
    assert not member.give(ev.Tick, after_s=6.0).sent(msg.ConsumerGroupHeartbeat)


# ---- moving to a target --------------------------------------------------------------------------


def test_only_reassigned_partitions_are_revoked() -> None:
    """If the target is smaller, only the missing partition is revoked; the other is delivered."""
    member = Member().stable().give(ev.Tick, after_s=6.0).hear(T0, epoch=1)
    assert (Callback.REVOKED, frozenset({T1})) in member.calls()
    assert ev.StopFetching(frozenset({T1})) in member.commands
    assert member.state.owned == {T0}
    assert member.heartbeat().owned == {T0}


def test_reassigned_partitions_are_committed_before_they_are_revoked() -> None:
    """With automatic commits, the member revokes only after its commit has been answered."""
    member = Member(auto_commit_s=60.0).consumed().give(ev.Tick, after_s=6.0).hear(T0)
    (commit,) = member.sent(msg.OffsetCommit)
    assert isinstance(commit, msg.OffsetCommit)
    assert {tp: one.offset for tp, one in commit.offsets.items()} == {T0: 9, T1: 3}
    assert member.calls() == [] and member.state.owned == BOTH
    member.answer(msg.OffsetsCommitted(), msg.OffsetCommit)
    assert (Callback.REVOKED, frozenset({T1})) in member.calls()


def test_a_commit_refused_for_good_is_given_up() -> None:
    """If the coordinator refuses a commit permanently, the member drops it and revokes."""
    member = Member(auto_commit_s=60.0).consumed().give(ev.Tick, after_s=6.0).hear(T0)
    refused = msg.OffsetsCommitted(error=Error.UNKNOWN_MEMBER_ID)
    member.answer(refused, msg.OffsetCommit)
    assert (Callback.REVOKED, frozenset({T1})) in member.calls()


def test_a_commit_with_a_stale_epoch_is_repeated() -> None:
    """After STALE_MEMBER_EPOCH the commit is repeated when the back-off has ended."""
    member = Member(auto_commit_s=60.0).consumed().give(ev.Tick, after_s=6.0).hear(T0)
    member.answer(msg.OffsetsCommitted(error=Error.STALE_MEMBER_EPOCH), msg.OffsetCommit)
    assert member.state.owned == BOTH
    assert member.give(ev.Tick, after_s=0.2).sent(msg.OffsetCommit)


def test_nothing_is_revoked_while_the_user_does_not_poll() -> None:
    """The listener is called only in `poll`; before that the member keeps its partitions."""
    member = Member().stable().give(ev.PollReturned).give(ev.Tick, after_s=6.0).hear(T0)
    assert member.calls() == [] and member.state.owned == BOTH
    assert member.state.phase is ConsumerPhase.RECONCILING
    member.give(ev.PollStarted)
    assert (Callback.REVOKED, frozenset({T1})) in member.calls()


def test_a_newer_target_replaces_one_that_waits() -> None:
    """The member completes and acknowledges its present target before it starts the next."""
    member = Member().stable().give(ev.PollReturned).give(ev.Tick, after_s=6.0).hear(T0)
    member.give(ev.Tick, after_s=6.0).hear(T0, T1, T2, epoch=2)
    member.give(ev.PollStarted)
    assert member.state.owned == {T0}
    assert member.heartbeat().owned == {T0}
    member.hear(T0, T1, T2, epoch=2)
    assert (Callback.ASSIGNED, frozenset({T1, T2})) in member.calls()


def test_an_unchanged_target_is_acknowledged_without_a_move() -> None:
    """If the target is unchanged the epoch increases, but nothing moves and nothing is called."""
    member = Member().stable().give(ev.Tick, after_s=6.0).hear(T0, T1, epoch=2)
    assert member.calls() == []
    assert (member.state.phase, member.state.epoch) == (ConsumerPhase.STABLE, 2)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Error.FENCED_MEMBER_EPOCH, Error.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_loses_all_and_joins_again(error: Error) -> None:
    """A fenced member commits nothing, calls `onPartitionsLost`, and joins with epoch 0."""
    member = Member(auto_commit_s=60.0).consumed().give(ev.Tick, after_s=6.0).hear(error=error)
    assert member.calls() == [(Callback.LOST, BOTH)]
    assert member.sent(msg.OffsetCommit) == []
    again = member.heartbeat()
    assert (again.epoch, again.topics, again.owned) == (0, ("t",), frozenset())


def test_a_fenced_member_waits_for_the_user() -> None:
    """While the user does not poll, a fenced member neither calls its listener nor joins."""
    member = Member().stable().give(ev.PollReturned).give(ev.Tick, after_s=6.0)
    member.hear(error=Error.FENCED_MEMBER_EPOCH)
    assert member.state.phase is ConsumerPhase.FENCED and member.commands == ()
    member.give(ev.PollStarted)
    assert member.calls() == [(Callback.LOST, BOTH)] and member.heartbeat().epoch == 0


@pytest.mark.parametrize("error", [Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE])
def test_the_coordinator_has_moved(error: Error) -> None:
    """If the coordinator moves, the member keeps its partitions, and sends all fields again."""
    member = Member().stable().give(ev.Tick, after_s=6.0).hear(error=error)
    assert member.state.owned == BOTH and member.state.epoch == 1
    member.answer(msg.FoundCoordinator(broker=0), msg.FindCoordinator)
    again = member.give(ev.Tick, after_s=0.2).heartbeat()
    assert (again.epoch, again.topics, again.owned) == (1, ("t",), BOTH)


def test_a_coordinator_that_loads_is_asked_again() -> None:
    """After COORDINATOR_LOAD_IN_PROGRESS all fields are sent again when the back-off has ended."""
    member = Member().stable().give(ev.Tick, after_s=6.0)
    member.hear(error=Error.COORDINATOR_LOAD_IN_PROGRESS)
    assert member.state.client.coordinator == 1 and member.commands == ()
    assert member.give(ev.Tick, after_s=0.2).heartbeat().topics == ("t",)


def test_an_error_that_no_retry_avoids() -> None:
    """After a permanent error the member loses its partitions, and `poll` raises the error."""
    member = Member().stable().give(ev.Tick, after_s=6.0)
    member.hear(error=Error.GROUP_MAX_SIZE_REACHED)
    assert member.calls() == [(Callback.LOST, BOTH)]
    assert ev.Fail(Error.GROUP_MAX_SIZE_REACHED) in member.commands
    assert machine.is_over(member.state)
    assert member.give(ev.Tick, after_s=9.0).commands == ()


def paused_before_the_offsets() -> Member:
    """Return a member paused past its session, before it has read new partitions' offsets."""
    member = Member().joining().hear(T0, T1)
    assert member.sent(msg.ConsumerGroupHeartbeat) and member.sent(msg.OffsetFetch)
    return member.give(ev.Tick, after_s=10.0)


def test_poll_raises_if_the_session_ends_before_the_offsets_are_read() -> None:
    """If the session ends before the offsets are read, `poll` raises; later the member rejoins."""
    member = paused_before_the_offsets()
    member.answer(msg.OffsetsFetched(error=Error.UNKNOWN_MEMBER_ID), msg.OffsetFetch)
    assert member.commands == (ev.Raise(Error.UNKNOWN_MEMBER_ID),)
    assert member.state.owned == BOTH
    member.hear(error=Error.UNKNOWN_MEMBER_ID)
    assert member.calls() == [(Callback.LOST, BOTH)]
    assert member.give(ev.Tick, after_s=0.2).heartbeat().epoch == 0


def test_poll_raises_even_if_the_heartbeat_is_refused_first() -> None:
    """Even after a refused heartbeat `poll` raises at the offsets' answer; then come the calls."""
    member = paused_before_the_offsets().hear(error=Error.UNKNOWN_MEMBER_ID)
    assert member.commands == ()
    member.answer(msg.OffsetsFetched(error=Error.UNKNOWN_MEMBER_ID), msg.OffsetFetch)
    assert member.commands[0] == ev.Raise(Error.UNKNOWN_MEMBER_ID)
    assert member.calls() == [(Callback.LOST, BOTH)]
    assert member.heartbeat().epoch == 0


def test_poll_does_not_raise_if_the_offsets_are_known() -> None:
    """If the offsets were read before the pause, partitions are lost, but `poll` raises nothing."""
    member = Member().stable().give(ev.Tick, after_s=10.0).hear(error=Error.UNKNOWN_MEMBER_ID)
    assert member.calls() == [(Callback.LOST, BOTH)]
    assert not any(isinstance(one, ev.Raise) for one in member.commands)


def test_a_lost_connection_ends_no_membership() -> None:
    """After a lost connection the member looks for its coordinator, but keeps delivering."""
    member = Member().stable().give(ev.Disconnected, 1)
    assert member.state.owned == BOTH and member.calls() == []
    assert member.sent(msg.FindCoordinator)


# ---- the user ------------------------------------------------------------------------------------


def test_a_user_that_never_polls_is_no_member_any_more() -> None:
    """After `max.poll.interval.ms` the member leaves, and loses all partitions at the next poll."""
    member = Member(poll_s=10.0).stable().give(ev.PollReturned).give(ev.Tick, after_s=10.0)
    assert member.heartbeat().epoch == msg.LEAVE_EPOCH
    assert member.state.phase is ConsumerPhase.STALE and member.calls() == []
    member.hear(epoch=msg.LEAVE_EPOCH, same=True).give(ev.PollStarted, after_s=60.0)
    assert member.calls() == [(Callback.LOST, BOTH)] and member.heartbeat().epoch == 0


def test_automatic_commits() -> None:
    """At each interval the member commits the positions of all partitions, with its epoch."""
    member = Member(auto_commit_s=5.0).consumed().give(ev.Tick, after_s=5.1)
    (commit,) = member.sent(msg.OffsetCommit)
    assert isinstance(commit, msg.OffsetCommit)
    assert (commit.member, commit.generation) == ("m", 1)
    assert {tp: one.offset for tp, one in commit.offsets.items()} == {T0: 9, T1: 3}


# ---- closing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance", "epoch"), [(None, msg.LEAVE_EPOCH), ("i", msg.LEAVE_STATIC_EPOCH)]
)
def test_closing(instance: str | None, epoch: int) -> None:
    """A member that closes commits, calls the listener, and sends the epoch of a leave."""
    member = Member(auto_commit_s=60.0, instance=instance).consumed().give(ev.CloseRequested)
    assert member.sent(msg.OffsetCommit) and member.calls() == []
    member.answer(msg.OffsetsCommitted(), msg.OffsetCommit)
    assert member.calls() == [(Callback.REVOKED, BOTH)]
    assert member.heartbeat().epoch == epoch
    assert member.state.phase is ConsumerPhase.CLOSED


def test_closing_without_an_answer() -> None:
    """A member that closes waits 30 s for its last commit, and then closes without an answer."""
    member = Member(auto_commit_s=60.0).consumed().give(ev.CloseRequested)
    assert not machine.is_over(member.give(ev.Tick, after_s=CLOSE_S - 1).state)
    assert machine.is_over(member.give(ev.Tick, after_s=1.0).state)


def test_the_next_deadline() -> None:
    """A stable member has the deadline of its next heartbeat; a closed member has none."""
    member = Member().stable()
    assert machine.next_deadline(member.state, member.now) == pytest.approx(5.0)
    member.give(ev.CloseRequested)
    assert machine.next_deadline(member.state, member.now) == float("inf")
