"""All code that relies on kazoo's internals: connections, threads, sockets, requests.

- `observe_connection`, `limit_attempts` and `resolve_hosts` wrap private methods of kazoo's
  connection.
- `InOrderHandler` and `BulkHandler` replace kazoo's threads and sockets. The handlers deliver
  watches and replies in one order, and need few system calls.
- `MultiRead` and `SetWatches` are two requests that kazoo does not have. `MultiRead` is ZooKeeper's
  `multiRead` (`ZooDefs.OpCode.multiRead`, since 3.6.0), which puts many reads into one request. A
  single read costs kazoo about 60 us of Python; a read in a request of a hundred reads costs a
  tenth of that. Each read has its own result, as if it had been sent alone. A server before 3.6.0
  closes the connection. `multiRead` sets no watches, so `SetWatches` sets the watches on payloads.
  `SetWatches` is the request that ZooKeeper's own client sends after a reconnect
  (`ZooDefs.OpCode.setWatches`).
- `Sender` sends batches of requests and returns their replies as values. It bypasses kazoo's own
  calls where possible. Each of kazoo's calls makes an object with a lock and a condition, and
  queues its result separately; this is half of the cost of a request.
"""

from __future__ import annotations

import logging
import random
import re
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeGuard

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import (
    CheckVersion,
    Connect,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
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
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk.attempts import Attempts, HandshakeStage

FromKazoo: TypeAlias = Any  # Any: kazoo has no types

# ---- the connection of a client -----------------------------------------------------------------


def session_id(client: KazooClient) -> int | None:
    """Return the session id, even while there is no connection.

    `KazooClient.client_id` is None without a connection, although the session may still exist.
    """
    number: int | None = client._session_id
    return number


def observe_connection(
    client: KazooClient,
    *,
    attempts: Attempts,
    established: Callable[[tuple[int, bytes]], None],
    ended: Callable[[BaseException | None], None],
) -> None:
    """Report each authenticated connection, and the end of the client's connection loop.

    kazoo reports a connection before it authenticates. Its connection loop ends permanently when
    the server refuses the credential, and on every exception that kazoo does not expect. An example
    is the exception of a SASL library whose Kerberos ticket has expired. kazoo reports this end as
    a session expiry.

    If the servers have lost the session with their data, kazoo begins a new one, as after an
    expiry. Its first request is `sync`, because its server may be behind.

    Args:
        client: a client that has not been started.
        attempts: records the attempts, and tells whether the servers have lost the session.
        established: receives the session id and password, on kazoo's connection thread.
        ended: receives the exception that ended the last connection attempt or the connection loop;
            None if the loop was stopped.
    """
    connection: FromKazoo = client._connection
    connect, zk_loop = connection._connect, connection.zk_loop
    fault: BaseException | None = None

    def connect_and_report(host: str, hostip: str, port: int) -> FromKazoo:
        nonlocal fault
        fault = None
        attempts.begin(host, (hostip, port))
        try:
            result = connect(host, hostip, port)
            if attempts.must_sync:
                connection._invoke(float("inf"), Sync("/"), xid=1)  # `limit_attempts` limits it
                attempts.must_sync = False
        except BaseException as error:
            fault = error
            if isinstance(error, kz.ConnectionDropped | KazooTimeoutError):
                attempts.failed(error)
                session = session_id(client)
                if session and attempts.has_lost_data(seen=client.last_zxid, session_id=session):
                    raise kz.SessionExpiredError from error
            raise
        attempts.succeeded()
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


def resolve_hosts(client: KazooClient, attempts: Attempts) -> None:
    """Let the attempts resolve the servers' names, in a random order of the servers.

    kazoo writes a log line for each name that it cannot resolve, and tells nobody.
    """
    connection: FromKazoo = client._connection

    def resolve() -> list[tuple[str, str, int]]:
        found = attempts.resolve(client.hosts)
        random.shuffle(found)
        return found

    connection._expand_client_hosts = resolve


def limit_attempts(
    client: KazooClient,
    limit_s: Callable[[], float],
    *,
    attempts: Attempts,
    open_tls: Callable[..., FromKazoo] | None,
    negotiated: Callable[[float], None],
) -> None:
    """Limit each attempt to connect to `limit_s()` seconds, and report the negotiated timeout.

    The two wrapped calls cover the whole time from the opening of a socket to the first request.

    Args:
        client: a client that has not been started.
        limit_s: returns the upper bound, in seconds, of every wait within one attempt.
        attempts: learns how far the attempt has come.
        open_tls: opens an encrypted connection instead of kazoo's plain one.
        negotiated: receives the session timeout in seconds that the server granted; kazoo itself
            does not report it.
    """
    connection: FromKazoo = client._connection
    handler: FromKazoo = client.handler
    invoke, create_connection = connection._invoke, handler.create_connection
    read = connection._read

    def open_socket(
        address: FromKazoo, *, timeout: float = float("inf"), **kwargs: FromKazoo
    ) -> FromKazoo:
        timeout = min(timeout, limit_s())
        if open_tls is not None:
            return open_tls(address, hostname=kwargs.get("hostname"), timeout=timeout)
        return create_connection(address, timeout=timeout, **kwargs)

    def invoke_within_limit(
        timeout: float, request: FromKazoo, xid: int | None = None
    ) -> FromKazoo:
        if not isinstance(request, Connect):
            return invoke(min(timeout, limit_s()), request, xid)
        attempts.stage = HandshakeStage.GREETING
        result = invoke(min(timeout, limit_s()), request, xid)
        attempts.stage = HandshakeStage.LOGIN
        granted = getattr(result[0], "time_out", 0) if isinstance(result, tuple) else 0
        if granted > 0:
            negotiated(granted / 1000)
        return result

    def read_plausible(length: int, timeout: float) -> FromKazoo:
        # Another kind of server answers with other bytes, which kazoo would take for a length.
        if attempts.stage is HandshakeStage.GREETING and length != _INT.size:
            attempts.check_greeting(length)
        return read(length, timeout)

    connection._invoke, connection._read = invoke_within_limit, read_plausible
    handler.create_connection = open_socket


# ---- kazoo's threads and sockets ----------------------------------------------------------------


class InOrderHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with watches and replies in the order in which the server sent them.

    kazoo has one queue and thread for watches, and another for replies. So the watch event for the
    deletion of a znode could arrive after the reply to a later create of that znode. A member that
    has just claimed a partition would then assume that it has lost the partition. Callbacks must
    not wait for a reply; this package's callbacks only enqueue.
    """

    def create_socket_pair(self) -> tuple[FromKazoo, FromKazoo]:
        """Return the reading and the writing end of the pair that wakes kazoo's thread."""
        wake = _WakeReader(*super().create_socket_pair())
        return wake, wake.other

    def dispatch_callback(self, callback: Callback) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))

    def select(
        self,
        rlist: Sequence[FromKazoo],
        wlist: Sequence[FromKazoo],
        xlist: Sequence[FromKazoo],
        timeout: float | None = None,
    ) -> tuple[list[FromKazoo], list[FromKazoo], list[FromKazoo]]:
        """Wait for sockets with one system call; no socket may be in two lists.

        kazoo's own implementation opens and closes an epoll object for each of five waits per
        request, which is half of the cost of a request. This method reports a TLS socket as ready
        even if only decrypted bytes wait in it. kazoo asks only the operating system: if one TLS
        record contained two replies, kazoo would read the second reply only at the next ping.
        Waiting requests are sent before replies are read. This delays a reply only briefly, because
        a batch is finite.
        """
        held = [one for one in rlist if getattr(one, "pending", int)()]
        if held:
            return held, [], []
        if sys.platform == "win32":
            ready: tuple[list[FromKazoo], list[FromKazoo], list[FromKazoo]]
            ready = super().select(rlist, wlist, xlist, timeout)
            return ready
        poll = select.poll()
        for one in rlist:
            poll.register(one, select.POLLIN | select.POLLPRI)
        for one in wlist:
            poll.register(one, select.POLLOUT)
        # A socket with an error or a hang-up is also ready: the next read or write reports it.
        found = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [one for one in rlist if one.fileno() in found],
            [one for one in wlist if one.fileno() in found],
            [],
        )


