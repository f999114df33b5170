"""A plain connection for tools: many reads at once, transactions, no watches, no membership."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

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

Read = Get | Exists | Children | SyncLeader | Rights

PIPELINE = 5_000
"""Requests that are under way at once: more take memory and gain nothing, and a window of 64 takes
half as long again. The rest waits its turn."""

_RETRY_S = 0.1


class ZooKeeperClient:
    """Reads and writes znodes for as long as it is entered; all paths are below the chroot.

    `config` says where ZooKeeper is, how to authenticate, and with
    `zookeeper.connection.timeout.ms` how long a lost connection is waited for. Nothing is written
    but by `write`. To be used from one thread.

    Raises on entering what `ZooKeeperSession.start` raises.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self._limit_s = config.zookeeper_connection_timeout_s
        self._death: ClientDeath | None = None
        self._session = ZooKeeperSession(
            config, on_state=_unheeded, on_watch=_unheeded, on_death=self._died
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
        """Payload and stat of each of these znodes that exists, in their order.

        Raises AccessDeniedError, naming the first that may not be read, and
        ZooKeeperUnreachableError, as all reads do.
        """
        return dict(self._present(Get(path) for path in paths))

    def read_allowed(self, paths: Iterable[str]) -> dict[str, Node | AccessDeniedError]:
        """As `read`; in place of what may not be read stands the error."""
        return self._allowed(Get(path) for path in paths)

    def children(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """The names below each of these znodes that exists, sorted."""
        return {path: sorted(names) for path, names in self.listed(paths).items()}

    def listed(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """As `children`, in the server's own order, which the JVM's tools show as it is."""
        return dict(self._present(Children(path) for path in paths))

    def list_allowed(self, paths: Iterable[str]) -> dict[str, list[str] | AccessDeniedError]:
        """As `listed`; in place of what may not be listed stands the error."""
        return self._allowed(Children(path) for path in paths)

    def listable(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """As `children`; without those that may not be listed."""
        answers = self.list_allowed(paths)
        return {path: sorted(got) for path, got in answers.items() if isinstance(got, list)}

    def stats(self, paths: Iterable[str]) -> dict[str, Stat]:
        """The stat of each of these znodes that exists."""
        found = self._present(Exists(path) for path in paths)
        return {path: stat for path, stat in found if stat is not None}

    def rights(self, paths: Iterable[str]) -> dict[str, tuple[Right, ...] | AccessDeniedError]:
        """Who may do what with each of these znodes that exists, or the error if that is secret.

        ZooKeeper 3.6 and later put `x` for a digest's hash where we may not administer the znode.
        """
        return self._allowed(Rights(path) for path in paths)

    def tree(self, *roots: str) -> dict[str, Node]:
        """Znodes and everything below them, parents first; empty if they do not exist."""
        nodes: dict[str, Node] = {}
        level = list(roots)
        while level:
            nodes |= self.read(level)
            below = self.children(path for path in level if path in nodes)
            level = [f"{path}/{name}" for path, names in below.items() for name in names]
        return nodes

    def _allowed(self, requests: Iterable[Read]) -> dict[str, Any]:
        """The values of what exists, or the error of what is kept from us."""
        found: dict[str, Any] = {}
        for request, reply in self._replies(requests):
            if reply.code is Code.NO_AUTH:
                found[request.path] = _denied(request)
            elif reply.code is Code.OK:
                found[request.path] = reply.value
        return found

    def _present(self, requests: Iterable[Read]) -> Iterator[tuple[str, Any]]:
        for request, reply in self._replies(requests):
            if reply.code is Code.NO_AUTH:
                raise _denied(request)
            if reply.code is Code.OK:
                yield request.path, reply.value

    def _replies(self, requests: Iterable[Read]) -> Iterator[tuple[Read, Reply]]:
        """A read that met a broken connection is asked again until the time is up."""
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
        """All of these or none, in one transaction.

        A reply that is not OK says with `code` why, and with `value` which of them was refused.
        BROKEN: the connection was lost, and it may have happened or not: `sync`, and read back.
        """
        (reply,) = self._ask([Multi(tuple(writes))])
        return reply

    def sync(self, path: str) -> None:
        """Later reads show whatever any client had been told was done before this call."""
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
            f"the connection to ZooKeeper was lost, and not back within {self._limit_s:g} s",
            where=self.config.zookeeper_hosts,
            remedy="try again when the servers are up",
        )


def _denied(request: Read) -> AccessDeniedError:
    return AccessDeniedError(
        "ZooKeeper does not let us read this",
        where=request.path,
        remedy="authenticate as somebody who may (zookeeper.auth.*)",
    )


def _unheeded(*_: object) -> None:
    """Connections and watches: what was asked for says itself what became of it."""
