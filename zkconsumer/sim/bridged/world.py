"""The world of ZooKeeper and the world of a coordinator, joined by bridges.

`OldSide` is `sim.jvm_member.MixedWorld`: production members, models of JVM members, and consumers
of the bridges, which are production members whose stream is a bridge. `NewSide` is
`sim.coordinated.world.World`: members of the classic protocol, and the bridges, whose state machine
is `bridge.machine`. Both sides have the same logs and one clock.

What a thread of the real bridge posts to another thread is delivered in the same move. The network
of each side delays messages as in its own world.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import cast

from zkconsumer.bridge import machine
from zkconsumer.bridge import state as bridge
from zkconsumer.bridge.stream import BridgeStream
from zkconsumer.consumer.commit_requests import CommitRequested
from zkconsumer.consumer.loop import PartitionSinks
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.member.read_group import read_raw_group
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.requests import Reply, Request, run_operation
from zkconsumer.sim import plan as old_plan
from zkconsumer.sim import world as old_world
from zkconsumer.sim.coordinated import world as new_world
from zkconsumer.sim.coordinated.world import AnyState
from zkconsumer.sim.jvm_member import MixedWorld
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import Action, Do

CONSUMERS = 4
"""The number of consumers that a simulated bridge may run."""

INSTANCE = "bridge"
"""The bridges' `group.instance.id`."""


@dataclass
class Plan:
    """The parameters of a joint world.

    Attributes:
        old: the number of old members; `jvm` of them, the last ones, are JVM members.
        new: the number of new members.
        bridges: the number of processes of the bridge; all but one are standbys.
        setup: a function that changes the bridge's settings.
        settings: a function that changes a new member's properties.
        delay: the delay of each message to and from the brokers.
        session_s: the session timeout in ZooKeeper, of all members.
    """

    old: int = 2
    jvm: int = 0
    new: int = 2
    bridges: int = 1
    partitions: int = 4
    setup: Callable[[bridge.Settings], bridge.Settings] = lambda one: one
    settings: Callable[[ClientSettings], ClientSettings] = lambda one: one
    delay: new_world.Delay = new_world.no_delay
    session_s: float = 12.0
    faults: Mapping[Do, int] = field(default_factory=dict)

    def consumers(self, number: int) -> range:
        """Return the numbers, in `OldSide.members`, of a bridge's consumers."""
        first = self.old + number * CONSUMERS
        return range(first, first + CONSUMERS)

    def bridge_of(self, who: int) -> tuple[int, int] | None:
        """Return the bridge of a member of `OldSide`, and its number there; None: an old member."""
        return None if who < self.old else divmod(who - self.old, CONSUMERS)


# ---- the side of ZooKeeper -----------------------------------------------------------------------


class BridgeConsumer(SimMember):
    """A consumer of a bridge: a production member whose stream is the bridge."""

    def __init__(
        self,
        settings: Settings,
        world: BridgedWorld,
        where: tuple[int, int],
        on_transition: Callable[..., None],
    ) -> None:
        self._world, self._where = world, where
        number, consumer = where
        self.lending = BridgeStream(
            consumer,
            post=lambda event: world.tell(number, event),
            held=lambda: world.bridge_state(number).held,
        )
        super().__init__(settings, on_transition)

    def _sinks(self) -> PartitionSinks:
        return {(None, thread): self.lending for thread in thread_ids(self.name, 1)}

    def open(self, deadline: float) -> None:
        super().open(deadline)
        number, consumer = self._where
        self._world.tell(number, lambda now: bridge.LeaseChanged(now, consumer, deadline))


class CommitAnswer:
    """Tells the bridge that a commit to ZooKeeper has ended."""

    def __init__(self, world: BridgedWorld, where: tuple[int, int]) -> None:
        self._world, self._where = world, where

    def set_result(self, result: None, /) -> None:
        number, consumer = self._where
        self._world.tell(number, lambda now: bridge.CommitEnded(now, consumer))

    def set_exception(self, error: Exception, /) -> None:
        self.set_result(None)


LOOK_S = 0.1
"""The shortest time, in virtual seconds, between two looks at the sessions of gone clients."""


