"""`zkconsumer lab`: watch and control a group in a browser."""

from __future__ import annotations

import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from zkconsumer.lab.recorded import Recording

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def lab(
    context: typer.Context,
    *,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the page; 8642 or, if it is taken, another."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")
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
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Play a trace of members or of the simulator."),
    ] = None,
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

    Example: zkconsumer lab --zookeeper zk1:2181/kafka --group billing
    """
    if context.invoked_subcommand is not None:
        return
    need("starlette", "uvicorn")
    from zkconsumer.lab.server import listen, serve

    def started(url: str) -> None:
        typer.echo(f"The lab is at {url} until you press Ctrl-C.")
        if browser:
            webbrowser.open(url)

    if trace is not None:
        serve(listen(host, port), live=_recording(trace), on_start=started)
        return
    if zookeeper is None and group is None and config is None:
        serve(listen(host, port), on_start=started)
        return
    from zkconsumer.cli.options import Connection
    from zkconsumer.lab.live import LiveGroup

    given = Connection(zookeeper=zookeeper, config=config)
    name = given.group(group)
    with LiveGroup(given.connection_settings(name), name) as live:
        serve(listen(host, port), live=live, on_start=started)


def _recording(file: Path) -> Recording:
    """Return a trace for the server. Raises TraceError, or ConfigError if it cannot be read."""
    from zkconsumer.errors import ConfigError
    from zkconsumer.lab.recorded import Recording, events_of, read_trace

    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            entries = read_trace(lines, name=str(file))
    except OSError as error:
        raise ConfigError(
            f"the trace cannot be read: {error.strerror}", where=str(file), remedy="name a trace"
        ) from error
    return Recording(events_of(entries, file.name))


@app.command()
def build(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where to write the site.")
    ],
    *,
    pyodide: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Archive of the npm package pyodide; default: npm fetches it."
        ),
    ] = None,
) -> None:
    """Write the lab as a static site, which runs in the visitor's browser without a server.

    Any web server can serve it. It offers simulated groups, tours and recorded runs, and needs
    about 6 MB the first time. Browsers do not run it from a file.

    Example: zkconsumer lab build site
    """
    from zkconsumer.lab.site import build as write_site

    write_site(directory, runtime=pyodide)
    typer.echo(f"The site is in {directory}. Try it: python -m http.server -d {directory}")


def need(*packages: str) -> None:
    """Raise ConfigError if the extra `lab` is not installed."""
    from zkconsumer.errors import ConfigError

    missing = [one for one in packages if find_spec(one) is None]
    if missing:
        raise ConfigError(
            f"the lab needs {' and '.join(missing)}",
            where="zkconsumer lab",
            remedy="install `zkconsumer[lab]`",
        )
