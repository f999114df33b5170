"""`zkconsumer sandbox`: a local ZooKeeper and local brokers that keep running between commands."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli import Exit
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


class Output(Enum):
    """Output format of results."""

    TABLE = "table"
    JSON = "json"


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
OutputOption = Annotated[Output, typer.Option(help="Output format; json is for programs.")]


def _port(server: str) -> Json:
    return typer.Option(
        min=1,
        max=65535,
        help=f"Port of {server}.",
        show_default="the port of the last start, else a free port",
    )


@app.command()
def up(
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
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the servers in the background, and print their addresses.

    If the servers are running already, only their addresses are printed.

    Example: zkconsumer sandbox up --zookeeper-port 2181 --broker-port 9092
    """
    home = _home(directory)
    with _alone(home):
        chosen = {"brokers": brokers, "release": release, "zookeeper_release": zookeeper_release}
        choices = _choices(home) | {name: value for name, value in chosen.items() if value}
        ports = {"zookeeper_port": zookeeper_port, "broker_port": broker_port}
        sandbox = _sandbox(home, choices | ports)
        if sandbox.attach():
            typer.echo("zkconsumer: the sandbox is already running", err=True)
        else:
            sandbox.start()
            (home / "sandbox.json").write_text(json.dumps(choices))
        _show_servers(sandbox, output)
        sandbox.detach()


@app.command()
def status(*, directory: DirectoryOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the servers and their addresses. Exit code 6: a server is not running.

    Example: zkconsumer sandbox status --output json
    """
    home = _home(directory)
    sandbox = _sandbox(home, _choices(home))
    complete = sandbox.attach()
    _show_servers(sandbox, output)
    if not complete:
        raise typer.Exit(Exit.FOUND)


@app.command()
def down(*, directory: DirectoryOption = None) -> None:
    """Stop the servers, if they are running. Their data is kept.

    Example: zkconsumer sandbox down
    """
    home = _home(directory)
    with _alone(home):
        sandbox = _sandbox(home, _choices(home))
        sandbox.attach()
        running = [s.name for s in (*sandbox.brokers, sandbox.zookeeper) if s.alive]
        sandbox.stop()
    typer.echo(f"stopped: {', '.join(running)}" if running else "no server was running")
    typer.echo(f"data kept in {home}")


@topic_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    *,
    partitions: Annotated[int, typer.Option(min=1, max=10_000, help="Number of partitions.")] = 1,
    replicas: Annotated[
        int,
        typer.Option(min=1, help="Replicas of each partition; at most the number of brokers."),
    ] = 1,
    directory: DirectoryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic, and show the replicas and the leader of each partition.

    Example: zkconsumer sandbox topic create orders --partitions 12
    """
    sandbox = _running(directory)
    placement = sandbox.create_topic(name, partitions=partitions, replicas=replicas)
    if output is Output.JSON:
        _print_json({"topic": name, "partitions": [place._asdict() for place in placement]})
        return
    _print_table(
        ("PARTITION", "REPLICAS", "LEADER"),
        [(p.partition, ",".join(map(str, p.replicas)), p.leader) for p in placement],
    )


@topic_app.command()
def produce(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE", help="Values of the messages; default: the lines of standard input."
        ),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="Key of all messages.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(help="Text that separates the key from the value within each message."),
    ] = None,
    directory: DirectoryOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Produce messages, and show the partition and the offset of each.

    A message with a key goes to the partition that the Java producer chooses (murmur2 hash).

    Example: zkconsumer sandbox topic produce orders --key customer-7 first second
    """
    from zkconsumer.sandbox import topics

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

    placed = topics.produce_keyed(sandbox.zookeeper_connect, name, keyed())
    rows = [(own, *place) for own, place in zip(keys, placed, strict=True)]
    if output is Output.JSON:
        fields = ("key", "partition", "offset")
        _print_json({"topic": name, "messages": [dict(zip(fields, r, strict=True)) for r in rows]})
        return
    _print_table(("KEY", "PARTITION", "OFFSET"), rows)


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
    from zkconsumer.errors import SandboxError

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
    from zkconsumer.errors import SandboxError

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
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _show_servers(sandbox: Sandbox, output: Output) -> None:
    servers = [
        {
            "server": server.name,
            "state": "up" if server.alive else "down",
            "address": server.address if server.alive else None,
            "pid": server.pid if server.alive else None,
        }
        for server in (sandbox.zookeeper, *sandbox.brokers)
    ]
    complete = all(server["pid"] for server in servers)
    if output is Output.JSON:
        _print_json(
            {
                "zookeeper": sandbox.zookeeper_connect if complete else None,
                "bootstrap": sandbox.bootstrap if complete else None,
                "directory": str(sandbox.directory),
                "servers": servers,
            }
        )
        return
    _print_table(("SERVER", "STATE", "ADDRESS", "PID"), [tuple(s.values()) for s in servers])
    if complete:
        typer.echo(f"\nzookeeper  {sandbox.zookeeper_connect}\nbootstrap  {sandbox.bootstrap}")
    typer.echo(f"directory  {sandbox.directory}")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value))


def _print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns padded to their widest cell; None is printed as a dash."""
    cells = [header, *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(line.rstrip())
