"""The world of ZooKeeper and the world of a coordinator, joined by bridges.

`OldSide` is `sim.jvm_member.MixedWorld`: production members, models of JVM members, and consumers
of the bridges, which are production members whose stream is a bridge. `NewSide` is
`sim.coordinated.world.CoordinatedWorld`: members of the classic protocol, and the bridges, whose
state machine is `bridge.machine`. Both sides have the same logs and one clock.

What a thread of the real bridge posts to another thread is delivered in the same move. The network
of each side delays messages as in its own world.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import field, replace
from typing import Final, Self, cast

from zkconsumer.bridge import machine, shares
from zkconsumer.bridge import state as bridge
from zkconsumer.bridge.state import Goal
from zkconsumer.bridge.stream import BridgeStream
from zkconsumer.consumer.commit_requests import CommitRequested
from zkconsumer.consumer.loop import Host, PartitionSinks, ReleaseDone
from zkconsumer.frozen import dataclass
from zkconsumer.later import member_events as ev
from zkconsumer.later.client_state import ClientSettings
from zkconsumer.member import commands as cmd
from zkconsumer.member.events import Event
from zkconsumer.member.read_group import read_raw_group
from zkconsumer.member.state import Settings, State
from zkconsumer.protocol import paths
from zkconsumer.protocol.assignors import Strategy
from zkconsumer.protocol.later import messages as msg
from zkconsumer.protocol.model import Purpose, TopicPartition
from zkconsumer.protocol.paths import thread_ids
from zkconsumer.protocol.requests import Reply, Request, run_operation
from zkconsumer.sim import plan as old_plan
from zkconsumer.sim import world as old_world
from zkconsumer.sim.coordinated import world as new_world
from zkconsumer.sim.coordinated.world import AnyState
from zkconsumer.sim.jvm_member import MixedWorld
from zkconsumer.sim.kernel.world import Transition
from zkconsumer.sim.member import OnTransition, SimMember
from zkconsumer.sim.plan import Action, Do

CONSUMERS = 4
"""The number of consumers that a simulated bridge may run."""

NUDGE_S: Final[float | None] = 10.0
"""The minimum time, in virtual seconds, between two nudges of a bridge's consumer."""

INSTANCE = "bridge"
"""The bridges' `group.instance.id`."""


@dataclass
class BridgedPlan:
    """The parameters of a joint world.

    Attributes:
        old: the number of old members.
        jvm: the numbers of the old members that are JVM members.
        new: the number of new members.
        bridges: the number of processes of the bridge; all but one are standbys.
        messages: messages of each partition at the start.
        replicas: the number of ZooKeeper servers that the old side uses.
        strategy: the old members' assignor.
        limit: how many consumers of a bridge can register, as with `maxClientCnxns`.
        prefix: how the names of a bridge's consumers begin; "-b" sorts before the old members.
        setup: a function that changes the bridge's settings.
        settings: a function that changes a new member's properties.
        old_settings: a function that changes an old member's settings.
        delay: the delay of each message to and from the brokers.
        session_s: the session timeout in ZooKeeper, of all members.
    """

    old: int = 2
    jvm: frozenset[int] = frozenset()
    new: int = 2
    bridges: int = 1
    partitions: int = 4
    messages: int = 2
    replicas: int = 1
    strategy: Strategy = Strategy.RANGE
    limit: int = CONSUMERS
    prefix: str = "b"
    setup: Callable[[bridge.Settings], bridge.Settings] = lambda one: one
    settings: Callable[[ClientSettings], ClientSettings] = lambda one: one
    old_settings: Callable[[Settings], Settings] = lambda one: one
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

    def consumer_name(self, number: int, consumer: int) -> str:
        """Return the consumer id of one of a bridge's consumers."""
        return f"{new_world.GROUP}_{self.prefix}{number}-{consumer}"


# ---- the side of ZooKeeper -----------------------------------------------------------------------


class CopyableStream(BridgeStream):
    """The production stream of a bridge's consumer, which can be copied."""

    def take_over(self, other: BridgeStream, host: Host) -> None:
        """Continue the unanswered requests to release of another stream."""
        for asked, done in other._releases:
            # `done` is a value, so that a copied consumer gets the answer itself.
            assert isinstance(done, ReleaseDone)
            self._releases.append((asked, ReleaseDone(done.partitions, host)))


