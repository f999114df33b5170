"""The state of a simulated group as JSON: first the whole state (a picture), then the changes of
each move (a frame).

A picture has members, partitions, the tree of znodes, the state of ZooKeeper, and counters. A frame
holds only the parts that a move has changed, so a page can play, scrub and export a run without the
simulator. Live groups and traces give pictures and frames of the same form.

Keys of a frame: `t` virtual seconds; `d` the move; `l` a sentence that describes the move; `m`
number of a member -> its view; `p` number of a partition -> [owner, stored, delivered, end]; `new`
names of added partitions; `flow` number of messages that every partition gets; `z` path -> [data,
session] or null; `k` ZooKeeper's state; `c` the counters; `x` events; `o` whether an owner has
changed; `say` the announcement of the story.

An owner is the number of a member, NOBODY or STRANGER. The view of a member has `w`, the number of
its requests in transit and the text of the first ones, and `i`, the same for replies and watches.
`wd` and `id` are the places of the first delayed request, and of the first delayed reply or watch.
"""

from __future__ import annotations

from math import isfinite

from zkconsumer.consumer.executor import WatchFired
from zkconsumer.errors import ZkConsumerError, escaped_and_cut
from zkconsumer.lab.causality import Causality
from zkconsumer.lab.stage import NOBODY, STRANGER, Camera
from zkconsumer.lab.texts import item_text, request_text, short
from zkconsumer.lab.zookeeper_causes import ZooKeeperCauses
from zkconsumer.member import commands as cmd
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.assignors import assign
from zkconsumer.protocol.java.text import utf16_key
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.registrations import decode_registration
from zkconsumer.protocol.requests import Reply
from zkconsumer.sim.jvm_member import JvmMember
from zkconsumer.sim.kernel.world import Delivered, InvariantViolation
from zkconsumer.sim.lessons import RequestCounter
from zkconsumer.sim.plan import Action
from zkconsumer.sim.world import MemberTransition, World
from zkconsumer.sim.znodes import End, ZnodeChange

SHOWN_MESSAGES = 4
"""Maximum number of requests, and of inbox items, that the view of a member names. The view only
counts the others. """

SHOWN_DATA = 200
"""Number of characters of a znode's payload that a picture contains; a longer payload is cut
off."""

COUNTERS = (
    "notifications",
    "reads",
    "writes",
    "unowned_s",
    "redelivered",
    "moved",
    "delivered",
    "requests",
)
"""The counters of a picture, in their order. The last one counts requests to a group coordinator; a
picture of a group with ZooKeeper ends before it."""


