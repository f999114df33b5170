"""Moving a group's offsets, in ZooKeeper and in Kafka: what is known of them, and the plan.

    with Connection(config) as connection:
        moved = plan_reset(
            connection, "billing", Reset(Kind.DURATION, now_ms - 3_600_000),
            topics={"orders": None}, limit_s=6.0,
        )
        apply(connection, moved.plan, backup_dir=Path("."))

In Kafka (`offsets.storage=kafka`) there are no versions: what is stored there is read back before
the first write, and then written. Brokers take it as long as nobody of the new consumer's kind is
in a group of that name.

Where an offset is to be moved: the kinds of `kafka-consumer-groups --reset-offsets`.

Pure: what the log and the group have is given. The rules are those of
`kafka.admin.ConsumerGroupCommand` (1.1): an offset outside the log is moved to its nearest end, and
where the log has no message of a time or later it is the log's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from zkconsumer.admin.group_changes import Targets, plan_offsets
from zkconsumer.admin.groups import (
    OFFSETS,
    OWNERS,
    GroupImage,
    read_groups,
    read_topic_names,
    read_topics,
    registered_brokers,
    unknown_group,
)
from zkconsumer.admin.plan import KafkaChange, Plan
from zkconsumer.errors import ConfigError, RefusedError, shown
from zkconsumer.kafka.logs import (
    LogRange,
    are_times_exact,
    committed_in_kafka,
    log_ends,
    offsets_at,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.filters import matching, white_list
from zkconsumer.protocol.group_assignment import partitions_in
from zkconsumer.protocol.model import OffsetAndMetadata, Storage, TopicPartition
from zkconsumer.protocol.payloads import Broker
from zkconsumer.zk.client import ZooKeeperClient

# ---- resets --------------------------------------------------------------------------------------


MAX_OFFSET: Final = 2**63 - 1


class Kind(Enum):
    """How the new offset is found; the values are the options of Kafka's tool."""

    EARLIEST = "to-earliest"  # where the log begins
    LATEST = "to-latest"  # where it ends
    OFFSET = "to-offset"  # this one
    DATETIME = "to-datetime"  # the first message of that instant or later
    DURATION = "by-duration"  # the same, so long ago
    SHIFT = "shift-by"  # so many messages on, or back where it is negative
    CURRENT = "to-current"  # as it is, but within the log
    FILE = "from-file"  # as a file says


@dataclass(frozen=True, slots=True)
class Reset:
    """A kind, and its number where it has one.

    `value`: an offset, a number of messages, or milliseconds since 1970.
    """

    kind: Kind
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetFacts:
    """A partition as it is: what is committed, the log's range, the answer by time.

    A text in place of a number says why it is not known. `wanted`: what a file says.
    """

    current: int | str | None
    log: LogRange | str
    at: int | str | None = None
    wanted: int | None = None


