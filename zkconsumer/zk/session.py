"""A member's ZooKeeper session over kazoo: connection events, watches, and batches of requests.

Two properties of kazoo, both verified by measurements, determine the design. A ZooKeeper call
inside a kazoo listener never returns, so listeners only enqueue. kazoo reports LOST only after it
has reconnected, so the session never waits for LOST. Besides, a watch fires once and does not
survive a disconnect, so a member reads everything again after `Connected`.
"""

from __future__ import annotations

import _thread
import logging
import queue
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.retry import ForceRetryError, KazooRetry

from zkconsumer.config.settings import ConnectionConfig, ConsumerConfig
from zkconsumer.errors import (
    AccessDeniedError,
    ChrootMissingError,
    ConfigError,
    ZkConsumerError,
    ZooKeeperUnreachableError,
)
from zkconsumer.protocol.model import Session
from zkconsumer.protocol.requests import Code, Reply, Requests, run_operation
from zkconsumer.safe_logger import SafeLogger
from zkconsumer.zk import kazoo_transport
from zkconsumer.zk.attempts import Address, AttemptFault, Attempts
from zkconsumer.zk.credentials import TlsSockets, check_credential, client_options, tls_context
from zkconsumer.zk.kazoo_transport import BulkHandler, Sender, TransportRequest

logger = SafeLogger(logging.getLogger(__name__))
# kazoo's client and its connection use this logger. kazoo offers no way to replace the logger of
# its handler's threads; they log only exceptions of callbacks, and the callbacks here only enqueue.
kazoo_logger = SafeLogger(logging.getLogger("kazoo.client"))

RECONNECT_DELAY_MAX_S = 0.5
"""Maximum back-off between attempts to connect, in seconds.

With this value, a reconnect after a restart of the server takes 0.24 to 0.5 s; with kazoo's own
back-off it takes 3.6 s.
"""

ATTEMPT_SHARE = 1 / 3
ATTEMPT_MIN_S = 1.0
"""The limit of one attempt to connect: a share of the session timeout, and the minimum in seconds.

An attempt gets a third of the session timeout, so that further attempts are possible before the
session expires. A busy server may need one second. kazoo's own limit is the whole session timeout:
if one server accepted connections without answering, the session would expire.
"""

STOP_S = 3.0
"""The time, in seconds, that `stop` waits for the end of the session.

A healthy server takes milliseconds. If the server is silent, or its host name is still being
resolved, the session expires on the server after the session timeout.
"""


class ClientDeath(NamedTuple):
    """Why kazoo's connection loop has ended; kazoo answers no further call on this client.

    `refused` says that the server refused the credential, or closed the connection during the
    login.
    """

    reason: str
    refused: bool


T = TypeVar("T")

OnState = Callable[[Session | None], None]
OnDeath = Callable[[ClientDeath], None]
OnWatch = Callable[[EventType, str], None]


