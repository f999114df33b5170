"""`zkconsumer history`: what happened to groups, read from ZooKeeper's own files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import AdminPort, Connection, Display, operator
from zkconsumer.cli.output import ROWS, SECTIONS, Align, Column, Output, Table, safe, say, write
from zkconsumer.errors import BadFileError, ConfigError, ZooKeeperUnreachableError
from zkconsumer.protocol.model import session_text

if TYPE_CHECKING:
    from zkconsumer.history.clients import ClientRecords, Clients
    from zkconsumer.history.describe import Described, Description, KafkaCommits
    from zkconsumer.history.inputs import History, Problem
    from zkconsumer.history.offset_logs import Replica
    from zkconsumer.history.report import Line, TimeSpan
    from zkconsumer.zk.clients import ServerClients

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

POLL_S = 1.0
"""Seconds between two checks of the files with --follow."""

DATA_DIR = typer.Option(
    "--data-dir",
    "-d",
    metavar="PATH",
    help="dataDir or dataLogDir of a ZooKeeper server, a log, a snapshot, or a tar or zip archive;"
    " repeatable, for instance for several servers of one ensemble.",
)
DataDirs = Annotated[list[str] | None, DATA_DIR]
OffsetsLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets-log",
        metavar="PATH",
        help="Log directory of a broker (log.dirs), a directory __consumer_offsets-N, or a tar or"
        " zip archive: offsets that groups committed to Kafka; repeatable, for several brokers.",
    ),
]
_READ_AGAIN = 10
"""With --follow, the files about clients are read again after this many times the duration of the
last reading."""

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
ServerLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--server-log",
        metavar="PATH",
        help="A log of a ZooKeeper server, or a directory with its logs, for the hosts and ports of"
        " clients; repeatable.",
    ),
]
AuditLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--audit-log",
        metavar="PATH",
        help="An audit log of a ZooKeeper server (3.6 and later), or a directory with its logs, for"
        " the hosts and users of clients; repeatable.",
    ),
]
Connections = Annotated[
    list[str] | None,
    typer.Option(
        "--connections",
        metavar="FILE",
        help="A file of `zkconsumer history record`, for the hosts and ports of clients;"
        " repeatable.",
    ),
]
TABLE_NAMES = ("sessions", "members", "ownership", "rebalances", "commits", "incidents")
TableName = Annotated[
    str,
    typer.Argument(metavar="TABLE", help=f"One of transactions, {', '.join(TABLE_NAMES)}."),
]


@dataclass(frozen=True, kw_only=True)
class ClientFiles:
    """Values of the options that name the files about clients; `operator` constructs it."""

    server_log: ServerLogs = None
    audit_log: AuditLogs = None
    connections: Connections = None

    @property
    def are_given(self) -> bool:
        """Whether at least one file is named."""
        return bool(self.server_log or self.audit_log or self.connections)

    def read(self) -> ClientRecords:
        """Read the files. Raises BadFileError, HistoryError."""
        from zkconsumer.history.clients import read_clients

        logs = [*(self.server_log or ()), *(self.audit_log or ())]
        return read_clients(server_logs=logs, connections=self.connections or ())


def placed(
    records: ClientRecords, lifetimes: Mapping[int, tuple[int | None, int | None]]
) -> Clients:
    """Return the clients with their times, and report on standard error what the files lack."""
    for name in records.silent:
        say(
            f"{name}: no line names a client. Since 3.5, a server logs connections at the level"
            " DEBUG only (`zkconsumer docs history`)"
        )
    clients = records.placed(lifetimes)
    for name in sorted(clients.unplaced):
        say(
            f"{name}: the zone of the times is unknown, because no session that begins or expires"
            " in these logs does so in the transactions, too. Ports are unknown, and a host is"
            " known only if its session has no other"
        )
    return clients


@app.callback()
def _history() -> None:
    """Reconstruct what happened to groups from ZooKeeper's transaction logs and snapshots.

    The commands change nothing, and can read the files of a running server. Only `record` connects
    to servers.
    """


@app.command()
@operator(formats=(*SECTIONS, Output.HTML), of=(Display, ClientFiles))
def report(
    display: Display,
    files: ClientFiles,
    *,
    data_dir: DataDirs = None,
    offsets_log: OffsetsLogs = None,
    group: Groups = None,
    from_: From = None,
    to: To = None,
) -> None:
    """Report incidents, rebalances, and figures of each group.

    Times are in UTC. Exit code 1: a file is damaged, transactions are missing, or files contradict
    each other; the result is computed from everything that can be read.

    Example: zkconsumer history report --data-dir /var/lib/zookeeper --group billing
    """
    from zkconsumer.history import report as reports

    window = _window(from_, to)
    found = reports.within(_described(data_dir, offsets_log, group, files), window)
    if display.output is Output.HTML:
        sys.stdout.write(reports.page(found, window))
        return
    sections = reports.report(found)
    tables = {
        name: Table(rows, _shown(display, rows, _with_store(REPORT[name], offsets_log)))
        for name, rows in sections.items()
    }
    display.write_sections(tables)
    _summary(found)


@app.command()
@operator(formats=ROWS, of=(Display, ClientFiles))
def timeline(
    display: Display,
    files: ClientFiles,
    *,
    data_dir: DataDirs = None,
    offsets_log: OffsetsLogs = None,
    group: Groups = None,
    from_: From = None,
    to: To = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep running, and print new events.")
    ] = False,
) -> None:
    """List events: members, owners, commits, and incidents.

    Example: zkconsumer history timeline --data-dir /var/lib/zookeeper --group billing --follow
    """
    from zkconsumer.history import report as reports

    window = _window(from_, to)
    if follow:
        lines = _following(data_dir, offsets_log, group, files, window)
        _follow(display, lines, offsets_log)
        return
    found = reports.within(_described(data_dir, offsets_log, group, files), window)
    rows = [_line_row(line) for line in reports.timeline(found.tables, window.to_ms)]
    display.write(rows, _shown(display, rows, _with_store(LINES, offsets_log)))
    _summary(found)


@app.command()
@operator(formats=ROWS, of=(Display, ClientFiles))
def show(
    display: Display,
    files: ClientFiles,
    table: TableName,
    *,
    data_dir: DataDirs = None,
    offsets_log: OffsetsLogs = None,
    group: Groups = None,
    from_: From = None,
    to: To = None,
) -> None:
    """Print the rows of one table.

    The table `transactions` has every operation in the logs, including those of other programs.
    With `--output jsonl` its rows are printed while the logs are read.

    Example: zkconsumer history show ownership --data-dir /var/lib/zookeeper --group billing
    """
    from zkconsumer.history import report as reports
    from zkconsumer.history.tables import TABLES, as_dict

    if table not in TABLES:
        raise ConfigError(
            f"there is no table {table!r}", where="TABLE", remedy=f"use one of {', '.join(TABLES)}"
        )
    columns = table_columns(table)
    window = _window(from_, to)
    if table == "transactions":
        if not data_dir or offsets_log:
            raise ConfigError(
                "the table transactions contains the operations of ZooKeeper only",
                where="--offsets-log",
                remedy="give only --data-dir",
            )
        _show_transactions(display, data_dir, window, columns)
        return
    found = reports.within(_described(data_dir, offsets_log, group, files), window)
    display.write([_plain(as_dict(row)) for row in getattr(found.tables, table)], columns)
    _summary(found)


@app.command()
@operator()
def record(
    connection: Connection,
    *,
    file: Annotated[
        Path, typer.Option(metavar="FILE", help="File to which the lines are appended.")
    ] = Path("connections.jsonl"),
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds between two samples.")
    ] = 60.0,
    duration: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="S", help="End after this many seconds; default: Ctrl-C."),
    ] = None,
    max_mb: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="MB",
            help="Size at which FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on. FILE.3 is"
            " the last one.",
        ),
    ] = 64,
    admin_port: AdminPort = 8080,
) -> None:
    """Record the clients of ZooKeeper, for --connections.

    Each server that --zookeeper names is asked for its clients (`cons`, or its admin server). FILE
    gets a line for each connection that is new or gone, so it stays small. The command goes on if
    a server restarts, and a later command continues the same file.

    Example: zkconsumer history record -z zk1:2181,zk2:2181,zk3:2181 --file connections.jsonl
    """
    from zkconsumer.admin.connection_log import ConnectionLog
    from zkconsumer.zk.clients import ask_servers

    config = connection.connection_settings()
    end = None if duration is None else time.monotonic() + duration
    with ConnectionLog(file, most_bytes=max_mb << 20) as log:
        is_first = True
        while True:
            answers = ask_servers(config, admin_port=admin_port)
            if is_first:
                _check_answers(answers)
                say(f"recording into {file}, every {interval:g} s; Ctrl-C ends")
            is_first = False
            change = log.add(answers, time.time_ns() // 1_000_000)
            for server, why in change.silent.items():
                say(f"{server}: {why}")
            for server in change.back:
                say(f"{server}: it lists its clients again")
            pause = interval if end is None else min(interval, end - time.monotonic())
            if pause <= 0:
                return
            time.sleep(pause)


# ---- reading ------------------------------------------------------------------------------------


def _check_answers(answers: Sequence[ServerClients]) -> None:
    """Raise ZooKeeperUnreachableError if no server lists its clients, so that nobody waits for a
    file that stays empty."""

    if all(one.why_silent for one in answers):
        raise ZooKeeperUnreachableError(
            "no server lists its clients: "
            + "; ".join(f"{one.server}: {one.why_silent}" for one in answers),
            remedy="permit `cons` in 4lw.commands.whitelist, or enable the admin server"
            " (--zookeeper-admin-port)",
        )


def check_sources(data_dirs: Sequence[str] | None, offsets_logs: Sequence[str] | None) -> None:
    """Raise ConfigError if no files are given."""
    from zkconsumer.errors import ConfigError

    if not data_dirs and not offsets_logs:
        raise ConfigError(
            "no files are given",
            where="--data-dir, --offsets-log",
            remedy="give ZooKeeper's dataDir (--data-dir), or a broker's log directory"
            " (--offsets-log)",
        )


def replicas_of(offsets_logs: Sequence[str]) -> Callable[[], list[Replica]]:
    """Return a function that finds the logs of --offsets-log.

    Raises ConfigError if a package that reads them is missing.
    """
    from zkconsumer.errors import require

    require("cramjam", "google_crc32c", extra="arrow", where="--offsets-log")
    from zkconsumer.history.offset_logs import find_replicas

    return partial(find_replicas, offsets_logs)


def _window(from_: str | None, to: str | None) -> TimeSpan:
    from zkconsumer.admin.times import parse_instant
    from zkconsumer.history.report import TimeSpan

    return TimeSpan(
        None if from_ is None else parse_instant(from_, where="--from"),
        None if to is None else parse_instant(to, where="--to"),
    )


def _described(
    data_dirs: Sequence[str] | None,
    offsets_logs: Sequence[str] | None,
    groups: Sequence[str] | None,
    files: ClientFiles,
) -> Described:
    """Read everything; show progress on a terminal. Raises ConfigError, HistoryError."""
    from zkconsumer.history.clients import name_clients

    with reading() as progress:
        description = _description(data_dirs, offsets_logs, groups, progress)
        description.read(progress)
        found = description.result()
    if files.are_given:
        name_clients(found.tables, placed(files.read(), found.lifetimes))
    return found


def _description(
    data_dirs: Sequence[str] | None,
    offsets_logs: Sequence[str] | None,
    groups: Sequence[str] | None,
    progress: Callable[[int], None] = lambda rows: None,
) -> Description:
    from zkconsumer.history.describe import Description
    from zkconsumer.history.inputs import find_servers

    check_sources(data_dirs, offsets_logs)
    servers = find_servers(data_dirs) if data_dirs else []
    kafka = None
    if offsets_logs:
        find = replicas_of(offsets_logs)
        from zkconsumer.history.kafka_offsets import KafkaLogs

        kafka = KafkaLogs(find, groups or (), progress)
    return Description(servers, groups or (), kafka)


@contextmanager
def reading() -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the number of operations that have been read, on a terminal."""
    begin = time.monotonic()
    shown = False

    def progress(rows: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - begin > 1:
            shown = True
            sys.stderr.write(f"\rread {rows:,} operations")

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")


def _following(
    data_dirs: Sequence[str] | None,
    offsets_logs: Sequence[str] | None,
    groups: Sequence[str] | None,
    files: ClientFiles,
    window: TimeSpan,
) -> Iterator[Line]:
    """Yield the events in the files; then keep yielding the events that the servers write.

    If a file comes too late, such as an older log that is still being copied, all files are read
    again, and the events that were not yielded before follow.
    """
    from zkconsumer.history.clients import name_clients
    from zkconsumer.history.inputs import find_servers
    from zkconsumer.history.report import timeline as lines_of
    from zkconsumer.history.report import within

    description = _description(data_dirs, offsets_logs, groups)
    seen: set[Line] = set()
    records, read_at = files.read(), time.monotonic()
    while True:
        description.read()
        found = description.so_far()
        if files.are_given:
            if (begin := time.monotonic()) > read_at + POLL_S:
                with suppress(BadFileError):  # a log is renamed just now
                    records = files.read()
                read_at = time.monotonic() + _READ_AGAIN * (time.monotonic() - begin)
            name_clients(found.tables, records.placed(found.lifetimes))
        for line in lines_of(within(found, window).tables, window.to_ms):
            if line not in seen:
                seen.add(line)
                yield line
        time.sleep(POLL_S)
        servers = find_servers(data_dirs) if data_dirs else []
        if late := description.look_again(servers):
            say(
                f"{', '.join(late)} came late, with transactions before those that were shown: all"
                " files are read again, and events that were not shown before follow, with their"
                " times"
            )
            description = _description(data_dirs, offsets_logs, groups)


def _show_transactions(
    display: Display, data_dirs: Sequence[str], window: TimeSpan, columns: Sequence[Column]
) -> None:
    """Print the transactions, as JSON Lines while they are read, and then the problems."""
    from zkconsumer.history.inputs import History, find_servers

    history = History(find_servers(data_dirs))
    rows = (_plain(row) for row in _transactions(history, window))
    if display.output is Output.JSONL:
        for row in rows:
            print(json.dumps(row))
    else:
        display.write(list(rows), columns)
    _exit_on(history.problems)


def _transactions(history: History, window: TimeSpan) -> Iterator[dict[str, object]]:
    from zkconsumer.history.tables import as_dict, transaction

    for batch in history.batches():
        for row in batch.rows:
            found = transaction(row, batch.file)
            if window.overlaps(found):
                yield as_dict(found)


def _summary(found: Described) -> None:
    """Report on standard error which files were read, and their problems; see `_exit_on`."""
    from zkconsumer.history.report import time_text

    span = f"{time_text(found.from_ms or None)} to {time_text(found.until_ms or None)}"
    say(f"{found.rows:,} operations read, {span}")
    if found.kafka is not None:
        _say_kafka(found.kafka)
    if found.skipped:
        say(
            f"{found.skipped:,} operations at the beginning of the logs are left out, because they "
            f"precede the oldest snapshot ({found.snapshot}), and the state before them is unknown"
        )
    _exit_on(found.problems)


def _say_kafka(kafka: KafkaCommits) -> None:
    """Report what was read of the brokers' logs, and where compaction has removed commits."""
    from zkconsumer.history.report import time_text

    span = f"{time_text(kafka.from_ms or None)} to {time_text(kafka.until_ms or None)}"
    say(f"{kafka.records:,} records of __consumer_offsets read, {span}")
    if kafka.compacted:
        until = time_text(max(kafka.compacted.values()) or None)
        say(
            f"compaction has removed commits from {len(kafka.compacted)} partitions of"
            f" __consumer_offsets, up to {until}: an offset's history begins with its first commit"
            " that is left"
        )


def _exit_on(problems: Sequence[Problem]) -> None:
    """Name problems of the files on standard error; if there are any, exit with code 1."""
    for problem in problems:
        say(f"{problem.kind}: {problem.where}: {problem.what}")
    if problems:
        raise typer.Exit(Exit.FAILED)


# ---- output -------------------------------------------------------------------------------------

CLIENT = (
    Column("host"),
    Column("port", align=Align.RIGHT, wide_only=True),
    Column("user"),
)
"""The columns of the client of an event's session. Tables for people omit the empty ones."""

LINES = (
    Column("time"),
    Column("group", drop_order=1),
    Column("kind"),
    Column("what"),
    Column("store", wide_only=True),
    *CLIENT,
    Column("zxid", wide_only=True),
)


REPORT = {
    "groups": (
        Column("group"),
        Column("members", align=Align.RIGHT, type="integer"),
        Column("joined", align=Align.RIGHT, type="integer"),
        Column("left", align=Align.RIGHT, type="integer"),
        Column("expired", align=Align.RIGHT, type="integer"),
        Column("rebalances", align=Align.RIGHT, type="integer"),
        Column("unsettled", align=Align.RIGHT, type="integer"),
        Column("unowned_s", align=Align.RIGHT, type="number"),
        Column("refused", align=Align.RIGHT, type="integer"),
        Column("commits", align=Align.RIGHT, type="integer"),
        Column("in_kafka", align=Align.RIGHT, type="integer", wide_only=True),
        Column("moved_back", align=Align.RIGHT, type="integer"),
        Column("incidents", align=Align.RIGHT, type="integer"),
    ),
    "incidents": (
        Column("time"),
        Column("group"),
        Column("kind"),
        Column("lasted"),
        Column("what"),
        Column("store", wide_only=True),
        *CLIENT,
        Column("zxid", wide_only=True),
        Column("file", wide_only=True),
    ),
    "rebalances": (
        Column("time"),
        Column("group"),
        Column("trigger"),
        Column("settled"),
        Column("unowned_s", align=Align.RIGHT, type="number"),
        Column("moved", align=Align.RIGHT, type="integer"),
        Column("refused", align=Align.RIGHT, type="integer"),
        Column("why"),
        Column("zxid", wide_only=True),
    ),
}
"""The columns of each section of the report."""


def _with_store(columns: Sequence[Column], offsets_logs: Sequence[str] | None) -> list[Column]:
    """Return the columns; those about the store are in each table if both stores are read."""
    shown = ("store", "in_kafka") if offsets_logs else ()
    return [replace(one, wide_only=one.wide_only and one.name not in shown) for one in columns]


_IN_HEX = ("zxid", "session", "czxid", "ended_zxid", "last_zxid")
_TYPES: dict[object, str] = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "string",
    bytes: "string",
    list[str]: "strings",
    dict[str, int]: "counts",
}