class _WakeReader:
    """The reading end of a pair of sockets with at most one byte in transit.

    For each request kazoo writes one byte to wake its thread, and the thread reads one byte before
    it sends the request. kazoo needs two system calls for this, and a third one to check whether
    more requests wait. `pending` answers this question without a system call.
    """

    def __init__(self, reader: socket.socket, writer: socket.socket) -> None:
        self._reader, self._writer = reader, writer
        self._count, self._lock = 0, threading.Lock()
        self.other = _WakeWriter(self, writer)

    def fileno(self) -> int:
        return self._reader.fileno()

    def pending(self) -> int:
        return self._count

    def add(self, count: int) -> None:
        with self._lock:
            if not self._count:
                self._writer.send(b"\0")
            self._count += count

    def recv(self, count: int) -> bytes:
        with self._lock:
            taken = min(count, self._count)
            self._count -= taken
            if taken and not self._count:
                self._reader.recv(1)
        return bytes(taken)

    def close(self) -> None:
        self._reader.close()


class _WakeWriter:
    """The writing end of the pair of sockets."""

    def __init__(self, wake: _WakeReader, plain: socket.socket) -> None:
        self._wake, self._plain = wake, plain

    def send(self, data: bytes) -> int:
        self._wake.add(len(data))
        return len(data)

    def close(self) -> None:
        self._plain.close()