class ZooKeeperCamera(Camera[World], RequestCounter):
    """Watches a world with ZooKeeper, and turns each move into a frame."""

    causes: ZooKeeperCauses

    def __init__(self) -> None:
        RequestCounter.__init__(self)
        self._touched: set[TopicPartition] = set()
        super().__init__(ZooKeeperCauses(Causality()))
        self.index: dict[TopicPartition, int] = {}
        self.held: frozenset[int] = frozenset()
        self.waits: dict[tuple[int, bool], int] = {}  # described at `ZooKeeperStage._waits`
        self._seen = 0
        self._owners: dict[TopicPartition, int] = {}
        self._last_owners: dict[TopicPartition, int] = {}
        self._sessions: dict[int, int] = {}
        self._jvm_phases: dict[int, str] = {}
        self._prints: list[tuple[object, ...]] = []
        self._zookeeper: JsonObject = {}
        self._ends: dict[TopicPartition, int] = {}

    def _begin(self) -> None:
        super()._begin()
        self._touched = set()

    # ---- the whole picture -----------------------------------------------------------------------

    def _parts(self, world: World) -> JsonObject:
        self._read_history(world)
        self._ends = dict(world.log_end)
        self.index = {tp: number for number, tp in enumerate(world.log_end)}
        members = range(len(world.members))
        self._prints = [self._print(world, who) for who in members]
        self._zookeeper = _zookeeper(world)
        nodes = world.zookeeper.nodes
        return {
            "members": [self._member(world, who) for who in members],
            "partitions": [[str(tp), *self._partition(world, tp)] for tp in self.index],
            "tree": {path: [_text(it.data), it.stat.owner] for path, it in nodes.items()},
            "zookeeper": self._zookeeper,
        }

    def counters(self) -> list[Json]:
        return [
            self.notifications,
            self.reads,
            self.writes,
            round(self.unowned_s, 3),
            self.tally.redelivered,
            self.changed_owner,
            self.tally.delivered,
        ]

    # ---- what one move changes -------------------------------------------------------------------

    def _unowned(self) -> int:
        return len(self.index) - len(self._owners)

    def _changes(self, world: World, actor: int) -> JsonObject:
        tree = self._read_history(world)
        found = self._log_ends(world)
        if tree:
            found["z"] = tree
        members = self._changed_members(world, actor)
        if members:
            found["m"] = members
        if self._touched:
            found["p"] = {self.index[tp]: self._partition(world, tp) for tp in self._touched}
        zookeeper = _zookeeper(world)
        if zookeeper != self._zookeeper:
            self._zookeeper = found["k"] = zookeeper
        return found

    def _changed_members(self, world: World, actor: int) -> dict[int, JsonObject]:
        found = {}
        for who, old in enumerate(self._prints):
            new = self._print(world, who)
            if new != old or who == actor:
                self._prints[who] = new
                found[who] = self._member(world, who)
        return found

    def _log_ends(self, world: World) -> JsonObject:
        """Return the added partitions and messages."""
        found: JsonObject = {}
        added = [tp for tp in world.log_end if tp not in self.index]
        for tp in added:
            self.index[tp] = len(self.index)
            self._touched.add(tp)
        if added:
            found["new"] = [str(tp) for tp in added]
        grown = {world.log_end[tp] - end for tp, end in self._ends.items()}
        if grown == {0}:
            if added:
                self._ends = dict(world.log_end)
            return found
        if len(grown) == 1:
            found["flow"] = grown.pop()
        else:
            self._touched |= {tp for tp, end in self._ends.items() if world.log_end[tp] != end}
        self._ends = dict(world.log_end)
        return found

    def _read_history(self, world: World) -> JsonObject:
        """Record the writes since the last call; return the changed znodes."""
        for who, link in enumerate(world.links):
            if link.session:
                self._sessions[link.session] = who
        tree: JsonObject = {}
        history = world.zookeeper.history
        for change in history[self._seen :]:
            self._change(change, tree)
        self._seen = len(history)
        return tree

    def _change(self, change: ZnodeChange, tree: JsonObject) -> None:
        if isinstance(change.write, End):
            event = ["ended", self._sessions.get(change.session, -1), change.write.value]
            if event not in self._events:
                self._events.append(event)
        if not change.path:
            return
        new = change.new
        tree[change.path] = None if new is None else [_text(new.data), new.stat.owner]
        at = paths.locate(change.path)
        if at.kind is ZnodeKind.OFFSET:
            self._touched.add(TopicPartition(at.name, at.partition))
        elif at.kind is ZnodeKind.OWNER:
            tp = TopicPartition(at.name, at.partition)
            self._touched.add(tp)
            if new is None:
                self._owners.pop(tp, None)
            else:
                self._own(tp, self._sessions.get(new.stat.owner, STRANGER))
            self._events.append(["owner", self._owners.get(tp, NOBODY), str(tp)])

    def _own(self, tp: TopicPartition, who: int) -> None:
        self._owners[tp] = who
        self.changed_owner += self._last_owners.get(tp, who) != who
        self._last_owners[tp] = who

    # ---- views -----------------------------------------------------------------------------------

    def _print(self, world: World, who: int) -> tuple[object, ...]:
        """Return values that differ if the member's view has changed, and that take less time to
        compute than the view."""
        member, link = world.members[who], world.links[who]
        return (
            link.joined,
            link.dead,
            link.frozen,
            link.slow,
            link.connected,
            link.lost,
            link.black_hole_at is None,
            link.session,
            who in self.held,
            self.waits.get((who, True)),
            self.waits.get((who, False)),
            len(member.wire),
            len(member.inbox),
            member.may_ask(world.now),
            member.closed,
            tuple(member.feeds),
        )

    def _member(self, world: World, who: int) -> JsonObject:
        member, link = world.members[who], world.links[who]
        is_jvm = isinstance(member, JvmMember)
        phase = self._jvm_phases.get(who, "") if is_jvm else member.state.phase.value
        view: JsonObject = {
            "n": member.name,
            "k": "jvm" if is_jvm else "zk",
            "s": _status(link.joined, link.dead, link.frozen, member.closed),
            "ph": phase,
            "c": _connection(link.connected, link.lost, link.black_hole_at is not None),
            "ses": link.session,
            "open": member.may_ask(world.now),
            "f": [self.index[tp] for tp in member.feeds if tp in self.index],
        }
        if not is_jvm and isfinite(member.gate):
            view["lease"] = round(member.gate, 3)
        if link.slow:
            view["slow"] = 1
        if who in self.held:
            view["held"] = 1
        for name, is_request in (("wd", True), ("id", False)):
            if (who, is_request) in self.waits:
                view[name] = self.waits[who, is_request]
        if member.wire:
            shown = list(member.wire)[:SHOWN_MESSAGES]
            view["w"] = [len(member.wire), *(request_text(request) for _, request in shown)]
        if member.inbox:
            items = list(member.inbox)[:SHOWN_MESSAGES]
            view["i"] = [len(member.inbox), *map(item_text, items)]
        return view

    def _partition(self, world: World, tp: TopicPartition) -> list[Json]:
        node = world.zookeeper.nodes.get(paths.offset(world.GROUP, tp))
        stored = None if node is None else _text(node.data)
        owner = self._owners.get(tp, NOBODY)
        return [owner, stored, world.handed_out.get(tp, 0), world.log_end.get(tp, 0)]

    def broken(self, violation: InvariantViolation) -> None:
        """Announce that the move breaks a promise, or answers the question of the run."""
        self._events.append(["broken", violation.invariant, escaped_and_cut(str(violation), 500)])
        self._words.append(f"Broken: {escaped_and_cut(str(violation), 500)}")

    # ---- called by the world ---------------------------------------------------------------------

    def transition(self, world: World, step: MemberTransition) -> None:
        self.causes.transition(world, step)
        who, after = step.who, world.members[step.who].state
        if after.phase is not step.before.phase:
            self._events.append(["phase", who, after.phase.value])
        for one in step.commands:
            if isinstance(one, cmd.Notice):
                text = escaped_and_cut(
                    f"{one.where}: {one.text}" if one.where else one.text, SHOWN_DATA
                )
                self._events.append(["notice", who, one.kind.value, text])

    def delivered(self, world: World, message: Delivered) -> None:
        self.causes.delivered(world, message)
        is_again = self.tally.count(message)
        self._touched.add(message.tp)
        told = ["delivered", message.who, str(message.tp), message.offset, int(is_again)]
        self._events.append(told)

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        super().served(world, who, request, reply)
        self.causes.served(world, who, request, reply)
        code = "no answer" if reply is None else reply.code.name
        self._events.append(["served", who, request_text(request), code])

    def notified(self, world: World, who: int, fired: WatchFired) -> None:
        super().notified(world, who, fired)
        self.causes.notified(world, who, fired)
        self._events.append(["watch", who, fired.kind.lower(), short(fired.path)])

    def entered(self, world: World, who: int, phase: str, text: str) -> None:
        self.causes.entered(world, who, phase, text)
        self._jvm_phases[who] = phase
        self._events.append(["phase", who, phase, text])

    def acted(self, world: World, action: Action) -> None:
        self.causes.acted(world, action)