def table_columns(table: str) -> list[Column]:
    """Return the columns of a table of `history show`; every column may have the value None."""
    from zkconsumer.history.tables import TABLES, columns_of

    found = []
    for name, hint in columns_of(TABLES[table]).items():
        kinds = [hint] if hint in _TYPES else [one for one in get_args(hint) if one in _TYPES]
        text = "string" if name in _IN_HEX else _TYPES[kinds[0]]
        found.append(Column(name, type=f"{text}?"))
    return found


def _line_row(line: Line) -> dict[str, object]:
    from zkconsumer.history.report import time_text
    from zkconsumer.history.tables import KAFKA

    return {
        "time": time_text(line.time_ms),
        "group": line.group,
        "kind": line.kind,
        "what": line.what,
        "store": line.store,
        **line.client._asdict(),
        "zxid": None if line.store == KAFKA else f"0x{line.zxid:x}",
    }


def _shown(
    display: Display, rows: Sequence[Mapping[str, object]], columns: Sequence[Column]
) -> list[Column]:
    """Return the columns to show: a table for people omits empty columns of clients."""
    kept = display.is_selected or not display.is_for_people
    return [
        one
        for one in columns
        if kept or one not in CLIENT or any(row[one.name] is not None for row in rows)
    ]


def _follow(display: Display, lines: Iterator[Line], offsets_logs: Sequence[str] | None) -> None:
    """Print each event as it is found: JSON as JSON Lines, CSV with its titles once.

    Raises ConfigError for --sort, since the events never end.
    """
    from zkconsumer.history.report import time_text

    if display.sort is not None:
        raise ConfigError("--follow has no end, so it cannot sort", remedy="leave out --sort")
    is_first = True
    for line in lines:
        if display.is_for_people:
            at = time_text(line.time_ms)
            client = f" (from {line.client})" if str(line.client) else ""
            store = f"  {line.store}" if offsets_logs else ""
            text = f"{at}  {line.group or '-'}  {line.kind:<9}  {line.what}{client}{store}"
            print(safe(text), flush=True)
            continue
        table = display.selected(Table([_line_row(line)], _with_store(LINES, offsets_logs)))
        output = Output.JSONL if display.output is Output.JSON else display.output
        headers = is_first and not display.no_headers
        write(table.rows, table.columns, output, to=replace(display.screen, headers=headers))
        is_first = False


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Return a row with its times and numbers in the form that the output format needs."""
    found: dict[str, object] = {}
    for name, value in row.items():
        if name in _IN_HEX and isinstance(value, int):
            found[name] = session_text(value) if name == "session" else f"0x{value:x}"
        elif isinstance(value, bytes):
            found[name] = safe(value.decode(errors="replace"))
        else:
            found[name] = value
    return found
