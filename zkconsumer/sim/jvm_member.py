"""A JVM member in a simulated world, and mixed groups of JVM members and zkconsumer members.

`Connector` is a small model of `ZookeeperConsumerConnector` of Kafka 1.1.1. Its steps are
generators that yield one request at a time. Tests compare the model with captured runs of the real
connector. It models:

- the order of reads and writes;
- claims one by one, with a rollback;
- a rebalance that releases all partitions;
- deletes and commits that do not check the owner;
- offsets that are read before the claim;
- `rebalance.max.retries` attempts with `rebalance.backoff.ms` after each, then no attempt until the
  next trigger;
- a new session that drops the consumed positions.

The model leaves out wildcards, offsets in Kafka, the queues between fetchers and streams (a message
is delivered as soon as the user asks), and the order of Scala's hash maps (partitions are sorted by
number).

`JvmMember` adds the member's threads, its zkclient and its user. zkclient hides ZooKeeper's
failures: it repeats a request until ZooKeeper answers, even in a new session. While ZooKeeper is
unreachable, messages are delivered as before.

`MixedMonitor` checks a mixed group. A JVM member breaks these promises by design, so they are not
checked for JVM members:

- I2, I3: until a JVM member learns that its session has ended, it delivers partitions that other
  members own.
- I7: its commits are unconditional, so they lower offsets and overwrite an operator's edit.
- I8: its commits overwrite an owner's offset, and its releases delete other members' owner znodes.
- I12: after four failed attempts a JVM member stays idle until the next change, although partitions
  are assigned to it.

These promises are checked for JVM members: a claim is ephemeral and names the claiming member (I1),
no message is skipped (I5), only delivered messages are committed (I6), and delivery stops before a
release (I9). zkconsumer members are checked for every promise, with two exceptions: partitions
whose owner znode a JVM member has deleted (zkconsumer's member stops delivery when it learns of the
deletion), and redeliveries, because a JVM member reads offsets before it claims. When the JVM
members have ended, zkconsumer members must serve every partition again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Self, TypeAlias, cast

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths, payloads, registrations
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import assign
from zkconsumer.protocol.model import Session, ThreadId, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, consumer_of
from zkconsumer.protocol.registrations import Pattern, Registration
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.kernel.search import Decide, Decisions, Result
from zkconsumer.sim.kernel.world import Delivered, InvariantViolation
from zkconsumer.sim.member import Feed, SimMember
from zkconsumer.sim.monitor import Monitor, ObservedWorld
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.random_search import draw_plan, heal, run_world
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import Change, Write, parent_of

Answer: TypeAlias = Any  # Any: the kind of the request has its type

# ---- the connector: a model of Kafka 1.1.1 -------------------------------------------------------


NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Lock:
    """Wait for the rebalance lock; the program then holds the lock until the program ends."""


Request = rq.Request | Write
Asked = Request | Sleep | Lock
Program = Generator[Asked, Answer, None]


class _AttemptFailed(Exception):
    """Ends a rebalance attempt, like any exception or a refused claim in the JVM."""


class Connector:
    """The connector's state, and its programs.

    Attributes:
        feeds: the partitions that are fetched and delivered.
        registry: the partitions that it believes it owns, each with the offset after the last
            delivered message.
        wanted: whether the watcher's thread must rebalance, because a watch reported a change.
        attempts: number of rebalance attempts.
        failed_attempts: number of failed rebalance attempts.
        gave_up: whether all attempts of the last rebalance failed.
    """

    def __init__(self, settings: Settings, enter: Callable[[str, str], None]) -> None:
        self.settings = settings
        self.feeds: dict[TopicPartition, Feed] = {}
        self.registry: dict[TopicPartition, int] = {}
        self.wanted = self.leaving = self.closed = self.started = False
        self.attempts = self.failed_attempts = 0
        self.gave_up = False
        self.wall_ms = 0
        self._enter = enter
        self._cache: dict[TopicPartition, int] = {}
        self._knows_root = False
        self._watched: dict[str, Answer] = {}  # path -> the value that was last read with a watch

    @property
    def topics(self) -> list[str]:
        return sorted(self.settings.subscription)

    # ---- listeners -------------------------------------------------------------------------------

    def ids_changed(self) -> Program:
        ids = paths.ids(self.settings.group)
        yield rq.Exists(ids, watch=True)
        yield from self._children(ids)
        self.wanted = True

    def topic_changed(self, topic: str) -> Program:
        """The topic was changed or created; a deleted topic causes no rebalance."""
        path = paths.topic(topic)
        seen: Reply = yield rq.Exists(path, watch=True)
        if seen.value is not None:
            yield from self._data(path)
            self.wanted = True

    def brokers_changed(self) -> Program:
        yield rq.Children(paths.BROKER_IDS, watch=True)
        self.wanted = True

    def arm_again(self) -> Program:
        """The same session has a new connection: the server reports the missed changes."""
        ids = paths.ids(self.settings.group)
        before = dict(self._watched)
        yield from self._children(ids)
        self.wanted |= self._watched[ids] != before.get(ids)
        for topic in self.topics:
            path = paths.topic(topic)
            reply: Reply = yield rq.Exists(path, watch=True)
            if reply.value is not None:
                yield from self._data(path)
                self.wanted |= self._watched[path] != before.get(path)

    # ---- programs: start, new session, shutdown --------------------------------------------------

    def start(self) -> Program:
        """`createMessageStreams`: register, set watches, rebalance."""
        yield from self._register()
        ids = paths.ids(self.settings.group)
        yield rq.Exists(ids, watch=True)
        yield from self._children(ids)
        for topic in self.topics:
            yield rq.Exists(paths.topic(topic), watch=True)
        self.started = True  # the interval of automatic commits begins here
        yield from self.rebalance()

    def new_session(self) -> Program:
        """Drop the registry without a commit or a release."""
        self._enter("expired", "its session is over: forgets what it owns, registers again")
        self.registry = {}
        yield from self._register()
        yield from self.rebalance()

    def shutdown(self) -> Program:
        """Wait for the rebalance lock, commit, and end the session; the znodes end with the
        session.
        """
        yield Lock()
        self.feeds = {}
        if self.settings.auto_commit_s is not None:
            yield from self.commit()
        self.closed = True
        self._enter("closed", "ends its session")

    def _register(self) -> Program:
        """Register as 0.9 and later do; the id znode of another session causes an error at once."""
        group, path = self.settings.group, paths.member(self.settings.group, self.settings.consumer)
        self._enter("registering", "")
        for parent in (paths.CONSUMERS, parent_of(paths.ids(group)), paths.ids(group)):
            yield rq.Create(parent)
        payload = registrations.encode_registration(
            Registration(self.settings.subscription, timestamp_ms=self.wall_ms)
        )
        created: Reply = yield rq.Create(path, payload, ephemeral=True)
        if created.code is Code.NODE_EXISTS:
            yield rq.Get(path)

    # ---- programs: the rebalance -----------------------------------------------------------------

    def rebalance(self) -> Program:
        """`syncedRebalance`: at most `rebalance.max.retries` attempts; sleep after each failure."""
        yield Lock()
        self.gave_up = False
        for number in range(self.settings.retries):
            if self.leaving:
                break
            self.attempts += 1
            self._enter("rebalancing", f"attempt {number + 1}")
            try:
                yield from self._attempt()
                break
            except (_AttemptFailed, MalformedZnodeError) as error:
                self.failed_attempts += 1
                self._enter("failed", str(error))
                self.feeds = {}
                if self.settings.auto_commit_s is not None:
                    yield from self.commit()
                yield Sleep(self.settings.backoff_s)
        else:
            self.gave_up = True
            self._enter("idle", f"can't rebalance after {self.settings.retries} retries")

    def _attempt(self) -> Program:
        group = self.settings.group
        yield from self._brokers()
        yield from self._registration(self.settings.consumer)
        brokers = yield from self._brokers()
        if not brokers:
            yield rq.Children(paths.BROKER_IDS, watch=True)
            self._enter("waiting", "no brokers found when trying to rebalance")
            return
        self.feeds = {}
        if self.settings.auto_commit_s is not None:
            yield from self.commit()
        yield from self._release_all()
        yield from self._registration(self.settings.consumer)
        names = yield from self._children(paths.ids(group))
        members = {}
        for name in names:
            members[name] = yield from self._registration(name)
        partitions = yield from self._partitions()
        yield from self._children(paths.ids(group))
        mine = self._share(members, partitions)
        offsets = {}
        for tp in mine:
            offsets[tp] = yield from self._stored(tp)
        yield from self._claim_all(mine)
        self.registry = dict(offsets)
        self._cache.update(offsets)
        yield from self._brokers()  # the requests of the JVM's leader finder
        # A partition without a stored offset starts where auto.offset.reset (here: smallest) says.
        starts = {tp: max(at, 0) for tp, at in offsets.items()}
        self.registry = dict(starts)
        self.feeds = {tp: Feed(0, at) for tp, at in starts.items()}
        shown = ", ".join(f"{tp} from {at}" for tp, at in starts.items())
        self._enter("consuming", f"reads {shown}" if shown else "has no partition")

    def _share(
        self, members: dict[str, Registration], partitions: dict[str, tuple[int, ...]]
    ) -> dict[TopicPartition, ThreadId]:
        whole = assign(
            self.settings.strategy,
            subscriptions={name: one.subscription for name, one in members.items()},
            partitions=partitions,
        )
        name = self.settings.consumer
        mine = {tp: thread for tp, thread in whole.items() if consumer_of(thread) == name}
        return dict(sorted(mine.items()))

    def _release_all(self) -> Program:
        """Delete the owner znodes of the registry's partitions without checking their owners."""
        for tp in sorted(self.registry):
            yield rq.Delete(paths.owner(self.settings.group, tp))
        self.registry = {}

    def _claim_all(self, mine: dict[TopicPartition, ThreadId]) -> Program:
        """Try all claims; if a claim is refused, delete the znodes that were created."""
        if not self._knows_root:
            self._knows_root = True
            yield rq.Exists("/")
        got: list[TopicPartition] = []
        refused: list[TopicPartition] = []
        for tp, thread in mine.items():
            path, data = paths.owner(self.settings.group, tp), payloads.encode_owner(thread)
            reply = yield from self._create(path, data)
            if reply.code is Code.NODE_EXISTS:
                found: Reply = yield rq.Get(path)
                is_ours = found.code is Code.OK and found.value.data == data
                reply = Reply(Code.OK) if is_ours else reply
            (got if reply.code is Code.OK else refused).append(tp)
        if refused:
            for tp in got:
                yield rq.Delete(paths.owner(self.settings.group, tp))
            shown = ", ".join(map(str, refused))
            raise _AttemptFailed(f"waiting for the partition ownership to be deleted: {shown}")

    def _create(self, path: str, data: bytes) -> Generator[Asked, Answer, Reply]:
        """Create an ephemeral znode, and its parents if they are missing."""
        create = rq.Create(path, data, ephemeral=True)
        reply: Reply = yield create
        if reply.code is Code.NO_NODE:
            yield from self._create_parents(path)
            reply = yield create
        return reply

    def _create_parents(self, path: str) -> Program:
        parent = parent_of(path)
        reply: Reply = yield rq.Create(parent)
        if reply.code is Code.NO_NODE:
            yield from self._create_parents(parent)
            yield rq.Create(parent)

    # ---- programs: offsets and reads -------------------------------------------------------------

    def commit(self) -> Program:
        """Write changed positions without a check of the version."""
        for tp, position in sorted(self.registry.items()):
            if position == self._cache.get(tp, 0):
                continue
            path, data = paths.offset(self.settings.group, tp), payloads.encode_offset(position)
            reply: Reply = yield rq.SetData(path, data, -1)
            if reply.code is Code.NO_NODE:
                yield from self._create_parents(path)
                yield rq.Create(path, data)
            self._cache[tp] = position

    def _stored(self, tp: TopicPartition) -> Generator[Asked, Answer, int]:
        path = paths.offset(self.settings.group, tp)
        reply: Reply = yield rq.Get(path)
        if reply.code is not Code.OK:
            return NO_OFFSET
        return payloads.decode_offset(reply.value.data, where=path)

    def _brokers(self) -> Generator[Asked, Answer, list[str]]:
        reply: Reply = yield rq.Children(paths.BROKER_IDS)
        names = reply.value if reply.code is Code.OK else ()
        for name in names:
            yield rq.Get(paths.broker(int(name)))
        return list(names)

    def _registration(self, name: str) -> Generator[Asked, Answer, Registration]:
        path = paths.member(self.settings.group, name)
        reply: Reply = yield rq.Get(path)
        if reply.code is not Code.OK:
            raise _AttemptFailed(f"NoNode for {path}")
        return registrations.decode_registration(reply.value.data, where=path)

    def _partitions(self) -> Generator[Asked, Answer, dict[str, tuple[int, ...]]]:
        found = {}
        for topic in self.topics:
            data = yield from self._data(paths.topic(topic))
            found[topic] = () if data is None else payloads.decode_topic(data, where=topic)
        return found

    def _data(self, path: str) -> Generator[Asked, Answer, bytes | None]:
        reply: Reply = yield rq.Get(path, watch=True)
        data = reply.value.data if reply.code is Code.OK else None
        self._watched[path] = data
        return data

    def _children(self, path: str) -> Generator[Asked, Answer, tuple[str, ...]]:
        reply: Reply = yield rq.Children(path, watch=True)
        names = tuple(reply.value) if reply.code is Code.OK else ()
        self._watched[path] = names
        return names


