"""A member of a coordinated group, which a test drives event by event."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Self

from zkconsumer.later import member_events as ev
from zkconsumer.protocol.later import messages as msg


class DrivenMember:
    """Gives events to a member's state machine, and keeps the commands of the last event."""

    # Any, because each machine has its own class of state
    def __init__(self, machine: ModuleType, state: Any) -> None:
        self.machine = machine
        self.state = state
        self.commands: ev.Commands = ()
        self.now = 0.0

    def give(self, event: type[ev.Event], *fields: object, after_s: float = 0.0) -> Self:
        """Pass an event to the machine."""
        self.now += after_s
        self.state, self.commands = self.machine.step(self.state, event(self.now, *fields))
        return self

    def answer(self, response: msg.Response, kind: type[msg.Request]) -> Self:
        """Answer the pending request that has this class."""
        sent = self.state.client.sent
        number = next(n for n, one in sent.items() if isinstance(one.request, kind))
        return self.give(ev.Answered, number, response)

    def sent(self, kind: type[msg.Request]) -> list[msg.Request]:
        """Return those requests of this class that are among the last commands."""
        found = [one.request for one in self.commands if isinstance(one, ev.Send)]
        return [one for one in found if isinstance(one, kind)]
