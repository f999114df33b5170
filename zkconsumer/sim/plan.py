"""The words of a simulated world: what can happen, and what a run is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from zkconsumer.member.state import Settings
from zkconsumer.protocol.model import TopicPartition


class Do(Enum):
    """What can happen next: the ordinary course, faults, and the ends of faults."""

    JOIN = "join"
    LEAVE = "leave"
    SERVE = "serve"  # the server executes a member's next request
    RECEIVE = "receive"  # a member takes the next item of its inbox
    OVERTAKE = "overtake"  # a change of the connection comes before replies that are older
    READ = "read"  # of a connection that is gone, a client reads one reply or watch more
    CONNECT = "connect"
    NOTICE = "notice"  # a member finds its connection gone
    ASK = "ask"  # the user asks for the next message, and is given one if there is one
    COMMIT = "commit"
    TOOL = "tool"  # the server executes the operator's next requests
    TIME = "time"  # the clock goes on to the next moment at which something is due

    CUT = "cut"  # the connection breaks: replies under way are lost, what they tell has happened
    MUTE = "mute"  # the network swallows everything, and nobody is told
    EXPIRE = "expire"  # somebody takes a live session over and ends it
    KILL = "kill"
    FREEZE = "freeze"
    SLOW = "slow"  # the user keeps the message in hand
    DELETE_OWNER = "delete_owner"  # another client deletes an owner znode
    DELETE_ID = "delete_id"  # another client deletes an id znode
    EDIT = "edit"  # an operator sets an offset, with a mark
    ZOMBIE = "zombie"  # somebody writes a lower offset, without a mark
    LATE = "late"  # a former owner commits all that was delivered, without a mark
    MANGLE = "mangle"  # an offset that cannot be read
    GROW = "grow"  # a partition is added
    DELETE_TOPIC = "delete_topic"
    NO_BROKERS = "no_brokers"
    HOSTILE = "hostile"  # a registration that cannot be read, or not be evaluated
    STUCK = "stuck"  # a stranger's session owns a partition
    ORPHAN = "orphan"  # a persistent owner znode
    REFUSE = "refuse"  # an access control list refuses what members do
    LAG = "lag"  # a replica of ZooKeeper stays some transactions behind
    ISOLATE = "isolate"  # a replica is cut from its leader, and keeps its clients
    NO_QUORUM = "no_quorum"
    RESTART = "restart"  # all servers of ZooKeeper stop and start
    REVIVE = "revive"  # a member that was killed or has left starts again under its id
    KAFKA_DOWN = "kafka_down"  # the offset coordinator refuses, moves, or loses its replies
    APPLY = "apply"  # an operator plans a reset of offsets, and applies the plan
    LOSE_TOOL = "lose_tool"  # the tool's requests are executed, and their replies lost
    KILL_TOOL = "kill_tool"  # the tool is killed between two requests

    THAW = "thaw"
    UNMUTE = "unmute"
    HURRY = "hurry"
    MEND = "mend"  # an operator makes an offset readable, and touches the topic
    CREATE_TOPIC = "create_topic"
    BROKERS = "brokers"
    DISARM = "disarm"  # the hostile registration goes
    UNSTICK = "unstick"  # the stranger's owner znode goes
    ALLOW = "allow"
    CATCH_UP = "catch_up"
    REJOIN = "rejoin"
    QUORUM = "quorum"
    KAFKA_UP = "kafka_up"
    APPLY_AGAIN = "apply_again"  # a plan whose tool was killed or failed is applied again
    UNDO = "undo"  # or taken back from its backup

    # Members are what they are, and looked up at each action; Enum's own hash is that of the name.
    __hash__ = object.__hash__


FAULTS = frozenset(list(Do)[list(Do).index(Do.CUT) : list(Do).index(Do.THAW)])


class InvariantViolation(AssertionError):
    """A promise was broken; `invariant` is its number."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Action(NamedTuple):
    """`who` is a member, or whatever else of its kind is numbered: a replica, a variant."""

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
    """A member's connection and condition; `lost`: it is gone, and the member does not know yet."""

    session: int = 0
    replica: int = 0
    connected: bool = False
    lost: bool = False
    joined: bool = False
    dead: bool = False
    frozen: bool = False
    slow: bool = False
    muted_at: float | None = None


@dataclass
class Wrong:
    """What is wrong with the world outside the members, until somebody mends it."""

    topic_gone: bool = False
    brokers_gone: bool = False
    no_quorum: bool = False
    hostile: int = 0  # the session of the hostile registration
    refused: tuple[str, ...] = ()
    mangled: tuple[TopicPartition, ...] = ()
    stuck: tuple[TopicPartition, ...] = ()
    lagging: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()
    kafka: int = 0  # 1: the offset coordinator answers nothing; 2: it stores, its replies get lost


@dataclass
class Plan:
    """What a run is made of: members, partitions, messages, and the faults that may happen.

    `flow` is how many messages each partition gets whenever time passes; one in `mending` chances
    to mend what is wrong is taken. `topics` beside the first one have two partitions each.
    `sessions` are the session timeouts of the members in turn; empty: `session_s` for all.
    `has_tool`: an operator is there. `stored` is the offset that an earlier run of the group has
    stored for each partition, if it is not 0; an operator resets it while the first members join.
    """

    members: int = 3
    partitions: int = 6
    messages: int = 3
    flow: int = 0
    session_s: float = 6.0
    replicas: int = 1
    mending: int = 1
    faults: dict[Do, int] = field(default_factory=dict)  # how often each may happen
    settings: Callable[[Settings], Settings] = lambda one: one
    topics: tuple[str, ...] = ()
    sessions: tuple[float, ...] = ()
    has_tool: bool = False
    stored: int = 0

    def session_of(self, who: int) -> float:
        """Return a member's session timeout, in seconds."""
        return self.sessions[who % len(self.sessions)] if self.sessions else self.session_s
