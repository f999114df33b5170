"""`zkconsumer history`: what happened to groups, read from ZooKeeper's own files."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.options import Display, operator
from zkconsumer.cli.output import ROWS, SECTIONS, Align, Column, Output, Table, safe, say

if TYPE_CHECKING:
    from zkconsumer.history.describe import Described
    from zkconsumer.history.report import Line, Window

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

POLL_S = 1.0
"""Seconds between two looks at the files with --follow."""

DataDirs = Annotated[
    list[Path],
    typer.Option(
        "--data-dir",
        "-d",
        metavar="PATH",
        help="dataDir or dataLogDir of a server, a log, a snapshot, or a tar archive; repeatable,"
        " also for several servers of one ensemble.",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="GROUP", help="Group name; repeatable. Default: all."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Show what happened from this time (ISO 8601)."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="Show what happened until this time (ISO 8601)."),
]
TABLE_NAMES = ("sessions", "members", "ownership", "rebalances", "commits", "incidents")
TableName = Annotated[
    str,
    typer.Argument(metavar="TABLE", help=f"One of transactions, {', '.join(TABLE_NAMES)}."),
]


@app.callback()
def _history() -> None:
    """Reconstruct what happened to groups from ZooKeeper's transaction logs and snapshots.

    Nothing is written, and no server is asked: the files of a running server can be read.
    """


@app.command()
@operator(formats=(*SECTIONS, Output.HTML))
def report(
    display: Display,
    *,
    data_dir: DataDirs,
    group: Groups = None,
    from_: From = None,
    to: To = None,
) -> None:
    """Tell what happened to groups, and why: incidents, rebalances, and figures of each group.

    Times are in UTC. Exit code 1: a file is damaged, or transactions are missing; the result is
    computed from the other transactions.

    Example: zkconsumer history report --data-dir /var/lib/zookeeper --group billing
    """
    from zkconsumer.history import report as reports

    window = _window(from_, to)
    found = reports.within(_described(data_dir, group), window)
    if display.output is Output.HTML:
        sys.stdout.write(reports.page(found, window))
        return
    sections = {name: Table(rows, _columns(rows)) for name, rows in reports.report(found).items()}
    display.write_sections(sections)
    _summary(found)


@app.command()
@operator(formats=ROWS)
def timeline(
    display: Display,
    *,
    data_dir: DataDirs,
    group: Groups = None,
    from_: From = None,
    to: To = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep running, and print what happens.")
    ] = False,
) -> None:
    """List what happened to groups, one line per event: members, owners, commits, incidents.

    Example: zkconsumer history timeline --data-dir /var/lib/zookeeper --group billing --follow
    """
    from zkconsumer.history import report as reports

    window = _window(from_, to)
    if follow:
        for line in _following(data_dir, group, window):
            print(_line_text(line), flush=True)
        return
    found = reports.within(_described(data_dir, group), window)
    rows = [_line_row(line) for line in reports.timeline(found.tables)]
    display.write(rows, LINES)
    _summary(found)


@app.command()
@operator(formats=ROWS)
def show(
    display: Display,
    table: TableName,
    *,
    data_dir: DataDirs,
    group: Groups = None,
    from_: From = None,
    to: To = None,
) -> None:
    """Print the rows of one table.

    The table `transactions` has every operation of the logs, also of other programs. With
    `--output jsonl` it is printed while it is read.

    Example: zkconsumer history show ownership --data-dir /var/lib/zookeeper --group billing
    """
    from zkconsumer.errors import ConfigError
    from zkconsumer.history import report as reports
    from zkconsumer.history.tables import TABLES, as_dict, columns_of

    if table not in TABLES:
        raise ConfigError(
            f"there is no table {table!r}", where="TABLE", remedy=f"use one of {', '.join(TABLES)}"
        )
    columns = [Column(name) for name in columns_of(TABLES[table])]
    window = _window(from_, to)
    if table == "transactions":
        rows = (_plain(row) for row in _transactions(data_dir, window))
        if display.output is Output.JSONL:
            import json

            for row in rows:
                print(json.dumps(row))
            return
        display.write(list(rows), columns)
        return
    found = reports.within(_described(data_dir, group), window)
    display.write([_plain(as_dict(row)) for row in getattr(found.tables, table)], columns)
    _summary(found)


# ---- reading ------------------------------------------------------------------------------------


def _window(from_: str | None, to: str | None) -> Window:
    from zkconsumer.admin.offset_plans import parse_instant
    from zkconsumer.history.report import Window

    return Window(
        None if from_ is None else parse_instant(from_, where="--from"),
        None if to is None else parse_instant(to, where="--to"),
    )


def _described(data_dirs: Sequence[Path], groups: Sequence[str] | None) -> Described:
    """Read everything; show progress on a terminal. Raises HistoryError."""
    from zkconsumer.history.describe import Description
    from zkconsumer.history.inputs import find_servers

    description = Description(find_servers(data_dirs), groups or ())
    begin = time.monotonic()
    shown = False

    def progress(rows: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - begin > 1:
            shown = True
            sys.stderr.write(f"\rread {rows:,} operations")

    description.read(progress)
    if shown:
        sys.stderr.write("\r\x1b[K")
    return description.result()


def _following(
    data_dirs: Sequence[Path], groups: Sequence[str] | None, window: Window
) -> Iterator[Line]:
    """Yield the events of the files, and then those that the servers write, forever."""
    from zkconsumer.history.describe import Description
    from zkconsumer.history.inputs import find_servers
    from zkconsumer.history.report import timeline as lines_of
    from zkconsumer.history.report import within

    description = Description(find_servers(data_dirs), groups or ())
    seen: set[Line] = set()
    while True:
        description.read()
        for line in lines_of(within(description.so_far(), window).tables):
            if line not in seen:
                seen.add(line)
                yield line
        time.sleep(POLL_S)
        description.look_again(find_servers(data_dirs))


def _transactions(data_dirs: Sequence[Path], window: Window) -> Iterator[dict[str, object]]:
    from zkconsumer.history.inputs import History, find_servers
    from zkconsumer.history.tables import as_dict, transaction

    history = History(find_servers(data_dirs))
    for batch in history.batches():
        for row in batch.rows:
            found = transaction(row, batch.file)
            if window.has(found):
                yield as_dict(found)
    for problem in history.problems:
        say(f"{problem.kind}: {problem.where}: {problem.what}")


def _summary(found: Described) -> None:
    """Say on standard error what was read, and what the files lack; then the exit code is 1."""
    from zkconsumer.cli import Exit
    from zkconsumer.history.report import time_text

    span = f"{time_text(found.from_ms or None)} to {time_text(found.until_ms or None)}"
    say(f"{found.rows:,} operations read, {span}")
    for problem in found.problems:
        say(f"{problem.kind}: {problem.where}: {problem.what}")
    if found.problems:
        raise typer.Exit(Exit.FAILED)


# ---- output -------------------------------------------------------------------------------------

LINES = (
    Column("time"),
    Column("group", drop=1),
    Column("kind"),
    Column("what"),
    Column("zxid", wide_only=True),
)


def _columns(rows: Sequence[dict[str, object]]) -> list[Column]:
    """Return the columns of rows of the report; zxid and file only in wide output."""
    names = list(rows[0]) if rows else ["none"]
    return [
        Column(
            name,
            wide_only=name in ("zxid", "file"),
            align=Align.RIGHT if rows and isinstance(rows[0][name], int | float) else Align.LEFT,
        )
        for name in names
    ]


def _line_row(line: Line) -> dict[str, object]:
    from zkconsumer.history.report import time_text

    return {
        "time": time_text(line.time_ms),
        "group": line.group,
        "kind": line.kind,
        "what": line.what,
        "zxid": f"0x{line.zxid:x}",
    }


def _line_text(line: Line) -> str:
    from zkconsumer.history.report import time_text

    text = f"{time_text(line.time_ms)}  {line.group or '-'}  {line.kind:<9}  {line.what}"
    return safe(text)


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Return a row with times and numbers as people and JSON read them."""
    found: dict[str, object] = {}
    for name, value in row.items():
        if name in ("zxid", "session", "czxid", "ended_zxid", "last_zxid") and value is not None:
            found[name] = f"0x{value:x}"
        elif isinstance(value, bytes):
            found[name] = safe(value.decode(errors="replace"))
        else:
            found[name] = value
    return found
