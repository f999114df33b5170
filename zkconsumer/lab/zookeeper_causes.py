"""The causal record of a world with ZooKeeper, read from the queues of its members.

A request is in transit from the step in which a member appends it to its `wire` until a server
executes it. A reply or watch event is in transit until the member takes it from its `inbox`. The
replies of one batch arrive together. ZooKeeper's servers follow a leader: a server passes writes
and syncs to the leader, and applies the leader's transactions before it answers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

from zkconsumer.consumer.executor import Resume, WatchFired
from zkconsumer.consumer.loop import SessionChanged
from zkconsumer.lab.causality import (
    BEFORE,
    COMMIT,
    ENSEMBLE,
    LEADER,
    REPLY,
    REQUEST,
    WATCH,
    CausalEvent,
    Causality,
    CausalMessage,
    rule_of,
    rule_of_generator,
)
from zkconsumer.lab.texts import item_text, request_text, short
from zkconsumer.lab.worlds import LabMove
from zkconsumer.member import machine
from zkconsumer.member.phases import Deadline
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.ensemble import READS
from zkconsumer.sim.jvm_member import JvmMember
from zkconsumer.sim.kernel.world import Delivered
from zkconsumer.sim.member import Replayed
from zkconsumer.sim.plan import Action, Do
from zkconsumer.sim.stage import ORDINARY
from zkconsumer.sim.world import MemberTransition, Watcher, World
from zkconsumer.sim.znodes import End

TAKES = frozenset({Do.RECEIVE, Do.OVERTAKE, Do.TIME, Do.THAW})
"""Actions in which members take items from their inboxes. In all others, missing items are lost."""

CONNECTS = frozenset({Do.CONNECT, Do.JOIN, Do.REVIVE})
SERVERS = frozenset({Do.LAG, Do.CATCH_UP, Do.ISOLATE, Do.REJOIN})
"""Actions on one of ZooKeeper's servers."""

NEVER_ANSWERED = (Code.BROKEN, Code.TOO_LARGE)


