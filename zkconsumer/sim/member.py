"""A simulated member: the production core and operations, on a simulated connection and clock.

What is replaced: the coordinator's thread (the world calls), kazoo (requests go to a simulated
server one by one), and the streams (a partition here is a position and at most one message in the
user's hands). Everything that decides or reads back is the production code.

A member is copied often (the exhaustive search), so an operation under way is kept as its command
and the replies so far, from which its generator is made anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zkconsumer.core import commands as cmd
from zkconsumer.core import events
from zkconsumer.core.events import Event, Interrupted, Outcome
from zkconsumer.core.lease import NEVER
from zkconsumer.core.machine import awaits, next_deadline, step
from zkconsumer.core.model import Position, Purpose, Session, TopicPartition
from zkconsumer.core.state import Phase, Settings, State
from zkconsumer.zk.executor import WatchFired, meaning, operation
from zkconsumer.zk.operations import Member as Identity
from zkconsumer.zk.requests import Batch, Code, OffsetRequest, Reply, Request

OnTransition = Callable[["SimMember", State, Event, tuple[cmd.Command, ...]], None]


@dataclass(frozen=True, slots=True)
class Feed:
    """One granted partition: what the user has been given, and whether one message is in hand."""

    epoch: int
    delivered: int | None
    in_hand: bool = False
    asked: bool = False

    def position(self, purpose: Purpose) -> Position | None:
        if self.delivered is None:
            return None
        handed_out = purpose in (Purpose.EXPLICIT, Purpose.LEAVE)
        return Position(self.epoch, self.delivered - (self.in_hand and not handed_out))


@dataclass(frozen=True, slots=True)
class Running:
    """An operation under way: from `command`, after `fed`; `got` of `batch` have been answered."""

    command: cmd.Command
    session: int
    started: float
    batch: Sequence[Request | OffsetRequest]
    fed: tuple[Sequence[Reply], ...] = ()
    got: tuple[Reply, ...] = ()


class SimMember:
    """One member. The world executes `wire`, fills `inbox`, and calls `receive`, `ask`, `tick`."""

    def __init__(self, settings: Settings, on_transition: OnTransition) -> None:
        self.settings = settings
        self.state = State(settings)
        self.gate = NEVER
        self.due = next_deadline(self.state)
        self.feeds: dict[TopicPartition, Feed] = {}
        self.running: dict[int, Running] = {}
        self.wire: deque[tuple[int, Request | OffsetRequest]] = deque()
        self.inbox: deque[Any] = deque()
        self._on_transition = on_transition

    @property
    def name(self) -> str:
        return self.settings.consumer

    @property
    def closed(self) -> bool:
        return self.state.phase is Phase.CLOSED

    @property
    def settled(self) -> bool:
        """Does it own and serve all that it should?"""
        return self.state.phase is Phase.SETTLED

    def copy(self, on_transition: OnTransition) -> SimMember:
        twin = object.__new__(SimMember)
        twin.settings, twin.state, twin.gate = self.settings, self.state, self.gate
        twin.due = self.due
        twin.feeds, twin.running = dict(self.feeds), dict(self.running)
        twin.wire, twin.inbox = deque(self.wire), deque(self.inbox)
        twin._on_transition = on_transition
        return twin

    # ---- what the world does ---------------------------------------------------------------------

    def receive(self, now: float) -> None:
        """Take the next thing that came over the connection."""
        item = self.inbox.popleft()
        if isinstance(item, Event):
            self.handle(replace(item, now=now))
        elif isinstance(item, WatchFired):
            event = meaning(item, self.settings, now)
            if event is not None:
                self.handle(event)
        else:
            op, reply = item
            self._answered(op, reply, now)

    def disconnect(self, now: float) -> None:
        """The connection is gone: nothing queued is sent, nothing under way is answered."""
        self.wire.clear()
        lost = list(self.running)
        # What our own streams said is not lost; what came over the connection may be.
        self.inbox = deque(item for item in self.inbox if isinstance(item, Event))
        self.handle(events.Suspended(now=now))
        for op in lost:
            self._end(op, Interrupted(), now)

    def connect(self, session: Session, now: float, wall_ms: int) -> None:
        self.running.clear()
        self.handle(events.Connected(now=now, session=session, wall_ms=wall_ms))

    def tick(self, now: float) -> None:
        self.handle(events.Tick(now=now))

    def commit(self, now: float) -> None:
        """The user commits everything handed out."""
        everything = frozenset(self.feeds)
        asked = self._collected(Purpose.EXPLICIT, everything, now)
        self.handle(replace(asked, request=1))

    def may_ask(self, now: float) -> bool:
        return now < self.gate

    def finish_all(self, now: float) -> None:
        """The user asks for the next message: what was in hand is finished."""
        done = frozenset(tp for tp, feed in self.feeds.items() if feed.asked and feed.in_hand)
        for tp, feed in self.feeds.items():
            if feed.in_hand:
                self.feeds[tp] = replace(feed, in_hand=False)
        if done:
            self.handle(events.ReleaseReady(now=now, partitions=done))

    def deliverable(self, tp: TopicPartition, log_end: int, now: float) -> bool:
        """Is there a message that may be handed out? (`auto.offset.reset=smallest`)"""
        feed = self.feeds.get(tp)
        return (
            feed is not None
            and not feed.asked
            and (feed.delivered or 0) < log_end
            and self.may_ask(now)
        )

    def deliver(self, tp: TopicPartition) -> tuple[int, int]:
        """Hand out the next message of `tp`: (offset, epoch)."""
        feed = self.feeds[tp]
        offset = feed.delivered or 0
        self.feeds[tp] = replace(feed, delivered=offset + 1, in_hand=True)
        return offset, feed.epoch

    def handle(self, event: Event) -> None:
        """One transition, and its commands."""
        before = self.state
        self.state, commands = step(before, event)
        self.due = next_deadline(self.state)
        self._on_transition(self, before, event, commands)
        for command in commands:
            self._run(command, event.now)

    # ---- commands --------------------------------------------------------------------------------

    def _run(self, command: cmd.Command, now: float) -> None:
        match command:
            case cmd.StartFetching(grants):
                for tp, (mine, offset) in grants.items():
                    self.feeds[tp] = Feed(mine.epoch, offset)
            case cmd.Withdraw(partitions):
                for tp in partitions:
                    self.feeds.pop(tp, None)
            case cmd.AskRelease(partitions):
                self._ask_release(partitions, now)
            case cmd.CollectPositions(purpose, partitions):
                self.handle(self._collected(purpose, partitions, now))
            case cmd.CallListener(op, callback):
                outcome = events.ListenerReturned(callback)
                self.inbox.append(events.Finished(now=now, op=op, outcome=outcome))
            case cmd.OpenGate(deadline):
                self.gate = deadline
            case cmd.ShutGate():
                self.gate = NEVER
            case cmd.AnswerCommit() | cmd.Notice() | cmd.CloseSession():
                pass
            case _:
                self._start(command, now)

    def _ask_release(self, partitions: frozenset[TopicPartition], now: float) -> None:
        idle = []
        for tp in partitions:
            if tp in self.feeds:
                self.feeds[tp] = replace(self.feeds[tp], asked=True)
                if not self.feeds[tp].in_hand:
                    idle.append(tp)
        if idle:
            ready = events.ReleaseReady(now=now, partitions=frozenset(idle))
            self.inbox.append(ready)

    def _collected(
        self, purpose: Purpose, only: frozenset[TopicPartition], now: float
    ) -> events.PositionsCollected:
        found = {tp: f.position(purpose) for tp, f in self.feeds.items() if tp in only}
        positions = {tp: at for tp, at in found.items() if at is not None}
        return events.PositionsCollected(now=now, purpose=purpose, positions=positions)

    # ---- operations ------------------------------------------------------------------------------

    def _start(self, command: cmd.Command, now: float) -> None:
        assert self.state.session is not None
        session = self.state.session.id
        op, running = operation(command, self._identity(session), now)
        if op == 0 and op in self.running:
            # Several may go on that nobody waits for; here each needs a number to be told apart.
            op = min(self.running) - 1
        batch = _requests(next(running))
        self._send(op, Running(command, session, now, batch))

    def _send(self, op: int, running: Running) -> None:
        self.running[op] = running
        self.wire.extend((op, request) for request in running.batch)
        if not running.batch:
            self.inbox.append((op, None))

    def _answered(self, op: int, reply: Reply | None, now: float) -> None:
        running = self.running.get(op)
        if running is None:
            return
        if not awaits(self.state, max(op, 0)):
            del self.running[op]
            return
        if reply is not None:
            got = (*running.got, reply)
            running = Running(
                running.command, running.session, running.started, running.batch, running.fed, got
            )
            self.running[op] = running
        if len(running.got) < len(running.batch):
            return
        if any(one.code is Code.BROKEN for one in running.got):
            self._end(op, Interrupted(), now)
            return
        fed = (*running.fed, running.got)
        _, again = operation(running.command, self._identity(running.session), running.started)
        next(again)
        try:
            for replies in fed[:-1]:
                again.send(replies)
            batch = again.send(fed[-1])
        except StopIteration as end:
            self._end(op, end.value, now)
        else:
            self._send(op, replace(running, batch=_requests(batch), fed=fed, got=()))

    def _end(self, op: int, outcome: Any, now: float) -> None:
        self.running.pop(op, None)
        if isinstance(outcome, Outcome):
            self.handle(events.Finished(now=now, op=op, outcome=outcome))
        elif callable(outcome):
            self.handle(outcome(now))

    def _identity(self, session: int) -> Identity:
        return Identity.of(self.settings, session)


def _requests(asked: Batch | OffsetRequest) -> Sequence[Request | OffsetRequest]:
    return (asked,) if isinstance(asked, OffsetRequest) else asked
