"""The report of a history: what happened to each group in a window of time, and why.

`report` returns rows for tables; `timeline` describes the same events line by line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from zkconsumer.errors import first_few
from zkconsumer.history.describe import Described
from zkconsumer.history.incidents import MOMENTARY
from zkconsumer.history.tables import (
    KAFKA,
    Commits,
    Event,
    Incident,
    Member,
    Ownership,
    Rebalance,
    Session,
    SessionClient,
    Tables,
)
from zkconsumer.times import time_text

R = TypeVar("R", Member, Rebalance, Commits, Incident)

MAX_LINES: Final = 40
"""Maximum numbers of incidents and of rebalances that a report of all groups lists; it only counts
further ones."""


class TimeSpan(NamedTuple):
    """A span of time in milliseconds since the epoch; None means no bound."""

    from_ms: int | None = None
    to_ms: int | None = None

    def overlaps(self, row: Event) -> bool:
        """Return whether the row's time, or its span, overlaps the window."""
        end = getattr(row, "ended_ms", None) or getattr(row, "last_ms", None)
        is_moment = isinstance(row, Incident) and row.kind in MOMENTARY
        lasts = end is None and hasattr(row, "ended_ms") and not is_moment
        before = self.to_ms is not None and row.time_ms > self.to_ms
        after = self.from_ms is not None and not lasts and (end or row.time_ms) < self.from_ms
        return not before and not after


def within(found: Described, window: TimeSpan) -> Described:
    """Return the rows that overlap a window of time."""
    if window == TimeSpan():
        return found
    tables = Tables(
        *(
            [row for row in getattr(found.tables, name) if window.overlaps(row)]
            for name in ("sessions", "members", "ownership", "rebalances", "commits", "incidents")
        )
    )
    return found._replace(tables=tables)


def seconds_text(milliseconds: float) -> str:
    """Return a duration as readable text."""
    if milliseconds < 120_000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds / 60_000:.1f} min"


# ---- report -------------------------------------------------------------------------------------


def report(found: Described) -> dict[str, list[dict[str, object]]]:
    """Return the sections of the report: groups, incidents and rebalances, as rows."""
    incidents = found.tables.incidents
    rebalances = sorted(found.tables.rebalances, key=_weight, reverse=True)[:MAX_LINES]
    return {
        "groups": [_group_row(found, *group) for group in found.groups],
        "incidents": [
            {
                "time": time_text(one.time_ms or None),
                "group": one.chroot + ("/" if one.chroot else "") + one.group,
                "kind": one.kind,
                "lasted": None
                if one.ended_ms is None
                else seconds_text(one.ended_ms - one.time_ms),
                "what": one.what,
                "store": one.store,
                **client_of(one)._asdict(),
                "zxid": None if one.store == KAFKA else f"0x{one.zxid:x}",
                "file": one.file,
            }
            for one in incidents[:MAX_LINES]
        ],
        "rebalances": [
            {
                "time": time_text(one.time_ms),
                "group": one.group,
                "trigger": triggers_text(one.triggers),
                "settled": _span(one.time_ms, one.settled_ms),
                "unowned_s": round(one.unowned_s, 1),
                "moved": one.moved,
                "refused": sum(one.refused.values()),
                "why": one.why,
                "zxid": f"0x{one.zxid:x}",
            }
            for one in sorted(rebalances, key=lambda row: row.zxid)
        ],
    }


def client_of(row: Session | Member | Ownership | Commits | Incident) -> SessionClient:
    return SessionClient(row.host, row.port, row.user)


def _span(begin_ms: int, end_ms: int | None) -> str | None:
    return None if end_ms is None else seconds_text(end_ms - begin_ms)


def _weight(row: Rebalance) -> tuple[bool, float]:
    return row.settled_ms is None, row.unowned_s


def triggers_text(triggers: list[str]) -> str:
    """Return the first triggers of a rebalance, and the number of the others."""
    return first_few(triggers, 2, separator="; ")


def _group_row(found: Described, chroot: str, group: str) -> dict[str, object]:
    def of(rows: Iterable[R]) -> list[R]:
        return [row for row in rows if (row.chroot, row.group) == (chroot, group)]

    tables = found.tables
    rebalances, runs = of(tables.rebalances), of(tables.commits)
    events = Counter(row.event for row in of(tables.members))
    return {
        "group": f"{chroot}/{group}" if chroot else group,
        "members": len({row.consumer for row in of(tables.members)}),
        "joined": events["joined"],
        "left": events["left"] + events["removed"],
        "expired": events["expired"],
        "rebalances": len(rebalances),
        "unsettled": sum(one.settled_ms is None for one in rebalances),
        "unowned_s": round(sum(one.unowned_s for one in rebalances), 1),
        "refused": sum(sum(one.refused.values()) for one in rebalances),
        "commits": sum(run.count for run in runs),
        "in_kafka": sum(run.count for run in runs if run.store == KAFKA),
        "moved_back": sum(run.before is not None and run.first < run.before for run in runs),
        "incidents": len(of(tables.incidents)),
    }
