"""The servers of a simulated ZooKeeper: one log, replicas, watches and faults."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Self

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Node, Reply
from zkconsumer.sim.znodes import (
    ADMIN,
    NO_AUTH,
    NO_NODE,
    OPEN,
    READ,
    AccessRules,
    Acls,
    SetAcl,
    Tree,
    ZnodeChange,
    acls_after,
    allows,
    parent_of,
    rights_of,
)

# ---- replicas ------------------------------------------------------------------------------------


CREATED, DELETED, CHANGED, CHILD = "CREATED", "DELETED", "CHANGED", "CHILD"
"""The kinds of watch events, as kazoo names them (`EventType`)."""


class WatchKind(Enum):
    """`get` and `exists` set data watches, and the reads of children set child watches."""

    DATA = "data"
    CHILD = "child"


Read = rq.Get | rq.Exists | rq.Children | rq.Listing | rq.Rights
READS = (rq.Get, rq.Exists, rq.Children, rq.Listing, rq.Rights)
_ABSENT = Reply(Code.OK, None)
_Watches = dict[str, set[int]]


@dataclass(slots=True)
class Connection:
    """A session's connection to one replica. Watches and events end with the connection."""

    replica: int
    auth: frozenset[str]
    events: list[tuple[str, str]] = field(default_factory=list)
    is_stuck: bool = False
    """A request waits for the leader; every later request of this connection waits behind it."""

    def copy(self) -> Connection:
        return Connection(self.replica, self.auth, self.events.copy(), self.is_stuck)


class Replica:
    """Serves reads from a prefix of the log.

    An up-to-date replica shares the leader's tree. A replica that lags or is cut off has its own
    tree.
    """

    __slots__ = (
        "acls",
        "applied",
        "child",
        "data",
        "is_cut",
        "lag",
        "leads_until",
        "number",
        "tree",
        "zxid",
    )

    def __init__(self, number: int, tree: Tree) -> None:
        self.number = number
        self.tree = tree
        self.acls: Acls = {}  # the access control lists before the running transaction
        self.applied, self.zxid = 0, 0  # number of applied changes, and the last zxid
        self.lag, self.is_cut = 0, False
        # A deposed leader answers `sync` until this time: see `Ensemble.depose`.
        self.leads_until = float("-inf")
        # One-shot watches: sessions by path.
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
        """Return the replica's state as a value, without its position in the log."""
        watches = [
            frozenset((path, frozenset(who)) for path, who in table.items())
            for table in (self.data, self.child)
        ]
        return (self.lag, self.is_cut, self.leads_until, *watches)

    def read(self, request: Read, session: int, auth: frozenset[str]) -> Reply:
        """Answer a read, and set its watch unless it is refused."""
        path, tree = request.path, self.tree
        node = tree.nodes.get(path)
        if isinstance(request, rq.Rights):
            return NO_NODE if node is None else self._rights(path, auth)
        is_exists = isinstance(request, rq.Exists)
        if node is None:
            if not is_exists:
                return NO_NODE
        elif (
            self.acls
            and not allows(self.acls, path, READ, auth)
            and (tree.rules.exists_needs_read or not is_exists)
        ):
            return NO_AUTH
        if isinstance(request, rq.Children | rq.Listing):
            if request.watch:
                self.child.setdefault(path, set()).add(session)
            names = tree.names.get(path, ())
            if isinstance(request, rq.Listing):
                return Reply(Code.OK, rq.ListedChildren(names, tree.cversions.get(path, 0)))
            return Reply(Code.OK, names)
        if request.watch:
            self.data.setdefault(path, set()).add(session)
        if node is None:
            return _ABSENT
        return Reply(Code.OK, node.stat if is_exists else node)

    def _rights(self, path: str, auth: frozenset[str]) -> Reply:
        """Answer a read of the access control list, which needs the right to read or to administer
        the znode.
        """
        if self.acls and not any(allows(self.acls, path, one, auth) for one in (READ, ADMIN)):
            return NO_AUTH
        return Reply(Code.OK, rights_of(self.acls.get(path, OPEN)))

    def set_watches(
        self,
        session: int,
        connection: Connection,
        *,
        seen: int,
        changed_below: Collection[str],
        data: Iterable[str],
        absent: Iterable[str],
        children: Iterable[str],
    ) -> None:
        """Set watches again, and send the events of the changes after `seen` (ZooKeeper:
        `DataTree.setWatches`).

        Args:
            seen: the last zxid that the client has seen.
            changed_below: the znodes of which a child was created or deleted after `seen`.
            data: existing znodes, whose payloads are watched.
            absent: znodes that did not exist, and that `exists` watches.
            children: znodes whose children are watched.
        """
        nodes, events = self.tree.nodes, connection.events
        for path in data:
            if path not in nodes:
                events.append((DELETED, path))
            elif nodes[path].stat.mzxid > seen:
                events.append((CHANGED, path))
            else:
                self.data.setdefault(path, set()).add(session)
        for path in absent:
            if path in nodes:
                events.append((CREATED, path))
            else:
                self.data.setdefault(path, set()).add(session)
        for path in children:
            if path not in nodes:
                events.append((DELETED, path))
            elif path in changed_below:
                events.append((CHILD, path))
            else:
                self.child.setdefault(path, set()).add(session)

    def watches(self, session: int, path: str) -> frozenset[WatchKind]:
        """Return the kinds of watch that a session has at a path."""
        tables = {WatchKind.DATA: self.data, WatchKind.CHILD: self.child}
        return frozenset(kind for kind, table in tables.items() if session in table.get(path, ()))

    def remove_watches(self, session: int, path: str, kinds: Collection[WatchKind]) -> None:
        """Remove a session's watches of these kinds at a path."""
        for kind, table in ((WatchKind.DATA, self.data), (WatchKind.CHILD, self.child)):
            if kind in kinds and path in table:
                table[path].discard(session)
                if not table[path]:
                    del table[path]

    def forget(self, session: int) -> None:
        """Drop the watches of a connection that ended."""
        self.data = _without(self.data, session)
        self.child = _without(self.child, session)

    def fire(self, change: ZnodeChange, connections: Mapping[int, Connection]) -> None:
        """Notify the watchers of a change, in the order of the server's `DataTree`.

        A change ends the watch even if the connection may not read the znode and so gets no event
        (3.8.4 and later).
        """
        before, self.acls = self.acls, acls_after(self.acls, change)
        path, old, new = change.path, change.old, change.new
        if new is None:
            # A connection with both kinds of watch gets one event.
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

    def _tell(
        self,
        watchers: Iterable[int],
        kind: str,
        path: str,
        acls: Acls,
        connections: Mapping[int, Connection],
    ) -> None:
        tells_all = not acls or not self.tree.rules.event_needs_read
        for session in watchers:
            connection = connections[session]
            if tells_all or allows(acls, path, READ, connection.auth):
                connection.events.append((kind, path))


