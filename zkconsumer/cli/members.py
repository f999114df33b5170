"""`zkconsumer members`: the registered members of groups, and what they own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from zkconsumer.cli.options import Common, Groups, operator
from zkconsumer.cli.output import Align, Color, Column, Row, say, say_all

if TYPE_CHECKING:
    from zkconsumer.admin.groups import MemberReport

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def of_time(milliseconds: int) -> str:
    """Format milliseconds since the epoch, as ZooKeeper stamps them, in UTC to the second."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_subscription(subscription: dict[str, int]) -> str:
    return ", ".join(f"{topic}={streams}" for topic, streams in subscription.items())


COLUMNS = (
    Column("group", drop=3),
    Column("member"),
    Column("subscription", show=_of_subscription),
    Column("pattern", drop=2, wide_only=True),
    Column("threads", align=Align.RIGHT),
    Column("owned", align=Align.RIGHT),
    Column(
        "idle",
        align=Align.RIGHT,
        drop=1,
        color=lambda idle: Color.WARNING if idle else None,
    ),
    Column("session", wide_only=True),
    Column("since", wide_only=True),
)


def member_row(member: MemberReport) -> Row:
    """Return a row of `COLUMNS`: `owned` counts partitions, `idle` threads that own none."""
    return {
        "group": member.group,
        "member": member.consumer,
        "subscription": dict(member.subscription) or None,
        "pattern": member.pattern.value if member.pattern else None,
        "threads": len(member.threads),
        "owned": sum(member.owned.values()),
        "idle": len(member.idle),
        "session": f"0x{member.session:x}",
        "since": of_time(member.since_ms),
    }


def member_words(members: Iterable[MemberReport]) -> Iterable[str]:
    """Yield what is wrong with members, one line per problem."""
    for member in members:
        if member.fault:
            yield f"member {member.consumer}: {member.fault}"
        if not member.session:
            yield (
                f"member {member.consumer}: its registration is not ephemeral, so no session"
                " expiry deletes it"
            )


@app.command()
@operator
def members(common: Common, *, group: Groups = None) -> None:
    """Show the members of groups, their subscriptions, and what they own. Changes nothing.

    Without --group, the members of all groups are shown. Exit code 1: ZooKeeper denied access to
    some of the groups.

    Example: zkconsumer members -z zk1:2181/kafka --group billing
    """
    from zkconsumer.admin import groups as admin
    from zkconsumer.admin.groups import read_group_names, unknown_group
    from zkconsumer.cli import Exit
    from zkconsumer.protocol.paths import validate_group

    names = [validate_group(name) for name in group or ()]
    denied: list[str] = []
    with common.connect() as connection:
        found = (
            admin.members(connection, names)
            if names
            else admin.members(
                connection,
                read_group_names(connection),
                on_denied=lambda name, error: denied.append(f"group {name} is skipped: {error}"),
            )
        )
    for name in names:
        if name not in found:
            raise unknown_group(name)
    reports = [one for _, of_group in found.values() for one in of_group]
    common.write(map(member_row, reports), COLUMNS)
    say_all(member_words(reports))
    for name, (requested, _) in found.items():
        for why in admin.idle_by_design(requested):
            say(f"group {name}: {why}")
    say_all(denied)
    if denied:
        raise typer.Exit(Exit.PROBLEM)
