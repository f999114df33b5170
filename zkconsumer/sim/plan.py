"""The actions and faults that can occur in a simulated world, and the parameters of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from zkconsumer.member.phases import Phase
from zkconsumer.member.state import Settings
from zkconsumer.protocol.lost_data import RefusedHandshakes
from zkconsumer.protocol.model import TopicPartition


class Do(Enum):
    """The kinds of actions: ordinary actions, faults, and the ends of faults.

    The values are written into stories, traces and URLs of the lab, so they must not change.
    """

    JOIN = "join"
    LEAVE = "leave"
    SERVE = "serve"  # the server executes a member's next request
    RECEIVE = "receive"  # a member takes the next item of its inbox
    OVERTAKE = "overtake"  # a connection change is handled before older replies
    READ = "read"  # a client reads one more reply or watch event that arrived before the break
    CONNECT = "connect"
    NOTICE = "notice"  # a member notices that its connection is broken
    NEXT_MESSAGE = "ask"  # the user asks for the next message, and gets it if there is one
    POLL = "poll"  # a user of a production stream polls a batch
    COMMIT = "commit"
    COMMIT_OFFSETS = "give"  # a user commits offsets of its choice
    COMMIT_TIMEOUT = "abandon"  # the timeout of an explicit commit passes
    PAUSE = "pause"
    RESUME = "resume"  # a user resumes its paused partitions
    SEEK = "seek"
    RAISE = "raise"  # the body of a user's loop raises
    INTERRUPT = "interrupt"  # a signal interrupts the user's next call that takes messages
    POST = "post"  # a delayed thread of a user or of the listener puts its item into the inbox
    TOOL = "tool"  # the server executes the operator's next requests
    TIME = "time"  # the clock advances to the next moment at which something is due

    CUT = "cut"  # the connection breaks: replies are lost, but their requests were executed
    BLACK_HOLE = "mute"  # the network drops everything, and neither side notices
    EXPIRE = "expire"  # another client takes over a live session and ends it
    KILL = "kill"
    FREEZE = "freeze"
    SLOW = "slow"  # the user does not finish its message
    DELETE_OWNER = "delete_owner"  # another client deletes an owner znode
    DELETE_ID = "delete_id"  # another client deletes an id znode
    EDIT = "edit"  # an operator sets an offset, with a mark
    ZOMBIE = "zombie"  # a former owner writes a lower offset, without a mark
    LATE_COMMIT = "late"  # a former owner commits all that was delivered, without a mark
    CORRUPT_OFFSET = "mangle"  # another client writes an offset that is not a number
    GROW = "grow"  # a partition is added
    DELETE_TOPIC = "delete_topic"
    NO_BROKERS = "no_brokers"
    BAD_REGISTRATION = "hostile"  # another client registers what cannot be decoded or evaluated
    STUCK = "stuck"  # another client's session owns a partition
    ORPHAN = "orphan"  # another client creates a persistent owner znode
    REFUSE = "refuse"  # an access control list denies members a right
    LAG = "lag"  # a replica of ZooKeeper stays some transactions behind
    ISOLATE = "isolate"  # a replica loses its leader, and keeps its clients
    NO_QUORUM = "no_quorum"
    RESTART = "restart"  # all servers of ZooKeeper stop and start
    REVIVE = "revive"  # a member that was killed or has left starts again under its id
    KAFKA_DOWN = "kafka_down"  # the offset coordinator refuses or moves, or its replies are lost
    APPLY = "apply"  # an operator plans a reset of offsets, and applies the plan
    LOSE_TOOL = "lose_tool"  # the tool's requests are executed, and their replies lost
    KILL_TOOL = "kill_tool"  # the tool is killed between two requests
    CRASH_CLIENT = "crash_client"  # an exception ends a member's ZooKeeper client for good
    APPLY_RETENTION = "retain"  # retention deletes the first messages of a partition
    LOCK_OUT = "lock_out"  # ZooKeeper refuses a member's credential at each connection
    LOSE_DATA = "lose_data"  # all servers of ZooKeeper restart with the data of a backup
    TAKE_ID = "take_id"  # another client deletes an id znode, and registers under this id
    REGISTER_EMPTY = "register_empty"  # another client registers without a payload, as kafka-node

    THAW = "thaw"
    END_BLACK_HOLE = "unmute"
    END_SLOW = "hurry"
    REPAIR = "repair"  # an operator corrects an unreadable offset, and writes the topic's znode
    CREATE_TOPIC = "create_topic"
    BROKERS = "brokers"
    DELETE_BAD_REGISTRATION = "disarm"
    UNSTICK = "unstick"  # the other client's owner znode is deleted
    ALLOW = "allow"
    CATCH_UP = "catch_up"
    REJOIN = "rejoin"
    QUORUM = "quorum"
    KAFKA_UP = "kafka_up"
    APPLY_AGAIN = "apply_again"  # an operator applies the plan of a killed or failed tool again
    UNDO = "undo"  # an operator undoes the plan of a killed or failed tool, from its backup
    ADMIT = "admit"  # ZooKeeper accepts the credential again
    FREE_ID = "free_id"  # the other client's registration is deleted
    WRITE_PAYLOAD = "write_payload"  # the client that registered empty writes its payload
    PEER_LEAVES = "peer_leaves"  # that client leaves

    # Hash by identity: the values are keys of often-used dictionaries, and Enum would hash the
    # name.
    __hash__ = object.__hash__


USER_ACTIONS = frozenset(
    {Do.COMMIT_OFFSETS, Do.COMMIT_TIMEOUT, Do.PAUSE, Do.SEEK, Do.RAISE, Do.INTERRUPT}
)
"""Rare actions of the users of production streams."""

FAULTS = frozenset(list(Do)[list(Do).index(Do.CUT) : list(Do).index(Do.THAW)])

MEMBER_FAULTS = frozenset(
    {
        Do.CUT,
        Do.BLACK_HOLE,
        Do.EXPIRE,
        Do.KILL,
        Do.FREEZE,
        Do.SLOW,
        Do.DELETE_ID,
        Do.CRASH_CLIENT,
        Do.LOCK_OUT,
        Do.TAKE_ID,
    }
)
"""Faults of one member; any other fault concerns all live members."""


class Action(NamedTuple):
    """One action; `who` is the number of a member, a replica or a variant, depending on `do`."""

    do: Do
    who: int = -1
    tp: TopicPartition | None = None

    def __str__(self) -> str:
        who = f" {self.who}" if self.who >= 0 else ""
        return f"{self.do.value}{who}" + (f" {self.tp}" if self.tp else "")


@dataclass
class Link:
    """A member's connection and process.

    Attributes:
        lost: the connection is broken, but the member has not noticed it yet.
        dead: the process has ended.
        slow: the user does not finish its message.
        locked_out: ZooKeeper refuses the member's credential.
        refusals: the connections that servers have accepted and closed in a row.
        black_hole_at: the virtual time since which the network drops everything; None if it works.
    """

    session: int = 0
    replica: int = 0
    connected: bool = False
    lost: bool = False
    joined: bool = False
    dead: bool = False
    frozen: bool = False
    slow: bool = False
    locked_out: bool = False
    refusals: RefusedHandshakes | None = None
    black_hole_at: float | None = None


@dataclass
class ActiveFaults:
    """The faults that are in progress and concern no single member's connection or process."""

    topic_gone: bool = False
    brokers_gone: bool = False
    no_quorum: bool = False
    bad_registration: int = 0  # the variant of the bad registration, from 1; 0 if none
    refused: tuple[str, ...] = ()
    corrupt_offsets: tuple[TopicPartition, ...] = ()
    stuck: tuple[TopicPartition, ...] = ()
    lagging: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()
    kafka: int = (
        0  # 1: the offset coordinator refuses commits; 2: it stores them, and its replies are lost
    )
    taken: tuple[int, ...] = ()  # members under whose ids another client has registered
    peer: int = 0  # 1: a client has registered without a payload; 2: it has written the payload