class ZooKeeperCauses(Watcher):
    """Watches a world, and writes its causal record."""

    def __init__(self, record: Causality) -> None:
        self.record = record
        self._wires: dict[int, tuple[Any, ...]] = {}  # Any: entries of a member's queue
        self._inboxes: dict[int, tuple[object, ...]] = {}
        self._replies: dict[tuple[int, Hashable], int] = {}  # number of replies in transit
        self._operations: dict[tuple[int, Hashable], str] = {}  # the rule of each operation
        self._commits: list[int] = [0]  # the zxids of `_committed`
        self._committed: list[int] = [BEFORE]  # the leader's event that made each of `_commits`
        self._applied: dict[int, int] = {}  # server -> the zxid of which it has been told
        self._notified: set[int] = set()  # members that got a watch event in this step
        self._seen = 0

    def copy(self, record: Causality) -> ZooKeeperCauses:
        twin = ZooKeeperCauses(record)
        for name, value in vars(self).items():
            if name != "record":
                setattr(twin, name, value if isinstance(value, int) else value.copy())
        return twin

    def begin(self, world: World) -> None:
        """Begin the record with the messages in transit."""
        for who in range(len(world.members)):
            self._look_at(world, who, is_taking=True)
        self.record.begin()
        self._commits, self._committed = [0], [BEFORE]
        self._applied = {}
        self._seen = len(world.zookeeper.history)

    def finish(self, world: World) -> None:
        """Record what has happened outside of the actions of the world: another client's write."""
        self._lead(world)
        self.record.end_step()

    def mark(self, world: World, move: LabMove, text: str) -> None:
        """Record an action of the user on the line of a server or member."""
        action = move.action
        if move.who < 0 or (action is not None and action.do in ORDINARY):
            return
        if action is not None and action.do in SERVERS:
            self.record.mark(_server(move.who), text)
        elif move.who < len(world.members):
            self.record.mark(world.members[move.who].name, text)

    # ---- called by the world ---------------------------------------------------------------------

    def transition(self, world: World, step: MemberTransition) -> None:
        who, before, event, _ = step
        causes = machine.causes(before, event)
        deadlines = [str(one.value) for one in causes if isinstance(one, Deadline)]
        names = deadlines or [one.__name__ for one in causes if isinstance(one, type)]
        done = self._at_member(world, who, ", ".join(names) or "Tick")
        handler = machine.handler_of(before, event)
        if handler is not None:
            done.follows(rule_of(handler, deadlines))

    def served(self, world: World, who: int, request: rq.Request, reply: Reply | None) -> None:
        code = "no answer" if reply is None else reply.code.name
        number = world.links[who].replica
        is_answered = reply is not None and reply.code not in NEVER_ANSWERED
        is_led = is_answered and not isinstance(request, READS)
        text = f"{request_text(request)}: {code}"
        if is_led:
            done = self.record.event(_server(number), text)
        else:
            done = self._at_server(world, number, text)
        item, *_ = self._wires[who]
        self._wires[who] = self._wires[who][1:]
        ticket, _ = item
        self.record.receive(done, (who, id(item)))
        if is_led:
            done = self._ask_leader(world, done, number, request)
        if is_answered and not world.links[who].dead:
            count = self._replies[who, ticket] = self._replies.get((who, ticket), 0) + 1
            message = CausalMessage(REPLY, world.members[who].name, done.number, code)
            self.record.in_transit[who, ticket, count] = message

    def notified(self, world: World, who: int, fired: WatchFired) -> None:
        if world.links[who].dead:
            return
        done = self._at_server(world, world.links[who].replica, "applies a transaction")
        self._notified.add(who)
        message = CausalMessage(
            WATCH, world.members[who].name, done.number, item_text(fired), fired
        )
        self.record.in_transit[who, id(fired)] = message

    def delivered(self, world: World, message: Delivered) -> None:
        member = world.members[message.who]
        self.record.fetch(member.name, message).follows(rule_of(type(member).deliverable))

    def entered(self, world: World, who: int, phase: str, text: str) -> None:
        self._at_member(world, who, text or phase)

    def acted(self, world: World, action: Action) -> None:
        if action.do is Do.NOTICE:
            self._at_member(world, action.who, "finds its connection broken")
        if action.do in CONNECTS and world.links[action.who].connected:
            self._connected(world, action.who)
        is_of_one = action.do in ORDINARY and action.do is not Do.TIME
        changed = {action.who, *self._notified} if is_of_one else range(len(world.members))
        for who in changed:
            self._look_at(world, who, is_taking=action.do in TAKES)
        self._notified.clear()
        self._lead(world)
        self.record.end_step()

    # ---- lines -----------------------------------------------------------------------------------

    def _at_member(self, world: World, who: int, text: str) -> CausalEvent:
        return self.record.event(world.members[who].name, text)

    def _at_server(self, world: World, number: int, text: str) -> CausalEvent:
        """Return the server's event, which knows all transactions that the server has applied."""
        self._lead(world)
        told, zxid = self._told(number), world.zookeeper.applied(number)
        self._applied[number] = max(zxid, self._applied.get(number, 0))
        last = self._told(number)
        done = self.record.event(_server(number), text)
        if last != told:
            if done.number < last:
                done = self.record.next_event(_server(number), text)
            done.received.append(CausalMessage(ENSEMBLE, done.line, last, f"zxid {zxid}"))
        return done

    # ---- ZooKeeper -------------------------------------------------------------------------------

    def _ask_leader(
        self, world: World, done: CausalEvent, number: int, request: rq.Request
    ) -> CausalEvent:
        """Record that a server passes a write or a sync to the leader, and applies the result."""
        text = request_text(request)
        leader = self.record.next_event(LEADER, text)
        self.record.pass_on(ENSEMBLE, done, leader, text)
        self._commit(world, leader)
        after = self.record.next_event(_server(number), f"{text}: applied")
        self.record.pass_on(ENSEMBLE, leader, after, text)
        self._applied[number] = world.zookeeper.last_zxid
        return after

    def _lead(self, world: World) -> None:
        """Record transactions that no member has asked for, such as the expiry of a session."""
        news = world.zookeeper.history[self._seen :]
        if news:
            is_end = isinstance(news[0].write, End)
            text = "ends a session" if is_end else f"another client writes {short(news[0].path)}"
            self._commit(world, self.record.next_event(LEADER, text))

    def _commit(self, world: World, leader: CausalEvent) -> None:
        self._seen = len(world.zookeeper.history)
        if world.zookeeper.last_zxid > self._commits[-1]:
            self._commits.append(world.zookeeper.last_zxid)
            self._committed.append(leader.number)

    def _told(self, number: int) -> int:
        """Return the leader's last event of which a server has been told."""
        return self._committed[bisect_right(self._commits, self._applied.get(number, 0)) - 1]

    # ---- queues ----------------------------------------------------------------------------------

    def _connected(self, world: World, who: int) -> None:
        """Record the handshake with a server; the member handles the answer when it takes it."""
        member = world.members[who]
        asks = self._at_member(world, who, "connects")
        server = self._at_server(world, world.links[who].replica, f"session of {member.name}")
        self.record.pass_on(REQUEST, asks, server, "connect")
        answers = [one for one in member.inbox if isinstance(one, SessionChanged) and one.session]
        if answers:
            message = CausalMessage(REPLY, member.name, server.number, "connected", answers[-1])
            self.record.in_transit[who, id(answers[-1])] = message
        else:
            after = self.record.next_event(member.name, "is connected")
            self.record.pass_on(REPLY, server, after, "connected")

    def _look_at(self, world: World, who: int, *, is_taking: bool) -> None:
        """Record the messages that a member has sent, taken and lost in this step."""
        wire, inbox = world.members[who].wire, world.members[who].inbox
        known = self._wires.get(who, ())
        if not _is_same(known, wire):
            self._sent(world, who)
        if not _is_same(self._inboxes.get(who, ()), inbox):
            here = set(map(id, inbox))
            gone = [one for one in self._inboxes.get(who, ()) if id(one) not in here]
            for item in gone:
                self._gone(world, who, item, is_taking=is_taking)
            self._inboxes[who] = tuple(inbox)
        if self._replies and not world.links[who].connected:
            self._lose_replies(world, who)

    def _sent(self, world: World, who: int) -> None:
        member, record = world.members[who], self.record
        before = [id(one) for one in self._wires.get(who, ())]
        known, here = set(before), set(map(id, member.wire))
        gone = [(who, one) for one in before if one not in here]  # in their order in the queue
        record.lose([key for key in gone if key in record.in_transit])
        for item in member.wire:
            if id(item) not in known:
                ticket, request = item
                done = self._at_member(world, who, "sends")
                rule = self._operations[who, ticket] = _rule(member, ticket)
                if rule:
                    done.follows(rule)
                line = _server(world.links[who].replica)
                kind = COMMIT if is_commit(request) else REQUEST
                message = CausalMessage(kind, line, done.number, request_text(request), item)
                record.in_transit[who, id(item)] = message
        self._wires[who] = tuple(member.wire)

    def _gone(self, world: World, who: int, item: object, *, is_taking: bool) -> None:
        """Record that an item has left an inbox; if it came from the network, it was a message."""
        keys = [(who, id(item)), *self._reply_keys(who, item)]
        known = [key for key in keys if key in self.record.in_transit]
        if not is_taking:
            self.record.lose(known)
            return
        if not known:
            return
        done = self._at_member(world, who, item_text(item))
        for key in known:
            self.record.receive(done, key)
        rule = self._operations.pop((who, _ticket(item)), "")
        if rule and rule not in done.rules:
            done.rules.insert(0, rule)

    def _reply_keys(self, who: int, item: object) -> Iterator[tuple[int, Hashable, int]]:
        ticket = _ticket(item)
        for number in range(self._replies.pop((who, ticket), 0)):
            yield who, ticket, number + 1

    def _lose_replies(self, world: World, who: int) -> None:
        """A broken connection loses the replies that have not reached the inbox."""
        here = {_ticket(one) for one in world.members[who].inbox}
        for ticket in [one for me, one in self._replies if me == who and one not in here]:
            keys = [(who, ticket, n + 1) for n in range(self._replies.pop((who, ticket)))]
            self.record.lose([key for key in keys if key in self.record.in_transit])


