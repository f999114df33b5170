"""What the logs of `__consumer_offsets` say about the offsets of groups in Kafka.

    past = read_past_in_kafka(find_replicas(["/var/lib/kafka"]), at_ms=at_ms)

"The moment" is the time that the caller asks for. A "commit" is a record that stores a group's
offset of a partition; all commits of this offset have the same key.

The broker's cleaner rewrites a log from its beginning up to some place, and removes each record
whose key has a later record there. If it had removed a commit, it would also have removed all
earlier commits of the same key. So the history of a group's offset is complete from the first
commit that is left. Before this commit the offset is unknown, unless the log lacks no record at all
up to the moment.

Records may also be missing because a segment is lost or damaged. Above the place that the cleaner
has reached, each missing record is such a loss. A group's offset is then unknown from the loss to
its next commit. Without the cleaner's checkpoint, a record that is missing within a segment proves
that the cleaner has been there, because nothing else rewrites a segment.

Each replica is judged alone, because each broker cleans its own logs. A replica that ends before
the moment counts only if no other replica is longer.

A commit within a transaction takes effect at the marker that commits the transaction.

Kafka: `kafka.log.LogCleaner`, `kafka.coordinator.group.GroupMetadataManager`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from zkconsumer.errors import escaped
from zkconsumer.history.inputs import Problem
from zkconsumer.history.offset_logs import Break, Marker, Record, Replica
from zkconsumer.history.offset_records import (
    CommitKey,
    GroupKey,
    StoredMember,
    decode_commit,
    decode_key,
    decode_owners,
)
from zkconsumer.history.offsets import KafkaCommit, PastKafkaOffsets
from zkconsumer.history.tables import KAFKA, Commits, Incident, Ownership
from zkconsumer.protocol.kafka_fields import MalformedError
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.times import time_text

NEVER: Final = 1 << 62
"""A time after all others, in ms."""

Key: TypeAlias = tuple[str, TopicPartition]
"""A group, and a partition whose offset it has committed."""


PastInKafka: TypeAlias = KafkaCommit | str | None
"""The offset in effect: the commit, None if there was no offset, or why it is unknown."""


class OffsetChange(NamedTuple):
    """A change of an offset.

    Attributes:
        after: the new offset, None if it is deleted, or why the record cannot be read.
        place: the offset of its record in the log.
        at: the offset at which it takes effect: that of its record, or of the transaction's marker.
        from_ms, until_ms: it takes effect between these times; they are equal if its time is known.
    """

    key: Key
    after: PastInKafka
    place: int
    at: int
    from_ms: int
    until_ms: int
    file: str


class Gap(NamedTuple):
    """Offsets from `first` to `end` - 1 that are missing in a log.

    Attributes:
        before_ms: the time of the last record before them.
        is_inner: whether the segment of the next record should contain some of them.
        is_damage: whether records cannot be read there.
    """

    first: int
    end: int
    before_ms: int
    is_inner: bool
    is_damage: bool

    @property
    def is_beginning(self) -> bool:
        """Whether no record precedes the gap."""
        return self.first == 0


class LogReplay:
    """Replays one replica; read `changes` to their end before any other attribute.

    Attributes:
        end: the offset after the last record.
        until_ms: the highest time of a record.
        count: the number of records and markers.
        gaps: the offsets that are missing.
    """

    def __init__(self, replica: Replica, groups: Collection[str] = ()) -> None:
        """An empty collection of groups means all groups."""
        self.replica = replica
        self._wanted = frozenset(groups)
        self.end = 0
        self.count = 0
        self.from_ms = self.until_ms = 0
        self.gaps: list[Gap] = []
        self._base = 0  # the offset with which the present segment begins
        self._is_damaged = False
        # The changes of each producer's transaction.
        self._pending: dict[int, list[OffsetChange]] = {}
        self._untimed: list[OffsetChange] = []  # until a time after them is known
        self._applied: dict[Key, int] = {}
        self._owners: dict[str, Mapping[TopicPartition, StoredMember]] = {}

    # ---- reading -----------------------------------------------------------------------------

    def changes(self) -> Iterator[OffsetChange]:
        """Yield the changes of offsets in the order in which they take effect.

        Raises HistoryError if a file cannot be read.
        """
        for entry in self.replica.entries():
            if isinstance(entry, Break):
                self._base = entry.base
                self._is_damaged = self._is_damaged or entry.is_damage
                continue
            self._advance(entry.offset)
            if isinstance(entry, Marker):
                yield from self._timed(entry.time_ms, self._of_marker(entry))
            else:
                yield from self._timed(*self._of(entry))
        yield from self._now_timed(NEVER)
        if self._is_damaged:
            self._advance(NEVER)

    def _advance(self, offset: int) -> None:
        """Record the offsets that are missing before `offset`."""
        if offset > self.end or (self._is_damaged and offset > 0):
            damage, inner = self._is_damaged, self._base < offset
            self.gaps.append(Gap(self.end, offset, self.until_ms, inner, damage))
        self._is_damaged = False
        if offset != NEVER:
            self.end = offset + 1
            self.count += 1

    def _timed(self, time_ms: int | None, found: Iterable[OffsetChange]) -> Iterator[OffsetChange]:
        """Yield the changes of an entry, and those before it whose times are known now."""
        if time_ms is not None:
            yield from self._now_timed(time_ms)
            self.from_ms = self.from_ms or time_ms
            self.until_ms = max(self.until_ms, time_ms)
        for one in found:
            self._applied[one.key] = one.place
            if time_ms is None:
                self._untimed.append(one)
            else:
                yield one

    def _now_timed(self, until_ms: int) -> Iterator[OffsetChange]:
        """Yield the pending changes without a time: they happened before `until_ms`."""
        for one in self._untimed:
            yield one._replace(until_ms=max(until_ms, one.from_ms))
        self._untimed.clear()

    # ---- entries -----------------------------------------------------------------------------

    def _of_marker(self, marker: Marker) -> Iterator[OffsetChange]:
        """Yield the changes of a transaction that is committed.

        A commit that was written after them wins, although the transaction ends later.
        """
        for one in self._pending.pop(marker.producer, ()):
            if marker.commits and self._applied.get(one.key, -1) < one.place:
                time_ms = one.until_ms if marker.time_ms is None else marker.time_ms
                after = one.after
                if isinstance(after, KafkaCommit):
                    after = after._replace(time_ms=time_ms)
                yield one._replace(after=after, at=marker.offset, from_ms=time_ms, until_ms=time_ms)

    def _of(self, record: Record) -> tuple[int | None, list[OffsetChange]]:
        """Return the time of a record, and the change that it makes, unless this change waits for
        the end of a transaction."""
        try:
            key = decode_key(record.key or b"")
        except MalformedError as error:
            what = f"the key of the record at offset {record.offset} is malformed: {error}"
            self.replica.problems.append(Problem("damaged", record.file, 0, what, KAFKA))
            return record.time_ms, []
        is_wanted = key is not None and (not self._wanted or key.group in self._wanted)
        if isinstance(key, GroupKey) and is_wanted:
            self._owners[key.group] = _owners(record.value)
        if not isinstance(key, CommitKey):
            return record.time_ms, []
        time_ms, change = self._change(key, record)
        if record.producer >= 0 and is_wanted:
            self._pending.setdefault(record.producer, []).append(change)
        return time_ms, [change] if record.producer < 0 and is_wanted else []

    def _change(self, key: CommitKey, record: Record) -> tuple[int | None, OffsetChange]:
        """Return the time of a commit's record, and the change that it makes.

        Before format v1, only the commit itself has a time; a deletion has none.
        """
        time_ms = record.time_ms
        after: PastInKafka = None
        if record.value is not None:
            try:
                value = decode_commit(record.value)
            except MalformedError as error:
                after = f"the record of its commit cannot be read: {error}"
            else:
                time_ms = value.time_ms if time_ms is None else time_ms
                owner = self._owners.get(key.group, {}).get(key.tp, _NOBODY)
                place = record.offset, record.file
                after = KafkaCommit(
                    value.offset, value.metadata, time_ms, owner.member, owner.host, *place
                )
        known = self.until_ms if time_ms is None else time_ms
        places = record.offset, record.offset
        change = OffsetChange((key.group, key.tp), after, *places, known, known, record.file)
        return time_ms, change

    # ---- what is missing ---------------------------------------------------------------------

    def unexplained_gaps(self) -> list[Gap]:
        """Return the gaps that the cleaner does not explain: a segment is lost or damaged."""
        inner = (one.end for one in self.gaps if one.is_inner and not one.is_damage)
        cleaned, absent = self.replica.opened.cleaned, self.replica.opened.absent
        reached = max(inner, default=0) if cleaned is None else cleaned
        return [
            one
            for one in self.gaps
            if one.is_damage
            or (one.end > reached and not one.is_beginning)
            or any(one.first <= base < one.end for base in absent)
        ]

    def problems(self) -> Iterator[Problem]:
        """Yield the damage and the losses of the files."""
        yield from self.replica.problems
        for one in self.unexplained_gaps():
            if not one.is_damage:
                what = f"the records with offsets {one.first} to {one.end - 1} are missing"
                yield Problem("missing", self.replica.name, 0, what, KAFKA)


_NOBODY: Final = StoredMember("", "", "")


def _owners(value: bytes | None) -> Mapping[TopicPartition, StoredMember]:
    """Return a group's members by their partitions; none if they cannot be read."""
    try:
        return {} if value is None else decode_owners(value)
    except MalformedError:
        return {}


