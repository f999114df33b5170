"""A JVM member in a simulated world, and mixed groups of JVM members and zkconsumer members.

`Programs` is a small model of `ZookeeperConsumerConnector` of Kafka 1.1.1. The programs are
generators. They yield one request at a time, and they read and change the connector's state
(`Connector`) only by what they yield. So a program depends on nothing but the answers that it got,
and can be copied (`kernel.programs`). Tests compare the model with captured runs of the real
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
from collections.abc import Callable, Generator, Mapping
from copy import copy
from dataclasses import field, replace
from enum import Enum
from functools import partial
from typing import Any, TypeAlias, cast

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.errors import MalformedZnodeError
from zkconsumer.frozen import dataclass
from zkconsumer.member.state import Settings
from zkconsumer.protocol import paths, payloads, registrations
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import assign
from zkconsumer.protocol.model import Session, ThreadId, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind, consumer_of
from zkconsumer.protocol.registrations import Pattern, Registration
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim import promises
from zkconsumer.sim.kernel.programs import Repeatable
from zkconsumer.sim.kernel.search import Decide, Decisions, Result
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.member import Feed, SimMember
from zkconsumer.sim.monitor import Monitor
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.promises import ObservedWorld
from zkconsumer.sim.random_search import draw_plan, heal, run_world
from zkconsumer.sim.world import Watcher, World
from zkconsumer.sim.znodes import Write, ZnodeChange, parent_of

Answer: TypeAlias = Any  # Any: the kind of the request has its type

# ---- the connector: a model of Kafka 1.1.1 -------------------------------------------------------


NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Lock:
    """Wait for the rebalance lock; the program then holds the lock until the program ends."""


@dataclass(frozen=True, slots=True)
class Enter:
    """Report another phase."""

    phase: str
    text: str


@dataclass(frozen=True)
class Connector:
    """The connector's state.

    Attributes:
        feeds: the partitions that are fetched and delivered.
        registry: the partitions that it believes it owns, each with the offset after the last
            delivered message.
        wanted: whether the watcher's thread must rebalance, because a watch reported a change.
        attempts: number of rebalance attempts.
        failed_attempts: number of failed rebalance attempts.
        gave_up: whether all attempts of the last rebalance failed.
        cache: the offsets that it has read or stored last.
        watched: path -> the value that was last read with a watch.
    """

    feeds: Mapping[TopicPartition, Feed] = field(default_factory=dict)
    registry: Mapping[TopicPartition, int] = field(default_factory=dict)
    wanted: bool = False
    leaving: bool = False
    closed: bool = False
    started: bool = False
    attempts: int = 0
    failed_attempts: int = 0
    gave_up: bool = False
    wall_ms: int = 0
    cache: Mapping[TopicPartition, int] = field(default_factory=dict)
    knows_root: bool = False
    watched: Mapping[str, Answer] = field(default_factory=dict)


Update = Callable[[Connector], Connector]
"""A change of the state; its answer is the changed state. A program continues at once, so the other
threads see all updates between two requests at the same time."""

Request = rq.Request | Write
Asked = Request | Sleep | Lock | Enter | Update
Program = Generator[Asked, Answer, None]


def _look(connector: Connector) -> Connector:
    """Change nothing: the answer is the present state."""
    return connector


def _to(**values: Answer) -> Update:
    """Return the update that sets these attributes."""
    return lambda it: replace(it, **values)


def _cached(tp: TopicPartition, position: int) -> Update:
    return lambda it: replace(it, cache={**it.cache, tp: position})


def _watched(path: str, value: Answer) -> Update:
    return lambda it: replace(it, watched={**it.watched, path: value})


def _wanted_if_changed(before: Connector, path: str) -> Update:
    """Return the update that wants a rebalance if the value at a path is not the one before."""
    was = before.watched.get(path)
    return lambda it: replace(it, wanted=it.wanted or it.watched[path] != was)


class _AttemptFailed(Exception):
    """Ends a rebalance attempt, like any exception or a refused claim in the JVM."""


class Programs:
    """The connector's programs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def topics(self) -> list[str]:
        return sorted(self.settings.subscription)

    # ---- listeners -------------------------------------------------------------------------------

    def ids_changed(self) -> Program:
        """Watch the members again, and rebalance."""
        ids = paths.ids(self.settings.group)
        yield rq.Exists(ids, watch=True)
        yield from self._children(ids)
        yield _to(wanted=True)

    def topic_changed(self, topic: str) -> Program:
        """The topic was changed or created; a deleted topic causes no rebalance."""
        path = paths.topic(topic)
        seen: Reply = yield rq.Exists(path, watch=True)
        if seen.value is not None:
            yield from self._data(path)
            yield _to(wanted=True)

    def brokers_changed(self) -> Program:
        """Watch the brokers again, and rebalance."""
        yield rq.Children(paths.BROKER_IDS, watch=True)
        yield _to(wanted=True)

    def arm_again(self) -> Program:
        """The same session has a new connection: the server reports the missed changes."""
        ids = paths.ids(self.settings.group)
        before: Connector = yield _look
        yield from self._children(ids)
        yield _wanted_if_changed(before, ids)
        for topic in self.topics:
            path = paths.topic(topic)
            reply: Reply = yield rq.Exists(path, watch=True)
            if reply.value is not None:
                yield from self._data(path)
                yield _wanted_if_changed(before, path)

    # ---- programs: start, new session, shutdown --------------------------------------------------

    def start(self) -> Program:
        """`createMessageStreams`: register, set watches, rebalance."""
        yield from self._register()
        ids = paths.ids(self.settings.group)
        yield rq.Exists(ids, watch=True)
        yield from self._children(ids)
        for topic in self.topics:
            yield rq.Exists(paths.topic(topic), watch=True)
        yield _to(started=True)  # the interval of automatic commits begins here
        yield from self.rebalance()

    def new_session(self) -> Program:
        """Drop the registry without a commit or a release."""
        yield Enter("expired", "its session is over: forgets what it owns, registers again")
        yield _to(registry={})
        yield from self._register()
        yield from self.rebalance()

    def shutdown(self) -> Program:
        """Wait for the rebalance lock, commit, and end the session; the znodes end with the
        session.
        """
        yield Lock()
        yield _to(feeds={})
        if self.settings.auto_commit_s is not None:
            yield from self.commit()
        yield _to(closed=True)
        yield Enter("closed", "ends its session")

    def _register(self) -> Program:
        """Register as 0.9 and later do; the id znode of another session causes an error at once."""
        group, path = self.settings.group, paths.member(self.settings.group, self.settings.consumer)
        yield Enter("registering", "")
        for parent in (paths.CONSUMERS, parent_of(paths.ids(group)), paths.ids(group)):
            yield rq.Create(parent)
        connector: Connector = yield _look
        payload = registrations.encode_registration(
            Registration(self.settings.subscription, timestamp_ms=connector.wall_ms)
        )
        created: Reply = yield rq.Create(path, payload, ephemeral=True)
        if created.code is Code.NODE_EXISTS:
            yield rq.Get(path)

    # ---- programs: the rebalance -----------------------------------------------------------------

    def rebalance(self) -> Program:
        """`syncedRebalance`: at most `rebalance.max.retries` attempts; sleep after each failure."""
        yield Lock()
        yield _to(gave_up=False)
        for number in range(self.settings.retries):
            connector: Connector = yield _look
            if connector.leaving:
                break
            yield lambda it: replace(it, attempts=it.attempts + 1)
            yield Enter("rebalancing", f"attempt {number + 1}")
            try:
                yield from self._attempt()
                break
            except (_AttemptFailed, MalformedZnodeError) as error:
                yield lambda it: replace(it, failed_attempts=it.failed_attempts + 1, feeds={})
                yield Enter("failed", str(error))
                if self.settings.auto_commit_s is not None:
                    yield from self.commit()
                yield Sleep(self.settings.backoff_s)
        else:
            yield _to(gave_up=True)
            yield Enter("idle", f"can't rebalance after {self.settings.retries} retries")

    def _attempt(self) -> Program:
        group = self.settings.group
        yield from self._brokers()
        yield from self._registration(self.settings.consumer)
        brokers = yield from self._brokers()
        if not brokers:
            yield rq.Children(paths.BROKER_IDS, watch=True)
            yield Enter("waiting", "no brokers found when trying to rebalance")
            return
        yield _to(feeds={})
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
        yield lambda it: replace(it, registry=offsets, cache={**it.cache, **offsets})
        yield from self._brokers()  # the requests of the JVM's leader finder
        # A partition without a stored offset starts where auto.offset.reset (here: smallest) says.
        starts = {tp: max(at, 0) for tp, at in offsets.items()}
        yield _to(registry=starts, feeds={tp: Feed(0, at) for tp, at in starts.items()})
        shown = ", ".join(f"{tp} from {at}" for tp, at in starts.items())
        yield Enter("consuming", f"reads {shown}" if shown else "has no partition")

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
        connector: Connector = yield _look
        for tp in sorted(connector.registry):
            yield rq.Delete(paths.owner(self.settings.group, tp))
        yield _to(registry={})

    def _claim_all(self, mine: dict[TopicPartition, ThreadId]) -> Program:
        """Try all claims; if a claim is refused, delete the znodes that were created."""
        connector: Connector = yield _look
        if not connector.knows_root:
            yield _to(knows_root=True)
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
        connector: Connector = yield _look
        for tp, position in sorted(connector.registry.items()):
            connector = yield _look
            if position == connector.cache.get(tp, 0):
                continue
            path, data = paths.offset(self.settings.group, tp), payloads.encode_offset(position)
            reply: Reply = yield rq.SetData(path, data, -1)
            if reply.code is Code.NO_NODE:
                yield from self._create_parents(path)
                yield rq.Create(path, data)
            yield _cached(tp, position)

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
        yield _watched(path, data)
        return data

    def _children(self, path: str) -> Generator[Asked, Answer, tuple[str, ...]]:
        reply: Reply = yield rq.Children(path, watch=True)
        names = tuple(reply.value) if reply.code is Code.OK else ()
        yield _watched(path, names)
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
    """The program of a thread, and what it waits for."""

    program: Repeatable[Asked, Answer, None]
    request: Request | None = None
    wakes_at: float = NEVER
    wants_lock: bool = False

    def copy(self) -> _Running:
        return replace(self, program=self.program.copy())


