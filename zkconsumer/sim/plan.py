"""The words of a simulated world: what can happen, and what a run is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from zkconsumer.core.model import TopicPartition
from zkconsumer.core.state import Settings


class Do(Enum):
    """What can happen next; the first group is the ordinary course, the second are faults."""

    JOIN = "join"
    LEAVE = "leave"
    SERVE = "serve"  # the server executes a member's next request
    RECEIVE = "receive"  # a member takes the next reply or watch event
    CONNECT = "connect"
    ASK = "ask"  # the user asks for the next message, and is given one if there is one
    COMMIT = "commit"
    TIME = "time"  # the clock goes on to the next moment at which something is due
    CUT = "cut"  # the connection breaks: replies under way are lost, what they tell has happened
    EXPIRE = "expire"  # the server ends a live session
    KILL = "kill"
    FREEZE = "freeze"
    THAW = "thaw"
    DELETE_OWNER = "delete_owner"  # another client deletes an owner znode
    DELETE_ID = "delete_id"  # another client deletes an id znode
    EDIT = "edit"  # an operator sets an offset, with a mark
    ZOMBIE = "zombie"  # somebody writes a lower offset, without a mark
    GROW = "grow"  # a partition is added


FAULTS = frozenset(list(Do)[list(Do).index(Do.CUT) :]) - {Do.THAW}


class Action(NamedTuple):
    do: Do
    who: int = -1
    tp: TopicPartition | None = None

    def __str__(self) -> str:
        who = f" {self.who}" if self.who >= 0 else ""
        return f"{self.do.value}{who}" + (f" {self.tp}" if self.tp else "")


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message in a user's hands."""

    now: float
    who: int
    tp: TopicPartition
    offset: int
    epoch: int


@dataclass
class Link:
    """A member's connection and condition."""

    session: int = 0
    connected: bool = False
    joined: bool = False
    dead: bool = False
    frozen: bool = False


@dataclass
class Plan:
    """What a run is made of: members, partitions, messages, and the faults that may happen."""

    members: int = 3
    partitions: int = 6
    messages: int = 3
    session_s: float = 6.0
    faults: dict[Do, int] = field(default_factory=dict)  # how often each may happen
    settings: Callable[[Settings], Settings] = lambda one: one
