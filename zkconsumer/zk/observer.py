"""Follows a group's members, owners and offsets without joining the group; never writes.

An `Observer` has its own `ZooKeeperSession`. `snapshot` reads the group once. `changes` follows the
group with one-shot watches. After any connection event it reads the whole group again, and reports
the differences from its last report.

A `GroupWatcher` stores the group as last read. The watcher follows `ids/<member>`,
`owners/<topic>/<partition>` and `offsets/<topic>/<partition>`, and ignores znodes with other names.
It misses no change: one request reads a list and sets its watch, so every later change fires the
watch. Owner znodes need no separate watches, because a claim or a release changes the list of the
topic. If the version of a list has grown by more than the number of its changes, a znode was
deleted and re-created between two reads. Then all znodes of the list are read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from enum import Enum, auto
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Self, TypeVar

from kazoo.client import KazooClient

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import MalformedZnodeError, ZooKeeperUnreachableError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_znodes import read_group_znodes
from zkconsumer.protocol.model import JsonObject, Session, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.payloads import OwnerZnode, decode_offset, owner_znode
from zkconsumer.protocol.registrations import Registration, decode_registration
from zkconsumer.protocol.requests import (
    Code,
    Exists,
    Get,
    ListedChildren,
    Listing,
    Node,
    Reply,
    Requests,
    denied,
)
from zkconsumer.zk.session import ClientDeath, ZooKeeperSession

# ---- the group as last read ----------------------------------------------------------------------


# Seconds to wait for one reply; a slower server is treated like a lost connection.
_REPLY_S = 30.0

# Seconds until a client that has failed permanently is replaced, so that a client that fails again
# and again costs little.
_RECREATE_S = 1.0


class GroupPart(Enum):
    """The parts of a group that an observer can follow."""

    MEMBERS = "ids"
    OWNERS = "owners"
    OFFSETS = "offsets"


ALL: frozenset[GroupPart] = frozenset(GroupPart)


_Read = Exists | Get | Listing

T = TypeVar("T")

# A string is the reason why the payload is malformed, or why this client does not have it.
Value = Registration | OwnerZnode | int | str


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The contents of a group's znodes at one read.

    The parts are read one after the other, so they may contradict each other.

    Attributes:
        members: consumer id -> registration, or the reason why it is malformed.
        owners: partition -> owner znode.
        offsets: partition -> next offset to read, or the reason why it is unknown: the znode is
            malformed, or this client may not read it.
    """

    members: Mapping[str, Registration | str] = field(default_factory=dict)
    owners: Mapping[TopicPartition, OwnerZnode] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int | str] = field(default_factory=dict)


class ChangeKind(Enum):
    """The kinds of changes."""

    MEMBER = auto()  # key: consumer id
    OWNER = auto()  # key: partition
    OFFSET = auto()  # key: partition
    CONNECTION = auto()  # key: ""; after: "suspended", "lost" or "connected"
    READ = auto()  # key: ""; the whole group has been read, at the start or after a reconnect


@dataclass(frozen=True, slots=True)
class Change:
    """One change: `before` is None for a new znode, `after` is None for a deleted one."""

    what: ChangeKind
    key: str | TopicPartition
    before: Value | None
    after: Value | None


_LISTS = {ZnodeKind.OWNERS_OF, ZnodeKind.OFFSETS_OF}
_LEAVES = {
    ZnodeKind.MEMBER: ChangeKind.MEMBER,
    ZnodeKind.OWNER: ChangeKind.OWNER,
    ZnodeKind.OFFSET: ChangeKind.OFFSET,
}
# Owner znodes are only created and deleted, never changed. Both change the list above them.
_WATCHED_LEAVES = {ZnodeKind.MEMBER, ZnodeKind.OFFSET}


@dataclass(frozen=True, slots=True)
class _Listing:
    children: frozenset[str] = frozenset()
    version: int = 0  # cversion: grows by one with each created or deleted child


