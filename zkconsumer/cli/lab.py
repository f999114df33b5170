"""`zkconsumer lab`: watch and control a group in a browser."""

from __future__ import annotations

import webbrowser
from importlib.util import find_spec
from typing import Annotated

import typer

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
        str, typer.Option(help="Address to listen on. Others than this machine may then connect.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Open the lab: a simulated group in the browser, with every fault at hand.

    The members run the production code; ZooKeeper, the network and time are simulated. Go back to
    any moment, do something else there, and compare. The address of the page holds the whole run.

    Example: zkconsumer lab --port 9000
    """
    if context.invoked_subcommand is not None:
        return
    need("starlette", "uvicorn")
    from zkconsumer.lab.server import listen, serve

    def started(url: str) -> None:
        typer.echo(f"The lab is at {url} until you press Ctrl-C.")
        if browser:
            webbrowser.open(url)

    serve(listen(host, port), on_start=started)


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
