"""`zkconsumer owners`: who owns which partition of a group, and how far the group has come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zkconsumer.errors import UnknownGroupError

if TYPE_CHECKING:
    from zkconsumer.zk.observer import Change, GroupSnapshot

HEAD = ("TOPIC", "PARTITION", "OWNER", "CONSUMER", "OFFSET")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Output(Enum):
    """How the result is written."""

    TABLE = "table"
    JSON = "json"  # one object; with --watch one object per change, the first ones from nothing


@app.command()
def owners(
    *,
    zookeeper: Annotated[
        str, typer.Option(metavar="H:P[,H:P...][/CHROOT]", help="zookeeper.connect of the group.")
    ],
    group: Annotated[str, typer.Option(help="The group.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, with one line for each change.")
    ] = False,
    output: Annotated[Output, typer.Option(help="How to write it.")] = Output.TABLE,
) -> None:
    """Show who owns the partitions of a group, and its offsets. Reads only."""
    from zkconsumer.zk.observer import Observer  # noqa: PLC0415

    with Observer(zookeeper, group) as observer:
        if not observer.group_exists():
            raise UnknownGroupError(
                f"group {group} does not exist", where=zookeeper, remedy="check name and chroot"
            )
        if not watch:
            _show(observer.snapshot(), output)
        elif output is Output.JSON:
            _print_all(_change_json(change) for _, change in observer.changes())
        else:
            _print_all(_lines(observer.changes()))


def _print_all(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _show(snapshot: GroupSnapshot, output: Output) -> None:
    if output is Output.JSON:
        print(json.dumps({"members": _members(snapshot), "partitions": list(_rows(snapshot))}))
    else:
        _print_all(_table(snapshot))


def _lines(changes: Iterator[tuple[float, Change]]) -> Iterator[str]:
    """The first reading as a table, then a line per change: nothing falls between the two."""
    from zkconsumer.zk.observer import GroupSnapshot, What  # noqa: PLC0415

    first: dict[What, dict[Any, Any]] = {what: {} for what in What}
    for _, change in changes:
        if change.what is What.READ:
            break
        first[change.what][change.key] = change.after
    yield from _table(GroupSnapshot(first[What.MEMBER], first[What.OWNER], first[What.OFFSET]))
    for _, change in changes:
        yield _change_line(change)


# ---- a snapshot ---------------------------------------------------------------------------------


def _rows(snapshot: GroupSnapshot) -> Iterator[dict[str, Any]]:
    for tp in sorted(snapshot.owners.keys() | snapshot.offsets.keys()):
        owner, offset = snapshot.owners.get(tp), snapshot.offsets.get(tp)
        thread = owner.thread_id if owner else None
        yield {
            "topic": tp.topic,
            "partition": tp.partition,
            "owner": thread,
            "consumer": _consumer(thread),
            "session": f"0x{owner.session:x}" if owner else None,
            "offset": offset if isinstance(offset, int) else None,
            "fault": (owner.fault if owner else "") or (offset if isinstance(offset, str) else ""),
        }


def _members(snapshot: GroupSnapshot) -> dict[str, Any]:
    return {
        consumer_id: member if isinstance(member, str) else dict(member.subscription)
        for consumer_id, member in snapshot.members.items()
    }


def _consumer(thread: str | None) -> str | None:
    """The consumer of a thread, as `kafka.admin.ConsumerGroupCommand` cuts it: at the last `-`."""
    return thread and thread.rpartition("-")[0]


def _cells(row: dict[str, Any], snapshot: GroupSnapshot) -> Sequence[str]:
    gone = row["consumer"] and row["consumer"] not in snapshot.members
    return (
        row["topic"],
        str(row["partition"]),
        row["owner"] or "-",
        (row["consumer"] or "-") + (" (not registered)" if gone else ""),
        "-" if row["offset"] is None else str(row["offset"]),
    )


def _problems(snapshot: GroupSnapshot) -> Iterator[str]:
    for consumer_id, member in snapshot.members.items():
        if isinstance(member, str):
            yield f"member {consumer_id}: {member}"
    for row in _rows(snapshot):
        if row["fault"]:
            yield f"{row['topic']}-{row['partition']}: {row['fault']}"


def _table(snapshot: GroupSnapshot) -> Iterator[str]:
    # Not rich: 10,000 rows take it five seconds.
    rows = [HEAD, *(_cells(row, snapshot) for row in _rows(snapshot))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for problem in _problems(snapshot):
        typer.echo(f"zkconsumer: {problem}", err=True)


# ---- a change -----------------------------------------------------------------------------------


def _change_line(change: Change) -> str:
    now = datetime.now().strftime("%H:%M:%S.%f")[:-3]
    if not change.key:
        return f"{now}  {change.what.name.lower()} {change.after or ''}".rstrip()
    before, after = ("-" if one is None else _value(one) for one in (change.before, change.after))
    return f"{now}  {change.key} {change.what.name.lower()}: {before} -> {after}"


def _change_json(change: Change) -> str:
    document: dict[str, Any] = {
        "time": datetime.now().timestamp(),
        "what": change.what.name.lower(),
    }
    match change.key:
        case (topic, partition):
            document |= {"topic": topic, "partition": partition}
        case str(consumer_id) if consumer_id:
            document["consumer"] = consumer_id
    return json.dumps(
        document | {"before": _value(change.before), "after": _value(change.after)}
    )


def _value(value: Any) -> Any:
    """What is shown of a member (its topics), an owner (the thread), an offset, or a fault."""
    from zkconsumer.core.records import Registration  # noqa: PLC0415
    from zkconsumer.zk.observer import OwnerInfo  # noqa: PLC0415

    match value:
        case OwnerInfo():
            return value.thread_id or value.fault or "?"
        case Registration():
            return dict(value.subscription)
        case _:
            return value
