"""Random runs of groups that a bridge divides: decisions draw the members, the delays and faults.

A run ends all faults after some time. Then both sides must settle (B6 of `monitor`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from zkconsumer.bridge.state import Goal
from zkconsumer.later.classic_member_state import ClassicPhase
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.sim.bridged.monitor import BridgeMonitor, both_sides_settle
from zkconsumer.sim.bridged.world import CONSUMERS, BridgedPlan, BridgedWorld
from zkconsumer.sim.coordinated.world import LATENCY_S
from zkconsumer.sim.jvm_member import JvmMember
from zkconsumer.sim.kernel.search import Decide, Decisions, Result, judged, one_of
from zkconsumer.sim.plan import Action, Do
from zkconsumer.sim.random_search import heal


class Weather(Enum):
    """Which faults happen in a run."""

    CALM = "calm"  # members join and leave, the topic grows, the operator changes the goal
    CUT_OFF = "cut off"  # the same, and the bridge loses its connection to ZooKeeper
    FREEZE = "freeze"  # as calm, and the bridge's process freezes, while a standby waits
    STORM = "storm"  # as cut off; processes die, freeze and are removed; servers go away and return


ASSIGNORS = (("range",), ("cooperative-sticky",), ("roundrobin",), ("sticky",))

SLOWEST = 100
"""Delays of a message to or from a broker, in multiples of the latency, are less than this."""

EVENTS = 10
"""Maximum number of events in a run, besides the first joins."""

REST_S = 900.0
"""Virtual seconds in which both sides must settle after the last fault."""

LEAVING_S = 15.0
"""Virtual seconds in which a new member leaves, or is removed by the coordinator."""

CHECK_INTERVAL_S = 2.0
"""Interval, in virtual seconds, at which a run checks whether both sides have settled."""

PAUSES_S = (0.02, 0.2, 2.0, 10.0, 30.0)
"""Upper bounds of the time between two events, in virtual seconds."""

Event = tuple[str, int]
"""An event and the number of its member, replica or bridge; -1: it has none."""


def run(
    decide: Decisions,
    weather: Weather | None = None,
    *,
    say: Callable[[BridgedWorld, str], None] = lambda world, text: None,
) -> Result:
    """Run a group with events and faults, then without; `say` announces each of them.

    If `weather` is None, a decision selects it.
    """
    chosen = weather or one_of(tuple(Weather), decide)
    plan = _plan(decide, chosen)
    is_eager = "cooperative-sticky" not in plan.settings(ClientSettings("g", "c", ())).assignors
    monitor = BridgeMonitor(
        is_strict=chosen is Weather.CUT_OFF,
        is_calm=chosen is Weather.CALM and is_eager,
    )
    world = BridgedWorld(plan, monitor.old, monitor.new)
    monitor.watch(world)
    course = _Course(world, decide, chosen, say)

    def play() -> None:
        course.play()
        course.end()
        course.rest()
        both_sides_settle.check(world, REST_S)

    return judged(play, monitor, decide, lambda: course.actions)


def _plan(decide: Decide, weather: Weather) -> BridgedPlan:
    old = 1 + decide(3)
    jvm = frozenset(range(old - decide(old + 1), old)) if decide(2) else frozenset[int]()
    assignors = one_of(ASSIGNORS, decide)
    auto = one_of((1.0, 5.0), decide)
    share = one_of((None, 0.5), decide)

    def settings(one: ClientSettings) -> ClientSettings:
        return replace(one, assignors=assignors, session_s=10.0, poll_s=20.0, auto_commit_s=auto)

    return BridgedPlan(
        old=old,
        jvm=jvm,
        new=1 + decide(3),
        bridges=2 if weather in (Weather.STORM, Weather.FREEZE) else 1,
        partitions=1 + decide(6),
        strategy=one_of(tuple(Strategy), decide),
        limit=1 + decide(CONSUMERS) if decide(4) == 0 else CONSUMERS,
        prefix=one_of(("b", "-b"), decide),
        setup=lambda one: replace(one, share=share, takes_lead=True),
        settings=settings,
        delay=lambda _: LATENCY_S * (1 + (decide(SLOWEST) if decide(2) else 0)),
    )


class _Course:
    """The course of one run."""

    def __init__(
        self,
        world: BridgedWorld,
        decide: Decide,
        weather: Weather,
        say: Callable[[BridgedWorld, str], None],
    ) -> None:
        self._world, self._decide, self._weather, self._say = world, decide, weather, say
        self.actions = 0
        self._restarting: set[int] = set()  # old members that operators are restarting

    def play(self) -> None:
        """Let members join, the bridge start, and events happen, in random order."""
        plan = self._world.plan
        waiting: list[Event] = [("old joins", who) for who in range(plan.old)]
        waiting += [("new joins", plan.bridges + who) for who in range(plan.new)]
        if self._weather is Weather.STORM:
            waiting.append(("bridge starts", 0))
        else:  # otherwise new members read everything before the bridge leads the group
            self._happen(("bridge starts", 0))
            self._world.run(CHECK_INTERVAL_S, self._choose)
        waiting += [("bridge starts", number) for number in range(1, plan.bridges)]
        events = 1 + self._decide(EVENTS)
        while waiting or events:
            if waiting and (not events or self._decide(2) == 0):
                self._happen(waiting.pop(self._decide(len(waiting))))
            else:
                events -= 1
                self._happen(one_of(self._possible(), self._decide))
            limit_s = one_of(PAUSES_S, self._decide)
            self._world.run(limit_s * self._decide(100) / 100, self._choose)
            self._world.produce()

    def _choose(self, moves: list[Action]) -> Action:
        return one_of(moves, self._decide)

    def _happen(self, event: Event) -> None:
        self.actions += 1
        do, who = event
        self._say(self._world, do if who < 0 else f"{do} {who}")
        EVENTS_OF[do](self._world, who)

    def _possible(self) -> list[Event]:
        """Return the events that can happen now."""
        world = self._world
        found = [*_of_old_members(world), *_of_new_members(world)]
        if not world.old.active_faults.no_quorum:
            found.append(("topic grows", -1))
        found += [(f"goal {goal.value}", -1) for goal in (Goal.RUN, Goal.PAUSE)]
        if self._weather in (Weather.CUT_OFF, Weather.STORM):
            found += _refusals(world)
        if self._weather is Weather.CUT_OFF:
            found += _of_consumers(world)
        elif self._weather is Weather.FREEZE:
            found += _freezes(world)
        elif self._weather is Weather.STORM:
            found += _of_consumers(world)
            found += _faults(world)
        return found

    def end(self) -> None:
        """End all faults, and make sure that a bridge and a member live."""
        world = self._world
        for number in list(world.frozen_at):
            world.thaw_bridge(number)
        heal(world.old, lambda below: below - 1)
        _refuse(world, -1)
        if world.new.leader is None:
            world.order("coordinate", 0)  # without a coordinator, nobody can leave
        # Who is about to leave does not count, and must not be told to go on.
        world.run(LEAVING_S, self._choose)
        world.order_all_to_continue()
        alive = [one for one in range(world.plan.bridges) if world.bridge_lives(one)]
        if not alive:
            world.standbys = []
            _bridge_starts(world, 0)
        if not any(one.lives for one in world.new.members[world.plan.bridges :]):
            old = [one for one in range(world.plan.old) if _acts(world, one)]
            if not old:
                self._happen(("old joins", 0))
        world.set_wish(Goal.RUN)
        self._say(world, "all faults end")

    def rest(self) -> None:
        """Wait until both sides have settled, and stay settled after another message."""
        world, deadline = self._world, self._world.now + REST_S
        self._settle(deadline)
        world.produce()
        world.run(CHECK_INTERVAL_S, self._choose)
        self._settle(deadline)

    def _settle(self, deadline: float) -> None:
        while not self._world.settled() and self._world.now < deadline:
            _start_refused_again(self._world)
            self._restart_idle_members()
            self._world.run(CHECK_INTERVAL_S, self._choose)

    def _restart_idle_members(self) -> None:
        """Let operators restart JVM members that have given up, if no other member wakes them.

        Members of zkconsumer and consumers of the bridge register again to wake them. A group of
        JVM members does not recover by itself, with or without a bridge.
        """
        world = self._world
        for who in sorted(self._restarting):
            if world.old.links[who].dead and _may_start_again(world, who):
                self._restarting.remove(who)
                world.act(Action(Do.REVIVE, who))
        everybody = range(len(world.old.links))
        if any(_acts(world, who) for who in everybody if who not in world.plan.jvm):
            return
        for who in sorted(world.plan.jvm):
            if _acts(world, who) and world.old.jvm_member(who).connector.gave_up:
                self._restarting.add(who)
                world.act(Action(Do.LEAVE, who))


# ---- events --------------------------------------------------------------------------------------


def _acts(world: BridgedWorld, who: int) -> bool:
    link = world.old.links[who]
    return link.joined and not link.dead and not world.old.members[who].closed


def _of_old_members(world: BridgedWorld) -> list[Event]:
    found = [("old leaves", who) for who in range(world.plan.old) if _acts(world, who)]
    dead = [who for who in range(world.plan.old) if world.old.links[who].dead]
    return found + [("old starts again", who) for who in dead if _may_start_again(world, who)]


def _may_start_again(world: BridgedWorld, who: int) -> bool:
    """Return whether an old member may start again. A simulated JVM member waits until its session
    has ended, because it takes the registration of its old process for its own."""
    is_jvm = isinstance(world.old.members[who], JvmMember)
    return not is_jvm or world.old.links[who].session not in world.old.zookeeper.sessions


def _of_new_members(world: BridgedWorld) -> list[Event]:
    members = list(enumerate(world.new.members))[world.plan.bridges :]
    found = [("new leaves", who) for who, one in members if one.acts]
    return found + [("new starts again", who) for who, one in members if one.dead]


def _of_consumers(world: BridgedWorld) -> list[Event]:
    """Return the faults of the bridges' connections to ZooKeeper."""
    found: list[Event] = []
    for who in range(world.plan.old, len(world.old.links)):
        link = world.old.links[who]
        if link.joined and not link.dead and not link.frozen:
            if link.black_hole_at is not None:
                found.append(("network returns to", who))
            elif link.connected:
                found += [("network fails for", who), ("connection breaks of", who)]
    return found


