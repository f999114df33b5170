"""Follows a group from outside: its members, owners and offsets. Reads only, writes never.

An `Observer` has a ZooKeeper session of its own. `snapshot()` reads once; `changes()` follows by
one-shot watches (`zkconsumer.zk.mirror`). After any connection event everything is read again,
and what differs from the last report is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from zkconsumer.config import ConnectionConfig
from zkconsumer.config_connect import split_connect
from zkconsumer.core import paths
from zkconsumer.errors import AccessDeniedError, ChrootMissingError, ZooKeeperUnreachableError
from zkconsumer.zk.mirror import ALL, Change, GroupSnapshot, Mirror, OwnerInfo, Part, What
from zkconsumer.zk.security import TlsSockets, client_options, tls_context

__all__ = ["Observer", "GroupSnapshot", "OwnerInfo", "Part", "ALL", "Change", "What"]

# Seconds. kazoo's own back-off grows to a minute, so that an observer would miss the recovery.
_RECONNECT_MAX_S = 0.5
T = TypeVar("T")


class Observer:
    """Watches one group; a context manager. Methods may be called from several threads.

    Args:
        connect: servers and chroot, as in `zookeeper.connect`.
        group: a group, which need not exist yet.
        follow: the parts to read; fewer are cheaper.
        timeout_s: for the first connection, and as session timeout.
        auth: scheme and credential, such as ("digest", "user:password").
        config: whose authentication and TLS count, in place of `auth`.

    Raises ConfigError, InvalidNameError, and on entering ZooKeeperUnreachableError,
    ChrootMissingError, or ConfigError when TLS is configured and the server's port speaks plain
    text. While the connection is away later on, `changes` waits; the others raise
    ZooKeeperUnreachableError.
    """

    def __init__(
        self,
        connect: str,
        group: str,
        *,
        follow: Collection[Part] = ALL,
        timeout_s: float = 6.0,
        auth: tuple[str, str] | None = None,
        config: ConnectionConfig | None = None,
    ) -> None:
        hosts, self._chroot = split_connect(connect)
        self._hosts = hosts
        self.group = paths.validate_group(group)
        self._follow = frozenset(follow)
        self._timeout_s = timeout_s
        self._inboxes: list[SimpleQueue[str | None]] = []
        self._client = KazooClient(
            hosts + self._chroot,
            timeout=timeout_s,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": _RECONNECT_MAX_S},
            **(client_options(config) if config else {"auth_data": [auth] if auth else None}),
        )
        context = tls_context(config) if config else None
        self._tls = sockets = TlsSockets(context) if context else None
        if sockets:
            handler = cast(Any, self._client.handler)
            handler.create_connection = lambda address, *, timeout=timeout_s, **more: sockets.open(
                address, hostname=more.get("hostname"), timeout=timeout
            )

    def __enter__(self) -> Self:
        # Not start(), which warns on stderr about a chroot that does not exist.
        self._client.start_async().wait(self._timeout_s)
        if not self._client.connected:
            self.close()
            if self._tls:
                self._tls.refuse_plain_port()
            fault = f"; TLS: {self._tls.fault}" if self._tls and self._tls.fault else ""
            raise ZooKeeperUnreachableError(
                f"no answer from ZooKeeper within {self._timeout_s:g} s{fault}",
                where=self._hosts,
                remedy="check the address, and that the server runs",
            )
        self._client.add_listener(self._on_state)
        if self._chroot and self._read(lambda: self._client.exists("/")) is None:
            self.close()
            raise ChrootMissingError(
                "the chroot does not exist",
                where=self._chroot,
                remedy="correct it; it is never created here",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every `changes()` and the session; harmless when repeated."""
        for inbox in self._inboxes:
            inbox.put(None)
        self._client.stop()
        self._client.close()

    def group_exists(self) -> bool:
        """Whether the group has a znode at all."""
        path = f"{paths.CONSUMERS}/{self.group}"
        return self._read(lambda: self._client.exists(path)) is not None

    def count_owners(self, topic: str) -> int:
        """How many partitions of a topic have an owner znode: one small read."""
        path = paths.owners_of(self.group, topic)
        stat = self._read(lambda: self._client.exists(path))
        return 0 if stat is None else int(stat.numChildren)

    def snapshot(self) -> GroupSnapshot:
        """Reads everything that is followed, pipelined."""
        mirror = Mirror(self._client, self.group, self._follow, watch=None)
        self._read(mirror.read_all)
        return mirror.snapshot()

    def changes(self) -> Iterator[tuple[float, Change]]:
        """Every change, with the monotonic time in seconds at which it was known; until `close`.

        First comes all there is, as changes from nothing, then one of kind READ. Of several changes
        of one znode between two reads the last is reported. Waits while ZooKeeper is away.
        """
        inbox: SimpleQueue[str | None] = SimpleQueue()
        self._inboxes.append(inbox)
        mirror = Mirror(
            self._client, self.group, self._follow, watch=lambda event: inbox.put(event.path or "")
        )
        stale = True
        while True:
            try:
                if stale:
                    found = mirror.read_all()
                    now, stale = time.monotonic(), False
                    yield from ((now, change) for change in found)
                    yield now, Change(What.READ, "", None, None)
                dirty, states = _drain(inbox)
                if dirty is None:
                    return
                for state in states:
                    yield time.monotonic(), Change(What.CONNECTION, "", None, state)
                if states:
                    stale = states[-1] == "connected"
                    continue
                found = mirror.read(dirty)
                now = time.monotonic()
                yield from ((now, change) for change in found)
            except NoAuthError as error:
                raise self._denied(error) from error
            except (KazooException, KazooTimeoutError):
                # The connection went while reading: the listener reports it, and its return.
                stale = self._client.connected

    def _on_state(self, state: KazooState) -> None:
        # A ZooKeeper call in a listener would never return: only enqueue. The leading space tells
        # a state from a path.
        for inbox in self._inboxes:
            inbox.put(f" {state.lower()}")

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except NoAuthError as error:
            raise self._denied(error) from error
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperUnreachableError(
                f"the connection was lost while reading: {type(error).__name__}",
                where=self._hosts,
                remedy="try again",
            ) from error

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(
            "ZooKeeper does not let us read the group",
            where=f"{paths.CONSUMERS}/{self.group}",
            remedy="authenticate as somebody who may",
        )


def _drain(inbox: SimpleQueue[str | None]) -> tuple[set[str] | None, list[str]]:
    """Waits, then takes all there is: (changed paths, connection states); (None, ...): the end."""
    dirty: set[str] = set()
    states: list[str] = []
    while True:
        item = inbox.get()
        if item is None:
            return None, states
        if item.startswith(" "):
            states.append(item[1:])
        elif item:  # kazoo tells a watch that its session is gone with an event without a path
            dirty.add(item)
        if inbox.empty():
            return dirty, states