def _status(joined: bool, dead: bool, frozen: bool, closed: bool) -> str:
    if not joined:
        return "away"
    if closed:
        return "left"
    if dead:
        return "dead"
    return "frozen" if frozen else "up"


def _connection(connected: bool, lost: bool, muted: bool) -> str:
    if muted:
        return "muted"
    if connected:
        return "on"
    return "lost" if lost else "off"


def _zookeeper(world: World) -> JsonObject:
    faults = world.active_faults
    return {
        "quorum": not faults.no_quorum,
        "cut": list(faults.isolated),
        "lag": list(faults.lagging),
        "brokers": not faults.brokers_gone,
        "topic": not faults.topic_gone,
        "hostile": bool(faults.bad_registration),
        "stuck": [str(tp) for tp in faults.stuck],
        "replicas": world.plan.replicas,
    }


def explain(world: World, tp: TopicPartition) -> str:
    """Return why a thread should own a partition, and which thread owns it."""
    subscriptions: JsonObject = {}
    nodes = world.zookeeper.nodes
    prefix = f"{paths.ids(world.GROUP)}/"
    for path, node in nodes.items():
        if path.startswith(prefix):
            try:
                one = decode_registration(node.data, where=path)
            except ZkConsumerError:
                return (
                    f"{escaped_and_cut(path)} is unreadable, so no member computes an assignment."
                )
            subscriptions[path.removeprefix(prefix)] = one.subscription
    topics: dict[str, tuple[int, ...]] = {}
    for existing in world.log_end:
        topics[existing.topic] = (*topics.get(existing.topic, ()), existing.partition)
    settings = world.members[0].settings
    due = assign(
        settings.strategy,
        subscriptions=subscriptions,
        partitions=topics,
        variant=settings.profile.variant,
    )
    owner = world.owner(tp)
    now = (
        f"The owner znode names {escaped_and_cut(owner[0])}." if owner else "It has no owner znode."
    )
    thread = due.get(tp)
    if thread is None:
        return f"No registered member subscribes to {tp.topic}. {now}"
    threads = sorted({one for at, one in due.items() if at.topic == tp.topic}, key=utf16_key)
    place = threads.index(thread) + 1
    return (
        f"{settings.strategy.value} assigns {tp} to {escaped_and_cut(thread)}: thread {place} of "
        f"{len(threads)} with partitions of {tp.topic}, which has {len(topics[tp.topic])}. "
        f"Each member computes this for itself from the registrations in ids. {now}"
    )


# ---- texts ---------------------------------------------------------------------------------------


def _text(data: bytes | None) -> str:
    return escaped_and_cut((data or b"").decode(errors="replace"), SHOWN_DATA)
