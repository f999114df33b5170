"""`zkconsumer migrate`: copy a group's offsets from ZooKeeper to Kafka, or back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, changing, proceed, write_plan
from zkconsumer.cli.assign import show_later_group
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Common, OneGroup, Topics, topics_of
from zkconsumer.cli.output import Align, Color, Column, Progress, say, say_all
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.later.assignors import Assignor

if TYPE_CHECKING:
    from zkconsumer.admin.migrate import Direction, Migration, Transfer
    from zkconsumer.zk.client import ZooKeeperClient

_COLORS = {"left": Color.BAD, "back": Color.WARNING, "same": Color.FAINT, "none": Color.FAINT}

COLUMNS = (
    Column("group", wide_only=True),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("zookeeper", align=Align.RIGHT),
    Column("kafka", align=Align.RIGHT),
    Column("action", color=_COLORS.get),
    Column("reason", drop_order=1),
)

ForceBack = Annotated[
    bool,
    typer.Option(
        "--force-lower-offsets",
        help="Overwrite even a higher offset in the target store; messages are then redelivered.",
    ),
]
app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Copy a group's offsets from ZooKeeper to Kafka, or back.",
)


@app.command("zookeeper-to-kafka")
@changing
def to_kafka(
    common: Common,
    how: Changing,
    *,
    group: OneGroup = None,
    topic: Topics = None,
    force_lower: ForceBack = False,
    preview: Annotated[
        bool,
        typer.Option(
            "--preview",
            help="Only show which partitions each thread would own as a consumer of Kafka's own"
            " protocol, and which would move. Nothing is written, and only ZooKeeper is read.",
        ),
    ] = False,
    assignor: Annotated[
        Assignor | None,
        typer.Option(
            help="With --preview: the assignor of the new consumers; default: range. Kafka's"
            " default since 3.0 assigns like range."
        ),
    ] = None,
) -> None:
    """Copy ZooKeeper's offsets to Kafka. A dry run without --execute.

    Run this before the group's members start with offsets.storage=kafka. After writing, the command
    reads the offsets back.

    The group must have no members, or its members must commit to both stores. In the second case
    the group has migrated already, and nothing is written. Exit code 1: some partitions are not
    migrated, and the table says why. Exit code 4: the group has members that do not commit to both
    stores.

    Example: zkconsumer migrate zookeeper-to-kafka --group billing --execute
    """
    from zkconsumer.admin.migrate import Direction

    if preview:
        _preview(common, how, group, topic, assignor or Assignor.RANGE)
        return
    if assignor is not None:
        raise ConfigError("--assignor is used by --preview only", remedy="add --preview")
    _migrate(common, how, Direction.TO_KAFKA, group, topic, force_lower=force_lower)


@app.command("kafka-to-zookeeper")
@changing
def to_zookeeper(
    common: Common,
    how: Changing,
    *,
    group: OneGroup = None,
    topic: Topics = None,
    force_lower: ForceBack = False,
) -> None:
    """Copy Kafka's offsets to ZooKeeper. A dry run without --execute.

    Run this before the group's members start with offsets.storage=zookeeper. After writing, the
    command reads the offsets back.

    The group must have no members, or its members must commit to both stores. In the second case
    nothing is written. Exit code 1: some partitions are not migrated, and the table says why. Exit
    code 4: the group has members that do not commit to both stores.

    Example: zkconsumer migrate kafka-to-zookeeper --group billing --execute
    """
    from zkconsumer.admin.migrate import Direction

    _migrate(common, how, Direction.TO_ZOOKEEPER, group, topic, force_lower=force_lower)


def _preview(
    common: Common,
    how: Changing,
    group: str | None,
    topics: list[str] | None,
    assignor: Assignor,
) -> None:
    from zkconsumer.admin.what_if import live_group

    if how.execute or how.plan_out is not None:
        other = "--execute" if how.execute else "--plan-out"
        raise ConfigError(f"--preview and {other} exclude each other", remedy="give one of them")
    name = common.group(group)
    with common.connect(name) as connection:
        exclude_internal = common.settings(name).exclude_internal_topics
        now, owners = live_group(connection, name, exclude_internal=exclude_internal)
    show_later_group(common, now, owners, assignor, topics=topics_of(topics))


def _migrate(
    common: Common,
    how: Changing,
    direction: Direction,
    group: str | None,
    topics: list[str] | None,
    *,
    force_lower: bool,
) -> None:
    from zkconsumer.admin.doctor import kafka_logs
    from zkconsumer.admin.migrate import (
        Activity,
        HigherTargetOffset,
        kafka_offsets,
        plan_migration,
    )

    name = common.group(group)
    wanted = topics_of(topics)
    with common.connect(name) as connection:
        limit_s = connection.config.zookeeper_connection_timeout_s
        watch = how.watch(connection, name)
        progress = Progress("offsets")
        with progress.until_done("nothing was written"):
            found = plan_migration(
                connection,
                name,
                direction,
                ask_kafka=kafka_offsets(limit_s, progress.advanced),
                ask_logs=kafka_logs(limit_s),
                topics=wanted,
                lower=HigherTargetOffset.OVERWRITE if force_lower else HigherTargetOffset.KEEP,
            )
        write_plan(common, how, (_row(name, one) for one in found.transfers), COLUMNS)
        if found.activity is Activity.DUAL:
            say(f"group {name} commits to both stores: the partitions it owns have migrated")
        if found.plan.is_empty:
            say("nothing to write")
        else:
            proceed(connection, found.plan, how, watch)
        missing = _verify(connection, found, limit_s) if how.execute else []
    if how.execute and found.plan:
        say(f"verified: {len(found.plan) - len(missing)} of {len(found.plan)} offsets were written")
    say_all(
        f"the offset of {one.partition} was not written: ZooKeeper {one.zookeeper},"
        f" Kafka {one.kafka}"
        for one in missing
    )
    left = found.left
    if left:
        say(f"{len(left)} partitions are not migrated")
    if how.execute and (left or missing):
        raise typer.Exit(Exit.FAILED)


def _verify(connection: ZooKeeperClient, done: Migration, limit_s: float) -> list[Transfer]:
    """Return the partitions whose offset is missing in the target store."""
    from zkconsumer.admin.migrate import kafka_offsets, verify_migration

    progress = Progress("offsets")
    with progress.until_done("all changes were made, but they could not be verified"):
        ask = kafka_offsets(limit_s, progress.advanced)
        return verify_migration(connection, done, ask_kafka=ask)


def _row(group: str, one: Transfer) -> dict[str, object]:
    return {
        "group": group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "zookeeper": one.zookeeper,
        "kafka": one.kafka,
        "action": one.action.value,
        "reason": one.reason or None,
    }
