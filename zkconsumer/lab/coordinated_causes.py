"""The causal record of a world with a coordinator, read from the world's queue.

A request is in transit while it is in the queue, or while a slow network holds it back. A response
is in transit until the member handles it; a frozen member handles it later. The responses to
fetches are not messages of the simulation: a member reads a log in one step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from zkconsumer.lab.causality import (
    COMMIT,
    REPLY,
    REQUEST,
    CausalEvent,
    Causality,
    CausalMessage,
    rule_of,
)
from zkconsumer.lab.worlds import COORDINATE, KILL_BROKER, REVIVE_BROKER, LabMove
from zkconsumer.later import group_coordinator
from zkconsumer.later import group_events as ge
from zkconsumer.later import member_events as ev
from zkconsumer.protocol.later import messages as msg
from zkconsumer.sim.coordinated.view import message_text
from zkconsumer.sim.coordinated.world import (
    RECEIVE,
    SERVE,
    TIME,
    CoordinatedWatcher,
    CoordinatedWorld,
    LateRequest,
    MemberTransition,
    Sender,
)
from zkconsumer.sim.kernel.world import Delivered

BROKERS = frozenset({KILL_BROKER, REVIVE_BROKER, COORDINATE})
"""Moves on a broker."""


class CoordinatedCauses(CoordinatedWatcher):
    """Watches a world, and writes its causal record."""

    def __init__(self, record: Causality) -> None:
        self.record = record
        self._asked: msg.Request | None = None

    def copy(self, record: Causality) -> CoordinatedCauses:
        return CoordinatedCauses(record)

    def begin(self, world: CoordinatedWorld) -> None:
        """Begin the record with the messages in transit."""
        self._look(world)
        self.record.begin()

    def finish(self, world: CoordinatedWorld) -> None:
        """End the last step."""
        self._look(world)

    def mark(self, world: CoordinatedWorld, move: LabMove, text: str) -> None:
        """Record an action of the user on the line of a broker or member."""
        if move.who < 0 or move.do in (SERVE, RECEIVE, TIME):
            return
        is_member = move.do not in BROKERS
        self.record.mark(world.members[move.who].name if is_member else _broker(move.who), text)

    # ---- called by the world ---------------------------------------------------------------------

    def transition(self, world: CoordinatedWorld, step: MemberTransition) -> None:
        who, before, event, _ = step
        member = world.members[who]
        answer = event.response if isinstance(event, ev.Answered) else None
        text = type(event).__name__ if answer is None else message_text(answer)
        done = self._at_member(world, who, text)
        if isinstance(event, ev.Answered):
            self.record.receive(done, (who, member.life, event.number, False))
        handlers_of = getattr(member.machine, "handlers_of", None)
        if handlers_of is not None:  # a program under test names no handlers
            for handler in handlers_of(before, event):
                done.follows(rule_of(handler))

    def asked(self, world: CoordinatedWorld, who: int, request: msg.Request) -> None:
        self._asked = request

    def coordinated(
        self,
        world: CoordinatedWorld,
        broker: int,
        before: group_coordinator.GroupCoordinator,
        event: ge.Event,
    ) -> None:
        if isinstance(event, ge.Received):
            text = message_text(event.request)
        elif world.brokers[broker] == before:
            return  # most ticks of an idle broker change nothing
        else:
            text = type(event).__name__
        done = self.record.event(_broker(broker), text)
        done.follows(rule_of(group_coordinator.handler_of(before, event)))

    def delivered(self, world: CoordinatedWorld, message: Delivered) -> None:
        self.record.fetch(world.members[message.who].name, message)

    def acted(self, world: CoordinatedWorld) -> None:
        self._look(world)

    # ---- the queue -------------------------------------------------------------------------------

    def _at_member(self, world: CoordinatedWorld, who: int, text: str) -> CausalEvent:
        return self.record.event(world.members[who].name, text)

    def _look(self, world: CoordinatedWorld) -> None:
        """Record the messages that have come and gone in this step."""
        record, here = self.record, dict(_in_transit(world))
        gone = [key for key in record.in_transit if key not in here]
        if self._asked is not None:
            request = self._asked
            arrived = next((key for key in gone if record.in_transit[key].item is request), None)
            if arrived is not None:
                done = record.event(record.in_transit[arrived].line, message_text(request))
                record.receive(done, arrived)
                gone.remove(arrived)
        self._asked = None
        record.lose(gone)
        for key, (sender, message) in here.items():
            if key not in record.in_transit:
                record.in_transit[key] = self._sent(world, sender, message)
        record.end_step()

    def _sent(
        self, world: CoordinatedWorld, sender: Sender, message: msg.Request | msg.Response
    ) -> CausalMessage:
        text, name = message_text(message), world.members[sender.who].name
        if isinstance(message, msg.Response):
            done = self.record.event(_broker(sender.broker), text)
            return CausalMessage(REPLY, name, done.number, text, message)
        done = self.record.event(name, text)
        kind = COMMIT if isinstance(message, msg.OffsetCommit) else REQUEST
        return CausalMessage(kind, _broker(sender.broker), done.number, text, message)


Entry = tuple[Hashable, tuple[Sender, msg.Request | msg.Response]]


def _in_transit(world: CoordinatedWorld) -> Iterator[Entry]:
    """Yield the messages in transit with their keys: member, life, number, whether a request."""
    for _, one in world.in_transit():
        yield (*_key(one.sender), one.is_request), (one.sender, one.message)
    for _, entry in world.due():
        if isinstance(entry, LateRequest):
            yield (*_key(entry.sender), True), (entry.sender, entry.request)
    for who, member in enumerate(world.members):
        for held in member.held or ():
            yield (*_key(held.sender), True), (held.sender, held.request)
        for event in member.inbox:
            if isinstance(event, ev.Answered):
                sender = Sender(who, member.life, -1, event.number)
                yield (*_key(sender), False), (sender, event.response)


def _key(sender: Sender) -> tuple[int, int, int]:
    return sender.who, sender.life, sender.number


def _broker(number: int) -> str:
    return f"broker {number}"
