"""A ZooKeeper ensemble in memory: passive, deterministic, and on the caller's clock.

The caller passes the time to every call that needs it. Nothing here waits, draws random numbers or
starts threads. The caller also decides when replies and events arrive, and which are lost. A
contract suite and random operations compare this module with a real server.

Simplifications: There is one log and no election. A write is committed or was never made; for a
write with an unknown result the caller drops the reply. Session timeouts are not negotiated. Only
successful transactions take a zxid, so zxids have the order of real zxids but other values.
Children are listed in the order of their names.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Any, Self

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Reply, Stat
from zkconsumer.sim.ensemble import READS, Connection, Ensemble
from zkconsumer.sim.znodes import (
    ALL,
    ANYONE,
    NEWEST,
    OPEN,
    SUPER,
    AccessRules,
    CreateSequential,
    CreateWithAcl,
    End,
    SetAcl,
    Write,
    ZnodeChange,
)

Request = rq.Request | rq.Rights | Write

# ---- sizes of requests ---------------------------------------------------------------------------


MAX_REQUEST_BYTES = 0xFFFFF
"""The default of jute.maxbuffer, in bytes: a server drops a connection that sends a larger request.
"""

_HEADER_BYTES, _MULTI_HEADER_BYTES = 8, 9
_BODY_BYTES: dict[type, int] = {
    rq.Create: 39,  # with the access control list that is open to anyone
    CreateWithAcl: 39,
    CreateSequential: 39,
    rq.SetData: 12,
    rq.Delete: 8,
    rq.Check: 8,
    SetAcl: 31,
    rq.SyncLeader: 4,
}
"""Bytes of a request on the wire besides its path and data."""
_WITH_DATA = (rq.Create, rq.SetData)


def is_too_large(request: Request) -> bool:
    """Return whether the server drops the connection that sends this request."""
    writes = request.writes if isinstance(request, rq.Multi) else (request,)
    # A character takes at most four bytes, so few requests need the exact size.
    about = 64
    for write in writes:
        about += 64 + 4 * len(write.path)
        if isinstance(write, _WITH_DATA):
            about += len(write.data or b"")
    return about > MAX_REQUEST_BYTES and _size(request) > MAX_REQUEST_BYTES


def _size(request: Request) -> int:
    """Return the bytes of a request on the wire."""
    if isinstance(request, rq.Multi):
        parts = sum(_part(write) + _MULTI_HEADER_BYTES for write in request.writes)
        return _HEADER_BYTES + parts + _MULTI_HEADER_BYTES
    return _HEADER_BYTES + _part(request)


def _part(request: Any) -> int:  # Any: a request or a write, except Multi
    data: bytes | None = getattr(request, "data", b"")
    return _BODY_BYTES[type(request)] + len(request.path.encode()) + len(data or b"")


# ---- sessions and requests -----------------------------------------------------------------------


BROKEN = Reply(Code.BROKEN, "ConnectionLoss")
TOO_LARGE = Reply(Code.TOO_LARGE)


class NotConnected(Exception):
    """A connection failed; the client tries again, at this server or another."""


class ReplicaBehind(NotConnected):
    """The replica has not applied a transaction that the client has seen; a real server closes the
    connection.
    """


class Unreachable(NotConnected):
    """The replica cannot ask the leader about the session, so the client's connection attempt times
    out.
    """


@dataclass(slots=True)
class Session:
    """A session as the leader knows it."""

    timeout_s: float
    heard_at: float
    seen: int
    """The zxid of the last reply that the client got."""

    def expires_at(self, tick_s: float) -> float:
        """Return the first tick after the timeout, as the server's `ExpiryQueue` rounds."""
        return (floor((self.heard_at + self.timeout_s) / tick_s) + 1) * tick_s


