"""The joint world: old and new members share a group by means of a bridge."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.sim.bridge_courses import (
    COURSES,
    first,
    new_world,
    settle,
    shared,
    takes_lead,
    until,
)
from support.sim.bridge_mutants import MUTANTS, BridgeMutant, broken_by

from zkconsumer.bridge import machine, shares
from zkconsumer.bridge.state import (
    Goal,
    GoalChanged,
    GroupSeen,
    LockKept,
    RemoveMembers,
    Settings,
    Stage,
    State,
    begin,
)
from zkconsumer.later import client_state
from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.later.member_events import Answered, Commands, Send
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.group_assignment import GroupInput
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.later.messages import Error
from zkconsumer.protocol.model import OFFSETS_TOPIC, TopicPartition
from zkconsumer.protocol.registrations import Pattern, Registration, encode_registration
from zkconsumer.sim.bridged.search import Weather, run
from zkconsumer.sim.bridged.world import INSTANCE, BridgedPlan, BridgedWorld
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.plan import Action, Do


@pytest.mark.parametrize("jvm", [(), (0, 1)], ids=["zkconsumer", "jvm"])
def test_a_group_moves_from_one_protocol_to_the_other_and_back(jvm: tuple[int, ...]) -> None:
    """New members get half of the partitions, then all; when the old ones return, they share."""
    world = shared(BridgedPlan(jvm=frozenset(jvm), partitions=4))
    held = world.bridge_state(0).held
    assert len(held) == 2
    assert world.reading() == world.old.log_end
    for who in range(2):
        world.act(Action(Do.LEAVE, who))
    settle(world)
    assert len(world.bridge_state(0).held) == 4
    assert world.reading() == world.old.log_end
    world.act(Action(Do.REVIVE, 0))
    settle(world)
    assert len(world.bridge_state(0).held) < 4
    assert world.reading() == world.old.log_end


@pytest.mark.parametrize(("new", "held"), [(1, 1), (4, 2), (12, 3)])
def test_the_share_is_one_of_partitions(new: int, held: int) -> None:
    """With as many old streams as partitions, the new side gets its part of the partitions."""
    world = shared(BridgedPlan(old=4, new=new, partitions=4, prefix="-b"))
    assert len(world.bridge_state(0).held) == held
    assert world.reading() == world.old.log_end


def test_a_refused_partition_does_not_delay_the_others() -> None:
    """If the brokers refuse a partition's offset, the bridge lends the others, and asks again."""
    plan = BridgedPlan(old=1, new=1, partitions=6, prefix="-b")
    world = shared(plan, late_new=(1,), is_calm=False)
    refused = TopicPartition(world.old.TOPIC, 0)  # its consumer's name comes first
    world.refused = frozenset({refused})
    world.order("join", 1)
    settle(world)
    held = world.bridge_state(0).held
    assert held[refused].stage is Stage.SEEDING
    assert held[refused].refusal is Error.TOPIC_AUTHORIZATION_FAILED
    assert [one.stage for tp, one in held.items() if tp != refused] == [Stage.LENT] * 2
    world.refused = frozenset()
    settle(world)
    assert world.bridge_state(0).held[refused].refusal is Error.NONE
    assert world.reading() == world.old.log_end


def test_a_topic_of_old_members_is_not_assigned_as_a_whole() -> None:
    """New members get no partition of a topic of old members that the bridge does not lend."""
    world = shared(BridgedPlan(old=1, new=1), late_new=(1,))
    view = world.bridge_state(0).view
    assert view is not None
    more = encode_registration(Registration({"more": 1}, timestamp_ms=0))
    seen = replace(view, registrations={**view.registrations, "g_x": more})
    before = world.bridge_state(0).generation
    for group in (seen, view):
        world.tell(0, lambda now, group=group: GroupSeen(now, group))
        world.run(1.0, first)
        assert world.bridge_state(0).settings.lends["more"] == frozenset()
    assert world.bridge_state(0).generation == before + 1, "new members go on with the whole topic"


@pytest.mark.parametrize("is_excluded", [True, False])
def test_an_internal_topic_of_old_members(is_excluded: bool) -> None:
    """With `exclude.internal.topics=false`, an internal topic is not assigned as a whole either."""
    member = Registration({"__.*": 1}, pattern=Pattern.WHITE_LIST, timestamp_ms=0)
    view = GroupInput(
        Strategy.RANGE,
        {"g_x": encode_registration(member)},
        {OFFSETS_TOPIC: b'{"version": 1, "partitions": {"0": [1]}}'},
        exclude_internal=is_excluded,
    )
    setup = Settings(ClientSettings("g", "c", ("t",)), ("g_bridge",))
    state, _ = machine.step(begin(setup), GroupSeen(1.0, view))
    assert (OFFSETS_TOPIC in (state.settings.lends or {})) is not is_excluded


