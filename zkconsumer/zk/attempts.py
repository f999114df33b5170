"""What becomes of a client's attempts to connect: why each server fails, and lost data.

`Attempts` records the last failure of each server, for errors and log lines. It also applies the
rule of `protocol.lost_data`: it opens the second session, without kazoo.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum

from kazoo.exceptions import ConnectionDropped

from zkconsumer.frozen import dataclass
from zkconsumer.protocol.lost_data import RefusedHandshakes, is_lost
from zkconsumer.protocol.model import session_text
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

Address = tuple[str, int]

GREETING_BYTES = (20, 256)
"""Minimum and maximum length of ZooKeeper's `ConnectResponse`, which has 36 or 37 bytes."""

ANSWER_S = 1.0
"""Seconds to wait for the answer to a question that identifies a server; then it has none."""

ANSWER_BYTES = 16 * 1024
"""Maximum number of bytes that are read from such an answer."""


class HandshakeStage(Enum):
    """How far an attempt to connect has come."""

    OPENING = 1  # the socket is being opened
    GREETING = 2  # the request for the session is sent
    LOGIN = 3  # the server has granted the session


class NotZooKeeperError(ConnectionDropped):  # type: ignore[misc]  # kazoo has no types
    """The server's answer is not ZooKeeper's; kazoo tries again, as after a lost connection."""


class AttemptFault(Enum):
    """The kinds of failed attempts; the value is the text for a user."""

    UNKNOWN_HOST = "unknown host"
    UNREACHABLE = ""  # the text is the operating system's, or TLS's
    SILENT = "accepts the connection, and does not answer"
    CLOSES = "accepts the connection, and closes it"
    STRANGE = "answers, but not as ZooKeeper: is this a broker?"


LASTING = frozenset({AttemptFault.UNKNOWN_HOST, AttemptFault.CLOSES, AttemptFault.STRANGE})
"""Faults that a wrong address or a setting causes, and that do not end with an outage."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt at an address."""

    fault: AttemptFault
    text: str
    at: Address