class BulkHandler(InOrderHandler):
    """kazoo's threads with few system calls, for thousands of requests at once.

    kazoo needs a write and a wait per request, and three reads and three waits per reply. This
    handler buffers plain sockets only; TLS sockets are opened elsewhere and have no buffers.
    """

    def create_connection(self, *args: FromKazoo, **kwargs: FromKazoo) -> FromKazoo:
        return _BufferedSocket(super().create_connection(*args, **kwargs))

    def select(
        self,
        rlist: Sequence[FromKazoo],
        wlist: Sequence[FromKazoo],
        xlist: Sequence[FromKazoo],
        timeout: float | None = None,
    ) -> tuple[list[FromKazoo], list[FromKazoo], list[FromKazoo]]:
        """Wait for sockets; before that, send the buffered requests."""
        if wlist and all(isinstance(one, _BufferedSocket) and one.has_room() for one in wlist):
            return [], list(wlist), []
        held = [one for one in rlist if getattr(one, "pending", int)()]
        if held:
            return held, [], []
        full = [one for one in (*rlist, *wlist) if isinstance(one, _BufferedSocket) and one.waits]
        if full:
            others = [one for one in rlist if one not in full]
            ready = super().select(others, [], xlist, 0)
            if any(ready):
                return ready
            for one in full:
                one.flush()
        return super().select(rlist, wlist, xlist, timeout)


class _BufferedSocket:
    """A socket with buffers for both directions; `pending` is the number of bytes read ahead."""

    _AT_ONCE = 65_536  # bytes per system call: about 500 replies, or 1,000 requests

    def __init__(self, plain: FromKazoo) -> None:
        self._plain, self._held, self._at, self.waits = plain, b"", 0, bytearray()

    def __getattr__(self, name: str) -> FromKazoo:
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
        """Send all buffered bytes, even if the server takes a while to read them."""
        waits, self.waits = self.waits, bytearray()
        try:
            before = self._plain.gettimeout()
            self._plain.settimeout(_FLUSH_LIMIT_S)
            try:
                self._plain.sendall(waits)
            finally:
                self._plain.settimeout(before)
        except OSError:
            # A part of a request may have been sent, so the connection is unusable. The next read
            # detects that it is shut down.
            with suppress(OSError):
                self._plain.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self.waits:
            self.flush()
        self._plain.close()


