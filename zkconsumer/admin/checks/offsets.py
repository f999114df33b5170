"""Offset znodes that cannot be read, that have no partition, or that point outside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zkconsumer.admin.findings import (
    ExaminedGroup,
    Finding,
    LogEnds,
    Severity,
    partitions_of,
)
from zkconsumer.errors import Advice, RemedyOperation
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import partitions_in
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import encode_offset

MALFORMED_OFFSET, EMPTY_OFFSET = "malformed-offset", "empty-offset"
OFFSET_OF_NOTHING = "offset-of-nothing"
BEYOND, BEHIND, UNKNOWN = "offset-beyond-log", "offset-behind-log", "log-unknown"


def offsets_to_compare(examined: ExaminedGroup) -> list[TopicPartition]:
    """Return the partitions whose logs the checks need: existing partitions that have an offset."""
    there = {
        topic: frozenset(partitions_in(topic, examined.topics)[0])
        for topic in {tp.topic for tp in examined.image.offsets}
    }
    return [
        tp
        for tp, node in examined.image.offsets.items()
        if node.value is not None and node.value >= 0 and tp.partition in there[tp.topic]
    ]


def of_offsets(examined: ExaminedGroup) -> Iterator[Finding]:
    """Yield what is wrong with the offsets in ZooKeeper."""
    yield from _malformed(examined)
    yield from _empty(examined)
    yield from _without_partition(examined)
    yield from _outside_the_log(examined)


def _malformed(examined: ExaminedGroup) -> Iterator[Finding]:
    for tp, node in examined.image.offsets.items():
        if not node.fault or not paths.is_topic(tp.topic):
            continue
        path = paths.offset(examined.group, tp)
        number = node.value
        fix = examined.fix(path, None if number is None else encode_offset(number))
        repair = (
            "delete it, so that auto.offset.reset applies"
            if number is None
            else f"replace it by {number}, which it plainly means"
        )
        yield Finding(
            Severity.ERROR,
            MALFORMED_OFFSET,
            examined.group,
            tp.topic,
            f"the offset of {partitions_of([tp.partition])}: {node.fault}",
            "the JVM member to which the partition is assigned fails in every rebalance, with"
            " NumberFormatException",
            repair,
            (tp.partition,),
            (fix,),
            examined.fix_advice,
        )


def _empty(examined: ExaminedGroup) -> Iterator[Finding]:
    by_topic: dict[str, list[int]] = {}
    for tp, node in examined.image.offsets.items():
        if node.is_empty and paths.is_topic(tp.topic):
            by_topic.setdefault(tp.topic, []).append(tp.partition)
    for topic, numbers in by_topic.items():
        leaves = (paths.offset(examined.group, TopicPartition(topic, one)) for one in numbers)
        yield Finding(
            Severity.ERROR,
            EMPTY_OFFSET,
            examined.group,
            topic,
            f"the offset znode{'s' if len(numbers) > 1 else ''} of {partitions_of(numbers)}"
            f" {'are' if len(numbers) > 1 else 'is'} empty",
            "to zkconsumer members this is no offset, but the JVM member to which the partition is"
            " assigned fails in every rebalance, with NumberFormatException; Flink's offset handler"
            " creates such znodes before it writes them",
            "delete it, so that auto.offset.reset applies",
            tuple(numbers),
            tuple(map(examined.fix, leaves)),
            examined.fix_advice,
        )


def _without_partition(examined: ExaminedGroup) -> Iterator[Finding]:
    by_topic: dict[str, list[int]] = {}
    for tp in examined.image.offsets:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    for topic, numbers in by_topic.items():
        there, fault = partitions_in(topic, examined.topics)
        known = frozenset(there)
        gone = tuple(number for number in numbers if number not in known)
        if not gone or fault or not paths.is_topic(topic):
            continue
        exists = topic in examined.topics
        if exists:
            leaves = (
                paths.offset(examined.group, TopicPartition(topic, number)) for number in gone
            )
            fixes = tuple(map(examined.fix, leaves))
        else:
            fixes = examined.fixes_of_tree(paths.offsets_of(examined.group, topic))
        yield Finding(
            Severity.WARNING,
            OFFSET_OF_NOTHING,
            examined.group,
            topic,
            f"{partitions_of(gone)}: there is an offset, but the topic "
            + ("has no such partition" if exists else "does not exist"),
            "if the topic is created again, the group starts at this offset, in the middle of the"
            " new log or beyond its end",
            "delete it",
            gone,
            fixes,
            examined.fix_advice,
        )


def _outside_the_log(examined: ExaminedGroup) -> Iterator[Finding]:
    for rule in (_BEYOND, _BEHIND):
        yield from _compared(examined, rule)
    reasons: dict[str, list[TopicPartition]] = {}
    for tp in examined.image.offsets:
        log = examined.logs.get(tp)
        if isinstance(log, str):
            reasons.setdefault(log, []).append(tp)
    for reason, tps in reasons.items():
        yield Finding(
            Severity.NOTE,
            UNKNOWN,
            examined.group,
            examined.group,
            f"the logs of {len(tps)} partition{'s' if len(tps) > 1 else ''}, such as {tps[0]}, are"
            f" unknown: {reason}",
            "their offsets were not compared with the logs",
            "check the brokers",
        )


@dataclass(frozen=True, slots=True)
class _OutsideRule:
    """One of the two ways in which an offset can be outside the log."""

    is_outside: Callable[[int, LogEnds], bool]
    severity: Severity
    code: str
    where: str
    why: str


_BEYOND = _OutsideRule(
    lambda value, log: value > log.end,
    Severity.ERROR,
    BEYOND,
    "beyond the end of the log",
    "the log was lost or created again; members apply auto.offset.reset when they fetch there",
)
_BEHIND = _OutsideRule(
    lambda value, log: value < log.start,
    Severity.WARNING,
    BEHIND,
    "before the start of the log",
    "messages were deleted before the group read them; members apply auto.offset.reset when they"
    " fetch there",
)


def _compared(examined: ExaminedGroup, rule: _OutsideRule) -> Iterator[Finding]:
    found: dict[str, list[tuple[int, int, LogEnds]]] = {}
    for tp, node in examined.image.offsets.items():
        log = examined.logs.get(tp)
        if log is None or isinstance(log, str) or node.value is None or node.value < 0:
            continue
        if rule.is_outside(node.value, log):
            found.setdefault(tp.topic, []).append((tp.partition, node.value, log))
    for topic, rows in found.items():
        numbers = tuple(row[0] for row in rows)
        first, value, log = rows[0]
        ends = f"{log.start} to {log.end}"
        if len(rows) == 1:
            text = f"the offset is {value}, {rule.where} ({ends})"
        else:
            text = f"the offset is {rule.where} (partition {first}: {value}, log {ends})"
        partitions = f"{topic}:{','.join(map(str, numbers))}"
        yield Finding(
            rule.severity,
            rule.code,
            examined.group,
            topic,
            f"{partitions_of(numbers)}: {text}",
            rule.why,
            "move it into the range of the log",
            numbers,
            advice=Advice(RemedyOperation.RESET_TO_CURRENT, examined.group, partitions),
        )
