"""`zkconsumer apply` and `zkconsumer undo`, and the code that all changing commands share.

`apply` makes the changes of a plan file, or completes the change that a backup belongs to. `undo`
restores the znodes of a backup.

A changing command makes a plan, shows it, and applies it with `--execute`. Without `--execute` it
writes nothing, as in Kafka's own tool. `changing` adds the options; `carry_out` does the rest:

    @app.command()
    @changing
    def delete(common: Common, how: Changing, *, group: OneGroup = None) -> None:
        with common.connect(group) as connection:
            watch = how.watch(connection, group)
            carry_out(common, connection, plan_delete_group(connection, group), how, watch)
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.backups import BackupDir, cluster_directory, last_backup, made_directory
from zkconsumer.cli.exits import Exit
from zkconsumer.cli.options import Common, OnlyOption, operator
from zkconsumer.cli.output import Align, Column, Progress, command_of, say, say_all
from zkconsumer.errors import (
    Advice,
    ConfigError,
    RemedyOperation,
    ZkConsumerError,
    first_few,
    shell_word,
)
from zkconsumer.frozen import dataclass
from zkconsumer.times import now_text

if TYPE_CHECKING:
    from zkconsumer.admin.health import GroupWatch
    from zkconsumer.admin.plan import Plan, PlanRow
    from zkconsumer.protocol.group_health import GroupHealth
    from zkconsumer.protocol.model import TopicPartition
    from zkconsumer.zk.client import ZooKeeperClient


# ---- parts of all changing commands --------------------------------------------------------------


COLUMNS = (
    Column("action"),
    Column("store", drop_order=1),
    Column("group", drop_order=3),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("old", align=Align.RIGHT, type="integer|string?"),
    Column("new", align=Align.RIGHT, type="integer|string?"),
    Column("lag", align=Align.RIGHT),
    Column("new_lag", align=Align.RIGHT),
    Column("path", wide_only=True),
)

MaxZnodes = Annotated[
    int,
    typer.Option(
        "--max-znodes", min=1, help="Refuse the plan if it deletes more znodes than this."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Changing:
    """Values of the options that every changing command has."""

    execute: Annotated[
        bool,
        typer.Option("--execute", help="Make the changes; without this option nothing is written."),
    ] = False
    plan_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the plan to FILE, for `zkconsumer apply FILE`."),
    ] = None
    backup_dir: BackupDir = None
    force_live: Annotated[
        bool,
        typer.Option(
            "--force-live",
            help="Make the changes even if the group has live members, or a client commits without"
            " a registration. Znodes of live sessions are not changed. zkconsumer members adopt a"
            " new offset at their next commit; other clients overwrite it.",
        ),
    ] = False
    patience: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="S",
            envvar="ZKCONSUMER_PATIENCE",
            help="Seconds between two readings of a group. Only the second reading shows a client"
            " that commits without a registration.",
        ),
    ] = 5.0

    def watch(self, connection: ZooKeeperClient, *groups: str) -> GroupWatch:
        """Take the first reading of the groups that a plan will change."""
        from zkconsumer.admin.health import GroupWatch

        return GroupWatch(connection, groups, patience_s=self.patience, on_wait=_Waiting())


_NAMED = 5  # the maximum number of groups whose recent commits are reported


class _Waiting:
    """Says once that a plan waits for the second reading of its groups, and why."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, suspects: Mapping[str, GroupHealth], left_s: float) -> None:
        if self._is_said or left_s < 0.5:
            return
        self._is_said = True
        say_all(_suspicions(suspects))
        say(f"watching for {left_s:.0f} s whether a client commits without a registration")


