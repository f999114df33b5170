"""What Kafka's documents say about the group coordinator, as short histories of a group."""

from __future__ import annotations

from typing import Any

import pytest

from zkconsumer.later.classic_state import ClassicGroup
from zkconsumer.later.consumer_group import ConsumerGroup, ConsumerGroupPhase
from zkconsumer.later.group_coordinator import (
    GroupCoordinator,
    group_of,
    next_deadline,
    step,
    stored,
)
from zkconsumer.later.group_events import (
    Elected,
    Event,
    Loaded,
    Received,
    Resigned,
    Tick,
    TopicsChanged,
)
from zkconsumer.later.group_phases import GroupPhase
from zkconsumer.protocol.later.consumer_protocol import (
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
)
from zkconsumer.protocol.later.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupAnswer,
    ConsumerGroupHeartbeat,
    Error,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Leaver,
    OffsetCommit,
    OffsetFetch,
    Protocol,
    Request,
    Response,
    Synced,
    SyncGroup,
)
from zkconsumer.protocol.later.subscriptions import Subscription, Topic
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition, coordinator_partition

GROUP = "billing"
PLACE = coordinator_partition(GROUP)
RANGE = (Protocol("range", encode_subscription(Subscription(("t",)))),)
DAY_S = 86_400.0


