"""A scripted group on ZooKeeper, of zkconsumer members or of JVM members."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim.compare import wire_sizes
from zkconsumer.sim.compare.meter import Meter
from zkconsumer.sim.jvm_member import MixedWorld
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.lessons import LargeGroup
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ZooKeeperDirector
from zkconsumer.sim.world import Watcher, World

ZOOKEEPER_SESSION_S = 6.0
"""The default of `zookeeper.session.timeout.ms`, in seconds."""

PINGS_PER_TIMEOUT = 3
"""An idle ZooKeeper client pings its server after a third of the session timeout."""

AUTO_COMMIT_S = 60.0
"""`auto.commit.interval.ms` of the old consumer, in seconds."""


class _Observer(Watcher):
    """Passes its observations to a meter."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.requests = self.notifications = self.bytes = 0

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        self.requests += 1
        self.bytes += wire_sizes.of_zookeeper(request, reply)

    def notified(self, world: World, who: int, fired: WatchFired) -> None:
        self.notifications += 1
        self.bytes += wire_sizes.of_watch_event(fired.path)

    def delivered(self, world: World, message: Delivered) -> None:
        self.meter.delivered(message.tp, message.offset)

    def acted(self, world: World, action: Action) -> None:
        serving: dict[TopicPartition, int] = {}
        away = set()
        for who, (member, link) in enumerate(zip(world.members, world.links, strict=True)):
            if link.dead or link.frozen:
                away.add(who)
            elif member.feeds and member.may_ask(world.now):
                serving.update(dict.fromkeys(member.feeds, who))
        self.meter.observe(world.now, serving, away)


class ZooKeeperGroup:
    """One group; `sim.compare.run` directs it."""

    server = "zookeeper"

    def __init__(self, members: int, partitions: int, session_s: float, *, is_jvm: bool) -> None:
        self.meter = Meter()
        self._session_s = session_s
        self._observer = _Observer(self.meter)
        plan = Plan(
            members=members,
            partitions=partitions,
            messages=1,
            session_s=session_s,
            settings=lambda one: replace(one, auto_commit_s=AUTO_COMMIT_S),
        )
        jvm = frozenset(range(members)) if is_jvm else frozenset[int]()
        self._stage = ZooKeeperDirector(
            MixedWorld(plan, self._observer, jvm=jvm), Recorder(lambda entry: None)
        )
        self._connected_s = 0.0

    @property
    def now(self) -> float:
        return self._stage.world.now

    def order(self, what: str, who: int) -> None:
        """Let a member join, leave, be killed, frozen or thawed."""
        self._stage.do(Do[what.upper()], who)

    def advance(self, until: float) -> None:
        """Advance the clock to `until`, and execute everything that is due by then."""
        before = self.now
        self._stage.wait(until - before)
        links = self._stage.world.links
        alive = sum(link.joined and not link.dead and not link.frozen for link in links)
        self._connected_s += alive * (self.now - before)

    def produce(self) -> None:
        self._stage.produce(1)

    def settled(self) -> bool:
        return self._stage.rests()

    def traffic(self) -> tuple[int, int, int]:
        """Return the requests, watch events and bytes, with the pings of idle clients."""
        seen, pings = (
            self._observer,
            math.ceil(self._connected_s * PINGS_PER_TIMEOUT / self._session_s),
        )
        return seen.requests + pings, seen.notifications, seen.bytes + pings * wire_sizes.PING


ZOOKEEPER_GROUPS: dict[str, Callable[[int, int, float], ZooKeeperGroup]] = {
    "zookeeper-jvm": partial(ZooKeeperGroup, is_jvm=True),
    "zookeeper": partial(ZooKeeperGroup, is_jvm=False),
}


def cost_of_join(members: int, partitions: int, *, is_jvm: bool) -> tuple[int, int, int]:
    """Return the requests, watch events and bytes of one more member's join.

    The members act in turn, and no time passes, so there are no pings.
    """
    plan = Plan(members=members + 1, partitions=partitions, messages=0)
    jvm = frozenset(range(members + 1)) if is_jvm else frozenset[int]()
    seen = _Observer(Meter())
    world = LargeGroup(plan, seen, jvm=jvm)
    for who in range(members):
        world.join(who)
    world.run()
    before = seen.requests, seen.notifications, seen.bytes
    world.join(members)
    world.run()
    return seen.requests - before[0], seen.notifications - before[1], seen.bytes - before[2]
