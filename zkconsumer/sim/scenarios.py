"""The stories of `zkconsumer simulate`: scripts that `sim.stage` performs, and random runs.

Each story shows what happens at one event, such as a join, a death or a freeze. Its title is a row
of the table "What happens when…" in docs/behaviour.md, and `decided` names the function that makes
the decision. tests/traces/ contains the golden traces of the stories.

A narrated run is a random run of a group of any size and kind; a seed selects its faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from zkconsumer.frozen import dataclass
from zkconsumer.member.state import Settings
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.stories import Emit, Story, StoryRun, lesson_of, narrated
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import FAULTS, Action, Do, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ORDINARY, ZooKeeperDirector, monitor_for, stage
from zkconsumer.sim.world import World, possible, repairs

Script = Callable[[ZooKeeperDirector], None]


@dataclass(frozen=True, kw_only=True)
class Scenario(Story[ZooKeeperDirector]):
    """A story on ZooKeeper: the function that makes the decision, its world and JVM members."""

    decided: str
    plan: Plan
    jvm: frozenset[int] = frozenset()


SCENARIOS: dict[str, Scenario] = {}


def _story(
    title: str,
    decided: str,
    *,
    members: int = 2,
    partitions: int = 4,
    messages: int = 2,
    jvm: frozenset[int] = frozenset(),
    backoff_s: float = 2.0,
) -> Callable[[Script], Script]:
    def add(script: Script) -> Script:
        plan = Plan(
            members=members,
            partitions=partitions,
            messages=messages,
            settings=lambda one: replace(one, backoff_s=backoff_s),
        )
        one = Scenario(
            title=title,
            lesson=lesson_of(script),
            script=script,
            decided=decided,
            plan=plan,
            jvm=jvm,
        )
        SCENARIOS[one.name] = one
        return script

    return add


# ---- members come and go ------------------------------------------------------------------------


@_story("a consumer joins", "member.rebalance.revoke")
def _joins(stage: ZooKeeperDirector) -> None:
    """The old owner stops, commits and releases a partition; the new owner claims it at once."""
    stage.scene(0)
    stage.say("g_1 joins")
    stage.join(1)
    stage.rest()


@_story(
    "many consumers join at once",
    "member.rebalance.enter_next_phase",
    members=3,
    partitions=6,
    messages=1,
)
def _many(stage: ZooKeeperDirector) -> None:
    """A change of the group during a rebalance is handled when the rebalance has ended."""
    stage.say("g_0 joins; g_1 and g_2 join while g_0 claims")
    stage.join(0)
    stage.until(lambda: stage.owned_by(0), "a claim")
    stage.join(1, 2)
    stage.rest()


@_story("a consumer leaves", "member.machine._close_requested")
def _leaves(stage: ZooKeeperDirector) -> None:
    """The member commits and ends its session; the others take over within milliseconds."""
    stage.scene(0, 1)
    stage.say("g_1 is shut down")
    stage.do(Do.LEAVE, 1)
    stage.produce(1)
    stage.rest()


@_story("a consumer dies", "member.rebalance.triggered")
def _dies(stage: ZooKeeperDirector) -> None:
    """Its session expires after the timeout; uncommitted messages are redelivered."""
    stage.scene(0, 1)
    stage.say("g_1 gets SIGKILL")
    stage.do(Do.KILL, 1)
    stage.rest()


@_story("a consumer freezes", "member.state.Lease.holds")
def _freezes(stage: ZooKeeperDirector) -> None:
    """The lease of a frozen member ends before its session; then the others take over."""
    stage.scene(0, 1)
    stage.say("g_1 gets SIGSTOP")
    stage.do(Do.FREEZE, 1)
    stage.until(lambda: stage.owned_by(0) == 4, "a take-over")
    stage.wait(0.1)


@_story("a frozen consumer wakes in time", "member.session.renew")
def _thaws(stage: ZooKeeperDirector) -> None:
    """Session and lease outlast the pause, so nothing moves and nothing is redelivered."""
    stage.scene(0, 1)
    stage.say("g_1 gets SIGSTOP, and SIGCONT two seconds later")
    stage.do(Do.FREEZE, 1)
    stage.produce(1)
    stage.wait(2.0)
    stage.do(Do.THAW, 1)
    stage.rest()


@_story("a zombie wakes", "member.session.connected")
def _zombie(stage: ZooKeeperDirector) -> None:
    """After its session has expired, the member delivers nothing and registers again."""
    stage.scene(0, 1)
    stage.say("g_1 gets SIGSTOP")
    stage.do(Do.FREEZE, 1)
    stage.until(lambda: stage.owned_by(0) == 4, "a take-over")
    stage.wait(0.1)
    stage.say("g_1 gets SIGCONT, and more messages arrive")
    stage.produce(1)
    stage.do(Do.THAW, 1)
    stage.rest()


# ---- the session and the connection -------------------------------------------------------------


@_story("a session expires", "member.session.connected")
def _expires(stage: ZooKeeperDirector) -> None:
    """The member drops the state of the old session; it registers, reads and claims again."""
    stage.scene(0, 1)
    stage.say("the session of g_1 is ended by the server")
    stage.do(Do.EXPIRE, 1)
    stage.rest()


@_story("the connection is cut", "member.session.suspended")
def _cut(stage: ZooKeeperDirector) -> None:
    """Delivery pauses; after the reconnect the member reads back what it owns and continues."""
    stage.scene(0, 1)
    stage.say("the connection of g_1 is cut")
    stage.do(Do.CUT, 1)
    stage.produce(1)
    stage.rest()


@_story("a reply is lost", "member.rebalance.apply_read_back", members=1)
def _lost_reply(stage: ZooKeeperDirector) -> None:
    """The claim succeeded but its reply was lost, so the member reads the owner znodes."""
    stage.say("g_0 joins; the connection breaks after its claim is executed")
    stage.join(0)
    stage.until(lambda: stage.owned_by(0) == 4, "a claim")
    stage.do(Do.CUT, 0)
    stage.rest()


@_story(
    "the reply to a commit is lost",
    "member.offset_ledger.Ledger.after_commit",
    members=1,
    partitions=2,
)
def _lost_commit(stage: ZooKeeperDirector) -> None:
    """The member recognises its write by value and version, and does not write twice."""
    stage.scene(0)
    stage.say("g_0 commits; the connection breaks after the commit is executed")
    stage.do(Do.COMMIT, 0)
    stage.until(lambda: len(stage.world.committed()) == 2, "a commit")
    stage.do(Do.CUT, 0)
    stage.rest()
    stage.say("the user commits again")
    stage.do(Do.COMMIT, 0)
    stage.rest()


# ---- claims -------------------------------------------------------------------------------------


@_story("an assigned partition still has an owner", "member.rebalance.claimed", partitions=4)
def _meets_owner(stage: ZooKeeperDirector) -> None:
    """The member claims the free partitions, and the others when their owner znodes vanish."""
    stage.scene(0)
    stage.say("g_0 gets SIGSTOP, with its session alive; g_1 joins")
    stage.do(Do.FREEZE, 0)
    stage.join(1)
    stage.wait(1.0)
    stage.say("g_0 gets SIGCONT")
    stage.do(Do.THAW, 0)
    stage.rest()


@_story("your code is slow when a partition moves", "member.machine._phase_tick", partitions=2)
def _slow(stage: ZooKeeperDirector) -> None:
    """The partition moves after the grace; the message in hand is redelivered."""
    stage.say("g_0 joins; its user keeps the first message of t-1 for a long time")
    stage.join(0)
    stage.until(lambda: stage.world.handed_out.get(TopicPartition("t", 1)), "a message of t-1")
    stage.do(Do.SLOW, 0)
    stage.say("g_1 joins")
    stage.join(1)
    stage.wait(2.0)
    stage.do(Do.END_SLOW, 0)
    stage.rest()


@_story("another client deletes an owner znode", "member.rebalance.owner_node_changed", members=1)
def _owner_deleted(stage: ZooKeeperDirector) -> None:
    """Delivery of the partition stops at once; no member owns it, so it is claimed again."""
    stage.scene(0)
    stage.say("another client deletes the owner znode of t-1")
    stage.do(Do.DELETE_OWNER, partition=1)
    stage.produce(1)
    stage.rest()


@_story("another client deletes an id znode", "member.session.member_node_gone", members=1)
def _id_deleted(stage: ZooKeeperDirector) -> None:
    """The lease ends with the id znode; the member registers again and reads what it owns."""
    stage.scene(0)
    stage.say("another client deletes the id znode of g_0")
    stage.do(Do.DELETE_ID, 0)
    stage.produce(1)
    stage.rest()


@_story(
    "the group has more threads than partitions",
    "protocol.group_snapshot.assignment",
    members=3,
    partitions=2,
)
def _too_many(stage: ZooKeeperDirector) -> None:
    """The last threads get no partition; they get one when another member leaves."""
    stage.scene(0, 1, 2)
    stage.say("g_0 is shut down")
    stage.do(Do.LEAVE, 0)
    stage.rest()


@_story("a JVM peer joins", "member.rebalance.revoke", jvm=frozenset({1}))
def _jvm_joins(stage: ZooKeeperDirector) -> None:
    """JVM members compute the same assignment; they claim one by one, and retry if refused."""
    stage.scene(0)
    stage.say("g_1, a JVM member, joins")
    stage.join(1)
    stage.rest()


@_story(
    "a JVM peer has given up",
    "member.peers.look_for_idle_peers",
    members=3,
    jvm=frozenset({1}),
    backoff_s=0.5,
)
def _jvm_gives_up(stage: ZooKeeperDirector) -> None:
    """No other member may claim its share; the others name it, and the next change wakes it."""
    stage.scene(0)
    stage.say("g_0 gets SIGSTOP; g_1, a JVM member, joins")
    stage.do(Do.FREEZE, 0)
    stage.join(1)
    stage.wait(2.5)
    stage.say("g_0 gets SIGCONT")
    stage.do(Do.THAW, 0)
    stage.wait(5.0)
    stage.say("g_2 joins")
    stage.join(2)
    stage.rest()


# ---- ZooKeeper and the brokers ------------------------------------------------------------------


@_story("ZooKeeper's leader dies", "member.session.connected")
def _leader_dies(stage: ZooKeeperDirector) -> None:
    """All members pause during the election; their sessions survive, and nothing moves."""
    stage.scene(0, 1)
    stage.say("the leader dies: no quorum, and all connections break")
    _no_quorum(stage)
    stage.produce(1)
    stage.wait(0.5)
    stage.say("a leader is elected")
    stage.do(Do.QUORUM)
    stage.rest()


@_story("quorum is lost", "member.state.Lease.holds")
def _quorum_lost(stage: ZooKeeperDirector) -> None:
    """Without a quorum no session expires and no member delivers, for any length of time."""
    stage.scene(0, 1)
    stage.say("two of three servers are down, for ten session timeouts")
    _no_quorum(stage)
    stage.produce(1)
    stage.wait(60.0)
    stage.say("the servers are back")
    stage.do(Do.QUORUM)
    stage.rest()


def _no_quorum(stage: ZooKeeperDirector) -> None:
    stage.do(Do.NO_QUORUM)
    for who in range(len(stage.world.members)):
        stage.do(Do.CUT, who)


@_story("ZooKeeper restarts", "member.session.connected")
def _restarts(stage: ZooKeeperDirector) -> None:
    """All connections break; sessions and znodes survive, and members read what they own."""
    stage.scene(0, 1)
    stage.say("all servers stop and start")
    stage.do(Do.RESTART)
    stage.produce(1)
    stage.rest()


@_story("a broker dies", "protocol.group_snapshot.GroupView")
def _broker_dies(stage: ZooKeeperDirector) -> None:
    """Owners and offsets do not change: a broker is not a member, so no member rebalances."""
    stage.scene(0, 1)
    stage.say("the broker's znode vanishes")
    stage.do(Do.NO_BROKERS)
    stage.wait(3.0)
    stage.say("the broker is back, with more messages")
    stage.do(Do.BROKERS)
    stage.produce(1)
    stage.rest()


@_story("no broker is registered", "member.assignment.view_read", members=1)
def _no_broker(stage: ZooKeeperDirector) -> None:
    """Without brokers members claim nothing; they watch for the first broker."""
    stage.say("g_0 joins while no broker is registered")
    stage.do(Do.NO_BROKERS)
    stage.join(0)
    stage.wait(1.0)
    stage.say("a broker registers")
    stage.do(Do.BROKERS)
    stage.rest()


# ---- topics and offsets -------------------------------------------------------------------------


@_story("partitions are added", "member.rebalance.triggered", partitions=3)
def _grows(stage: ZooKeeperDirector) -> None:
    """Members watch the topic's znode, so the group rebalances and reads the new partition."""
    stage.scene(0, 1)
    stage.say("a partition is added")
    stage.do(Do.GROW)
    stage.rest()