class Rare(Enum):
    """A kind of rare pairs (phase, fault or event) that an aimed world prefers."""

    TOOL = "an operator's tool loses a reply in a member's brief phase"
    COMMIT = "an explicit commit fails in a member's brief phase"
    DIAGNOSIS = "a diagnosis ends in a member's brief phase"


@dataclass
class Plan:
    """The parameters of a run: members, partitions, messages, and the faults that may happen.

    Attributes:
        messages_per_advance: the number of messages that each partition gets whenever the clock
            advances.
        repair_one_in: at each opportunity, a fault ends with the probability 1 / repair_one_in.
        faults: how many times each fault may happen.
        topics: the names of further topics, each with two partitions.
        sessions: the members' session timeouts in turn, in seconds; if empty, `session_s` for all.
        has_tool: whether an operator uses the tools.
        streams: whether the members' partitions are delivered by production streams.
        queries: how many of the members are queries of Spark, which deliver in batches.
        reset: `auto.offset.reset` of production streams: "smallest" or "largest".
        stored: the stored offset of each partition at the start; 0: none is stored. An operator
            resets the offset while the first members join.
        aim: most faults happen while a member is in this phase; None: faults happen at any time.
        rare: the rare pairs that the world prefers in the phase `aim`; None: no preference.
        is_ambiguous: use only malformed registrations that some Kafka releases accept and others
            reject.
    """

    members: int = 3
    partitions: int = 6
    messages: int = 3
    messages_per_advance: int = 0
    session_s: float = 6.0
    replicas: int = 1
    repair_one_in: int = 1
    faults: dict[Do, int] = field(default_factory=dict)
    settings: Callable[[Settings], Settings] = lambda one: one
    topics: tuple[str, ...] = ()
    sessions: tuple[float, ...] = ()
    has_tool: bool = False
    stored: int = 0
    streams: bool = False
    queries: int = 0
    reset: Literal["smallest", "largest"] = "smallest"
    aim: Phase | None = None
    rare: Rare | None = None
    is_ambiguous: bool = False

    def session_of(self, who: int) -> float:
        """Return a member's session timeout, in seconds."""
        return self.sessions[who % len(self.sessions)] if self.sessions else self.session_s