# Seconds to wait until the server has read enough to free room in the system's buffers. After
# this time the connection is closed.
_FLUSH_LIMIT_S = 5.0


# ---- many reads in one request -------------------------------------------------------------------


SINCE = (3, 6)
"""The first release of ZooKeeper that supports `multiRead`."""

MIN_MULTI_READ = 20
"""A batch with at least this many reads sends them as one request."""

MAX_MULTI_READ = 100
"""Maximum number of reads in one request; further reads need another request.

A server builds the whole reply in memory, and each payload may take 1 MiB. More reads per request
gain nothing measurable.
"""

REQUEST_BYTES = 512 * 1024
"""Approximate maximum number of bytes of one request; further reads need another request.

A server closes the connection at `jute.maxbuffer`, by default 1 MiB.
"""

PlainRead = Get | rq.Exists | Children

_GET, _CHILDREN, _ERROR = 4, 8, -1  # `ZooDefs.OpCode`
_HEADER = struct.Struct("!i?i")  # `MultiHeader`: operation, whether it is the end mark, error
_END = _HEADER.pack(-1, True, -1)
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_ANY_ZXID = 2**63 - 1  # the server sets the watch regardless of the znode's last change


def release_in(answer: str) -> tuple[int, ...]:
    """Return the release in an answer to `srvr`, such as (3, 8, 4); empty if it contains none."""
    found = re.search(r"version: (\d+)\.(\d+)\.(\d+)", answer)
    return tuple(map(int, found.groups())) if found else ()


