"""`zkconsumer context`: name clusters, choose one, and show the settings in use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from zkconsumer.cli import completion
from zkconsumer.cli.options import Connection, Display, operator
from zkconsumer.cli.output import SECTIONS, Align, Column, Table, say
from zkconsumer.cli.sources import (
    Context,
    Contexts,
    Found,
    SettingSource,
    Sources,
    load_contexts,
    save_contexts,
    selected_context,
)
from zkconsumer.config.secrets import CREDENTIAL_NAME, SCHEME_NAME
from zkconsumer.config.settings import split_connect
from zkconsumer.errors import ConfigError, InvalidNameError, quoted
from zkconsumer.protocol.paths import is_topic, validate_group

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Name clusters, choose one, and show which settings a command would use.",
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=completion.contexts),
]
LIST_COLUMNS = (
    Column("name", type="string"),
    Column("current", type="boolean", show=lambda is_current: "*" if is_current else ""),
    Column("zookeeper"),
    Column("group"),
    Column("config"),
)
SETTING_COLUMNS = (
    Column("setting", type="string"),
    Column("value"),
    Column("source"),
    Column("rank", align=Align.RIGHT),
)
PRECEDENCE_COLUMNS = (Column("rank", type="integer"), Column("source", type="string"))


@app.command("add")
def add(
    name: Name,
    *,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "--zkconnect",
            "-z",
            metavar="H:P[,H:P...][/CHROOT]",
            help="zookeeper.connect of the cluster.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="consumer.properties file of the cluster."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Group of the context.")
    ] = None,
) -> None:
    """Add a context, or replace the context of this name.

    The first context becomes the current one. Put passwords into the file of --config, not here.

    Example: zkconsumer context add prod --zookeeper zk1:2181/kafka --config prod.properties
    """

    if not is_topic(name):  # contexts are named as groups and topics are
        raise InvalidNameError(
            f"{quoted(name)} is not a legal name of a context",
            remedy="use 1 to 249 of the characters A-Z a-z 0-9 . _ - and neither '.' nor '..'",
        )
    if zookeeper is None and config is None:
        raise ConfigError("the context names no cluster", remedy="give --zookeeper or --config")
    if zookeeper is not None:
        split_connect(zookeeper)
    if config is not None and not config.is_file():
        raise ConfigError("the properties file does not exist", where=str(config))
    one = Context(
        name=name,
        zookeeper=zookeeper,
        config=None if config is None else str(config.absolute()),
        group=None if group is None else validate_group(group),
    )
    all_ = load_contexts()
    current = all_.current or name
    save_contexts(Contexts({**all_.contexts, name: one}, current))
    done = "replaced" if name in all_.contexts else "saved"
    say(f"context {name} is {done}" + (", and is the current one" if current == name else ""))


@app.command("use")
def use(name: Name) -> None:
    """Make a context the current one.

    Example: zkconsumer context use prod
    """
    all_ = load_contexts()
    save_contexts(Contexts(all_.contexts, all_.named(name).name))
    say(f"context {name} is the current one")


@app.command("remove")
def remove(name: Name) -> None:
    """Delete a context. Its properties file is kept.

    Example: zkconsumer context remove prod
    """
    all_ = load_contexts()
    all_.named(name)
    left = {other: one for other, one in all_.contexts.items() if other != name}
    save_contexts(Contexts(left, None if all_.current == name else all_.current))
    say(f"context {name} is removed")


@app.command("list")
@operator()
def list_(display: Display) -> None:
    """List the contexts.

    Example: zkconsumer context list -o json
    """
    all_ = load_contexts()
    used = selected_context()
    rows = [
        asdict(one) | {"current": used is not None and used.name == name}
        for name, one in all_.contexts.items()
    ]
    display.write(rows, LIST_COLUMNS)


@app.command("show")
@operator(formats=SECTIONS, of=(Connection, Display))
def show(
    connection: Connection,
    display: Display,
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Context to show; default: the one in use.",
            autocompletion=completion.contexts,
        ),
    ] = None,
) -> None:
    """Show the settings that a command would use, and their sources.

    Example: zkconsumer context show
    """
    found = connection.within(name).sources
    display.write_sections(
        {
            "settings": Table(list(_settings(found)), SETTING_COLUMNS),
            "precedence": Table(
                [
                    {"rank": at, "source": one.value}
                    for at, one in enumerate(SettingSource, start=1)
                ],
                PRECEDENCE_COLUMNS,
            ),
        }
    )


def _settings(found: Sources) -> Iterator[dict[str, object]]:
    ranks = {source: rank for rank, source in enumerate(SettingSource, start=1)}

    def row(name: str, one: Found | None) -> dict[str, object]:
        value = "(not shown)" if name == CREDENTIAL_NAME and one else one and one.value
        source, rank = (one.place, ranks[one.source]) if one else (None, None)
        return {"setting": name, "value": value, "source": source, "rank": rank}

    context = found.context and found.chosen_by
    chosen = (
        Found(found.context, SettingSource.CONTEXT, context) if found.context and context else None
    )
    yield row("context", chosen)
    yield row("properties file", found.file())
    for name in ("zookeeper.connect", "group.id", SCHEME_NAME, CREDENTIAL_NAME):
        yield row(name, found.get(name))
