"""A connection to one broker: TCP or TLS, the broker's versions, SASL, then requests.

`connect` blocks; fetchers call it on a separate thread. Afterwards a fetcher sends and receives
without blocking. `ask` sends one request and waits for its response.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from zkconsumer.config.kafka_properties import is_true
from zkconsumer.errors import BrokerAccessError, ConfigError
from zkconsumer.kafka.client_settings import Settings, mechanism_of, mechanism_without_columns
from zkconsumer.kafka.columns import requests
from zkconsumer.kafka.columns.requests import Versions
from zkconsumer.kafka.columns.responses import USUAL_BYTES, Response, response_memory
from zkconsumer.kafka.tls import TRUST_REMEDY, tls_context, trust_shown
from zkconsumer.protocol.kafka_fields import FieldReader, MalformedError, octets, text

# While a response arrives, `select` reports the socket after this many bytes, or at the end of the
# response. Otherwise it would report every packet, and each report costs as much as parsing 200
# messages of 100 bytes. Linux enlarges the socket's buffer accordingly, or lowers the number.
_ENOUGH_BYTES: Final = 512 * 1024

# Maximum size, in bytes, of a response to `ask`, for instance the metadata of a large cluster. A
# larger one is refused, because it is probably not a broker's response.
_LARGEST_ANSWER: Final = 100_000_000

# The first two bytes of a TLS alert, with which a TLS port answers a client that does not use TLS.
_TLS_ALERT: Final = 0x1503

# Size in bytes of the requests that are sent together. Two such parts are under way at a time. If
# they did not fit into the sockets' buffers, this client would wait for the broker to receive
# requests, while the broker waits for this client to receive responses.
_PART_BYTES: Final = 8 * 1024

# Python's names of the options of a connection that is kept alive. The system asks after 20 s
# without traffic, then every 5 s, and ends the connection after 4 questions without an answer. A
# system that lacks an option uses its own value.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}

_OLD: Final = {"0.8": requests.OF_0_8, "0.9": requests.OF_0_9}


Gssapi: TypeAlias = Any  # Any: the package gssapi or an object of it; type checkers run without it


class AuthenticationError(Exception):
    """The broker refused the login, the reader refused the certificate, or there is no ticket.

    `error` is the error for the user.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.error = BrokerAccessError(what, where=where, remedy=remedy)
        super().__init__(str(self.error))


