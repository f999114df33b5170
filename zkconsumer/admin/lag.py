"""The lag of groups: committed offsets, log ends, and the status of each partition.

A value that could not be read is a string with the reason, never a number.

The status of a partition follows from its last commits. The rules are those of Burrow, LinkedIn's
monitor of consumer lag (`calculatePartitionStatus` in core/internal/evaluator/caching.go), with
three differences:

- Burrow sees every commit. The old consumer writes an offset to ZooKeeper only if it has changed,
  so repeated commits of one offset look like no commits. A partition with an owner is therefore
  STALLED, and a partition without an owner is STOPPED.
- A new window holds one commit, so there is no interval to compare a pause with. A pause therefore
  counts only if it is longer than the longest normal interval between two commits of the group.
- A rewind is reported even if the partition has had no lag within the window.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from zkconsumer.admin.groups import (
    GroupImage,
    GroupSummary,
    MemberReport,
    OffsetNode,
    Selection,
    in_slices,
    member_reports,
    read_readable_parts,
    read_topic_payloads,
    registered_brokers,
    selected,
)
from zkconsumer.admin.groups import groups as group_summaries
from zkconsumer.errors import AccessDeniedError
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import KeptLogs, LogRange, without_messages
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import RequestedTopics, partitions_in, requested_topics
from zkconsumer.protocol.group_health import GroupState, owner_of
from zkconsumer.protocol.model import ConsumerId, OffsetAndMetadata, ThreadId, TopicPartition
from zkconsumer.zk.client import ZooKeeperClient

FEW: Final = 50
"""The maximum lag about which a tool asks whether it consists of transaction markers. In a
longer lag a tool expects messages: each marker ends a transaction, and a transaction has some."""

MOST_TAILS: Final = 1000
"""The maximum number of partitions of such a question. The brokers return 4 KB of each, and other
partitions are asked about in the next reading."""

NOTHING_COMMITTED = "no offset is committed"
NO_SUCH_TOPIC = "the topic does not exist"
NO_SUCH_PARTITION = "the topic has no such partition"
NOT_ASKED = "the brokers were not asked"

NOTHING_TO_READ: Final = frozenset({NOTHING_COMMITTED, NO_SUCH_TOPIC, NO_SUCH_PARTITION})
"""Reasons for which a partition has no lag, although everything could be read."""


class Source(Enum):
    """Store of a committed offset."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    BOTH = "both"  # both stores have the same offset


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A partition of a group: owner, offsets, log.

    Attributes:
        owner: the thread that its owner znode names; None if there is no owner znode.
        session: the session of the owner znode; 0 if it is persistent.
        in_zookeeper: the offset in ZooKeeper; None if there is none; a string if it cannot be read.
        written_ms: time of the last write to that offset by the server's clock, in ms since 1970.
        in_kafka: the offset in Kafka; None if there is none; a string if it is unknown.
        log: start and end of the log, or a string that says why they are unknown.
        fault: what is wrong with the owner znode, or why this client may not read it, or "".
        consumer: the consumer id that the owner znode names; None if there is no owner znode.
        remark: a note on the offset in ZooKeeper: JVM members cannot read it, although it is
            plainly a number, or its znode is empty.
        is_read: whether no message is left, although the lag is not 0: only transaction markers lie
            between the offset and the end of the log. JVM members cannot move over them.
        moved: the only store whose offset changed, by the last two readings that show a change.
    """

    topic: str
    partition: int
    owner: ThreadId | None
    session: int
    in_zookeeper: int | str | None
    written_ms: int
    in_kafka: OffsetAndMetadata | str | None
    log: LogRange | str
    fault: str = ""
    consumer: ConsumerId | None = None
    remark: str = ""
    is_read: bool = False
    moved: Source | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_owned(self) -> bool:
        """Whether the partition has an owner with a session."""
        return self.owner is not None and self.session != 0

    @property
    def is_owner_unknown(self) -> bool:
        """Whether the partition may have an owner, whose znode this client may not read."""
        return self.owner is None and bool(self.fault)

    @property
    def committed(self) -> int | str | None:
        """The committed offset; None if there is none; a string with the reason if it is unknown.

        If the stores have different offsets, the result is the offset of the store that has moved
        between two readings, and otherwise the larger offset, as with `dual.commit.enabled`. Kafka
        returns no times, so the times of the commits cannot be compared. If Kafka's offset is
        unknown, ZooKeeper's is used if there is one.
        """
        kafka = self.in_kafka
        if isinstance(kafka, OffsetAndMetadata):
            return self.in_zookeeper if self.source is Source.ZOOKEEPER else kafka.offset
        return kafka if self.in_zookeeper is None else self.in_zookeeper

    @property
    def source(self) -> Source | None:
        """The store that `committed` comes from; None if no offset is committed."""
        kafka = self.in_kafka.offset if isinstance(self.in_kafka, OffsetAndMetadata) else None
        if kafka is None:
            return Source.ZOOKEEPER if isinstance(self.in_zookeeper, int) else None
        if not isinstance(self.in_zookeeper, int):
            return Source.KAFKA
        if kafka == self.in_zookeeper:
            return Source.BOTH
        larger = Source.KAFKA if kafka > self.in_zookeeper else Source.ZOOKEEPER
        return self.moved or larger

    @property
    def rule(self) -> str:
        """The rule that has chosen between two different offsets: "moved", "larger", or "" if they
        do not differ."""
        return ("moved" if self.moved else "larger") if self.differing else ""

    @property
    def differing(self) -> tuple[int, int] | None:
        """The offsets in ZooKeeper and in Kafka, if both stores have one and they differ."""
        zookeeper, kafka = self.in_zookeeper, self.in_kafka
        if not isinstance(zookeeper, int) or not isinstance(kafka, OffsetAndMetadata):
            return None
        return None if zookeeper == kafka.offset else (zookeeper, kafka.offset)

    @property
    def committed_ms(self) -> int | None:
        """The time of the last commit in ms since 1970, by the server's clock; None if it is
        unknown, because Kafka returns no times."""
        is_known = self.source in (Source.ZOOKEEPER, Source.BOTH) and self.written_ms
        return self.written_ms if is_known else None

    @property
    def lag(self) -> int | str:
        """Messages from the committed offset to the end of the log, or why the lag is unknown."""
        committed = self.committed
        if isinstance(committed, int):
            return self.log if isinstance(self.log, str) else self.log.end - committed
        return NOTHING_COMMITTED if committed is None else committed

    @property
    def is_unknown(self) -> bool:
        """Whether the lag is not known: an offset or a log end could not be read, or the offset is
        beyond the end of the log."""
        return self.lag not in NOTHING_TO_READ if isinstance(self.lag, str) else self.lag < 0

    @property
    def messages(self) -> int | str:
        """The lag without transaction markers, as far as they are known."""
        return 0 if self.is_read else self.lag


class StoreWatch:
    """Remembers, over several readings, to which of the two stores each group commits."""

    def __init__(self) -> None:
        # (group, partition) -> its offset in ZooKeeper and in Kafka, and the store that has moved
        self._known: dict[tuple[str, TopicPartition], tuple[int, int, Source | None]] = {}

    def keep(self, groups: Iterable[str]) -> None:
        """Forget all other groups."""
        kept = set(groups)
        self._known = {key: one for key, one in self._known.items() if key[0] in kept}

    def checked(self, group: GroupLag) -> GroupLag:
        """Record a reading; return the group with `PartitionLag.moved`."""
        partitions = tuple(self._moved(group.name, one) for one in group.partitions)
        return replace(group, partitions=partitions)

    def _moved(self, group: str, one: PartitionLag) -> PartitionLag:
        if not isinstance(one.in_kafka, OffsetAndMetadata) or not isinstance(one.in_zookeeper, int):
            return one
        zookeeper, kafka = one.in_zookeeper, one.in_kafka.offset
        first = (zookeeper, kafka, None)
        old_zookeeper, old_kafka, moved = self._known.get((group, one.tp), first)
        match (zookeeper != old_zookeeper, kafka != old_kafka):
            case (True, False):
                moved = Source.ZOOKEEPER
            case (False, True):
                moved = Source.KAFKA
            case (True, True):
                moved = None
        self._known[group, one.tp] = zookeeper, kafka, moved
        return replace(one, moved=moved)


class TailCheck:
    """Finds partitions whose lag consists of transaction markers only.

    It asks the brokers about lags of at most `FEW` offsets: at the first reading of a partition,
    and later if offset and log end have not moved since the previous reading. Each answer is kept,
    because it does not change.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, TopicPartition], tuple[tuple[int, int], bool | None]] = {}

    def keep(self, groups: Iterable[str]) -> None:
        """Forget all other groups."""
        kept = set(groups)
        self._known = {key: one for key, one in self._known.items() if key[0] in kept}

    def checked(
        self, brokers: Brokers, groups: Mapping[str, GroupLag], *, limit_s: float
    ) -> dict[str, GroupLag]:
        """Return the groups with `PartitionLag.is_read`; `limit_s` is in seconds per request."""
        due: dict[tuple[int, int], set[TopicPartition]] = {}
        having = set()  # the groups that have a small lag
        for name, group in groups.items():
            for one in group.partitions:
                tail, key = _tail(one), (name, one.tp)
                last, answer = self._known.get(key, (None, None))
                if tail is None:
                    self._known.pop(key, None)
                    continue
                having.add(name)
                self._known[key] = tail, answer if tail == last else None
                if last is None or (tail == last and answer is None):
                    due.setdefault(tail, set()).add(one.tp)
        found = _without_messages(brokers, due, limit_s)
        return {
            name: replace(
                group,
                partitions=tuple(self._answered(name, one, found) for one in group.partitions),
            )
            if name in having
            else group
            for name, group in groups.items()
        }

    def _answered(
        self, group: str, one: PartitionLag, found: Mapping[tuple[TopicPartition, int, int], bool]
    ) -> PartitionLag:
        known = self._known.get((group, one.tp))
        if known is None:
            return one
        tail, answer = known
        answer = found.get((one.tp, *tail), answer)
        self._known[group, one.tp] = tail, answer
        return replace(one, is_read=True) if answer else one


