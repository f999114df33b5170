"""`zkconsumer inventory`: who still uses ZooKeeper, and what must happen before Kafka 4."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli import completion
from zkconsumer.cli.members import of_time
from zkconsumer.cli.options import Addressed, Groups, operator
from zkconsumer.cli.output import (
    LISTED,
    ROWS,
    Align,
    Color,
    Column,
    Output,
    Progress,
    Unknown,
    say,
)
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from zkconsumer.admin.inventory import Inventory, InventoryEntry
    from zkconsumer.admin.inventory_page import PastRun

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_COLORS = {"must act": Color.BAD, "unknown": Color.WARNING, "already moved": Color.GOOD}

COLUMNS = (
    Column("name"),
    Column("state", drop_order=4),
    Column("program"),
    Column("members", align=Align.RIGHT, drop_order=5),
    Column("topics", type="strings?", show=", ".join, most=LISTED, drop_order=2),
    Column("lag", align=Align.RIGHT),
    Column("last_commit", drop_order=3),
    Column("hosts", type="strings?", show=", ".join, wide_only=True),
    Column("verdict", color=_COLORS.get),
    Column("why", drop_order=1),
    Column("blocked_by", type="strings", show="; ".join, wide_only=True),
    Column("evidence", type="strings", show="; ".join, wide_only=True),
)

IdleFor = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="A group without members whose last commit is older than this may be deleted.",
    ),
]
RunbookOf = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Write a runbook for this group in Markdown: the commands, the checks, the way back.",
        autocompletion=completion.groups,
    ),
]
Html = Annotated[
    bool, typer.Option("--html", help="Write one page of HTML, the same as --output html.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Keep the result of each run in this directory; the page then shows a burn-down.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="S",
        envvar="ZKCONSUMER_PATIENCE",
        help="Seconds between two readings of a group that was written recently. Only the second"
        " reading shows a client that commits without a registration.",
    ),
]


@app.command()
@operator(formats=(*ROWS, Output.HTML))
def inventory(
    common: Addressed,
    *,
    group: Groups = None,
    idle_for: IdleFor = "30d",
    runbook: RunbookOf = None,
    html: Html = False,
    state: StateDir = None,
    patience: Patience = 5.0,
) -> None:
    """List the groups in ZooKeeper, and what must happen to each one. Changes nothing.

    VERDICT is `must act` (the group is in use), `may be deleted`, `already moved` (Kafka has the
    offsets), or `unknown` (ask the owner). PROGRAM is derived from the znodes; `?` marks a guess
    from the group's name. --output wide shows the evidence, the hosts, and what blocks the
    migration.

    Example: zkconsumer inventory -z zk1:2181/kafka --html --state inventories > inventory.html
    """
    from zkconsumer.admin.inventory import inventory as read_inventory
    from zkconsumer.times import parse_duration

    if runbook is not None and (group or html or state):
        raise ConfigError(
            "--runbook names its group, and writes Markdown",
            remedy="leave out GROUP, --html and --state",
        )
    idle_s = parse_duration(idle_for, where="--idle-for")
    names = _names([runbook] if runbook is not None else group)
    progress = Progress("groups")
    with progress.until_done(), common.connect() as connection:
        found = read_inventory(
            connection,
            groups=names,
            limit_s=connection.config.zookeeper_connection_timeout_s,
            idle_s=idle_s,
            patience_s=patience,
            addresses=lambda: common.addresses(connection.config),
            on_progress=progress.advanced,
            on_wait=_waits,
        )
        missing = set(names or ()) - {one.name for one in found.entries}
        if missing:
            from zkconsumer.admin.groups import unknown_group

            raise unknown_group(min(missing), connection)
        place = connection.config.zookeeper_connect
    if runbook is not None:
        from zkconsumer.admin.runbooks import runbook as text_of

        sys.stdout.write(text_of(found.entries[0], place))
        return
    _write(common, found, html=html, state=state, place=place)


def _waits(groups: int, left_s: float) -> None:
    if left_s >= 0.5:
        say(
            f"watching for {left_s:.0f} s whether a client commits without a registration (groups"
            f" with a recent commit: {groups})"
        )


def _names(given: list[str] | None) -> list[str] | None:
    """Return the groups of the command line; None means all, even if the settings name a group.

    An inventory of one group by accident would hide all others.
    """
    from zkconsumer.protocol.paths import validate_group_znode

    return list(dict.fromkeys(map(validate_group_znode, given))) if given else None


def _write(
    common: Addressed, found: Inventory, *, html: bool, state: Path | None, place: str
) -> None:
    past: list[PastRun] = []
    if state is not None:
        from zkconsumer.admin.inventory_page import remember

        past = remember(state, found)
    for one in found.unsearched:
        say(one)
    if html or common.output is Output.HTML:
        from zkconsumer.admin.inventory_page import page

        sys.stdout.write(page(found, past, place))
        return
    common.write(map(_row, found.entries), COLUMNS)
    counts = Counter(one.verdict.value for one in found.entries)
    say(", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing was found")


def _row(one: InventoryEntry) -> Mapping[str, object]:
    hint = "?" if one.evidence and all(it.is_hint for it in one.evidence) else ""
    unread = Unknown(one.unreadable) if one.unreadable else None
    at = one.committed_ms
    return {
        "name": one.name,
        "state": one.state.value if one.state else unread,
        "program": one.program.value + hint,
        "members": unread if one.members is None else one.members,
        "topics": list(one.topics) or unread or [],
        "lag": Unknown(one.lag) if isinstance(one.lag, str) else one.lag,
        "last_commit": Unknown(at) if isinstance(at, str) else of_time(at) if at else None,
        "hosts": unread if one.members is None else list(one.hosts),
        "verdict": one.verdict.value,
        "why": one.why,
        "blocked_by": list(one.blocked_by),
        "evidence": [
            f"{it.program.value}{'?' if it.is_hint else ''}: {it.reason}" for it in one.evidence
        ],
    }
