"""Requests in kazoo's words, and its answers as replies.

A batch goes past kazoo's own calls where it can: each of these makes an object with a lock and a
condition to wait for, and puts its answer into a queue by itself, which is half of what it costs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient
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
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from zkconsumer.core import paths
from zkconsumer.zk import manyreads
from zkconsumer.zk import requests as rq
from zkconsumer.zk.manyreads import Arm, ManyReads, PlainRead
from zkconsumer.zk.requests import Code, Reply

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
        if self.takes_many and len(batch) >= manyreads.WORTH_IT and manyreads.go_together(batch):
            self._send_together(batch, gathering)
            return
        for index, request in enumerate(batch):
            self.send_one(request, _Slot(gathering, index, request))

    def _send_together(self, batch: Sequence[PlainRead], gathering: _Gathering) -> None:
        index = 0
        for piece in manyreads.pieces(batch):
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
