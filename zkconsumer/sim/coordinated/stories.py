"""The stories of `zkconsumer simulate --protocol`: "What happens when…" with a group coordinator.

A story has the title of the same story on ZooKeeper (`sim.scenarios`), if there is one. Some
stories exist only here, and `WITHOUT` gives the reason for each story of `sim.scenarios` that is
missing here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from zkconsumer.frozen import dataclass
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.sim.coordinated.monitor import CoordinatedMonitor
from zkconsumer.sim.coordinated.recorder import CoordinatedRecorder
from zkconsumer.sim.coordinated.search import end_faults, random_delay, run_faults
from zkconsumer.sim.coordinated.world import CoordinatedPlan, CoordinatedWatchers, CoordinatedWorld
from zkconsumer.sim.kernel.search import Decisions
from zkconsumer.sim.kernel.stories import Emit, Story, StoryRun, StoryStage, lesson_of, narrated

Value: TypeAlias = Any  # Any: the group's protocol has the class

LIMIT_S = 700.0
"""Virtual seconds within which a story's condition must become true: a rebalance timeout, the age
of the metadata, and some session timeouts."""

ASSIGNORS: dict[str, tuple[str, ...]] = {
    "classic-eager": ("range",),
    "classic-cooperative": ("cooperative-sticky",),
    "consumer": (),
}
"""Protocol -> the members' assignors."""

WITHOUT = {
    "an-assigned-partition-still-has-an-owner": "no member claims partitions",
    "a-jvm-peer-joins": "all clients of this protocol follow the same rules",
    "a-jvm-peer-has-given-up": "a member retries without end",
    "an-operator-resets-an-offset": "Kafka refuses to reset offsets while the group has members",
    "another-client-deletes-an-owner-znode": "there are no owner znodes",
    "another-client-deletes-an-id-znode": "see `an operator removes a member`",
    "zookeeper-restarts": "a group does not use ZooKeeper; see `the coordinator dies`",
    "zookeeper-s-leader-dies": "a group does not use ZooKeeper; see `the coordinator dies`",
    "quorum-is-lost": "a group does not use ZooKeeper; see `no broker coordinates`",
}
"""Stories on ZooKeeper that these protocols do not have, with the reason."""


class CoordinatedDirector(StoryStage[CoordinatedWorld]):
    """One world, and the commands of a story. The events happen in the order of the queue."""

    LIMIT_S = LIMIT_S

    def name_of(self, who: int) -> str:
        return self.world.members[who].name

    def join(self, *who: int) -> None:
        self.world.join(*who)

    def step(self) -> bool:
        return self.world.step()

    def wait(self, seconds: float) -> None:
        self.world.run(seconds)

    def rests(self) -> bool:
        return self.world.settled()

    def owned_by(self, who: int) -> int:
        """Return how many partitions a member delivers."""
        return len(self.world.members[who].fetching)


Script = Callable[[CoordinatedDirector], None]


@dataclass(frozen=True, kw_only=True)
class CoordinatedStory(Story[CoordinatedDirector]):
    """A story of a group with a coordinator.

    `decided` names two functions: one decides in a classic member, the other in a KIP-848 member.
    """

    decided: tuple[str, str]
    plan: dict[str, Value]
    properties: dict[str, Value]

    @property
    def members(self) -> int:
        """The number of members."""
        return int(self.plan.get("members", CoordinatedPlan.members))

    def world(self, protocol: str, watcher: Value) -> CoordinatedWorld:
        """Return the story's world before its first action."""
        return CoordinatedWorld(plan_for(protocol, self.properties, **self.plan), watcher)


def plan_for(protocol: str, properties: dict[str, Value], **plan: Value) -> CoordinatedPlan:
    """Return a plan whose members have the protocol's assignors and these properties."""

    def settings(one: ClientSettings, who: int) -> ClientSettings:
        changed = {name: of(who) if callable(of) else of for name, of in properties.items()}
        return replace(one, assignors=ASSIGNORS[protocol] or one.assignors, **changed)

    kind = "consumer" if protocol == "consumer" else "classic"
    return CoordinatedPlan(protocol=kind, settings=settings, **plan)


STORIES: dict[str, CoordinatedStory] = {}


