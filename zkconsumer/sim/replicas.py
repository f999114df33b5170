"""One server of a simulated ZooKeeper: what it has applied of the log, its connections' watches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from zkconsumer.sim.znodes import (
    NO_AUTH,
    NO_NODE,
    READ,
    Acls,
    Change,
    SetAcl,
    Tree,
    acls_after,
    allows,
    parent_of,
)
from zkconsumer.zk import requests as rq
from zkconsumer.zk.requests import Code, Reply

CREATED, DELETED, CHANGED, CHILD = "CREATED", "DELETED", "CHANGED", "CHILD"
"""The kinds of watch events, as kazoo names them (`EventType`)."""

Read = rq.Get | rq.Exists | rq.Children
READS = (rq.Get, rq.Exists, rq.Children)
_ABSENT = Reply(Code.OK, None)
_Watches = dict[str, set[int]]


@dataclass(slots=True)
class Connection:
    """A session's connection to one replica; its watches and events end with it."""

    replica: int
    auth: frozenset[str]
    events: list[tuple[str, str]] = field(default_factory=list)
    is_stuck: bool = False
    """A request waits for the leader: every later one of this connection waits behind it."""

    def copy(self) -> Connection:
        return Connection(self.replica, self.auth, self.events.copy(), self.is_stuck)


class Replica:
    """Serves reads from a prefix of the log.

    While it is up to date its tree is the leader's own; one that lags or is cut off has its own.
    """

    __slots__ = (
        "acls", "applied", "child", "data", "is_cut", "lag", "leads_until", "number", "tree", "zxid"
    )

    def __init__(self, number: int, tree: Tree) -> None:
        self.number = number
        self.tree = tree
        self.acls: Acls = {}  # the tree's own, which a transaction under way may be ahead of
        self.applied, self.zxid = 0, 0  # changes of the log, and the last one's zxid
        self.lag, self.is_cut = 0, False
        # A deposed leader answers `sync` until then: see `Ensemble.depose`.
        self.leads_until = float("-inf")
        # One-shot watches: sessions by path. `get` and `exists` set data watches.
        self.data: _Watches = {}
        self.child: _Watches = {}

    def copy(self, tree: Tree) -> Replica:
        other = Replica(self.number, tree)
        other.acls, other.applied, other.zxid = self.acls, self.applied, self.zxid
        other.lag, other.is_cut, other.leads_until = self.lag, self.is_cut, self.leads_until
        other.data = {path: who.copy() for path, who in self.data.items()}
        other.child = {path: who.copy() for path, who in self.child.items()}
        return other

    def key(self) -> Hashable:
        """Its state without its place in the log."""
        watches = [
            frozenset((path, frozenset(who)) for path, who in table.items())
            for table in (self.data, self.child)
        ]
        return (self.lag, self.is_cut, self.leads_until, *watches)

    def read(self, request: Read, session: int, auth: frozenset[str]) -> Reply:
        """Answer a read, and set its watch unless it is refused."""
        path, tree = request.path, self.tree
        node = tree.nodes.get(path)
        is_exists = isinstance(request, rq.Exists)
        if node is None:
            if not is_exists:
                return NO_NODE
        elif self.acls and not allows(self.acls, path, READ, auth):
            return NO_AUTH
        if isinstance(request, rq.Children):
            if request.watch:
                self.child.setdefault(path, set()).add(session)
            return Reply(Code.OK, tree.names.get(path, ()))
        if request.watch:
            self.data.setdefault(path, set()).add(session)
        if node is None:
            return _ABSENT
        return Reply(Code.OK, node.stat if is_exists else node)

    def forget(self, session: int) -> None:
        """Drop the watches of a connection that ended."""
        self.data = _without(self.data, session)
        self.child = _without(self.child, session)

    def fire(self, change: Change, connections: Mapping[int, Connection]) -> None:
        """Notify the watchers of a change, in the order of the server's `DataTree`.

        A watch ends with its event also where its connection may not read the znode, and so is not
        told (from 3.8.4 on).
        """
        before, self.acls = self.acls, acls_after(self.acls, change)
        path, old, new = change.path, change.old, change.new
        if new is None:
            # Whoever watches the node both ways is told once.
            watchers = self.data.pop(path, set()) | self.child.pop(path, set())
            self._tell(watchers, DELETED, path, before, connections)
        elif isinstance(change.write, SetAcl):
            return
        elif path in self.data:
            kind = CREATED if old is None else CHANGED
            self._tell(self.data.pop(path), kind, path, self.acls, connections)
        if self.child and (old is None or new is None):
            parent = parent_of(path)
            self._tell(self.child.pop(parent, ()), CHILD, parent, self.acls, connections)

    @staticmethod
    def _tell(
        watchers: Iterable[int],
        kind: str,
        path: str,
        acls: Acls,
        connections: Mapping[int, Connection],
    ) -> None:
        for session in watchers:
            connection = connections[session]
            if not acls or allows(acls, path, READ, connection.auth):
                connection.events.append((kind, path))


def _without(watches: _Watches, session: int) -> _Watches:
    return {path: rest for path, who in watches.items() if (rest := who - {session})}
