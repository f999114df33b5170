"""The causal record of a run: what each process did, and which messages led to it.

A line is one process: a member, a server, or the logs of the topic. An event is what one line does
in one step of the world. A message connects the event that sent it with the event that received it.
Events are numbered in the order in which they happen, so the event that sends a message has a
smaller number than the event that receives it.

A world keeps its messages in queues. The watcher of each kind of world (`zookeeper_causes`,
`coordinated_causes`) reads these queues and reports each message that comes or goes.

A frame contains the events of its move as `ev`, each as [line, text, received messages, rules], and
the lost messages as `lost`. A received message is [kind, number of the event that sent it, text];
a lost message also has its line of destination. The number is BEFORE for a message that was sent
before the picture was taken. A rule names a function of the code, and its docstring's first line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import getdoc
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from zkconsumer.lab.worlds import LabMove
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.sim.kernel.world import Delivered

BEFORE = -1
"""The number that stands for all events before the record began."""

REQUEST, REPLY, WATCH, COMMIT, FETCH, ENSEMBLE = (
    *("request", "reply", "watch", "commit"),
    *("fetch", "ensemble"),
)
"""The kinds of messages. A COMMIT is a request that stores offsets, a FETCH brings a message from
its log to a member, and an ENSEMBLE message passes between ZooKeeper's servers."""

LEADER, LOGS = "leader", "logs"
"""The lines of ZooKeeper's leader, and of the brokers that store the topic."""


class CausalMessage(NamedTuple):
    """A message in transit: its destination, and the number of the event that sent it.

    `item` is the entry of the world's queue. The record holds it, so its `id` stays unique.
    """

    kind: str
    line: str
    sent: int
    text: str
    item: object = None


@dataclass
class CausalEvent:
    """What one line does in one step."""

    number: int
    line: str
    text: str
    received: list[CausalMessage] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)

    def follows(self, rule: str) -> None:
        """Add the rule that decided what happens; each rule is named once."""
        if rule not in self.rules:
            self.rules.append(rule)

    def as_json(self) -> list[Json]:
        received = [[one.kind, one.sent, one.text] for one in self.received]
        return [self.line, self.text, received, self.rules]


@dataclass
class Steps:
    """The events since the last frame.

    Attributes:
        count: the number of the next event.
        lost: the messages that were lost since the last frame.
        now: line -> its event in this step.
    """

    count: int = 0
    events: list[CausalEvent] = field(default_factory=list)
    lost: list[CausalMessage] = field(default_factory=list)
    now: dict[str, CausalEvent] = field(default_factory=dict)


