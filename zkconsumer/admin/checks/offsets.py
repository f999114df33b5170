"""Offset nodes that cannot be read, that belong to nothing, or that point outside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zkconsumer.admin.findings import (
    ExaminedGroup,
    Finding,
    Log,
    Severity,
    fix_command,
    partitions_of,
)
from zkconsumer.protocol import paths
from zkconsumer.protocol.group_assignment import partitions_in
from zkconsumer.protocol.java.text import parse_int64
from zkconsumer.protocol.model import TopicPartition
from zkconsumer.protocol.payloads import encode_offset

MALFORMED_OFFSET, OFFSET_OF_NOTHING = "malformed-offset", "offset-of-nothing"
BEYOND, BEHIND, UNKNOWN = "offset-beyond-log", "offset-behind-log", "log-unknown"


def offsets_to_compare(case: ExaminedGroup) -> list[TopicPartition]:
    """Partitions whose log must be known: those that exist and have an offset."""
    there = {
        topic: frozenset(partitions_in(topic, case.topics)[0])
        for topic in {tp.topic for tp in case.image.offsets}
    }
    return [
        tp
        for tp, node in case.image.offsets.items()
        if node.value is not None and node.value >= 0 and tp.partition in there[tp.topic]
    ]


def of_offsets(case: ExaminedGroup) -> Iterator[Finding]:
    """What is wrong with the offsets in ZooKeeper."""
    yield from _malformed(case)
    yield from _of_nothing(case)
    yield from _beside_the_log(case)


def _malformed(case: ExaminedGroup) -> Iterator[Finding]:
    for tp, node in case.image.offsets.items():
        if not node.fault or not paths.is_topic(tp.topic):
            continue
        path = paths.offset(case.group, tp)
        number = _number(case.image.nodes[path].data)
        mend = case.mend(path, None if number is None else encode_offset(number))
        kept = "deletes it, and auto.offset.reset decides" if number is None else f"writes {number}"
        yield Finding(
            Severity.ERROR,
            MALFORMED_OFFSET,
            case.group,
            tp.topic,
            f"the offset of {partitions_of([tp.partition])}: {node.fault}",
            "a JVM member that is given the partition fails in every rebalance, with"
            " NumberFormatException",
            f"{fix_command(case.group)} ({kept})",
            (tp.partition,),
            (mend,),
        )


def _number(data: bytes | None) -> int | None:
    """The number that somebody wrote with blanks or a line feed around it, as `echo` does."""
    try:
        number = parse_int64((data or b"").decode().strip())
    except (UnicodeDecodeError, ValueError):
        return None
    return number if number >= 0 else None


def _of_nothing(case: ExaminedGroup) -> Iterator[Finding]:
    by_topic: dict[str, list[int]] = {}
    for tp in case.image.offsets:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    for topic, numbers in by_topic.items():
        there, fault = partitions_in(topic, case.topics)
        known = frozenset(there)
        gone = tuple(number for number in numbers if number not in known)
        if not gone or fault or not paths.is_topic(topic):
            continue
        exists = topic in case.topics
        if exists:
            leaves = (paths.offset(case.group, TopicPartition(topic, number)) for number in gone)
            mends = tuple(map(case.mend, leaves))
        else:
            mends = case.mends_of_tree(paths.offsets_of(case.group, topic))
        yield Finding(
            Severity.WARNING,
            OFFSET_OF_NOTHING,
            case.group,
            topic,
            f"{partitions_of(gone)}: an offset, and the topic "
            + ("has no such partition" if exists else "does not exist"),
            "when the topic is made anew, the group begins there in the middle of it, or beyond"
            " its end",
            fix_command(case.group),
            gone,
            mends,
        )


def _beside_the_log(case: ExaminedGroup) -> Iterator[Finding]:
    for off in (_BEYOND, _BEHIND):
        yield from _compared(case, off)
    reasons: dict[str, list[TopicPartition]] = {}
    for tp in case.image.offsets:
        log = case.logs.get(tp)
        if isinstance(log, str):
            reasons.setdefault(log, []).append(tp)
    for reason, tps in reasons.items():
        yield Finding(
            Severity.NOTE,
            UNKNOWN,
            case.group,
            case.group,
            f"the logs of {len(tps)} partition{'s' if len(tps) > 1 else ''}, such as {tps[0]}, are"
            f" unknown: {reason}",
            "offsets beyond or behind them were not looked for",
            "check the brokers",
        )


@dataclass(frozen=True, slots=True)
class _Off:
    """A way to be outside of the log."""

    is_off: Callable[[int, Log], bool]
    severity: Severity
    code: str
    where: str
    why: str


_BEYOND = _Off(
    lambda value, log: value > log.end,
    Severity.ERROR,
    BEYOND,
    "beyond the end of the log",
    "the log was lost or made anew: members go by auto.offset.reset when they fetch there",
)
_BEHIND = _Off(
    lambda value, log: value < log.start,
    Severity.WARNING,
    BEHIND,
    "before the first that the log still has",
    "messages were deleted before the group read them: members go by auto.offset.reset when they"
    " fetch there",
)


def _compared(case: ExaminedGroup, off: _Off) -> Iterator[Finding]:
    found: dict[str, list[tuple[int, int, Log]]] = {}
    for tp, node in case.image.offsets.items():
        log = case.logs.get(tp)
        if log is None or isinstance(log, str) or node.value is None or node.value < 0:
            continue
        if off.is_off(node.value, log):
            found.setdefault(tp.topic, []).append((tp.partition, node.value, log))
    for topic, rows in found.items():
        numbers = tuple(row[0] for row in rows)
        first, value, log = rows[0]
        ends = f"{log.start} to {log.end}"
        if len(rows) == 1:
            told = f"the offset is {value}, {off.where} ({ends})"
        else:
            told = f"the offset is {off.where} (partition {first}: {value}, log {ends})"
        yield Finding(
            off.severity,
            off.code,
            case.group,
            topic,
            f"{partitions_of(numbers)}: {told}",
            off.why,
            f"zkconsumer offsets reset --group {case.group} --topic"
            f" {topic}:{','.join(map(str, numbers))} --to-current --execute",
            numbers,
        )
