"""One ZooKeeper session over kazoo: connection events with the session's identity, and requests.

Two rules that kazoo's behaviour forces (each was measured): a listener only enqueues, since a call
made inside one never returns; and LOST is never waited for, since kazoo reports it only after it
has reconnected. Watches are one-shot and do not survive a disconnect: after `Connected` the member
reads everything again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from zkconsumer.config import ConsumerConfig
from zkconsumer.core import paths
from zkconsumer.core.model import Session
from zkconsumer.errors import (
    AccessDeniedError,
    ChrootMissingError,
    ConfigError,
    ZooKeeperUnreachableError,
)
from zkconsumer.zk import manyreads
from zkconsumer.zk.handler import BulkHandler
from zkconsumer.zk.requests import Reply
from zkconsumer.zk.security import TlsSockets, check_credential, client_options, tls_context
from zkconsumer.zk.sending import Sender, Sent
from zkconsumer.zk.survey import Survey, read_survey

logger = logging.getLogger(__name__)

RECONNECT_DELAY_MAX_S = 0.5
"""kazoo's own back-off lets 3.6 s pass after a restart of the server; capped so, 0.24-0.5 s."""

ATTEMPT_SHARE = 1 / 3
ATTEMPT_MIN_S = 1.0
"""One attempt to connect, in seconds: a third of the session timeout, so that others can follow
before the session ends; a second at least, which a busy server may need. kazoo lets it take all of
the timeout: one server that accepts and is not ready yet, or that is cut off, costs the session."""

OnState = Callable[[Session | None], None]
OnWatch = Callable[[EventType, str], None]


