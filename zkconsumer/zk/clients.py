"""The addresses of ZooKeeper's clients, as far as the servers tell them.

A znode names the session of its client, and only the server to which the client is connected knows
the client's address. A server lists its clients in two places:

- in the answer to the four-letter word `cons`, if `4lw.commands.whitelist` contains it. By default,
  ZooKeeper 3.5.3 and later answer only `srvr`.
- on its admin server (3.5 and later), at `/commands/connections`, by default on port 8080.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple

from zkconsumer.config.settings import ConnectionConfig
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import Json, session_text
from zkconsumer.zk.attempts import Address, ask
from zkconsumer.zk.credentials import TlsSockets, tls_context

ADMIN_PORT: Final = 8080
"""The default of ZooKeeper's `admin.serverPort`."""

ANSWER_S: Final = 1.0
"""Seconds to wait for the answer to `cons`."""

ADMIN_ANSWER_S: Final = 3.0
"""Seconds to wait for the admin server, whose first answer takes more than a second."""

MOST_BYTES: Final = 64 << 20
"""Maximum size of a server's list of clients: a line has 200 bytes, and a server has at most
thousands of clients."""

# ` /127.0.0.1:4242[1](queued=0,...,sid=0x1000,lop=PING,...,lzxid=0x5,...)`. The connection that
# asks has no session.
_LINE: Final = re.compile(
    r" *(?P<address>\S+)\[[0-9a-f]+\]\(.*\bsid=0x(?P<session>[0-9a-f]+)\b"
    r"(?:.*\blop=(?P<operation>\w+))?(?:.*\best=(?P<since>\d+))?"
    r"(?:.*\blzxid=0x(?P<zxid>[0-9a-f]+))?"
)
_WRITES: Final = frozenset({"SETD", "CREA", "DELE", "MULT"})

_REFUSED: Final = b"is not in the whitelist"
# The first words of the answer of a server that serves no client now.
_NOT_SERVING: Final = b"not currently serving"


class ConnectedClient(NamedTuple):
    """A client: its address `HOST:PORT`, its last request, the zxid of the last reply, and the time
    at which it connected, in milliseconds by the server's clock. What the server does not say is
    None; the request is then ""."""

    address: str
    operation: str = ""
    zxid: int | None = None
    since_ms: int | None = None


class ServerClients(NamedTuple):
    """The clients of one server, by unsigned session id, or why the server does not list them."""

    server: str
    clients: Mapping[int, ConnectedClient]
    why_silent: str = ""


@dataclass(frozen=True)
class ClientAddresses:
    """The clients of one ensemble.

    Attributes:
        found: session, as a number without sign -> the client.
        silent: server -> why it does not list its clients.
    """

    found: Mapping[int, ConnectedClient] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)

    def of(self, session: int) -> str | None:
        """Return the address of a session's client; None if it is unknown."""
        found = self.found.get(_unsigned(session))
        return None if found is None else found.address

    def writers(self, zxids: Collection[int]) -> list[str]:
        """Return the clients that may have written the transactions with these zxids, in clauses.

        A server knows only the last request of a client. If that is one of these transactions, the
        client is certain. If it is a later write, or a write whose zxid the server does not say,
        the client may be one that writes often. After any other request, even a ping, the client
        is not found.
        """
        writes = {session: one for session, one in self.found.items() if one.operation in _WRITES}
        certain = [
            f"{session_text(session)} is this client, at {one.address}"
            for session, one in writes.items()
            if one.zxid in zxids
        ]
        return certain or [
            f"{session_text(session)} may be this client, at {one.address}, because its last"
            " request is a write"
            for session, one in writes.items()
            if one.zxid is None or one.zxid > min(zxids)
        ]

    @property
    def why_unknown(self) -> str:
        """Why the address of a session may be unknown, and what to permit."""
        if not self.silent:
            return "no server that zookeeper.connect names has a connection of this session now"
        reasons: dict[str, list[str]] = {}
        for server, why in self.silent.items():
            reasons.setdefault(why, []).append(server)
        text = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        host, _, port = next(iter(self.silent)).rpartition(":")
        return (
            f"{text}. Permit `cons` in 4lw.commands.whitelist, or enable the admin server; then"
            f" `echo cons | nc {host.strip('[]')} {port}` lists the clients of a server"
        )

    def describe(self, *sessions: int) -> str:
        """Return the addresses of sessions in a clause, or why they are unknown."""
        known = [
            f"{session_text(one)} is a client at {address}"
            for one in sessions
            if (address := self.of(one)) is not None
        ]
        unknown = [session_text(one) for one in sessions if self.of(one) is None]
        if unknown:
            known.append(f"the address of {', '.join(unknown)} is unknown: {self.why_unknown}")
        return "; ".join(known)