def _refusals(world: BridgedWorld) -> list[Event]:
    """Return which partition the brokers may refuse to the bridges, or accept again."""
    if world.refused:
        return [("brokers accept every partition", -1)]
    return [("brokers refuse partition", tp.partition) for tp in sorted(world.log_end)]


def _refuse(world: BridgedWorld, partition: int) -> None:
    world.refused = frozenset(tp for tp in world.log_end if tp.partition == partition)


def _freezes(world: BridgedWorld) -> list[Event]:
    """Return whether each bridge may freeze or thaw."""
    living = [one for one in range(world.plan.bridges) if world.bridge_lives(one)]
    return [("bridge thaws" if one in world.frozen_at else "bridge freezes", one) for one in living]


def _faults(world: BridgedWorld) -> list[Event]:
    """Return the faults of processes, of the brokers and of an operator."""
    plan = world.plan
    found: list[Event] = [("coordinator moves", -1), ("broker restarts", world.new.leader or 0)]
    if world.new.leader is not None:
        found.append(("coordinator is away", -1))
    no_quorum = world.old.active_faults.no_quorum
    found.append(("quorum returns" if no_quorum else "quorum is lost", -1))
    for who in range(plan.old):
        if _acts(world, who):
            found.append(("old dies", who))
            found.append(("old thaws" if world.old.links[who].frozen else "old freezes", who))
    for who, one in list(enumerate(world.new.members))[plan.bridges :]:
        if one.lives:
            found += [("new dies", who), ("new is removed", who)]
            found.append(("new thaws" if one.frozen else "new freezes", who))
            found.append(("new hurries" if one.slow else "new is slow", who))
    for number in range(plan.bridges):
        if world.bridge_lives(number):
            found.append(("bridge dies", number))
            for who in plan.consumers(number):
                link = world.old.links[who]
                if link.joined and not link.dead and link.connected and link.black_hole_at is None:
                    found.append(("session ends of", who))
        elif world.new.members[number].dead and number not in world.standbys:
            found.append(("bridge starts", number))
    return found


