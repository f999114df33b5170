"""`zkconsumer offsets restore`: set offsets back to what the servers' own logs say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, changing, proceed, write_plan
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.history import (
    DATA_DIR,
    AuditLogs,
    Connections,
    OffsetsLogs,
    OffsetsTopics,
    ServerLogs,
    reading,
)
from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import AllGroups, Common, Groups, Topics, topics_of
from zkconsumer.cli.output import Align, Color, Column, Unknown
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import session_text

if TYPE_CHECKING:
    from zkconsumer.admin.restore import Restored
    from zkconsumer.history.offsets import KafkaCommit, PastKafkaOffsets, Point, Written

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
        "--undo-tool", help="Restore the offsets that the last plan of zkconsumer wrote or deleted."
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
    offsets_topic: OffsetsTopics = False,
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
    Brokers keep the offsets in Kafka in the topic __consumer_offsets, on their disks
    (--offsets-log, or --offsets-topic to ask the brokers), and remove old commits by compaction, so
    an offset may be unknown. Each store gets back its own offsets.
    The command also restores groups that were deleted, with their access control lists, and it can
    restore into another ensemble (--zookeeper). AGAIN and SKIPPED are the messages that members
    read again or skip if the plan is applied. Exit code 1: the files do not show the offsets of
    some partitions, which are not restored.

    Example: zkconsumer offsets restore -g billing --data-dir /var/lib/zookeeper --at 03:00
    """
    from zkconsumer.admin.past_sources import PastSources
    from zkconsumer.cli.compile import load_decoder

    point = _point(at, before_zxid, undo_session, undo_tool or None)
    sources = PastSources(
        data_dirs=data_dir or (),
        tables=tables,
        offsets_logs=offsets_log or (),
        offsets_topic=offsets_topic,
        server_logs=[*(server_log or ()), *(audit_log or ())],
        connections=connections or (),
        chroot=log_chroot,
    )
    sources.check(point)
    is_moment = at is not None or before_zxid is not None
    choose = common.groups_to_change if is_moment else common.groups
    names, topics = choose(group, all_groups=all_groups), topics_of(topic)
    with common.connect(names[0] if names else None) as connection:
        limit_s = connection.config.zookeeper_connection_timeout_s
        with reading() as progress:
            past = sources.read(
                connection,
                point,
                names or (),
                limit_s=limit_s,
                on_progress=progress,
                on_servers=load_decoder,
            )
        watch = how.watch(connection, *past.groups)
        found = past.plan(connection, topics=topics, limit_s=limit_s)
        write_plan(common, how, map(_row, found.partitions), _columns(past.kafka))
        proceed(connection, found.plan, how, watch)
    if any(one.is_unknown for one in found.partitions):
        raise typer.Exit(Exit.FAILED)


def _columns(kafka: PastKafkaOffsets | None) -> tuple[Column, ...]:
    """Return the columns; a table names the store only if both stores may be concerned."""
    if kafka is None:
        return COLUMNS
    return tuple(replace(one, wide_only=one.wide_only and one.name != "store") for one in COLUMNS)


def _point(
    at: str | None, before_zxid: str | None, undo_session: str | None, undo_tool: bool | None
) -> Point:
    """Return the moment or the edit. Raises ConfigError unless exactly one is given."""
    from zkconsumer.history.offsets import Choice, Point
    from zkconsumer.times import parse_instant

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


def _written(written: Written | KafkaCommit | None) -> dict[str, object]:
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
