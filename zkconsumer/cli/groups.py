"""`zkconsumer groups`: list, show, delete, copy and rename groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
from zkconsumer.cli.lag import ONE_GROUP_COLUMNS, group_notes, partition_rows
from zkconsumer.cli.members import COLUMNS as MEMBER_COLUMNS
from zkconsumer.cli.members import member_faults, member_row, of_time
from zkconsumer.cli.options import (
    Addressed,
    Common,
    Groups,
    OneGroup,
    OnlyOption,
    Topics,
    operator,
    topics_of,
)
from zkconsumer.cli.output import (
    LISTED,
    SECTIONS,
    Align,
    Color,
    Column,
    Progress,
    Row,
    Table,
    Unknown,
    say,
    say_all,
)
from zkconsumer.cli.watching import Interval, Reading, Watch, watch
from zkconsumer.errors import ConfigError, first_few
from zkconsumer.protocol.paths import validate_group, validate_group_znode

if TYPE_CHECKING:
    from zkconsumer.admin.groups import GroupSummary, Selection
    from zkconsumer.admin.lag import GroupLag, IdleGroup
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.clients import ClientAddresses


# ---- groups delete, copy, rename -----------------------------------------------------------------


Source = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The existing group.", autocompletion=completion.groups),
]
Target = Annotated[
    str | None, typer.Argument(metavar="NEW", help="The new group; it must not exist.")
]


@changing
def delete(
    common: Common,
    how: Changing,
    *,
    group: Groups = None,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Delete all znodes of groups. A dry run without --execute.

    GROUP is a name, or a quoted pattern with * and ? as in a shell. One plan with one backup
    deletes all the groups. If one of them has live members, none is deleted.

    Example: zkconsumer groups delete 'console-consumer-*' billing-test --execute
    """
    from zkconsumer.admin.group_changes import plan_delete_group
    from zkconsumer.admin.groups import matching_groups

    if not group:  # ignore the group in the settings: deleting needs an explicit name
        raise ConfigError("no group is named", remedy="give `zkconsumer groups delete GROUP`")
    for name in group:
        validate_group_znode(name)
    with common.connect() as connection:
        names = matching_groups(connection, group)
        watch = how.watch(connection, *names)
        plan = plan_delete_group(connection, *names, max_deleted=max_znodes)
        carry_out(common, connection, plan, how, watch)


@changing
def copy(
    common: Common,
    how: Changing,
    *,
    source: Source,
    new: Target = None,
    named: OnlyOption = None,
) -> None:
    """Copy all offsets of a group to a new group. A dry run without --execute.

    Example: zkconsumer groups copy billing billing-test --execute
    """
    from zkconsumer.admin.group_changes import plan_copy_group

    source, target = _pair(source, new, named)
    with common.connect(source) as connection:
        watch = how.watch(connection, source, target)
        plan = with_kafka_notes(connection, plan_copy_group(connection, source, target), source)
        carry_out(common, connection, plan.noted(*source_notes(watch, source)), how, watch)


@changing
def rename(
    common: Common,
    how: Changing,
    *,
    source: Source,
    new: Target = None,
    named: OnlyOption = None,
    max_znodes: MaxZnodes = 10_000,
) -> None:
    """Copy all offsets of a group to a new group, and delete the old one. A dry run without
    --execute.

    Example: zkconsumer groups rename billing billing-v2 --execute
    """
    from zkconsumer.admin.group_changes import plan_rename_group

    source, target = _pair(source, new, named)
    with common.connect(source) as connection:
        watch = how.watch(connection, source, target)
        plan = plan_rename_group(connection, source, target, max_deleted=max_znodes)
        carry_out(common, connection, with_kafka_notes(connection, plan, source), how, watch)


def _pair(first: str, second: str | None, option: str | None) -> tuple[str, str]:
    """Return the existing and the new group, from GROUP NEW or from --group GROUP NEW.

    The new group needs a name that Kafka allows. Raises ConfigError, InvalidNameError.
    """
    if option is not None and second is None:
        first, second = option, first
    if second is None or option not in (None, first):
        raise ConfigError("two groups are needed", remedy="give GROUP and NEW")
    return validate_group_znode(first), validate_group(second)


# ---- groups list, show --------------------------------------------------------------------


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List, show, delete, copy and rename groups.",
)

LIST_COLUMNS = (
    Column("group"),
    Column("members", align=Align.RIGHT),
    Column("state", color=lambda state: Color.GOOD if state == "live" else Color.FAINT),
)


IDLE_COLUMNS = (
    *LIST_COLUMNS,
    Column("topics", type="strings", show=", ".join, most=LISTED, drop_order=1),
    Column("lag", align=Align.RIGHT),
    Column("last_commit"),
)