class SimZooKeeper(Ensemble):
    """The ensemble with its sessions; `connect` returns session numbers, which count upwards."""

    def __init__(
        self,
        *,
        replicas: int = 1,
        tick_s: float = 0.1,
        rules: AccessRules = NEWEST,
        first_session: int = 1,
    ) -> None:
        """Create an ensemble.

        Args:
            replicas: number of servers that clients connect to, numbered from 0. All follow a
                separate leader.
            tick_s: sessions expire at multiples of this time, in seconds.
            rules: how the release treats access rights.
            first_session: the number of the first session.
        """
        super().__init__(replicas=replicas, rules=rules)
        self._tick_s = tick_s
        self._sessions: dict[int, Session] = {}
        # The sessions that `lose_data` has lost, with the zxid that each client has seen.
        self._lost: dict[int, int] = {}
        self._next_session = first_session
        self._must_restart_timers = False
        self._first_expiry = 0.0  # a restarted timer never ends earlier than before

    # ---- sessions -------------------------------------------------------------------------------

    @property
    def sessions(self) -> tuple[int, ...]:
        """The live sessions, as the leader knows them."""
        return tuple(self._sessions)

    def zxid(self, session: int) -> int:
        """Return the zxid in the last reply to a session; 0 if the session has ended. See
        `connect`.
        """
        known = self._sessions.get(session)
        return known.seen if known else 0

    def connect(
        self,
        *,
        now: float,
        timeout_s: float,
        replica: int = 0,
        session: int = 0,
        auth: frozenset[str] = frozenset(),
        seen: int | None = None,
    ) -> int | None:
        """Open a session (`session` 0), or connect a live session, at a replica.

        The call ends an older connection of the session.

        Args:
            auth: the identities of this connection.
            seen: the zxid of the last reply that reached the client; `zxid` returned it when the
                reply was made. None means that all replies arrived.

        Returns:
            The session's number; None if that session has expired.

        Raises:
            ReplicaBehind: the replica lags behind what the client has seen.
            Unreachable: the replica is cut off from the leader, or there is no quorum.
        """
        server = self._replicas[replica]
        known = self._sessions.get(session)
        if self._lost.get(session, 0) > server.zxid:
            raise ReplicaBehind
        if known is not None:
            if seen is not None:
                known.seen = seen
            if known.seen > server.zxid:
                raise ReplicaBehind
        if server.is_cut or not self._has_quorum:
            raise Unreachable
        if session:
            if known is None:
                return None
            self.disconnect(session)
            known.heard_at = now
        else:
            session = self._next_session
            self._next_session += 1
            # A new session is a transaction: its replica has applied all that came before.
            self._catch_up(server)
            self._sessions[session] = Session(timeout_s, now, 0)
            self._first_expiry = 0.0
        self._connections[session] = Connection(replica, auth)
        return session

    def close(self, session: int, now: float) -> bool:
        """End a session cleanly, with its ephemeral znodes.

        Without a connection, another client takes the session over at the leader and ends it.

        Returns:
            Whether the session ended; if not, it ends by its timeout.
        """
        connection = self._connections.get(session)
        if connection is not None and not self._reaches_leader(connection):
            self.disconnect(session)
            return False
        if not self._has_quorum:
            return False
        self._end(session, End.CLOSED)
        if connection is not None:
            self._catch_up(self._replicas[connection.replica])
        return True

    def expire(self, session: int) -> None:
        """Let the leader expire a session now; without a quorum nothing happens."""
        if self._has_quorum:
            self._end(session, End.EXPIRED)

    def _end(self, session: int, end: End) -> None:
        if self._sessions.pop(session, None) is None:
            return
        zxid, nodes = self._zxid + 1, self._leader.nodes
        mine = sorted(path for path, node in nodes.items() if node.stat.owner == session)
        changes = [ZnodeChange(zxid, session, end, path, nodes[path], None) for path in mine]
        for change in changes:
            self._leader.apply(change)
        self._commit([*changes, ZnodeChange(zxid, session, end, "", None, None)])

    def ping(self, session: int, now: float) -> bool:
        """Receive a ping; return whether the replica answers. It does so without asking its
        leader."""
        connection = self._connections.get(session)
        if connection is None or connection.is_stuck:
            return False
        known = self._sessions.get(session)
        if known is not None and self._reaches_leader(connection):
            known.heard_at = now
        return True

    def tick(self, now: float) -> list[int]:
        """Let the leader expire the sessions whose timeout has passed; return them."""
        if not self._has_quorum:
            return []
        if self._must_restart_timers:
            self._start_timers(now)
        if now < self._first_expiry:
            return []
        over = [
            session
            for session, it in self._sessions.items()
            if now - it.heard_at > it.timeout_s and now >= it.expires_at(self._tick_s)
        ]
        for session in over:
            self._end(session, End.EXPIRED)
        ends = (it.expires_at(self._tick_s) for it in self._sessions.values())
        self._first_expiry = min(ends, default=0.0)
        return over

    def next_expiry(self) -> float:
        """Return the earliest time at which a session expires that is not heard again."""
        return min((it.expires_at(self._tick_s) for it in self._sessions.values()), default=inf)

    def regain_quorum(self) -> None:
        """Elect a leader, which restarts all sessions' timers at the next `tick`."""
        self._must_restart_timers |= not self._has_quorum
        super().regain_quorum()

    def depose(self, replica: int, *, leads_until: float) -> None:
        """Depose a leader as `Ensemble` does; the new leader restarts all timers at the next
        `tick`.
        """
        self._must_restart_timers = True
        super().depose(replica, leads_until=leads_until)

    def restart(self, now: float) -> None:
        """Stop and start all servers: connections and faults end, timers restart, data stay."""
        self._restart_servers()
        self._start_timers(now)

    def lose_data(self, now: float) -> None:
        """Restart all servers with the data of the last `back_up`; they know no session.

        A client that has seen a later transaction than the servers have is refused (`connect`).
        """
        self._lost |= {number: it.seen for number, it in self._sessions.items()}
        self._sessions.clear()
        self._restore()
        self._start_timers(now)

    def seen(self, session: int) -> int:
        """Return the last zxid that a session's client has seen, even if the session is lost."""
        return self._lost.get(session, 0) or self.zxid(session)

    @property
    def last_zxid(self) -> int:
        """Return the last zxid of a server to which a new session has connected."""
        return self._zxid

    def _start_timers(self, now: float) -> None:
        self._must_restart_timers = False
        for it in self._sessions.values():
            it.heard_at = now

    # ---- requests -------------------------------------------------------------------------------

    def request(self, session: int, request: Request, now: float) -> Reply | None:
        """Execute a request now at the session's replica; writes and SyncLeader at the leader.

        Watch events that must precede the reply are in `take_events` when this returns.

        Returns:
            The reply; a refusal has the name of kazoo's error. None if there is no reply: nothing
            was written, and every later request of this connection waits without a reply, too.
            `BROKEN` if the session has ended, or the connection has ended before or at this
            request.
        """
        connection = self._connections.get(session)
        if connection is None:
            return BROKEN
        if connection.is_stuck:
            return None
        replica = self._replicas[connection.replica]
        known = self._sessions.get(session)
        reply: Reply | None
        if isinstance(request, READS):
            reply = replica.read(request, session, connection.auth)
        else:
            reply = self._ask_leader(session, connection, request, now)
        if known is not None and reply is not None:
            known.seen = replica.zxid
            if self._has_quorum and not replica.is_cut:
                known.heard_at = now
        return reply

    def _ask_leader(
        self, session: int, connection: Connection, request: Request, now: float
    ) -> Reply | None:
        if type(request) is rq.Create and len(request.data or b"") > rq.MAX_PAYLOAD_BYTES:
            return TOO_LARGE  # a member refuses to send it; other clients create with an ACL
        if is_too_large(request):
            self.disconnect(session)
            return BROKEN
        if not self._reaches_leader(connection):
            deposed = now < self._replicas[connection.replica].leads_until
            if deposed and isinstance(request, rq.SyncLeader):
                return Reply(Code.OK, request.path)
            connection.is_stuck = True
            return None
        reply = BROKEN
        if session in self._sessions:  # otherwise a lagging replica does not know yet that it ended
            reply = self._execute(session, connection.auth, request)
        self._catch_up(self._replicas[connection.replica])
        return reply

    def _execute(self, session: int, auth: frozenset[str], request: Request) -> Reply:
        match request:
            case rq.SyncLeader(path):
                return Reply(Code.OK, path)
            case rq.Multi(writes):
                refusal, results = self._transact(session, auth, writes)
                return Reply(refusal.code, len(results)) if refusal else Reply(Code.OK, results)
            case rq.Get() | rq.Exists() | rq.Children() | rq.Listing() | rq.Rights():
                raise TypeError(f"a read does not go to the leader: {request!r}")
        refusal, results = self._transact(session, auth, (request,))
        return refusal or Reply(Code.OK, results[0])

    def _transact(
        self, session: int, auth: frozenset[str], writes: Sequence[Write]
    ) -> tuple[Reply | None, list[object]]:
        """Execute all writes or none; each write sees the results of the writes before it.

        Returns the results; or the refusal, and the results of the writes before the refused one.
        """
        leader, zxid = self._leader, self._zxid + 1
        acls = leader.acls
        changes: list[ZnodeChange] = []
        results: list[object] = []
        for write in writes:
            change = leader.plan(write, zxid=zxid, session=session, auth=auth)
            if isinstance(change, Reply):
                leader.revert(changes, acls)
                return change, results
            if change is not None:
                leader.apply(change)
                changes.append(change)
            results.append(_result(write, change))
        if changes:
            self._commit(changes)
        return None, results

    def write(self, *writes: Write) -> Reply | None:
        """Execute one transaction of a client with all rights, such as a broker; answered like
        `Multi`.
        """
        if not self._has_quorum:
            return None
        refusal, results = self._transact(0, frozenset({SUPER}), writes)
        return Reply(refusal.code, len(results)) if refusal else Reply(Code.OK, results)

    def forbid(self, path: str, *permissions: str) -> None:
        """Deny these permissions (of `znodes.ALL`) to every client, and restore all other
        permissions.

        Permissions of single identities stay.
        """
        others = {it for it in self._leader.acls.get(path, OPEN) if it[0] != ANYONE}
        self.write(SetAcl(path, frozenset({*others, (ANYONE, ALL - set(permissions))})))

    # ---- states as values -----------------------------------------------------------------------

    def copy(self) -> Self:
        other = super().copy()
        other._lost = dict(self._lost)
        other._sessions = {
            number: Session(it.timeout_s, it.heard_at, it.seen)
            for number, it in self._sessions.items()
        }
        return other

    def key(self, now: float | None = None, *, ranks: Mapping[int, int] | None = None) -> Hashable:
        """Return everything that affects later behaviour, as a value; ensembles with equal keys
        behave equally.

        Args:
            now: if given, the key contains how much time each session has left. None suits a search
                that decides itself when a session expires.
            ranks: the rank of every zxid in `zxids()`. A caller that holds further zxids ranks all
                of them together. None ranks only those of `zxids()`.
        """
        if ranks is None:
            ranks = {zxid: rank for rank, zxid in enumerate(sorted(self.zxids()))}
        behind = [it for it in self._replicas if it.zxid < self._zxid]
        sessions = frozenset(
            (
                number,
                it.timeout_s,
                None if now is None else round(it.expires_at(self._tick_s) - now, 6),
                # Only a replica that lags now can be behind a transaction that a session has seen.
                tuple(replica.number for replica in behind if it.seen > replica.zxid),
            )
            for number, it in self._sessions.items()
        )
        rest = (sessions, self._next_session, self._must_restart_timers)
        return self._servers_key(ranks), rest


_UPDATES = (rq.SetData, SetAcl)


def _result(write: Write, change: ZnodeChange | None) -> str | Stat | bool:
    """Return what kazoo returns for an element of a successful transaction."""
    if isinstance(write, rq.Create) and change:
        return change.path
    if isinstance(write, _UPDATES) and change and change.new:
        return change.new.stat
    return True