def test_a_partition_whose_offset_is_not_shown_does_not_keep_a_bridge() -> None:
    """A bridge gives back a partition whose last offset the brokers refuse to show, and ends."""
    world = shared(BridgedPlan(old=1, new=1), is_calm=False)
    world.refused = frozenset(world.bridge_state(0).held)
    world.tell(0, lambda now: GoalChanged(now, Goal.STOP))
    world.run(10.0, first)
    assert world.bridge_state(0).held
    world.run(20.0, first)
    assert machine.is_over(world.bridge_state(0))
    assert not world.bridge_state(0).held


def test_a_consumer_counts_until_it_has_had_time_to_register() -> None:
    """A consumer that has just been started counts in the plan; later only if it is registered."""
    world = shared(BridgedPlan(old=1, new=1, partitions=6, limit=1, prefix="-b"))
    world.tell(0, lambda now: GoalChanged(now, Goal.RUN, 0.8))
    until(world, lambda: len(world.bridge_state(0).running) > 1)
    state = world.bridge_state(0)
    assert shares.present(state, world.now) == state.running
    assert shares.present(state, world.now + machine.REGISTER_S) == {0}


def test_a_bridge_without_an_old_side_finishes() -> None:
    """`finish` leaves both groups when no old member is left; the new members then read all."""
    world = shared(BridgedPlan(partitions=4))
    for who in range(2):
        world.act(Action(Do.LEAVE, who))
    world.tell(0, lambda now: GoalChanged(now, Goal.FINISH))
    world.run(60.0, first)
    assert machine.is_over(world.bridge_state(0))
    reading = {tp for one in world.new.members if one.lives for tp in one.fetching}
    assert reading == set(world.old.log_end)


def test_a_rollback_gives_everything_back() -> None:
    """`rollback` gives all partitions to the old side, and ends when the new members have left."""
    world = shared(BridgedPlan(partitions=4))
    world.tell(0, lambda now: GoalChanged(now, Goal.ROLLBACK))
    world.run(30.0, first)
    assert not world.bridge_state(0).held
    assert not machine.is_over(world.bridge_state(0))
    assert set(world.reading()) == set(world.old.log_end)
    for who in (1, 2):
        world.order("leave", who)
    world.run(30.0, first)
    assert machine.is_over(world.bridge_state(0))


@pytest.mark.parametrize("successor", [0, 1], ids=["restarted", "standby"])
def test_a_paused_bridge_keeps_its_share_when_its_process_changes(successor: int) -> None:
    """After the death of a paused bridge, its successor runs as many consumers, and lends again."""
    world = shared(BridgedPlan(bridges=2, partitions=6, setup=takes_lead), is_calm=False)
    _set_wish(world, Goal.PAUSE, 0.5)
    world.order("leave", 2)
    settle(world)
    before = world.bridge_state(0).running, world.bridge_state(0).held.keys()
    assert len(before[1]) == 3
    world.kill_bridge(0)
    if successor:
        world.standbys.append(1)
    else:
        world.start(0)
    settle(world)
    state = world.bridge_state(successor)
    assert (state.running, state.held.keys()) == before
    assert world.reading() == world.old.log_end
    _set_wish(world, Goal.RUN, 0.1)
    settle(world)
    assert len(world.bridge_state(successor).running) == 1


def test_a_paused_bridge_starts_no_consumer_for_nobody() -> None:
    """If all new members left while no bridge ran, the next one waits for a new member."""
    world = shared(BridgedPlan(bridges=2, setup=takes_lead), is_calm=False)
    _set_wish(world, Goal.PAUSE)
    world.kill_bridge(0)
    for who in (2, 3):
        world.order("leave", who)
    world.start(0)
    settle(world)
    assert not world.bridge_state(0).running
    assert world.reading() == world.old.log_end
    world.order("revive", 2)
    settle(world)
    assert len(world.bridge_state(0).held) == 2


def _set_wish(world: BridgedWorld, goal: Goal, share: float | None = None) -> None:
    world.perform(lambda: world.set_wish(goal, share))