class BridgeConsumer(SimMember):
    """A consumer of a bridge: a production member whose stream is the bridge."""

    def __init__(
        self,
        settings: Settings,
        world: BridgedWorld,
        where: tuple[int, int],
        on_transition: OnTransition,
    ) -> None:
        self.world, self.where = world, where
        self.lending = self._new_stream()
        super().__init__(settings, on_transition)

    def _new_stream(self) -> CopyableStream:
        number, consumer = self.where
        return CopyableStream(
            consumer,
            post=lambda event: self.world.tell(number, event),
            held=lambda: self.world.bridge_state(number).held,
        )

    def copy(self, on_transition: OnTransition) -> Self:
        """Return a copy, whose attribute `world` the caller changes to the copied world."""
        twin = super().copy(on_transition)
        twin.lending = twin._new_stream()
        twin.lending.take_over(self.lending, twin)
        twin.loop = twin.loop.copy(
            host=twin, gate=twin, executor=twin.loop.executor, streams=twin._sinks()
        )
        answer = CommitAnswer(twin)
        twin.loop.answer_commits(answer)
        future = cast("Future[None]", answer)
        inbox = twin.session.inbox
        for at, one in enumerate(inbox):
            if isinstance(one, CommitRequested):
                inbox[at] = replace(one, answer=future)
        return twin

    def tell(self, event: Callable[[float, int], ev.Event]) -> None:
        """Pass an event to the bridge; its arguments are the time and the consumer's number."""
        number, consumer = self.where
        self.world.tell(number, lambda now: event(now, consumer))

    def _sinks(self) -> PartitionSinks:
        return {(None, thread): self.lending for thread in thread_ids(self.name, 1)}

    def open(self, deadline: float) -> None:
        super().open(deadline)
        self.tell(lambda now, consumer: bridge.LeaseChanged(now, consumer, deadline))


class CommitAnswer:
    """Tells the bridge that a commit to ZooKeeper has ended."""

    def __init__(self, consumer: BridgeConsumer) -> None:
        self._consumer = consumer

    def set_result(self, result: None, /) -> None:
        self._consumer.tell(bridge.CommitEnded)

    def set_exception(self, error: Exception, /) -> None:
        self.set_result(None)


LOCK_LOOK_S = 1.0
"""How often, in virtual seconds, a bridge looks whether it is still the active one."""

LOOK_S = 0.1
"""The shortest time, in virtual seconds, between two looks at the sessions of gone clients."""


class OldSide(MixedWorld):
    """The world of ZooKeeper, with the bridges' consumers as its last members."""

    def __init__(self, world: BridgedWorld, watcher: old_world.Watcher) -> None:
        self._world = world
        self._numbers: dict[str, int] = {}
        plan = world.plan
        settled = old_plan.Plan(
            members=plan.old + plan.bridges * CONSUMERS,
            partitions=plan.partitions,
            messages=plan.messages,
            session_s=plan.session_s,
            replicas=plan.replicas,
            faults=dict(plan.faults),
            settings=plan.old_settings,
        )
        super().__init__(settled, watcher, jvm=plan.jvm)

    def new_member(self, who: int) -> SimMember:
        """Return a new process of a member; the last members are the bridges' consumers."""
        where = self._world.plan.bridge_of(who)
        if where is None:
            return super().new_member(who)
        return BridgeConsumer(self._settings(who), self._world, where, self._transition)

    def move_to(self, world: BridgedWorld) -> None:
        """Become the old side of a copied world."""
        self._world = world
        for one in self.members[world.plan.old :]:
            cast(BridgeConsumer, one).world = world

    def _transition(
        self, member: SimMember, before: State, event: Event, commands: tuple[cmd.Command, ...]
    ) -> None:
        who = self._numbers[member.name]
        self.watcher.transition(self, Transition(who, before, event, commands))

    def next_look_at_sessions(self) -> float:
        """Return when the next session expires. A time relative to now would never come, because
        the moves of the other side let time pass, too."""
        return max(self.now + LOOK_S, self.zookeeper.next_expiry())

    def _settings(self, number: int) -> Settings:
        settings = replace(super()._settings(number), strategy=self._world.plan.strategy)
        where = self._world.plan.bridge_of(number)
        if where is None:
            self._numbers[settings.consumer] = number
            return replace(settings, grace_s=2.0, nudge_s=5.0)
        name = self._world.plan.consumer_name(*where)
        self._numbers[name] = number
        return replace(
            settings,
            consumer=name,
            subscription={self.TOPIC: 1},
            grace_s=30.0,
            auto_commit_s=2.0,
            nudge_s=NUDGE_S,
        )


