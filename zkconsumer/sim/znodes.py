"""The znode tree of a simulated ZooKeeper. It computes a write's changes, or why it is refused.

The rules and their order follow ZooKeeper 3.8 (`PrepRequestProcessor`, `DataTree`); `AccessRules`
says what differs in other releases. The contract suite and random operations compare them with real
servers.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from zkconsumer.frozen import dataclass
from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Node, Reply, Stat

READ, WRITE, CREATE, DELETE, ADMIN = _BITS = "read", "write", "create", "delete", "admin"
"""The permissions, in the order of ZooKeeper's bits (`ZooDefs.Perms`)."""
ALL = frozenset(_BITS)

Acl = frozenset[tuple[str, frozenset[str]]]
"""Pairs of an identity (or ANYONE) and the permissions (of ALL) that it has on a znode."""
ANYONE = "anyone"
SUPER = "super"
"""An identity that has all permissions."""
OPEN: Acl = frozenset({(ANYONE, ALL)})

_WORLD = "world:anyone"


def acl_of(rights: Iterable[rq.Right]) -> Acl:
    """Return an access control list whose identities are "scheme:id"."""
    return frozenset(
        (
            ANYONE if identity == _WORLD else identity,
            frozenset(name for at, name in enumerate(_BITS) if bits >> at & 1),
        )
        for identity, bits in rights
    )


def rights_of(acl: Acl) -> tuple[rq.Right, ...]:
    """Return the entries of an access control list, in the order of the identities."""
    return tuple(
        rq.Right(
            _WORLD if who == ANYONE else who, sum(1 << _BITS.index(name) for name in permissions)
        )
        for who, permissions in sorted(acl, key=lambda entry: (entry[0], sorted(entry[1])))
    )


NO_NODE = Reply(Code.NO_NODE, "NoNodeError")
NODE_EXISTS = Reply(Code.NODE_EXISTS, "NodeExistsError")
BAD_VERSION = Reply(Code.BAD_VERSION, "BadVersionError")
NOT_EMPTY = Reply(Code.NOT_EMPTY, "NotEmptyError")
NO_AUTH = Reply(Code.NO_AUTH, "NoAuthError")
NO_CHILDREN = Reply(Code.OTHER, "NoChildrenForEphemeralsError")
BAD_ARGUMENTS = Reply(Code.OTHER, "BadArgumentsError")


class End(Enum):
    """Why a session's ephemeral znodes were deleted."""

    CLOSED = "closed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class CreateWithAcl(rq.Create):
    """A create with its own access control list, by a client that may send an invalid path."""

    acl: Acl = OPEN


@dataclass(frozen=True, slots=True)
class CreateSequential(CreateWithAcl):
    """A create whose path ends in a number that the server appends.

    The number counts the creates below the parent (ZooKeeper: `PrepRequestProcessor`).
    """


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Replaces a znode's access control list."""

    path: str
    acl: Acl


Write = rq.Write | SetAcl
_WITH_ACL = (SetAcl, CreateWithAcl)


class AccessRules(NamedTuple):
    """How the releases of ZooKeeper treat access rights.

    Attributes:
        delete_needs_right: a delete of a missing znode is refused without the right to delete; an
            older server answers that the znode is missing. Since 3.6.0.
        exists_needs_read: `exists` needs the right to read. Since 3.8.3 (ZOOKEEPER-2590).
        event_needs_read: a watch fires only for a client that may read the znode. Since 3.8.4
            (ZOOKEEPER-4799).
    """

    delete_needs_right: bool = True
    exists_needs_read: bool = True
    event_needs_read: bool = True

    @classmethod
    def of(cls, release: str) -> AccessRules:
        """Return the rules of a release, such as `3.4.14`."""
        number = tuple(map(int, release.split(".")))
        return cls(number >= (3, 6), number >= (3, 8, 3), number >= (3, 8, 4))


NEWEST = AccessRules()


class ZnodeChange(NamedTuple):
    """One entry of the log: what one write did to one znode, and in which session.

    The changes of one transaction have the same `zxid`. The end of a session is a transaction too:
    one change for each ephemeral znode, then one change with an empty path and with None as `old`
    and `new`.
    """

    zxid: int
    session: int
    write: Write | End
    path: str
    old: Node | None
    new: Node | None


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_valid_path(path: str) -> bool:
    """Return whether ZooKeeper's `PathUtils.validatePath` accepts the path of a new znode."""
    return path == "/" or (path.startswith("/") and not paths.znode_fault(path[1:]))


Acls = Mapping[str, Acl]
"""The access control lists of the znodes that are not open to anyone; replaced, never changed."""


def allows(acls: Acls, path: str, permission: str, auth: Collection[str]) -> bool:
    """Return whether a client with these identities has this permission on the znode."""
    acl = acls.get(path, OPEN)
    return SUPER in auth or any(
        permission in granted and (who == ANYONE or who in auth) for who, granted in acl
    )


def acls_after(acls: Acls, change: ZnodeChange) -> Acls:
    """Return the access control lists after a change."""
    path = change.path
    if isinstance(change.write, _WITH_ACL):
        return {**acls, path: change.write.acl}
    if acls and change.new is None and path in acls:
        return {other: acl for other, acl in acls.items() if other != path}
    return acls