def _bridge_starts(world: BridgedWorld, number: int) -> None:
    if world.may_start(number):
        world.start(number)
    else:
        world.standbys.append(number)


def _removed(world: BridgedWorld, who: int) -> None:
    if world.new.leader is not None:
        world.order("remove", who)


def _goal(goal: Goal) -> Callable[[BridgedWorld, int], None]:
    def change(world: BridgedWorld, _: int) -> None:
        if world.active is not None:
            world.set_wish(goal)

    return change


def _broker_restarts(world: BridgedWorld, broker: int) -> None:
    world.order("kill_broker", broker)
    world.order("revive_broker", broker)
    world.order("coordinate", (broker + 1) % len(world.new.brokers))


def _coordinator_moves(world: BridgedWorld, _: int) -> None:
    world.order("coordinate", ((world.new.leader or 0) + 1) % len(world.new.brokers))


def _start_refused_again(world: BridgedWorld) -> None:
    """Let operators start the new members again that a coordinator has refused.

    A coordinator that has just taken over the group knows only one assignor until the bridge has
    joined again.
    """
    for who, one in list(enumerate(world.new.members))[world.plan.bridges :]:
        if one.dead and one.state.phase is ClassicPhase.FAILED:
            world.order("revive", who)


def _on_old(do: Do) -> Callable[[BridgedWorld, int], None]:
    return lambda world, who: world.act(Action(do, who))


