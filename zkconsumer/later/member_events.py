"""The events and commands of a member of a coordinated group.

The state machines of the classic protocol and of KIP-848 share these events and commands. Every
event carries `now`, in seconds. The caller runs the commands in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.later.messages import Error, Request, Response
from zkconsumer.protocol.later.subscriptions import Topic
from zkconsumer.protocol.model import TopicPartition

# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a member at `now`, in seconds."""

    now: float


@dataclass(frozen=True, slots=True)
class PollStarted(Event):
    """The user's thread calls `poll`, and stays in `poll` until `PollReturned`.

    A real consumer returns from `poll` with messages and is called again. The machines treat
    consecutive calls as one, unless the user spends time on the messages.
    """


@dataclass(frozen=True, slots=True)
class PollReturned(Event):
    """The user processes messages and does not call `poll` until the next `PollStarted`."""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed. The caller sends this event at the machine's `next_deadline`."""


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """The response to the request `number` has arrived."""

    number: int
    response: Response


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The connection to a broker is lost. The responses to its pending requests will not arrive."""

    broker: int


@dataclass(frozen=True, slots=True)
class MetadataChanged(Event):
    """The client has new metadata: the cluster's brokers, and its topics by name."""

    brokers: tuple[int, ...]
    topics: Mapping[str, Topic]


@dataclass(frozen=True, slots=True)
class Consumed(Event):
    """The user received a message; `position` is the offset after it."""

    partition: TopicPartition
    position: int


@dataclass(frozen=True, slots=True)
class CloseRequested(Event):
    """The user closes the consumer."""


# ---- commands ------------------------------------------------------------------------------------


class Callback(Enum):
    """The methods of `ConsumerRebalanceListener`."""

    ASSIGNED = "onPartitionsAssigned"
    REVOKED = "onPartitionsRevoked"
    LOST = "onPartitionsLost"


@dataclass(frozen=True, slots=True)
class Command:
    """An action that the member's caller must perform."""


@dataclass(frozen=True, slots=True)
class Send(Command):
    """Send a request to a broker; the response comes back as `Answered` with the same number."""

    number: int
    broker: int
    request: Request


@dataclass(frozen=True, slots=True)
class CallListener(Command):
    """Call the user's listener, in the thread that polls."""

    callback: Callback
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class StartFetching(Command):
    """Deliver these partitions; the position is the stored offset, or None if there is none."""

    positions: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class StopFetching(Command):
    """Stop the delivery of these partitions."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Fail(Command):
    """Raise the error in the user's `poll`; the member does not retry."""

    error: Error


@dataclass(frozen=True, slots=True)
class Raise(Command):
    """Raise the error in the user's `poll`; the member continues when the user polls again."""

    error: Error


Commands = tuple[Command, ...]
S = TypeVar("S")


def then(
    result: tuple[S, Commands], follow: Callable[[S], tuple[S, Commands]]
) -> tuple[S, Commands]:
    """Combine two steps: run `follow` on the state in `result`, and join both lists of commands."""
    state, commands = result
    after, more = follow(state)
    return after, commands + more
