"""`zkconsumer history`: what happened to groups, read from ZooKeeper's own files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import AdminPort, Connection, Display, operator
from zkconsumer.cli.output import ROWS, SECTIONS, Align, Column, Output, Table, safe, say, write
from zkconsumer.errors import BadFileError, ConfigError, ZooKeeperUnreachableError
from zkconsumer.frozen import dataclass
from zkconsumer.protocol.model import session_text

if TYPE_CHECKING:
    from zkconsumer.admin.past_sources import OnProgress
    from zkconsumer.history.clients import Clients, Lifetimes
    from zkconsumer.history.describe import Described, Description
    from zkconsumer.history.inputs import History, Problem, Server
    from zkconsumer.history.kafka_offsets import KafkaCommits
    from zkconsumer.history.offset_logs import Replica
    from zkconsumer.history.report import TimeSpan
    from zkconsumer.history.timeline import Line
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
OffsetsTopics = Annotated[
    bool,
    typer.Option(
        "--offsets-topic",
        help="Ask the brokers for their topic __consumer_offsets, instead of --offsets-log."
        " ZooKeeper (--zookeeper) or --bootstrap names the brokers.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="H:P[,H:P...]",
        help="Brokers for --offsets-topic (Kafka 0.10 or later), if ZooKeeper does not name them.",
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


def _silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Values of the options that say what is read; `operator` constructs it."""

    data_dir: DataDirs = None
    offsets_log: OffsetsLogs = None
    offsets_topic: OffsetsTopics = False
    bootstrap: Bootstrap = None
    server_log: ServerLogs = None
    audit_log: AuditLogs = None
    connections: Connections = None

    @property
    def name_clients(self) -> bool:
        """Whether a file about clients is named."""
        return bool(self.server_log or self.audit_log or self.connections)

    @property
    def have_kafka(self) -> bool:
        """Whether the commits in Kafka are read."""
        return bool(self.offsets_log) or self.offsets_topic

    def servers(self) -> list[Server]:
        """Find ZooKeeper's files. Raises BadFileError, HistoryError."""
        from zkconsumer.history.inputs import find_servers

        return find_servers(self.data_dir) if self.data_dir else []

    def clients(
        self,
        sessions: Lifetimes,
        wanted: Container[int] | None = None,
        progress: OnProgress = _silent,
    ) -> Clients:
        """Read the files about clients. Raises BadFileError, HistoryError."""
        from zkconsumer.history.clients import read_clients

        return read_clients(
            sessions,
            server_logs=[*(self.server_log or ()), *(self.audit_log or ())],
            connections=self.connections or (),
            wanted=wanted,
            on_progress=lambda lines: progress("lines of servers' logs", lines, 0),
        )

    def check(self) -> None:
        """Raise ConfigError if nothing is named, or if two options contradict each other."""
        if not self.data_dir and not self.have_kafka:
            raise ConfigError(
                "no files are given",
                where="--data-dir, --offsets-log, --offsets-topic",
                remedy="give ZooKeeper's dataDir (--data-dir), a broker's log directory"
                " (--offsets-log), or ask the brokers (--offsets-topic)",
            )
        if self.offsets_log and self.offsets_topic:
            raise ConfigError(
                "two sources of the offsets in Kafka are given, files and the topic",
                where="--offsets-log, --offsets-topic",
                remedy="give one of the two",
            )
        if self.bootstrap is not None and not self.offsets_topic:
            raise ConfigError(
                "only --offsets-topic asks brokers",
                where="--bootstrap",
                remedy="add --offsets-topic, or leave out --bootstrap",
            )


@app.callback()
def _history() -> None:
    """Reconstruct what happened to groups from ZooKeeper's transaction logs and snapshots.

    The commands change nothing, and can read the files of a running server. Only `record` and the
    option --offsets-topic connect to servers.
    """


