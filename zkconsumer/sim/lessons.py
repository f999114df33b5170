"""Two weaknesses of the ZooKeeper-based design, measured in the simulator.

Each lesson runs the same events in a group of JVM members and in a group of zkconsumer members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.protocol import paths, payloads
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim.jvm_member import MixedWorld
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.plan import Action, Do, Plan
from zkconsumer.sim.recorder import Recorder
from zkconsumer.sim.stage import ZooKeeperDirector
from zkconsumer.sim.world import Watcher, Watchers, World

SIZES = (2, 5, 10, 20, 50, 100, 200)
PER_MEMBER = 2
"""Partitions for each member."""

REQUEST_DURATION_S = 1e-6
"""Seconds by which the clock advances with each request in lessons with many members, which measure
no time."""


@dataclass
class Lesson:
    """A table, and sentences that explain it."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[object, ...]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


KINDS = ("JVM", "zkconsumer")


# ---- the herd -----------------------------------------------------------------------------------


@dataclass
class RequestCounter(Watcher):
    """Counts the watch notifications, reads and writes that a change causes."""

    notifications: int = 0
    reads: int = 0
    writes: int = 0

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        is_read = isinstance(request, rq.Get | rq.Exists | rq.Children | rq.Listing)
        self.reads += is_read
        self.writes += not is_read and not isinstance(request, rq.SyncLeader)

    def notified(self, world: World, who: int, fired: WatchFired) -> None:
        self.notifications += 1


class LargeGroup(MixedWorld):
    """A large group. For speed, the world does not list all possible actions at each step."""

    def run(self) -> None:
        """Execute the members' requests and replies in turn; time advances when none are left."""
        joined = [who for who, link in enumerate(self.links) if link.joined]
        while True:
            while busy := [who for who in joined if self._has_news(who)]:
                for who in busy:
                    self._turn(who)
            if all(self.members[who].settled for who in joined):
                return
            self._do_time()

    def _has_news(self, who: int) -> bool:
        return bool(self.members[who].wire or self.members[who].inbox)

    def _turn(self, who: int) -> None:
        member = self.members[who]
        while self._has_news(who):
            self.now += REQUEST_DURATION_S
            if member.wire:
                self._do_serve(who)
            if member.inbox:
                self._do_receive(who)

    def distribute(self) -> None:
        """Distribute watch events as `World` does, but only to connections with events."""
        waiting = [session for session, it in self.zookeeper._connections.items() if it.events]
        for session in waiting:
            who = next((n for n, link in enumerate(self.links) if link.session == session), None)
            for event in self.zookeeper.take_events(session):
                if who is not None:
                    self.members[who].inbox.append(WatchFired(*event))
                    self.watcher.notified(self, who, WatchFired(*event))


