"""The contract's server and sessions over the simulated ZooKeeper, in virtual time.

`zk.contract` needs little of kazoo, and this module implements it: a client that pings, detects
silence, reconnects, and passes events to its one-shot watches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from kazoo.protocol.states import WatchedEvent
from kazoo.security import ACL

from support.zk.contract import OK, OPEN, VIRTUAL_STEPS, Op, Stat, Watch, ZkError
from support.zk.proxies import Wire
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Code, Reply
from zkconsumer.sim.znodes import Acl, CreateWithAcl, SetAcl, acl_of
from zkconsumer.sim.zookeeper import SimZooKeeper

DIRECTORY = "/contract"
STEP_S = 0.05
_NAMES = {
    Code.NO_NODE: "NoNode",
    Code.NODE_EXISTS: "NodeExists",
    Code.BAD_VERSION: "BadVersion",
    Code.NOT_EMPTY: "NotEmpty",
    Code.NO_AUTH: "NoAuth",
    Code.OTHER: "NoChildrenForEphemerals",
}


class _NoReplyError(Exception):
    """A request that was sent got no reply."""


class SimProxy:
    """The connection between one session and the server."""

    def __init__(self) -> None:
        self.wire = Wire.PASS
        self.received: list[str] = []
        self.sessions: list[SimSession] = []
        self.pending: list[Future[Any]] = []

    def cut(self) -> None:
        for session in self.sessions:
            session.drop()
        for reply in self.pending:
            reply.set_exception(ZkError("ConnectionLoss"))
        self.pending.clear()


class SimSession:
    """A session that behaves like kazoo's client; see `zk.contract.Session`."""

    def __init__(
        self, server: SimServer, directory: str, proxy: SimProxy, *, timeout_s: float
    ) -> None:
        self._server, self._sim = server, server.sim
        self._directory, self._proxy, self._timeout_s = directory, proxy, timeout_s
        self._watches: dict[tuple[str, str], list[Watch]] = {}  # by kind of watch and path
        self._heard_at = self._sent_at = server.now
        self._closed = False
        proxy.sessions.append(self)
        self._number = self._connect(0)

    @property
    def id(self) -> int:
        return self._number

    def is_connected(self) -> bool:
        return self._sim.is_connected(self._number)

    def create(self, path: str, data: bytes = b"", *, acl: Sequence[ACL] = OPEN) -> None:
        at = self._at(path)
        self._do(rq.Create(at, data) if acl is OPEN else CreateWithAcl(at, data, acl=_acl(acl)))

    def create_ephemeral(self, path: str, data: bytes = b"") -> None:
        self._do(rq.Create(self._at(path), data, ephemeral=True))

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        node = self._do(rq.Get(self._at(path), watch is not None))
        self._register("data", path, watch)
        return node.data, _stat(node.stat)

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        found = self._do(rq.Exists(self._at(path), watch is not None))
        self._register("data", path, watch)
        return None if found is None else _stat(found)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names = self._do(rq.Children(self._at(path), watch is not None))
        self._register("child", path, watch)
        return sorted(names)

    def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        return _stat(self._do(rq.SetData(self._at(path), data, version)))

    def delete(self, path: str, version: int = -1) -> None:
        self._do(rq.Delete(self._at(path), version))

    def set_acl(self, path: str, acl: Sequence[ACL]) -> None:
        self._do(SetAcl(self._at(path), _acl(acl)))

    def sync(self, path: str) -> None:
        self._do(rq.SyncLeader(self._at(path)))

    def multi(self, *ops: Op) -> list[str]:
        writes = tuple(self._write(op) for op in ops)
        reply = self._send(rq.Multi(writes))
        if reply.code is Code.OK:
            return [OK] * len(ops)
        if reply.code is Code.BROKEN:
            raise ZkError("ConnectionLoss")
        rest = len(ops) - reply.value - 1
        return ["RolledBack"] * reply.value + [_NAMES[reply.code]] + ["RuntimeInconsistency"] * rest

    def pipeline(self, *paths: str) -> list[str]:
        replies = [self._send(rq.Create(self._at(path))) for path in paths]
        return [OK if it.code is Code.OK else _NAMES[it.code] for it in replies]

    def later(self, call: Callable[[Self], Any]) -> Future[Any]:
        reply: Future[Any] = Future()
        try:
            reply.set_result(call(self))
        except _NoReplyError:
            self._proxy.pending.append(reply)
        except ZkError as error:
            reply.set_exception(error)
        return reply

    def settle(self) -> None:
        """Do nothing, because watches get events as soon as the server sends them."""

    def expire(self) -> int:
        before = self._number
        self._sim.close(before, self._server.now)
        assert self._server.until(lambda: self.is_connected() and self._number != before)
        return self._number

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._sim.close(self._number, self._server.now)
            self._server.distribute()

    # ---- the behaviour of kazoo's client ------------------------------------------------------

    def drop(self) -> None:
        """End the connection."""
        self._sim.disconnect(self._number)

    def turn(self) -> None:
        """Reconnect, send a ping, or detect that the server does not answer, whichever is due."""
        now, passes = self._server.now, self._proxy.wire is Wire.PASS
        if self._closed:
            return
        if not self.is_connected():
            if passes:
                self._number = self._connect(self._number)
        elif now - self._heard_at > self._timeout_s * 2 / 3:
            self.drop()
        elif now - self._sent_at > self._timeout_s / 3:
            self._sent_at = now
            if self._proxy.wire is not Wire.SILENT and self._sim.ping(self._number, now) and passes:
                self._heard_at = now

    def deliver(self) -> None:
        for kind, path in self._sim.take_events(self._number):
            if self._proxy.wire is not Wire.PASS:
                continue
            self._proxy.received.append("event")
            below = path.removeprefix(self._directory) or "/"
            tables = {"CHILD": ["child"], "DELETED": ["data", "child"]}.get(kind, ["data"])
            for watch in [it for t in tables for it in self._watches.pop((t, below), [])]:
                watch(WatchedEvent(kind, "CONNECTED", below))

    def _connect(self, session: int) -> int:
        self._watches.clear()
        self._heard_at = self._sent_at = now = self._server.now
        number = self._sim.connect(now=now, timeout_s=self._timeout_s, session=session)
        return self._connect(0) if number is None else number

    def _at(self, path: str) -> str:
        return self._directory if path == "/" else self._directory + path

    def _register(self, table: str, path: str, watch: Watch | None) -> None:
        if watch is not None:
            watch.pass_time = self._server.pass_time
            registered = self._watches.setdefault((table, path), [])
            if watch not in registered:
                registered.append(watch)

    def _write(self, op: Op) -> rq.Write:
        path = self._at(op.path)
        if op.kind == "create":
            return rq.Create(path, op.data, op.ephemeral == "ephemeral")
        if op.kind == "set":
            return rq.SetData(path, op.data, op.version)
        return (rq.Delete if op.kind == "delete" else rq.Check)(path, op.version)

    def _do(self, request: Any) -> Any:
        reply = self._send(request)
        if reply.code is Code.OK:
            return reply.value
        if reply.code in (Code.BROKEN, Code.TOO_LARGE):
            raise ZkError("ConnectionLoss")
        raise ZkError(str(reply.value).removesuffix("Error"))

    def _send(self, request: Any) -> Reply:
        if self._proxy.wire is Wire.SILENT:
            raise _NoReplyError
        self._sent_at = self._server.now
        reply = self._sim.request(self._number, request, self._server.now)
        self._server.distribute()
        if reply is None or self._proxy.wire is not Wire.PASS:
            raise _NoReplyError
        self._proxy.received.append("reply")
        self._heard_at = self._server.now
        return reply


