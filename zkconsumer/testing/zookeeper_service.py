"""The simulator's ensemble as a server with connections; all of this runs on the engine's thread.

The simulator decides what each request does. This module adds what only a real connection needs:
passwords of sessions, the negotiation of session timeouts, logins, the times and the rest of a
znode's metadata, four-letter words, and faults.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import session_text
from zkconsumer.protocol.requests import Code, Reply, Stat
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.sim.znodes import AccessRules, SetAcl, ZnodeChange, parent_of
from zkconsumer.sim.zookeeper import MAX_REQUEST_BYTES, NotConnected, SimZooKeeper
from zkconsumer.testing import zookeeper_wire as wire
from zkconsumer.testing.clock import Clock
from zkconsumer.testing.faults import Delay, Fault, Injections
from zkconsumer.testing.server import FramedConnection, Port
from zkconsumer.testing.zookeeper_wire import FullStat, KeeperCode, Op, ZooKeeperCall

MAX_SESSION_TIMEOUT_S: Final = 60.0
"""The longest session timeout that the server grants; ten times the JVM consumer's default."""

CONTAINERS_S: Final = 60.0
"""Seconds between two searches for empty containers (`znode.container.checkIntervalMs`)."""

logger = SafeLogger(logging.getLogger(__name__))


# ---- metadata ------------------------------------------------------------------------------------


class _Metadata:
    """What the simulator does not keep of a znode, from the log of its changes."""

    def __init__(self) -> None:
        self.times_ms: dict[int, int] = {}  # by zxid
        self.pzxids: dict[str, int] = {}
        self.aversions: dict[str, int] = {}
        self.containers: set[str] = set()

    def note(self, change: ZnodeChange, now_ms: int) -> None:
        """Take a change of the log."""
        path = change.path
        self.times_ms[change.zxid] = now_ms
        if isinstance(change.write, SetAcl):
            self.aversions[path] = self.aversions.get(path, 0) + 1
        elif path and (change.old is None or change.new is None):
            self.pzxids[parent_of(path)] = change.zxid
            if change.new is None:
                self.aversions.pop(path, None)
                self.pzxids.pop(path, None)
                self.containers.discard(path)

    def copy(self) -> _Metadata:
        """Return a copy, which later changes leave as it is."""
        twin = _Metadata()
        twin.times_ms, twin.pzxids = dict(self.times_ms), dict(self.pzxids)
        twin.aversions, twin.containers = dict(self.aversions), set(self.containers)
        return twin


# ---- connections ---------------------------------------------------------------------------------


class ClientConnection(FramedConnection):
    """A client's connection.

    Attributes:
        session: the number of its session; 0 before the first request.
        timeout_s: the session timeout that the server has granted, in seconds.
        identities: the identities of its logins, and its address.
        is_deaf: whether the client's frames are lost, as behind a broken network.
        received_count: how many requests have arrived.
    """

    max_frame_bytes = MAX_REQUEST_BYTES

    def __init__(self, port: Port, service: ZooKeeperService) -> None:
        super().__init__(port)
        self._service = service
        self.session = 0
        self.timeout_s = 0.0
        self.identities: tuple[str, ...] = ()
        self.is_deaf = False
        self.received_count = 0

    def begins(self, start: bytes) -> bytes | None:
        """Answer a four-letter word."""
        word = start.decode("ascii", errors="replace")
        is_word = word.isascii() and word.isalpha() and word.islower()
        return self._service.answer_word(word).encode() if is_word else None

    def received(self, frame: bytes) -> None:
        """Answer a request; the first one opens a session or continues it."""
        if self.is_deaf:
            return
        self.received_count += 1
        try:
            if self.session == 0:
                self._service.greet(self, frame)
            else:
                self._service.serve(self, frame)
        except wire.MalformedRequestError as error:
            logger.warning(
                "the fake ZooKeeper closes the connection of %s:%d, which does not speak "
                "ZooKeeper's protocol: %s",
                *(*self.peer, error),
            )
            self.cut()

    def ended(self) -> None:
        """The session continues without a connection, until its timeout."""
        self._service.lose(self)


# ---- the service ---------------------------------------------------------------------------------


class _EndedError(Exception):
    """The session or its connection has ended, so a request gets no reply."""


