"""Plans that move a group's offsets in ZooKeeper and Kafka, and the reader of committed offsets.

    with ZooKeeperClient(config) as connection:
        moved = plan_reset(
            connection, "billing", Reset(Kind.DURATION, now_ms - 3_600_000),
            topics={"orders": None}, limit_s=6.0,
        )
        apply(connection, moved.plan, backup_dir=Path("."))

The resets are those of `kafka-consumer-groups --reset-offsets`, with the rules of
`kafka.admin.ConsumerGroupCommand` (1.1): an offset outside the log is moved to the nearest end of
the log, and a time after the last message means the end of the log. `resolve` applies these rules
without I/O.

Offsets in Kafka (`offsets.storage=kafka`) have no versions. `apply` reads them again before the
first write, and then overwrites them. Brokers accept the write unless members of the new consumer
are in a group with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from zkconsumer.admin.group_changes import Targets, plan_offsets
from zkconsumer.admin.groups import (
    GroupImage,
    Selection,
    existing_group,
    in_slices,
    read_allowed_groups,
    read_groups,
    read_partitions,
    read_topic_names,
    registered_brokers,
    unknown_group,
    unknown_topic_remedy,
)
from zkconsumer.admin.plan import KafkaChange, Plan
from zkconsumer.errors import (
    Advice,
    ConfigError,
    RefusedError,
    RemedyOperation,
    first_few,
    quoted,
)
from zkconsumer.kafka.client_settings import Brokers
from zkconsumer.kafka.logs import (
    LogRange,
    are_times_exact,
    committed_in_kafka,
    log_ends,
    offsets_at,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import matching, white_list
from zkconsumer.protocol.group_znodes import OFFSETS, OWNERS
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, TopicPartition
from zkconsumer.times import time_text
from zkconsumer.zk.client import ZooKeeperClient

# ---- resets --------------------------------------------------------------------------------------


MAX_OFFSET: Final = 2**63 - 1


class Kind(Enum):
    """Kind of a reset; the values are the options of Kafka's tool."""

    EARLIEST = "to-earliest"  # the start of the log
    LATEST = "to-latest"  # the end of the log
    OFFSET = "to-offset"  # a given offset
    DATETIME = "to-datetime"  # the first message at a given time or later
    DURATION = "by-duration"  # the first message within a period that ends now
    SHIFT = "shift-by"  # a given number of messages forward, or back if it is negative
    CURRENT = "to-current"  # the present offset, moved into the range of the log
    FILE = "from-file"  # the offset in a file


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset: its kind, and its value, if the kind has one.

    `value` is an offset (OFFSET), a number of messages (SHIFT), or milliseconds since 1970
    (DATETIME, and DURATION as the start of the period).
    """

    kind: Kind
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetFacts:
    """The known values of a partition; a string in place of a value says why the value is unknown.

    Attributes:
        current: the committed offset; None if there is none.
        log: the range of the log.
        at: the offset of the first message at the time given for the reset, or later; None if there
            is no such message.
        wanted: the offset in the file of `Kind.FILE`.
    """

    current: int | str | None
    log: LogRange | str
    at: int | str | None = None
    wanted: int | None = None


def resolve(
    reset: Reset, partitions: Mapping[TopicPartition, OffsetFacts]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the new offset of each partition, and notes on offsets moved into the log.

    Raises RefusedError, which names the partitions, if a new offset cannot be determined.
    """
    targets: dict[TopicPartition, int] = {}
    notes: list[str] = []
    faults: list[str] = []
    for tp, known in partitions.items():
        target = _target(reset, known)
        if isinstance(target, str):
            faults.append(f"{tp}: {target}")
            continue
        targets[tp], note = clamped_to_log(target, known.log)
        if note:
            notes.append(f"{tp}: {note}")
    if faults:
        raise RefusedError(
            f"the new offset of {len(faults)} of {len(partitions)} partitions cannot be determined",
            where=first_few(faults, 5, separator="; "),
            remedy="remove the cause, or select other partitions",
            advice=Advice(RemedyOperation.SELECT_PARTITIONS),
        )
    return targets, notes


