"""`zkconsumer top`: a full-screen view of a cluster's groups."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.options import Connection, operator
from zkconsumer.errors import ConfigError, ZkConsumerError, require

if TYPE_CHECKING:
    from zkconsumer.cli.top_app import Top

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator()
def top(
    connection: Connection,
    *,
    interval: Annotated[
        float, typer.Option(min=0.5, metavar="S", help="Seconds between two readings.")
    ] = 2.0,
) -> None:
    """Watch the groups of a cluster in a full-screen view. Changes nothing.

    The list shows each group's state, members, lag, committed messages per second, and worst
    status. Enter opens a group: its partitions with owners, its members, and the doctor's findings.
    The keys are those of htop and k9s; ? shows them.

    The list uses the offsets in ZooKeeper; an opened group also shows those in Kafka. Reading uses
    at most 5 % of a core, so a round over thousands of groups takes longer than --interval.

    Example: zkconsumer top -z zk1:2181/kafka
    """
    require("textual", extra="top", where="zkconsumer top")
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise ConfigError(
            "top needs a terminal",
            where="standard input and output",
            remedy="use `zkconsumer lag --watch` in a pipe",
        )
    connection.connection_settings()  # report wrong settings before the full-screen view starts
    from zkconsumer.cli.top_app import Top
    from zkconsumer.cli.top_feed import Feed

    view = Top(Feed(connection, interval_s=interval), has_terminal=sys.stdin.isatty)
    fault = asyncio.run(_shown(view))
    if fault is not None:
        raise fault


async def _shown(view: Top) -> ZkConsumerError | None:
    """Show the view until it ends, and return its fault; raise KeyboardInterrupt after SIGINT.

    The event loop handles the signal. An exception that a signal handler raises is lost if it comes
    in a destructor. On the terminal of the full-screen view, Ctrl-C is a key.
    """
    interrupted = asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        view.exit()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
    fault = await view.run_async()
    if interrupted.is_set():
        raise KeyboardInterrupt
    return fault