@pytest.mark.parametrize("phase", [ClassicPhase.PREPARING, ClassicPhase.COMPLETING])
def test_a_stopped_bridge_finishes_the_rebalance(phase: ClassicPhase) -> None:
    """A bridge that is stopped in a rebalance ends when the new members have their assignment."""
    world = _paused_without_consumers()
    if phase is ClassicPhase.PREPARING:
        world.order("freeze", 1)
    world.order("join", 2)
    until(world, lambda: world.bridge_state(0).phase is phase)
    world.tell(0, lambda now: GoalChanged(now, Goal.STOP))
    world.run(0.0 if phase is ClassicPhase.COMPLETING else 3.0, first)
    assert not machine.is_over(world.bridge_state(0))
    if phase is ClassicPhase.PREPARING:
        world.order("thaw", 1)
    until(world, lambda: machine.is_over(world.bridge_state(0)))
    world.run(1.0, first)
    assert all(one.machine.is_settled(one.state) for one in world.new.members[1:])
    world.start(0)
    settle(world)
    assert world.bridge_state(0).leads


def test_a_stopped_bridge_does_not_wait_for_a_slow_member() -> None:
    """If a new member does not join, a stopped bridge ends after `STOP_S`."""
    world = _paused_without_consumers()
    world.order("slow", 1)
    world.order("join", 2)
    until(world, lambda: world.bridge_state(0).phase is ClassicPhase.PREPARING)
    world.perform(lambda: world.tell(0, lambda now: GoalChanged(now, Goal.STOP)))
    world.run(machine.STOP_S - 0.1, first)
    assert not machine.is_over(world.bridge_state(0))
    world.run(0.2, first)
    assert machine.is_over(world.bridge_state(0))


def _paused_without_consumers() -> BridgedWorld:
    """Return a world in which a bridge leads one new member, and lends nothing."""
    world = new_world(BridgedPlan())
    world.act(Action(Do.JOIN, 0))
    world.run(10.0, first)
    world.start(0)
    _set_wish(world, Goal.PAUSE)
    world.run(5.0, first)
    world.order("join", 1)
    settle(world)
    assert len(world.bridge_state(0).members) == 1
    return world


@pytest.mark.parametrize("course", COURSES, ids=[one.__name__ for one in COURSES])
def test_a_course_keeps_the_promises(course: Callable[[], None]) -> None:
    """The bridge keeps its promises in each course of `bridge_courses`."""
    course()


def test_a_bridge_that_follows_reads_nothing() -> None:
    """A bridge that starts after a new member is assigned partitions, and fetches none of them."""
    world = new_world(BridgedPlan(old=1, new=1, setup=takes_lead), is_calm=False)
    world.act(Action(Do.JOIN, 0))
    world.order("join", 1)
    world.run(5.0, first)
    world.start(0)
    until(world, lambda: world.bridge_state(0).phase is ClassicPhase.STABLE)
    assert not world.bridge_state(0).leads
    while not world.bridge_state(0).leads:
        assert not world.new.members[0].fetching
        world.step(first)


@pytest.mark.parametrize("is_taken", [True, False], ids=["by another client", "unclaimed"])
def test_a_bridge_may_assign_only_what_it_cannot_know_to_be_lost(is_taken: bool) -> None:
    """B9 excuses an assignment if another client has just ended the consumer's session."""
    world = _paused_without_consumers()
    _set_wish(world, Goal.RUN)
    joining = ClassicPhase.PREPARING

    def lends_first() -> bool:
        lent = any(one.stage is Stage.LENT for one in world.bridge_state(0).held.values())
        return lent and all(one.state.phase is joining for one in world.new.members[:2])

    until(world, lends_first)
    tp = min(world.bridge_state(0).held)
    owner = world.old.owner(tp)
    assert owner is not None
    (who,) = (n for n, link in enumerate(world.old.links) if link.session == owner[1])
    if is_taken:
        world.perform(lambda: world.old.act(Action(Do.EXPIRE, who)))
    else:
        world.old.zookeeper.expire(owner[1])

    def assign() -> None:
        while world.bridge_state(0).phase is ClassicPhase.PREPARING:
            world.perform(world.new.step)

    assert tp not in (world.bridge_state(0).occupied or ())
    if is_taken:
        assign()
    else:
        with pytest.raises(InvariantViolation, match="B9"):
            assign()


def test_a_removal_without_a_rebalance_is_repeated() -> None:
    """A bridge that still follows after ten seconds removes the other members again."""
    state = begin(Settings(ClientSettings("g", "c", ("t",)), (), takes_lead=True))
    follower = replace(state.classic, phase=ClassicPhase.STABLE, rejoin=False)
    state, first = machine.take_lead(
        replace(state, classic=follower, asked_lead=True, lock_until=12.0), 1.0
    )
    assert first == (RemoveMembers(),)
    assert machine.take_lead(state, 10.0) == (state, ())
    assert machine.take_lead(state, 11.0)[1] == first
    assert machine.take_lead(state, 12.0) == (state, ())  # another process may be active