def _target(reset: Reset, known: OffsetFacts) -> int | str:
    """Return the new offset before it is moved into the log, or why it is unknown."""
    match reset.kind:
        case Kind.EARLIEST:
            return known.log if isinstance(known.log, str) else known.log.start
        case Kind.LATEST:
            return _end(known)
        case Kind.DATETIME | Kind.DURATION:
            return _end(known) if known.at is None else known.at
        case Kind.SHIFT:
            if known.current is None:
                return "there is no committed offset to shift"
            shift = reset.value
            return known.current if isinstance(known.current, str) else known.current + shift
        case Kind.CURRENT:
            return _end(known) if known.current is None else known.current
        case Kind.FILE:
            return "the file has no offset of it" if known.wanted is None else known.wanted
        case Kind.OFFSET:
            return reset.value


def _end(known: OffsetFacts) -> int | str:
    return known.log if isinstance(known.log, str) else known.log.end


def clamped_to_log(offset: int, log: LogRange | str) -> tuple[int, str]:
    """Return an offset moved to the nearest end of its log, and why; "" if it stays."""
    if isinstance(log, str):
        return max(0, offset), f"not checked against the log: {log}"
    if offset < log.start:
        return log.start, f"{offset} is before the start of the log; set to {log.start}"
    if offset > log.end:
        return log.end, f"{offset} is beyond the end of the log; set to {log.end}"
    return offset, ""


def parse_offset(text: str, *, where: str) -> int:
    """Return an offset from 0 to `MAX_OFFSET`. Raises ConfigError."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > MAX_OFFSET:
        raise ConfigError(
            f"{text[:80]!r} is not an offset",
            where=where,
            remedy=f"use a number from 0 to {MAX_OFFSET}",
        )
    return int(text)


def at_most(texts: Iterable[str], number: int) -> list[str]:
    """Return a note for each of the first `number` texts, and a note with the number of the
    others."""
    known = list(texts)
    more = len(known) - number
    return known if more <= 0 else [*known[:number], f"and {more} more"]


# ---- plans ---------------------------------------------------------------------------------------


_NOTES: Final = 20  # the maximum number of notes of one kind in a plan
_ASKED: Final = 20
"""Maximum number of groups whose offsets in Kafka are read for notes, since each group needs a
separate client. For other groups, a note says that it is unknown whether Kafka has offsets."""


class Times(Enum):
    """Whether approximate offsets are accepted for a reset by time.

    Brokers before 0.10 know only the times of log segments.
    """

    EXACT = "exact"
    APPROXIMATE = "approximate"


class UnknownGroup(Enum):
    """What to do about a group that does not exist."""

    REFUSE = "refuse"
    MAKE = "make"


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A plan, and partition -> end of the log, from which the lag is computed."""

    plan: Plan
    ends: Mapping[TopicPartition, int]


