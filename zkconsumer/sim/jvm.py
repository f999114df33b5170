"""A JVM member in a simulated world: its threads, its zkclient, and its user.

zkclient hides ZooKeeper's troubles: a request is repeated until it is answered, in a new session,
too; while ZooKeeper is away nobody is told, and messages are handed out as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from zkconsumer.core import paths
from zkconsumer.core.model import Session, TopicPartition
from zkconsumer.core.paths import Kind
from zkconsumer.core.state import Settings
from zkconsumer.sim.jvmconnector import Connector, Lock, Program, Request, Sleep
from zkconsumer.sim.member import Feed
from zkconsumer.zk.executor import WatchFired
from zkconsumer.zk.requests import Code, Reply

NEVER = float("inf")


class Thread(Enum):
    """The connector's threads that talk to ZooKeeper; each has one request under way."""

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
    """One member; the same to a world as a `SimMember`, but that it cannot be copied."""

    gate = 0.0
    """It has no lease: it may hand out messages at any time, and promises nothing by that."""

    changes, unread, may_overtake = 0, False, False
    """What arrives late, or is lost, with a connection is not explored for JVM members."""

    def __init__(self, settings: Settings, on_phase: OnPhase) -> None:
        self.settings = settings
        self.wire: deque[tuple[Any, Any]] = deque()
        self.inbox: deque[Any] = deque()
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
        """Is nothing under way? It may own nothing, having given up."""
        return not (self._threads or self._events or self.connector.wanted)

    @property
    def due(self) -> float:
        if self.closed:
            return NEVER
        wakes = [it.wakes_at for it in self._threads.values()]
        return min([self._commits_at or NEVER, *wakes])

    # ---- what the world does ---------------------------------------------------------------------

    def connect(self, session: Session, now: float, wall_ms: int) -> None:
        """Requests that were not answered are sent again, whatever session this is."""
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
            # After the new session's listeners, zkclient calls all others, to be safe.
            self._events += [connector.new_session, connector.ids_changed]
            self._events += [partial(connector.topic_changed, one) for one in connector.topics]
        self._pump()

    def replied(self, thread: Any, reply: Reply) -> None:
        self.inbox.append((thread, reply))

    def watch(self, fired: WatchFired) -> None:
        self.inbox.append(fired)

    def overtake(self, now: float) -> None:
        """Nothing overtakes here."""

    def disconnect(self, now: float) -> None:
        """Nobody is told: fetching and delivering go on."""
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
        """`commitOffsets()`; one that is under way does for both."""
        self._now = now
        if Thread.SCHEDULER not in self._threads:
            self._run(Thread.SCHEDULER, self.connector.commit())
        self._pump()

    def leave(self, now: float) -> None:
        """The user's shutdown."""
        self._now = now
        if not self.connector.leaving:
            self.connector.leaving = True
            self._events.append(self.connector.shutdown)
            self._pump()

    # ---- its user --------------------------------------------------------------------------------

    def may_ask(self, now: float) -> bool:
        """Connected or not, owner or not."""
        return not self.closed

    def finish_all(self, now: float) -> None:
        for tp, feed in self.feeds.items():
            if feed.in_hand:
                self.feeds[tp] = replace(feed, in_hand=False)

    def deliverable(self, tp: TopicPartition, log_end: int, now: float) -> bool:
        feed = self.feeds.get(tp)
        return feed is not None and (feed.delivered or 0) < log_end and self.may_ask(now)

    def deliver(self, tp: TopicPartition) -> tuple[int, int]:
        """Hand out the next message: from now on the position is behind it, worked on or not."""
        feed = self.feeds[tp]
        offset = feed.delivered or 0
        self.feeds[tp] = replace(feed, delivered=offset + 1, in_hand=True)
        self.connector.registry[tp] = offset + 1
        return offset, feed.epoch

    # ---- threads ---------------------------------------------------------------------------------

    def _fired(self, fired: WatchFired) -> None:
        at = paths.locate(fired.path)
        match at.kind:
            case Kind.IDS:
                self._events.append(self.connector.ids_changed)
            case Kind.TOPIC:
                self._events.append(partial(self.connector.topic_changed, at.name))
            case Kind.BROKER_IDS:
                self._events.append(self.connector.brokers_changed)

    def _pump(self) -> None:
        """Start what can start: listeners in their order, and a rebalance that is wanted."""
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
        """Give the rebalance lock to who has waited for it, if it is free."""
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
            return  # a broken request is sent again when there is a connection
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
