"""`zkconsumer members`: the registered members of groups, and what they own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Addressed, AllGroups, Groups, client_cell, operator
from zkconsumer.cli.output import LISTED, Align, Color, Column, Row, Table, Unknown, say_all
from zkconsumer.cli.watching import Interval, Reading, Watch, watch
from zkconsumer.protocol.model import session_text
from zkconsumer.times import time_text

if TYPE_CHECKING:
    from zkconsumer.admin.groups import MemberReport
    from zkconsumer.errors import AccessDeniedError
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.clients import ClientAddresses

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def of_time(milliseconds: int) -> str:
    """Return a time in ms since 1970 in UTC, to the second."""
    return time_text(milliseconds, "seconds")


def _of_subscription(subscription: dict[str, int]) -> str:
    return ", ".join(f"{topic}={streams}" for topic, streams in subscription.items())


COLUMNS = (
    Column("group", drop_order=3),
    Column("member"),
    Column("subscription", type="counts?", show=_of_subscription, most=LISTED),
    Column("pattern", drop_order=2, wide_only=True),
    Column("threads", align=Align.RIGHT),
    Column("owned", align=Align.RIGHT),
    Column(
        "idle",
        align=Align.RIGHT,
        drop_order=1,
        color=lambda idle: Color.WARNING if idle else None,
    ),
    Column("session", wide_only=True),
    Column("client", wide_only=True),
    Column("since", wide_only=True),
)


def member_row(member: MemberReport, addresses: ClientAddresses | None = None) -> Row:
    """Return a row of `COLUMNS`. `owned` is the number of partitions; `idle` is the number of
    threads without one. Without a readable registration, the number of threads is unknown; both
    numbers are unknown without the right to read the owner znodes.
    With `addresses`, `client` is the address of the member."""
    unknown = Unknown(member.fault) if member.fault else None
    unread = Unknown(member.owned_fault) if member.owned_fault else None
    return {
        "group": member.group,
        "member": member.consumer,
        "subscription": dict(member.subscription) or unknown,
        "pattern": member.pattern.value if member.pattern else unknown,
        "threads": unknown or len(member.threads),
        "owned": unread or sum(member.owned.values()),
        "idle": unknown or unread or len(member.idle),
        "session": session_text(member.session) if member.session else None,
        "client": client_cell(member.session, addresses),
        "since": of_time(member.since_ms),
    }


def member_faults(members: Iterable[MemberReport]) -> Iterable[str]:
    """Yield why registrations cannot be read, one line per member."""
    for member in members:
        if member.fault:
            yield f"member {member.consumer}: {member.fault}"


def _member_words(members: Iterable[MemberReport]) -> Iterable[str]:
    """Yield what is unusual about members, one line per fact."""
    yield from member_faults(members)
    for member in members:
        if not member.session:
            yield (
                f"member {member.consumer}: its registration has no session, so no process"
                " holds it, and no session expiry deletes it"
            )
        if member.is_other_client:
            yield (
                f"member {member.consumer} is another client, such as kafka-node: its owner znodes"
                " hold the consumer id without a thread number"
            )


@app.command()
@operator()
def members(
    common: Addressed,
    *,
    group: Groups = None,
    all_groups: AllGroups = False,
    watch_: Watch = False,
    interval: Interval = 5.0,
) -> None:
    """Show the members of groups, their subscriptions, and what they own. Changes nothing.

    If no group is named, the members of all groups are shown. Exit code 1: ZooKeeper denied access
    to some of the groups' znodes. Their values are shown as unknown.

    Example: zkconsumer members -z zk1:2181/kafka --group billing
    """
    names = common.groups(group, all_groups=all_groups)
    with common.connect() as connection:
        if watch_:
            watch(
                common,
                connection,
                lambda: _read(common, connection, names, {}),
                interval_s=interval,
            )
        denied: dict[str, AccessDeniedError] = {}
        _, table, words = _read(common, connection, names, denied)
    common.write(table.rows, table.columns)
    say_all(words)
    if denied:
        raise typer.Exit(Exit.FAILED)


def _read(
    common: Addressed,
    connection: ZooKeeperClient,
    names: list[str] | None,
    denied: dict[str, AccessDeniedError],
) -> Reading:
    """Read the members of groups (None: of all groups); add the groups that cannot be read
    entirely to `denied`."""
    from zkconsumer.admin import groups as admin

    asked = admin.read_group_names(connection) if names is None else names
    found = admin.members(connection, asked, on_denied=denied.__setitem__)
    for name in names or ():
        if name not in found and name not in denied:
            raise admin.unknown_group(name, connection)
    reports = [one for _, of_group in found.values() for one in of_group]
    words = [
        f"group {name}: no member is registered"
        for name, (_, of_group) in found.items()
        if names is not None and name not in denied and not any(one.session for one in of_group)
    ]
    words += _member_words(reports)
    words += [
        f"group {name}: {why}"
        for name, (requested, _) in found.items()
        for why in admin.idle_by_design(requested)
    ]
    words += [f"group {name}: {error}" for name, error in denied.items()]
    title = f"{len(reports)} members of {len(found)} groups"
    addresses = common.shown_addresses(connection.config)
    rows = [member_row(one, addresses) for one in reports]
    return title, Table(rows, COLUMNS), words