# ---- the offsets at a moment ---------------------------------------------------------------------


def read_past_in_kafka(
    replicas: Iterable[Replica],
    at_ms: int,
    *,
    groups: Collection[str] = (),
    on_progress: Callable[[int], None] = lambda records: None,
) -> PastKafkaOffsets:
    """Read the offsets that were in effect at a time.

    Args:
        at_ms: milliseconds since 1970. The moment is after the last commit with this time.
        groups: the groups to read; an empty collection means all groups.
        on_progress: called with the number of records read so far.

    Raises HistoryError if a file cannot be read.
    """
    views: dict[int, list[_Moment]] = {}
    count = 0
    for replica in replicas:
        view = _Moment(LogReplay(replica, groups), at_ms)
        for more in view.read():
            on_progress(count + more)
        count += view.replay.count
        views.setdefault(replica.partition, []).append(view)
    offsets: dict[str, dict[TopicPartition, KafkaCommit | str]] = {}
    ended: dict[str, set[TopicPartition]] = {}
    for some in views.values():
        for (group, tp), past, continues in _agreed(some):
            if past is not None:
                offsets.setdefault(group, {})[tp] = past
                if not continues:
                    ended.setdefault(group, set()).add(tp)
    replays = [view.replay for some in views.values() for view in some]
    return PastKafkaOffsets(
        at_ms,
        {group: dict(sorted(offsets[group].items())) for group in sorted(offsets)},
        {group: frozenset(some) for group, some in ended.items()},
        min((one.from_ms for one in replays if one.from_ms), default=0),
        max((one.until_ms for one in replays), default=0),
        tuple(problem for one in replays for problem in one.problems()),
    )