@_story("a topic is created", "member.assignment.view_read", members=1)
def _created(stage: ZooKeeperDirector) -> None:
    """A member that waits for its topic watches for the topic's znode."""
    stage.say("g_0 joins; its topic does not exist")
    stage.do(Do.DELETE_TOPIC)
    stage.join(0)
    stage.wait(1.0)
    stage.say("the topic is created")
    stage.do(Do.CREATE_TOPIC)
    stage.rest()


@_story("a topic is deleted", "member.rebalance.topic_deleted", members=1)
def _deleted(stage: ZooKeeperDirector) -> None:
    """Fetching stops; if the topic is created again, its partitions are claimed with a warning."""
    stage.scene(0)
    stage.say("the topic is deleted")
    stage.do(Do.DELETE_TOPIC)
    stage.wait(1.0)
    stage.say("a topic of that name is created")
    stage.do(Do.CREATE_TOPIC)
    stage.rest()


@_story(
    "an operator resets an offset",
    "member.offset_ledger.Ledger.after_commit",
    members=1,
    partitions=1,
    messages=3,
)
def _edited(stage: ZooKeeperDirector) -> None:
    """The owner finds the marked edit at its next commit, and continues from that offset."""
    stage.scene(0)
    stage.say("the user commits")
    stage.do(Do.COMMIT, 0)
    stage.rest()
    stage.say("an operator sets the offset of t-0 to 0, and marks the edit")
    stage.do(Do.EDIT, partition=0)
    stage.wait(6.0)
    stage.rest()