def herd_effect(sizes: Sequence[int] = SIZES) -> Iterator[Lesson]:
    """Count the requests and notifications that one join causes, for groups of growing size."""
    lesson = Lesson(
        "herd-effect: what one more member costs",
        ("members", *(f"{kind} {what}" for kind in KINDS for what in _WHAT)),
    )
    for size in sizes:
        costs = [_cost(size, kind) for kind in KINDS]
        lesson.rows.append((size, *(getattr(cost, what) for cost in costs for what in _WHAT)))
        yield replace(lesson, words=[])
    first, last = lesson.rows[(len(lesson.rows) - 1) // 2], lesson.rows[-1]
    for at, name in enumerate(lesson.head[1:], 1):
        power = math.log(_number(last[at]) / _number(first[at])) / math.log(
            _number(last[0]) / _number(first[0])
        )
        lesson.words.append(f"{name} grow as members^{power:.2f}")
    lesson.words.append(
        "Each change wakes every member of both kinds. A JVM member then reads all registrations, "
        "so the reads grow with the square of the group. A zkconsumer member reads the listing "
        "and the registrations that are new. A JVM member releases and claims all its partitions. "
        "A zkconsumer member releases and claims only the partitions that move, so a join of "
        "the nth member takes about 4 n reads and two for each of these partitions. Since Kafka "
        "0.9 a broker coordinates the group, and each member asks only the broker."
    )
    yield lesson


_WHAT = ("notifications", "reads", "writes")


def _number(cell: object) -> float:
    assert isinstance(cell, int | float)
    return float(cell) or 1.0


def _cost(size: int, kind: str) -> RequestCounter:
    plan = Plan(members=size + 1, partitions=size * PER_MEMBER, messages=0)
    jvm = frozenset(range(size + 1)) if kind == "JVM" else frozenset[int]()
    counter = RequestCounter()
    world = LargeGroup(plan, counter, jvm=jvm)
    for who in range(size):
        world._do_join(who)
    world.run()
    counter.notifications = counter.reads = counter.writes = 0
    world._do_join(size)
    world.run()
    return counter


# ---- split brain --------------------------------------------------------------------------------

SPLIT_S = 20.0
"""Seconds for which some members are connected to a server that has lost its leader."""
SAMPLE_INTERVAL_S = 0.1


@dataclass
class SplitBrainCounter(Watcher):
    """Counts the effects of a split brain.

    Effects are deliveries by members that no longer own the partition, refused claims, lowered
    offsets and redelivered messages.
    """

    # Deliveries by a member that no longer owns the partition, after the new owner has delivered.
    late: int = 0
    moved_back: int = 0
    refused: int = 0
    deliveries: int = 0
    duplicates: int = 0
    seen: int = 0
    owners: dict[TopicPartition, int] = field(default_factory=dict)
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    delivered_below: dict[TopicPartition, int] = field(default_factory=dict)

    def delivered(self, world: World, message: Delivered) -> None:
        tp, offset = message.tp, message.offset
        self.deliveries += 1
        self.duplicates += offset < self.delivered_below.get(tp, 0)
        self.delivered_below[tp] = max(self.delivered_below.get(tp, 0), offset + 1)
        owner = world.owner(tp)
        foreign = owner is None or owner[1] != world.links[message.who].session
        self.late += foreign and self.owners.get(tp, message.who) != message.who
        if not foreign:
            self.owners[tp] = message.who

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        writes = request.writes if isinstance(request, rq.Multi) else (request,)
        claims = [one for one in writes if isinstance(one, rq.Create) and one.ephemeral]
        is_claim = any(paths.locate(one.path).kind is ZnodeKind.OWNER for one in claims)
        self.refused += is_claim and reply is not None and reply.code.name == "NODE_EXISTS"

    def acted(self, world: World, action: Action) -> None:
        history = world.zookeeper.history
        for change in history[self.seen :]:
            at = paths.locate(change.path)
            if at.kind is ZnodeKind.OFFSET and change.new is not None:
                tp = TopicPartition(at.name, at.partition)
                value = payloads.decode_offset(change.new.data, where="")
                self.moved_back += value < self.stored.get(tp, 0)
                self.stored[tp] = value
        self.seen = len(history)


def split_brain() -> Iterator[Lesson]:
    """Run groups whose members see different states: a server is cut off, or an owner hangs."""
    lesson = Lesson(
        "split brain: two views of one group",
        (
            "group",
            "claims refused",
            "partition-seconds unowned",
            "unowned at the end",
            "delivered after losing ownership",
            "offsets moved back",
            "redelivered",
        ),
    )
    for kind in KINDS:
        lesson.rows += [_run_split(kind), _run_hung_owner(kind)]
        yield replace(lesson, words=[])
    lesson.words = [
        "cut-off server: two of four members stay connected to a server that has lost its leader, "
        f"for {SPLIT_S:g} s. The leader ends their sessions and the others take over. A JVM member "
        "notices nothing and continues to deliver; the lease of a zkconsumer member ends.",
        "hung owner: a member joins while an owner hangs for 12 s and its session stays alive. "
        "The JVM "
        "member that joins fails four attempts and stays idle. The zkconsumer member claims its "
        "partitions when the owner znodes are deleted.",
    ]
    yield lesson


def _stage(kind: str, members: int) -> tuple[ZooKeeperDirector, SplitBrainCounter]:
    plan = Plan(
        members=members,
        partitions=12,
        messages=1,
        replicas=2,
        messages_per_advance=1,
        session_s=30.0 if members == 2 else 6.0,
        settings=lambda one: replace(one, auto_commit_s=2.0),
    )
    jvm = frozenset(range(members)) if kind == "JVM" else frozenset[int]()
    counter, recorder = SplitBrainCounter(), Recorder(lambda entry: None)
    world = MixedWorld(plan, Watchers(recorder, counter), jvm=jvm)
    return ZooKeeperDirector(world, recorder), counter


def _run_split(kind: str) -> tuple[object, ...]:
    on, counter = _stage(kind, 4)
    on.join(0, 1, 2, 3)
    on.wait(2.0)

    def events() -> Iterator[float]:
        on.do(Do.ISOLATE, 1)
        yield SPLIT_S
        on.do(Do.REJOIN, 1)
        yield 30.0

    return _row(f"{kind}, cut-off server", on, counter, events)


def _run_hung_owner(kind: str) -> tuple[object, ...]:
    on, counter = _stage(kind, 2)
    on.join(0)
    on.wait(2.0)

    def events() -> Iterator[float]:
        on.do(Do.FREEZE, 0)
        on.join(1)
        yield 12.0
        on.do(Do.THAW, 0)
        yield 38.0

    return _row(f"{kind}, hung owner", on, counter, events)


def _row(
    name: str,
    on: ZooKeeperDirector,
    counter: SplitBrainCounter,
    events: Callable[[], Iterator[float]],
) -> tuple[object, ...]:
    """Perform the events, and count every 0.1 s the partitions without an owner."""
    unowned = 0.0
    counter.refused = 0
    for seconds in events():
        for _ in range(round(seconds / SAMPLE_INTERVAL_S)):
            on.wait(SAMPLE_INTERVAL_S)
            unowned += SAMPLE_INTERVAL_S * _unowned(on.world)
    return (
        name,
        counter.refused,
        round(unowned, 1),
        _unowned(on.world),
        counter.late,
        counter.moved_back,
        counter.duplicates,
    )


def _unowned(world: World) -> int:
    return len(world.log_end) - len(world.owners())


LESSONS: dict[str, Callable[[], Iterator[Lesson]]] = {
    "herd-effect": herd_effect,
    "split-brain": split_brain,
}