def _suspicions(suspects: Mapping[str, GroupHealth]) -> Iterable[str]:
    from zkconsumer.admin.health import last_write

    now_s = time.time()
    for name, health in islice(suspects.items(), _NAMED):
        who = (
            "no member owns some of its partitions or znodes"
            if health.live
            else "no member is registered"
        )
        yield f"group {name}: {who}{last_write(health, now_s)}"
    more = len(suspects) - _NAMED
    if more > 0:
        yield f"{more} more group{'' if more == 1 else 's'} as these"


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the common and the changing options; the command gets them as its first two arguments."""
    first, how, *own = inspect.signature(command, eval_str=True).parameters.values()
    more = list(inspect.signature(how.annotation, eval_str=True).parameters.values())
    names = [one.name for one in more]

    def run(common: Common, **given: object) -> None:
        command(common, how.annotation(**{name: given.pop(name) for name in names}), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([first, *own, *more])  # type: ignore[attr-defined]  # for Typer
    return operator()(run)


def with_kafka_notes(connection: ZooKeeperClient, plan: Plan, *groups: str) -> Plan:
    """Return a plan for ZooKeeper with notes on the offsets that these groups have in Kafka."""
    if plan.is_empty:
        return plan
    from zkconsumer.admin.offset_plans import kafka_notes

    limit_s = connection.config.zookeeper_connection_timeout_s
    return plan.noted(*kafka_notes(connection, groups, limit_s=limit_s))


def source_notes(watch: GroupWatch, source: str) -> Iterable[str]:
    """Yield notes on the users of a group whose offsets are copied while they may commit."""
    from zkconsumer.admin.health import written

    then = "the copy has the offsets of this moment"
    for name, one in watch.so_far([source]).items():
        if one.live:
            yield f"group {name} has live members: {then}"
        elif one.is_written:
            yield f"group {name}: {written(one)}; {then}"
        else:
            yield from (f"{line}; {then}" for line in _suspicions(watch.suspects([name])))


def carry_out(
    common: Common,
    connection: ZooKeeperClient,
    plan: Plan,
    how: Changing,
    watch: GroupWatch,
    *,
    ends: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Show a plan; save it if `--plan-out` is given, and apply it if `--execute` is given.

    `watch` has read the groups of the plan. `ends` is partition -> end of the log; with it the lag
    columns are shown. Raises what `admin.apply.apply` raises.
    """
    columns = COLUMNS if ends else [one for one in COLUMNS if not one.name.endswith("lag")]
    show = _row if common.is_for_people else _plain
    write_plan(common, how, map(show, _rows(plan, ends)), columns)
    proceed(connection, plan, how, watch)


def write_plan(
    common: Common, how: Changing, rows: Iterable[Mapping[str, object]], columns: Sequence[Column]
) -> None:
    """Show a plan as a table.

    If its reader has closed the pipe (`| head`), a dry run ends as other commands do. With
    `--execute` this would hide that nothing is changed, so the command then fails.
    """
    try:
        common.write(rows, columns)
        sys.stdout.flush()
    except BrokenPipeError:
        if not how.execute:
            raise
        from zkconsumer.cli import abandon_stdout

        abandon_stdout()
        say("standard output was closed before the plan was shown whole: nothing was changed")
        raise typer.Exit(Exit.FAILED) from None


def proceed(connection: ZooKeeperClient, plan: Plan, how: Changing, watch: GroupWatch) -> None:
    """Save a plan if `--plan-out` is given, and apply it if `--execute` is given; the caller has
    shown the plan."""
    say_all(plan.notes)
    if plan.is_empty:
        say("nothing to change")
        return
    watch.watch(plan.groups)
    _report_users(plan, how, watch)
    if how.plan_out is not None:
        from zkconsumer.admin.plan import save

        save(plan, how.plan_out)
        command = f"zkconsumer apply {shell_word(str(how.plan_out))} --execute"
        say(f"saved plan {plan.hash}; apply it with `{command}`")
    if how.execute:
        _apply(connection, plan, how, watch)
    else:
        say(f"dry run, nothing was written: {_changes(len(plan))} planned; --execute makes them")


def _rows(plan: Plan, ends: Mapping[TopicPartition, int] | None) -> Iterable[PlanRow]:
    from zkconsumer.admin.plan import rows

    return rows(plan, ends=ends)


def _changes(number: int) -> str:
    return f"{number} change{'s' if number != 1 else ''}"


def _plain(row: PlanRow) -> dict[str, object]:
    return row._asdict()


def _row(row: PlanRow) -> dict[str, object]:
    """Return a row for people; a znode other than an offset shows its path as the topic."""
    shown = _plain(row)
    return shown if row.topic is not None else shown | {"topic": row.path}


def _report_users(plan: Plan, how: Changing, watch: GroupWatch) -> None:
    """Say who uses the groups of the plan, and what that means for --execute."""
    from zkconsumer.admin.apply import what_members_do
    from zkconsumer.admin.health import written

    if how.execute and not how.force_live:
        return  # the application watches the groups, and refuses the plan if they are used
    found = watch.so_far(plan.groups)
    live = [name for name, one in found.items() if one.live]
    writers = {name: one for name, one in found.items() if one.is_written}
    if live:
        names = first_few(live, 5)
        if how.force_live:
            say(f"live members in {names}: {what_members_do(plan)}")
        elif not how.execute:
            say(f"live members in {names}: --execute will refuse the plan until they have stopped")
    then = "that client overwrites the plan's changes, or does not see them"
    for name, one in writers.items():
        if not how.execute:
            then = "--execute will refuse the plan until that client has stopped"
        say(f"group {name}: {written(one)}; {then}")
    if not how.execute:
        suspects = {
            name: one
            for name, one in watch.suspects(plan.groups).items()
            if name not in writers and name not in live
        }
        say_all(_suspicions(suspects))
        if suspects:
            say(
                f"--execute reads the group again after {how.patience:g} s, and refuses the plan if"
                " a client commits without a registration"
            )