def _tail(one: PartitionLag) -> tuple[int, int] | None:
    """Return offset and log end if the difference is small."""
    if not isinstance(one.committed, int) or isinstance(one.log, str):
        return None
    is_small = one.log.start <= one.committed < one.log.end <= one.committed + FEW
    return (one.committed, one.log.end) if is_small else None


def _without_messages(
    brokers: Brokers, tails: Mapping[tuple[int, int], Collection[TopicPartition]], limit_s: float
) -> dict[tuple[TopicPartition, int, int], bool]:
    """Ask for one tail of each partition: the messages from a committed offset to the log's end.

    Groups with another offset of the partition are asked about in a later reading.
    """
    asked: dict[TopicPartition, tuple[int, int]] = {}
    for tail, partitions in tails.items():
        for tp in partitions:
            if len(asked) < MOST_TAILS:
                asked.setdefault(tp, tail)
    found = without_messages(brokers, asked, limit_s=limit_s)
    return {(tp, *asked[tp]): answer for tp, answer in found.items()}


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group and its partitions, sorted.

    The partitions are those that the group owns, has offsets of, or subscribes to.

    Attributes:
        topic_sizes: topic -> the number of its partitions, for the topics of this group that exist
            and whose znodes could be read. An offset may belong to a partition beyond it.
    """

    image: GroupImage
    requested_topics: RequestedTopics
    partitions: tuple[PartitionLag, ...]
    topic_sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The group's name."""
        return self.image.name

    @property
    def unreadable(self) -> Mapping[str, AccessDeniedError]:
        """Path -> the error of a znode that this client may not read. What these znodes hold is
        unknown: members may be missing, and so may partitions whose topic is unknown."""
        return self.image.unreadable

    @property
    def subscribed(self) -> set[TopicPartition]:
        """The existing partitions of the topics to which members subscribe: each should have an
        owner. Others have none, for example if only an offset is left of them."""
        partitions = self.requested_topics.partitions.items()
        return {TopicPartition(topic, number) for topic, found in partitions for number in found}

    @property
    def members(self) -> list[MemberReport]:
        """The registered members, sorted."""
        return list(member_reports(self.image, self.requested_topics))


