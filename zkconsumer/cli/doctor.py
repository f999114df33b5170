"""`zkconsumer doctor` finds what is wrong with groups; `zkconsumer verify` checks one condition."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, carry_out, changing
from zkconsumer.cli.options import Common, Groups, OneGroup, operator
from zkconsumer.cli.output import (
    Align,
    Color,
    Column,
    Output,
    Row,
    remedy_of,
    safe,
    say,
    say_all,
)
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.admin.doctor import MemberSettings
    from zkconsumer.admin.findings import Finding
    from zkconsumer.zk.client import ZooKeeperClient


_COLORS = {"error": Color.BAD, "warning": Color.WARNING, "note": Color.FAINT}
_WIDTH = 100
"""Characters per line if standard output is not a terminal."""

COLUMNS = (
    Column("severity", color=_COLORS.get),
    Column("code"),
    Column("group"),
    Column("subject"),
    Column("what"),
    Column("why"),
    Column("remedy"),
    Column("partitions"),
    Column("fixable"),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


Logs = Annotated[
    bool,
    typer.Option("--logs/--no-logs", help="Compare offsets with the brokers' logs, or do not."),
]
Patience = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="S",
        help="Seconds after which a group is examined again if a rebalance may cause a finding.",
    ),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Plan the repairs, and make them with --execute. Ephemeral znodes are not changed.",
    ),
]


@app.command()
@changing
def doctor(
    common: Common,
    how: Changing,
    *,
    group: Groups = None,
    logs: Logs = True,
    patience: Patience = 1.0,
    fix: Fix = False,
) -> None:
    """Find what is wrong with groups, and repair it with --fix --execute.

    The doctor examines the groups of --group, else group.id of --config, else all groups. It finds
    registrations that stall all JVM members, owner znodes that block a partition, partitions
    without an owner, offsets that cannot be read or are outside the log, znodes of other clients,
    members that disagree on the assignment, retries that end too early (needs --config), and access
    control lists that deny members a right.

    It changes nothing without --fix --execute. Exit code 1: a problem was found, or remains after
    the repairs; a note is not a problem. Exit code 4: --fix would change offsets of a group that
    has members.

    Example: zkconsumer doctor --group billing --config consumer.properties --fix
    """
    from zkconsumer.admin.doctor import doctor as examined
    from zkconsumer.admin.doctor import kafka_logs
    from zkconsumer.cli import Exit

    if (how.execute or how.plan_out) and not fix:
        raise ConfigError("--execute and --plan-out need --fix", remedy="add --fix")
    names, settings = _groups(common, group)
    with common.connect() as connection:
        ask = kafka_logs(connection.config.zookeeper_connection_timeout_s) if logs else None

        def examine() -> list[Finding]:
            return examined(connection, names, settings=settings, ask_logs=ask, patience_s=patience)

        found = examine()
        if not fix:
            _write(common, found, remedy_of)
        elif common.output is Output.TABLE:
            _write(common, found, _remedy_with_plan)
        if fix:
            _fix(common, connection, found, how)
            if how.execute:
                found = examine()
                say_all(f"remains: {one}" for one in found)
    problems = sum(one.is_problem for one in found)
    if problems:
        fixable = sum(bool(one.fixes) for one in found)
        say(f"{_counted(problems, 'problem')}, of which --fix can fix {fixable}")
        raise typer.Exit(Exit.PROBLEM)
    say("no problem found")


def _fix(common: Common, connection: ZooKeeperClient, found: list[Finding], how: Changing) -> None:
    from zkconsumer.admin.apply import Live
    from zkconsumer.admin.doctor import live_of, plan_fixes

    plan = plan_fixes(connection, found)
    if live_of(plan) is Live.FORCE:
        how = replace(how, force_live=True)
    carry_out(common, connection, plan, how)


def _remedy_with_plan(one: Finding) -> str:
    """Return the remedy of a finding whose fixes, if it has any, are in the plan printed below."""
    return f"{one.remedy}, by the plan below" if one.fixes else remedy_of(one)


def _groups(
    common: Common, given: list[str] | None
) -> tuple[list[str] | None, MemberSettings | None]:
    """Return the groups to examine (None: all), and the members' settings if the user gave any."""
    from zkconsumer.protocol.paths import validate_group

    names = [validate_group(one) for one in given or ()]
    if not names and (named := common.named_group()) is not None:
        names = [named]
    is_given = common.config is not None or bool(common.properties)
    return names or None, common.settings if is_given else None


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


# ---- output -------------------------------------------------------------------------------------


def _row(one: Finding, remedy: str) -> Row:
    return {
        "severity": one.severity.value,
        "code": one.code,
        "group": one.group,
        "subject": one.subject,
        "what": one.what,
        "why": one.why,
        "remedy": remedy,
        "partitions": list(one.partitions),
        "fixable": bool(one.fixes),
    }


def _write(common: Common, found: Iterable[Finding], worded: Callable[[Finding], str]) -> None:
    rows = [_row(one, worded(one)) for one in found]
    if common.output not in (Output.TABLE, Output.LEGACY):
        common.write(rows, COLUMNS)
        return
    screen = common.screen
    width = screen.width or _WIDTH
    for row in rows:
        head = f"{row['severity'].upper()} {row['code']}"
        color = _COLORS[row["severity"]] if screen.color else None
        print(f"\x1b[{color.value}m{head}\x1b[0m" if color else head, end="")
        print(f"  group {safe(row['group'])}: {safe(row['subject'])}")
        for word, name in (("", "what"), ("why: ", "why"), ("remedy: ", "remedy")):
            print(_paragraph(word + safe(row[name]), width))


def _paragraph(text: str, width: int) -> str:
    return textwrap.fill(
        text,
        max(40, width),
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )


# ---- zkconsumer verify ---------------------------------------------------------------------------


VERIFY_COLUMNS = (
    Column("code", "FINDING"),
    Column("subject", "TOPIC OR MEMBER"),
    Column("what"),
    Column("partitions", wide_only=True, align=Align.LEFT),
    Column("remedy", wide_only=True),
)

verify_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@verify_app.command()
@operator
def verify(
    common: Common,
    *,
    group: OneGroup = None,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal-topics", help="Check as for members with exclude.internal.topics=false."
        ),
    ] = False,
) -> None:
    """Check that a group has settled. Changes nothing.

    A group has settled if each partition that its members subscribe to has an owner znode, and the
    owner is a thread that a member has registered for the topic. Exit code 0: the group has
    settled. Exit code 1: it has not, and the findings say why.

    Kafka's VerifyConsumerRebalance intends the same check, but reports "failed" for every group in
    0.8.2 and 0.9.0 to 0.10.0.0.

    Example: zkconsumer verify --zookeeper zk1:2181/kafka --group billing
    """
    from zkconsumer.admin.verify import verify as verified
    from zkconsumer.cli import Exit

    name = common.group(group)
    with common.connect(name) as connection:
        found = verified(connection, name, exclude_internal=not internal)
    rows = [
        {
            "code": one.code,
            "subject": one.subject,
            "what": one.what,
            "partitions": list(one.partitions),
            "remedy": remedy_of(one),
        }
        for one in found
    ]
    if found or common.output not in (Output.TABLE, Output.WIDE):
        common.write(rows, VERIFY_COLUMNS)
    if found:
        raise typer.Exit(Exit.PROBLEM)
    say(f"group {name} has settled")