def resolve(
    reset: Reset, partitions: Mapping[TopicPartition, OffsetFacts]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """The new offset of each partition, and notes about those that the log's range has moved.

    Raises RefusedError, naming the partitions, where what is needed is not known: nothing is
    guessed, and no partition is left out silently.
    """
    targets: dict[TopicPartition, int] = {}
    notes: list[str] = []
    faults: list[str] = []
    for tp, known in partitions.items():
        aim = _aim(reset, known)
        if isinstance(aim, str):
            faults.append(f"{tp}: {aim}")
            continue
        targets[tp], note = _clamped(aim, known.log)
        if note:
            notes.append(f"{tp}: {note}")
    if faults:
        raise RefusedError(
            f"the new offset of {len(faults)} of {len(partitions)} partitions cannot be known",
            where="; ".join(faults[:5]),
            remedy="leave them out (--topic TOPIC:P,P...), or mend it",
        )
    return targets, notes


def _aim(reset: Reset, known: OffsetFacts) -> int | str:
    """The offset before the log's range is looked at, or why there is none."""
    match reset.kind:
        case Kind.EARLIEST:
            return known.log if isinstance(known.log, str) else known.log.start
        case Kind.LATEST:
            return _end(known)
        case Kind.DATETIME | Kind.DURATION:
            return _end(known) if known.at is None else known.at
        case Kind.SHIFT:
            if known.current is None:
                return "nothing is committed that could be shifted"
            shift = reset.value
            return known.current if isinstance(known.current, str) else known.current + shift
        case Kind.CURRENT:
            return _end(known) if known.current is None else known.current
        case Kind.FILE:
            return "the file does not name it" if known.wanted is None else known.wanted
        case Kind.OFFSET:
            return reset.value


def _end(known: OffsetFacts) -> int | str:
    return known.log if isinstance(known.log, str) else known.log.end


def _clamped(offset: int, log: LogRange | str) -> tuple[int, str]:
    if isinstance(log, str):
        return max(0, offset), f"not checked against the log: {log}"
    if offset < log.start:
        return log.start, f"{offset} is before the log, which begins at {log.start}"
    if offset > log.end:
        return log.end, f"{offset} is behind the log, which ends at {log.end}"
    return offset, ""


# ---- what people write --------------------------------------------------------------------------

_DURATION = re.compile(
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)
_UNITS_S = (7 * 86_400, 86_400, 3_600, 60, 1)


def parse_duration(text: str) -> float:
    """Seconds of an ISO 8601 duration such as PT1H30M or P7D; weeks to seconds, nothing negative.

    Years and months have no fixed length. Raises ConfigError.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ConfigError(
            f"{text[:80]!r} is no duration",
            where="--by-duration",
            remedy="ISO 8601, such as PT1H30M or P7D; weeks, days, hours, minutes, seconds",
        )
    *whole, fraction = match.groups()
    seconds = sum(int(n or 0) * unit for n, unit in zip(whole, _UNITS_S, strict=True))
    return seconds + float(f"0.{fraction or 0}")


def parse_instant(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 date and time; without a zone it is UTC.

    Kafka's tool takes its own machine's zone there. Raises ConfigError.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text[:80]!r} is no date and time",
            where="--to-datetime",
            remedy="ISO 8601, such as 2026-01-31T13:00:00.000 (UTC) or ...T13:00:00+01:00",
        ) from error
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    millis = round(aware.timestamp() * 1000)
    if millis < 0:
        raise ConfigError(
            f"{text[:80]!r} is before 1970",
            where="--to-datetime",
            remedy="--to-earliest is the beginning of the log",
        )
    return millis


def parse_offset(text: str, *, where: str) -> int:
    """An offset from 0 on. Raises ConfigError."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > MAX_OFFSET:
        raise ConfigError(
            f"{text[:80]!r} is no offset", where=where, remedy=f"a number from 0 to {MAX_OFFSET}"
        )
    return int(text)


def shown_instant(millis: int) -> str:
    """An instant as people read it, in UTC."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def at_most(texts: Iterable[str], number: int) -> list[str]:
    """The first of many texts, and how many more there are."""
    told = list(texts)
    more = len(told) - number
    return told if more <= 0 else [*told[:number], f"and {more} more like that"]


# ---- moving --------------------------------------------------------------------------------------


Selection = Mapping[str, frozenset[int] | None]
"""Topics, and which of their partitions: None for all."""

_NOTES: Final = 20  # of one kind, so many are shown
_ASKED: Final = 20
"""Groups whose offsets in Kafka are looked for to make a note, with a client for each; of others it
is said that it is not known."""


class Times(Enum):
    """Whether an answer by time of brokers before 0.10 will do, which know segments only."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


class Unknown(Enum):
    """What becomes of a group that nobody was ever in."""

    REFUSE = "refuse"
    MAKE = "make"


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A plan, and where the logs that it is about end, to show lag by."""

    plan: Plan
    ends: Mapping[TopicPartition, int]


# ---- plans --------------------------------------------------------------------------------------


def plan_reset(
    connection: ZooKeeperClient,
    group: str,
    reset: Reset,
    *,
    topics: Selection | None,
    limit_s: float,
    storage: Storage = Storage.ZOOKEEPER,
    times: Times = Times.EXACT,
    unknown: Unknown = Unknown.REFUSE,
    wanted: Mapping[TopicPartition, int] | None = None,
    kind: str = "offsets reset",
) -> OffsetMove:
    """Move a group's offsets as `kafka-consumer-groups --reset-offsets` does, within the logs.

    Args:
        topics: which topics and partitions; None: all that the group has offsets or owners of.
        limit_s: seconds for each question to the brokers.
        storage: where the offsets are kept; with both the larger one is what is shifted, and both
            get the same.
        times: by time, brokers before 0.10 answer with the beginning of a segment.
        wanted: the offsets, for `Kind.FILE`.

    Raises:
        UnknownGroupError: nobody was ever in the group.
        ConfigError: a topic or a partition does not exist, or there is none to move.
        RefusedError: something that is needed is not known, or only approximately.
    """
    image = read_groups(connection, [group], rooms=(OFFSETS, OWNERS)).get(group)
    if image is None and unknown is Unknown.REFUSE:
        raise unknown_group(group)
    there = image or GroupImage(group, {})
    partitions = sorted(_partitions(connection, there, topics) if wanted is None else wanted)
    if not partitions:
        raise ConfigError(
            f"group {group} has no offsets and no owners", remedy="name topics with --topic"
        )
    brokers = registered_brokers(connection)
    times_note = _by_time(brokers, reset, times)
    logs = log_ends(brokers, partitions, limit_s=limit_s)
    kafka = committed_in_kafka(brokers, group, partitions, limit_s=limit_s)
    at = _first_of(brokers, logs, reset.value, limit_s) if times_note else {}
    said = wanted or {}
    known = {
        tp: OffsetFacts(
            _current(there, tp, kafka.get(tp), storage), logs[tp], at.get(tp), said.get(tp)
        )
        for tp in partitions
    }
    targets, clamped = resolve(reset, known)
    plan = _plan(connection, kind, {group: targets}, {group: kafka}, storage=storage)
    notes = [*times_note, *at_most(clamped, _NOTES)]
    if storage is Storage.ZOOKEEPER and any(isinstance(one, tuple) for one in kafka.values()):
        notes.append(
            f"Kafka has offsets of group {group}, too, which members with offsets.storage=kafka"
            " read; --storage both moves those as well"
        )
    ends = {tp: log.end for tp, log in logs.items() if isinstance(log, LogRange)}
    return OffsetMove(plan.noted(*notes), ends)


def plan_import(
    connection: ZooKeeperClient,
    offsets: Mapping[str, Mapping[TopicPartition, int]],
    *,
    kind: str = "offsets import",
) -> Plan:
    """Set offsets in ZooKeeper exactly as they were exported; groups that are missing are made.

    Unlike `plan_reset` with `Kind.FILE` no broker is asked, so that it works where none is up;
    topics and partitions that do not exist are named by notes.
    """
    wanted = {tp for of in offsets.values() for tp in of}
    payloads = connection.read({paths.topic(tp.topic): None for tp in wanted})
    topics = {paths.locate(path).name: node.data for path, node in payloads.items()}
    existing = {topic: set(partitions_in(topic, topics)[0]) for topic in topics}
    missing = {
        f"topic {tp.topic} does not exist (any more)"
        if tp.topic not in existing
        else f"topic {tp.topic} has no partition {tp.partition}"
        for tp in wanted
        if tp.partition not in existing.get(tp.topic, ())
    }
    notes = at_most(sorted(missing), _NOTES)
    return plan_offsets(connection, kind, offsets, notes=notes)


def read_committed(
    connection: ZooKeeperClient,
    groups: Iterable[str],
    *,
    topics: Selection | None,
    limit_s: float,
    storage: Storage = Storage.ZOOKEEPER,
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """The committed offsets of these groups, and notes about what has none that can be read.

    From Kafka: of the topics that the group has offsets or owners of in ZooKeeper, or of `topics`.
    With both the larger one counts. Raises UnknownGroupError, ConfigError for an unknown topic.
    """
    names = list(groups)
    images = read_groups(
        connection, names, rooms=(OFFSETS,) if storage is Storage.ZOOKEEPER else (OFFSETS, OWNERS)
    )
    found: dict[str, dict[TopicPartition, int]] = {}
    notes: list[str] = []
    brokers = [] if storage is Storage.ZOOKEEPER else registered_brokers(connection)
    for name in names:
        if name not in images:
            raise unknown_group(name)
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
    return found, at_most(notes, _NOTES)


def kafka_notes(connection: ZooKeeperClient, groups: Iterable[str], *, limit_s: float) -> list[str]:
    """What is to be said of groups' offsets in Kafka where only those in ZooKeeper are changed.

    Looked for are the topics below a group's `offsets` and `owners`; all there are where it has
    none. What the brokers do not tell is a note as well. `limit_s`: seconds for each question.
    """
    names = list(groups)
    brokers = registered_brokers(connection)
    notes: list[str] = []
    for number, name in enumerate(names):
        more = len(names) - number - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        unknown = f"whether Kafka has offsets of group {name}{others}, too, is not known: "
        if number == _ASKED:
            return [*notes, f"{unknown}only {_ASKED} groups are looked at"]
        stored = committed_in_kafka(
            brokers, name, _ever_owned(connection, name), limit_s=limit_s
        ).values()
        if any(isinstance(one, OffsetAndMetadata) for one in stored):
            notes.append(
                f"Kafka has offsets of group {name}, too, which members with offsets.storage=kafka"
                " read; this is about those in ZooKeeper alone"
            )
        elif faults := [one for one in stored if isinstance(one, str)]:
            return [*notes, unknown + faults[0]]  # the next would be waited for as long
    return notes


def _ever_owned(connection: ZooKeeperClient, group: str) -> list[TopicPartition]:
    below = connection.children([paths.offsets(group), paths.owners(group)])
    topics = {name for names in below.values() for name in names}
    found = read_topics(connection, sorted(topics) or read_topic_names(connection))
    payloads = {name: one.node.data for name, one in found.items()}
    return [
        TopicPartition(name, number)
        for name in payloads
        for number in partitions_in(name, payloads)[0]
    ]


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
                    raise RefusedError("what Kafka has cannot be known", where=f"{tp}: {before}")
                if before is None or before.offset != offset:
                    changes.append(KafkaChange(group, tp, before, OffsetAndMetadata(offset)))
    in_zookeeper: Targets = {} if storage is Storage.KAFKA else targets
    plan = plan_offsets(connection, kind, in_zookeeper)
    return Plan.of(kind, plan.chroot, plan.changes, kafka=changes, notes=plan.notes)


def _by_time(brokers: Sequence[Broker], reset: Reset, times: Times) -> list[str]:
    """What is to be said of an answer by time; nothing where none is asked for."""
    if reset.kind not in (Kind.DATETIME, Kind.DURATION):
        return []
    told = f"the first messages from {shown_instant(reset.value)} on"
    if are_times_exact(brokers):
        return [told]
    if times is Times.EXACT:
        raise RefusedError(
            "brokers before 0.10 know the times of whole segments only",
            where="--to-datetime",
            remedy="--approximate takes the beginning of the last older segment, or of the log",
        )
    return [f"{told}, approximately: brokers before 0.10 know the times of whole segments only"]


def _first_of(
    brokers: Sequence[Broker],
    logs: Mapping[TopicPartition, LogRange | str],
    at_ms: int,
    limit_s: float,
) -> Mapping[TopicPartition, int | str | None]:
    found = offsets_at(brokers, logs, at_ms, limit_s=limit_s)
    if are_times_exact(brokers):
        return found
    # Where no segment is older all of the log may be from then on.
    starts = {tp: log if isinstance(log, str) else log.start for tp, log in logs.items()}
    return {tp: starts[tp] if one is None else one for tp, one in found.items()}


def _current(
    image: GroupImage, tp: TopicPartition, kafka: Any, storage: Storage
) -> int | str | None:
    """What counts as committed: an offset, None for none, or why it cannot be known."""
    node = image.offsets.get(tp)
    here: int | str | None = None
    if node is not None:
        here = node.fault if node.value is None else node.value if node.value >= 0 else None
    there: int | str | None = kafka.offset if isinstance(kafka, OffsetAndMetadata) else kafka
    if storage is not Storage.DUAL:
        return here if storage is Storage.ZOOKEEPER else there
    values = [one for one in (here, there) if isinstance(one, int)]
    faults = [one for one in (here, there) if isinstance(one, str)]
    return faults[0] if faults else max(values, default=None)


def _partitions(
    connection: ZooKeeperClient, image: GroupImage, topics: Selection | None
) -> set[TopicPartition]:
    """The partitions that are meant; all of a topic are those that the topic has."""
    known = {tp for tp in (*image.offsets, *image.owners) if tp.partition >= 0}
    return known if topics is None else partitions_of(connection, topics)


def partitions_of(connection: ZooKeeperClient, topics: Selection) -> set[TopicPartition]:
    """These topics' partitions. Raises ConfigError for a topic or a partition that is not there."""
    nodes = connection.read(map(paths.topic, topics))
    payloads = {paths.locate(path).name: node.data for path, node in nodes.items()}
    found: set[TopicPartition] = set()
    for topic, numbers in topics.items():
        there = set(partitions_in(topic, payloads)[0]) if topic in payloads else set()
        if topic not in payloads:
            raise ConfigError(
                f"topic {topic} does not exist",
                where=paths.topic(topic),
                remedy="`zkconsumer topics list` shows those there are",
            )
        if missing := sorted((numbers or set()) - there):
            raise ConfigError(
                f"topic {topic} has no partition {missing[0]}",
                where=paths.topic(topic),
                remedy=f"it has {len(there)}",
            )
        found |= {TopicPartition(topic, number) for number in numbers or there}
    return found


def select_topics(
    connection: ZooKeeperClient, group: str, pattern: str
) -> dict[str, frozenset[int] | None]:
    """The topics that a group has offsets or owners of and that match a Java regex, as a whole.

    Raises InvalidFilterError, UnknownGroupError, ConfigError where none does.
    """
    wanted = white_list(pattern)
    image = read_groups(connection, [group], rooms=(OFFSETS, OWNERS)).get(group)
    if image is None:
        raise unknown_group(group)
    topics = sorted({tp.topic for tp in (*image.offsets, *image.owners)})
    found: dict[str, frozenset[int] | None] = {}
    found |= dict.fromkeys(matching(wanted, topics, internal=frozenset()))
    if not found:
        raise ConfigError(
            f"no topic of group {group} matches {shown(pattern)}",
            remedy=f"it has {', '.join(topics[:20]) or 'none'}",
        )
    return found