@_story(
    "another client writes an offset",
    "member.offset_ledger.Ledger.after_commit",
    members=1,
    partitions=1,
    messages=3,
)
def _foreign_offset(stage: ZooKeeperDirector) -> None:
    """The owner overwrites a lower offset without a mark, such as a zombie's late commit."""
    stage.scene(0)
    stage.say("the user commits")
    stage.do(Do.COMMIT, 0)
    stage.rest()
    stage.say("another client sets the offset of t-0 to 0, without a mark; another message arrives")
    stage.do(Do.ZOMBIE, partition=0)
    stage.produce(1)
    stage.wait(6.0)
    stage.rest()


# ---- narrated runs -------------------------------------------------------------------------------


DEFAULT_FAULTS = (Do.KILL, Do.FREEZE, Do.EXPIRE, Do.CUT, Do.GROW)
NAMES = {do.value.replace("_", "-"): do for do in sorted(FAULTS, key=lambda do: do.value)}
"""The values of `--fault`."""

ACTIONS = 1000
"""Number of actions during which faults may happen; every member joins and rebalances several
times.
"""

RARITY = 40
"""While faults remain, one action in RARITY starts or ends a fault."""


def names_of(members: int) -> list[str]:
    """Return the consumer ids in a simulated world, in the order of their numbers."""
    return [f"g_{number}" for number in range(members)]


