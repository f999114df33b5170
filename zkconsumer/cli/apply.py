"""`zkconsumer apply`: make the changes of a plan file, or finish those of a backup.

`zkconsumer undo`: put back what a change has taken away.

What the commands that change something have in common: plan, show, apply.

    @app.command()
    @changing
    def delete(common: Common, how: Changing, *, group: OneGroup = None) -> None:
        with common.connect(group) as connection:
            carry_out(common, connection, plan_delete_group(connection, group), how)

Without `--execute` nothing is written, as in Kafka's own tool.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.cli.options import Common, operator
from zkconsumer.cli.output import Align, Column, Output, say, say_all
from zkconsumer.protocol import paths

if TYPE_CHECKING:
    from zkconsumer.admin.plan import Plan
    from zkconsumer.protocol.model import TopicPartition
    from zkconsumer.zk.client import ZooKeeperClient


# ---- changing ------------------------------------------------------------------------------------


COLUMNS = (
    Column("action"),
    Column("store", drop=1),
    Column("group", drop=3),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("old", align=Align.RIGHT),
    Column("new", align=Align.RIGHT),
    Column("lag", align=Align.RIGHT),
    Column("new_lag", align=Align.RIGHT),
    Column("path", wide_only=True),
)

MaxZnodes = Annotated[
    int, typer.Option("--max-znodes", min=1, help="Refuse to delete more znodes than this.")
]


@dataclass(frozen=True, kw_only=True)
class Changing:
    """The values of the options of every command that changes something."""

    execute: Annotated[
        bool, typer.Option("--execute", help="Write it. Without this nothing is written.")
    ] = False
    plan_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the plan to a file, for `zkconsumer apply FILE`."),
    ] = None
    backup_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where the backup is written, for `zkconsumer undo`."),
    ] = Path()
    force_live: Annotated[
        bool,
        typer.Option(
            "--force-live",
            help="Write although the group has live members. What belongs to their sessions stays."
            " New offsets: those of this package read on from there, as of their next commit;"
            " those of the JVM write over them.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Applying(Changing):
    """As `Changing`, for a command that writes without being told to."""

    execute: Annotated[bool, typer.Option("--execute", hidden=True)] = True


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options, and those of a change, as its first two arguments."""
    first, how, *own = inspect.signature(command, eval_str=True).parameters.values()
    more = list(inspect.signature(how.annotation, eval_str=True).parameters.values())
    names = [one.name for one in more]

    def run(common: Common, **given: Any) -> None:
        command(common, how.annotation(**{name: given.pop(name) for name in names}), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([first, *own, *more])  # type: ignore[attr-defined]
    return operator(run)


def beside_kafka(connection: ZooKeeperClient, plan: Plan, *groups: str) -> Plan:
    """A plan for ZooKeeper alone, with notes about what these groups have in Kafka."""
    if plan.is_empty:
        return plan
    from zkconsumer.admin.offset_plans import kafka_notes

    limit_s = connection.config.zookeeper_connection_timeout_s
    return plan.noted(*kafka_notes(connection, groups, limit_s=limit_s))


def carry_out(
    common: Common,
    connection: ZooKeeperClient,
    plan: Plan,
    how: Changing,
    *,
    ends: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Show a plan; save it, and apply it, where that was asked for.

    Raises what `apply` raises.
    """
    columns = COLUMNS if ends else [one for one in COLUMNS if not one.name.endswith("lag")]
    is_for_people = common.output in (Output.TABLE, Output.WIDE, Output.LEGACY)
    show = _row if is_for_people else _plain
    common.write(map(show, _rows(plan, ends)), columns)
    proceed(connection, plan, how)


def proceed(connection: ZooKeeperClient, plan: Plan, how: Changing) -> None:
    """As `carry_out`, for a command that has shown its plan in rows of its own."""
    say_all(plan.notes)
    if plan.is_empty:
        say("nothing to change: all is as it should be")
        return
    _tell_of_members(connection, plan, how)
    if how.plan_out is not None:
        from zkconsumer.admin.plan import save

        save(plan, how.plan_out)
        say(f"plan {plan.hash} is in {how.plan_out}: `zkconsumer apply {how.plan_out}`")
    if how.execute:
        _apply(connection, plan, how)
    else:
        say(f"dry run, nothing was written: {_changes(len(plan))} planned; --execute makes them")


def _rows(plan: Plan, ends: Mapping[TopicPartition, int] | None) -> Any:
    from zkconsumer.admin.plan import rows

    return rows(plan, ends=ends)


def _changes(number: int) -> str:
    return f"{number} change{'s' if number != 1 else ''}"


def _plain(row: Any) -> dict[str, Any]:
    shown: dict[str, Any] = row._asdict()
    return shown


def _row(row: Any) -> dict[str, Any]:
    """Other znodes than offsets have their path in place of the topic."""
    shown = _plain(row)
    return shown if row.topic is not None else shown | {"topic": row.path}


def _tell_of_members(connection: ZooKeeperClient, plan: Plan, how: Changing) -> None:
    found = connection.children(map(paths.ids, plan.groups))
    live = [path.split("/")[2] for path, names in found.items() if names]
    if not live:
        return
    names = ", ".join(live[:5])
    if how.force_live:
        from zkconsumer.admin.apply import what_members_do

        say(f"live members in {names}: {what_members_do(plan)}")
    elif not how.execute:
        say(f"live members in {names}: --execute will refuse this as long as they are there")


def _apply(connection: ZooKeeperClient, plan: Plan, how: Changing) -> None:
    from zkconsumer.admin.apply import Live, apply, way_on
    from zkconsumer.admin.plan import who

    store = None
    if plan.kafka:
        from zkconsumer.admin.broker_offsets import BrokerOffsets

        store = BrokerOffsets.of(connection)
    progress = Progress()
    try:
        report = apply(
            connection,
            plan,
            backup_dir=how.backup_dir,
            kafka=store,
            live=Live.FORCE if how.force_live else Live.REFUSE,
            on_backup=progress.saved,
            on_progress=progress.advanced,
        )
    except KeyboardInterrupt:
        if progress.backup is not None:
            told = f"interrupted: {progress.done} of {len(plan)} changes are known to be made"
            say(f"{told}; {way_on(progress.backup)}")
        raise
    finally:
        progress.end()
        if progress.backup is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            groups = ",".join(plan.groups[:5]) + (",..." if len(plan.groups) > 5 else "")
            say(
                f"audit: {now} {who()} plan={plan.hash} kind={plan.kind.replace(' ', '-')}"
                f" groups={groups} done={progress.done}/{len(plan)} backup={progress.backup}"
            )
    already = f", {report.already} were made before" if report.already else ""
    say(f"done: {_changes(report.applied)} made{already}")


class Progress:
    """Says where the backup is, and at most once a second how far it has come.

    `done` is what is known to be written; `backup` is None before the first write.
    """

    INTERVAL_S = 1.0

    def __init__(self) -> None:
        self.done = 0
        self.backup: Path | None = None
        self._said_at = time.monotonic()
        self._is_open = False

    def saved(self, backup: Path) -> None:
        """The backup is on the disk."""
        self.backup = backup
        say(f"backup: {backup} (`zkconsumer undo` takes it back)")

    def advanced(self, done: int, total: int) -> None:
        """So many changes are made."""
        self.done = done
        now = time.monotonic()
        if now - self._said_at < self.INTERVAL_S or done == total:
            return
        self._said_at = now
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {total} changes")
            sys.stderr.flush()
            self._is_open = True
        else:
            say(f"{done} of {total} changes")

    def end(self) -> None:
        """Ends the line."""
        if self._is_open:
            sys.stderr.write("\n")


# ---- apply ---------------------------------------------------------------------------------------


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@changing
def apply(
    common: Common,
    how: Applying,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of --plan-out, or a backup.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it.")] = False,
) -> None:
    """Apply a plan, if nothing has changed since it was made: at once, without --execute.

    A plan that was applied in part is finished; what is done already counts as done.

    Example: zkconsumer apply plan.json
    """
    from zkconsumer.admin.plan import load_plan

    plan = load_plan(file)
    with common.connect() as connection:
        carry_out(common, connection, plan, replace(how, execute=not dry_run))


# ---- undo ----------------------------------------------------------------------------------------


undo_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@undo_app.command()
@changing
def undo(
    common: Common,
    how: Changing,
    *,
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="As the change has written and named it.")
    ],
) -> None:
    """Put back what stood there before a change. A dry run without --execute.

    Znodes come back with their data and access control lists, also over what was written since.

    Example: zkconsumer undo zkconsumer-backup-billing-20260131T120000.000000Z-0123456789ab.json
    """
    from zkconsumer.admin.group_changes import plan_undo
    from zkconsumer.admin.plan import load_plan

    done = load_plan(backup)
    with common.connect() as connection:
        store = None
        if done.kafka:
            from zkconsumer.admin.broker_offsets import BrokerOffsets

            store = BrokerOffsets.of(connection)
        carry_out(common, connection, plan_undo(connection, done, kafka=store), how)