# ---- the member: threads, zkclient, user ---------------------------------------------------------


NEVER = float("inf")


class Thread(Enum):
    """The connector's threads that talk to ZooKeeper; each has at most one request in progress."""

    EVENT = "ZkClient-EventThread"
    WATCHER = "watcher_executor"
    SCHEDULER = "kafka-consumer-scheduler"


OnPhase = Callable[["JvmMember", str, str], None]


@dataclass
class _Running:
    program: Program
    request: Request | None = None
    wakes_at: float = NEVER
    wants_lock: bool = False


class JvmMember:
    """One JVM member; a world uses it like a `SimMember`, but it cannot be copied."""

    gate = 0.0
    """A JVM member has no lease, so it may deliver messages at any time."""

    changes, unread, may_overtake, has_client = 0, False, False, True
    """Late and lost callbacks, and a client's death, are not explored for JVM members."""

    unposted, post_at = None, NEVER
    """No thread of a JVM member is preempted before it posts."""

    def __init__(self, settings: Settings, on_phase: OnPhase) -> None:
        self.settings = settings
        self.wire: deque[tuple[Answer, Answer]] = deque()
        self.inbox: deque[Answer] = deque()
        self.connector = Connector(settings, partial(on_phase, self))
        self._session: Session | None = None
        self._connected = False
        self._now = 0.0
        self._threads: dict[Thread, _Running] = {}
        self._lock: Thread | None = None
        self._events: deque[Callable[[], Program]] = deque()
        self._commits_at: float | None = None  # None: the scheduler has not been started

    @property
    def name(self) -> str:
        return self.settings.consumer

    @property
    def feeds(self) -> dict[TopicPartition, Feed]:
        return self.connector.feeds

    @property
    def closed(self) -> bool:
        return self.connector.closed

    @property
    def settled(self) -> bool:
        """Return whether nothing is in progress. A member that gave up may then own nothing."""
        return not (self._threads or self._events or self.connector.wanted)

    @property
    def due(self) -> float:
        if self.closed:
            return NEVER
        wakes = [it.wakes_at for it in self._threads.values()]
        return min([self._commits_at or NEVER, *wakes])

    # ---- called by the world ---------------------------------------------------------------------

    def connect(self, session: Session, now: float, wall_ms: int) -> None:
        """zkclient sends unanswered requests again, even in a new session."""
        self._now, self._connected = now, True
        before, self._session = self._session, session
        connector = self.connector
        connector.wall_ms = wall_ms
        for thread, running in self._threads.items():
            if running.request is not None:
                self.wire.append((thread, running.request))
        if before is None:
            self._events.append(connector.start)
        elif before.id == session.id:
            self._events.append(connector.arm_again)
        else:
            # After the listeners for a new session, zkclient calls all other listeners.
            self._events += [connector.new_session, connector.ids_changed]
            self._events += [partial(connector.topic_changed, one) for one in connector.topics]
        self._pump()

    def replied(self, thread: Answer, reply: Reply) -> None:
        self.inbox.append((thread, reply))

    def watch(self, fired: WatchFired) -> None:
        self.inbox.append(fired)

    def overtake(self, now: float) -> None:
        """Do nothing: the model's inbox keeps its order."""

    def disconnect(self, now: float) -> None:
        """Fetching and delivery continue: zkclient hides the broken connection."""
        self._now, self._connected = now, False
        self.wire.clear()
        self.inbox.clear()

    def receive(self, now: float) -> None:
        self._now = now
        item = self.inbox.popleft()
        if isinstance(item, WatchFired):
            self._fired(item)
        else:
            self._resume(*item)
        self._pump()

    def wake(self, now: float) -> None:
        self._now = now
        for thread, running in list(self._threads.items()):
            if running.wakes_at <= now:
                running.wakes_at = NEVER
                self._resume(thread, None)
        if self._commits_at is not None and self._commits_at <= now:
            self._commits_at = now + (self.settings.auto_commit_s or NEVER)
            self.commit(now)
        self._pump()

    def commit(self, now: float) -> None:
        """`commitOffsets()`; a running commit serves both callers."""
        self._now = now
        if Thread.SCHEDULER not in self._threads:
            self._run(Thread.SCHEDULER, self.connector.commit())
        self._pump()

    def leave(self, now: float) -> None:
        """Shut down by the user."""
        self._now = now
        if not self.connector.leaving:
            self.connector.leaving = True
            self._events.append(self.connector.shutdown)
            self._pump()

    # ---- called by the user ----------------------------------------------------------------------

    def may_post(self, now: float) -> bool:
        return False

    def end_threads(self) -> None:
        """The process ends."""
        self.inbox.clear()

    def may_ask(self, now: float) -> bool:
        """The user may ask while the member is disconnected, and for partitions it has lost."""
        return not self.closed

    def finish_all(self, now: float) -> None:
        for tp, feed in self.feeds.items():
            if feed.unfinished:
                self.feeds[tp] = replace(feed, unfinished=False)

    def deliverable(self, tp: TopicPartition, log_end: int, now: float) -> bool:
        feed = self.feeds.get(tp)
        return feed is not None and (feed.delivered or 0) < log_end and self.may_ask(now)

    def deliver(self, tp: TopicPartition) -> tuple[int, int]:
        """Deliver the next message; the position is then after the message, whether finished or
        not.
        """
        feed = self.feeds[tp]
        offset = feed.delivered or 0
        self.feeds[tp] = replace(feed, delivered=offset + 1, unfinished=True)
        self.connector.registry[tp] = offset + 1
        return offset, feed.epoch

    # ---- threads ---------------------------------------------------------------------------------

    def _fired(self, fired: WatchFired) -> None:
        at = paths.locate(fired.path)
        match at.kind:
            case ZnodeKind.IDS:
                self._events.append(self.connector.ids_changed)
            case ZnodeKind.TOPIC:
                self._events.append(partial(self.connector.topic_changed, at.name))
            case ZnodeKind.BROKER_IDS:
                self._events.append(self.connector.brokers_changed)

    def _pump(self) -> None:
        """Start all threads that can start: listeners in their order, and a rebalance."""
        while not self.closed and (self._start_event() or self._start_watcher() or self._locked()):
            pass
        if self.connector.started and self._commits_at is None:
            self._commits_at = self._now + (self.settings.auto_commit_s or NEVER)

    def _start_event(self) -> bool:
        if not self._events or Thread.EVENT in self._threads:
            return False
        self._run(Thread.EVENT, self._events.popleft()())
        return True

    def _start_watcher(self) -> bool:
        connector = self.connector
        if not connector.wanted or connector.leaving or Thread.WATCHER in self._threads:
            return False
        connector.wanted = False
        self._run(Thread.WATCHER, connector.rebalance())
        return True

    def _locked(self) -> bool:
        """Give the free rebalance lock to the thread that has waited longest."""
        waiting = [thread for thread, it in self._threads.items() if it.wants_lock]
        if self._lock is not None or not waiting:
            return False
        self._lock = waiting[0]
        self._threads[waiting[0]].wants_lock = False
        self._resume(waiting[0], None)
        return True

    def _run(self, thread: Thread, program: Program) -> None:
        self._threads[thread] = _Running(program)
        self._resume(thread, None)

    def _resume(self, thread: Thread, reply: Reply | None) -> None:
        running = self._threads.get(thread)
        if running is None or (reply is not None and reply.code is Code.BROKEN):
            return  # a broken request is sent again with the next connection
        running.request = None
        try:
            asked = running.program.send(reply)
        except StopIteration:
            del self._threads[thread]
            if self._lock is thread:
                self._lock = None
            return
        match asked:
            case Sleep(seconds):
                running.wakes_at = self._now + seconds
            case Lock():
                running.wants_lock = True
            case _:
                running.request = asked
                if self._connected:
                    self.wire.append((thread, asked))


