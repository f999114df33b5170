"""The tools' ZooKeeper client: pipelined reads and transactions, without watches or membership."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeAlias

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import AccessDeniedError, ZkConsumerError, ZooKeeperUnreachableError
from zkconsumer.protocol.requests import (
    Children,
    Code,
    Exists,
    Get,
    Multi,
    Node,
    Reply,
    Right,
    Rights,
    Stat,
    SyncLeader,
    Write,
)
from zkconsumer.zk.session import ClientDeath, ZooKeeperSession

Found: TypeAlias = Any
"""What a read returns; its kind determines the type."""

Read = Get | Exists | Children | SyncLeader | Rights

PIPELINE = 5_000
"""Maximum number of requests in flight; further requests wait. More take memory and gain nothing; a
window of 64 takes half as long again."""

_RETRY_S = 0.1


class ZooKeeperClient:
    """Reads and writes znodes while it is entered; all paths are below the chroot.

    `config` says where ZooKeeper is and how to authenticate. `zookeeper.connection.timeout.ms`
    limits how long a lost connection is retried. Only `write` writes. Use it from one thread.

    Entering raises what `ZooKeeperSession.start` raises.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self._limit_s = config.zookeeper_connection_timeout_s
        self._death: ClientDeath | None = None
        self._session = ZooKeeperSession(
            config, on_state=_ignored, on_watch=_ignored, on_death=self._died
        )

    def _died(self, death: ClientDeath) -> None:
        self._death = death

    def __enter__(self) -> Self:
        self._session.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.stop()

    # ---- reading ---------------------------------------------------------------------------------

    def read(self, paths: Iterable[str]) -> dict[str, Node]:
        """Return payload and stat of each existing znode, in the order of `paths`.

        Raises AccessDeniedError with the first path that may not be read, and
        ZooKeeperUnreachableError; so do all reads.
        """
        return dict(self._present(Get(path) for path in paths))

    def read_allowed(self, paths: Iterable[str]) -> dict[str, Node | AccessDeniedError]:
        """Read as `read` does; a znode that may not be read has the error as its value."""
        return self._allowed(Get(path) for path in paths)

    def children(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the sorted names of the children of each existing znode."""
        return {path: sorted(names) for path, names in self.listed(paths).items()}

    def listed(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the children in the server's own order, in which the JVM's tools print them."""
        return dict(self._present(Children(path) for path in paths))

    def list_allowed(self, paths: Iterable[str]) -> dict[str, list[str] | AccessDeniedError]:
        """List as `listed` does; a znode that may not be listed has the error as its value."""
        return self._allowed(Children(path) for path in paths)

    def listable(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """List as `children` does, without the znodes that may not be listed."""
        answers = self.list_allowed(paths)
        return {path: sorted(got) for path, got in answers.items() if isinstance(got, list)}

    def stats(self, paths: Iterable[str]) -> dict[str, Stat]:
        """Return the stat of each existing znode."""
        found = self._present(Exists(path) for path in paths)
        return {path: stat for path, stat in found if stat is not None}

    def rights(self, paths: Iterable[str]) -> dict[str, tuple[Right, ...] | AccessDeniedError]:
        """Return the access control list of each existing znode, or the error.

        ZooKeeper 3.6 and later replace the hash of a digest by `x` if this client may not
        administer the znode.
        """
        return self._allowed(Rights(path) for path in paths)

    def tree(self, *roots: str) -> dict[str, Node]:
        """Return existing znodes and everything below them, parents first."""
        nodes: dict[str, Node] = {}
        level = list(roots)
        while level:
            nodes |= self.read(level)
            below = self.children(path for path in level if path in nodes)
            level = [f"{path}/{name}" for path, names in below.items() for name in names]
        return nodes

    def _allowed(self, requests: Iterable[Read]) -> dict[str, Found]:
        """Return the values of existing znodes, or the error for those that may not be read."""
        found: dict[str, Found] = {}
        for request, reply in self._replies(requests):
            if reply.code is Code.NO_AUTH:
                found[request.path] = _denied(request)
            elif reply.code is Code.OK:
                found[request.path] = reply.value
        return found

    def _present(self, requests: Iterable[Read]) -> Iterator[tuple[str, Found]]:
        for request, reply in self._replies(requests):
            if reply.code is Code.NO_AUTH:
                raise _denied(request)
            if reply.code is Code.OK:
                yield request.path, reply.value

    def _replies(self, requests: Iterable[Read]) -> Iterator[tuple[Read, Reply]]:
        """Yield each request with its reply; retry after a broken connection."""
        left = iter(requests)
        while batch := list(islice(left, PIPELINE)):
            deadline = time.monotonic() + self._limit_s
            replies = list(self._ask(batch))
            while broken := [i for i, reply in enumerate(replies) if reply.code is Code.BROKEN]:
                if self._death is not None or time.monotonic() > deadline:
                    raise self._lost()
                time.sleep(_RETRY_S)
                again = self._ask([batch[i] for i in broken])
                for i, reply in zip(broken, again, strict=True):
                    replies[i] = reply
            for request, reply in zip(batch, replies, strict=True):
                if reply.code is Code.OTHER:
                    raise ZkConsumerError(f"ZooKeeper refused: {reply.value}", where=request.path)
                yield request, reply

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> Reply:
        """Execute all writes or none, in one transaction.

        If the reply is not OK, its `code` says why and its `value` is the index of the refused
        write. With BROKEN the connection was lost, and the transaction may or may not have been
        executed: `sync`, then read back.
        """
        (reply,) = self._ask([Multi(tuple(writes))])
        return reply

    def sync(self, path: str) -> None:
        """Make later reads show every write acknowledged to any client before this call."""
        for _ in self._present([SyncLeader(path)]):
            pass

    def _ask(self, batch: Sequence[Read | Multi]) -> Sequence[Reply]:
        answer: SimpleQueue[Sequence[Reply]] = SimpleQueue()
        self._session.submit(batch, answer.put)
        try:
            return answer.get(timeout=self._limit_s + self.config.zookeeper_session_timeout_s)
        except Empty:
            raise self._lost() from None

    def _lost(self) -> ZkConsumerError:
        if self._death is not None:
            return self._session.death_error(self._death)
        return ZooKeeperUnreachableError(
            f"the connection to ZooKeeper was lost, and not restored within {self._limit_s:g} s",
            where=self.config.zookeeper_hosts,
            remedy="try again when the servers are up",
        )


def _denied(request: Read) -> AccessDeniedError:
    return AccessDeniedError(
        "ZooKeeper does not allow this client to read the znode",
        where=request.path,
        remedy="authenticate as a user who may read it (zookeeper.auth.*)",
    )


def _ignored(*_: object) -> None:
    """Ignore connection events and watches: the reply to each request reports its result."""