class OldSide(MixedWorld):
    """The world of ZooKeeper, with the bridges' consumers as its last members."""

    def __init__(self, world: BridgedWorld, watcher: old_world.Watcher) -> None:
        self._world = world
        plan = world.plan
        settled = old_plan.Plan(
            members=plan.old + plan.bridges * CONSUMERS,
            partitions=plan.partitions,
            messages=2,
            session_s=plan.session_s,
            faults=dict(plan.faults),
        )
        super().__init__(settled, watcher, jvm=frozenset(range(plan.old - plan.jvm, plan.old)))

    def new_member(self, who: int) -> SimMember:
        """Return a new process of a member; the last members are the bridges' consumers."""
        where = self._world.plan.bridge_of(who)
        if where is None:
            return super().new_member(who)
        return BridgeConsumer(self._settings(who), self._world, where, self._transition)

    def next_look_at_sessions(self) -> float:
        """Return when the next session expires. A time relative to now would never come, because
        the moves of the other side let time pass, too."""
        return max(self.now + LOOK_S, self.zookeeper.next_expiry())

    def _settings(self, number: int) -> Settings:
        settings = super()._settings(number)
        if self._world.plan.bridge_of(number) is None:
            return replace(settings, grace_s=2.0, nudge_s=5.0)
        return replace(
            settings,
            subscription={self.TOPIC: 1},
            grace_s=30.0,
            auto_commit_s=2.0,
            nudge_s=10.0,
        )


# ---- the side of the brokers ---------------------------------------------------------------------


class NewSide(new_world.World):
    """The world of the coordinator, with the bridges as its first members."""

    def __init__(self, world: BridgedWorld, watcher: new_world.Watcher) -> None:
        self._world = world
        plan = world.plan
        settled = new_world.Plan(
            members=plan.bridges + plan.new,
            partitions=plan.partitions,
            messages=2,
            settings=self._settings_of,
            delay=plan.delay,
        )
        super().__init__(settled, watcher)

    def _settings_of(self, one: ClientSettings, who: int) -> ClientSettings:
        plan = self._world.plan
        if who >= plan.bridges:
            return plan.settings(one)
        return replace(
            one,
            assignors=bridge.ASSIGNORS,
            instance=INSTANCE,
            session_s=20.0,
            heartbeat_s=1.0,
            auto_commit_s=None,
            join_version=bridge.JOIN_VERSION,
        )

    def _new_member(self, who: int) -> new_world.Member:
        member = super()._new_member(who)
        plan = self._world.plan
        if who >= plan.bridges:
            return member
        names = tuple(f"{new_world.GROUP}_{number}" for number in plan.consumers(who))
        setup = plan.setup(bridge.Settings(member.state.settings, names, mirror_s=2.0, calm_s=1.0))
        # The world uses all kinds of members in the same way.
        state = cast(AnyState, bridge.begin(setup))
        return replace(member, state=state, machine=machine)

    def step(self) -> bool:
        """Perform the next event; the clock never goes back to the time at which it was queued."""
        if not self._queue:
            return False
        due, _, entry = heapq.heappop(self._queue)
        self.now = max(self.now, due)
        self._perform(entry)
        self.watcher.acted(self)
        return True

    def tell(self, number: int, event: ev.Event) -> None:
        """Pass an event to a bridge."""
        self._happens(number, event)


class _Orders(new_world.Watcher):
    """Collects the commands of the bridges."""

    def __init__(self, world: BridgedWorld) -> None:
        self._world = world

    def transition(
        self,
        world: new_world.World,
        who: int,
        before: AnyState,
        event: ev.Event,
        commands: Iterable[ev.Command],
    ) -> None:
        if who < self._world.plan.bridges:
            self._world.orders += [(who, one) for one in commands]


# ---- both sides ----------------------------------------------------------------------------------