class SimServer:
    """A server as one test sees it; see `zk.contract.Server`."""

    def __init__(self) -> None:
        self.sim = SimZooKeeper()
        self.now = 0.0
        self._sessions: list[SimSession] = []
        self.sim.write(rq.Create(DIRECTORY))

    def session(self, *, timeout_s: float = 6.0, directory: str = "") -> SimSession:
        return self._session(SimProxy(), directory, timeout_s)

    def session_behind(self, proxy: SimProxy, *, timeout_s: float = 6.0) -> SimSession:
        return self._session(proxy, "", timeout_s)

    def proxy(self) -> SimProxy:
        return SimProxy()

    def until(self, condition: Callable[[], bool]) -> bool:
        for _ in range(VIRTUAL_STEPS):
            if condition():
                return True
            self.pass_time()
        return False

    def clock(self) -> float:
        return self.now

    def pass_time(self) -> None:
        """Let a moment of virtual time pass for the server and all sessions."""
        self.now += STEP_S
        for session in self._sessions:
            session.turn()
        self.sim.tick(self.now)
        self.distribute()

    def distribute(self) -> None:
        """Deliver all events that were sent."""
        for session in self._sessions:
            session.deliver()

    def _session(self, proxy: SimProxy, directory: str, timeout_s: float) -> SimSession:
        session = SimSession(self, DIRECTORY + directory, proxy, timeout_s=timeout_s)
        self._sessions.append(session)
        return session


def _stat(stat: rq.Stat) -> Stat:
    return Stat(stat.version, stat.czxid, stat.mzxid, stat.owner)


def _acl(acl: Sequence[ACL]) -> Acl:
    return acl_of(rq.Right(f"{it.id.scheme}:{it.id.id}", it.perms) for it in acl)
