"""How kazoo waits and calls back: watches and replies in one order, and cheap waiting.

Requests in kazoo's words, and its answers as replies.

A batch goes past kazoo's own calls where it can: each of these makes an object with a lock and a
condition to wait for, and puts its answer into a queue by itself, which is half of what it costs.

Many reads in one request: ZooKeeper's `multiRead`, which kazoo does not know.

A request costs kazoo some 60 us of Python, whatever it asks for; a read in a request of a hundred
costs a tenth. Each is answered for itself, as if it had been sent alone: its payload and stat, its
children, or why not. ZooKeeper has it from 3.6.0 on (`ZooDefs.OpCode.multiRead`); an older server
shuts the connection that such a request comes by.

It takes no watches. Those of payloads are armed together by another request, which ZooKeeper's own
client sends after each reconnect (`ZooDefs.OpCode.setWatches`).
"""

from __future__ import annotations

import logging
import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeGuard

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.states import Callback
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from zkconsumer.protocol import paths
from zkconsumer.protocol import requests as rq
from zkconsumer.protocol.requests import Children, Code, Get, Node, Reply, Request, Rights, Stat

# ---- the connection of a client -----------------------------------------------------------------


def session_id(client: KazooClient) -> int | None:
    """Return the session's number, also while there is no connection.

    `KazooClient.client_id` is None without a connection, although the session may still exist.
    """
    number: int | None = client._session_id
    return number


def observe_connection(
    client: KazooClient,
    *,
    established: Callable[[tuple[int, bytes]], None],
    ended: Callable[[BaseException | None], None],
) -> None:
    """Report each authenticated connection, and the end of the client's connection loop.

    kazoo reports a connection before it authenticates. Its connection loop ends for good when the
    server refuses the credential, and on every exception that kazoo does not expect, for example
    one of a SASL library whose Kerberos ticket has expired. kazoo reports that end as a session
    expiry.

    Args:
        client: a client that has not been started.
        established: gets the session's number and password; called on kazoo's connection thread.
        ended: gets the exception that ended the last attempt to connect, or the loop itself; None
            if the loop was stopped.
    """
    connection: Any = client._connection
    connect, zk_loop = connection._connect, connection.zk_loop
    fault: BaseException | None = None

    def connect_and_report(*args: Any) -> Any:
        nonlocal fault
        fault = None
        try:
            result = connect(*args)
        except BaseException as error:
            fault = error
            raise
        identity = client.client_id
        if identity is not None:
            established(identity)
        return result

    def loop_and_report() -> None:
        nonlocal fault
        try:
            zk_loop()
        except Exception as error:  # noqa: BLE001  # it becomes an event
            fault = error
        ended(fault)

    connection._connect, connection.zk_loop = connect_and_report, loop_and_report


def limit_attempts(
    client: KazooClient,
    limit_s: float,
    *,
    open_tls: Callable[..., Any] | None,
    negotiated: Callable[[float], None],
) -> None:
    """Limit each attempt to connect to `limit_s` seconds, and report the negotiated time-out.

    The two wrapped calls cover everything between the opening of a socket and the first request.

    Args:
        client: a client that has not been started.
        limit_s: the upper bound of every wait within one attempt.
        open_tls: opens an encrypted connection in place of kazoo's plain one.
        negotiated: gets the session timeout in seconds that the server granted, which kazoo keeps
            to itself.
    """
    connection: Any = client._connection
    handler: Any = client.handler
    invoke, create_connection = connection._invoke, handler.create_connection

    def open_socket(address: Any, *, timeout: float = limit_s, **kwargs: Any) -> Any:
        timeout = min(timeout, limit_s)
        if open_tls is not None:
            return open_tls(address, hostname=kwargs.get("hostname"), timeout=timeout)
        return create_connection(address, timeout=timeout, **kwargs)

    def invoke_within_limit(timeout: float, *args: Any, **kwargs: Any) -> Any:
        result = invoke(min(timeout, limit_s), *args, **kwargs)
        granted = getattr(result[0], "time_out", 0) if isinstance(result, tuple) else 0
        if granted > 0:
            negotiated(granted / 1000)
        return result

    connection._invoke, handler.create_connection = invoke_within_limit, open_socket


