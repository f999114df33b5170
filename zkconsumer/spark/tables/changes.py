"""Changes between two readings of owners or offsets. A reading is a value, and the difference of
two readings is a list of rows.

The functions are pure. Spark's checkpoint contains the whole reading in compressed form, so the
rows of a batch follow from the batch's two offsets alone. A replay returns the same rows, and the
first batch after a pause reports the changes during the pause. The size of a reading depends only
on the number of followed partitions, as with the offsets of Spark's own Kafka source.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from zkconsumer.admin.groups import GroupImage
from zkconsumer.errors import SparkSourceError
from zkconsumer.protocol import paths
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.protocol.requests import Stat
from zkconsumer.spark.tables.options import Table
from zkconsumer.spark.tables.rows import instant

Key = tuple[str, str, int]
"""A group, a topic and a partition number."""


class ZnodeReading(NamedTuple):
    """A znode as read: the owner's thread or the offset. The value is None if it cannot be read;
    `fault` says why.
    """

    value: str | int | None
    czxid: int
    mzxid: int
    version: int
    mtime_ms: int
    fault: str = ""


Reading = Mapping[Key, ZnodeReading]

NO_READING: Final[JsonObject] = {}
"""The offset before the first batch; it contains no reading."""

_CHANGE_NAMES: Final = {
    Table.OWNER_CHANGES: ("claimed", "moved", "released"),
    Table.OFFSET_CHANGES: ("committed", "committed", "deleted"),
}


def states_of(images: Iterable[GroupImage]) -> dict[Key, ZnodeReading]:
    """Return the owners and offsets of these groups, as far as the images contain them."""
    found: dict[Key, ZnodeReading] = {}
    for image in images:
        for tp, owner in image.owners.items():
            stat = image.nodes[paths.owner(image.name, tp)].stat
            found[image.name, *tp] = _state(owner.thread or None, stat, owner.fault)
        for tp, offset in image.offsets.items():
            stat = image.nodes[paths.offset(image.name, tp)].stat
            found[image.name, *tp] = _state(offset.value, stat, offset.fault)
    return found


def _state(value: str | int | None, stat: Stat, fault: str) -> ZnodeReading:
    return ZnodeReading(value, stat.czxid, stat.mzxid, stat.version, stat.mtime_ms, fault)


def to_offset(table: Table, reading: Reading, *, read_ms: int, is_first: bool) -> JsonObject:
    """Return the checkpoint form of a reading at `read_ms`. If `is_first` is true, the batch that
    ends at this reading has no rows.
    """
    rows = [[*key, *state] for key, state in sorted(reading.items())]
    packed = zlib.compress(json.dumps(rows, separators=(",", ":")).encode())
    found = {"table": table.value, "read_ms": read_ms, "state": base64.b64encode(packed).decode()}
    return found | {"first": True} if is_first else found


def from_offset(table: Table, offset: Mapping[str, Json]) -> dict[Key, ZnodeReading]:
    """Return the reading of an offset. Raises SparkSourceError if another source wrote it."""
    if not offset:
        return {}
    try:
        if offset["table"] != table.value:
            raise SparkSourceError(
                f"the checkpoint is for the table {offset['table']}, but the query reads"
                f" {table.value}",
                where="checkpointLocation",
                remedy="give the query a checkpoint of its own",
            )
        rows = json.loads(zlib.decompress(base64.b64decode(offset["state"])))
        return {
            (group, topic, partition): ZnodeReading(*state)
            for group, topic, partition, *state in rows
        }
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise SparkSourceError(
            "the checkpoint contains an offset that this source did not write",
            where=str(offset)[:200],
            remedy="give the query a checkpoint of its own",
        ) from error


def changes_between(
    table: Table, start: Mapping[str, Json], end: Mapping[str, Json]
) -> Iterator[JsonObject]:
    """Yield the rows of the batch between two offsets, ordered by group, topic and partition."""
    if end.get("first"):
        return
    before, after = from_offset(table, start), from_offset(table, end)
    made, changed, gone = _CHANGE_NAMES[table]
    read_at = instant(end["read_ms"])
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if new is None:
            assert old is not None
            yield _row(key, gone, read_at) | {"old": old.value}
        elif old is None or old.mzxid != new.mzxid:
            yield _row(key, changed if old else made, instant(new.mtime_ms)) | {
                "old": old.value if old else None,
                "new": new.value,
                "zxid": new.mzxid,
                "version": new.version,
                "merged": _merged(old, new),
                "error": new.fault or None,
            }


def _row(key: Key, change: str, at: datetime) -> JsonObject:
    group, topic, partition = key
    return {"time": at, "group": group, "topic": topic, "partition": partition, "change": change}


def _merged(old: ZnodeReading | None, new: ZnodeReading) -> int | None:
    """Return the number of writes between two states of a znode, or None if the znode was created
    in between.
    """
    return new.version - old.version - 1 if old and old.czxid == new.czxid else None