class ZooKeeperSession:
    """A session that reconnects by itself, and is replaced by a new one when it expires.

    `on_state` gets the session at every connection, and None when the connection is gone;
    `on_watch` gets each fired watch. Both are called on kazoo's threads and must only enqueue.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        on_state: OnState,
        on_watch: OnWatch,
    ) -> None:
        self._on_state, self._fired = on_state, on_watch
        self._config = config
        self._hosts, self._chroot = config.zookeeper_hosts, config.zookeeper_chroot
        context = tls_context(config)
        self._tls = TlsSockets(context) if context else None
        self._client = KazooClient(
            hosts=config.zookeeper_connect,
            timeout=config.zookeeper_session_timeout_s,
            handler=BulkHandler(),
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": RECONNECT_DELAY_MAX_S},
            **client_options(config),
        )
        self._timeout_s = config.zookeeper_session_timeout_s
        self._attend_attempts(max(ATTEMPT_MIN_S, ATTEMPT_SHARE * self._timeout_s))
        self._refused = False
        self._client.add_listener(self._state_changed)
        self._sender = Sender(self._client, self._watch)

    def _attend_attempts(self, limit_s: float) -> None:
        """Bound each attempt to connect, and learn the negotiated timeout, which kazoo keeps.

        Everything between the opening of a socket and the first request passes these two calls.
        """
        connection: Any = self._client._connection
        handler: Any = self._client.handler
        invoke, create_connection = connection._invoke, handler.create_connection
        tls = self._tls

        def opening(address: Any, *, timeout: float = limit_s, **kwargs: Any) -> Any:
            timeout = min(timeout, limit_s)
            if tls is not None:
                return tls.open(address, hostname=kwargs.get("hostname"), timeout=timeout)
            return create_connection(address, timeout=timeout, **kwargs)

        def listening(timeout: float, *args: Any, **kwargs: Any) -> Any:
            result = invoke(min(timeout, limit_s), *args, **kwargs)
            granted = getattr(result[0], "time_out", 0) if isinstance(result, tuple) else 0
            if granted > 0:
                self._timeout_s = granted / 1000
            return result

        connection._invoke, handler.create_connection = listening, opening

    def _state_changed(self, state: str) -> None:
        connected = state == KazooState.CONNECTED
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self._refused = True  # kazoo's own state says "closed" an instant later
            logger.error("ZooKeeper refused our credential; this session does not come back")
        number = self._client.client_id[0] if connected else 0
        self._on_state(Session(number, self._timeout_s) if connected else None)

    def _watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # a disconnect clears all watches; Suspended says that
            self._fired(event.type, event.path)

    def start(self) -> None:
        """Connect, and check that the chroot exists and the session timeout is usable.

        Raises:
            ZooKeeperUnreachableError: no session within `zookeeper.connection.timeout.ms`.
            ChrootMissingError: the chroot does not exist.
            AccessDeniedError: the credential is refused, or the group's znodes are another's.
            ConfigError: the negotiated session timeout is under three server ticks.
        """
        where = f"zookeeper.connect={self._config.zookeeper_connect}"
        limit_s = self._config.zookeeper_connection_timeout_s
        # Not start(), which warns on standard error of a missing chroot before we can name it.
        self._client.start_async().wait(limit_s)
        if not self._client.connected:
            # A server that accepts and says nothing would hold `stop` for a session timeout.
            threading.Thread(target=self.stop, name="zookeeper-give-up", daemon=True).start()
            if self._refused:
                raise _refused(where)
            fault = f"; TLS: {self._tls.fault}" if self._tls and self._tls.fault else ""
            raise ZooKeeperUnreachableError(
                f"no ZooKeeper session within {limit_s:g} s{fault}", where=where,
                remedy="check the addresses and that the servers are up, or raise "
                "zookeeper.connection.timeout.ms",
            )
        try:
            self._check_server(where)
        except BaseException:
            self.stop()
            raise

    def _check_server(self, where: str) -> None:
        # The connection may break right after it was made: as long as there is time, again.
        patiently = KazooRetry(
            max_tries=-1, delay=0.05, max_delay=RECONNECT_DELAY_MAX_S,
            deadline=self._config.zookeeper_connection_timeout_s,
        )
        try:
            missing = patiently(self._client.exists, "/") is None
            if not missing:
                patiently(check_credential, self._client, self._config)
        except kz.KazooException as error:
            if self._refused:
                raise _refused(where) from error
            raise ZooKeeperUnreachableError(
                f"the connection broke at once ({type(error).__name__})", where=where,
                remedy="check that the server is up and lets us in, or try again",
            ) from error
        if missing:
            raise ChrootMissingError(
                f"the chroot {self._chroot} does not exist", where=where,
                remedy="check its spelling, or create it; a consumer never does",
            )
        self._sender.takes_many = self.server_release() >= manyreads.SINCE
        tick_s = self._tick_time_s()
        if tick_s and self._timeout_s < 3 * tick_s:
            raise ConfigError(
                f"the session timeout of {self._timeout_s:g} s is under three ticks of the server "
                f"({tick_s:g} s each), which leaves a lease no margin",
                where="zookeeper.session.timeout.ms", remedy=f"set at least {3000 * tick_s:.0f}",
            )

    def _tick_time_s(self) -> float:
        """The server's tick, or 0 where it does not tell (`conf` is not on its whitelist)."""
        lines = self._ask("conf")
        ticks = [line.partition("=")[2] for line in lines if line.startswith("tickTime=")]
        return int(ticks[0]) / 1000 if ticks and ticks[0].isdigit() else 0.0

    def server_release(self) -> tuple[int, ...]:
        """The server's release, as (3, 8, 4); empty where it does not tell.

        It does with its settings as they come; ZooKeeper calls the question `srvr`.
        """
        found = re.search(r"version: (\d+)\.(\d+)\.(\d+)", "\n".join(self._ask("srvr")))
        return tuple(map(int, found.groups())) if found else ()

    def _ask(self, word: str) -> list[str]:
        """What the server answers to one of its four-letter words."""
        try:
            answer: str = self._client.command(word.encode())
        except (kz.KazooException, OSError, UnicodeDecodeError):
            return []
        return answer.splitlines()

    def survey(self, group: str) -> Survey:
        """Read what a group's members compute the assignment from, and who owns what; waits.

        Raises ZooKeeperUnreachableError or AccessDeniedError.
        """
        try:
            return read_survey(self._client, group)
        except kz.NoAuthError as error:
            raise AccessDeniedError(
                "the group may not be read", where=f"{paths.CONSUMERS}/{group}",
                remedy="ask for rights on the znodes, or name the release in peers.release",
            ) from error
        except (kz.KazooException, self._client.handler.timeout_exception) as error:
            raise ZooKeeperUnreachableError(
                f"ZooKeeper went away while the group was read: {error!r}", where=self._hosts,
                remedy="try again",
            ) from error

    def stop(self) -> None:
        """End the session: its ephemeral znodes vanish at once."""
        self._client.stop()
        self._client.close()

    def is_over(self, session_id: int) -> bool:
        """Has this session ended, or another taken its place? Known before `on_state` tells it."""
        # Not `client_id`, which is None while there is no connection, though the session may live.
        return bool(self._client._session_id != session_id)

    def submit(
        self,
        batch: Sequence[Sent],
        done: Callable[[Sequence[Reply]], None],
    ) -> None:
        """Send all requests of `batch` at once; `done` gets the replies, in order, once.

        `done` is called on kazoo's thread, or on the caller's if nothing could be sent.
        """
        if batch:
            self._sender.send(batch, done)
        else:
            done(())


def _refused(where: str) -> AccessDeniedError:
    return AccessDeniedError(
        "ZooKeeper refused our credential", where=where,
        remedy="check zookeeper.auth.scheme and zookeeper.auth.credential",
    )