class Attempts:
    """The last failure of each server since the last connection.

    kazoo's connection thread calls all methods except `describe` and `faults`, which any thread may
    call.
    """

    def __init__(
        self,
        *,
        open_socket: Callable[[Address], socket.socket],
        timeout_s: Callable[[], float],
        unresolved: Callable[[], None],
    ) -> None:
        """Create an empty record.

        Args:
            open_socket: opens a further connection to a server, with TLS if it is configured.
            timeout_s: returns the session timeout in seconds.
            unresolved: is called when no server's name can be resolved.
        """
        self._open, self._timeout_s, self._unresolved = open_socket, timeout_s, unresolved
        self._failures: dict[str, FailedAttempt] = {}
        self._name, self._at, self.stage = "", ("", 0), HandshakeStage.OPENING
        self.is_connected = False
        self._warned = ""
        self._refusals: dict[str, RefusedHandshakes] = {}
        # A new session replaces a session that the servers have lost: its first request is `sync`.
        self.must_sync = False
        self._has_lost_data = False

    # ---- one attempt -----------------------------------------------------------------------------

    def resolve(self, hosts: Sequence[tuple[str, int]]) -> list[tuple[str, str, int]]:
        """Return (name, IP address, port) for each address of these servers."""
        found: list[tuple[str, str, int]] = []
        for host, port in hosts:
            name = _server(host.strip(), port)
            try:
                known = socket.getaddrinfo(host.strip(), port, 0, 0, socket.IPPROTO_TCP)
            except (
                OSError,
                UnicodeError,
            ) as error:  # UnicodeError: a label of the name is too long
                self._note(
                    name, AttemptFault.UNKNOWN_HOST, f"unknown host ({_reason(error)})", ("", 0)
                )
                continue
            found += [(host.strip(), str(one[4][0]), int(one[4][1])) for one in known]
        if not found:
            self._unresolved()
        return found

    def begin(self, host: str, address: Address) -> None:
        """Start an attempt at this address of this host."""
        self._name, self._at = _server(host, address[1]), address
        self.stage = HandshakeStage.OPENING
        self.is_connected = False

    def check_greeting(self, length: int) -> None:
        """Raise NotZooKeeperError if the answer to the request for a session has an odd length."""
        if not GREETING_BYTES[0] <= length <= GREETING_BYTES[1]:
            raise NotZooKeeperError(f"an answer of {length} bytes is not ZooKeeper's")

    def failed(self, error: Exception) -> None:
        """Record why the present attempt has failed, from the exception that ended it."""
        stage, self.stage = self.stage, HandshakeStage.OPENING
        # A server that closes the connection at once can break it before the request is sent.
        if stage is HandshakeStage.OPENING and isinstance(error.__context__, BrokenPipeError):
            stage = HandshakeStage.GREETING
        if isinstance(error, NotZooKeeperError):
            fault = AttemptFault.STRANGE
        elif stage is not HandshakeStage.GREETING:
            fault = AttemptFault.UNREACHABLE
        elif isinstance(error, ConnectionDropped):
            fault = AttemptFault.CLOSES
        else:
            fault = AttemptFault.SILENT
        text = fault.value
        if stage is HandshakeStage.LOGIN:
            text = "does not complete the login"
        elif stage is HandshakeStage.OPENING:
            text = _reason(error.__context__ or error)
        self._note(self._name, fault, text, self._at)

    def _note(self, name: str, fault: AttemptFault, text: str, at: Address) -> None:
        self._failures[name] = FailedAttempt(fault, text, at)
        if fault is AttemptFault.CLOSES:
            self._refusals.setdefault(name, RefusedHandshakes(time.monotonic()))
        else:
            self._refusals.pop(name, None)

    def succeeded(self) -> None:
        """Record that the present attempt has succeeded; warn about other servers' lasting faults.

        One line names them, and is repeated only when they change.
        """
        self.is_connected = True
        self._failures.pop(self._name, None)
        text = self._text(self.faults(LASTING))
        if text and text != self._warned:
            logger.warning("ZooKeeper: connected to %s, but not to %s", self._name, text)
        self._warned = text
        self._failures.clear()
        self._refusals.clear()

    # ---- what they say ---------------------------------------------------------------------------

    def faults(
        self, kinds: frozenset[AttemptFault] = frozenset(AttemptFault)
    ) -> dict[str, FailedAttempt]:
        """Return the failures of these kinds, by server."""
        known = dict(self._failures)
        return {name: one for name, one in known.items() if one.fault in kinds}

    def describe(self) -> str:
        """Return the servers with their last failures; empty if none has failed."""
        return self._text(self._known())

    def _known(self) -> dict[str, FailedAttempt]:
        """Return the failures, and the present attempt if it is the first one of its server."""
        known = self.faults()
        if self._name and not self.is_connected and self._name not in known:
            fault = (
                AttemptFault.SILENT
                if self.stage is HandshakeStage.GREETING
                else AttemptFault.UNREACHABLE
            )
            text = fault.value or "the attempt to connect has not ended"
            known[self._name] = FailedAttempt(fault, text, self._at)
        return known

    @staticmethod
    def _text(failures: dict[str, FailedAttempt]) -> str:
        names: dict[str, list[str]] = {}
        for name, one in failures.items():
            names.setdefault(one.text, []).append(name)
        return "; ".join(f"{', '.join(some)}: {text}" for text, some in names.items())

    def identify(self) -> str:
        """Return the same as `describe`, after asking silent and closing servers what they are.

        It takes at most twice `ANSWER_S` seconds for all servers together. The questions are in
        plain text, so do not call this method if TLS is configured.
        """
        known = self._known()
        puzzling = [name for name, one in known.items() if one.fault in _PUZZLING]
        if puzzling:
            with ThreadPoolExecutor(len(puzzling)) as pool:
                answers = pool.map(lambda name: _identified(known[name]), puzzling)
                known |= dict(zip(puzzling, answers, strict=True))
        return self._text(known)

    # ---- servers that have lost their data -------------------------------------------------------

    def take_loss(self) -> bool:
        """Return whether the servers have lost data since the last call."""
        found, self._has_lost_data = self._has_lost_data, False
        return found

    def has_lost_data(self, *, seen: int, session_id: int) -> bool:
        """Return whether the server of the present attempt has lost this session with its data.

        Call it after the attempt has failed. The rule is that of `protocol.lost_data`.

        Args:
            seen: the last zxid that the client has seen.
            session_id: the session that is to be resumed.
        """
        name, now, timeout_s = self._name, time.monotonic(), self._timeout_s()
        refusals = self._refusals.get(name)
        if refusals is None or not refusals.is_due(now, timeout_s=timeout_s):
            return False
        self._refusals[name] = refusals.tried(now)
        try:
            with self._open(self._at) as connection:
                last = last_zxid(connection, timeout_s=timeout_s)
        except OSError:
            if refusals.tried_at is None:
                logger.warning(
                    "ZooKeeper at %s has closed each connection for %.1f s, even without the old"
                    " session: is maxClientCnxns reached, or is there no quorum?",
                    name,
                    now - refusals.since,
                )
            return False
        self.must_sync = is_lost(refusals, seen=seen, last=last)
        self._refusals[name] = self._refusals[name].granted()
        if self.must_sync:
            self._has_lost_data = True
            logger.warning(
                "ZooKeeper at %s has lost data: its last transaction is 0x%x, and this client has"
                " seen 0x%x; session %s is lost, and a new session replaces it",
                name,
                last,
                seen,
                session_text(session_id),
            )
        return self.must_sync


