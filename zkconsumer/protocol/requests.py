"""Requests to ZooKeeper and replies from it, as values: the operations are written in these.

So are the two requests to Kafka, for the offsets of `offsets.storage=kafka`. Nothing in here, nor
in `operations`, knows kazoo: the same operations run on a simulated server.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition


class Code(Enum):
    """How ZooKeeper answered."""

    OK = auto()
    NO_NODE = auto()
    NODE_EXISTS = auto()
    BAD_VERSION = auto()
    NOT_EMPTY = auto()
    NO_AUTH = auto()
    TOO_LARGE = auto()  # refused before sending: the server would just drop the connection
    OTHER = auto()  # a refusal that waiting does not mend; `value` says what
    BROKEN = auto()  # connection or session lost: it may or may not have happened


class Stat(NamedTuple):
    """`owner` is the session of an ephemeral znode, 0 for a persistent one.

    `mtime_ms`: when it was last written, by the server's clock; for people, never for decisions.
    """

    czxid: int
    mzxid: int
    version: int
    owner: int
    mtime_ms: int = 0


class Node(NamedTuple):
    data: bytes | None
    stat: Stat


class Reply(NamedTuple):
    """`value` when OK: Node of Get, Stat or None of Exists, names of Children, Stat of Set.

    Of FetchOffsets: partition -> OffsetAndMetadata, where there is one; OTHER with the reason when
    it is worth another try. Of StoreOffsets: NotStored.

    For a refused Multi it is the index of the operation that failed; `code` is that one's.
    """

    code: Code
    value: Any = None


@dataclass(frozen=True, slots=True)
class Get:
    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Exists:
    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Children:
    path: str
    watch: bool = False


class Right(NamedTuple):
    """An entry of an access control list: "scheme:id", and ZooKeeper's permission bits."""

    identity: str
    permissions: int


READ, WRITE, CREATE, DELETE = 1, 2, 4, 8
"""Permission bits of a Right: ZooKeeper's `ZooDefs.Perms`."""


@dataclass(frozen=True, slots=True)
class Create:
    """`data` None is ZooKeeper's null. `rights`: its access control; None: as configured."""

    path: str
    data: bytes | None = b""
    ephemeral: bool = False
    rights: tuple[Right, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes | None
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int = -1


Write = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """All or nothing, in this order."""

    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class SyncLeader:
    path: str


@dataclass(frozen=True, slots=True)
class Rights:
    """Who may do what with a znode; a tool's question, which no member asks.

    The reply's value is a tuple of Right.
    """

    path: str


Request = Get | Exists | Children | Create | Multi | SyncLeader
Batch = Sequence[Request]
"""Requests that are sent at once (pipelined) and answered in order."""


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """The group's offsets in Kafka."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Have Kafka store these."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]


class NotStored(NamedTuple):
    """What Kafka did not store: refused for good, and worth another try; each with the reason."""

    denied: dict[TopicPartition, str]
    unavailable: dict[TopicPartition, str]


WATCH_CREATED, WATCH_DELETED = "CREATED", "DELETED"
"""Types of watch events, by the names that kazoo's `EventType` gives them."""

OffsetRequest = FetchOffsets | StoreOffsets
"""One request to Kafka, which is sent alone and gets one reply."""

MAX_PAYLOAD_BYTES = 1_000_000
"""A server drops the connection at jute.maxbuffer (1 MiB with the frame around the payload)."""

MAX_MULTI_WRITES = 1_000
MAX_MULTI_BYTES = 512 * 1024
"""A transaction's limits: half of jute.maxbuffer, and 8.5 ms of a server's time; larger ones are
cut into several transactions, each all-or-nothing for itself."""


def payload_size(write: Write) -> int:
    """Bytes that a write takes in a transaction, about."""
    data = write.data if isinstance(write, Create | SetData) else b""
    return len(write.path.encode()) + len(data or b"") + 64


Operation = Generator[Batch | OffsetRequest, Sequence[Reply], Any]