class ZooKeeperService:
    """Answers the requests of connections, and lets sessions expire.

    Attributes:
        sim: the simulator's ensemble, which has one server.
        connections: session -> its connection.
        injections: the faults that hit single requests.
        isolated: sessions whose clients reach the server no more.
        listeners: called with each change of a znode, after the change.
    """

    def __init__(self, *, release: str, tick_time_s: float, clock: Clock) -> None:
        self.release, self._clock = release, clock
        self._known_since = tuple(map(int, release.split(".")))
        self._tick_time_s = tick_time_s
        # A client that reconnects to another fake at the same port must not continue a session.
        number = (1 << 56) + (time.time_ns() // 1_000_000 % (1 << 40) << 16)
        self.sim = SimZooKeeper(
            tick_s=tick_time_s, rules=AccessRules.of(release), first_session=number
        )
        self._secret = secrets.token_bytes(16)
        self.connections: dict[int, ClientConnection] = {}
        self.injections: Injections[tuple[int, ZooKeeperCall]] = Injections()
        self.isolated: set[int] = set()
        self._deaf: list[ClientConnection] = []  # the connections that `isolate` has hit
        self.listeners: list[Callable[[ZnodeChange], object]] = []
        self._locals: set[int] = set()  # living sessions of the test's process
        self._metadata = self._backup = _Metadata()
        self._noted = 0
        self._containers_at = self.now + CONTAINERS_S
        # A new server has these znodes.
        self.write(rq.Create("/zookeeper"), rq.Create("/zookeeper/quota"))
        self.back_up()

    @property
    def now(self) -> float:
        """The server's time in seconds since 1970."""
        return self._clock.now()

    # ---- requests of the test's process ----------------------------------------------------------

    def write(self, *writes: rq.Write) -> Reply:
        """Execute one transaction with all rights."""
        reply = self.sim.write(*writes)
        assert reply is not None, "the fake server always has its quorum"
        self.publish()
        return reply

    def open_local(self, timeout_s: float) -> int:
        """Open a session of the test's process, and return its number."""
        session = self.sim.connect(now=self.now, timeout_s=timeout_s)
        assert session is not None, "a new session has a number"
        self._locals.add(session)
        return session

    def reconnect_local(self, session: int) -> bool:
        """Connect a session of the test's process again; return False if it has expired."""
        return self.sim.connect(now=self.now, timeout_s=0.0, session=session) is not None

    def abandon(self, session: int) -> None:
        """Let a session of the test's process expire after its timeout."""
        self._locals.discard(session)
        self.sim.disconnect(session)

    def request(self, session: int, request: rq.Request | rq.Rights) -> Reply:
        """Execute a request of a local session."""
        reply = self.sim.request(session, request, self.now)
        assert reply is not None, "the fake server always has its quorum"
        self.publish()
        return reply

    def close_session(self, session: int) -> None:
        """End a session, as its client does."""
        self._locals.discard(session)
        self.sim.close(session, self.now)
        self.publish()

    # ---- requests of connections -----------------------------------------------------------------

    def greet(self, connection: ClientConnection, frame: bytes) -> None:
        """Open or continue a session (`ZooKeeperServer.processConnectRequest`)."""
        request = wire.read_connect(frame)
        if request.session in self.isolated:
            self._separate(connection)
            return
        if request.last_zxid > self.sim.last_zxid:
            logger.warning(
                "the fake ZooKeeper closes the connection of %s:%d: its client has seen the zxid "
                "%#x, and the server's last one is %#x",
                *(*connection.peer, request.last_zxid, self.sim.last_zxid),
            )
            connection.cut()
            return
        low, high = 2 * self._tick_time_s, MAX_SESSION_TIMEOUT_S
        timeout_s = min(max(request.timeout_ms / 1000, low), high)
        session = self._connect(request, timeout_s)
        if session == 0:
            connection.send(wire.connected(request, timeout_ms=0, session=0, password=bytes(16)))
            connection.close()
            return
        connection.session, connection.timeout_s = session, timeout_s
        connection.identities = (f"ip:{connection.peer[0]}",)
        self.connections[session] = connection
        connection.send(
            wire.connected(
                request,
                timeout_ms=round(timeout_s * 1000),
                session=session,
                password=self._password(session),
            )
        )

    def _connect(self, request: wire.Connect, timeout_s: float) -> int:
        """Return the number of the session; 0 if it has expired or the password is wrong."""
        if request.session and request.password != self._password(request.session):
            return 0
        former = self.connections.pop(request.session, None)
        if former is not None:
            former.cut()
        try:
            session = self.sim.connect(
                now=self.now,
                timeout_s=timeout_s,
                session=request.session,
                seen=request.last_zxid if request.session else None,
            )
        except NotConnected:
            return 0
        return session or 0

    def _password(self, session: int) -> bytes:
        number = session.to_bytes(8, "big", signed=True)
        return hashlib.blake2b(number, key=self._secret, digest_size=16).digest()

    def serve(self, connection: ClientConnection, frame: bytes) -> None:
        """Execute a request, and send its reply after the events that precede it."""
        xid, number, reader = wire.read_head(frame)
        known = number in {*Op} and wire.SINCE.get(number, (3, 3)) <= self._known_since
        if not known:
            self._refuse_unknown(connection, xid, number)
            return
        op = Op(number)
        fault: Fault | Delay | None = None
        try:
            call = ZooKeeperCall(xid, op, wire.read_request(op, reader, connection.identities))
            fault = self.injections.take((connection.session, call))
            if fault is Fault.CUT_BEFORE:
                connection.cut()
                return
            body = self._execute(connection, call)
        except wire.MalformedRequestError as error:
            body = self._refuse(op, KeeperCode.MARSHALLING, str(error))
        except wire.RefusedRequestError as error:
            body = self._refuse(op, error.error, str(error))
        except _EndedError:
            connection.cut()
            return
        self._reply(connection, xid, body, fault)

    def _reply(
        self,
        connection: ClientConnection,
        xid: int,
        body: bytes | KeeperCode,
        fault: Fault | Delay | None,
    ) -> None:
        if fault is Fault.CUT_AFTER:
            connection.cut()
        connection.is_silent |= fault is Fault.SILENCE
        delay_s = fault.seconds if isinstance(fault, Delay) else 0.0
        # The client gets the events of a change before the reply that shows the change.
        self.publish(delayed=connection, delay_s=delay_s)
        error = body if isinstance(body, KeeperCode) else KeeperCode.OK
        head = wire.head(xid, self.sim.last_zxid, error)
        connection.send(head, b"" if isinstance(body, KeeperCode) else body, delay_s=delay_s)
        if error is KeeperCode.AUTH_FAILED or not self.sim.is_connected(connection.session):
            connection.close()

    def _execute(self, connection: ClientConnection, call: ZooKeeperCall) -> bytes | KeeperCode:
        """Execute a request; return the reply's body, or the error."""
        session, sim, now = connection.session, self.sim, self.now
        match call.request:
            case wire.Ping():
                sim.ping(session, now)
                return b""
            case wire.Close():
                sim.close(session, now)
                return b""
            case wire.Authenticate():
                return self._authenticate(connection, call.request)
            case wire.SetWatches(seen, data, absent, children):
                sim.ping(session, now)
                sim.set_watches(session, seen=seen, data=data, absent=absent, children=children)
                return b""
            case wire.Watches():
                return self._handle_watches(session, call.op, call.request)
            case wire.MultiWrite(_, writes):
                reply = self._ask(session, rq.Multi(writes))
                return wire.transaction_result(call.request, reply, self._describe)
            case wire.MultiRead(reads):
                pairs = [(read, self._ask(session, read)) for read in reads]
                return wire.reads_result(pairs, self._describe)
            case request:
                reply = self._ask(session, request)
                if reply.code is not Code.OK:
                    return wire.error_of(reply.code, request)
                if reply.value is None:
                    return KeeperCode.NO_NODE  # of `exists`
                if call.op is Op.CREATE_CONTAINER:
                    self._metadata.containers.add(reply.value)
                return wire.result(call.op, request, reply.value, self._describe)

    def _ask(self, session: int, request: rq.Request | rq.Rights | rq.Write | SetAcl) -> Reply:
        reply = self.sim.request(session, request, self.now)
        assert reply is not None, "the fake server always has its quorum"
        if reply.code is Code.BROKEN:
            raise _EndedError
        return reply

    def _handle_watches(self, session: int, op: Op, request: wire.Watches) -> bytes | KeeperCode:
        """Say whether the session has one of these watches, and remove them if that is asked."""
        if request.kinds.isdisjoint(self.sim.watches(session, request.path)):
            return KeeperCode.NO_WATCHER
        if op is Op.REMOVE_WATCHES:
            self.sim.remove_watches(session, request.path, request.kinds)
        return b""

    def _authenticate(
        self, connection: ClientConnection, request: wire.Authenticate
    ) -> bytes | KeeperCode:
        if request.scheme != "digest":
            return self._refuse(Op.AUTH, KeeperCode.AUTH_FAILED, f"the scheme {request.scheme!r}")
        user = request.credentials.partition(b":")[0].decode()
        digest = base64.b64encode(hashlib.sha1(request.credentials).digest()).decode()
        identity = f"digest:{user}:{digest}"
        connection.identities += (identity,)
        self.sim.authenticate(connection.session, identity)
        return b""

    def _refuse(self, op: Op, error: KeeperCode, text: str) -> KeeperCode:
        logger.warning("the fake ZooKeeper refuses %s with %s: %s", op.name, error.name, text)
        return error

    def _refuse_unknown(self, connection: ClientConnection, xid: int, number: int) -> None:
        """Refuse a request as real servers do (`UnimplementedRequestProcessor`)."""
        who = "the fake ZooKeeper" if number in wire.LACKING else f"ZooKeeper {self.release}"
        logger.error(
            "%s does not know the request %s; it answers UNIMPLEMENTED and closes the connection",
            *(who, wire.name_of(number)),
        )
        connection.send(wire.head(xid, self.sim.last_zxid, KeeperCode.UNIMPLEMENTED))
        connection.close()

    # ---- after each change -----------------------------------------------------------------------

    def publish(self, delayed: ClientConnection | None = None, delay_s: float = 0.0) -> None:
        """Send the watch events of what has changed, and end the connections of ended sessions.

        The events for the connection `delayed` wait for `delay_s` seconds.
        """
        self._note_changes()
        for session, connection in list(self.connections.items()):
            late_s = delay_s if connection is delayed else 0.0
            for kind, path in self.sim.take_events(session):
                connection.send(wire.event(kind, path), delay_s=late_s)
            is_unheard = connection is delayed or connection.is_deaf
            if not is_unheard and not self.sim.is_connected(session):
                connection.close()

    def _note_changes(self) -> None:
        """Keep the times of new changes, and tell the listeners."""
        history = self.sim.history
        now_ms = round(self.now * 1000)
        while self._noted < len(history):
            change = history[self._noted]
            self._noted += 1
            self._metadata.note(change, now_ms)
            for listener in self.listeners:
                listener(change)

    def _describe(self, path: str, stat: Stat | None) -> FullStat:
        """Return a znode's metadata; those of `stat` if it is given, else as they are now."""
        self._note_changes()
        node = self.sim.nodes.get(path)
        known = stat or (node.stat if node else Stat(0, 0, 0, 0))
        metadata = self._metadata
        return FullStat(
            czxid=known.czxid,
            mzxid=known.mzxid,
            ctime_ms=metadata.times_ms.get(known.czxid, 0),
            mtime_ms=metadata.times_ms.get(known.mzxid, 0),
            version=known.version,
            cversion=self.sim.cversion(path),
            aversion=metadata.aversions.get(path, 0),
            owner=known.owner,
            data_length=len(node.data or b"") if node else 0,
            num_children=len(self.sim.children(path)),
            pzxid=metadata.pzxids.get(path, known.czxid),
        )

    def lose(self, connection: ClientConnection) -> None:
        """A connection has ended; its session waits for another one."""
        if self.connections.get(connection.session) is connection:
            del self.connections[connection.session]
            self.sim.disconnect(connection.session)

    # ---- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let the sessions expire whose timeout has passed."""
        for session in self._locals:
            if session not in self.isolated:
                self.sim.ping(session, self.now)
        if self.sim.tick(self.now):
            self.publish()
        if self.now >= self._containers_at:
            self._containers_at = self.now + CONTAINERS_S
            self._delete_containers()

    def _delete_containers(self) -> None:
        """Delete the containers that have had children and have none now (`ContainerManager`)."""
        sim = self.sim
        empty = [
            path
            for path in self._metadata.containers
            if sim.cversion(path) and not sim.children(path)
        ]
        for path in empty:
            self.write(rq.Delete(path))

    def advanced(self) -> None:
        """Take a jump of the clock: clients with a connection count as having sent pings."""
        for session, connection in self.connections.items():
            if not connection.is_deaf:
                self.sim.ping(session, self.now)
        self.tick()

    def expire(self, session: int) -> None:
        """Let a session expire now."""
        self.sim.expire(session)
        self.publish()

    # ---- faults ----------------------------------------------------------------------------------

    def isolate(self, session: int) -> None:
        """Lose everything between a session's client and the server, until `heal`."""
        self.isolated.add(session)
        connection = self.connections.get(session)
        if connection is not None:
            self._separate(connection)

    def _separate(self, connection: ClientConnection) -> None:
        connection.is_silent = connection.is_deaf = True
        self._deaf.append(connection)

    def heal(self) -> None:
        """End `isolate`; the connections that it has hit end, so that the clients connect again."""
        for connection in self._deaf:
            connection.cut()
        self._deaf.clear()
        self.isolated.clear()

    def restart(self) -> None:
        """Start the stopped server again: each session has its whole timeout."""
        self.sim.restart(self.now)

    def back_up(self) -> None:
        """Keep the data for `lose_data`."""
        self.sim.back_up()
        self._backup = self._metadata.copy()

    def lose_data(self) -> None:
        """Go back to the data of the last backup; no session and no ephemeral znode is left."""
        self.sim.lose_data(self.now)
        self._metadata = self._backup.copy()
        orphans = [path for path, node in self.sim.nodes.items() if node.stat.owner]
        if orphans:
            self.write(*(rq.Delete(path) for path in orphans))

    # ---- four-letter words -----------------------------------------------------------------------

    def answer_word(self, word: str) -> str:
        """Return the answer to a four-letter word."""
        answers: Mapping[str, Callable[[], str]] = {
            "ruok": lambda: "imok",
            "srvr": self._srvr,
            "stat": self._stat,
            "cons": self._cons,
            "mntr": self._mntr,
            "conf": self._conf,
            "isro": lambda: "rw",
            "envi": lambda: f"Environment:\nzookeeper.version={self._version}\n",
        }
        answer = answers.get(word)
        if answer is None:
            logger.error("the fake ZooKeeper does not know the four-letter word %s", word)
            return f"{word} is not executed because it is not in the whitelist.\n"
        return answer()

    @property
    def _version(self) -> str:
        return f"{self.release}-fake, built on 01/01/2000 00:00 GMT"

    def _srvr(self) -> str:
        received = sum(one.received_count for one in self.connections.values())
        return (
            f"Zookeeper version: {self._version}\n"
            "Latency min/avg/max: 0/0/0\n"
            f"Received: {received}\nSent: {received}\n"
            f"Connections: {len(self.connections)}\nOutstanding: 0\n"
            f"Zxid: {self.sim.last_zxid:#x}\nMode: standalone\n"
            f"Node count: {len(self.sim.nodes)}\n"
        )

    def _stat(self) -> str:
        version, _, rest = self._srvr().partition("\n")
        clients = "".join(
            f" /{host}:{port}[1](queued=0,recved={one.received_count},sent={one.received_count})\n"
            for one in self.connections.values()
            for host, port in (one.peer,)
        )
        return f"{version}\nClients:\n{clients}\n{rest}"

    def _cons(self) -> str:
        return "".join(
            f" /{host}:{port}[1](queued=0,recved={one.received_count},sent={one.received_count},"
            f"sid={session_text(session)},to={round(one.timeout_s * 1000)})\n"
            for session, one in self.connections.items()
            for host, port in (one.peer,)
        )

    def _conf(self) -> str:
        tick_ms = round(self._tick_time_s * 1000)
        return (
            f"tickTime={tick_ms}\nminSessionTimeout={2 * tick_ms}\n"
            f"maxSessionTimeout={round(MAX_SESSION_TIMEOUT_S * 1000)}\nserverId=0\n"
        )

    def _mntr(self) -> str:
        nodes = self.sim.nodes.values()
        rows = {
            "zk_version": self._version,
            "zk_server_state": "standalone",
            "zk_num_alive_connections": len(self.connections),
            "zk_outstanding_requests": 0,
            "zk_znode_count": len(nodes),
            "zk_ephemerals_count": sum(bool(node.stat.owner) for node in nodes),
            "zk_approximate_data_size": sum(
                len(path) + len(node.data or b"") for path, node in self.sim.nodes.items()
            ),
        }
        return "".join(f"{name}\t{value}\n" for name, value in rows.items())