def _without(watches: _Watches, session: int) -> _Watches:
    return {path: rest for path, who in watches.items() if (rest := who - {session})}


# ---- the ensemble --------------------------------------------------------------------------------


class Ensemble:
    """A leader's log and tree, the replicas, and the connections to them.

    `history` is the log: all changes, in the order in which they were made.
    """

    def __init__(self, *, replicas: int, rules: AccessRules) -> None:
        self._leader = Tree(rules)
        self._replicas = [Replica(number, self._leader) for number in range(replicas)]
        self._connections: dict[int, Connection] = {}
        self._zxid = 0
        self._has_quorum = True
        self._backup = Tree(rules), 0
        self.history: list[ZnodeChange] = []

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All znodes of the leader, by path."""
        return MappingProxyType(self._leader.nodes)

    def cversion(self, path: str) -> int:
        """Return how many children of a znode were created and deleted on the leader."""
        return self._leader.cversions.get(path, 0)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of a znode's children on the leader, sorted."""
        return self._leader.names.get(path, ())

    def applied(self, replica: int) -> int:
        """Return the zxid of the last transaction that a replica has applied."""
        return self._replicas[replica].zxid

    # ---- connections ----------------------------------------------------------------------------

    def disconnect(self, session: int) -> None:
        """End a connection and its watches; the session lives until its timeout."""
        connection = self._connections.pop(session, None)
        if connection is not None:
            self._replicas[connection.replica].forget(session)

    def is_connected(self, session: int) -> bool:
        """Return whether the session has a connection; an ended session has none."""
        return session in self._connections

    def has_news(self, session: int) -> bool:
        """Return whether events wait for this session's connection, or the connection has ended."""
        connection = self._connections.get(session)
        return connection is None or bool(connection.events)

    def take_events(self, session: int) -> list[tuple[str, str]]:
        """Return the watch events (kind, path) sent to this session's connection since the last
        call.

        A client gets these events before the reply to any later request.
        """
        connection = self._connections.get(session)
        if connection is None or not connection.events:
            return []
        events, connection.events = connection.events, []
        return events

    def authenticate(self, session: int, identity: str) -> None:
        """Add an identity ("scheme:id") to those of a session's connection."""
        connection = self._connections.get(session)
        if connection is not None:
            connection.auth |= {identity}

    def set_watches(
        self,
        session: int,
        *,
        seen: int,
        data: Iterable[str] = (),
        absent: Iterable[str] = (),
        children: Iterable[str] = (),
    ) -> None:
        """Set a session's watches again on its new connection; see `Replica.set_watches`."""
        connection = self._connections.get(session)
        if connection is None or connection.is_stuck:
            return
        replica = self._replicas[connection.replica]
        changed_below: set[str] = set()
        for at in range(replica.applied - 1, -1, -1):
            change = self.history[at]
            if change.zxid <= seen:
                break
            if change.old is None or change.new is None:
                changed_below.add(parent_of(change.path))
        replica.set_watches(
            session,
            connection,
            seen=seen,
            changed_below=changed_below,
            data=data,
            absent=absent,
            children=children,
        )

    def watches(self, session: int, path: str) -> frozenset[WatchKind]:
        """Return the kinds of watch that a session's connection has at a path."""
        connection = self._connections.get(session)
        if connection is None:
            return frozenset()
        return self._replicas[connection.replica].watches(session, path)

    def remove_watches(self, session: int, path: str, kinds: Collection[WatchKind]) -> None:
        """Remove the watches of these kinds that a session's connection has at a path."""
        connection = self._connections.get(session)
        if connection is not None:
            self._replicas[connection.replica].remove_watches(session, path, kinds)

    def _reaches_leader(self, connection: Connection) -> bool:
        is_cut = self._replicas[connection.replica].is_cut
        return self._has_quorum and not is_cut and not connection.is_stuck

    # ---- the log --------------------------------------------------------------------------------

    def _commit(self, changes: list[ZnodeChange]) -> None:
        """Append a transaction to the log; the leader's tree already has its changes."""
        self._zxid += 1
        self.history += changes
        for replica in self._replicas:
            self._follow(replica)

    def _follow(self, replica: Replica) -> None:
        """Apply all changes, except those that a lag or a cut holds back."""
        if not replica.is_cut:
            self._apply_until(replica, self._zxid - replica.lag)

    def _catch_up(self, replica: Replica) -> None:
        """Apply the whole log, because a client of the replica has got a reply from the leader."""
        self._apply_until(replica, self._zxid)

    def _apply_until(self, replica: Replica, zxid: int) -> None:
        """Apply whole transactions up to this zxid."""
        if zxid <= replica.zxid:
            return
        has_own_tree = replica.tree is not self._leader
        for change in self._pending(replica):
            if change.zxid > zxid:
                break
            replica.applied += 1
            if not change.path:
                self._end_connection(change.session, replica)
                continue
            if has_own_tree:
                replica.tree.apply(change)
            replica.fire(change, self._connections)
        replica.zxid = zxid

    def _pending(self, replica: Replica) -> Iterator[ZnodeChange]:
        """Return the part of the log that the replica has not applied."""
        log = self.history
        return (log[at] for at in range(replica.applied, len(log)))

    def _end_connection(self, session: int, replica: Replica) -> None:
        connection = self._connections.get(session)
        if connection is not None and connection.replica == replica.number:
            self.disconnect(session)

    # ---- faults ---------------------------------------------------------------------------------

    def set_lag(self, replica: int, entries: int) -> None:
        """Keep the replica this many transactions behind the leader.

        A write or sync by one of the replica's clients brings the replica up to date, because it
        applies the log in order. Afterwards the replica lags again.
        """
        server = self._replicas[replica]
        self._fork(server)
        server.lag = entries
        self._rejoin(server)

    def catch_up(self, replica: int) -> None:
        """Apply the whole log at the replica, and end its lag."""
        self.set_lag(replica, 0)

    def cut_off(self, replica: int) -> None:
        """Separate a replica from the leader; its clients stay connected and read its old state."""
        server = self._replicas[replica]
        self._fork(server)
        server.is_cut = True

    def depose(self, replica: int, *, leads_until: float) -> None:
        """Depose a leader: cut it off from its quorum. It does not notice this at once.

        The other servers have elected another leader, which writes and expires sessions. The
        deposed leader still answers reads and `sync` until `leads_until`: ZooKeeper answers `sync`
        without asking the quorum, and a leader notices the loss of its quorum after `syncLimit`
        ticks without a packet from its followers (`Leader.lead`).
        """
        self.cut_off(replica)
        self._replicas[replica].leads_until = leads_until

    def heal(self, replica: int) -> None:
        """Let the replica follow the leader again; connections that waited for the leader end."""
        server = self._replicas[replica]
        server.is_cut, server.leads_until = False, float("-inf")
        self._drop_stuck()
        self._rejoin(server)

    def lose_quorum(self) -> None:
        """Allow no writes, syncs, new connections or session expiries; reads still work.

        Servers drop their clients soon afterwards; the caller does that with `disconnect`.
        """
        self._has_quorum = False

    def regain_quorum(self) -> None:
        """Elect a leader; connections that waited for a leader end."""
        self._has_quorum = True
        self._drop_stuck()

    def _restart_servers(self) -> None:
        """Stop and start all servers: every connection and every fault ends."""
        for session in list(self._connections):
            self.disconnect(session)
        self._has_quorum = True
        for replica in self._replicas:
            replica.is_cut, replica.lag = False, 0
            self._rejoin(replica)

    def back_up(self) -> None:
        """Keep a copy of the data, for `_restore`."""
        self._backup = self._leader.copy(), self._zxid

    def _restore(self) -> None:
        """Stop all servers, and start them with the data of the backup.

        The zxids continue at the backup's, so a transaction may get the zxid of a lost one.
        """
        self._restart_servers()
        tree, self._zxid = self._backup
        self._leader = tree.copy()
        for replica in self._replicas:
            replica.tree, replica.acls = self._leader, self._leader.acls
            replica.applied, replica.zxid = len(self.history), self._zxid

    def _fork(self, replica: Replica) -> None:
        if replica.tree is self._leader:
            replica.tree = self._leader.copy()

    def _rejoin(self, replica: Replica) -> None:
        self._follow(replica)
        if not replica.is_cut and not replica.lag:
            replica.tree = self._leader

    def _drop_stuck(self) -> None:
        for session, connection in list(self._connections.items()):
            if connection.is_stuck and not self._replicas[connection.replica].is_cut:
                self.disconnect(session)

    # ---- states as values -----------------------------------------------------------------------

    def copy(self) -> Self:
        """Return a second ensemble in the same state, which continues independently."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._leader = self._leader.copy()
        other._replicas = [
            it.copy(other._leader if it.tree is self._leader else it.tree.copy())
            for it in self._replicas
        ]
        other._connections = {number: it.copy() for number, it in self._connections.items()}
        other.history = self.history.copy()
        return other

    def zxids(self) -> set[int]:
        """Return the zxids of all znodes and pending changes, for comparing this state with
        others."""
        nodes = [*self._leader.nodes.values()]
        found = set()
        for replica in self._replicas:
            for change in self._pending(replica):
                found.add(change.zxid)
                nodes += [node for node in (change.old, change.new) if node is not None]
        for node in nodes:
            found.add(node.stat.czxid)
            found.add(node.stat.mzxid)
        return found

    def _servers_key(self, ranks: Mapping[int, int]) -> Hashable:
        """Return leader, replicas and connections as a value, with zxids by rank and without the
        history.
        """

        def of(node: Node | None) -> Hashable:
            if node is None:
                return None
            data, (czxid, mzxid, version, owner, _) = node
            return data, ranks[czxid], ranks[mzxid], version, owner

        behind = tuple(
            tuple(
                (ranks[zxid], session, write, path, of(old), of(new))
                for zxid, session, write, path, old, new in self._pending(replica)
            )
            for replica in self._replicas
        )
        return (
            frozenset((path, of(node)) for path, node in self._leader.nodes.items()),
            frozenset(self._leader.acls.items()),
            tuple(replica.key() for replica in self._replicas),
            behind,
            frozenset(
                (number, it.replica, it.auth, tuple(it.events), it.is_stuck)
                for number, it in self._connections.items()
            ),
            self._has_quorum,
        )
