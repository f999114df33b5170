"""`zkconsumer offsets`: show, set, reset, delete, copy, export, import and restore offsets."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.admin.offset_files import (
    FileFormat,
    importable,
    read_file,
    read_storm_file,
    write_offsets,
)
from zkconsumer.cli import completion
from zkconsumer.cli.apply import (
    Changing,
    MaxZnodes,
    carry_out,
    changing,
    source_notes,
    with_kafka_notes,
)
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.lag import offset_notes, refusals, unknown, unmatched
from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import (
    AllGroups,
    Common,
    Connection,
    Groups,
    OneGroup,
    OnlyOption,
    Topics,
    merged,
    operator,
    topics_of,
)
from zkconsumer.cli.output import Align, Column, Progress, say, say_all
from zkconsumer.cli.restore import restore
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import Json, JsonObject, Storage
from zkconsumer.protocol.paths import validate_group, validate_group_znode

if TYPE_CHECKING:
    from zkconsumer.admin.groups import Selection
    from zkconsumer.admin.lag import PartitionLag
    from zkconsumer.admin.offset_plans import Reset
    from zkconsumer.protocol.model import TopicPartition
    from zkconsumer.zk.client import ZooKeeperClient


# ---- offsets export, offsets import --------------------------------------------------------------


@operator()
def export(
    connection: Connection,
    *,
    group: Groups = None,
    all_groups: AllGroups = False,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to create; default, or -: standard output."),
    ] = None,
    topic: Topics = None,
    format_: Annotated[
        FileFormat,
        typer.Option("--format", "-f", help="File format; legacy is that of ExportZkOffsets."),
    ] = FileFormat.JSON,
    storage: Annotated[
        Storage, typer.Option("--storage", help="Store to read the offsets from.")
    ] = Storage.ZOOKEEPER,
) -> None:
    """Write committed offsets to a file. Changes nothing in ZooKeeper or Kafka.

    `offsets import` and other tools read the file. Exit code 1: some offsets could not be read;
    they are listed on standard error and left out of the file.

    If no group is named, all groups are exported.

    Example: zkconsumer offsets export billing --file offsets.txt --format legacy
    """
    from zkconsumer.admin.groups import read_group_names
    from zkconsumer.admin.offset_plans import read_committed

    names = connection.groups(group, all_groups=all_groups)
    progress = Progress("groups")
    with (
        progress.until_done("no offset was exported"),
        connection.connect(names[0] if names else None) as client,
    ):
        found, notes = read_committed(
            client,
            names or read_group_names(client),
            topics=topics_of(topic),
            storage=storage,
            limit_s=client.config.zookeeper_connection_timeout_s,
            on_progress=progress.advanced,
        )
    found, more = importable(found)
    notes += more
    say_all(notes)
    offsets = {name: of for name, of in found.items() if of}
    for name in found.keys() - offsets.keys():
        say(f"group {name} has no committed offsets of these topics in {storage.value}")
    if not offsets:
        raise ConfigError("no offset to export was found", where=storage.value)
    text = write_offsets(offsets, format_)
    file = None if str(file) == "-" else file
    _write_new(text, file)
    if file is not None:
        say(f"wrote {sum(map(len, offsets.values()))} offsets to {file}")
    if notes:
        raise typer.Exit(Exit.FAILED)


def _write_new(text: str, file: Path | None) -> None:
    """Write a file that does not exist yet; None is standard output."""
    if file is None:
        sys.stdout.write(text)
        return
    try:
        with file.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except OSError as error:
        raise ConfigError(
            f"the file cannot be written: {error.strerror}",
            where=str(file),
            remedy="name a file that does not exist, in a writable directory",
        ) from error


class ImportFormat(Enum):
    """How `offsets import` reads its file."""

    AUTO = "auto"
    STORM = "storm"


@changing
def import_(
    common: Common,
    how: Changing,
    *,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file in any format of `offsets export`; - is standard input."
        ),
    ],
    group: OneGroup = None,
    format_: Annotated[
        ImportFormat,
        typer.Option(
            "--format",
            "-f",
            help="auto: a format of `offsets export`; storm: the payloads of a Storm spout's"
            " znodes, one per line, which need --group.",
        ),
    ] = ImportFormat.AUTO,
) -> None:
    """Set the offsets in ZooKeeper to those in a file. A dry run without --execute.

    The whole file is checked before the first write. No broker is needed.

    Example: zkconsumer offsets import offsets.txt --execute
    """
    from zkconsumer.admin.offset_plans import plan_import

    if format_ is ImportFormat.STORM:
        offsets = read_storm_file(file, group=validate_group_znode(common.group(group)))
    else:
        offsets = read_file(file, group=None if group is None else validate_group_znode(group))
    with common.connect(next(iter(offsets))) as connection:
        watch = how.watch(connection, *offsets)
        plan = plan_import(connection, offsets)
        carry_out(common, connection, with_kafka_notes(connection, plan, *offsets), how, watch)


# ---- offsets get ---------------------------------------------------------------------------------


COLUMNS = (
    Column("group", drop_order=2),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("zookeeper", align=Align.RIGHT),
    Column("kafka", align=Align.RIGHT),
    Column("written", drop_order=1),
    Column("metadata", wide_only=True),
)


@operator()
def get(
    common: Common, *, group: Groups = None, all_groups: AllGroups = False, topic: Topics = None
) -> None:
    """Show the committed offsets of groups, in ZooKeeper and in Kafka. Changes nothing.

    If no group is named, the offsets of all groups are shown. WRITTEN is the time of the last write
    to the offset in ZooKeeper, by ZooKeeper's clock. Exit code 1: no group uses a
    topic or a partition that --topic names (owns it, subscribes to it, or has an offset for it), or
    ZooKeeper denied access to some of the groups' znodes. Their values are shown as unknown.

    Example: zkconsumer offsets get -z zk1:2181/kafka --group billing --topic orders:0,1
    """
    from zkconsumer.admin.groups import read_group_names, unknown_group
    from zkconsumer.admin.lag import group_lags, unasked_logs

    names, only = common.groups(group, all_groups=all_groups), topics_of(topic)
    with common.connect(names[0] if names else None) as connection:
        limit_s = connection.config.zookeeper_connection_timeout_s
        asked = read_group_names(connection) if names is None else names
        found = group_lags(connection, asked, only=only, logs=unasked_logs, limit_s=limit_s)
        for name in names or ():
            if name not in found:
                raise unknown_group(name, connection)
        missing = unmatched(found.values(), only, connection)
        missing += [word for of_group in found.values() for word in refusals(of_group)]
    common.write(
        [_row(name, one) for name, of_group in found.items() for one in of_group.partitions],
        COLUMNS,
    )
    for name, of_group in found.items():
        say_all(offset_notes(of_group))
        if not missing and all(one.committed is None for one in of_group.partitions):
            say(f"group {name}: no offset is committed, in ZooKeeper or in Kafka")
    say_all(missing)
    if missing:
        raise typer.Exit(Exit.FAILED)


def _row(group: str, one: PartitionLag) -> JsonObject:
    kafka = one.in_kafka
    stored = kafka if kafka is None or isinstance(kafka, str) else kafka.offset
    metadata = "" if kafka is None or isinstance(kafka, str) else kafka.metadata
    return {
        "group": group,
        "topic": one.topic,
        "partition": one.partition,
        "zookeeper": unknown(one.in_zookeeper),
        "kafka": unknown(stored),
        "written": of_time(one.written_ms) if one.written_ms else None,
        "metadata": metadata or None,
    }


# ---- offsets set, reset, shift, delete, copy -----------------------------------------------------


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Show, set, reset, delete, copy, export, import and restore the committed offsets of"
    " groups.",
)

Earliest = Annotated[
    bool, typer.Option("--to-earliest", help="Set every partition to the start of its log.")
]
Latest = Annotated[
    bool, typer.Option("--to-latest", help="Set every partition to the end of its log.")
]
ToOffset = Annotated[
    str | None, typer.Option(metavar="OFFSET", help="Set every partition to OFFSET.")
]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        metavar="ISO8601",
        help="Set every partition to its first message at or after this time, such as"
        " 2026-01-31T13:00, 21:15, or 'yesterday 03:00'; UTC unless it has a zone.",
    ),
]
ByDuration = Annotated[
    str | None,
    typer.Option(
        metavar="ISO8601",
        help="Set every partition to its first message within this last period, such as PT1H.",
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option(metavar="N", help="Move every offset forward by N messages; back if negative."),
]
ToCurrent = Annotated[
    bool,
    typer.Option(
        "--to-current", help="Keep offsets that the log contains; move all others into it."
    ),
]
FromFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Set the offsets from a file in any format of export."),
]
Approximate = Annotated[
    bool,
    typer.Option(
        "--approximate",
        help="Accept approximate results of a reset by time. Brokers before 0.10 know only the"
        " times of log segments.",
    ),
]
InStorage = Annotated[
    Storage, typer.Option("--storage", help="Store in which the offsets are changed.")
]
NewGroup = Annotated[
    bool, typer.Option("--new-group", help="Create the group if it does not exist.")
]
AllTopics = Annotated[
    bool,
    typer.Option(
        "--all-topics", help="All topics for which the group has offsets or owner znodes."
    ),
]
TopicRegex = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Topics of the group that match a Java regular expression."),
]

app.command("get")(get)
app.command("export")(export)
app.command("import")(import_)
app.command("restore")(restore)


@app.command("set")
@changing
def set_(
    common: Common,
    how: Changing,
    *,
    offsets: Annotated[
        list[str],
        typer.Argument(
            metavar="GROUP|TOPIC:P=OFFSET",
            help="The group (as with --group), and the new offset of each partition P."
            " TOPIC=OFFSET sets every partition of the topic.",
        ),
    ],
    group: OnlyOption = None,
    storage: InStorage = Storage.ZOOKEEPER,
    new_group: NewGroup = False,
) -> None:
    """Set offsets of single partitions. A dry run without --execute.

    An offset outside the log is moved to the nearest end of the log, with a note.

    Example: zkconsumer offsets set billing orders:0=1200 orders:1=950 --execute
    """
    from zkconsumer.admin.offset_plans import Kind, Reset, UnknownGroup, plan_reset

    if len(offsets) > 1 and "=" not in offsets[0]:
        group, offsets = merged(offsets[0], group), offsets[1:]
    name, parsed = common.group(group), _settings(offsets)
    if new_group:
        validate_group(name)
    with common.connect(name) as connection:
        watch = how.watch(connection, name)
        moved = plan_reset(
            connection,
            name,
            Reset(Kind.FILE),
            topics=None,
            storage=storage,
            limit_s=connection.config.zookeeper_connection_timeout_s,
            kind="offsets set",
            unknown=UnknownGroup.MAKE if new_group else UnknownGroup.REFUSE,
            wanted=_wanted(connection, parsed),
        )
        carry_out(common, connection, moved.plan, how, watch, ends=moved.ends)


def _settings(given: Sequence[str]) -> list[tuple[str, Selection, int]]:
    """Parse arguments of the forms TOPIC:P=OFFSET and TOPIC=OFFSET. Raises ConfigError."""
    from zkconsumer.admin.offset_plans import parse_offset

    if not given:
        raise ConfigError("no offset is given", remedy="give TOPIC:P=OFFSET")
    found: list[tuple[str, Selection, int]] = []
    for text in given:
        left, equals, number = text.partition("=")
        if not equals:
            raise ConfigError(f"{text[:80]!r} is not of the form TOPIC:P=OFFSET")
        found.append((text, topics_of([left]) or {}, parse_offset(number, where=left)))
    return found


def _wanted(
    connection: ZooKeeperClient, settings: Sequence[tuple[str, Selection, int]]
) -> dict[TopicPartition, int]:
    """Return the new offset of each partition. Raises ConfigError if one is given twice."""
    from zkconsumer.admin.offset_plans import partitions_of

    found: dict[TopicPartition, int] = {}
    for text, topics, offset in settings:
        for tp in partitions_of(connection, topics):
            if found.setdefault(tp, offset) != offset:
                raise ConfigError(f"{tp} is given two different offsets", where=text[:80])
    return found


@app.command()
@changing
def reset(
    common: Common,
    how: Changing,
    *,
    group: OneGroup = None,
    topic: Topics = None,
    topic_regex: TopicRegex = None,
    all_topics: AllTopics = False,
    to_earliest: Earliest = False,
    to_latest: Latest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    to_current: ToCurrent = False,
    from_file: FromFile = None,
    approximate: Approximate = False,
    storage: InStorage = Storage.ZOOKEEPER,
    new_group: NewGroup = False,
) -> None:
    """Reset offsets as kafka-consumer-groups --reset-offsets does. A dry run without --execute.

    An offset outside the log is moved to the nearest end of the log, with a note.

    Example: zkconsumer offsets reset -g billing --topic orders --by-duration PT1H --execute
    """
    from zkconsumer.admin.offset_plans import Times, UnknownGroup, plan_reset

    target = _reset_of(
        {
            "to-earliest": to_earliest or None,
            "to-latest": to_latest or None,
            "to-offset": to_offset,
            "to-datetime": to_datetime,
            "by-duration": by_duration,
            "shift-by": shift_by,
            "to-current": to_current or None,
            "from-file": from_file,
        }
    )
    name = common.group(group)
    if new_group:
        validate_group(name)
    if from_file is not None and (topic or topic_regex or all_topics):
        raise ConfigError(
            "--from-file excludes --topic, --topic-regex and --all-topics",
            where="--from-file",
            remedy="the file names the partitions; leave out the other options",
        )
    wanted = None if from_file is None else _from_file(from_file, name)
    with common.connect(name) as connection:
        watch = how.watch(connection, name)
        moved = plan_reset(
            connection,
            name,
            target,
            wanted=wanted,
            storage=storage,
            topics=None
            if wanted is not None
            else _topics(connection, name, topic, regex=topic_regex, all_topics=all_topics),
            limit_s=connection.config.zookeeper_connection_timeout_s,
            times=Times.APPROXIMATE if approximate else Times.EXACT,
            unknown=UnknownGroup.MAKE if new_group else UnknownGroup.REFUSE,
        )
        carry_out(common, connection, moved.plan, how, watch, ends=moved.ends)


def _reset_of(given: Mapping[str, Json]) -> Reset:
    """Return the reset that the options describe. Raises ConfigError unless they describe exactly
    one."""
    from zkconsumer import times
    from zkconsumer.admin import offset_plans

    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise ConfigError(
            f"{len(named)} targets of the reset are given",
            where=", ".join(f"--{name}" for name in named),
            remedy="give exactly one of " + ", ".join(f"--{name}" for name in given),
        )
    ((name, value),) = named.items()
    kind = offset_plans.Kind(name)
    match kind:
        case offset_plans.Kind.OFFSET:
            return offset_plans.Reset(kind, offset_plans.parse_offset(value, where="--to-offset"))
        case offset_plans.Kind.DATETIME:
            return offset_plans.Reset(kind, times.parse_instant(value, where="--to-datetime"))
        case offset_plans.Kind.DURATION:
            ago_s = times.parse_duration(value, where="--by-duration")
            return offset_plans.Reset(kind, max(0, round((time.time() - ago_s) * 1000)))
        case offset_plans.Kind.SHIFT:
            return offset_plans.Reset(kind, value)
    return offset_plans.Reset(kind)


def _from_file(file: Path, group: str) -> dict[TopicPartition, int]:

    return read_file(file, group=group)[group]


def _topics(
    connection: ZooKeeperClient,
    group: str,
    given: list[str] | None,
    *,
    regex: str | None,
    all_topics: bool,
) -> Selection | None:
    """Return the partitions that --topic, --topic-regex or --all-topics selects; None means all.

    Raises ConfigError unless exactly one of the three is given.
    """
    from zkconsumer.admin.offset_plans import select_topics

    if [bool(given), regex is not None, all_topics].count(True) != 1:
        raise ConfigError(
            "exactly one option must select the partitions",
            where=f"group {group}",
            remedy="give exactly one of --topic TOPIC[:P,P...], --topic-regex REGEX, --all-topics",
        )
    if regex is not None:
        return select_topics(connection, group, regex)
    return topics_of(given)


@app.command()
@changing
def shift(
    common: Common,
    how: Changing,
    *,
    by: Annotated[
        int, typer.Option(metavar="N", help="Number of messages to move forward; negative: back.")
    ],
    group: OneGroup = None,
    topic: Topics = None,
    topic_regex: TopicRegex = None,
    all_topics: AllTopics = False,
    storage: InStorage = Storage.ZOOKEEPER,
) -> None:
    """Move offsets forward or back by N messages, within the log. A dry run without --execute.

    After an interruption use `zkconsumer apply BACKUP`. A second `shift` would move some offsets
    twice.

    Example: zkconsumer offsets shift -g billing --topic orders:0 --by -100 --execute
    """
    from zkconsumer.admin.offset_plans import Kind, Reset, plan_reset

    name = common.group(group)
    with common.connect(name) as connection:
        watch = how.watch(connection, name)
        moved = plan_reset(
            connection,
            name,
            Reset(Kind.SHIFT, by),
            storage=storage,
            kind="offsets shift",
            topics=_topics(connection, name, topic, regex=topic_regex, all_topics=all_topics),
            limit_s=connection.config.zookeeper_connection_timeout_s,
        )
        carry_out(common, connection, moved.plan, how, watch, ends=moved.ends)


@app.command()
@changing
def delete(
    common: Common,
    how: Changing,
    *,
    group: OneGroup = None,
    topic: Topics = None,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Delete offsets of topics or partitions in ZooKeeper. A dry run without --execute.

    Members then start at the offset that auto.offset.reset selects.

    Example: zkconsumer offsets delete -g billing --topic orders:0,1 --execute
    """
    from zkconsumer.admin.group_changes import plan_delete_offsets

    name = common.group(group)
    topics = topics_of(topic)
    if topics is None:
        raise ConfigError(
            "no topic is named",
            remedy="give --topic TOPIC[:P,P...]; `zkconsumer groups delete` deletes all offsets",
        )
    with common.connect(name) as connection:
        watch = how.watch(connection, name)
        plan = plan_delete_offsets(connection, name, topics=topics, max_deleted=max_znodes)
        carry_out(common, connection, with_kafka_notes(connection, plan, name), how, watch)


@app.command()
@changing
def copy(
    common: Common,
    how: Changing,
    *,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="GROUP",
            help="The group to copy from.",
            autocompletion=completion.groups,
        ),
    ],
    group: OneGroup = None,
    topic: Topics = None,
) -> None:
    """Copy offsets in ZooKeeper from one group to another. A dry run without --execute.

    Example: zkconsumer offsets copy --from billing -g billing-test --topic orders --execute
    """
    from zkconsumer.admin.offset_plans import plan_import, read_committed

    name = common.group(group)
    if validate_group_znode(source) == name:
        raise ConfigError("a group cannot be copied onto itself", where=name)
    with common.connect(name) as connection:
        watch = how.watch(connection, name, source)
        found, notes = read_committed(
            connection,
            [source],
            topics=topics_of(topic),
            limit_s=connection.config.zookeeper_connection_timeout_s,
        )
        if not found[source]:
            raise ConfigError(
                f"group {source} has no offsets of these topics in ZooKeeper", where=source
            )
        plan = plan_import(connection, {name: found[source]}, kind="offsets copy")
        plan = with_kafka_notes(connection, plan, source, name)
        plan = plan.noted(*notes, *source_notes(watch, source))
        carry_out(common, connection, plan, how, watch)