def _apply(connection: ZooKeeperClient, plan: Plan, how: Changing, watch: GroupWatch) -> None:
    from zkconsumer.admin.apply import Live, apply
    from zkconsumer.admin.plan import who

    store = None
    if plan.needs_kafka:
        from zkconsumer.admin.broker_offsets import BrokerOffsets

        store = BrokerOffsets.of(connection)
    progress = Application()
    try:
        report = apply(
            connection,
            plan,
            backup_dir=made_directory(how.backup_dir, connection.config.zookeeper_hosts),
            kafka=store,
            live=Live.FORCE if how.force_live else Live.REFUSE,
            watch=watch,
            on_backup=progress.saved,
            on_progress=progress.advanced,
        )
    except KeyboardInterrupt:
        progress.end()
        if progress.backup is None:
            say("interrupted: nothing was written")
        else:
            left = len(plan) - progress.done
            made = (
                f"interrupted: {progress.done} of {len(plan)} changes were made, and {left} were"
                " not made or are unconfirmed"
            )
            then = command_of(Advice(RemedyOperation.COMPLETE_OR_UNDO, value=str(progress.backup)))
            say(f"{made}; complete the change, or undo it: `{then}`")
        raise
    except ZkConsumerError:
        progress.end()
        if progress.backup is not None and not progress.backup.exists():
            say("the backup is removed, because nothing was written")
        raise
    finally:
        progress.end()
        if progress.backup is not None:
            groups = ",".join(plan.groups[:5]) + (",..." if len(plan.groups) > 5 else "")
            say(
                f"audit: {now_text('seconds')} {who()} plan={plan.hash}"
                f" kind={plan.kind.replace(' ', '-')} groups={groups}"
                f" done={progress.done}/{len(plan)} backup={progress.backup}"
            )
    already = f", {report.already} had been made before" if report.already else ""
    say(f"done: {_changes(report.applied)} made{already}")


class Application(Progress):
    """The progress of applying a plan.

    Attributes:
        backup: path of the backup; None before the first write.
    """

    def __init__(self) -> None:
        super().__init__("changes")
        self.backup: Path | None = None

    def saved(self, backup: Path) -> None:
        """The backup has been written to the disk: record and print its path."""
        self.backup = backup
        self.restart()
        say(f"backup: {backup} (`zkconsumer undo` restores it)")


# ---- zkconsumer apply ----------------------------------------------------------------------------


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@changing
def apply(
    common: Common,
    how: Changing,
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A plan file of --plan-out, or a backup.")
    ],
) -> None:
    """Apply a plan file. A dry run without --execute.

    The command refuses the plan if one of its znodes has changed since the plan was made. If the
    plan was applied in part, the command makes the remaining changes.

    Example: zkconsumer apply plan.json --execute
    """
    from zkconsumer.admin.plan import load_plan

    plan = load_plan(file)
    with common.connect() as connection:
        carry_out(common, connection, plan, how, how.watch(connection, *plan.groups))


# ---- zkconsumer undo -----------------------------------------------------------------------------


undo_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@undo_app.command()
@changing
def undo(
    common: Common,
    how: Changing,
    *,
    backup: Annotated[
        Path | None,
        typer.Argument(metavar="BACKUP", help="The backup file that the change wrote."),
    ] = None,
    last: Annotated[
        bool,
        typer.Option("--last", help="Undo the last change of this cluster, or of --group."),
    ] = False,
    group: OnlyOption = None,
) -> None:
    """Restore the znodes of a backup. A dry run without --execute.

    Each znode gets back its data and its access control list. Later writes to it are overwritten.

    Example: zkconsumer undo --last --group billing --execute
    """
    from zkconsumer.admin.group_changes import plan_undo
    from zkconsumer.admin.plan import load_plan
    from zkconsumer.protocol.paths import validate_group_znode

    if (backup is None) is not last or (backup is not None and group is not None):
        raise ConfigError(
            "exactly one of BACKUP and --last is required",
            remedy="give `zkconsumer undo BACKUP`, or `zkconsumer undo --last [--group GROUP]`",
        )
    wanted = None if group is None else validate_group_znode(group)
    with common.connect() as connection:
        config = connection.config
        if backup is None:
            directory = how.backup_dir or cluster_directory(config.zookeeper_hosts)
            backup = last_backup(directory, config.zookeeper_chroot, wanted)
            say(f"backup: {backup}")
        done = load_plan(backup)
        store = None
        if done.kafka:
            from zkconsumer.admin.broker_offsets import BrokerOffsets

            store = BrokerOffsets.of(connection)
        watch = how.watch(connection, *done.groups)
        carry_out(common, connection, plan_undo(connection, done, kafka=store), how, watch)