class GroupWatcher:
    """The group as it was last read, and the changes that have not been reported."""

    def __init__(
        self,
        ask: Callable[[Sequence[_Read]], Sequence[Reply]],
        group: str,
        follow: frozenset[GroupPart],
    ) -> None:
        self._ask = ask
        roots = {
            GroupPart.MEMBERS: paths.ids(group),
            GroupPart.OWNERS: paths.owners(group),
            GroupPart.OFFSETS: paths.offsets(group),
        }
        self._roots = {path for part, path in roots.items() if part in follow}
        self._lists: dict[str, _Listing] = {}
        self._values: dict[str, Value] = {}
        # The values that were last reported, and the paths whose values may differ from them. If a
        # lost connection aborts a read, both are kept, so that the next read reports the changes
        # that the aborted read found.
        self._reported: dict[str, Value] = {}
        self._touched: set[str] = set()

    def read_all(self) -> list[Change]:
        """Read the whole group; return the differences from the last report."""
        self._touched.update(self._values)
        self._lists, self._values = {}, {}
        return self.read(self._roots)

    def read(self, dirty: Collection[str]) -> list[Change]:
        """Read the znodes whose watch fired, and new znodes below them; return the changes."""
        lists = [path for path in dirty if self._is_list(path)]
        leaves = {path for path in dirty if paths.locate(path).kind in _LEAVES}
        while lists:
            below = [
                child for path, new in self._list(lists) for child in self._apply_listing(path, new)
            ]
            lists = [path for path in below if self._is_list(path)]
            leaves.update(path for path in below if paths.locate(path).kind in _LEAVES)
        self._get(leaves)
        return self._changes()

    def _is_list(self, path: str) -> bool:
        return path in self._roots or paths.locate(path).kind in _LISTS

    def _apply_listing(self, path: str, new: _Listing | None) -> list[str]:
        """Store a listing, remove deleted znodes, and return the children to read."""
        old = self._lists.get(path, _Listing())
        if new is None:
            self._drop(path)
            return []
        for name in old.children - new.children:
            self._drop(f"{path}/{name}")
        self._lists[path] = new
        to_read = new.children - old.children
        if new.version - old.version != len(old.children ^ new.children):
            to_read = new.children  # a child was deleted and re-created between two reads
        return [f"{path}/{name}" for name in to_read]

    def _drop(self, path: str) -> None:
        listing = self._lists.pop(path, _Listing())
        for name in listing.children:
            self._drop(f"{path}/{name}")
        if self._values.pop(path, None) is not None:
            self._touched.add(path)

    def _list(self, wanted: Collection[str]) -> list[tuple[str, _Listing | None]]:
        """Return the children of each path, None if it does not exist; watch a missing root."""
        found: list[tuple[str, _Listing | None]] = []
        replies = self._ask([Listing(path, watch=True) for path in wanted])
        for path, reply in zip(wanted, replies, strict=True):
            if isinstance(reply.value, ListedChildren):
                found.append((path, _Listing(frozenset(reply.value.names), reply.value.cversion)))
                continue
            appeared = (
                path in self._roots and self._ask([Exists(path, watch=True)])[0].value is not None
            )
            found += self._list([path]) if appeared else [(path, None)]
        return found

    def _get(self, wanted: Collection[str]) -> None:
        kinds = {path: paths.locate(path).kind for path in wanted}
        replies = self._ask(
            [Get(path, watch=kind in _WATCHED_LEAVES) for path, kind in kinds.items()]
        )
        for (path, kind), reply in zip(kinds.items(), replies, strict=True):
            self._touched.add(path)
            if isinstance(reply.value, Node):
                self._values[path] = _decode(kind, path, reply.value)
            elif reply.code is Code.NO_AUTH:
                self._values[path] = denied(path).what
            else:
                self._values.pop(path, None)

    def _changes(self) -> list[Change]:
        changes = []
        for path in sorted(self._touched, key=_order):
            before, after = self._reported.pop(path, None), self._values.get(path)
            if after is not None:
                self._reported[path] = after
            if before != after:
                at = paths.locate(path)
                what = _LEAVES[at.kind]
                key = (
                    at.name if what is ChangeKind.MEMBER else TopicPartition(at.name, at.partition)
                )
                changes.append(Change(what, key, before, after))
        self._touched.clear()
        return changes


def _order(path: str) -> tuple[int, str, int]:
    at = paths.locate(path)
    return at.kind.value, at.name, at.partition


def _decode(kind: ZnodeKind, path: str, node: Node) -> Value:
    data, stat = node.data, node.stat
    try:
        match kind:
            case ZnodeKind.MEMBER:
                return decode_registration(data, where=path)
            case ZnodeKind.OFFSET:
                return decode_offset(data, where=path)
            case _:
                return owner_znode(data, session=stat.owner, czxid=stat.czxid, where=path)
    except MalformedZnodeError as error:
        return error.what


def _may_be_refused(path: str) -> bool:
    """Return whether the group can be followed without this znode: an offset is then unknown.

    Without a registration or an owner znode, an unknown member or owner would look like none.
    """
    return paths.locate(path).kind is ZnodeKind.OFFSET


