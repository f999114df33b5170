"""`zkconsumer doctor`: what is wrong with groups, and what mends it.

`zkconsumer verify`: has the group settled?
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, carry_out, changing
from zkconsumer.cli.options import Common, Groups, OneGroup, operator
from zkconsumer.cli.output import Align, Color, Column, Output, Row, safe, say, say_all
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.admin.doctor import MemberSettings
    from zkconsumer.admin.findings import Finding
    from zkconsumer.zk.client import ZooKeeperClient


_COLORS = {"error": Color.BAD, "warning": Color.WARNING, "note": Color.FAINT}
_WIDTH = 100
"""Characters of a line where standard output is no terminal."""

COLUMNS = (
    Column("severity", color=_COLORS.get),
    Column("code"),
    Column("group"),
    Column("subject"),
    Column("what"),
    Column("why"),
    Column("remedy", "MENDED BY"),
    Column("partitions"),
    Column("fixable"),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


Logs = Annotated[
    bool, typer.Option("--logs/--no-logs", help="Compare offsets with the brokers' logs.")
]
Patience = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="S",
        help="Seconds until what may pass by itself, as in a rebalance, is looked at again.",
    ),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix", help="Plan what mends it, and with --execute do that; znodes of sessions stay."
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
    """Look for everything that is known to go wrong with groups: registrations that stall all JVM
    members, owner nodes that block a partition, partitions without owner, offsets that cannot be
    read or lie outside the log, nodes of other clients, members that do not agree, retries that end
    too early (of --config), access control lists that lock members out.

    Examines the groups of --group, else group.id of --config, else all. Reads only, but with --fix
    --execute. Exit code 1: a problem was found, or is left; notes do not count. 4: --fix would
    change offsets of a group that has live members.

    Example: zkconsumer doctor --group billing --config consumer.properties --fix
    """
    from zkconsumer.admin.doctor import doctor as examined
    from zkconsumer.admin.doctor import kafka_logs
    from zkconsumer.cli import Exit

    if (how.execute or how.plan_out) and not fix:
        raise ConfigError("there is nothing to execute without --fix", remedy="add --fix")
    names, settings = _groups(common, group)
    with common.connect() as connection:
        ask = kafka_logs(connection.config.zookeeper_connection_timeout_s) if logs else None

        def examine() -> list[Finding]:
            return examined(connection, names, settings=settings, ask_logs=ask, patience_s=patience)

        found = examine()
        if not fix:
            _write(common, found)
        elif common.output is Output.TABLE:
            _write(common, map(_mended_below, found))
        if fix:
            _fix(common, connection, found, how)
            if how.execute:
                found = examine()
                say_all(f"left: {one}" for one in found)
    problems = sum(one.is_problem for one in found)
    if problems:
        fixable = sum(bool(one.mends) for one in found)
        say(f"{_counted(problems, 'problem')}, of which --fix can mend {fixable}")
        raise typer.Exit(Exit.PROBLEM)
    say("no problem found")


def _fix(common: Common, connection: ZooKeeperClient, found: list[Finding], how: Changing) -> None:
    from zkconsumer.admin.apply import Live
    from zkconsumer.admin.doctor import live_of, plan_mends

    plan = plan_mends(connection, found)
    if live_of(plan) is Live.FORCE:
        how = replace(how, force_live=True)
    carry_out(common, connection, plan, how)


def _mended_below(one: Finding) -> Finding:
    """Return the finding with a remedy that points to the plan printed below it."""
    from zkconsumer.admin.findings import fix_command

    return replace(one, remedy=one.remedy.replace(fix_command(one.group), "by the plan below"))


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


# ---- what is shown ------------------------------------------------------------------------------


def _row(one: Finding) -> Row:
    return {
        "severity": one.severity.value,
        "code": one.code,
        "group": one.group,
        "subject": one.subject,
        "what": one.what,
        "why": one.why,
        "remedy": one.remedy,
        "partitions": list(one.partitions),
        "fixable": bool(one.mends),
    }


def _write(common: Common, found: Iterable[Finding]) -> None:
    rows = [_row(one) for one in found]
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
        for word, name in (("", "what"), ("why: ", "why"), ("mend: ", "remedy")):
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


# ---- verify --------------------------------------------------------------------------------------


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
        typer.Option("--internal-topics", help="With exclude.internal.topics=false."),
    ] = False,
) -> None:
    """Check that a group has settled: every partition that its members ask for has an owner node,
    of a thread that a member registered for the topic. Reads only.

    Exit code 0: it has; 1: it has not, and the findings are written. What VerifyConsumerRebalance
    meant to check, which says "failed" of every group in 0.8.2 to 0.10.0.0.

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
            "remedy": one.remedy,
        }
        for one in found
    ]
    if found or common.output not in (Output.TABLE, Output.WIDE):
        common.write(rows, VERIFY_COLUMNS)
    if found:
        raise typer.Exit(Exit.PROBLEM)
    say(f"group {name} has settled")