def client_addresses(config: ConnectionConfig, *, admin_port: int = ADMIN_PORT) -> ClientAddresses:
    """Return the clients of all servers of `zookeeper.connect`; see `ask_servers`."""
    found: dict[int, ConnectedClient] = {}
    silent: dict[str, str] = {}
    for server, clients, why in ask_servers(config, admin_port=admin_port):
        found |= clients
        if why:
            silent[server] = why
    return ClientAddresses(found, silent)


def ask_servers(
    config: ConnectionConfig, *, admin_port: int = ADMIN_PORT
) -> Sequence[ServerClients]:
    """Ask each server of `zookeeper.connect` for its clients, all at the same time.

    A server that answers neither to `cons` nor on its admin server is in the result with the
    reason. Raises ConfigError for wrong files of TLS.
    """
    servers = [_split(server) for server in config.zookeeper_hosts.split(",")]
    places = list(dict.fromkeys(place for host, port in servers for place in _resolved(host, port)))
    context = tls_context(config)
    tls = TlsSockets(context) if context else None
    with ThreadPoolExecutor(len(places)) as pool:
        answers = pool.map(partial(_ask, tls, admin_port), places)
        return [
            ServerClients(name, *answer) for (name, _), answer in zip(places, answers, strict=True)
        ]


Place = tuple[str, Address]
"""A server's name with its port, and one of its addresses; the port 0 if the name is unknown."""


def _split(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host, int(port)


def _resolved(host: str, port: int) -> Iterator[Place]:
    """Yield the addresses of a host: one name may stand for all servers of an ensemble."""
    name = f"{host}:{port}"
    try:
        known = socket.getaddrinfo(host.strip("[]"), port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        yield name, ("", 0)
        return
    yield from dict.fromkeys((name, (str(one[4][0]), port)) for one in known)


Clients = dict[int, ConnectedClient]
"""Session, without sign -> client."""


def _ask(tls: TlsSockets | None, admin_port: int, place: Place) -> tuple[Clients, str]:
    """Return the clients of a server, and why it does not list them."""
    name, address = place
    if not address[1]:
        return {}, "unknown host"
    open_: Callable[[Address, float], socket.socket] = socket.create_connection
    if tls is not None:
        host = name.rpartition(":")[0].strip("[]")

        def open_(at: Address, limit_s: float) -> socket.socket:
            return tls.open(at, hostname=host, timeout=limit_s)

    said = ask(address, b"cons", limit_s=ANSWER_S, most=MOST_BYTES, open_=open_)
    if _REFUSED not in said and _NOT_SERVING not in said and b"(" in said:
        return _of_lines(said.decode(errors="replace")), ""
    found = _of_admin(address[0], admin_port)
    if found is not None:
        return found, ""
    if _NOT_SERVING in said:
        return {}, "it has no quorum"
    refused = "`cons` is not permitted" if _REFUSED in said else "there is no answer to `cons`"
    return {}, f"{refused}, and the admin server does not answer on port {admin_port}"


def _of_lines(text: str) -> Clients:
    found = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            zxid = int(match["zxid"], 16) if match["zxid"] else None
            since_ms = int(match["since"]) if match["since"] else None
            address = _address(match["address"])
            one = ConnectedClient(address, match["operation"] or "", zxid, since_ms)
            found[int(match["session"], 16)] = one
    return found


def _address(text: str) -> str:
    """Return `HOST:PORT` of Java's `InetSocketAddress`, which precedes it with a name and `/`."""
    return text.rpartition("/")[2]


def _of_admin(host: str, port: int) -> Clients | None:
    """Return what the admin server lists; None if it does not answer as ZooKeeper."""
    connection = HTTPConnection(host, port, timeout=ADMIN_ANSWER_S)
    try:
        connection.request("GET", "/commands/connections")
        document: Json = json.loads(connection.getresponse().read(MOST_BYTES))
        listed = [
            one
            for name in ("connections", "secure_connections")
            for one in document.get(name) or ()
        ]
        return {
            _unsigned(int(one["session_id"])): ConnectedClient(
                _address(str(one["remote_socket_address"])),
                str(one.get("last_operation", "")),
                None if (zxid := one.get("last_zxid")) is None else int(str(zxid), 0),
                one.get("established"),
            )
            for one in listed
            if one.get("session_id")
        }
    except (OSError, HTTPException, ValueError, AttributeError, TypeError, KeyError):
        return None
    finally:
        connection.close()


def _unsigned(session: int) -> int:
    return session & 0xFFFF_FFFF_FFFF_FFFF