AskKafka = Callable[
    [Brokers, Mapping[str, Collection[TopicPartition]]],
    Mapping[str, Mapping[TopicPartition, OffsetAndMetadata | str | None]],
]
"""Returns the offsets in Kafka of the partitions of each group."""

AskLogs = Callable[[Brokers, Collection[TopicPartition]], Mapping[TopicPartition, LogRange | str]]


def group_lags(
    connection: ZooKeeperClient,
    names: Iterable[str],
    *,
    limit_s: float,
    only: Selection | None = None,
    logs: AskLogs | None = None,
    kafka: AskKafka | None = None,
    tails: TailCheck | None = None,
    stores: StoreWatch | None = None,
) -> dict[str, GroupLag]:
    """Return group -> its lag; groups that do not exist are left out.

    Args:
        limit_s: seconds per request to the brokers.
        only: topics and partitions to report; None means all that the group owns, has offsets of,
            or subscribes to.
        logs, kafka: functions that ask the brokers; default `BrokerReading.ends` and
            `BrokerReading.committed`, so brokers that do not answer are asked once for all groups.
        tails, stores: the memory of earlier readings, if the groups are read repeatedly.

    Raises ZooKeeperUnreachableError. If this client may not read a znode, or brokers do not answer,
    the result contains the reason.
    """
    images = read_readable_parts(connection, names)
    return lags_of(
        connection,
        images,
        limit_s=limit_s,
        only=only,
        logs=logs,
        kafka=kafka,
        tails=tails,
        stores=stores,
    )