# ---- kazoo's threads and sockets ----------------------------------------------------------------


class InOrderHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, but that watches and replies arrive in the order the server sent them.

    kazoo has a queue and a thread for each of the two. So the watch that tells of a znode's end
    could come after the reply to a create of the same znode, sent later: a member that has just
    claimed a partition would hear that it had lost it. Whoever is called back must not wait for a
    reply; this package only enqueues.
    """

    def create_socket_pair(self) -> tuple[Any, Any]:
        """What wakes kazoo's thread for each request: its reading end, and the writing end."""
        wake = _Wake(*super().create_socket_pair())
        return wake, wake.other

    def dispatch_callback(self, callback: Callback) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """One system call; kazoo's makes and closes an epoll object for each of five waits a
        request, which is half of what a request costs. No socket may be in two lists.

        A TLS socket is ready, too, when it holds bytes that it has decrypted already; kazoo asks
        the system alone, and leaves the second of two replies in one record until the next ping.
        Where there are requests to send, replies wait for these: batches have an end.
        """
        held = [one for one in rlist if getattr(one, "pending", int)()]
        if held:
            return held, [], []
        if not hasattr(select, "poll"):  # Windows
            ready: tuple[list[Any], list[Any], list[Any]]
            ready = super().select(rlist, wlist, xlist, timeout)
            return ready
        poll = select.poll()
        for one in rlist:
            poll.register(one, select.POLLIN | select.POLLPRI)
        for one in wlist:
            poll.register(one, select.POLLOUT)
        # An error or a hang-up makes ready, too: the read or write that follows reports it.
        found = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [one for one in rlist if one.fileno() in found],
            [one for one in wlist if one.fileno() in found],
            [],
        )


class _Wake:
    """The reading end of a pair of sockets; a byte is on its way only while there are any at all.

    kazoo writes one for each request and reads one for each that it sends: two system calls, and
    a third to find out that there is more to send, which `pending` tells as well.
    """

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self._ours, self._theirs = ours, theirs
        self._count, self._lock = 0, threading.Lock()
        self.other = _Waker(self, theirs)

    def fileno(self) -> int:
        return self._ours.fileno()

    def pending(self) -> int:
        return self._count

    def add(self, count: int) -> None:
        with self._lock:
            if not self._count:
                self._theirs.send(b"\0")
            self._count += count

    def recv(self, count: int) -> bytes:
        with self._lock:
            taken = min(count, self._count)
            self._count -= taken
            if taken and not self._count:
                self._ours.recv(1)
        return bytes(taken)

    def close(self) -> None:
        self._ours.close()


class _Waker:
    """The writing end."""

    def __init__(self, wake: _Wake, plain: socket.socket) -> None:
        self._wake, self._plain = wake, plain

    def send(self, data: bytes) -> int:
        self._wake.add(len(data))
        return len(data)

    def close(self) -> None:
        self._plain.close()