def plan_reset(
    connection: ZooKeeperClient,
    group: str,
    reset: Reset,
    *,
    topics: Selection | None,
    limit_s: float,
    storage: Storage = Storage.ZOOKEEPER,
    times: Times = Times.EXACT,
    unknown: UnknownGroup = UnknownGroup.REFUSE,
    wanted: Mapping[TopicPartition, int] | None = None,
    kind: str = "offsets reset",
) -> OffsetMove:
    """Plan to move a group's offsets as `kafka-consumer-groups --reset-offsets` does.

    Args:
        topics: topics and partitions; None means all that have an offset or an owner.
        limit_s: seconds per request to the brokers.
        storage: where offsets are changed; with both stores, the higher one is the current one.
        times: whether approximate offsets are accepted for a reset by time.
        wanted: partition -> offset, for `Kind.FILE`.

    Raises:
        UnknownGroupError: the group does not exist.
        ConfigError: a topic or a partition does not exist, or there is no offset to move.
        RefusedError: a new offset cannot be determined, or can only be approximated.
    """
    image = read_groups(connection, [group], directories=(OFFSETS, OWNERS)).get(group)
    if image is None and unknown is UnknownGroup.REFUSE:
        raise unknown_group(group, connection)
    there = image or GroupImage(group, {})
    partitions = sorted(_partitions(connection, there, topics) if wanted is None else wanted)
    if not partitions:
        raise ConfigError(
            f"group {group} has no offsets and no owners",
            remedy="select the partitions",
            advice=Advice(RemedyOperation.SELECT_PARTITIONS),
        )
    brokers = registered_brokers(connection)
    times_note = _by_time(brokers, reset, times)
    logs = log_ends(brokers, partitions, limit_s=limit_s)
    kafka = committed_in_kafka(brokers, group, partitions, limit_s=limit_s)
    at = _first_of(brokers, logs, reset.value, limit_s) if times_note else {}
    given = wanted or {}
    known = {
        tp: OffsetFacts(
            _current(there, tp, kafka.get(tp), storage), logs[tp], at.get(tp), given.get(tp)
        )
        for tp in partitions
    }
    targets, clamped = resolve(reset, known)
    plan = _plan(connection, kind, {group: targets}, {group: kafka}, storage=storage)
    notes = [*times_note, *_without_later_messages(at, logs), *at_most(clamped, _NOTES)]
    if storage is Storage.ZOOKEEPER and any(isinstance(one, tuple) for one in kafka.values()):
        notes.append(
            f"Kafka has offsets of group {group}, too, which members with offsets.storage=kafka"
            " read; they are not changed (storage `both` changes both)"
        )
    ends = {tp: log.end for tp, log in logs.items() if isinstance(log, LogRange)}
    return OffsetMove(plan.noted(*notes), ends)


def plan_import(
    connection: ZooKeeperClient,
    offsets: Mapping[str, Mapping[TopicPartition, int]],
    *,
    kind: str = "offsets import",
) -> Plan:
    """Plan to set offsets in ZooKeeper exactly as given; missing groups are created. Raises
    InvalidNameError for a missing group whose name Kafka does not allow.

    Unlike `plan_reset` with `Kind.FILE` this needs no broker. Notes name topics and partitions that
    do not exist.
    """
    wanted = {tp for of in offsets.values() for tp in of}
    existing = read_partitions(connection, {tp.topic for tp in wanted})
    missing = {
        f"topic {tp.topic} does not exist"
        if tp.topic not in existing
        else f"topic {tp.topic} has no partition {tp.partition}"
        for tp in wanted
        if tp.partition not in existing.get(tp.topic, ())
    }
    there = connection.stats(map(paths.group, offsets))
    for group in offsets:
        if paths.group(group) not in there:
            paths.validate_group(group)
    notes = at_most(sorted(missing), _NOTES)
    return plan_offsets(connection, kind, offsets, notes=notes)