class MultiRead:
    """One `multiRead` request, as kazoo serializes it and reads its response.

    The result of each read is a Node (also for Exists), the names of the children, or ZooKeeper's
    error code, a negative number.
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
        """Return the bytes of a `MultiOperationRecord`."""
        return self._body

    def deserialize(self, data: bytes, offset: int) -> list[Node | list[str] | int]:
        """Return the results in a `MultiResponse`."""
        found: list[Node | list[str] | int] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if is_end:
                return found
            (count,) = _INT.unpack_from(data, offset)  # bytes, number of children, or error code
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


class SetWatches:
    """One `setWatches` request for the payloads of many znodes, as kazoo serializes it.

    The request is sent before the reads, so no change is missed. It sets no watch on a znode that
    does not exist: the server sends a deletion event before the reply, and kazoo ignores the event,
    because it has not registered a watch yet. Before ZooKeeper 3.8.4 the request also watches
    znodes that this client may not read. An event about such a znode only makes the reader read
    again.
    """

    type = 101

    def __init__(self, paths: Sequence[str]) -> None:
        """Create a request for these paths, which include the chroot."""
        parts = [struct.pack("!qi", _ANY_ZXID, len(paths))]
        for path in paths:
            encoded = path.encode()
            parts += (_INT.pack(len(encoded)), encoded)
        parts.append(struct.pack("!ii", 0, 0))  # no watches on absent znodes or on children
        self._body = b"".join(parts)

    def serialize(self) -> bytes:
        """Return the bytes of a `SetWatches`."""
        return self._body

    def deserialize(self, data: bytes, offset: int) -> None:
        """Return nothing: the reply has only a header."""


def are_plain_reads(batch: Sequence[Request | Rights]) -> TypeGuard[Sequence[PlainRead]]:
    """Return whether all requests are reads that set no watches except on payloads."""
    return all(
        isinstance(one, PlainRead) and (not one.watch or isinstance(one, Get)) for one in batch
    )


def split_reads(reads: Iterable[PlainRead]) -> Iterator[list[PlainRead]]:
    """Split the reads into lists; each list fits into one request."""
    piece: list[PlainRead] = []
    size = 0
    for read in reads:
        more = 4 * len(read.path) + 32  # upper bound, without the chroot
        if piece and (len(piece) == MAX_MULTI_READ or size + more > REQUEST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(read)
        size += more
    if piece:
        yield piece


# ---- batches of requests -------------------------------------------------------------------------


logger = SafeLogger(logging.getLogger(__name__))

TransportRequest = rq.Request | rq.Rights
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
    kz.AuthFailedError: Code.BROKEN,  # the server has refused the login
}
_NUMBERS = {kind.code: code for kind, code in _CODES.items() if hasattr(kind, "code")}


class Sender:
    """Sends batches over a client; `watch` receives the watches that fire.

    `has_multi_read` says whether the server supports many reads in one request.
    """

    def __init__(self, client: KazooClient, watch: Callable[[FromKazoo], None]) -> None:
        self._client, self._watch = client, watch
        self.has_multi_read = False

    def send(self, batch: Sequence[TransportRequest], done: Done) -> None:
        """Send all requests together; `done` receives the replies once, in order.

        kazoo's completion thread calls `done`, after every watch that fired before the last reply.
        While the session ends, the thread that ends it may call `done`.
        """
        handler = self._client.handler

        def hand_over(replies: Sequence[Reply]) -> None:
            if handler.running:
                handler.completion_queue.put(partial(done, replies))
            else:
                done(replies)

        batch_reply = _BatchReply(len(batch), hand_over)
        if self.has_multi_read and len(batch) >= MIN_MULTI_READ and are_plain_reads(batch):
            self._send_together(batch, batch_reply)
            return
        for index, request in enumerate(batch):
            self.send_one(request, _SingleReply(batch_reply, index, request))

    def _send_together(self, batch: Sequence[PlainRead], batch_reply: _BatchReply) -> None:
        index = 0
        for piece in split_reads(batch):
            slots = _MultiReadReply(self, batch_reply, index, piece)
            watched = [self._full(read.path) for read in piece if read.watch]
            if watched:
                self._client._call(SetWatches(watched), _SetWatchesReply(self, slots, watched))
            self._client._call(MultiRead(piece, self._client.chroot), slots)
            index += len(piece)

    def register_watches(self, paths: Sequence[str]) -> None:
        """Register `watch` for the events of armed watches; kazoo's thread calls this method."""
        for path in paths:
            self._client._data_watchers[path].add(self._watch)

    def send_one(self, request: TransportRequest, slot: _SingleReply) -> None:
        """Send one request; its reply goes to `slot`."""
        client = self._client
        match request:
            case rq.Get(path, watch):
                client._call(GetData(self._full(path), self._watch if watch else None), slot)
            case rq.Exists(path, watch):
                client._call(Exists(self._full(path), self._watch if watch else None), slot)
            case rq.Children(path, watch):
                client._call(GetChildren(self._full(path), self._watch if watch else None), slot)
            case rq.Listing(path, watch):
                client._call(GetChildren2(self._full(path), self._watch if watch else None), slot)
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
        """Return the path including the chroot; kazoo stores watches under such paths."""
        chroot: str = self._client.chroot
        return chroot + path if path != "/" else chroot or path

    def _operation(self, write: rq.Write) -> FromKazoo:
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


class _BatchReply:
    """Collects the replies of a batch.

    kazoo's thread adds replies; the sender's thread adds replies for requests that are not sent.
    """

    def __init__(self, count: int, done: Done) -> None:
        self._replies: list[Reply | None] = [None] * count
        self._left, self._done, self._lock = count, done, threading.Lock()

    def reply(self, index: int, reply: Reply) -> None:
        with self._lock:
            if self._replies[index] is not None:
                return  # kazoo replies twice to a pending request when the session ends
            self._replies[index] = reply
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._done(self._replies)  # type: ignore[arg-type]  # all have arrived