class BulkHandler(InOrderHandler):
    """For thousands of requests at once: few system calls for many requests and replies.

    kazoo takes a write and a wait a request, three reads and as many waits a reply. A TLS socket,
    which another function opens, is left as it is.
    """

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        return _Bulk(super().create_connection(*args, **kwargs))

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What waits to be sent goes when there is nothing more to add, and before any wait."""
        if wlist and all(isinstance(one, _Bulk) and one.has_room() for one in wlist):
            return [], list(wlist), []
        held = [one for one in rlist if getattr(one, "pending", int)()]
        if held:
            return held, [], []
        full = [one for one in (*rlist, *wlist) if isinstance(one, _Bulk) and one.waits]
        if full:
            others = [one for one in rlist if one not in full]
            ready = super().select(others, [], xlist, 0)
            if any(ready):
                return ready
            for one in full:
                one.flush()
        return super().select(rlist, wlist, xlist, timeout)


class _Bulk:
    """A socket that reads ahead and sends later; `pending` says how much was read ahead."""

    _AT_ONCE = 65_536  # bytes: some 500 replies, or 1,000 requests

    def __init__(self, plain: Any) -> None:
        self._plain, self._held, self._at, self.waits = plain, b"", 0, bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def pending(self) -> int:
        return len(self._held) - self._at

    def has_room(self) -> bool:
        return len(self.waits) < self._AT_ONCE

    def recv(self, count: int) -> bytes:
        if not self.pending():
            self._held, self._at = self._plain.recv(self._AT_ONCE), 0
        taken = self._held[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def send(self, data: bytes) -> int:
        self.waits += data
        return len(data)

    def flush(self) -> None:
        """All of it, also where that takes the other side a while to take."""
        waits, self.waits = self.waits, bytearray()
        try:
            before = self._plain.gettimeout()
            self._plain.settimeout(_FLUSH_LIMIT_S)
            try:
                self._plain.sendall(waits)
            finally:
                self._plain.settimeout(before)
        except OSError:
            # Half a request may be out: the connection is of no more use, and the read that
            # follows finds it shut.
            with suppress(OSError):
                self._plain.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self.waits:
            self.flush()
        self._plain.close()


# Seconds that a server may take to read what fills the system's own buffers; then it is given up.
_FLUSH_LIMIT_S = 5.0


# ---- manyreads -----------------------------------------------------------------------------------


SINCE = (3, 6)
"""The first release of ZooKeeper that knows it."""

WORTH_IT = 20
"""Reads of one batch from which on they are put together."""

AT_ONCE = 100
"""Reads in one request. A server makes the whole reply in its memory, where payloads may take 1 MiB
each; what more would gain is not to be seen. The rest goes into further requests."""

REQUEST_BYTES = 512 * 1024
"""Bytes of one request, about: a server shuts the connection at jute.maxbuffer, by default 1 MiB.
The rest goes into further requests."""

PlainRead = Get | rq.Exists | Children

_GET, _CHILDREN, _ERROR = 4, 8, -1  # `ZooDefs.OpCode`
_HEADER = struct.Struct("!i?i")  # `MultiHeader`: the operation, whether this is the end, the error
_END = _HEADER.pack(-1, True, -1)
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_ANY_ZXID = 2**63 - 1  # whenever the znode was last changed, its watch is armed


def release_in(answer: str) -> tuple[int, ...]:
    """Return the release that a server's answer to `srvr` names, as (3, 8, 4); empty if none."""
    found = re.search(r"version: (\d+)\.(\d+)\.(\d+)", answer)
    return tuple(map(int, found.groups())) if found else ()


class ManyReads:
    """One request, as kazoo sends and reads it.

    The result is for each read a Node (of Exists, too) or the names of the children, or
    ZooKeeper's code of the error, a negative number.
    """

    type = 22

    def __init__(self, reads: Sequence[PlainRead], chroot: str) -> None:
        parts: list[bytes] = []
        for read in reads:
            path = ((chroot + read.path).rstrip("/") or "/").encode()
            kind = _CHILDREN if isinstance(read, Children) else _GET
            parts += (_HEADER.pack(kind, False, -1), _INT.pack(len(path)), path, b"\0")
        self._body = b"".join((*parts, _END))

    def serialize(self) -> bytes:
        """`MultiOperationRecord`."""
        return self._body

    def deserialize(self, data: bytes, offset: int) -> list[Node | list[str] | int]:
        """`MultiResponse`."""
        found: list[Node | list[str] | int] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if is_end:
                return found
            (count,) = _INT.unpack_from(data, offset)  # bytes, children, or the error
            offset += _INT.size
            if kind == _ERROR:
                found.append(count)
            elif kind == _CHILDREN:
                names = []
                for _ in range(count):
                    (size,) = _INT.unpack_from(data, offset)
                    offset += _INT.size + size
                    names.append(data[offset - size : offset].decode())
                found.append(names)
            else:
                payload = None if count < 0 else data[offset : offset + count]
                offset += max(count, 0)
                czxid, mzxid, _, mtime, version, _, _, owner, _, _, _ = _STAT.unpack_from(
                    data, offset
                )
                offset += _STAT.size
                found.append(Node(payload, Stat(czxid, mzxid, version, owner, mtime)))


