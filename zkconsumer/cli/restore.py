"""`zkconsumer offsets restore`: set offsets back to what the servers' own logs say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, changing, proceed, with_kafka_notes
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.history import (
    DATA_DIR,
    AuditLogs,
    ClientFiles,
    Connections,
    OffsetsLogs,
    ServerLogs,
    placed,
    reading,
    replicas_of,
)
from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import AllGroups, Common, Groups, Topics, topics_of
from zkconsumer.cli.output import Align, Color, Column, Unknown, say
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import session_text

if TYPE_CHECKING:
    from zkconsumer.admin.restore import Restored
    from zkconsumer.history.offsets import (
        Committed,
        PastKafkaOffsets,
        PastOffsets,
        Point,
        Source,
        Written,
    )

_COLORS = {"left": Color.BAD, "same": Color.FAINT}

COLUMNS = (
    Column("group", drop_order=4),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("store", wide_only=True),
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
    offsets_log: OffsetsLogs = None,
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
    """Restore offsets from the servers' own logs. A dry run without --execute.

    ZooKeeper's logs (--data-dir) contain every offset that was committed since the oldest log that
    was kept; --tables reads tables that Spark has made of them, without access control lists.
    Brokers keep the offsets in Kafka in the topic __consumer_offsets (--offsets-log), and remove
    old commits by compaction, so an offset may be unknown. Each store gets back its own offsets.
    The command also restores groups that were deleted, with their access control lists, and it can
    restore into another ensemble (--zookeeper). AGAIN and SKIPPED are the messages that members
    read again or skip because of the move. Exit code 1: the files do not show the offsets of some
    partitions, which are not restored.

    Example: zkconsumer offsets restore -g billing --data-dir /var/lib/zookeeper --at 03:00
    """
    from zkconsumer.admin.restore import plan_restore
    from zkconsumer.history.offsets import name_writers

    point = _point(at, before_zxid, undo_session, undo_tool or None)
    source = _source(data_dir, tables, offsets_log)
    files = ClientFiles(server_log=server_log, audit_log=audit_log, connections=connections)
    if offsets_log and at is None:
        raise ConfigError(
            "the logs of brokers contain neither transactions nor sessions of ZooKeeper",
            where="--offsets-log",
            remedy="choose the moment with --at, or leave out --offsets-log",
        )
    is_moment = at is not None or before_zxid is not None
    choose = common.groups_to_change if is_moment else common.groups
    names, topics = choose(group, all_groups=all_groups), topics_of(topic)
    with common.connect(names[0] if names else None) as connection:
        chroot = connection.config.zookeeper_chroot if log_chroot is None else log_chroot
        kafka = _in_kafka(offsets_log or (), point, names or ())
        past = None
        if source is not None:
            past = _in_zookeeper(source, point, chroot.rstrip("/"), names or (), kafka)
        if past is not None and files.are_given:
            past = name_writers(past, placed(files.read(), past.lifetimes))
        groups = {*(past.offsets if past else ()), *(kafka.offsets if kafka else ())}
        watch = how.watch(connection, *sorted(groups))
        limit_s = connection.config.zookeeper_connection_timeout_s
        found = plan_restore(connection, past, kafka=kafka, topics=topics, limit_s=limit_s)
        common.write(map(_row, found.partitions), _columns(kafka))
        plan = found.plan
        if kafka is None:
            plan = with_kafka_notes(connection, plan, *plan.groups)
        proceed(connection, plan, how, watch)
    if any(one.is_unknown for one in found.partitions):
        raise typer.Exit(Exit.FAILED)


def _source(
    data_dir: Sequence[str] | None, tables: str | None, offsets_log: Sequence[str] | None
) -> Source | None:
    """Return where ZooKeeper's transactions are; None if only brokers' logs are given.

    Raises ConfigError unless one place is given, or two places of ZooKeeper's transactions are.
    """
    from zkconsumer.history.inputs import find_servers
    from zkconsumer.history.saved_tables import SavedTransactions

    if not data_dir and tables is None and offsets_log:
        return None
    if bool(data_dir) == (tables is not None):
        raise ConfigError(
            "both --data-dir and --tables are given"
            if data_dir
            else "neither --data-dir nor --tables is given",
            where="--data-dir, --tables",
            remedy="give ZooKeeper's dataDir, or the tables that Spark has made of its logs; or a"
            " broker's log directory (--offsets-log)",
        )
    return SavedTransactions(tables) if tables is not None else find_servers(data_dir or ())


def _in_zookeeper(
    source: Source,
    point: Point,
    chroot: str,
    groups: Collection[str],
    kafka: PastKafkaOffsets | None,
) -> PastOffsets | None:
    """Return the offsets in ZooKeeper; None if there was none, and Kafka had some."""
    from zkconsumer.history.offsets import read_past

    with reading() as progress:
        try:
            return read_past(source, point, chroot=chroot, groups=groups, on_progress=progress)
        except ConfigError as error:
            if kafka is None or not kafka.offsets:
                raise
            say(f"ZooKeeper: {error.what} ({error.where})")
            return None


def _in_kafka(
    paths: Sequence[str], point: Point, groups: Collection[str]
) -> PastKafkaOffsets | None:
    """Return the offsets in Kafka; None if no log of a broker is given."""
    if not paths:
        return None
    from zkconsumer.history.kafka_offsets import read_past_in_kafka

    replicas = replicas_of(paths)()
    with reading() as progress:
        return read_past_in_kafka(replicas, point.value, groups=groups, on_progress=progress)


def _columns(kafka: PastKafkaOffsets | None) -> tuple[Column, ...]:
    """Return the columns; a table names the store only if both stores may be concerned."""
    if kafka is None:
        return COLUMNS
    return tuple(replace(one, wide_only=one.wide_only and one.name != "store") for one in COLUMNS)


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
    return {
        "group": one.group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "store": one.store.value,
        "now": Unknown(one.now) if isinstance(one.now, str) else one.now,
        "then": Unknown(one.reason) if one.is_unknown else one.then,
        "action": one.action.value,
        "new": one.new,
        "again": one.again,
        "skipped": one.skipped,
        **_written(one.written),
        "host": one.host or None,
        "reason": one.reason or None,
    }


def _written(written: Written | Committed | None) -> dict[str, object]:
    """Return the cells that say who wrote the offset of the moment."""
    from zkconsumer.history.offsets import Written

    time_ms = None if written is None else written.time_ms
    found = dict.fromkeys(("by", "port", "user", "session", "zxid"))
    cells: dict[str, object] = {**found, "written": of_time(time_ms) if time_ms else None}
    if isinstance(written, Written):
        plan = written.plan and f"plan {written.plan}"
        cells["by"] = written.consumer or plan or None
        cells["port"], cells["user"] = written.client.port, written.client.user
        cells["session"] = session_text(written.session) if written.session else None
        cells["zxid"] = f"0x{written.zxid:x}"
    elif written is not None:
        cells["by"] = written.member or None
    return cells