class Tree:
    """Znodes by path, the sorted names of their children, and the access control lists.

    `cversions` counts the children that were created and deleted below each znode.
    """

    __slots__ = ("acls", "cversions", "names", "nodes", "rules")

    def __init__(self, rules: AccessRules) -> None:
        self.rules = rules
        self.nodes: dict[str, Node] = {"/": Node(b"", Stat(0, 0, 0, 0))}
        self.names: dict[str, tuple[str, ...]] = {}
        self.cversions: dict[str, int] = {}
        self.acls: Acls = {}

    def copy(self) -> Tree:
        other = Tree.__new__(Tree)
        # Every value is immutable, so copies may share them.
        other.nodes = self.nodes.copy()
        other.names = self.names.copy()
        other.cversions = self.cversions.copy()
        other.acls, other.rules = self.acls, self.rules
        return other

    def allows(self, path: str, permission: str, auth: Collection[str]) -> bool:
        return allows(self.acls, path, permission, auth)

    def plan(
        self, write: Write, *, zxid: int, session: int, auth: Collection[str]
    ) -> ZnodeChange | Reply | None:
        """Return the change that `write` would make, None for a check without a change, or the
        refusal.
        """
        match write:
            case rq.Create():
                return self._create(write, zxid, session, auth)
            case rq.Delete():
                return self._delete(write, zxid, session, auth)
        path = write.path
        old = self.nodes.get(path)
        if old is None:
            return NO_NODE
        match write:
            case rq.SetData(_, data, version):
                if self.acls and not self.allows(path, WRITE, auth):
                    return NO_AUTH
                if version not in (-1, old.stat.version):
                    return BAD_VERSION
                czxid, _, before, owner, _ = old.stat
                new = Node(data, Stat(czxid, zxid, before + 1, owner))
                return ZnodeChange(zxid, session, write, path, old, new)
            case rq.Check(_, version):
                if self.acls and not self.allows(path, READ, auth):
                    return NO_AUTH
                return None if version in (-1, old.stat.version) else BAD_VERSION
            case SetAcl():
                if self.acls and not self.allows(path, ADMIN, auth):
                    return NO_AUTH
                return ZnodeChange(zxid, session, write, path, old, old)

    def _create(
        self, write: rq.Create, zxid: int, session: int, auth: Collection[str]
    ) -> ZnodeChange | Reply:
        path = write.path
        parent = parent_of(path)
        above = self.nodes.get(parent)
        if above is None:
            return NO_NODE
        if self.acls and not self.allows(parent, CREATE, auth):
            return NO_AUTH
        if isinstance(write, CreateSequential):
            path = f"{path}{self._creates(parent):010d}"
        if isinstance(write, CreateWithAcl) and not is_valid_path(path):
            return BAD_ARGUMENTS
        if path in self.nodes:
            return NODE_EXISTS
        if above.stat.owner:
            return NO_CHILDREN
        node = Node(write.data, Stat(zxid, zxid, 0, session if write.ephemeral else 0))
        return ZnodeChange(zxid, session, write, path, None, node)

    def _delete(
        self, write: rq.Delete, zxid: int, session: int, auth: Collection[str]
    ) -> ZnodeChange | Reply:
        path = write.path
        if path == "/":
            return BAD_ARGUMENTS
        parent = parent_of(path)
        old = self.nodes.get(path)
        if parent not in self.nodes or (old is None and not self.rules.delete_needs_right):
            return NO_NODE
        if self.acls and not self.allows(parent, DELETE, auth):
            return NO_AUTH
        if old is None:
            return NO_NODE
        if write.version not in (-1, old.stat.version):
            return BAD_VERSION
        if path in self.names:
            return NOT_EMPTY
        return ZnodeChange(zxid, session, write, path, old, None)

    def _creates(self, parent: str) -> int:
        """Return how many children were ever created below a znode."""
        return (self.cversions.get(parent, 0) + len(self.names.get(parent, ()))) // 2

    def apply(self, change: ZnodeChange) -> None:
        """Make a planned change."""
        self._put(change.path, change.old, change.new)
        self._count(change, 1)
        self.acls = acls_after(self.acls, change)

    def revert(self, changes: Sequence[ZnodeChange], acls: Acls) -> None:
        """Undo the last changes; `acls` are the lists before them."""
        for change in reversed(changes):
            self._put(change.path, change.new, change.old)
            self._count(change, -1)
        self.acls = acls

    def _put(self, path: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            del self.nodes[path]
            self._forget_name(path)
            return
        self.nodes[path] = new
        if old is None:
            self._add_name(path)

    def _count(self, change: ZnodeChange, by: int) -> None:
        if change.old is not None and change.new is not None:
            return
        if change.old is None:
            self.cversions.pop(change.path, None)  # a deleted znode keeps its count for `revert`
        parent = parent_of(change.path)
        self.cversions[parent] = self.cversions.get(parent, 0) + by

    def _add_name(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        names = self.names.get(parent or "/", ())
        at = bisect(names, name)
        self.names[parent or "/"] = (*names[:at], name, *names[at:])

    def _forget_name(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        names = self.names[parent or "/"]
        if len(names) == 1:
            del self.names[parent or "/"]
        else:
            at = names.index(name)
            self.names[parent or "/"] = names[:at] + names[at + 1 :]