def lags_of(
    connection: ZooKeeperClient,
    images: Mapping[str, GroupImage],
    *,
    limit_s: float,
    only: Selection | None = None,
    logs: AskLogs | None = None,
    kafka: AskKafka | None = None,
    tails: TailCheck | None = None,
    stores: StoreWatch | None = None,
) -> dict[str, GroupLag]:
    """Return group -> its lag, as `group_lags` does, for groups that have already been read."""
    topics = read_topic_payloads(connection, images.values())
    brokers = registered_brokers(connection)
    decoded = {topic: partitions_in(topic, topics) for topic in topics}
    existing = {topic: frozenset(found) for topic, (found, _) in decoded.items()}
    faults = {topic: fault for topic, (_, fault) in decoded.items() if fault}
    wants = {name: requested_topics(image.members, topics) for name, image in images.items()}
    wanted = {
        name: sorted(selected(_concerned(image, wants[name], existing), only))
        for name, image in images.items()
    }
    there = {
        tp
        for of_group in wanted.values()
        for tp in of_group
        if tp.partition in existing.get(tp.topic, ())
    }
    found, stores = {}, stores or StoreWatch()
    with closing(KeptLogs(limit_s=limit_s)) as kept:
        reading = kept.reading()
        logs, kafka = logs or reading.ends, kafka or reading.committed
        asked = {name: [tp for tp in tps if tp in there] for name, tps in wanted.items()}
        in_kafka = kafka(brokers, asked)
        ranges = logs(brokers, sorted(there))  # last: an end is then at least the read offset
        for name, image in images.items():
            stored = in_kafka.get(name, {})
            lags = tuple(
                _lag(image, tp, stored.get(tp), ranges.get(tp) or _missing(tp, existing, faults))
                for tp in wanted[name]
            )
            topics_of = {one.topic for one in lags} & (existing.keys() - faults.keys())
            sizes = {topic: len(existing[topic]) for topic in topics_of}
            found[name] = stores.checked(GroupLag(image, wants[name], lags, sizes))
    return (tails or TailCheck()).checked(brokers, found, limit_s=limit_s)


def unasked_logs(
    brokers: Brokers, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogRange | str]:
    """Return NOT_ASKED for each partition. Pass this function as `logs` to `group_lags` to ask no
    broker."""
    return dict.fromkeys(partitions, NOT_ASKED)


def unasked_kafka(*_: object) -> dict[str, dict[TopicPartition, OffsetAndMetadata | str | None]]:
    """Return no offset of any group. Pass this function as `kafka` to `group_lags` to ask no
    broker."""
    return {}


def _concerned(
    image: GroupImage, wanted: RequestedTopics, existing: Mapping[str, frozenset[int]]
) -> set[TopicPartition]:
    topics = wanted.threads.keys() | image.topics
    there = {TopicPartition(topic, n) for topic in topics for n in existing.get(topic, ())}
    return image.partitions | there


def _missing(
    tp: TopicPartition, existing: Mapping[str, frozenset[int]], faults: Mapping[str, str]
) -> str:
    if tp.topic in faults:
        return f"the topic's partitions cannot be read: {faults[tp.topic]}"
    return NO_SUCH_PARTITION if tp.topic in existing else NO_SUCH_TOPIC


def _lag(
    image: GroupImage,
    tp: TopicPartition,
    in_kafka: OffsetAndMetadata | str | None,
    log: LogRange | str,
) -> PartitionLag:
    owner, offset = image.owners.get(tp), image.offsets.get(tp)
    in_zookeeper: int | str | None = None
    if refusal := image.refusal(paths.offset(image.name, tp)):
        in_zookeeper = str(refusal)
    if offset is not None:
        in_zookeeper = offset.fault or None if offset.value is None else offset.value
        if isinstance(in_zookeeper, int) and in_zookeeper < 0:
            in_zookeeper = None  # JVM members write a negative offset for "no offset"
    return PartitionLag(
        tp.topic,
        tp.partition,
        owner.thread if owner else None,
        owner.session if owner else 0,
        in_zookeeper,
        offset.mtime_ms if offset else 0,
        in_kafka,
        log,
        owner.fault if owner else str(image.refusal(paths.owner(image.name, tp)) or ""),
        owner_of(owner.thread, image.registrations) if owner else None,
        _remark(offset) if offset else "",
    )