class Broker:
    """A coordinator with a clock, and the answers received so far."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.state, self.now_s, self.number = GroupCoordinator(), now_s, 0
        self.answers: dict[int, Response] = {}
        self.handle(Elected(PLACE))

    def handle(self, event: Event) -> None:
        self.state, replies = step(self.state, event, self.now_s)
        self.answers.update((one.number, one.response) for one in replies)

    def start(self) -> Broker:
        self.handle(Loaded(PLACE, {}))
        return self

    def send(self, request: Request, client: str = "c") -> int:
        self.number += 1
        self.handle(Received(self.number, request, client, f"id{self.number}"))
        return self.number

    def ask(self, request: Request) -> Any:
        """Send a request that gets its answer at once."""
        return self.answers[self.send(request)]

    def until(self, now_s: float) -> None:
        while next_deadline(self.state) <= now_s:
            self.now_s = max(self.now_s, next_deadline(self.state))
            self.handle(Tick())
        self.now_s = now_s

    @property
    def group(self) -> ClassicGroup:
        found = group_of(self.state, GROUP)
        assert isinstance(found, ClassicGroup)
        return found

    @property
    def consumers(self) -> ConsumerGroup:
        found = group_of(self.state, GROUP)
        assert isinstance(found, ConsumerGroup)
        return found

    # ---- what several tests do -------------------------------------------------------------------

    def newcomer(self, **fields: Any) -> tuple[str, int]:
        """Join as a new dynamic member in two steps; the second step waits for the group."""
        asked = self.ask(JoinGroup(GROUP, "", RANGE, **fields))
        assert asked.error is Error.MEMBER_ID_REQUIRED
        return asked.member, self.send(JoinGroup(GROUP, asked.member, RANGE, **fields))

    def joined(self, number: int) -> Joined:
        found = self.answers[number]
        assert isinstance(found, Joined) and found.error is Error.NONE
        return found

    def stable(self, **fields: Any) -> tuple[str, str]:
        """A stable group in generation 1, with a leader and a follower."""
        leader, one = self.newcomer(**fields)
        follower, two = self.newcomer(**fields)
        self.until(self.now_s + 10.0)
        assert self.joined(one).leader == self.joined(two).leader == leader
        assigned = {leader: b"first", follower: b"second"}
        assert self.ask(SyncGroup(GROUP, leader, 1, assigned)).assignment == b"first"
        assert self.ask(SyncGroup(GROUP, follower, 1)).assignment == b"second"
        assert self.group.phase is GroupPhase.STABLE
        return leader, follower


@pytest.fixture
def broker() -> Broker:
    return Broker().start()


# ---- joining -------------------------------------------------------------------------------------


def test_the_first_rebalance_waits_three_seconds(broker: Broker) -> None:
    """The first JoinGroup is answered after group.initial.rebalance.delay.ms."""
    member, number = broker.newcomer()
    broker.until(2.9)
    assert number not in broker.answers
    broker.until(3.0)
    found = broker.joined(number)
    assert (found.generation, found.leader) == (1, member)
    assert [one.member for one in found.members] == [member]


def test_a_newcomer_extends_the_first_rebalance(broker: Broker) -> None:
    """If a member joins during the delay, the delay grows by 3 s, up to the rebalance timeout."""
    numbers = [broker.newcomer(rebalance_timeout_s=8.0)[1]]
    for at_s in (2.0, 5.0):
        broker.until(at_s)
        numbers.append(broker.newcomer(rebalance_timeout_s=8.0)[1])
    broker.until(7.9)
    assert not any(number in broker.answers for number in numbers)
    broker.until(8.0)
    assert {broker.joined(number).generation for number in numbers} == {1}


def test_a_later_rebalance_waits_for_the_members_only(broker: Broker) -> None:
    """JoinGroup waits only until the last member has joined; there is no additional delay."""
    leader, follower = broker.stable()
    _, new = broker.newcomer()
    for member in (leader, follower):
        assert broker.ask(Heartbeat(GROUP, member, 1)).error is Error.REBALANCE_IN_PROGRESS
    one = broker.send(JoinGroup(GROUP, leader, RANGE))
    assert new not in broker.answers and one not in broker.answers
    two = broker.send(JoinGroup(GROUP, follower, RANGE))
    assert [broker.joined(number).generation for number in (one, two, new)] == [2, 2, 2]
    lists = [len(broker.joined(number).members) for number in (one, two, new)]
    assert lists == [3, 0, 0]  # Only the leader gets the list of members.


def test_a_slow_leader_loses_its_place(broker: Broker) -> None:
    """After the longest rebalance timeout, the group continues without the leader."""
    leader, follower = broker.stable(session_timeout_s=100.0, rebalance_timeout_s=60.0)
    start_s = broker.now_s
    changed = (Protocol("range", b"changed"),)
    number = broker.send(JoinGroup(GROUP, follower, changed, None, 100.0, 60.0))
    broker.until(start_s + 59.0)
    assert number not in broker.answers
    broker.until(start_s + 60.0)
    assert broker.joined(number).leader == follower
    assert broker.ask(Heartbeat(GROUP, leader, 1)).error is Error.UNKNOWN_MEMBER_ID


def test_a_member_without_a_common_assignor_is_refused(broker: Broker) -> None:
    """A member without a common assignor gets INCONSISTENT_GROUP_PROTOCOL; nothing changes."""
    broker.stable()
    before = broker.group
    other = JoinGroup(GROUP, "", (Protocol("sticky"),))
    assert broker.ask(other).error is Error.INCONSISTENT_GROUP_PROTOCOL
    assert broker.group == before


# ---- generations ---------------------------------------------------------------------------------


def test_followers_wait_for_the_leader(broker: Broker) -> None:
    """A follower's SyncGroup waits for the leader; members that the leader left out get nothing."""
    leader, one = broker.newcomer()
    follower, two = broker.newcomer()
    broker.until(10.0)
    assert broker.joined(one).generation == broker.joined(two).generation == 1
    parked = broker.send(SyncGroup(GROUP, follower, 1))
    assert parked not in broker.answers
    assert broker.ask(SyncGroup(GROUP, leader, 1, {leader: b"all"})).assignment == b"all"
    answer = broker.answers[parked]
    assert isinstance(answer, Synced)
    assert (answer.error, answer.assignment) == (Error.NONE, b"")


def test_a_member_frozen_past_its_session_cannot_commit(broker: Broker) -> None:
    """If a member was frozen beyond its session, it cannot overwrite its successor's offsets."""
    leader, zombie = broker.stable(session_timeout_s=10.0)
    partition = TopicPartition("t", 0)

    def commit(member: str, generation: int, offset: int) -> Error:
        offsets = {partition: OffsetAndMetadata(offset)}
        found: Response = broker.ask(OffsetCommit(GROUP, offsets, member, generation))
        return found.error

    assert commit(zombie, 1, 5) is Error.NONE
    broker.until(broker.now_s + 9.0)
    assert broker.ask(Heartbeat(GROUP, leader, 1)).error is Error.NONE
    broker.until(broker.now_s + 2.0)
    number = broker.send(JoinGroup(GROUP, leader, RANGE, None, 10.0))
    assert broker.joined(number).generation == 2
    broker.ask(SyncGroup(GROUP, leader, 2, {leader: b"all"}))
    assert commit(leader, 2, 9) is Error.NONE
    assert commit(zombie, 1, 6) is Error.UNKNOWN_MEMBER_ID
    assert commit(leader, 1, 7) is Error.ILLEGAL_GENERATION
    assert broker.ask(Heartbeat(GROUP, zombie, 1)).error is Error.UNKNOWN_MEMBER_ID
    assert broker.ask(OffsetFetch(GROUP)).offsets == {partition: OffsetAndMetadata(9)}