def test_a_bridge_that_was_frozen_joins_anew_only_with_the_lock() -> None:
    """If the brokers take the member id away, a bridge joins when it knows that it is active."""
    state = begin(Settings(ClientSettings("g", "c", ("t",), instance="bridge"), ()))
    member = replace(
        state.classic,
        phase=ClassicPhase.STABLE,
        member="bridge-1",
        generation=1,
        rejoin=False,
        client=replace(state.client, coordinator=0),
    )
    state, commands = _refused(replace(state, classic=member, lock_until=12.0), 20.0)
    assert state.member == msg.UNKNOWN_MEMBER
    assert not _joins(commands)
    assert _joins(machine.step(state, LockKept(21.0, 29.0))[1])


def test_what_was_read_before_another_generation_does_not_count() -> None:
    """A bridge that was removed from the group reads Kafka's offsets again when it is back."""
    # Another leader's member may have committed a higher offset meanwhile.
    world = shared(BridgedPlan())
    state = world.bridge_state(0)
    tp = min(state.held)
    seeding = replace(state.held[tp], stage=Stage.SEEDING, kafka=None, is_read=True)
    state, _ = _refused(replace(state, held={**state.held, tp: seeding}), world.now)
    assert state.member == msg.UNKNOWN_MEMBER
    assert not state.held[tp].is_read


@pytest.mark.parametrize("stored", ["", "bridge-1"])
def test_a_fenced_bridge_ends_only_if_its_member_id_was_stored(stored: str) -> None:
    """A coordinator that has not read the bridge's new member id fences it; it joins again."""
    state = begin(Settings(ClientSettings("g", "c", ("t",), instance="bridge"), ()))
    client = replace(state.client, coordinator=0)
    member = replace(state.classic, member="bridge-1", generation=1, client=client)
    member = replace(member, phase=ClassicPhase.COMPLETING)
    state = replace(state, classic=member, lock_until=30.0, stored=stored)
    state, commands = _refused(state, 20.0, Error.FENCED_INSTANCE_ID)
    assert _joins(commands) is (not stored)
    assert bool(state.ended) is bool(stored)


def _refused(state: State, now: float, error: Error = Error.UNKNOWN_MEMBER_ID) -> machine.Step:
    """Tell a bridge an error in the answer to a heartbeat, such as its removal."""
    member = state.classic
    heartbeat = msg.Heartbeat(state.settings.group, member.member, member.generation, INSTANCE)
    client, (sent,) = client_state.send(member.client, heartbeat, now, membership=member.membership)
    assert isinstance(sent, Send)
    refused = Answered(now, sent.number, msg.HeartbeatAnswer(error))
    return machine.step(replace(state, classic=replace(member, client=client)), refused)


def _joins(commands: Commands) -> bool:
    return any(isinstance(one, Send) and isinstance(one.request, msg.JoinGroup) for one in commands)


@pytest.mark.parametrize("weather", list(Weather), ids=[one.name for one in Weather])
def test_a_random_run_keeps_the_promises(weather: Weather) -> None:
    """Two runs with known seeds break no promise; `test_many_random_runs` draws fresh seeds."""
    for seed in (0, 1):
        assert _violation(seed, weather) is None, (seed, weather)


@pytest.mark.parametrize("weather", list(Weather), ids=[one.name for one in Weather])
def test_many_random_runs_keep_the_promises(weather: Weather) -> None:
    """Hundreds of fresh random runs break no promise."""
    first = random.randrange(10**9)
    for seed in range(first, first + 300):
        assert _violation(seed, weather) is None, (seed, weather)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(11047237, id="all members leave while the coordinator is away"),
        pytest.param(11061745, id="a JVM member gives up beside JVM members only"),
        pytest.param(15086407, id="a bridge without sessions decides about its consumers"),
        pytest.param(15087980, id="a cooperative member has not revoked yet"),
    ],
)
def test_what_a_bridge_does_not_promise(seed: int) -> None:
    """These runs once failed by mistakes of the search or of the monitor, and pass now."""
    assert run(Decisions(random.Random(seed))).violation is None


def _violation(seed: int, weather: Weather) -> InvariantViolation | None:
    """Return which promise a run breaks. If the run ends in an error, the error names the seed."""
    try:
        return run(Decisions(random.Random(seed)), weather).violation
    except Exception as error:
        error.add_note(f"seed {seed}, {weather.name}")
        raise


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_a_planted_fault_breaks_its_promise(mutant: BridgeMutant) -> None:
    """A run near a known seed, or a course, breaks the promise only with the planted fault."""
    found = mutant.caught()
    assert found is not None
    reveal, violation = found
    assert violation.invariant == mutant.promise
    assert broken_by(reveal) is None