def _story(
    title: str,
    classic: str,
    consumer: str,
    *,
    properties: dict[str, Value] | None = None,
    **plan: Value,
) -> Callable[[Script], Script]:
    def add(script: Script) -> Script:
        one = CoordinatedStory(
            title=title,
            lesson=lesson_of(script),
            script=script,
            decided=(f"later.classic_member.{classic}", f"later.consumer_member.{consumer}"),
            plan=plan,
            properties=properties or {},
        )
        STORIES[one.name] = one
        return script

    return add


# ---- members come and go ------------------------------------------------------------------------


@_story("a consumer joins", "_revoke_before_join", "_move")
def _joins(on: CoordinatedDirector) -> None:
    """Other members learn of the rebalance in a heartbeat, and commit before they revoke."""
    on.scene(0)
    on.say("g_1 joins")
    on.world.join(1)
    on.rest()


@_story(
    "many consumers join at once", "_rejoin", "_set_target", members=3, partitions=6, messages=1
)
def _many(on: CoordinatedDirector) -> None:
    """The first rebalance of an empty classic group waits 3 s for more members; KIP-848 does not
    wait."""
    on.say("g_0, g_1 and g_2 join")
    on.world.join(0, 1, 2)
    on.rest()


@_story("a consumer leaves", "_closing", "_closing")
def _leaves(on: CoordinatedDirector) -> None:
    """The member commits, revokes and leaves; the others learn of it in their heartbeats."""
    on.scene(0, 1)
    on.say("g_1 is closed")
    on.world.leave(1)
    on.world.produce()
    on.rest()


@_story("a consumer dies", "_heartbeat_answered", "_set_target")
def _dies(on: CoordinatedDirector) -> None:
    """The coordinator waits for the session timeout; what was not committed is redelivered."""
    on.scene(0, 1)
    on.say("g_1 gets SIGKILL")
    on.world.kill(1)
    on.rest()


@_story("a consumer freezes", "_heartbeat_answered", "_set_target")
def _freezes(on: CoordinatedDirector) -> None:
    """After the session timeout the others take over the frozen member's partitions."""
    on.scene(0, 1)
    on.say("g_1 gets SIGSTOP")
    on.world.freeze(1)
    on.until(lambda: on.owned_by(0) == 4, "a take-over")


@_story("a frozen consumer wakes in time", "_heartbeat_thread", "_heartbeat")
def _thaws(on: CoordinatedDirector) -> None:
    """Nothing moves and nothing is redelivered: the session outlasts the pause."""
    on.scene(0, 1)
    on.say("g_1 gets SIGSTOP, and SIGCONT ten seconds later")
    on.world.freeze(1)
    on.world.produce()
    on.world.run(10.0)
    on.world.thaw(1)
    on.rest()


@_story("a zombie wakes", "_reset", "_refused", properties={"auto_commit_s": 5.0})
def _zombie(on: CoordinatedDirector) -> None:
    """It delivers the new owner's messages, too, until its heartbeat or commit is refused."""
    on.scene(0, 1)
    on.say("g_1 gets SIGSTOP")
    on.world.freeze(1)
    on.until(lambda: on.owned_by(0) == 4, "a take-over")
    on.say("more messages come, and g_1 gets SIGCONT")
    on.world.produce()
    on.world.thaw(1)
    on.rest()


@_story(
    "a static member restarts",
    "_join",
    "_send_heartbeat",
    properties={"instance": lambda who: f"i{who}"},
)
def _static(on: CoordinatedDirector) -> None:
    """With `group.instance.id` the member gets its partitions back; no other member rebalances."""
    on.scene(0, 1)
    on.say("g_1 is closed, and starts again after five seconds")
    on.world.leave(1)
    on.world.run(5.0)
    on.world.revive(1)
    on.rest()


# ---- the network --------------------------------------------------------------------------------


@_story("a session expires", "_heartbeat_answered", "_refused")
def _expires(on: CoordinatedDirector) -> None:
    """No heartbeat arrives for the session timeout: the member's generation is lost, and it joins
    as a new member."""
    on.scene(0, 1)
    on.say("the network drops everything from and to g_1, for 60 s")
    on.world.mute(1)
    on.world.run(60.0)
    on.say("the network is whole again")
    on.world.unmute(1)
    on.rest()


