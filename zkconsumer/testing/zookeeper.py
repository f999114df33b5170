"""A fake ZooKeeper server on a loopback port of the test's own process.

The simulator's ensemble answers the requests. The fake has no TLS, SASL, quotas, container znodes
and TTL znodes, and lacks the requests in `zookeeper_wire.LACKING`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from zkconsumer.errors import FakeServerError
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.model import session_text
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.znodes import ZnodeChange, parent_of
from zkconsumer.testing.clock import Clock
from zkconsumer.testing.faults import Delay, Fault, Injection
from zkconsumer.testing.server import Port, ServerEngine
from zkconsumer.testing.zookeeper_service import ClientConnection, ZooKeeperService
from zkconsumer.testing.zookeeper_wire import Op, ZooKeeperCall

DEFAULT_RELEASE = "3.8.4"
OLDEST_RELEASE = (3, 3)

Result = TypeVar("Result")


class SessionInfo(NamedTuple):
    """A session that the server knows.

    Attributes:
        id: the session's number, as kazoo's `client_id[0]`.
        peer: the client's address and port; None without a connection.
        ephemerals: the paths of its ephemeral znodes.
    """

    id: int
    peer: tuple[str, int] | None
    ephemerals: tuple[str, ...]


class LocalSession:
    """A session in the test's process, without a port; it lives until it is closed or abandoned.

    Fake brokers register in one. As for a client, its ephemeral znodes end with it.
    """

    def __init__(self, service: ZooKeeperService, engine: ServerEngine, timeout_s: float) -> None:
        self._service, self._engine = service, engine
        self.id = engine.call(lambda: service.open_local(timeout_s))

    def request(self, request: rq.Request | rq.Rights) -> Reply:
        """Execute a request; a refusal is a Reply with another code than OK."""
        return self._engine.call(lambda: self._service.request(self.id, request))

    def take_events(self) -> list[tuple[str, str]]:
        """Return the watch events since the last call, as (kind, path)."""
        return self._engine.call(lambda: self._service.sim.take_events(self.id))

    def is_isolated(self) -> bool:
        """Return whether a fault separates the session from the server (`isolate`)."""
        return self._engine.call(lambda: self.id in self._service.isolated)

    def is_connected(self) -> bool:
        """Return whether the session has neither ended nor lost its connection by a fault."""
        return self._engine.call(lambda: self._service.sim.is_connected(self.id))

    def reconnect(self) -> bool:
        """Connect again after a fault; return False if the session has expired.

        Watches do not survive.

        Raises:
            NotConnected: the server has lost data that this session has seen.
        """
        return self._engine.call(lambda: self._service.reconnect_local(self.id))

    def close(self) -> None:
        """End the session, and with it its ephemeral znodes."""
        self._engine.call(lambda: self._service.close_session(self.id))

    def abandon(self) -> None:
        """Leave the session as a dying process does: it expires after its timeout."""
        self._engine.call(lambda: self._service.abandon(self.id))


class FakeZooKeeper:
    """One ZooKeeper server in the test's own process; as a context manager it runs in the block.

    Its methods may be called on any thread, and most of them also before `start`: a test can write
    znodes before the first client comes. Here znodes are read and written with all rights.

    Attributes:
        release: ZooKeeper's release.
        tick_time_s: the unit in which sessions expire, in seconds.
        clock: the server's time.
        engine: the thread of the server.
    """

    def __init__(
        self,
        *,
        release: str = DEFAULT_RELEASE,
        port: int = 0,
        tick_time_s: float = 0.1,
        clock: Clock | None = None,
        engine: ServerEngine | None = None,
    ) -> None:
        """
        Args:
            release: ZooKeeper's release, from 3.3 on, such as `3.4.14`: it decides which requests
                the server knows, and details of access rights.
            port: the port; 0 means a free one.
            tick_time_s: the unit in which sessions expire, in seconds. The server grants session
                timeouts from 2 ticks to 60 s.
            clock: the server's time; by default the machine's.
            engine: the thread of several servers; by default one of its own.

        Raises:
            FakeServerError: no such release, or a tick that is not above 0.
        """
        _check(release, tick_time_s)
        self.release = release
        self.tick_time_s = tick_time_s
        self.clock = clock or Clock()
        self.engine = engine or ServerEngine("fake ZooKeeper")
        self._service = ZooKeeperService(release=release, tick_time_s=tick_time_s, clock=self.clock)
        self._port = Port(self.engine, lambda at: ClientConnection(at, self._service), port)
        self._timer: asyncio.TimerHandle | None = None
        self._loss_listeners: list[Callable[[], object]] = []
        self._is_running = False

    # ---- life ------------------------------------------------------------------------------------

    @property
    def connect(self) -> str:
        """The connect string, `127.0.0.1:port`."""
        return self._port.address

    @property
    def port(self) -> int:
        """The port for clients; 0 before the first start if the server chooses it."""
        return self._port.number

    @property
    def is_up(self) -> bool:
        """Whether the server answers: it runs, and is neither killed nor paused."""
        return self._is_running and self._port.is_listening and not self._port.is_paused

    def start(self) -> None:
        """Listen for clients; another call does nothing.

        Raises:
            OSError: another program listens at the port.
        """
        if self._is_running:
            return
        self.engine.start()
        try:
            self._port.open()
        except BaseException:
            self.engine.stop()
            raise
        self._is_running = True
        self.clock.listen(self._advanced)
        self.engine.call(self._tick)

    def stop(self) -> None:
        """End all connections, the port and the thread; another call does nothing. Data stay.

        In a fork of the process, the call does nothing: the server belongs to the parent.
        """
        if not self._is_running or self.engine.is_of_parent:
            return
        self._is_running = False
        self.clock.forget(self._advanced)
        self.engine.call(self._end_timer)
        self._port.close()
        self.engine.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- znodes ----------------------------------------------------------------------------------

    def create(self, path: str, data: bytes | None = b"") -> None:
        """Create a persistent znode, with its parents.

        Raises:
            FakeServerError: the znode exists, or its parent is ephemeral.
        """
        missing = []
        above = parent_of(path)
        while above != "/" and not self.exists(above):
            missing.append(rq.Create(above))
            above = parent_of(above)
        self.write(*reversed(missing), rq.Create(path, data))

    def set(self, path: str, data: bytes | None) -> None:
        """Write a znode's payload.

        Raises:
            FakeServerError: there is no such znode.
        """
        self.write(rq.SetData(path, data, -1))

    def delete(self, path: str) -> None:
        """Delete a znode with everything below it.

        Raises:
            FakeServerError: there is no such znode.
        """
        self.write(*self._call(lambda: self._deletions(path)))

    def write(self, *writes: rq.Write) -> None:
        """Execute one transaction.

        Raises:
            FakeServerError: ZooKeeper refuses one of the writes, and so executes none.
        """
        reply = self._call(lambda: self._service.write(*writes))
        if reply.code is not Code.OK:
            raise FakeServerError(
                f"ZooKeeper refuses a {type(writes[reply.value]).__name__}: {reply.code.name}",
                where=writes[reply.value].path,
            )

    def get(self, path: str) -> bytes | None:
        """Return a znode's payload; None is ZooKeeper's null.

        Raises:
            FakeServerError: there is no such znode.
        """
        node = self._call(lambda: self._service.sim.nodes.get(path))
        if node is None:
            raise FakeServerError("there is no such znode", where=path)
        return node.data

    def exists(self, path: str) -> bool:
        """Return whether a znode exists."""
        return self._call(lambda: path in self._service.sim.nodes)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of a znode's children, sorted; none if the znode does not exist."""
        return self._call(lambda: self._service.sim.children(path))

    def tree(self) -> dict[str, bytes | None]:
        """Return the payload of each znode, by path."""
        return self._call(
            lambda: {path: node.data for path, node in self._service.sim.nodes.items()}
        )

    def listen(self, listener: Callable[[ZnodeChange], object]) -> None:
        """Call `listener` with each later change of a znode, on the server's thread."""
        self._call(lambda: self._service.listeners.append(listener))

    def forget(self, listener: Callable[[ZnodeChange], object]) -> None:
        """End `listen`."""
        self._call(lambda: self._service.listeners.remove(listener))

    def listen_to_losses(self, listener: Callable[[], object]) -> None:
        """Call `listener` on the server's thread after each `lose_data`."""
        self._call(lambda: self._loss_listeners.append(listener))

    # ---- sessions --------------------------------------------------------------------------------

    def session(self, *, timeout_s: float = 6.0) -> LocalSession:
        """Open a session in the test's process; `timeout_s` counts from `LocalSession.abandon`."""
        return LocalSession(self._service, self.engine, timeout_s)

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        """The sessions that have not ended, with those of the test's process."""
        return self._call(self._describe_sessions)

    def owner(self, path: str) -> int:
        """Return the session of an ephemeral znode; 0 if the znode is persistent.

        Raises:
            FakeServerError: there is no such znode.
        """
        node = self._call(lambda: self._service.sim.nodes.get(path))
        if node is None:
            raise FakeServerError("there is no such znode", where=path)
        return node.stat.owner

    def expire(self, session: int) -> None:
        """Let a session expire now, as if its timeout had passed.

        Its ephemeral znodes are gone when the call returns. The client learns of it from the
        closed connection.

        Raises:
            FakeServerError: there is no such session.
        """
        self._check_session(session)
        self._call(lambda: self._service.expire(session))

    # ---- faults ----------------------------------------------------------------------------------

    def inject(
        self,
        fault: Fault | Delay,
        *,
        op: Op | None = None,
        path: str = "",
        session: int = 0,
        times: int | None = 1,
    ) -> Injection[tuple[int, ZooKeeperCall]]:
        """Let a fault hit the next requests that fit.

        Args:
            fault: what happens.
            op: the kind of request; None: every kind except pings.
            path: the beginning of the request's path, or of one of a transaction's paths.
            session: the session that sends the request; 0: any session.
            times: how many requests it hits; None: each one, until `cancel`.
        """

        def fits(sent: tuple[int, ZooKeeperCall]) -> bool:
            number, call = sent
            return (
                session in (0, number)
                and (call.op is op if op is not None else call.op is not Op.PING)
                and (not path or any(one.startswith(path) for one in call.paths))
            )

        injection = Injection(fault, fits, times)
        return self._call(lambda: self._service.injections.add(injection))

    def cut(self, session: int = 0) -> None:
        """End the connection of a session, or of all sessions; clients may connect again."""
        self._call(lambda: self._cut(session))

    def isolate(self, session: int) -> None:
        """Drop all packets between a session's client and the server, until `heal`.

        The session expires after its timeout, and the client cannot notice it.

        Raises:
            FakeServerError: there is no such session.
        """
        self._check_session(session)
        self._call(lambda: self._service.isolate(session))

    def heal(self) -> None:
        """End every `isolate`."""
        self._call(self._service.heal)

    def pause(self) -> None:
        """Answer nothing, as a stopped process does, until `resume`."""
        self._call(self._pause)

    def resume(self) -> None:
        """End `pause`. Sessions whose timeout has passed during the pause expire."""
        self._call(self._resume)

    def kill(self) -> None:
        """End the server as a crash does; clients cannot connect until `restart`. Data stay."""
        self._call(self._end_timer)
        self._port.close()

    def restart(self) -> None:
        """Start the server again, after `kill` or at once; each session has its whole timeout.

        Raises:
            FakeServerError: the server has not been started, or has been stopped.
        """
        if not self._is_running:
            raise FakeServerError("the fake ZooKeeper is not running", remedy="call start()")
        self.kill()
        self._call(self._service.restart)
        self._port.open()
        self._call(self._tick)

    def back_up(self) -> None:
        """Keep the data for `lose_data`. The first backup is that of an empty server."""
        self._call(self._service.back_up)

    def lose_data(self) -> None:
        """Restart with the data of the last `back_up`, like a server whose disk was lost.

        No session is left, and no ephemeral znode of the backup. Zxids go back, too: the server
        refuses each client that has seen a later transaction than the server has. The brokers of a
        fake cluster register again; topics that the backup does not contain are gone.
        """
        self.kill()
        self._call(self._lose_data)
        if self._is_running:
            self._port.open()
            self._call(self._tick)

    def advance(self, seconds: float) -> None:
        """Put the server's clock forward. Sessions without a connection expire if it is time.

        Clients with a connection count as having sent their pings.
        """
        self.clock.advance(seconds)

    def command(self, word: str) -> str:
        """Return the answer to a four-letter word, such as `srvr`, `cons` or `mntr`."""
        return self._call(lambda: self._service.answer_word(word))

    # ---- on the server's thread ------------------------------------------------------------------

    def _deletions(self, path: str) -> list[rq.Write]:
        """Return the writes that delete a znode, the lowest znodes first."""
        children = self._service.sim.children(path)
        below = [one for name in children for one in self._deletions(f"{path}/{name}")]
        return [*below, rq.Delete(path)]

    def _call(self, function: Callable[[], Result]) -> Result:
        return self.engine.call(function)

    def _tick(self) -> None:
        if not self._port.is_paused:
            self._service.tick()
        self._timer = self.engine.loop.call_later(self.tick_time_s, self._tick)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advanced(self) -> None:
        self._call(self._take_jump)

    def _take_jump(self) -> None:
        if not self._port.is_paused and self._timer is not None:
            self._service.advanced()

    def _lose_data(self) -> None:
        self._service.lose_data()
        for listener in self._loss_listeners:
            listener()

    def _cut(self, session: int) -> None:
        for number, connection in list(self._service.connections.items()):
            if session in (0, number):
                connection.cut()

    def _pause(self) -> None:
        self._port.is_paused = True

    def _resume(self) -> None:
        self._port.is_paused = False
        self._service.tick()
        self._port.resume()

    def _describe_sessions(self) -> tuple[SessionInfo, ...]:
        service = self._service
        owned: dict[int, list[str]] = {}
        for path, node in service.sim.nodes.items():
            owned.setdefault(node.stat.owner, []).append(path)
        return tuple(
            SessionInfo(
                number,
                service.connections[number].peer if number in service.connections else None,
                tuple(sorted(owned.get(number, ()))),
            )
            for number in service.sim.sessions
        )

    def _check_session(self, session: int) -> None:
        if session not in self._call(lambda: self._service.sim.sessions):
            raise FakeServerError(
                f"the fake ZooKeeper has no session {session_text(session)}",
                remedy="take the id from `sessions`, `owner` or the client (kazoo: client_id[0])",
            )


def _check(release: str, tick_time_s: float) -> None:
    parts = release.split(".")
    if not all(part.isdecimal() for part in parts) or tuple(map(int, parts)) < OLDEST_RELEASE:
        raise FakeServerError(
            f"there is no fake ZooKeeper of release {release!r}",
            remedy=f"choose a release from 3.3 on, such as {DEFAULT_RELEASE}",
        )
    if not tick_time_s > 0:
        raise FakeServerError(
            f"a tick of {tick_time_s} s is not possible", remedy="choose a time above 0 s"
        )