class ZooKeeperSession:
    """A session that reconnects by itself; a new session replaces it when it expires.

    `on_state` receives the session after each authenticated connection, and None when the
    connection is lost. `on_watch` receives each watch that fires. `on_death` receives the reason
    when kazoo's client has failed permanently; `recreate` then replaces the client. kazoo's threads
    call `on_state`, `on_watch` and `on_death`, so these functions must only enqueue.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        on_state: OnState,
        on_watch: OnWatch,
        on_death: OnDeath = lambda death: None,
    ) -> None:
        self._on_state, self._fired, self._on_death = on_state, on_watch, on_death
        self._config = config
        self._hosts, self._chroot = config.zookeeper_hosts, config.zookeeper_chroot
        context = tls_context(config)
        self._tls = TlsSockets(context) if context else None
        self._timeout_s = config.zookeeper_session_timeout_s
        # The session id and password, with which a new client resumes the session.
        self._identity: tuple[int, bytes] | None = None
        # The last zxid that a client of this session has seen. kazoo's client forgets it when it
        # fails permanently.
        self._last_zxid = 0
        self._death: ClientDeath | None = None
        # Set at the first connection, at a permanent failure, or if no server's name is known.
        self._decided = threading.Event()
        self._lock = threading.Lock()
        self._has_started = self._is_stopping = False
        self.is_ending = False  # `stop` has returned before kazoo's threads ended
        self._attempts = Attempts(
            open_socket=self._open_socket,
            timeout_s=lambda: self._timeout_s,
            unresolved=self._decided.set,
        )
        self._client = self._new_client()
        self._sender = Sender(self._client, self._watch)

    @property
    def client(self) -> KazooClient:
        """kazoo's present client; `recreate` replaces it."""
        return self._client

    def _attempt_limit_s(self) -> float:
        return max(ATTEMPT_MIN_S, ATTEMPT_SHARE * self._timeout_s)

    def _open_socket(self, address: Address) -> socket.socket:
        limit_s = self._attempt_limit_s()
        if self._tls:
            return self._tls.open(address, hostname=None, timeout=limit_s)
        return socket.create_connection(address, limit_s)

    def _new_client(self) -> KazooClient:
        config = self._config
        client = KazooClient(
            hosts=self._hosts + self._chroot,
            timeout=config.zookeeper_session_timeout_s,
            client_id=self._identity,
            handler=BulkHandler(),
            logger=kazoo_logger,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": RECONNECT_DELAY_MAX_S},
            **client_options(config),
        )
        kazoo_transport.limit_attempts(
            client,
            self._attempt_limit_s,
            attempts=self._attempts,
            open_tls=self._tls.open if self._tls else None,
            negotiated=self._timeout_negotiated,
        )
        kazoo_transport.observe_connection(
            client,
            attempts=self._attempts,
            established=self._connection_established,
            ended=lambda fault: self._loop_ended(client, fault),
        )
        kazoo_transport.resolve_hosts(client, self._attempts)
        client.add_listener(lambda state: self._state_changed(client, state))
        return client

    def _connection_established(self, identity: tuple[int, bytes]) -> None:
        self._identity = identity
        self._last_zxid = self._client.last_zxid  # lower than before if the servers have lost data
        after_loss = self._attempts.take_loss()
        self._on_state(Session(identity[0], self._timeout_s, after_loss))
        self._decided.set()

    def _loop_ended(self, client: KazooClient, fault: BaseException | None) -> None:
        if self._is_stopping or client is not self._client:
            return
        with self._lock:
            self._death = _death_of(fault)
            has_started = self._has_started
        logger.debug("the ZooKeeper client has failed for good: %s", self._death.reason)
        self._decided.set()
        if has_started:
            self._on_death(self._death)

    @property
    def timeout_s(self) -> float:
        """The session timeout in seconds: the granted one, or at first the wanted one."""
        return self._timeout_s

    def _timeout_negotiated(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def _state_changed(self, client: KazooClient, state: str) -> None:
        # `_connection_established` reports a connection, after the authentication.
        if client is self._client and state != KazooState.CONNECTED:
            self._last_zxid = client.last_zxid or self._last_zxid
            self._on_state(None)

    def _watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE is a connection event, which `on_state` reports
            self._fired(event.type, event.path)

    def start(self) -> None:
        """Connect, and check that the chroot exists and the session timeout is usable.

        Raises:
            ZooKeeperUnreachableError: no session within `zookeeper.connection.timeout.ms`.
            ChrootMissingError: the chroot does not exist.
            AccessDeniedError: ZooKeeper refuses the credential, or the group's znodes belong to
                another user.
            ConfigError: the negotiated session timeout is under three server ticks, or TLS is
                configured and the server's port speaks plain text.
        """
        try:
            _waited_for(self._connect_and_check)
            with self._lock:  # `_loop_ended` uses both fields on another thread
                self._has_started = self._death is None
            if self._death is not None:
                raise self.death_error(self._death)
        except BaseException:
            self.stop() if self._client.connected else self._begin_to_stop()
            raise

    def _connect_and_check(self) -> None:
        where = f"zookeeper.connect={self._config.zookeeper_connect}"
        limit_s = self._config.zookeeper_connection_timeout_s
        # `start()` is not used, because it prints a warning about a missing chroot.
        # ChrootMissingError reports the missing chroot.
        self._client.start_async()
        self._decided.wait(limit_s)
        if self._death is not None:
            raise self.death_error(self._death)
        if not self._client.connected:
            if self._tls:
                self._tls.refuse_plain_port()
            raise self._no_session(where)
        self._check_server(where)

    def _no_session(self, where: str) -> ZooKeeperUnreachableError:
        limit_s, faults = self._config.zookeeper_connection_timeout_s, self._attempts.faults()
        if faults and all(one.fault is AttemptFault.UNKNOWN_HOST for one in faults.values()):
            return ZooKeeperUnreachableError(
                f"no ZooKeeper session: {self.failures()}",
                where=where,
                remedy="correct the host name, or check the name server",
            )
        return ZooKeeperUnreachableError(
            f"no ZooKeeper session within {limit_s:g} s: {self.failures()}",
            where=where,
            remedy="check the addresses and that the servers are up, or raise "
            "zookeeper.connection.timeout.ms",
        )

    def trouble(self) -> str:
        """Return why there is no connection now, by server; empty if there is one.

        The call asks no server, and returns at once.
        """
        return self._attempts.describe()

    def failures(self) -> str:
        """Return why each server failed since the last connection; empty if none failed.

        Servers without TLS that do not answer, or close the connection, are asked what they are.
        This takes at most two seconds.
        """
        return self._attempts.describe() if self._tls else self._attempts.identify()

    def _retry(self) -> KazooRetry:
        """Return what repeats a request within `zookeeper.connection.timeout.ms`: the connection
        may break at once."""
        return KazooRetry(
            max_tries=-1,
            delay=0.05,
            max_delay=RECONNECT_DELAY_MAX_S,
            deadline=self._config.zookeeper_connection_timeout_s,
        )

    def _check_server(self, where: str) -> None:
        retry = self._retry()
        try:
            missing = retry(self._client.exists, "/") is None
            if not missing and isinstance(self._config, ConsumerConfig):
                group = self._config.group_id
                retry(check_credential, self._client, self._config, group)
        except kz.KazooException as error:
            if self._death is not None:
                raise self.death_error(self._death) from error
            raise ZooKeeperUnreachableError(
                f"the connection to ZooKeeper broke at once ({type(error).__name__})",
                where=where,
                remedy="check that the server is up and accepts this client, or try again",
            ) from error
        if missing:
            raise ChrootMissingError(
                f"the chroot {self._chroot} does not exist",
                where=where,
                remedy="correct it, or create the chroot: a consumer never creates it",
            )
        self._sender.has_multi_read = self.server_release() >= kazoo_transport.SINCE
        tick_s = self._tick_time_s()
        if not tick_s:
            logger.warning(
                "%s does not report its tickTime, so the session timeout of %g s is not checked: it"
                " must be at least three ticks; add conf to 4lw.commands.whitelist, or compare it"
                " with tickTime in the servers' zoo.cfg",
                self._hosts,
                self._timeout_s,
            )
        if tick_s and self._timeout_s < 3 * tick_s:
            raise ConfigError(
                f"the session timeout of {self._timeout_s:g} s is under three ticks of the server "
                f"({tick_s:g} s each), so the lease has no safety margin",
                where="zookeeper.session.timeout.ms",
                remedy=f"set it to at least {3000 * tick_s:.0f}",
            )

    def _tick_time_s(self) -> float:
        """Return the server's tickTime in seconds; 0 if the server's whitelist lacks `conf`."""
        lines = self._ask("conf")
        ticks = [line.partition("=")[2] for line in lines if line.startswith("tickTime=")]
        return int(ticks[0]) / 1000 if ticks and ticks[0].isdigit() else 0.0

    def server_release(self) -> tuple[int, ...]:
        """Return the server's release, for example (3, 8, 4); empty if it is not reported.

        A server with default settings answers the four-letter command `srvr`.
        """
        return kazoo_transport.release_in("\n".join(self._ask("srvr")))

    def _ask(self, word: str) -> list[str]:
        """Return the lines of the server's answer to a four-letter command; none if it fails.

        A request that the session timeout ended is repeated. It can be too short for a busy server.
        """

        def command() -> str:
            try:
                return str(self._client.command(word.encode()))
            except TimeoutError as error:
                raise ForceRetryError from error

        try:
            answer: str = self._retry()(command)
        except (kz.KazooException, OSError, UnicodeDecodeError):
            return []
        return answer.splitlines()

    def death_error(self, death: ClientDeath) -> ZkConsumerError:
        """Return the error for a caller that waits for a client that has failed permanently."""
        where = f"zookeeper.connect={self._config.zookeeper_connect}"
        if death.refused:
            remedy = "check zookeeper.auth.scheme and zookeeper.auth.credential"
            config, mechanism = self._config, self._config.zookeeper_sasl_mechanism
            if (config.zookeeper_auth_scheme, mechanism) == ("sasl", "DIGEST-MD5"):
                # ZooKeeper 3.9 runs in FIPS mode by default, and then offers no DIGEST-MD5.
                remedy += "; from 3.9 on a server needs zookeeper.fips-mode=false for DIGEST-MD5"
            elif (config.zookeeper_auth_scheme, mechanism) == ("sasl", "GSSAPI"):
                remedy = (
                    "check zookeeper.sasl.service, and that the server accepts the principal of the"
                    " ticket; see the server's log"
                )
            return AccessDeniedError(
                f"ZooKeeper refused the credential: {death.reason}", where=where, remedy=remedy
            )
        return ZooKeeperUnreachableError(
            f"the ZooKeeper client failed for good: {death.reason}",
            where=where,
            remedy="check the credential (a Kerberos ticket may have expired) and the servers",
        )

    def recreate(self) -> None:
        """Replace a client that has failed permanently; returns at once.

        If the old session has not expired, the new client resumes it, and its znodes still exist.
        """
        dead, self._death = self._client, None
        client = self._new_client()
        client.last_zxid = self._last_zxid  # a server with older data must refuse this client, too
        sender = Sender(client, self._watch)
        sender.has_multi_read = self._sender.has_multi_read
        self._client, self._sender = client, sender
        client.start_async()
        _in_background(lambda: _stopped(dead))

    def stop(self) -> None:
        """End the session, so that its ephemeral znodes vanish; waits at most `STOP_S` s.

        kazoo waits for its own threads without a limit. A silent server blocks them for a
        session timeout, and the resolution of a host name blocks them for as long as the
        system tries. So another thread waits for them, and ends when they end.
        """
        ending = self._begin_to_stop()
        ending.join(STOP_S)
        self.is_ending = ending.is_alive()
        if self.is_ending:
            logger.warning(
                "the connection to ZooKeeper (%s) has not ended within %g s; the session expires on"
                " the server after its timeout of %g s",
                self._hosts,
                STOP_S,
                self._timeout_s,
            )

    def _begin_to_stop(self) -> threading.Thread:
        self._is_stopping = True
        client = self._client
        return _in_background(lambda: _stopped(client))

    def is_over(self, session_id: int) -> bool:
        """Return whether this session is over, even before `on_state` reports it."""
        return kazoo_transport.session_id(self._client) != session_id

    def run(self, operation: Generator[Requests, Sequence[Reply], T], *, limit_s: float) -> T:
        """Run an operation to its end on the caller's thread; return its result.

        The call waits at most `limit_s` seconds for the replies to each batch. The session's own
        threads must not call it.

        Raises ZooKeeperUnreachableError if the replies do not come, or if the connection breaks.
        """
        return run_operation(operation, lambda batch: self._replies(batch, limit_s))

    def _replies(self, batch: Requests, limit_s: float) -> Sequence[Reply]:
        answer: queue.SimpleQueue[Sequence[Reply]] = queue.SimpleQueue()
        self.submit(batch, answer.put)
        try:
            replies = answer.get(timeout=limit_s)
        except queue.Empty:
            raise ZooKeeperUnreachableError(
                f"ZooKeeper has not answered within {limit_s:g} s", remedy="try again"
            ) from None
        if any(reply.code is Code.BROKEN for reply in replies):
            raise ZooKeeperUnreachableError(
                "the connection to ZooKeeper broke before it answered", remedy="try again"
            )
        return replies

    def submit(
        self,
        batch: Sequence[TransportRequest],
        done: Callable[[Sequence[Reply]], None],
    ) -> None:
        """Send all requests of `batch` together; `done` receives the replies once, in order.

        kazoo's thread calls `done`, or the sender's thread if nothing could be sent. A thread of
        its own sends the requests of the main thread, in which Ctrl-C raises KeyboardInterrupt at
        any step. Within a request, kazoo would swallow the exception, and its thread would from
        then on send each request only when the next one comes.
        """
        if not batch:
            done(())
        elif threading.current_thread() is threading.main_thread():
            _thread.start_new_thread(self._sender.send, (batch, done))
        else:
            self._sender.send(batch, done)


def _death_of(error: BaseException | None) -> ClientDeath:
    """Return the death for kazoo's exception, which has no text after a refused credential.

    kazoo also raises `AuthFailedError` if a Kerberos library finds no valid ticket. In this case
    the server has refused nothing, and a renewed ticket lets a new client log in.
    """
    cause = (
        f" ({type(error.__cause__).__name__}: {error.__cause__})"
        if (error is not None and error.__cause__ is not None)
        else ""
    )
    text = f"{type(error).__name__}: {error}".removesuffix(": ") if error else "it was stopped"
    library = type(error.__cause__).__module__.partition(".")[0] if error else ""
    refused = isinstance(error, kz.AuthFailedError) and library != "kerberos"
    return ClientDeath(f"{text}{cause}", refused)


def _stopped(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception:
        logger.debug("a ZooKeeper client could not be stopped", exc_info=True)


def _waited_for(work: Callable[[], None]) -> None:
    """Run `work` on another thread, and raise what it raises. Ctrl-C ends only the wait."""
    end: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread's boundary; raised below
            end.put(error)
        else:
            end.put(None)

    _thread.start_new_thread(run, ())
    error = end.get()
    if error is not None:
        raise error


def _in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="zookeeper-end", daemon=True)
    thread.start()
    return thread
