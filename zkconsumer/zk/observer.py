"""Follows a group's members, owners and offsets without joining the group; never writes.

An `Observer` has its own ZooKeeper session. `snapshot` reads the group once. `changes` follows the
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

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from queue import SimpleQueue
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from zkconsumer.config.settings import ConnectionConfig, split_connect
from zkconsumer.errors import (
    AccessDeniedError,
    ChrootMissingError,
    MalformedZnodeError,
    ZooKeeperUnreachableError,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.paths import Kind
from zkconsumer.protocol.payloads import OwnerZnode, decode_offset, owner_znode
from zkconsumer.protocol.registrations import Registration, decode_registration
from zkconsumer.zk.credentials import TlsSockets, client_options, tls_context

FromKazoo: TypeAlias = Any
"""An object of kazoo; kazoo has no type annotations."""

# ---- the group as last read ----------------------------------------------------------------------


# Seconds to wait for one reply; a slower server is treated like a lost connection.
_REPLY_S = 30.0


class GroupPart(Enum):
    """The parts of a group that an observer can follow."""

    MEMBERS = "ids"
    OWNERS = "owners"
    OFFSETS = "offsets"


ALL: frozenset[GroupPart] = frozenset(GroupPart)


# A string is the reason why the payload is malformed.
Value = Registration | OwnerZnode | int | str


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The contents of a group's znodes at one read.

    The parts are read one after the other, so they may contradict each other.

    Attributes:
        members: consumer id -> registration, or the reason why it is malformed.
        owners: partition -> owner znode.
        offsets: partition -> next offset to read, or the reason why it is malformed.
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


_LISTS = {Kind.OWNERS_OF, Kind.OFFSETS_OF}
_LEAVES = {
    Kind.MEMBER: ChangeKind.MEMBER,
    Kind.OWNER: ChangeKind.OWNER,
    Kind.OFFSET: ChangeKind.OFFSET,
}
# Owner znodes are only created and deleted, never changed. Both change the list above them.
_WATCHED_LEAVES = {Kind.MEMBER, Kind.OFFSET}


@dataclass(frozen=True, slots=True)
class _Listing:
    children: frozenset[str] = frozenset()
    version: int = 0  # cversion: grows by one with each created or deleted child


class GroupWatcher:
    """The group as it was last read, and the changes that have not been reported."""

    def __init__(
        self,
        client: KazooClient,
        group: str,
        follow: frozenset[GroupPart],
        *,
        watch: Callable[[FromKazoo], object] | None,
    ) -> None:
        self._client = client
        self._watch = watch
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

    def snapshot(self) -> GroupSnapshot:
        """Return all values, by kind."""
        members: dict[str, Registration | str] = {}
        owners: dict[TopicPartition, OwnerZnode] = {}
        offsets: dict[TopicPartition, int | str] = {}
        for path in sorted(self._values, key=_order):
            at, value = paths.locate(path), self._values[path]
            match value:
                case OwnerZnode():
                    owners[TopicPartition(at.name, at.partition)] = value
                case Registration():
                    members[at.name] = value
                case _ if at.kind is Kind.MEMBER:
                    members[at.name] = str(value)
                case _:
                    offsets[TopicPartition(at.name, at.partition)] = value
        return GroupSnapshot(
            MappingProxyType(members), MappingProxyType(owners), MappingProxyType(offsets)
        )

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
        asked = [
            (path, self._client.get_children_async(path, watch=self._watch, include_data=True))
            for path in wanted
        ]
        found: list[tuple[str, _Listing | None]] = []
        for path, reply in asked:
            try:
                children, stat = reply.get(timeout=_REPLY_S)
                found.append((path, _Listing(frozenset(children), stat.cversion)))
            except NoNodeError:
                appeared = (
                    path in self._roots
                    and self._watch is not None
                    and self._client.exists(path, watch=self._watch) is not None
                )
                found += self._list([path]) if appeared else [(path, None)]
        return found

    def _get(self, wanted: Collection[str]) -> None:
        asked = [
            (path, kind, self._client.get_async(path, watch=self._watch_of(kind)))
            for path in wanted
            for kind in (paths.locate(path).kind,)
        ]
        for path, kind, reply in asked:
            self._touched.add(path)
            try:
                self._values[path] = _decode(kind, path, *reply.get(timeout=_REPLY_S))
            except NoNodeError:
                self._values.pop(path, None)

    def _watch_of(self, kind: Kind) -> Callable[[FromKazoo], object] | None:
        return self._watch if kind in _WATCHED_LEAVES else None

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


def _decode(kind: Kind, path: str, data: bytes | None, stat: FromKazoo) -> Value:
    try:
        match kind:
            case Kind.MEMBER:
                return decode_registration(data, where=path)
            case Kind.OFFSET:
                return decode_offset(data, where=path)
            case _:
                return owner_znode(data, session=stat.ephemeralOwner, czxid=stat.czxid, where=path)
    except MalformedZnodeError as error:
        return error.what


# ---- the observer --------------------------------------------------------------------------------


__all__ = ["ALL", "Change", "ChangeKind", "GroupPart", "GroupSnapshot", "Observer"]

# Maximum back-off between attempts to connect, in seconds. kazoo's own back-off grows to a minute;
# with it, an observer would report the recovery too late.
_RECONNECT_MAX_S = 0.5
T = TypeVar("T")


class Observer:
    """Follows one group; a context manager. Several threads may call its methods.

    Args:
        connect: servers and chroot, as in `zookeeper.connect`.
        group: a group, which need not exist yet.
        follow: the parts to read; fewer parts need fewer requests.
        timeout_s: the limit for the first connection and the session timeout, in seconds.
        auth: scheme and credential, such as ("digest", "user:password").
        config: the source of authentication and TLS settings, in place of `auth`.

    Raises ConfigError and InvalidNameError. Entering raises ZooKeeperUnreachableError,
    ChrootMissingError, or ConfigError if TLS is configured and the server's port speaks plain text.
    After a connection loss `changes` waits, and the other methods raise ZooKeeperUnreachableError.
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
        hosts, self._chroot = split_connect(connect)
        self._hosts = hosts
        self.group = paths.validate_group(group)
        self._follow = frozenset(follow)
        self._timeout_s = timeout_s
        self._inboxes: list[SimpleQueue[str | None]] = []
        self._client = KazooClient(
            hosts + self._chroot,
            timeout=timeout_s,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": _RECONNECT_MAX_S},
            **(client_options(config) if config else {"auth_data": [auth] if auth else None}),
        )
        context = tls_context(config) if config else None
        self._tls = sockets = TlsSockets(context) if context else None
        if sockets:
            handler = cast(FromKazoo, self._client.handler)
            handler.create_connection = lambda address, *, timeout=timeout_s, **more: sockets.open(
                address, hostname=more.get("hostname"), timeout=timeout
            )

    def __enter__(self) -> Self:
        # `start()` is not used, because it prints a warning about a missing chroot.
        # ChrootMissingError reports the missing chroot.
        self._client.start_async().wait(self._timeout_s)
        if not self._client.connected:
            self.close()
            if self._tls:
                self._tls.refuse_plain_port()
            fault = f"; TLS: {self._tls.fault}" if self._tls and self._tls.fault else ""
            raise ZooKeeperUnreachableError(
                f"no answer from ZooKeeper within {self._timeout_s:g} s{fault}",
                where=self._hosts,
                remedy="check the addresses and that the servers are up",
            )
        self._client.add_listener(self._on_state)
        if self._chroot and self._read(lambda: self._client.exists("/")) is None:
            self.close()
            raise ChrootMissingError(
                "the chroot does not exist",
                where=self._chroot,
                remedy="correct it: an observer never creates it",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all running `changes` and the session; may be called more than once."""
        for inbox in self._inboxes:
            inbox.put(None)
        self._client.stop()
        self._client.close()

    def group_exists(self) -> bool:
        """Return whether the group has a znode."""
        path = f"{paths.CONSUMERS}/{self.group}"
        return self._read(lambda: self._client.exists(path)) is not None

    def count_owners(self, topic: str) -> int:
        """Return how many partitions of a topic have an owner znode, with one small read."""
        path = paths.owners_of(self.group, topic)
        stat = self._read(lambda: self._client.exists(path))
        return 0 if stat is None else int(stat.numChildren)

    def snapshot(self) -> GroupSnapshot:
        """Read all followed parts with pipelined requests."""
        watcher = GroupWatcher(self._client, self.group, self._follow, watch=None)
        self._read(watcher.read_all)
        return watcher.snapshot()

    def changes(self) -> Iterator[tuple[float, Change]]:
        """Yield (monotonic seconds of the read, change) for every change, until `close`.

        The first changes report all existing znodes as new, followed by one change of kind
        READ. If a znode changes several times between two reads, only its last value is
        reported. The method waits while ZooKeeper is unreachable.
        """
        inbox: SimpleQueue[str | None] = SimpleQueue()
        self._inboxes.append(inbox)
        watcher = GroupWatcher(
            self._client, self.group, self._follow, watch=lambda event: inbox.put(event.path or "")
        )
        stale = True
        while True:
            try:
                if stale:
                    found = watcher.read_all()
                    now, stale = time.monotonic(), False
                    yield from ((now, change) for change in found)
                    yield now, Change(ChangeKind.READ, "", None, None)
                dirty, states = _drain(inbox)
                if dirty is None:
                    return
                for state in states:
                    yield time.monotonic(), Change(ChangeKind.CONNECTION, "", None, state)
                if states:
                    stale = states[-1] == "connected"
                    continue
                found = watcher.read(dirty)
                now = time.monotonic()
                yield from ((now, change) for change in found)
            except NoAuthError as error:
                raise self._denied(error) from error
            except (KazooException, KazooTimeoutError):
                # The connection was lost during the read. The listener reports the loss and the
                # reconnect.
                stale = self._client.connected

    def _on_state(self, state: KazooState) -> None:
        # A ZooKeeper call in a listener would never return, so this method only enqueues. A leading
        # space distinguishes a state from a path.
        for inbox in self._inboxes:
            inbox.put(f" {state.lower()}")

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except NoAuthError as error:
            raise self._denied(error) from error
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperUnreachableError(
                f"the connection was lost while reading: {type(error).__name__}",
                where=self._hosts,
                remedy="try again",
            ) from error

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(
            "ZooKeeper does not allow this client to read the group",
            where=f"{paths.CONSUMERS}/{self.group}",
            remedy="authenticate as a user who may read it",
        )


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
