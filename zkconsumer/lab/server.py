"""The lab's server: the page, commands by POST, and a live group's events by server-sent events.

The server listens on 127.0.0.1 unless it is configured otherwise. A request with another host or
origin is refused, so that a foreign page cannot reach the lab through the visitor's browser. Each
command needs the token of this server; only the page of the same origin can read it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zkconsumer.protocol.model import JsonObject

if TYPE_CHECKING:
    from zkconsumer.lab.engine import Engine

WEB = Path(__file__).parent / "web"

MAX_TABS = 16
"""Maximum number of engines. A browser tab whose engine was removed opens its run again from the
moves in its address."""

MAX_BODY = 1_000_000
"""Upper bound of a command, in bytes; a larger one is refused. The longest command contains an
address of some kilobytes.
"""

KEEP_ALIVE_S = 10.0
"""Seconds without an event after which a comment is sent, so that dead connections are noticed."""

WAIT_S = 0.5
"""Seconds for which a stream of events occupies a thread at a time. A thread that waits cannot be
cancelled, so the end of the lab waits for it.
"""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content Security Policy: no foreign or inline scripts. Inline styles are colours of members."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class LiveSource(Protocol):
    """A live group that the server shows; see `lab.live`."""

    def about(self) -> JsonObject:
        """Return the additional content of `about.json`."""

    def after(self, number: int, timeout_s: float) -> list[tuple[int, list[JsonObject]]]:
        """Return (number, events) of each message after `number`, or wait up to `timeout_s`."""

    def command(self, command: JsonObject) -> list[JsonObject]:
        """Carry out a command of the page."""


class Tabs:
    """The engines of the open pages; beyond the limit, the least recently used one is removed.

    One command runs at a time: a command on a run with weakened members replaces functions of the
    whole process (`sim.weakened`), and no other run may move meanwhile.
    """

    def __init__(self) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        self._lock = threading.Lock()

    def command(self, tab: str, command: JsonObject) -> list[JsonObject]:
        with self._lock:
            if tab not in self._engines:
                self._engines[tab] = new_engine()
            engine = self._engines[tab]
            self._engines.move_to_end(tab)
            while len(self._engines) > MAX_TABS:
                self._engines.popitem(last=False)
            return engine.command(command)


def new_engine() -> Engine:
    """Return an engine. The first call imports it, which is slow; the page shows its first picture
    meanwhile, from `first.json`."""
    from zkconsumer.lab.engine import Engine  # noqa: PLC0415 - see above

    return Engine()


def encode(content: JsonObject | list[JsonObject]) -> str:
    """Return a command or events as compact JSON."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


class Hosts:
    """The Host headers under which the lab can be reached.

    A lab that listens on all addresses accepts every address, and of the names only this machine's:
    DNS rebinding needs a foreign name.
    """

    def __init__(self, address: str, port: int, given: str = "") -> None:
        """`address` is the socket's address, and `given` the user's text for it."""
        # Browsers leave out port 80.
        self._ends = (f":{port}", "") if port == 80 else (f":{port}",)
        self._is_for_all = ipaddress.ip_address(address).is_unspecified
        names = {address, given or address}
        if self._is_for_all:
            names |= {"localhost", socket.gethostname()}
        elif address == "127.0.0.1":
            names |= {"localhost"}
        shown = [f"[{name}]" if ":" in name else name.lower() for name in names]
        self._named = frozenset(name + end for name in shown for end in self._ends)
        self.origins = frozenset(f"http://{host}" for host in self._named)

    def __contains__(self, host: str) -> bool:
        return host.lower() in self._named or (self._is_for_all and self._is_address(host))

    def _is_address(self, host: str) -> bool:
        for end in self._ends:
            text = host.removesuffix(end)
            if end and text == host:
                continue
            version = 6 if text.startswith("[") and text.endswith("]") else 4
            try:
                return ipaddress.ip_address(text.strip("[]")).version == version
            except ValueError:
                continue
        return False