def _remark(offset: OffsetNode) -> str:
    if offset.is_empty:
        return "its offset znode is empty, which means no offset"
    if offset.fault and offset.value is not None:
        return f"its offset is plainly {offset.value}, but JVM members cannot read it"
    return ""


# ---- idle groups ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdleGroup:
    """A group without members that has not committed for some time.

    Attributes:
        topics: the topics for which it has offsets or owner znodes, sorted.
        lag: messages from its offsets to the ends of the logs; a string that says why it is
            unknown; None without an offset.
        committed_ms: time of its last commit in ZooKeeper by the server's clock, in ms since 1970;
            None if it has no offset, in ZooKeeper or in Kafka.
    """

    summary: GroupSummary
    topics: tuple[str, ...]
    lag: int | str | None
    committed_ms: int | None


def idle_groups(
    connection: ZooKeeperClient,
    *,
    idle_s: float,
    limit_s: float,
    topics: Selection | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[IdleGroup], list[str], dict[str, str]]:
    """Return the groups without members whose last commit is at least `idle_s` seconds old.

    The result has three parts: these groups, the oldest commit first; the names of the groups whose
    last commit is unknown; and group -> reason for the groups that may be such groups, and that
    this client may not read entirely. A group without any offset counts from its creation. Raises
    what `ZooKeeperClient.read` raises.
    """
    cutoff_ms = 1_000 * (time.time() - idle_s)
    summaries = {
        one.name: one
        for one in group_summaries(connection, topics=topics)
        if one.state is not GroupState.LIVE
    }
    denied: dict[str, str] = {}
    old: dict[str, GroupImage] = {}
    for some in in_slices(list(summaries), on_progress):
        images = read_readable_parts(connection, some)
        # What may be read of a group may show that it is in use.
        unused = {name: one for name, one in images.items() if _last_use_ms(one) <= cutoff_ms}
        denied |= {name: str(one.unknown_use) for name, one in unused.items() if one.unknown_use}
        old |= {name: one for name, one in unused.items() if not one.unknown_use}
    found: list[IdleGroup] = []
    unknown: list[str] = []
    for name, group in lags_of(connection, old, limit_s=limit_s).items():
        committed = [node.mtime_ms for node in group.image.offsets.values()]
        if not committed and any(one.committed is not None for one in group.partitions):
            unknown.append(name)
            continue
        known = {*group.image.offsets, *group.image.owners}
        used = tuple(sorted({tp.topic for tp in known}))
        lag = total_lag(group)
        found.append(IdleGroup(summaries[name], used, lag, max(committed, default=None)))
    return sorted(found, key=lambda one: one.committed_ms or 0), unknown, denied


def _last_use_ms(image: GroupImage) -> float:
    """Return the time of the last commit, or of the group's creation; infinity if it is in use.

    Each write to a foreign znode counts as a commit. The time is 0 if this client may not read it.
    """
    if image.health.live or image.health.unregistered_owners:
        return math.inf
    written = [node.mtime_ms for node in image.offsets.values()]
    written += [one.mtime_ms for one in image.foreign.values()]
    created = image.nodes.get(paths.group(image.name))
    return max(written, default=created.stat.mtime_ms if created else 0)


def total_lag(group: GroupLag) -> int | str | None:
    """Return the lag of all partitions with an offset; a partition beyond its log has none.

    The result is a string with the reason if the lag of a partition is unknown, or if the group may
    use partitions that cannot be read.
    """
    lags = [one.messages for one in group.partitions if one.committed is not None]
    unknown = [lag for lag in lags if isinstance(lag, str)]
    if group.image.has_unknown_partitions:
        unknown.append(str(group.image.denial))
    if unknown:
        return unknown[0]
    return sum(max(0, lag) for lag in lags if isinstance(lag, int)) if lags else None


# ---- status --------------------------------------------------------------------------------------


WINDOW = 10
"""Number of last commits that are kept for a partition, as in Burrow (`intervals`)."""

PATIENCE_S = 120.0
"""Seconds without a commit after which a partition counts as not committing: twice the default of
`auto.commit.interval.ms`."""