def test_a_static_member_restarts_without_a_rebalance(broker: Broker) -> None:
    """A restarted static member keeps assignment and generation, and its old id is fenced."""
    number = broker.send(JoinGroup(GROUP, "", RANGE, "i1"))
    broker.until(10.0)
    old = broker.joined(number).member
    broker.ask(SyncGroup(GROUP, old, 1, {old: b"all"}, "i1"))
    again = broker.ask(JoinGroup(GROUP, "", RANGE, "i1"))
    assert (again.generation, again.leader, again.skip_assignment) == (1, again.member, True)
    assert again.member != old
    assert broker.ask(SyncGroup(GROUP, again.member, 1, {}, "i1")).assignment == b"all"
    assert broker.ask(Heartbeat(GROUP, old, 1, "i1")).error is Error.FENCED_INSTANCE_ID


# ---- the coordinator moves, and offsets expire ---------------------------------------------------


def test_another_broker_continues_with_the_last_stable_generation() -> None:
    """The new coordinator reads the group's state; waiting requests get NOT_COORDINATOR."""
    old, new = Broker().start(), Broker()
    leader, follower = old.stable()
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(5)}
    old.ask(OffsetCommit(GROUP, offsets, leader, 1))
    _, parked = old.newcomer()
    records = stored(old.state, PLACE)
    old.handle(Resigned(PLACE))
    assert old.answers[parked].error is Error.NOT_COORDINATOR
    assert old.ask(Heartbeat(GROUP, leader, 1)).error is Error.NOT_COORDINATOR
    loading = new.ask(SyncGroup(GROUP, leader, 1))
    assert loading.error is Error.COORDINATOR_LOAD_IN_PROGRESS
    # The new coordinator does not know the lost request.
    assert new.ask(Heartbeat(GROUP, leader, 1)).error is Error.NONE
    new.handle(Loaded(PLACE, records))
    assert new.ask(Heartbeat(GROUP, follower, 1)).error is Error.NONE
    assert new.ask(SyncGroup(GROUP, follower, 1)).assignment == b"second"
    assert new.ask(OffsetFetch(GROUP)).offsets == offsets


def test_offsets_expire_a_week_after_the_group_is_empty(broker: Broker) -> None:
    """offsets.retention.minutes counts from when the last member left, not from the commit."""
    leader, follower = broker.stable(session_timeout_s=1800.0)
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(5)}
    broker.ask(OffsetCommit(GROUP, offsets, leader, 1))
    broker.until(1000.0)
    broker.ask(LeaveGroup(GROUP, (Leaver(leader), Leaver(follower))))
    assert broker.group.phase is GroupPhase.EMPTY
    broker.until(1000.0 + 7 * DAY_S - 1.0)
    assert broker.ask(OffsetFetch(GROUP)).offsets == offsets
    broker.until(1000.0 + 7 * DAY_S + 600.0)
    assert broker.ask(OffsetFetch(GROUP)).offsets == {}
    assert group_of(broker.state, GROUP) is None


# ---- KIP-848 -------------------------------------------------------------------------------------

T = [TopicPartition("t", number) for number in range(4)]


def beat(broker: Broker, member: str, epoch: int, **fields: Any) -> ConsumerGroupAnswer:
    """Send a heartbeat; if it joins the group, it has all fields."""
    if epoch == JOIN_EPOCH:
        fields = {"rebalance_timeout_s": 30.0, "topics": ("t",), "owned": frozenset(), **fields}
    found = broker.ask(ConsumerGroupHeartbeat(GROUP, member, epoch, **fields))
    assert isinstance(found, ConsumerGroupAnswer)
    return found