class Guard:
    """Refuses requests for other hosts or from other origins, and adds the security headers."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): one.decode("latin-1") for name, one in scope["headers"]}
        refusal = self._refusal(headers)
        if refusal:
            response = PlainTextResponse(refusal, status_code=403, headers=HEADERS)
            await response(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, headers: Mapping[str, str]) -> str:
        host = headers.get("host", "")
        if host not in self._hosts:
            return "This host name is not the lab's."
        origin = headers.get("origin")
        if origin is not None and origin not in {*self._hosts.origins, f"http://{host}"}:
            return "This origin is not the lab's."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link on another page may open the lab; any other request from another page is
            # refused.
            is_link = headers.get("sec-fetch-mode") == "navigate"
            return "" if is_link else "The request comes from another site."
        return ""


def application(hosts: Hosts, *, live: LiveSource | None = None) -> Guard:
    """Return the ASGI application; `hosts` are the values of the Host header that it accepts."""
    token = secrets.token_urlsafe(24)
    tabs = Tabs()

    async def about(request: Request) -> Response:
        more = live.about() if live is not None else {"kind": "simulated"}
        return JSONResponse({"token": token, **more})

    async def command(request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("x-lab-token", ""), token):
            return JSONResponse(_error("the token is not this server's"), status_code=403)
        try:
            given = json.loads(await _body(request))
        except ValueError:
            return JSONResponse(_error("the command is not JSON, or too large"), status_code=400)
        if not isinstance(given, dict):
            return JSONResponse(_error("the command is not a JSON object"), status_code=400)
        tab = str(given.pop("tab", ""))[:100]
        if live is not None:
            events = await asyncio.to_thread(live.command, given)
        else:
            events = await asyncio.to_thread(tabs.command, tab, given)
        return Response(encode(events), media_type="application/json")

    async def events(request: Request) -> Response:
        if live is None:
            return PlainTextResponse("this lab shows no live group", status_code=404)
        try:
            last = int(request.headers.get("last-event-id", "0"))
        except ValueError:
            last = 0
        stream = _stream(live, last, request)
        return StreamingResponse(stream, media_type="text/event-stream")

    routes = [
        Route("/about.json", about),
        Route("/command", command, methods=["POST"]),
        Route("/events", events),
        Route("/", _file(WEB / "index.html")),
        *(Route(f"/{path}", _file(WEB / path)) for path in web_files()),
    ]
    return Guard(Starlette(routes=routes), hosts)


def web_files() -> list[str]:
    """Return the paths of the page's files, relative to `WEB`."""
    found = (path for path in WEB.rglob("*") if path.suffix in TYPES and path.is_file())
    return sorted(str(path.relative_to(WEB)) for path in found)


def _file(path: Path) -> Callable[[Request], object]:
    async def serve(request: Request) -> Response:
        return Response(path.read_bytes(), media_type=TYPES[path.suffix])

    return serve


def _error(text: str) -> list[dict[str, str]]:
    return [{"event": "error", "text": text}]


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise ValueError("too large")
    return body


async def _stream(live: LiveSource, last: int, request: Request) -> AsyncIterator[str]:
    """Yield the server-sent events after `last` until the page disconnects."""
    yield "retry: 500\n\n"
    waits = 0
    while not await request.is_disconnected():
        messages = await asyncio.to_thread(live.after, last, WAIT_S)
        for number, found in messages:
            last = number
            yield f"id: {number}\ndata: {encode(found)}\n\n"
        waits = 0 if messages else waits + 1
        if waits * WAIT_S >= KEEP_ALIVE_S:
            waits = 0
            yield ": still here\n\n"


# ---- running -------------------------------------------------------------------------------------


def serve(sock: socket.socket, host: str, *, live: LiveSource | None = None) -> None:
    """Serve the lab on a listening socket until SIGINT or SIGTERM.

    `host` is the address or name that the user has given for the socket.
    """
    address, port = sock.getsockname()[:2]
    config = uvicorn.Config(
        application(Hosts(address, port, host), live=live),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[sock])