class Status(Enum):
    """Burrow's states of a partition."""

    OK = "OK"
    WARNING = "WARNING"  # offsets are committed, and the lag grows
    STALLED = "STALLED"  # the partition has an owner, but its offset does not advance
    STOPPED = "STOPPED"  # the partition has no owner and no commits
    REWOUND = "REWOUND"  # the offset went back


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit: its time in seconds since 1970, its offset, and the lag when it was first read."""

    at_s: float
    offset: int
    lag: int


@dataclass(slots=True)
class CommitWindow:
    """Window of the last commits of one partition; `observe` records a reading.

    Attributes:
        size: the number of commits that are kept.
        caught_up_s: time of the last reading without a lag, in seconds since 1970; 0 if there is
            none.
        rate: committed messages per second between the last two readings, if both have an offset.
    """

    size: int = WINDOW
    commits: list[SeenCommit] = field(default_factory=list)
    lag: int | None = None
    is_owned: bool = False
    source: Source | None = None
    caught_up_s: float = 0.0
    rate: float | None = None
    _read: tuple[float, int] | None = None  # the time and the offset of the last reading

    def add(
        self,
        *,
        now_s: float,
        offset: int | None,
        committed_s: float | None,
        lag: int | None,
        is_owned: bool,
    ) -> None:
        """Record a reading; `committed_s` is the time of the commit, if the store keeps it."""
        self.lag, self.is_owned = lag, is_owned
        if lag == 0:
            self.caught_up_s = now_s
        if offset is None or lag is None:
            return
        last = self.commits[-1] if self.commits else None
        if last and last.offset == offset and committed_s in (None, last.at_s):
            return
        self.commits.append(SeenCommit(now_s if committed_s is None else committed_s, offset, lag))
        del self.commits[: -self.size]

    def observe(self, one: PartitionLag, now_s: float) -> None:
        """Record a reading of the partition at `now_s`, in seconds since 1970."""
        if one.source in (Source.ZOOKEEPER, Source.KAFKA):
            if self.source not in (None, one.source):
                self.commits.clear()  # the offsets of two stores are not one sequence
                self._read = None
            self.source = one.source
        offset = one.committed if isinstance(one.committed, int) else None
        self.rate = None
        if offset is not None:
            if self._read is not None and now_s > self._read[0]:
                self.rate = (offset - self._read[1]) / (now_s - self._read[0])
            self._read = now_s, offset
        self.add(
            now_s=now_s,
            offset=offset,
            committed_s=None if one.committed_ms is None else one.committed_ms / 1000,
            lag=one.messages if isinstance(one.messages, int) else None,
            # STOPPED would claim that there is no owner.
            is_owned=one.is_owned or one.is_owner_unknown,
        )

    def status(
        self, now_s: float, *, patience_s: float = PATIENCE_S, allowed_lag: int = 0
    ) -> Status | None:
        """Return the status that follows from the commits so far; None if there are too few
        commits. See `evaluate` for the arguments."""
        if self.lag is None or not self.commits:
            return None
        return evaluate(
            self.commits,
            lag=self.lag,
            is_owned=self.is_owned,
            now_s=now_s,
            patience_s=patience_s,
            allowed_lag=allowed_lag,
            caught_up_s=self.caught_up_s,
        )


def evaluate(
    commits: Sequence[SeenCommit],
    *,
    lag: int,
    is_owned: bool,
    now_s: float,
    patience_s: float,
    allowed_lag: int = 0,
    caught_up_s: float = 0.0,
) -> Status | None:
    """Return the status of a partition with at least one commit; None if more commits are needed.

    `lag` is the present lag in messages. `patience_s` is the longest normal time without a commit.
    A lag up to `allowed_lag` counts as none (Burrow's `allowed-lag`). `caught_up_s` is the time of
    the last reading without a lag: until then there was nothing to commit.
    """
    if lag <= allowed_lag:
        return Status.OK
    # The pause comes first: the commits of a dead group show for ever how it was when it lived.
    span_s = commits[-1].at_s - commits[0].at_s
    if now_s - max(commits[-1].at_s, caught_up_s) > max(span_s, patience_s):
        return Status.STALLED if is_owned else Status.STOPPED
    pairs = list(pairwise(commits))
    if any(after.offset < before.offset for before, after in pairs):
        return Status.REWOUND
    if any(one.lag <= allowed_lag for one in commits):
        return Status.OK
    if not pairs:
        return None
    if all(after.offset == before.offset for before, after in pairs):
        return Status.STALLED
    if all(after.lag >= before.lag for before, after in pairs):
        return Status.WARNING
    return Status.OK
