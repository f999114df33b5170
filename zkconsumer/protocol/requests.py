"""Requests to ZooKeeper and to Kafka, and their replies, as values.

Operations are generators that yield these requests and receive the replies. Operations do not
depend on kazoo, so the same operations run on a real and on a simulated server. Two requests
concern the offsets that Kafka stores (`offsets.storage=kafka`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias, TypeVar

from zkconsumer.errors import AccessDeniedError, first_few
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition

Result: TypeAlias = Any  # Any: the kind of the request or operation has its type


class Code(Enum):
    """The result of a request to ZooKeeper."""

    OK = auto()
    NO_NODE = auto()
    NODE_EXISTS = auto()
    BAD_VERSION = auto()
    NOT_EMPTY = auto()
    NO_AUTH = auto()
    TOO_LARGE = auto()  # not sent: the server would only close the connection
    OTHER = auto()  # refused, and a retry cannot succeed; `value` is the reason
    BROKEN = auto()  # connection or session lost: the request may or may not have been executed


class Stat(NamedTuple):
    """Metadata of a znode; `owner` is the session of an ephemeral znode, 0 for a persistent one.

    `mtime_ms` is the time of the last write by the server's clock. This time is only displayed; no
    decision depends on it.
    """

    czxid: int
    mzxid: int
    version: int
    owner: int
    mtime_ms: int = 0


class Node(NamedTuple):
    data: bytes | None
    stat: Stat


class ListedChildren(NamedTuple):
    """The children of a znode.

    `cversion` grows by one with each child that is created or deleted (ZooKeeper:
    `DataNode.copyStat`).
    """

    names: tuple[str, ...]
    cversion: int


class Reply(NamedTuple):
    """The reply to one request.

    If `code` is OK, `value` is a Node for Get, a Stat or None for Exists, the children's names for
    Children, a ListedChildren for Listing, and a Stat for SetData. For a failed Multi, `value` is
    the index of the operation that failed and `code` its result.

    For FetchOffsets, `value` maps partitions to their stored OffsetAndMetadata; with the code OTHER
    it is the reason, and a retry may succeed. For StoreOffsets it is a NotStored.
    """

    code: Code
    value: Result = None


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


@dataclass(frozen=True, slots=True)
class Listing:
    """List the children with the znode's `cversion`, which tells whether any was re-created."""

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
    """Create a znode. `data` None is ZooKeeper's null; `rights` None means the configured ACL."""

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
    """A transaction: ZooKeeper applies all writes in this order, or none."""

    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class SyncLeader:
    path: str


@dataclass(frozen=True, slots=True)
class Rights:
    """Read the access control list of a znode; only tools send it, members do not.

    The reply's value is a tuple of Right.
    """

    path: str


Request = Get | Exists | Children | Listing | Create | Multi | SyncLeader
Requests = Sequence[Request]
"""Requests that are sent together (pipelined) and answered in order."""

Asked = TypeVar("Asked")
"""The batches of an operation: of any requests, or only of those that read."""
Outcome = TypeVar("Outcome")


def denied(*paths: str) -> AccessDeniedError:
    """Return the error for znodes that ZooKeeper does not allow this client to read."""
    what = "the znode" if len(paths) == 1 else f"{len(paths)} znodes"
    return AccessDeniedError(
        f"ZooKeeper does not allow this client to read {what}",
        where=first_few(paths, 5),
        remedy="authenticate as a user who may read it (zookeeper.auth.*)",
    )


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Read the offsets that Kafka stores for the group."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Store these offsets in Kafka."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]


class NotStored(NamedTuple):
    """The offsets that Kafka did not store, with reasons: denied, or worth a retry."""

    denied: dict[TopicPartition, str]
    unavailable: dict[TopicPartition, str]


WATCH_CREATED, WATCH_DELETED = "CREATED", "DELETED"
"""Types of watch events, with the names of kazoo's `EventType`."""

OffsetRequest = FetchOffsets | StoreOffsets
"""A request to Kafka; it is sent alone and gets one reply."""

MAX_PAYLOAD_BYTES = 1_000_000
"""Maximum number of bytes of a payload; a larger payload is not sent (Code.TOO_LARGE). A server
closes the connection at `jute.maxbuffer`, which is 1 MiB including the frame around the payload."""

MAX_MULTI_WRITES = 1_000
MAX_MULTI_BYTES = 512 * 1024
"""Maximum number of writes and of bytes in one transaction: half of `jute.maxbuffer`, and 8.5 ms of
a server's time. More writes are split into several transactions; each of these is atomic."""


def run_operation(
    operation: Generator[Asked, Sequence[Reply], Outcome], ask: Callable[[Asked], Sequence[Reply]]
) -> Outcome:
    """Run an operation to its end: `ask` sends each batch of requests, and returns its replies.

    Raises what `ask` and the operation raise.
    """
    try:
        batch = next(operation)
        while True:
            batch = operation.send(ask(batch))
    except StopIteration as end:
        result: Outcome = end.value
        return result


def payload_size(write: Write) -> int:
    """Return about how many bytes a write takes in a transaction."""
    data = write.data if isinstance(write, Create | SetData) else b""
    return len(write.path.encode()) + len(data or b"") + 64


Operation = Generator[Requests | OffsetRequest, Sequence[Reply], Result]
