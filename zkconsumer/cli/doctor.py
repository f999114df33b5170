"""`zkconsumer doctor` finds what is wrong with groups; `zkconsumer verify` checks one condition."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.apply import Changing, carry_out, changing
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Addressed, AllGroups, Common, Groups, OneGroup, operator
from zkconsumer.cli.output import (
    Color,
    Column,
    Output,
    Progress,
    Row,
    Table,
    remedy_of,
    safe,
    say,
    say_all,
)
from zkconsumer.cli.watching import Interval, Reading, Watch, watch
from zkconsumer.errors import ConfigError, first_few

if TYPE_CHECKING:
    from zkconsumer.admin.findings import Finding
    from zkconsumer.config.settings import ConnectionConfig
    from zkconsumer.zk.client import ZooKeeperClient
    from zkconsumer.zk.clients import ClientAddresses


_COLORS = {"error": Color.BAD, "warning": Color.WARNING, "note": Color.FAINT}
_WIDTH = 100
"""Characters per line if standard output is not a terminal."""


def ranges_of(numbers: Sequence[int]) -> str:
    """Return partition numbers as ranges, such as `0-2, 5`."""
    from zkconsumer.admin.findings import ranges

    return ranges(numbers) or "-"


COLUMNS = (
    Column("severity", color=_COLORS.get),
    Column("code"),
    Column("group"),
    Column("subject"),
    Column("what"),
    Column("why"),
    Column("remedy"),
    Column("partitions", type="integers", show=ranges_of),
    Column("fixable", type="boolean"),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


Logs = Annotated[
    bool,
    typer.Option(
        "--logs/--no-logs", help="Compare offsets with the brokers' logs, or skip this check."
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
    common: Addressed,
    how: Changing,
    *,
    group: Groups = None,
    all_groups: AllGroups = False,
    logs: Logs = True,
    fix: Fix = False,
    watch_: Watch = False,
    interval: Interval = 30.0,
) -> None:
    """Find what is wrong with groups, and repair it with --fix --execute.

    If no group is named, all groups are examined; --fix then needs --all-groups. The doctor finds
    registrations that stall all JVM members, owner znodes that block a partition, partitions
    without an owner, offsets that cannot be read or are outside the log, znodes of other clients,
    members that disagree on the assignment, retries that end too early (needs --config), and access
    control lists that deny members a right.

    It changes nothing without --fix --execute. Exit code 6: a problem was found, or remains after
    the repairs; a note is not a problem. Exit code 0: no problem was found, or --fix without
    --execute has made a plan, as each dry run does. Exit code 4: --fix --execute would change
    offsets of a group that has members.

    Example: zkconsumer doctor --group billing --config consumer.properties --fix
    """
    from zkconsumer.admin.doctor import doctor as examined
    from zkconsumer.admin.doctor import kafka_logs

    if (how.execute or how.plan_out) and not fix:
        raise ConfigError("--execute and --plan-out need --fix", remedy="add --fix")
    if watch_ and fix:
        raise ConfigError("--watch and --fix exclude each other", remedy="leave out one of them")
    names = (common.groups_to_change if fix else common.groups)(group, all_groups=all_groups)
    is_given = common.config is not None or bool(common.properties)
    settings = common.member_settings if is_given else None
    with common.connect() as connection:
        ask = kafka_logs(connection.config.zookeeper_connection_timeout_s) if logs else None

        def examine() -> list[Finding]:
            progress = Progress("groups")
            with progress.until_done():
                return examined(
                    connection,
                    names,
                    settings=settings,
                    ask_logs=ask,
                    patience_s=how.patience,
                    on_progress=progress.advanced,
                    on_wait=_say_wait,
                )

        if watch_:
            watch(
                common,
                connection,
                lambda: _findings(names, examine(), Remedies(common, connection.config)),
                interval_s=interval,
            )
        found = examine()
        worded = Remedies(common, connection.config)
        if not fix:
            _write(common, found, worded)
        elif common.output is Output.TABLE and not common.is_selected:
            _write(common, found, lambda one: _remedy_with_plan(one, worded))
        if fix:
            _fix(common, connection, found, how)
            if how.execute:
                found = examine()
                say_all(f"remains: {one}" for one in found)
    say(_summary(names, found))
    if any(one.is_problem for one in found) and (not fix or how.execute):
        raise typer.Exit(Exit.FOUND)


def _summary(names: Sequence[str] | None, found: Sequence[Finding]) -> str:
    """Return `_title`, and how many problems can be fixed."""
    fixable = sum(bool(one.fixes) for one in found if one.is_problem)
    has_problem = any(one.is_problem for one in found)
    return _title(names, found) + f", of which --fix can fix {fixable}" * has_problem


def _title(names: Sequence[str] | None, found: Sequence[Finding]) -> str:
    """Return the number of problems, the groups if not all were examined, and what is unknown."""
    problems = sum(one.is_problem for one in found)
    notes = len(found) - problems
    text = ""
    if names is not None:
        text = f"group{'' if len(names) == 1 else 's'} {first_few(names, 5)}: "
    text += _counted(problems, "problem") if problems else "no problem found"
    if notes:
        text += f" ({_counted(notes, 'note')}: something could not be examined)"
    return text


def _say_wait(count: int, left_s: float) -> None:
    if left_s > 1:
        say(
            f"{_counted(count, 'group')} will be read again in {left_s:.0f} s, to tell a fault from"
            " a running rebalance, and a stopped member from a client without a registration"
        )


def _fix(common: Common, connection: ZooKeeperClient, found: list[Finding], how: Changing) -> None:
    from zkconsumer.admin.apply import Live
    from zkconsumer.admin.doctor import live_of, plan_fixes

    plan = plan_fixes(connection, found)
    if live_of(plan) is Live.FORCE:
        how = replace(how, force_live=True)
    carry_out(common, connection, plan, how, how.watch(connection, *plan.groups))


def _remedy_with_plan(one: Finding, worded: Remedies) -> str:
    """Return the remedy of a finding; the fixes of all findings are in the plan printed below."""
    return f"{one.remedy} (see the plan below)" if one.fixes else worded(one)


class Remedies:
    """Words the remedies of findings, with the addresses of the clients that they concern.

    ZooKeeper's servers are asked when the first finding concerns a client.
    """

    def __init__(self, common: Addressed, config: ConnectionConfig) -> None:
        self._ask = cache(partial(common.addresses, config))

    def __call__(self, one: Finding) -> str:
        """Return the remedy of a finding."""
        is_of_client = one.sessions or one.written
        return f"{remedy_of(one)}{clients_of(one, self._ask() if is_of_client else None)}"


def clients_of(one: Finding, addresses: ClientAddresses | None) -> str:
    """Return the clients that a finding concerns in brackets, or why they are unknown; "" if it
    concerns none, or if ZooKeeper's servers were not asked."""
    if addresses is None:
        return ""
    if one.sessions:
        return f" ({addresses.describe(*one.sessions)})"
    if one.written:
        writers = addresses.writers(one.written)
        why = addresses.why_unknown if addresses.silent else "it has sent other requests since"
        return f" ({'; '.join(writers) or f'the address of that client is unknown: {why}'})"
    return ""


