"""Times as text: those of servers and of commits, and the present."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["seconds", "milliseconds"]


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