def read_committed(
    connection: ZooKeeperClient,
    groups: Iterable[str],
    *,
    topics: Selection | None,
    limit_s: float,
    storage: Storage = Storage.ZOOKEEPER,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """Return group -> partition -> committed offset, and notes on offsets that cannot be read.

    Kafka is asked for `topics`, or for the topics for which the group has offsets or owners in
    ZooKeeper. With both stores the higher offset is used. `on_progress(done, total)` is called with
    the number of groups read so far and the total number. A group to which ZooKeeper denies access
    is left out with a note. Raises UnknownGroupError; AccessDeniedError if there is only one group;
    ConfigError for an unknown topic.
    """
    names = list(groups)
    directories = (OFFSETS,) if storage is Storage.ZOOKEEPER else (OFFSETS, OWNERS)
    found: dict[str, dict[TopicPartition, int]] = {}
    notes: list[str] = []
    brokers = Brokers() if storage is Storage.ZOOKEEPER else registered_brokers(connection)
    done = 0
    for some in in_slices(names):
        images, denied = read_allowed_groups(connection, some, directories=directories)
        for name in some:
            done += 1
            if name in denied:
                if len(names) == 1:
                    raise denied[name]
                notes.append(f"{name} is left out: {denied[name]}")
                continue
            if name not in images:
                raise unknown_group(name, connection)
            image = images[name]
            wanted: Iterable[TopicPartition] = image.offsets
            if topics is not None or storage is not Storage.ZOOKEEPER:
                wanted = sorted(_partitions(connection, image, topics))
            kafka: Mapping[TopicPartition, OffsetAndMetadata | str | None] = {}
            if brokers:
                kafka = committed_in_kafka(brokers, name, list(wanted), limit_s=limit_s)
            found[name] = {}
            for tp in wanted:
                at = _current(image, tp, kafka.get(tp), storage)
                if isinstance(at, int):
                    found[name][tp] = at
                elif at is not None:
                    notes.append(f"{name} {tp} is left out: {at}")
            on_progress(done, len(names))
    return found, at_most(notes, _NOTES)


def kafka_notes(connection: ZooKeeperClient, groups: Iterable[str], *, limit_s: float) -> list[str]:
    """Return notes on groups' offsets in Kafka, for a plan that changes only ZooKeeper.

    Kafka is asked for the topics below the group's `offsets` and `owners`, or for all topics if
    there are none. If the brokers do not answer, a note says so. `limit_s` is seconds per request.
    """
    names = list(groups)
    brokers = registered_brokers(connection)
    notes: list[str] = []
    for number, name in enumerate(names):
        more = len(names) - number - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        unknown = f"it is unknown whether Kafka has offsets of group {name}{others}, too: "
        if number == _ASKED:
            return [*notes, f"{unknown}only the first {_ASKED} groups are examined"]
        stored = committed_in_kafka(
            brokers, name, _ever_owned(connection, name), limit_s=limit_s
        ).values()
        if any(isinstance(one, OffsetAndMetadata) for one in stored):
            notes.append(
                f"Kafka has offsets of group {name}, too, which members with offsets.storage=kafka"
                " read; this plan changes only those in ZooKeeper"
            )
        elif faults := [one for one in stored if isinstance(one, str)]:
            return [*notes, unknown + faults[0]]  # the next group would time out as well
    return notes


def _ever_owned(connection: ZooKeeperClient, group: str) -> list[TopicPartition]:
    below = connection.children([paths.offsets(group), paths.owners(group)])
    topics = {name for names in below.values() for name in names}
    found = read_partitions(connection, sorted(topics) or read_topic_names(connection))
    return [TopicPartition(name, n) for name, numbers in found.items() for n in sorted(numbers)]


# ---- parts --------------------------------------------------------------------------------------


def _plan(
    connection: ZooKeeperClient,
    kind: str,
    targets: Mapping[str, Mapping[TopicPartition, int]],
    kafka: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata | str | None]],
    *,
    storage: Storage,
) -> Plan:
    changes: list[KafkaChange] = []
    if storage is not Storage.ZOOKEEPER:
        for group, of in targets.items():
            for tp, offset in of.items():
                before = kafka[group].get(tp)
                if isinstance(before, str):
                    raise RefusedError(
                        "the present offset in Kafka cannot be read", where=f"{tp}: {before}"
                    )
                if before is None or before.offset != offset:
                    changes.append(KafkaChange(group, tp, before, OffsetAndMetadata(offset)))
    in_zookeeper: Targets = {} if storage is Storage.KAFKA else targets
    plan = plan_offsets(connection, kind, in_zookeeper)
    return Plan.of(kind, plan.chroot, plan.changes, kafka=changes, notes=plan.notes)


def _by_time(brokers: Brokers, reset: Reset, times: Times) -> list[str]:
    """Return a note if the reset is by time; otherwise return no note.

    Raises RefusedError if the brokers cannot answer exactly and `times` demands it.
    """
    if reset.kind not in (Kind.DATETIME, Kind.DURATION):
        return []
    note = f"new offsets are those of the first messages at {time_text(reset.value)} or later"
    if are_times_exact(brokers):
        return [note]
    if times is Times.EXACT:
        raise RefusedError(
            "brokers before 0.10 know only the times of log segments",
            where=time_text(reset.value),
            remedy="accept the start of the last older segment, or of the log",
            advice=Advice(RemedyOperation.APPROXIMATE),
        )
    return [f"{note}, approximately: brokers before 0.10 know only the times of log segments"]