class JvmMember:
    """One JVM member; a world uses it like a `SimMember`.

    Attributes:
        connector: the connector's state; each update replaces it.
        on_phase: is called when the member enters another phase.
    """

    gate = 0.0
    """A JVM member has no lease, so it may deliver messages at any time."""

    changes, unread, may_overtake, has_client = 0, False, False, True
    """Late and lost callbacks, and a client's death, are not explored for JVM members."""

    unposted, post_at = None, NEVER
    """No thread of a JVM member is preempted before it posts."""

    def __init__(self, settings: Settings, on_phase: OnPhase) -> None:
        self.settings, self.on_phase = settings, on_phase
        self.wire: deque[tuple[Answer, Answer]] = deque()
        self.inbox: deque[Answer] = deque()
        self.connector = Connector()
        self._programs = Programs(settings)
        self._session: Session | None = None
        self._connected = False
        self._now = 0.0
        self._threads: dict[Thread, _Running] = {}
        self._lock: Thread | None = None
        self._events: deque[Callable[[], Program]] = deque()
        self._commits_at: float | None = None  # None: the scheduler has not been started

    def copy(self, on_phase: OnPhase) -> JvmMember:
        """Return a member that continues independently from here."""
        twin = copy(self)
        twin.on_phase = on_phase
        twin.wire, twin.inbox = self.wire.copy(), self.inbox.copy()
        twin._events = self._events.copy()
        twin._threads = {thread: one.copy() for thread, one in self._threads.items()}
        return twin

    def _set(self, **values: Answer) -> None:
        self.connector = replace(self.connector, **values)

    @property
    def name(self) -> str:
        return self.settings.consumer

    @property
    def feeds(self) -> Mapping[TopicPartition, Feed]:
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

    def program(self, thread: Thread) -> Program | None:
        """Return a thread's program from its beginning; None if the thread runs none."""
        running = self._threads.get(thread)
        return None if running is None else running.program.unstarted()

    # ---- called by the world ---------------------------------------------------------------------

    def connect(self, session: Session, now: float, wall_ms: int) -> None:
        """zkclient sends unanswered requests again, even in a new session."""
        self._now, self._connected = now, True
        before, self._session = self._session, session
        programs = self._programs
        self._set(wall_ms=wall_ms)
        for thread, running in self._threads.items():
            if running.request is not None:
                self.wire.append((thread, running.request))
        if before is None:
            self._events.append(programs.start)
        elif before.id == session.id:
            self._events.append(programs.arm_again)
        else:
            # After the listeners for a new session, zkclient calls all other listeners.
            self._events += [programs.new_session, programs.ids_changed]
            self._events += [partial(programs.topic_changed, one) for one in programs.topics]
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
            self._run(Thread.SCHEDULER, self._programs.commit)
        self._pump()

    def leave(self, now: float) -> None:
        """Shut down by the user."""
        self._now = now
        if not self.connector.leaving:
            self._set(leaving=True)
            self._events.append(self._programs.shutdown)
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
        if any(feed.unfinished for feed in self.feeds.values()):
            self._set(feeds={tp: replace(it, unfinished=False) for tp, it in self.feeds.items()})

    def deliverable(self, tp: TopicPartition, log_end: int, now: float) -> bool:
        feed = self.feeds.get(tp)
        return feed is not None and (feed.delivered or 0) < log_end and self.may_ask(now)

    def deliver(self, tp: TopicPartition) -> tuple[int, int]:
        """Deliver the next message; the position is then after the message, whether finished or
        not.
        """
        feed = self.feeds[tp]
        offset = feed.delivered or 0
        taken = replace(feed, delivered=offset + 1, unfinished=True)
        registry = {**self.connector.registry, tp: offset + 1}
        self._set(feeds={**self.feeds, tp: taken}, registry=registry)
        return offset, feed.epoch

    # ---- threads ---------------------------------------------------------------------------------

    def _fired(self, fired: WatchFired) -> None:
        at = paths.locate(fired.path)
        match at.kind:
            case ZnodeKind.IDS:
                self._events.append(self._programs.ids_changed)
            case ZnodeKind.TOPIC:
                self._events.append(partial(self._programs.topic_changed, at.name))
            case ZnodeKind.BROKER_IDS:
                self._events.append(self._programs.brokers_changed)

    def _pump(self) -> None:
        """Start all threads that can start: listeners in their order, and a rebalance."""
        while not self.closed and (self._start_event() or self._start_watcher() or self._locked()):
            pass
        if self.connector.started and self._commits_at is None:
            self._commits_at = self._now + (self.settings.auto_commit_s or NEVER)

    def _start_event(self) -> bool:
        if not self._events or Thread.EVENT in self._threads:
            return False
        self._run(Thread.EVENT, self._events.popleft())
        return True

    def _start_watcher(self) -> bool:
        connector = self.connector
        if not connector.wanted or connector.leaving or Thread.WATCHER in self._threads:
            return False
        self._set(wanted=False)
        self._run(Thread.WATCHER, self._programs.rebalance)
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

    def _run(self, thread: Thread, begin: Callable[[], Program]) -> None:
        self._threads[thread] = _Running(Repeatable(begin))
        self._resume(thread, None)

    def _resume(self, thread: Thread, reply: Reply | None) -> None:
        running = self._threads.get(thread)
        if running is None or (reply is not None and reply.code is Code.BROKEN):
            return  # a broken request is sent again with the next connection
        running.request = None
        try:
            asked = self._continue(running.program, reply)
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

    def _continue(
        self, program: Repeatable[Asked, Answer, None], answer: Answer
    ) -> Request | Sleep | Lock:
        """Let a program run until it sends a request or waits."""
        while True:
            asked = program.send(answer)
            answer = None
            if isinstance(asked, Enter):
                self.on_phase(self, asked.phase, asked.text)
            elif callable(asked):
                self.connector = answer = asked(self.connector)
            else:
                return asked


