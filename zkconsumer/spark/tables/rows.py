"""The tables of groups: their columns, and their rows as ZooKeeper and the brokers return them.

Data that cannot be read become a row with an `error`, so one malformed or forbidden znode hides
nothing else. Only the requests that the selected columns need are sent: the brokers are asked only
for columns about logs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zkconsumer.admin.groups import (
    GroupImage,
    member_reports,
    read_readable_parts,
    read_topic_payloads,
)
from zkconsumer.admin.lag import (
    AskLogs,
    GroupLag,
    PartitionLag,
    lags_of,
    unasked_kafka,
    unasked_logs,
)
from zkconsumer.errors import AccessDeniedError
from zkconsumer.kafka.logs import KeptLogs
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import requested_topics
from zkconsumer.protocol.group_health import owner_of
from zkconsumer.protocol.group_znodes import MEMBERS, OFFSETS, OWNERS
from zkconsumer.protocol.model import OffsetAndMetadata, TopicPartition
from zkconsumer.protocol.paths import ZnodeKind
from zkconsumer.protocol.payloads import TopicPayloads, marked
from zkconsumer.protocol.requests import Stat
from zkconsumer.spark.tables.options import GroupsOptions, Table
from zkconsumer.zk.client import ZooKeeperClient

_TEXT, _INT, _LONG, _TIME = StringType(), IntegerType(), LongType(), TimestampType()
_STREAMS = MapType(StringType(), IntegerType())
_PARTITION: Final[dict[str, DataType]] = {"group": _TEXT, "topic": _TEXT, "partition": _INT}
_CHANGE: Final[dict[str, DataType]] = {"time": _TIME, **_PARTITION, "change": _TEXT}

COLUMNS: Final[Mapping[Table, Mapping[str, DataType]]] = {
    Table.MEMBERS: {
        "group": _TEXT,
        "member": _TEXT,
        "host": _TEXT,
        "pattern": _TEXT,
        "subscription": _STREAMS,
        "topics": _STREAMS,
        "threads": _INT,
        "owned": _INT,
        "idle": _INT,
        "session": _LONG,
        "since": _TIME,
        "error": _TEXT,
    },
    Table.OWNERS: {
        **_PARTITION,
        "owner": _TEXT,
        "member": _TEXT,
        "session": _LONG,
        "since": _TIME,
        "zxid": _LONG,
        "error": _TEXT,
    },
    Table.OFFSETS: {
        **_PARTITION,
        "storage": _TEXT,
        "offset": _LONG,
        "metadata": _TEXT,
        "written": _TIME,
        "version": _INT,
        "zxid": _LONG,
        "marked": BooleanType(),
        "error": _TEXT,
    },
    Table.LAG: {
        **_PARTITION,
        "owner": _TEXT,
        "member": _TEXT,
        "session": _LONG,
        "offset": _LONG,
        "storage": _TEXT,
        "written": _TIME,
        "log_start": _LONG,
        "log_end": _LONG,
        "lag": _LONG,
        "error": _TEXT,
    },
    Table.OWNER_CHANGES: {
        **_CHANGE,
        "old": _TEXT,
        "new": _TEXT,
        "zxid": _LONG,
        "error": _TEXT,
    },
    Table.OFFSET_CHANGES: {
        **_CHANGE,
        "old": _LONG,
        "new": _LONG,
        "zxid": _LONG,
        "version": _INT,
        "merged": _INT,
        "error": _TEXT,
    },
}

# Columns that need more than the table's own znodes: the topics' znodes, the owners, or the ends of
# logs.
_OF_TOPICS: Final = frozenset({"topics", "threads", "owned", "idle", "error"})
_OF_OWNERS: Final = frozenset({"owned", "idle"})
_OF_LOGS: Final = frozenset({"log_start", "log_end", "lag"})

# A generated consumer id contains host, milliseconds, and eight digits of a random UUID
# (`kafka.consumer.ZookeeperConsumerConnector`).
_GENERATED: Final = re.compile(r"_(.+)-[0-9]{13}-[0-9a-f]{1,8}")

Row = dict[str, object]


def schema_of(table: Table) -> StructType:
    """Return all columns of a table."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS[table].items()])


