"""The timeline of a history: one line for each event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from zkconsumer.history.incidents import in_kafka, writer
from zkconsumer.history.report import client_of, seconds_text, triggers_text
from zkconsumer.history.tables import UNKNOWN, ZOOKEEPER, SessionClient, Tables, in_order
from zkconsumer.protocol.model import session_text


@dataclass(frozen=True, order=True)
class Line:
    """One line of a timeline."""

    zxid: int
    time_ms: int
    group: str
    kind: str
    what: str
    client: SessionClient = field(default=UNKNOWN, compare=False)
    store: str = ZOOKEEPER


def timeline(tables: Tables, to_ms: int | None = None) -> list[Line]:
    """Return the events up to `to_ms` by zxid; commits are summarised as runs.

    Events in Kafka have no zxid, and come in by their times.
    """
    lines = [*_member_lines(tables), *_owner_lines(tables), *_other_lines(tables)]
    return in_order(sorted(one for one in lines if to_ms is None or one.time_ms <= to_ms))


def _member_lines(tables: Tables) -> Iterator[Line]:
    for row in tables.members:
        what = f"{row.consumer} {row.event} (session {session_text(row.session)})"
        yield Line(row.zxid, row.time_ms, row.group, "member", what, client_of(row))


def _owner_lines(tables: Tables) -> Iterator[Line]:
    for row in tables.ownership:
        at = f"{row.topic}-{row.partition}"
        gap = "" if row.gap_ms is None else f" after {seconds_text(row.gap_ms)} without an owner"
        claimed = f"{row.thread} claimed {at}{gap}"
        yield Line(row.zxid, row.time_ms, row.group, "owner", claimed, client_of(row))
        if row.ended_ms is not None and row.ended_zxid is not None:
            what = f"{row.thread} no longer owns {at}: {row.ended}"
            yield Line(row.ended_zxid, row.ended_ms, row.group, "owner", what, client_of(row))


def _other_lines(tables: Tables) -> Iterator[Line]:
    for row in tables.rebalances:
        what = f"a rebalance began: {triggers_text(row.triggers)}"
        yield Line(row.zxid, row.time_ms, row.group, "rebalance", what)
    for run in tables.commits:
        who = writer(run)
        at = f"{run.topic}-{run.partition}{in_kafka(run)}"
        if run.begins in ("moved back", "edit"):
            what = f"{who} set {at} from {run.before} to {run.first} ({run.begins})"
        else:
            what = f"{who} began to commit {at} at {run.first}"
        yield Line(run.zxid, run.time_ms, run.group, "commit", what, client_of(run), run.store)
    for one in tables.incidents:
        what = f"{one.kind}: {one.what}"
        yield Line(one.zxid, one.time_ms, one.group, "incident", what, client_of(one), one.store)