@_story("the connection is cut", "_drop", "_drop")
def _cut(on: CoordinatedDirector) -> None:
    """The member continues to deliver and looks up its coordinator; its session survives."""
    on.scene(0, 1)
    on.say("the connections of g_1 to the brokers are cut")
    on.world.cut(1)
    on.world.produce()
    on.world.run(10.0)
    on.rest()


@_story("a reply is lost", "_rebalance_failed", "_drop", members=1)
def _lost_reply(on: CoordinatedDirector) -> None:
    """The coordinator has added the member, which does not know it: the member joins again."""
    on.say("g_0 joins; its connection breaks before the answer arrives")
    on.world.join(0)
    on.until(on.world.known, "a member")
    on.world.cut(0)
    on.rest()


@_story("the reply to a commit is lost", "_committed", "_committed", members=1)
def _lost_commit(on: CoordinatedDirector) -> None:
    """The next automatic commit stores the positions again."""
    on.scene(0)
    on.say("the connection breaks while a commit is executed")
    on.until(
        lambda: any(
            "OffsetCommit" in type(one.request).__name__
            for one in on.world.members[0].state.client.sent.values()
        ),
        "a commit",
    )
    on.world.cut(0)
    on.world.run(8.0)
    on.rest()


@_story("another client writes an offset", "_committed", "_committed")
def _foreign_offset(on: CoordinatedDirector) -> None:
    """A zombie's late commit carries an old generation or epoch: the coordinator refuses it."""
    on.scene(0, 1)
    on.say("the network holds back what g_1 sends, for 60 s; g_1 has messages to commit")
    on.world.hold(1)
    on.world.produce()
    on.world.run(60.0)
    on.say("the network delivers it")
    on.world.release(1)
    on.rest()


@_story("an operator removes a member", "_heartbeat_answered", "_refused")
def _removed(on: CoordinatedDirector) -> None:
    """An operator removes the member: it loses its partitions, and joins as a new member."""
    on.scene(0, 1)
    on.say("an operator removes g_1 from the group")
    on.world.remove(1)
    on.world.run(10.0)
    on.rest()


# ---- the user -----------------------------------------------------------------------------------


@_story("your code is slow when a partition moves", "_poll_returned", "_user_thread", partitions=2)
def _slow(on: CoordinatedDirector) -> None:
    """The rebalance waits until the user polls again, up to `max.poll.interval.ms`."""
    on.scene(0)
    on.say("the user of g_0 works on a message for 20 s; g_1 joins")
    on.world.slow(0)
    on.world.join(1)
    on.world.run(20.0)
    on.say("the user of g_0 polls again")
    on.world.hurry(0)
    on.rest()


@_story("you stop polling", "_leave", "_leave_stale", partitions=2, properties={"poll_s": 60.0})
def _stops_polling(on: CoordinatedDirector) -> None:
    """After `max.poll.interval.ms` the client itself leaves the group, although its heartbeats
    work."""
    on.scene(0, 1)
    on.say("the user of g_1 works on a message for 90 s; max.poll.interval.ms is 60 s")
    on.world.slow(1)
    on.world.run(90.0)
    on.say("the user of g_1 polls again")
    on.world.hurry(1)
    on.rest()


@_story(
    "the group has more threads than partitions",
    "compute_assignments",
    "_set_target",
    members=3,
    partitions=2,
)
def _too_many(on: CoordinatedDirector) -> None:
    """One member gets nothing; it stays a member, and gets a partition when another one leaves."""
    on.scene(0, 1, 2)
    on.say("g_0 is closed")
    on.world.leave(0)
    on.rest()


# ---- brokers and topics -------------------------------------------------------------------------


@_story("the coordinator dies", "_drop", "_drop")
def _coordinator_dies(on: CoordinatedDirector) -> None:
    """Another broker reads the group from `__consumer_offsets`: all members keep their
    partitions."""
    on.scene(0, 1)
    on.say("broker 0, the coordinator, dies")
    on.world.kill_broker(0)
    on.world.produce()
    on.world.run(0.5)
    on.say("broker 1 is elected leader of the group's partition of __consumer_offsets")
    on.world.move_coordinator(1)
    on.world.run(10.0)
    on.rest()