class _SingleReply:
    """Receives one reply, with the methods of an async object that kazoo uses."""

    __slots__ = ("_batch_reply", "_index", "_request")

    def __init__(self, batch_reply: _BatchReply, index: int, request: TransportRequest) -> None:
        self._batch_reply, self._index, self._request = batch_reply, index, request

    def set(self, value: FromKazoo) -> None:
        self.reply(_reply(self._request, value))

    def set_exception(self, error: Exception) -> None:
        self.reply(Reply(_code(error), f"{type(error).__name__} {error}".strip()))

    def take(self, result: FromKazoo) -> None:
        """Take the result of one of kazoo's own async objects, whose result is available."""
        if result.exception is None:
            self.set(result.value)
        else:
            self.set_exception(result.exception)

    def reply(self, reply: Reply) -> None:
        self._batch_reply.reply(self._index, reply)


class _MultiReadReply:
    """Receives the common reply to many reads."""

    __slots__ = ("_batch_reply", "_first", "_reads", "_sender")

    def __init__(
        self, sender: Sender, batch_reply: _BatchReply, first: int, reads: Sequence[PlainRead]
    ) -> None:
        self._sender, self._batch_reply = sender, batch_reply
        self._first, self._reads = first, reads

    def set(self, found: Sequence[rq.Node | list[str] | int]) -> None:
        if len(found) != len(self._reads):
            self.set_exception(RuntimeError(f"{len(found)} answers to {len(self._reads)} reads"))
            return
        for index, (read, one) in enumerate(zip(self._reads, found, strict=True), self._first):
            if one == kz.NoAuthError.code and isinstance(read, rq.Exists):
                # `multiRead` reads the payload, which needs the read permission. Before 3.8.3,
                # `exists` needs no permission (ZOOKEEPER-2590), so it is sent again alone.
                self._sender.send_one(read, _SingleReply(self._batch_reply, index, read))
            else:
                self._batch_reply.reply(index, _read_reply(read, one))

    def set_exception(self, error: Exception) -> None:
        if _code(error) is not Code.BROKEN:
            # The client has reconnected to a server older than 3.6, which refuses the request and
            # closes the connection.
            self._sender.has_multi_read = False
        reply = Reply(Code.BROKEN, f"{type(error).__name__} {error}".strip())
        for index in range(self._first, self._first + len(self._reads)):
            self._batch_reply.reply(index, reply)


class _SetWatchesReply:
    """Receives the reply to `SetWatches`; if it is refused, the reads fail with the same error."""

    __slots__ = ("_paths", "_sender", "_slots")

    def __init__(self, sender: Sender, slots: _MultiReadReply, paths: Sequence[str]) -> None:
        self._sender, self._slots, self._paths = sender, slots, paths

    def set(self, _: None) -> None:
        self._sender.register_watches(self._paths)

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
    """Return the ACL for a new znode.

    All users may use /consumers: it contains all groups, so the user who creates it must not lock
    out other users.
    """
    if request.rights is None:
        return OPEN_ACL_UNSAFE if request.path == paths.CONSUMERS else None
    who = ((right.permissions, right.identity.partition(":")) for right in request.rights)
    return [ACL(permissions, Id(scheme, name)) for permissions, (scheme, _, name) in who]


def _stat(stat: FromKazoo) -> rq.Stat:
    return rq.Stat(stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner, stat.mtime)


def _reply(request: TransportRequest, value: FromKazoo) -> Reply:
    match request:
        case rq.Get():
            return Reply(Code.OK, rq.Node(value[0], _stat(value[1])))
        case rq.Exists():
            return Reply(Code.OK, None if value is None else _stat(value))
        case rq.Listing():
            return Reply(Code.OK, rq.ListedChildren(tuple(value[0]), value[1].cversion))
        case rq.Multi():
            return _multi_reply(value)
        case rq.Rights():
            entries = (rq.Right(f"{one.id.scheme}:{one.id.id}", one.perms) for one in value[0])
            return Reply(Code.OK, tuple(entries))
        case _:
            return Reply(Code.OK, value)


def _multi_reply(results: Sequence[FromKazoo]) -> Reply:
    """Return the reply of the write that failed; all other writes were rolled back or not tried."""
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
    logger.debug("ZooKeeper refused with %s", repr(error))
    return Code.OTHER
