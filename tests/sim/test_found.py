"""Defects that the simulator found in the production code, as tests or recorded runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.sim.mutants import Mutant, Patch, function

from zkconsumer.member import assignment, commits, machine, operations, rebalance
from zkconsumer.member.events import ReleaseReady
from zkconsumer.member.operations import release
from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Commits, Settings, replace
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.world import InvariantViolation
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.random_search import draw_plan, load, run
from zkconsumer.sim.stream_member import StreamMember
from zkconsumer.sim.stream_world import StreamWorld
from zkconsumer.sim.world import World, brokers, delete_owner, no_brokers

# ---- reverted fixes: without its fix, a recorded run of `found` breaks its promise ---------------


def _roll_back_forgets() -> list[Patch]:
    def roll_back(work: Any) -> Any:
        yield from release(work.member, work.created)
        work.created.clear()

    return [(operations, "_roll_back", roll_back)]


def _stale_reading_clears() -> list[Patch]:
    def still_unfetched(state: Any, whole: Any) -> Any:
        return {tp: why for tp, why in state.unfetched.items() if tp.topic not in whole.topics}

    return [(assignment, "_still_unfetched", still_unfetched)]


def _retry_in_front_of_a_hand_over() -> list[Patch]:
    real = function(commits, "_again_later")

    def again_later(state: Any, asked: Any, reasons: Any, now: float) -> Any:
        waiting = state.commits.queued
        state, notice = real(state, asked, reasons, now)
        queue = (replace(asked, retries=asked.retries - 1), *waiting)
        retry_at = now + state.settings.channel_backoff_s
        return replace(state, commits=Commits(queued=queue, retry_at=retry_at)), notice

    return [(commits, "_again_later", again_later)]


def _hand_over_cut_short_is_forgotten() -> list[Patch]:
    real = rebalance.revoke

    def stop(state: Any, go: Any, now: float) -> Any:
        if go & state.serving:
            return real(state, go, now)
        return rebalance.before_release(replace(state, revoking=go, finished=frozenset()), now)

    return [
        (rebalance, "revoke", stop),
        (commits, "_first", lambda asked, waiting: (asked, *waiting)),
    ]


def _broker_returns_unnoticed() -> list[Patch]:
    return [(assignment, "_misses_brokers", lambda state, view: False)]


def _late_answer_counts() -> list[Patch]:
    def release_ready(state: Any, event: Any) -> Any:
        now_owned = {tp: state.owned[tp] for tp in event.partitions if tp in state.owned}
        return real(state, replace(event, partitions=now_owned))

    real = machine.HANDLERS[None, ReleaseReady]
    return [(machine.HANDLERS, (None, ReleaseReady), release_ready)]


LATE_ANSWER_COUNTS = Mutant(
    "late answer counts",
    "an answer to the release of an earlier ownership counts for the present ownership",
    _late_answer_counts,
)

REGRESSIONS = {
    "a-broker-returns-before-its-absence-is-known": Mutant(
        "a broker returns before its absence is known",
        "the watch event of a running reading is ignored, because the view before had brokers",
        _broker_returns_unnoticed,
    ),
    "a-broken-connection-cuts-a-hand-over-short": Mutant(
        "a broken connection cuts a hand-over short",
        "the partitions are released while the hand-over's commit waits",
        _hand_over_cut_short_is_forgotten,
    ),
    "a-hand-over-waits-behind-a-commit-that-kafka-refused": Mutant(
        "a hand-over waits behind a commit that Kafka refused",
        "the retry is queued in front of the hand-over's commit",
        _retry_in_front_of_a_hand_over,
    ),
    "a-claim-that-cannot-be-rolled-back": Mutant(
        "a claim that cannot be rolled back",
        "a failed claim forgets owner znodes that it cannot delete",
        _roll_back_forgets,
    ),
    "a-topic-is-deleted-while-the-group-is-read": Mutant(
        "a topic is deleted while the group is read",
        "a reading of the group that is out of date counts as current",
        _stale_reading_clears,
    ),
}


# ---- the tests ----------------------------------------------------------------------------------


def patient(one: Settings) -> Settings:
    """Return settings whose back-offs outlast the run, so that only watches report changes."""
    return replace(one, backoff_s=1_000.0)


def until(world: World, condition: Callable[[], bool]) -> None:
    """Perform ordinary actions until a condition holds; if there is none, advance the time."""
    for turn in range(5_000):
        if condition():
            return
        actions = [action for action in world.enabled() if action.do is not Do.TIME]
        world.act(actions[turn % len(actions)] if actions else world.enabled()[-1])
        assert world.now < 60, "the condition was not reached"
    raise AssertionError("the condition was not reached")


def test_a_broker_ends_between_the_reads_of_the_list_and_of_its_znode() -> None:
    """If the last broker ends during the read, the member still watches for its return."""
    monitor = Monitor()
    world = World(Plan(members=1, partitions=1, settings=patient), monitor)
    member = world.members[0]
    reading = rq.Get(paths.broker(0))
    until(world, lambda: bool(member.wire) and member.wire[0][1] == reading)
    no_brokers(world)
    until(world, lambda: bool(member.state.waiting_for) and not member.wire)
    brokers(world)
    until(world, lambda: not monitor.converged(world))


def alone(world: World, who: int, condition: Callable[[], object]) -> None:
    """Let only one of the members act."""
    for _ in range(500):
        if condition():
            return
        mine = [action for action in world.enabled() if action.who == who]
        world.act(mine[0] if mine else Action(Do.TIME))
    raise AssertionError("the condition was not reached")


def releases(request: rq.Request, path: str) -> bool:
    writes = request.writes if isinstance(request, rq.Multi) else ()
    return any(isinstance(one, rq.Delete) and one.path == path for one in writes)


def test_an_owner_znode_is_deleted_during_its_release() -> None:
    """If another client deletes an owner znode during its release, the next owner claims twice."""
    # The running release deletes the next owner's znode, because ZooKeeper cannot distinguish it
    # from the old one. The exhaustive search found this sequence with one fault and 59 actions.
    monitor = Monitor()
    world = World(Plan(members=2, partitions=2), monitor)
    first, second = world.members
    tp = TopicPartition(world.TOPIC, 1)
    path = paths.owner(world.GROUP, tp)
    alone(world, 0, lambda: first.settled)
    until(world, lambda: any(releases(request, path) for _, request in first.wire))
    delete_owner(world, tp)
    alone(world, 1, lambda: (owner := world.owner(tp)) and owner[1] == world.links[1].session)
    claimed = world.owner(tp)
    alone(world, 0, lambda: not any(releases(request, path) for _, request in first.wire))
    assert world.owner(tp) is None
    until(world, lambda: not monitor.converged(world))
    assert world.owner(tp) != claimed
    assert tp in second.feeds


FOUND = sorted(Path(__file__).with_name("found").glob("*.txt"))


@pytest.mark.parametrize("trace", FOUND, ids=lambda path: path.stem)
def test_a_recorded_violation_does_not_recur(trace: Path) -> None:
    """The recorded decisions of a run that once broke a promise now keep every promise."""
    assert run(Decisions(load(trace))).violation is None


@pytest.mark.parametrize("trace", FOUND, ids=lambda path: path.stem)
def test_it_breaks_its_promise_without_the_fix(trace: Path) -> None:
    """Without the fix, the recorded run breaks the promise that its file names."""
    with REGRESSIONS[trace.stem].planted():
        found = run(Decisions(load(trace))).violation
    assert found is not None
    assert found.invariant in trace.read_text(encoding="utf-8")


def test_two_background_operations_get_their_own_replies() -> None:
    """If a topic is watched again during a diagnosis, each operation gets its own reply."""
    assert run(Decisions(random.Random(3501242)), draw=draw_plan).violation is None


def test_a_refused_release_with_an_unfinished_message() -> None:
    """If a release with an unfinished message is refused, no token delivers a message twice."""
    monitor = Monitor()
    world = World(Plan(members=2, partitions=2, messages=3), monitor)
    first, second = world.members
    moves = TopicPartition(world.TOPIC, 1)
    alone(world, 0, lambda: first.settled)
    until(world, lambda: all(tp in first.feeds for tp in world.log_end))
    while not first.feeds[moves].unfinished:
        world.act(Action(Do.NEXT_MESSAGE, 0))
    world.act(Action(Do.SLOW, 0))
    world.act(Action(Do.REFUSE, 1))
    until(world, lambda: moves in first.state.refused and moves in second.state.assigned)
    world.act(Action(Do.LEAVE, 1))
    until(world, lambda: second.closed and moves in first.state.assigned)
    world.act(Action(Do.END_SLOW, 0))
    back = world.now + 5  # longer than a back-off
    until(world, lambda: world.now > back)
    world.act(Action(Do.ALLOW))
    until(world, lambda: not monitor.converged(world))


def two_streams(one: Settings) -> Settings:
    return replace(one, subscription={World.TOPIC: 2}, grace_s=1.0)


def unread(world: World, condition: Callable[[], bool]) -> None:
    """Perform actions until a condition holds, while no user asks for messages."""
    for turn in range(5_000):
        if condition():
            return
        ordinary = [one for one in world.enabled() if one.do not in (Do.NEXT_MESSAGE, Do.POLL)]
        actions = [one for one in ordinary if one.do is not Do.TIME] or ordinary
        world.act(actions[turn % len(actions)])
        assert world.now < 60, "the condition was not reached"
    raise AssertionError("the condition was not reached")


def answer_an_earlier_release() -> Phase:
    """Let a user answer its release when the partition is revoked from another stream of its
    member; return the phase of the member afterwards.
    """
    world = StreamWorld(
        Plan(members=2, partitions=4, streams=True, settings=two_streams), Monitor()
    )
    other, member = world.members
    assert isinstance(member, StreamMember)
    first, second = member.users
    moves = TopicPartition(world.TOPIC, 2)
    world.act(Action(Do.JOIN, 1))
    alone(world, 1, lambda: member.settled)
    unread(world, lambda: member.settled and len(member.feeds) == 4)
    while moves not in second.held:
        world.act(Action(Do.NEXT_MESSAGE, 1))
    world.act(Action(Do.JOIN, 0))
    unread(world, lambda: other.settled and member.settled and first.stream.serves(moves))
    while moves not in first.held:
        world.act(Action(Do.NEXT_MESSAGE, 1))
    world.act(Action(Do.LEAVE, 0))
    unread(world, lambda: moves in member.state.revoking)
    assert member.state.phase is Phase.STOPPING
    assert moves in second.held
    world.act(Action(Do.NEXT_MESSAGE, 1))
    assert moves not in second.held
    alone(world, 1, lambda: not member.inbox)
    return member.state.phase


def test_a_user_answers_the_release_of_an_earlier_ownership() -> None:
    """A late answer does not give up the partition that another user of the member holds."""
    assert answer_an_earlier_release() is Phase.STOPPING


def test_a_late_answer_that_counts_is_noticed() -> None:
    """If the late answer counts, the monitor reports that the member gives up the partition."""
    with LATE_ANSWER_COUNTS.planted(), pytest.raises(InvariantViolation) as caught:
        answer_an_earlier_release()
    assert caught.value.invariant == "I9"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(7244412, id="the user seeks again before the first seek is stored"),
        pytest.param(7217984, id="a leaving member commits a partition whose owner znode is gone"),
        pytest.param(7521227, id="retention deletes finished messages before their release"),
        pytest.param(7532157, id="a commit of given offsets waits behind that of a release"),
        pytest.param(7549169, id="a query asks for edits while ZooKeeper has no quorum"),
        pytest.param(7513058, id="a topic is deleted while a query's batch delays a release"),
        pytest.param(7241095, id="a topic is recreated within a reading, after a seek"),
        pytest.param(7301538, id="a topic is recreated while its owner is cut off, after a seek"),
        pytest.param(8924402, id="a commit of a release has nothing to store"),
        pytest.param(8644225, id="a release starts again before a lost connection is handled"),
        pytest.param(8501303, id="an id znode is deleted after a nudge whose watch was lost"),
        pytest.param(8833778, id="another client writes after a tool's lost reply"),
        pytest.param(8925399, id="a user iterates, polls, and iterates on"),
        pytest.param(9007824, id="a member leaves before its last commit has ended"),
        pytest.param(9647267, id="an id znode is deleted while a read has replaced a nudge"),
        pytest.param(9914603, id="a member stores the offset of an edit before it delivers"),
        pytest.param(9916496, id="a release after an edit, while a user holds an older message"),
        pytest.param(10440164, id="an edit withdraws a partition that a query's batch reads"),
        pytest.param(12609616, id="an operator sets the offset at which a query's replay started"),
        pytest.param(12049878, id="a user commits lower offsets just after the automatic commit"),
        pytest.param(
            12184788, id="a user commits lower offsets before the automatic commit has ended"
        ),
        pytest.param(
            12504392, id="a user commits lower offsets while the member handles its commit's reply"
        ),
        pytest.param(15010904, id="a user commits lower offsets to Kafka while the member leaves"),
        pytest.param(7230105, id="a member gives up while its user holds messages"),
        pytest.param(15023751, id="a paused partition is served again after a refused release"),
        pytest.param(15004818, id="a paused partition gets the same token after a loss of data"),
        pytest.param(15018059, id="a user answers the release of an earlier ownership"),
        pytest.param(16096559, id="a member comes and goes while a plan is applied"),
        pytest.param(15009572, id="nudges beside an idle peer, while users are preempted"),
    ],
)
def test_runs_that_break_no_promise(seed: int) -> None:
    """Runs that were once reported as violations keep all promises."""
    assert run(Decisions(random.Random(seed))).violation is None
