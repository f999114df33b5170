"""The partitions of groups as table rows, for `lag`, `groups show` and `offsets get`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from zkconsumer.cli.output import Align, Color, Column, Row, Unknown

if TYPE_CHECKING:
    from zkconsumer.admin.lag import GroupLag, PartitionLag, Status

Cell: TypeAlias = Any
"""A value of any column."""

_COLORS: Mapping[str, Color] = {
    "OK": Color.GOOD,
    "WARNING": Color.WARNING,
    "STALLED": Color.BAD,
    "STOPPED": Color.BAD,
    "REWOUND": Color.BAD,
}


def _status_color(value: Cell) -> Color | None:
    return _COLORS.get(value)


def _faint_if_none(value: Cell) -> Color | None:
    return Color.FAINT if value is None or isinstance(value, Unknown) else None


GROUP = Column("group", drop=7)
STATUS = Column("status", color=_status_color)
COLUMNS = (
    Column("topic"),
    Column("partition", align=Align.RIGHT),
    Column("offset", align=Align.RIGHT),
    Column("source", drop=2),
    Column("log_start", align=Align.RIGHT, drop=1),
    Column("log_end", align=Align.RIGHT, drop=5),
    Column("lag", align=Align.RIGHT, color=_faint_if_none),
    Column("owner", drop=6, color=_faint_if_none),
    Column("session", wide_only=True),
)


def unknown(value: Cell) -> Cell:
    """Return a text as an Unknown with that reason, and any other value as it is."""
    return Unknown(value) if isinstance(value, str) else value


def partition_row(group: str, one: PartitionLag) -> dict[str, object]:
    """Return a partition as a row of `COLUMNS` and `GROUP`."""
    log = one.log
    return {
        "group": group,
        "topic": one.topic,
        "partition": one.partition,
        "offset": unknown(one.committed),
        "source": one.source.value if one.source else None,
        "log_start": Unknown(log) if isinstance(log, str) else log.start,
        "log_end": Unknown(log) if isinstance(log, str) else log.end,
        "lag": unknown(one.lag),
        "owner": Unknown(one.fault) if one.fault else one.owner,
        "session": f"0x{one.session:x}" if one.owner is not None else None,
    }


def partition_rows(
    groups: Iterable[GroupLag],
    *,
    status_of: Callable[[str, PartitionLag], Status | None] | None = None,
) -> Iterator[Row]:
    """Yield the rows of groups; `status_of` adds the status of each partition."""
    for group in groups:
        for one in group.partitions:
            row = partition_row(group.name, one)
            if status_of is not None:
                status = status_of(group.name, one)
                row["status"] = status.value if status else None
            yield row


def group_words(group: GroupLag) -> Iterator[str]:
    """Yield notes on a group below its table: no members, no offsets, idle threads, no owner."""
    from zkconsumer.admin.groups import idle_by_design

    if not group.image.registrations:
        yield f"group {group.name}: no member is registered"
    if not group.image.offsets and not any(one.source for one in group.partitions):
        yield f"group {group.name}: no offset is committed, in ZooKeeper or in Kafka"
    for why in idle_by_design(group.requested_topics):
        yield f"group {group.name}: {why}"
    different = [
        f"{one.topic}-{one.partition}"
        for one in group.partitions
        if isinstance(one.in_zookeeper, int)
        and one.in_kafka is not None
        and not isinstance(one.in_kafka, str)
        and one.in_kafka.offset != one.in_zookeeper
    ]
    if different:
        yield (
            f"group {group.name}: ZooKeeper and Kafka have different offsets of"
            f" {_some(different)}; Kafka's are shown (`zkconsumer offsets get` shows both)"
        )
    unowned = [f"{one.topic}-{one.partition}" for one in group.partitions if one.owner is None]
    if unowned and group.image.registrations:
        yield f"group {group.name}: {_some(unowned)} without owner"
    yield from _outside_the_log(group)


def _outside_the_log(group: GroupLag) -> Iterator[str]:
    behind, ahead = [], []
    for one in group.partitions:
        if isinstance(one.log, str) or not isinstance(one.committed, int):
            continue
        if one.committed < one.log.start:
            behind.append(f"{one.topic}-{one.partition}")
        elif one.committed > one.log.end:
            ahead.append(f"{one.topic}-{one.partition}")
    if behind:
        yield (
            f"group {group.name}: offsets before the start of the log, whose messages are deleted:"
            f" {_some(behind)}"
        )
    if ahead:
        yield f"group {group.name}: offsets beyond the end of the log: {_some(ahead)}"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
