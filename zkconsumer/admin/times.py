"""Durations and times as people type them.

The module imports little, so that a command that reads files only can use it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from datetime import time as Time

from zkconsumer.errors import ConfigError

_DURATION = re.compile(
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)
_TIME_OF_DAY = re.compile(r"(?:(today|yesterday) )?(\d\d:\d\d(?::\d\d)?)", re.ASCII)

_SHORT_DURATION = re.compile(
    r"(?:(\d{1,9})w)?(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?:in)?)?"
    r"(?:(\d{1,9})(?:\.(\d{1,9}))?s)?",
    re.ASCII,
)
_UNITS_S = (7 * 86_400, 86_400, 3_600, 60, 1)


def parse_duration(text: str, *, where: str = "duration") -> float:
    """Return the seconds of a duration, such as 30d, 1h30m, or PT1H30M in the form of ISO 8601.

    Years and months are rejected, since they have no fixed length. Raises ConfigError with `where`.
    """
    match = _DURATION.fullmatch(text) or _SHORT_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ConfigError(
            f"{text[:80]!r} is not a duration",
            where=where,
            remedy="use weeks, days, hours, minutes, seconds, such as 30d, 1h30m, PT1H30M or P7D",
        )
    *whole, fraction = match.groups()
    seconds = sum(int(n or 0) * unit for n, unit in zip(whole, _UNITS_S, strict=True))
    return seconds + float(f"0.{fraction or 0}")


def parse_instant(text: str, *, where: str = "time") -> int:
    """Return the milliseconds since 1970 of an ISO 8601 date and time, or of a time as people type
    it: 21:15 (the last one that has passed), today 03:00, yesterday 03:00, or 1h (an hour ago).

    The default zone is UTC; Kafka's tool uses the zone of its machine. Raises ConfigError with
    `where`.
    """
    try:
        found = _typed(text, datetime.now(UTC)) or datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{text[:80]!r} is not a date and time",
            where=where,
            remedy="use ISO 8601, such as 2026-01-31T13:00:00.000 (UTC) or ...T13:00:00+01:00, or"
            " 21:15, yesterday 03:00, or 1h (an hour ago)",
        ) from error
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    millis = round(aware.timestamp() * 1000)
    if millis < 0:
        raise ConfigError(
            f"{text[:80]!r} is before 1970",
            where=where,
            remedy="choose a time since 1970",
        )
    return millis


def _typed(text: str, now: datetime) -> datetime | None:
    """Return a time as people type it, in UTC; None for any other text."""
    if match := _SHORT_DURATION.fullmatch(text):
        return now - timedelta(seconds=parse_duration(text)) if any(match.groups()) else None
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    day, clock = match.groups()
    found = datetime.combine(now.date(), Time.fromisoformat(clock), tzinfo=UTC)
    if day == "yesterday" or (day is None and found > now):
        return found - timedelta(days=1)
    return found