class Arm:
    """One request that watches the payloads of many znodes, as kazoo sends it and reads its end.

    Sent before their reads, it leaves nothing unseen. Of a znode that is not there it arms nothing,
    and tells of its end before the reply: while kazoo knows of no watch, so that this is not heard.
    Before ZooKeeper 3.8.4 it watches a znode also where its read is refused: news of that one only
    makes the reader look again.
    """

    type = 101

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` with the chroot."""
        parts = [struct.pack("!qi", _ANY_ZXID, len(paths))]
        for path in paths:
            encoded = path.encode()
            parts += (_INT.pack(len(encoded)), encoded)
        parts.append(struct.pack("!ii", 0, 0))  # none of absence, none of children
        self._body = b"".join(parts)

    def serialize(self) -> bytes:
        """`SetWatches`."""
        return self._body

    def deserialize(self, data: bytes, offset: int) -> None:
        """The reply is a header alone."""


def go_together(batch: Sequence[Request | Rights]) -> TypeGuard[Sequence[PlainRead]]:
    """Whether it is all reads, without a watch but for that of a payload."""
    return all(
        isinstance(one, PlainRead) and (not one.watch or isinstance(one, Get)) for one in batch
    )


def pieces(reads: Iterable[PlainRead]) -> Iterator[list[PlainRead]]:
    """Cut what is too much for one request."""
    piece: list[PlainRead] = []
    size = 0
    for read in reads:
        more = 4 * len(read.path) + 32  # at most, but for the chroot
        if piece and (len(piece) == AT_ONCE or size + more > REQUEST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(read)
        size += more
    if piece:
        yield piece


# ---- sending -------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

Sent = rq.Request | rq.Rights
Done = Callable[[Sequence[Reply]], None]

_CODES: dict[type[Exception], Code] = {
    kz.NoNodeError: Code.NO_NODE,
    kz.NodeExistsError: Code.NODE_EXISTS,
    kz.BadVersionError: Code.BAD_VERSION,
    kz.NotEmptyError: Code.NOT_EMPTY,
    kz.NoAuthError: Code.NO_AUTH,
    kz.InvalidACLError: Code.NO_AUTH,
    kz.ConnectionLoss: Code.BROKEN,
    kz.SessionExpiredError: Code.BROKEN,
    kz.ConnectionClosedError: Code.BROKEN,
    kz.SessionMovedError: Code.BROKEN,
    kz.OperationTimeoutError: Code.BROKEN,
    kz.AuthFailedError: Code.BROKEN,  # what waits when the server refuses a reconnect
}
_NUMBERS = {kind.code: code for kind, code in _CODES.items() if hasattr(kind, "code")}


class Sender:
    """Sends batches over a client; `watch` gets the watches that fire.

    `takes_many` says whether the server takes many reads in one request.
    """

    def __init__(self, client: KazooClient, watch: Callable[[Any], None]) -> None:
        self._client, self._watch = client, watch
        self.takes_many = False

    def send(self, batch: Sequence[Sent], done: Done) -> None:
        """Send all at once; `done` gets the replies, in order, once.

        It is called on kazoo's completion thread, after every watch that fired before the last
        reply came; or on whatever thread ends the session, if that is ending.
        """
        handler = self._client.handler

        def hand_over(replies: Sequence[Reply]) -> None:
            if handler.running:
                handler.completion_queue.put(partial(done, replies))
            else:
                done(replies)

        gathering = _Gathering(len(batch), hand_over)
        if self.takes_many and len(batch) >= WORTH_IT and go_together(batch):
            self._send_together(batch, gathering)
            return
        for index, request in enumerate(batch):
            self.send_one(request, _Slot(gathering, index, request))

    def _send_together(self, batch: Sequence[PlainRead], gathering: _Gathering) -> None:
        index = 0
        for piece in pieces(batch):
            slots = _Slots(self, gathering, index, piece)
            watched = [self._full(read.path) for read in piece if read.watch]
            if watched:
                self._client._call(Arm(watched), _Armed(self, slots, watched))
            self._client._call(ManyReads(piece, self._client.chroot), slots)
            index += len(piece)

    def heed(self, paths: Sequence[str]) -> None:
        """What is armed is told to `watch`. On kazoo's thread alone, which keeps the watches."""
        for path in paths:
            self._client._data_watchers[path].add(self._watch)

    def send_one(self, request: Sent, slot: _Slot) -> None:
        """Send a request; its answer goes to `slot`."""
        client = self._client
        match request:
            case rq.Get(path, watch):
                client._call(GetData(self._full(path), self._watch if watch else None), slot)
            case rq.Exists(path, watch):
                client._call(Exists(self._full(path), self._watch if watch else None), slot)
            case rq.Children(path, watch):
                client._call(GetChildren(self._full(path), self._watch if watch else None), slot)
            case rq.Rights(path):
                client._call(GetACL(self._full(path)), slot)
            case rq.SyncLeader(path):
                client._call(Sync(self._full(path)), slot)
            case rq.Multi(writes):
                client._call(Transaction([self._operation(write) for write in writes]), slot)
            case rq.Create(path, data, ephemeral):
                if len(data or b"") > rq.MAX_PAYLOAD_BYTES:
                    slot.reply(Reply(Code.TOO_LARGE))
                    return
                made = client.create_async(path, data, acl=_acl(request), ephemeral=ephemeral)
                made.rawlink(slot.take)

    def _full(self, path: str) -> str:
        """Below the chroot, as the watches on it are kept."""
        chroot: str = self._client.chroot
        return chroot + path if path != "/" else chroot or path

    def _operation(self, write: rq.Write) -> Any:
        path = self._full(write.path)
        match write:
            case rq.Create(_, data, ephemeral):
                rights = _acl(write)
                if rights is None:
                    rights = self._client.default_acl or OPEN_ACL_UNSAFE
                return Create(path, data, rights, int(ephemeral))
            case rq.SetData(_, data, version):
                return SetData(path, data, version)
            case rq.Delete(_, version):
                return Delete(path, version)
            case rq.Check(_, version):
                return CheckVersion(path, version)


class _Gathering:
    """The replies of a batch. They come on kazoo's thread; on the sender's what is not sent."""

    def __init__(self, count: int, done: Done) -> None:
        self._replies: list[Reply | None] = [None] * count
        self._left, self._done, self._lock = count, done, threading.Lock()

    def reply(self, index: int, reply: Reply) -> None:
        with self._lock:
            if self._replies[index] is not None:
                return  # kazoo answers twice for what meets the end of a session
            self._replies[index] = reply
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._done(self._replies)  # type: ignore[arg-type]


class _Slot:
    """Where one answer goes; to kazoo what it calls an async object, of which it uses this much."""

    __slots__ = ("_gathering", "_index", "_request")

    def __init__(self, gathering: _Gathering, index: int, request: Sent) -> None:
        self._gathering, self._index, self._request = gathering, index, request

    def set(self, value: Any) -> None:
        self.reply(_reply(self._request, value))

    def set_exception(self, error: Exception) -> None:
        self.reply(Reply(_code(error), f"{type(error).__name__} {error}".strip()))

    def take(self, result: Any) -> None:
        """From one of kazoo's own async objects, which is ready."""
        if result.exception is None:
            self.set(result.value)
        else:
            self.set_exception(result.exception)

    def reply(self, reply: Reply) -> None:
        self._gathering.reply(self._index, reply)


class _Slots:
    """Where the answers of many reads go, which come as one."""

    __slots__ = ("_first", "_gathering", "_reads", "_sender")

    def __init__(
        self, sender: Sender, gathering: _Gathering, first: int, reads: Sequence[PlainRead]
    ) -> None:
        self._sender, self._gathering = sender, gathering
        self._first, self._reads = first, reads

    def set(self, found: Sequence[rq.Node | list[str] | int]) -> None:
        if len(found) != len(self._reads):
            self.set_exception(RuntimeError(f"{len(found)} answers to {len(self._reads)} reads"))
            return
        for index, (read, one) in enumerate(zip(self._reads, found, strict=True), self._first):
            if one == kz.NoAuthError.code and isinstance(read, rq.Exists):
                # Before 3.8.3 its stat takes no right (ZOOKEEPER-2590), as its payload does.
                self._sender.send_one(read, _Slot(self._gathering, index, read))
            else:
                self._gathering.reply(index, _read_reply(read, one))

    def set_exception(self, error: Exception) -> None:
        if _code(error) is not Code.BROKEN:
            # A server before 3.6, which the connection has moved to: it says so and shuts it.
            self._sender.takes_many = False
        reply = Reply(Code.BROKEN, f"{type(error).__name__} {error}".strip())
        for index in range(self._first, self._first + len(self._reads)):
            self._gathering.reply(index, reply)


class _Armed:
    """Where the end of an arming goes; refused, it takes the reads that it is for along."""

    __slots__ = ("_paths", "_sender", "_slots")

    def __init__(self, sender: Sender, slots: _Slots, paths: Sequence[str]) -> None:
        self._sender, self._slots, self._paths = sender, slots, paths

    def set(self, _: None) -> None:
        self._sender.heed(self._paths)

    def set_exception(self, error: Exception) -> None:
        self._slots.set_exception(error)


def _read_reply(read: PlainRead, found: rq.Node | list[str] | int) -> Reply:
    if isinstance(found, int):
        code = _NUMBERS.get(found, Code.OTHER)
        if code is Code.NO_NODE and isinstance(read, rq.Exists):
            return Reply(Code.OK, None)
        return Reply(code, f"error {found}")
    if isinstance(read, rq.Exists) and isinstance(found, rq.Node):
        return Reply(Code.OK, found.stat)
    return Reply(Code.OK, found)


def _acl(request: rq.Create) -> list[ACL] | None:
    """All groups stand below one znode: whoever makes it must not shut the others out."""
    if request.rights is None:
        return OPEN_ACL_UNSAFE if request.path == paths.CONSUMERS else None
    who = ((right.permissions, right.identity.partition(":")) for right in request.rights)
    return [ACL(permissions, Id(scheme, name)) for permissions, (scheme, _, name) in who]


def _stat(stat: Any) -> rq.Stat:
    return rq.Stat(stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner, stat.mtime)


def _reply(request: Sent, value: Any) -> Reply:
    match request:
        case rq.Get():
            return Reply(Code.OK, rq.Node(value[0], _stat(value[1])))
        case rq.Exists():
            return Reply(Code.OK, None if value is None else _stat(value))
        case rq.Multi():
            return _multi_reply(value)
        case rq.Rights():
            entries = (rq.Right(f"{one.id.scheme}:{one.id.id}", one.perms) for one in value[0])
            return Reply(Code.OK, tuple(entries))
        case _:
            return Reply(Code.OK, value)


def _multi_reply(results: Sequence[Any]) -> Reply:
    """The one that failed stands between those rolled back and those never tried."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(
            result, kz.RolledBackError | kz.RuntimeInconsistency
        ):
            return Reply(_code(result), index)
    if any(isinstance(result, Exception) for result in results):
        return Reply(Code.OTHER, 0)
    return Reply(Code.OK, results)


def _code(error: BaseException) -> Code:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    logger.debug("ZooKeeper refused with %r", error)
    return Code.OTHER