class Connection:
    """A connection that is ready for requests. One thread at a time may use it."""

    def __init__(self, raw: socket.socket, client_id: str) -> None:
        self._socket = raw
        self._client_id = client_id
        self._number = 0
        self._response: Response | None = None
        self._received = 0
        self._unsent = b""
        self._enough = 1
        self.versions: Versions = requests.OF_0_8

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    # ---- without blocking ------------------------------------------------------------------------

    def send(self, api: int, body: bytes) -> None:
        """Send a request; `flush` sends the bytes that the socket does not accept at once."""
        self._number += 1
        version = self.versions[api]
        self._unsent += requests.frame(api, version, self._number, self._client_id, body)
        self.flush()

    @property
    def is_sending(self) -> bool:
        """Whether a part of a request has not been sent yet."""
        return bool(self._unsent)

    def flush(self) -> bool:
        """Send waiting bytes; return whether all bytes have been sent. Raises OSError."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
        return True

    def receive(self, largest: int) -> Response | None:
        """Return the next response without its length field, or None if the response is incomplete.

        `largest` is the maximum size of a response in bytes. Raises OSError if the connection is
        lost, and MalformedError if the response is malformed.
        """
        while True:
            size = self._size(largest)
            wanted = 4 if size is None else 4 + size
            if size is not None and self._received >= wanted:
                if self._received > wanted:
                    raise MalformedError("a response has more bytes than it announces")
                response, self._response = self._room(wanted), None
                self._received = 0
                self._check_number(response.data)
                return response.part(4, size)
            if not self._receive_until(wanted):
                return None

    def _size(self, largest: int) -> int | None:
        """Return the response's size, or None while it is unknown; make room for the response in
        the buffer."""
        if self._received < 4:
            return None
        (size,) = struct.unpack_from(">i", self._room(4).data)
        if not 4 <= size <= largest:
            raise _not_a_size(size, largest)
        self._room(size + 4)
        return int(size)

    def _room(self, size: int) -> Response:
        """Return the memory of the response, with room for at least `size` bytes."""
        if self._response is None or size > len(self._response.data):
            grown = response_memory(size)
            if self._response is not None:
                memoryview(grown.memory)[: self._received] = self._response.data[: self._received]
            self._response = grown
        return self._response

    def _receive_until(self, wanted: int) -> bool:
        # One request is under way, so everything that arrives belongs to its response.
        view = memoryview(self._room(wanted).memory)
        while self._received < wanted:
            try:
                count = self._socket.recv_into(view[self._received :])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not isinstance(self._socket, ssl.SSLSocket):
                    self._report_at(min(_ENOUGH_BYTES, wanted - self._received))
                return False
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            self._received += count
        return True

    def await_response(self) -> None:
        """Make `select` report the first bytes of a response; call it before each `select`."""
        if not self._received:
            self._report_at(1)

    def accept_ahead(self) -> None:
        """Make the system receive the next response while the program does other work.

        Linux acknowledges packets at once only while fewer than SO_RCVLOWAT bytes wait in the
        socket, otherwise after up to 40 ms. So a sender with a small congestion window (BBR: four
        packets) would send the rest of the response only when the program reads the first part.
        """
        if not self._received:
            self._report_at(USUAL_BYTES)

    def _report_at(self, count: int) -> None:
        """Make `select` report the socket when it has this many bytes, or when it is closed."""
        if count != self._enough:
            self._enough = count
            with suppress(OSError):  # a system without this option reports every packet
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _check_number(self, response: memoryview) -> None:
        (number,) = struct.unpack_from(">i", response, 4)
        if number != self._number:
            raise MalformedError(
                f"request {self._number} received the response to request {number}"
            )

    # ---- blocking --------------------------------------------------------------------------------

    def ask(self, api: int, body: bytes, timeout_s: float) -> FieldReader:
        """Send a request and return its response. Raises OSError and MalformedError."""
        (response,) = self.ask_all(api, [body], timeout_s)
        return response

    def ask_all(self, api: int, bodies: Iterable[bytes], timeout_s: float) -> Iterator[FieldReader]:
        """Send requests without waiting for each response; yield the responses in their order.

        A broker answers the requests of a connection in their order. `timeout_s` is the time limit
        in seconds of each response. Raises OSError and MalformedError.
        """
        version, sent = self.versions.get(api, 0), 0
        for part in _in_parts(bodies):
            first = self._number + 1
            frames = [
                requests.frame(api, version, number, self._client_id, body)
                for number, body in enumerate(part, first)
            ]
            self._number += len(frames)
            self._send_all(b"".join(frames), time.monotonic() + timeout_s)
            # The requests before this part are answered while the broker works on this part.
            yield from (self._answer(number, timeout_s) for number in range(first - sent, first))
            sent = len(frames)
        last = self._number + 1
        yield from (self._answer(number, timeout_s) for number in range(last - sent, last))

    def _answer(self, number: int, timeout_s: float) -> FieldReader:
        response = FieldReader(self._received_frame(time.monotonic() + timeout_s))
        if (answered := response.int32()) != number:
            raise MalformedError(f"request {number} received the response to request {answered}")
        return response

    def ask_raw(self, data: bytes, timeout_s: float) -> bytes:
        """Send a token without headers and return the reply, as SASL does in 0.10.

        Kafka: SaslHandshake version 0.
        """
        return bytes(self._exchanged(octets(data), time.monotonic() + timeout_s))

    def send_raw(self, data: bytes, timeout_s: float) -> None:
        """Send a token without headers, for which there is no reply."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(octets(data))

    def _exchanged(self, request: bytes, deadline: float) -> memoryview:
        self._send_all(request, deadline)
        return self._received_frame(deadline)

    def _send_all(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._socket.sendall(data)

    def _received_frame(self, deadline: float) -> memoryview:
        (size,) = struct.unpack(">i", self._exactly(4, deadline))
        if not 0 <= size <= _LARGEST_ANSWER:
            raise _not_a_size(size, _LARGEST_ANSWER)
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> memoryview:
        data = bytearray(size)
        view, received = memoryview(data), 0
        while received < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the broker did not answer in time")
            self._socket.settimeout(left_s)
            count = self._socket.recv_into(view[received:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            received += count
        return view

    def keep_alive(self) -> None:
        """Let the system notice, without a request, that the connection is gone (`_KEEP_ALIVE`).

        A firewall or a broker whose machine has failed ends an idle connection without a word.
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def set_blocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)


def _in_parts(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide requests into parts of `_PART_BYTES`, and at least one request."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and size + len(body) > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part


def connect(address: tuple[str, int], settings: Settings, timeout_s: float) -> Connection:
    """Connect, request the broker's versions, and log in.

    `settings` are librdkafka's: `client.id`, `api.version.request`, `broker.version.fallback`,
    `security.protocol`, `ssl.*` and `sasl.*`. Raises OSError, MalformedError, AuthenticationError,
    and FetchError for settings that this reader does not support.
    """
    deadline = time.monotonic() + timeout_s
    protocol = str(settings.get("security.protocol", "plaintext")).lower()
    try:
        raw = socket.create_connection(address, timeout_s)
    except UnicodeError as error:
        # Python's codec for host names refuses a label of 64 characters, and an empty one.
        raise OSError(f"its host name is not valid: {error}") from error
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_true(settings.get("socket.keepalive.enable", False)):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if size := int(settings.get("socket.receive.buffer.bytes", 0)):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        if protocol.endswith("ssl"):
            raw = _with_tls(raw, address[0], settings)
        found = Connection(raw, str(settings.get("client.id", "")))
        found.versions = _versions(found, settings, deadline)
        if protocol.startswith("sasl"):
            _log_in(found, address[0], settings, deadline)
        found.set_blocking(False)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        raw.close()
        raise  # the broker closed the connection, which another attempt may solve
    except ssl.SSLError as error:
        raw.close()
        raise _refused_by_tls(address, error, settings) from error
    except BaseException:
        raw.close()
        raise
    return found


def _versions(connection: Connection, settings: Settings, deadline: float) -> Versions:
    """Ask for the broker's versions, unless the settings name an old release."""
    if not settings.get("api.version.request", True):
        release = str(settings.get("broker.version.fallback", ""))
        return _OLD.get(release[:3], requests.OF_0_8)
    left_s = max(0.001, deadline - time.monotonic())
    return requests.common_versions(connection.ask(requests.API_VERSIONS, b"", left_s))


# ---- TLS -----------------------------------------------------------------------------------------


def _with_tls(raw: socket.socket, host: str, settings: Settings) -> ssl.SSLSocket:
    try:
        context = tls_context(settings)
    except ConfigError as error:
        raise AuthenticationError(error.what, where=error.where, remedy=error.remedy) from error
    return context.wrap_socket(raw, server_hostname=host)


def _refused_by_tls(
    address: tuple[str, int], error: ssl.SSLError, settings: Settings
) -> AuthenticationError:
    """Return the error of a connection that this client or the broker refuses.

    `kafka.refusals.refusal` returns the same errors for librdkafka.
    """
    broker = f"the broker {address[0]}:{address[1]}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(
            f"the certificate of {broker} is not trusted, or is valid for another host: "
            f"{error.verify_message}",
            where=trust_shown(settings),
            remedy=TRUST_REMEDY,
        )
    cause = str(error)
    if "alert" in cause:
        return AuthenticationError(
            f"{broker} refuses the certificate of this client: {cause}",
            where=f"kafka.ssl.certificate.location={settings.get('ssl.certificate.location', '')}",
            remedy="set it and kafka.ssl.key.location to a certificate that the broker trusts",
        )
    return AuthenticationError(
        f"no TLS connection to {broker}: {cause}",
        where=f"security protocol {settings.get('security.protocol', '')}",
        remedy="set broker.listener to a listener that uses TLS",
    )


def _not_a_size(size: int, largest: int) -> MalformedError:
    """Return the error for the first four bytes of a response, which are no possible size."""
    if size >> 16 == _TLS_ALERT:
        return MalformedError("it answers with a TLS alert: this port requires TLS")
    return MalformedError(f"a response announces {size} bytes; the limit is {largest}")


# ---- SASL ----------------------------------------------------------------------------------------


def _log_in(connection: Connection, host: str, settings: Settings, deadline: float) -> None:
    """Authenticate at the broker `host`. Raises OSError, AuthenticationError, or FetchError."""
    mechanism = mechanism_of(settings)
    if (error := mechanism_without_columns(settings)) is not None:
        raise error
    tokens = _Tokens(connection, host, mechanism, settings, deadline)
    # Brokers of 0.9 have GSSAPI only, and begin with its first token.
    if mechanism != "GSSAPI" or connection.versions is not requests.OF_0_9:
        tokens.agree()
    _MECHANISMS[mechanism](settings, tokens)


class _Tokens:
    """Exchanges the tokens of a SASL mechanism with a broker."""

    def __init__(
        self,
        connection: Connection,
        host: str,
        mechanism: str,
        settings: Settings,
        deadline: float,
    ) -> None:
        self.host = host
        self._connection, self._mechanism, self._deadline = connection, mechanism, deadline
        user = str(settings.get("sasl.username", ""))
        self._where = f"kafka.sasl.mechanism={mechanism}" + (
            f", kafka.sasl.username={user}" if user else ""
        )

    def agree(self) -> None:
        """Choose the mechanism (SaslHandshake)."""
        body = text(self._mechanism)
        answer = self._connection.ask(requests.SASL_HANDSHAKE, body, self._left_s())
        if answer.int16():
            offered = ", ".join(answer.each(answer.text))
            raise AuthenticationError(
                f"the broker {self.host} does not offer the SASL mechanism {self._mechanism}",
                where="kafka.sasl.mechanism",
                remedy=f"set it to one that the broker offers: {offered}",
            )

    def exchange(self, token: bytes) -> bytes:
        """Send a token; return the broker's token."""
        if self._is_raw:
            try:
                return self._connection.ask_raw(token, self._left_s())
            except ConnectionResetError as error:
                raise self._refused("it closed the connection") from error
        body = octets(token)
        response = self._connection.ask(requests.SASL_AUTHENTICATE, body, self._left_s())
        code, text = response.int16(), response.text()
        if code:
            raise self._refused(text)
        return response.octets()

    def finish(self, token: bytes) -> None:
        """Send the last token of a mechanism in which the broker's last reply has no token."""
        if self._is_raw:
            self._connection.send_raw(token, self._left_s())
        else:
            self.exchange(token)

    @property
    def _is_raw(self) -> bool:
        """Whether tokens are sent without headers: in 0.9, and after SaslHandshake version 0."""
        return self._connection.versions.get(requests.SASL_HANDSHAKE, 0) == 0

    def _refused(self, reason: str) -> AuthenticationError:
        remedy = "check kafka.sasl.username and kafka.sasl.password"
        if self._mechanism == "GSSAPI":
            remedy = (
                "check kafka.sasl.kerberos.service.name, and that the broker accepts the principal "
                "of the ticket; see its log"
            )
        return AuthenticationError(
            f"the broker {self.host} refuses the login: {reason}",
            where=self._where,
            remedy=remedy,
        )

    def _left_s(self) -> float:
        return max(0.001, self._deadline - time.monotonic())


def _plain(settings: Settings, tokens: _Tokens) -> None:
    """Log in with the mechanism PLAIN (RFC 4616)."""
    user, password = _user_of(settings)
    tokens.exchange(f"\0{user}\0{password}".encode())


def _user_of(settings: Settings) -> tuple[str, str]:
    return str(settings.get("sasl.username", "")), str(settings.get("sasl.password", ""))


def _gssapi(settings: Settings, tokens: _Tokens) -> None:
    """Log in with Kerberos (RFC 4752), without a security layer, which Kafka does not support."""
    import gssapi  # noqa: PLC0415 - an extra that only this mechanism needs

    service = f"{settings.get('sasl.kerberos.service.name', 'kafka')}@{tokens.host}"
    credentials = _ticket(gssapi, settings)
    try:
        context = gssapi.SecurityContext(
            name=gssapi.Name(service, gssapi.NameType.hostbased_service),
            creds=credentials,
            mech=gssapi.MechType.kerberos,
            flags=(
                gssapi.RequirementFlag.mutual_authentication,
                gssapi.RequirementFlag.integrity,
            ),
            usage="initiate",
        )
        answer = tokens.exchange(context.step() or b"")
        while not context.complete:
            answer = tokens.exchange(context.step(answer) or b"")
        context.unwrap(answer)  # the layers that the broker offers, signed by it
        tokens.finish(context.wrap(_NO_LAYER, False).message)
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationError(
            f"no Kerberos login at {service}: {_cause(error)}",
            where="kafka.sasl.mechanism=GSSAPI",
            remedy="get a ticket with kinit or set kafka.sasl.kerberos.keytab, and check "
            "kafka.sasl.kerberos.service.name",
        ) from error


# The client chooses no security layer; the size of a message within it is then 0 bytes.
_NO_LAYER: Final = b"\1\0\0\0"


def _ticket(gssapi: Gssapi, settings: Settings) -> Gssapi:
    """Return the credentials of the keytab or the principal; None stands for the environment's
    credentials.

    A keytab's tickets stay in this process. The library renews them before they expire.
    """
    keytab, principal = (
        str(settings.get(f"sasl.kerberos.{one}") or "") for one in ("keytab", "principal")
    )
    if not keytab and not principal:
        return None
    store = None
    if keytab:
        cache = hashlib.sha256(f"{keytab}\0{principal}".encode()).hexdigest()
        store = {"client_keytab": keytab, "ccache": f"MEMORY:zkconsumer-{cache}"}
    try:
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
        return gssapi.Credentials(name=name, usage="initiate", store=store)
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationError(
            f"no Kerberos ticket for {principal or 'the keytab'}: {_cause(error)}",
            where=f"kafka.sasl.kerberos.keytab={keytab}"
            if keytab
            else f"kafka.sasl.kerberos.principal={principal}",
            remedy="check that the file is readable and has a key of the principal (klist -k)"
            if keytab
            else "get a ticket with kinit, or set kafka.sasl.kerberos.keytab",
        ) from error


def _cause(error: Gssapi) -> str:
    """Return the text of Kerberos for an error of `gssapi`."""
    return "; ".join(error.get_all_statuses(error.min_code, False))


def _scram(algorithm: str) -> Callable[[Settings, _Tokens], None]:
    """Return the login function of SCRAM with this hash (RFC 5802, without channel binding)."""

    def log_in(settings: Settings, tokens: _Tokens) -> None:
        (user, password), exchange = _user_of(settings), tokens.exchange
        nonce = base64.b64encode(os.urandom(18)).decode()
        name = user.replace("=", "=3D").replace(",", "=2C")
        first = f"n={name},r={nonce}"
        challenge = exchange(f"n,,{first}".encode()).decode()
        asked = _attributes(challenge)
        if not asked.get("r", "").startswith(nonce) or not {"s", "i"} <= asked.keys():
            raise AuthenticationError("the broker's SCRAM challenge is malformed")
        salt, rounds = base64.b64decode(asked["s"]), int(asked["i"])
        salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, rounds)
        key = hmac.digest(salted, b"Client Key", algorithm)
        last = f"c=biws,r={asked['r']}"
        signed = f"{first},{challenge},{last}".encode()
        signature = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        answer = exchange(f"{last},p={base64.b64encode(proof).decode()}".encode()).decode()
        expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
        if not hmac.compare_digest(_attributes(answer).get("v", ""), _b64(expected)):
            raise AuthenticationError("the broker does not know the SCRAM password")

    return log_in


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _attributes(message: str) -> Mapping[str, str]:
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}


_MECHANISMS: Final[Mapping[str, Callable[[Settings, _Tokens], object]]] = {
    "GSSAPI": _gssapi,
    "PLAIN": _plain,
    "SCRAM-SHA-256": _scram("sha256"),
    "SCRAM-SHA-512": _scram("sha512"),
}
