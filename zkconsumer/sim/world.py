"""A world of simulated members, one ZooKeeper, and brokers that are plain logs, on a virtual clock.

Every choice (who goes next, what the network does, which fault happens) is an index into the list
of what is possible, taken from one stream of decisions. So a run is its decisions: a seed draws
them, a list of them replays it, and a shorter list is a smaller run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from zkconsumer.core import commands as cmd
from zkconsumer.core import events, paths, records
from zkconsumer.core.events import Event
from zkconsumer.core.machine import next_deadline
from zkconsumer.core.model import Session, TopicPartition
from zkconsumer.core.state import Phase, Settings, State
from zkconsumer.sim import faults
from zkconsumer.sim.member import SimMember
from zkconsumer.sim.plan import Action, Delivered, Do, Link, Plan
from zkconsumer.sim.zookeeper import SimZooKeeper
from zkconsumer.zk import requests as rq
from zkconsumer.zk.executor import WatchFired
from zkconsumer.zk.requests import Code, Reply

WALL_MS = 1_400_000_000_000
"""The virtual wall clock at virtual second 0: it is only ever written, never compared."""

STEP_S = 0.001
"""How far the clock moves with each action: a network's and a thread's pace."""


class Watcher:
    """What a monitor overrides; every method is told what has just happened."""

    def transition(
        self, world: World, who: int, before: State, event: Event, commands: Iterable[cmd.Command]
    ) -> None:
        """A member made a step."""

    def delivered(self, world: World, message: Delivered) -> None:
        """A user was given a message."""

    def acted(self, world: World, action: Action) -> None:
        """An action has ended."""


class World:
    """One run. `enabled` says what can happen, `act` makes it happen."""

    GROUP, TOPIC = "g", "t"

    def __init__(self, plan: Plan, watcher: Watcher | None = None) -> None:
        self.plan = plan
        self.now = 0.0
        self.watcher = watcher or Watcher()
        self.zookeeper = SimZooKeeper()
        self.faults_left = dict(plan.faults)
        self.log_end: dict[TopicPartition, int] = {}
        self.edits = 0
        self._admin = self._connect_admin()
        self._build_cluster()
        self.members = [SimMember(self._settings(n), self._transition) for n in range(plan.members)]
        self.links = [Link() for _ in self.members]

    def _settings(self, number: int) -> Settings:
        return self.plan.settings(
            Settings(
                group=self.GROUP,
                consumer=f"{self.GROUP}_{number}",
                subscription={self.TOPIC: 1},
                auto_commit_s=5.0,
            )
        )

    def _connect_admin(self) -> int:
        session = self.zookeeper.connect(now=self.now, timeout_s=1e9)
        assert session is not None
        return session

    def _build_cluster(self) -> None:
        for path in (paths.BROKERS, paths.BROKER_IDS, paths.TOPICS, paths.CONSUMERS):
            self.admin(rq.Create(path))
        broker = b'{"host":"h","port":9092,"version":1,"timestamp":"0","jmx_port":-1}'
        self.admin(rq.Create(paths.broker(0), broker))
        self.admin(rq.Create(paths.topic(self.TOPIC), self.topic_data(self.plan.partitions)))
        for number in range(self.plan.partitions):
            self.log_end[TopicPartition(self.TOPIC, number)] = self.plan.messages

    def topic_data(self, partitions: int) -> bytes:
        entries = ",".join(f'"{n}":[0]' for n in range(partitions))
        return f'{{"version":1,"partitions":{{{entries}}}}}'.encode()

    def admin(self, request: rq.Request) -> Reply:
        """A request of somebody who is not a member."""
        reply = self.zookeeper.request(self._admin, request, self.now)
        assert reply is not None
        return reply

    def _transition(
        self, member: SimMember, before: State, event: Event, commands: tuple[cmd.Command, ...]
    ) -> None:
        who = int(member.name.rpartition("_")[2])
        self.watcher.transition(self, who, before, event, commands)

    # ---- what can happen -------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """All that can happen now, in a fixed order; never empty before the world is at rest."""
        actions: list[Action] = []
        for who, (member, link) in enumerate(zip(self.members, self.links, strict=True)):
            if not link.joined:
                actions.append(Action(Do.JOIN, who))
            elif not link.dead:
                actions += self._of_member(who, member, link)
        if self._next_moment() < float("inf"):
            actions.append(Action(Do.TIME))
        return actions

    def _of_member(self, who: int, member: SimMember, link: Link) -> list[Action]:
        actions: list[Action] = []
        if link.connected and member.wire:
            actions.append(Action(Do.SERVE, who))
        if link.frozen:
            return [*actions, Action(Do.THAW, who)]
        if not link.connected and not member.closed:
            actions.append(Action(Do.CONNECT, who))
        if member.inbox:
            actions.append(Action(Do.RECEIVE, who))
        if not member.closed and self._has_work(member):
            actions.append(Action(Do.ASK, who))
        return actions

    def _has_work(self, member: SimMember) -> bool:
        """Is there something to hand out, or something in hand to finish?"""
        return any(
            feed.in_hand or member.deliverable(tp, self.log_end[tp], self.now)
            for tp, feed in member.feeds.items()
        )

    # ---- making it happen ------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Let one thing happen; the clock moves a little with each."""
        self.now += STEP_S
        if action.do in self.faults_left:
            self.faults_left[action.do] -= 1
        own = getattr(self, f"_do_{action.do.value}", None)
        handler = own or partial(getattr(faults, action.do.value), self)
        subject = action.tp if action.tp is not None else action.who
        handler() if subject == -1 else handler(subject)
        self._expire_silent()
        self.watcher.acted(self, action)

    def _do_join(self, who: int) -> None:
        self.links[who].joined = True
        self._do_connect(who)

    def _do_connect(self, who: int) -> None:
        link, member = self.links[who], self.members[who]
        timeout_s = self.plan.session_s
        session = self.zookeeper.connect(now=self.now, timeout_s=timeout_s, session=link.session)
        if session is None:
            session = self.zookeeper.connect(now=self.now, timeout_s=timeout_s)
        assert session is not None
        link.session, link.connected = session, True
        self.zookeeper.take_events(session)
        wall_ms = WALL_MS + int(self.now * 1000)
        member.connect(Session(session, timeout_s), self.now, wall_ms)

    def _do_serve(self, who: int) -> None:
        """The server executes one request; watch events that it caused come before its reply."""
        link, member = self.links[who], self.members[who]
        op, request = member.wire.popleft()
        reply = self.zookeeper.request(link.session, request, self.now)
        self.distribute()
        if reply is None:
            return
        if reply.code is Code.BROKEN:
            self.drop(who)
            return
        member.inbox.append((op, reply))

    def distribute(self) -> None:
        """Put watch events into the inboxes of connected members."""
        for member, link in zip(self.members, self.links, strict=True):
            if link.connected:
                fired = self.zookeeper.take_events(link.session)
                member.inbox.extend(WatchFired(kind, path) for kind, path in fired)

    def _do_receive(self, who: int) -> None:
        self.members[who].receive(self.now)
        self._after(who)

    def _after(self, who: int) -> None:
        """A member that has closed ends its session."""
        link = self.links[who]
        if self.members[who].closed and not link.dead:
            link.dead, link.connected = True, False
            self.zookeeper.close(link.session, self.now)
            self.distribute()

    def _do_ask(self, who: int) -> None:
        member = self.members[who]
        member.finish_all(self.now)
        for tp in sorted(member.feeds):
            if member.deliverable(tp, self.log_end[tp], self.now):
                offset, epoch = member.deliver(tp)
                self.watcher.delivered(self, Delivered(self.now, who, tp, offset, epoch))
                break
        self._after(who)

    def _do_leave(self, who: int) -> None:
        self.members[who].handle(events.CloseRequested(now=self.now))
        self._after(who)

    def _do_commit(self, who: int) -> None:
        self.members[who].commit(self.now)

    def _do_time(self) -> None:
        """Jump to the next moment at which something is due, and let it happen."""
        self.now = max(self.now, self._next_moment())
        for who, (member, link) in enumerate(zip(self.members, self.links, strict=True)):
            awake = link.joined and not link.dead and not link.frozen
            if awake and link.connected:
                self.zookeeper.ping(link.session, self.now)
            if awake and next_deadline(member.state) <= self.now:
                member.tick(self.now)
                self._after(who)

    def _next_moment(self) -> float:
        moments = [
            next_deadline(member.state)
            for member, link in zip(self.members, self.links, strict=True)
            if link.joined and not link.dead and not link.frozen
        ]
        # A silent session ends with time alone.
        silent = any(
            link.session and (link.frozen or (link.dead and link.connected))
            for link in self.links
        )
        if silent:
            moments.append(self.now + self.plan.session_s / 2)
        return min(moments, default=float("inf"))

    def _expire_silent(self) -> None:
        for expired in self.zookeeper.tick(self.now):
            for who, link in enumerate(self.links):
                if link.session == expired:
                    self.drop(who)
        self.distribute()

    def drop(self, who: int) -> None:
        """The connection is gone."""
        link = self.links[who]
        was, link.connected = link.connected, False
        if was and not link.dead:
            self.zookeeper.disconnect(link.session)
            self.members[who].disconnect(self.now)

    # ---- questions -------------------------------------------------------------------------------

    def owners(self) -> dict[TopicPartition, tuple[str, int, int]]:
        """Partition -> (thread id, session, czxid) of its owner znode."""
        found = {}
        for tp in self.log_end:
            reply = self.admin(rq.Get(paths.owner(self.GROUP, tp)))
            if reply.code is Code.OK:
                data, stat = reply.value
                found[tp] = (data.decode(), stat.owner, stat.czxid)
        return found

    def committed(self) -> dict[TopicPartition, int]:
        found = {}
        for tp in self.log_end:
            reply = self.admin(rq.Get(paths.offset(self.GROUP, tp)))
            if reply.code is Code.OK:
                found[tp] = records.decode_offset(reply.value.data, where="")
        return found

    def settled(self) -> bool:
        """Every live member is settled, and nothing is under way."""
        return all(
            link.dead or (m.state.phase is Phase.SETTLED and not m.inbox and not m.wire)
            for m, link in zip(self.members, self.links, strict=True)
        )

    def copy(self, watcher: Watcher) -> World:
        """A second world that goes its own way from here."""
        twin = object.__new__(World)
        twin.__dict__.update(self.__dict__)
        twin.watcher = watcher
        twin.zookeeper = self.zookeeper.copy()
        twin.faults_left, twin.log_end = dict(self.faults_left), dict(self.log_end)
        twin.members = [member.copy(twin._transition) for member in self.members]
        twin.links = [replace(link) for link in self.links]
        return twin