@app.command("list")
@operator()
def list_(
    common: Common,
    *,
    topic: Topics = None,
    idle_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="List only the groups without members whose last commit is older than this, such"
            " as 30d or 12h, with topics, lag and last commit.",
        ),
    ] = None,
    watch_: Watch = False,
    interval: Interval = 5.0,
) -> None:
    """List the groups in ZooKeeper with their number of members. Changes nothing.

    With --topic, list only the groups that have an offset or an owner znode for one of the
    partitions. The state of a group is live if a member is registered, leftover if it has only
    registrations without a session (from a copy of ZooKeeper), and idle otherwise.

    LAST-COMMIT is the last write to an offset in ZooKeeper, by ZooKeeper's clock. --idle-for leaves
    out a group whose last commit is unknown because it has offsets in Kafka only.

    Example: zkconsumer groups list -z zk1:2181/kafka --topic orders
    """
    wanted = topics_of(topic)
    if idle_for is not None:
        if watch_:
            raise ConfigError(
                "--idle-for and --watch exclude each other", remedy="give one of them"
            )
        _list_idle(common, idle_for, wanted)
        return
    with common.connect() as connection:
        if watch_:
            watch(common, connection, lambda: _overview(connection, wanted), interval_s=interval)
        common.write(_overview(connection, wanted)[1].rows, LIST_COLUMNS)


def _overview(connection: ZooKeeperClient, topics: Selection | None) -> Reading:
    from zkconsumer.admin.groups import groups

    rows = list(map(_summary_row, groups(connection, topics=topics)))
    return f"{len(rows)} groups", Table(rows, LIST_COLUMNS), []


def _summary_row(group: GroupSummary) -> Row:
    if group.fault:
        unknown = Unknown(group.fault)
        return {"group": group.name, "members": unknown, "state": unknown}
    state = group.state.value if group.state else None
    return {"group": group.name, "members": group.members or 0, "state": state}


def _list_idle(common: Common, idle_for: str, topics: Selection | None) -> None:
    from zkconsumer.admin.lag import idle_groups
    from zkconsumer.times import parse_duration

    idle_s = parse_duration(idle_for, where="--idle-for")
    with common.connect() as connection:
        progress = Progress("groups")
        with progress.until_done():
            found, unknown, denied = idle_groups(
                connection,
                idle_s=idle_s,
                topics=topics,
                limit_s=connection.config.zookeeper_connection_timeout_s,
                on_progress=progress.advanced,
            )
    common.write(map(_idle_row, found), IDLE_COLUMNS)
    if unknown:
        say(
            "left out, because no offset in ZooKeeper shows their last commit, and they have or may"
            f" have offsets in Kafka: {first_few(unknown, 5)}"
        )
    if found:
        say("`zkconsumer groups delete GROUP...` deletes groups, with a backup")
    if denied:
        say_all(f"group {name} is skipped: {reason}" for name, reason in denied.items())
        raise typer.Exit(Exit.FAILED)


def _idle_row(one: IdleGroup) -> Row:
    return {
        **_summary_row(one.summary),
        "topics": list(one.topics),
        "lag": Unknown(one.lag) if isinstance(one.lag, str) else one.lag,
        "last_commit": of_time(one.committed_ms) if one.committed_ms else None,
    }


@app.command("show")
@operator(formats=SECTIONS)
def show(
    common: Addressed, *, group: OneGroup = None, watch_: Watch = False, interval: Interval = 2.0
) -> None:
    """Show a group's members, owners, offsets and lag. Changes nothing.

    With --watch, the partitions are shown repeatedly. Exit code 1: ZooKeeper denied access to some
    of the group's znodes. Their values are shown as unknown.

    Example: zkconsumer groups show billing -z zk1:2181/kafka
    """
    name = common.group(group)
    with common.connect(name) as connection:
        if watch_:
            watch(
                common,
                connection,
                lambda: _picture(
                    _read(connection, name), common.shown_addresses(connection.config)
                ),
                interval_s=interval,
            )
        found = _read(connection, name)
        addresses = common.shown_addresses(connection.config)
    members = [member_row(one, addresses) for one in found.members]
    partitions = list(partition_rows([found], addresses=addresses))
    common.write_sections(
        {
            "members": Table(members, MEMBER_COLUMNS),
            "partitions": Table(partitions, ONE_GROUP_COLUMNS),
        }
    )
    say_all([*member_faults(found.members), *group_notes(found)])
    if found.unreadable:
        raise typer.Exit(Exit.FAILED)


def _picture(group: GroupLag, addresses: ClientAddresses | None) -> Reading:
    members = group.members
    threads = sum(len(one.threads) for one in members)
    title = f"{group.name}: {len(members)} members, {threads} threads"
    if group.image.has_unknown_members:
        title += " and those that cannot be read"
    words = [*member_faults(members), *group_notes(group)]
    rows = list(partition_rows([group], addresses=addresses))
    return title, Table(rows, ONE_GROUP_COLUMNS), words


def _read(connection: ZooKeeperClient, name: str) -> GroupLag:
    from zkconsumer.admin.groups import unknown_group
    from zkconsumer.admin.lag import group_lags

    limit_s = connection.config.zookeeper_connection_timeout_s
    found = group_lags(connection, [name], limit_s=limit_s)
    if name not in found:
        raise unknown_group(name, connection)
    return found[name]


app.command("delete")(delete)
app.command("copy")(copy)
app.command("rename")(rename)