# ---- the side of the brokers ---------------------------------------------------------------------


class NewSide(new_world.CoordinatedWorld):
    """The world of the coordinator, with the bridges as its first members."""

    def __init__(self, world: BridgedWorld, watcher: new_world.CoordinatedWatcher) -> None:
        self._world = world
        # A request of a bridge that is in flight -> the partitions that the brokers refuse.
        self._refused: dict[new_world.Sender, frozenset[TopicPartition]] = {}
        plan = world.plan
        settled = new_world.CoordinatedPlan(
            members=plan.bridges + plan.new,
            partitions=plan.partitions,
            messages=plan.messages,
            settings=self._settings_of,
            delay=plan.delay,
        )
        super().__init__(settled, watcher)

    def _settings_of(self, one: ClientSettings, who: int) -> ClientSettings:
        plan = self._world.plan
        if who >= plan.bridges:
            return plan.settings(replace(one, client=self._name(who)))
        return replace(
            one,
            client=self._name(who),
            assignors=bridge.ASSIGNORS,
            instance=INSTANCE,
            session_s=20.0,
            heartbeat_s=1.0,
            auto_commit_s=None,
            join_version=bridge.JOIN_VERSION,
        )

    def move_to(self, world: BridgedWorld) -> None:
        """Become the new side of a copied world, and read its logs."""
        self._world, self.log_end = world, world.old.log_end
        self._refused = self._refused.copy()

    def _name(self, who: int) -> str:
        """Return the name of a process: new members have numbers of their own."""
        first = self._world.plan.bridges
        return f"bridge_{who}" if who < first else f"new_{who - first}"

    def _new_member(self, who: int) -> new_world.Member:
        member = replace(super()._new_member(who), name=self._name(who))
        plan = self._world.plan
        if who >= plan.bridges:
            return member
        names = tuple(plan.consumer_name(who, consumer) for consumer in range(CONSUMERS))
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

    def _receive(self, sender: new_world.Sender, epoch: int, request: msg.Request) -> None:
        """Execute a request; the brokers refuse some partitions of a bridge's."""
        refused = self._world.refused
        if refused and sender.who < self._world.plan.bridges:
            if isinstance(request, msg.OffsetCommit):
                self._refused[sender] = refused & request.offsets.keys()
                kept = {tp: at for tp, at in request.offsets.items() if tp not in refused}
                request = replace(request, offsets=kept)
            elif isinstance(request, msg.OffsetFetch) and request.partitions is not None:
                self._refused[sender] = refused.intersection(request.partitions)
                asked = tuple(tp for tp in request.partitions if tp not in refused)
                request = replace(request, partitions=asked)
        super()._receive(sender, epoch, request)

    def _respond(
        self, sender: new_world.Sender, epoch: int, request: msg.Request, response: msg.Response
    ) -> None:
        refused = self._refused.pop(sender, frozenset())
        if refused and isinstance(response, msg.OffsetsCommitted | msg.OffsetsFetched):
            errors = dict.fromkeys(refused, msg.Error.TOPIC_AUTHORIZATION_FAILED)
            response = replace(response, refused=errors)
        super()._respond(sender, epoch, request, response)


class _Orders(new_world.CoordinatedWatcher):
    """Collects the commands of the bridges."""

    def __init__(self, world: BridgedWorld) -> None:
        self._world = world

    def transition(
        self, world: new_world.CoordinatedWorld, step: new_world.MemberTransition
    ) -> None:
        if step.who < self._world.plan.bridges:
            self._world.orders += [(step.who, one) for one in step.commands]


# ---- both sides ----------------------------------------------------------------------------------