def instant(milliseconds: int) -> datetime:
    """Convert a server time in milliseconds since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class RowReader:
    """Reads rows of one table. `columns` are those that the query uses.

    One client asks the brokers about all groups. Brokers that do not answer are asked once.
    """

    def __init__(
        self, connection: ZooKeeperClient, options: GroupsOptions, columns: Collection[str]
    ) -> None:
        self._connection, self._options = connection, options
        self._columns = frozenset(columns)
        self._limit_s = options.config.zookeeper_connection_timeout_s
        self._kept = KeptLogs(limit_s=self._limit_s)
        self._brokers = self._kept.reading()
        self._rows = {
            Table.MEMBERS: self._members,
            Table.OWNERS: self._owners,
            Table.OFFSETS: self._offsets,
            Table.LAG: self._lags,
        }[options.table]

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._kept.close()

    def rows(self, groups: Sequence[str], topics: Collection[str] | None) -> list[Row]:
        """Return the rows of these groups and topics; a znode that may not be read is a row with an
        error.

        If the brokers or the list of topics that a group needs may not be read, the group becomes
        one row with an error. Raises what `ZooKeeperClient.read` raises for other errors.
        """
        try:
            return list(self._rows(groups, topics))
        except AccessDeniedError as error:
            if len(groups) == 1:
                return [{"group": groups[0], "error": str(error)}]
        half = len(groups) // 2
        return self.rows(groups[:half], topics) + self.rows(groups[half:], topics)

    # ---- the tables ------------------------------------------------------------------------------

    def _read(
        self, groups: Sequence[str], topics: Collection[str] | None, directories: Collection[str]
    ) -> dict[str, GroupImage]:
        return read_readable_parts(self._connection, groups, directories=directories, topics=topics)

    def _members(self, groups: Sequence[str], topics: Collection[str] | None) -> Iterator[Row]:
        directories = (MEMBERS, OWNERS) if self._columns & _OF_OWNERS else (MEMBERS,)
        images = self._read(groups, topics, directories)
        payloads: TopicPayloads = {}
        if self._columns & _OF_TOPICS:
            payloads = read_topic_payloads(self._connection, images.values())
        for image in images.values():
            wanted = requested_topics(image.members, payloads)
            # An owner znode that may not be read is an error of the members of its topic.
            yield from _unread(image, but=(ZnodeKind.OWNER, ZnodeKind.OWNERS_OF))
            for one in member_reports(image, wanted):
                fault = one.fault or one.owned_fault
                yield {
                    "group": one.group,
                    "member": one.consumer,
                    "host": _host(one.group, one.consumer),
                    "pattern": one.pattern.value if one.pattern else None,
                    "subscription": None if one.pattern is None else [*one.subscription.items()],
                    "topics": None if one.fault else [*wanted.counts[one.consumer].items()],
                    "threads": None if one.fault else len(one.threads),
                    "owned": None if fault else sum(one.owned.values()),
                    "idle": None if fault else len(one.idle),
                    "session": one.session,
                    "since": instant(one.since_ms),
                    "error": fault or None,
                }

    def _owners(self, groups: Sequence[str], topics: Collection[str] | None) -> Iterator[Row]:
        directories = (MEMBERS, OWNERS) if "member" in self._columns else (OWNERS,)
        images = self._read(groups, topics, directories)
        for image in images.values():
            yield from _unread(image)
            for tp, node in image.owners.items():
                stat = image.nodes[paths.owner(image.name, tp)].stat
                yield {
                    **_partition(image, tp),
                    "owner": node.thread or None,
                    "member": owner_of(node.thread, image.registrations) or None,
                    "session": node.session,
                    "since": instant(stat.mtime_ms),
                    "zxid": stat.mzxid,
                    "error": node.fault or None,
                }

    def _offsets(self, groups: Sequence[str], topics: Collection[str] | None) -> Iterator[Row]:
        directories = (MEMBERS, OWNERS, OFFSETS) if self._options.ask_kafka else (OFFSETS,)
        images = self._read(groups, topics, directories)
        marks = self._marks(groups) if "marked" in self._columns else {}
        for image in images.values():
            yield from _unread(image)
            mzxids = {
                tp: image.nodes[paths.offset(image.name, tp)].stat.mzxid for tp in image.offsets
            }
            mark = marks.get(image.name, [])
            unknown = str(mark) if isinstance(mark, AccessDeniedError) else ""
            edited: Collection[TopicPartition] = ()
            if not isinstance(mark, AccessDeniedError):
                edited = marked(mzxids, mark)
            for tp, node in image.offsets.items():
                stat = image.nodes[paths.offset(image.name, tp)].stat
                # A JVM member writes a negative value for "no offset".
                is_none = node.value is None or node.value < 0
                yield {
                    **_partition(image, tp),
                    "storage": "zookeeper",
                    "offset": None if is_none else node.value,
                    "written": instant(stat.mtime_ms),
                    "version": stat.version,
                    "zxid": stat.mzxid,
                    "marked": None if unknown else tp in edited,
                    "error": node.fault or unknown or None,
                }
        if self._options.ask_kafka:
            yield from self._in_kafka(images, topics)

    def _in_kafka(
        self, images: Mapping[str, GroupImage], topics: Collection[str] | None
    ) -> Iterator[Row]:
        for group in self._lags_of(images, topics, unasked_logs).values():
            for one in group.partitions:
                stored = one.in_kafka
                if stored is not None:
                    known = stored if isinstance(stored, OffsetAndMetadata) else None
                    yield {
                        **_partition(group.image, one),
                        "storage": "kafka",
                        "offset": known and known.offset,
                        "metadata": known and known.metadata,
                        "error": None if known else stored,
                    }

    def _lags(self, groups: Sequence[str], topics: Collection[str] | None) -> Iterator[Row]:
        images = self._read(groups, topics, (MEMBERS, OWNERS, OFFSETS))
        is_asked = bool(self._columns & _OF_LOGS)
        logs = self._brokers.ends if is_asked else unasked_logs
        for group in self._lags_of(images, topics, logs).values():
            # An offset or an owner that may not be read is an error of its partition.
            yield from _unread(group.image, but=(ZnodeKind.OWNER, ZnodeKind.OFFSET))
            for one in group.partitions:
                yield {**_partition(group.image, one), **_lag(one, is_asked=is_asked)}

    # ---- lag and edit marks ----------------------------------------------------------------------

    def _lags_of(
        self, images: Mapping[str, GroupImage], topics: Collection[str] | None, logs: AskLogs
    ) -> Mapping[str, GroupLag]:
        return lags_of(
            self._connection,
            images,
            limit_s=self._limit_s,
            only=None if topics is None else dict.fromkeys(topics),
            logs=logs,
            kafka=self._brokers.committed if self._options.ask_kafka else unasked_kafka,
        )

    def _marks(self, groups: Sequence[str]) -> dict[str, list[Stat] | AccessDeniedError]:
        """Return each group's edit marks, or the error if this client may not list them."""
        parents = {paths.edits(name): name for name in groups}
        found = self._connection.list_allowed(parents)
        listed = {path: names for path, names in found.items() if isinstance(names, list)}
        marks = {
            f"{parent}/{name}": parents[parent]
            for parent, names in listed.items()
            for name in names
        }
        stats: dict[str, list[Stat]] = {}
        for path, stat in self._connection.stats(marks).items():
            stats.setdefault(marks[path], []).append(stat)
        refused = {
            parents[path]: one for path, one in found.items() if isinstance(one, AccessDeniedError)
        }
        return {**stats, **refused}