_PUZZLING = frozenset({AttemptFault.SILENT, AttemptFault.CLOSES})


def _identified(failure: FailedAttempt) -> FailedAttempt:
    """Return the failure with a text that says more, if the server's answers tell more."""
    said, broker = ask(failure.at, b"srvr"), ask(failure.at, _METADATA)
    text = failure.text
    if broker[4:8] == _CORRELATION:
        text = "answers, but not as ZooKeeper: this is a Kafka broker"
    elif b"not currently serving" in said:
        text = "ZooKeeper is up, and has no quorum"
    elif not said and failure.fault is AttemptFault.CLOSES:
        text = f"{text}: is maxClientCnxns reached, or is this a broker?"
    return replace(failure, text=text)


def _server(host: str, port: int) -> str:
    """Return a server as `zookeeper.connect` names it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: BaseException) -> str:
    """Return the text of an error of the operating system or of TLS."""
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# ---- requests in plain bytes ---------------------------------------------------------------------


_CONNECT = struct.Struct("!iqiqi16s?")  # `ConnectRequest`, with `readOnly`
_GRANT = struct.Struct("!iiq")  # the start of `ConnectResponse`: version, timeout, session
_REPLY = struct.Struct("!iqi")  # `ReplyHeader`: xid, zxid, error
_PING = struct.pack("!ii", -2, 11)
_CLOSE = struct.pack("!ii", 1, -11)

_CORRELATION = b"\x00zkc"
# Kafka's Metadata request, version 0, for all topics; it creates no topic.
_METADATA = struct.pack("!ihh4sh10si", 24, 3, 0, _CORRELATION, 10, b"zkconsumer", 0)


def last_zxid(connection: socket.socket, *, timeout_s: float) -> int:
    """Open a session without an id, return the server's last zxid, and end the session.

    The result is -1 if the server does not tell its zxid before a login. Raises OSError if the
    server closes the connection or does not answer.
    """
    greeting = _CONNECT.pack(0, 0, int(timeout_s * 1000), 0, 16, bytes(16), False)
    _send(connection, greeting)
    _, granted_ms, _ = _GRANT.unpack_from(_receive(connection))
    if granted_ms <= 0:
        raise ConnectionError("the server has granted no session")
    _send(connection, _PING)
    _, zxid, error = _REPLY.unpack_from(_receive(connection))
    _send(connection, _CLOSE)
    return -1 if error else int(zxid)


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack("!i", len(body)) + body)


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack("!i", _exactly(connection, 4))
    if not _REPLY.size <= size <= ANSWER_BYTES:
        raise ConnectionError("the server does not answer as ZooKeeper")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (chunk := connection.recv(size - len(data))):
            raise ConnectionError("the server has closed the connection")
        data += chunk
    return data


def ask(
    address: Address,
    question: bytes,
    *,
    limit_s: float = ANSWER_S,
    most: int = ANSWER_BYTES,
    open_: Callable[[Address, float], socket.socket] = socket.create_connection,
) -> bytes:
    """Return what a server answers to these bytes; empty if nothing comes in time.

    `most` is the maximum number of bytes that are read. `open_` opens the connection, by default
    for plain text.
    """
    said, deadline = bytearray(), time.monotonic() + limit_s
    try:
        with open_(address, limit_s) as connection:
            connection.sendall(question)
            while len(said) < most and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                if not (chunk := connection.recv(65536)):
                    break
                said += chunk
    except OSError:
        return bytes(said)
    return bytes(said)