# ---- mixed groups --------------------------------------------------------------------------------


SLOWNESS = 6
"""The factor by which a JVM member sends more requests for a rebalance than a zkconsumer member.
The JVM member also sends them one after the other. So runs of mixed groups are longer, and their
faults are rarer, by this factor."""


class MixedWorld(World):
    """A world in which some members are JVM members; it cannot be copied."""

    def __init__(self, plan: Plan, watcher: Watcher | None = None, *, jvm: frozenset[int]) -> None:
        super().__init__(plan, watcher)
        self.jvm = jvm
        for who in jvm:
            settings = self.members[who].settings
            # The model of the JVM member subscribes to topics by name only.
            streams = max(settings.subscription.values())
            static = replace(settings, subscription={self.TOPIC: streams}, pattern=Pattern.STATIC)
            member = JvmMember(static, self._entered)
            # A world uses both kinds in the same way. Only the monitors read the additional
            # attributes of `SimMember`.
            self.members[who] = cast(SimMember, member)

    def _entered(self, member: JvmMember, phase: str, text: str) -> None:
        who = int(member.name.rpartition("_")[2])
        self.watcher.entered(self, who, phase, text)

    def jvm_member(self, who: int) -> JvmMember:
        return cast(JvmMember, self.members[who])

    def copy(self, watcher: Watcher) -> Self:
        raise TypeError("a JVM member's programs cannot be copied")


