"""`zkconsumer compare`: one script on each group protocol, the herd effect, and split brain."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import typer

from zkconsumer.cli.options import Display, operator
from zkconsumer.cli.output import ROWS, Align, Column, Output, Progress

Row: TypeAlias = Any  # Any: the table has the class of its rows

COLUMNS = (
    Column("protocol"),
    Column("session_s", align=Align.RIGHT, type="number"),
    Column("moved", align=Align.RIGHT),
    Column("without_need", align=Align.RIGHT),
    Column("unowned_s", align=Align.RIGHT, type="number"),
    Column("stopped_s", align=Align.RIGHT, type="number"),
    Column("pause_s", align=Align.RIGHT, type="number"),
    Column("settled_s", align=Align.RIGHT, type="number"),
    Column("redelivered", align=Align.RIGHT),
    Column("server", drop_order=1),
    Column("requests", align=Align.RIGHT),
    Column("notifications", align=Align.RIGHT, drop_order=2),
    Column("bytes", align=Align.RIGHT),
)

GROWTH = (
    Column("protocol"),
    Column("what"),
    Column("formula"),
    Column("error", align=Align.RIGHT, type="number"),
)

SIZES = (
    Column("protocol"),
    Column("members", align=Align.RIGHT),
    Column("requests", align=Align.RIGHT),
    Column("notifications", align=Align.RIGHT),
    Column("bytes", align=Align.RIGHT),
)

SPLIT = (
    Column("protocol"),
    Column("refused", align=Align.RIGHT),
    Column("late", align=Align.RIGHT),
    Column("moved_back", align=Align.RIGHT),
    Column("redelivered", align=Align.RIGHT),
    Column("fence"),
)

TITLES: Final = {
    "costs": "What the script costs",
    "growth": "How the cost of one more member grows with the number n of members",
    "sizes": "What the join of one more member costs",
    "split-brain": "Two of four members are cut off from their server",
}


class Show(StrEnum):
    """What a comparison shows."""

    COSTS = "costs"
    GROWTH = "growth"
    SIZES = "sizes"
    SPLIT_BRAIN = "split-brain"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator(formats=(*ROWS, Output.HTML))
def compare(
    display: Display,
    *,
    script: Annotated[
        str,
        typer.Option(
            help="Steps separated by semicolons: join, leave MEMBER, kill MEMBER, and freeze MEMBER"
            " 10s (any number of seconds). The members are g_0, g_1, ..."
        ),
    ] = "join; kill g_1; leave g_0",
    members: Annotated[int, typer.Option(help="Members at the beginning.")] = 5,
    partitions: Annotated[int, typer.Option(help="Partitions of the topic.")] = 24,
    protocols: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Compare only these of the protocols zookeeper-jvm, zookeeper, classic-eager,"
            " classic-cooperative and consumer; default: all.",
        ),
    ] = None,
    session_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Session timeout of the members on every protocol. By default, each protocol has"
            " its clients' default: 6 s with ZooKeeper, 45 s with a coordinator.",
        ),
    ] = None,
    show: Annotated[
        Show,
        typer.Option(
            help="costs: what the script costs. growth: the cost of a join as a formula in n."
            " sizes: the measured costs behind the formulas. split-brain: two members are cut off."
        ),
    ] = Show.COSTS,
) -> None:
    """Compare what joins, departures and failures cost on the old and the later protocols.

    Simulated groups of each protocol run the script. Their members have the default timeouts of
    the protocol's clients, so a failure is noticed after 6 s with ZooKeeper and after 45 s with a
    coordinator; --session-timeout makes the timeouts equal.
    moved: partitions that get another owner; without_need: moved partitions beyond the minimum that
    a balanced assignment requires; unowned_s: partition-seconds without an owner, or with a dead or
    frozen owner; stopped_s: partition-seconds in which a member does not read a partition that it
    keeps; pause_s: the longest pause of a member; settled_s: the longest time until the group has
    settled after a step. requests, notifications (of watches) and bytes are those of ZooKeeper or
    of the coordinator.

    Example: zkconsumer compare --script "join; kill g_1; freeze g_0 10s; leave g_2"
    """
    from zkconsumer.sim.compare.run import PROTOCOLS, check, read_script

    names = list(PROTOCOLS) if protocols is None else protocols.split(",")
    check(partitions, names, session_timeout)
    steps = read_script(script, members)

    def of_script() -> Iterator[Row]:
        from zkconsumer.sim.compare.run import compare as costs

        return costs(
            steps,
            members=members,
            partitions=partitions,
            protocols=names,
            session_s=session_timeout,
        )

    parts = _parts(names) | {Show.COSTS: (COLUMNS, of_script, len(names))}
    if display.output is not Output.HTML:
        columns, rows, count = parts[show]
        display.write(map(asdict, _followed(rows(), count)), columns)
        return
    tables = {
        TITLES[one]: (columns, [asdict(row) for row in _followed(rows(), count)])
        for one, (columns, rows, count) in sorted(parts.items())
    }
    sys.stdout.write(_page(f"{script}, {members} members, {partitions} partitions", tables))


def _parts(names: Sequence[str]) -> dict[Show, tuple[Sequence[Column], Row, int]]:
    """Return the columns, the rows and the number of runs of a table other than the costs."""
    from zkconsumer.sim.compare import growth, split_brain

    measured: list[growth.Growth] = []

    def sizes() -> Iterator[growth.Growth]:
        for one in growth.growth(names, growth.SIZES):
            measured.append(one)
            yield one

    def laws() -> Iterator[growth.FittedFormula]:
        found = measured or list(_followed(sizes(), len(names) * len(growth.SIZES)))
        return growth.laws(found)

    return {
        Show.GROWTH: (GROWTH, laws, 0),
        Show.SIZES: (SIZES, sizes, len(names) * len(growth.SIZES)),
        Show.SPLIT_BRAIN: (SPLIT, lambda: split_brain.split_brain(names), len(names)),
    }


def _followed(rows: Iterable[Row], count: int) -> Iterator[Row]:
    """Yield the rows, and show on the terminal how many of the runs have ended."""
    progress = Progress("runs")
    try:
        for number, row in enumerate(rows, 1):
            progress.advanced(min(number, count), count)
            yield row
    finally:
        progress.end()


def _page(
    title: str, tables: Mapping[str, tuple[Sequence[Column], Sequence[Mapping[str, Row]]]]
) -> str:
    """Return a page with tables; a bar behind each number compares the number with its column."""
    parts = []
    for name, (columns, rows) in tables.items():
        head = "".join(f"<th>{html.escape(one.title)}</th>" for one in columns)
        body = "".join(f"<tr>{_cells(columns, rows, row)}</tr>\n" for row in rows)
        parts.append(f"<h2>{html.escape(name)}</h2>\n<table><tr>{head}</tr>\n{body}</table>\n")
    style = (
        "body{font:15px/1.5 sans-serif;margin:2em;color:#222}td,th{padding:.2em .8em}"
        "th{text-align:left;border-bottom:1px solid #888}.n{text-align:right}"
        ".n{background:linear-gradient(#cfe3f7,#cfe3f7) no-repeat right/var(--w) 100%}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Group protocols</title><style>{style}</style></head>\n"
        f"<body><h1>Group protocols: {html.escape(title)}</h1>\n{''.join(parts)}</body></html>\n"
    )


def _cells(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Row]], row: Mapping[str, Row]
) -> str:
    cells = []
    for column in columns:
        value = row[column.name]
        if column.align is not Align.RIGHT:
            cells.append(f"<td>{html.escape(str(value))}</td>")
            continue
        highest = max(float(one[column.name]) for one in rows) or 1.0
        width = round(100 * float(value) / highest)
        cells.append(f'<td class="n" style="--w:{width}%">{value}</td>')
    return "".join(cells)