def run_seed(
    seed: int,
    *,
    members: int,
    partitions: int,
    strategy: Strategy,
    jvm: frozenset[int],
    kinds: Sequence[Do],
    emit: Emit,
) -> StoryRun:
    """Run the joins and faults that a seed selects; the members in `jvm` are JVM members.

    Then end all faults, and run until the group settles.
    """

    def settings(one: Settings) -> Settings:
        return replace(one, strategy=strategy)

    plan = Plan(
        members=members,
        partitions=partitions,
        messages=1,
        messages_per_advance=1,
        replicas=2,
        faults={do: kinds.count(do) for do in kinds},
        settings=settings,
    )
    recorder, monitor = Recorder(emit), monitor_for(jvm)
    on = stage(plan, recorder, monitor, jvm=jvm)
    decide = Decisions(random.Random(seed))

    def story() -> None:
        on.scene(*range((members + 1) // 2))
        on.say(f"seed {seed}: {members} members, {partitions} partitions")
        for _ in range(ACTIONS):
            action = _choose(on.world, decide)
            if action.do not in ORDINARY:
                on.say(f"{action.do.value.replace('_', ' ')}{_whom(action.who, action.tp)}")
            on.world.act(action)
        on.say("all faults are repaired, and no more messages arrive")
        on.world.messages_per_advance = 0
        while due := repairs(on.world):
            on.world.act(due[0])
        for who, link in enumerate(on.world.links):
            if not link.joined:
                on.join(who)
        on.rest()

    return _narrated(on, monitor, story)


def _choose(world: World, decide: Decisions) -> Action:
    """Choose the next action: rarely a fault or its end, usually an ordinary action.

    The advance of time is rare, too.
    """
    if decide(RARITY) == 0:
        wrong = [*possible(world), *repairs(world)]
        if wrong:
            return wrong[decide(len(wrong))]
    actions = world.enabled()
    if len(actions) > 1 and actions[-1].do is Do.TIME and decide(8):
        actions.pop()
    return actions[decide(len(actions))]


def run_scenario(scenario: Scenario, *, jvm: frozenset[int] | None, emit: Emit) -> StoryRun:
    """Run a story; the members in `jvm` are JVM members."""
    jvm = scenario.jvm if jvm is None else jvm
    monitor = monitor_for(jvm)
    on = stage(scenario.plan, Recorder(emit), monitor, jvm=jvm)
    return _narrated(on, monitor, lambda: scenario.script(on))


def _whom(who: int, tp: object) -> str:
    return f" {tp}" if tp is not None else f" {who}" if who >= 0 else ""


def _narrated(on: ZooKeeperDirector, monitor: Monitor, story: Callable[[], None]) -> StoryRun:
    world = on.world
    return narrated(on, monitor, story, lambda: len(world.log_end) - len(world.owners()))
