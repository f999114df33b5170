"""The tools' ZooKeeper client: pipelined reads and transactions, without watches or membership."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Self, TypeVar

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.errors import AccessDeniedError, ZkConsumerError, ZooKeeperUnreachableError
from zkconsumer.protocol.paths import CONSUMERS
from zkconsumer.protocol.requests import (
    Children,
    Code,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    Node,
    Reply,
    Result,
    Right,
    Rights,
    Stat,
    SyncLeader,
    Write,
    denied,
    run_operation,
)
from zkconsumer.zk.session import ClientDeath, ZooKeeperSession

Read = Get | Exists | Children | SyncLeader | Rights

T = TypeVar("T")

PIPELINE = 5_000
"""Maximum number of requests in flight; further requests wait.

More requests take memory and gain nothing. With a window of 64, a read takes 50 % longer.
"""

_RETRY_S = 0.1

_RECREATE_S = 5.0
"""Minimum time in seconds between two replacements of a client that has failed for good: a server
may lock a user who logs in too often."""


class ZooKeeperClient:
    """A context manager that reads and writes znodes; all paths are below the chroot.

    `config` says where ZooKeeper is and how to authenticate. `zookeeper.connection.timeout.ms`
    limits how long the client tries to restore a lost connection. Only `write` writes. Use the
    client from one thread.

    Entering raises the errors of `ZooKeeperSession.start`.

    Attributes:
        death: why the client has failed for good; None: it has not. Each call then raises an error
            until `recreate`.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self._limit_s = config.zookeeper_connection_timeout_s
        self.death: ClientDeath | None = None
        self._recreate_at = 0.0
        self._session = ZooKeeperSession(
            config, on_state=_ignored, on_watch=_ignored, on_death=self._died
        )

    def _died(self, death: ClientDeath) -> None:
        self.death = death

    def __enter__(self) -> Self:
        self._session.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._session.stop()

    def recreate(self) -> None:
        """Replace a client that has failed for good; returns at once.

        If its session has not expired, the new client resumes it. A command ends instead, but a
        process that runs for long may find a Kerberos ticket renewed, or a server restarted.
        """
        self.death = None
        self._session.recreate()

    def recreate_if_dead(self) -> None:
        """Replace a client that has failed for good, at most once in `_RECREATE_S` seconds.

        A tool that reads repeatedly calls this method before each reading.
        """
        now = time.monotonic()
        if self.death is not None and now >= self._recreate_at:
            self._recreate_at = now + _RECREATE_S
            self.recreate()

    # ---- reading ---------------------------------------------------------------------------------

    def run(self, operation: Generator[Sequence[Read], Sequence[Reply], T]) -> T:
        """Run an operation that only reads, and return its result.

        Raises ZooKeeperUnreachableError, and what the operation raises.
        """
        return run_operation(operation, lambda batch: [reply for _, reply in self._replies(batch)])

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that ZooKeeper has granted, in seconds."""
        return self._session.timeout_s

    def read(self, paths: Iterable[str]) -> dict[str, Node]:
        """Return payload and stat of each existing znode, in the order of `paths`.

        Like all reads, this call raises ZooKeeperUnreachableError. It raises AccessDeniedError with
        the first path that this client may not read.
        """
        return dict(self._present(Get(path) for path in paths))

    def read_allowed(self, paths: Iterable[str]) -> dict[str, Node | AccessDeniedError]:
        """Read as `read` does; the value of a znode that this client may not read is the error."""
        return self._allowed(Get(path) for path in paths)

    def children(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the sorted names of the children of each existing znode."""
        return {path: sorted(names) for path, names in self.children_in_server_order(paths).items()}

    def children_in_server_order(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the children in the server's own order, in which the JVM's tools print them."""
        return dict(self._present(Children(path) for path in paths))

    def list_allowed(self, paths: Iterable[str]) -> dict[str, list[str] | AccessDeniedError]:
        """List as `children_in_server_order` does; the value of a forbidden znode is the error."""
        return self._allowed(Children(path) for path in paths)

    def permitted_children(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """List as `children` does, without the znodes that this client may not list."""
        answers = self.list_allowed(paths)
        return {path: sorted(got) for path, got in answers.items() if isinstance(got, list)}

    def stats(self, paths: Iterable[str]) -> dict[str, Stat]:
        """Return the stat of each existing znode."""
        found = self._present(Exists(path) for path in paths)
        return {path: stat for path, stat in found if stat is not None}

    def stats_allowed(self, paths: Iterable[str]) -> dict[str, Stat | AccessDeniedError]:
        """Return stats as `stats` does; the value of a forbidden znode is the error."""
        found = self._allowed(Exists(path) for path in paths)
        return {path: stat for path, stat in found.items() if stat is not None}

    def rights(self, paths: Iterable[str]) -> dict[str, tuple[Right, ...] | AccessDeniedError]:
        """Return the access control list of each existing znode, or the error.

        ZooKeeper 3.6 and later return `x` in place of a digest's hash if this client may not
        administer the znode.
        """
        return self._allowed(Rights(path) for path in paths)

    def tree(self, *roots: str) -> dict[str, Node]:
        """Return existing znodes and all znodes below them, parents first."""
        nodes, refused = self.tree_allowed(*roots)
        for error in refused.values():
            raise error
        return nodes

    def tree_allowed(self, *roots: str) -> tuple[dict[str, Node], dict[str, AccessDeniedError]]:
        """Read as `tree` does; also return path -> error of what this client may not read."""
        nodes: dict[str, Node] = {}
        refused: dict[str, AccessDeniedError] = {}
        level = list(roots)
        while level:
            found = self.read_allowed(level)
            nodes |= {path: node for path, node in found.items() if isinstance(node, Node)}
            below = self.list_allowed(found)
            answers = [*found.items(), *below.items()]
            refused |= {path: one for path, one in answers if isinstance(one, AccessDeniedError)}
            level = [
                f"{path}/{name}"
                for path, names in below.items()
                if isinstance(names, list)
                for name in sorted(names)
            ]
        return nodes, refused

    def _allowed(self, requests: Iterable[Read]) -> dict[str, Result]:
        """Return the values of existing znodes; the value of an unreadable znode is the error."""
        found: dict[str, Result] = {}
        for request, reply in self._replies(requests):
            if reply.code is Code.NO_AUTH:
                found[request.path] = denied(request.path)
            elif reply.code is Code.OK:
                found[request.path] = reply.value
        return found

    def _present(self, requests: Iterable[Read]) -> Iterator[tuple[str, Result]]:
        for request, reply in self._replies(requests):
            if reply.code is Code.NO_AUTH:
                raise denied(request.path)
            if reply.code is Code.OK:
                yield request.path, reply.value

    def _replies(self, requests: Iterable[Read]) -> Iterator[tuple[Read, Reply]]:
        """Yield each request with its reply; retry after a broken connection."""
        left = iter(requests)
        while batch := list(islice(left, PIPELINE)):
            deadline = time.monotonic() + self._limit_s
            replies = list(self._ask(batch))
            while broken := [i for i, reply in enumerate(replies) if reply.code is Code.BROKEN]:
                if self.death is not None or time.monotonic() > deadline:
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

        If the reply is not OK, its `code` gives the reason and its `value` is the index of the
        refused write. BROKEN means that the connection was lost. ZooKeeper may or may not have
        executed the transaction: call `sync`, then read the znodes back.
        """
        (reply,) = self._ask([Multi(tuple(writes))])
        return reply

    def count_children_again(self, path: str) -> Reply:
        """Let a server before ZooKeeper 3.4.7 forget a wrong number of children of this znode.

        Such a server keeps a record of the parents of all znodes of a failed transaction
        (`PrepRequestProcessor.rollbackPendingChanges`). The end of a session deletes its ephemeral
        znodes, and does not change the record. From then on the server refuses to delete the
        parent, because it counts children that are gone. A request that creates a child replaces
        the record. The child exists only within one transaction, so no other client sees it.
        """
        child = f"{path.rstrip('/')}/zkconsumer-count"
        return self.write([Create(child, ephemeral=True), Delete(child)])

    def sync(self) -> None:
        """Ensure that later reads return each write acknowledged to any client before this call."""
        for _ in self._present([SyncLeader(CONSUMERS)]):
            pass

    def _ask(self, batch: Sequence[Read | Multi]) -> Sequence[Reply]:
        answer: SimpleQueue[Sequence[Reply]] = SimpleQueue()
        self._session.submit(batch, answer.put)
        try:
            return answer.get(timeout=self._limit_s + self.config.zookeeper_session_timeout_s)
        except Empty:
            raise self._lost() from None

    def _lost(self) -> ZkConsumerError:
        if self.death is not None:
            return self._session.death_error(self.death)
        failures = self._session.failures()
        return ZooKeeperUnreachableError(
            f"the connection to ZooKeeper was lost, and not restored within {self._limit_s:g} s"
            f"{': ' if failures else ''}{failures}",
            where=self.config.zookeeper_hosts,
            remedy="try again when the servers accept clients",
        )


def _ignored(*_: object) -> None:
    """Ignore connection events and watches: the reply to each request reports its result."""
