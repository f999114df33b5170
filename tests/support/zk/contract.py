"""The ZooKeeper client that the contract needs: an interface for real and simulated servers.

`Session` implements it over kazoo and a real server. Errors have the names that ZooKeeper uses;
paths are relative to a directory of each test.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import WatchedEvent
from kazoo.security import ACL, make_acl

from support.wait import LIMIT_S
from support.zk.proxies import Proxy
from support.zk.takeover import expire
from zkconsumer.sandbox.process import until

_numbers = itertools.count(1)

OK = "OK"
# Number of steps of virtual time after which waiting for an event fails.
VIRTUAL_STEPS = 400

OPEN = (make_acl("world", "anyone", all=True),)
# The operator who has set this access list may reset it, so that a test can clean up.
READ_ONLY = (make_acl("world", "anyone", read=True, admin=True),)
CLOSED_TO_READERS = (make_acl("world", "anyone", write=True, create=True, delete=True, admin=True),)
CLOSED = (make_acl("digest", "nobody:none", all=True),)


class ZkError(Exception):
    """A refusal by ZooKeeper; `code` is the error's name, for example `NoNode`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Stat:
    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int


@dataclass(frozen=True)
class Op:
    """An element of a `multi` transaction."""

    kind: Literal["create", "set", "delete", "check"]
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: Literal["ephemeral", "persistent"] = "persistent"


@dataclass(eq=False)
class Watch:
    """Collects the events of one-shot watches, as (type, path)."""

    events: list[tuple[str, str]] = field(default_factory=list)
    # Lets virtual time pass; on a real server, time passes by itself.
    pass_time: Callable[[], None] | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, event: WatchedEvent) -> None:
        # kazoo also calls a watch when the connection ends. This call is not an event of the
        # server, so ignore it.
        if event.type != "NONE":
            with self._changed:
                self.events.append((event.type, event.path))
                self._changed.notify_all()

    def wait(self) -> tuple[str, str]:
        """Return the first event; fail if none arrives."""
        for _ in range(VIRTUAL_STEPS if self.pass_time else 0):
            if self.pass_time and not self.events:
                self.pass_time()
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.events), LIMIT_S), "no event arrived"
        return self.events[0]