class BridgedWorld:
    """One run: `step` performs the next move, and `do` an order or a fault.

    Attributes:
        old, new: both sides.
        orders: commands of the bridges that have not been executed yet.
        running: bridge -> the consumers that it wants to run.
        active: the bridge that works; None: none does.
        standbys: the bridges that wait until the sessions of the active one have ended.
    """

    def __init__(
        self, plan: Plan, old: old_world.Watcher | None = None, new: new_world.Watcher | None = None
    ) -> None:
        self.plan = plan
        self._told: list[tuple[int, Callable[[float], ev.Event]]] = []
        self.orders: list[tuple[int, ev.Command]] = []
        self.running: dict[int, frozenset[int]] = {}
        self.active: int | None = None
        self.standbys: list[int] = []
        self._closed: set[int] = set()
        self._seen = 0
        self._is_settling = False
        self.old = OldSide(self, old or old_world.Watcher())
        watchers = (_Orders(self), *([new] if new is not None else []))
        self.new = NewSide(self, new_world.Watchers(*watchers))
        self.new.log_end = self.old.log_end
        self.before_order: Callable[[int, ev.Command], None] = lambda number, command: None

    @property
    def now(self) -> float:
        return max(self.old.now, self.new.now)

    def bridge_state(self, number: int) -> bridge.State:
        return cast(bridge.State, self.new.members[number].state)

    def bridge_lives(self, number: int) -> bool:
        """Return whether the process of a bridge runs."""
        return self.new.members[number].lives

    # ---- moves -----------------------------------------------------------------------------------

    def _set_clocks(self, now: float) -> None:
        self.old.now = self.new.now = now

    def old_moves(self) -> list[Action]:
        """Return the moves of the old side that need no time; members join by orders only."""
        found = self.old.enabled()
        return [one for one in found if one.do not in (Do.TIME, Do.JOIN)]

    def step(self, choose: Callable[[list[Action]], Action]) -> None:
        """Perform what is due, or one of the old side's moves, or let time pass."""
        self._perform(self.old_moves(), choose)

    def _perform(self, moves: list[Action], choose: Callable[[list[Action]], Action]) -> None:
        now = self.now
        self._set_clocks(now)
        if self.new.next_moment() <= now:
            self.new.step()
        elif moves:
            self.old.act(choose(moves))
        elif self.new.next_moment() <= self.old.next_moment():
            self.new.step()
        else:
            self.old.act(Action(Do.TIME))
        self._settle()

    def act(self, action: Action) -> None:
        """Perform an action on the old side."""
        self._set_clocks(self.now)
        self.old.act(action)
        self._settle()

    def order(self, do: str, who: int = -1) -> None:
        """Perform an order of `sim.coordinated.world.ORDERS` on the new side."""
        self._set_clocks(self.now)
        self.new.act(new_world.Move(do, who))
        self._settle()

    def run(self, seconds: float, choose: Callable[[list[Action]], Action]) -> None:
        """Let this many seconds pass."""
        end = self.now + seconds
        moves = self.old_moves()
        while self._next_moment(moves) <= end:
            self._perform(moves, choose)
            moves = self.old_moves()
        self._set_clocks(max(end, self.now))
        self._settle()

    def next_moment(self) -> float:
        """Return when the next move is possible; infinity: never."""
        return self._next_moment(self.old_moves())

    def _next_moment(self, moves: list[Action]) -> float:
        if moves:
            return self.now
        return min(self.old.next_moment(), self.new.next_moment())

    def produce(self) -> None:
        """Add a message to each partition."""
        self.new.produce()

    def grow(self) -> None:
        """Add a partition to the topic."""
        self.act(Action(Do.GROW))
        self.new._topics_changed()
        self._settle()

    # ---- bridges ---------------------------------------------------------------------------------

    def tell(self, number: int, event: Callable[[float], ev.Event]) -> None:
        """Queue an event for a bridge; it is delivered when the present move has ended."""
        self._told.append((number, event))

    def start(self, number: int) -> None:
        """Start the process of a bridge; see `may_start`."""
        self.active = number
        if self.new.members[number].joined:
            self.new.revive(number)
        else:
            self.new.join(number)
        self._seen = 0
        self._settle()

    def order_all_to_continue(self) -> None:
        """End the faults of the new side: every process works, and a broker coordinates."""
        for who, member in enumerate(self.new.members):
            if member.frozen:
                self.order("thaw", who)
            if member.slow and member.lives and not member.state.settings.instance:
                self.order("hurry", who)
        if self.new.leader is None:
            self.order("coordinate", 0)

    def kill_bridge(self, number: int) -> None:
        """The process of a bridge dies, and its connections with it."""
        self.new.kill(number)
        for who in self.plan.consumers(number):
            link = self.old.links[who]
            if link.joined and not link.dead:
                self.old.act(Action(Do.KILL, who))
        self.running.pop(number, None)
        self._settle()

    def sessions_of(self, number: int) -> list[int]:
        """Return the living sessions of a bridge's consumers in ZooKeeper."""
        found = [self.old.links[who].session for who in self.plan.consumers(number)]
        return [one for one in found if one in self.old.zookeeper.sessions]

    def _settle(self) -> None:
        """Deliver events to the bridges and execute their commands until there are none."""
        if self._is_settling:
            return
        self._is_settling = True
        try:
            for _ in self._work():
                pass
        finally:
            self._is_settling = False

    def _work(self) -> Iterator[None]:
        while True:
            self._show_group()
            self._note_closed()
            told, self._told = self._told, []
            for number, event in told:
                self._set_clocks(self.now)
                self.new.tell(number, event(self.now))
            orders, self.orders = self.orders, []
            for number, command in orders:
                self._execute(number, command)
            self._run_consumers()
            self._replace_dead_bridge()
            if not self._told and not self.orders:
                return
            yield

    def _show_group(self) -> None:
        """Show the old group to the active bridge whenever its znodes have changed."""
        history = self.old.zookeeper.history
        if self._seen == len(history) or self.active is None:
            return
        ids, topics = paths.ids(self.old.GROUP), paths.TOPICS
        changed = {one.path.rpartition("/")[0] for one in history[self._seen :]}
        is_first, self._seen = self._seen == 0, len(history)
        if not is_first and not changed & {ids, topics}:
            return
        reading = read_raw_group(self.old.GROUP, Strategy.RANGE, exclude_internal=True)

        def ask(batch: Iterable[object]) -> list[Reply]:
            return [self.old.foreign(cast(Request, one)) for one in batch]

        found, _ = run_operation(reading, ask)
        self.tell(self.active, lambda now: bridge.GroupSeen(now, found))
        self.new.refresh_metadata(self.active)  # the topic may have grown

    def _note_closed(self) -> None:
        for who in range(self.plan.old, len(self.old.links)):
            link, where = self.old.links[who], self.plan.bridge_of(who)
            assert where is not None
            if not link.dead:
                self._closed.discard(who)
            elif who not in self._closed:
                self._closed.add(who)
                number, consumer = where
                held = self.bridge_state(number).held
                gone = frozenset(tp for tp, one in held.items() if one.consumer == consumer)
                if gone and self.bridge_lives(number):
                    self.tell(number, _Gone(consumer, gone))

    def _execute(self, number: int, command: ev.Command) -> None:
        self.before_order(number, command)
        match command:
            case bridge.Return(consumer, partitions):
                self.consumer(number, consumer).lending.returned(partitions)
            case bridge.CommitToZooKeeper(consumer, offsets):
                answer = CommitAnswer(self, (number, consumer))
                request = CommitRequested(0, offsets, cast("Future[None]", answer))
                self.consumer(number, consumer).post(request)
            case bridge.RunConsumers(consumers):
                self.running[number] = consumers
            case bridge.RemoveMembers():
                for who in range(self.plan.bridges, len(self.new.members)):
                    if self.new.members[who].state.member:
                        self.new.remove(who)
            case bridge.BridgeEnded():
                self.running[number] = frozenset()

    def may_start(self, number: int) -> bool:
        """Return whether a bridge may start: no other one has a session in ZooKeeper."""
        others = [one for one in range(self.plan.bridges) if one != number]
        return not any(self.bridge_lives(one) or self.sessions_of(one) for one in others)

    def _replace_dead_bridge(self) -> None:
        if self.standbys and self.may_start(self.standbys[0]):
            self.start(self.standbys.pop(0))

    def consumer(self, number: int, consumer: int) -> BridgeConsumer:
        """Return a consumer of a bridge."""
        return cast(BridgeConsumer, self.old.members[self.plan.consumers(number)[consumer]])

    def _run_consumers(self) -> None:
        """Start and close the consumers that the bridges want to run or not."""
        for number, wanted in list(self.running.items()):
            for consumer, who in enumerate(self.plan.consumers(number)):
                link, member = self.old.links[who], self.old.members[who]
                if consumer in wanted:
                    if link.dead:
                        self._on_old_side(Action(Do.REVIVE, who))
                    elif not link.joined:
                        self._on_old_side(Action(Do.JOIN, who))
                elif link.joined and not link.dead and not _is_leaving(member):
                    self._on_old_side(Action(Do.LEAVE, who))

    def _on_old_side(self, action: Action) -> None:
        self._set_clocks(self.now)
        self.old.act(action)

    # ---- queries ---------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Return whether both sides are at rest, and every message has been delivered."""
        if self.active is None or not self.bridge_lives(self.active):
            return False
        if not machine.is_settled(self.bridge_state(self.active)):
            return False
        members = self.new.members[self.plan.bridges :]
        if any(one.frozen or one.muted for one in members if one.lives):
            return False
        if not all(one.machine.is_settled(one.state) for one in members if one.lives):
            return False
        return self.reading() == self.old.log_end

    def reading(self) -> dict[TopicPartition, int]:
        """Return partition -> the next offset, of the partitions that a member delivers."""
        found: dict[TopicPartition, int] = {}
        for member, link in zip(self.old.members, self.old.links, strict=True):
            if link.joined and not link.dead and not link.frozen:
                found.update({tp: feed.delivered or 0 for tp, feed in member.feeds.items()})
        for one in self.new.members:
            if one.acts:
                found.update(one.fetching)
        return found


@dataclass(frozen=True)
class _Gone:
    """Makes the event that a closed consumer owns nothing any more."""

    consumer: int
    partitions: frozenset[TopicPartition]

    def __call__(self, now: float) -> ev.Event:
        return bridge.Withdrawn(now, self.consumer, self.partitions)


def _is_leaving(member: SimMember) -> bool:
    return any("LeaveRequested" in type(one).__name__ for one in member.inbox) or (
        member.state.phase.value in ("leaving", "closed")
    )
