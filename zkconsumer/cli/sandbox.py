"""`zkconsumer sandbox`: a local ZooKeeper and local brokers that keep running between commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Display, Format, operator
from zkconsumer.cli.output import ROWS, SECTIONS, Align, Column, Output, Progress
from zkconsumer.errors import SandboxError
from zkconsumer.protocol.model import Json, JsonObject

if TYPE_CHECKING:
    from zkconsumer.sandbox import Sandbox

app = typer.Typer(
    help="Run a real ZooKeeper and real Kafka brokers on this machine, in the background.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
topic_app = typer.Typer(
    help="Create topics in the sandbox, and produce messages.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(topic_app, name="topic")


SERVER_COLUMNS = (
    Column("server"),
    Column("state"),
    Column("address"),
    Column("pid", align=Align.RIGHT),
)
PLACE_COLUMNS = (
    Column("partition", align=Align.RIGHT),
    Column("replicas", type="integers", show=lambda brokers: ",".join(map(str, brokers))),
    Column("leader", align=Align.RIGHT),
)
MESSAGE_COLUMNS = (
    Column("key"),
    Column("partition", align=Align.RIGHT),
    Column("offset", align=Align.RIGHT),
)


def _default_directory() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "zkconsumer" / "sandbox"


DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the sandbox's configuration, data and logs.",
        show_default="~/.local/share/zkconsumer/sandbox",
        file_okay=False,
    ),
]


def _port(server: str) -> Json:
    return typer.Option(
        min=1,
        max=65535,
        help=f"Port of {server}.",
        show_default="the port of the last start, else a free port",
    )


@app.command()
@operator(formats=ROWS)
def up(
    display: Display,
    *,
    directory: DirectoryOption = None,
    zookeeper_port: Annotated[int | None, _port("ZooKeeper")] = None,
    broker_port: Annotated[int | None, _port("the first broker")] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, max=16, help="Number of brokers.", show_default="as at the last start, else 1"
        ),
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            help="Kafka release of the brokers.", show_default="as at the last start, else 3.9.1"
        ),
    ] = None,
    zookeeper_release: Annotated[
        str | None,
        typer.Option(
            help="ZooKeeper release, 3.4.6 to 3.9.6.",
            show_default="as at the last start, else 3.8.4",
        ),
    ] = None,
) -> None:
    """Start the servers in the background, and print their addresses.

    If the servers are running already, only their addresses are printed.

    Example: zkconsumer sandbox up --zookeeper-port 2181 --broker-port 9092
    """
    home = _home(directory)
    with _alone(home):
        chosen = {"brokers": brokers, "release": release, "zookeeper_release": zookeeper_release}
        before = _choices(home)
        choices = before | {name: value for name, value in chosen.items() if value}
        ports = {"zookeeper_port": zookeeper_port, "broker_port": broker_port}
        sandbox = _sandbox(home, choices | ports)
        is_running = sandbox.attach()
        for broker in sandbox.attach_surplus():
            typer.echo(f"zkconsumer: {broker.name} is stopped", err=True)
            broker.stop()
        if is_running:
            typer.echo("zkconsumer: the sandbox is already running", err=True)
            choices = before | {"brokers": len(sandbox.brokers)}  # the releases are as before
        else:
            sandbox.start()
        (home / "sandbox.json").write_text(json.dumps(choices))
        _show_servers(sandbox, display)
        sandbox.detach()


@app.command()
@operator(formats=ROWS)
def status(display: Display, *, directory: DirectoryOption = None) -> None:
    """Show the servers and their addresses. Exit code 6: a server is not running.

    Example: zkconsumer sandbox status --output json
    """
    home = _home(directory)
    sandbox = _sandbox(home, _choices(home))
    complete = sandbox.attach()
    _show_servers(sandbox, display)
    if not complete:
        raise typer.Exit(Exit.FOUND)


@app.command()
@operator(formats=SECTIONS)
def down(format_: Format, *, directory: DirectoryOption = None) -> None:
    """Stop the servers, if they are running. Their data is kept.

    Example: zkconsumer sandbox down
    """
    home = _home(directory)
    with _alone(home):
        sandbox = _sandbox(home, _choices(home))
        sandbox.attach()
        surplus = sandbox.attach_surplus()
        servers = (*surplus, *sandbox.brokers, sandbox.zookeeper)
        running = [server.name for server in servers if server.alive]
        for broker in surplus:
            broker.stop()
        sandbox.stop()
    if not format_.is_for_people:
        format_.write_document({"stopped": running, "directory": str(home)})
        return
    typer.echo(f"stopped: {', '.join(running)}" if running else "no server was running")
    typer.echo(f"data kept in {home}")


@topic_app.command()
@operator(formats=ROWS)
def create(
    display: Display,
    *,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partitions: Annotated[int, typer.Option(min=1, max=10_000, help="Number of partitions.")] = 1,
    replicas: Annotated[
        int,
        typer.Option(min=1, help="Replicas of each partition; at most the number of brokers."),
    ] = 1,
    directory: DirectoryOption = None,
) -> None:
    """Create a topic, and show the replicas and the leader of each partition.

    Example: zkconsumer sandbox topic create orders --partitions 12
    """
    sandbox = _running(directory)
    progress = Progress("partitions")
    with progress.until_done():
        placement = sandbox.create_topic(
            name, partitions=partitions, replicas=replicas, on_progress=progress.advanced
        )
    rows = [one._asdict() | {"replicas": list(one.replicas)} for one in placement]
    _write(display, {"topic": name, "partitions": rows}, rows, PLACE_COLUMNS)


@topic_app.command()
@operator(formats=ROWS)
def produce(
    display: Display,
    *,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE", help="Values of the messages; default: the lines of standard input."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of all messages.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(help="Text that separates the key from the value within each message."),
    ] = None,
    directory: DirectoryOption = None,
) -> None:
    """Produce messages, and show the partition and the offset of each.

    A message with a key goes to the partition that the Java producer chooses (murmur2 hash).

    Example: zkconsumer sandbox topic produce orders --key customer-7 first second
    """
    if key is not None and key_separator is not None:
        raise typer.BadParameter("--key and --key-separator exclude each other")
    sandbox = _running(directory)
    keys: list[str | None] = []

    def keyed() -> Iterator[tuple[str | None, str]]:
        for message in messages or (line.rstrip("\r\n") for line in sys.stdin):
            own, found, value = message.partition(key_separator or "\0")
            pair = (own, value) if key_separator and found else (key, message)
            keys.append(pair[0])
            yield pair

    placed = sandbox.produce_keyed(name, keyed())
    rows = [
        {"key": own, "partition": partition, "offset": offset}
        for own, (partition, offset) in zip(keys, placed, strict=True)
    ]
    _write(display, {"topic": name, "messages": rows}, rows, MESSAGE_COLUMNS)


# ---- shared -------------------------------------------------------------------------------------


def _home(directory: Path | None) -> Path:
    return (directory or _default_directory()).absolute()


def _choices(home: Path) -> JsonObject:
    """Return the options of the last `up`: number of brokers, releases of the servers."""
    try:
        choices = json.loads((home / "sandbox.json").read_text())
    except (OSError, ValueError):
        return {}
    known = ("brokers", "release", "zookeeper_release")
    return {name: choices[name] for name in known if name in choices}


def _sandbox(home: Path, choices: JsonObject) -> Sandbox:
    from zkconsumer.sandbox import Sandbox

    return Sandbox(home, **choices)


def _running(directory: Path | None) -> Sandbox:

    home = _home(directory)
    sandbox = _sandbox(home, _choices(home))
    if not sandbox.attach():
        raise SandboxError(
            "the sandbox is not running", where=str(home), remedy="run `zkconsumer sandbox up`"
        )
    return sandbox


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the lock of a sandbox's directory; a second `up` or `down` waits for the first."""
    from zkconsumer.file_lock import wait_for_lock

    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("w")
    except OSError as error:
        raise SandboxError(
            f"the sandbox's directory cannot be used: {error.strerror}",
            where=str(home),
            remedy="name another directory with --directory",
        ) from error
    with lock:
        wait_for_lock(lock)
        yield


def _show_servers(sandbox: Sandbox, display: Display) -> None:
    servers: list[JsonObject] = [
        {
            "server": server.name,
            "state": "up" if server.alive else "down",
            "address": server.address if server.alive else None,
            "pid": server.pid if server.alive else None,
        }
        for server in (sandbox.zookeeper, *sandbox.brokers)
    ]
    complete = all(server["pid"] for server in servers)
    document = {
        "zookeeper": sandbox.zookeeper_connect if complete else None,
        "bootstrap": sandbox.bootstrap if complete else None,
        "directory": str(sandbox.directory),
        "servers": servers,
    }
    _write(display, document, servers, SERVER_COLUMNS)
    if display.is_for_people:
        if complete:
            typer.echo(f"\nzookeeper  {sandbox.zookeeper_connect}\nbootstrap  {sandbox.bootstrap}")
        typer.echo(f"directory  {sandbox.directory}")


def _write(
    display: Display, document: JsonObject, rows: Sequence[JsonObject], columns: Sequence[Column]
) -> None:
    """Write the document in the formats JSON and YAML, and its rows in the other formats."""
    if display.output in (Output.JSON, Output.YAML):
        display.write_document(document)
    else:
        display.write(rows, columns)