def _findings(names: Sequence[str] | None, found: list[Finding], worded: Remedies) -> Reading:
    table = Table([_row(one, worded(one)) for one in found], COLUMNS)
    return _title(names, found), table, []


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
    if common.output is not Output.TABLE or common.is_selected:
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
    Column("group", wide_only=True),
    Column("code", "FINDING"),
    Column("subject", "TOPIC OR MEMBER"),
    Column("what"),
    Column("partitions", wide_only=True, type="integers", show=ranges_of),
    Column("remedy", wide_only=True),
)

verify_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@verify_app.command()
@operator()
def verify(
    common: Addressed,
    *,
    group: OneGroup = None,
    watch_: Watch = False,
    interval: Interval = 2.0,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal-topics", help="Assume that the members have exclude.internal.topics=false."
        ),
    ] = False,
) -> None:
    """Check that a group has settled. Changes nothing.

    A group has settled if each partition that its members subscribe to has an owner znode, and the
    owner is a thread that a member has registered for the topic. Exit code 0: the group has
    settled. Exit code 6: it has not, and the findings say why.

    Kafka's VerifyConsumerRebalance intends the same check, but reports "failed" for every group in
    0.8.2 and 0.9.0 to 0.10.0.0.

    Example: zkconsumer verify --zookeeper zk1:2181/kafka --group billing
    """
    from zkconsumer.admin.verify import verify as verified

    name = common.group(group)

    worded: Callable[[Finding], str] = remedy_of

    def read() -> Reading:
        found = verified(connection, name, exclude_internal=not internal)
        rows = [{**_row(one, worded(one))} for one in found]
        title = f"group {name} has {'not ' if found else ''}settled"
        return title, Table(rows, VERIFY_COLUMNS), []

    with common.connect(name) as connection:
        if common.output is not Output.TABLE:  # only the other formats have the column `remedy`
            worded = Remedies(common, connection.config)
        if watch_:
            watch(common, connection, read, interval_s=interval)
        title, table, _ = read()
    if table.rows or not common.is_for_people:
        common.write(table.rows, table.columns)
    if table.rows:
        raise typer.Exit(Exit.FOUND)
    say(title)