@app.command()
@operator(formats=(*SECTIONS, Output.HTML), of=(Display, Files, Connection))
def report(
    display: Display,
    files: Files,
    connection: Connection,
    *,
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
    found = reports.within(_described(files, connection, group), window)
    if display.output is Output.HTML:
        from zkconsumer.history.page import page

        sys.stdout.write(page(found, window))
        return
    sections = reports.report(found)
    tables = {
        name: Table(rows, _shown(display, rows, _with_store(REPORT[name], files)))
        for name, rows in sections.items()
    }
    display.write_sections(tables)
    _summary(found)


@app.command()
@operator(formats=ROWS, of=(Display, Files, Connection))
def timeline(
    display: Display,
    files: Files,
    connection: Connection,
    *,
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
    from zkconsumer.history.timeline import timeline as lines_of

    window = _window(from_, to)
    if follow:
        if files.offsets_topic:
            raise ConfigError(
                "--follow reads files only",
                where="--offsets-topic",
                remedy="give a broker's log directory (--offsets-log), or leave out --follow",
            )
        _follow(display, _following(files, group, window), files)
        return
    found = reports.within(_described(files, connection, group), window)
    rows = [_line_row(line) for line in lines_of(found.tables, window.to_ms)]
    display.write(rows, _shown(display, rows, _with_store(LINES, files)))
    _summary(found)


@app.command()
@operator(formats=ROWS, of=(Display, Files, Connection))
def show(
    display: Display,
    files: Files,
    connection: Connection,
    table: TableName,
    *,
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
        if group:
            raise ConfigError(
                "the table transactions contains the operations of all programs",
                where="--group",
                remedy="leave it out",
            )
        if not files.data_dir or files.have_kafka:
            raise ConfigError(
                "the table transactions contains the operations of ZooKeeper only",
                where="--offsets-log, --offsets-topic",
                remedy="give only --data-dir",
            )
        _show_transactions(display, files, window, columns)
        return
    found = reports.within(_described(files, connection, group), window)
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
    gets a line for each connection that is new or gone, so it stays small. The command continues if
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


def _window(from_: str | None, to: str | None) -> TimeSpan:
    from zkconsumer.history.report import TimeSpan

    if from_ is None and to is None:
        return TimeSpan()
    from zkconsumer.times import parse_instant

    return TimeSpan(
        None if from_ is None else parse_instant(from_, where="--from"),
        None if to is None else parse_instant(to, where="--to"),
    )


def _described(files: Files, connection: Connection, groups: Sequence[str] | None) -> Described:
    """Read everything, and show progress on a terminal.

    Raises ConfigError, HistoryError, FetchError.
    """
    files.check()
    with reading() as progress, ExitStack() as stack:
        find = None
        if files.offsets_topic:
            find = _topic(files, connection, progress, stack)
        description = _description(files, groups, find, progress)
        description.read(lambda rows: progress("operations", rows, 0))
        found = description.result()
        notes = _name_clients(files, found, progress) if files.name_clients else ()
    for note in notes:
        say(note)
    return found


def _name_clients(files: Files, found: Described, progress: OnProgress) -> Iterator[str]:
    """Add the clients of sessions to the tables, and return the notes on the files about them."""
    from zkconsumer.history.clients import name_clients, sessions_of

    clients = files.clients(found.lifetimes, sessions_of(found.tables), progress)
    name_clients(found.tables, clients)
    return clients.notes()


def _topic(
    files: Files, connection: Connection, progress: OnProgress, stack: ExitStack
) -> Callable[[], list[Replica]]:
    """Return a function that finds the logs of the brokers' topic of offsets; the stack closes the
    connections.

    Raises ConfigError, ZooKeeperUnreachableError, FetchError.
    """
    from zkconsumer.admin.groups import registered_brokers
    from zkconsumer.admin.past_sources import require_offset_readers
    from zkconsumer.config.settings import ConnectionConfig
    from zkconsumer.kafka.client_settings import broker_settings

    require_offset_readers()
    from zkconsumer.admin.offsets_topic import OffsetsTopic

    if files.bootstrap is None:
        with connection.connect() as client:
            config, settings = client.config, broker_settings(registered_brokers(client))
    else:
        # ZooKeeper is not asked; the other properties are those of the connections to brokers.
        sources = connection.sources.lowest_first()
        config = ConnectionConfig.from_properties(*sources, zookeeper_connect=files.bootstrap)
        settings = {**config.kafka, "bootstrap.servers": files.bootstrap}
    limit_s = connection.timeout or config.zookeeper_connection_timeout_s
    topic = OffsetsTopic(
        settings,
        limit_s=limit_s,
        on_progress=lambda done, total: progress("offsets of the topic", done, total),
    )
    return stack.enter_context(closing(topic)).replicas


def _description(
    files: Files,
    groups: Sequence[str] | None,
    find: Callable[[], list[Replica]] | None,
    progress: OnProgress = _silent,
) -> Description:
    from zkconsumer.history.describe import Description

    if files.offsets_log:
        from zkconsumer.admin.past_sources import require_offset_readers

        require_offset_readers()
        from zkconsumer.history.offset_logs import find_replicas

        find = partial(find_replicas, files.offsets_log)
    kafka = None
    if find is not None:
        from zkconsumer.history.kafka_offsets import KafkaLogs

        kafka = KafkaLogs(find, groups or (), lambda records: progress("records", records, 0))
    return Description(_readable(files), groups or (), kafka)


def _readable(files: Files) -> list[Server]:
    """Return the servers after the loops that read their logs are loaded, if they need loops.

    Raises BadFileError, HistoryError.
    """
    servers = files.servers()
    if servers:
        from zkconsumer.cli.compile import load_decoder

        load_decoder(servers)
    return servers


@contextmanager
def reading() -> Iterator[OnProgress]:
    """Yield a function that shows on a terminal what is read, and how much has been read."""
    begin = time.monotonic()
    shown = False

    def progress(what: str, done: int, total: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - begin > 1:
            shown = True
            of = f" of {total:,}" if total else ""
            sys.stderr.write(f"\rread {done:,}{of} {what}\x1b[K")

    try:
        yield progress
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")


def _following(files: Files, groups: Sequence[str] | None, window: TimeSpan) -> Iterator[Line]:
    """Yield the events in the files; then keep yielding the events that the servers write.

    If a file comes too late, such as an older log that is still being copied, all files are read
    again, and the events that were not yielded before follow.
    """
    from zkconsumer.history.clients import Clients, name_clients
    from zkconsumer.history.report import within
    from zkconsumer.history.timeline import timeline as lines_of

    files.check()
    description = _description(files, groups, None)
    seen: set[Line] = set()
    clients, read_at = Clients(), 0.0
    while True:
        description.read()
        found = description.so_far()
        if files.name_clients:
            if (begin := time.monotonic()) > read_at:
                # A log may be renamed just now.
                with suppress(BadFileError) if read_at else nullcontext():
                    clients = files.clients(found.lifetimes)
                read_at = time.monotonic() + POLL_S + _READ_AGAIN * (time.monotonic() - begin)
            name_clients(found.tables, clients)
        for line in lines_of(within(found, window).tables, window.to_ms):
            if line not in seen:
                seen.add(line)
                yield line
        time.sleep(POLL_S)
        if late := description.look_again(files.servers()):
            say(
                f"{', '.join(late)} came late, with transactions before those that were shown: all"
                " files are read again, and events that were not shown before follow, with their"
                " times"
            )
            description = _description(files, groups, None)


def _show_transactions(
    display: Display, files: Files, window: TimeSpan, columns: Sequence[Column]
) -> None:
    """Print the transactions, as JSON Lines while they are read, and then the problems."""
    from zkconsumer.history.inputs import History

    history = History(_readable(files))
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
    from zkconsumer.times import time_text

    span = f"{time_text(found.from_ms or None)} to {time_text(found.until_ms or None)}"
    if found.rows or found.kafka is None:
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
    from zkconsumer.times import time_text

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


def _with_store(columns: Sequence[Column], files: Files) -> list[Column]:
    """Return the columns; those about the store are in each table if both stores are read."""
    shown = ("store", "in_kafka") if files.have_kafka else ()
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
    from zkconsumer.history.tables import KAFKA
    from zkconsumer.times import time_text

    return {
        "time": time_text(line.time_ms or None),
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


def _follow(display: Display, lines: Iterator[Line], files: Files) -> None:
    """Print each event as it is found: JSON as JSON Lines, CSV with its titles once.

    Raises ConfigError for --sort, since the events never end.
    """
    from zkconsumer.times import time_text

    if display.sort is not None:
        raise ConfigError("--follow has no end, so it cannot sort", remedy="leave out --sort")
    is_first = True
    for line in lines:
        if display.is_for_people:
            at = time_text(line.time_ms or None)
            client = f" (from {line.client})" if str(line.client) else ""
            store = f"  {line.store}" if files.have_kafka else ""
            text = f"{at}  {line.group or '-'}  {line.kind:<9}  {line.what}{client}{store}"
            print(safe(text), flush=True)
            continue
        table = display.selected(Table([_line_row(line)], _with_store(LINES, files)))
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
