"""`zkconsumer owners`: the owner and the offset of each partition of a group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from zkconsumer.cli.options import Addressed, OneGroup, client_cell, operator
from zkconsumer.cli.output import (
    Align,
    Column,
    Output,
    Row,
    Screen,
    Table,
    format_table,
    safe,
    say,
    say_all,
    unknown_reasons,
)
from zkconsumer.errors import ConfigError
from zkconsumer.protocol.group_health import owner_of
from zkconsumer.protocol.model import Json, JsonObject, TopicPartition, session_text
from zkconsumer.protocol.payloads import OwnerZnode

if TYPE_CHECKING:
    from zkconsumer.zk.clients import ClientAddresses
    from zkconsumer.zk.observer import Change, GroupSnapshot

COLUMNS = (
    Column("group", wide_only=True),
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("owner"),
    Column("consumer", drop_order=1),
    Column("session", wide_only=True),
    Column("client", wide_only=True),
    Column("offset", align=Align.RIGHT),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@operator()
def owners(
    common: Addressed,
    *,
    group: OneGroup = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep running, and print one line per change.")
    ] = False,
) -> None:
    """Show the owner and the offset of each partition of a group. Changes nothing.

    Example: zkconsumer owners -z zk1:2181/kafka --group billing --watch
    """
    from zkconsumer.admin.groups import unknown_group
    from zkconsumer.zk.observer import Observer

    if watch:
        _check_watch(common)
    name = common.group(group)
    config = common.connection_settings(name)
    limit_s = config.zookeeper_connection_timeout_s
    with Observer(config.zookeeper_connect, name, timeout_s=limit_s, config=config) as observer:
        if not observer.group_exists():
            with common.connect(name) as connection:
                raise unknown_group(name, connection)
        if not watch:
            _show(name, observer.snapshot(), common, common.shown_addresses(config))
        elif common.output in (Output.JSON, Output.JSONL):
            _print_all(_change_json(change) for _, change in observer.changes())
        else:
            _print_all(_lines(name, observer.changes()))


def _check_watch(common: Addressed) -> None:
    """Raise ConfigError for an option that lines of changes do not follow."""
    what = None
    if common.output in (Output.CSV, Output.YAML):
        what = f"--output {common.output.value}"
    elif common.columns is not None or common.sort is not None:
        what = "--columns" if common.columns is not None else "--sort"
    if what is not None:
        raise ConfigError(
            f"owners --watch prints one line per change, to which {what} does not apply",
            where="--watch",
            remedy="leave one of them out, or use --output jsonl",
        )


def _print_all(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _show(
    group: str, snapshot: GroupSnapshot, common: Addressed, addresses: ClientAddresses | None
) -> None:
    rows = list(_rows(group, snapshot, addresses))
    if common.output in (Output.JSON, Output.YAML):
        say_all(unknown_reasons(Table(rows, COLUMNS)))
        plain = [{**row, "client": _text_or_none(row["client"])} for row in rows]
        common.write_document({"members": _members(snapshot), "partitions": plain})
    elif common.output in (Output.JSONL, Output.CSV):
        common.write(rows, [Column(name) for name in rows[0]] if rows else COLUMNS)
    else:
        common.write([_shown(row, snapshot) for row in rows], COLUMNS)
        for problem in _problems(rows, snapshot):
            say(f"group {group}: {problem}")


def _text_or_none(value: Json) -> str | None:
    """Return a text, and None for an unknown value, whose reason is on standard error."""
    return value if isinstance(value, str) else None


def _lines(group: str, changes: Iterator[tuple[float, Change]]) -> Iterator[str]:
    """Yield the first reading as a table, and then one line per change.

    Both come from the same sequence of changes, so no change between them is missed.
    """
    from zkconsumer.zk.observer import ChangeKind, GroupSnapshot

    first: dict[ChangeKind, dict[Json, Json]] = {what: {} for what in ChangeKind}
    for _, change in changes:
        if change.what is ChangeKind.READ:
            break
        first[change.what][change.key] = change.after
    snapshot = GroupSnapshot(
        first[ChangeKind.MEMBER], first[ChangeKind.OWNER], first[ChangeKind.OFFSET]
    )
    rows = list(_rows(group, snapshot))
    shown = [_shown(row, snapshot) for row in rows]
    yield format_table(Table(shown, COLUMNS), Output.WIDE, Screen())[0].rstrip("\n")
    for problem in _problems(rows, snapshot):
        say(f"group {group}: {problem}")
    for _, change in changes:
        yield _change_line(change)


# ---- one reading --------------------------------------------------------------------------------


def _rows(
    group: str, snapshot: GroupSnapshot, addresses: ClientAddresses | None = None
) -> Iterator[JsonObject]:
    for tp in sorted(snapshot.owners.keys() | snapshot.offsets.keys()):
        owner, offset = snapshot.owners.get(tp), snapshot.offsets.get(tp)
        thread = owner.thread if owner else None
        yield {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "owner": thread,
            "consumer": thread and owner_of(thread, snapshot.members),
            "session": session_text(owner.session) if owner else None,
            "client": client_cell(owner.session, addresses) if owner else None,
            "offset": offset if isinstance(offset, int) else None,
            "fault": (owner.fault if owner else "") or (offset if isinstance(offset, str) else ""),
        }


def _members(snapshot: GroupSnapshot) -> JsonObject:
    return {
        consumer_id: member if isinstance(member, str) else dict(member.subscription)
        for consumer_id, member in snapshot.members.items()
    }


def _shown(row: Row, snapshot: GroupSnapshot) -> Row:
    tp = TopicPartition(row["topic"], row["partition"])
    owner, offset = snapshot.owners.get(tp), snapshot.offsets.get(tp)
    remark = ""
    if row["consumer"] and row["consumer"] not in snapshot.members:
        remark = " (not registered)"
    elif owner is not None and not owner.session:
        remark = " (no session)"
    return {
        **row,
        "owner": row["owner"] or None,
        "consumer": (row["consumer"] or "-") + remark,
        # `_problems` has the reason.
        "offset": "unknown" if isinstance(offset, str) else offset,
    }


def _problems(rows: Iterable[JsonObject], snapshot: GroupSnapshot) -> Iterator[str]:
    if not snapshot.members:
        yield "no member is registered"
    for consumer_id, member in snapshot.members.items():
        if isinstance(member, str):
            yield f"member {consumer_id}: {member}"
    for row in rows:
        if row["fault"]:
            yield f"{row['topic']}-{row['partition']}: {row['fault']}"


# ---- changes ------------------------------------------------------------------------------------


def _change_line(change: Change) -> str:
    now = datetime.now().strftime("%H:%M:%S.%f")[:-3]
    if not change.key:
        return f"{now}  {change.what.name.lower()} {change.after or ''}".rstrip()
    before, after = ("-" if one is None else _text(one) for one in (change.before, change.after))
    return safe(f"{now}  {change.key} {change.what.name.lower()}: {before} -> {after}")


def _text(value: Json) -> str:
    """Return a value as text; a member's topics with their numbers of streams."""
    shown = _value(value)
    if isinstance(shown, dict):
        return ", ".join(f"{topic}: {streams}" for topic, streams in sorted(shown.items()))
    return str(shown)


def _change_json(change: Change) -> str:
    document: JsonObject = {
        "time": datetime.now().timestamp(),
        "what": change.what.name.lower(),
    }
    match change.key:
        case (topic, partition):
            document |= {"topic": topic, "partition": partition}
        case str(consumer_id) if consumer_id:
            document["consumer"] = consumer_id
    return json.dumps(document | {"before": _value(change.before), "after": _value(change.after)})


def _value(value: Json) -> Json:
    """Return the part of a value that is printed: a member's topics, an owner's thread, or an
    offset."""
    from zkconsumer.protocol.registrations import Registration

    match value:
        case OwnerZnode():
            return value.thread or value.fault or "?"
        case Registration():
            return dict(value.subscription)
        case _:
            return value
