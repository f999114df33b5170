"""`zkconsumer lab`: watch and control a group in a browser."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.options import Connection, Format, operator
from zkconsumer.cli.output import SECTIONS
from zkconsumer.cli.urls import REACHABLE, listens_on_all, urls_of
from zkconsumer.errors import ConfigError, first_few, quoted, require

if TYPE_CHECKING:
    from zkconsumer.lab.live import LiveGroup
    from zkconsumer.lab.recorded import Recording
    from zkconsumer.lab.server import LiveSource

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Traces = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help="Play a trace of members or of the simulator. A directory plays all its *.jsonl files"
        " as one run. Use the option twice to compare two runs.",
    ),
]
Histories = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help="Play what ZooKeeper's own logs say about --group: dataDir, a log, a snapshot, or a"
        " tar archive; repeatable.",
    ),
]
OwnSandbox = Annotated[
    bool,
    typer.Option(
        "--sandbox",
        help="Start real servers and members on this machine, and let the page act on them.",
    ),
]


@app.callback(invoke_without_command=True)
def lab(
    context: typer.Context,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the page; default: 8642, or a free port if 8642 is in use.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines reach the page.")
    ] = "127.0.0.1",
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "-z",
            metavar="H:P[,H:P...][/CHROOT]",
            help="Show a live group of this cluster; the lab only reads it.",
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="The live group.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="consumer.properties file of the live group: connection, TLS."
        ),
    ] = None,
    trace: Traces = None,
    history: Histories = None,
    sandbox: OwnSandbox = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Open the lab: a simulated group in the browser, whose events and faults you control.

    The members run the production code; ZooKeeper, the network and time are simulated. You can go
    back to any moment, change what happens next, and compare the two runs. The address of the page
    contains the whole run.

    With --group, the page shows a live group: its members, owners, offsets and lag, and what
    `doctor` finds. The lab writes nothing.

    With --sandbox, the lab starts ZooKeeper, a broker, a producer, and members of both kinds on
    this machine. The page's actions are then real signals, broken connections and restarts. Ctrl-C
    ends all of it.

    Example: zkconsumer lab --zookeeper zk1:2181/kafka --group billing
    """
    if context.invoked_subcommand is not None:
        return
    require("starlette", "uvicorn", extra="lab", where="zkconsumer lab")
    others = (zookeeper, group, config, trace, history)
    if sandbox and any(others):
        raise typer.BadParameter("--sandbox starts a group of its own: leave out the other options")
    with listen(host, port) as sock, ExitStack() as stack:
        live: LiveSource | None = None
        if sandbox:
            live = _sandbox(stack)
        elif trace:
            live = _recording(trace)
        elif history:
            live = _logged(history, group)
        elif any(others):
            live = stack.enter_context(_live(zookeeper, group, config))
        page = _announced(sock)
        if browser:
            # A text browser runs in the foreground, and the call returns at its end.
            threading.Thread(
                target=webbrowser.open, args=(page,), name="browser", daemon=True
            ).start()
        from zkconsumer.lab.server import serve

        serve(sock, host, live=live)


def _announced(sock: socket.socket) -> str:
    """Print the URLs of the page; return the one for this machine."""
    host, port = sock.getsockname()[:2]
    urls = urls_of(host, port, "/")
    typer.echo(f"The lab is at {' and '.join(urls)} until you press Ctrl-C.")
    if listens_on_all(host):
        typer.echo(REACHABLE)
    return urls[0]


def _sandbox(stack: ExitStack) -> LiveSource:
    """Start a real group, and stop it when the exit stack closes."""
    from zkconsumer.lab.sandboxed import SandboxGroup, real_group

    return stack.enter_context(SandboxGroup(stack.enter_context(real_group())))


def _live(zookeeper: str | None, group: str | None, config: Path | None) -> LiveGroup:
    from zkconsumer.lab.live import LiveGroup

    given = Connection(zookeeper=zookeeper, config=config)
    name = given.group(group)
    return LiveGroup(given.connection_settings(name), name)


def _recording(paths: Sequence[Path]) -> Recording:
    """Return traces for the server. Raises TraceError, or ConfigError if one cannot be read."""
    from zkconsumer.lab.recorded import Recording, events_of

    events = []
    for number, path in enumerate(paths, 1):
        events += events_of(list(_entries(path)), path.name, number)
    return Recording(events)


def _logged(paths: Sequence[Path], group: str | None) -> Recording:
    """Return the history of a group in ZooKeeper's logs, for the server. Raises HistoryError, or
    ConfigError."""
    from zkconsumer.cli.compile import load_decoder
    from zkconsumer.history.describe import Description
    from zkconsumer.history.inputs import find_servers
    from zkconsumer.lab.recorded import Recording, entries_of, events_of

    servers = find_servers(paths)
    load_decoder(servers)
    description = Description(servers, [group] if group else ())
    description.read()
    found = description.result()
    names = sorted({name for _, name in found.groups})
    name = group or (names[0] if len(names) == 1 else "")
    if name not in names:
        raise ConfigError(
            f"the logs have no group {quoted(name)}" if name else "the logs have several groups",
            where=", ".join(map(str, paths)),
            remedy=f"give --group, one of {first_few(names, 8) or 'none'}",
        )
    entries = entries_of(found.tables, name)
    return Recording(events_of(entries, f"group {name} in ZooKeeper's logs"))


def _entries(path: Path) -> Iterator[dict[str, object]]:
    """Yield the entries of a trace, or of all traces of a directory."""
    from zkconsumer.lab.recorded import read_trace

    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(
            "the directory has no file *.jsonl", where=str(path), remedy="name a trace"
        )
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from read_trace(lines, name=str(file))
        except OSError as error:
            raise ConfigError(
                f"the trace cannot be read: {error.strerror}",
                where=str(file),
                remedy="name a trace",
            ) from error


@app.command()
@operator(formats=SECTIONS)
def build(
    format_: Format,
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where to write the site.")
    ],
    pyodide: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Archive of the npm package pyodide; default: npm fetches it."
        ),
    ] = None,
) -> None:
    """Write the lab as a static site, which runs in the browser.

    Any web server can serve it. It offers simulated groups, tours, comparisons of protocols and
    exports, and needs about 6 MB the first time. Browsers do not run it from a file.

    Example: zkconsumer lab build site
    """
    from zkconsumer.lab.site import build as write_site

    write_site(directory, runtime=pyodide)
    if not format_.is_for_people:
        format_.write_document({"directory": str(directory)})
        return
    typer.echo(f"The site is in {directory}. Test it with: python -m http.server -d {directory}")


# ---- the listening socket ------------------------------------------------------------------------

# The command opens the socket before it imports the server. A browser that connects early waits for
# the server, so browser and server can start at the same time.

DEFAULT_PORT = 8642


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on `port`; by default on DEFAULT_PORT, or else on a free port.

    Raises ConfigError if the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [DEFAULT_PORT, 0] if port is None else [port]:
        # asyncio sends small packets at once (TCP_NODELAY) only if the socket names the protocol.
        # Otherwise most responses are delayed by 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            continue
        sock.listen(128)
        return sock
    raise ConfigError(
        f"the lab cannot listen: {reason}",
        where=f"{host}:{port or DEFAULT_PORT}",
        remedy="choose another --port or --host",
    )
