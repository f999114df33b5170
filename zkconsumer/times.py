"""Times and durations as text: those of servers and of commits, the present, and what people type.

The module imports little, and compiles an expression only when a text is read, because commands
that read files only use it, too.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from datetime import time as Time
from typing import Final, Literal, TypeAlias

from zkconsumer.errors import ConfigError

Precision: TypeAlias = Literal["seconds", "milliseconds"]

_DURATION: Final = (
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?"
)
_SHORT_DURATION: Final = (
    r"(?:(\d{1,9})w)?(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?:in)?)?"
    r"(?:(\d{1,9})(?:\.(\d{1,9}))?s)?"
)
_TIME_OF_DAY: Final = r"(?:(today|yesterday) )?(\d\d:\d\d(?::\d\d)?)"
_UNITS_S: Final = (7 * 86_400, 86_400, 3_600, 60, 1)


# ---- written ------------------------------------------------------------------------------------


def time_text(time_ms: int | None, precision: Precision = "milliseconds") -> str:
    """Return a time in ms since 1970 as ISO 8601 in UTC; "-" for None.

    A client chooses the time of its commit to Kafka, so the year may be beyond 9999; then the
    result is the number of milliseconds.
    """
    if time_ms is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def now_text(precision: Precision) -> str:
    """Return the present as `time_text` does."""
    return time_text(time.time_ns() // 1_000_000, precision)


# ---- read ---------------------------------------------------------------------------------------


def parse_duration(text: str, *, where: str = "duration") -> float:
    """Return the seconds of a duration, such as 30d, 1h30m, or PT1H30M in the form of ISO 8601.

    Years and months are rejected, since they have no fixed length. Raises ConfigError with `where`.
    """
    match = re.fullmatch(_DURATION, text, re.ASCII) or _short_duration(text)
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


def _short_duration(text: str) -> re.Match[str] | None:
    return re.fullmatch(_SHORT_DURATION, text, re.ASCII)


def _typed(text: str, now: datetime) -> datetime | None:
    """Return a time as people type it, in UTC; None for any other text."""
    if match := _short_duration(text):
        return now - timedelta(seconds=parse_duration(text)) if any(match.groups()) else None
    match = re.fullmatch(_TIME_OF_DAY, text, re.ASCII)
    if match is None:
        return None
    day, clock = match.groups()
    found = datetime.combine(now.date(), Time.fromisoformat(clock), tzinfo=UTC)
    if day == "yesterday" or (day is None and found > now):
        return found - timedelta(days=1)
    return found