def _snapshot(nodes: Mapping[str, Node], refused: Iterable[str]) -> GroupSnapshot:
    """Return the values of the znodes, by kind; `refused`: offsets that may not be read."""
    members: dict[str, Registration | str] = {}
    owners: dict[TopicPartition, OwnerZnode] = {}
    offsets: dict[TopicPartition, int | str] = {}
    for path in sorted(nodes, key=_order):
        at = paths.locate(path)
        if at.kind not in _LEAVES:
            continue
        match _decode(at.kind, path, nodes[path]):
            case OwnerZnode() as owner:
                owners[TopicPartition(at.name, at.partition)] = owner
            case Registration() as registration:
                members[at.name] = registration
            case value if at.kind is ZnodeKind.MEMBER:
                members[at.name] = str(value)
            case value:
                offsets[TopicPartition(at.name, at.partition)] = value
    for path in refused:
        at = paths.locate(path)
        offsets[TopicPartition(at.name, at.partition)] = denied(path).what
    return GroupSnapshot(
        MappingProxyType(members), MappingProxyType(owners), MappingProxyType(offsets)
    )


# ---- the observer --------------------------------------------------------------------------------


__all__ = ["ALL", "Change", "ChangeKind", "GroupPart", "GroupSnapshot", "Observer"]


class _ConnectionLost(Exception):
    """The connection was lost before the reply; `on_state` reports the loss and the reconnect."""