@dataclass
class _Moment:
    """The offsets at the moment according to one replica.

    Attributes:
        last: the last change of each offset before the moment.
        later: the first change of each offset after the moment; no change of this
            offset after it counts, even if another broker's clock gave it an earlier time.
        unsure: the offsets with a change whose time may be before or after the moment.
    """

    replay: LogReplay
    at_ms: int
    last: dict[Key, OffsetChange] = field(default_factory=dict)
    later: dict[Key, OffsetChange] = field(default_factory=dict)
    unsure: set[Key] = field(default_factory=set)

    def read(self) -> Iterator[int]:
        """Read the log; yield the number of its records that have been read."""
        for number, one in enumerate(self.replay.changes()):
            if number % 10_000 == 0:
                yield self.replay.count
            if one.key in self.later:
                continue
            if one.from_ms > self.at_ms:
                self.later[one.key] = one
            elif one.until_ms > self.at_ms:
                self.unsure.add(one.key)
            else:
                self.last[one.key] = one
        lost = [one.end for one in self.replay.unexplained_gaps() if one.before_ms <= self.at_ms]
        self._lost = max(lost, default=0)
        self._is_complete = all(one.before_ms > self.at_ms for one in self.replay.gaps)

    @property
    def continues(self) -> bool:
        """Whether the log continues after the moment."""
        return self.replay.until_ms > self.at_ms

    def past(self, key: Key) -> PastInKafka:
        """Return the offset in effect at the moment."""
        last, later = self.last.get(key), self.later.get(key)
        if key in self.unsure:
            return "the record of its deletion has no time, and may be before or after the moment"
        if last is not None and last.place >= self._lost:
            return last.after
        if last is not None or self._lost:
            return "records before the moment are lost, which may contain a commit"
        if self._is_complete:
            return None
        left = f"; the first commit that is left is of {time_text(later.from_ms)}" if later else ""
        return f"the broker has removed records from before the moment by compaction{left}"


