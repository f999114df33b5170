"""`zkconsumer groups`: which groups there are, and what is known of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.groups_change import copy, delete, rename
from zkconsumer.cli.members import COLUMNS as MEMBER_COLUMNS
from zkconsumer.cli.members import member_row, member_words
from zkconsumer.cli.options import Common, OneGroup, either, operator
from zkconsumer.cli.output import Align, Color, Column, Row, Table, Unknown, say_all
from zkconsumer.cli.partitions import COLUMNS, group_words, partition_rows
from zkconsumer.cli.watching import watch

if TYPE_CHECKING:
    from zkconsumer.admin.groups import GroupSummary
    from zkconsumer.admin.lag import GroupLag
    from zkconsumer.zk.connection import Connection

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True,
    help="Look at groups, and change them.",
)  # fmt: skip

ONE = Annotated[
    str | None, typer.Argument(metavar="GROUP", help="The group; by default of --config.")
]
Every = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="Seconds between two readings.")
]
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
            "--topic", "-t", metavar="TOPIC",
            help="Only groups with offsets or owners of this topic.",
        ),
    ] = None,
) -> None:
    """List the groups in ZooKeeper, and how many members each has. Reads only.

    A group is live if a member is registered now, else idle.

    Example: zkconsumer groups list -z zk1:2181/kafka --topic orders
    """
    from zkconsumer.admin.groups import groups  # noqa: PLC0415
    from zkconsumer.core.paths import validate_topic  # noqa: PLC0415

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
    """Show a group's members, owners, offsets and lag. Reads only.

    Example: zkconsumer groups show billing -z zk1:2181/kafka
    """
    name = common.group(either(group, named))
    with common.connect(name) as connection:
        found = _read(connection, name)
    common.write_sections({
        "members": Table(list(map(member_row, found.members)), MEMBER_COLUMNS),
        "partitions": Table(list(partition_rows([found])), COLUMNS),
    })
    say_all([*member_words(found.members), *group_words(found)])


@app.command("watch")
@operator
def watch_(
    common: Common, *, group: ONE = None, named: OneGroup = None, interval: Every = 2.0
) -> None:
    """Follow who owns what, until Ctrl-C. Reads only.

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


def _read(connection: Connection, name: str) -> GroupLag:
    from zkconsumer.admin.images import unknown_group  # noqa: PLC0415
    from zkconsumer.admin.lag import group_lags  # noqa: PLC0415

    limit_s = connection.config.zookeeper_connection_timeout_s
    found = group_lags(connection, [name], limit_s=limit_s)
    if name not in found:
        raise unknown_group(name)
    return found[name]


app.command("delete")(delete)
app.command("copy")(copy)
app.command("rename")(rename)