class Observer:
    """Follows one group; a context manager. Several threads may call its methods.

    Args:
        connect: servers and chroot, as in `zookeeper.connect`.
        group: a group, which need not exist yet.
        follow: the parts to read; fewer parts need fewer requests.
        timeout_s: the limit for the first connection, in seconds.
        auth: user and password, as ("digest", "user:password").
        config: the source of the session timeout and of the authentication and TLS settings, in
            place of `auth`.

    Raises ConfigError and InvalidNameError. Entering raises the errors of `ZooKeeperSession.start`.
    After a connection loss `changes` waits, and the other methods raise ZooKeeperUnreachableError.
    If ZooKeeper refuses the credential from now on, `changes` raises AccessDeniedError. All methods
    raise it for a znode that this client may not read, except for an offset, which is unknown then.
    """

    def __init__(
        self,
        connect: str,
        group: str,
        *,
        follow: Collection[GroupPart] = ALL,
        timeout_s: float = 6.0,
        auth: tuple[str, str] | None = None,
        config: ConnectionConfig | None = None,
    ) -> None:
        self.group = paths.validate_group_znode(group)
        self._follow = frozenset(follow)
        self._inboxes: list[SimpleQueue[str | None]] = []
        self._settings = _settings(connect, timeout_s, auth, config)
        self._last: Session | None = None
        self._is_connected = False
        self._refusal: ClientDeath | None = None
        self._closing, self._is_closed = threading.Lock(), False
        self._session = ZooKeeperSession(
            self._settings,
            on_state=self._on_state,
            on_watch=lambda kind, path: self._tell(path),
            on_death=self._on_death,
        )

    @property
    def _client(self) -> KazooClient:
        """kazoo's client, which tests disturb."""
        return self._session.client

    def __enter__(self) -> Self:
        self._session.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all running `changes` and the session; may be called more than once."""
        with self._closing:
            self._is_closed = True
        self._end_changes()
        self._session.stop()

    def _end_changes(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)

    def group_exists(self) -> bool:
        """Return whether the group has a znode."""
        reply = self._run(_one(Exists(paths.group(self.group))))
        return reply.value is not None

    def snapshot(self) -> GroupSnapshot:
        """Read all followed parts with pipelined requests."""
        directories = [part.value for part in self._follow]
        found = self._run(read_group_znodes([self.group], directories=directories))
        if self.group not in found:
            return GroupSnapshot()
        group = found[self.group]
        for path, error in group.unreadable.items():
            if not _may_be_refused(path):
                raise error
        return _snapshot(group.nodes, group.unreadable)

    def changes(self) -> Iterator[tuple[float, Change]]:
        """Yield (monotonic seconds of the read, change) for every change, until `close`.

        The first changes report all existing znodes as new, followed by one change of kind
        READ. If a znode changes several times between two reads, only its last value is
        reported. The method waits while ZooKeeper is unreachable. It raises AccessDeniedError if
        ZooKeeper refuses the credential.
        """
        inbox: SimpleQueue[str | None] = SimpleQueue()
        self._inboxes.append(inbox)
        watcher = GroupWatcher(self._ask, self.group, self._follow)
        stale = True
        while True:
            if self._refusal is not None:
                raise self._session.death_error(self._refusal)
            try:
                if stale:
                    found = watcher.read_all()
                    now, stale = time.monotonic(), False
                    yield from ((now, change) for change in found)
                    yield now, Change(ChangeKind.READ, "", None, None)
                dirty, states = _drain(inbox)
                if dirty is None:
                    if self._refusal is None:
                        return
                    continue
                for state in states:
                    yield time.monotonic(), Change(ChangeKind.CONNECTION, "", None, state)
                if states:
                    stale = states[-1] == "connected"
                    continue
                found = watcher.read(dirty)
                now = time.monotonic()
                yield from ((now, change) for change in found)
            except _ConnectionLost:
                stale = self._is_connected

    def _on_state(self, session: Session | None) -> None:
        # kazoo's thread calls this method: a request made here would never be answered. A leading
        # space distinguishes a state from a path.
        was_connected, self._is_connected = self._is_connected, session is not None
        if session is None:
            if was_connected:
                self._tell(" suspended")
            return
        if self._last is not None:
            if session.id != self._last.id:
                self._tell(" lost")
            self._tell(" connected")
        self._last = session

    def _on_death(self, death: ClientDeath) -> None:
        # kazoo's thread calls this method, too, and must not wait.
        if death.refused:
            self._refusal = death
            self._end_changes()
            return
        timer = threading.Timer(_RECREATE_S, self._recreate)
        timer.daemon = True
        timer.start()

    def _recreate(self) -> None:
        with self._closing:  # `close` ends the client that is present then
            if not self._is_closed:
                self._session.recreate()

    def _tell(self, what: str) -> None:
        for inbox in self._inboxes:
            inbox.put(what)

    def _ask(self, batch: Sequence[_Read]) -> Sequence[Reply]:
        """Return the replies; raise _ConnectionLost or AccessDeniedError."""
        answer: SimpleQueue[Sequence[Reply]] = SimpleQueue()
        self._session.submit(batch, answer.put)
        try:
            replies = answer.get(timeout=_REPLY_S)
        except Empty:
            raise _ConnectionLost(f"no reply within {_REPLY_S:g} s") from None
        for request, reply in zip(batch, replies, strict=True):
            if reply.code is Code.NO_AUTH:
                if not _may_be_refused(request.path):
                    raise denied(request.path)
            elif reply.code not in (Code.OK, Code.NO_NODE):
                raise _ConnectionLost(str(reply.value))
        return replies

    def _run(self, operation: Generator[Requests, Sequence[Reply], T]) -> T:
        try:
            return self._session.run(operation, limit_s=_REPLY_S)
        except ZooKeeperUnreachableError as error:
            failures = self._session.failures()
            raise ZooKeeperUnreachableError(
                f"the connection was lost while reading: {failures or error.what}",
                where=self._settings.zookeeper_hosts,
                remedy="try again",
            ) from error


def _one(request: _Read) -> Generator[Requests, Sequence[Reply], Reply]:
    """Raise AccessDeniedError if this client may not read the znode."""
    (reply,) = yield [request]
    if reply.code is Code.NO_AUTH:
        raise denied(request.path)
    return reply


def _settings(
    connect: str,
    timeout_s: float,
    auth: tuple[str, str] | None,
    config: ConnectionConfig | None,
) -> ConnectionConfig:
    """Return an observer's settings.

    They are not a ConsumerConfig, because a session would then compare the credential with the
    group's ACLs.
    """
    known: JsonObject = {}
    if config is not None:
        known = {one.name: getattr(config, one.name) for one in fields(ConnectionConfig)}
    elif auth is not None:
        known["zookeeper_auth_scheme"], known["zookeeper_auth_credential"] = auth
    known |= {"zookeeper_connect": connect, "zookeeper_connection_timeout_s": timeout_s}
    return ConnectionConfig(**known)


def _drain(inbox: SimpleQueue[str | None]) -> tuple[set[str] | None, list[str]]:
    """Wait for items, then return all: (changed paths, states), or (None, ...) after `close`."""
    dirty: set[str] = set()
    states: list[str] = []
    while True:
        item = inbox.get()
        if item is None:
            return None, states
        if item.startswith(" "):
            states.append(item[1:])
        elif item:  # at a session expiry, kazoo calls its watches with an event without a path
            dirty.add(item)
        if inbox.empty():
            return dirty, states