def _rule(member: Any, ticket: Any) -> str:  # Any: members and tickets of two kinds
    """Return the rule of the operation that sends requests with this ticket; "" if unknown."""
    if isinstance(member, JvmMember):
        program = member.program(ticket)
        return "" if program is None else rule_of_generator(program)
    running = member.running.get(ticket)
    if running is None or not isinstance(running.steps, Replayed):
        return ""
    return rule_of_generator(running.steps.unstarted())


def _is_same(known: tuple[Any, ...], queue: deque[Any]) -> bool:  # Any: entries of a queue
    if len(known) != len(queue):
        return False
    return not known or (known[0] is queue[0] and known[-1] is queue[-1])


def _ticket(item: object) -> Hashable:
    """Return the ticket of a reply: its operation's number, or the thread of a JVM member."""
    match item:
        case Resume(ticket=ticket):
            return ticket
        case (thread, Reply()):
            return thread
    return None


def _server(number: int) -> str:
    return f"server {number}"


def is_commit(request: object) -> bool:
    """Return whether a request stores offsets."""
    writes = request.writes if isinstance(request, rq.Multi) else (request,)
    return isinstance(request, rq.StoreOffsets) or any(
        isinstance(one, rq.SetData | rq.Create) and paths.locate(one.path).kind is ZnodeKind.OFFSET
        for one in writes
    )
