"""Where an offset is to be moved: the kinds of `kafka-consumer-groups --reset-offsets`.

Pure: what the log and the group have is given. The rules are those of
`kafka.admin.ConsumerGroupCommand` (1.1): an offset outside the log is moved to its nearest end, and
where the log has no message of a time or later it is the log's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from zkconsumer.core.model import TopicPartition
from zkconsumer.errors import ConfigError, RefusedError
from zkconsumer.kafka.logs import LogRange

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
class Known:
    """A partition as it is: what is committed, the log's range, the answer by time.

    A text in place of a number says why it is not known. `wanted`: what a file says.
    """

    current: int | str | None
    log: LogRange | str
    at: int | str | None = None
    wanted: int | None = None


def resolve(
    reset: Reset, partitions: Mapping[TopicPartition, Known]
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
            where="; ".join(faults[:5]), remedy="leave them out (--topic TOPIC:P,P...), or mend it",
        )
    return targets, notes


def _aim(reset: Reset, known: Known) -> int | str:
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


def _end(known: Known) -> int | str:
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
            f"{text[:80]!r} is no duration", where="--by-duration",
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
            f"{text[:80]!r} is no date and time", where="--to-datetime",
            remedy="ISO 8601, such as 2026-01-31T13:00:00.000 (UTC) or ...T13:00:00+01:00",
        ) from error
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    millis = round(aware.timestamp() * 1000)
    if millis < 0:
        raise ConfigError(
            f"{text[:80]!r} is before 1970", where="--to-datetime",
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