def _unread(image: GroupImage, *, but: Collection[ZnodeKind] = ()) -> Iterator[Row]:
    """Yield a row for each znode that this client may not read, except those of some kinds."""
    for path, error in image.unreadable.items():
        at = paths.locate(path)
        if at.kind in but:
            continue
        name = "member" if at.kind is ZnodeKind.MEMBER else "topic"
        number = at.partition if at.partition >= 0 else None
        row = {"group": image.name, name: at.name or None, "partition": number}
        yield {**row, "error": str(error)}


def _partition(image: GroupImage, at: TopicPartition | PartitionLag) -> Row:
    return {"group": image.name, "topic": at.topic, "partition": at.partition}


def _host(group: str, consumer: str) -> str | None:
    """Return the host in a generated consumer id, or None if the id was configured."""
    found = _GENERATED.fullmatch(consumer.removeprefix(group))
    return found[1] if found else None


def _lag(one: PartitionLag, *, is_asked: bool) -> Row:
    log, committed, lag = one.log, one.committed, one.lag
    known = None if isinstance(log, str) else log
    beyond = ""
    if known and isinstance(committed, int) and committed > known.end:
        # A negative number would falsify a sum of lags.
        beyond, lag = f"the offset is beyond the log's end, {known.end}", ""
    texts: tuple[object, ...] = one.fault, one.in_zookeeper, committed, is_asked and log, beyond
    errors = dict.fromkeys(text for text in texts if text and isinstance(text, str))
    return {
        "owner": one.owner or None,
        "member": one.consumer or None,
        "session": None if one.owner is None else one.session,
        "offset": committed if isinstance(committed, int) else None,
        "storage": one.source.value if one.source else None,
        "written": instant(one.written_ms) if one.written_ms else None,
        "log_start": known and known.start,
        "log_end": known and known.end,
        "lag": lag if isinstance(lag, int) else None,
        "error": "; ".join(errors) or None,
    }