def _on_new(do: str) -> Callable[[BridgedWorld, int], None]:
    return lambda world, who: world.order(do, who)


def _join_old(world: BridgedWorld, who: int) -> None:
    link = world.old.links[who]
    world.act(Action(Do.REVIVE if link.dead else Do.JOIN, who))


EVENTS_OF: dict[str, Callable[[BridgedWorld, int], None]] = {
    "old joins": _join_old,
    "old leaves": _on_old(Do.LEAVE),
    "old starts again": _on_old(Do.REVIVE),
    "old dies": _on_old(Do.KILL),
    "old freezes": _on_old(Do.FREEZE),
    "old thaws": _on_old(Do.THAW),
    "new joins": _on_new("join"),
    "new leaves": _on_new("leave"),
    "new starts again": _on_new("revive"),
    "new dies": _on_new("kill"),
    "new freezes": _on_new("freeze"),
    "new thaws": _on_new("thaw"),
    "new is slow": _on_new("slow"),
    "new hurries": _on_new("hurry"),
    "new is removed": _removed,
    "topic grows": lambda world, _: world.grow(),
    "brokers refuse partition": _refuse,
    "brokers accept every partition": _refuse,
    "bridge starts": _bridge_starts,
    "bridge dies": lambda world, number: world.kill_bridge(number),
    "bridge freezes": lambda world, number: world.freeze_bridge(number),
    "bridge thaws": lambda world, number: world.thaw_bridge(number),
    "network fails for": _on_old(Do.BLACK_HOLE),
    "network returns to": _on_old(Do.END_BLACK_HOLE),
    "connection breaks of": _on_old(Do.CUT),
    "session ends of": _on_old(Do.EXPIRE),
    "quorum is lost": lambda world, _: world.act(Action(Do.NO_QUORUM)),
    "quorum returns": lambda world, _: world.act(Action(Do.QUORUM)),
    "coordinator is away": _on_new("no_coordinator"),
    "coordinator moves": _coordinator_moves,
    "broker restarts": _broker_restarts,
    **{f"goal {one.value}": _goal(one) for one in (Goal.RUN, Goal.PAUSE)},
}
"""Event -> what it does."""
