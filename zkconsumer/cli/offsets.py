"""`zkconsumer offsets`: a group's committed offsets: see them, move them, carry them elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.cli.changing import Changing, MaxZnodes, beside_kafka, carry_out, changing
from zkconsumer.cli.offsets_files import export, import_
from zkconsumer.cli.offsets_get import get
from zkconsumer.cli.options import Common, OneGroup, Topics, topics_of
from zkconsumer.core.model import Storage
from zkconsumer.core.paths import validate_group
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.admin.moving import Selection
    from zkconsumer.admin.resets import Reset
    from zkconsumer.core.model import TopicPartition
    from zkconsumer.zk.connection import Connection

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True,
    help="A group's offsets: see them, move them, carry them elsewhere.",
)  # fmt: skip

Earliest = Annotated[bool, typer.Option("--to-earliest", help="Where the log begins.")]
Latest = Annotated[bool, typer.Option("--to-latest", help="Where the log ends.")]
ToOffset = Annotated[
    str | None, typer.Option(metavar="OFFSET", help="This one, for each partition.")
]
ToDatetime = Annotated[
    str | None, typer.Option(metavar="ISO8601", help="From then on; UTC without a zone.")
]
ByDuration = Annotated[
    str | None, typer.Option(metavar="ISO8601", help="From so long ago on, such as PT1H.")
]
ShiftBy = Annotated[
    int | None, typer.Option(metavar="N", help="So many messages on; negative: back.")
]
ToCurrent = Annotated[bool, typer.Option("--to-current", help="As it is, but within the log.")]
FromFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="As a file says, in any format of export.")
]
Approximate = Annotated[
    bool, typer.Option("--approximate", help="By time: accept the granularity of brokers < 0.10.")
]
InStorage = Annotated[
    Storage, typer.Option("--storage", help="Where the offsets are kept (offsets.storage).")
]
NewGroup = Annotated[
    bool, typer.Option("--new-group", help="Make the group if nobody was ever in it.")
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All topics that the group has offsets or owners of.")
]
TopicRegex = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Those of the group's topics that match, in Java's syntax."),
]

app.command("get")(get)
app.command("export")(export)
app.command("import")(import_)


@app.command("set")
@changing
def set_(
    common: Common,
    how: Changing,
    *,
    offsets: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC:P=OFFSET", help="New offsets; TOPIC=OFFSET for all of P."),
    ],
    group: OneGroup = None,
    storage: InStorage = Storage.ZOOKEEPER,
    new_group: NewGroup = False,
) -> None:
    """Set offsets, within the logs' range. A dry run without --execute.

    Example: zkconsumer offsets set -g billing orders:0=1200 orders:1=950 --execute
    """
    from zkconsumer.admin.moving import Unknown, plan_reset  # noqa: PLC0415
    from zkconsumer.admin.resets import Kind, Reset  # noqa: PLC0415

    name, parsed = common.group(group), _settings(offsets)
    with common.connect(name) as connection:
        moved = plan_reset(
            connection, name, Reset(Kind.FILE), topics=None, storage=storage,
            limit_s=connection.config.zookeeper_connection_timeout_s, kind="offsets set",
            unknown=Unknown.MAKE if new_group else Unknown.REFUSE,
            wanted=_wanted(connection, parsed),
        )  # fmt: skip
        carry_out(common, connection, moved.plan, how, ends=moved.ends)


def _settings(given: Sequence[str]) -> list[tuple[str, Selection, int]]:
    """TOPIC:P=OFFSET and TOPIC=OFFSET. Raises ConfigError."""
    from zkconsumer.admin.resets import parse_offset  # noqa: PLC0415

    found: list[tuple[str, Selection, int]] = []
    for text in given:
        left, equals, number = text.partition("=")
        if not equals:
            raise ConfigError(f"{text[:80]!r} is not like TOPIC:P=OFFSET")
        found.append((text, topics_of([left]) or {}, parse_offset(number, where=left)))
    return found


def _wanted(
    connection: Connection, settings: Sequence[tuple[str, Selection, int]]
) -> dict[TopicPartition, int]:
    """The offset of each partition. Raises ConfigError where one is to have two."""
    from zkconsumer.admin.moving import partitions_of  # noqa: PLC0415

    found: dict[TopicPartition, int] = {}
    for text, topics, offset in settings:
        for tp in partitions_of(connection, topics):
            if found.setdefault(tp, offset) != offset:
                raise ConfigError(f"{tp} is to have two offsets", where=text[:80])
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
    """Move offsets as kafka-consumer-groups --reset-offsets does. A dry run without --execute.

    Offsets outside the log are moved to its nearest end, and a word says so.

    Example: zkconsumer offsets reset -g billing --topic orders --by-duration PT1H --execute
    """
    from zkconsumer.admin.moving import Times, Unknown, plan_reset  # noqa: PLC0415

    aim = _aim({
        "to-earliest": to_earliest or None, "to-latest": to_latest or None,
        "to-offset": to_offset, "to-datetime": to_datetime, "by-duration": by_duration,
        "shift-by": shift_by, "to-current": to_current or None, "from-file": from_file,
    })  # fmt: skip
    name = common.group(group)
    if from_file is not None and (topic or topic_regex or all_topics):
        raise ConfigError("a file says itself which partitions", where="--from-file")
    wanted = None if from_file is None else _from_file(from_file, name)
    with common.connect(name) as connection:
        moved = plan_reset(
            connection, name, aim, wanted=wanted, storage=storage,
            topics=None if wanted is not None else _topics(
                connection, name, topic, regex=topic_regex, all_topics=all_topics
            ),
            limit_s=connection.config.zookeeper_connection_timeout_s,
            times=Times.APPROXIMATE if approximate else Times.EXACT,
            unknown=Unknown.MAKE if new_group else Unknown.REFUSE,
        )  # fmt: skip
        carry_out(common, connection, moved.plan, how, ends=moved.ends)


def _aim(given: Mapping[str, Any]) -> Reset:
    """The one kind that was asked for. Raises ConfigError."""
    from zkconsumer.admin import resets  # noqa: PLC0415

    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise ConfigError(
            "exactly one of these says where to: " + ", ".join(f"--{name}" for name in given),
            where=", ".join(f"--{name}" for name in named),
        )
    ((name, value),) = named.items()
    kind = resets.Kind(name)
    match kind:
        case resets.Kind.OFFSET:
            return resets.Reset(kind, resets.parse_offset(value, where="--to-offset"))
        case resets.Kind.DATETIME:
            return resets.Reset(kind, resets.parse_instant(value))
        case resets.Kind.DURATION:
            ago_s = resets.parse_duration(value)
            return resets.Reset(kind, max(0, round((time.time() - ago_s) * 1000)))
        case resets.Kind.SHIFT:
            return resets.Reset(kind, value)
    return resets.Reset(kind)


def _from_file(file: Path, group: str) -> dict[TopicPartition, int]:
    from zkconsumer.admin.formats import read_file  # noqa: PLC0415

    return read_file(file, group=group)[group]


def _topics(
    connection: Connection, group: str, given: list[str] | None, *, regex: str | None,
    all_topics: bool,
) -> Selection | None:
    """What --topic, --topic-regex and --all-topics named. Raises ConfigError for none or two."""
    from zkconsumer.admin.moving import select_topics  # noqa: PLC0415

    if [bool(given), regex is not None, all_topics].count(True) != 1:
        raise ConfigError(
            "which partitions is not clear", where=f"group {group}",
            remedy="exactly one of --topic TOPIC[:P,P...], --topic-regex REGEX, --all-topics",
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
    by: Annotated[int, typer.Option(metavar="N", help="Messages on; negative: back.")],
    group: OneGroup = None,
    topic: Topics = None,
    topic_regex: TopicRegex = None,
    all_topics: AllTopics = False,
    storage: InStorage = Storage.ZOOKEEPER,
) -> None:
    """Move offsets by so many messages, within the logs. A dry run without --execute.

    What an interruption has left half done is finished with `zkconsumer apply BACKUP`: a second
    shift would shift again.

    Example: zkconsumer offsets shift -g billing --topic orders:0 --by -100 --execute
    """
    from zkconsumer.admin.moving import plan_reset  # noqa: PLC0415
    from zkconsumer.admin.resets import Kind, Reset  # noqa: PLC0415

    name = common.group(group)
    with common.connect(name) as connection:
        moved = plan_reset(
            connection, name, Reset(Kind.SHIFT, by), storage=storage, kind="offsets shift",
            topics=_topics(connection, name, topic, regex=topic_regex, all_topics=all_topics),
            limit_s=connection.config.zookeeper_connection_timeout_s,
        )  # fmt: skip
        carry_out(common, connection, moved.plan, how, ends=moved.ends)


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
    """Delete offsets in ZooKeeper, of topics or partitions. A dry run without --execute.

    Members then begin where auto.offset.reset says.

    Example: zkconsumer offsets delete -g billing --topic orders:0,1 --execute
    """
    from zkconsumer.admin.changes import plan_delete_offsets  # noqa: PLC0415

    name = common.group(group)
    topics = topics_of(topic)
    if topics is None:
        raise ConfigError("no topic was named", remedy="--topic TOPIC[:P,P...]; or groups delete")
    with common.connect(name) as connection:
        plan = plan_delete_offsets(connection, name, topics=topics, max_deleted=max_znodes)
        carry_out(common, connection, beside_kafka(connection, plan, name), how)


@app.command()
@changing
def copy(
    common: Common,
    how: Changing,
    *,
    source: Annotated[str, typer.Option("--from", metavar="GROUP", help="The group to copy from.")],
    group: OneGroup = None,
    topic: Topics = None,
) -> None:
    """Give a group the offsets that another has in ZooKeeper. A dry run without --execute.

    Example: zkconsumer offsets copy --from billing -g billing-test --topic orders --execute
    """
    from zkconsumer.admin.moving import plan_import, read_committed  # noqa: PLC0415

    name = common.group(group)
    if validate_group(source) == name:
        raise ConfigError("a group cannot be copied onto itself", where=name)
    with common.connect(name) as connection:
        found, notes = read_committed(
            connection, [source], topics=topics_of(topic),
            limit_s=connection.config.zookeeper_connection_timeout_s,
        )  # fmt: skip
        if not found[source]:
            raise ConfigError(f"group {source} has no such offsets in ZooKeeper", where=source)
        plan = plan_import(connection, {name: found[source]}, kind="offsets copy")
        plan = beside_kafka(connection, plan, source, name)
        carry_out(common, connection, plan.noted(*notes), how)