def _first_of(
    brokers: Brokers,
    logs: Mapping[TopicPartition, LogRange | str],
    at_ms: int,
    limit_s: float,
) -> Mapping[TopicPartition, int | str | None]:
    found = offsets_at(brokers, logs, at_ms, limit_s=limit_s)
    if are_times_exact(brokers):
        return found
    # If no segment is older, all messages of the log may be from that time or later.
    starts = {tp: log if isinstance(log, str) else log.start for tp, log in logs.items()}
    return {tp: starts[tp] if one is None else one for tp, one in found.items()}


def _without_later_messages(
    at: Mapping[TopicPartition, int | str | None], logs: Mapping[TopicPartition, LogRange | str]
) -> list[str]:
    """Return a note if a reset by time skips to the end of a log, as for a time in the future."""
    skipped = [tp for tp, one in at.items() if one is None and isinstance(logs[tp], LogRange)]
    if not skipped:
        return []
    of = f"{skipped[0]} has" if len(skipped) == 1 else f"{len(skipped)} partitions have"
    return [f"{of} no message of that time or later: the new offset is the end of the log"]


def _current(
    image: GroupImage,
    tp: TopicPartition,
    kafka: OffsetAndMetadata | int | str | None,
    storage: Storage,
) -> int | str | None:
    """Return the committed offset in `storage`; None if there is none; a string if it is
    unknown."""
    node = image.offsets.get(tp)
    here: int | str | None = None
    if node is not None:
        is_none = node.value is not None and node.value < 0
        here = None if is_none else (node.fault or None) if node.value is None else node.value
    there: int | str | None = kafka.offset if isinstance(kafka, OffsetAndMetadata) else kafka
    if storage is not Storage.DUAL:
        return here if storage is Storage.ZOOKEEPER else there
    values = [one for one in (here, there) if isinstance(one, int)]
    faults = [one for one in (here, there) if isinstance(one, str)]
    return faults[0] if faults else max(values, default=None)


def _partitions(
    connection: ZooKeeperClient, image: GroupImage, topics: Selection | None
) -> set[TopicPartition]:
    """Return the selected partitions; None selects those with an offset or an owner."""
    known = {tp for tp in (*image.offsets, *image.owners) if tp.partition >= 0}
    return known if topics is None else partitions_of(connection, topics)


def partitions_of(connection: ZooKeeperClient, topics: Selection) -> set[TopicPartition]:
    """Return the selected partitions. Raises ConfigError for an unknown topic or partition."""
    existing = read_partitions(connection, topics)
    found: set[TopicPartition] = set()
    for topic, numbers in topics.items():
        there = existing.get(topic, frozenset())
        if topic not in existing:
            raise ConfigError(
                f"topic {topic} does not exist",
                where=paths.topic(topic),
                remedy=unknown_topic_remedy(topic, connection),
                advice=Advice(RemedyOperation.LIST_TOPICS),
            )
        if missing := sorted((numbers or set()) - there):
            raise ConfigError(
                f"topic {topic} has no partition {missing[0]}",
                where=paths.topic(topic),
                remedy=f"the topic has {len(there)} partitions",
            )
        found |= {TopicPartition(topic, number) for number in numbers or there}
    return found


def select_topics(
    connection: ZooKeeperClient, group: str, pattern: str
) -> dict[str, frozenset[int] | None]:
    """Select the topics of a group's offsets and owners whose whole name matches a Java regex.

    Raises InvalidFilterError, UnknownGroupError, and ConfigError if no topic matches.
    """
    wanted = white_list(pattern)
    image = existing_group(connection, group, directories=(OFFSETS, OWNERS))
    topics = sorted({tp.topic for tp in (*image.offsets, *image.owners)})
    found: dict[str, frozenset[int] | None] = {}
    found |= dict.fromkeys(matching(wanted, topics, internal=frozenset()))
    if not found:
        raise ConfigError(
            f"no topic of group {group} matches {quoted(pattern)}",
            remedy=f"the group's topics are {first_few(topics, 20) or 'none'}",
        )
    return found
