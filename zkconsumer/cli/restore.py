"""`zkconsumer offsets restore`: set offsets back to what ZooKeeper's own logs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, changing, proceed, with_kafka_notes
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.history import (
    DATA_DIR,
    AuditLogs,
    ClientFiles,
    Connections,
    ServerLogs,
    placed,
    reading,
)
from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import AllGroups, Common, Groups, Topics, topics_of
from zkconsumer.cli.output import Align, Color, Column, Unknown
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import session_text

if TYPE_CHECKING:
    from zkconsumer.admin.restore import Restored
    from zkconsumer.history.offsets import Point, Source

_COLORS = {"left": Color.BAD, "same": Color.FAINT}

COLUMNS = (
    Column("group", drop_order=4),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("now", align=Align.RIGHT),
    Column("then", align=Align.RIGHT),
    Column("action", color=_COLORS.get),
    Column("new", align=Align.RIGHT, wide_only=True),
    Column("again", align=Align.RIGHT),
    Column("skipped", align=Align.RIGHT),
    Column("written", drop_order=3),
    Column("by", drop_order=2),
    Column("host", wide_only=True),
    Column("port", align=Align.RIGHT, wide_only=True),
    Column("user", wide_only=True),
    Column("session", wide_only=True),
    Column("zxid", wide_only=True),
    Column("reason", drop_order=1),
)

At = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Restore the offsets in effect at this time, such as 2026-01-31T03:00, 21:15, or"
        " 'yesterday 03:00'; UTC unless it has a zone.",
    ),
]
BeforeZxid = Annotated[
    str | None,
    typer.Option(metavar="ZXID", help="Restore the offsets before this transaction, such as 0x1f."),
]
UndoSession = Annotated[
    str | None,
    typer.Option(
        metavar="SESSION",
        help="Restore every offset that this session wrote or deleted, such as 0x1000164.",
    ),
]
UndoTool = Annotated[
    bool,
    typer.Option(
        "--undo-tool", help="Restore what the last edit by a tool of zkconsumer wrote or deleted."
    ),
]
Tables = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Tables of zkconsumer.spark.history_pipeline, instead of --data-dir: its output, or"
        " the directory of one ensemble in it.",
    ),
]
LogChroot = Annotated[
    str | None,
    typer.Option(
        metavar="CHROOT",
        help="Chroot of the groups in the logs; default: that of --zookeeper. '/' means none.",
    ),
]


@changing
def restore(
    common: Common,
    how: Changing,
    *,
    data_dir: Annotated[list[str] | None, DATA_DIR] = None,
    tables: Tables = None,
    server_log: ServerLogs = None,
    audit_log: AuditLogs = None,
    connections: Connections = None,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    at: At = None,
    before_zxid: BeforeZxid = None,
    undo_session: UndoSession = None,
    undo_tool: UndoTool = False,
    log_chroot: LogChroot = None,
) -> None:
    """Restore offsets in ZooKeeper from ZooKeeper's own logs. A dry run without --execute.

    The logs contain every offset that was committed since the oldest log that was kept. The command
    also restores groups that were deleted, with their access control lists, and it can restore into
    another ensemble (--zookeeper). --tables reads tables that Spark has made of the logs; they lack
    the access control lists. AGAIN and SKIPPED are the messages that members read again or skip
    because of the move. Exit code 1: the files do not show the offsets of some partitions, which
    are not restored.

    Example: zkconsumer offsets restore -g billing --data-dir /var/lib/zookeeper --at 03:00
    """
    from zkconsumer.admin.restore import plan_restore
    from zkconsumer.history.offsets import name_writers, read_past

    point = _point(at, before_zxid, undo_session, undo_tool or None)
    source = _source(data_dir, tables)
    files = ClientFiles(server_log=server_log, audit_log=audit_log, connections=connections)
    is_moment = at is not None or before_zxid is not None
    choose = common.groups_to_change if is_moment else common.groups
    names, topics = choose(group, all_groups=all_groups), topics_of(topic)
    with common.connect(names[0] if names else None) as connection:
        chroot = connection.config.zookeeper_chroot if log_chroot is None else log_chroot
        with reading() as progress:
            past = read_past(
                source,
                point,
                chroot=chroot.rstrip("/"),
                groups=names or (),
                on_progress=progress,
            )
        if files.are_given:
            past = name_writers(past, placed(files.read(), past.lifetimes))
        watch = how.watch(connection, *past.offsets)
        limit_s = connection.config.zookeeper_connection_timeout_s
        found = plan_restore(connection, past, topics=topics, limit_s=limit_s)
        common.write(map(_row, found.partitions), COLUMNS)
        plan = with_kafka_notes(connection, found.plan, *found.plan.groups)
        proceed(connection, plan, how, watch)
    if any(one.is_unknown for one in found.partitions):
        raise typer.Exit(Exit.FAILED)


def _source(data_dir: Sequence[str] | None, tables: str | None) -> Source:
    """Return where the transactions are. Raises ConfigError unless exactly one place is given."""
    from zkconsumer.history.inputs import find_servers
    from zkconsumer.history.saved_tables import SavedTransactions

    if bool(data_dir) == (tables is not None):
        raise ConfigError(
            "both --data-dir and --tables are given"
            if data_dir
            else "neither --data-dir nor --tables is given",
            where="--data-dir, --tables",
            remedy="give ZooKeeper's dataDir, or the tables that Spark has made of its logs",
        )
    return SavedTransactions(tables) if tables is not None else find_servers(data_dir or ())


def _point(
    at: str | None, before_zxid: str | None, undo_session: str | None, undo_tool: bool | None
) -> Point:
    """Return the moment or the edit. Raises ConfigError unless exactly one is given."""
    from zkconsumer.admin.times import parse_instant
    from zkconsumer.history.offsets import Choice, Point

    options = {
        Choice.TIME: at,
        Choice.ZXID: before_zxid,
        Choice.SESSION: undo_session,
        Choice.TOOL: undo_tool,
    }
    given = {choice: value for choice, value in options.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(f"--{one.value}" for one in Choice)
        raise ConfigError(
            f"{len(given)} moments or edits are given",
            where=", ".join(f"--{one.value}" for one in given),
            remedy=f"give exactly one of {names}",
        )
    ((choice, value),) = given.items()
    where = f"--{choice.value}"
    if choice is Choice.TIME:
        return Point(choice, parse_instant(str(value), where=where))
    return Point(choice, 0 if choice is Choice.TOOL else _hexadecimal(str(value), where=where))


def _hexadecimal(text: str, *, where: str) -> int:
    """Return a zxid or a session id as a signed number of 64 bits. Raises ConfigError."""
    try:
        number = int(text, 16) if text.lower().startswith("0x") else -1
    except ValueError:
        number = -1
    if not 0 < number < 1 << 64:
        raise ConfigError(
            f"{text[:80]!r} is not a hexadecimal number of up to 64 bits",
            where=where,
            remedy="write it as ZooKeeper and `zkconsumer history` do, such as 0x100000fff",
        )
    return number - (1 << 64 if number >> 63 else 0)


def _row(one: Restored) -> Mapping[str, object]:
    written = one.written
    return {
        "group": one.group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "now": Unknown(one.now) if isinstance(one.now, str) else one.now,
        "then": Unknown(one.reason) if one.is_unknown else one.then,
        "action": one.action.value,
        "new": one.new,
        "again": one.again,
        "skipped": one.skipped,
        "written": of_time(written.time_ms) if written and written.time_ms else None,
        "by": written and (written.consumer or (written.plan and f"plan {written.plan}") or None),
        "host": one.host or None,
        "port": written and written.client.port,
        "user": written and written.client.user,
        "session": session_text(written.session) if written and written.session else None,
        "zxid": f"0x{written.zxid:x}" if written else None,
        "reason": one.reason or None,
    }
