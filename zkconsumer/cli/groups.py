"""`zkconsumer groups`: list, show, watch, delete, copy and rename groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, MaxZnodes, beside_kafka, carry_out, changing
from zkconsumer.cli.members import COLUMNS as MEMBER_COLUMNS
from zkconsumer.cli.members import member_row, member_words
from zkconsumer.cli.options import Common, OneGroup, either, operator
from zkconsumer.cli.output import Align, Color, Column, Row, Table, Unknown, say_all
from zkconsumer.cli.partition_rows import COLUMNS, group_words, partition_rows
from zkconsumer.cli.watching import watch
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.paths import validate_group

if TYPE_CHECKING:
    from zkconsumer.admin.groups import GroupSummary
    from zkconsumer.admin.lag import GroupLag
    from zkconsumer.zk.client import ZooKeeperClient


# ---- groups delete, copy, rename -----------------------------------------------------------------


Source = Annotated[str, typer.Argument(metavar="GROUP", help="The existing group.")]
ToDelete = Annotated[str | None, typer.Argument(metavar="GROUP", help="The group to delete.")]
Target = Annotated[str, typer.Argument(metavar="NEW", help="The new group; it must not exist.")]


@changing
def delete(
    common: Common,
    how: Changing,
    *,
    group: ToDelete = None,
    named: OneGroup = None,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Delete all znodes of a group. A dry run without --execute.

    Example: zkconsumer groups delete billing-test --execute
    """
    from zkconsumer.admin.group_changes import plan_delete_group

    given = either(group, named)
    if given is None:  # group.id of --config does not count: deleting needs an explicit name
        raise ConfigError("no group is named", remedy="give `zkconsumer groups delete GROUP`")
    name = validate_group(given)
    with common.connect(name) as connection:
        carry_out(
            common, connection, plan_delete_group(connection, name, max_deleted=max_znodes), how
        )


@changing
def copy(common: Common, how: Changing, *, group: Source, new: Target) -> None:
    """Copy all offsets of a group to a new group. A dry run without --execute.

    Example: zkconsumer groups copy billing billing-test --execute
    """
    from zkconsumer.admin.group_changes import plan_copy_group

    source, target = validate_group(group), validate_group(new)
    with common.connect(source) as connection:
        plan = plan_copy_group(connection, source, target)
        carry_out(common, connection, beside_kafka(connection, plan, source), how)


@changing
def rename(
    common: Common, how: Changing, *, group: Source, new: Target, max_znodes: MaxZnodes = 10_000
) -> None:
    """Copy all offsets of a group to a new group, and delete the old one. A dry run without
    --execute.

    Example: zkconsumer groups rename billing billing-v2 --execute
    """
    from zkconsumer.admin.group_changes import plan_rename_group

    source, target = validate_group(group), validate_group(new)
    with common.connect(source) as connection:
        plan = plan_rename_group(connection, source, target, max_deleted=max_znodes)
        carry_out(common, connection, beside_kafka(connection, plan, source), how)


# ---- groups list, show, watch --------------------------------------------------------------------


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List, show, watch, delete, copy and rename groups.",
)

ONE = Annotated[
    str | None,
    typer.Argument(metavar="GROUP", help="Group name; default: group.id of the --config file."),
]
Every = Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds between two readings.")]
LIST_COLUMNS = (
    Column("group"),
    Column("members", align=Align.RIGHT),
    Column("state", color=lambda state: Color.GOOD if state == "live" else Color.FAINT),
)


@app.command("list")
@operator
def list_(
    common: Common,
    *,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only groups that have offsets or owner znodes of this topic.",
        ),
    ] = None,
) -> None:
    """List the groups in ZooKeeper with their number of members. Changes nothing.

    The state of a group is live if a member is registered now, and idle otherwise.

    Example: zkconsumer groups list -z zk1:2181/kafka --topic orders
    """
    from zkconsumer.admin.groups import groups
    from zkconsumer.protocol.paths import validate_topic

    wanted = None if topic is None else validate_topic(topic)
    with common.connect() as connection:
        found = groups(connection, topic=wanted)
    common.write(map(_summary_row, found), LIST_COLUMNS)


def _summary_row(group: GroupSummary) -> Row:
    if group.fault:
        unknown = Unknown(group.fault)
        return {"group": group.name, "members": unknown, "state": unknown}
    state = "live" if group.members else "idle"
    return {"group": group.name, "members": group.members or 0, "state": state}


@app.command("show")
@operator
def show(common: Common, *, group: ONE = None, named: OneGroup = None) -> None:
    """Show a group's members, owners, offsets and lag. Changes nothing.

    Example: zkconsumer groups show billing -z zk1:2181/kafka
    """
    name = common.group(either(group, named))
    with common.connect(name) as connection:
        found = _read(connection, name)
    common.write_sections(
        {
            "members": Table(list(map(member_row, found.members)), MEMBER_COLUMNS),
            "partitions": Table(list(partition_rows([found])), COLUMNS),
        }
    )
    say_all([*member_words(found.members), *group_words(found)])


@app.command("watch")
@operator
def watch_(
    common: Common, *, group: ONE = None, named: OneGroup = None, interval: Every = 2.0
) -> None:
    """Show a group's owners, offsets and lag repeatedly, until Ctrl-C. Changes nothing.

    Example: zkconsumer groups watch billing -z zk1:2181/kafka --interval 1
    """
    name = common.group(either(group, named))
    with common.connect(name) as connection:
        watch(common, lambda: _picture(_read(connection, name)), interval_s=interval)


def _picture(group: GroupLag) -> tuple[str, Table, list[str]]:
    members = group.members
    threads = sum(len(one.threads) for one in members)
    title = f"{group.name}: {len(members)} members, {threads} threads"
    words = [*member_words(members), *group_words(group)]
    return title, Table(list(partition_rows([group])), COLUMNS), words


def _read(connection: ZooKeeperClient, name: str) -> GroupLag:
    from zkconsumer.admin.groups import unknown_group
    from zkconsumer.admin.lag import group_lags

    limit_s = connection.config.zookeeper_connection_timeout_s
    found = group_lags(connection, [name], limit_s=limit_s)
    if name not in found:
        raise unknown_group(name)
    return found[name]


app.command("delete")(delete)
app.command("copy")(copy)
app.command("rename")(rename)