class Causality:
    """The events since the last frame, and all messages in transit.

    Attributes:
        in_transit: key -> the message; a watcher chooses the keys.
    """

    def __init__(self) -> None:
        self.in_transit: dict[Hashable, CausalMessage] = {}
        self._steps = Steps()

    def copy(self) -> Causality:
        """Return a record that continues independently. Only a frame's end may be copied."""
        twin = Causality()
        twin.in_transit, twin._steps = dict(self.in_transit), Steps(self._steps.count)
        return twin

    def half(self, before: Causality | None = None) -> Causality:
        """Return a record of the same events, with messages in transit of its own.

        The two halves of a world with a bridge have queues of their own. `before` is the record
        whose messages in transit are the first ones.
        """
        twin = Causality()
        twin._steps = self._steps
        twin.in_transit = {} if before is None else dict(before.in_transit)
        return twin

    def begin(self) -> None:
        """Begin the record: forget all events, and call the messages in transit BEFORE."""
        self.in_transit = {key: one._replace(sent=BEFORE) for key, one in self.in_transit.items()}
        steps = self._steps
        steps.count, steps.events, steps.lost, steps.now = 0, [], [], {}

    def event(self, line: str, text: str) -> CausalEvent:
        """Return the event of a line in this step; the first call creates it with this text."""
        return self._steps.now.get(line) or self.next_event(line, text)

    def next_event(self, line: str, text: str) -> CausalEvent:
        """Return another event of a line in this step."""
        event = self._steps.now[line] = CausalEvent(self._steps.count, line, text)
        self._steps.count += 1
        self._steps.events.append(event)
        return event

    def mark(self, line: str, text: str) -> None:
        """Name the event of a line in this frame by the user's action that has caused it."""
        for event in self._steps.events:
            if event.line == line:
                event.text = text
                return
        self.next_event(line, text)

    def end_step(self) -> None:
        """End the step: the next one has events of its own."""
        self._steps.now = {}

    def pass_on(self, kind: str, sender: CausalEvent, receiver: CausalEvent, text: str) -> None:
        """Record a message that is sent and received in the same step."""
        receiver.received.append(CausalMessage(kind, receiver.line, sender.number, text))

    def fetch(self, line: str, message: Delivered) -> CausalEvent:
        """Return the event of a member that has read a log in this step; each log is named once."""
        log = self.event(LOGS, "messages are read")
        member = self.event(line, "delivers")
        if member.number < log.number:
            member = self.next_event(line, "delivers")
        if not any(one.kind == FETCH and one.item == message.tp for one in member.received):
            text = f"{message.tp} from offset {message.offset}"
            member.received.append(CausalMessage(FETCH, line, log.number, text, message.tp))
        return member

    def receive(self, event: CausalEvent, key: Hashable) -> None:
        """Record that an event has received a message, if the message is known."""
        found = self.in_transit.pop(key, None)
        if found is not None:
            event.received.append(found)

    def lose(self, keys: Collection[Hashable]) -> None:
        """Record that these messages are lost."""
        self._steps.lost += [self.in_transit.pop(key) for key in keys]

    def take(self) -> JsonObject:
        """Return the events and lost messages of a frame, and begin the next frame."""
        found: JsonObject = {}
        if self._steps.events:
            found["ev"] = [one.as_json() for one in self._steps.events]
        if self._steps.lost:
            found["lost"] = [[one.kind, one.sent, one.text, one.line] for one in self._steps.lost]
        steps = self._steps
        steps.events, steps.lost, steps.now = [], [], {}
        return found


W_contra = TypeVar("W_contra", contravariant=True)


class Causes(Protocol[W_contra]):
    """The watcher that writes the causal record of one kind of world."""

    record: Causality

    def copy(self, record: Causality) -> Self:
        """Return a watcher of a copy of the world, which writes into another record."""

    def begin(self, world: W_contra) -> None:
        """Begin the record with the messages in transit."""

    def finish(self, world: W_contra) -> None:
        """Record what has happened since the last step of the world ended."""

    def mark(self, world: W_contra, move: LabMove, text: str) -> None:
        """Record an action of the user on the line that it concerns, if it concerns one."""


# ---- rules of the code ---------------------------------------------------------------------------


def rule_of(function: Callable[..., object], causes: Collection[str] = ()) -> str:
    """Return the name of a function with its module, and the first line of its docstring.

    Args:
        causes: what made the function run, for a function that handles several causes.
    """
    name = f"{function.__module__.removeprefix('zkconsumer.')}.{function.__qualname__}"
    cause = f" ({', '.join(causes)})" if causes else ""
    return f"{name}{cause}: {_summary(function)}".removesuffix(": ")


@lru_cache(maxsize=256)
def _summary(function: Callable[..., object]) -> str:
    return (getdoc(function) or "").partition("\n")[0]


def rule_of_generator(running: Generator[Any, Any, Any]) -> str:  # Any: what it yields and gets
    """Return the rule of the generator function that has made an unstarted generator."""
    assert isinstance(running, GeneratorType)
    frame = running.gi_frame
    assert frame is not None, "the generator has ended"
    module = frame.f_globals["__name__"]
    found: Any = sys.modules[module]  # Any: a module, then a class or function in it
    for name in running.__qualname__.split("."):
        found = getattr(found, name, None)
    unknown = f"{module.removeprefix('zkconsumer.')}.{running.__qualname__}"
    return rule_of(found) if callable(found) else unknown
