"""The lab's server: which requests it accepts, and which files it serves."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import re
import shlex
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lab.conftest import LabProcess, running_lab
from starlette.requests import Request
from support.wait import LIMIT_S, eventually, soon

from zkconsumer.cli.lab import listen
from zkconsumer.lab.engine import Engine
from zkconsumer.lab.server import (
    KEEP_ALIVE_S,
    WEB,
    Hosts,
    LiveSource,
    _stream,
    encode,
    web_files,
)
from zkconsumer.protocol.model import JsonObject

FIRST = WEB / "first.json"

Answer = tuple[int, dict[str, str], bytes]


def ask(
    lab: LabProcess, path: str, *, body: bytes | None = None, host: str = "", **headers: str
) -> Answer:
    """Send one request; a keyword is a header, with `_` in place of `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=LIMIT_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            "GET" if body is None else "POST",
            path,
            body=body,
            headers={"Host": host or f"127.0.0.1:{lab.port}", **named},
        )
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def token(lab: LabProcess) -> str:
    return str(json.loads(ask(lab, "/about.json")[2])["token"])


def command(lab: LabProcess, **keys: Any) -> list[dict[str, Any]]:
    status, _, body = ask(lab, "/command", body=json.dumps(keys).encode(), x_lab_token=token(lab))
    assert status == 200
    events: list[dict[str, Any]] = json.loads(body)
    return events


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1"])
def test_another_host_is_refused(lab: LabProcess, host: str) -> None:
    """If the Host header has another name or port, a request is refused (DNS rebinding)."""
    for path in ("/", "/about.json", "/app.js"):
        assert ask(lab, path, host=host)[0] == 403


def test_a_lab_on_all_addresses_answers_under_each() -> None:
    """A lab on 0.0.0.0 answers under each address and this machine's name, not under others."""
    with running_lab("--host", "0.0.0.0") as lab:
        assert lab.url == f"http://localhost:{lab.port}/"
        end = f":{lab.port}"
        for host in ("127.0.0.1", "192.0.2.7", "[2001:db8::7]", "localhost", socket.gethostname()):
            own = f"http://{host.lower()}{end}"
            assert ask(lab, "/about.json", host=host.lower() + end, origin=own)[0] == 200, host
        for host in (f"evil.example{end}", "192.0.2.7:1", "192.0.2.7", f"192.0.2.7.evil{end}"):
            assert ask(lab, "/about.json", host=host)[0] == 403, host
        assert ask(lab, "/about.json", origin=f"http://192.0.2.7{end}")[0] == 403


@pytest.mark.parametrize(
    ("address", "port", "given", "host"),
    [
        ("192.0.2.7", 8642, "Lab.example", "lab.example:8642"),
        ("127.0.0.1", 80, "127.0.0.1", "localhost"),
        ("0.0.0.0", 80, "0.0.0.0", "192.0.2.7"),
        ("::", 8642, "::", "[::1]:8642"),
        ("::", 80, "::", "[::1]"),
        ("::1", 8642, "0::1", "[::1]:8642"),
    ],
)
def test_hosts_of_the_lab(address: str, port: int, given: str, host: str) -> None:
    """The lab accepts the Host header that a browser sends for the given address and port."""
    assert host in Hosts(address, port, given)
    assert f"evil.example:{port}" not in Hosts(address, port, given)


class Quiet:
    """A live group in which nothing happens. `waited` counts its waits."""

    def __init__(self) -> None:
        self.waited = 0

    def after(self, number: int, timeout_s: float) -> list[Any]:
        self.waited += 1
        threading.Event().wait(timeout_s)
        return []


async def connected() -> bool:
    return False


OPEN = cast(Request, SimpleNamespace(is_disconnected=connected))
"""A request whose page does not disconnect."""


def test_the_end_of_a_stream_frees_its_thread() -> None:
    """The lab ends soon after its streams, although a thread that waits cannot be cancelled."""
    live = Quiet()

    async def read() -> None:
        async for _ in _stream(cast(LiveSource, live), 0, OPEN):
            pass

    async def cut() -> None:
        reading = asyncio.create_task(read())
        await soon(lambda: live.waited)
        reading.cancel()

    began = time.monotonic()
    asyncio.run(cut())
    assert time.monotonic() - began < KEEP_ALIVE_S / 2


def test_a_quiet_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without events sends a comment after several waits."""
    monkeypatch.setattr("zkconsumer.lab.server.KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr("zkconsumer.lab.server.WAIT_S", 0.02)
    live = Quiet()

    async def first() -> list[str]:
        stream = _stream(cast(LiveSource, live), 0, OPEN)
        return [await anext(stream), await anext(stream)]

    assert asyncio.run(first()) == ["retry: 500\n\n", ": still here\n\n"]
    assert live.waited == 3


def test_a_browser_in_the_foreground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab serves the page to a browser that ends only after it has loaded the page."""
    code = "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])"
    loaded = tmp_path / "loaded"
    monkeypatch.setenv("BROWSER", shlex.join([sys.executable, "-c", code, "%s", str(loaded)]))
    with running_lab("--browser"):
        eventually(loaded.exists)


def test_another_origin_is_refused(lab: LabProcess) -> None:
    """A page of another origin cannot send commands, even if it has the token."""
    body = b'{"do": "catalogue"}'
    mine = f"http://localhost:{lab.port}"
    key = token(lab)
    assert ask(lab, "/command", body=body, x_lab_token=key, origin="http://evil.example")[0] == 403
    assert ask(lab, "/command", body=body, x_lab_token=key, sec_fetch_site="cross-site")[0] == 403
    assert ask(lab, "/about.json", sec_fetch_site="cross-site")[0] == 403
    assert ask(lab, "/command", body=body, x_lab_token=key, origin=mine)[0] == 200


def test_a_command_needs_the_token(lab: LabProcess) -> None:
    """A command without the token of this server is not executed."""
    for wrong in ("", "x" * 32):
        assert ask(lab, "/command", body=b'{"do": "open"}', x_lab_token=wrong)[0] == 403


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'"x"', b" " * 2_000_000])
def test_a_body_that_is_no_command_is_refused(lab: LabProcess, body: bytes) -> None:
    """A request whose body is no command gets an error, and the server continues."""
    assert ask(lab, "/command", body=body, x_lab_token=token(lab))[0] == 400
    assert command(lab, do="open")[0]["event"] == "run"


def test_every_answer_forbids_foreign_scripts(lab: LabProcess) -> None:
    """Each response has a Content Security Policy that forbids inline and foreign scripts."""
    for path in ("/", "/about.json", "/app.js", "/nothing"):
        policy = ask(lab, path)[1]["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy


def test_tabs_have_runs_of_their_own(lab: LabProcess) -> None:
    """A run of one tab does not exist in another tab."""
    number = command(lab, do="open", tab="a")[0]["run"]
    assert command(lab, do="step", run=number, tab="a")[0]["event"] == "frames"
    assert command(lab, do="step", run=number, tab="b")[0]["event"] == "error"


def test_the_stored_answers_are_those_of_the_engine(pytestconfig: pytest.Config) -> None:
    """The answers that the page gets without an engine; `--rewrite` writes them."""
    first: list[JsonObject] = [{"do": "catalogue"}, {"do": "open", "moves": "", "world": {}}]
    engine = Engine()
    answers = {encode(one): engine.command(one) for one in first}
    if pytestconfig.getoption("--rewrite"):
        FIRST.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    assert json.loads(FIRST.read_bytes()) == answers, "see --rewrite"


def test_nothing_else_is_served(lab: LabProcess) -> None:
    """The server sends no files other than the page's own."""
    for path in ("/../engine.py", "/..%2fengine.py", "/vendor/../../engine.py", "/engine.py"):
        assert ask(lab, path)[0] == 404


def test_the_page_loads_nothing_from_elsewhere() -> None:
    """No file of the page loads anything from another host."""
    for name in web_files():
        text = (WEB / name).read_text(encoding="utf-8")
        found = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        # The first answers contain links, which load nothing.
        assert not found or name.endswith((".txt", ".json")), name


def test_vendored_files_are_unchanged() -> None:
    """Each vendored file has its recorded SHA-256 and a licence."""
    folder = WEB / "vendor"
    sums = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    scripts = {path.name for path in folder.glob("*.js")}
    assert set(sums) == scripts
    for name, known in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == known
        assert name in (folder / "LICENSES.txt").read_text()


def test_responses_are_sent_at_once() -> None:
    """The socket of the lab sends small packets at once (TCP_NODELAY) when asyncio serves it."""

    async def delays() -> list[int]:
        seen: list[int] = []

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            one = writer.get_extra_info("socket")
            seen.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", None) as sock:
            async with await asyncio.start_server(accepted, sock=sock):
                reader, writer = await asyncio.open_connection(*sock.getsockname())
                await reader.read()
                writer.close()
        return seen

    assert asyncio.run(delays()) == [1]
