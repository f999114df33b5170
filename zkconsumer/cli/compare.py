"""`zkconsumer compare`: the same script on each group protocol."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from zkconsumer.cli.options import Display, operator
from zkconsumer.cli.output import Align, Column

COLUMNS = (
    Column("protocol"),
    Column("rebalances", align=Align.RIGHT),
    Column("moved", align=Align.RIGHT),
    Column("without_need", align=Align.RIGHT),
    Column("revoked", align=Align.RIGHT),
    Column("unowned_s", align=Align.RIGHT),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator()
def compare(
    display: Display,
    *,
    script: Annotated[
        str,
        typer.Option(
            help="Steps separated by semicolons: join, leave MEMBER, kill MEMBER, and freeze MEMBER"
            " 10s. The members are c1, c2, ..."
        ),
    ] = "join; kill c2; leave c1",
    members: Annotated[int, typer.Option(help="Members at the beginning.")] = 5,
    partitions: Annotated[int, typer.Option(help="Partitions of the topic.")] = 24,
    protocols: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Only these protocols; default: all."),
    ] = None,
) -> None:
    """Compare what joins, departures and failures cost on the old and the later protocols.

    moved: partitions that get another owner; without_need: those beyond the fewest that a balanced
    assignment requires; revoked: partitions that a living member stops, also if it gets them back;
    unowned_s: partition-seconds until a dead or frozen member is noticed (session time-out: 6 s
    with ZooKeeper, 45 s with Kafka). It is a computation: no server is asked, and the duration of a
    rebalance does not count.

    Example: zkconsumer compare --script "join; kill c2; freeze c1 10s; leave c3"
    """
    from zkconsumer.protocol.later.comparison import PROTOCOLS, read_script
    from zkconsumer.protocol.later.comparison import compare as costs

    names = list(PROTOCOLS) if protocols is None else protocols.split(",")
    # An empty script checks the numbers before their members are listed.
    costs([], members=members, partitions=partitions, protocols=names[:0])
    steps = read_script(script, members)
    found = costs(steps, members=members, partitions=partitions, protocols=names)
    display.write(map(asdict, found), COLUMNS)