def _agreed(views: Sequence[_Moment]) -> Iterator[tuple[Key, PastInKafka, bool]]:
    """Yield each offset at the moment, from the replicas of one partition of the topic, and whether
    a log continues after the moment.

    A replica that ends before the moment lacks the newest commits, so it counts only if no other
    replica is longer.
    """
    longest = max(one.replay.end for one in views)
    counted = [one for one in views if one.continues or one.replay.end == longest]
    continues = any(one.continues for one in counted)
    keys = dict.fromkeys(
        key for one in views for some in (one.last, one.later, one.unsure) for key in some
    )
    for key in keys:
        answers = [one.past(key) for one in counted]
        known = [one for one in answers if not isinstance(one, str)]
        if len({one and (one.offset, one.metadata, one.place) for one in known}) > 1:
            names = ", ".join(one.replay.replica.name for one in counted)
            yield key, f"the replicas disagree: {names}", continues
        else:
            yield key, known[0] if known else answers[0], continues


# ---- commits as rows -----------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class KafkaCommits:
    """The commits in Kafka, as rows of the tables.

    Attributes:
        commits, incidents: the rows.
        groups: the groups with a commit.
        records: the number of records that were read.
        from_ms, until_ms: the times of the first and of the last record; 0 if there is none.
        compacted: partition of `__consumer_offsets` -> the time of the last record before which
            commits are missing.
        problems: losses and damage of the files.
    """

    commits: list[Commits] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    records: int = 0
    from_ms: int = 0
    until_ms: int = 0
    compacted: dict[int, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class KafkaLogs:
    """Reads the commits of groups from brokers' logs; `read` reads them again if they have grown.

    Args:
        find: returns the replicas, as `find_replicas` does.
        groups: the groups to read; an empty collection means all groups.
        on_progress: called with the number of records read so far.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Replica]],
        groups: Collection[str] = (),
        on_progress: Callable[[int], None] = lambda records: None,
    ) -> None:
        self._find, self._groups, self._on_progress = find, groups, on_progress
        self._sizes: list[tuple[str, int]] = []
        self._changes: list[list[OffsetChange]] = []
        self._replays: list[LogReplay] = []

    def read(self, owners: Iterable[Ownership] = ()) -> KafkaCommits:
        """Return the commits; `owners` are the owners of partitions in ZooKeeper.

        Raises HistoryError if a file cannot be read.
        """
        replicas = self._find()
        sizes = [(one.name, one.size) for one in replicas]
        if sizes != self._sizes:
            self._read(replicas)
            self._sizes = sizes
        found = KafkaCommits(
            records=sum(one.count for one in self._replays),
            from_ms=min((one.from_ms for one in self._replays if one.from_ms), default=0),
            until_ms=max((one.until_ms for one in self._replays), default=0),
            problems=[problem for one in self._replays for problem in one.problems()],
        )
        runs = _Runs(found, _Owners(owners))
        for changes in self._changes:
            for one in changes:
                runs.add(one)
        for replay in self._replays:
            if replay.gaps:
                number = replay.replica.partition
                before_ms = max(gap.before_ms for gap in replay.gaps)
                found.compacted[number] = min(before_ms, found.compacted.get(number, before_ms))
        return found

    def _read(self, replicas: Sequence[Replica]) -> None:
        self._replays, self._changes = [], []
        parts: dict[int, list[LogReplay]] = {}
        for replica in replicas:
            parts.setdefault(replica.partition, []).append(LogReplay(replica, self._groups))
        for _, some in sorted(parts.items()):
            self._replays += some
            self._changes.append(list(_merged([one.changes() for one in some])))
            self._on_progress(sum(one.count for one in self._replays))


def _merged(streams: Sequence[Iterator[OffsetChange]]) -> Iterator[OffsetChange]:
    """Yield the changes of the replicas of one partition, each once.

    A change that the cleaner of one broker has removed may be left on another one.
    """
    if len(streams) == 1:
        yield from streams[0]
        return
    seen: set[tuple[Key, int]] = set()
    for one in heapq.merge(*streams, key=lambda change: change.at):
        if (one.key, one.place) not in seen:
            seen.add((one.key, one.place))
            yield one


class _Owners:
    """The owners of partitions in ZooKeeper, by group, partition and time."""

    def __init__(self, rows: Iterable[Ownership]) -> None:
        self._rows: dict[Key, list[Ownership]] = {}
        for row in rows:
            tp = TopicPartition(row.topic, row.partition)
            self._rows.setdefault((row.group, tp), []).append(row)

    def at(self, key: Key, time_ms: int) -> Ownership | None:
        """Return who owned a partition at a time, if it had an owner."""
        rows = self._rows.get(key, ())
        at = bisect_right(rows, time_ms, key=lambda row: row.time_ms) - 1
        if at < 0:
            return None
        ended_ms = rows[at].ended_ms
        return rows[at] if ended_ms is None or time_ms <= ended_ms else None


class _Runs:
    """Turns the changes of offsets into runs of commits."""

    def __init__(self, found: KafkaCommits, owners: _Owners) -> None:
        self._found, self._owners = found, owners
        self._last: dict[Key, Commits] = {}

    def add(self, change: OffsetChange) -> None:
        """Add the next change of an offset."""
        group, tp = change.key
        if not isinstance(change.after, KafkaCommit):
            self._end(change)
            return
        self._found.groups.add(group)
        after, row = change.after, self._last.get(change.key)
        owner = None if after.member else self._owners.at(change.key, after.time_ms)
        by = after.member if owner is None else owner.consumer
        if row is not None and row.by == by and after.offset >= row.last:
            row.longest_pause_ms = max(row.longest_pause_ms, after.time_ms - row.last_ms)
            row.last, row.last_ms = after.offset, after.time_ms
            row.count += 1
            return
        begins = "first" if row is None else "member" if row.by != by else "moved back"
        self._last[change.key] = Commits(
            **_event(change, after.time_ms),
            topic=tp.topic,
            partition=tp.partition,
            session=None if owner is None else owner.session,
            by=escaped(by),
            begins=begins,
            late=False,
            before=None if row is None else row.last,
            first=after.offset,
            last=after.offset,
            last_ms=after.time_ms,
            host=after.host or None,
            place=after.place,
        )
        self._found.commits.append(self._last[change.key])

    def _end(self, change: OffsetChange) -> None:
        """End the run of an offset that is deleted, or whose next record cannot be read."""
        group, tp = change.key
        row = self._last.pop(change.key, None)
        if isinstance(change.after, str):
            what = f"group {group}, {tp}: {change.after}"
            self._found.problems.append(Problem("unreadable", change.file, 0, what, KAFKA))
        elif row is not None:
            what = (
                f"the offset of {tp} in Kafka, which was {row.last}, was deleted: it expired, or"
                " its group or topic was deleted"
            )
            event = _event(change, change.from_ms)
            self._found.incidents.append(Incident(**event, kind="offset deleted", what=what))


def _event(change: OffsetChange, time_ms: int) -> dict[str, Any]:  # Any: the fields of a row
    return {
        "zxid": 0,
        "time_ms": time_ms,
        "file": change.file,
        "chroot": "",
        "group": change.key[0],
        "store": KAFKA,
    }