@_story("no broker coordinates", "_heartbeat_thread", "_background")
def _no_coordinator(on: CoordinatedDirector) -> None:
    """Members deliver without commits; the group is unchanged when it has a coordinator again."""
    on.scene(0, 1)
    on.say("no broker leads the group's partition of __consumer_offsets, for 60 s")
    on.world.move_coordinator(None)
    on.world.produce()
    on.world.run(60.0)
    on.say("broker 1 leads it")
    on.world.move_coordinator(1)
    on.world.run(10.0)
    on.rest()


@_story("a broker dies", "_drop", "_drop")
def _broker_dies(on: CoordinatedDirector) -> None:
    """A broker that does not coordinate the group is no part of it: no member rebalances."""
    on.scene(0, 1)
    on.say("broker 2 dies, and starts again after 3 s")
    on.world.kill_broker(2)
    on.world.run(3.0)
    on.world.revive_broker(2)
    on.world.produce()
    on.rest()


@_story("no broker is registered", "_look_up", "_background", members=1)
def _no_broker(on: CoordinatedDirector) -> None:
    """The client repeats its search for the coordinator, with growing pauses."""
    on.say("g_0 joins while no broker coordinates")
    on.world.move_coordinator(None)
    on.world.join(0)
    on.world.run(1.5)
    on.say("broker 1 leads the group's partition of __consumer_offsets")
    on.world.move_coordinator(1)
    on.rest()


@_story("partitions are added", "_rejoin", "_set_target", partitions=3)
def _grows(on: CoordinatedDirector) -> None:
    """A classic group rebalances when its leader reads new metadata, after up to five minutes;
    KIP-848's coordinator assigns at once."""
    on.scene(0, 1)
    on.say("a partition is added")
    on.world.grow()
    on.rest()


@_story("a topic is created", "_rejoin", "_set_target", members=1)
def _created(on: CoordinatedDirector) -> None:
    """A member may wait for its topic; it gets nothing until the topic exists."""
    on.say("g_0 joins; its topic does not exist")
    logs = on.world.delete_topic()
    on.world.join(0)
    on.world.run(10.0)
    on.say("the topic is created")
    on.world.create_topic(logs)
    on.rest()


@_story("a topic is deleted", "_rejoin", "_set_target", members=1)
def _deleted(on: CoordinatedDirector) -> None:
    """The partitions are revoked when the metadata is read again."""
    on.scene(0)
    on.say("the topic is deleted")
    logs = on.world.delete_topic()
    on.until(lambda: not on.owned_by(0), "the end of the delivery")
    on.say("a topic of that name is created")
    on.world.create_topic(logs)
    on.rest()


# ---- telling ------------------------------------------------------------------------------------


def run_story(story: CoordinatedStory, protocol: str, emit: Emit) -> StoryRun:
    """Run a story, and pass its entries to `emit`."""
    recorder, monitor = CoordinatedRecorder(emit), CoordinatedMonitor()
    on = CoordinatedDirector(
        story.world(protocol, CoordinatedWatchers(monitor, recorder)), recorder
    )
    return _narrated(on, monitor, lambda: story.script(on))


def run_story_of_seed(
    seed: int, protocol: str, *, members: int, partitions: int, emit: Emit
) -> StoryRun:
    """Run the joins and faults that the seed selects; then end the faults."""
    recorder, monitor = CoordinatedRecorder(emit), CoordinatedMonitor()
    plan = plan_for(protocol, {}, members=members, partitions=partitions, messages=1)
    world = CoordinatedWorld(
        replace(plan, delay=random_delay(seed)), CoordinatedWatchers(monitor, recorder)
    )
    on = CoordinatedDirector(world, recorder)

    def script() -> None:
        on.scene(*range((members + 1) // 2))
        on.say(f"seed {seed}: {members} members, {partitions} partitions")
        run_faults(world, Decisions(random.Random(seed)), on.say)
        on.say("all faults end")
        end_faults(world)
        on.rest()

    return _narrated(on, monitor, script)


def _narrated(
    on: CoordinatedDirector, monitor: CoordinatedMonitor, script: Callable[[], None]
) -> StoryRun:
    world = on.world
    return narrated(on, monitor, script, lambda: len(world.log_end) - len(world.serving()))