class BridgedWorld:
    """One run: `step` performs the next move, and `do` an order or a fault.

    Attributes:
        old, new: both sides.
        orders: commands of the bridges that have not been executed yet.
        running: bridge -> the consumers that it wants to run.
        wish: the goal and the share that the operator has ordered last; None: no order is stored.
        consumers: how many consumers the active bridge has run last; None: nobody has stored it.
        active: the bridge that works; None: none does.
        standbys: the bridges that wait until the sessions of the active one have ended.
        frozen_at: bridge whose process is frozen -> since when.
        replaced: the bridges that were frozen when another one became active.
        refused: the partitions whose offsets the brokers neither show to the bridges nor store.
    """

    def __init__(
        self,
        plan: BridgedPlan,
        old: old_world.Watcher | None = None,
        new: new_world.CoordinatedWatcher | None = None,
    ) -> None:
        self.plan = plan
        self._told: list[tuple[int, Callable[[float], ev.Event]]] = []
        self.orders: list[tuple[int, ev.Command]] = []
        self.running: dict[int, frozenset[int]] = {}
        self.wish: tuple[Goal, float | None] | None = None
        self.consumers: int | None = None
        self.active: int | None = None
        self.standbys: list[int] = []
        self.frozen_at: dict[int, float] = {}
        self.replaced: set[int] = set()
        self.refused: frozenset[TopicPartition] = frozenset()
        self._look_at: dict[int, float] = {}
        self._closed: set[int] = set()
        self._seen = 0
        self._is_settling = False
        self.old = OldSide(self, old or old_world.Watcher())
        watchers = (_Orders(self), *([new] if new is not None else []))
        self.new = NewSide(self, new_world.CoordinatedWatchers(*watchers))
        self.new.log_end = self.old.log_end

    @property
    def now(self) -> float:
        return max(self.old.now, self.new.now)

    @property
    def members(self) -> list[SimMember | new_world.Member]:
        """All processes of members: the old side's, and then the new side's."""
        return [*self.old.members, *self.new.members]

    @property
    def log_end(self) -> dict[TopicPartition, int]:
        """Partition -> the offset after its last message, for both sides."""
        return self.old.log_end

    def copy(self, old: old_world.Watcher, new: new_world.CoordinatedWatcher) -> BridgedWorld:
        """Return a world that continues independently from here, with these watchers."""
        twin = copy.copy(self)
        twin._told, twin.orders = self._told.copy(), self.orders.copy()
        twin.running, twin.standbys = self.running.copy(), self.standbys.copy()
        twin._closed = self._closed.copy()
        twin._look_at = self._look_at.copy()
        twin.frozen_at, twin.replaced = self.frozen_at.copy(), self.replaced.copy()
        twin.old = self.old.copy(old)
        twin.new = self.new.copy(new_world.CoordinatedWatchers(_Orders(twin), new))
        twin.old.move_to(twin)
        twin.new.move_to(twin)
        return twin

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
        return [one for one in self.old.enabled_now() if one.do is not Do.JOIN]

    def step(self, choose: Callable[[list[Action]], Action]) -> None:
        """Perform what is due, or one of the old side's moves, or let time pass."""
        self._perform(self.old_moves(), choose)

    def _perform(self, moves: list[Action], choose: Callable[[list[Action]], Action]) -> None:
        now = self.now
        self._set_clocks(now)
        if self.is_turn_of_new_side(busy=bool(moves)):
            self.new.step()
        else:
            self.old.act(choose(moves) if moves else Action(Do.TIME))
        self._settle()

    def is_turn_of_new_side(self, *, busy: bool) -> bool:
        """Return whether the next move of the new side is due before that of the old side, which is
        `busy` if it has a move that needs no time."""
        due = self.new.next_moment()
        return due <= self.now or (not busy and due <= self.old.next_moment())

    def enabled(self) -> list[Action | new_world.Move]:
        """Return the ordinary moves of both sides."""
        moves = self.old_moves()
        time = Action(Do.TIME)
        waits = [time] if not moves and time in self.old.enabled() else []
        return [*moves, *waits, *self.new.enabled()]

    def act(self, move: Action | new_world.Move) -> None:
        """Perform an action on the old side, or a move or an order of the new side."""
        if isinstance(move, Action):
            self.perform(lambda: self.old.act(move))
        else:
            self.perform(lambda: self.new.act(move))

    def order(self, do: str, who: int = -1) -> None:
        """Perform an order of `sim.coordinated.world.ORDERS` on the new side."""
        self.act(new_world.Move(do, who))

    def run(self, seconds: float, choose: Callable[[list[Action]], Action]) -> None:
        """Let this many seconds pass."""
        end = self.now + seconds
        moves = self.old_moves()
        while self._next_moment(moves) <= end:
            self._perform(moves, choose)
            moves = self.old_moves()
        self.pass_time(end)

    def pass_time(self, until: float) -> None:
        """Advance both clocks to `until`; nothing is due before."""
        self._set_clocks(max(until, self.now))
        self._settle()

    def perform(self, move: Callable[[], object]) -> None:
        """Let `move` change one side; the bridges then do what follows from the change."""
        self._set_clocks(self.now)
        move()
        self._settle()

    def next_moment(self) -> float:
        """Return when the next move is possible; infinity: never."""
        return self._next_moment(self.old_moves())

    def _next_moment(self, moves: list[Action]) -> float:
        if moves:
            return self.now
        return min(self.old.next_moment(), self.new.next_moment())

    def produce(self, messages: int = 1) -> None:
        """Add messages to each partition."""
        self._set_clocks(self.now)
        self.new.produce(messages)

    def grow(self) -> None:
        """Add a partition to the topic."""
        self.act(Action(Do.GROW))
        self.new._topics_changed()
        self._settle()

    # ---- bridges ---------------------------------------------------------------------------------

    def tell(self, number: int, event: Callable[[float], ev.Event]) -> None:
        """Queue an event for a bridge; it is delivered when the present move has ended."""
        self._told.append((number, event))

    def set_wish(self, goal: Goal, share: float | None = None) -> None:
        """Store what the operator orders, as `bridge.control` does, and tell the active bridge."""
        self.wish = goal, share
        if self.active is not None:
            self.tell(self.active, _GoalChanged(goal, share))

    def start(self, number: int) -> None:
        """Start the process of a bridge; see `may_start`. It pursues the stored goal."""
        self.active = number
        self.replaced |= self.frozen_at.keys()
        self.replaced.discard(number)
        self._look_at[number] = 0.0
        if self.new.members[number].joined:
            self.new.revive(number)
        else:
            self.new.join(number)
        if self.wish is not None:
            self.tell(number, _GoalChanged(*self.wish, self.consumers))
        self._seen = 0
        self._settle()

    def order_all_to_continue(self) -> None:
        """End the faults of the new side: every process works, and a broker coordinates."""
        for who, member in enumerate(self.new.members):
            if who in self.frozen_at:
                self.thaw_bridge(who)
            elif member.frozen:
                self.order("thaw", who)
            if member.slow and member.lives and not member.state.settings.instance:
                self.order("hurry", who)
        if self.new.leader is None:
            self.order("coordinate", 0)

    def kill_bridge(self, number: int) -> None:
        """The process of a bridge dies, and its connections with it."""
        self.new.kill(number)
        self.frozen_at.pop(number, None)
        for who in self.plan.consumers(number):
            link = self.old.links[who]
            if link.joined and not link.dead:
                self.old.act(Action(Do.KILL, who))
        self.running.pop(number, None)
        self.orders = [(who, order) for who, order in self.orders if who != number]
        self._settle()

    def freeze_bridge(self, number: int) -> None:
        """The process of a bridge stops, as after SIGSTOP; its connections stay open."""
        self.frozen_at[number] = self.now
        self.new.freeze(number)
        for who in self.plan.consumers(number):
            link = self.old.links[who]
            if link.joined and not link.dead:
                self._on_old_side(Action(Do.FREEZE, who))

    def thaw_bridge(self, number: int) -> None:
        """The process of a bridge continues, and handles what arrived while it was frozen."""
        del self.frozen_at[number]
        self._look_at[number] = self.now + LOCK_LOOK_S
        # The thread of the bridge may run before those of its consumers, which know their leases.
        self.perform(lambda: self.new.thaw(number))
        for who in self.plan.consumers(number):
            if self.old.links[who].frozen:
                self._on_old_side(Action(Do.THAW, who))
        self._settle()

    def _look_at_locks(self) -> None:
        """Let each bridge look at the lock when it is due; a replaced bridge then ends."""
        if self.old.active_faults.no_quorum:
            return
        for number, due in list(self._look_at.items()):
            if not self.bridge_lives(number):
                del self._look_at[number]
            elif number in self.frozen_at or self.now < due:
                continue
            elif number in self.replaced:
                self.kill_bridge(number)
            else:
                self._look_at[number] = self.now + LOCK_LOOK_S
                until = self.now + self.plan.session_s * 2 / 3
                self.tell(number, _LockKept(until))

    def _is_active(self, number: int) -> bool:
        """Return whether ZooKeeper may still have the session of a bridge's process."""
        ends = self.frozen_at.get(number, self.now) + self.plan.session_s
        return self.bridge_lives(number) and self.now < ends

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
            self._look_at_locks()
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
        if self.old.active_faults.no_quorum:
            return
        ids, topics = paths.ids(self.old.GROUP), paths.TOPICS
        changed = {one.path.rpartition("/")[0] for one in history[self._seen :]}
        is_first, self._seen = self._seen == 0, len(history)
        if not is_first and not changed & {ids, topics}:
            return
        reading = read_raw_group(self.old.GROUP, self.plan.strategy, exclude_internal=True)

        def ask(batch: Iterable[object]) -> list[Reply]:
            return [self.old.foreign(cast(Request, one)) for one in batch]

        found, _ = run_operation(reading, ask)
        self.tell(self.active, lambda now: bridge.GroupSeen(now, found))
        self.new.refresh_metadata(self.active)  # the topic may have grown

    def _note_closed(self) -> None:
        for who in range(self.plan.old, len(self.old.links)):
            if not self.old.links[who].dead:
                self._closed.discard(who)
            elif who not in self._closed:
                self._closed.add(who)
                where = self.plan.bridge_of(who)
                assert where is not None
                number, consumer = where
                held = self.bridge_state(number).held
                gone = frozenset(tp for tp, one in held.items() if one.consumer == consumer)
                if gone and self.bridge_lives(number):
                    self.tell(number, _Gone(consumer, gone))

    def _execute(self, number: int, command: ev.Command) -> None:
        match command:
            case bridge.Return(consumer, partitions):
                self.consumer(number, consumer).lending.returned(partitions)
            case bridge.CommitToZooKeeper(consumer, offsets):
                one = self.consumer(number, consumer)
                answer = cast("Future[None]", CommitAnswer(one))
                one.post(CommitRequested(0, offsets, answer, purpose=Purpose.EXPLICIT))
            case bridge.RunConsumers(consumers):
                self.running[number] = consumers
                self._store_consumers(number)
            case bridge.RemoveMembers() if self.new.leader is not None:
                for who in range(self.plan.bridges, len(self.new.members)):
                    if self.new.members[who].state.member:
                        self.new.remove(who)
            case bridge.BridgeEnded(reason):
                self.running[number] = frozenset()
                if reason == machine.LEFT:
                    self.wish = None

    def _store_consumers(self, number: int) -> None:
        state = self.bridge_state(number)
        if number == self.active and state.goal is not Goal.STOP:
            self.consumers = shares.consumers_to_keep(state)

    def may_start(self, number: int) -> bool:
        """Return whether a bridge may start: no other one has a session in ZooKeeper."""
        others = [one for one in range(self.plan.bridges) if one != number]
        return not any(self._is_active(one) or self.sessions_of(one) for one in others)

    def _replace_dead_bridge(self) -> None:
        if self.standbys and self.may_start(self.standbys[0]):
            self.start(self.standbys.pop(0))

    def consumer(self, number: int, consumer: int) -> BridgeConsumer:
        """Return a consumer of a bridge."""
        return cast(BridgeConsumer, self.old.members[self.plan.consumers(number)[consumer]])

    def _run_consumers(self) -> None:
        """Start and close the consumers that the bridges want to run or not."""
        for number, wanted in list(self.running.items()):
            links = [self.old.links[who] for who in self.plan.consumers(number)]
            free = self.plan.limit - sum(link.joined and not link.dead for link in links)
            for consumer, who in enumerate(self.plan.consumers(number)):
                link, member = self.old.links[who], self.old.members[who]
                if consumer in wanted:
                    if link.joined and not link.dead:
                        continue
                    if free <= 0:
                        continue
                    free -= 1
                    if link.dead:
                        self._on_old_side(Action(Do.REVIVE, who))
                    else:
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
class _LockKept:
    """Makes the event that a bridge is still the active one."""

    until: float

    def __call__(self, now: float) -> ev.Event:
        return bridge.LockKept(now, self.until)


@dataclass(frozen=True)
class _GoalChanged:
    """Makes the event that the operator wants something else."""

    goal: Goal
    share: float | None
    consumers: int | None = None

    def __call__(self, now: float) -> ev.Event:
        return bridge.GoalChanged(now, self.goal, self.share, self.consumers)


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