class MixedMonitor(Monitor):
    """Checks the promises of a mixed group; the module's docstring lists them."""

    JUDGES_COMMITS = False
    """False, because a JVM member whose session has ended releases partitions without a commit."""

    def __init__(self, jvm: frozenset[int]) -> None:
        super().__init__(harmed=True)
        self._jvm = jvm

    def delivered(self, world: ObservedWorld, message: Delivered) -> None:
        if message.who not in self._jvm:
            super().delivered(world, message)
            return
        tp, end = message.tp, self.delivered_below.get(message.tp, 0)
        if message.offset > end:
            raise InvariantViolation("I5", f"{tp} skips from {end} to {message.offset}: lost")
        self.deliveries += 1
        self.duplicates += message.offset < end
        self.delivered_below[tp] = max(end, message.offset + 1)
        self.edited.pop(tp, None)  # a JVM member may or may not continue from an edit

    def served(self, world: World, who: int, request: rq.Request, reply: rq.Reply | None) -> None:
        if who not in self._jvm:
            super().served(world, who, request, reply)

    def _is_on_time(self, world: World, who: int) -> None:
        if who not in self._jvm:
            super()._is_on_time(world, who)

    def _too_late(self, world: ObservedWorld, who: int, tp: TopicPartition) -> bool:
        return who not in self._jvm and super()._too_late(world, who, tp)

    def _released(self, world: ObservedWorld, who: int, tp: TopicPartition, entry: Change) -> None:
        foreign = entry.old is not None and entry.old.stat.owner != entry.session
        if who in self._jvm and foreign:
            self.by_hand.add(tp)
        else:
            super()._released(world, who, tp, entry)

    def _offset_written(
        self, world: ObservedWorld, who: int, tp: TopicPartition, data: bytes | None
    ) -> None:
        if who not in self._jvm:
            super()._offset_written(world, who, tp, data)
            return
        if int(data or 0) > self.delivered_below.get(tp, 0):
            raise InvariantViolation("I6", f"{tp} committed {data!r}, not all handed out")
        self.edited.pop(tp, None)  # its commit overwrites an operator's edit
        super()._offset_written(world, -1, tp, data)


def run(decide: Decisions) -> Result:
    """Run a mixed group: check safety, end the JVM members, then require that the other members
    settle."""
    plan, length, rarity = draw_plan(decide)
    length, rarity = length * SLOWNESS, rarity * SLOWNESS
    python_members = 1 + decide(plan.members)
    jvm = frozenset(range(python_members, plan.members))
    monitor = MixedMonitor(jvm)
    world = MixedWorld(plan, monitor, jvm=jvm)

    def end_faults(world: World, decide: Decide) -> None:
        heal(world, decide)
        for who in jvm:
            world.links[who].joined = True
            if not world.links[who].dead:
                world.act(Action(Do.KILL, who))

    return run_world(world, monitor, decide, length=length, rarity=rarity, end_faults=end_faults)