@pytest.fixture
def consumers(broker: Broker) -> Broker:
    """A KIP-848 group: its first member `a` owns four partitions, and `b` has just joined."""
    broker.handle(TopicsChanged({"t": Topic(4, id=(1, 0))}))
    assert beat(broker, "a", JOIN_EPOCH).assignment == frozenset(T)
    assert broker.consumers.phase is ConsumerGroupPhase.STABLE
    # `a` still has all partitions.
    assert beat(broker, "b", JOIN_EPOCH).assignment == frozenset()
    return broker


def test_a_partition_is_given_after_it_was_revoked(consumers: Broker) -> None:
    """A new member gets a partition only after the owner has reported the revocation."""
    kept = beat(consumers, "a", 1).assignment
    assert kept is not None and len(kept) == 2
    assert beat(consumers, "b", 2).assignment is None
    # `a` has not reported the revocation yet.
    assert beat(consumers, "a", 1, owned=frozenset(T)).epoch == 1
    assert beat(consumers, "a", 1, owned=kept).epoch == 2
    assert beat(consumers, "b", 2).assignment == frozenset(T) - kept
    assert consumers.consumers.phase is ConsumerGroupPhase.STABLE


def test_a_member_that_does_not_revoke_is_fenced(consumers: Broker) -> None:
    """If a member does not revoke in time, it is fenced, although it sends heartbeats."""
    assert beat(consumers, "a", 1).epoch == 1
    consumers.until(29.0)
    assert beat(consumers, "a", 1, owned=frozenset(T)).error is Error.NONE
    consumers.until(31.0)
    assert beat(consumers, "a", 1).error is Error.UNKNOWN_MEMBER_ID
    assert beat(consumers, "b", 2).assignment == frozenset(T)


def test_a_wrong_epoch_is_fenced_unless_a_reply_was_lost(consumers: Broker) -> None:
    """A heartbeat of a wrong epoch is fenced unless it repeats the join; an old commit is stale."""
    assert beat(consumers, "b", 3).error is Error.FENCED_MEMBER_EPOCH
    assert beat(consumers, "b", 1).error is Error.FENCED_MEMBER_EPOCH
    assert beat(consumers, "b", JOIN_EPOCH).error is Error.NONE
    stale = consumers.ask(OffsetCommit(GROUP, {T[0]: OffsetAndMetadata(1)}, "b", 1))
    assert stale.error is Error.STALE_MEMBER_EPOCH


def test_a_static_member_that_returns_keeps_its_partitions(broker: Broker) -> None:
    """Leave epoch -2 keeps the assignment for the instance's next member; epoch -1 frees it."""
    broker.handle(TopicsChanged({"t": Topic(4, id=(1, 0))}))
    beat(broker, "old", JOIN_EPOCH, instance="i1")
    early = beat(broker, "new", JOIN_EPOCH, instance="i1")
    assert early.error is Error.UNRELEASED_INSTANCE_ID
    beat(broker, "old", LEAVE_STATIC_EPOCH, instance="i1")
    epoch = broker.consumers.epoch
    assert beat(broker, "new", JOIN_EPOCH, instance="i1").assignment == frozenset(T)
    assert broker.consumers.epoch == epoch
    beat(broker, "new", LEAVE_EPOCH, instance="i1")
    assert broker.consumers.phase is ConsumerGroupPhase.EMPTY


# ---- bytes ---------------------------------------------------------------------------------------


def test_the_bytes_of_the_members() -> None:
    """Encoding and decoding leaves members unchanged; truncated bytes are refused."""
    subscription = Subscription(("b", "é"), (T[0], T[2]), 7, "r1")
    data = encode_subscription(subscription, b"user")
    assert decode_subscription(data) == (subscription, b"user")
    assert decode_assignment(encode_assignment(T)) == (tuple(T), None)
    assert decode_assignment(b"") == ((), None)
    assert decode_sticky_user_data(encode_sticky_user_data(T, 5)) == (tuple(T), 5)
    with pytest.raises(ValueError, match="exceeds its"):
        decode_subscription(data[:-1])