class Session:
    """A session. Every call sends one request without a retry; a refusal raises ZkError."""

    def __init__(self, address: str, directory: str, *, timeout_s: float) -> None:
        self._address = address
        self._directory = directory
        self._client = KazooClient(
            f"{address}{directory}",
            timeout=timeout_s,
            # kazoo's own back-off would grow to minutes, which is too long for a test.
            connection_retry={"max_tries": -1, "delay": 0.02, "max_delay": 0.2},
        )
        self._client.start(LIMIT_S)
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._markers = 0

    @property
    def id(self) -> int:
        """The session id from the server; it changes after an expiry."""
        return int(self._client.client_id[0]) if self._client.client_id else 0

    def create(self, path: str, data: bytes = b"", *, acl: Sequence[ACL] = OPEN) -> None:
        self._do(lambda: self._client.create(path, data, acl=list(acl)))

    def create_ephemeral(self, path: str, data: bytes = b"") -> None:
        self._do(lambda: self._client.create(path, data, ephemeral=True))

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        data, stat = self._do(lambda: self._client.get(path, watch))
        return data, _stat(stat)

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        found = self._do(lambda: self._client.exists(path, watch))
        return None if found is None else _stat(found)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return sorted(self._do(lambda: self._client.get_children(path, watch)))

    def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        return _stat(self._do(lambda: self._client.set(path, data, version)))

    def delete(self, path: str, version: int = -1) -> None:
        self._do(lambda: self._client.delete(path, version))

    def set_acl(self, path: str, acl: Sequence[ACL]) -> None:
        self._do(lambda: self._client.set_acls(path, list(acl)))

    def sync(self, path: str) -> None:
        self._do(lambda: self._client.sync(path))

    def multi(self, *ops: Op) -> list[str]:
        """Execute one transaction; return OK or an error's name for each element."""
        transaction = self._client.transaction()
        for op in ops:
            if op.kind == "create":
                transaction.create(op.path, op.data, ephemeral=op.ephemeral == "ephemeral")
            elif op.kind == "set":
                transaction.set_data(op.path, op.data, op.version)
            elif op.kind == "delete":
                transaction.delete(op.path, op.version)
            else:
                transaction.check(op.path, op.version)
        results = self._do(transaction.commit)
        return [_code(it) if isinstance(it, Exception) else OK for it in results]

    def pipeline(self, *paths: str) -> list[str]:
        """Send one create per path without waiting in between; return the results in order."""
        sent = [self._client.create_async(path) for path in paths]
        return [self._result(result.get) for result in sent]

    def later(self, call: Callable[[Self], Any]) -> Future[Any]:
        """Run `call(self)` on another thread, because the reply may never come."""
        return self._pool.submit(call, self)

    def settle(self) -> None:
        """Wait until every event that the server has sent has arrived at its watch.

        Events arrive in the order in which they were sent, so the event of this method's marker is
        the last.
        """
        self._markers += 1
        marker, watch = f"/marker-{self.id:x}-{self._markers}", Watch()
        self.exists(marker, watch)
        self.create(marker)
        watch.wait()

    def expire(self) -> int:
        """End the session on the server as an expiry does; return the id of the next session."""
        before = self.id
        expire(self._address, self._client.client_id)
        assert until(lambda: self.is_connected() and self.id not in (0, before), limit_s=LIMIT_S), (
            "the client got no new session"
        )
        return self.id

    def is_connected(self) -> bool:
        return bool(self._client.connected)

    def close(self) -> None:
        """End the session cleanly; its ephemeral znodes are deleted when the call returns."""
        self._client.stop()
        self._client.close()
        self._pool.shutdown()

    def _do(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KazooException as error:
            raise ZkError(_code(error)) from error

    def _result(self, call: Callable[[], Any]) -> str:
        try:
            call()
        except KazooException as error:
            return _code(error)
        return OK


def _code(error: Exception) -> str:
    return type(error).__name__.removesuffix("Error")


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def create(path: str, data: bytes = b"") -> Op:
    """Return the creation of a persistent znode, as an element of a transaction."""
    return Op("create", path, data)


def claim(path: str, data: bytes = b"") -> Op:
    """Return the creation of an ephemeral znode, as an element of a transaction."""
    return Op("create", path, data, ephemeral="ephemeral")


def refusal(call: Callable[..., object], *arguments: object) -> str:
    """Return the name of the error that a call raises."""
    with pytest.raises(ZkError) as caught:
        call(*arguments)
    return caught.value.code


def is_back(session: Session) -> bool:
    """Return whether requests are answered again; False until the client has noticed the cut."""
    try:
        session.exists("/")
    except ZkError:
        return False
    return True


class Server:
    """A server as one test sees it: a directory that is empty at first, and sessions in it."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack
        self._directory = f"/contract-{next(_numbers)}"
        admin = KazooClient(address)
        admin.start(60)
        admin.create(self._directory)
        stack.callback(_clean, admin, self._directory)

    def session(self, *, timeout_s: float = 6.0, directory: str = "") -> Session:
        """A session that is directly connected to the server."""
        return self._session(self._address, directory, timeout_s)

    def session_behind(self, proxy: Proxy, *, timeout_s: float = 6.0) -> Session:
        """A session whose connection goes through `proxy`."""
        return self._session(proxy.address, "", timeout_s)

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; return whether it became true in time."""
        return until(condition, limit_s=LIMIT_S)

    def clock(self) -> float:
        """Return the time in seconds; only differences of such times have a meaning."""
        return time.monotonic()

    def proxy(self) -> Proxy:
        """A proxy in front of the server, which can lose replies and break connections."""
        return self._stack.enter_context(Proxy(self._address))

    def _session(self, address: str, directory: str, timeout_s: float) -> Session:
        session = Session(address, self._directory + directory, timeout_s=timeout_s)
        self._stack.callback(session.close)
        return session


def _clean(admin: KazooClient, directory: str) -> None:
    admin.delete(directory, recursive=True)
    admin.stop()
    admin.close()