# ---- mixed groups --------------------------------------------------------------------------------


SLOWNESS = 6
"""The factor by which a JVM member sends more requests for a rebalance than a zkconsumer member.
The JVM member also sends them one after the other. So runs of mixed groups are longer, and their
faults are rarer, by this factor."""


class MixedWorld(World):
    """A world in which some members are JVM members."""

    def __init__(self, plan: Plan, watcher: Watcher | None = None, *, jvm: frozenset[int]) -> None:
        self.jvm = jvm  # `new_member` reads it during the initialisation
        super().__init__(plan, watcher)

    def new_member(self, who: int) -> SimMember:
        """Return a new process of a member; a JVM member that starts again is a JVM member."""
        if who not in self.jvm:
            return super().new_member(who)
        settings = self._settings(who)
        # The model of the JVM member subscribes to topics by name only.
        streams = max(settings.subscription.values())
        static = replace(settings, subscription={self.TOPIC: streams}, pattern=Pattern.STATIC)
        # A world uses both kinds in the same way. Only the monitors read the additional
        # attributes of `SimMember`.
        return cast(SimMember, JvmMember(static, self._entered))

    def _copy_of(self, member: SimMember) -> SimMember:
        if isinstance(member, JvmMember):
            return cast(SimMember, member.copy(self._entered))
        return super()._copy_of(member)

    def _entered(self, member: JvmMember, phase: str, text: str) -> None:
        who = int(member.name.rpartition("_")[2])
        self.watcher.entered(self, who, phase, text)

    def jvm_member(self, who: int) -> JvmMember:
        return cast(JvmMember, self.members[who])


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
        promises.no_message_is_skipped.check(self, tp, message.offset)
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

    def _released(
        self, world: ObservedWorld, who: int, tp: TopicPartition, entry: ZnodeChange
    ) -> None:
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
            why = f"{tp} committed {data!r}, not all handed out"
            raise promises.commits_only_what_is_finished.broken(why)
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
    return run_world(
        world,
        monitor,
        decide,
        length=length,
        rarity=rarity,
        end_faults=lambda world, decide: end_faults(world, jvm, decide),
    )


def end_faults(world: World, jvm: frozenset[int], decide: Decide) -> None:
    """End all faults, and the JVM members for ever."""
    heal(world, decide)
    for who in jvm:
        world.links[who].joined = True
        if not world.links[who].dead:
            world.act(Action(Do.KILL, who))
